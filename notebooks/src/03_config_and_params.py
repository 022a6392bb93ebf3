# %% [markdown]
# # 3 · Config and sampling parameters
#
# *What an engine is told, how it says no, and what fits into memory.*
#
# You will
#
# * see what one bad request does in a batch, and write the check that stops it at the door,
# * decide how large the KV cache may be, and what a start without room is told,
# * count how many requests fit beside one another, on real cards,
# * choose the options of an engine, and need less than half of the steps.
#
# Everything here runs on a laptop's CPU, without a network. Plan 80 minutes, the last exercise included.

# %% [markdown]
# ## Where we are
#
# You know the parts of the engine and how one step goes. Now we begin to build, at its outer edge: with the two
# objects in which users say what they want. `Config` is for the engine as a whole, `SamplingParams` for one request.
#
# `mine()` puts your functions into the engine and shows a map of it: what is yours, and what is still ours. (In a
# narrow window, hide the file browser with Ctrl+B, or ⌘B, so that code has room.)

# %%
# %load_ext exercises
me = mine()
me

# %%
import math
import timeit
from dataclasses import replace
from textwrap import fill

import figures
from nanovllm import LLM, SamplingParams
from nanovllm.config import Config
from nanovllm.viz import Bars, MemoryBudget, Timeline
from nanovllm.viz.memory import GB, Setting, budget_of, model_size
from nanovllm.viz.record import record


def lab(exercise_id):
    """A function that is no part of the engine: yours if it is written, else ours; and whose it is."""
    me = mine(exercise_id)
    return me.function(exercise_id), me.owner(exercise_id)


# %% [markdown]
# ## One bad request
#
# Three people have asked for a story. Their requests run together, in one batch. Ten steps later a fourth request
# comes, and one of its fields is nonsense: the temperature is the text `"0.8"`, as it comes out of a web form.
#
# Our engine would refuse it. So we take the engine *without* the function that checks such numbers: everything else in
# it is as always.
#
# (The engines of this chapter are `SMALL`: blocks of 16 tokens, little memory, and without the levers of
# chapter 17.)
#
# ### Predict
#
# How many of the four get to their end?

# %%
SMALL = {"device": "cpu", "kvcache_block_size": 16, "num_kvcache_blocks": 64, "max_model_len": 256}
SMALL["disabled_optimizations"] = "all"


def three_and(engine, **fields):
    """Three good requests run; after ten steps a fourth joins, with these fields. Returns a recording of the run."""
    good = {"temperature": 0.8, "max_tokens": 30, "ignore_eos": True}
    params = [engine.SamplingParams(**good, seed=seed) for seed in (1, 2, 3)]
    params += [engine.SamplingParams(**(good | {"seed": 4} | fields))]
    with engine.LLM("qwen3-tiny", **SMALL) as llm:
        return record(llm, ["Once upon a time"] * 4, params, arrive=[0, 0, 0, 10], keep_error=True)


unchecked = without("ch03.check_float")
predict("one bad request", "Of the four requests, how many get to their end?")

# %%
trace = three_and(unchecked, temperature="0.8")
ended = sum(event["event"] == "finish" for step in trace["steps"] for event in step["events"])

reveal("one bad request", ended)
print(f"the step failed with   {trace['error']}")
print(f"tokens for nothing     {sum(len(seq['output_ids']) for seq in trace['seqs'].values())}")
Timeline(trace, complete=False)

# %% [markdown]
# The picture is a recording of this run. A, B and C each get a token in every step, until D comes, and then nothing.
# The sampler looks at all requests of a step together, so its error ends the step for all of them. The next step fails,
# too: the bad request is still there.
#
# The message does not help. Which request was it? Which of its fields?
#
# What about `nan`, "not a number", which comes out of a computation that went wrong? It is a float.

# %%
CHOICES = ["an error for all four", "an error for the fourth", "garbage, and nobody is told", "nothing special"]
predict("nan as temperature", "The fourth request has temperature=nan. What happens?", choices=CHOICES)

