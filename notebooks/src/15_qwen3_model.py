# %% [markdown]
# # 15 · The Qwen3 model
#
# *All parts are there. This chapter puts them together, in eleven lines.*
#
# You will
#
# * walk through a model part by part, and see every shape and every weight,
# * write attention's way from a row to heads and back, the MLP, a layer, and the model,
# * find out what each of the small decisions is for, by leaving it out,
# * compare your model with Hugging Face's, number by number,
# * read in the middle of the model what it is going to say.
#
# Plan 85 minutes; four exercises are 33 of them. A fifth, an open one, waits at the end. Everything runs on a laptop.

# %% [markdown]
# ## Where we are
#
# Linear layers, attention, rotary embedding, norms, embedding and head: chapters 9 to 13 are about parts. What makes
# a model of them is the order in which they are called, and one idea that holds it together, the **residual stream**: a
# row for each token runs through the whole model. Attention and MLP of each layer do not change it. They **read** a
# normalized copy, and **add** what they have to say.

# %%
# %load_ext exercises
import logging

import figures
import torch

import nanovllm
from exercises.kit import model_work
from nanovllm import LLM
from nanovllm.viz import Boxes, ModelShapes

logging.disable(logging.WARNING)  # the engine warns of very small pools; here they are wanted
PLAIN = model_work.OPTIONS
STORY = "Once upon a time, there was a little girl named Mia. She had a red kite."
mine()


# %%
def write(engine, prompt=STORY, max_tokens=30):
    """What an engine writes, greedily."""
    with engine.LLM("qwen3-tiny", **PLAIN) as llm:
        params = engine.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        (answer,) = llm.generate(prompt, params, use_tqdm=False)
    print(f"...{prompt[-9:]}{answer['text']}")


# %% [markdown]
# ## Why: the same weights, put together in another way
#
# Eight layers, one behind the other, numbered from 0 to 7. Take one away, and leave everything else as it is.
#
# ### Predict
#
# The loss says how badly the model guesses each token of a text; with all layers it is 0.35 on six stories. Guessing
# blindly among its 2,048 tokens would give 7.6.

# %%
picture = Boxes([f"layer {number}" for number in range(8)])
predict("lost", "Which of the eight layers is missed most?", picture=picture)

# %%
llm = LLM("qwen3-tiny", **PLAIN)
texts = model_work.stories(0, 6, llm)
losses = {"all layers": model_work.loss(llm, texts)}
for number in range(8):
    with model_work.without_layer(llm, number):
        losses[f"without layer {number}"] = model_work.loss(llm, texts)
figures.bars(losses, "loss on six stories", "{:.2f}")
worst = max(range(8), key=lambda number: losses[f"without layer {number}"])
reveal("lost", f"layer {worst}")

# %% [markdown]
# Seven of the eight can be missed, at a price: what the others do still makes sense, for they read a stream from which
# only one part is missing. In a chain without a stream, nothing would come through. And layer 0? It is the only one
# that reads bare embeddings; nothing after it can make up for that.
#
# ## A picture: part by part
#
# How large are the parts? A layer of this model has attention, with four query heads of 64 and two KV heads, and an MLP
# with 896 features in between; the stream is 256 wide. There are 2,048 tokens in the vocabulary.
#
# ### Predict

# %%
PARTS = ["embedding and head", "attention", "MLP", "norms"]
predict("weights", "Where are most of the weights? And next?", picture=Boxes(PARTS, in_order=True))

# %%
counts = model_work.num_parameters(model_work.config_of("qwen3-tiny"))
print({name: f"{count:,}" for name, count in counts.items()})
reveal("weights", sorted(counts, key=counts.get, reverse=True))

# %% [markdown]
# Step through it. What you see was recorded by hooks a moment ago, in a real step of three prompts; the second half is
# the decode step after it.

# %%
ModelShapes(llm)

