# %% [markdown]
# # 14 · The sampler
#
# *From 2,048 numbers to one token: how bold, how careful, and the same again tomorrow.*
#
# You will
#
# * see what a temperature and three filters do to a real model's logits,
# * write the filters, and the sampler around them,
# * make noise from a counter, so that a request writes the same text alone and in a crowd,
# * find a rule of your own that is bold in stories and sure in sums, if you like.
#
# Plan an hour and a half; four exercises are three quarters of an hour of it. A fifth, an open one, waits at the end.
# Everything runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# The model gives a logit for each token of its vocabulary. Somebody has to choose. Until now that was `argmax` almost
# everywhere: temperature 0, **greedy**.

# %%
# %load_ext exercises
import logging
import timeit
from functools import partial
from unittest import mock

import figures
import torch

import nanovllm
from exercises.kit import story_work
from nanovllm import SamplingParams
from nanovllm.layers import sampler
from nanovllm.viz import SamplerView
from nanovllm.viz.sampler_view import Cut

SMALL = {"kvcache_block_size": 16, "num_kvcache_blocks": 100, "max_model_len": 256, "device": "cpu"}
SMALL |= {"max_num_seqs": 8, "disabled_optimizations": "all"}
logging.disable(logging.WARNING)  # the engine warns of very small pools; one is wanted below
mine()


# %%
def ask(engine, prompts, params):
    """The texts that an engine writes."""
    with engine.LLM("qwen3-tiny", **SMALL) as llm:
        return [answer["text"] for answer in llm.generate(prompts, params, use_tqdm=False)]


def params_of(seeds, max_tokens=24, **more):
    return [SamplingParams(seed=seed, max_tokens=max_tokens, **more) for seed in seeds]


# %% [markdown]
# ## Why: always the same, or now and then nonsense
#
# Three requests for a story, greedy; then three that draw a token by its probability, which is temperature 1.

# %%
for temperature in (0.0, 1.0):
    print(f"temperature {temperature}")
    for text in ask(nanovllm, ["One day, a little cat"] * 3, params_of([1, 2, 3], temperature=temperature)):
        print("   ", repr(f"One day, a little cat{text}"))

# %% [markdown]
# Greedy is one story for everybody. Drawn ones differ, but the first of them has left the rails: one unlucky token, and
# the model goes on from there.
#
# ### Predict
#
# Most tokens are very unlikely, but there are two thousand of them.

# %%
predict("tail", "Of 100 tokens of a story drawn like that, how many are not among the 20 most likely at their place?")

# %%
chances = story_work.places("stories").logits.softmax(-1).sort(dim=-1, descending=True).values
tail, best = 1 - chances[:, :20].sum(-1), chances[:, 0]
reveal("tail", round(100 * tail.mean().item()))
print(f"and at {100 * (best > 0.9).float().mean():.0f} % of all places one token has more than 90 %")
accidents = (tail * (best > 0.1)).mean().item()
print(f"{100 * (1 - accidents / tail.mean()):.0f} % of the tail lies where no token has even 10 %")
print(f"the rest is one token in {1 / accidents:.0f}")
figures.how_sure(chances)

# %% [markdown]
# Most of that tail is where no token has even 10 %: a name, an opening. There a rare token may be as good as any. The
# rest are accidents, where the model knew better, and a story of some length passes through one. Sampling is about
# having the choices without the accidents.
#
# ## A picture: the temperature
#
# Here are the logits at a place with a choice. The blue bars are what can be drawn, the orange marks what 1,000 draws
# gave. Jump to the three settings with the buttons; while the kernel runs, the sliders move everything.

# %%
PROMPT = "Tom and his friend Mia, a girl, did everything together."
logits, tokenizer = story_work.logits_after(PROMPT)
settings = {f"temperature {value:g}": Cut(value) for value in (1.0, 0.4, 2.0)}
SamplerView(logits, tokenizer, PROMPT, presets=settings)

# %% [markdown]
# A temperature divides the logits before the softmax:
#
# {{source nanovllm/layers/sampler.py:apply_temperature}}
#
# ### Predict
#
# At temperature 1 the best token is some times as likely as the second: call it r.

# %%
SQUARES = ["r / 2", "2 r", "r · r", "still r"]
predict("halved", "How many times as likely is it at temperature 0.5?", choices=SQUARES)

# %%
ratios = []
for temperature in (1.0, 0.5):
    best = sampler.apply_temperature(logits[None], torch.tensor([temperature])).softmax(-1)[0].topk(2).values
    ratios.append((best[0] / best[1]).item())
