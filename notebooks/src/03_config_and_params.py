# %% [markdown]
# # 3 · Config and sampling parameters
#
# *What an engine is told, how it says no, and what fits into memory.*
#
# You will
#
# * see one bad request take three good ones with it,
# * write the checks that stop it at the door,
# * find out what a model, a step and a token cost in bytes,
# * write the function that decides how large the KV cache may be, and turn its knobs.
#
# Everything here runs on a laptop's CPU, without a network. Plan an hour.

# %% [markdown]
# ## Where we are
#
# You know the parts of the engine and how one step goes. Now we begin to build, at its outer edge: with the two
# objects in which users say what they want. `Config` is for the engine as a whole, `SamplingParams` for one request.
#
# The first line loads the exercises. `mine()` puts your functions into the engine and shows a map of it: what is
# yours, and what is still ours.

# %%
# %load_ext exercises
me = mine()
me

# %%
import math
import timeit
from textwrap import fill

import matplotlib.pyplot as plt

from nanovllm import LLM, SamplingParams
from nanovllm.config import Config
from nanovllm.viz import MemoryBudget, Timeline
from nanovllm.viz.memory import GB, Setting, budget_of, model_size
from nanovllm.viz.record import record

# White behind every picture, so that it stays legible in a dark theme.
plt.rcParams.update(dict.fromkeys(["figure.facecolor", "axes.facecolor", "savefig.facecolor"], "white"))
plt.rcParams.update({"figure.figsize": (8, 3.2), "figure.dpi": 110, "axes.ymargin": 0.12})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, PINK, GRAY = "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#BBBBBB"

# %% [markdown]
# ## One bad request
#
# Three people have asked for a story. Their requests run together, in one batch. Then a fourth request comes, and
# one of its fields is nonsense.
#
# Our engine would refuse it. To see why, we go around its checks: `smuggle` changes a field after it was checked.
# (The engines of this chapter are `SMALL`: their blocks hold 16 tokens, so that little memory is enough. More about
# that below. And they are plain: the faster paths of chapter 17 are off.)

# %%
SMALL = {"device": "cpu", "kvcache_block_size": 16, "num_kvcache_blocks": 64, "max_model_len": 256}
SMALL["disabled_optimizations"] = "all"


def smuggle(**fields):
    """Parameters with fields that nobody has checked."""
    params = SamplingParams(temperature=0.8, max_tokens=30, ignore_eos=True, seed=1)
    for name, value in fields.items():
        object.__setattr__(params, name, value)
    return params


def three_and(fourth):
    """Three good requests run; after ten steps a fourth joins. Returns the recording of the run."""
    with LLM("qwen3-tiny", **SMALL) as llm:
        params = [smuggle()] * 3 + [fourth]
        return record(llm, ["Once upon a time"] * 4, params, arrive=[0, 0, 0, 10], keep_error=True)


def num_finished(trace):
    return sum(event["event"] == "finish" for step in trace["steps"] for event in step["events"])


# %%
trace = three_and(smuggle(top_k="40"))

print(f"the step failed with     {trace['error']}")
print(f"requests that finished   {num_finished(trace)} of 4")
print(f"tokens for nothing       {sum(len(seq['output_ids']) for seq in trace['seqs'].values())}")
Timeline(trace, complete=False)

# %% [markdown]
# The picture is a recording of this run. A, B and C each get a token in every step, until D comes, and then nothing.
#
# A string stands where a number should be. The sampler looks at all requests of a step together, so its error ends
# the step for all of them. The next step fails, too, and the one after it: the bad request is still there.
#
# The message does not help either. Which request was it? Which of its fields?
#
# This was the lucky case. Here is a worse one: the temperature is `nan`, "not a number", as it comes out of a
# computation that went wrong.

# %%
trace = three_and(smuggle(temperature=math.nan))

for seq in trace["seqs"].values():
    print(repr("".join(seq["texts"][len(seq["prompt_ids"]) :])[:80]))
print(f"requests that finished: {num_finished(trace)}, error: {trace.get('error')}")