# %% [markdown]
# Three things to notice:
#
# * There is no dimension for the batch. 13 tokens of three prompts stand behind one another, and only `attn` knows
#   which belong together.
# * The line on the left never changes its width. Norms read from it, and what comes of that is added to it.
# * The head makes logits for three rows only: the last of each sequence.
#
# ## The MLP
#
# It takes most of the weights, and is the simplest part: it sees one token at a time. `gate_up_proj` makes two halves
# of each row, and `act_fn` one of both: `silu(gate) * up`, feature by feature. Where the gate is far below zero, SiLU
# makes nearly nothing of it, and what is in `up` is stopped (chapter 12 has both).
#
# Here is what it is made of.
#
# {{source nanovllm/models/qwen3.py:Qwen3MLP.__init__}}
#
# ### What happens without it
#
# Attention can move information from token to token. Without an MLP nobody works on it.

# %%
write(nanovllm)
write(without("ch15.mlp"))

# %%
# {{exercise ch15.mlp}}

# %%
# Plugged in: the story, with your MLP.
me = mine()
print(me.whose("ch15.mlp"))
write(me)

# %% [markdown]
# ## From a row to heads
#
# `qkv_proj` gives one row a token: all heads, behind one another. Here it is for the bundled model.

# %%
figures.row_of_heads(4, 2, 64)

# %% [markdown]
# **Grouped-query attention**: two query heads ask, with different questions, the same keys and values. `attn` takes
# care of that, if the heads come in this order.
#
# ### Predict
#
# Qwen3-8B has 32 query heads and 8 KV heads. Its cache takes 147 kB a token.

# %%
predict("cache", "How many kB a token would it take if every query head had a KV head of its own?")

# %%
config = model_work.config_of("Qwen3-8B")
alone = model_work.kv_bytes(config, config.num_attention_heads)
for name in ("qwen3-tiny", "Qwen3-0.6B", "Qwen3-8B"):
    one = model_work.config_of(name)
    shared, each = model_work.kv_bytes(one), model_work.kv_bytes(one, one.num_attention_heads)
    print(f"{name:11} {each / 1000:6.1f} kB a token without groups, {shared / 1000:6.1f} kB with them")
reveal("cache", round(alone / 1000))

# %% [markdown]
# What is saved in memory is room for more requests, and what need not be read makes each decode step faster.
#
# And if the groups are wrong: neighbors 0 and 1 ask different KV heads, and 0 and 2 the same? No shape is wrong.

# %%
write(model_work.other_attend("wrong groups"))
print(f"\nloss {model_work.loss_of(model_work.other_attend('wrong groups')):.2f}, {losses['all layers']:.2f} as it was")

# %% [markdown]
# ## Queries and keys of one size
#
# A score is a dot product, so long queries make sharp attention. In training that can run away. Qwen3 brings each
# query head and each key head to size one before they are rotated, and multiplies by a learned weight for each
# feature: **QK-norm**. Earlier Qwens and Llama do without.
#
# *Size* is the root mean square, so 64 features of size one make an arrow of length 8. It is chapter 12's RMSNorm,
# `x / rms(x) * weight`, of the 64 features of a head; in front of attention and MLP it takes the stream's 256.
#
# ### Predict
#
# A rotation keeps the length of every arrow, and so the size of a head. Somebody normalizes *after* the rotation.

# %%
AFTER = ["nothing, up to rounding", "a few words", "it writes nonsense"]
predict("after", "What changes?", choices=AFTER)

# %%
found = {"before the rotation": losses["all layers"]}
found["after it"] = model_work.loss_of(model_work.other_attend("norm after the rotation"))
found["not at all"] = model_work.loss_of(model_work.other_attend("no norm"))
print({name: f"loss {loss:.3f}" for name, loss in found.items()})
write(nanovllm)
write(model_work.other_attend("norm after the rotation"))
worse = found["after it"] - found["before the rotation"]
reveal("after", AFTER[0] if abs(worse) < 1e-5 else AFTER[1] if worse < 1 else AFTER[2])

# %% [markdown]
# The division is the same before and after. The *weights* are not: each belongs to one feature, and a rotation mixes
# two. If both features of a pair had equal weights, nothing would change. They nearly have, though nobody told the
# training so:

# %%
weights = model_work.model_of(llm).model.layers[3].self_attn.k_norm.weight
first, second = weights.float().chunk(2)
print("first and second feature of the last five pairs:")
for pair in range(27, 32):
    print(f"  pair {pair}: {float(first[pair]):.2f} and {float(second[pair]):.2f}")