print(f"temperature 1: {ratios[0]:.2f} times as likely; temperature 0.5: {ratios[1]:.2f} times")
reveal("halved", SQUARES[2] if abs(ratios[1] - ratios[0] ** 2) < 0.01 else "something else")

# %% [markdown]
# A difference of logits is the logarithm of a ratio, so 1/T is an exponent on every ratio. At T = 2 it is a square
# root: all tokens move together, the tail too. The limit T → 0 is greedy; it has a path of its own, because nobody can
# divide by 0.
#
# ## Three filters
#
# The temperature treats favorites and tail alike. A filter drops tokens: their logit becomes -inf, and e to the power
# of that is 0.
#
# | filter | keeps |
# |---|---|
# | **min-p** | what is at least that share of the most likely token's probability |
# | **top-k** | the k most likely |
# | **top-p** | the fewest that together have that probability |
#
# ### What happens without min-p
#
# Temperature 1.5 and min-p 0.2, with our engine, and with one that keeps everything.


# %%
def bold(engine):
    """Three stories at a high temperature, with a filter that is to keep them sensible."""
    params = params_of([1, 4, 5], 30, temperature=1.5, min_p=0.2)
    for text in ask(engine, ["Once upon a time"] * 3, params):
        print("   ", repr(f"Once upon a time{text}"))


for name, engine in {"with min-p": nanovllm, "without": without("ch14.apply_min_p")}.items():
    print(name)
    bold(engine)

# %% [markdown]
# The tools: `masked_fill(mask, -torch.inf)` gives a copy with -inf where the mask is true; `amax(dim=-1, keepdim=True)`
# is the largest number of each row, as a column; `unsqueeze(-1)` makes a column of one number a row.

# %%
# {{exercise ch14.apply_min_p}}

# %%
# Plugged in: the same wishes, with your filter.
me = mine()
print(me.whose("ch14.apply_min_p"))
bold(me)

# %% [markdown]
# ## The best few, and the fewest that suffice
#
# Top-k and top-p are asked for together quite often. vLLM applies min-p, then top-k, then top-p, and so do we.
#
# ### Predict
#
# Top-k 5 and top-p 0.8.

# %%
OF = ["0.8 of all probability", "0.8 of what the five have together"]
predict("of what", "The five have some share of all probability. What is it that top-p adds up to?", choices=OF)

# %%
five = torch.tensor([5])
kept = sampler.apply_top_k_top_p(logits[None], five, torch.tensor([0.8]))[0] > -torch.inf
probabilities = logits.softmax(-1)
share, total = probabilities[kept].sum().item(), probabilities.topk(5).values.sum().item()
print(f"the five have {total:.3f}, and 0.8 of that is {0.8 * total:.3f}")
print(f"{int(kept.sum())} of them are kept; of all probability these have {share:.3f}")
reveal("of what", OF[1] if share < 0.8 else OF[0])

# %%
view = SamplerView(logits, tokenizer, PROMPT)
view.step = view.bookmarks["top-k 5, then top-p 0.8"]
view

# %% [markdown]
# Each filter looks at what the one before it has left, as a whole of 1. Look at "temperature 2 and min-p 0.2", too: the
# temperature comes first, so the filters see what it has made.
#
# One sort serves both. `sort(dim=-1)` gives sorted values, the smallest first, and `order`: which token stands at each
# place. `gather(-1, index)` reads at another place in each row, `cumsum(dim=-1)` adds up from the left, and
# `torch.empty_like(x).scatter_(-1, order, values)` puts sorted values back where they were. Mind top-p 1: added up from
# the most likely on, float32 is at 1 long before the tail ends; from the least likely on nothing gets lost.

# %%
# {{exercise ch14.apply_top_k_top_p}}

# %%
# Plugged in: three wishes for the same place, by your functions.
me = mine()
print(me.whose("ch14.apply_min_p", "ch14.apply_top_k_top_p"))
wishes = {"top-k 5": Cut(top_k=5), "top-p 0.8": Cut(top_p=0.8), "both": Cut(top_k=5, top_p=0.8)}
SamplerView(logits, tokenizer, PROMPT, me.layers.sampler, presets=wishes)

# %% [markdown]
# ## Drawing
#
# The usual way to draw from probabilities is `torch.multinomial`: it takes numbers from a generator, one after the
# other. Below, three tokens are drawn for a request with a seed: alone, and as the last of three.
#
# ### Predict