# %% [markdown]
# No error at all. The request got 30 tokens of garbage, and perhaps paid for them. Nobody is told.
#
# So an engine checks what it is given **before anything starts**, and says what is wrong. In ours, this happens
# when the object is made: there never is a `SamplingParams` with a bad value in it.

# %%
try:
    SamplingParams(top_k="40")
except TypeError as error:
    print(f"TypeError: {error}")

# %% [markdown]
# Compare this with the message above. It names the **argument**, shows the **value**, and says what would be
# **accepted**. Whoever reads it can correct the call without reading the engine.
#
# ## Once, at the border
#
# Everything that comes from outside has to cross one line. In front of it, values may be anything. Behind it, all code
# relies on them: no scheduler, no sampler checks again. A list of prompts is looked at as a whole before the first of
# them starts, so nobody waits for a result that the last one spoils.


# %%
def draw_border(axis):
    outside = [("your script", 2.4), ("a web form", 1.5), ("a JSON file", 0.6)]
    inside = [("scheduler", 2.4), ("model runner", 1.5), ("sampler", 0.6)]
    for x, color, boxes in [(0, ORANGE, outside), (7.6, BLUE, inside)]:
        for name, y in boxes:
            axis.add_patch(plt.Rectangle((x, y - 0.3), 2.3, 0.6, facecolor=color, edgecolor="black"))
            axis.text(x + 1.15, y, name, ha="center", va="center")
    for y in (2.4, 1.5, 0.6):
        axis.annotate("", (3.7, 1.5), (2.4, y), arrowprops={"arrowstyle": "->"})
        axis.annotate("", (7.5, y), (6.3, 1.5), arrowprops={"arrowstyle": "->"})
    axis.add_patch(plt.Rectangle((3.8, 0.9), 2.4, 1.2, facecolor=GREEN, edgecolor="black", linewidth=2))
    axis.text(5, 1.5, "Config\nSamplingParams\nprompt", ha="center", va="center")
    axis.annotate("", (5, 0.25), (5, 0.9), arrowprops={"arrowstyle": "->"})
    axis.text(5, 0.0, "an error that helps", ha="center")
    axis.text(1.15, 3.0, "anything may come", ha="center", style="italic")
    axis.text(8.75, 3.0, "nothing is checked again", ha="center", style="italic")
    axis.set(xlim=(-0.2, 10.1), ylim=(-0.2, 3.3))
    axis.axis("off")


figure, axis = plt.subplots(figsize=(8, 2.6))
draw_border(axis)
plt.show()

# %% [markdown]
# ### Predict
#
# A check costs time. How much, compared with one step of the engine on this computer? Write down a guess, in
# percent of a step.

# %%
my_guess = 10  # percent of a step; change me

check_seconds = min(timeit.repeat(lambda: SamplingParams(temperature=0.7, top_p=0.9), number=1000, repeat=3)) / 1000
with LLM("qwen3-tiny", **SMALL) as llm:
    llm.add_request("Once upon a time", smuggle())
    step_seconds = min(timeit.repeat(llm.step, number=1, repeat=20))

print(f"checking one request   {1e6 * check_seconds:8.1f} µs")
print(f"one step               {1e6 * step_seconds:8.1f} µs, measured on this run")
print(f"your guess was {my_guess} %; it is {100 * check_seconds / step_seconds:.2f} %, and only once a request")

