# %% [markdown]
# # 8 · The model runner
#
# *How sequences become tensors, where their keys and values go, and how a whole step is replayed by one call.*
#
# You will
#
# * watch an engine start, and see why the model runs before there is any memory for it,
# * write three functions that turn sequences into tensors: slots, prefill, decode,
# * see what a model writes whose tokens lie in wrong slots,
# * record a step and play it again, and find out what a recording cannot know,
# * choose, if you like, for which batch sizes a GPU keeps such recordings.
#
# Plan an hour and a half; three exercises are 37 minutes of it. A fourth, about batch sizes, waits at the end. All
# of it runs on a CPU.

# %% [markdown]
# ## Where we are
#
# The scheduler says whose tokens a step computes, and the engine's loop takes the new tokens in. Between them is a
# call, `model_runner.run(seqs, is_prefill)`, and until now we have taken it for granted.

# %%
# %load_ext exercises
import logging
import timeit
from types import SimpleNamespace

import figures
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from exercises.kit import graph_work, start_work
from nanovllm import LLM, SamplingParams
from nanovllm.config import Config
from nanovllm.engine.kv_cache import largest_prefill
from nanovllm.engine.sequence import Sequence
from nanovllm.levers.cuda_graph import ModelRunnerLever, graph_batch_sizes
from nanovllm.utils.context import get_context
from nanovllm.viz import Bars, GraphSpeedup, SlotMapping, Timeline, record

# Blocks of four tokens, so that pictures have room. Without the levers of chapter 17.
SMALL = {"kvcache_block_size": 4, "num_kvcache_blocks": 64, "max_model_len": 64, "device": "cpu"}
SMALL |= {"max_num_seqs": 8, "enable_prefix_caching": True, "disabled_optimizations": "all"}
logging.disable(logging.WARNING)  # the engine warns of very small pools; here they are wanted
mine()

# %% [markdown]
# ## The start
#
# Before the first token, an engine reads its config, loads the weights, runs the model once for a try (the
# **warm-up**), sees how much memory is left, takes it for the pool of blocks, and makes a scheduler.
#
# ### Predict
#
# We start an engine with the bundled model, which has 7.6 million parameters, on your machine, and look at the clock
# between the stages. The first engine of a process also loads libraries, so we look at the second.

# %%
stages = ["config", "tokenizer", "weights", "warm-up", "size of the pool", "pool", "scheduler"]
predict("longest stage", "On your machine, which stage takes longest?", choices=stages)


# %%
def greedy(max_tokens):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


options = {"device": "cpu", "disabled_optimizations": "all"}
llm, first = start_work.timed_start("qwen3-tiny", **options)
llm.exit()  # gives its pool back
llm, here = start_work.timed_start("qwen3-tiny", **options)
pool_bytes = llm.llm_engine.model_runner.kv_cache.nbytes
llm.exit()
print(f"the first engine started in {first[-1].begin + first[-1].seconds:.1f} s")
recorded = start_work.load_recorded()
reveal("longest stage", max((stage for stage in here if stage.name in stages), key=lambda stage: stage.seconds).name)
print(f"the pool here: {pool_bytes / 2**30:.2f} GiB of zeros")
figures.start_up({"here: measured now": here, f"{recorded['gpu']}: recorded": recorded["stages"]})
print("RECORDED:")
for key in ("model", "gpu", "driver", "torch", "triton", "commit", "date", "command"):
    print(f"    {key:8} {recorded[key]}")

