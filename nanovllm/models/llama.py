"""The Llama model (Touvron et al., 2023; Grattafiori et al., 2024), as what it has unlike Qwen3.

Beside Meta's models, many others have this architecture, such as SmolLM2. Compare
vllm/model_executor/models/llama.py.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.linear import MergedColumnParallelLinear, RowParallelLinear
from .qwen3 import Qwen3ForCausalLM


class LlamaForCausalLM(Qwen3ForCausalLM):
    """Queries and keys are rotated as they were projected: there is no QK-norm.

    Two more differences are optional: biases in the MLP, and frequencies that were stretched for
    long texts. All else is that of Qwen3: the names in a checkpoint, the order of norms and sums,
    and biases in the projections of attention.

    Args:
        config: a Hugging Face `LlamaConfig`, with `rope_theta` set.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        hidden_size, intermediate_size = config.hidden_size, config.intermediate_size
        layers: Any = self.model.layers
        for layer in layers:
            layer.self_attn.q_norm, layer.self_attn.k_norm = nn.Identity(), nn.Identity()
            if config.mlp_bias:
                sizes = [intermediate_size] * 2
                layer.mlp.gate_up_proj = MergedColumnParallelLinear(hidden_size, sizes, bias=True)
                layer.mlp.down_proj = RowParallelLinear(intermediate_size, hidden_size, bias=True)
        # transformers 4.51 and 5.x differ in the name, and so do old files and new ones.
        names = ("rope_parameters", "rope_scaling")
        scaling: dict[str, Any] = next(
            (found for name in names if (found := getattr(config, name, None))), {}
        )
        if scaling.get("rope_type", scaling.get("type")) == "llama3":
            shape = config.head_dim, config.max_position_embeddings, config.rope_theta
            # All layers share one.
            layers[0].self_attn.rotary_emb.cos_sin_cache = llama3_rope_table(*shape, scaling)


def llama3_rope_table(
    head_dim: int, max_position: int, base: float, scaling: Mapping[str, float]
) -> Tensor:
    """As `rope_table`, with slow pairs slowed down, so that texts may be longer than in training.

    A pair that turned many times within the length that the model was trained on first goes on as
    fast. One that had not made a whole turn becomes slower by `factor`, because its angles beyond
    would be new to the model. In between, it goes smoothly from one to the other. Compare
    vllm/model_executor/layers/rotary_embedding/llama3_rope.py.

    Args:
        scaling: `factor`; `original_max_position_embeddings`, the length of training; how many
            turns within it are few (`low_freq_factor`) and many (`high_freq_factor`).

    Returns:
        [max_position, 1, head_dim], float32: the cosines of all pairs, then their sines.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / base**exponents
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * torch.pi)
    few, many = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = ((turns - few) / (many - few)).clamp(0.0, 1.0)
    frequencies = kept * frequencies + (1.0 - kept) * frequencies / scaling["factor"]
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).unsqueeze(1)
