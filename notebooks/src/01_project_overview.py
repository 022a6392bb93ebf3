# %% [markdown]
# # 1 · Project overview
#
# *What an inference engine does, and why a simple loop is not enough.*
#
# You will
#
# * generate your first text with nanovllm,
# * write the simplest generation loop there is, and find out why it is slow,
# * see what happens when many requests run at once,
# * look inside a running engine.
#
# Everything here runs on a laptop's CPU, without a network. The model is part of the repository.
# Plan half an hour.

# %% [markdown]
# ## Where we are
#
# At the very beginning. The engine is complete and works; you do not have to build anything yet.
# In this chapter you use it from outside and look through its windows.
#
# Run the cells in order with Shift+Enter. Change whatever you like: nothing here can break.

# %%
import time
from textwrap import fill

import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap

# White behind every picture, so that it stays legible in a dark theme.
plt.rcParams.update(dict.fromkeys(["figure.facecolor", "axes.facecolor", "savefig.facecolor"], "white"))
plt.rcParams.update({"figure.figsize": (8, 3.2), "figure.dpi": 110, "axes.ymargin": 0.12})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, PINK, GRAY = "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#BBBBBB"

# %% [markdown]
# ## First text
#
# One line loads a model and makes it ready to serve. `"qwen3-tiny"` is the small model in this repository.
# The name of any Qwen3 model, or a directory with its files, works too.

# %%
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
# well would this token go next?
#
# That is all it does. It does not write sentences. To get a sentence, somebody has to call the function, pick
# a token, append it, and call again. That somebody is the inference engine.
#
# You can watch the tokens come. Each `|` below marks one arrival.

# %%
story = "Once upon a time, there was a little girl named Mia. She had a red kite."

for piece in llm.stream(story, SamplingParams(temperature=0, max_tokens=40)):
    print(piece, end="|", flush=True)

# %% [markdown]
# ## The simplest loop
#
# Let us write such a loop ourselves, in plain Python. We take the model as the Hugging Face library builds
# it, from the same files, so that we need nothing but its forward pass.

# %%
import torch
from transformers import AutoModelForCausalLM

model_directory = llm.config.model_path
hf_model = AutoModelForCausalLM.from_pretrained(model_directory, dtype=llm.config.dtype).to(llm.config.device)


@torch.inference_mode()
def naive_generate(token_ids, num_new_tokens):
    """Greedy decoding without any memory. Returns all tokens, and what each step computed and took."""
    computed, seconds = [], []
    for _ in range(num_new_tokens):
        start = time.perf_counter()
        input_ids = torch.tensor([token_ids], device=hf_model.device)
        logits = hf_model(input_ids, use_cache=False).logits  # [1, len(token_ids), vocabulary]
        next_token = int(logits[0, -1].argmax())
        computed.append(len(token_ids))
        token_ids = [*token_ids, next_token]
        seconds.append(time.perf_counter() - start)
    return token_ids, computed, seconds


# %%
prompt = tokenizer.encode(story)
token_ids, computed, _ = naive_generate(prompt, 40)
print(fill(tokenizer.decode(token_ids), 96))

# %% [markdown]
# It works. A handful of lines, and the text is the same as above. So why does anybody need an engine?

# %% [markdown]
# ### Predict
#
# The prompt is short, and we want 200 new tokens. Every call of the model computes something for **every**
# token that it is given. How many tokens does the loop compute in all?
#
# Write down a guess before you go on.

# %%
my_guess = 200  # change me

print(f"The prompt has {len(prompt)} tokens. You expect {my_guess:,} computed tokens for 200 new ones.")

# %% [markdown]
# ### A picture
#
# First a small case: the first 16 steps. A row is one step, from top to bottom. A square is one token that
# the model computed in that step.
#
# On the left is our loop. On the right is the engine, doing the same work. We do not have to guess what the
# engine does: `llm.step()` makes one step and says how many tokens it computed, as a positive number while it
# reads the prompt and as a negative number while it writes.


# %%
def engine_generate(token_ids, num_new_tokens):
    """The same as naive_generate, but by the engine, step by step."""
    params = SamplingParams(temperature=0, max_tokens=num_new_tokens, ignore_eos=True)
    llm.add_request(token_ids, params)
    computed, seconds, finished = [], [], []
    while not finished:
        start = time.perf_counter()
        finished, num_tokens = llm.step()
        computed.append(abs(num_tokens))
        seconds.append(time.perf_counter() - start)
    ((_, new_token_ids),) = finished
    return token_ids + new_token_ids, computed, seconds


# %%
def draw_steps(axis, computed, title, color):
    squares = torch.zeros(len(computed), max(computed[0] + len(computed), *computed))
    end = 0
    for step, count in enumerate(computed):
        end = max(end + 1, count)
        squares[step, end - count : end] = 1
    axis.pcolormesh(squares, cmap=ListedColormap(["white", color]), edgecolors="white", linewidth=0.5)
    axis.set(title=f"{title}: {sum(computed)} tokens computed", xlabel="position in the text", ylabel="step")


