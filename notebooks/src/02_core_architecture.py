# %% [markdown]
# # 2 · Core architecture
#
# *One step of the engine, from a text to a token, and what it costs.*
#
# You will
#
# * follow one request through the engine, number by number, then three at once,
# * find out which file does what,
# * compute what one token costs in memory, and see how many requests that leaves room for,
# * write the least time that a step can take, and put it beside real steps of this computer and of an H100,
# * predict how long steps take that nobody has measured.
#
# Everything runs on a laptop's CPU, without a network. Plan 80 minutes, the last exercise included.

# %% [markdown]
# ## Where we are
#
# You have seen what an engine is for. Now we look at how it is built. This chapter has no function of the engine to
# write yet: it gives you the numbers by which all later chapters decide.

# %%
# %load_ext exercises
mine()

# %%
import json
import sys
import time
from pathlib import Path

import figures

import nanovllm
from nanovllm import LLM, SamplingParams
from nanovllm.viz import DataFlow
from nanovllm.viz.memory import GB, PUBLISHED, model_size
from nanovllm.viz.record import record

import torch
from exercises.kit import roofline_work
from exercises.kit.roofline_work import CONFIGS, H100, Device, Model, model_of

torch.set_num_threads(1)  # everything here is measured on one core

# %%
# Blocks of four tokens, so that pictures have room; a real engine has 16 to 256. Without the levers of chapter 17.
SMALL = {"kvcache_block_size": 4, "num_kvcache_blocks": 32, "max_model_len": 64, "device": "cpu"}
SMALL["disabled_optimizations"] = "all"


def lab(exercise_id):
    """A function that is no part of the engine: yours if it is written, else ours; and whose it is."""
    me = mine(exercise_id)
    print(me.whose(exercise_id))
    return me.function(exercise_id), me.owner(exercise_id)


# %% [markdown]
# ## A number that hurts
#
# An H100 does 989 trillion operations a second in 16 bits, multiplications and additions: so says its data sheet. For
# one token, Qwen3-0.6B needs two operations for each of its 596 million weights, one multiplication and one addition.
#
# We have timed this engine on such a GPU while it decoded, with CUDA graphs (chapter 8). The recording comes with
# the course.
#
# ### Predict

# %%
predict("in use", "One request is being decoded. Which share of the H100's arithmetic is in use?", unit="%")

# %%
steps, made = roofline_work.recorded()  # (sequences, tokens of each, seconds) of decode steps
alone = min(steps, key=lambda step: (step[0], abs(step[1] - 500)))
operations = 2 * model_size("Qwen3-0.6B").num_parameters
reveal("in use", round(100 * operations / alone[2] / H100.flops_per_second, 3))
print(
    f"RECORDED on {made['gpu']}, {made['date']}, {made['model']}, {made['dtype']}: {1e3 * alone[2]:.2f} ms for a step"
)
print(f"the arithmetic alone would take {1e3 * operations / H100.flops_per_second:.4f} ms")

# %% [markdown]
# Nearly all of the time, the most expensive part of the machine waits. What for? And how does an engine give it more to
# do? To answer that we have to know what a step is made of.
#
# ## The parts
#
# `llm.step()` goes once through this picture. Where a box names a chapter, you will write most of it.

# %%
figures.engine_map()

# %% [markdown]
# Pictures can be wrong, so let us watch. The function below notes what is called during one step, indented under its
# caller, each function only once. `run_step` is what `llm.step()` does when somebody waits for tokens.


# %%
def calls_of(function, package=nanovllm, most=4):
    """Print the package's functions that a call goes through: where they are, and who calls whom."""
    root, depth, seen = Path(package.__file__).parent, 0, set()

    def watch(frame, event, _):
        nonlocal depth
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(root)) or code.co_name[0] == "<":
            return
        depth -= event == "return"
        if event == "call" and depth < most and code not in seen:
            seen.add(code)
            where = f"{Path(code.co_filename).relative_to(root).as_posix()}:{code.co_firstlineno}"
            print(f"{'  ' * depth + code.co_qualname:64}{where}")
        depth += event == "call"

    sys.setprofile(watch)
    function()
    sys.setprofile(None)