# %% [markdown]
# Where the pool takes longest, here is why: it is filled with zeros, so each page of its memory is written once, and
# the system has to find that page first. It is far larger than the model.
#
# On the right is an engine with the shape of Qwen3-0.6B, the second one on that machine, so that its kernels were
# compiled. Its weights were made up, not read from a disk; a real file takes longer. Two stages are there that a CPU
# skips: the warm-up, and the graphs, to which we come at the end.
#
# {{source nanovllm/engine/model_runner.py:ModelRunner.start}}
#
# The order is strange at first sight: the model runs before it has a cache.
#
# {{source nanovllm/engine/model_runner.py:ModelRunner.warmup_model}}
#
# Chapter 3 showed what becomes of the number that it returns: weights, what a step takes, and the rest is for blocks
# (`num_blocks_that_fit`). A step's peak cannot be looked up anywhere. So the largest one is tried.
#
# {{source nanovllm/engine/kv_cache.py:largest_prefill}}
#
# When the size is known, the pool is one tensor, and every attention layer gets its part of it.
#
# {{source nanovllm/engine/model_runner.py:ModelRunner.allocate_kv_cache}}
#
# ### Predict
#
# The sequences of the warm-up come from no scheduler: `largest_prefill` has made them up.

# %%
limits = {"max_num_batched_tokens": 8192, "max_model_len": 2048, "max_num_seqs": 3}
predict("warm-up", f"With {limits}: how many tokens does the warm-up compute?")

# %%
reveal("warm-up", sum(len(seq) for seq in largest_prefill(Config("qwen3-tiny", **limits, device="cpu"))))
runner = LLM("qwen3-tiny", **SMALL).llm_engine.model_runner
trial = Sequence([0] * 6, block_size=4)
trial.num_scheduled_tokens = 6
runner.prepare_prefill([trial])
print("block table:", trial.block_table, " slot_mapping:", get_context().slot_mapping)

# %% [markdown]
# As many sequences as there may be, each as long as it may get, as far as a step goes. Here is the context of one that
# no scheduler has given blocks: the list of slots is empty, and while there is no pool, attention stores nothing. Its
# keys and values are in the batch, and this step needs no others.
#
# ## Why flat?
#
# A model wants tensors, and prompts have different lengths. The plain way is a rectangle, as long as the longest of
# them, filled up with padding.

# %%
lengths = [len(llm.tokenizer.encode(text)) for text in (
    "The sun was warm", "Tom had a ball", "Once upon a time, there was a little girl named Mia. She had a big dog and",
    "One day, a fox", "A frog sat in the pond and sang", "There was an old boat by the sea",
)]  # fmt: skip
print("tokens of six prompts:", lengths)
picture = Bars("padding", 100, {"the rectangle": 100}, "%")
predict("padding", "In a rectangle for these six, which share of the places is padding?", unit="%", picture=picture)

# %%
reveal("padding", round(100 - 100 * sum(lengths) / (len(lengths) * max(lengths))))
figures.padded_or_flat(lengths)

# %% [markdown]
# All of a transformer but attention looks at each token by itself. So the tokens can lie behind each other, whoever
# they belong to. What got lost with the rectangle travels beside the batch, in the **context**: who begins where, and
# which slot a token has.
#
# | field of `Context` | | in a prefill | in a decode |
# |---|---|---|---|
# | `slot_mapping` | int64 | a slot for each token | a slot for each token |
# | `cu_seqlens_q` | int32 | where each sequence's queries begin and end | none: one query each |
# | `cu_seqlens_k` | int32 | the same of its keys, cached ones included | none |
# | `context_lens` | int32 | none | keys of each sequence, the new one included |
# | `block_tables` | int32 | only if something is cached | always |
#
# It is set by name: `set_context(is_prefill=False, slot_mapping=..., ...)`.
#
# ## A picture
#
# One step of three requests, as the runner of a real engine has prepared it. A column is a token; a color is a request.

# %%
llm, texts = LLM("qwen3-tiny", **SMALL), ["Once upon a time there was", "The sun was", "One day, a fox"]
caught, runner = {}, llm.llm_engine.model_runner
prepare = runner.prepare_prefill


def look_at(seqs):
    """What prepare_prefill makes of these sequences, kept in `caught`."""
    input_ids, positions = prepare(seqs)
    caught.update(ids=input_ids, positions=positions, context=get_context())
    return input_ids, positions


