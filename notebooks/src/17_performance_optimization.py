# %% [markdown]
# # 17 · Performance
#
# *Where the time goes, what each lever gains and costs, and a lever of your own.*
#
# You will
#
# * put steps under a roofline: an H200's, and this machine's,
# * profile a step, and see where its time and its memory go,
# * find out who waits for whom on a GPU, and what a fused kernel saves,
# * read the measured gain of every lever, and why gains do not multiply,
# * write a lever that makes the plain engine faster on a CPU, and see its gain on the spot.
#
# Plan 85 minutes; the exercises are 35 of them. Everything runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# The engine that you have built is complete, and plain: each part does what it says, in the fewest lines that can be
# read. Nothing in it was made fast.

# %%
# %load_ext exercises
mine()

# %%
import figures

from exercises.kit import lever_work, speed_work
from nanovllm import LLM
from nanovllm.levers import LEVERS, table
from nanovllm.viz import Bars, Roofline

import torch

torch.set_num_threads(1)  # everything here is measured on one core
PLAIN = {"device": "cpu", "disabled_optimizations": "all", "kvcache_block_size": 16, "num_kvcache_blocks": 400}
PLAIN |= {"max_model_len": 512, "enable_prefix_caching": False}


def lab(exercise_id):
    """A function that is no part of the engine: yours if it is written, else ours."""
    me = mine(exercise_id)
    print(me.whose(exercise_id))
    return me.function(exercise_id)


# %% [markdown]
# ## A number that hurts
#
# One reader, a model of the shape of Qwen3-0.6B, one of the fastest GPUs there is. A token needs all weights once: 1.19
# GB, and this GPU moves 4,300 GB a second. So 4,300 / 1.19 = 3,600 tokens a second would be possible.
#
# ### Predict

# %%
picture = Bars("the plain engine", 3600, {"what memory allows": 3600}, step=10)
predict("plain", "How many tokens a second does the plain engine write for one reader on an H200?", picture=picture)

# %%
fast, plain = speed_work.rates("batch-1")
reveal("plain", round(plain))
print(f"with all levers: {fast:,.0f}, which is {1000 / fast:.2f} ms a token")
print("RECORDED on", speed_work.made(speed_work.recorded("levers_h200")))

# %% [markdown]
# The plain engine reaches one percent of what the machine allows. This chapter is about the other 99.
#
# ## The roof
#
# Chapter 2 said what a step has to wait for: bytes, or arithmetic. The **roofline** shows both in one picture. To the
# right are the operations that a step makes with each byte that it moves; upwards, how many of them a second are
# possible. Left of the bend the memory is the limit, right of it the arithmetic.
#
# ### Predict
#
# Decode steps of Qwen3-0.6B; each sequence has 512 tokens in the cache. An H200's roof bends at 184 operations a byte.

# %%
choices = ["about 64", "about 256", "about 1,024", "with no batch, however large"]
predict("bend", "From which batch on does arithmetic become the limit of such a decode?", choices=choices)

# %%
machine, works = speed_work.h200(), speed_work.roofline_works()
model = speed_work.model_of("Qwen3-0.6B")
most = 2 * (model.layer_parameters + model.head_parameters) / (speed_work.CONTEXT * model.kv_bytes)
reveal("bend", choices[3] if most < machine.bend else choices[2])
print(f"with a batch without end: {most:.0f} operations a byte")
Roofline([machine, speed_work.this_core()], works)

# %% [markdown]
# Play it. The weights are shared by the batch, so more sequences make more of each byte. Keys and values are not: each
# sequence reads its own. So on the H200 the points crowd together at about twenty, and only a prefill gets past the
# bend. (Attention's own arithmetic is not counted.)
#
# This machine computes in float32: twice the bytes, so its points lie half as far to the right. One core has little
# arithmetic for each byte that it can move, so its roof bends early, and large batches come close to the bend or past
# it. The lesson about decodes is one about GPUs.

