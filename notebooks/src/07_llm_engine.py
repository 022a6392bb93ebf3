# %% [markdown]
# # 7 · The engine
#
# *The loop that makes an engine of the parts, and what it does when something goes wrong.*
#
# You will
#
# * make single steps by hand, and see a request come in, go on, and leave,
# * write the engine's step, what is done with its tokens, and `generate`,
# * get the first token out of your own loop,
# * break the engine in several ways, and see what is left of the answers,
# * stream to several readers, read the metrics, and see what a chat finds in the cache.
#
# Plan 80 minutes; three exercises are 37 of them. Two more wait at the end, of a quarter of an hour each. Everything
# runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# The block manager hands out memory, and the scheduler decides who computes what. Two things are missing: somebody
# who has the model compute it, again and again, and somebody who talks to the outside.

# %%
# %load_ext exercises
import logging
from itertools import pairwise

import figures
import torch
from faults import at_most, count_steps, plant, try_again

from exercises.kit import talk_work
from nanovllm import LLM, SamplingParams
from nanovllm.viz import BlockTable, Timeline
from nanovllm.viz.record import record

# Blocks of four tokens, so that pictures have room. Without the levers of chapter 17.
SMALL = {"kvcache_block_size": 4, "num_kvcache_blocks": 100, "max_model_len": 256, "device": "cpu"}
SMALL |= {"max_num_seqs": 8, "enable_prefix_caching": True, "disabled_optimizations": "all"}
logging.disable(logging.WARNING)  # the engine warns of very small pools; here they are wanted


def greedy(max_tokens, **more):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)


mine()

# %% [markdown]
# ## By hand
#
# `add_request` queues a prompt and gives it a number. `step` makes one step, and reports the requests that are done,
# and how many tokens it computed: positive for a prefill, negative for a decode.

# %%
llm = LLM("qwen3-tiny", **SMALL)
llm.add_request("Once upon a time there was", greedy(5))
llm.add_request("The sun was warm", greedy(2))
while not llm.is_finished():
    finished, num_tokens = llm.step()
    print(f"{num_tokens:3} tokens", *[f"  request {i} is done: {llm.tokenizer.decode(t)!r}" for i, t in finished])

# %% [markdown]
# ### Predict
#
# Both calls below are allowed.

# %%
predict("how many", "llm.generate([12, 7, 5, 9]) and llm.generate(['12', '7', '5', '9']): how many answers, together?")

# %%
answers = llm.generate([12, 7, 5, 9], greedy(2), use_tqdm=False)
more = llm.generate(["12", "7", "5", "9"], greedy(2), use_tqdm=False)
reveal("how many", len(answers) + len(more))

# %% [markdown]
# A prompt is a string, or a list of token ids: then no tokenizer is asked, and you decide exactly what the model reads.
# Tests do that, benchmarks, and programs that have tokenized already. So a list of numbers is *one* prompt; who means
# several gives several lists.
#
# ## The way of a request
#
# Two classes share the work. `LLM` knows text; `LLMEngine` knows token ids, and has a loop. Between them is an
# **inbox**, and only the loop reads it. Green is what you can write in this chapter; `_read_inbox` waits at its end,
# for those who have time. `generate`, also yours, is a loop around all of it.

# %%
figures.through_the_engine()

# %% [markdown]
# A `Sequence` is what the scheduler works with. What its reader needs besides is in a `Request`
# (`nanovllm/engine/request.py`):
#
# | | |
# |---|---|
# | `seq` | the sequence: `seq.is_finished`, and `seq.num_completion_tokens`, how many it has written |
# | `take_in(token_id, logprobs)` | takes a new token in; returns the stop string that it completes, or None |
# | `num_final` | how many generated tokens are never taken back |
# | `is_finished` | the sequence has ended, and all of it is final |
#
# Mind `num_final`: it will become important when something breaks.
#
# ## One step
#
# The step is the heart of the engine, and short. You know two of its parts, `schedule` and `postprocess`, and this
# counts the tokens and notes the time:
#
# {{source nanovllm/engine/llm_engine.py:LLMEngine.note_start}}
#
# The fourth part is the model's. `model_runner.run(seqs, is_prefill)` returns two lists, with an entry for each
# sequence: the sampled token (None for a prompt that was cut), and log-probabilities. How it does that is chapter 8.
# The fifth, the engine's `take_in(seqs, token_ids, logprobs)`, tells all requests; you write it next.


