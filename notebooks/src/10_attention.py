# %% [markdown]
# # 10 · Attention
#
# *Every token looks back at all before it: how, through which pages, and why a GPU can do it at the speed of its
# memory.*
#
# You will
#
# * compute attention by hand, and then write it: scores, mask, softmax, heads that share keys,
# * see what the bundled model looks at, through your own function,
# * put keys and values into their slots, and merge a softmax from tiles that never meet,
# * write a GPU kernel that walks the pages, and run it without a GPU,
# * try, if you like, to read only a quarter of the pages.
#
# Plan an hour and a half; four exercises are three quarters of an hour of it. A fifth waits at the end.

# %% [markdown]
# ## Where we are
#
# The model runner has prepared a step: which tokens, at which positions, and a slot for each key and value. The linear
# layers of chapter 9 make a query, a key and a value of each token. So far everything looks at each token by itself.
# This chapter is about the one layer that does not. (A **page** is a block of the cache: papers on attention say so,
# and so does this chapter.)

# %%
# %load_ext exercises
import logging
import math
import timeit

import figures
import torch

import nanovllm
from exercises.kit import attention_work, kernel_work, speed_work
from nanovllm import LLM, SamplingParams
from nanovllm.layers.attention import causal_attention, gather_kvcache
from nanovllm.viz import PagedGather

# Without the levers of chapter 17.
SMALL = {"kvcache_block_size": 16, "num_kvcache_blocks": 80, "max_model_len": 1100, "device": "cpu"}
SMALL |= {"disabled_optimizations": "all"}
stories = ["Once upon a time there was a little cat", "One day, Tom and Mia went to the park."]
logging.disable(logging.WARNING)
mine()

# %% [markdown]
# ## Why: what a step reads
#
# A decode step reads all weights, once for the whole batch; and for every sequence the keys and values of all its
# tokens. Take Qwen3-0.6B, 256 sequences of 1,100 tokens each, bfloat16.

# %%
predict("reads more", "What does such a step read more of?",
        choices=["weights", "keys and values", "about the same"])  # fmt: skip

# %%
kv_of_a_token = 2 * 28 * 8 * 128 * 2  # keys and values, layers, KV heads, numbers of a head, bytes
read = {"weights": 2 * 0.596, "keys and values": 256 * 1100 * kv_of_a_token / 1e9}
figures.bars(read, "Gigabytes that a decode step reads", "{:.1f}")
larger = max(read, key=read.get)
reveal("reads more", "about the same" if max(read.values()) < 1.3 * min(read.values()) else larger)

# %% [markdown]
# So in a large batch attention is most of the step, and its time is reading. Whoever copies keys first pays most.
#
# ## By hand
#
# Each token has a **query**, a **key** and a **value** in every head: three vectors, made from it by a matrix product
# (and turned by its position, chapter 11). The query of a token is compared with the keys of all tokens up to itself.
# We take those of the bundled model: of one head, for a short text.

# %%
llm = LLM("qwen3-tiny", **SMALL, enable_prefix_caching=False)
text = "Mia has a red ball. Tom has a blue kite. Mia plays with her"
tokens = [llm.tokenizer.decode([i]) for i in llm.tokenizer.encode(text)]
layers = attention_work.heads_of(llm, text)
q, k, v, scale = layers[3]
print("q", list(q.shape), " k", list(k.shape), " v", list(v.shape), f" scale {scale} = {q.shape[-1]} ** -0.5")

query, keys, values = q[6, 2], k[:7, 1], v[:7, 1]  # keys and values are fewer: why, comes below
scores = scale * keys @ query
for n in (1, 3, 4):
    print(f"{tokens[6]!r} asks {tokens[n]!r:7} {scale} * (query . key) = {scores[n]:.3f}")