# %% [markdown]
# The table below the picture puts the measured step beside the least time. At batch 1 it takes 3.7 times the least, at
# 8 even 4.6, at 64 2.4, at 256 1.7: the loss is greatest where steps are small. (For one or two tokens there is a lever
# of its own, so batch 8 is worst.)
#
# Batch 1 takes 1.07 ms here, and 0.87 ms a token above. These steps were timed one by one, without the lever
# `step_ahead`, so that the CPU's work between steps is in them; and the recordings are of different days.

# %% [markdown]
# ## Where the time goes
#
# On paper one counts; in a program one measures. A **profile** says which part of a step takes how long. Here is the
# plain engine with the small model, on one core of this machine.
#
# ### Predict
#
# With one sequence, attention takes less than a tenth of a decode step. The texts have some 50 tokens.

# %%
predict("attention", "And with 32 sequences in the step: which share of it is attention?", unit="%")

# %%
llm = LLM("qwen3-tiny", **PLAIN)
steps = {f"{n} sequence{'s' * (n > 1)}": speed_work.seconds_by_part(llm, n) for n in (1, 32)}
many = steps["32 sequences"]
reveal("attention", round(100 * many["attention"] / sum(many.values())))

# %%
for name, parts in steps.items():
    print(f"MEASURED NOW: {1000 * sum(parts.values()):5.1f} ms for {name}")
figures.parts_of_steps(steps)

# %% [markdown]
# The products share the weights, so they grow slowly. Attention is done for one sequence after the other, in each of
# the 8 layers. Its arithmetic is small; its calls are many.
#
# torch's own profiler looks one level deeper: single operations of a step for 32.

# %%
for name, count, milliseconds in speed_work.profiled(llm, 32):
    print(f"{milliseconds:8.2f} ms {count:6} times  {name}")

# %% [markdown]
# Read the middle column first; the order differs from run to run. 256 calls of attention are 8 layers × 32 sequences.
# `index` gathers keys and values from the blocks of the cache, both for each sequence in each layer; `index_copy_`, if
# it is in the list, stores the new ones, both once a layer for all. And the thousands of `as_strided` and `transpose`
# compute nothing at all: they only describe memory, a microsecond each. (The profiler itself makes small operations
# look longer.)
#
# ### And the memory
#
# The same profiler counts what is allocated.

# %%
memory = speed_work.memory_by_kind(llm, 256) | speed_work.memory_by_kind(llm, 448)
figures.bars({name: value / 2**20 for name, value in memory.items()}, "Memory of this engine, MiB", "{:.1f}")

# %% [markdown]
# Weights and pool stay. Activations come and go: of all layers, only one is there at a time, and they grow with the
# tokens *of a step*, not with those of the cache. On a GPU the same three: `torch.cuda.max_memory_allocated()` around
# a step, as `ModelRunner.warmup_model` does it (chapter 3).
#
# ## Who waits for whom
#
# On a GPU there are two machines. The CPU runs Python and *launches* kernels; the GPU runs them in order. Launching is
# slow: here are decode steps of our engine with fused kernels, on an H200, with and without a **CUDA graph**, which is
# one launch for all kernels (chapter 8).

# %%
for row in speed_work.recorded("steps_h200")["rows"][::4]:
    call, kernel = (1000 * row[key][1] / row["kernels_per_step"] for key in ("eager_ms", "graph_ms"))
    print(f"batch {row['bs']:3}: {row['kernels_per_step']} kernels; a call takes {call:.0f} µs, a kernel {kernel:.0f}")

# %% [markdown]
# (The step's time divided by its kernels: so these are means, and a call is Python and all. Six kernels are outside the
# layers. A layer has 6 for one token, where a lever puts more into each; 7 at batch 256; and 8 in between, probably
# because the library splits a product there, and adds up the parts in one kernel more.)
#
# ### Predict
#
# Somebody makes all kernels twice as fast. Batch 256, no graph.