# %% [markdown]
# So the loss hardly moves, and yet the text is another one. A test that looks at a few words may let it pass; a
# comparison of logits does not. And without any norm, the scores are those of another model.
#
# ## Your turn: attend
#
# `forward` projects; what is between the two projections is yours.
#
# {{source nanovllm/models/qwen3.py:Qwen3Attention.forward}}
#
# In `self` you have `num_heads`, `num_kv_heads` and `head_dim`, the modules `q_norm`, `k_norm` and `attn`, and
# `rotary_emb(positions, q, k)`, which returns both. `x.unflatten(-1, (-1, n))` cuts the last dimension into pieces of
# n, `x.split([a, b, c], dim=1)` cuts a dimension into parts of these lengths, `x.flatten(1)` makes one dimension of all
# from the second on.
#
# ### What happens without it
#
# Nobody looks at anybody: each token knows itself, and no more.

# %%
write(without("ch15.attend"))

# %%
# {{exercise ch15.attend}}

# %%
# Plugged in.
me = mine()
print(me.whose("ch15.mlp", "ch15.attend"))
write(me)

# %% [markdown]
# ## The residual stream
#
# Now back to the idea that holds it together. If attention and MLP only add, the stream at the end has to be the
# embedding plus all that they have said. Is it? And how large is what they say?

# %%
model = model_work.model_of(llm)
streams = model_work.read(llm, texts)
attention = model_work.outputs(llm, texts, lambda model: [layer.self_attn for layer in model.model.layers])
mlp = model_work.outputs(llm, texts, lambda model: [layer.mlp for layer in model.model.layers])
sizes = [model_work.size(x).tolist() for x in (streams, attention, mlp)]
print("the stream is the sum of all that was added:", end=" ")
print(torch.allclose(streams[0] + attention.sum(0) + mlp.sum(0), streams[-1], atol=1e-2))
figures.sizes_in_the_stream(*sizes)

# %% [markdown]
# The embedding is tiny, and of the stream behind layer 0 this layer wrote nearly all: that is why it is missed so much.
# From there on the stream grows, and what is added to it at a time is smaller than the stream itself, until the last
# MLP, which adds more than all before it. That is what the norms are for: whoever reads gets rows of size one, however
# far the stream has grown.
#
# ### What happens without it
#
# A layer that hands on only what it has made, and no stream:

# %%
write(without("ch15.decoder_layer"))

# %% [markdown]
# The sizes fit, every weight is used, and nothing is left: eight times in a row a layer has passed on only its own
# small part.
#
# {{source nanovllm/models/qwen3.py:Qwen3DecoderLayer.__init__}}

# %%
# {{exercise ch15.decoder_layer}}

# %% [markdown]
# ### Predict
#
# Some models let attention and MLP read the same stream, side by side, and add both at the end (GPT-J, PaLM): one norm
# less, and two products that can run at once. Somebody does that with our weights.

# %%
BESIDE = ["it writes the same", "it writes a story, with flaws", "it writes nonsense"]
predict("beside", "The MLP reads the stream from before attention. What comes out?", choices=BESIDE)

# %%
beside = model_work.other_layer("""
attention = self.self_attn(positions, self.input_layernorm(stream))
return stream + attention + self.mlp(self.post_attention_layernorm(stream))
""")
write(beside)
loss = model_work.loss_of(beside)
print(f"\nloss {loss:.2f}, {losses['all layers']:.2f} as it was")
reveal("beside", BESIDE[0] if loss < 0.41 else BESIDE[1] if loss < 1.2 else BESIDE[2])

# %% [markdown]
# It is not that such a layer is worse. These weights were trained for the other one: the MLP counts on what attention
# of its own layer has just added.
#
# ## All of it
#
# What is left is the frame around the layers. It holds an embedding, a list of layers, and a norm.
#
# {{source nanovllm/models/qwen3.py:Qwen3Model.__init__}}
#
# Without the layers it is a machine that knows one token only, the last one:

# %%
write(without("ch15.model"))

# %%
# {{exercise ch15.model}}

# %% [markdown]
# ## Milestone: your model
#
# The weights come from a file in which every tensor has a name. Names in the file are those of the modules, but for
# the two packed ones, which are filled in parts (chapter 16 does that).