runner.prepare_prefill = look_at
llm.generate(texts, greedy(1), use_tqdm=False)
words = [llm.tokenizer.decode([i]) for i in caught["ids"].tolist()]
columns = [caught["positions"].tolist(), caught["context"].slot_mapping.tolist()]
figures.flat_step(words, *columns, caught["context"].cu_seqlens_q.tolist())

# %% [markdown]
# Read it from the top. `cu_seqlens_q` has an entry more than there are requests: where each begins, and where the last
# one ends. Positions begin anew with each request. Slots follow the positions for a while, and then jump.
#
# ## From position to slot
#
# A **slot** is a place in the pool for one token: block 3 of four tokens has the slots 12 to 15. The block table says
# which blocks a sequence has. Step through the tokens of a run, or press play. At "a border" the next entry of the
# table counts.

# %%
trace = record(LLM("qwen3-tiny", **SMALL | {"num_kvcache_blocks": 14}), texts, [greedy(n) for n in (4, 6, 3)])
SlotMapping(trace)

# %% [markdown]
# ### What happens without it
#
# Below is an engine that takes the position for the slot when it reads prompts. We ask it the same two things: each
# alone, and both together.
#
# ### Predict
#
# Alone, the cat's request gets the blocks 0, 1, 2: then position and slot are the same. Together, the fox's blocks come
# after them.

# %%
choices = ["both right", "the cat's right, the fox's wrong", "the fox's right, the cat's wrong", "both wrong"]
predict("wrong slots", "Both together: whose text is right?", choices=choices)

# %%
stories = ["Once upon a time there was a little cat", "One day, a fox met a bird in the wood and"]


def both_ways(engine):
    """Each alone in a new engine, then both in one step; returns the texts of both together."""
    texts = []
    for prompts in (stories[:1], stories[1:], stories):
        with engine.LLM("qwen3-tiny", **SMALL) as llm:
            texts += [answer["text"] for answer in llm.generate(prompts, greedy(14), use_tqdm=False)]
    for story, alone, together in zip(stories, texts[:2], texts[2:], strict=True):
        print(f"{story}\n    alone:   {alone!r}\n    together:{together!r}")
    return texts[2:]


right = [a["text"] for a in LLM("qwen3-tiny", **SMALL).generate(stories, greedy(14), use_tqdm=False)]
found = [one == other for one, other in zip(both_ways(without("ch08.slots")), right, strict=True)]
reveal("wrong slots", choices[{(1, 1): 0, (1, 0): 1, (0, 1): 2, (0, 0): 3}[tuple(map(int, found))]])

# %% [markdown]
# Nothing crashes. Each writes its prompt to the same slots, so one lies over the other: the cat's request goes on
# with somebody else's keys, and the fox's looks for its own in blocks in which nobody has written. In a service, that
# is one user's text in another user's answer.

# %%
# {{exercise ch08.slots}}

# %%
# Plugged in: your slots, in the same two runs.
me = mine()
print(me.whose("ch08.slots"))
print("as it should be:", both_ways(me) == right)

# %% [markdown]
# ## A prefill
#
# Now the whole step. The scheduler has said of each sequence how many of its tokens are stored already
# (`num_cached_tokens`) and how many are computed now (`num_scheduled_tokens`).
#
# ### Predict
#
# A prompt of 40 tokens, in blocks of 16. The first 32 were found in the prefix cache.

# %%
predict("inputs", "How many entries has input_ids?")
predict("keys", "And what is the last entry of cu_seqlens_k, up to which attention counts its keys?")

# %%
hit = Sequence(list(range(40)), block_size=16)
hit.block_table, hit.num_cached_tokens, hit.num_scheduled_tokens = [4, 9, 6], 32, 8
runner = LLM("qwen3-tiny", **SMALL | {"kvcache_block_size": 16}).llm_engine.model_runner
input_ids, positions = runner.prepare_prefill([hit])
context = get_context()
reveal("inputs", len(input_ids))
reveal("keys", context.cu_seqlens_k.tolist()[-1])
print("positions:   ", positions.tolist())
print("slot_mapping:", context.slot_mapping.tolist())
print("cu_seqlens_q:", context.cu_seqlens_q.tolist(), " cu_seqlens_k:", context.cu_seqlens_k.tolist())
print("block_tables:", context.block_tables.tolist())

