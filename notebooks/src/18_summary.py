# %% [markdown]
# # 18 · Summary: your engine whole
#
# *All of it on one page; two things that are built on top of it; and where it goes from here.*
#
# You will
#
# * see your engine as a whole: its map, its lines, its speed from chapter to chapter,
# * search with beams, on top of an engine that knows nothing of them,
# * have the model write several tokens in one call, and not one of them another,
# * export your engine as a package of its own, and put it through the tests of ours,
# * move a script to vLLM by one line, and review all 18 chapters.
#
# Plan 90 minutes; four exercises are 46 of them. Everything runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# At the end: this is the engine, and what of it is yours.

# %%
# %load_ext exercises
mine()

# %%
import tempfile
from functools import partial
from pathlib import Path

import figures
import torch

from exercises.kit import draft_work, summary_work
from exercises.kit.summary_work import answer, quiz
from nanovllm import LLM, BeamSearchParams, SamplingParams

torch.set_num_threads(1)  # everything here is measured on one core


def lab(exercise_id):
    """A function that is no part of the engine: yours if it is written, else ours."""
    me = mine(exercise_id)
    print(me.whose(exercise_id))
    return me.function(exercise_id)


# %% [markdown]
# ### Predict
#
# vLLM is more than a hundred thousand lines of Python. The core of this engine has all of its central ideas (paged
# cache, prefix cache, continuous batching, chunked prefill, preemption, tensor parallelism) in 2,000 lines of code,
# without levers, kernels, comments and docstrings.

# %%
predict("lines", "How many of these lines are the functions that this course has you write?")

# %%
me = mine()
parts = summary_work.lines(me)
reveal("lines", summary_work.lines_to_write(me))
figures.whose_lines(parts, summary_work.PARTS)

# %% [markdown]
# The functions that you write are few lines, and they are those on which everything depends. The rest carries them:
# signatures, checks of what comes in, what goes out.
#
# ## The whole staircase
#
# The fixed work of all chapters, from the naive loop on. What you see was measured on this machine, each step on the
# day you came by.

# %%
staircase("18")

# %% [markdown]
# ## Greedy is not the best
#
# Greedy decoding takes the most likely token, then the most likely one after it. Is the text that comes out the most
# likely text? The engine can tell: asked for log-probabilities, it gives those of its best tokens. A text's own is
# their sum.

# %%
OPTIONS = {"device": "cpu", "disabled_optimizations": "all", "kvcache_block_size": 4, "num_kvcache_blocks": 512}
llm = LLM("qwen3-tiny", max_model_len=256, **OPTIONS)
prompt = llm.tokenizer.encode("Once upon a time, a little bear")


def ask(texts, width=4):
    """For each text its likeliest next tokens, with their log-probabilities: one step for all of them."""
    one = SamplingParams(temperature=0, max_tokens=1, logprobs=2 * width)
    return [out["logprobs"][0] for out in llm.generate(texts, one, use_tqdm=False)]


(greedy,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=10, logprobs=1), use_tqdm=False)
greedy_sum = sum(row[i] for row, i in zip(greedy["logprobs"], greedy["token_ids"], strict=True))
print(repr(greedy["text"]), f"sum of log-probabilities: {greedy_sum:.2f}")

# %% [markdown]
# ### Predict
#
# A search follows four texts side by side for the same ten tokens, and always keeps the four most likely.

# %%
predict("times", "The best text that it finds: how many times as likely as the greedy one is it?")

# %% [markdown]
# ### Beam search
#
# You need nothing of the engine but `ask`. A beam is a request for one token; all beams of a step are one batch; and
# what they have in common, they find in the prefix cache.

# %%
# {{exercise ch18.beam_search}}

# %%
# Plugged in: your loop, on top of an engine.
beam_search, calls = lab("ch18.beam_search"), []


def noted(texts):
    calls.append(texts)
    return ask(texts)


beams = beam_search(noted, prompt, 4, 10, set(llm.config.eos))
for tokens, total in beams:
    print(f"{total:6.2f}  {llm.tokenizer.decode(tokens)!r}")
reveal("times", round(torch.tensor(beams[0][1] - greedy_sum).exp().item(), 1))

# %%
figures.tree_of_beams(calls, len(prompt), lambda i: llm.tokenizer.decode([i]).strip() or "_", beams[0][0])

# %% [markdown]
# Look where the best text ran second or third for a while: a greedy choice would have given it up there. And look how
# similar the four are. More beams find likelier texts, up to a point:

# %%
for width in (1, 2, 4, 8):
    found = beam_search(partial(ask, width=width), prompt, width, 24, set(llm.config.eos))
    print(f"{width} beams: {found[0][1]:6.2f}  {llm.tokenizer.decode(found[0][0])!r}")

# %% [markdown]
# Likely is not the same as good. Stories become flatter with beams, and may repeat themselves; where one answer is
# right, as in translation, they help. The engine has them built in, with the score of vLLM, which divides the sum by a
# power of the length:

# %%
found = llm.beam_search([prompt], BeamSearchParams(beam_width=4, max_tokens=10, length_penalty=0))
print("the same four as yours:", [beam.tokens[len(prompt) :] for beam in found[0].sequences] == [t for t, _ in beams])
llm.exit()

# %% [markdown]
# ## Several tokens in one call
#
# A decode step reads all weights for one token of each sequence. With one reader it waits for memory, and arithmetic
# has nothing to do (chapter 2). Could it check tokens that somebody has guessed, meanwhile?
#
# A call of the model on *text + draft* tells what the model would write at **each** place of the draft, as a prefill
# does. The keys and values of the text are in the prefix cache, so only the draft is computed.
#
# ### Predict

# %%
predict("five", "How many times as long as a call for one token does a call for five take, on one core here?")

# %%
llm = LLM("qwen3-tiny", **draft_work.OPTIONS)
one, five = draft_work.seconds_of_calls(llm, (1, 5))
print(f"MEASURED NOW: {1000 * one:.1f} ms for one token, {1000 * five:.1f} ms for five")
reveal("five", round(five / one, 1))

# %% [markdown]
# Far less than five times as long. On a GPU, with a large model, both take the same time, nearly. So guessing right
# pays, and guessing wrong costs little.
#
# ## Who guesses?
#
# The cheapest guess needs no model at all. Texts repeat themselves: if the last words stood there before, what
# followed them then may follow now. This is **n-gram** speculation, or prompt lookup.

# %%
# {{exercise ch18.propose}}

# %%
propose = lab("ch18.propose")
text = llm.tokenizer.encode("The fox met a hen. The hen had an egg. The fox met")
print([llm.tokenizer.decode([i]) for i in propose(text, 2, 4)])

# %% [markdown]
# ## What one call tells
#
# The model has read the draft and said, for each place, what it would have written. How much of that is sure to be what
# greedy decoding writes?
#
# ### Predict
#
# The text is "a b". The draft is "c d e f". At the five places the model would write "c d x f g".

# %%
choices = ["c d", "c d x", "c d x f", "c d e f"]
predict("sure", "Which tokens are sure to follow in the greedy text?", choices=choices)

# %%
# {{exercise ch18.accept}}

# %%
accept = lab("ch18.accept")
reveal("sure", " ".join(map(chr, accept([*map(ord, "cdef")], [*map(ord, "cdxfg")], ()))))

# %% [markdown]
# This is all that is missing: propose, call, accept, until the answer is complete. Every call is a request of its own
# to an engine with blocks of one token, so that all that was computed before is found again.
#
# {{source exercises/kit/draft_work.py:speculate}}

# %% [markdown]
# ### Predict
#
# Five questions to the small model. `propose` looks for the last token only (n=1) and proposes four.

# %%
for name, question in draft_work.QUESTIONS.items():
    print(f"{name:9} {question}")
predict("gains", "With which of them does a call add most tokens?", choices=list(draft_work.QUESTIONS))

# %%
found, answers, same = {}, {}, []
for n in (1, 2, 3):
    for name, question in draft_work.QUESTIONS.items():
        asked = llm.apply_chat_template([{"role": "user", "content": question}])
        answers[name, n] = draft_work.speculate(llm, asked, partial(propose, n=n, k=4), accept, 160)
        found.setdefault(f"n={n}", {})[name] = draft_work.tokens_per_call(answers[name, n])
        plain = llm.generate([asked], SamplingParams(temperature=0, max_tokens=160), use_tqdm=False)[0]["token_ids"]
        same.append(draft_work.answer_of(answers[name, n]) == plain)
print("the text is that of plain greedy decoding:", f"{sum(same)} of {len(same)} times")
reveal("gains", max(found["n=1"], key=found["n=1"].get))

# %%
figures.calls_saved(found)
figures.drafts(answers["repeat", 1], lambda i: llm.tokenizer.decode([i]))