# %%
picture = Bars("kernels twice as fast", 10, {"as it was": 10.0}, "ms", 0.1)
predict("half", "The step took 10.0 ms. How long does it take with kernels that are twice as fast?", unit="ms",
        picture=picture)  # fmt: skip

# %% [markdown]
# To answer that, write the queue.

# %%
# {{exercise ch17.end_of_step}}

# %%
end_of_step = lab("ch17.end_of_step")
calls, kernels = [49.6] * 202, [31.6] * 202  # microseconds, from the line for batch 256
reveal("half", round(end_of_step(calls, [k / 2 for k in kernels]) / 1000, 1))
graph = [49.6] + [0.0] * 201
for name, made in {"no graph": calls, "a graph ": graph}.items():
    times = [end_of_step(made, [k / factor for k in kernels]) / 1000 for factor in (1, 2)]
    print(f"{name}: {times[0]:.1f} ms; with kernels twice as fast {times[1]:.1f} ms")

# %%
few = {"short kernels": (calls[:12], [20.0] * 12), "long kernels": (calls[:12], [70.0] * 12)}
figures.calls_and_kernels(few | {"short kernels, a graph": (graph[:12], [20.0] * 12)})

# %% [markdown]
# Without a graph nothing is gained: the GPU waits for calls. With one it is a factor of two. **Whether a lever gains
# anything depends on the others.** So first make the calls few, then the kernels fast.
#
# Something is left between two steps: the tokens have to come back, the scheduler decides, tables are made. *One step
# ahead* launches the next step before the tokens of the last one have been looked at; the GPU fills them in itself.
#
# <details><summary>Its step in our code (not needed for anything)</summary>
#
# `launch_after` launches a step whose tokens may still be on the GPU; `resolve` waits for the step before, and takes
# its tokens in; `advance` counts the new step as computed, with -1 in place of its tokens.
#
# {{source nanovllm/levers/step_ahead.py:LLMEngineLever.run_step}}
#
# </details>

# %% [markdown]
# ## Fewer bytes, fewer kernels
#
# A norm in plain PyTorch is nine operations, each a kernel: add the residual stream, go to float32, square, mean, add
# eps, root, divide, go back to 16 bits, multiply by the weight. Every one reads its vectors from memory and writes them
# back. What the second to the seventh make has 4 bytes a number, the rest 2. A **fused** kernel does all nine while the
# numbers are in the chip, and writes two results: the sum, which is the new stream, and the norm.
#
# ### Predict

# %%
predict("bytes", "How many times as many bytes do the nine kernels move as one that does it all?")

# %%
# {{exercise ch17.bytes_moved}}

# %%
bytes_moved = lab("ch17.bytes_moved")
sizes, outputs = speed_work.norm_sizes(256), {"sum", "y"}  # the sum goes on as the residual stream
nine = bytes_moved([[operation] for operation in speed_work.NORM], sizes, outputs)
one = bytes_moved([speed_work.NORM], sizes, outputs)
reveal("bytes", round(nine / one, 1))

# %%
three = bytes_moved([speed_work.NORM[:1], speed_work.NORM[1:7], speed_work.NORM[7:]], sizes, outputs)
megabytes = {"nine kernels": nine, "three: add | float32 to divide | back, weight": three, "one kernel": one}
megabytes = {name: moved / 1e6 for name, moved in megabytes.items()}
figures.bars(megabytes, "A norm for 256 tokens of 1,024 features, MB", "{:.1f}", figures.GREEN)

# %% [markdown]
# Is that where the gain of `fused_norm` comes from? On the large batch it was measured as 20.7 %. Qwen3-0.6B has 57
# such norms; count what they save of a step of 6.4 ms, that of batch 256.

# %%
saved = speed_work.NUM_NORMS * (nine - one) / machine.bytes_per_second
rest = (0.207 * 6.4e-3 - saved) / (speed_work.NUM_NORMS * 8)
print(f"bytes: {1e6 * saved:.0f} µs of a step, {100 * saved / 6.4e-3:.1f} %")
print(f"if the rest of the 20.7 % is the number of kernels: {1e6 * rest:.1f} µs for each of {57 * 8}")

