"""The Qwen3 dense model (Qwen Team, 2025): pre-norm transformer with grouped-query attention and QK-norm.

Tensors are flat: the tokens of all sequences of a step stand behind one another in one dimension.
"""

from typing import Any, ClassVar

import torch
from torch import nn

from ..layers.activation import SiluAndMul
from ..layers.attention import Attention
from ..layers.embed_head import ParallelLMHead, VocabParallelEmbedding
from ..layers.layernorm import RMSNorm
from ..layers.linear import SMALL_BATCH, MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from ..layers.rotary_embedding import RotaryEmbedding, get_rope
from ..utils.context import get_context


class Qwen3Attention(nn.Module):
    """Self-attention: project, normalize queries and keys a head, rotate, attend, project back."""

    optimization = "fused_qkv"

    def __init__(self, config: Any, rotary_emb: RotaryEmbedding) -> None:
        super().__init__()
        head_dim = config.head_dim
        bias = config.attention_bias
        num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = head_dim
        self.qkv_proj = QKVParallelLinear(config.hidden_size, head_dim, num_heads, num_kv_heads, bias)
        self.o_proj = RowParallelLinear(num_heads * head_dim, config.hidden_size, bias)
        self.num_heads, self.num_kv_heads = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.rotary_emb = rotary_emb
        self.attn = Attention(self.num_heads, head_dim, head_dim**-0.5, self.num_kv_heads)
        self.is_fused = False  # set by the engine: one kernel from the projection to the KV cache

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """[num_tokens], [num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        return self.o_proj(self.attend(positions, self.qkv_proj(hidden_states)))

    def attend(self, positions: torch.Tensor, qkv: torch.Tensor, stream: torch.Tensor | None = None) -> torch.Tensor:
        """[num_tokens], [num_tokens, (heads + 2 * KV heads) * head_dim] -> [num_tokens, heads * head_dim].

        Args:
            stream: see `norm_rotate_store`.
        """
        q, k, v = self.split_heads(qkv)
        is_stored = self.is_fused and self.attn.k_cache.numel() > 0
        if is_stored:
            q, k, v = self.norm_rotate_store(positions, qkv, stream)
        else:
            q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
        return self.attn(q, k, v, is_stored).flatten(1)

    def norm_rotate_store(
        self, positions: torch.Tensor, qkv: torch.Tensor, stream: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Normalized and rotated q and k, and v; k and v are also stored in the cache.

        Args:
            stream: [num_tokens, hidden_size], what `qkv` was projected from if that was not normalized before.
        """
        from ..layers.kernels.fused import qk_norm_rope_store

        return qk_norm_rope_store(
            qkv,
            self.q_norm.weight,
            self.k_norm.weight,
            self.q_norm.eps,
            self.rotary_emb.cos_sin_cache,
            positions,
            get_context().slot_mapping,
            self.attn.k_cache,
            self.attn.v_cache,
            stream,
        )

    def split_heads(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Cut the packed projection into q, k, v of shape [num_tokens, heads, head_dim]."""
        heads = qkv.unflatten(-1, (-1, self.head_dim))
        q, k, v = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
        return q, k, v


class Qwen3MLP(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        if config.hidden_act != "silu":
            raise ValueError(f"hidden_act={config.hidden_act!r} is not supported, only 'silu'")
        self.gate_up_proj = MergedColumnParallelLinear(config.hidden_size, [config.intermediate_size] * 2)
        self.down_proj = RowParallelLinear(config.intermediate_size, config.hidden_size)
        self.act_fn = SiluAndMul()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden_size] -> the same."""
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


class Qwen3DecoderLayer(nn.Module):
    """Attention and MLP, each on a normalized copy of the residual stream."""

    optimization = "small_batch"

    def __init__(self, config: Any, rotary_emb: RotaryEmbedding) -> None:
        super().__init__()
        self.self_attn = Qwen3Attention(config, rotary_emb)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.is_fused = False  # set by the engine: for a few tokens, norms and projections in one kernel each
        self.is_folded = False  # whether the norms' weights are part of the projections after them

    def fold_norms(self) -> None:
        """Multiply the weights of both norms into the projections after them; but for rounding, this changes no result.

        What is left of a norm is one factor a token, which can be applied after the projection: `forward_folded`.
        With a bias it could not, because the bias is added to what has been normalized already.
        """
        if self.self_attn.qkv_proj.bias is not None:
            return
        for norm, projection in (
            (self.input_layernorm, self.self_attn.qkv_proj),
            (self.post_attention_layernorm, self.mlp.gate_up_proj),
        ):
            projection.weight.data.mul_(norm.weight.data)
            norm.weight.data.fill_(1.0)
        self.is_folded = True

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns (output of the MLP, residual stream without it); the next layer's norm adds the two."""
        if self.is_fused and len(hidden_states) <= SMALL_BATCH:
            return self.forward_small(positions, hidden_states, residual)
        if self.is_folded and self.self_attn.attn.k_cache.numel():
            return self.forward_folded(positions, hidden_states), None
        if residual is None:
            hidden_states, residual = self.input_layernorm(hidden_states), hidden_states
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions, hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual

    def forward_small(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same as `forward`, in kernels made for a handful of tokens."""
        from ..layers.kernels.small_batch import small_linear

        attention, mlp = self.self_attn, self.mlp
        qkv_proj, gate_up_proj = attention.qkv_proj, mlp.gate_up_proj
        qkv, residual = small_linear(hidden_states, qkv_proj.weight, qkv_proj.bias, self.input_layernorm, residual)
        hidden_states = attention.o_proj(attention.attend(positions, qkv))
        norm = self.post_attention_layernorm
        gated, residual = small_linear(hidden_states, gate_up_proj.weight, None, norm, residual, is_gated=True)
        return mlp.down_proj(gated), residual

    def forward_folded(self, positions: torch.Tensor, stream: torch.Tensor) -> torch.Tensor:
        """The same without a kernel for a norm: the projections read the residual stream as it is, and add to it.

        `stream` [num_tokens, hidden_size] is changed in place and returned.

        What is projected lacks its token's factor of the norm, which the kernels after the projections apply.
        """
        from ..layers.kernels.fused import silu_and_mul

        attention, mlp = self.self_attn, self.mlp
        output = attention.attend(positions, attention.qkv_proj(stream), stream)
        stream = attention.o_proj.add_to(stream, output)
        gated = silu_and_mul(mlp.gate_up_proj(stream), stream, self.post_attention_layernorm.eps)
        return mlp.down_proj.add_to(stream, gated)


class Qwen3Model(nn.Module):
    """Embedding, decoder layers, final norm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        rotary_emb = get_rope(config.head_dim, config.max_position_embeddings, config.rope_theta)
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Qwen3DecoderLayer(config, rotary_emb) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[num_tokens], [num_tokens] -> [num_tokens, hidden_size]."""
        hidden_states, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        if residual is None:
            return self.norm(hidden_states)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class Qwen3ForCausalLM(nn.Module):
    """The model with its language-model head.

    Args:
        config: a Hugging Face `Qwen3Config`, with `rope_theta` set.
    """

    # Checkpoint names of separate projections -> (packed parameter, shard id).
    packed_modules_mapping: ClassVar[dict[str, tuple[str, str | int]]] = {
        "q_proj": ("qkv_proj", "q"),
        "k_proj": ("qkv_proj", "k"),
        "v_proj": ("qkv_proj", "v"),
        "gate_proj": ("gate_up_proj", 0),
        "up_proj": ("gate_up_proj", 1),
    }

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.model = Qwen3Model(config)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[num_tokens], [num_tokens] -> hidden states [num_tokens, hidden_size]."""
        return self.model(input_ids, positions)

    def compute_logits(self, hidden_states: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor | None:
        """[num_tokens, hidden_size] -> [num_seqs, vocab_size] on rank 0 (in `out`, if given), None elsewhere."""
        return self.lm_head(hidden_states, out)