# %% [markdown]
# ## What the engine is told
#
# All fields of `Config`, with their defaults. The first group decides about memory, and we come back to it.
#
# | field | default | what it decides |
# |---|---|---|
# | `gpu_memory_utilization` | `0.9` | the share of the GPU's memory that may be filled |
# | `max_num_batched_tokens` | `16384` | most tokens in one step; longer prompts are cut into chunks |
# | `max_num_seqs` | `512` | most requests that run at once |
# | `max_model_len` | `4096` | most tokens of one request, prompt and answer |
# | `kvcache_block_size` | `256` | tokens in a block of the cache |
# | `num_kvcache_blocks` | `-1` | size of the cache in blocks; -1: as many as fit |
# | `tensor_parallel_size` | `1` | number of GPUs that share the model (chapter 9) |
# | `dtype` | `"auto"` | number format of weights and cache |
# | `model` | | a directory, a name on the hub, or `"qwen3-tiny"` |
# | `load_format` | `"auto"` | `"dummy"`: random weights, for measurements |
# | `device` | `"auto"` | the GPU if there is one, else the CPU |
# | `attention_backend` | `"auto"` | which code computes attention (chapter 10) |
# | `enable_prefix_caching` | `True` | share the blocks of equal prefixes (chapter 5) |
# | `enforce_eager` | `False` | `True`: no CUDA graphs (chapter 17) |
# | `disabled_optimizations` | `()` | names of faster paths not to take, or `"all"` (chapter 17) |
# | `seed` | `0` | for requests that have no seed of their own |
#
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
# Names and meanings in this second table are vLLM's; some defaults are ours. In the first, vLLM says `block_size` for
# `kvcache_block_size`, and `num_gpu_blocks_override` for `num_kvcache_blocks`.

# %% [markdown]
# Both objects are dataclasses. Python calls `__post_init__` when all fields are set, and there we check. Three
# functions in this code will be yours: `check_int`, `check_float` and `normalize_stop`.
#
# {{source nanovllm/sampling_params.py:SamplingParams.__post_init__}}
#
# ## Frozen, and with slots
#
# `SamplingParams` is declared with `@dataclass(frozen=True, slots=True, kw_only=True)`.
#
# * **frozen**: fields cannot be set after the object is made. The check would be worth nothing if a value could
#   change after it. And one object may serve a hundred requests: none of them can change it for the others.
# * **slots**: there are no fields beside the declared ones. A misspelled name is an error, not a new field that
#   nobody reads. Objects get smaller, too.
# * **kw_only**: `SamplingParams(0.7, 40)` is not possible. Names in calls stay readable, and order does not matter.
#
# ### Predict
#
# What does each of the three lines below do? `Config` has slots, but is not frozen.

# %%
my_guesses = ["works", "works", "works"]  # change each to "error" where you expect one

params, config = SamplingParams(), Config("qwen3-tiny", device="cpu")
lines = ["params.temperature = 0.5", "config.max_num_seq = 8", "config.num_kvcache_blocks = 8"]
for guess, line in zip(my_guesses, lines, strict=True):
    try:
        exec(line)
        result = "works"
    except Exception as error:
        result = f"error: {error}"
    print(f"{line:30} you: {guess:6} it: {result}")

# %% [markdown]
# `Config` stays open: the engine writes into it how many blocks there are.
#
# ## Your first check
#
# Every integer of both objects goes through one function: `check_int(name, value, minimum)`. It returns the value
# as an `int`, or raises. What should pass?
#
# * `3`. Also `np.int64(3)`: numbers often come out of arrays.
# * Not `3.0`, and not `"3"`. Perhaps it was meant as 3, perhaps it is a mistake somewhere else. We do not guess.
# * And `True`? In Python, `isinstance(True, int)` is true. But `max_tokens=True` is a mistake.
#
# Two kinds of error: `TypeError` for the wrong kind of thing, `ValueError` for a number that is too small.
#
# The cell below becomes part of `nanovllm/validation.py`. What that module imports is there: `math`, `numbers` and
# `operator`. Other imports go into the cell.

# %%
# {{exercise ch03.check_int}}

# %% [markdown]
# ### Plug in
#
# `mine()` builds the engine with your function in it, if it is written. Bad options are then refused by your code,
# before any weight is loaded.

# %%
me = mine()
for options in [{"max_num_seqs": 0}, {"kvcache_block_size": 16.0}, {"max_model_len": True}]:
    try:
        me.LLM("qwen3-tiny", **options)
    except (TypeError, ValueError) as error:
        print(f"{type(error).__name__}: {error}")

# %% [markdown]
# ## Not a number
#
# Floats have a trap that integers do not have: `nan`. Before you write its check, find out how it behaves.
#
# ### Predict
#
# Which of these four are true?

# %%
my_guesses = [True, True, True, True]  # change me

