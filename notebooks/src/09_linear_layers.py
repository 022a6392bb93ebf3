# %% [markdown]
# # 9 · Linear layers and tensor parallelism
#
# *One model on several processors: who holds which weights, when they have to meet, and what a meeting costs.*
#
# You will
#
# * cut a matrix in two ways, and see why one after the other needs a single exchange,
# * write the loaders that give each rank its heads, and the layer that adds up the parts,
# * hear what the model writes when a head is on the wrong rank,
# * run two real processes that share the bundled model, and measure the cost,
# * cut a chain of matrices, if you like, so that little is sent.
#
# Plan 85 minutes; three exercises are half an hour of it. A fourth waits at the end. Everything runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# The runner turns a step into tensors and calls the model. From here on we look into the model, layer by layer. The
# first kind of layer holds nearly all weights: a **linear layer** multiplies its input by a matrix.

# %%
# %load_ext exercises
import figures
import torch

import nanovllm
from exercises.kit import parallel_work
from nanovllm import LLM, SamplingParams
from nanovllm.viz import TensorParallelView

PLAIN = {"device": "cpu", "disabled_optimizations": "all"}  # without the levers of chapter 17
PLAIN |= {"kvcache_block_size": 16, "num_kvcache_blocks": 32, "max_model_len": 512}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
STORY = "Once upon a time"


def write(engine, num_ranks):
    """The story as an engine goes on with it; every rank is a process of its own."""
    with engine.LLM("qwen3-tiny", tensor_parallel_size=num_ranks, **PLAIN) as llm:
        return llm.generate(STORY, GREEDY, use_tqdm=False)[0]["text"]


mine()

# %% [markdown]
# ## Why
#
# 70 billion parameters in bfloat16 are 140 GB, and a card of 80 GB does not hold them. That is one reason to share a
# model. The other is speed: a decode step reads all weights once (chapter 2), and two cards read twice as fast.
#
# ### Predict
#
# Two shapes, with random weights, were measured on one H200 and on two of one host: one request, so the step does
# little but read weights.

# %%
SPEEDS = ["slower", "about as fast", "1.3 to 1.8 times as fast", "twice as fast"]
predict("8b", "8 billion parameters, two GPUs instead of one:", choices=SPEEDS)
predict("0.6b", "0.6 billion parameters, two GPUs instead of one:", choices=SPEEDS)

# %%
recorded = parallel_work.load_recorded()
speed = {(row["shape"], row["workload"], row["ranks"]): row["tokens_per_second"] for row in recorded["rows"]}
gains = {name: speed[name, "batch-1", 2] / speed[name, "batch-1", 1] for name in ("qwen3-8b", "qwen3-0.6b")}
said = {name: SPEEDS[(gain > 0.9) + (gain > 1.3) + (gain > 1.8)] for name, gain in gains.items()}
reveal("8b", said["qwen3-8b"])
reveal("0.6b", said["qwen3-0.6b"])
for work, title in {"batch-1": "one request", "default": "256 requests at once"}.items():
    bars = {f"{s}, {n} GPU{'s' * (n > 1)}": v for (s, w, n), v in speed.items() if w == work}
    figures.bars(bars, f"output tokens per second, {title}")
print("RECORDED:", ", ".join(f"{key} {recorded[key]}" for key in ("gpu", "driver", "torch", "commit", "date")))
print("         ", recorded["command"], "with", recorded["environment"])

# %% [markdown]
# The small model is slower on two GPUs, and the large one not twice as fast. So sharing has a price, and this chapter
# looks for it.
#
# ## Two ways to cut a matrix
#
# A weight has a row for each output and a column for each input. Blue is rank 0, orange rank 1, and gray is on
# both.

# %%
figures.two_ways_to_cut()

# %% [markdown]
# *By rows*, each rank needs the whole input, and makes a part of the output: other features on each rank. (Papers
# write the product the other way round and call this **column-parallel**, and so do we.)
#
# *By columns*, each rank needs only its part of the input, and computes a part of **every** sum. Added up, they are the
# output. This is **row-parallel**. Nothing else is different:

# %%
x, weight = torch.randn(1, 6), torch.randn(4, 6)
by_rows = torch.cat([x @ half.T for half in weight.chunk(2, dim=0)], dim=-1)
by_columns = sum(x_half @ half.T for x_half, half in zip(x.chunk(2, -1), weight.chunk(2, dim=1), strict=True))
print(torch.allclose(by_rows, x @ weight.T, atol=1e-6), torch.allclose(by_columns, x @ weight.T, atol=1e-6))

# %% [markdown]
# What a rank lacks, it gets by a **collective**: a call that all ranks make together.
#
# * *all-gather*: the parts are put side by side, and everybody has the whole vector. For n numbers, each of R ranks
#   sends n (R - 1) / R.
# * *all-reduce*: vectors are added up, and everybody has the sum. It sends twice as many.
#
# ### Predict
#
# Two matrices in a row, 64 → 256 → 64 features, with an activation between them that treats each number by itself.
# This is an MLP. Every rank has the whole input, and all need the whole output.

# %%
choices = ["by columns, then by rows", "both by columns", "by rows, then by columns", "both by rows"]
predict("pair", "How do you cut the two, if as little as possible is to be sent?", choices=choices)

# %%
pair = [parallel_work.Linear("up", 64, 256, "each"), parallel_work.Linear("down", 256, 64, "norm")]
kinds = [("row", "column"), ("row", "row"), ("column", "row"), ("column", "column")]  # column-parallel is by rows
sent = {choice: parallel_work.compute(pair, cuts, 2) for choice, cuts in zip(choices, kinds, strict=True)}
for choice, (is_right, numbers) in sent.items():
    print(f"{choice:25} right: {is_right}, a rank sends {numbers:4} numbers for a token")
reveal("pair", min(sent, key=lambda choice: sent[choice][1]))

# %% [markdown]
# The parts that the first matrix makes are just the parts that the second one takes. What lies between them is never
# whole anywhere, and one all-reduce at the end is all. This is Megatron's trick: column-parallel, then row-parallel.
#
# Attention is such a pair, too: a head needs nobody but its own queries, keys and values, so heads are the parts.
#
# ## A picture
#
# ### Predict
#
# The bundled model has four query heads and two KV heads; query heads 0 and 1 ask KV head 0. Queries, keys and values
# lie in one matrix, one below the other, and so do the gate and the up projection of the MLP.

# %%
HALVES = ["the first half of its rows", "the first half of gate and the first half of up", "the gate, and not up"]
predict("gate and up", "Two ranks. Which rows of the matrix [gate; up] does the first one need?", choices=HALVES)
QUARTERS = ["less than a quarter", "exactly a quarter", "more than a quarter"]
predict("quarter", "Four ranks. How many of the layer's weights in matrices does each hold?", choices=QUARTERS)

# %%
view = TensorParallelView()
pieces = {piece.kind: piece for piece in view.shares[2][0].pieces["gate_up_proj"]}
is_both = set(pieces) == {"gate_proj", "up_proj"} and all(piece.first == 0 for piece in pieces.values())
reveal("gate and up", HALVES[1] if is_both else HALVES[2])
held, whole = (sum(a * b for a, b in (s for s in view.shares[n][0].shapes.values() if len(s) > 1)) for n in (4, 1))
reveal("quarter", QUARTERS[(4 * held > whole) + (4 * held >= whole)])
view

# %% [markdown]
# Step through a layer with two ranks, then with four; the colors are KV heads. With four ranks, each KV head is held
# twice, and its part of the KV cache as well, so each rank has more than a quarter. Norms are small, and held by all.
#
# Gate and up are multiplied number by number, so a rank needs both factors: the same rows of both.
#
# ## The layers
#
# A layer is built for a rank, and notes which one. All matrices of a layer are made by five classes of
# `nanovllm/layers/linear.py`:
#
# | class | its weight | used for |
# |---|---|---|
# | `ReplicatedLinear` | whole on every rank | nothing in Qwen3 |
# | `ColumnParallelLinear` | some rows | the next two |
# | `MergedColumnParallelLinear` | some rows of several | gate and up |
# | `QKVParallelLinear` | some heads | queries, keys, values |
# | `RowParallelLinear` | some columns | `o_proj`, `down_proj` |