# %%
# Without run_step a request waits for ever; at_most stops asking after 20 steps.
bare = at_most(20, without("ch07.run_step").LLM("qwen3-tiny", **SMALL), ["Once upon a time"], greedy(4))
print("without run_step: waiting", len(bare.scheduler.waiting), "running", len(bare.scheduler.running))

# %%
# {{exercise ch07.run_step}}

# %%
# Plugged in: your step. Prompts of different lengths, and a budget of 12 tokens a step.
me = mine()
print(me.whose("ch07.run_step"))
texts = ["Once upon a time there was a little cat who", "The sun was warm", "One day, Tom and Mia went to the park"]
Timeline(record(me.LLM("qwen3-tiny", **SMALL, max_num_batched_tokens=12), texts, greedy(6), keep_error=True))

# %% [markdown]
# ## What becomes of the tokens
#
# The scheduler has been told: it has appended the tokens. What is missing?
#
# ### Predict
#
# Below is an engine without `take_in`. Two requests want four tokens each. It may make 20 steps.

# %%
predict(
    "no take_in",
    "What is the state of affairs after 20 steps?",
    choices=["nothing was computed", "all was computed, and nobody is told", "each request has one token"],
)

# %%
bare = without("ch07.take_in").LLM("qwen3-tiny", **SMALL)
at_most(20, bare, ["Once upon a time", "The sun was"], greedy(4))
# An engine's `added` has the requests that were added and are not done, by their numbers.
written = [request.seq.num_completion_tokens for request in bare.added.values()]
print(f"tokens written: {written}, final: {[request.num_final for request in bare.added.values()]}")
print(f"the scheduler is finished: {bare.scheduler.is_finished()}; the engine is: {bare.is_finished()}")
choices = ["nothing was computed", "all was computed, and nobody is told", "each request has one token"]
reveal("no take_in", choices[1] if sum(written) == 8 else choices[0])

# %% [markdown]
# All the work was done, and `generate` would wait for ever: a request counts as finished when all it has written is
# *final*.
#
# There is one more thing to do. A **stop string** such as `"\n"` or `"END"` is text: it may begin in the middle of a
# token, and take several. The scheduler knows only tokens. So `Request.take_in` reads its token as text and says
# whether a stop string is complete. Then the answer is over, whatever the scheduler thought.

# %%
# {{exercise ch07.take_in}}

# %%
# Plugged in: three wishes for the same prompt, two of them with a stop string.
me = mine()
print(me.whose("ch07.take_in"))
wishes = [greedy(12), greedy(12, stop=["girl", "valley"]), greedy(40, stop=["."])]
with me.LLM("qwen3-tiny", **SMALL) as llm:
    for answer in llm.generate(["Once upon a time"] * 3, wishes, use_tqdm=False):
        stop_reason = answer.outputs[0].stop_reason
        print(f"{len(answer['token_ids']):3} tokens, {answer['finish_reason']:6} {stop_reason!r:8} {answer['text']!r}")

# %% [markdown]
# The second answer had its last token when "valley" was complete: the scheduler said "length", and the stop string has
# the last word.
#
# ## When a step breaks
#
# Models fail: a kernel, a driver, no memory, somebody presses Ctrl-C. It can happen at any line, with blocks half
# handed out and tokens half appended. We plant such faults in front of the model: `plant(llm, error, when)` raises the
# error before each run of the model for which `when(number of the run, its tokens)` is true.

# %%
stories = ["Once upon a time there was a little cat", "One day, Tom and Mia went to the park"]
predict(
    "broken step",
    "Two prompts, 21 tokens together. Each has written four tokens when the next step raises an error. The caller "
    "makes another step. How many tokens does it compute?",
)

# %%
smooth = [answer["token_ids"] for answer in LLM("qwen3-tiny", **SMALL).generate(stories, greedy(12), use_tqdm=False)]