# %% [markdown]
# A **score** is a dot product, times a scale, so that it does not grow with the size of a head. The **softmax** makes
# weights of scores: exp(score), divided by the sum of all these. The output is the mean of the values with these
# weights.
#
# $$w_j = \frac{e^{s_j}}{\sum_i e^{s_i}}, \qquad o = \sum_j w_j v_j$$

# %%
weights = scores.exp() / scores.exp().sum()
output = weights @ values
print("output, its first numbers:", [round(x, 3) for x in output[:4].tolist()])
figures.scores_and_weights(tokens[:7], scores.tolist(), weights.tolist())

# %%
choices = ["they become equal", "the largest takes all", "they stay as they are"]
predict(
    "plus 100",
    "Somebody adds 100 to all of these scores. What do the weights do, if nothing is rounded?",
    choices=choices,
)

# %%
shifted = (scores.double() + 100).softmax(0)
same = torch.allclose(shifted, weights.double(), atol=1e-6)
reveal("plus 100", choices[2] if same else choices[int(shifted.max() > 0.9)])
print("exp of the shifted scores, in float32:", (scores + 100).exp()[:3].tolist())

# %% [markdown]
# The factor exp(100) is above and below, and falls out. Only the computer suffers: exp(100) is infinite in float32. So
# everybody subtracts the largest score first. Remember both; the second half of this chapter rests on them.
#
# ## Who sees whom
#
# A token sees itself and what came before: the **causal mask**. Where keys are cached, there are fewer queries than
# keys, and the queries are the *last* tokens.
#
# And heads share: the bundled model has four query heads and two KV heads (grouped queries, **GQA**). Neighbors look
# at the same keys. It halves the cache, and what a step reads.

# %%
figures.who_sees_whom({"a prompt": (5, 5), "behind a prefix": (3, 7), "decode": (1, 6)})
num_heads, num_kv_heads = q.shape[1], k.shape[1]
group = num_heads // num_kv_heads
figures.shares_of_heads([(f"query {h}", f"KV {h // group}") for h in range(num_heads)])


# %%
def write(engine):
    """What an engine writes after the two stories, greedily."""
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    with engine.LLM("qwen3-tiny", **SMALL) as llm:
        return [answer["text"] for answer in llm.generate(stories, params, use_tqdm=False)]


right = write(nanovllm)

# %% [markdown]
# ### What happens without it
#
# A mistake is easy to make here: PyTorch's `is_causal=True` lines queries and keys up at the *first* token. Then query
# 0 sees key 0 only, even if it is the query of a later token.

# %%
choices = ["all is right", "the first token is right, then it goes wrong", "wrong from the first token on"]
predict("lined up", "What does an engine write that always does so?", choices=choices)

# %%
found = write(without("ch10.causal_attention"))
blind = write(attention_work.engine_with("ch10.causal_attention", attention_work.NO_MASK))
for story, *texts in zip(stories, right, found, blind, strict=True):
    print(story)
    for name, text_ in zip(("as it should be", "lined up at the first", "without any mask"), texts, strict=True):
        print(f"    {name:22}{text_!r}")
firsts = [one.split()[0] == other.split()[0] for one, other in zip(right, found, strict=True)]
reveal("lined up", choices[0] if found == right else choices[1 if all(firsts) else 2])

# %% [markdown]
# The prompt is read in one piece: as many queries as keys, and all is well. From then on each new token sees the first
# token of the text, and nothing else. It stutters.
#
# An engine *without any mask* still writes English. In a decode nothing lies in the future; only the prompt is read
# wrongly. That is hard to see, and worse: a cached key depends on what comes *after* it, so the text changes with the
# prefix cache, and with where a prompt is cut.

# %% [markdown]
# ## Your attention
#
# One sequence, any number of queries. There are many right ways: with loops, with matrix products and a softmax by
# hand, or with `F.scaled_dot_product_attention`, if you tell it the right mask.
#
# The tools: `k.repeat_interleave(group, dim=1)`, `transpose(0, 1)`, `masked_fill(mask, value)`, and
# `torch.ones(n, m, dtype=torch.bool).tril(d)`, which is True up to d places right of the diagonal.