# %%
for temperature in (math.nan, math.inf):
    trace = three_and(unchecked, temperature=temperature)
    print(f"temperature={temperature}, error: {trace.get('error')}")
    for seq in trace["seqs"].values():
        print("   ", repr("".join(seq["texts"][len(seq["prompt_ids"]) :])[:70]))

reveal("nan as temperature", CHOICES[2])

# %% [markdown]
# No error at all. The request got 30 tokens of garbage, and perhaps paid for them. The text `"0.8"` was the lucky case.
#
# ## Once, at the border
#
# So an engine checks what it is given **before anything starts**: everything from outside crosses one line. Behind it,
# all code relies on the values, and no scheduler or sampler checks again. In ours the line is where the object is made:
# there never is a `SamplingParams` with a bad value in it.
#
# `SamplingParams(top_k="40")` says `top_k must be an integer, got '40' of type str`. Compare this with the message
# above: it names the **argument**, shows the **value**, and says what would be **accepted**. Whoever reads it can
# correct the call without reading the engine.

# %%
figures.border()

# %% [markdown]
# ### Predict
#
# A check costs time. Compared with one step of the engine on this computer, how much?

# %%
predict("cost of a check", "To check the parameters of one request takes how much of a step?", unit="%")

# %%
check_seconds = min(timeit.repeat(lambda: SamplingParams(temperature=0.7, top_p=0.9), number=1000, repeat=3)) / 1000
with LLM("qwen3-tiny", **SMALL) as llm:
    llm.add_request("Once upon a time", SamplingParams(max_tokens=30, ignore_eos=True))
    step_seconds = min(timeit.repeat(llm.step, number=1, repeat=20))

print(f"checking one request   {1e6 * check_seconds:8.1f} µs")
print(f"one step               {1e6 * step_seconds:8.1f} µs, measured on this run")
reveal("cost of a check", round(100 * check_seconds / step_seconds, 2))

# %% [markdown]
# And that only once a request, not once a step.
#
# ## What the engine is told
#
# | field | default | what it decides |
# |---|---|---|
# | `gpu_memory_utilization` | `0.9` | the share of the GPU's memory that may be filled |
# | `max_num_batched_tokens` | `16384` | most tokens in one step; longer prompts are cut into chunks |
# | `max_num_seqs` | `512` | most requests that run at once |
# | `max_model_len` | `4096` | most tokens of one request, prompt and answer; cut to the model's own limit |
# | `kvcache_block_size` | `256` | tokens in a block of the cache |
# | `num_kvcache_blocks` | `-1` | size of the cache in blocks; -1: as many as fit |
# | `tensor_parallel_size` | `1` | number of GPUs that share the model (chapter 9) |
# | `dtype` | `"auto"` | number format of weights and cache |
# | `model` | | a directory, a name on the hub, or `"qwen3-tiny"` |
# | `load_format` | `"auto"` | `"dummy"`: random weights, for measurements |
# | `device` | `"auto"` | the GPU if there is one, else the CPU |
# | `attention_backend` | `"auto"` | which code computes attention (chapter 10) |
# | `enable_prefix_caching` | `True` | share the blocks of equal prefixes (chapter 5) |
# | `enforce_eager` | `False` | `True`: no CUDA graphs (chapter 8) |
# | `disabled_optimizations` | `()` | names of levers to leave out, or `"all"` (chapter 17) |
# | `quantization` | `None` | `"int8"`: weights of one byte each (chapter 18) |
# | `seed` | `0` | for requests that have no seed of their own |
#
# The first six decide about memory. `qwen3-tiny` was trained on texts of up to 2,048 tokens, so its `max_model_len` is
# never more than that.