# %% [markdown]
# {{source nanovllm/layers/linear.py:ColumnParallelLinear}}
#
# Every rank reads the same checkpoint: each parameter has a `weight_loader` that is given the *full* tensor, and takes
# what is its own. All of them need the same small function.
#
# ### What happens without it
#
# Here every rank takes the first part. All shapes are right. Look at "2 ranks":

# %%
TensorParallelView(engine=without("ch09.shard"))

# %% [markdown]
# `divide(number, size)` is given: the exact quotient, or a `ValueError`.

# %%
# {{exercise ch09.shard}}

# %%
# Plugged in: what the layers load through your function.
me = mine()
print(me.whose("ch09.shard"))
TensorParallelView(engine=me)

# %% [markdown]
# With `shard`, most loaders are one line. The one for gate and up has a place to find, too:
#
# {{source nanovllm/layers/linear.py:MergedColumnParallelLinear.weight_loader}}
#
# `shard_id` says which of the layers the tensor is for (chapter 16 shows who calls this). `narrow` makes a view, so
# copying into it fills the parameter.
#
# ## Whose heads are these?
#
# The matrix for queries, keys and values is cut by heads. Its constructor has counted them:
#
# {{source nanovllm/layers/linear.py:QKVParallelLinear.__init__}}

# %% [markdown]
# ### What happens without it
#
# Below, heads are dealt out like cards: of two ranks, the first gets query heads 0 and 2, and KV head 0. Every head is
# whole, every head is somewhere, nothing is there twice.
#
# ### Predict

# %%
choices = ["the right text", "a text that reads well, and is another one", "stuttering"]
predict("cards", "What do two ranks write whose heads were dealt out like cards?", choices=choices)

# %%
right, cards = write(nanovllm, 1), write(without("ch09.weight_loader"), 2)
print("one rank: ", STORY + right)
print("two ranks:", STORY + cards)
words = cards.split()
reveal("cards", choices[0] if cards == right else choices[2] if len(set(words)) < 0.7 * len(words) else choices[1])

# %% [markdown]
# Two things are wrong, and neither raises an error. Query head 2 belongs to KV head 1, and asks KV head 0. And what
# comes out of heads 0 and 2 meets the columns of `o_proj` that are for heads 0 and 1. With one rank, nobody notices.
#
# With fewer KV heads than ranks, a KV head is held by `num_kv_head_replicas` ranks side by side. The layer has noted
# its rank: it is `self.tp_rank` of `self.tp_size`. Where the rows of a projection go in the parameter, `self.shards`
# says. `default_weight_loader(rows, tensor)` copies, and refuses another shape.

# %%
# {{exercise ch09.weight_loader}}

# %%
# Plugged in: look at "4 ranks", where each KV head has two owners.
me = mine()
print(me.whose("ch09.shard", "ch09.weight_loader"))
TensorParallelView(engine=me)

# %% [markdown]
# ## Parts of a sum
#
# The row-parallel layer takes what a rank's own heads have made. Here is `o_proj` of layer 0 with the bundled model's
# weights, on two ranks that are **simulated**: they take turns in one process, which is slow and easy to look at.

# %%
llm = LLM("qwen3-tiny", **PLAIN)
token_ids = llm.tokenizer.encode(STORY)
both = parallel_work.model_together(token_ids, 2)
meetings = [kind for kind, _ in both.calls[0]]
parts = [calls[1][1][-1, :8].tolist() for calls in both.calls]  # the second collective is that of o_proj
figures.parts_of_sums(parts, [sum(numbers) for numbers in zip(*parts, strict=True)])

