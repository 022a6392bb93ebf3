# %% [markdown]
# # 12 · Normalization and activation
#
# *What keeps the numbers between the layers in bounds, and what decides which of them pass.*
#
# You will
#
# * see what becomes of a model's numbers when nobody looks after their size,
# * write RMSNorm, and the norm that takes the residual along,
# * write the gate of the MLP, and find out how many gates a token needs,
# * find out which precision a sum of squares needs,
# * make a norm for a chip that has no float but float16, if you like.
#
# Plan 75 minutes; three exercises are 24 of them. A fourth, an open one, waits at the end. Everything runs on a
# laptop's CPU.

# %% [markdown]
# ## Where we are
#
# Queries and keys know their positions, and attention compares them. Now for what they are made from. Between the
# layers a token is a row of numbers, 256 of them in the bundled model: the **residual stream**. Each layer reads it
# twice, once for attention and once for the MLP, and adds to it what it has found. Nothing is ever taken away.

# %%
# %load_ext exercises
import logging
from functools import partial

import figures
import torch
import torch.nn.functional as F

import nanovllm
from exercises.kit import norm_work
from nanovllm.layers.layernorm import RMSNorm
from nanovllm.viz import NormView

PLAIN = {"device": "cpu", "disabled_optimizations": "all", "enable_prefix_caching": False, "max_model_len": 256}
PLAIN |= {"kvcache_block_size": 16, "num_kvcache_blocks": 40}
logging.disable(logging.WARNING)  # the engine warns of very small pools; here they are wanted
STORY = "Once upon a time, there was a little girl named Mia. She had a red kite."
mine()


# %%
def write(engine, max_tokens=30):
    """What an engine writes, greedily."""
    with engine.LLM("qwen3-tiny", **PLAIN) as llm:
        params = engine.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        (answer,) = llm.generate(STORY, params, use_tqdm=False)
    print(f"...{STORY[-9:]}{answer['text']}")
    return answer["token_ids"]


# %% [markdown]
# ## Why: ten times, and ten times again
#
# The size of a row is its **root mean square**: square all numbers, average, take the root. We let the model read a
# sentence, once as it is, and once with norms that only multiply by their weight and care for no size.

# %%
SENTENCE = "Tom and Mia went to the park. Mia had a red ball. Tom threw the ball to Mia."


def sizes(places):
    """The root mean square of the stream at each norm, of a usual token."""
    return [float(norm_work.rms(place.before).median()) for place in places]


places = norm_work.places(SENTENCE)
wild = norm_work.places(SENTENCE, normalize=lambda norm, x: x * norm.weight)
curves = {"no row is scaled": sizes(wild), "with RMSNorm": sizes(places)}
figures.sizes_through_layers(curves, "How large the residual stream is")

# %% [markdown]
# Every layer makes of large numbers larger ones: its products multiply queries with keys, gates with what they let
# pass. In layer 5 float32 has no number for it any more, and from there on all is nan.
#
# With norms the stream grows, too, a few hundred times from the embedding to the end. That is fine, because nobody
# reads it as it is.
#
# ## A picture to play with
#
# The last token of the sentence on its way. Above: its size at each norm, before (blue) and after (green; the learned
# weight is in it). Below: its 256 numbers. Step with the arrow keys. Here the norms are counted, two a layer: 10 and 11
# are those of layer 5, and 16 is the one at the end.

# %%
NormView(*norm_work.for_view(SENTENCE))

# %% [markdown]
# Look at the last norms: one or two numbers of the stream are far larger than all others. Such peaks are found in
# every large model, too. The norm shrinks the whole row for their sake, and the weight then makes up for what is known
# to be large.
#
# ## By hand
#
# Three numbers: 1, -2 and 2. Their squares are 1, 4 and 4, the mean of these is 3, its root 1.73. Each number is
# divided by that. And then the same row, ten times as large.


# %%
def scale(row):
    """A row, divided by its root mean square."""
    return row / row.square().mean().sqrt()


row = torch.tensor([1.0, -2.0, 2.0])
for numbers in (row, 10 * row):
    print(f"{numbers.tolist()}: scaled {[round(number, 3) for number in scale(numbers).tolist()]}")