# %% [markdown]
# ## What one request may ask for
#
# | field | default | what it decides |
# |---|---|---|
# | `temperature` | `1.0` | 0: always the most likely token; higher: more surprises |
# | `top_k` | `-1` | only the k most likely tokens; -1: all |
# | `top_p` | `1.0` | only the most likely tokens that make up this much probability together |
# | `min_p` | `0.0` | only tokens at least this likely, compared with the most likely one |
# | `max_tokens` | `64` | most tokens of the answer |
# | `stop` | `()` | strings at which the text ends |
# | `stop_token_ids` | `()` | tokens at which it ends |
# | `ignore_eos` | `False` | go on after the end-of-text token |
# | `seed` | `None` | the same seed, the same text |
# | `logprobs` | `None` | also return log-probabilities: of this many most likely tokens, and of the chosen one |
#
# You will build the first four in chapter 14. Names and meanings in this table are vLLM's; some defaults are ours.
# For two names of the engine's table vLLM has others: `block_size` is our `kvcache_block_size`, and
# `num_gpu_blocks_override` our `num_kvcache_blocks`.

# %% [markdown]
# ## Frozen, and with slots
#
# Both objects are dataclasses. Python calls `__post_init__` when all fields are set, and there we check.
# `SamplingParams` is declared with `@dataclass(frozen=True, slots=True, kw_only=True)`, `Config` with
# `@dataclass(slots=True)`.
#
# ### Predict
#
# An object of each is made. Which of three lines are allowed afterwards? Mind the spelling.

# %%
LINES = ["params.temperature = 0.5", "config.max_num_seq = 8", "config.num_kvcache_blocks = 8"]
EITHER = ["allowed", "an error"]
predict("line 1", LINES[0], choices=EITHER)
predict("line 2", LINES[1], choices=EITHER)
predict("line 3", LINES[2], choices=EITHER)

# %%
params, config = SamplingParams(), Config("qwen3-tiny", device="cpu")
results = []
for line in LINES:
    try:
        exec(line)
        results.append(EITHER[0])
    except Exception as error:
        results.append(EITHER[1])
        print(f"{line:30} {error}")

reveal("line 1", results[0])
reveal("line 2", results[1])
reveal("line 3", results[2])

# %% [markdown]
# * **frozen**: fields cannot be set after the object is made. A check would be worth nothing if a value could change
#   after it. `Config` stays open, because the engine writes into it how many blocks there are.
# * **slots**: there are no fields beside the declared ones. A misspelled name is an error, and no new field that nobody
#   reads.
# * **kw_only**: `SamplingParams(0.7, 40)` is not possible. Names in calls stay readable, and order does not matter.
#
# ## Whole numbers
#
# Every integer of both objects goes through this function. Read it with three questions: why not `isinstance(value,
# int)`? Why is `True` refused? Which error is raised for which mistake?
#
# {{source nanovllm/validation.py:check_int}}
#
# Numbers often come out of arrays, and `np.int64(3)` is no `int`. `True` is one, and still a mistake. `TypeError` is
# for the wrong kind of thing, `ValueError` for a bad one of the right kind.

# %% [markdown]
# ## Not a number
#
# Back to `nan`.
#
# ### Predict
#
# Four questions to Python: `nan < 0`, `nan > 1`, `0 <= nan <= 1`, `nan == nan`.

# %%
predict("nan", "How many of the four are true?")

# %%
nan = math.nan
answers = {"nan < 0": nan < 0, "nan > 1": nan > 1, "0 <= nan <= 1": 0 <= nan <= 1, "nan == nan": nan == nan}
print(answers)
reveal("nan", sum(answers.values()))

# %% [markdown]
# Your first function has to live with that. The cell below becomes part of `nanovllm/validation.py`; what that module
# imports is there: `math`, `numbers` and `operator`. Other imports go into the cell.

# %%
# {{exercise ch03.check_float}}

# %% [markdown]
# ### Plug in
#
# Three good requests, and five bad ones, one after the other. It is the experiment from the beginning, in your engine.

# %%
me = mine()
print(me.whose("ch03.check_float"))
bad = [{"temperature": "0.8"}, {"temperature": math.nan}, {"temperature": math.inf}, {"top_p": 1.5}, {"min_p": True}]
refused, finished = 0, []
with me.LLM("qwen3-tiny", max_num_seqs=8, **SMALL) as llm:
    good = [llm.add_request("Once upon a time", me.SamplingParams(max_tokens=30)) for _ in range(3)]
    for fields in bad:
        llm.step()
        try:
            llm.add_request("Once upon a time", me.SamplingParams(**fields))
        except (TypeError, ValueError) as error:
            refused += 1
            print(f"{type(error).__name__:10} {error}")
    while not llm.is_finished():
        finished += llm.step()[0]