# %%
# {{exercise ch10.causal_attention}}

# %%
# Plugged in: the same two stories.
me = mine()
print(me.whose("ch10.causal_attention"))
for story, text_, wanted in zip(stories, write(me), right, strict=True):
    print(f"{story} ...{text_}    {'as it should be' if text_ == wanted else 'not as it should be'}")

# %% [markdown]
# ## What it looks at
#
# Your function returns outputs, not weights. But if the value of token 3 is a 1 in feature 3, and 0 elsewhere, then
# feature 3 of an output *is* the weight of token 3. So four heads of the model, seen through your function:

# %%
attention = me.layers.attention.causal_attention
maps = {}
for layer, head in ((2, 3), (3, 2), (5, 0), (1, 2)):
    maps[f"layer {layer}, head {head}"] = attention_work.patterns(attention, layers[layer])[head]
colors = [(len(tokens) - 1, n) for n, token in enumerate(tokens) if token in (" red", " blue")]
figures.attention_maps(maps, tokens, {"layer 3, head 2": colors})
her = maps["layer 3, head 2"][-1]
print(f"layer 3, head 2: {tokens[-1]!r} looks at the two colors with {100 * sum(her[n] for _, n in colors):.0f} %")

# %% [markdown]
# Read a row: where does that token look? The first head looks one token back. The second one knows colors: to say what
# Mia plays with, the last token looks at "red" and "blue" (outlined); the other rows of that head look elsewhere. The
# third looks at the ends of sentences, and the fourth at the first token.
#
# ## Into the pages
#
# Where do keys and values come from? From the cache, and into it they go first:
#
# {{source nanovllm/layers/attention.py:Attention.forward}}
#
# A slot is block times block size plus place (chapter 8); two tensors of numbers can be an index at once,
# `cache[blocks, places]`. Without storing, a prompt is still read right, because its
# keys are at hand. From then on the model looks into empty pages:

# %%
for story, text_ in zip(stories, write(without("ch10.store_kvcache")), strict=True):
    print(f"{story} ...{text_!r}")

# %%
# {{exercise ch10.store_kvcache}}

# %%
# Plugged in: six tokens of a sequence with the block table [2, 0], in blocks of 4. Then the two stories.
me = mine()
print(me.whose("ch10.causal_attention", "ch10.store_kvcache"))
caches = [torch.zeros(3, 4, 2, 64) for _ in range(2)]
me.layers.attention.store_kvcache(k[:6], v[:6], *caches, torch.tensor([8, 9, 10, 11, 0, 1]))
for number, block in enumerate(caches[0]):
    held = [next((tokens[i] for i in range(6) if torch.equal(row, k[i])), "-") for row in block]
    print(f"block {number}, slots {4 * number} to {4 * number + 3}: {held}")
print("the stories are as they should be:", write(me) == right)

# %% [markdown]
# ## And out of them
#
# The plain engine fetches the pages of a sequence, and then attends:
#
# {{source nanovllm/layers/attention.py:Attention.attend}}
#
# {{source nanovllm/layers/attention.py:gather_kvcache}}
#
# Where blocks are consecutive, nothing is copied. Where they are not, all keys and values are: read, written, and read
# again by attention.


# %%
def microseconds(function):
    return 1e6 * min(timeit.repeat(function, number=10, repeat=20)) / 10


cache, one_query, table = torch.randn(600, 16, 2, 64), torch.randn(1, 4, 64), torch.randperm(600)[:63].tolist()
rows = gather_kvcache(cache, table, 1000)
gather = 2 * microseconds(lambda: gather_kvcache(cache, table, 1000))
attend = microseconds(lambda: causal_attention(one_query, rows, rows, 0.125))
print(f"1,000 tokens, blocks in no order: {gather:.0f} us to gather keys and values, {attend:.0f} us for attention")
print(f"gathering takes {gather / attend:.1f} times as long as what it is for")