# %%
SAME = ["the same tokens", "other tokens"]
predict("crowd", "The generator starts from the same seed both times. Does our request get", choices=SAME)

# %%
drawn = []
for crowd in (1, 3):
    generator = torch.Generator().manual_seed(7)
    rows = probabilities.expand(crowd, -1)
    drawn.append([torch.multinomial(rows, 1, generator=generator)[-1].item() for _ in range(3)])
    print(f"{crowd} in the batch:", [tokenizer.decode([token_id]) for token_id in drawn[-1]])
reveal("crowd", SAME[drawn[0] != drawn[1]])

# %% [markdown]
# The generator has one stream, and the neighbors drink from it. A generator for each request would help. But it is a
# state that somebody has to keep: a request that begins anew, or goes on in another process, has to find it as it was.
# And a GPU, which could draw for all rows at once, would draw for one after the other.
#
# There is another way to draw. Add noise to each logit, and take the largest:
#
# **argmax(logits + noise)**, with noise = -log(-log(u)) and u evenly spread between 0 and 1.
#
# This is the **Gumbel-max trick**: the winner is a draw from softmax(logits), exactly. No sum, no sort, and each
# token's noise can be made on its own.

# %%
noise = sampler.gumbel_noise(torch.tensor([1, 2, 3]), torch.tensor([9, 9, 9]), len(logits))
best = probabilities.topk(8).indices
names = [tokenizer.decode([token_id]) for token_id in best.tolist()]
figures.noisy_logits(names, logits[best], noise[:, best])

# %% [markdown]
# Three draws at the same place. A bar is a logit, the line what the noise makes of it. A token wins if it is likely, or
# lucky.
#
# ### Predict
#
# Why this odd noise? Take normal noise, as wide as Gumbel noise is.

# %%
NORMAL = ["too often", "as often as it should", "too rarely"]
predict("normal", "In 4,000 draws with normal noise, the most likely token wins", choices=NORMAL)

# %%
count = 4_000
gumbel = sampler.gumbel_noise(torch.arange(count), torch.full((count,), 5), len(logits))
normal = torch.randn(gumbel.shape, generator=torch.Generator().manual_seed(0)) * torch.pi / 6**0.5
wins = {}
for name, kind in {"Gumbel": gumbel, "normal": normal}.items():
    winners = (logits + kind).argmax(-1)
    wins[name] = [(winners == token_id).float().mean().item() for token_id in best]
figures.frequencies(names, probabilities[best].tolist(), wins)
share, right = wins["normal"][0], probabilities[best[0]].item()
reveal("normal", NORMAL[1 if abs(share - right) < 0.02 else 0 if share > right else 2])

# %% [markdown]
# Great luck is rarer in normal noise than it should be, so the favorite wins too often. With Gumbel noise it comes out
# exactly: the winning sum has a Gumbel spread again, whoever wins, and each wins by its share of the softmax.
#
# ## Noise from a counter
#
# Now the seed. What if the noise of a token is *computed*, from the request's seed, the position in its text, and the
# token id? Then nobody's neighbors matter, nor how often a step was made. It takes a function that mixes numbers well:
#
# {{source nanovllm/layers/sampler.py:hash32}}
#
# Neighbors come out far apart:

# %%
for x in (0, 1, 2, 3):
    print(x, f"{sampler.hash32(torch.tensor(x)).item():032b}")

# %% [markdown]
# Mind the 0: it stays 0. Mind what is mixed with what: 20 + 9 and 21 + 8 are equal before any mixing. And mind the
# bits: only the lower 32 count, and a seed has 63, so its upper half, `seeds >> 32`, has to be mixed in, too. float32
# has room for 24 of the 32 that come out; u must be neither 0 nor 1.
#
# ### What happens without it
#
# An engine without noise: three requests with three seeds, at temperature 1. Then noise that forgets the position.

# %%
silent = without("ch14.gumbel_noise")
for text in ask(silent, ["One day, a little cat"] * 3, params_of([1, 2, 3], 14, temperature=1.0)):
    print(repr(text))
make_noise = sampler.gumbel_noise
with mock.patch.object(sampler, "gumbel_noise", lambda seeds, positions, size: make_noise(seeds, 0 * positions, size)):
    print(repr(ask(nanovllm, ["One day, a little cat"], params_of([2], 40, temperature=1.0))[0]))

# %% [markdown]
# A token that is lucky once is lucky at every place: so everybody has the same name.

# %%
# {{exercise ch14.gumbel_noise}}