print(f"refused: {refused} of {len(bad)} bad ones; finished: {len(finished)} of {len(good)} good ones")

# %% [markdown]
# ## Memory
#
# The other thing that can break an engine is memory. A request that asks for too much can be refused. When memory runs
# out in the middle of a step, all its requests are hit. So an engine counts beforehand. Three things need room:
#
# * **weights**: there all the time, of fixed size;
# * **activations**: what a step computes in between; they come and go, and grow with the tokens in a step;
# * the **KV cache**: keys and values of every token of every running request.
#
# For the last one, chapter 2 has the formula: a key and a value, in every layer, for every KV head.
#
# {{source nanovllm/utils/memory.py:kv_block_bytes}}

# %%
size = model_size("Qwen3-8B")
print(f"Qwen3-8B: 2 x {size.num_layers} layers x {size.num_kv_heads} heads x {size.head_dim} numbers x 2 bytes")
print(f"   = {2 * size.num_layers * size.num_kv_heads * size.head_dim * 2:,} bytes for one token")
for name in ("qwen3-tiny", "Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B"):
    size = model_size(name)
    one, full = size.kv_bytes_per_token(), 4096 * size.kv_bytes_per_token()
    weights = 2 * size.num_parameters / GB
    print(f"{name:11} {weights:6.2f} GB of weights, {one:7,} bytes a token, {full / GB:5.2f} GB for 4,096 of them")

# %% [markdown]
# ### Predict
#
# Qwen3-8B, on a GPU with 24 GB. All options have their defaults, so 90 % of it may be filled. The weights are above; a
# step of 16,384 tokens takes 2.1 GB, and CUDA itself half a GB.
#
# Do not compute to the last digit: a guess is enough.

# %%
predict("8B on 24 GB", "How many requests of 4,096 tokens fit into its cache at the same time?")
predict("8B on 80 GB", "And on a card of 80 GB, which is 3.3 times as large?")

# %%
pairs = [("Qwen3-0.6B", 8), ("Qwen3-0.6B", 24), ("Qwen3-8B", 16), ("Qwen3-8B", 24), ("Qwen3-8B", 80), ("Qwen3-32B", 80)]
budgets = {pair: budget_of(Setting(*pair)) for pair in pairs}
reveal("8B on 24 GB", budgets["Qwen3-8B", 24].num_full_seqs)
reveal("8B on 80 GB", budgets["Qwen3-8B", 80].num_full_seqs)
figures.memory_bars(list(budgets.values()))

# %% [markdown]
# Each bar is the memory of one GPU; the dashed line is the limit, `gpu_memory_utilization`. Weights and activations
# come first, and the cache gets the rest. Where they alone pass the limit, the engine does not start. And what a larger
# card has beyond them is all cache: that is why memory, and not only speed, decides how many people one GPU serves.
#
# In this picture the activations are estimated, and `other`, what CUDA takes, is assumed. On a GPU the engine does not
# estimate: it loads the weights, runs the largest prefill that its options allow, and looks what that took.
#
# {{source nanovllm/engine/model_runner.py:ModelRunner.warmup_model}}
#
# These numbers, the limit and the size of a block decide how many blocks there will be. That function is yours.

# %%
# {{exercise ch03.num_blocks_that_fit}}

# %% [markdown]
# ### Plug in
#
# Your engine sizes its own cache now. On a CPU it may use a quarter of the free memory, and never makes the cache
# larger than 64 requests of full length need: on your machine that bound decides, not your function. So we tell it that
# only 12 MB are free. The explorer below asks your function, too. Move its options, or step through the examples.

