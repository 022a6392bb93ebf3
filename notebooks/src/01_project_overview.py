# %% [markdown]
# # 1 · Project overview
#
# *What an inference engine does, and why a simple loop is not enough.*
#
# You will
#
# * watch an engine at work, and generate your first text with it,
# * write the simplest generation loop there is, and race it against the engine,
# * put requests into batches, and see what that costs those who wait,
# * compare your batches with an engine at work.
#
# Everything here runs on a laptop's CPU, without a network. The model is part of the repository.
# Plan an hour; the two exercises are 20 minutes of it.

# %% [markdown]
# ## An engine at work
#
# Before anything is explained, watch one. Run the next cell with Shift+Enter, click the picture, and press the right
# arrow key, eight times in all. What moves is what the engine does in that step; the sentence above says it.

# %%
# %load_ext exercises
from nanovllm.viz import FirstLook, load_trace

FirstLook(load_trace("first_look"))

# %% [markdown]
# That was a recorded run of the engine that you are going to build. It serves several requests in the same step, it
# keeps what it has read in memory, in blocks, and texts that begin alike share a block. How all of it comes about is
# the subject of this course. How one such step runs on a large GPU, an NVIDIA H200, without and with a CUDA graph,
# plays at true relative speed in [chapter 8](08_model_runner.ipynb), "What a GPU waits for".
#
# ## First text
#
# Run the cells in order with Shift+Enter. The next one loads a small model, `"qwen3-tiny"`, and makes it ready to
# serve. The name of any Qwen3 model, or a directory with its files, works too.

# %%
from textwrap import fill

from nanovllm import LLM, SamplingParams

llm = LLM("qwen3-tiny")

# %% [markdown]
# Ask it something. `temperature=0` means: always take the most likely token. The answer is then the same
# every time.

# %%
greedy = SamplingParams(temperature=0, max_tokens=160)

for question in ["introduce yourself", "list all prime numbers within 100"]:
    (answer,) = llm.chat([{"role": "user", "content": question}], greedy, use_tqdm=False)
    print(f"> {question}\n{fill(answer['text'], 96)}\n")

# %% [markdown]
# That is all it takes. A result is a dictionary, and holds more than the text.

# %%
for key, value in answer.items():
    print(f"{key:18} {str(value)[:80]}")

# %% [markdown]
# `token_ids` is what the model really wrote. A **token** is a piece of text: a word, a part of a word, a
# sign. The model reads token ids and writes token ids. The **tokenizer** translates between them and text.

# %%
tokenizer = llm.tokenizer
token_ids = tokenizer.encode("Once upon a time, there was a little boat.")
print(token_ids)
print([tokenizer.decode([token_id]) for token_id in token_ids])

# %% [markdown]
# ## Where we are
#
# At the very beginning. What you have just used is an **inference engine**: the program between a language model and
# the people who want answers from it. This one is complete and works. From chapter 3 on you write its parts yourself,
# one function at a time, and what you have written runs in it. Below is the map of *your* engine: nothing in it is
# yours yet.

# %%
mine()

# %% [markdown]
# ### vLLM, and this
#
# **vLLM** is the engine behind many services. It runs many kinds of models on many machines, and is far too large to
# read in full. nanovllm has its central ideas, for one kind of model and one machine: a core of at most 2,000 lines,
# which you build here, and beside it the *levers* of chapter 17, which make it fast.
#
# | tokens/s | nanovllm | vLLM 0.22.0 | nano-vllm (bb823b3) |
# |---|---|---|---|
# | 256 requests | 26,774 | 23,363 | 19,787 |
# | one request | 1,111 | 613 | 466 |

# %% [markdown]
# Measured on 2026-11-22 on one NVIDIA H200, all on the same machine within minutes (nanovllm at commit 88f294d, with
# its levers; nano-vllm is the engine that showed how short one can be, at its commit bb823b3): Qwen3-0.6B's shape,
# random weights; 256 prompts and answers of 100 to 1,024 tokens. That is one small model, one GPU, one kind of work.
# Large models on many GPUs, where vLLM is at home, were not compared. What your computer gives, you will measure.

