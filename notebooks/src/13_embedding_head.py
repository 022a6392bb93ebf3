# %% [markdown]
# # 13 · Embedding and head
#
# *The two ends of the model: a token becomes a row of a table, and a hidden state becomes a number for each row.*
#
# You will
#
# * look at real rows, and find out what it means that two of them are near,
# * split the table over ranks, write the lookup and the loader, and let the model read the wrong rows,
# * compute the logits of a step, and leave out nearly all of them,
# * run your table on two real ranks,
# * build a head, if you like, that looks at fewer rows and finds the best token.
#
# Plan 85 minutes; three exercises are 32 of them. A fourth waits at the end. Everything runs on a laptop.

# %% [markdown]
# ## Where we are
#
# Attention, norms and gates work on vectors: 256 numbers for each token, in the bundled model. Where do these come
# from, and how do tokens come out again?

# %%
# %load_ext exercises
import logging

import figures
import torch
import torch.nn.functional as F

import nanovllm
from exercises.kit import head_work, speed_work
from nanovllm import LLM
from nanovllm.viz import VocabularyShards

PLAIN = {"device": "cpu", "disabled_optimizations": "all", "enable_prefix_caching": False, "max_model_len": 256}
PLAIN |= {"kvcache_block_size": 16, "num_kvcache_blocks": 40}
logging.disable(logging.WARNING)  # the engine warns of very small pools; here they are wanted
STORY = "Once upon a time, there was a little girl named Mia. She had a red kite."
mine()


# %%
def answer(engine, prompt=STORY, num_ranks=1, max_tokens=20):
    """What an engine writes, greedily; every rank is a process of its own."""
    with engine.LLM("qwen3-tiny", tensor_parallel_size=num_ranks, **PLAIN) as llm:
        params = engine.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        return llm.generate(prompt, params, use_tqdm=False)[0]


# %% [markdown]
# ## Why: what a vocabulary weighs
#
# The table has a row for each token of the vocabulary. The bundled model has 2,048 of them, Qwen3 has 151,936.
#
# ### Predict
#
# Qwen3-0.6B has 28 layers, and rows of 1,024 numbers.

# %%
predict("table", "How many percent of its parameters are this one table?")

# %%
shape = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
shape |= {"intermediate_size": 3072, "num_hidden_layers": 28, "vocab_size": 151936}
large = shape | {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 12288, "num_hidden_layers": 36}
tiny = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
tiny |= {"intermediate_size": 896, "num_hidden_layers": 8, "vocab_size": 2048}
sizes = {name: head_work.size_of(config) for name, config in (("tiny", tiny), ("0.6B", shape), ("8B", large))}
reveal("table", round(100 * sizes["0.6B"].share(is_tied=True)))
shown = {"qwen3-tiny": (*sizes["tiny"], True), "Qwen3-0.6B": (*sizes["0.6B"], True)}
shown |= {"Qwen3-0.6B, untied": (*sizes["0.6B"], False), "Qwen3-8B": (*sizes["8B"], False)}
figures.tables_and_rest(shown)

# %% [markdown]
# Small models use one table at both ends: **tied weights**. A head of its own would make Qwen3-0.6B as large as 0.75
# billion parameters, for tokens only. In a large model that matters less, and Qwen3-8B has two tables.
#
# At the first end hardly any of it is read, a row for each token. At the other end all of it is, in every step.
#
# ## A row of a table
#
# On paper an embedding is a product: a vector with a single 1, times the table.

# %%
llm = LLM("qwen3-tiny", **PLAIN)
tokenizer, table = llm.tokenizer, head_work.table_of(llm)
dog = tokenizer.encode(" dog")[0]
one_hot = F.one_hot(torch.tensor([dog]), len(table)).float()
print(f"token {dog} is {tokenizer.decode([dog])!r}; the table is {list(table.shape)}")

# %% [markdown]
# ### Predict

# %%
choices = ["nothing: the same numbers", "the last digits: sums are rounded", "much: other rows mix in"]
predict("product", "The row is looked up, or the product is computed. What differs?", choices=choices)

# %%
product, row = one_hot @ table, table[dog]
reveal("product", choices[0] if torch.equal(product[0], row) else choices[1])
times = {
    "product": 1e6 * speed_work.fastest(lambda: one_hot @ table),
    "lookup": 1e6 * speed_work.fastest(lambda: F.embedding(torch.tensor([dog]), table)),
}
print(f"the product has {table.numel():,} multiplications, the lookup none")
figures.bars(times, "microseconds for one token, measured just now", "{:.1f}")