# %% [markdown]
# Where a text comes back, half of the calls are saved; in a list the commas are guessed right, and not the numbers; in
# a story, next to nothing. A longer n is right more often and finds less: in these short texts n=1 wins.
#
# Steps saved are not yet seconds saved. Here is the time of the same answers on one core: plain, by an engine with
# blocks of 16, and with drafts.

# %%
plain_llm = LLM("qwen3-tiny", **draft_work.OPTIONS | {"kvcache_block_size": 16, "num_kvcache_blocks": 128})
for name in ("repeat", "primes", "story"):
    question, guess = draft_work.QUESTIONS[name], partial(propose, n=1, k=4)
    plain, drafted = draft_work.seconds_of_answers(plain_llm, llm, question, guess, accept)
    print(f"MEASURED NOW: {name:7} plain {1000 * plain:4.0f} ms, with drafts {1000 * drafted:4.0f} ms")
plain_llm.exit()

# %% [markdown]
# Honest numbers: the plain column is the engine's decode loop; the other makes a request of each call, which costs time
# beside the model, and a small model on a CPU has no idle arithmetic to give away. Drafts pay where a step waits for
# memory: a large model, few readers. With 256 readers the batch needs the arithmetic, and wrong guesses take it from
# others.

# %% [markdown]
# ## Better guesses
#
# This exercise is open. A server has written many answers before yours, and what it wrote may be read. 32 stories of
# the small model are given; on 16 others the calls are counted, with drafts of at most four tokens. `propose` with n=1
# comes to 1.17 tokens a call. 2.5 counts; 3 is good.

# %%
# {{exercise ch18.my_proposer}}

# %%
my_proposer = lab("ch18.my_proposer")(draft_work.seen())
scores = {f"propose, n={n}": draft_work.judge(partial(propose, n=n, k=4)) for n in (2, 1)}
scores["my_proposer"] = draft_work.judge(my_proposer)
figures.bars(scores, "tokens a call, 16 stories that nobody has seen; dashed: the bar", "{:.2f}", limit=draft_work.BAR)

# %%
# Plugged in: a story that neither of you knows, written by the engine with your drafts.
asked = llm.apply_chat_template([{"role": "user", "content": "Tell me a story about a green boat."}])
calls = draft_work.speculate(llm, asked, my_proposer, accept, 160)
plain = llm.generate([asked], SamplingParams(temperature=0, max_tokens=160), use_tqdm=False)[0]["token_ids"]
print(f"{draft_work.tokens_per_call(calls):.2f} tokens a call; same text: {draft_work.answer_of(calls) == plain}")
figures.drafts(calls, lambda i: llm.tokenizer.decode([i]))
llm.exit()

# %% [markdown]
# One more word of honesty: these stories were made by a program, with a few hundred phrases, and a book of phrases
# is an easy teacher. For texts of people, small *models* draft: a small one of the same family, or a head on the large
# one's hidden states.
#
# ## Your engine, as a package
#
# The milestone of this chapter: your engine leaves the course. `export` writes a package of its own, with the model in
# it. Nothing in it knows of exercises. Its tests are the quick ones of our engine: sequences, blocks, scheduler,
# layers, and whole texts beside Hugging Face's, all levers off, so that every function of yours is in use.

# %%
me = mine()
folder = Path(tempfile.mkdtemp())
package = summary_work.project(me, folder)  # me.export(folder / "nanovllm"), and tests beside it
print(sum(len(path.read_text().splitlines()) for path in package.rglob("*.py")), "lines in", package.name)
passed, said = summary_work.run_tests(folder)
print("all passed:", passed)
print(said)

# %% [markdown]
# A check asks for what a docstring promises. Our tests know our own code, and some also ask for what a docstring leaves
# open: the words of a message, a detail inside. So a right function can fail such a test. What fails is named: read
# what it asks for, and decide whether your engine needs it.
#
# To keep it: `mine().export("my_engine")`, and then, in any program, `from my_engine import LLM`.
#
# ### Predict
#
# Now its speed, beside ours. Both do the same work in turn: 32 requests, levers on, but for those that would go
# around what you have written.

# %%
predict("share", "Which share of our speed does your engine have?", unit="%")

# %%
ours, own = summary_work.side_by_side(me)
reveal("share", round(100 * summary_work.kept_speed(ours, own)))
figures.two_engines(ours, own)