# %% [markdown]
# The bytes explain a tenth of it. The rest has to be the kernels themselves: even in a graph, each takes a few
# microseconds to begin and to end. In a decode step fusing is about their *number*; in a long prefill, where vectors
# are large, about bytes.
#
# A norm can even do without a kernel. It divides a token's vector by one number and multiplies each feature by a
# weight. A projection is linear: so the weights can be multiplied into *its* weights, once, and the number be applied
# after it, by kernels that run anyway. That is **folding**.
#
# <details><summary>Folded norms in our code (not needed for anything)</summary>
#
# The price: weights are rounded once more, and in float16 it could overflow, so there it is off.
#
# {{source nanovllm/levers/folded_norm.py:install}}
#
# </details>

# %% [markdown]
# ## The levers
#
# Our levers are plugged in from outside, like yours soon. Either a class overrides methods of engine, scheduler or
# runner; or a function `install(model, sampler)` gives modules of the model another `forward`. This is all that
# `packed_weights` is: on a CPU, a copy of the weights in the layout that the library multiplies fastest.
#
# {{source nanovllm/levers/packed_weights.py:PackedLinear}}
#
# {{source nanovllm/levers/packed_weights.py:install}}

# %% [markdown]
# The others are in `nanovllm/levers`, one file each:
#
# | lever | what it does |
# |---|---|
# | `fused_norm` | a norm is one kernel, and the product before it adds to the residual stream |
# | `fused_activation` | SiLU and product are one kernel |
# | `fused_qkv` | split, QK-norm, rotation and storing in the cache are one kernel |
# | `fused_sampler` | sampling is one pass over the logits |
# | `folded_norm` | a norm needs no kernel |
# | `small_batch` | products for one or two tokens, at the speed of the memory |
# | `cuda_graph` | a decode step is recorded once, then launched by one call |
# | `overlapped_launch` | a kernel is set up while the one before still runs |
# | `expected_length` | a request joins only if the pool is expected to last until others have ended |
# | `step_ahead` | the next step is launched before the last one's tokens are known |

# %% [markdown]
# What did they gain? Engines with and without a lever did the same work in turn, each in a process of its own; all
# other levers were on, but for those that build on it.
#
# ### Predict
#
# *Batch-1* is one reader; *default* are 256 requests; *early-stop* are 512 whose answers end early, with little memory.
# One of the levers gains most in the first two.

# %%
predict("most", "Which one?", choices=list(LEVERS))

# %%
gains = {name: speed_work.gains(name) for name in ("default", "batch-1", "early-stop")}
single = {name: gain for name, gain in gains["default"].items() if name != "all"}
reveal("most", max(single, key=single.get))

# %%
figures.lever_gains(gains, {name: table.lever_lines(name) for name in LEVERS})
print("RECORDED on", speed_work.made(speed_work.recorded("levers_h200")))

# %% [markdown]
# Two stay at about 1 everywhere. `folded_norm` gains 1.3 % of the default work, and runs of one kind differ by 0.2 %:
# it is real, and small, for 45 lines. Of `expected_length` the picture can say nothing, as its runs differ by 16 %; it
# is there so that fewer requests lose their blocks and are computed anew (chapter 6). If lines were dear, these two
# would go first.
#
# ### Do gains multiply?
#
# Each of these gains was measured with all others on. Now the engine with all levers, beside the plain one.

# %%
predict("product", "The single gains of the default work, multiplied, are 5.6. How many times as fast is it with all?")

# %%
for workload in ("default", "batch-1"):
    factors = [gain for name, gain in gains[workload].items() if name != "all"]
    product, added = torch.tensor(factors).prod().item(), 1 + sum(factor - 1 for factor in factors)
    print(f"{workload:8} product {product:5.1f}, added {added:4.1f}, measured {gains[workload]['all']:5.1f}")