# %%
llm = LLM("qwen3-tiny", **SMALL)
llm.add_request("Once upon a time", SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
calls_of(llm.llm_engine.run_step)

# %% [markdown]
# `run_step` is the heart. Three calls in it do the work: `schedule`, `run`, `postprocess`. The scheduler knows
# sequences and block numbers, and never sees a tensor. The runner knows tensors, and never decides who takes part. Each
# can be read, tested and replaced without the other.
#
# | you want to know | look into |
# |---|---|
# | how text becomes ids, and what is refused | `prompts.py`, `sampling_params.py` |
# | what is known of one request | `engine/sequence.py` (chapter 4) |
# | who owns which block | `engine/block_manager.py` (5) |
# | who takes part in a step | `engine/scheduler.py` (6) |
# | what happens in a step, and after an error | `engine/llm_engine.py` (7) |
# | how sequences become tensors | `engine/model_runner.py` (8) |
# | how keys and values are stored and read | `layers/attention.py` (10) |
# | what else a layer computes | `layers/`, `models/qwen3.py` (9, 11 to 15) |
# | how weights get from a file into the model | `utils/loader.py` (16) |

# %% [markdown]
# ## One request
#
# The prompt "Once upon a time" has four tokens, and the answer shall have four.
#
# ### Predict

# %%
predict("steps", "How many steps does the engine make, from the first to the last token of the answer?")

# %%
while not llm.is_finished():  # the request from above
    llm.step()
llm.scheduler.reset([])  # forget what is cached
wish = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
trace = record(llm, ["Once upon a time"], wish)
done = [step for step in trace["steps"] if step["scheduled"]]
reveal("steps", len(done))
for step in done:
    print(f"step {step['i']}: {step['kind']:7} computes {sum(part['n'] for part in step['scheduled'])} tokens")

# %% [markdown]
# The step that reads the prompt gives the first token, too: the last token of a prompt is as good as any to ask what
# comes next. So a prefill and three decodes give four tokens. The fourth is never computed, because nobody asks what
# comes after it.
#
# Here is that run, step by step, from a recording. It opens where the first step has its tensors; the key Home goes to
# the beginning, and the arrow keys step. Each step goes through the same stations. Watch three things:
#
# * when a token changes from *chosen* to *scheduled* to *cached*,
# * what is in the tensors in the first step, and what in all others,
# * when the second block is taken.

# %%
DataFlow(trace)

# %% [markdown]
# Three rows of numbers are all that the model gets from the engine:
#
# * `input_ids`: which tokens to compute;
# * `positions`: where each stands in its text, for the rotary embedding (chapter 11);
# * `slot_mapping`: where its key and value go in the cache. A block of four tokens is four slots: slot = block × 4 +
#   offset.
#
# A prefill and a decode look the same here. Only the number of tokens differs.

# %% [markdown]
# ## Three requests
#
# Now A has six tokens, B four and C six. A and B are there at the beginning, C comes two steps later. Sequences of
# different lengths go through the model in one call.
#
# ### Predict

# %%
texts = ["One day, a small fox", "Once upon a time", "Tom had a big ball"]
wishes = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (6, 3, 4)]
llm.scheduler.reset([])
three = record(llm, texts, wishes, arrive=[0, 0, 2])
seqs = three["steps"][3]["after"]["seqs"]
table = seqs[max(seqs, key=int)]["table"]  # C is the last that came
SHAPES = ["a row of 10", "a table of 2 x 6, with two empty places", "two rows, one after the other"]
predict("first step", "The first step reads A and B, together. What do its input_ids look like?", choices=SHAPES)
predict("slot", f"In the third step C gets the blocks {table}. Which slot is for its token at position 4?")

# %%
flow = DataFlow(three)
columns = [part["n"] for part in three["steps"][1]["scheduled"]]
reveal("first step", f"a row of {sum(columns)}")
reveal("slot", table[1] * 4)