nan = math.nan
for guess, question in zip(my_guesses, ["nan < 0", "nan > 1", "0 <= nan <= 1", "nan == nan"], strict=True):
    print(f"{question:22} you: {guess!s:6} it: {eval(question)}")

# %% [markdown]
# None of the four is true. Your second check has to live with that: `check_float(name, value, minimum, maximum)`
# returns a finite `float` in a range, both ends included. Integers are welcome: `temperature=0` is what
# people write.

# %%
# {{exercise ch03.check_float}}

# %% [markdown]
# ### Plug in
#
# The engine with your checks, three good requests, and one bad one after the other. This is the experiment from
# above, but now nobody smuggles.

# %%
me = mine()
bad = [{"top_k": "40"}, {"temperature": math.nan}, {"top_p": 1.5}, {"max_tokens": 0}, {"seed": 2.5}]
refused = 0
with me.LLM("qwen3-tiny", **SMALL) as llm:
    params = me.SamplingParams(temperature=0.8, max_tokens=30)
    good = [llm.add_request("Once upon a time", params) for _ in range(3)]
    for fields in bad:
        llm.step()
        try:
            llm.add_request("Once upon a time", me.SamplingParams(**fields))
        except (TypeError, ValueError) as error:
            refused += 1
            print(f"{type(error).__name__:10} {error}")
    finished = []
    while not llm.is_finished():
        finished += llm.step()[0]

print(f"refused: {refused} of {len(bad)} bad ones")
print(f"finished: {len(finished)} of {len(good)} good ones; above, it was none")

# %% [markdown]
# ## Three ways to say the same
#
# `stop` ends a text at a string. Users write `stop="END"`, `stop=["END", "\n"]`, or leave it at `None`. The engine
# should see one form only, so the border does more than refuse: it **normalizes**.
#
# There is a famous mistake here. A string is a collection, of its letters. Code that goes through `"The end"` letter
# by letter runs well, and the text ends at the first of them: at any `e`, and at any space. Let us smuggle that in.

# %%
prompt = "Once upon a time, there was a little girl named Mia."
with LLM("qwen3-tiny", **SMALL) as llm:
    for stop in [("The end",), tuple("The end")]:
        (answer,) = llm.generate(prompt, smuggle(temperature=0, stop=stop), use_tqdm=False)
        print(f"stop={stop}\n    {len(answer['token_ids'])} tokens: {answer['text']!r}")

# %%
# {{exercise ch03.normalize_stop}}

# %%
me = mine()  # plugged in: the engine with all that you have written
with me.LLM("qwen3-tiny", **SMALL) as llm:
    for stop in [None, "was", ["was", "."], iter([","])]:
        params = me.SamplingParams(temperature=0, max_tokens=20, stop=stop)
        (answer,) = llm.generate(prompt, params, use_tqdm=False)
        print(f"{params.stop!s:16} {answer['finish_reason']:7} {answer['text']!r}")

# %% [markdown]
# ## A first look at sampling
#
# What do `temperature`, `top_k` and `top_p` do? The model gives a probability to each token of its vocabulary. We
# ask for all of them, for the one token after a beginning, and look at the ten most likely. (`logprobs` are their
# logarithms, which is the form that engines work with.)
#
# Here we only look at the effect. You will build the sampler in chapter 14.

# %%
beginning = "Once upon a time, there was a little girl named Mia. She had a close friend, a girl named Layla."
with LLM("qwen3-tiny", **SMALL) as llm:
    params = SamplingParams(max_tokens=1, logprobs=llm.config.hf_config.vocab_size)
    (answer,) = llm.generate(beginning, params, use_tqdm=False)
    ranked = sorted(answer["logprobs"][0].items(), key=lambda item: -item[1])
    words = [llm.tokenizer.decode([token_id]) for token_id, _ in ranked[:10]]
logprobs = [logprob for _, logprob in ranked]
print(f"{beginning}\nWhat comes next? {len(logprobs)} tokens have a probability. The most likely: {words[:5]}")


def probabilities(temperature):
    weights = [math.exp(logprob / temperature) for logprob in logprobs]
    return [weight / sum(weights) for weight in weights]


