"""One kernel for a norm, and the residual addition inside the product before it.

A decode step moves few bytes through the small operations of a layer, so what they cost is mostly
their number: every launch takes a few microseconds. Compare vllm/csrc/layernorm_kernels.cu.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ..layers.kernels.overlap import overlap_options, start_next_kernel, wait_for_previous_kernel
from ..layers.layernorm import RMSNorm
from ..layers.linear import RowParallelLinear
from ..models.qwen3 import Qwen3DecoderLayer
from ..utils.swap import swap


class FusedNorm(RMSNorm):
    """See `RMSNorm`."""

    def normalize(self, x: Tensor) -> Tensor:
        """In one launch."""
        return rms_norm(x, self.weight, self.eps)


class AddingLayer(Qwen3DecoderLayer):
    """A layer whose two last products add to the residual stream themselves, in place."""

    def forward(self, positions: Tensor, stream: Tensor) -> Tensor:
        """See `Qwen3DecoderLayer`."""
        attention, mlp = self.self_attn, self.mlp
        heads = attention.attend(positions, attention.qkv_proj(self.input_layernorm(stream)))
        stream = add_to(stream, attention.o_proj, heads)
        gated = mlp.act_fn(mlp.gate_up_proj(self.post_attention_layernorm(stream)))
        return add_to(stream, mlp.down_proj, gated)


def add_to(stream: Tensor, projection: RowParallelLinear, x: Tensor) -> Tensor:
    """`stream` [num_tokens, output_size] with the projection of `x` added, in place."""
    if projection.bias is not None:
        return stream.add_(projection(x))
    # What the ranks add up is their parts of the output, and, once, the stream.
    stream.addmm_(x, projection.weight.t(), beta=1 if projection.group.rank == 0 else 0)
    return projection.group.all_reduce(stream)


def install(model: nn.Module, sampler: nn.Module) -> None:
    """Use it in all norms and layers."""
    swap(model, RMSNorm, FusedNorm)
    swap(model, Qwen3DecoderLayer, AddingLayer)


@triton.jit
def rms_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    output_ptr,
    eps,
    HIDDEN_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Normalize one row."""
    start_next_kernel(OVERLAP)
    row = tl.program_id(0).to(tl.int64) * HIDDEN_SIZE
    offsets = tl.arange(0, BLOCK)
    mask = offsets < HIDDEN_SIZE
    weight = tl.load(weight_ptr + offsets, mask=mask).to(tl.float32)
    wait_for_previous_kernel(OVERLAP)
    x = tl.load(x_ptr + row + offsets, mask=mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / HIDDEN_SIZE + eps)
    tl.store(output_ptr + row + offsets, x * scale * weight, mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalize the rows of `x`, [..., hidden_size]."""
    x = x.contiguous()
    output, hidden_size = torch.empty_like(x), x.shape[-1]
    rms_norm_kernel[(x.numel() // hidden_size,)](
        x,
        weight,
        output,
        eps,
        HIDDEN_SIZE=hidden_size,
        BLOCK=triton.next_power_of_2(hidden_size),
        num_warps=4,
        **overlap_options(x.device),
    )
    return output