# %% [markdown]
# Everything is multiplied by 0 but one row, and adding zeros rounds nothing. Keep that in mind: on several ranks, we
# shall add zeros again.
#
# ## Near rows
#
# Nobody told the model what a dog is. It began with random rows, and learned to guess the next token.
#
# ### Predict

# %%
choices = ["words that begin alike, such as ' door'", "other animals", "what often comes after it, such as ' barked'"]
predict("near", "Which tokens' rows point most nearly to where that of ' dog' points?", choices=choices)

# %%
near = {}
for word in (" dog", " red", " mother", " run", " she"):
    near[word] = [(tokenizer.decode([n]), c) for n, c in head_work.neighbors(table, tokenizer.encode(word)[0], 4)]
    print(f"{word!r:9} is near to", ", ".join(f"{other!r} ({cosine:.2f})" for other, cosine in near[word]))
reveal("near", choices[1] if near[" dog"][0][0] in (" bear", " fox", " seal", " cat") else "something else")

# %%
words = [" dog", " bear", " red", " blue", " mother", " father", " run", " walk", " she", " he"]
rows = F.normalize(table[[tokenizer.encode(word)[0] for word in words]], dim=-1)
figures.cosines([repr(word) for word in words], rows @ rows.T)

# %% [markdown]
# Rows are near when their tokens can stand in each other's place. " run" and " walk" never stand side by side. At a
# cosine of 0.4 that says little: " run" and " show".
#
# ## A table on several ranks
#
# A table of 1.2 GB, such as that of Qwen3-8B, is shared like all large matrices (chapter 9): each rank gets a range of
# rows. All ranks must have equally many, because all do the same work at the same time.
#
# ### Predict

# %%
predict("rows", "2,048 tokens on three ranks: for how many rows does each of them make room?")

# %%
texts = ["Once", " dog", " little", " run"]
token_ids = [tokenizer.encode(text)[0] for text in texts]
view = VocabularyShards(texts, token_ids)
reveal("rows", view.shares[3][0].num_logits)
view

# %% [markdown]
# Step through it. Each rank looks up what it has, and gives **zeros** for all other tokens. An all-reduce adds the
# parts, and since every token has one owner, the sum is its row, exactly.
#
# Three times 683 is 2,049, so the last rank makes room for a token that does not exist. This **padding** comes back at
# the end of the chapter.
#
# This is the class without its methods:
#
# {{source nanovllm/layers/embed_head.py:VocabParallelEmbedding.__init__}}

# %% [markdown]
# ### What happens without it
#
# Below, a rank has something for every token: ids of other ranks are pressed into its range, and whatever row they find
# is added.
#
# ### Predict

# %%
choices = ["the right text", "a story that reads well, and is another one", "nonsense"]
predict("pressed", "One rank writes the right text. What do two ranks write?", choices=choices)

# %%
right = answer(nanovllm)["text"]
pressed = answer(without("ch13.embed"), num_ranks=2)["text"]
print("one rank: ", repr(right))
print("two ranks:", repr(pressed))
reveal("pressed", choices[0] if pressed == right else choices[2])

# %% [markdown]
# Each token is the sum of two rows: its own, and the first or the last one of the other rank. Nothing raises an error.
#
# The tools: `self.weight` are this rank's rows, `F.embedding(ids, weight)` looks rows up (an index outside is an
# error), `torch.where(mask, a, b)` chooses number by number, and `mask.unsqueeze(-1)` is a column, which multiplies
# whole rows. `self.group` has `rank`, `size` and `all_reduce`.

# %%
# {{exercise ch13.embed}}

# %%
# Plugged in: the same four tokens, looked up by your function.
me = mine()
print(me.whose("ch13.embed"))
VocabularyShards(texts, token_ids, engine=me)

# %% [markdown]
# ## Loading a part
#
# The checkpoint has the whole table. Each rank reads it, and keeps its own rows.
#
# The parameter was made by `torch.empty`: memory as somebody has left it. With tied weights the head has *the same*
# parameter under another name, so the rows have to go into that memory:
#
# {{source nanovllm/models/qwen3.py:Qwen3ForCausalLM.__init__}}
#
# ### What happens without it
#
# Here all rows are loaded one too late: row 0 is that of token 1, and so on, at both ends of the model.
#
# ### Predict

