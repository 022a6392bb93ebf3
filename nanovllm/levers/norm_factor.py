"""The factor of a norm, for kernels that make up for a norm that was left out (`folded_norm`)."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rms_norm_factor(stream_ptr, row, eps, HIDDEN_SIZE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """What RMSNorm multiplies a row of `stream` with, beside its weight; 1 without a stream."""
    factor = 1.0
    if HIDDEN_SIZE > 0:
        offsets = tl.arange(0, BLOCK)
        x = tl.load(stream_ptr + row * HIDDEN_SIZE + offsets, offsets < HIDDEN_SIZE, other=0.0)
        x = x.to(tl.float32)
        factor = tl.rsqrt(tl.sum(x * x) / HIDDEN_SIZE + eps)
    return factor


def stream_arguments(stream: Tensor | None, default: Tensor) -> dict[str, Any]:
    """The arguments of a kernel that may have to normalize what was projected from `stream`."""
    hidden_size = 0 if stream is None else stream.shape[1]
    return {
        "stream_ptr": default if stream is None else stream,
        "HIDDEN_SIZE": hidden_size,
        "STREAM_BLOCK": triton.next_power_of_2(max(hidden_size, 1)),
    }