# %%
kept_by_top_p = next(n for n in range(1, 2000) if sum(probabilities(1)[:n]) >= 0.8)
panels = [("temperature=0.3", 0.3, None), ("temperature=1", 1, None), ("temperature=2", 2, None)]
panels += [("top_k=3", 1, 3), (f"top_p=0.8 keeps {kept_by_top_p}", 1, kept_by_top_p)]

figure, axes = plt.subplots(1, 5, figsize=(9, 3), sharex=True, sharey=True)
for axis, (title, temperature, kept) in zip(axes, panels, strict=True):
    before, after = probabilities(temperature), probabilities(temperature)
    if kept is not None:
        after = [p / sum(before[:kept]) if i < kept else 0 for i, p in enumerate(before)]
        axis.barh(words, before[:10], color="none", edgecolor="black", linestyle=":")
    axis.barh(words, after[:10], color=GREEN if kept else BLUE)
    axis.set_title(title, fontsize=9)
    axis.tick_params(labelsize=8)
axes[0].invert_yaxis()
figure.supxlabel("probability of the next token (dotted: before the cut)", fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown]
# A low temperature sharpens, a high one flattens: at 2, unlikely tokens get their chance, and texts fall apart.
# `top_k` and `top_p` cut the tail off, and share its probability among those that stay. `top_k` keeps a fixed number,
# `top_p` as many as it takes: few when the model is sure, many when it is not.

# %% [markdown]
# ## Memory
#
# The other thing that can break an engine is memory. A request that asks for too much can be refused. When memory runs
# out in the middle of a step, all its requests are hit. (On a GPU, ours first tries a step of half the size. On a CPU,
# the system ends the whole program.) So an engine counts beforehand.
#
# Three things need room:
#
# * **weights**: there all the time, of fixed size;
# * **activations**: what a step computes in between; they come and go, and grow with the tokens in a step;
# * the **KV cache**: keys and values of every token of every running request.
#
# How much is that last one? Measured on a plain engine, all of whose other options have their defaults:

# %%
with LLM("qwen3-tiny", device="cpu", disabled_optimizations="all") as llm:
    config, runner = llm.config, llm.llm_engine.model_runner
    weights = sum(parameter.nbytes for parameter in runner.model.parameters())
    cache = runner.kv_cache.nbytes
    text = "Once upon a time, there was a little girl."
    bytes_as_text = len(text) / len(llm.tokenizer.encode(text))

num_tokens = config.num_kvcache_blocks * config.kvcache_block_size
print(f"weights                  {weights / 1e6:9.1f} MB")
print(f"KV cache                 {cache / 1e6:9.1f} MB for {num_tokens:,} tokens")
print(f"a token in the cache     {cache / num_tokens:9,.0f} bytes")
print(f"the same token as text   {bytes_as_text:9.1f} bytes")

# %% [markdown]
# A token of four letters becomes thousands of bytes, and this is a tiny model. Here is how it grows: one request,
# from a short prompt to the longest that Qwen3's configuration allows, computed from the models' published shapes.
# The numbers of the cache have 16 bits here, as on a GPU. On a CPU, ours have 32, so they take twice as much.

# %%
lengths = [2**n for n in range(7, 16)] + [40960]
figure, axis = plt.subplots()
for name, color in [("Qwen3-32B", PINK), ("Qwen3-8B", BLUE), ("Qwen3-0.6B", GREEN), ("qwen3-tiny", ORANGE)]:
    per_token = model_size(name).kv_bytes_per_token()
    axis.plot(lengths, [n * per_token / GB for n in lengths], color=color, marker="o", markersize=3)
    label, lower = f"{name}: {per_token:,} bytes a token", {"Qwen3-32B": -6, "Qwen3-0.6B": 12}.get(name, 3)
    axis.annotate(label, (lengths[-1], lengths[-1] * per_token / GB), (8, -lower), textcoords="offset points")