# %%
me = mine()
print(me.whose("ch03.num_blocks_that_fit"))
me.engine.kv_cache.available_memory = lambda: 12_000_000
try:
    with me.LLM("qwen3-tiny", device="cpu", kvcache_block_size=16, max_num_seqs=64, max_model_len=256) as llm:
        block_bytes = llm.llm_engine.model_runner.kv_cache.nbytes // llm.config.num_kvcache_blocks
        print(f"your engine made {llm.config.num_kvcache_blocks} blocks of {block_bytes:,} bytes;", end=" ")
        print(f"a quarter of 12 MB is {3_000_000 / block_bytes:.2f} times that")
finally:
    me.engine.kv_cache.available_memory = me.utils.memory.available_memory
MemoryBudget(num_blocks_that_fit=me.utils.memory.num_blocks_that_fit)

# %% [markdown]
# ## When there is no room
#
# An engine that cannot start says so, and what to do. Here is one with 1 GB, and with blocks of 100,000 tokens.

# %%
me.engine.kv_cache.available_memory = lambda: 1_000_000_000
try:
    me.LLM("qwen3-tiny", device="cpu", kvcache_block_size=100_000)
except MemoryError as error:
    print(fill(f"MemoryError: {error}", 96))
finally:
    me.engine.kv_cache.available_memory = me.utils.memory.available_memory

# %% [markdown]
# It names every option that may have to do with it. But which of them would help? For Qwen3-8B on 16 GB, none: the
# weights alone are larger. Somebody could try all afternoon.
#
# You can do better. There is a function that says how many blocks fit, so advice need not be guessed.

# %%
# {{exercise ch03.what_would_help}}

# %% [markdown]
# ### Plug in
#
# Some starts that fail, and what your function advises. To see whether it is true, each option is changed as far as it
# goes: ✓ means that the engine would start then, ✗ that it would not.

# %%
what_would_help, whose = lab("ch03.what_would_help")
print(f"what_would_help is {whose}")
EXTREMES = {"gpu_memory_utilization": 1.0, "max_num_batched_tokens": 1, "kvcache_block_size": 1}
failing = [Setting("Qwen3-8B", 16), Setting("Qwen3-8B", 24, 0.7), Setting("Qwen3-8B", 24, 0.78)]
failing += [Setting("Qwen3-8B", 24, 0.8, kvcache_block_size=4096), Setting("Qwen3-8B", 18, 1.0)]
for setting in failing:
    b = budget_of(setting)
    numbers = b.total, b.other + b.weights, b.activations, setting.gpu_memory_utilization, b.block_bytes
    advice = what_would_help(*numbers, setting.kvcache_block_size)
    helps = [name for name, value in EXTREMES.items() if budget_of(replace(setting, **{name: value})).num_blocks]
    print(f"{setting.model} on {setting.memory_gb} GB, limit {setting.gpu_memory_utilization}:", end=" ")
    print(", ".join(f"{name} {'✓' if name in helps else '✗'}" for name in advice) or "another model, or GPU")

# %% [markdown]
# What each option costs:
#
# | what you see | knob | its price |
# |---|---|---|
# | no room for even one block | `gpu_memory_utilization` up | less for other programs |
# | the same | `max_num_batched_tokens` down | long prompts take more steps |
# | the same | `kvcache_block_size` down | longer block tables, and a kernel jumps more often |
# | the same | a smaller model, a 16-bit `dtype`, or `tensor_parallel_size` up | quality, or more GPUs |
# | `num_kvcache_blocks=...` does not fit | lower it, or leave it at -1 | fewer requests at once |
# | a prompt is longer than "the whole KV cache" | more blocks, by the knobs above | |
#
# And `max_model_len`? Blocks are given when tokens come, so it reserves nothing: lowering it does not make the cache
# larger. It bounds what one request may take. (Chapter 17 has a lever that admits requests by the length it *expects*
# of them, and there short limits do let more of them in.)

# %% [markdown]
# ## How many fit beside one another?
#
# The cache is a number of blocks now. What users notice is something else: how many of them are served at once.

# %%
# {{exercise ch03.how_many_fit}}

# %% [markdown]
# ### Plug in
#
# The real engine, with 24 blocks of 16 tokens, gets prompts of different lengths. One step, and we count who is in.

