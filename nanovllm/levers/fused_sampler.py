"""Sampling in one pass over the logits, if no row filters.

With the Gumbel-max trick it is an argmax of sums, which chunks of the vocabulary can take apart.
Compare flashinfer/include/flashinfer/sampling.cuh.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ..layers.kernels.overlap import overlap_options, start_next_kernel, wait_for_previous_kernel
from ..layers.sampler import Sampler, SamplingMetadata
from ..utils.swap import swap


class FusedSampler(Sampler):
    """See `Sampler`: the same tokens."""

    def forward(self, logits: Tensor, metadata: SamplingMetadata | None = None) -> Tensor:
        """In one launch."""
        if metadata is None or metadata.has_filters:
            return super().forward(logits, metadata)
        return sample(logits, metadata.temperatures, metadata.seeds, metadata.positions)


def install(model: nn.Module, sampler: nn.Module) -> None:
    """Use it."""
    swap(sampler, Sampler, FusedSampler)


@triton.jit
def hash32(x):  # type: ignore[no-untyped-def]
    """Finalizer of MurmurHash3 on uint32, as `nanovllm.layers.sampler.hash32`."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def log2_approx(x):  # type: ignore[no-untyped-def]
    """The hardware's logarithm to the base 2, with an error of up to 2^-22."""
    return tl.inline_asm_elementwise(
        "lg2.approx.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
    )


@triton.jit
def gumbel_noise(bits, IS_INTERPRETED: tl.constexpr):  # type: ignore[no-untyped-def]
    """-log(-log(u)) of the uniform number u in (0, 1) that the upper 23 of 32 random bits make."""
    # The bits become the fraction of a number in [1, 2), which is cheaper than converting them.
    uniform = ((bits >> 9) | 0x3F800000).to(tl.float32, bitcast=True) - (1.0 - 1.0 / 16777216.0)
    if IS_INTERPRETED:
        return -tl.log(-tl.log(uniform))
    # Near one, where the largest noise comes from, the approximation is too coarse, and a series
    # takes its place.
    rest = 1.0 - uniform
    series = rest * (1.0 + rest * (1 / 2 + rest * (1 / 3 + rest * (1 / 4 + rest * (1 / 5)))))
    exponential = tl.where(rest < 0.0625, series, -0.6931471805599453 * log2_approx(uniform))
    return -0.6931471805599453 * log2_approx(exponential)


@triton.jit
def sample_chunk_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,
    temperatures_ptr,
    seeds_ptr,
    positions_ptr,
    best_score_ptr,
    best_token_ptr,
    logits_stride,
    VOCAB_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Best of BLOCK tokens of a row: by logit if it is greedy, else by logit plus Gumbel noise."""
    start_next_kernel(OVERLAP)
    wait_for_previous_kernel(OVERLAP)
    row, chunk = tl.program_id(0), tl.program_id(1)
    token_ids = chunk * BLOCK + tl.arange(0, BLOCK)
    mask = token_ids < VOCAB_SIZE
    logits = logits_ptr + row.to(tl.int64) * logits_stride + token_ids
    scores = tl.load(logits, mask=mask, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperatures_ptr + row)
    if temperature > 0:
        seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
        low, high = seed.to(tl.uint32), ((seed >> 32) + 0x51ED27).to(tl.uint32)
        key = hash32(hash32(low) ^ hash32(high)) ^ hash32((position + 0x9E3779B9).to(tl.uint32))
        bits = hash32(hash32(key) ^ (token_ids.to(tl.uint32) * 0x9E3779B1))
        scores = scores * (1.0 / temperature) + gumbel_noise(bits, IS_INTERPRETED)
    scores = tl.where(mask, scores, float("-inf"))
    best = tl.argmax(scores, axis=0)
    tl.store(best_score_ptr + row * tl.num_programs(1) + chunk, tl.max(scores, axis=0))
    tl.store(best_token_ptr + row * tl.num_programs(1) + chunk, (chunk * BLOCK + best).to(tl.int64))


def sample(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Greedy or temperature sampling without filters, in one pass over the logits.

    Args:
        logits: [num_seqs, vocab_size].
        temperatures: [num_seqs] float32, 0 for greedy.
        seeds, positions: [num_seqs] int64.

    Returns:
        [num_seqs] int64 token ids: those of `nanovllm.layers.sampler.Sampler`.
    """
    num_seqs, vocab_size = logits.shape
    block = min(4096, triton.next_power_of_2(vocab_size))
    num_chunks = triton.cdiv(vocab_size, block)
    best_score = torch.empty(num_seqs, num_chunks, dtype=torch.float32, device=logits.device)
    best_token = torch.empty(num_seqs, num_chunks, dtype=torch.int64, device=logits.device)
    sample_chunk_kernel[(num_seqs, num_chunks)](
        logits,
        temperatures,
        seeds,
        positions,
        best_score,
        best_token,
        logits.stride(0),
        VOCAB_SIZE=vocab_size,
        BLOCK=block,
        IS_INTERPRETED=triton.knobs.runtime.interpret,
        num_warps=4,
        **overlap_options(logits.device),
    )
    return best_token.gather(1, best_score.argmax(dim=1, keepdim=True)).squeeze(1)
