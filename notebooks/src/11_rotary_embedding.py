# %% [markdown]
# # 11 · Rotary embedding
#
# *How a query and a key find out how far apart they are: both are turned.*
#
# You will
#
# * see what a model writes that cannot tell one position from another,
# * turn pairs of features, and find in real scores what is left of the angles,
# * write the rotation, its table, and the lookup in it, and plug them into the engine,
# * break each of them, and hear the model stutter,
# * have the bundled model read texts three times as long as those of its training, if you like.
#
# Plan an hour and a quarter; three exercises are half an hour of it. A fourth waits at the end. Everything runs on a
# laptop's CPU.

# %% [markdown]
# ## Where we are
#
# Attention compares each query with the keys of all tokens before it. A score is a dot product of two vectors. Nothing
# in it says *where* the two tokens are.

# %%
# %load_ext exercises
import logging

import figures
import torch

import nanovllm
from exercises.kit import rope_work
from nanovllm import LLM
from nanovllm.layers.rotary_embedding import get_rope
from nanovllm.viz import RopeView

PLAIN = {"device": "cpu", "disabled_optimizations": "all", "enable_prefix_caching": False, "max_model_len": 256}
PLAIN |= {"kvcache_block_size": 16, "num_kvcache_blocks": 40}
logging.disable(logging.WARNING)  # the engine warns of very small pools; here they are wanted
STORY = "Once upon a time, there was a little girl named Mia. She had a red kite."
mine()


# %%
def write(engine, prompt=STORY, max_tokens=36):
    """What an engine writes, greedily."""
    with engine.LLM("qwen3-tiny", **PLAIN) as llm:
        params = engine.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        (answer,) = llm.generate(prompt, params, use_tqdm=False)
    print(f"...{prompt[-9:]}{answer['text']}")


# %% [markdown]
# ## Why: a bag of words
#
# `without("ch11.apply_rotary_emb")` is our engine with a rotary embedding that changes nothing. All weights are there,
# and so is every word of the prompt.

# %%
write(nanovllm)
write(without("ch11.apply_rotary_emb"))

# %% [markdown]
# The loss is a number for this: how badly the model guesses each token of a text. Guessing blindly among its 2,048
# tokens would give 7.6; the right model has 0.38 on a text of stories.

# %%
predict("blind", "And the loss of the model that knows no positions?", choices=["about 1", "about 3", "more than 7.6"])

# %%
frequencies = rope_work.plain(rope_work.HEAD_DIM, rope_work.BASE)
text, table = rope_work.long_text(2048), rope_work.table_of(frequencies, 2048)
right = rope_work.losses(table, text)
with rope_work.rotating(lambda x, cos, sin: x):
    blind = float(rope_work.losses(table, text).mean())
print(f"with positions {float(right.mean()):.2f}, without {blind:.2f}")
reveal("blind", "about 1" if blind < 2 else "about 3" if blind < 5 else "more than 7.6")

# %% [markdown]
# Worse than blind: it is sure, and wrong. Its layers were trained with positions in the scores.
#
# ## The idea: hands of a clock
#
# Two features of a head are a point, and a point is an arrow. Turn it by an angle that grows with the token's
# position, and the position is in it. Each pair has a speed of its own, like the hands of a clock. These are three of
# the 32 pairs in a head of the bundled model, at the positions 0 to 8:

# %%
figures.turning(frequencies, [0, 8, 16])

# %% [markdown]
# At position 0 nothing turns. Values are not turned, only queries and keys: position decides who is looked at, not
# what is found there.
#
# Real ones, then. This sentence is read by the bundled model, and we keep the queries and keys of layer 2, before
# they are turned.

# %%
llm = LLM("qwen3-tiny", **PLAIN)
sentence = "Tom and Mia went to the park. Mia had a red ball. Tom threw the ball to Mia."
tokens, queries, keys = rope_work.queries_and_keys(llm, sentence, layer=2)
rotary = get_rope(64, 2048, 10_000.0)
q, k = queries[-1, 3], keys[-2, 1]  # head 3, and the keys that it shares with head 2
print(f"the query of {tokens[-1]!r}, the key of {tokens[-2]!r}, {len(q)} features each")