# %% [markdown]
# The size is gone, the direction stays. Whoever comes after the norm sees *what* the stream says and not *how loud*.
# The learned weight then makes features larger or smaller, each by its own factor.
#
# ### Predict
#
# Now one number alone is ten times as large, a peak: 1, -2 and 20.

# %%
choices = ["as before", "a seventh of what they were", "a tenth of what they were"]
predict("peak", "How large are the other two, scaled?", choices=choices)

# %%
peak = torch.tensor([1.0, -2.0, 20.0])
rows = {"1, -2, 2": row, "scaled": scale(row), "1, -2, 20": peak, "with the peak, scaled": scale(peak)}
figures.rows_and_sizes({name: value.tolist() for name, value in rows.items()})
shrunk = float(scale(row)[0] / scale(peak)[0])
reveal("peak", choices[1] if 6 < shrunk < 8 else choices[2] if shrunk > 8 else choices[0])

# %% [markdown]
# The peak is one number of three, and raises the size not tenfold, but from 1.73 to 11.6. All numbers are divided by
# it, so the other two shrink. In a row of 256, a peak shrinks 255.
#
# ## What LayerNorm does besides
#
# LayerNorm, the older custom, subtracts the mean of the row first. RMSNorm leaves that out.
#
# ### Predict
#
# We put LayerNorm in all places of the bundled model, with the same weights. Its loss on stories is 0.375 with
# RMSNorm; guessing blindly would give 7.6.

# %%
choices = ["nearly the same", "clearly worse, about 1", "worse than blind"]
predict("layernorm", "The loss with LayerNorm?", choices=choices)

# %%
right = norm_work.loss()
layer_norm = norm_work.loss(lambda norm, x: F.layer_norm(x, x.shape[-1:], norm.weight, None, norm.eps))
means = torch.stack([(place.before.mean(-1).abs() / norm_work.rms(place.before)).median() for place in places])
print(f"loss {layer_norm:.3f}, with RMSNorm {right:.3f}")
print(f"the mean of a row is {100 * means.max():.0f} % of its root mean square, or less, at every norm")
reveal("layernorm", choices[0] if layer_norm < 0.5 else choices[1] if layer_norm < 7.6 else choices[2])

# %% [markdown]
# Numbers above and below zero cancel, so there is hardly a mean to subtract. That is why it can be left out, with one
# pass over the row less.
#
# What cannot be left out is an average over the row. This engine divides each row by its largest number instead:

# %%
_ = write(nanovllm)
_ = write(without("ch12.normalize"))

# %% [markdown]
# And this is the loss with other things wrong, among them a weight that was forgotten:

# %%
found = {name: norm_work.loss(norm) for name, norm in norm_work.NORMS.items()}
figures.bars(found, "loss on stories", "{:.3f}")

# %% [markdown]
# The mean of |x| comes near: it is an average over the row, too, and nearly the same share of the root mean square in
# most rows. But the model was not trained with it, and a peak counts less in it.
#
# ## Which precision?
#
# On a GPU the model is bfloat16 or float16. These are the sizes that the three kinds of floats have numbers for; those
# of the stream, from the root mean square of its smallest row to its largest number; and the squares of these.

# %%
stream = torch.cat([place.before for place in norm_work.places(norm_work.stories())])
smallest, largest = float(norm_work.rms(stream).min()), float(stream.abs().max())
print(f"smallest row {smallest:.3f}, largest number {largest:,.0f}")
figures.ranges_of_floats((smallest, largest))

# %% [markdown]
# A square has twice the exponent of its number. float16 ends at 65,504, so whatever is larger than 255 has no square
# in it.
#
# ### Predict
#
# One row has a number of 300. All is computed in float16, by the formula as it stands.

# %%
choices = ["nan everywhere", "zeros everywhere", "the 300 is wrong, the others are right"]
predict("large", "What comes out for that row?", choices=choices)