# %% [markdown]
# ### What you should know
#
# The course is for people who use language models and want to know what serves them, and for those who want to work on
# such engines. You need
#
# * Python: functions, classes, lists and dictionaries,
# * a little PyTorch: what a tensor is, its shape, an index into it,
# * no GPU, and little mathematics: sums, and later products of matrices.
#
# The engine stands on a few libraries. The file `pyproject.toml` says what each one is for:

# %%
import re
from pathlib import Path

import nanovllm
from nanovllm.measure import package_version

needs = (Path(nanovllm.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
for name, reason in re.findall(r"""^ +['"]([\w-]+).*,  # (.+)""", needs, re.MULTILINE):
    print(f"{name:16} {package_version(name) or 'not installed':13} {reason}")

# %% [markdown]
# ### How to go through it
#
# A chapter takes 60 to 90 minutes. It is a circle: **read** a little, **predict**, **write** a function, **check** it,
# **plug it in** and see your engine run with it.
#
# * Write in the `%%exercise` cells; running one checks it. Or write in the files `exercises/ch*.py`, with your own
#   editor, and `python -m exercises watch` checks whenever you save. Both are the same thing; the file counts.
# * Stuck? `hint("ch01.naive_loop")` helps three times. `show(...)` sets your run beside ours. After a pass or all
#   hints, `solution(...)` tells ours. `reset(...)` goes back to the beginning, and keeps what you had.
# * Still stuck? Go on, and come back: what you have not written is ours, so everything works.
# * Change any cell: nothing can break.

# %% [markdown]
# ## One token at a time
#
# A language model is a function. Token ids go in. One number for each token of the vocabulary comes out: how
# well would this token go next? These numbers are called **logits**.
#
# Here is that function, and nothing around it. We take the model as the Hugging Face library builds it, from the same
# files.

# %%
import math
import statistics
import time

import figures  # draws the pictures of this course; it is the file notebooks/figures.py
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

torch.set_num_threads(1)  # everybody races on one core, so that nobody waits for a second one that is busy elsewhere

# %%
logging.disable_progress_bar()

hf_model = AutoModelForCausalLM.from_pretrained(llm.config.model_path, dtype=llm.config.dtype).to(llm.config.device)


@torch.inference_mode()
def model(token_ids):
    """The ids of all tokens so far go in; the logits of the next token come out, float [vocabulary size]."""
    input_ids = torch.tensor([list(token_ids)], device=hf_model.device)
    return hf_model(input_ids, use_cache=False).logits[0, -1].float().cpu()


story = "Once upon a time, there was a little girl named Mia. She had a red kite."
prompt = tokenizer.encode(story)
logits = model(prompt)
print(f"{len(prompt)} tokens in, {len(logits):,} numbers out")
figures.show_next_tokens(logits, tokenizer)

# %% [markdown]
# The picture shows the logits as shares of 100 %, as chapter 14 will explain; the largest stays the largest.
#
# This is all that a model does. It does not write sentences. To get one, somebody has to call the function, pick a
# token, append it, and call again. That somebody is the inference engine. You can watch the tokens come. Each `|`
# below marks one arrival.

# %%
for piece in llm.stream(story, SamplingParams(temperature=0, max_tokens=40)):
    print(piece, end="|", flush=True)

# %% [markdown]
# ## The simplest loop
#
# Now you write that somebody, in its simplest form. Always taking the token with the largest logit is called
# **greedy**; it is what `temperature=0` did above.
#
# When does a text end? A model is trained to say so: it writes an **end token**, in Qwen3's chats `<|im_end|>`. Some
# models have more than one. An end token in the *prompt* ends nothing: there, it closes a message that has been read.

# %%
print("end tokens:", {token_id: tokenizer.decode([token_id]) for token_id in llm.config.eos})

# %% [markdown]
# {{exercise ch01.naive_loop}}

# %% [markdown]
# ### Plug in
#
# Your loop meets the real model. Until you have written it, ours runs in its place, so that the chapter works.

# %%
me = mine("ch01.naive_loop")
print(me.whose("ch01.naive_loop"))
naive_loop = me.function("ch01.naive_loop")

new_tokens = naive_loop(model, prompt, 40, llm.config.eos)
print(fill(tokenizer.decode(prompt + new_tokens), 96))

(answer,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
print("The engine writes the same tokens:", answer["token_ids"] == new_tokens)

# %% [markdown]
# A handful of lines, and the text is the same. So why does anybody need an engine?
#
# ### Predict
#
# Every call of the model computes something for **every** token that it is given. The prompt is short; we want 200 new
# tokens. Write your guess into the form: a guess that turns out wrong is remembered best. The answer comes below.

# %%
predict("computed", f"The prompt has {len(prompt)} tokens. How many does the loop compute for 200 new ones, in all?")

# %% [markdown]
# To count, we put a clock and a counter around the model. The loop does not notice: it calls a function, as before.

# %%
calls = []  # of each call: how many tokens were computed, and the seconds that it took


def watched(token_ids):
    start = time.perf_counter()
    logits = model(token_ids)
    calls.append((len(token_ids), time.perf_counter() - start))
    return logits


def run_loop(num_new_tokens):
    """The loop at work; returns its new tokens, and what each call computed and took. No token ends it."""
    calls.clear()
    new_tokens = naive_loop(watched, prompt, num_new_tokens, eos=())
    return new_tokens, [count for count, _ in calls], [seconds for _, seconds in calls]


loop_tokens, loop_computed, _ = run_loop(200)
reveal("computed", sum(loop_computed))

# %% [markdown]
# ### A picture
#
# First a small case: 16 new tokens. A row is one step, from top to bottom. A square is one token that the model
# computed in that step.
#
# On the left is the loop. On the right is the engine, doing the same work. We do not have to guess what the
# engine does: `llm.step()` makes one step and says how many tokens it computed, as a positive number while it
# reads the prompt and as a negative number while it writes.


# %%
def run_engine(num_new_tokens):
    """The same, by the engine, step by step."""
    llm.add_request(prompt, SamplingParams(temperature=0, max_tokens=num_new_tokens, ignore_eos=True))
    computed, seconds, finished = [], [], []
    while not finished:
        start = time.perf_counter()
        finished, num_tokens = llm.step()
        computed.append(abs(num_tokens))
        seconds.append(time.perf_counter() - start)
    ((_, new_tokens),) = finished
    return new_tokens, computed, seconds


figures.show_steps(loop=run_loop(16)[1], engine=run_engine(16)[1])

# %% [markdown]
# The loop computes the whole text again in every step, although only its last token is new. The engine reads
# the prompt once. After that, each step computes exactly one token.
#
# ### The formula
#
# A prompt of $p$ tokens and $n$ new ones. The loop computes $p$, then $p+1$, then $p+2$, and so on:
#
# $$p + (p+1) + \dots + (p+n-1) = n\,p + \frac{n(n-1)}{2}$$
#
# The engine computes $p + n - 1$: the prompt once, then each new token but the last, which nobody has to
# read.

# %%
p, n = len(prompt), 200
print(f"loop, counted      {sum(loop_computed):>7,}")
print(f"loop, formula      {n * p + n * (n - 1) // 2:>7,}")
print(f"engine, formula    {p + n - 1:>7,}")

# %% [markdown]
# The square of $n$ is what hurts. When the text gets long, twice as much of it is nearly four times as much work.
#
# ### Predict
#
# Counting is one thing, time another. The model is small, and a call costs something however few tokens it gets.

# %%
predict("race", "How many times as fast as the loop does the engine write them, on this computer?", unit="times")

# %% [markdown]
# A fair race takes turns. A computer does other things besides, and gets slower when it is warm; in turns, that falls
# on both. Each runs three times, and the middle time counts: the **median**. You will meet this way of measuring in
# every chapter.

# %%
rounds = []
for _ in range(3):
    rounds.append((run_loop(n), run_engine(n)))

loop_total, engine_total = (statistics.median(sum(runs[i][2]) for runs in rounds) for i in (0, 1))
print(f"loop    {n / loop_total:6.0f} tokens/s")
print(f"engine  {n / engine_total:6.0f} tokens/s")
print("same tokens:", rounds[0][0][0] == rounds[0][1][0])
reveal("race", loop_total / engine_total)

# For each of the 200 tokens, the median of the three rounds.
loop_seconds, engine_seconds = (
    [statistics.median(times) for times in zip(*(runs[i][2] for runs in rounds), strict=True)] for i in (0, 1)
)
figures.show_seconds(loop_seconds, engine_seconds)

# %% [markdown]
# The engine computes a hundred times fewer tokens, and is not a hundred times faster: in a model as small as this one,
# a call for a single token already costs a good part of what a call for a hundred costs. But the loop gets slower with
# every token, and the engine does not.
#
# Here is the beginning of the race: each token appears when it came, in the middle one of the three rounds. Below the
# texts are the tokens that the current step computes. Press the play button, or click the picture and press Space; the
# arrow keys go back and forth.

# %%
from nanovllm.viz import Race
from nanovllm.viz.race import Runner

(loop_run, engine_run), shown = rounds[0], 64
texts = [tokenizer.decode([token_id]) for token_id in loop_run[0]]
Race(
    [
        Runner("loop", texts[:shown], loop_seconds[:shown], loop_run[1][:shown]),
        Runner("engine", texts[:shown], engine_seconds[:shown], engine_run[1][:shown]),
    ],
    prompt=story,
)

# %% [markdown]
# ### Predict
#
# Is the comparison fair? Two things differ: the engine computes fewer tokens, and it does less work around
# each of them. To tell the two apart, let the Hugging Face library use its own memory of earlier tokens. Then it
# computes as few tokens as the engine.

# %%
PLACES = ["near the loop", "half way between them", "near the engine"]
predict("library", "Where is the library's speed, with its own memory?", choices=PLACES)

# %%
input_ids = torch.tensor([prompt], device=hf_model.device)
options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
hf_model.generate(input_ids, max_new_tokens=2, **options)  # the first call prepares things


def library_seconds():
    start = time.perf_counter()
    hf_model.generate(input_ids, max_new_tokens=n, **options)
    return time.perf_counter() - start


turns = [(library_seconds(), sum(run_engine(n)[2])) for _ in range(3)]
library_total, engine_total = (statistics.median(times) for times in zip(*turns, strict=True))
print(f"library, with its memory  {n / library_total:6.0f} tokens/s")
print(f"engine, in turn with it   {n / engine_total:6.0f} tokens/s")
# 0 where the loop is, 1 where the engine is; half way means the same factor to both.
place = math.log(loop_total / library_total) / math.log(loop_total / engine_total)
reveal("library", PLACES[(place > 1 / 3) + (place > 2 / 3)])

# %% [markdown]
# The tokens that need not be computed are most of the difference: the longer the text, the more. What an engine has
# beyond a good library that remembers is made for many requests, and comes soon.

# %% [markdown]
# ## What the engine remembers
#
# How can the engine get away with one token a step? Attention, the part of the model that looks back at
# earlier tokens, needs only two vectors of each of them, in every layer: its **key** and its **value**. A token looks
# back and never ahead, so what comes later does not change them: once computed, they stay. So the engine keeps them.
# This memory is the **KV cache**.
#
# Now a request has two phases. **Prefill** reads the prompt, all of it in one step. **Decode** writes the answer, one
# token a step. To compute that *one* token, *all* weights of the model are read from memory. That is a waste, and the
# next thing that an engine must fix.

# %% [markdown]
# ## Many requests together
#
# If the weights are being read anyway, they can serve several requests at once. This is **batching**.
#
# ### Predict
#
# One request of 64 tokens takes some time. Now 16 such requests are started together.

# %%
predict("batch", "How many times as long as one request do 16 together take?", unit="times")

# %%
beginnings = ["Once upon a time", "One day, a small fox", "There was an old boat", "Tom had a new ball"]
batch_sizes = [1, 2, 4, 8, 16, 32]


def seconds_for(batch_size):
    prompts = [beginnings[i % len(beginnings)] for i in range(batch_size)]
    # A seed each, so that no two write the same.
    params = [SamplingParams(temperature=0.8, max_tokens=64, ignore_eos=True, seed=i) for i in range(batch_size)]
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start


turns = [[seconds_for(batch_size) for batch_size in batch_sizes] for _ in range(3)]
seconds = [statistics.median(times) for times in zip(*turns, strict=True)]
reveal("batch", seconds[batch_sizes.index(16)] / seconds[0])
figures.show_batches(batch_sizes, seconds, num_tokens=64)

# %% [markdown]
# A request that shares its steps costs a fraction of one that runs alone: here, because the work around a step is
# shared, and in a large model the reading of the weights. Most of a serving engine's speed comes from this.
#
# ## Who shares a batch?
#
# The simplest way to batch is **static batching**: take four requests, run them until all four are done, take the next
# four. Answers differ in length, and whoever is done early leaves an empty seat until the longest is done.
#
# Here are 24 requests in the order of arrival, four in a batch. A row is a seat; a bar is a request from its first step
# to its last.

# %%
from exercises.kit import batch_work

lengths, num_seats = batch_work.LENGTHS, batch_work.MAX_BATCH
print(f"{len(lengths)} answers, {sum(lengths)} tokens:", *lengths)
arrival = batch_work.in_order_of_arrival(len(lengths), num_seats)
runs = {"order of arrival": batch_work.spans(arrival, lengths)}
waits = {"order of arrival": batch_work.mean_wait(arrival, lengths)}
figures.show_seats(runs, num_seats)

# %% [markdown]
# Could we do better? Suppose that somebody knew how long every answer will be. Nobody does, but it is a good question:
# who should share a batch? This exercise is **open**: it has a goal and promises to keep, and many right answers.

# %% [markdown]
# {{exercise ch01.group_requests}}

# %% [markdown]
# ### Plug in
#
# Your batches in the same picture. A batch hands its answers over when all of it is done. So there is a second number,
# which you need not make small: the steps until a request has its answer, on average.

# %%
me = mine("ch01.group_requests")
print(me.whose("ch01.group_requests"))
batches = me.function("ch01.group_requests")(list(lengths), num_seats)
runs["these batches"] = batch_work.spans(batches, lengths)
waits["these batches"] = batch_work.mean_wait(batches, lengths)
for name, spans in runs.items():
    print(f"{name:17} {max(end for *_, end in spans)} steps; an answer is there after {waits[name]:.0f} on average")
figures.show_seats(runs, num_seats)

# %% [markdown]
# The batches can run in any order: the number of steps stays, and the second number does not. Try it:
# `batch_work.mean_wait(batches[::-1], lengths)`.
#
# ### Predict
#
# A real engine does not know the lengths. Ours decides before **every** step who takes part: whoever is done leaves at
# once, and the next in the order of arrival takes the seat. This is **continuous batching**. Its price in this engine:
# a newcomer's prompt is read in a step of its own, in which the others pause. That step counts, too, and it gives the
# newcomer its first token; in the picture, a seat is taken while its request pauses.

# %%
predict("continuous", "In how many steps does the engine do the 24 requests, with four seats?", unit="steps")


# %%
def spans_of_engine(lengths, num_seats):
    """Of each request: its number, the step with which it begins, and the one with which it ends."""
    first, last, steps = {}, {}, 0
    options = {"max_num_seqs": num_seats, "max_model_len": 256, "device": "cpu", "disabled_optimizations": "all"}
    with LLM("qwen3-tiny", **options) as engine:
        for i, length in enumerate(lengths):
            params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
            engine.add_request(beginnings[i % len(beginnings)], params)
        while not engine.is_finished():
            finished, _ = engine.step()
            last |= dict.fromkeys((seq_id for seq_id, _ in finished), steps + 1)
            for seq in engine.scheduler.running:
                first.setdefault(seq.seq_id, steps)
            steps += 1
    return [(i, first[i], last[i]) for i in first]


runs["the engine"] = spans_of_engine(lengths, num_seats)
reveal("continuous", max(end for *_, end in runs["the engine"]))
waits["the engine"] = statistics.mean(end for *_, end in runs["the engine"])
for name, wait in waits.items():
    print(f"{name:17} an answer is there after {wait:.0f} steps, on average")
figures.show_seats(runs, num_seats)

# %% [markdown]
# The engine needs about as few steps as the best batches there are, which take knowledge that nobody has. (It was told
# when to end each answer, but it does not look at that when it chooses.) And it can do what no plan can: take in a
# request that comes later.
#
# Somebody has to decide, before every step: the **scheduler**. And every request needs memory for its keys and values,
# which the **block manager** hands out. These two, chapters 6 and 5, are the heart of the course.

# %% [markdown]
# ## Your first step
#
# From here on, each chapter ends with a measurement of *your* engine, on one fixed work and on this computer. The naive
# loop is where it begins.

# %%
staircase("01")

# %% [markdown]
# ## Change it
#
# * Let loop and engine write 400 tokens. Is the loop's time four times that of 200? What does the curve look like?
# * Give everybody eight seats: `batch_work.MAX_BATCH = 8` before the picture of the order of arrival, and run the cells
#   from there on. Who gains most?
# * Make all 24 answers equally long. What is left of the differences?
# * Ask for a story of your own with `temperature=0.8`, twice. Then add `seed=1`, twice.

# %% [markdown]
# ## Recap
#
# 1. A language model scores the next token. An engine turns that into text, for many users at once.
# 2. A loop without memory computes every token again in every step: its work grows with the square of the
#    length.
# 3. The KV cache makes a step of decode cost one token.
# 4. Batching lets many requests share one reading of the weights.
# 5. A static batch waits for its longest member. Continuous batching fills a seat as soon as it is free, and need not
#    know what comes.

# %% [markdown]
# ## Explain it aloud
#
# * Why do keys and values of old tokens never change? What would have to be different for them to change?
# * The engine's curve is flat here. Would it stay flat for a text of a million tokens?
# * Why does a chat service not sort its requests by length, as you could?

# %% [markdown]
# <details><summary>Three answers to the last question: say yours first, then find its grade</summary>
#
# **Good enough.** "The lengths are not known: an answer is over when the model writes its end token."
#
# **Good.** "And requests come one by one. To sort them, the service would have to let them wait until there are enough,
# with empty seats meanwhile."
#
# **Very good.** "And it need not: with a decision before every step, a seat is taken again at once, whatever the
# lengths. What knowledge could still buy is short waits: short ones first. Some schedulers guess lengths for that. But
# then a long request may wait forever while short ones keep coming."
#
# </details>

# %% [markdown]
# ## Read further
#
# * The PagedAttention paper: Kwon et al., *Efficient Memory Management for Large Language Model Serving with
#   PagedAttention*, SOSP 2023, sections 2 and 3.
# * Continuous batching: Yu et al., *Orca: A Distributed Serving System for Transformer-Based Generative
#   Models*, OSDI 2022, section 3.
# * In vLLM, one step of the engine is in `vllm/v1/engine/core.py`, method `EngineCore.step`.
#
# Next, we take the engine apart and follow one request from its text to its first token.

# %%
llm.exit()
