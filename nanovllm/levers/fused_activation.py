"""SiLU and product in one kernel. Compare vllm/csrc/activation_kernels.cu."""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ..layers.activation import SiluAndMul
from ..layers.kernels.overlap import overlap_options, start_next_kernel, wait_for_previous_kernel
from ..utils.swap import swap
from .norm_factor import rms_norm_factor, stream_arguments


class FusedSiluAndMul(SiluAndMul):
    """See `SiluAndMul`."""

    def forward(self, x: Tensor) -> Tensor:
        """In one launch."""
        return silu_and_mul(x)


def install(model: nn.Module, sampler: nn.Module) -> None:
    """Use it in all layers."""
    swap(model, SiluAndMul, FusedSiluAndMul)


@triton.jit
def silu_and_mul_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    stream_ptr,
    output_ptr,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HIDDEN_SIZE: tl.constexpr,
    STREAM_BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """BLOCK features of one row."""
    start_next_kernel(OVERLAP)
    wait_for_previous_kernel(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < SIZE
    gate = tl.load(x_ptr + row * 2 * SIZE + offsets, mask=mask).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * SIZE + SIZE + offsets, mask=mask).to(tl.float32)
    factor = rms_norm_factor(stream_ptr, row, eps, HIDDEN_SIZE, STREAM_BLOCK)
    gate, up = gate * factor, up * factor
    tl.store(output_ptr + row * SIZE + offsets, gate * tl.sigmoid(gate) * up, mask=mask)


def silu_and_mul(x: Tensor, stream: Tensor | None = None, eps: float = 0.0) -> Tensor:
    """[num_tokens, 2 * size] -> [num_tokens, size]: SiLU of the first half times the second.

    Args:
        stream: [num_tokens, hidden_size] if `x` was projected from it without the RMSNorm before;
            this is made up for.
        eps: of that norm.
    """
    num_tokens, size = x.shape[0], x.shape[1] // 2
    output = torch.empty(num_tokens, size, dtype=x.dtype, device=x.device)
    block = min(1024, triton.next_power_of_2(size))
    silu_and_mul_kernel[(num_tokens, triton.cdiv(size, block))](
        x_ptr=x,
        output_ptr=output,
        eps=eps,
        SIZE=size,
        BLOCK=block,
        num_warps=4,
        **stream_arguments(stream, x),
        **overlap_options(x.device),
    )
    return output