figure, (left, right) = plt.subplots(1, 2, sharex=True, sharey=True)
draw_steps(left, naive_generate(prompt, 16)[1], "loop", ORANGE)
draw_steps(right, engine_generate(prompt, 16)[1], "engine", BLUE)
left.invert_yaxis()
plt.show()

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


def better_of_two(generate):
    """Generate twice and keep the shorter time of each token: so other programs disturb the measurement less."""
    token_ids, computed, first = generate(prompt, n)
    token_ids, computed, second = generate(prompt, n)
    return token_ids, computed, [min(pair) for pair in zip(first, second, strict=True)]


token_ids, computed, loop_seconds = better_of_two(naive_generate)

print(f"your guess  {my_guess:>7,}")
print(f"counted     {sum(computed):>7,}")
print(f"formula     {n * p + n * (n - 1) // 2:>7,}")
print(f"engine      {p + n - 1:>7,}")

# %% [markdown]
# The square of $n$ is what hurts. When the text gets long, twice as much of it is nearly four times as much work.

# %% [markdown]
# ### Measured
#
# Counting is one thing, time another. Here is how long each new token took, on this computer, just now.

# %%
engine_token_ids, computed, engine_seconds = better_of_two(engine_generate)

figure, axis = plt.subplots()
axis.plot([1000 * s for s in loop_seconds], color=ORANGE)
axis.plot([1000 * s for s in engine_seconds], color=BLUE)
axis.annotate("loop", (n, 1000 * loop_seconds[-1]), color="black", xytext=(4, 0), textcoords="offset points")
axis.annotate("engine", (n, 1000 * engine_seconds[-1]), color="black", xytext=(4, 0), textcoords="offset points")
axis.set(xlabel="new token", ylabel="milliseconds", ylim=0, title="time for each new token, measured on this run")
plt.show()

# %%
loop_speed, engine_speed = n / sum(loop_seconds), n / sum(engine_seconds)

print(f"loop    {loop_speed:6.0f} tokens/s")
print(f"engine  {engine_speed:6.0f} tokens/s, {engine_speed / loop_speed:.1f} times as fast on this run")
print("same tokens:", engine_token_ids == token_ids)

# %% [markdown]
# The same tokens, in less time. The loop gets slower with every token; the engine does not.
#
# Is the comparison fair? Two things differ: the engine computes fewer tokens, and it does less work around
# each of them. To tell the two apart, let the Hugging Face library use its own memory of earlier tokens.

# %%
input_ids = torch.tensor([prompt], device=hf_model.device)
options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
hf_model.generate(input_ids, max_new_tokens=2, **options)  # the first call prepares things


def hf_seconds():
    start = time.perf_counter()
    hf_model.generate(input_ids, max_new_tokens=n, **options)
    return time.perf_counter() - start


print(f"Hugging Face, with its memory  {n / min(hf_seconds(), hf_seconds()):6.0f} tokens/s on this run")

# %% [markdown]
# From the loop to this number: fewer computed tokens. From this number to the engine: what is done around each token.
# The longer the text, the more the first matters.

# %% [markdown]
# ## What the engine remembers
#
# How can the engine get away with one token a step? Attention, the part of the model that looks back at
# earlier tokens, needs only two vectors of each of them: its **key** and its **value**. They never change
# once they are computed. So the engine keeps them. This memory is the **KV cache**.

# %% [markdown]
# Now a request has two phases:
#
# | phase | tokens in a step | what limits it |
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
# One request of 64 tokens takes some time. Do 16 such requests, started together, take 16 times as long? Or 8
# times, or twice?

# %%
beginnings = ["Once upon a time", "One day, a small fox", "There was an old boat", "Tom had a new ball"]
batch_sizes = [1, 2, 4, 8, 16, 32]
params = SamplingParams(temperature=0.8, max_tokens=64, ignore_eos=True, seed=1)


def seconds_for(batch_size):
    prompts = [beginnings[i % len(beginnings)] for i in range(batch_size)]
    start = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - start


# The better of two runs: something else may keep the computer busy during one of them.
seconds = [min(seconds_for(batch_size), seconds_for(batch_size)) for batch_size in batch_sizes]

# %%
figure, (left, right) = plt.subplots(1, 2)
labels = [str(batch_size) for batch_size in batch_sizes]

bars = left.bar(labels, [s / seconds[0] for s in seconds], color=BLUE)
left.bar_label(bars, fmt="%.1f")
left.set(xlabel="requests together", title="time, compared with one request")

bars = right.bar(labels, [64 * b / s for b, s in zip(batch_sizes, seconds, strict=True)], color=GREEN)
right.bar_label(bars, fmt="%.0f")
right.set(xlabel="requests together", title="tokens per second, all requests")
plt.show()

# %% [markdown]
# Measured on this computer, just now. A request that shares its steps costs a fraction of one that runs
# alone. This is where most of the speed of a serving engine comes from, and it is why the engine needs a
# **scheduler**: something that decides, before every step, who takes part in it.