def score(q_at, k_at):
    """The dot product of the two: the query at one position, the key at another."""
    both = torch.stack((q, k)).unsqueeze(1)  # [2 tokens, 1 head, 64]
    turned, _ = rotary(torch.tensor([q_at, k_at]), both, both)
    return float(turned[0, 0] @ turned[1, 0])


print(f"query at 5, key at 3: {score(5, 3):.3f}")

# %% [markdown]
# ### Predict
#
# Both tokens move 1,000 positions further: the query to 1,005, the key to 1,003. All their arrows point elsewhere now.

# %%
choices = ["it is the same", "it is smaller, because both are late", "it is another one, larger or smaller"]
predict("moved", "What becomes of the score?", choices=choices)

# %%
before, after = score(5, 3), score(1005, 1003)
print(f"query at 5, key at 3: {before:.3f}; query at 1005, key at 1003: {after:.3f}")
reveal("moved", choices[0] if abs(after - before) < 1e-3 else choices[2])

# %% [markdown]
# Turn both arrows of a pair by the same angle, and the angle between them stays; a dot product knows nothing else. So
# a score depends on the **distance** of two tokens, wherever they are. Here are the same two vectors at all
# positions from 0 to 9: along each diagonal the number is the same. (In the upper right half the key comes after the
# query; attention never asks for that.)

# %%
table_of_scores = torch.tensor([[score(i, j) for j in range(10)] for i in range(10)])
figures.scores_by_positions(table_of_scores, "The score of one query and one key, by their positions")

# %% [markdown]
# ## A picture to play with
#
# The same two vectors. First the query moves away from the key, then both move together. Watch the arrows (pairs 0, 4,
# 8 and 16), and the orange square.

# %%
RopeView(q, k, rotary)

# %% [markdown]
# The curve has its top at distance 1. Turned like this, the query asks for *the token just before*, and that is what
# this head does:

# %%
positions = torch.arange(len(tokens))
turned_q, turned_k = rotary(positions, queries, keys)
scores = turned_q[:, 3] @ turned_k[:, 1].T / 8
attention = scores.masked_fill(torch.triu(torch.ones_like(scores), 1).bool(), float("-inf")).softmax(-1)
before = [float(attention[i, i - 1]) for i in range(2, len(tokens))]
print(f"head 3 of layer 2: {sum(before) / len(before):.0%} of its attention goes to the token just before")

# %% [markdown]
# Nobody programmed that. The training found weights whose arrows meet at distance 1.
#
# ## Which features are a pair?
#
# A head is a row of numbers, and there are two customs.

# %%
figures.pairs_of_features()

# %% [markdown]
# ### Predict
#
# Both are rotations, and with both a score depends on distance only. The bundled model was trained with halves.

# %%
choices = ["nothing changes", "it writes another good story", "it writes nonsense"]
predict("custom", "We turn neighbors instead, with the same weights. What does it write?", choices=choices)

# %%
with rope_work.rotating(rope_work.neighbors):
    write(nanovllm)
    loss = float(rope_work.losses(table, text).mean())
print(f"\nloss {loss:.2f}; with halves {float(right.mean()):.2f}")
reveal("custom", choices[2] if loss > 1 else choices[1] if loss > 0.5 else choices[0])

# %% [markdown]
# Neither custom is better. But a feature learned its speed in the training, and with neighbors nearly all features have
# another one. So the custom belongs to the checkpoint, as the weights do; loaders of other families sort the rows of
# `q_proj` and `k_proj` once instead.
#
# ## Your turn: the rotation
#
# An arrow to (*first*, *second*) that turns by an angle *a*, counterclockwise, points to
#
# (*first* · cos *a* − *second* · sin *a*,  *second* · cos *a* + *first* · sin *a*).

# %%
# {{exercise ch11.apply_rotary_emb}}