me = mine()
print(me.whose("ch07.run_step", "ch07.take_in"))
small = SMALL | {"num_kvcache_blocks": 16, "max_model_len": 64}
llm = plant(me.LLM("qwen3-tiny", **small), RuntimeError("a kernel has failed"), lambda number, _: number == 5)
try_again(llm)
trace = record(llm, stories, greedy(12), keep_error=True)
print("the same text as without the error:", [seq["output_ids"] for seq in trace["seqs"].values()] == smooth)

prefills = [step for step in trace["steps"] if step["kind"] == "prefill"]
reveal("broken step", sum(part["n"] for part in prefills[-1]["scheduled"]))
timeline, table = Timeline(trace), BlockTable(trace)
table.follow(timeline)
timeline.step = 5
display(timeline, table)

# %% [markdown]
# Look at the step after the error: both texts are read once more, prompt and answer so far. The pool has forgotten
# everything, so nothing of them was found in the cache. The engine does not repair what a broken step has left. It
# throws everything away but the final tokens, and **begins anew**; the rest is computed again. With greedy decoding or
# a seed, the same tokens come out.
#
# {{source nanovllm/engine/llm_engine.py:LLMEngine._begin_anew}}
#
# What came while the step broke is still in the inbox, and is not forgotten either.

# %% [markdown]
# ### No memory
#
# One error is worth a second try: `torch.OutOfMemoryError`. A smaller step needs less memory, so the engine begins
# anew with steps half as large as the one that failed. If that fails, too, the requests *of that step* end
# with the finish reason "error", and steps become half as large again.
#
# Here three prompts of 20 tokens come at once, so the first step has 60 tokens.

# %%
predict("memory for 40", "There is memory for a step of 40 tokens. How many of the three end with an error?")
predict("memory for 20", "And if there is memory for 20 only?")


# %%
def with_memory_for(most):
    """Have three prompts answered; returns how many end with an error."""
    sizes, prompts = [], [[100 + i] * 20 for i in range(3)]

    def too_large(number, num_tokens):
        sizes.append(num_tokens)
        return num_tokens > most

    with plant(mine().LLM("qwen3-tiny", **SMALL), torch.OutOfMemoryError("no memory"), too_large) as llm:
        answers = llm.generate(prompts, greedy(3), use_tqdm=False)
    print("steps of", ", ".join(f"{size}{' (no memory)' if size > most else ''}" for size in sizes), "tokens")
    print("reasons:", *[answer["finish_reason"] for answer in answers])
    return sum(answer["finish_reason"] == "error" for answer in answers)


reveal("memory for 40", with_memory_for(40))
reveal("memory for 20", with_memory_for(20))

# %% [markdown]
# 60 tokens fail, then 30: one prompt and half of another. Which of the two is too much, nobody can tell, so both end.
# The third was not in that step. It is read in steps of 15, and gets its answer. When the engine has nothing left to
# do, steps may be as large as before.
#
# Here is all of it in one picture. The last row you know from chapter 6: a sequence that needs more blocks than the
# whole pool has can never go on.

# %%
figures.recovery()
with mine().LLM("qwen3-tiny", **SMALL | {"num_kvcache_blocks": 6}) as llm:
    for answer in llm.generate(["The sun was warm", "Tom had a ball"], [greedy(40), greedy(8)], use_tqdm=False):
        print(f"{answer['finish_reason']:6} {len(answer['token_ids']):2} tokens  {answer.get('error', '')}")

# %% [markdown]
# ## Milestone: the first token of your own loop
#
# Two functions, and an engine is running: a step is made, a token comes out, and whoever waits for it is told. One
# reader changes their mind, and their request is aborted: a message in the inbox, which the loop reads at once if no
# step is under way.

# %%
me = mine()
print(me.whose("ch07.run_step", "ch07.take_in"))
llm = me.LLM("qwen3-tiny", **SMALL)
reader, other = (llm.add_request(story, greedy(12)) for story in stories)
llm.step()
request = llm.added[reader]
(token_id,) = request.seq.completion_token_ids
milliseconds = 1000 * request.metrics()["time_to_first_token"]
print(f"the first token of your loop: {llm.tokenizer.decode([token_id])!r}, after {milliseconds:.1f} ms")