# %%
# Plugged in: a request with a seed alone, and the same one in a crowd that has too little memory.
me = mine()
print(me.whose("ch14.gumbel_noise"))
alone = ask(me, ["One day, a little cat"], params_of([12]))
others = ["The sun was warm", "Tom had a ball", "There was an old boat", "Once upon a time"]
with me.LLM("qwen3-tiny", **SMALL | {"kvcache_block_size": 4, "num_kvcache_blocks": 24, "max_num_seqs": 5}) as llm:
    answers = llm.generate([*others, "One day, a little cat"], params_of([1, 2, 3, 4, 12]), use_tqdm=False)
    preempted = llm.scheduler.num_preemptions
print(f"alone:      {alone[0]!r}\nin a crowd: {answers[-1]['text']!r}")
print(f"the same: {answers[-1]['text'] == alone[0]}; {preempted} times somebody had to step aside")

# %% [markdown]
# Somebody was preempted and began again, and nothing changed. That is what a seed should mean.
#
# The check has said that the text is the same as ours. That is text without luck, greedy or with top-k 1. What is
# drawn is your own: another mixing of the same three numbers writes other stories.
#
# Without a seed of its own, a request gets one of the engine's seed and its number.
#
# ## The sampler
#
# The parts are there. What comes in is this:
#
# {{source nanovllm/layers/sampler.py:SamplingMetadata}}
#
# Rows of one batch ask for different things, and all are computed alike: no loop, and no `if` about a number on the
# GPU, for which the CPU would have to wait. What a batch has not asked for at all is `None`.
#
# ### What happens without it
#
# An engine that always takes the argmax, whatever it is asked for:

# %%
wishes = [*params_of([1], 14, temperature=0.0), *params_of([1, 2], 14, temperature=1.0)]
for text in ask(without("ch14.forward"), ["One day, a little cat"] * 3, wishes):
    print(repr(text))

# %%
# {{exercise ch14.forward}}

# %%
# Plugged in: one batch, five wishes. The first two are greedy, one of them by top-k 1.
me = mine()
print(me.whose("ch14.forward"))
wishes = [SamplingParams(temperature=0.0, max_tokens=16), SamplingParams(top_k=1, seed=3, max_tokens=16)]
wishes += params_of([3], 16, top_p=0.8) + params_of([3], 16, temperature=1.5, min_p=0.2) + params_of([3], 16, top_k=5)
for wish, text in zip(wishes, ask(me, ["One day, a little cat"] * 5, wishes), strict=True):
    asked = f"T {wish.temperature}, k {wish.top_k}, p {wish.top_p}, min-p {wish.min_p}"
    print(f"{asked:32} {text!r}")

# %% [markdown]
# ## Log-probabilities
#
# A request may ask how likely its tokens were: `logprobs=2` gives the two best at each place, and the chosen one.
#
# {{source nanovllm/layers/sampler.py:compute_logprobs}}
#
# As in vLLM they are the *model's*, before temperature and filters: two requests can be compared, whatever they have
# asked for. That is why a filter must not write into the logits that come in.

# %%
with mine().LLM("qwen3-tiny", **SMALL) as llm:
    for temperature in (0.3, 1.5):
        wish = SamplingParams(temperature=temperature, seed=6, max_tokens=3, logprobs=2)
        (answer,) = llm.generate(["One day, a little cat"], wish, use_tqdm=False)
        print(f"temperature {temperature}")
        for token_id, row in zip(answer["token_ids"], answer["logprobs"], strict=True):
            best = ", ".join(f"{tokenizer.decode([i])!r} {value:.2f}" for i, value in row.items())
            print(f"    chosen {tokenizer.decode([token_id])!r:12} {best}")

# %% [markdown]
# ## What it costs
#
# Measured now, for 8 rows of 151,936 logits, the vocabulary of Qwen3:

# %%
large = torch.randn(8, 151_936, generator=torch.Generator().manual_seed(0))
shares, ps = torch.full((8,), 0.1), torch.full((8,), 0.9)
parts = {
    "argmax": lambda: large.argmax(-1),
    "min-p": lambda: sampler.apply_min_p(large, shares),
    "noise": lambda: sampler.gumbel_noise(torch.arange(8), torch.arange(8), large.shape[1]),
    "top-p": lambda: sampler.apply_top_k_top_p(large, None, ps),
}
milliseconds = {name: 1000 * min(timeit.repeat(part, number=1, repeat=3)) for name, part in parts.items()}
figures.bars(milliseconds, "milliseconds for 8 rows on this machine's CPU", "{:.1f}")