# %% [markdown]
# Neither part is the sum. After the all-reduce both ranks have the same numbers again, so norms and the
# residual stream need no further word between them.
#
# ### Predict
#
# Somebody saves a call: only rank 0 makes the all-reduce; the others return their part.

# %%
choices = ["rank 0 gets the sum", "an error says at once who is missing", "rank 0 waits, until some time limit ends it"]
predict("skip", "What happens on two real ranks?", choices=choices)


# %%
def only_rank_0(group):
    part = torch.ones(3)
    return group.all_reduce(part) if group.rank == 0 else part


try:
    said = f"all ranks have ended: {parallel_work.together(2, only_rank_0).results}"
except parallel_work.NobodyThere as error:
    said = f"simulated ranks take turns, so here it is seen: {error}"
print(said)
reveal("skip", choices[2] if "wait" in said else choices[0])

# %% [markdown]
# A collective is a meeting. A real rank cannot know that nobody will come, and waits; ours gives up after two minutes.
#
# ### What happens without it
#
# Each rank returns its own part, and nothing is added up:

# %%
print("two ranks:", STORY + write(without("ch09.forward"), 2))

# %% [markdown]
# Each layer adds half of what it should to the residual stream, and each rank has another half.
#
# A bias is the one difficulty of this layer. Qwen3 has none here; other families do. The tools: this rank's product is
# `self.multiply(x, bias)`, with a bias or `None`; the layer's own is `self.bias`; `self.group` has `rank`, `size` and
# `all_reduce`.

# %%
# {{exercise ch09.forward}}

# %%
# Plugged in: a layer with a bias of 100, on three simulated ranks. Inputs and weights are ones.
me = mine()
print(me.whose("ch09.forward"))
layers = []
for rank in range(3):
    with me.utils.parallel_state.tensor_parallel_group(parallel_work.SimulatedGroup(rank, 3)):
        layers.append(me.layers.linear.RowParallelLinear(6, 1, bias=True))
    layers[rank].weight.data.fill_(1)
    layers[rank].bias.data.fill_(100)


def compute(group):
    layers[group.rank].group = group
    return layers[group.rank](torch.ones(1, 2)).item()


print("what the ranks return:", parallel_work.together(3, compute).results, "(6 ones and 100)")

# %% [markdown]
# ## How often do they meet?
#
# ### Predict
#
# The bundled model has eight layers. The embedding is cut as well, by tokens: a rank looks up those that it has, zeros
# stand for the others, and an all-reduce adds. The head is cut the same way, and its logits are gathered on rank 0.

# %%
predict("meetings", "How many collectives does one step have?")

# %%
reveal("meetings", len(meetings))
print(", ".join(f"{meetings.count(kind)} x {kind}" for kind in dict.fromkeys(meetings)))

# %% [markdown]
# Two a layer, one for the embedding, one for the head. How much is that?

# %%
bundled = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
bundled |= {"intermediate_size": 896, "num_hidden_layers": 8, "vocab_size": 2048}
shape = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
shape |= {"intermediate_size": 3072, "num_hidden_layers": 28, "vocab_size": 151936}
large = shape | {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 12288, "num_hidden_layers": 36}
models = {"qwen3-tiny": bundled, "Qwen3-0.6B": shape, "Qwen3-8B": large}
figures.read_and_sent({name: parallel_work.read_and_sent(config, 2) for name, config in models.items()})

# %% [markdown]
# Far less is sent than read. So it is not the bytes that made the small model slower. It is the meetings: each waits
# for the slower rank, starts a transfer, and waits for its end, however little is said. Beside a layer of the large
# model this is little, beside one of the small model much.
#
# ## Two real ranks
#
# Your engine, with one rank and with two. Each rank is a process, and computes with one thread.
#
# ### Predict

# %%
choices = ["the same tokens", "other tokens: sums in another order are rounded otherwise"]
predict("same", "Greedy, 24 tokens: what do two ranks write?", choices=choices)
SLOWER = ["less time than with one rank", "about the same", "more time than with one rank"]
predict("time", "On this machine, a token with two ranks takes ...", choices=SLOWER)