for _ in range(3):
    llm.step()
before = len(llm.scheduler.block_manager.free_block_ids)
answer = llm.abort(other)
after = len(llm.scheduler.block_manager.free_block_ids)
print(f"aborted after {len(answer['token_ids'])} tokens: {answer['text']!r}; free blocks: {before}, then {after}")
while not llm.is_finished():
    for _, token_ids in llm.step()[0]:
        print(f"the other one:{llm.tokenizer.decode(token_ids)!r}")

# %% [markdown]
# ## A whole list
#
# Most scripts want one call: prompts in, answers out. With `add_request` and `step` that is a loop of three lines:
#
# ```python
# numbers = [llm.add_request(prompt, params) for prompt in prompts]
# while not llm.is_finished():
#     llm.step()
# ```
#
# Somebody presses Ctrl-C in its third step; in a notebook that is the button with the square.

# %%
predict("after Ctrl-C", "Ctrl-C has ended the loop. Then another prompt is asked. Whose tokens do its steps compute?",
        choices=["only its own", "its own, and those of the three that were interrupted"])  # fmt: skip

# %%
beginnings = ["Once upon a time", "There was an old boat", "One day, a small fox"]
llm = plant(LLM("qwen3-tiny", **SMALL), KeyboardInterrupt(), lambda number, _: number == 3)
try:
    numbers = [llm.add_request(prompt, greedy(9)) for prompt in beginnings]
    while not llm.is_finished():
        llm.step()
except KeyboardInterrupt:
    print("interrupted")

llm.add_request("A frog sat in the pond", greedy(3))
computed = []
while not llm.is_finished():
    computed.append(llm.step()[1])
print("tokens of the steps after it:", computed)
reveal("after Ctrl-C", "its own, and those of the three that were interrupted" if len(computed) > 3 else "only its own")

# %% [markdown]
# Nobody reads these three answers any more, and they still cost memory and time. The short loop has more flaws, so a
# good one is a bit longer: the results come in the order in which they end; a bad prompt at the end of the list is
# noticed when the others are running; and it waits for everybody, also for requests that somebody else has added.
#
# The tools: `as_prompt_list(prompts)` and `as_params_list(sampling_params, number)` bring both into the form of a list.
# `self._make_request(prompt, params)` makes a request, or says what is wrong; `self.llm_engine.add_request(request)`
# queues it, and `self.llm_engine.abort_request(*seq_ids)` ends some. `self._step()` makes a step and reports nothing.
# `ProgressBar(requests, disable=...)` is a context manager with a method `show()`. A result is
# `RequestOutput(request, request.text(self.tokenizer))`.

# %%
# {{exercise ch07.generate}}

# %%
# Plugged in: your generate, and Ctrl-C in its third step.
me = mine()
print(me.whose("ch07.generate"))
llm = plant(me.LLM("qwen3-tiny", **SMALL), KeyboardInterrupt(), lambda number, _: number == 3)
try:
    llm.generate(beginnings, greedy(9), use_tqdm=False)
except KeyboardInterrupt:
    print("interrupted; live requests:", len(llm.llm_engine.requests))
for answer in llm.generate(beginnings, [greedy(9), greedy(3), greedy(6)]):
    print(f"{answer['finish_reason']:6} {answer.prompt!r} ...{answer['text']!r}")

# %% [markdown]
# ## Several readers at once
#
# A chat shows its answer as it is written: `stream` gives it piece by piece. It is a Python generator, and whoever
# takes the next piece makes the engine step, if there is nothing new yet. Such a step serves *all* that run.
#
# ### Predict
#
# Mia, Tom and Leo want ten tokens each. We take a piece of each stream in turn.

# %%
predict("streams", "How many steps does the engine make for all three, with the prefills?", unit="steps")

# %%
llm, pieces = mine().LLM("qwen3-tiny", **SMALL), {}
made = count_steps(llm)
readers = dict(zip(["Mia", "Tom", "Leo"], beginnings, strict=True))
open_streams = {name: llm.stream(prompt, greedy(10)) for name, prompt in readers.items()}
while open_streams:
    for name, stream in list(open_streams.items()):
        piece = next(stream, None)
        if piece is None:
            del open_streams[name]
        else:
            pieces.setdefault(name, []).append((len(made), piece))
