"""Weights of linear layers as whole numbers of one byte, with a scale for each output.

Half the memory of bfloat16, a quarter of float32; the rest of the GPU is for the KV cache. Each
product makes floats of its weight again, so that it is slower, not faster: for speed, a kernel
would have to read the bytes themselves. Only weights are rounded, activations are not. Embeddings
and the head stay as they are. Compare vllm/model_executor/layers/quantization/tpu_int8.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers.linear import LinearBase
from ..utils.swap import swap

LARGEST = 127  # of the whole numbers; -128 is not used


class Int8Linear(LinearBase):
    """`weight` is [output_size, input_size] int8, `weight_scale` [output_size, 1], a float."""

    weight_scale: nn.Parameter

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `LinearBase`."""
        return F.linear(x, self.weight * self.weight_scale, bias)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127, and for each row what they are multiples of.

    No weight is changed by more than half the scale of its row.

    Args:
        weight: [output_size, input_size], finite; it stays as it is.

    Returns:
        [output_size, input_size] int8, and [output_size, 1] of the weight's dtype.
    """
    scale = weight.abs().amax(dim=1, keepdim=True).float() / LARGEST
    scale = scale.to(weight.dtype).clamp(min=torch.finfo(weight.dtype).tiny)
    return (weight.float() / scale.float()).round().to(torch.int8), scale


def install(model: nn.Module, sampler: nn.Module) -> None:
    """Quantize every linear layer, one after the other, and drop its floats."""
    for layer in [module for module in model.modules() if isinstance(module, LinearBase)]:
        tensors = quantize(layer.weight.data)
        layer.weight, layer.weight_scale = (nn.Parameter(t, requires_grad=False) for t in tensors)
    swap(model, LinearBase, Int8Linear)