# %% [markdown]
# Eight queries look at 40 keys. The keys of the first 32 tokens are in the cache, so attention needs the block tables;
# where nothing is cached, it does not, and they are left out:
#
# {{source nanovllm/engine/model_runner.py:ModelRunner.set_prefill_context}}
#
# {{source nanovllm/engine/model_runner.py:ModelRunner.prepare_block_tables}}
#
# ### What happens without it
#
# This prefill counts positions through the batch, as if all prompts were one text. The model turns each key by an angle
# for its position (chapter 11), and only the *difference* of two positions matters to attention.
#
# ### Predict

# %%
choices = ["right from the first token on", "the first token is right, then it goes wrong", "wrong from the first on"]
predict("positions", "What does the second of two requests write?", choices=choices)

# %%
with without("ch08.prepare_prefill").LLM("qwen3-tiny", **SMALL) as llm:
    second = llm.generate(stories, greedy(14), use_tqdm=False)[1]["text"]
print("as it should be:", repr(right[1]), "\nas it is:       ", repr(second))
first_word = right[1].split()[0]
same = second.split()[:1] == [first_word]
reveal("positions", choices[0] if second == right[1] else choices[1] if same else choices[2])

# %% [markdown]
# Within the prompt all differences are right. The trouble begins when the answer goes on with the true positions: then
# the keys of the prompt seem to lie somewhere else.

# %%
# {{exercise ch08.prepare_prefill}}

# %%
# Plugged in: two requests in chunks of at most ten tokens a step, and what each step is given.
me, given = mine(), []
print(me.whose("ch08.prepare_prefill"))
llm = me.LLM("qwen3-tiny", **SMALL, max_num_batched_tokens=10)
runner = llm.llm_engine.model_runner
prepare = runner.prepare_prefill
runner.prepare_prefill = lambda seqs: (given.append([seq.num_scheduled_tokens for seq in seqs]), prepare(seqs))[1]
answers = [answer["text"] for answer in llm.generate(stories, greedy(14), use_tqdm=False)]
print("tokens of each prefill, by request:", given, " as it should be:", answers == right)

# %% [markdown]
# ## A decode
#
# Afterwards every sequence has exactly one token without keys and values: its last.
#
# ### Predict
#
# Three sequences of 7, 23 and 101 tokens are in a decode.

# %%
choices = ["[3]", "[3, 1]", "[1, 3]", "[131]", "[3, 101]"]
predict("shape", "What is the shape of input_ids?", choices=choices)
predict("same text", "This engine prepares a decode as a prefill of one token each. Its text is ...",
        choices=["the same", "another one"])  # fmt: skip

# %%
decoding = [Sequence(list(range(n)), block_size=4, seq_id=n) for n in (7, 23, 101)]
for n, seq in enumerate(decoding):
    seq.num_cached_tokens, seq.num_scheduled_tokens = seq.num_tokens - 1, 1
    seq.block_table = list(range(30 * n, 30 * n + seq.num_blocks))
runner = LLM("qwen3-tiny", **SMALL).llm_engine.model_runner
input_ids, positions = runner.prepare_decode(decoding)
context = get_context()
reveal("shape", str(list(input_ids.shape)))
print("positions:   ", positions.tolist(), "  slot_mapping:", context.slot_mapping.tolist())
print("context_lens:", context.context_lens.tolist(), " block_tables:", list(context.block_tables.shape))

bare = without("ch08.prepare_decode").LLM("qwen3-tiny", **SMALL)
texts_now = [answer["text"] for answer in bare.generate(stories, greedy(14), use_tqdm=False)]
reveal("same text", "the same" if texts_now == right else "another one")