# %% [markdown]
# A batch is one long row: A's tokens, and B's right behind them. Nothing is filled up with empty places, whatever the
# lengths are. The tables and lengths beside the row tell attention where one sequence ends and the next begins (chapter
# 8).

# %%
flow

# %% [markdown]
# When C comes, A and B have to wait for one step: this engine makes either a prefill or a decode (chapter 6). After
# that, all who are left share each step. When one ends, its blocks are free at once.
#
# ## What a token costs
#
# Weights are there once. Keys and values are there for every token of every request, and they are what fills a GPU.
# How much is it? In every layer, a token has a key and a value for each KV head.
#
# ### Predict
#
# Qwen3-0.6B has 28 layers with 8 KV heads each. A key is a vector of 128 numbers, a number takes 2 bytes.

# %%
predict("one token", "How many kilobytes (1,000 bytes) does the cache need for one token?", unit="kB")
predict("as heavy", "How many tokens of cache are as heavy as all of the model's weights?")

# %%
kv_bytes_per_token, whose = lab("ch02.kv_bytes_per_token")
one_token = kv_bytes_per_token(CONFIGS["Qwen3-0.6B"], 2)
weights = 2 * model_size("Qwen3-0.6B").num_parameters
reveal("one token", one_token / 1000)
reveal("as heavy", weights // one_token)

# %%
figures.kv_of_one_token(num_layers=28, num_kv_heads=8, num_heads=16)

# %% [markdown]
# Every cell of the picture is one vector of 128 numbers. All of it is for *one* token, a word or a part of one. A
# document of ten thousand tokens weighs as much as the model that reads it.
#
# Qwen3-0.6B has 16 attention heads, but only 8 KV heads: two share one. This is **grouped-query attention** (GQA). The
# dashed part is what it saves.
#
# Compute that for any model. What a model looks like is in its `config.json`, and not all of them say everything.

# %%
# {{exercise ch02.kv_bytes_per_token}}

# %% [markdown]
# ### Plug in
#
# First the cache of a running engine: its bytes, and what your function says. Then models that people serve.

# %%
kv_bytes_per_token, whose = lab("ch02.kv_bytes_per_token")
config = json.loads((llm.config.model_path / "config.json").read_text())
slots = SMALL["num_kvcache_blocks"] * SMALL["kvcache_block_size"]
size = llm.llm_engine.model_runner.kv_cache.nbytes
print(f"the engine's cache: {size:,} bytes; {slots} slots x {kv_bytes_per_token(config, 4):,} bytes, in float32")
costs = {name: kv_bytes_per_token(config, 2) for name, config in CONFIGS.items()}
figures.kv_bars(costs)

# %% [markdown]
# The oldest of them, LLaMA-7B, has no GQA: one of its tokens costs as much as two of Qwen3-32B. And Qwen3-0.6B and
# Qwen3-1.7B cost the same, though one has three times the weights: what counts are layers, KV heads and their length.
#
# ### Two machines
#
# The picture below is a calculation: 90 % of the memory may be used, the weights come first (16 bits each), and the
# rest is cut into requests of 4,096 tokens.

# %%
models = {name: (2 * model_size(name).num_parameters / GB, 4096 * costs[name] / GB) for name in PUBLISHED}
figures.what_fits(models, {"a card with 80 GB": 80, "a laptop with 16 GB": 16})

# %% [markdown]
# Every green cell is one request. On the large card, the small model has room for 150 of them, the largest for six. On
# the laptop, models up to 4B run; a larger one would not leave room for anything. What else needs memory, and how
# the engine decides, is in chapter 3.

# %% [markdown]
# ## What a step waits for
#
# Back to the GPU that waits. To compute a token, *every* weight has to come from memory to where it is multiplied.
# That takes time. But a weight that is there can be multiplied with one token, or with many.
#
# Let us measure that on this computer. `wide_llm` is an engine whose model has layers as wide as those of Qwen3-0.6B,
# but only four of them, and random weights: what it writes is nonsense, and its steps take as long as if it were not.
# They are 260 MB, more than a CPU's caches hold.

# %%
wide = roofline_work.wide_llm(kvcache_block_size=16, num_kvcache_blocks=256, enable_prefix_caching=False)
forever = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)