# %% [markdown]
# ## A look inside
#
# So far we only called `generate`. Now we turn the crank ourselves. A second engine, with a very small memory,
# makes the pictures easy to read: its cache has 24 blocks of 16 tokens. (A real one has thousands of blocks.)

# %%
small = LLM("qwen3-tiny", kvcache_block_size=16, num_kvcache_blocks=24, max_model_len=256)

for text, length in [(story, 60), ("One day, a small fox", 40), ("There was an old boat", 80)]:
    small.add_request(text, SamplingParams(temperature=0, max_tokens=length, ignore_eos=True))

print("waiting:", [seq.seq_id for seq in small.scheduler.waiting])
print("running:", [seq.seq_id for seq in small.scheduler.running])

# %% [markdown]
# Three requests wait. Nothing has been computed. One step changes that.

# %%
finished, num_tokens = small.step()

print("computed tokens:", num_tokens)
print("waiting:", [seq.seq_id for seq in small.scheduler.waiting])
print("running:", [seq.seq_id for seq in small.scheduler.running])

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


# %%
def draw_pool(axis, llm, title):
    """One square for each block of the cache, with the number of the request that holds it."""
    owner = {block: seq.seq_id for seq in llm.scheduler.running for block in seq.block_table}
    num_blocks = len(llm.scheduler.block_manager.blocks)
    for block in range(num_blocks):
        x, y = block % 12, block // 12
        color = (BLUE, ORANGE, PINK)[owner[block] % 3] if block in owner else "white"
        axis.add_patch(plt.Rectangle((x, y), 0.92, 0.92, facecolor=color, edgecolor=GRAY))
        axis.text(x + 0.06, y + 0.26, block, fontsize=6, color="black")
        if block in owner:
            axis.text(x + 0.46, y + 0.62, owner[block], ha="center", va="center", fontsize=12, color="black")
    axis.set(xlim=(0, 12), ylim=(2, 0), title=title, aspect="equal")
    axis.axis("off")


figure, axis = plt.subplots(figsize=(8, 1.8))
draw_pool(axis, small, "blocks of the cache; large: the request, small: the block's number")
plt.show()

# %% [markdown]
# ### Predict
#
# The request that wants only 40 tokens finishes first. What happens to its blocks? And to the two others?

# %%
finished = []
while not finished:
    finished, num_tokens = small.step()

for seq_id, new_token_ids in finished:
    print(f"request {seq_id} is done:", small.tokenizer.decode(new_token_ids)[:60], "...")

figure, axis = plt.subplots(figsize=(8, 1.8))
draw_pool(axis, small, "after the first request has finished")
plt.show()

# %% [markdown]
# Its blocks are free for others at once. The other requests did not notice: they go on in the very next step,
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
# This is its heart. The code below is not a copy: it is cut out of the engine when this notebook is built.

# %%
# {{source nanovllm/engine/llm_engine.py:LLMEngine.run_step}}

# %% [markdown]
# ## The map
#
# The engine is a small package. Here is all of it, file by file.

# %%
from pathlib import Path

import nanovllm

package = Path(nanovllm.__file__).parent
patterns = ["llm.py", "engine/*.py", "models/*.py", "layers/**/*.py", "utils/*.py", "*.py", "levers/*.py"]
sizes, colors = {}, {}
for pattern, color in zip(patterns, [PINK, BLUE, ORANGE, GREEN, GRAY, PINK, "white"], strict=True):
    for file in sorted(package.glob(pattern)):
        name = file.relative_to(package).as_posix()
        if file.name != "__init__.py":
            sizes.setdefault(name, len(file.read_text(encoding="utf-8").splitlines()))
            colors.setdefault(name, color)

figure, axis = plt.subplots(figsize=(8, 0.24 * len(sizes)))
bars = axis.barh(list(sizes), list(sizes.values()), color=list(colors.values()), edgecolor=GRAY)
axis.bar_label(bars, padding=2, fontsize=8)
num_levers = sum(size for name, size in sizes.items() if name.startswith("levers/"))
num_lines = sum(sizes.values()) - num_levers
axis.set(title=f"nanovllm: {num_lines:,} lines, and {num_levers:,} of levers (white)", xlabel="lines, with comments")
axis.tick_params(axis="y", labelsize=8)
axis.margins(y=0.01)
axis.invert_yaxis()
plt.show()

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
# | `levers/` (white) | What makes it faster? |
#
# Arrows between them go one way only: `llm → levers → engine → models → layers → utils`. You can read a file without
# those above it. In particular, the engine knows nothing of its levers: without any of them it is complete, and that
# plain engine is what this course builds. The levers come last, in chapter 17.

# %% [markdown]
# ## Change it
#
# * Let the loop write 400 tokens. Is the time four times that of 200? What does the curve look like?
# * Give the small engine 8 blocks instead of 24. Do all three requests still run together? Print `waiting`
#   and `running` after each step.
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
