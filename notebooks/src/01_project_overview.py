# %% [markdown]
# # 1 · Project overview
#
# *What an inference engine does, and why a simple loop is not enough.*
#
# You will
#
# * generate your first text with nanovllm,
# * write the simplest generation loop there is, and race it against the engine,
# * see what happens when many requests run at once,
# * look inside a running engine.
#
# Everything here runs on a laptop's CPU, without a network. The model is part of the repository.
# Plan an hour, with the exercise.

# %% [markdown]
# ## Where we are
#
# At the very beginning. The engine is complete and works. From chapter 3 on you write its parts yourself, one
# function at a time, and what you have written runs in it. Below is the map of *your* engine: nothing in it is yours
# yet.
#
# Run the cells in order with Shift+Enter. Change whatever you like: nothing here can break.

# %%
# %load_ext exercises
mine()

# %%
import math
import statistics
import time
from pathlib import Path
from textwrap import fill

import figures  # draws the pictures of this course; it is the file notebooks/figures.py

import nanovllm
from nanovllm import LLM, SamplingParams

import torch

torch.set_num_threads(1)  # everybody races on one core: two would wait for each other when another program has one

# %% [markdown]
# ## First text
#
# One line loads a model and makes it ready to serve. `"qwen3-tiny"` is the small model in this repository.
# The name of any Qwen3 model, or a directory with its files, works too.

# %%
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
# A result is a dictionary. It holds more than the text.

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
# ## One token at a time
#
# A language model is a function. Token ids go in. One number for each token of the vocabulary comes out: how
# well would this token go next? These numbers are called **logits**.
#
# Here is that function, and nothing around it. We take the model as the Hugging Face library builds it, from the same
# files.

# %%
from transformers import AutoModelForCausalLM
from transformers.utils import logging

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
# The picture shows the logits as shares of 100 %; chapter 14 tells how that is done. The largest logit stays the
# largest share.
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
naive_loop = me.package.module("labs").naive_loop
is_mine = "ch01.naive_loop" in [answer.exercise.id for answer in me.answers]
print("The loop that runs here is", "yours." if is_mine else "ours: yours is not written yet.")

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

# %% [markdown]
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
# The loop gets slower with every token; the engine does not.
#
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
# The tokens that need not be computed are most of the difference: the longer the text, the more. For one request on a
# CPU, an engine is not much faster than a good library that remembers. What it is made for comes soon.

# %% [markdown]
# ## What the engine remembers
#
# How can the engine get away with one token a step? Attention, the part of the model that looks back at
# earlier tokens, needs only two vectors of each of them, in every layer: its **key** and its **value**. They never
# change once they are computed. So the engine keeps them. This memory is the **KV cache**.
#
# Now a request has two phases:
#
# | phase | tokens in a step | what limits it, in a large model |
# |---|---|---|
# | **prefill**: read the prompt | all of the prompt | arithmetic |
# | **decode**: write the answer | one | reading weights and cache from memory |
#
# In decode, *all* weights of the model are read from memory to compute *one* token. That is a waste, and it
# is the next thing that an engine must fix.

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
params = SamplingParams(temperature=0.8, max_tokens=64, ignore_eos=True, seed=1)


def seconds_for(batch_size):
    prompts = [beginnings[i % len(beginnings)] for i in range(batch_size)]
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start


turns = [[seconds_for(batch_size) for batch_size in batch_sizes] for _ in range(3)]
seconds = [statistics.median(times) for times in zip(*turns, strict=True)]
reveal("batch", seconds[batch_sizes.index(16)] / seconds[0])
figures.show_batches(batch_sizes, seconds, num_tokens=64)

# %% [markdown]
# A request that shares its steps costs a fraction of one that runs alone. In this small model, what is shared is mostly
# the work around a step; in a large one, the reading of the weights.
#
# This is where most of the speed of a serving engine comes from, and it is why the engine needs a
# **scheduler**: something that decides, before every step, who takes part in it.

# %% [markdown]
# ## A look inside
#
# So far we only called `generate`. Now we turn the crank ourselves. A second engine, with a very small memory,
# makes the pictures easy to read: its cache has 24 blocks of 16 tokens. (A real one has thousands of blocks.) This one
# is *your* engine: come back after chapter 6, and it is your code that you see at work here.

# %%
small = me.LLM("qwen3-tiny", kvcache_block_size=16, num_kvcache_blocks=24, max_model_len=256, max_num_seqs=3)
print(fill(me.whose("ch05", "ch06"), 96))

for text, length in [(story, 60), ("One day, a small fox", 40), ("There was an old boat", 80)]:
    small.add_request(text, SamplingParams(temperature=0, max_tokens=length, ignore_eos=True))


def show_queues():
    print("waiting:", [seq.seq_id for seq in small.scheduler.waiting])
    print("running:", [seq.seq_id for seq in small.scheduler.running])


show_queues()

# %% [markdown]
# Three requests wait. Nothing has been computed. One step changes that.

# %%
finished, num_tokens = small.step()
print("computed tokens:", num_tokens)
show_queues()