# %% [markdown]
# A kernel that reads the pages where they lie saves all of that. What is in its way is the softmax: it wants the
# largest of all scores, and the sum of all, before it can weigh the first value.
#
# ## A softmax in tiles
#
# It does not, if one is ready to put right what was summed up. Two tiles of scores; `total` is the sum of
# exp(score - maximum).

# %%
first, second = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([2.0, 5.0])
total = (first - 3).exp().sum()
print(f"tile 0  maximum 3  total {total:.4f}")
print(f"tile 1  maximum 5  its own part {(second - 5).exp().sum():.4f}")
right_total = (torch.cat((first, second)) - 5).exp().sum()
print(f"both    maximum 5  total {right_total:.4f}")
print(f"the part of tile 0 in that: {right_total - (second - 5).exp().sum():.4f} = {total:.4f} * exp(3 - 5)")

# %% [markdown]
# All of the old sum was made with the wrong maximum, so all of it is wrong by the same factor:
#
# $$e^{s - m_{new}} = e^{s - m_{old}} \cdot e^{m_{old} - m_{new}}$$
#
# The same holds for the sum of weight times value. So three things are kept for each query: the maximum, the total and
# the output, which is divided only at the end. This is the **online softmax**, the heart of FlashAttention.
#
# One trap: before the first key the maximum is -inf, and -inf less -inf is nan.

# %%
# {{exercise ch10.merge_tile}}

# %%
# Plugged in: one of the model's heads, in tiles of several sizes, with your function.
me = mine("ch10.merge_tile")
print(me.whose("ch10.merge_tile"))
merge = me.function("ch10.merge_tile")
queries, keys, values = q[-1:, 2], k[:, 1], v[:, 1]
whole = (scale * queries @ keys.T).softmax(-1) @ values
for size in (1, 3, 8, 20):
    state = torch.tensor([-math.inf]), torch.zeros(1), torch.zeros(1, 64)
    for tile, part in zip(keys.split(size), values.split(size), strict=True):
        state = merge(scale * queries @ tile.T, part, *state)
    difference = (state[2] / state[1][:, None] - whole).abs().max()
    print(f"tiles of {size:2}: total {float(state[1]):.4f}, largest difference from the whole softmax {difference:.0e}")

# %% [markdown]
# Whatever the tiles are, the result is the same. So a tile may be a page. And nobody ever has to write down all scores:
# for a prompt of 32,000 tokens that would be two gigabytes for each head, in bfloat16.
#
# ## A picture
#
# A decode step of the bundled model, from a real run in blocks of four. Two requests have written in turn, so the
# blocks of this one are not side by side. Step through them, and watch the sums below.

# %%
PagedGather(**attention_work.walked())

# %% [markdown]
# ## A kernel
#
# A GPU runs a **kernel**: a function that is started many times at once, as *programs* that differ in their number. In
# Triton it is written in Python, and each variable is a small tensor. Nobody checks addresses: a wrong one reads
# somebody else's numbers, or ends the program.
#
# Here is one that walks over the pages of a sequence, a page at a time. Each program takes a query head, and finds its
# largest score.

# %%
tl = kernel_work.twin  # a stand-in of PyTorch, until Triton runs it