# %%
# Plugged in: the story, with your rotation.
me = mine()
print(me.whose("ch11.apply_rotary_emb"))
write(me)

# %% [markdown]
# ## How fast?
#
# Pair *i* turns by base ** (−2 *i* / head_dim) radians a position: pair 0 by one radian, the last one by hardly more
# than 1 / base. Fast pairs tell a neighbor from the next but one, slow pairs the near from the far. Without that, when
# all pairs are equally fast:

# %%
write(without("ch11.rope_table"))

# %% [markdown]
# With one speed, distance 6 looks nearly like distance 0, and so do 13, 19 and 25. The base decides how slow the
# slowest pairs are. Here are the positions that a pair needs to go round once.

# %%
models = {"qwen3-tiny, base 10,000": frequencies, "Qwen3-0.6B, base 1,000,000": rope_work.plain(128, 1e6)}
figures.wavelengths(models, {"qwen3-tiny": 2048, "Qwen3-0.6B": 40_960})

# %% [markdown]
# In texts of 2,048 tokens, some pairs of the small model never go round. Keep that in mind for the end of the chapter.
#
# All angles are known beforehand, so they are a table: a row for each position, with the cosines of all pairs and then
# the sines. One table serves all layers. Its numbers are float32, also where the model is bfloat16.
#
# ### Predict
#
# bfloat16 has eight binary digits. Somebody computes positions and angles in it, and takes cosines and sines of those.

# %%
choices = ["none: it is too coarse", "the first few hundred", "all, with a small error everywhere"]
predict("coarse", "For which positions is such a table good?", choices=choices)

# %%
coarse = torch.outer(torch.arange(2048).bfloat16(), frequencies.bfloat16()).float()
in_bfloat16 = rope_work.losses(torch.cat((coarse.cos(), coarse.sin()), -1).unsqueeze(1), text)
curves = {"computed in bfloat16": in_bfloat16, "computed in float32": right}
figures.loss_by_position(curves, 128, "How badly each token is guessed, by its position")
early, late = (round(float((in_bfloat16 - right)[part].mean()), 2) + 0 for part in (slice(0, 256), slice(1024, None)))
print(f"what bfloat16 costs: {early:.2f} up to position 256, {late:.2f} from 1,024 on")
print("256, 257, 258 and 259 as bfloat16:", torch.arange(256, 260).bfloat16().tolist())
reveal("coarse", choices[1] if early < 0.1 < late else choices[0] if early > 0.1 else choices[2])

# %% [markdown]
# From 257 on, bfloat16 has not even every whole number, and two neighbors get the same angles. At position 30,000 the
# next number is 128 further. A short test would never have noticed. To *store* finished cosines in bfloat16 would do
# little harm: they are rounded, not turned.

# %%
# {{exercise ch11.rope_table}}

# %%
# Plugged in: your table, beside one that Python's own floats make.
import math

me = mine()
print(me.whose("ch11.rope_table"))
yours = me.function("ch11.rope_table")(64, 2048, 10_000.0)
for p, i in ((0, 0), (1, 0), (2047, 5), (2047, 31)):
    print(f"position {p:4}, pair {i:2}: {float(yours[p, 0, i]):+.4f}, {math.cos(p * 10_000 ** (-i / 32)):+.4f}")
write(me)

# %% [markdown]
# ## In the engine: who knows the position?
#
# A step is flat: the tokens of all its sequences stand behind each other, and each sequence begins anywhere. So
# `forward` gets a tensor of positions, which your `prepare_prefill` and `prepare_decode` have made; the table is
# `self.cos_sin_cache`.
#
# Below is an engine that counts for itself, 0, 1, 2, ..., through each step.

# %%
choices = ["the whole text is wrong", "it begins right, and then goes wrong", "all is right, it is one sequence"]
predict("counts", "One prompt, alone, read in one step. What does such an engine write?", choices=choices)

# %%
write(nanovllm)
write(without("ch11.forward"))


def first_tokens(engine):
    """The first tokens of an answer."""
    with engine.LLM("qwen3-tiny", **PLAIN) as one:
        params = engine.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        return one.generate(STORY, params, use_tqdm=False)[0]["token_ids"]


