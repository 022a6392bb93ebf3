"""An engine for many people at once, over HTTP: OpenAI's interface, for the clients they have.

Needs the extra `serve`: `pip install -c constraints.txt -e ".[serve]"`. The engine knows nothing of
it, and it uses what `LLM` shows to everybody. In a terminal it is `python -m nanovllm.serve MODEL`;
in a notebook, `with Server(llm) as server: ...` of `server.py`, with the address in `server.url`.

`engine_loop.py` steps the engine, `bodies.py` has what clients may ask for, `answers.py` both forms
of an answer, `metrics.py` what is counted, `server.py` the routes, sockets and signals.
vLLM's server is in vllm/entrypoints/openai.
"""