# %%
half = torch.tensor([300.0, 1.0, -2.0, 0.5]).half()
squares = half.square()
print("squares:", squares.tolist())
print("mean:", float(squares.mean()), "and 1 / root of it:", float(squares.mean().rsqrt()))
print("scaled:", (half * squares.mean().rsqrt()).tolist())
reveal("large", choices[1] if not (half * squares.mean().rsqrt()).any() else choices[0])

# %% [markdown]
# No error, no nan: a token that silently says nothing. bfloat16 has the range of float32, so nothing overflows there;
# it loses digits instead. What does each cost, with all of the norm computed in it?

# %%
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    loss = norm_work.loss(partial(norm_work.in_dtype, dtype=dtype))
    print(f"{str(dtype).removeprefix('torch.'):9} loss {loss:.4f}")

# The same rows through one norm, in bfloat16 and in float32: how far each number is off, as a share of it.
norm = RMSNorm(256)
exact = norm_work.in_dtype(norm, stream.bfloat16(), torch.float32)
errors = (norm_work.in_dtype(norm, stream.bfloat16(), torch.bfloat16) - exact).abs() / exact.abs().clamp_min(1e-3)
worst = float(errors.flatten()[:100_000].quantile(0.99))
print(f"in bfloat16, one number in a hundred is wrong by {100 * worst:.2f} % or more")

# %% [markdown]
# bfloat16 costs this model nothing that the loss can see. The engine takes float32 all the same, as everybody does: it
# is right for every dtype, and where a kernel waits for the memory, arithmetic is free.
#
# There is one convention more. Hugging Face rounds the scaled row to the model's dtype and *then* multiplies by the
# weight. In bfloat16 the other order gives another last digit in every fourth number or so. We do as the training did.
#
# A row of zeros has the size 0. eps, 0.000001, is added to the mean square, so that nobody divides by it.

# %%
# {{exercise ch12.normalize}}

# %%
# Plugged in: the picture again, with your norm.
me = mine()
print(me.whose("ch12.normalize"))
NormView(*norm_work.for_view(SENTENCE, token=0, normalize=me.function("ch12.normalize")))

# %% [markdown]
# (This was the first token of the sentence. Its stream ends larger than that of any other.)
#
# ## Where norms stand
#
# Attention and MLP each get a normalized *copy*; the stream itself passes by (**pre-norm**). One more norm stands at
# the end, and Qwen3 normalizes the queries and keys of each head (**QK-norm**), rows of 64, so that no score grows
# without bounds. With 8 layers that is 33 calls of your function for every step.
#
# ## The residual, taken along
#
# A sum is made and then normalized, layer after layer. Both are simple, and still each costs: numbers are fetched and
# written back. We count what PyTorch does for 100 rows, and how often it moves the rows.

# %%
norm, x = RMSNorm(256), torch.randn(100, 256)
moved = {}
for name, inputs in {"norm": (x,), "sum and norm": (x, x.clone())}.items():
    with norm_work.Operations() as counted:
        norm(*inputs)
    print(f"{name}: {', '.join(counted.names)}")
    moved[f"{name}, {len(counted.names)} operations"] = counted.moved / x.nbytes
    moved[f"{name}, one kernel"] = 2 * len(inputs)  # what comes in is read once, what goes out written once
figures.bars(moved, "how often the rows are read or written", "{:.0f}")

# %% [markdown]
# So it is in eager PyTorch. But if norm and sum are *one function*, somebody can put one kernel in
# its place. So vLLM's norms have a second argument, and layers hand on a pair: what the last part said, and the
# stream without it. Ours can do that, too.
#
# ### Predict
#
# A norm that gets x and the residual, normalizes their sum, and gives back: the normalized rows, and x.

# %%
choices = ["all is right", "only the last two things said are kept", "the first layers are heard twice"]
predict("lost", "What becomes of the stream, layer after layer?", choices=choices)

# %%
with norm_work.carried(nanovllm):
    carried = write(nanovllm)
forgetful = without("ch12.norm_forward")
with norm_work.carried(forgetful):
    lost = write(forgetful)
reveal("lost", choices[1] if lost != carried else choices[0])

# %% [markdown]
# The first text is from layers that hand on a pair, the same as ever. In the second engine the sum was lost: each part
# hears only the two before it.