# %%
how_many_fit, whose = lab("ch03.how_many_fit")
me = mine()
for lengths in ([16] * 30, [17] * 30, [64, 200, 48, 20, 100, 16], [100, 100, 250, 16, 16]):
    options = SMALL | {"num_kvcache_blocks": 24, "enable_prefix_caching": False, "max_num_seqs": 20}
    with me.LLM("qwen3-tiny", **options) as llm:
        for i, length in enumerate(lengths):
            llm.add_request([100 + i] * length, SamplingParams(max_tokens=2))
        llm.step()
        running = len(llm.scheduler.running)
    shown = f"{len(lengths)} x {lengths[0]}" if len(set(lengths)) == 1 else str(lengths)
    print(f"{shown:32} {whose}: {how_many_fit(lengths, 24, 16, 20):2}   in the engine: {running:2}")

# %% [markdown]
# These are prompts, in the step in which they come in. Answers grow, and take blocks later; what happens when there are
# none is the last part of this chapter.
#
# Now at real scale. Short requests are bounded by `max_num_seqs`; long ones by the blocks.

# %%
LENGTHS = [256, 1024, 4096, 16384, 40960]
CARDS = [("Qwen3-0.6B", 24), ("Qwen3-8B", 24), ("Qwen3-8B", 80), ("Qwen3-32B", 80)]
counts = {}
for model, gigabytes in CARDS:
    blocks = budget_of(Setting(model, gigabytes)).num_blocks
    counts[f"{model} on {gigabytes} GB"] = [how_many_fit([n] * 600, blocks, 256, 512) for n in LENGTHS]
    print(f"{model:10} on {gigabytes} GB: {blocks:5,} blocks of 256 tokens")

figures.requests_beside_one_another(LENGTHS, counts, 512)

# %% [markdown]
# Both axes are logarithmic: four times the length, a quarter of the requests, and in the end not a single one.
#
# ## Too small, but legal
#
# Between "does not start" and "enough" the engine runs, and is slow. Four requests, once with 40 blocks of 16 tokens,
# once with 10. All of them fit when they come; then they grow.
#
# ### Predict

# %%
picture = Bars("10 blocks", 120, {"40 blocks": 40}, "steps")
predict("ten blocks", "With 40 blocks it takes 40 steps. How many with 10?", unit="steps", picture=picture)