reveal("streams", len(made))
figures.streams(pieces)

# %% [markdown]
# Three prefills, because each stream starts with its first piece; from then on one step writes for all.
#
# A piece is not always a token. A character may take several tokens, and half of one cannot be shown; what might be
# the beginning of a stop string is held back, too. `Detokenizer` in `nanovllm/outputs.py` does that.
#
# Closing a stream, as a web server does when the browser goes away, aborts its request.

# %% [markdown]
# ## What a reader notices: metrics
#
# Three times are measured for each request, and each is about something else:
#
# | metric | from | to |
# |---|---|---|
# | `queue_time` | it came | it is first scheduled |
# | `time_to_first_token` | it came | its first token |
# | `time_per_output_token` | its first token | its last one, divided by the number of tokens after the first |
#
# A person reads some five tokens a second, so a time per output token of 0.1 s is fast enough for a chat; a first token
# after three seconds is not.
#
# Eight requests come at once, to an engine with two seats, and to one with eight. Each writes ten tokens.

# %%
me, runs = mine(), {}
prompts = [f"{beginnings[i % 3]} and {i} friends came" for i in range(8)]
for num_seats in (2, 8):
    with me.LLM("qwen3-tiny", **SMALL | {"max_num_seqs": num_seats}) as llm:
        llm.generate(prompts[:1], greedy(3), use_tqdm=False)  # the first run is slow
        runs[num_seats] = llm.generate(prompts, greedy(10), use_tqdm=False)
    last = {key: 1000 * value for key, value in runs[num_seats][-1]["metrics"].items()}
    print(f"{num_seats} seats, the last request:", ", ".join(f"{key} {value:.1f} ms" for key, value in last.items()))
figures.waits([answer["metrics"] for answer in runs[2]], [len(answer["token_ids"]) for answer in runs[2]])

# %% [markdown]
# With two seats the last request waits while three pairs write their answers; with eight, nobody waits. The price is
# the time per output token: a step for eight takes longer than one for two, but not four times as long.
#
# So a long `queue_time` tells of too few seats or too little memory; a long time to the first token, besides that, of
# long prompts; a long time per output token of large batches.
#
# ## A chat
#
# A model has no memory. `chat` sends the whole conversation with every question, written as the model's
# **chat template** says. So each prompt begins with all of the one before, and with its answer.

# %%
llm = mine().LLM("qwen3-tiny", **SMALL | {"kvcache_block_size": 16, "max_model_len": 512})
talk, turns = [], []


def ask(question):
    """One turn; the answer becomes part of the talk."""
    talk.append({"role": "user", "content": question})
    (answer,) = llm.chat(talk, SamplingParams(temperature=0, max_tokens=160), use_tqdm=False)
    talk.append({"role": "assistant", "content": answer["text"]})
    turns.append((answer["num_prompt_tokens"], answer["num_cached_tokens"]))
    print(f"{question}\n    {answer['text'][:100]}")
    return answer


for question in ["My name is Tom.", "Tell me a story about a fox."]:
    answer = ask(question)
    print(f"    prompt {answer['num_prompt_tokens']} tokens, answer {len(answer['token_ids'])}")
print(llm.tokenizer.decode(llm.apply_chat_template(talk[:1])))

# %%
predict("second turn", "The next question comes, in blocks of 16. How many tokens of its prompt are in the cache?")

# %%
answer = ask("Who is in the story?")
reveal("second turn", answer["num_cached_tokens"])
for question in ["What is my name?", "What is 12 + 7?"]:
    ask(question)
figures.turns([cached for _, cached in turns], [prompt - cached for prompt, cached in turns])

# %% [markdown]
# Not only the prompt before is found, its answer is, too: its keys and values were stored when it was written. All but
# the last token, which was never computed, and what does not fill a block.
#
# So a long chat is cheap: each turn computes the question, what the template writes around it, and a rest that did not
# fill a block; never the whole talk again. Until it has become too long: that is the first of the three sections at the
# end.
#
# ## Your engine
#
# The loop is yours. Measured on the fixed work of all chapters:

