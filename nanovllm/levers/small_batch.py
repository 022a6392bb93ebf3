"""For one or two tokens: norm, product and gate, or product and addition, in one kernel each.

With so few rows a matrix product only has to read its weights once, at the speed of the memory;
what costs beside that is the number of launches.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ..layers.kernels.overlap import overlap_options, start_next_kernel, wait_for_previous_kernel
from ..layers.linear import RowParallelLinear
from ..models.qwen3 import Qwen3DecoderLayer
from ..utils.swap import swap

MAX_WEIGHTS = 2**14  # of one matrix, that a program holds in its registers
SMALL_BATCH = 2  # tokens up to which these kernels are faster


class SmallBatchLayer(Qwen3DecoderLayer):
    """See `Qwen3DecoderLayer`."""

    def forward(self, positions: Tensor, stream: Tensor) -> Tensor:
        """The same, in kernels made for a handful of tokens."""
        if len(stream) > SMALL_BATCH:
            return super().forward(positions, stream)
        attention, mlp = self.self_attn, self.mlp
        qkv_proj, gate_up_proj = attention.qkv_proj, mlp.gate_up_proj
        qkv = small_linear(stream, qkv_proj.weight, qkv_proj.bias, norm=self.input_layernorm)
        stream = add_to(stream, attention.o_proj, attention.attend(positions, qkv))
        norm = self.post_attention_layernorm
        weight, bias = gate_up_proj.weight, gate_up_proj.bias
        gated = small_linear(stream, weight, bias, norm=norm, is_gated=True)
        return add_to(stream, mlp.down_proj, gated)


def add_to(stream: Tensor, projection: RowParallelLinear, x: Tensor) -> Tensor:
    """`stream` with the projection of `x` added; of the ranks, the first adds stream and bias."""
    if projection.group.rank == 0:
        output = small_linear(x, projection.weight, projection.bias, stream=stream)
    else:
        output = small_linear(x, projection.weight)
    return projection.group.all_reduce(output)


def install(model: nn.Module, sampler: nn.Module) -> None:
    """Use it in all layers."""
    swap(model, Qwen3DecoderLayer, SmallBatchLayer)


@triton.jit
def small_linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    norm_weight_ptr,
    weight_ptr,
    bias_ptr,
    stream_ptr,
    output_ptr,
    eps,
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_STREAM: tl.constexpr,
    IS_GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """BLOCK_N outputs of all rows: norm(x) @ weight.T, then added to a stream, or gated.

    Gated, they are SiLU(first half) * second half. With OVERLAP the programs start while the kernel
    before still runs (programmatic dependent launch): they fetch their weights, which depend on
    nothing, and only then wait for its results.
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
    offsets, mask = rows[:, None] * N + outputs[None, :], is_row[:, None] & is_output[None, :]
    stream = 0.0
    if HAS_STREAM:  # here, and not where it is needed, so that it comes at the same time as x
        stream = tl.load(stream_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / K + eps)
        norm_weight = tl.load(norm_weight_ptr + columns, mask=is_column, other=0.0).to(tl.float32)
        x = (x * scale[:, None] * norm_weight[None, :]).to(dtype).to(tl.float32)
    total = tl.sum(x[:, None, :] * w.to(tl.float32)[None, :, :], axis=2)
    if HAS_BIAS:
        total += tl.load(bias_ptr + outputs, mask=is_output, other=0.0).to(tl.float32)[None, :]
    if IS_GATED:
        total_up = tl.sum(x[:, None, :] * w_up.to(tl.float32)[None, :, :], axis=2)
        if HAS_BIAS:
            up_bias = tl.load(bias_ptr + N + outputs, mask=is_output, other=0.0)
            total_up += up_bias.to(tl.float32)[None, :]
        gate, up = total.to(dtype).to(tl.float32), total_up.to(dtype).to(tl.float32)
        total = gate * tl.sigmoid(gate) * up
    tl.store(output_ptr + offsets, total + stream, mask=mask)


def small_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: torch.nn.Module | None = None,
    stream: Tensor | None = None,
    is_gated: bool = False,
) -> Tensor:
    """A linear layer on a few rows, [num_rows, K] -> [num_rows, N].

    Args:
        weight, bias: [N, K] and [N], or [2 * N, K] and [2 * N] if gated.
        norm: an `RMSNorm` to apply to the input.
        stream: [num_rows, N], to be added to the output.
        is_gated: SiLU of the first half of the outputs times the second half.
    """
    x = x.contiguous()
    num_rows, size = x.shape
    num_outputs = weight.shape[0] // (2 if is_gated else 1)
    output = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    block_k = triton.next_power_of_2(size)
    # As many outputs a program as its registers hold the weights of.
    block_n = max(1, min(8 if num_outputs > 1024 else 4, MAX_WEIGHTS // block_k))
    small_linear_kernel[(triton.cdiv(num_outputs, block_n),)](
        x,
        x if norm is None else norm.weight,
        weight,
        weight if bias is None else bias,
        x if stream is None else stream,
        output,
        0.0 if norm is None else norm.eps,
        num_rows,
        N=num_outputs,
        K=size,
        ROWS=triton.next_power_of_2(num_rows),
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        HAS_NORM=norm is not None,
        HAS_STREAM=stream is not None,
        IS_GATED=is_gated,
        HAS_BIAS=bias is not None,
        num_warps=8,
        **overlap_options(x.device),
    )
    return output
