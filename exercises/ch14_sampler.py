"""Your answers to chapter 14, sampler.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 88d68eee7cfd
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from dataclasses import dataclass
import torch
from torch import Tensor, nn
from nanovllm.layers.sampler import SamplingMetadata, Sampler, apply_temperature, apply_min_p, apply_top_k_top_p, gumbel_noise, hash32, compute_logprobs
from collections.abc import Sequence
from torch import Tensor


# --- ch14.apply_min_p
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
    raise NotImplementedError("ch14.apply_min_p")


# --- ch14.apply_top_k_top_p
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
    raise NotImplementedError("ch14.apply_top_k_top_p")


# --- ch14.gumbel_noise
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
    raise NotImplementedError("ch14.gumbel_noise")


# --- ch14.forward
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
    raise NotImplementedError("ch14.forward")


# --- ch14.my_rule
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
    raise NotImplementedError("ch14.my_rule")