axis.set(xscale="log", yscale="log", xlabel="tokens of the request", ylabel="GB", title="KV cache of one request")
axis.set_xticks([128, 1024, 8192, 40960], ["128", "1,024", "8,192", "40,960"])
axis.set_yticks([0.001, 0.01, 0.1, 1, 10], ["0.001", "0.01", "0.1", "1", "10"])
axis.minorticks_off()
axis.grid(alpha=0.3)
figure.subplots_adjust(right=0.62)
plt.show()

# %% [markdown]
# Twice the tokens, twice the memory: every token costs the same. The formula is short: a key and a value, in every
# layer, for every KV head.
#
# {{source nanovllm/utils/memory.py:kv_block_bytes}}
#
# The engine gives memory to the cache in blocks of `kvcache_block_size` tokens. With 256, tables are short and GPU
# kernels read long runs. Our demonstrations use 16: then small requests fill several blocks, too.

# %% [markdown]
# ### Predict
#
# Qwen3-8B has 8.2 billion weights of 2 bytes each. Your GPU has 24 GB. All options have their defaults. How many
# requests of 4,096 tokens fit into its cache at the same time? Write down a guess. The picture helps to correct it; the
# answer comes when your function is plugged in.
#
# Each bar is the memory of one GPU. The engine may fill it up to the dashed line, `gpu_memory_utilization`. In this
# picture the activations are estimated, and `other`, what CUDA itself takes, is assumed.

# %%
my_guess = 64  # change me

pairs = [("qwen3-tiny", 8)] + [(model, memory) for memory in (8, 24, 80) for model in ("Qwen3-0.6B", "Qwen3-8B")]
budgets = [budget_of(Setting(model, memory)) for model, memory in pairs]
names = [f"{model} on {memory} GB" for model, memory in pairs]

figure, axis = plt.subplots(figsize=(8, 3.4))
start = [0.0] * len(budgets)
parts = [("other", GRAY, "//"), ("weights", BLUE, ""), ("activations", ORANGE, "..."), ("cache", GREEN, "")]
for part, color, hatch in parts:
    shares = [100 * getattr(budget, part) / budget.total for budget in budgets]
    axis.barh(names, shares, left=start, color=color, edgecolor="black", linewidth=0.4, hatch=hatch, label=part)
    start = [a + b for a, b in zip(start, shares, strict=True)]
axis.axvline(90, color="black", linestyle="--")
axis.axvline(100, color="black")
for i, budget in enumerate(budgets):
    text = f"{budget.num_tokens:,} tokens" if budget.num_blocks else "does not start"
    axis.text(102, i, text, va="center", fontsize=8, color="black", backgroundcolor="white")
axis.set(xlabel="percent of the GPU's memory", xlim=(0, 140))
axis.invert_yaxis()
axis.legend(ncols=4, fontsize=8, loc="lower center", bbox_to_anchor=(0.4, 1), frameon=False)
plt.show()

# %% [markdown]
# Weights and activations come first, and the cache gets the rest. Where they alone pass the limit, the engine does
# not start.
#
# How does the engine know? On a GPU it does not estimate: it loads the weights, runs the largest prefill that its
# options allow, and looks what that took.
#
# {{source nanovllm/engine/model_runner.py:ModelRunner.warmup_model}}
#
# How large the memory is, and how much of it is in use by then, the GPU's driver says. These three numbers, the limit
# and the size of a block decide how many blocks there will be. That function is yours.

# %%
# {{exercise ch03.num_blocks_that_fit}}

# %% [markdown]
# ### Plug in
#
# Your engine sizes its own cache now. On a CPU it may use a quarter of the free memory, and takes no more than
# `max_num_seqs` requests of full length need, or 64 of them. The explorer below is drawn with your function, too.
# Move the options, or step through the examples.

# %%
me = mine()
with me.LLM("qwen3-tiny", device="cpu", max_num_seqs=4, max_model_len=512, kvcache_block_size=16) as llm:
    print(f"your engine made {llm.config.num_kvcache_blocks} blocks of {llm.config.kvcache_block_size} tokens")

fit = me.utils.memory.num_blocks_that_fit
print(f"Qwen3-8B on 24 GB: you guessed {my_guess}, it is {budget_of(Setting('Qwen3-8B', 24), fit).num_full_seqs}")
MemoryBudget(num_blocks_that_fit=fit)

