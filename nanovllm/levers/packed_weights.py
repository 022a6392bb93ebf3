"""On a CPU: keep each weight in the layout that oneDNN multiplies fastest.

Plain products of several tokens re-order the whole weight in every call; for one or two they do
not.
"""

import torch
from torch import Tensor, nn

from ..layers.linear import LinearBase
from ..utils.memory import available_memory
from ..utils.swap import swap

SMALL_BATCH = 2
MEMORY_SHARE = 0.05  # of the free memory that the copy may take


class PackedLinear(LinearBase):
    """`packed_weight` is a copy of the weight in oneDNN's layout."""

    packed_weight: Tensor

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `LinearBase`."""
        if x.numel() <= SMALL_BATCH * x.shape[-1]:
            return super().multiply(x, bias)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed_weight, bias, "none", [], "")


def install(model: nn.Module, sampler: nn.Module) -> None:
    """Pack all weights, unless the copy would take more of the free memory than speed is worth."""
    layers = [module for module in model.modules() if isinstance(module, LinearBase)]
    if sum(layer.weight.nbytes for layer in layers) > MEMORY_SHARE * available_memory():
        return
    swap(model, LinearBase, PackedLinear)
    for layer in layers:
        layer.packed_weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.data, None)