def time_step(num_seqs, num_tokens, is_decode=False):
    """Seconds of a step for some requests: the one that reads their prompts, or the one after it."""
    requests = [wide.add_request([7 + i] * num_tokens, forever) for i in range(num_seqs)]
    if is_decode:
        wide.step()
    start = time.perf_counter()
    wide.step()
    seconds = time.perf_counter() - start
    for request in requests:
        wide.abort(request)
    return seconds


# %%
predict("32 tokens", "A step that reads a prompt of 32 tokens takes how many times as long as one of 1 token?")

# %%
COUNTS = [1, 2, 4, 8, 16, 32, 64]
time_step(1, 4)  # the first step prepares things
turns = [[(time_step(1, n), time_step(n, 4, is_decode=True)) for n in COUNTS] for _ in range(3)]
# The fastest of three: whatever else the computer does only makes a step slower.
prefills, decodes = ([min(turn[i][k] for turn in turns) for i in range(len(COUNTS))] for k in (0, 1))
reveal("32 tokens", round(prefills[COUNTS.index(32)] / prefills[0], 1))

# %%
figures.seconds_of_steps(COUNTS, {"prefill of one prompt": prefills, "decode of so many requests": decodes})

# %% [markdown]
# The two lines are nearly one: to the weights it makes no difference whether 32 tokens come from one prompt or from 32
# requests. What counts is the number of **tokens in a step**. The thirty-second token is much cheaper than the first,
# but not free: on a CPU, arithmetic soon takes longest.
#
# ## The roofline
#
# Now as a formula. A step has to do two things: move bytes, and compute. A device does both at the same time, each at
# its own speed, so the step takes at least as long as the longer of the two:
#
# $$\text{seconds} \ge \max\left(\frac{\text{bytes}}{\text{bytes per second}},
# \frac{\text{operations}}{\text{operations per second}}\right)$$
#
# Such a bound is called a **roofline**. Which bytes, and which operations? That is yours to write.

# %%
# {{exercise ch02.step_seconds}}

# %% [markdown]
# ### Plug in: this computer
#
# First we measure the two speeds: how fast one core reads memory, and how fast it multiplies large matrices. Your
# function makes a time of them for each of the steps above.

# %%
step_seconds, whose = lab("ch02.step_seconds")


def fastest(function, times=5):
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


large, square = torch.rand(8192, 8192), torch.rand(1024, 1024)
this_core = Device(large.nbytes / fastest(lambda: large @ large[0]), 2 * 1024**3 / fastest(lambda: square @ square))
print(f"one core: {this_core.bytes_per_second / GB:.1f} GB/s, {this_core.flops_per_second / 1e9:.0f} GFLOP/s")
head = wide.config.hf_config.vocab_size * 1024
layers = sum(weight.numel() for weight in wide.llm_engine.model_runner.model.parameters()) - head
kv_bytes_per_token, _ = lab("ch02.kv_bytes_per_token")
wide_model = Model(layers, head, kv_bytes_per_token(vars(wide.config.hf_config), 4), element_size=4)
bounds = [step_seconds([(4, 1)] * n, wide_model, this_core) for n in COUNTS]
figures.seconds_of_steps(COUNTS, {"decode, measured": decodes}, bounds)

# %% [markdown]
# The bound has two parts. Where it is flat, the step waits for memory, and one more token would cost nothing. Where it
# rises, it waits for arithmetic; on one core of a CPU that begins after a few tokens.
#
# The measured steps lie above it, and they often rise earlier. The bound leaves out attention and all that is small,
# and it takes the speed of large matrix products for granted, which those with two or four rows do not reach. It says
# what cannot be beaten, not what you get. (Its two speeds were measured a moment later. If another program has slowed
# the computer down since, the bound can cross the measured line: measure both again.)

