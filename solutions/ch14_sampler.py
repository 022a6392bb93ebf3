"""Our answers to chapter 14, sampler, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from dataclasses import dataclass
import torch
from torch import Tensor, nn
from nanovllm.layers.sampler import SamplingMetadata, Sampler, apply_temperature, apply_min_p, apply_top_k_top_p, gumbel_noise, hash32, compute_logprobs
import math
from collections.abc import Sequence
from torch import Tensor


# --- ch14.apply_min_p
# The limit moves with the model's certainty. Where one token is nearly sure, the limit is high and nothing else is left; where
# fifty are about equally good, they all stay. A fixed k cannot do both. A quotient of probabilities is a difference of logits,
# and the sum that a softmax divides by is the same on both sides: so ours compares logits with the largest one plus
# log(min_p), and never makes a probability. log(0) is -inf, below which nothing is, so min_p 0 needs no case of its own.
def apply_min_p(logits: Tensor, min_p: Tensor) -> Tensor:
    """Drop tokens less than `min_p` times as likely as the row's most likely one.

    Min-p sampling: Nguyen et al., 2024.

    Args:
        logits: [num_seqs, vocab_size] float32, -inf for tokens that are dropped already; the
            tensor stays as it is.
        min_p: [num_seqs] float32, from 0, which drops nothing, to 1.

    Returns:
        [num_seqs, vocab_size] float32: logits of the tokens that are kept, -inf for the others.
    """
    # p >= min_p * p_max is the same as logit >= max logit + log(min_p): no softmax is needed.
    threshold = logits.amax(dim=-1, keepdim=True) + min_p.log().unsqueeze(-1)
    return logits.masked_fill(logits < threshold, -torch.inf)


# --- ch14.apply_top_k_top_p
# From the least likely token on, everything may go whose sum is at most 1 - top_p: then what is left has top_p. That direction
# is vLLM's, and is safer than the other: the tail's tiny numbers are added before large ones swallow them, and top_p 1 drops
# nothing that has a probability, because no such sum is at most 0. From the top down a float32 sum is at 1 long before the tail
# ends, and a row that asks for everything loses it. The last place is kept by decree, for a row of which nothing would be left. The sort is
# what takes the time: 151,936 numbers a row for a large vocabulary. That is why it is left out if nobody has asked for it, and
# why others search for the limit instead of sorting (FlashInfer draws, and draws again if the token is beyond it).
def apply_top_k_top_p(logits: Tensor, top_k: Tensor | None, top_p: Tensor | None) -> Tensor:
    """Keep the `top_k` most likely tokens, then the fewest of these that together reach `top_p`.

    Tokens as likely as the k-th are all kept. Top-p (nucleus sampling: Holtzman et al., 2020) adds
    up probabilities that are renormalized over what top-k kept, the most likely first; the token
    that reaches `top_p` is kept, too, so one token always is. Of tokens that are equally likely it
    does not matter which ones these are.

    Args:
        logits: [num_seqs, vocab_size] float32, -inf for tokens that are dropped already; the
            tensor stays as it is.
        top_k: [num_seqs] int64, from 1 to vocab_size, which keeps all; None if no row has one.
        top_p: [num_seqs] float32, above 0 and up to 1, which keeps all that have a probability in
            float32; None if no row has one.

    Returns:
        [num_seqs, vocab_size] float32: logits of the tokens that are kept, -inf for the others.
    """
    ascending, order = logits.sort(dim=-1)
    if top_k is not None:
        kth_index = (ascending.shape[-1] - top_k).clamp(min=0).unsqueeze(-1)
        ascending = ascending.masked_fill(ascending < ascending.gather(-1, kth_index), -torch.inf)
    if top_p is not None:
        # A token is dropped if it and all less likely ones together have no more than 1 - top_p.
        dropped = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p.unsqueeze(-1)
        dropped[:, -1] = False
        ascending = ascending.masked_fill(dropped, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ascending)


# --- ch14.gumbel_noise
# A generator of random numbers has a state, and whoever draws first changes what the others get. A counter has none: the
# noise is computed from what it is for. So a batch can be split, reordered or made again, a request can be preempted and come
# back, and the very same token is drawn, on any device; a GPU computes all of it at once and nobody waits. The order of the
# mixing matters: the token id goes in before the last mixing, or rows would be copies of each other with tokens exchanged. And
# 23 bits and a half fit float32 exactly, so u is never 0 or 1. vLLM's newer sampler does the same with a hash of these three.
def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Gumbel noise: argmax(logits + noise) is a draw from softmax(logits).

    A number u, evenly spread between 0 and 1, becomes such noise as -log(-log(u)) (Gumbel, 1954;
    Maddison et al., 2014). There is no other randomness than that of `hash32`: a token's noise is a
    function of the row's seed, its position and the token id, so it is the same alone and in any
    batch, and in a larger vocabulary. Whoever changes one of the three gets other numbers, and not
    the same ones elsewhere.

    Args:
        seeds: [num_seqs] int64, not negative; all 63 bits count.
        positions: [num_seqs] int64, not negative.

    Returns:
        [num_seqs, vocab_size] float32, all finite.
    """
    seed = hash32(hash32(seeds & 0xFFFFFFFF) ^ hash32((seeds >> 32) + 0x51ED27))
    key = seed ^ hash32(positions + 0x9E3779B9)
    token_ids = torch.arange(vocab_size, device=seeds.device)
    bits = hash32(hash32(key).unsqueeze(-1) ^ (token_ids * 0x9E3779B1))
    # 23 bits and a half are exact in float32: this lies in (0, 1), and both logarithms are finite.
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