# %%
# {{exercise ch12.norm_forward}}

# %%
# Plugged in: layers as vLLM has them, with your norm, which gets the residual.
me = mine()
print(me.whose("ch12.normalize", "ch12.norm_forward"))
with norm_work.carried(me):
    yours = write(me)
print("the same as ours:", yours == carried)

# %% [markdown]
# ## The gate
#
# The MLP widens each row to 896 features, twice: one half is called **gate**, the other **up**. The gate goes through
# an activation, and then decides, feature by feature, how much of up passes. A third product brings the row back to
# 256.

# %%
figures.activations()

# %% [markdown]
# **SiLU** is g / (1 + exp(-g)): the gate times the share that it lets pass. Far above zero it is g, far below it is
# nearly nothing; and just below zero, unlike ReLU, it lets a little through.
#
# ### Predict
#
# The model was trained with SiLU. We compute ReLU instead, and train nothing.

# %%
choices = ["nearly the same", "clearly worse, about 1", "worse than blind"]
predict("relu", "The loss with ReLU?", choices=choices)

# %%
found = {name: norm_work.loss(activate=activate) for name, activate in norm_work.ACTIVATIONS.items()}
figures.bars(found, "loss on stories", "{:.3f}")
reveal("relu", choices[0] if found["ReLU"] < 0.5 else choices[1] if found["ReLU"] < 7.6 else choices[2])

# %% [markdown]
# ReLU differs from SiLU on both sides of zero: it lets all pass above, and nothing below. The two bars under it do one
# of these alone, and neither hurts this model. What matters is that something shuts. Without SiLU, every gate is as
# wide open as another:

# %%
_ = write(without("ch12.silu_and_mul"))

# %% [markdown]
# One product has made both halves: chapter 9 packed two matrices into one. So in each row the 896 gates come first,
# then 896 numbers of up.

# %%
# {{exercise ch12.silu_and_mul}}

# %% [markdown]
# ## Milestone: your norms and gates
#
# All three functions are in the engine. It writes our story with them.

# %%
me = mine()
print(me.whose("ch12"))
print("the same as ours:", write(me) == write(nanovllm))

# %% [markdown]
# ## How many gates matter?
#
# Counted along some stories: the gates below zero, and those as good as shut, where SiLU is between -0.1 and 0.1.

# %%
gates = norm_work.gates(norm_work.stories(512))
below = [float((gate < 0).float().mean()) for gate in gates]
shut = [float((F.silu(gate).abs() < 0.1).float().mean()) for gate in gates]
figures.gates_of_layers(below, shut)

# %% [markdown]
# In most layers eight or nine gates of ten are below zero. In layers 2 to 6 most of these still let a little pass, with
# the opposite sign; in the first two and the last, about half of all gates or more are as good as shut.
#
# ### Predict
#
# For each token we keep the gates through which most passes, and shut the others completely.

# %%
all_open = norm_work.loss(num_tokens=512)  # of half the text only, so it is not what it was above
question = f"With all gates the loss is {all_open:.3f} here. Up to which share of shut gates does it stay below 0.40? "
question += "In percent"
predict("shut", question)

# %%
shares = (1.0, 0.5, 0.3, 0.2, 0.1, 0.06, 0.03)
points = {"the first ones of each row are kept": [], "those through which most passes are kept": []}
for share in shares:
    first, most = points.values()
    most.append(norm_work.close_gates(partial(norm_work.largest, share=share)))
    if share > 0.2:
        first.append(norm_work.close_gates(lambda gate, n=int(share * 896): (torch.arange(896) < n).expand_as(gate)))
figures.losses_with_closed_gates(points)
good = max(point.share for point in most if point.loss < 0.40)
print(*[f"{100 * point.share:.0f} % shut: {point.loss:.3f}" for point in most], sep="; ")
reveal("shut", round(100 * good))

# %% [markdown]
# Which gates matter depends on the token, so no weight can be thrown away. But a row of up_proj behind a shut gate
# need not be computed for this token, nor the column of down_proj. The gates themselves all have to be computed first.
# Of the other two matrices 94 % need not even be read: nearly two thirds of the MLP, for one token.
# Engines for laptops and phones do that. In a batch, each token opens other gates, and together they want nearly all.