# %%
SHIFTED = ["the right text: the shift is undone at the other end", "the right text, each id one too low", "nonsense"]
predict("shifted", "What does it write for the usual prompt?", choices=SHIFTED)

# %%
shifted = without("ch13.weight_loader")
wrong = answer(shifted)
print(repr(wrong["text"]))
back = tokenizer.decode([token_id + 1 for token_id in wrong["token_ids"]])
reveal("shifted", SHIFTED[0 if wrong["text"] == right else 1 if back == right else 2])

# %% [markdown]
# The prompt it reads is another one: every word is that of the next id. Now help it. Give it ids that are one too low,
# and count its answer up again:

# %%
lower = [token_id - 1 for token_id in tokenizer.encode(STORY)]
helped = answer(shifted, lower)["token_ids"]
print(repr(tokenizer.decode([token_id + 1 for token_id in helped])))

# %% [markdown]
# There is the story. An id is only a place in the table. The model between the ends has never seen one, and any order
# would do, if it is the same in the tokenizer, the embedding and the head.
#
# The tools: `self.vocab_start`, `self.vocab_end` and `self.num_embeddings`, the size of the vocabulary; how wide a row
# is, `param.shape[1]` says. `param.data[a:b].copy_(rows)` and `param.data[a:].zero_()` write into the memory that is
# there.

# %%
# {{exercise ch13.weight_loader}}

# %%
# Plugged in: your loader fills the parts, your lookup finds the rows, and the text is the right one.
me = mine()
print(me.whose("ch13.embed", "ch13.weight_loader"))
print(answer(me)["text"] == right)
parts = head_work.shards(table, 3, me)
together = head_work.compute(parts, torch.tensor(token_ids))
print([torch.equal(rows, table[token_ids]) for rows in together.results], "on three simulated ranks")
print("beyond the vocabulary:", parts[2].weight[-1, :4].tolist())

# %% [markdown]
# ## Rank 0 finds the most
#
# Ids are no random numbers. This tokenizer was made by merging frequent pairs first, so frequent tokens have low ids.
# Four ranks with 512 rows each read 26 stories:

# %%
states = head_work.states()
shares = head_work.found_by_rank(states.token_ids, len(table), 4)
found = {f"rank {rank}": 100 * share for rank, share in enumerate(shares)}
figures.bars(found, "percent of the tokens that each rank finds", "{:.1f}")

# %% [markdown]
# It costs nothing: every rank looks up a row for every token, and throws most of them away. So all shapes are known
# beforehand, and nobody waits for rank 0. Where tokens do go only to those who have something for them, as to the
# experts of Qwen3-MoE on several GPUs, everybody waits for the busiest.
#
# ## The head: the table the other way round
#
# A **logit** is a dot product: the hidden state of a token, with the row of each token of the vocabulary. The model is
# to end up near the row of what comes next.

# %%
read = states.token_ids[len(states.examples) :][:21]  # the last 12 stories begin there
hidden = states.others[20]
print(f"after {tokenizer.decode(read)!r}\n")
logits = table @ hidden
best = logits.topk(6).indices
lengths = table.norm(dim=-1)
print("          logit  = length of the state x length of the row x cosine")
for n in best.tolist():
    cosine = logits[n] / hidden.norm() / lengths[n]
    print(f"{tokenizer.decode([n])!r:10} {logits[n]:6.2f}     {hidden.norm():6.2f} x {lengths[n]:.2f} x {cosine:.2f}")

# %% [markdown]
# So far the head reads the whole table for each token. Who needs that? To go on with a text, a request needs the logits
# of its **last** token. All others were for the cache.
#
# ### Predict
#
# A prompt of 1,000 tokens, Qwen3-0.6B. A logit in bfloat16 has two bytes.

# %%
BILL = ["3 MB", "30 MB", "300 MB"]
predict("bill", "How large are the logits of all its tokens?", choices=BILL)

# %%
size = 1000 * shape["vocab_size"] * 2
reveal("bill", min(BILL, key=lambda text: abs(float(text.split()[0]) * 1e6 - size)))
operations = {"all layers": 2 * 1000 * sizes["0.6B"].rest, "head, all tokens": 2 * 1000 * sizes["0.6B"].table}
operations["head, last token"] = 2 * sizes["0.6B"].table
figures.bars({name: n / 1e9 for name, n in operations.items()}, "GFLOP for a prompt of 1,000 tokens, Qwen3-0.6B",
             "{:,.1f}")  # fmt: skip