# %% [markdown]
# So a decode *is* a prefill of one token each. Why does it have a function of its own?
#
# Because its shapes are so plain: a row for each sequence in every tensor, whatever the lengths. A kernel for decoding
# relies on that, and so does the recording at the end of this chapter. And it runs most often: once for each token that
# anybody writes, while the GPU waits for it.
#
# Copies of sequences in other processes have no token lists in a decode (chapter 4), only `last_token` and numbers.

# %%
# {{exercise ch08.prepare_decode}}

# %%
# Plugged in: how long your function takes for eight sequences, and for 256.
me = mine()
print(me.whose("ch08.prepare_decode"))
runner = me.LLM("qwen3-tiny", **SMALL).llm_engine.model_runner
for count in (8, 256):
    seqs = (decoding * count)[:count]
    seconds = min(timeit.repeat(lambda seqs=seqs: runner.prepare_decode(seqs), number=20, repeat=5)) / 20
    print(f"{count:3} sequences: {1e6 * seconds:,.0f} microseconds a step, {1e6 * seconds / count:.1f} for each")
print("measured now: it grows with the sequences, and the GPU waits for it; below is how long a GPU's step takes")

# %% [markdown]
# ## Milestone: a batch of eight, on your inputs
#
# What is left of a step you can read now. One sampled token for each sequence, but for a prompt that was cut: that is
# the last one, so the logits of all others are at the front.
#
# {{source nanovllm/engine/model_runner.py:ModelRunner.launch}}
#
# ### Predict
#
# Eight requests come at once, to your engine, and each writes twelve tokens. Put in prompts of your own, if you like.

# %%
eight = ["Once upon a time there was", "The sun was warm and", "One day, a small fox", "Tom had a red ball. He",
         "A frog sat in the pond and", "There was an old boat", "Mia went to the park", "A bird"]  # fmt: skip
print("tokens of the eight prompts:", sum(len(llm.tokenizer.encode(prompt)) for prompt in eight))
predict("rows", "How many tokens does the model compute in all steps together?", unit="tokens")

# %%
me = mine()
print(me.whose("ch08.slots", "ch08.prepare_prefill", "ch08.prepare_decode"))
llm = me.LLM("qwen3-tiny", **SMALL | {"enable_prefix_caching": False})
trace = record(llm, eight, greedy(12), keep_error=True)
for seq in trace["seqs"].values():
    print(seq["name"], llm.tokenizer.decode(seq["prompt_ids"] + seq["output_ids"]).replace("\n", " "))
ours = record(LLM("qwen3-tiny", **SMALL | {"enable_prefix_caching": False}), eight, greedy(12))
written = [[seq["output_ids"] for seq in run["seqs"].values()] for run in (trace, ours)]
print("the same as ours:", written[0] == written[1])
reveal("rows", sum(part["n"] for step in trace["steps"] for part in step["scheduled"]))
print("Below, sequences and blocks are those AFTER a step: the last one computes eight tokens, and nobody is left.")
print("The dashed line over the tokens is the fullest step of this run; the budget would be far above it.")
Timeline(trace)

# %% [markdown]
# Of each answer eleven tokens are computed, not twelve: nobody needs the last one's keys.
#
# ## What a GPU waits for
#
# From here on, the chapter is about a *lever*: a faster path around the plain engine, which the engine does not know
# (`nanovllm/levers/cuda_graph.py`). It needs a GPU; to see what it does, you do not.
#
# A decode step of Qwen3-0.6B is some 170 to 230 **kernels**, small programs on the GPU. Each is launched from Python:
# find the module, check shapes, choose the kernel, hand it over. Together that took about ten milliseconds on an H200,
# however many sequences there were. The GPU itself was done sooner, and waited.
#
# A **CUDA graph** is a recording of all these launches. To replay it is one call.

# %%
weights, keys = 2 * 596e6, 512 * 28 * 2 * 8 * 128 * 2  # bytes; keys and values of 512 tokens in 28 layers
print(f"A step reads {weights / 1e9:.1f} GB of weights, and {keys / 1e6:.0f} MB of keys and values for each sequence;")
print("the data sheet of an H200 says 4,800 GB a second; its kernels come up to a quarter of that with one sequence,")
print("and to half of it with 256.")
predict("one", "A batch of 1: how many times as fast is a step when it is replayed?")
predict("many", "And a batch of 256?")