# %% [markdown]
# Top-p has to sort, and that takes longest: filters that nobody asks for are left out. The noise is plain arithmetic,
# the same for every token, which a GPU is made for: there, one kernel does temperature, noise and argmax in a single
# pass over the logits (the lever `fused_sampler` of chapter 17).

# %% [markdown]
# ## Your engine

# %%
print(mine().whose("ch14"))
staircase("14")

# %% [markdown]
# ## One more: a rule of your own
#
# One temperature is a compromise: lively stories want a high one, sums a low one. Along sixteen recorded stories and
# fifty tasks (sums and spellings), we can compute what a rule *would* do. Nothing is drawn, so no luck is in it:
#
# * **choices** at an average place of a story: e to the power of the mean entropy. Were k tokens equally likely
#   everywhere, that would be k.
# * **likely**: the mean log-probability of what it chooses there, as the model sees it.
# * **right**: how often a task comes out right, from the first token to the last.

# %%
judged = {}
for temperature in (0.6, 0.8, 1.0, 1.2, 1.5):
    judged[f"T {temperature}"] = story_work.judge(partial(story_work.plain, temperature=temperature, top_p=1.0))
judged["T 0.8, top-p 0.95"] = story_work.judge(story_work.plain)
for name, rule in judged.items():
    print(f"{name:18} {rule.choices:.2f} choices, likely {rule.likelihood:.2f}, {100 * rule.right:.2f} % right")
figures.choices_and_right(judged, story_work.CHOICES, story_work.RIGHT)

# %% [markdown]
# Every plain setting lies on one line: more choices, more mistakes. Your rule shall reach the corner above and right of
# the dashed lines, and its choices shall be likely: -0.65 or more. Whatever does counts.

# %%
# {{exercise ch14.my_rule}}

# %%
me = mine("ch14.my_rule")
print(me.whose("ch14.my_rule"))
name = me.owner("ch14.my_rule")
judged[name] = story_work.judge(me.function("ch14.my_rule"))
rule = judged[name]
print(f"{name}: {rule.choices:.2f} choices, likely {rule.likelihood:.2f}, {100 * rule.right:.2f} % right")
figures.choices_and_right(judged, story_work.CHOICES, story_work.RIGHT)

# %% [markdown]
# ## Change it
#
# * In the first picture, find the highest temperature at which min-p 0.1 still drops all tokens but the best three.
# * Ask for temperature 3 and top-p 0.9, then for temperature 3 and min-p 0.1. Which keeps more of the tail, and why?
# * Use seeds 20 and 21 for two requests whose texts differ in length by one token. Is their noise related?

# %% [markdown]
# ## Recap
#
# 1. A temperature is an exponent on all ratios of probabilities; at 0 the best token wins.
# 2. Filters drop tokens, in vLLM's order: min-p, top-k, top-p, each on what is left.
# 3. argmax(logits + Gumbel noise) is an exact draw from the softmax, without a sum and without a sort.
# 4. Noise from a hash of seed, position and token makes a request independent of its neighbors.
# 5. Log-probabilities are the model's, before all of this.

# %% [markdown]
# ## Explain it aloud
#
# * Why does min-p adapt to the model's certainty, and top-k not?
# * A colleague adds the noise before the filters: "the winner is the same". Is it?
# * Two requests have the same seed and the same prompt. What do they write, and is that a flaw?
#
# <details><summary>Answers of three grades (open them when you have given yours)</summary>
#
# **Is the winner the same?**
#
# * *weak*: Probably not.
# * *good*: No: the filters would drop tokens by their luck. A likely token with little luck is gone for good.
# * *excellent*: For top-k it even happens to be the same: the winner of all is always among the k best. But then top-k
#   drops nothing that could have won, and the tail is drawn as if there were no filter.
#
# </details>

# %% [markdown]
# ## Read further
#
# * vLLM: `vllm/v1/sample/sampler.py` (the order), `vllm/v1/sample/ops/topk_topp_sampler.py` (the sort, and how it is
#   avoided).
# * Nucleus sampling: Holtzman et al., *The Curious Case of Neural Text Degeneration*, ICLR 2020, section 3.
# * Nguyen et al., *Turning Up the Heat: Min-p Sampling*, 2024.
# * Gumbel-max: Maddison, Tarlow and Minka, *A\* Sampling*, NeurIPS 2014, section 2.
# * Counters instead of streams: Salmon et al., *Parallel Random Numbers: As Easy as 1, 2, 3*, SC 2011.
#
# Next, the model itself: attention, MLP and norms, put together.