reveal("product", round(gains["default"]["all"], 1))
print(table.describe_measurement(speed_work.recorded("levers_h200")))

# %% [markdown]
# Neither sum nor product, and not always less than the product. Two levers that save the *same* time gain less
# together: a graph hides the calls, and then one step ahead and fused kernels have fewer calls to save. Two that
# *uncover* each other gain more: a fast kernel is worth nothing until the calls are gone. Your queue has shown both.
#
# There is a limit, too: what a lever does not touch stays. If attention is 60 % of a step and costs nothing any more,
# the step is 2.5 times as fast, and not more. This is **Amdahl's law**.

# %% [markdown]
# ## Could a compiler do it?
#
# `torch.compile` reads the Python code of a module, and makes fused kernels of it by itself. On our *plain* layers this
# is one line; attention, which asks for lengths and tables, stays as it is. Measured on an H200, in turn with the plain
# engine and with that of all levers.

# %%
compiled = speed_work.recorded("compile_h200")
rates = {row["engine"]: row["tokens_per_second"] for row in compiled["rows"] if row["workload"] == "default"}
figures.bars({name: sorted(found)[1] for name, found in rates.items()}, "default: tokens/s, the median of three runs")
print("RECORDED on", speed_work.made(compiled))

# %% [markdown]
# Nothing, within the noise: runs of one kind lie 15 % apart. The queue says what to suspect: the plain engine waits for
# calls, and compiled code is called from Python, too, several times a layer. That is a guess; a timeline would tell.
# (`mode="reduce-overhead"` adds graphs; we have not measured it.)
#
# ## Beside others
#
# The same requests, the same model directory, the same H200; each peer in one call with ours.

# %%
others = speed_work.recorded("peers_h200")
print("RECORDED on", speed_work.made(others))
figures.peers(others["rows"], others["limit"])
ratios = {row["work"]: row["ours"] / row["theirs"] for row in others["rows"] if row["peer"].startswith("nano-vllm")}
print("ours / nano-vllm:", "; ".join(f"{work} {ratio:.2f}" for work, ratio in ratios.items()))
print(f"starting vLLM: {others['vllm_start_seconds']} s")

# %% [markdown]
# The limit counts bytes and arithmetic only, at the speed of a large copy; keys and values are in it, so for one reader
# it is 3,250 and not 3,600. This is another run than those above: 1,111 tokens a second for one reader, there 1,148.
# Two rows are ours with a part exchanged: with the attention of flash-attn, and without graphs. vLLM does far more than
# this engine.
#
# ## Write a lever
#
# Now you. The profile above says where a step for 32 sequences spends its time, on one core of this machine. Your lever
# is plugged into the plain engine from outside, and not a single token may change.
#
# This exercise is open. 1.1 times as fast counts; 1.3 is good. A layer's `k_cache` is [blocks, tokens of a block, KV
# heads, head_dim]; `q` is [tokens, heads, head_dim], with more heads: neighbors share a KV head (chapter 10).
# `F.scaled_dot_product_attention` does that with `enable_gqa=True`. The context has `is_prefill`, and in a decode
# `context_lens` and `block_tables`, padded with -1 (chapter 8); in a prefill `context_lens` is None. `Attention` and
# `F` need no import. This is the loop in question, a decode and a prefill alike:
#
# {{source nanovllm/layers/attention.py:Attention.attend}}
#
# {{source nanovllm/utils/swap.py:swap}}

# %%
# {{exercise ch17.my_lever}}

# %%
me = mine("ch17.my_lever")
my_lever = me.function("ch17.my_lever")
print(me.whose("ch17.my_lever"))
found = lever_work.compare(me, my_lever)
print(f"{found.gain:.2f} times as fast, the median of {len(found.ratios)} pairs; same tokens: {found.same}")
figures.pairs_of_runs(found.plain, found.lever, lever_work.BAR)
with lever_work.engine_with(me, my_lever, num_kvcache_blocks=400, max_model_len=512) as other:
    steps["32, with the lever"] = speed_work.seconds_by_part(other, 32)