# %%
for name, stored, shape in model_work.names_of_tensors():
    parts = " + ".join(part.removesuffix(".weight").split(".")[-1] for part in stored)
    print(f"{name.removesuffix('.weight'):44} {shape:>12}   from {parts}")

# %%
me = mine()
for chapter in model_work.chapters():
    print(f"{chapter}: {me.whose(chapter)}")
write(me)

# %% [markdown]
# Is it the same model? Hugging Face's `Qwen3ForCausalLM` reads the same tokens with the same file, on the same
# processor, in float32. Two more readers stand beside yours: Hugging Face's again, but one token at a
# time, with a cache; and the model that normalizes after the rotation.
#
# ### Predict

# %%
CLOSE = ["0, every number is equal", "about 0.00001", "about 0.1"]
predict("close", "Logits are between -30 and 30. How far are yours and theirs apart, at most?", choices=CLOSE)

# %%
tokens = texts[0]
theirs = model_work.hugging_face_logits(tokens)
with me.LLM("qwen3-tiny", **PLAIN) as yours:
    logits = model_work.logits_of(yours, tokens)
with model_work.other_attend("norm after the rotation").LLM("qwen3-tiny", **PLAIN) as other:
    wrong = model_work.logits_of(other, tokens)
print(f"{len(tokens)} tokens, {logits.numel():,} logits from {logits.min():.0f} to {logits.max():.0f}")
readers = {"yours": logits, "theirs, token by token": model_work.hugging_face_logits(tokens, at_once=False)}
for name, x in (readers | {"norm after the rotation": wrong}).items():
    same = float((x.argmax(-1) == theirs.argmax(-1)).float().mean())
    print(f"{name:24} at most {float((x - theirs).abs().max()):.1g} apart, {same:.0%} the same best token")
farthest = float((logits - theirs).abs().max())
reveal("close", CLOSE[0] if farthest == 0 else CLOSE[1] if farthest < 1e-2 else CLOSE[2])

# %% [markdown]
# Exactly 0 means that both do the same operations in the same order; even the rounding is the same. About 0.00001
# is as good: another spelling or a cache sums in another order, and Hugging Face's own model, token by token, is
# that far from itself. A norm in the wrong place, which a few words may not show, is further off by many thousand
# times. This is how implementations of models are tested, vLLM's too.
#
# ## Read in the middle
#
# If all layers write into one stream, the head can read it anywhere. This is the **logit lens**: take the stream after
# some of the layers, go straight to the last norm and the head, and see which token would be next.
#
# ### Predict

# %%
predict("early", "For how many of 100 tokens does the lens find the final word already after 4 of 8 layers?")

# %%
lens = model_work.lens(llm, streams)
best = lens.argmax(-1)
shares = {f"after {n} layer{'s' * (n > 1)}": float((best[n] == best[-1]).float().mean()) for n in range(1, 8)}
figures.same_as_at_the_end(shares)
reveal("early", round(100 * shares["after 4 layers"]))

# %%
shown = slice(30, 44)  # of the first story
seen = lens[:, shown]
words = [[llm.tokenizer.decode([token]) for token in row] for row in seen.argmax(-1).tolist()]
reads = [llm.tokenizer.decode([token]) for token in texts[0][shown]]
figures.through_the_lens(reads, words, seen.softmax(-1).amax(-1).tolist(), words[-1])

# %% [markdown]
# Behind the embedding the head says the very word that was read: both are one weight. From there on the stream turns
# to what comes next, and most words are settled in the last two layers. In larger models many are found much earlier:
# they have layers to spare, and this one has not.
#
# ## What another family would change
#
# | family | in these classes |
# |---|---|
# | Qwen2.5 | a bias in `qkv_proj`, and no QK-norm |
# | Llama 3 | no QK-norm; its rotary table is made for longer texts (`rope_scaling`) |
# | Mistral 7B | no QK-norm; the first version looks back 4,096 tokens only |
# | Gemma 2 | embeddings scaled, norms also on what is added, another gate (GELU) |
# | Qwen3-MoE | the MLP is 128 small ones, of which each token takes 8 |
#
# Everything else is numbers in a config. Here is the dense family of Qwen3, counted with the engine's own modules.