prompt_states = states.others[:1000]
measured = {
    "head, all tokens": 1000 * speed_work.fastest(lambda: F.linear(prompt_states, table)),
    "head, last token": 1000 * speed_work.fastest(lambda: F.linear(prompt_states[-1:], table)),
}
figures.bars(measured, "milliseconds for 1,000 tokens, qwen3-tiny, measured just now", "{:.2f}", figures.ORANGE)

# %% [markdown]
# A third more work for nothing, and memory that would hold the keys and values of thousands of tokens.
#
# ## Where the last tokens stand
#
# A step is flat, and `cu_seqlens_q` says where each sequence begins (chapter 8). Three prompts, and room for 16 tokens
# a step:

# %%
prompts = [tokenizer.encode(text) for text in ("Once upon a time", "Tom and Mia went to the park.", "One day, a fox")]
steps = head_work.first_steps(prompts, most_tokens=16)
figures.flat_steps([([tokenizer.decode([n]) for n in step.token_ids], step.ends, step.is_cut) for step in steps])

# %% [markdown]
# Orange are the rows that the head needs. The gray one ends a piece of a prompt that was cut: its logits are computed,
# too, because that is simpler, and nobody samples from them.
#
# A decode step has one token of each sequence. Every row is a last one, and `cu_seqlens_q` is None.
#
# ### What happens without it
#
# This engine takes `cu_seqlens_q[:-1]`, the first token of each sequence.
#
# ### Predict

# %%
choices = ["it writes nonsense from the beginning to the end", "one token is wrong, and the text goes on from there",
           "it writes the right text: a decode step has only one token"]  # fmt: skip
predict("first", "What does it write?", choices=choices)

# %%
first = answer(without("ch13.forward"))
print("right:", STORY + right)
print("\nfirst:", STORY + first["text"])
is_sensible = first["text"] != right and len(set(first["token_ids"])) > 10
reveal("first", choices[2] if first["text"] == right else choices[1] if is_sensible else choices[0])

# %% [markdown]
# Only a prefill has rows to choose from. The first token of the answer is what usually follows "Once"; the cache was
# filled as it should be, so everything afterwards is sensible. With `max_tokens=1`, as in a classifier, every
# answer would be wrong.
#
# ## Side by side, and cut
#
# Each rank computes logits for its own rows, and `gather` puts the parts side by side on rank 0, which samples. On the
# others it returns None.
#
# And the padding? Its rows are zero, so its logits are 0. In `qwen3-tiny` that is harmless for greedy requests: their
# best logit is far above 0. But a model may add the same number to all its logits, and every probability stays as it
# was.

# %%
lowest = float((states.others @ table.T).amax(-1).min())
print(f"the best logit is never below {lowest:.1f} along twelve stories")
v = hidden / hidden.dot(hidden) * -25  # added to every row: all logits are 25 lower, and the softmax is the same
lower_table = table + v
same = torch.allclose((lower_table @ hidden).softmax(-1), logits.softmax(-1), atol=1e-4)
heads = head_work.shards(lower_table, 3, head=True)
whole = head_work.side_by_side(heads, hidden)
print(f"the same probabilities: {same}; what the three ranks give: {len(whole)} logits")
print(f"the largest is number {int(whole.argmax())}; the vocabulary ends with {len(table) - 1}")
names = [repr(tokenizer.decode([n])) for n in best.tolist()]
figures.logits_with_padding(names, whole[best].tolist(), float(whole[2048]))

# %% [markdown]
# Token 2,048 would be chosen, and there is none. So the padding is cut off: after the gather, for a gather wants parts
# of one width.

# %%
# {{exercise ch13.forward}}

# %%
# Plugged in: a prompt that is read in pieces, and another one beside it.
me = mine()
print(me.whose("ch13.forward"))
options = PLAIN | {"max_num_batched_tokens": 16}
for engine in (me, nanovllm):
    with engine.LLM("qwen3-tiny", **options) as one:
        params = engine.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        texts_of = [done["text"] for done in one.generate([STORY, "Once upon a time, a fox"], params, use_tqdm=False)]
    print("yours:" if engine is me else "ours: ", texts_of)

