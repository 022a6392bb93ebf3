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
# Plan an hour and a half; four exercises are fifty minutes of it. A fifth waits at the end.

# %% [markdown]
# ## Where we are
#
# The model runner has prepared a step: which tokens, at which positions, and a slot for each key and value. All of the
# model but one layer looks at each token by itself. This chapter is about that one layer.

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
# So in a large batch attention is most of the step, and its time is reading. A slow way of doing it, one that copies
# keys before it uses them, costs more than everything else in the engine.
#
# ## By hand
#
# Each token has a **query**, a **key** and a **value** in every head: three vectors, made from it by a matrix product
# (and turned by its position, chapter 11). The query of a token is compared with the keys of all tokens up to itself.
# We take those of the bundled model: of one head, for a short text.

# %%
llm = LLM("qwen3-tiny", **SMALL)
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
predict("plus 100", "Somebody adds 100 to all of these scores. What do the exact weights do?", choices=choices)

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


choices = ["the very same text", "another text, in English all the same", "no English at all"]
question = "Without a mask, each query of a prompt sees the keys of later tokens, too. What does such an engine write?"
predict("no mask", question, choices=choices)

# %%
NO_MASK = """
q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True).squeeze(0).transpose(0, 1)
"""
right = write(nanovllm)
found = write(attention_work.engine_with("ch10.causal_attention", NO_MASK))
for story, one, other in zip(stories, right, found, strict=True):
    print(f"{story}\n    with a mask:{one!r}\n    without:    {other!r}")
words = set(" ".join(right).split())
reveal("no mask", choices[0] if found == right else choices[1 if words & set(" ".join(found).split()) else 2])

# %% [markdown]
# A mistake that is hard to see. While it writes, nothing lies in the future, so a decode needs no mask; only the
# prompt is read wrongly. But nothing that the engine relies on is true any more: a cached key would depend on what
# comes *after* it, so the text changes with the prefix cache, and with where a prompt is cut.
#
# ### What happens without it
#
# Now the mistake that is easy to make: PyTorch's `is_causal=True` lines queries and keys up at the *first* token. Then
# query 0 sees key 0 only, even if it is the query of a later token.

# %%
choices = ["all is right", "the first token is right, then it goes wrong", "wrong from the first token on"]
predict("lined up", "What does an engine write that always does so?", choices=choices)

# %%
found = write(without("ch10.causal_attention"))
for story, text_ in zip(stories, found, strict=True):
    print(f"{story} ...{text_}")
firsts = [one.split()[0] == other.split()[0] for one, other in zip(right, found, strict=True)]
reveal("lined up", choices[0] if found == right else choices[1 if all(firsts) else 2])

# %% [markdown]
# The prompt is read in one piece: as many queries as keys, and all is well. From then on each new token sees the first
# token of the text, and nothing else. It stutters.
#
# ## Your attention
#
# One sequence, any number of queries. There are many right ways: with loops, with matrix products and a softmax by
# hand, or with `F.scaled_dot_product_attention`, if you tell it the right mask.

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
figures.attention_maps(maps, tokens)

# %% [markdown]
# Read a row: where does that token look? The first head looks one token back. The second one has an eye for colors:
# the last token, "her", looks at "red" and "blue". The third looks at the ends of sentences, and the fourth at the
# first token.
#
# ### Predict
#
# Large models do the latter a lot: in many heads most of the weight lies on the first token, whatever it is, as if to
# put it somewhere (an **attention sink**). Our model is small, and has 32 heads. We give it a thousand tokens, and look
# at the queries from 100 on.

# %%
predict("sink", "In the head that looks most at the first token, what share goes there?", unit="%")

# %%
talk = [said for pair in attention_work.talk_work.TALK[:20] for said in pair]
long_text = llm.tokenizer.encode("\n".join(talk))[:1000]
reveal("sink", round(100 * attention_work.first_tokens_share(attention_work.heads_of(llm, long_text)), 1))
print(f"in the short text above, layer 1, head 2: {100 * maps['layer 1, head 2'][4:, 0].mean():.0f} %")

# %% [markdown]
# Hardly a sink: what looked like one in a text of 20 tokens is gone in a long one. What is known of large models need
# not hold for a small one, and the other way round. Keep that in mind for the end of the chapter.
#
# ## Into the pages
#
# Where do keys and values come from? From the cache, and into it they go first:
#
# {{source nanovllm/layers/attention.py:Attention.forward}}
#
# A slot is block times block size plus place (chapter 8). Without storing, a prompt is still read right, because its
# keys are at hand. Then the model looks into empty pages:

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
    return 1e6 * min(timeit.repeat(function, number=30, repeat=5)) / 30


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
# ### Predict
#
# A third tile comes, and all its scores are below 5.