# %% [markdown]
# The fastest runs of both are compared, because a laptop does other things, too, and those only make a run slower. 99 %
# is the aim, and two engines with the very same code differ by a percent or two here. Well below that, one of your
# functions does more than it has to; chapter 17 says how to find out which.

# %% [markdown]
# ## A second model
#
# How much of an engine is the model? Take Llama. Its checkpoints have the same names as Qwen3's, its layers the same
# order: norm, attention, norm, MLP, two sums.
#
# | | Qwen3 | Llama |
# |---|---|---|
# | norm of queries and keys, before the rotation | yes | no |
# | biases in attention | optional, off | optional, off |
# | biases in the MLP | no | optional, off |
# | size of a head | given | often hidden size / heads |
# | rotation for long texts | one base | from 3.1 on, slow pairs slowed down |
# | packed weights, KV heads, head, sampling, cache | the same | the same |

# %% [markdown]
# ### Predict

# %%
choices = ["scheduler and block manager", "only a class for the model", "attention and its kernels"]
predict("llama", "What of this engine has to be written anew for Llama?", choices=choices)

# %%
from nanovllm.models import MODELS

first, second = MODELS.values()
reveal("llama", choices[1] if issubclass(second, first) else choices[2])
print("this engine runs:", *MODELS)

# %% [markdown]
# This is all of it, but for the table of slow pairs: what it has unlike Qwen3.
#
# {{source nanovllm/models/llama.py:LlamaForCausalLM}}
#
# Another extension of ours keeps the weights of linear layers as whole numbers of one byte, with a scale for each
# output. It is off by default: what it frees becomes blocks of the cache, and each product takes longer.
#
# {{source nanovllm/levers/weight_int8.py:Int8Linear}}