# %% [markdown]
# ## Your engine
#
# The map, and how fast it is now, measured on the fixed work of all chapters.

# %%
print(mine().whose("ch12"))
staircase("12")

# %% [markdown]
# ## One more: a norm without float32
#
# Some chips, such as those for neural networks in phones, compute in float16 and nothing else. Written there as it
# stands, RMSNorm has a loss of 2.16: rows with a number above 255 come out as zeros. Your norm shall be right for all
# rows, from 0.05 to 65,504, without leaving float16.
#
# A first thought: divide the row by a fixed number before it is squared. The norm takes it out again.


# %%
def smaller_first(x, weight, eps, by):
    """The formula as it stands, on a row that is divided before."""
    x = x / by
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


tried = {f"divided by {by}": norm_work.loss_in_float16(partial(smaller_first, by=by)) for by in (1, 16, 64, 256)}
figures.bars(tried, f"loss in float16; at most {norm_work.BAR} is asked for", "{:.3f}", limit=norm_work.BAR)

# %% [markdown]
# 64 happens to fit the stream of this model, and no row of 50,000. Too large a number turns the squares of small rows
# into zeros.

# %%
# {{exercise ch12.half_norm}}

# %%
me = mine("ch12.half_norm")
print(me.whose("ch12.half_norm"))
tried[me.owner("ch12.half_norm")] = norm_work.loss_in_float16(me.function("ch12.half_norm"))
figures.bars(tried, f"loss in float16; at most {norm_work.BAR} is asked for", "{:.3f}", limit=norm_work.BAR)

# %% [markdown]
# ## Change it
#
# * `NormView(*norm_work.for_view(SENTENCE, token=5))`: which tokens have a small stream at the end, and which a large
#   one?
# * Normalize only the queries and keys (rows of 64), or only the stream (rows of 256), with `norm_work.places(SENTENCE,
#   normalize=lambda norm, x: ...)`; `norm.normalize(x)` is the real one. Which of the two holds the stream in bounds?
# * `norm_work.close_gates(lambda gate: gate > 1)`: a limit instead of a share. Find a better one.

# %% [markdown]
# ## Recap
#
# 1. Layers only add to the residual stream, so it grows; a norm gives each reader a copy, whatever the size it had.
# 2. RMSNorm divides each row by the root of the mean of its squares, and multiplies by a learned weight.
# 3. Squares leave float16 at 255: statistics are float32, then comes one rounding, then the weight.
# 4. Norm and sum are one function, so that one kernel can take its place.
# 5. SiLU of the gate times up: for each token few gates matter, and others for the next.

# %% [markdown]
# ## Explain it aloud
#
# * Why does the stream itself stay as it is, and only a copy is normalized?
# * The weight of a norm can be multiplied into the matrix after it, once and for all. Why not the factor of the row?
# * Somebody leaves out the norms at inference, "the weights are trained by now". What happens?
#
# <details><summary>Three answers to the second question; say yours first</summary>
#
# *Weak:* because it is not a weight.
#
# *Good:* the weight is the same for all tokens; the factor depends on the token, so nobody knows it beforehand.
#
# *Excellent:* and still the factor can move: it is one number a row, so it may be multiplied after the product. The
# lever `folded_norm` does both (chapter 17).
#
# </details>

# %% [markdown]
# ## Read further
#
# * Zhang and Sennrich, *Root Mean Square Layer Normalization*, NeurIPS 2019, section 3.
# * Shazeer, *GLU Variants Improve Transformer*, 2020: two pages on gates.
# * Xiong et al., *On Layer Normalization in the Transformer Architecture*, ICML 2020: before or after.
# * Sun et al., *Massive Activations in Large Language Models*, 2024: the peaks in the stream.
# * vLLM: `vllm/model_executor/layers/layernorm.py` (`forward_native` with a residual), `csrc/layernorm_kernels.cu`,
#   `csrc/activation_kernels.cu`.
#
# Next, the embedding and the head: where the rows come from, and how logits are made of them.