# %%
choices = ["they grow", "they shrink", "they stay, and something is added", "nothing at all happens"]
predict("smaller", "What happens to the old total and output, both of them not divided yet?", choices=choices)

# %%
third = torch.tensor([4.0, 0.5])
factor, more = math.exp(5 - max(5.0, float(third.max()))), (third - 5).exp().sum()
print(f"old sums times {factor:.1f}, plus {more:.4f}")
reveal("smaller", choices[2] if factor == 1 and more > 0 else choices[1])

# %%
# {{exercise ch10.merge_tile}}

# %%
# Plugged in: one of the model's heads, in tiles of several sizes, with your function.
me = mine()
print(me.whose("ch10.merge_tile"))
merge = me.package.module("labs").merge_tile
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
# Triton it is written in Python, and each variable is a small tensor. This one stores keys and values; a program takes
# one token.
#
# {{source nanovllm/layers/kernels/store_kvcache.py:store_kvcache_kernel}}
#
# Line by line:
#
# | | |
# |---|---|
# | `tl.program_id(0)` | which program am I? Here: which token |
# | `key_ptr` | an address. `key_ptr + offsets`: one for each number of a row |
# | `tl.arange(0, BLOCK)` | 0, 1, 2, ...; its length is a power of two, known beforehand (`tl.constexpr`) |
# | `tl.load(address, mask=...)` | reads where the mask is true, and nothing elsewhere |
# | `.to(tl.int64)` | a large cache has more numbers than 32 bits can count |
#
# Nobody checks addresses: a wrong one reads somebody else's numbers, or ends the program. Rows are rarely a power of
# two long; the mask cuts off the rest.

# %% [markdown]
# ### Tiles
#
# A program may load a whole tile at once: `rows[:, None] * WIDTH + features[None, :]` is a table of offsets, a line for
# each row. The kernel below sums up the columns of a matrix, a tile of rows after the other.
#
# Triton has an **interpreter**, which runs kernels on a CPU, slowly, with numpy in the place of the GPU. The exercises'
# kit turns it on where there is no GPU.

# %%
tl = kernel_work.twin  # a stand-in of PyTorch, until Triton runs it


def column_sums(x_ptr, out_ptr, num_rows, WIDTH, TILE):
    features, places = tl.arange(0, WIDTH), tl.arange(0, TILE)
    sums = tl.zeros([WIDTH], tl.float32)
    for i in range(0, tl.cdiv(num_rows, TILE)):
        rows = i * TILE + places
        offsets = rows[:, None] * WIDTH + features[None, :]
        tile = tl.load(x_ptr + offsets, mask=(rows < num_rows)[:, None], other=0.0)
        sums = sums + tl.sum(tile, axis=0)
    tl.store(out_ptr + features, sums)


matrix, sums = torch.arange(20.0).view(5, 4), torch.zeros(4)
where = kernel_work.launch(column_sums, 1, {"x_ptr": matrix, "out_ptr": sums}, num_rows=5, WIDTH=4, TILE=2)
print(f"it ran in: {where}; {sums.tolist()}, as it should be: {torch.equal(sums, matrix.sum(0))}")

# %% [markdown]
# | | |
# |---|---|
# | `range(0, tl.cdiv(num_rows, TILE))` | a round for each tile; `cdiv` rounds up: 5 rows in tiles of 2 are 3 |
# | `tl.zeros([WIDTH], tl.float32)` | what is kept from round to round has its final shape from the start |
# | `mask=...[:, None]` | a truth value for each row, for all of its features |
# | `other=0.0` | what stands in masked places; without it anything may |
# | `tl.sum(tile, axis=0)` | over the rows; `axis=1` over the features |
#
# `tl.max`, `tl.maximum`, `tl.where` and `tl.exp` are what you expect from PyTorch.
#
# ## Decode
#
# Two functions of the engine's decode kernel. The first finds rows through the block table, the second you know: it is
# your `merge_tile`, for several queries.
#
# {{source nanovllm/layers/kernels/paged_attention.py:cache_rows}}
#
# {{source nanovllm/layers/kernels/paged_attention.py:online_softmax_step}}
#
# A GPU has an instruction for $2^x$, and $e^s = 2^{s \log_2 e}$. So the engine's scores come with a factor
# $\log_2 e$ in their scale, and it takes `tl.exp2`. Yours come without: use `tl.exp`.

# %% [markdown]
# You write the kernel that puts both together, in its plainest form: one sequence, a program for each query head, a
# page as a tile. No `tl.dot` is needed: `tl.sum(a * b, axis=1)` does it. (Each key is read by all heads of its group,
# one after the other. The engine's kernel has a program for each *KV* head, because reading is what takes the time.)
#
# `tl` is there: write no decorator and no import. The two functions above are not: write their few lines yourself.
#
# Your kernel is checked twice: in a stand-in of PyTorch, which looks at every address, puts nan where nothing was
# loaded, and lets no variable change its shape in a loop; and in Triton's interpreter, if there is one here.