# %%
print(mine().whose("ch07"))
staircase("07")

# %% [markdown]
# ## One more: too long
#
# This section and the two after it are for those who have half an hour left. Nothing later needs them.
#
# A model reads at most `max_model_len` tokens. Then something has to be left out. `talk_work.TALK` is a recorded talk:
# 48 questions of a child and their answers, 4,600 tokens, and a prompt may have 800. The plain answer is a **sliding
# window**: the system message, and as many of the newest messages as fit.
#
# ### Predict
#
# With the sliding window 30,896 prompt tokens are sent with the 48 questions.

# %%
SHARES = ["about a tenth", "about half", "nearly all"]
predict("window", "How many of them does the engine compute, and not find in the prefix cache?", choices=SHARES)

# %%
import nanovllm

window = talk_work.send_all(talk_work.sliding_window, nanovllm)
share = talk_work.computed(window) / sum(turn.tokens for turn in window)
reveal("window", SHARES[(share > 0.25) + (share > 0.75)])
print(f"computed: {talk_work.computed(window):,} tokens, {100 * share:.0f} %")
moved = sum(turn.left_out > before.left_out for before, turn in pairwise(window))
print(f"the window has moved {moved} times")
figures.long_talks({"sliding window": window}, talk_work.BAR, talk_work.SHARE)

# %% [markdown]
# Each time the window moves, the prompt goes on after the system message with another message. Its blocks are still in
# the pool, but under names that begin with a longer past. Nothing is found behind the system message. It moves when an
# answer is long, a story above all, and stays where it is while answers are short: that is why half is found.
#
# This exercise is open. Whatever keeps the promises, sends at least two thirds of what fits, and has at most 5,000
# tokens computed, counts; below 3,000 is a good one.

# %%
# {{exercise ch07.choose_messages}}

# %%
me = mine("ch07.choose_messages")
print(me.whose("ch07.choose_messages"))
chosen = talk_work.send_all(me.function("ch07.choose_messages"), me)
print(f"computed: {talk_work.computed(chosen):,}; sent of what fits: {100 * talk_work.kept(chosen):.0f} %")
runs = {"sliding window": window, me.owner("ch07.choose_messages"): chosen}
figures.long_talks(runs, talk_work.BAR, talk_work.SHARE)

# %% [markdown]
# What is left out is forgotten. In the recorded talk the child says in the first message that her name is Mia; the
# seventeenth question is "What is my name?". When the talk was recorded, the model was sent the last four exchanges
# with each question, and said "Your name is Lydia", a girl from a story. No cache helps against that.
#
# ## One more: the inbox
#
# Requests come at any moment: from another thread, or while a step is under way. Aborts, too: a reader has closed the
# window. Only the loop touches scheduler and runner; all others leave a message.
#
# {{source nanovllm/engine/llm_engine.py:LLMEngine._run}}
#
# `_run` is a generator: each step runs until the next `yield`. An exception ends a generator for good, so Python
# itself tells a broken loop from one that waits. Then the next call makes a new one, which begins anew.

# %%
bare = at_most(20, without("ch07._read_inbox").LLM("qwen3-tiny", **SMALL), ["Once upon a time"], greedy(4))
print("without _read_inbox: live", len(bare.llm_engine.requests), "waiting", len(bare.scheduler.waiting))

# %% [markdown]
# This engine throws its messages away unread: somebody waits for an answer that nobody has heard of.
#
# The hard part is Ctrl-C. In Python it strikes between any two lines, yours too. The check tries every one of them.

# %%
# {{exercise ch07._read_inbox}}

# %% [markdown]
# ## One more: several people at once
#
# `python -m nanovllm.serve qwen3-tiny` puts HTTP around the engine: OpenAI's interface, and a chat page that shows
# whose blocks are whose. Here it serves *your* engine, until the cell ends. Three people ask at the same time, for
# twenty tokens each. Mia and Tom read on; Leo closes the window after the first piece: an abort in the inbox.