# %%
traces = {}
for num_blocks in (40, 10):
    options = SMALL | {"num_kvcache_blocks": num_blocks, "max_model_len": 128, "max_num_seqs": 8}
    with mine().LLM("qwen3-tiny", **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        beginnings = ["Once upon a time, a fox", "One day, Tom", "There was an old boat", "Mia had a kite"]
        traces[num_blocks] = record(llm, beginnings, params)

for num_blocks, trace in traces.items():
    together = [len(step["scheduled"]) for step in trace["steps"] if step["scheduled"]]
    print(f"{num_blocks} blocks: {len(together)} steps, {sum(together) / len(together):.1f} requests in one on average")
reveal("ten blocks", len(together))
written = [[seq["output_ids"] for seq in trace["seqs"].values()] for trace in traces.values()]
print("the same text:", written[0] == written[1])
Timeline(traces[10], compare={"40 blocks": traces[40]}, name="10 blocks")

# %% [markdown]
# When no block is left, D, which came last, has to give its blocks back: that is a **preemption**. It waits, hatched,
# until somebody ends, and then all its tokens are computed again. The text is the same, only later.
#
# ## Tune an engine
#
# Now it is your turn to choose. A GPU has 3.5 GB left for activations and cache together, and Qwen3-8B runs on it.
# `simulate(options, workload)` plays the requests of a workload through the real scheduler: no weights are needed to
# see which step computes what. There are three workloads (`WORKLOADS` has the length of each prompt and answer), and
# `{}` leaves all options at their defaults. This is what those make of them.

# %%
from exercises.kit.budget_work import WORKLOADS, simulate

defaults = {name: simulate({}, workload) for name, workload in WORKLOADS.items()}
for name, run in defaults.items():
    prompts, answers = (sum(lengths) / len(lengths) for lengths in zip(*WORKLOADS[name], strict=True))
    print(f"{name:9} {len(WORKLOADS[name])} requests, on average {prompts:5.0f} tokens that want {answers:3.0f} more")
    print(f"          {run.steps} steps, {run.mean_batch:.1f} in a decode step, {run.num_preemptions} preemptions")
print(f"all together {sum(run.steps for run in defaults.values()):,} steps")

# %%
# {{exercise ch03.choose_options}}

# %%
choose_options, whose = lab("ch03.choose_options")
chosen = {name: choose_options(work, 3_500_000_000, 147_456, 131_072) for name, work in WORKLOADS.items()}
runs = {name: simulate(chosen[name], work) for name, work in WORKLOADS.items()}
figures.steps_of_workloads({"the defaults": defaults, whose: runs})
if whose == "yours":
    print(*chosen.items(), sep="\n")

# %% [markdown]
# Two honest remarks. Steps are counted here, not seconds: a large step takes longer than a small one, most of all a
# prefill. And blocks of 16 tokens win because nothing is lost by them in a count; a kernel has to
# jump more often with them. In the end, one measures.
#
# ## Your engine so far
#
# The same work as in every chapter, on your engine as it is now. What you built here makes nothing faster: it decides
# what the engine takes on.

# %%
print(mine().whose("ch03", "ch03.choose_options"))
staircase("03")

# %% [markdown]
# ## Change it
#
# * In the explorer: which is the largest model that serves ten requests of 4,096 tokens on 24 GB? And on two such GPUs?
# * Find the smallest number of blocks with which the four requests above run together from beginning to end.
# * Give `three_and(unchecked, ...)` other nonsense: `top_p="0.9"`, `top_p=-1.0`, `temperature=-1.0`, `min_p=7.0`. Which
#   of these hurt the neighbors, which only themselves, and which nobody notices?
# * In `how_many_fit`, let short requests overtake. How many more fit? Who pays for it?

# %% [markdown]
# ## Recap
#
# 1. Requests share steps, so one bad value can end the work of all, or give garbage in silence.
# 2. Everything is checked once, at the border, before anything starts; the error names argument, value and remedy.
# 3. Memory holds weights, activations and the KV cache, which gets what is left below the limit.
# 4. Requests take whole blocks. A larger card is all cache, once the weights are paid.
# 5. Too little memory is an error at start, and good advice can be computed; a small cache is legal, and slow.

# %% [markdown]
# ## Explain it aloud
#
# * Why is `nan` more dangerous than `"hot"`?
# * Why are activations subtracted, although none are in memory when the cache is made?
# * Two engines share one GPU. Which `gpu_memory_utilization` does each get, and what does the second one find in use?

# %% [markdown]
# <details><summary>Three answers to the second question; say yours first</summary>
#
# *Weak:* because the formula says so, and to be on the safe side.
#
# *Good:* they come back with every step. If the cache had taken their room, the first large step would run out of
# memory.
#
# *Excellent:* the cache is taken once and kept, so what is left must be enough for the largest step that the options
# allow; that is why the engine runs that one, and measures its peak. Whoever lowers `max_num_batched_tokens` turns that
# room into cache.
#
# </details>

# %% [markdown]
# ## Read further
#
# * vLLM checks requests in `vllm/sampling_params.py`, `SamplingParams._verify_args`. It measures memory in
#   `vllm/v1/worker/gpu_worker.py`, `Worker.determine_available_memory`, and refuses a cache that is too small in
#   `vllm/v1/core/kv_cache_utils.py`, `check_enough_kv_cache_memory`.
# * Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention*, SOSP 2023,
#   section 1 and its figure 1: the same budget, for 13 billion weights on 40 GB.
# * One difference: in vLLM, `gpu_memory_utilization` is the share of one engine, whatever else is on the GPU. Ours
#   counts everything that is there.
#
# Next comes what the engine knows about one request, the `Sequence`.
