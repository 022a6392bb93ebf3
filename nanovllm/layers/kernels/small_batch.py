"""Linear layers for a handful of tokens, with what stands before and after them in the same launch.

With so few rows a matrix product only has to read its weights once, at the speed of the memory; what costs beside
that is the number of launches. So the norm before a projection and the gate after it are computed on the way.
"""

import torch
import triton
import triton.language as tl

from .overlap import overlap_options, start_next_kernel, wait_for_previous_kernel

MAX_WEIGHTS = 2**14  # of one matrix, that a program holds in its registers


@triton.jit
def small_linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    norm_weight_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    sum_ptr,
    eps,
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    IS_GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """BLOCK_N outputs of all rows: norm(x + residual) @ weight.T, and SiLU(first half) * second half if gated.

    With OVERLAP the programs start while the kernel before still runs (programmatic dependent launch): they fetch
    their weights, which depend on nothing, and only then wait for its results.
    """
    start_next_kernel(OVERLAP)
    rows, outputs = tl.arange(0, ROWS), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    is_row, is_output, is_column = rows < num_rows, outputs < N, columns < K
    w_offsets = outputs.to(tl.int64)[:, None] * K + columns[None, :]
    w_mask = is_output[:, None] & is_column[None, :]
    w = tl.load(weight_ptr + w_offsets, mask=w_mask, other=0.0)
    w_up = w
    if IS_GATED:
        w_up = tl.load(weight_ptr + N * K + w_offsets, mask=w_mask, other=0.0)
    wait_for_previous_kernel(OVERLAP)
    dtype = x_ptr.dtype.element_ty
    offsets, mask = rows[:, None] * K + columns[None, :], is_row[:, None] & is_column[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        if tl.program_id(0) == 0:
            tl.store(sum_ptr + offsets, x.to(dtype), mask=mask)
        x = x.to(dtype).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / K + eps)
        norm_weight = tl.load(norm_weight_ptr + columns, mask=is_column, other=0.0).to(tl.float32)
        x = (x * scale[:, None] * norm_weight[None, :]).to(dtype).to(tl.float32)
    total = tl.sum(x[:, None, :] * w.to(tl.float32)[None, :, :], axis=2)
    if HAS_BIAS:
        total += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    if IS_GATED:
        total_up = tl.sum(x[:, None, :] * w_up.to(tl.float32)[None, :, :], axis=2)
        gate, up = total.to(dtype).to(tl.float32), total_up.to(dtype).to(tl.float32)
        total = gate * tl.sigmoid(gate) * up
    tl.store(output_ptr + rows[:, None] * N + outputs[None, :], total, mask=is_row[:, None] & is_output[None, :])


def small_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    norm: torch.nn.Module | None = None,
    residual: torch.Tensor | None = None,
    is_gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A linear layer on a few rows.

    Args:
        x, residual: [num_rows, K]; with a residual, the layer's input is x + residual.
        weight: [N, K], or [2 * N, K] if gated.
        norm: an `RMSNorm` to apply to the input.
        is_gated: SiLU of the first half of the outputs times the second half.

    Returns:
        (output [num_rows, N], x + residual); the latter only if there are a norm and a residual, else x.
    """
    x = x.contiguous()
    num_rows, size = x.shape
    num_outputs = weight.shape[0] // (2 if is_gated else 1)
    output = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    total = torch.empty_like(x) if residual is not None else x
    block_k = triton.next_power_of_2(size)
    # As many outputs a program as its registers hold the weights of.
    block_n = max(1, min(8 if num_outputs > 1024 else 4, MAX_WEIGHTS // block_k))
    small_linear_kernel[(triton.cdiv(num_outputs, block_n),)](
        x,
        x if residual is None else residual,
        x if norm is None else norm.weight,
        weight,
        weight if bias is None else bias,
        output,
        total,
        0.0 if norm is None else norm.eps,
        num_rows,
        N=num_outputs,
        K=size,
        ROWS=triton.next_power_of_2(num_rows),
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        HAS_NORM=norm is not None,
        HAS_RESIDUAL=residual is not None,
        IS_GATED=is_gated,
        HAS_BIAS=bias is not None,
        num_warps=8,
        **overlap_options(x.device),
    )
    return output, total