# %%
from concurrent.futures import ThreadPoolExecutor

from nanovllm.serve.server import Server
from openai import OpenAI

llm = mine().LLM("qwen3-tiny", **SMALL)


def ask_over_http(name):
    options = {"prompt": readers[name], "max_tokens": 20, "temperature": 0, "stream": True}
    with client.completions.create(model="qwen3-tiny", **options) as chunks:
        texts = (chunk.choices[0].text for chunk in chunks)
        return next(texts) if name == "Leo" else "".join(texts)


with Server(llm) as server, OpenAI(base_url=server.url + "/v1", api_key="any") as client:
    with ThreadPoolExecutor() as people:
        for name, text in zip(readers, people.map(ask_over_http, readers), strict=True):
            print(f"{name}: {readers[name]}{text}")
    print("blocks still in use:", len(llm.scheduler.block_manager.used_block_ids))

# %% [markdown]
# ## Change it
#
# * Plant two errors, in runs 5 and 6 of the model, with `try_again(llm, times=2)`. How many tokens are computed in all?
#   Why not more than with one error?
# * Let two streams be read, one of them only every third turn. Who waits for whom?
# * In `with_memory_for`, give 100 tokens of prompt to the first request, and 5 to the others. Find a memory with which
#   only the long one fails, and one with which nobody does. Does it matter who comes first?
# * `talk_work.send_all(..., budget=1200)`: is a smaller or a larger share of what the sliding window sends computed?
#   And of what your function sends?
# * Put today's time of day into the system message of the chat. What is left of the hits?

# %% [markdown]
# ## Recap
#
# 1. A step is: choose, compute, tell the scheduler, tell the requests. The loop around it reads the inbox, and repeats.
# 2. Only final tokens are promised. After an error everything else is thrown away and computed again.
# 3. What comes from outside is a message. Only the loop touches scheduler and runner, between two steps.
# 4. `generate` checks everything before it starts, waits for its own requests only, and leaves nothing behind.
# 5. A chat finds its past in the prefix cache, until its beginning changes: cut rarely, and much.

# %% [markdown]
# ## Explain it aloud
#
# * A step has failed, and 2,000 tokens are computed again. Why not just repair what the step has left?
# * Why does `generate` catch `BaseException`, and why does it raise it again?
# * Somebody proposes to set `num_final` at the beginning of `take_in`: the token is known then. What could be lost?
# * Two users complain: one of a slow start, the other of slow writing. Which metric do you look at, and what do you
#   change?
#
# <details><summary>Answers of three grades (open them when you have given yours)</summary>
#
# **Why not repair what a failed step has left?**
#
# * *weak*: It would be complicated.
# * *good*: It may have stopped at any line: blocks, queues and tokens may contradict each other in any way.
# * *excellent*: And repairs are code that runs only after errors, so nobody tests it. Beginning anew is the code that
#   runs at every start. It needs one thing that is always right, the final tokens, and costs time only.
#
# **What could be lost if `num_final` were set first?**
#
# * *weak*: A token.
# * *good*: Ctrl-C in between: the token counts as told, and the request has not taken it in.
# * *excellent*: Its log-probabilities are missing for good, and a stop string that it completes is never noticed: a
#   token that is final is not computed again, so nobody looks at it any more.
#
# </details>

# %% [markdown]
# ## Read further
#
# * In vLLM: `vllm/v1/engine/core.py`, `EngineCore.step`: schedule, execute, update. Its inbox is a socket, for the
#   engine is a process of its own; `vllm/v1/engine/output_processor.py` is our `take_in` and `Detokenizer`.
# * Metrics and what to demand of them: Zhong et al., *DistServe*, OSDI 2024, section 2.
# * What a second turn finds: Zheng et al., *SGLang*, 2024, section 3; Gao et al., *CachedAttention*, ATC 2024.
# * The first tokens matter most, also when the window moves: Xiao et al., *Efficient Streaming Language Models with
#   Attention Sinks*, ICLR 2024.
# * Begin anew instead of repairing: Candea and Fox, *Crash-Only Software*, HotOS 2003.
#
# Next, the model runner: how a step's sequences become tensors, and where their keys and values go.