# %% [markdown]
# ## Milestone: your two ends, on two real ranks
#
# Each rank is a process with half of your table. They meet in your all-reduce and in your gather.

# %%
me = mine()
print(me.whose("ch13"))
two = answer(me, num_ranks=2)
print(repr(two["text"]))
print("the same as ours on one rank:", two["text"] == right)

# %% [markdown]
# ## Your engine
#
# The map, and how fast it is now, measured on the fixed work of all chapters.

# %%
print(mine().whose("ch13"))
staircase("13")

# %% [markdown]
# ## One more: a head that looks at fewer rows
#
# Nothing later needs this section, for which twenty minutes are good.
#
# A decode step of one request reads all weights once, and a quarter of them, in Qwen3-0.6B, is the head. All that for
# one winner. Could one know beforehand which rows have a chance?
#
# Two guesses, tried along twelve stories: only the 500 tokens that win most often; and all dot products roughly, in 48
# random directions, with true ones for the best 48.

# %%
plain = {"all rows": head_work.all_rows, "frequent tokens": head_work.frequent_rows}
plain |= {"random directions": head_work.random_directions}
judged = {name: head_work.judge(make) for name, make in plain.items()}
for name, one in judged.items():
    print(f"{name:18} {100 * one.right:5.1f} % right, {100 * one.share:5.1f} % of the multiplications")
figures.quick_heads(judged, head_work.RIGHT, head_work.SHARE)

# %% [markdown]
# Reach the upper left corner. The exercise is open: whatever does counts, and below 20 % is a good one. What you do
# once for a model is free; what counts is done for each hidden state. `torch.linalg` may help beforehand.

# %%
# {{exercise ch13.quick_head}}

# %%
me = mine("ch13.quick_head")
print(me.whose("ch13.quick_head"))
name = me.owner("ch13.quick_head")
judged[name] = head_work.judge(me.function("ch13.quick_head"))
print(f"{name}: {100 * judged[name].right:.1f} % right, {100 * judged[name].share:.1f} % of the multiplications")
figures.quick_heads(judged, head_work.RIGHT, head_work.SHARE)

# %% [markdown]
# ## Change it
#
# * `head_work.neighbors(table, n)` for tokens of your own, and for 5, a `#`, which no story has. Why so near?
# * In "Near rows", take plain dot products in place of cosines. Which tokens are now near to everybody?
# * `VocabularyShards(vocab_size=10, token_ids=[0, 4, 8, 9], sizes=[4, 8])`: which rank has nothing?
# * Give `quick_head` the examples of one story only. Does it still find the tokens of others?

# %% [markdown]
# ## Recap
#
# 1. An embedding is a lookup; it equals a product with a one-hot vector, and costs nothing beside it.
# 2. Rows are near when their tokens can stand in each other's place; tied weights use them at both ends.
# 3. On ranks, each looks up its own tokens and gives zeros for the others; the all-reduce is exact.
# 4. Logits are dot products with all rows, which is dear: only the last token of each sequence gets them.
# 5. Equal parts mean padding: zero rows, and logits that are cut off after the gather.

# %% [markdown]
# ## Explain it aloud
#
# * Why does a rank look up a row even for tokens that it does not have?
# * "Ids outside give row 0, and row 0 of each rank is set to zeros: no mask afterwards." What breaks?
# * Two ranks give bit for bit the embeddings of one rank. Does that hold for all layers?
#
# <details><summary>Three answers to the second question; say yours first</summary>
#
# *Weak:* it is a hack.
#
# *Good:* row 0 of each rank belongs to a real token, which would be lost.
#
# *Excellent:* with one more row a rank, all would be right. But the head uses the same rows, so each part of the logits
# would have a hole, to be cut out. The mask is cheaper.
#
# </details>

# %% [markdown]
# ## Read further
#
# * vLLM: `vllm/model_executor/layers/vocab_parallel_embedding.py` (masks, padding to 64, added tokens), and
#   `logits_processor.py` beside it (the gather).
# * Press and Wolf, *Using the Output Embedding to Improve Language Models*, EACL 2017: tied weights.
# * Shoeybi et al., *Megatron-LM*, 2019, section 3: the vocabulary on several ranks.
# * Shim et al., *SVD-Softmax: Fast Softmax Approximation on Large Vocabulary Neural Networks*, NeurIPS 2017.
#
# Next, the sampler: from these logits to one token.