# %%
sizes_of = {name: model_work.num_parameters(model_work.config_of(name)) for name in model_work.FAMILY}
figures.parameters_by_part(sizes_of)

# %% [markdown]
# A quarter of Qwen3-0.6B is its vocabulary, and a twentieth of Qwen3-32B. That is why the small ones use one weight for
# embedding and head. From the 8B on they are two, so its share is larger again than that of the 4B.
#
# ## Your engine

# %%
print(mine().whose("ch15"))
staircase("15")

# %% [markdown]
# ## One more: two layers before the end
#
# An early guess is cheap, even if it is wrong half of the time, and the whole model can check several guesses in one
# step. That is **speculative decoding**, and a model that guesses for itself is one way to do it.
#
# After six of eight layers the plain lens is right 45.5 times in 100, on the stories of the check. Can you come to 50
# with the same streams? You get four thousand known tokens, before and after, and not one weight.

# %%
# {{exercise ch15.read_early}}

# %%
me = mine("ch15.read_early")
print(me.whose("ch15.read_early"))
known, other = model_work.known_and_other()
guessed = me.function("ch15.read_early")(known.early, known.late, other.early)
plain = model_work.plain_lens(known.early, known.late, other.early)
found = {"plain lens": model_work.same_tokens(plain, other)}
found[me.owner("ch15.read_early")] = model_work.same_tokens(guessed, other)
figures.same_as_at_the_end(found, model_work.BAR)

# %% [markdown]
# ## Change it
#
# * `with model_work.without_layer(llm, 5):` write a story. Which flaws do you find? And without layer 2?
# * `model_work.WAYS` has the texts that `model_work.other_attend` knows by name; q, k and v are cut in them already.
#   Add one: the values normalized, or only the keys rotated.
# * Let each layer add its MLP twice: `model_work.other_layer` takes the body of `forward`, and changes all eight. Which
#   is worse, that or no MLP at all?
# * Show the lens a sum, in the form that the model has learned. Where does the answer appear? In `seen`, row n is what
#   the head reads after n layers at the last token:
#
#   ```python
#   ids = llm.tokenizer.encode("Question: What is 2 + 3?\nAnswer: 2 + 3 = ")
#   seen = model_work.lens(llm, model_work.read(llm, [ids]))[:, -1]
#   print([llm.tokenizer.decode([token]) for token in seen.argmax(-1).tolist()])
#   ```

# %% [markdown]
# ## Recap
#
# 1. A row for each token runs through the model; layers read normalized copies of it, and add.
# 2. Attention is where tokens meet; the MLP sees one at a time, and has most of the weights.
# 3. Query heads share KV heads in groups of neighbors; that divides the cache.
# 4. QK-norm works on each head, before the rotation, for its weights belong to features.
# 5. The order of the calls is part of the checkpoint: other orders run, and write something else.

# %% [markdown]
# ## Explain it aloud
#
# * Why can the head read the stream behind any layer?
# * A colleague ports a model; every shape fits, and the text is nearly right. What do you look at?
# * Why does the stream grow, and why does nobody mind?
#
# <details><summary>Three answers to the second question; say yours first</summary>
#
# *Weak:* run it with more prompts.
#
# *Good:* compare logits with the reference, and then the streams layer by layer: the first that differs shows where.
#
# *Excellent:* and what fits in shape can be wrong: which half is the gate, who shares a key, pairs of the rotation,
# where a norm stands, the order of two sums. In the first layer that differs, look behind each part, in float32.
#
# </details>

# %% [markdown]
# ## Read further
#
# * vLLM: `vllm/model_executor/models/qwen3.py` and `qwen2.py`, from which it takes MLP and frame.
# * *Qwen3 Technical Report*, 2025, section 2. Ainslie et al., *GQA*, EMNLP 2023.
# * Xiong et al., *On Layer Normalization in the Transformer Architecture*, ICML 2020: why norms came to stand before.
# * nostalgebraist, *interpreting GPT: the logit lens*, 2020; Belrose et al., *Eliciting Latent Predictions with the
#   Tuned Lens*, 2023.
# * Elhage et al., *A Mathematical Framework for Transformer Circuits*, 2021: the residual stream as a channel.
#
# Next, where the weights come from, and what travels beside the arguments.
