"""No kernel for a norm at all: the products after it, and what follows these, do its work.

Its weight becomes part of the projection after it. What is left is one factor a token, and because
a projection is linear, the factor can be applied after it, by the kernels that follow anyway:
`qk_norm_rope_store` and `silu_and_mul`.
"""

from torch import Tensor, nn

from ..models.qwen3 import Qwen3DecoderLayer
from ..utils.swap import swap
from .fused_activation import silu_and_mul
from .fused_norm import add_to
from .fused_qkv import FusedQKV


class FoldedLayer(Qwen3DecoderLayer):
    """The projections read the residual stream as it is."""

    self_attn: FusedQKV

    def forward(self, positions: Tensor, stream: Tensor) -> Tensor:
        """See `Qwen3DecoderLayer`."""
        attention, mlp = self.self_attn, self.mlp
        if not attention.attn.k_cache.numel():  # while the memory is measured
            return super().forward(positions, stream)
        heads = attention.attend(positions, attention.qkv_proj(stream), stream)
        stream = add_to(stream, attention.o_proj, heads)
        gated = silu_and_mul(mlp.gate_up_proj(stream), stream, self.post_attention_layernorm.eps)
        return add_to(stream, mlp.down_proj, gated)


def install(model: nn.Module, sampler: nn.Module) -> None:
    """Multiply the weights of all norms into the projections after them.

    But for rounding, this changes no result.
    """
    for layer in [module for module in model.modules() if isinstance(module, Qwen3DecoderLayer)]:
        for norm, projection in (
            (layer.input_layernorm, layer.self_attn.qkv_proj),
            (layer.post_attention_layernorm, layer.mlp.gate_up_proj),
        ):
            projection.weight.data.mul_(norm.weight.data)
            norm.weight.data.fill_(1.0)
    swap(model, Qwen3DecoderLayer, FoldedLayer)