# %%
me, found, processes = mine(), {}, []
print(me.whose("ch09.shard", "ch09.weight_loader", "ch09.forward"))
with parallel_work.one_thread():
    for num_ranks in (1, 2):
        with me.LLM("qwen3-tiny", tensor_parallel_size=num_ranks, **PLAIN) as llm:
            found[num_ranks] = parallel_work.seconds_per_token(llm, STORY, GREEDY)
            if num_ranks > 1:
                processes = [process.pid for process in llm.llm_engine.model_runner.ranks.processes]
reveal("same", choices[0] if found[1][1] == found[2][1] else choices[1])
times = {f"{n} rank{'s' * (n > 1)}": 1000 * seconds for n, (seconds, _) in found.items()}
ratio = times["2 ranks"] / times["1 rank"]
reveal("time", SLOWER[(ratio > 0.9) + (ratio > 1.1)])
figures.bars(times, "milliseconds for a token, measured just now", "{:.1f}")

# %% [markdown]
# 7.6 million parameters are read in a moment; 18 meetings are messages through the operating system. On a busy
# machine, a rank also waits until the other one gets its turn.
#
# Sums in another order *are* rounded otherwise; here, and nearly always, the best token is far enough ahead.
#
# ## Your engine

# %%
print(mine().whose("ch09"))
staircase("09")

# %% [markdown]
# ## One command's way
#
# This section and the two after it are for those who have time left. Nothing later needs them.

# %%
import os

figures.way_of_a_call(os.getpid(), processes or [1, 2], len(meetings))

# %% [markdown]
# A thread of the engine sends each call to all ranks, as a pickle through a pipe, and waits for all answers; only rank
# 0's counts, for it alone has the logits.
#
# {{source nanovllm/engine/worker.py:Ranks.exchange}}
#
# Every rank, the first included, is a child process. If one dies or hangs, somebody is left who notices.

# %% [markdown]
# This is the whole life of a rank:
#
# {{source nanovllm/engine/worker.py:worker_main}}
#
# `method` is "run" in nearly all calls, with the sequences of the step, which chapter 4 made small. All ranks do the
# same step, each on its part of the model and of the KV cache.
#
# ## Spawn or fork?
#
# A process can be *forked*: a copy of the parent, at once. Or *spawned*: a new Python that imports everything again,
# which takes seconds.
#
# ### Predict
#
# A parent has computed with two of torch's threads. A thread of Python holds a lock for one second. Now it forks.

# %%
choices = ["it gets the lock, and computes", "it gets the lock, and hangs when it computes",
           "it never gets the lock, but computes", "neither"]  # fmt: skip
predict("fork", "What about the child?", choices=choices)

# %%
told = parallel_work.forked()
print(told)
gets_lock, computes = "child:  gets the lock within 2 s: True" in told, "child:  has computed" in told
reveal("fork", choices[0 if gets_lock and computes else 1 if gets_lock else 2 if computes else 3])

# %% [markdown]
# A fork copies the memory, and of all threads only the one that called it. A lock that another thread held stays
# locked, for nobody is there to open it. Torch believes that it has two threads, and waits for one that does not exist.
# (With another build of torch that may go well.)
#
# CUDA is plainer. On the machine with two GPUs, the forked child of a parent that had used one was told:

# %%
print(recorded["cuda_after_fork"])

# %% [markdown]
# So ranks are spawned:
#
# {{source nanovllm/engine/worker.py:Ranks.start_ranks}}
#
# A spawned child imports the main script. One that makes its `LLM` at the top level would make another in each child,
# and so on; the engine notices, and says what to write: `if __name__ == "__main__":`. And what is sent is pickled, so
# functions that a child calls live in the package.