# --- ch14.forward
# One path for all rows, whatever each asked for: no loop, no `if` about a number that lies on the GPU, so the CPU never waits
# for it. That is why the greedy rows are computed both ways. The order is vLLM's, and is part of the meaning of a request: a
# filter looks at what the temperature has made. Noise comes last, for the filters are about probabilities. Whether any row has
# a filter is known on the CPU, from the requests, before the step begins; so the sort can be left out without looking.
def forward(self, logits: Tensor, metadata: SamplingMetadata | None = None) -> Tensor:
    """Choose a token for each row of logits.

    Rows of temperature 0 are greedy: the most likely token, whatever their filters. For the
    others temperature comes first, then min-p, then top-k and top-p, and of what is left
    `gumbel_noise` draws one. The logits and the metadata stay as they are.

    Args:
        logits: [num_seqs, vocab_size], any floating dtype.
        metadata: parameters of each row; None if all rows are greedy.

    Returns:
        [num_seqs] int64 token ids.
    """
    greedy = logits.argmax(dim=-1)
    if metadata is None:
        return greedy
    is_greedy = metadata.temperatures == 0
    temperatures = torch.where(is_greedy, 1.0, metadata.temperatures)
    scaled = apply_temperature(logits, temperatures)
    if metadata.min_p is not None:
        scaled = apply_min_p(scaled, metadata.min_p)
    if metadata.top_k is not None or metadata.top_p is not None:
        scaled = apply_top_k_top_p(scaled, metadata.top_k, metadata.top_p)
    noise = gumbel_noise(metadata.seeds, metadata.positions, logits.shape[-1])
    return torch.where(is_greedy, greedy, (scaled + noise).argmax(dim=-1))


# --- ch14.my_rule
# One temperature for all places is a compromise: high enough for a story to be lively, it is high in the middle of a name and
# in the last digit of a sum, too. Ours asks how many candidates there are: below the entropy of two equally likely ones it
# takes the best, above it the temperature is 1.2. That gives 1.79 choices, and 100.00 % of the tasks right. Rules of this kind have names:
# dynamic temperature, eta and typical sampling (Hewitt et al., 2022; Meister et al., 2023), mirostat. What is measured here is
# the distribution, not a draw from it, so that luck plays no part; whether people like the stories better is another question.
def my_rule(logits: torch.Tensor, texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """A sampling rule of your own: bold in stories, sure in sums.

    The goal, in `exercises.kit.story_work`: temperature 0.8 with top-p 0.95 chooses among 1.68
    tokens at an average place of a story, and writes 99.24 % of the tasks right. At least 1.75
    choices are asked for, and at least 99.3 %. What it chooses in stories has to be likely: a mean
    log-probability of at least -0.65, as the model sees it.

    The rule is all there is: the next token of a row is drawn from the softmax of what comes back.
    A row is treated the same alone and in any batch, and what came in stays as it is.

    Args:
        logits: [num_seqs, vocab_size] float32, as the model gives them.
        texts: for each row, the tokens of its answer so far; at first there are none.

    Returns:
        [num_seqs, vocab_size] float32 logits; -inf for tokens that must not be drawn, but not for
        all tokens of a row.
    """
    chances = logits.softmax(dim=-1)
    entropy = -(chances * chances.clamp_min(1e-30).log()).sum(dim=-1, keepdim=True)
    # Two candidates are a doubt, and the better one is taken; many are a choice.
    temperatures = torch.where(entropy < 0.7, 0.05, 1.2)
    unlikely = logits < logits.amax(dim=-1, keepdim=True) + math.log(0.01)
    return (logits / temperatures).masked_fill(unlikely, -torch.inf)