# %%
speedup = GraphSpeedup()
times = {row["bs"]: row["eager_ms"][1] / row["graph_ms"][1] for row in speedup.rows}
reveal("one", round(times[1], 1))
reveal("many", round(times[256], 1))
speedup

# %% [markdown]
# Choose a batch size with the buttons, and press play: both lanes run on one clock. With one sequence the GPU has
# little to do, so nearly all of an eager step is Python. With 256 the GPU is busy for 6.4 of the ten milliseconds:
# compare what your `prepare_decode` took for 256 above, on this machine.
#
# The stairs below the lanes come up again later: there is a graph for some sizes only, nine in this recording, and a
# batch takes the next larger one. The rows that are left over are **padding**. An engine of 512 seats has 43 graphs.
#
# On a machine with an NVIDIA GPU, the next cell measures it anew, for the bundled model. Elsewhere it says so.

# %%
if torch.cuda.is_available():
    from nanovllm.measure import measure_steps

    def make_llm(**options):
        return LLM("qwen3-tiny", max_model_len=1024, **options)

    display(GraphSpeedup(measure_steps(make_llm, "qwen3-tiny", context_lens=(128,), iters=20)))
else:
    print("no CUDA device here: the recorded run above is all there is")

# %% [markdown]
# ## A recording, in a few lines
#
# We can build such a recorder on a CPU, to see what it knows. It is no faster, but it behaves the same: PyTorch tells
# it of every operation, with the very tensors that it worked on. `replay` does the same operations with the same
# tensors, and nothing else. No line of Python in between runs again.