# %% [markdown]
# All three prompts were read in one step (the number is positive: prefill). From now on every step gives one
# token to each of them.
#
# Where do their keys and values live? In **blocks**. The cache is cut into blocks of equal size, and each
# request has a **block table**: the list of the blocks that hold its tokens, in order. The blocks need not be
# neighbors.

# %%
for _ in range(30):
    small.step()

for seq in small.scheduler.running:
    print(f"request {seq.seq_id}: {seq.num_tokens} tokens, block table {seq.block_table}")

figures.show_pool(small, "Blocks of the cache. Large: the request; small: the block's number")

# %% [markdown]
# ### Predict
#
# Request 1 wants only 40 tokens, so it ends first.

# %%
MOMENTS = ["at once", "when all three are done", "when the engine ends"]
predict("free", "When are its blocks free for others?", choices=MOMENTS)

# %%
finished = []
while not finished:
    finished, num_tokens = small.step()

for seq_id, new_token_ids in finished:
    print(f"request {seq_id} is done:", small.tokenizer.decode(new_token_ids)[:60], "...")

reveal("free", MOMENTS[0])
figures.show_pool(small, "After the first request has ended")

# %% [markdown]
# Whoever needs room next may have them. The two others did not notice: they go on in the very next step,
# and a new request could take the free place. This is called **continuous batching**.

# %%
while not small.is_finished():
    small.step()

small.exit()

# %% [markdown]
# ## The step
#
# Everything that you have seen in this chapter goes through one method, `llm.step()`. It does three things:
#
# 1. **Schedule.** Choose the requests that take part, and give them blocks.
# 2. **Run.** Send their tokens through the model, and pick a next token for each of them.
# 3. **Take in.** Append the new tokens. Who is done leaves, and the blocks are free again.
#
# This is its heart. The code below is not a copy: it is cut out of the engine when this notebook is built. (The link
# above it opens the engine's own file. It holds our answers to exercises of chapter 7, so you may want to wait.)

# %%
# {{source nanovllm/engine/llm_engine.py:LLMEngine.run_step}}

# %% [markdown]
# ## The map
#
# The engine is a small package. Here is all of it, file by file.

# %%
figures.show_files(Path(nanovllm.__file__).parent)

# %% [markdown]
# | part | its question |
# |---|---|
# | `llm.py` | What does the user call? |
# | `prompts.py`, `outputs.py` | How does text become token ids, and token ids text? |
# | `config.py`, `sampling_params.py` | What can be set, for the engine and for one request? |
# | `engine/llm_engine.py` | What is one step? |
# | `engine/scheduler.py` | Who takes part in the next step? |
# | `engine/block_manager.py` | Which block of the cache belongs to whom? |
# | `engine/sequence.py` | What does the engine know about one request? |
# | `engine/model_runner.py` | How do the chosen tokens become tensors, and go through the model? |
# | `models/qwen3.py` | What is the model made of? |
# | `layers/` | What does each part of it compute? |
# | `utils/` | How do weights get in, and how do layers learn about the batch? |
# | `levers/` (hatched) | What makes it faster? |
#
# Arrows between them go one way only: `llm → levers → engine → models → layers → utils`. You can read a file without
# those above it. In particular, the engine knows nothing of its levers: without any of them it is complete, and that
# plain engine is what this course builds. The levers come last, in chapter 17.

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
# * Give the small engine 8 blocks instead of 24. Do all three requests still run together? Call `show_queues()`
#   after each step.
# * Ask for a story of your own with `temperature=0.8`, twice. Then add `seed=1`, twice.

# %% [markdown]
# ## Recap
#
# 1. A language model scores the next token. An engine turns that into text, for many users at once.
# 2. A loop without memory computes every token again in every step: its work grows with the square of the
#    length.
# 3. The KV cache makes a step of decode cost one token.
# 4. Batching lets many requests share one reading of the weights.
# 5. A scheduler decides who runs, and a block table says where each request's cache lies.

# %% [markdown]
# ## Explain it aloud
#
# * Why do keys and values of old tokens never change? What would have to be different for them to change?
# * The engine's curve is flat here. Would it stay flat for a text of a million tokens?
# * A request is finished and leaves the batch. Why would it be bad to wait for all others first?

# %% [markdown]
# <details><summary>Three answers to the last question: say yours first, then find its grade</summary>
#
# **Good enough.** "Its place in the batch would be empty, and its memory would be held for nothing."
#
# **Good.** "And nobody else could have them: a new request would wait for the longest one of a batch that it has
# nothing to do with. The batch gets smaller while people queue."
#
# **Very good.** "And a step of a small batch costs nearly as much as one of a large batch, as the bars above show. So
# the same seconds give fewer tokens. It would be harmless if all requests had the same length, which nobody knows."
#
# </details>

# %% [markdown]
# ## Read further
#
# * The PagedAttention paper: Kwon et al., *Efficient Memory Management for Large Language Model Serving with
#   PagedAttention*, SOSP 2023, sections 2 and 3.
# * Continuous batching: Yu et al., *Orca: A Distributed Serving System for Transformer-Based Generative
#   Models*, OSDI 2022, section 3.
# * In vLLM, the same step is in `vllm/v1/engine/core.py`, method `EngineCore.step`.
#
# Next, we take the engine apart and follow one request from its text to its first token.

# %%
llm.exit()