# %% [markdown]
# ## When memory runs out
#
# | what you see | knob | its price |
# |---|---|---|
# | no room for even one block | `gpu_memory_utilization` up | less for other programs |
# | the same | `max_num_batched_tokens` down | long prompts take more steps |
# | the same | a smaller model, a 16-bit `dtype`, or `tensor_parallel_size` up | quality, or more GPUs |
# | `num_kvcache_blocks=...` does not fit | lower it, or leave it at -1 | fewer requests at once |
# | a prompt is longer than "the whole KV cache" | more blocks, by the knobs above | |
# | it runs, but requests wait or are preempted | the same | |
#
# Lowering `max_model_len` makes no room in the cache: blocks are given when tokens come, not for the longest possible
# answer. It only bounds what one request may take.
#
# Errors at start are `MemoryError`s that name the knob:

# %%
for options in [{"num_kvcache_blocks": 10**8}, {"kvcache_block_size": 10**8}]:
    try:
        me.LLM("qwen3-tiny", device="cpu", **options)
    except MemoryError as error:
        print(fill(f"MemoryError: {error}", 96), "\n")

# %% [markdown]
# ## Too small, but legal
#
# Between "does not start" and "enough" the engine runs, and is slow. Here are four requests, once with 40
# blocks of 16 tokens and once with 10. This is a recording of the real engine, made now.

# %%
traces = {}
for num_blocks in (40, 10):
    with me.LLM("qwen3-tiny", **(SMALL | {"num_kvcache_blocks": num_blocks, "max_model_len": 128})) as llm:
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        beginnings = ["Once upon a time, a fox", "One day, Tom", "There was an old boat", "Mia had a kite"]
        traces[num_blocks] = record(llm, beginnings, params)

for num_blocks, trace in traces.items():
    together = [len(step["scheduled"]) for step in trace["steps"] if step["scheduled"]]
    print(f"{num_blocks} blocks: {len(together)} steps, {sum(together) / len(together):.1f} requests in one on average")
written = [[seq["output_ids"] for seq in trace["seqs"].values()] for trace in traces.values()]
print("the same text:", written[0] == written[1])
Timeline(traces[10], compare={"40 blocks": traces[40]}, name="10 blocks")

# %% [markdown]
# With 10 blocks, all four begin: there is room for their prompts. Then they grow, until no block is left. D came last,
# and has to give its blocks back: that is a **preemption**. It waits, hatched, until somebody ends, and then all its
# tokens are computed again. The text is the same, only later, and the weights are read for smaller batches, more
# often. Chapter 6 is about who waits, and who gives back.

# %% [markdown]
# ## Change it
#
# * In the explorer: which is the largest model that serves ten requests of 4,096 tokens on 24 GB? And on two such GPUs?
# * Find the smallest number of blocks with which the four requests above run together from beginning to end.
# * Give `three_and` other nonsense: `max_tokens="30"`, `top_k=2.5`, `temperature=-1.0`. Which of these hurt the
#   neighbors, which only themselves, and which nobody notices?
# * Print `probabilities(0.1)[:3]` and `probabilities(10)[:3]`. What do the limits look like?

# %% [markdown]
# ## Recap
#
# 1. Requests share steps, so one bad value can end the work of all, or give garbage in silence.
# 2. Everything is checked once, at the border, before anything starts; the error names argument, value and remedy.
# 3. Frozen objects stay as they were checked, and slots turn misspelled names into errors.
# 4. Memory holds weights, activations and the KV cache, which gets what is left below the limit.
# 5. Too little memory is an error at start that names the knob; a small cache is legal, and slow.

# %% [markdown]
# ## Explain it aloud
#
# * Why is `nan` more dangerous than `"hot"`?
# * Why are activations subtracted, although none are in memory when the cache is made?
# * Two engines share one GPU. Which `gpu_memory_utilization` does each get, and what does the second one find in use?

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
# Run the first cell again: the map shows what is yours by now. Next comes what the engine knows about one request, the
# `Sequence`.
