"""From logits to tokens: temperature, min-p, top-k, top-p, and the Gumbel-max trick.

The order of the filters is vLLM's (vllm/v1/sample/sampler.py). Instead of drawing from a stream of
random numbers, the noise of each (seed, position, token) is a hash of the three: the same request
gets the same noise on any device, in any batch, after any preemption.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class SamplingMetadata:
    """Sampling parameters of a batch, one entry a row of logits, on the logits' device.

    Args:
        temperatures: [num_seqs] float32; 0 for greedy rows.
        seeds: [num_seqs] int64, non-negative.
        positions: [num_seqs] int64, index in its sequence of the token being sampled.
        min_p, top_p: [num_seqs] float32, or None if no row filters by it.
        top_k: [num_seqs] int64 (vocabulary size: keep all), or None.
    """

    temperatures: Tensor
    seeds: Tensor
    positions: Tensor
    min_p: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None

    @property
    def has_filters(self) -> bool:
        """Whether any row keeps only some of the tokens."""
        return self.min_p is not None or self.top_k is not None or self.top_p is not None


class Sampler(nn.Module):
    """Chooses one token a row of logits."""

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


def apply_temperature(logits: Tensor, temperatures: Tensor) -> Tensor:
    """[num_seqs, vocab_size] / [num_seqs] in float32; temperatures are above 0.

    Below 1 a temperature sharpens the distribution, above 1 it flattens it.
    """
    return logits.float() / temperatures.unsqueeze(-1)


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


def hash32(x: Tensor) -> Tensor:
    """Mix int64 numbers to well-spread ones in [0, 2^32), by their lower 32 bits.

    It is the finalizer of MurmurHash3 (Appleby, 2008).
    """
    x = x & 0xFFFFFFFF
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def compute_logprobs(logits: Tensor) -> Tensor:
    """[num_seqs, vocab_size] logits -> float32 log-probabilities.

    Before temperature and filters, as in vLLM.
    """
    return logits.float().log_softmax(dim=-1)