# %%
# {{exercise ch10.decode_kernel}}

# %%
# Plugged in: your kernel on the decode step of the picture.
me, step = mine(), attention_work.walked()
print(me.whose("ch10.decode_kernel"))
tensors = {"q_ptr": step["q"], "k_ptr": step["k_cache"], "v_ptr": step["v_cache"]}
tensors |= {"table_ptr": torch.tensor(step["block_table"], dtype=torch.int32)}
tensors = {name: tensor.contiguous() for name, tensor in tensors.items()} | {"o_ptr": torch.zeros(64)}
sizes = {"GROUP": 1, "KV_HEADS": 1, "HEAD_DIM": 64, "BLOCK_SIZE": 4}
others = {"num_tokens": step["num_tokens"], "scale": step["scale"]}
where = kernel_work.launch(me.package.module("labs").decode_kernel, 1, tensors, **others, **sizes)
keys, values = (gather_kvcache(step[name], step["block_table"], step["num_tokens"]) for name in ("k_cache", "v_cache"))
wanted = (step["scale"] * keys @ step["q"]).softmax(0) @ values
print(f"it ran in: {where}; output {[round(x, 3) for x in tensors['o_ptr'][:3].tolist()]}, ...")
print(f"largest difference: {(tensors['o_ptr'] - wanted).abs().max():.0e}")

# %% [markdown]
# These are the numbers at the end of the picture.
#
# <details><summary>The engine's kernel, and what more it does (not needed for anything)</summary>
#
# {{source nanovllm/layers/kernels/paged_attention.py:paged_decode_kernel}}
#
# Long contexts are cut into chunks for several programs, and the last one to be done merges them: with few sequences
# one program each would leave most of the GPU idle (Flash-Decoding).
#
# </details>

# %% [markdown]
# ## Three backends
#
# The engine has three ways of attending, and chooses by the device: the plain one in PyTorch, our Triton kernels, and
# `flash_attn`, the package of FlashAttention's authors: compiled CUDA, pages of 256 tokens. In a decode both it and our
# kernel read every key and value once, where it lies. How the work is cut into programs, and how they are started, is
# left to each.
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
#
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
# ## One more: which pages are worth reading?
#
# This section is for those who have a quarter of an hour left. Nothing later needs it.
#
# If reading is what costs, read less: only a quarter of a sequence's blocks in each step. Which? The newest are a good
# guess, and large models want the first one as well, for its sink. Here each block also has a small summary of its
# keys: the smallest, the largest, the mean of each feature.

# %%
plain = {"the newest": attention_work.lost(attention_work.newest)}
print(f"the newest quarter: {100 * plain['the newest']:.1f} % of all attention falls on blocks that are not read")
choices = ["less is lost", "more is lost"]
predict("first block", "The first block takes the place of the oldest of these. Then ...", choices=choices)

# %%
plain["the first, and the newest"] = attention_work.lost(attention_work.first_and_newest)
print(f"the first, and the newest: {100 * plain['the first, and the newest']:.1f} %")
reveal("first block", choices[plain["the first, and the newest"] > plain["the newest"]])

# %%
# {{exercise ch10.choose_blocks}}

# %%
me = mine("ch10.choose_blocks")
print(me.whose("ch10.choose_blocks"))
name = "yours" if "ch10.choose_blocks" in {answer.exercise.id for answer in me.answers} else "ours"
plain[name] = attention_work.lost(me.package.module("labs").choose_blocks)
plain["who knows all scores"] = attention_work.least()
percent = {title: 100 * share for title, share in plain.items()}
figures.bars(percent, "Attention that is lost (dashed: what is allowed)", "{:.1f} %", figures.ORANGE, 10.5)

# %% [markdown]
# Without a sink the first block is a block like any other, so what helps large models does harm here. And these are
# shares of attention, not texts: whether an answer suffers is another question. Whoever serves a model this way has to
# measure both, on that model.

# %% [markdown]
# ## Change it
#
# * Draw `attention_maps` of other heads. Which of the 32 look one token back? (`maps[...].diagonal(-1).mean()`)
# * Multiply `scale` by 4 in your attention, and by 0. What does the model write? (The check fails then, so name it:
#   `write(mine("ch10.causal_attention"))`.)
# * `PagedGather(**attention_work.walked(layer=2, head=3))`: which block decides?
# * Run `merge_tile` over the tiles in the opposite order. What stays, what changes on the way?
# * Let your kernel take two blocks at a time. What has to change, and what does the mask have to know?

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