# %%
small = {"device": "cpu", "kvcache_block_size": 16, "num_kvcache_blocks": 32, "max_model_len": 128}
for quantization in (None, "int8"):
    with LLM("qwen3-tiny", quantization=quantization, disabled_optimizations=("packed_weights",), **small) as other:
        size = sum(param.nbytes for param in other.llm_engine.model_runner.model.parameters())
        (out,) = other.generate("Once upon a time, a fox", SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    print(f"{quantization or 'float32':7} {size / 2**20:5.1f} MiB of weights: {out['text']!r}")

# %% [markdown]
# ## On to vLLM
#
# Names and meanings in this engine are those of vLLM. A script moves by one line:
#
# ```python
# from vllm import LLM, SamplingParams  # was: from nanovllm import LLM, SamplingParams
#
# llm = LLM("Qwen/Qwen3-0.6B", max_model_len=4096, gpu_memory_utilization=0.9)
# params = SamplingParams(temperature=0.6, top_p=0.95, max_tokens=256, seed=1, logprobs=2)
# for out in llm.generate(["Hello, my name is", "The sea is"], params):
#     print(out.outputs[0].text, out.outputs[0].finish_reason)
# ```
#
# And a program that asks a server moves by one address. `vllm serve Qwen/Qwen3-0.6B` listens where
# `python -m nanovllm.serve` does:
#
# ```python
# from openai import OpenAI
#
# address = "http://gpu-machine:8000/v1"  # was: "http://127.0.0.1:8000/v1"
# client = OpenAI(base_url=address, api_key="any")
# answer = client.completions.create(model="Qwen/Qwen3-0.6B", prompt="One day", max_tokens=80)
# print(answer.choices[0].text)
# ```

# %% [markdown]
# Our answers can be read both ways, as a dict and as vLLM's objects; vLLM's only as objects. What vLLM does beyond this
# engine, and where to read it:
#
# | what | its gain | where in vLLM |
# |---|---|---|
# | mixed steps: prefill and decode in one | no pauses while others arrive | `vllm/v1/core/sched/scheduler.py` |
# | speculative decoding: n-grams, EAGLE, drafts | fewer steps for few readers | `vllm/v1/spec_decode/` |
# | weights and cache in 4 to 8 bits | fewer bytes | `vllm/model_executor/layers/quantization/` |
# | many LoRA adapters on one model | one server for many fine-tunes | `vllm/lora/` |
# | prefill and decode on different machines | neither disturbs the other | `vllm/distributed/kv_transfer/` |
# | structured output: JSON, grammars | answers that programs can read | `vllm/v1/structured_output/` |
# | experts, images, sound | other models | `vllm/model_executor/models/`, `vllm/multimodal/` |
# | other hardware | AMD, TPU, CPU, ... | `vllm/platforms/` |

# %% [markdown]
# You know where each of them would go: mixed steps change `schedule` and the runner's inputs; quantization is another
# `multiply` of a linear layer; LoRA adds a small product to it; structured output is a mask on logits, before your
# sampler.
#
# ## Review
#
# 18 questions, one a chapter. Answer all before you run the cell that reveals them.

# %%
predict("quiz 01", *quiz("01"))
predict("quiz 02", *quiz("02"))
predict("quiz 03", *quiz("03"))
predict("quiz 04", *quiz("04"))
predict("quiz 05", *quiz("05"))
predict("quiz 06", *quiz("06"))

# %%
predict("quiz 07", *quiz("07"))
predict("quiz 08", *quiz("08"))
predict("quiz 09", *quiz("09"))
predict("quiz 10", *quiz("10"))
predict("quiz 11", *quiz("11"))
predict("quiz 12", *quiz("12"))

# %%
predict("quiz 13", *quiz("13"))
predict("quiz 14", *quiz("14"))
predict("quiz 15", *quiz("15"))
predict("quiz 16", *quiz("16"))
predict("quiz 17", *quiz("17"))
predict("quiz 18", *quiz("18"))

# %%
reveal("quiz 01", answer("01"))
reveal("quiz 02", answer("02"))
reveal("quiz 03", answer("03"))
reveal("quiz 04", answer("04"))
reveal("quiz 05", answer("05"))
reveal("quiz 06", answer("06"))
reveal("quiz 07", answer("07"))
reveal("quiz 08", answer("08"))
reveal("quiz 09", answer("09"))
reveal("quiz 10", answer("10"))
reveal("quiz 11", answer("11"))
reveal("quiz 12", answer("12"))
reveal("quiz 13", answer("13"))
reveal("quiz 14", answer("14"))
reveal("quiz 15", answer("15"))
reveal("quiz 16", answer("16"))
reveal("quiz 17", answer("17"))
reveal("quiz 18", answer("18"))
print("\n" + summary_work.score())

# %% [markdown]
# ## Change it
#
# * Let `ask` return all tokens that have at least 1 % (`logprobs=20`). Does a wider choice change the best text?
# * Divide each sum by the number of tokens when beams are compared. Which texts win now?
# * Draft eight tokens in place of four. What of it is right, and what of it in vain?
# * Combine both proposers: the text itself first, the seen stories where it has nothing.
# * Spoil a function of yours so that it is right and slow (`time.sleep(0.001)` in `schedule`), and measure again.
# * Export your engine, delete `levers/` and the import of `make_engine` from it, and make it run.

# %% [markdown]
# ## Recap
#
# 1. The engine is about 2,000 lines, and the few that matter most are those that you wrote.
# 2. Beam search is a loop around requests for one token; batch and prefix cache make it cheap.
# 3. A draft may be wrong, the text may not: every token that is added is the model's own choice.
# 4. Speculation saves steps, and pays where steps wait for memory and guesses are right.
# 5. A model is a class. Everything else, from blocks to sampling, never asks which one it serves.

# %% [markdown]
# ## Explain it aloud
#
# * How does a prompt become the first token? Name all parts, in order.
# * Why is the text with drafts exactly the greedy one, although the drafts come from anywhere?
# * Somebody has one GPU and 200 readers, and wants speculative decoding. What do you say?
#
# <details><summary>Answers of three grades to the last; say yours first</summary>
#
# *Weak:* it is faster, it saves steps.
#
# *Good:* with 200 readers the batch uses the arithmetic; a wrong draft takes it from others. Measure first.
#
# *Excellent:* and it depends on what a step waits for: with long texts it is keys and values, which the tokens of a
# draft share, so drafts may still pay. And on how many are right: repeated texts yes, sampled stories no.
#
# </details>

# %% [markdown]
# ## Read further
#
# * Leviathan, Kalman and Matias, *Fast Inference from Transformers via Speculative Decoding*, ICML 2023, section 2.
# * In vLLM: `vllm/v1/spec_decode/ngram_proposer.py`, `vllm/v1/sample/rejection_sampler.py`, `vllm/beam_search.py`.
# * Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023: you have
#   built it; section 4.4 has beams on shared blocks.
# * Li et al., *EAGLE*, ICML 2024: drafts from the model's own hidden states.
# * Holtzman et al., *The Curious Case of Neural Text Degeneration*, ICLR 2020: why the likeliest text is dull.
#
# This was the last chapter. What you have now, you can read, measure and change.