figures.parts_of_steps(steps)

# %% [markdown]
# What is timed is the time that the process computes, not the clock on the wall, and always beside a neighbor: so a
# busy laptop disturbs both, and the median of the ratios hardly. The bars say where the time goes now.

# %%
predict("one long", "31 requests as before, and one with a prompt of 300 tokens. How many times as fast is it now?")

# %%
slow = lever_work.compare(me, my_lever, 5, lever_work.one_of_them_long, max_model_len=384, num_kvcache_blocks=256)
print(f"{slow.gain:.2f} times as fast, and {found.gain:.2f} without the long one; same tokens: {slow.same}")
reveal("one long", round(slow.gain, 2))

# %% [markdown]
# Whoever fills all texts up to the longest has filled up 31 of them to 300 tokens. A lever is fast on some work, and
# the work has to be named with every gain. Can you write one that is fast on both?
#
# ## Levers that did not pay
#
# They took as long as the others, and teach more. Tokens/s of the default work on an H200, before and after.
#
# <details><summary>Expected, and measured</summary>
#
# | what | expected | measured |
# |---|---|---|
# | equal shares of decode attention for all programs | no tail, 7 % | 25,149 to 22,996: many short stretches |
# | two halves of a batch side by side | 10 to 15 % | 25,149 to 24,721: both want the whole chip |
# | the next keys fetched early | 2 % | 25,605 to 25,454: bandwidth is the limit |
# | other products of the library, transposed weights | some percent | within 2 % |
# | a smaller cache, fewer pages to look up | some percent | 25,454 to 25,348 |
# | the longest sequences first | 2 % | better and worse, within 2 % |
# | larger chunks for long contexts | fewer merges | +5 % for equal lengths, -1 % for mixed ones |
#
# </details>

# %% [markdown]
# And some that have no name, because they are simply how a line is written. Tokens/s as above, where nothing else is
# said.
#
# <details><summary>Small things that did pay</summary>
#
# | what | expected | measured |
# |---|---|---|
# | our decode kernel in place of flash-attn's | 90 to 98 % of the bandwidth | 21,952 to 24,584 |
# | attention's chunks merged in its kernel; a product's weights read as one tile | 28 launches | batch 1: 806 to 950 |
# | decode reads 128 tokens at a time, not 64 | more bytes under way | 25,104 to 25,605 |
# | decode reads all heads of a token together | side by side in memory | a layer: 147.7 to 142.0 µs |
# | inputs copied straight to where the graph reads them | 12 copies of 25 | batch 1: 1,045 to 1,090 |
# | prompts' token ids checked all at once | 75 ms of 5.2 s | 84 to 9 ms |
#
# Both tables: 2026-11-21, torch 2.11.0+cu130, NVIDIA H200; a pair is of one call.
#
# </details>
#
# <details><summary>Two GPUs, and threads that spin</summary>
#
# Qwen3-8B's shape, 128 requests, H200s, 2026-11-21 (commits 8b0c017 and f289155), tokens/s:
#
# | one GPU | two | two, one step ahead | and the sum carries the residual stream |
# |---|---|---|---|
# | 7,473 | 7,681 | 10,365 | 10,668 |
#
# Without working ahead, what the second GPU saves goes into messages. The 73 sums of a step take 15 µs each.
#
# On a CPU, threads that wait *spin* for a while before they sleep. `GOMP_SPINCOUNT=20000` is set before torch is
# loaded. Tokens/s on 2 cores (2026-11-22, `python bench.py --busy 2`, two rounds):
#
# | threads | alone | beside 2 busy programs |
# |---|---|---|
# | spin 300,000 times, the default | 350, 328 | 98, 76 |
# | sleep at once (`OMP_WAIT_POLICY=PASSIVE`) | 230, 206 | 115, 236 |
# | spin 20,000 times | 327, 346 | 140, 151 |
#
# </details>