def largest_score(q_ptr, k_ptr, table_ptr, o_ptr, num_tokens, scale, GROUP, KV_HEADS, HEAD_DIM, BLOCK_SIZE):
    head, features, places = tl.program_id(0), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_SIZE)
    q = tl.load(q_ptr + head * HEAD_DIM + features)
    maximum = float("-inf")
    for i in range(0, tl.cdiv(num_tokens, BLOCK_SIZE)):
        block = tl.load(table_ptr + i)
        rows = (block * BLOCK_SIZE + places) * KV_HEADS + head // GROUP
        offsets = rows[:, None] * HEAD_DIM + features[None, :]
        is_token = i * BLOCK_SIZE + places < num_tokens
        k = tl.load(k_ptr + offsets, mask=is_token[:, None], other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(is_token, scores, float("-inf"))
        maximum = tl.maximum(maximum, tl.max(scores, axis=0))
    tl.store(o_ptr + head, maximum)


# %% [markdown]
# | | |
# |---|---|
# | `tl.program_id(0)` | which program am I? Here: which query head |
# | `tl.arange(0, HEAD_DIM)` | 0, 1, 2, ...; its length is a power of two, known beforehand, as all names in capitals |
# | `tl.load(q_ptr + ...)` | `q_ptr` is an address; this reads what lies so far behind it: the query of this head |
# | `tl.cdiv(num_tokens, BLOCK_SIZE)` | divides and rounds up: 10 tokens in blocks of 4 are 3 rounds |
# | `rows` | a cache is [block, place, KV head], each with a row of features: the numbers of the rows to read |
# | `offsets` | a table, a line for each row: `[:, None]` and `[None, :]` as in PyTorch |
# | `mask=is_token[:, None]` | reads only where it is true; the last block is rarely full |
# | `other=0.0` | what stands in the masked places; without it anything may |
# | `tl.sum(..., axis=1)` | over the features: a score for each place. There is no `@` for this |
# | `tl.max(scores, axis=0)` | over the places: a single number |

# %% [markdown]
# Triton has an **interpreter**, which runs kernels on a CPU, slowly, with numpy in the place of the GPU. The exercises'
# kit turns it on where there is no GPU. We try the kernel on ten tokens with the block table [3, 0, 2].

# %%
cache, table, queries = torch.randn(4, 4, 2, 8), [3, 0, 2], torch.randn(4, 8)
given = {"q_ptr": queries, "k_ptr": cache, "table_ptr": torch.tensor(table, dtype=torch.int32), "o_ptr": torch.zeros(4)}
sizes = {"GROUP": 2, "KV_HEADS": 2, "HEAD_DIM": 8, "BLOCK_SIZE": 4}
where = kernel_work.launch(largest_score, 4, given, num_tokens=10, scale=0.5, **sizes)
keys = gather_kvcache(cache, table, 10).repeat_interleave(2, 1)
wanted = 0.5 * torch.stack([(keys[:, head] @ queries[head]).max() for head in range(4)])
print(f"it ran in: {where}; four heads as they should be: {torch.allclose(given['o_ptr'], wanted, atol=1e-6)}")

# %% [markdown]
# ## Decode
#
# You write the kernel that weighs the values: one sequence, a program for each query head, a page as a tile. The walk
# is that of `largest_score`: copy its lines, and put your `merge_tile` into the loop, for a single query. Weights are
# one row, a number for each place:
#
# | PyTorch, a row for each query | here, one query |
# |---|---|
# | `torch.exp(scores - new[:, None])` | `tl.exp(scores - new)` |
# | `weights.sum(1)` | `tl.sum(weights, axis=0)` |
# | `weights @ values` | multiply, `[:, None]` beside the table, and `tl.sum` over the places |
#
# What is kept from round to round has its final shape from the start: `output` begins as
# `tl.zeros([HEAD_DIM], tl.float32)`.
#
# It is checked in a stand-in of PyTorch, which looks at every address, and in Triton's interpreter, if there is one.

# %%
# {{exercise ch10.decode_kernel}}

# %%
# Plugged in: your kernel on the decode step of the picture.
me, step = mine("ch10.decode_kernel"), attention_work.walked()
print(me.whose("ch10.decode_kernel"))
tensors = {"q_ptr": step["q"], "k_ptr": step["k_cache"], "v_ptr": step["v_cache"]}
tensors |= {"table_ptr": torch.tensor(step["block_table"], dtype=torch.int32)}
tensors = {name: tensor.contiguous() for name, tensor in tensors.items()} | {"o_ptr": torch.zeros(64)}
sizes = {"GROUP": 1, "KV_HEADS": 1, "HEAD_DIM": 64, "BLOCK_SIZE": 4}
others = {"num_tokens": step["num_tokens"], "scale": step["scale"]}
where = kernel_work.launch(me.function("ch10.decode_kernel"), 1, tensors, **others, **sizes)
keys, values = (gather_kvcache(step[name], step["block_table"], step["num_tokens"]) for name in ("k_cache", "v_cache"))
wanted = (step["scale"] * keys @ step["q"]).softmax(0) @ values
print(f"it ran in: {where}; output {[round(x, 3) for x in tensors['o_ptr'][:3].tolist()]}, ...")
print(f"largest difference: {(tensors['o_ptr'] - wanted).abs().max():.0e}")

# %% [markdown]
# These are the numbers at the end of the picture.
#
# <details><summary>The engine's own kernels, and what more they do (not needed for anything)</summary>
#
# {{source nanovllm/layers/kernels/store_kvcache.py:store_kvcache_kernel}}
#
# {{source nanovllm/layers/kernels/paged_attention.py:paged_decode_kernel}}
#
# In a large cache offsets need 64 bits. A program serves all query heads of a *KV* head, because reading is what takes
# the time. A GPU has an instruction for powers of 2 (`tl.exp2`), so the scale has a factor log2(e). `tl.dot` is a
# product of matrices. And long contexts are cut into chunks for several programs, of which the last one to be done
# merges them: with few sequences one program each would leave most of the GPU idle (Flash-Decoding).
#
# </details>

# %% [markdown]
# ## Milestone: your attention in the running engine
#
# Every key that this engine stores, and every look back, goes through your functions. Measured on the fixed work of all
# chapters:

# %%
me = mine()
print(me.whose("ch10"))
print("as it should be:", write(me) == right)
staircase("10")

# %% [markdown]
# ## Three backends
#
# Nothing later needs this section (three minutes) and the next one (a quarter of an hour).
#
# The engine has three ways of attending, and chooses by the device: the plain one in PyTorch, our Triton kernels, and
# `flash_attn`, the package of FlashAttention's authors: compiled CUDA, pages of 256 tokens. In a decode both it and our
# kernel read every key and value once, where it lies.
#
# ### Predict
#
# On an H200, the engine with one and with the other, on the benchmark of chapter 17.

# %%
choices = ["ours is faster", "the same within 2 %", "flash-attn is faster"]
predict("backends", "Which engine writes more tokens a second?", choices=choices)

# %%
recorded = speed_work.recorded("peers_h200")
row = next(row for row in recorded["rows"] if "flash-attn 2.8.3" in row["peer"] and row["peer"].startswith("ours"))
figures.bars({"our Triton kernels": row["ours"], "flash-attn 2.8.3": row["theirs"]}, "Tokens per second, recorded")
print("RECORDED:", speed_work.made(recorded), "|", recorded["work"]["benchmark"])
ratio = row["ours"] / row["theirs"]
print(f"{ratio:.2f} times")
reveal("backends", choices[0] if ratio > 1.02 else choices[2] if ratio < 0.98 else choices[1])

# %% [markdown]
# Not because our arithmetic is better. A kernel of one's own can be fitted to the engine: programs for all heads of a
# group, chunks as long as this batch needs, one launch for the whole step, and a start that overlaps the kernel
# before it. And pages of any size.

# %% [markdown]
# ## One more: which pages are worth reading?
#
# If reading is what costs, read less: only a quarter of a sequence's blocks in each step. Which? The newest are a good
# guess. Here each block also has a small summary of its keys: the smallest, the largest, the mean of each feature.
#
# Many heads of large models put most of their weight on the first token, whatever it is, as if to leave it somewhere:
# an **attention sink**. Serving them without the first block does harm.

# %%
plain = {"the newest": attention_work.lost(attention_work.newest)}
print(f"the newest quarter: {100 * plain['the newest']:.1f} % of all attention falls on blocks that are not read")
choices = ["less is lost", "more is lost"]
predict("first block", "The first block takes the place of the oldest of these. Then ...", choices=choices)

# %%
plain["the first, and the newest"] = attention_work.lost(attention_work.first_and_newest)
print(f"the first, and the newest: {100 * plain['the first, and the newest']:.1f} %")
share, even = attention_work.sink(llm)
print(f"In the head that looks most at the first of 1,000 tokens, {100 * share:.2f} % goes there;")
print(f"if all tokens had the same, it would be {100 * even:.2f} %.")
reveal("first block", choices[plain["the first, and the newest"] > plain["the newest"]])

# %%
# {{exercise ch10.choose_blocks}}

# %%
me = mine("ch10.choose_blocks")
print(me.whose("ch10.choose_blocks"))
plain[me.owner("ch10.choose_blocks")] = attention_work.lost(me.function("ch10.choose_blocks"))
plain["who knows all scores"] = attention_work.least()
percent = {title: 100 * share for title, share in plain.items()}
figures.bars(percent, "Attention that is lost (dashed: what is allowed)", "{:.1f} %", figures.ORANGE, 10.5)

# %% [markdown]
# The map of layer 1, head 2 looked like a sink, in a text of 20 tokens; in a long one it is gone. Without a sink the
# first block is a block like any other, so what helps large models does harm here. And these are shares of attention,
# not texts: whether an answer suffers is another question.

# %% [markdown]
# ## Change it
#
# * Draw `attention_maps` of other heads. Which of the 32 look one token back? (`maps[...].diagonal(-1).mean()`)
# * Multiply `scale` by 4 in your attention, and by 0.01. What does the model write? (The check fails then, so name it:
#   `write(mine("ch10.causal_attention"))`.)
# * `PagedGather(**attention_work.walked(layer=2, head=3))`: which block decides?
# * Run `merge_tile` over the tiles in the opposite order. What stays, what changes on the way?

# %% [markdown]
# ## Recap
#
# 1. Attention is scores, a mask, a softmax along the keys, and a weighted mean of values; heads of a group share keys.
# 2. The queries are the last tokens: behind a prefix the mask is lined up at the end.
# 3. Keys and values are stored first, each in its slot, and are read through the block table.
# 4. A softmax can be merged from tiles: keep maximum, total and output, and scale the old sums when the maximum grows.
# 5. In a decode the time is the reading: once, where it lies, for all heads of a group.

# %% [markdown]
# ## Explain it aloud
#
# * Why does an engine without a mask still write English, and why may it not do so?
# * Why are keys and values cached, and not queries?
# * A query has seen a tile in which all keys are masked. What are its maximum, total and output, and where is the trap?
#
# <details><summary>Three answers to the last question; say yours first</summary>
#
# *Weak:* they are 0.
#
# *Good:* the maximum is -inf, the others 0; and -inf less -inf is nan.
#
# *Excellent:* and a nan stays for ever, since every later sum has the old one in it. So something finite is subtracted
# there: then exp(-inf) is 0, and nothing is added. In a decode it does not happen: every tile holds a token.
#
# </details>

# %% [markdown]
# ## Read further
#
# * Vaswani et al., *Attention Is All You Need*, 2017, section 3.2; Ainslie et al., *GQA*, 2023.
# * Milakov and Gimelshein, *Online normalizer calculation for softmax*, 2018; Dao et al., *FlashAttention*, 2022,
#   section 3.1; Dao et al., *Flash-Decoding*, 2023.
# * Xiao et al., *Efficient Streaming Language Models with Attention Sinks*, 2024; Tang et al., *Quest*, 2024.
# * In vLLM: `vllm/v1/attention/backends/`, a file a backend; `vllm/attention/ops/triton_unified_attention.py` is the
#   kernel that is nearest to ours.
#
# Next, the rotary embedding: how a query and a key know where they stand.