ours, theirs = first_tokens(nanovllm), first_tokens(without("ch11.forward"))
print("\nthe first tokens:", ours, "\n             and:", theirs)
reveal("counts", choices[2] if ours == theirs else choices[1] if ours[0] == theirs[0] else choices[0])

# %% [markdown]
# A prompt from its beginning is counted right. From then on each step has one token, and to this engine it is always
# the first of the text.
#
# The same would happen to a prompt that is read in two pieces, and behind a cached prefix.
#
# Keys are turned **before** they are stored, at their own position, once. A position never changes, so no
# later step has to touch them. And a block of the cache can be shared by all texts that begin alike: equal beginnings
# have equal positions.

# %%
# {{exercise ch11.forward}}

# %% [markdown]
# ## Milestone: your positions
#
# All three functions are in the engine. Two requests, one after the other: each prompt is read in pieces of 16 tokens,
# and the second finds blocks of the first one in the cache.

# %%
me = mine()
print(me.whose("ch11"))
options = PLAIN | {"enable_prefix_caching": True, "max_num_batched_tokens": 16, "kvcache_block_size": 4}
prompts, answers = [STORY, STORY + " One day"], []
for engine in (me, nanovllm):
    with engine.LLM("qwen3-tiny", **options) as one:
        params = engine.SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        answers.append([one.generate(prompt, params, use_tqdm=False)[0] for prompt in prompts])
for answer in answers[0]:
    print(f"{answer['num_cached_tokens']:3} tokens from the cache  {answer['text']!r}")
print("the same as ours:", *[a["token_ids"] == b["token_ids"] for a, b in zip(*answers, strict=True)])

# %% [markdown]
# ## Your engine
#
# The map, and how fast it is now, measured on the fixed work of all chapters.

# %%
print(mine().whose("ch11"))
staircase("11")

# %% [markdown]
# ## One more: further than in the training
#
# This section is for those who have twenty-five minutes left. Nothing later needs it.
#
# qwen3-tiny was trained on rows of 2,048 tokens. Nothing in the code stops us from making a longer table. So let it
# read 6,144 tokens of stories: each is short, and nothing in it depends on what was 3,000 tokens earlier.

# %%
choices = ["as good as before", "a little worse", "it breaks down, though not at once"]
predict("longer", "How well does it guess the tokens beyond position 2,048?", choices=choices)

# %%
far = {"as trained": rope_work.losses_of(frequencies, rope_work.LONGEST)}
figures.loss_by_position(far, 256, "Three times as long as in the training", rope_work.TRAINED)
spans = ((0, 2048), (2048, 2560), (2560, 3584), (3584, 6144))
parts = [float(far["as trained"][a:b].mean()) for a, b in spans]
print("loss up to 2,048, then to 2,560, 3,584 and 6,144:", *[f"{part:.2f}" for part in parts])
reveal("longer", choices[2] if parts[2] > 2 * parts[0] else choices[1] if parts[2] > 1.2 * parts[0] else choices[0])

# %% [markdown]
# The tokens are no harder there. But slow pairs come to angles at which the model has never seen them.
#
# A cure suggests itself. If 6,144 positions are too many, squeeze them: divide all frequencies by 3. Then position
# 6,000 has the angles that 2,000 had, and nothing is new. This is **position interpolation**.
#
# ### Predict
#
# We squeeze, and train nothing.

# %%
choices = ["good everywhere", "better than before, but not good", "worse than before, even at the beginning"]
predict("squeezed", "How well does it guess now?", choices=choices)

# %%
far["all divided by 3"] = rope_work.losses_of(frequencies / 3, rope_work.LONGEST)
figures.loss_by_position(far, 256, "Three times as long as in the training", rope_work.TRAINED)
means = [float(losses.mean()) for losses in far.values()]
print("loss of the whole text:", *[f"{name} {mean:.2f}" for name, mean in zip(far, means, strict=True)])
reveal("squeezed", choices[2] if means[1] > means[0] else choices[1] if means[1] > 0.6 else choices[0])