# %%
class Tape(TorchDispatchMode):
    """Records what is computed in its `with` block."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        self.calls.append((function, args, kwargs or {}, out))
        return out

    def replay(self):
        for function, args, kwargs, out in self.calls:
            result = function(*args, **kwargs)
            if isinstance(out, torch.Tensor):
                out.copy_(result)


# %% [markdown]
# ### Predict
#
# The function below scales its input, and does something else with a long one. We record it with `x = [1, 2, 3]` and
# `scale = 10`, then change things, and replay.

# %%
scale = 10


def step(x):
    y = x * scale
    if float(x.sum()) > 100:  # a decision in Python
        y = -y
    return y


x, tape = torch.tensor([1.0, 2.0, 3.0]), Tape()
with tape:
    y = step(x)
choices = ["10, 20, 30", "10, 10, 10", "20, 20, 20", "1000, 1000, 1000", "-1000, -1000, -1000", "-2000, -2000, -2000"]
predict("a: filled", "x.fill_(1), then replay. What is y?", choices=choices)
predict("b: a new x", "After that: x = torch.full((3,), 2.0), then replay. What is y?", choices=choices)
predict("c: a decision", "In the old x: fill_(100); and scale = 20. Then replay. What is y?", choices=choices)


# %%
def shown(tensor):
    return ", ".join(f"{value:.0f}" for value in tensor.tolist())


old = x
old.fill_(1)
tape.replay()
reveal("a: filled", shown(y))

x = torch.full((3,), 2.0)
tape.replay()
reveal("b: a new x", shown(y))

old.fill_(100)
scale = 20
tape.replay()
reveal("c: a decision", shown(y))
print("recorded operations:", ", ".join(str(function) for function, *_ in tape.calls))

# %% [markdown]
# The three rules of a graph follow:
#
# * **Inputs are places, not values.** A new tensor is never looked at. What changes from step to step has to be copied
#   into the tensors that were recorded.
# * **Python ran once.** Numbers and decisions are frozen; so is every shape.
# * **Nothing may ask the GPU for a value** (`float(x)`, `.tolist()`, `print`). Our tape lets it pass and freezes the
#   answer. CUDA refuses: it would have to wait for a kernel that is only being recorded.
#
# That is why plain attention, which reads lengths in Python, cannot be recorded; the Triton kernel reads them on the
# GPU. And why sampling with a fixed seed works: the seeds lie in a buffer.
#
# ## The lever
#
# Here is how the engine records. Inputs are the first rows of fixed buffers.
#
# {{source nanovllm/levers/cuda_graph.py:ModelRunnerLever.capture_cudagraph}}
#
# {{source nanovllm/levers/cuda_graph.py:ModelRunnerLever.run_in_buffers}}
#
# A step then copies what `prepare_decode` made (yours, too) into the buffers, and replays.
#
# {{source nanovllm/levers/cuda_graph.py:ModelRunnerLever.run_model}}
#
# Look at the last line but two: *the smallest graph that is large enough*. A graph is for one batch size, and its
# other rows are padding. They compute nonsense for nobody, but they write keys and values like all others.
#
# ### Predict
#
# A pool of 64 blocks of four tokens, so the slots 0 to 255, and a graph of eight rows for three sequences.

# %%
choices = ["0, the first slot", "-1, which is none", "256, beyond the pool", "the slot of the last sequence"]
predict("slot of a spare row", "Which slot do the five rows of padding get?", choices=choices)

# %%
buffers = {name: torch.zeros(8, dtype=torch.int64) for name in ("input_ids", "context_lens", "slot_mapping")}
buffers |= {"temperatures": torch.zeros(8), "block_tables": torch.zeros(8, 1, dtype=torch.int64)}
buffers["slot_mapping"][:3] = torch.tensor([21, 6, 90])  # of three sequences
lever = SimpleNamespace(config=SimpleNamespace(num_kvcache_blocks=64), block_size=4, buffers=buffers)
ModelRunnerLever.fill_padding(lever, 3, 8)
print("slot_mapping:", buffers["slot_mapping"].tolist())
slot = int(buffers["slot_mapping"][-1])
reveal("slot of a spare row", next(choice for choice in choices if choice.startswith(str(slot))))

# %% [markdown]
# {{source nanovllm/levers/cuda_graph.py:ModelRunnerLever.fill_padding}}
#
# A replay stores the keys and values of all its rows, so padding gets a slot that exists. The lever makes the pool a
# block larger than the scheduler knows of. Without that, padding would write over somebody's text.
#
# ## Your engine
#
# Every step's tensors are yours now. Measured on the fixed work of all chapters:

# %%
print(mine().whose("ch08"))
staircase("08")

# %% [markdown]
# ## One more: for which batch sizes?
#
# This section is for those who have twenty minutes left. Nothing later needs it.
#
# A graph for each size from 1 to 512 would waste no row. Each one costs time at the start; and memory, though the
# graphs share most of it.

# %%
rows = recorded["rows"]
seconds, size = (sum(row[key] for row in rows) for key in ("seconds", "bytes"))
smallest, largest = 1000 * rows[-1]["seconds"], 1000 * rows[0]["seconds"]
print(f"RECORDED on {recorded['gpu']}, {recorded['date']}, one by one: {len(rows)} graphs in {seconds:.2f} s;")
print(f"{smallest:.0f} ms for the smallest, {largest:.0f} ms for the largest, which is recorded first and takes all of")
print(f"the {size / 1e6:.0f} MB: the others use the same memory")
sizes = graph_batch_sizes(512)
print("the engine's sizes:", *sizes[:8], "...", *sizes[-3:])

# %% [markdown]
# For a small model on one GPU that is cheap. With 60 layers, several GPUs and compiled code, a graph takes a second
# or more, and the number of graphs is a question.
#
# Here is a day of a service, as our scheduler serves it with up to 256 seats: how many decode steps had how many
# sequences. There may be nine graphs; powers of two are just nine.
#
# ### Predict

# %%
day = graph_work.batch_sizes()
print(f"{sum(day.values()):,} decode steps, {sum(n * steps for n, steps in day.items()):,} rows with a sequence")
predict("powers", "With powers of two, which share of all rows that are computed is padding?", unit="%")

# %%
# {{exercise ch08.choose_graph_sizes}}

# %%
powers = graph_work.padding(graph_work.POWERS, day)
reveal("powers", round(100 * powers / (powers + sum(n * steps for n, steps in day.items()))))
me = mine("ch08.choose_graph_sizes")
print(me.whose("ch08.choose_graph_sizes"))
chosen = me.function("ch08.choose_graph_sizes")(day, graph_work.LARGEST, graph_work.MOST)
name = me.owner("ch08.choose_graph_sizes")
both = {"powers of two": list(graph_work.POWERS), name: sorted(chosen)}
padding = {title: graph_work.padding(some, day) for title, some in both.items()}
figures.graph_sizes(day, both, padding, graph_work.BAR)
other = {title: graph_work.padding(some, graph_work.batch_sizes(1)) for title, some in both.items()}
print("the same sizes on another day:", other)
replayed = {row["bs"]: f"{row['graph_ms'][1]:.1f} ms" for row in speedup.rows if row["bs"] in (4, 8, 16, 32)}
print("RECORDED, a replayed step by its rows:", replayed)

# %% [markdown]
# With powers of two, all batches of this day from 65 on have to go to 128, and pad most. But sizes that fit one day fit
# the next less well. And rows are not time: as printed above, a batch of 4 took as long as one of 8. So engines take a
# plain rule with many sizes, and pay at the start.

# %% [markdown]
# ## Change it
#
# * In `SlotMapping`, record four requests of which two begin alike, with `enable_prefix_caching`, two steps apart
#   (`arrive=[0, 0, 2, 2]`). Which slots are never written by the later ones?
# * Let `slots` give every token the slot after its own. The check refuses it; run it all the same with
#   `both_ways(mine("ch08.slots"))`. Do the texts drift at once? With `SMALL["num_kvcache_blocks"] = 7` one of these
#   slots does not exist. Who notices?
# * Record a `step` on the tape that makes a new tensor from a Python list. What does the replay know of it?
# * `graph_work.padding(graph_batch_sizes(256), day)`: what do the engine's own sizes cost, and how many are
#   they?
# * Give `choose_graph_sizes` 5, 9 and 16 graphs, and draw padding over their number. Where would you stop?

# %% [markdown]
# ## Recap
#
# 1. The model runs once before it has a cache, because only a run tells how much memory a step takes.
# 2. A step is flat: tokens behind each other, without padding; the context says who begins where, and who sees what.
# 3. Slot = block table entry times block size plus place. A wrong slot raises no error; it writes another text.
# 4. A decode is a prefill of one token each, with shapes that depend on the number of sequences alone.
# 5. A graph replays launches on fixed tensors: copy inputs in, no decisions in Python, pad to the next size.

# %% [markdown]
# ## Explain it aloud
#
# * Why are there two lists of sums in a prefill, and only one list of lengths in a decode?
# * Padding rows of a graph need a slot. Why not simply slot 0?
# * Somebody logs a step's logits with `.item()`, inside the recorded part. What happens?
#
# <details><summary>Three answers to the second question; say yours first</summary>
#
# *Weak:* slot 0 might be in use.
#
# *Good:* slot 0 belongs to block 0, which some sequence has. Its first token's keys and values would be overwritten
# with those of token 0, in every step that is padded.
#
# *Excellent:* and nobody would notice: no error, only a text that drifts. So padding has a block of its own.
#
# </details>

# %% [markdown]
# ## Read further
#
# * vLLM: `vllm/v1/worker/gpu_model_runner.py` (`_prepare_inputs`, `capture_model`), and
#   `vllm/v1/worker/block_table.py` for slot mapping.
# * Dao, *FlashAttention-2*, 2023, and the function `flash_attn_varlen_func` of its package: where `cu_seqlens` is from.
# * Kwon et al., *PagedAttention*, SOSP 2023, section 4.3: what a slot is there.
# * PyTorch's notes on CUDA semantics, "CUDA Graphs": the list of what must not be captured.
#
# Next, attention: what is done with the keys that you have put into their slots.