# %% [markdown]
# ### Plug in: a large GPU
#
# An H100 reads 3.35 terabytes a second. On it, this engine decoded with up to 256 sequences at a time, with short and
# with long contexts.

# %%
predict("64 at once", "64 sequences of 547 tokens each: their step takes how many times as long as that of one?")
predict("longer", "64 sequences have 8,227 tokens each, not 547. How many times as long does a step take now?")

# %%
seconds_of = {(num_seqs, length): seconds for num_seqs, length, seconds in steps}
reveal("64 at once", round(seconds_of[64, 547] / seconds_of[1, 547], 1))
reveal("longer", round(seconds_of[64, 8227] / seconds_of[64, 547], 1))

# %%
small = model_of("Qwen3-0.6B")
least = {(n, length): step_seconds([(length - 1, 1)] * n, small, H100) for n, length, _ in steps}
figures.measured_and_least(steps, least, f"RECORDED on {made['gpu']}, {made['date']}; dashed: the least time")

# %% [markdown]
# Three things to see:
#
# * **From 1 to 64 sequences** the step takes not even three times as long, for 64 times the tokens. The weights are
#   shared.
# * **With long contexts** the lines rise early. Caches are not shared: each sequence reads its own. Batching does not
#   help against that; GQA does, and so does a smaller number format.
# * **At the left** the measured steps are four times as long as the bound. About one millisecond goes into starting
#   some 200 small programs on the GPU, one after the other, although a CUDA graph does that. Chapter 17 is about
#   that millisecond. What is left of the gap, also at the right, is work that the bound does not count.

# %% [markdown]
# ### The same as a picture of work
#
# Divide the operations of a step by its bytes. This is its **arithmetic intensity**. The device has one, too: an H100
# can do 295 operations for each byte that it reads. Whoever does fewer waits for memory.


# %%
def work(scheduled, model):
    """Operations and bytes of a step: the seconds on a device that does one of them a second, and the other at once."""
    operations = step_seconds(scheduled, model, Device(1e30, 1.0))
    return operations, step_seconds(scheduled, model, Device(1.0, 1e30))


seconds_of = {(num_seqs, length): seconds for num_seqs, length, seconds in steps}
points = {}
for length in (547, 8227):
    for n in (1, 8, 64):
        operations, moved = work([(length - 1, 1)] * n, small)
        point = (operations / moved, operations / seconds_of[n, length], str(n))
        points.setdefault(f"decode, {length:,} tokens each", []).append(point)
operations, moved = work([(0, 2048)], small)
figures.roofline(H100, points, {"prefill of 2,048 tokens": operations / moved})

# %% [markdown]
# The numbers at the dots are sequences. The slope is the memory's, the flat part the arithmetic's. All of decode is far
# to the left: batching moves it to the right, and long contexts hold it back. A single prompt of 2,048 tokens is beyond
# the bend. That is why a prefill is limited by arithmetic and a decode by memory.

# %% [markdown]
# ## How long will the next step take?
#
# A service may promise its readers a token every 10 milliseconds. Then the scheduler has to know, *before* a step, how
# long it will take. A bound is not enough for that: real steps take longer. But real steps can be measured, and
# then predicted.
#
# The simplest way is to answer with the measured step that is most like the one in question. Half of the recorded steps
# are seen, the other half is asked for.

# %%
splits = roofline_work.halves(steps)
error = roofline_work.median_error(roofline_work.nearest_seen, splits)
print(f"the nearest one: wrong by {100 * error:.0f} % (the median over all answers)")

# %% [markdown]
# You can do better. The exercise is open: any function counts that is right often enough. Below 5 % is a good one.

# %%
# {{exercise ch02.predict_seconds}}

# %% [markdown]
# ### Plug in
#
# One half of the steps is seen. The others are drawn: what was predicted, over what was measured. On the line, both are
# equal. Then the question of the service: how many sequences can share a step of at most 10 ms?