# %% [markdown]
# Every angle is an old one, and still nothing fits: the token just before is now at a third of a position. The
# head that looks there turns its arrows in vain. (With some further training interpolation works well; that is how it
# was meant.)
#
# So the first try ruins what is slow, and the second what is fast. Can you do better? The exercise is open. The
# function gets the numbers of any model; the check reads stories of 4,096 and of 6,144 tokens, in about ten seconds.

# %%
# {{exercise ch11.long_frequencies}}

# %%
me = mine("ch11.long_frequencies")
print(me.whose("ch11.long_frequencies"))
chosen = me.function("ch11.long_frequencies")(64, 10_000.0, 2048, rope_work.LONGEST)
name = me.owner("ch11.long_frequencies")
far[name] = rope_work.losses_of(chosen, rope_work.LONGEST)
figures.loss_by_position(far, 256, "Three times as long as in the training", rope_work.TRAINED)
print(f"loss of the whole text: {name} {float(far[name].mean()):.2f}")

# %% [markdown]
# Three answers have names. A larger base slows the last pairs most and the first not at all: **NTK-aware** scaling.
# **NTK by parts** keeps the pairs that go round in the training and squeezes the others. **YaRN** does the same, and
# sharpens attention a little. Checkpoints say in `rope_scaling` which one they were trained on with; our core
# reads none of them.
#
# None of it gives the model a longer memory. It was never asked to find something 5,000 tokens back.

# %% [markdown]
# ## Change it
#
# * Give `RopeView` head 2 of layer 2: `RopeView(queries[-1, 2], keys[-3, 1], rotary)`. About which distance does it ask
#   for?
# * In the exercise's cell, turn queries and keys by the opposite angle, and `write(mine("ch11.apply_rotary_emb"))`: an
#   answer that has failed is used if it is named. Scores still depend on distance only. Why is the text nonsense?
# * Let `rope_table` begin to count at position 100, and name it to `mine`. What changes in the text? Think first.
# * Turn only the last ten pairs, and leave the others as they are (`rope_work.rotating`). How large is the loss? And
#   with only the first ten?
# * `rope_work.losses_of(frequencies_of_yours, 6144, seed=1)`: are your frequencies as good on other stories?

# %% [markdown]
# ## Recap
#
# 1. Pairs of features turn by an angle that grows with the position; the score of query and key keeps their distance.
# 2. Each pair has its own speed, from one radian a position to about 1 / base; which features are a pair, the
#    checkpoint decides.
# 3. Angles are computed in float32: bfloat16 cannot tell 256 from 257.
# 4. Positions come with the step, since sequences begin anywhere in it; keys are stored turned, once.
# 5. Beyond the training slow pairs meet angles that are new. Slow them down, and leave the fast ones alone.

# %% [markdown]
# ## Explain it aloud
#
# * Why are values not turned?
# * Two requests share a cached block. Whose positions are in its keys?
# * Somebody caches keys unturned, and turns them when they are read. What would be gained, and what does it cost?
#
# <details><summary>Three answers to the last question; say yours first</summary>
#
# *Weak:* it would be slower.
#
# *Good:* every step would turn all keys it reads, thousands, instead of one new one.
#
# *Excellent:* and it would gain something: a cached piece of text could be used at another position, in the middle of
# another prompt. But its keys and values have looked at what stood before them, so turning alone does not make them
# right.
#
# </details>

# %% [markdown]
# ## Read further
#
# * Su et al., *RoFormer: Enhanced Transformer with Rotary Position Embedding*, 2021, section 3.
# * Chen et al., *Extending Context Window of Large Language Models via Positional Interpolation*, 2023; Peng et al.,
#   *YaRN: Efficient Context Window Extension of Large Language Models*, ICLR 2024, section 3.
# * vLLM: `vllm/model_executor/layers/rotary_embedding/`: `base.py`, and a file for each way of reading further.
#
# Next, normalization: what keeps the numbers between the layers in bounds.