# %% [markdown]
# ## One more: cut a model of your own
#
# Column and row in turn is right for a plain transformer. Other models have narrow matrices between wide ones, or a
# norm between the two of a pair. And a small matrix may be held by everybody. ("column" and "row" are short for
# column-parallel, which is by rows, and row-parallel, by columns.)
#
# Here are three chains, and room for a few weights more than each rank's share. The exercise is open, for twenty
# minutes: whatever fits and sends at most 1,300 numbers a token counts; below 1,100 is a good one.

# %%
plain_plans = {"row everywhere": parallel_work.row_everywhere, "in turn": parallel_work.in_turn}
for name, plan in plain_plans.items():
    print(f"{name:15} a rank sends {parallel_work.total_sent(plan):,} numbers for a token in all three chains")
task = parallel_work.tasks()[1]
print(
    f"\n{task.name}: {task.num_ranks} ranks, room for {task.memory:,} weights; the first five of {len(task.linears)}:"
)
for linear in task.linears[:5]:
    print(f"    {linear.name:7} {linear.input_size:4} -> {linear.output_size:4}, then {linear.then}")

# %%
# {{exercise ch09.choose_cuts}}

# %%
me = mine("ch09.choose_cuts")
print(me.whose("ch09.choose_cuts"))
plans = plain_plans | {me.owner("ch09.choose_cuts"): me.function("ch09.choose_cuts")}
sent = {name: parallel_work.total_sent(plan) for name, plan in plans.items()}
figures.bars(sent, "numbers a rank sends for a token (dashed: what is allowed)", limit=parallel_work.BAR)
cuts = {name: plan(task.linears, task.num_ranks, task.memory) for name, plan in plans.items()}
figures.plans_of_a_chain(task.linears, cuts, task.num_ranks)

# %% [markdown]
# ## Change it
#
# * `parallel_work.model_together(token_ids, 4)`: compare the logits of rank 0 with those of one rank. How far are they
#   apart, and why not by nothing?
# * Draw `TensorParallelView(sizes=[3])`. What does the engine say, and which number is to blame?
# * In "Two real ranks", give `seconds_per_token` eight prompts, `[STORY] * 8`. What becomes of the time for a token?
# * Let `forward` make the all-reduce twice, and divide by `self.group.size`. What does the check say?
# * Give a chain as much room as all its weights need. Why does your plan not replicate everything, or does it?

# %% [markdown]
# ## Recap
#
# 1. By rows, a rank makes a part of the output; by columns, a part of every sum.
# 2. Column-parallel, then row-parallel: one all-reduce for the pair, two for a layer.
# 3. Every rank reads the same file, and its loaders take what is its own: ranges of heads, equal rows of gate and up.
# 4. A collective is a meeting of all ranks: nobody may skip it, and each has a price, however little is sent.
# 5. Ranks are spawned processes, for a fork copies memory and no threads; commands go through pipes.

# %% [markdown]
# ## Explain it aloud
#
# * Why is the bias of a row-parallel layer added once, and that of a column-parallel layer by all ranks?
# * Two KV heads, eight ranks. What is saved compared with two ranks, and what is not?
# * Why is a small model slower on two GPUs, although each reads half of the weights?
#
# <details><summary>Three answers to the last question; say yours first</summary>
#
# *Weak:* the GPUs have to talk to each other.
#
# *Good:* there are two all-reduces a layer, and each takes its time, however short the vectors are.
#
# *Excellent:* what is saved grows with the weights of a layer, and the price of a meeting does not. So from some size
# on it pays; and for a model that does not fit, nobody asks.
#
# </details>

# %% [markdown]
# ## Read further
#
# * The trick, and this chapter's first picture: Shoeybi et al., *Megatron-LM*, 2019, section 3.
# * Sequence parallelism: Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, 2022.
# * Which cuts for which model and which chips: Pope et al., *Efficiently Scaling Transformer Inference*, 2022,
#   section 3.
# * vLLM: `vllm/model_executor/layers/linear.py` (`QKVParallelLinear.weight_loader`) and
#   `vllm/v1/executor/multiproc_executor.py`.
#
# Next, attention: what the heads do with what has been loaded for them.