# %% [markdown]
# ## When an engine is slow, or wrong
#
# | it is | look at |
# |---|---|
# | slow with few requests | calls: kernels a step, Python between them. A graph? |
# | slow with many | bytes: weights once, keys and values of each. What does the roofline say? |
# | slow to the first token | the queue, long prompts, compiling in the first run |
# | slow now and then | preemptions (`scheduler.num_preemptions`), recompiling, other programs |
# | idle | who waits for whom: a timeline of both, `nvidia-smi` is not enough |
# | out of memory | weights, pool, activations: which of the three grew? |
# | wrong with levers | turn one off: `disabled_optimizations=("step_ahead",)`; the plain engine is the oracle |
# | wrong sometimes | the same request alone and in a crowd; greedy, log-probabilities side by side |
#
# And before you change anything: write down what you expect. Where the measurement differs, you have not understood
# something yet.

# %% [markdown]
# ## Your engine
#
# Once more on the fixed work of all chapters. It measures the core without any lever, and none of this chapter's three
# functions is part of that: two count on paper, and the third is plugged in from outside. So this step is as high as
# the last one.

# %%
staircase("17")

# %% [markdown]
# ## Change it
#
# * Profile the engine with 8 and with 16 sequences. When do the products take most?
# * `lever_work.compare(..., asked=...)` takes prompts of your own. On which work does your lever gain most?
# * `end_of_step` with calls of 5 µs, as from C++: which kernels still wait?
# * Fuse the activation, `silu(gate) * up`, on paper: bytes of two kernels, and of one.
# * `speed_work.lever_ratios(("packed_weights",))` measures our lever for CPUs in three pairs of runs. On one core of
#   the machine that this was written on it gained nothing: 0.93 to 1.04. And with two threads?
# * Where there is a C++ compiler, `speed_work.compiled_ratios()` has torch compile our layers here, in some minutes.
#   What do you expect?

# %% [markdown]
# ## Recap
#
# 1. Count bytes and operations first: on an H200 a decode hardly ever gets to the arithmetic, whatever the batch.
# 2. A profile names the part; a count of calls often names the reason.
# 3. On a GPU, first make the calls few, then the kernels few, then the kernels fast.
# 4. Gains overlap or uncover each other. Only the engine with everything in it tells what everything gains.
# 5. A lever is plugged in from outside, changes no token, and is measured in turn with its absence.

# %% [markdown]
# ## Explain it aloud
#
# * Why does a faster kernel sometimes gain nothing at all?
# * Your lever does more work than the loop, and is faster. How can that be, and when does it stop?
# * Somebody reports 12 % from one run before and one run after. What do you ask?
#
# <details><summary>Answers of three grades to the second; say yours first</summary>
#
# *Weak:* because it is vectorized.
#
# *Good:* one call in place of 32 a layer. Short texts are filled up to the longest, but arithmetic is cheap here.
#
# *Excellent:* and so it stops where filling up costs more than calls: one long text among short ones makes all as long,
# and keys are copied besides. A GPU's kernel reads the block tables itself, and fills up nothing.
#
# </details>

# %% [markdown]
# ## Read further
#
# * Williams, Waterman and Patterson, *Roofline*, Communications of the ACM 52, 2009.
# * In vLLM: `vllm/v1/worker/gpu_model_runner.py` (graphs, working ahead), `csrc/layernorm_kernels.cu`.
# * Admission by expected length: Gong et al., *Past-Future Scheduler for LLM Serving under SLA Guarantees*, 2025.
# * Ansel et al., *PyTorch 2*, ASPLOS 2024: how `torch.compile` reads Python.
# * Measuring honestly: Georges, Buytaert and Eeckhout, *Statistically Rigorous Java Performance Evaluation*, 2007.
#
# Next, the last chapter: your engine whole, and what can be built on top of it.