# %%
predict_seconds, whose = lab("ch02.predict_seconds")
seen, unseen = splits[0]
answers = {
    name: [(seconds, function(seen, n, length)) for n, length, seconds in unseen]
    for name, function in {"the nearest one": roofline_work.nearest_seen, whose: predict_seconds}.items()
}
figures.predicted_and_measured(answers)
for length in (500, 1000, 2000, 4000, 8000):
    fitting = max((n for n in range(1, 513) if predict_seconds(steps, n, length) <= 0.010), default=0)
    print(f"contexts of {length:5,} tokens: {fitting:3}{' or more' * (fitting == 512)} sequences in a step of 10 ms")

# %% [markdown]
# Twice the context, about half of the readers. That is the trade which every scheduler of chapter 6 is about, and you
# have its numbers now.
#
# ## Your engine so far
#
# The same work as in chapter 1, by the naive loop and by your engine as it is. What you wrote here stands beside the
# engine. Nothing *in* it is yours yet, and it takes one request at a time: that changes with the chapters to come.

# %%
print(mine().whose("ch02.kv_bytes_per_token", "ch02.step_seconds", "ch02.predict_seconds"))
staircase("02")

# %% [markdown]
# ## Change it
#
# * Record three requests with `num_kvcache_blocks=5` (20 tokens: the engine warns that not every request would fit). At
#   which station of the data flow does somebody wait, and does somebody have to go?
# * After a new `llm.add_request(...)`, call `calls_of(llm.llm_engine.run_step, most=14)`. Which functions of a layer
#   run, and in which order?
# * How many requests of 4,096 tokens fit on 80 GB if keys and values take one byte a number?
# * Predict steps of a batch in which half of the sequences are long. What do you put in for `context_len`?

# %% [markdown]
# ## Recap
#
# 1. A step is: schedule, prepare, run, sample, take in. The scheduler sees no tensors; the runner decides nothing.
# 2. Prefill and decode differ only in how many tokens a sequence has in the step. A batch is one row without gaps.
# 3. A token costs 2 x layers x KV heads x head_dim numbers of cache. Ten thousand tokens are as heavy as a small model.
# 4. Weights are read once a step, whoever takes part; caches are read by each sequence for itself.
# 5. Decode waits for memory, a long prefill for arithmetic. Three prices, fitted to measured steps, predict the time.

# %% [markdown]
# ## Explain it aloud
#
# * Why does a prefill give a token, and why is the last token of an answer never computed?
# * A batch of 64 is nearly free. Why does nobody run a batch of 6,400?
# * What does grouped-query attention change: the bytes of the weights, those of the cache, or the operations?
#
# <details><summary>Three answers to the second question (open them when you have given yours)</summary>
#
# **Why does nobody run a batch of 6,400?**
#
# * *weak*: It would take too much memory.
# * *good*: The cache of each sequence has to be kept, and to be read in every step. Room ends first: 80 GB are 150
#   sequences of 4,096 tokens, for the smallest of these models.
# * *excellent*: And where there is room, weights are shared but caches are not: beyond some size a step gets longer by
#   as much as it gives tokens. Then readers wait longer, and the machine does no more. With short contexts the
#   arithmetic would be next, at some 295 operations a byte.
#
# </details>

# %% [markdown]
# ## Read further
#
# * The roofline: Williams, Waterman and Patterson, *Roofline: An Insightful Visual Performance Model for Multicore
#   Architectures*, CACM 2009.
# * Prefill and decode by numbers: Pope et al., *Efficiently Scaling Transformer Inference*, MLSys 2023, sections 2 and
#   3.
# * Grouped-query attention: Ainslie et al., *GQA*, EMNLP 2023.
# * In vLLM: `EngineCore.step` in `vllm/v1/engine/core.py`, and `GPUModelRunner._prepare_inputs` in
#   `vllm/v1/worker/gpu_model_runner.py`, where the same three rows of numbers are made.
#
# Next, we begin to build: with what an engine is told, and what it refuses.

# %%
llm.exit()
wide.exit()
