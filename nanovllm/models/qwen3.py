"""The Qwen3 dense model (Qwen Team, 2025): grouped-query attention with QK-norm, and a gated MLP.

Tensors are flat: the tokens of all sequences of a step stand behind one another in one dimension.
"""

from typing import Any, ClassVar

from torch import Tensor, nn

from ..layers.activation import SiluAndMul
from ..layers.attention import Attention
from ..layers.embed_head import ParallelLMHead, VocabParallelEmbedding
from ..layers.layernorm import RMSNorm
from ..layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from ..layers.rotary_embedding import RotaryEmbedding, get_rope


class Qwen3Attention(nn.Module):
    """Self-attention: project, normalize queries and keys a head, rotate, attend, project back."""

    def __init__(self, config: Any, rotary_emb: RotaryEmbedding) -> None:
        super().__init__()
        head_dim = config.head_dim
        bias = config.attention_bias
        num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = head_dim
        hidden_size = config.hidden_size
        self.qkv_proj = QKVParallelLinear(hidden_size, head_dim, num_heads, num_kv_heads, bias)
        self.o_proj = RowParallelLinear(num_heads * head_dim, hidden_size, bias)
        self.num_heads, self.num_kv_heads = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.rotary_emb = rotary_emb
        self.attn = Attention(self.num_heads, head_dim, head_dim**-0.5, self.num_kv_heads)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        """[num_tokens], [num_tokens, hidden_size] -> [num_tokens, hidden_size]."""
        return self.o_proj(self.attend(positions, self.qkv_proj(hidden_states)))

    def attend(self, positions: Tensor, qkv: Tensor) -> Tensor:
        """Attention of projected queries, keys and values; `forward` does the projections.

        A row of `qkv` has the heads of one token behind one another, `head_dim` features each:
        first all query heads, then all key heads, then all value heads. Each query head and each
        key head is normalized by itself, with `q_norm` or `k_norm`, and then rotated to its
        position; values are neither. `attn` takes queries, keys and values with a dimension for the
        heads, and knows which tokens belong to one sequence, and what is in its cache.

        Args:
            positions: [num_tokens], where each token is in its own text.
            qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], with the heads of this
                rank; it stays as it is.

        Returns:
            [num_tokens, num_heads * head_dim], the outputs of a token's heads behind one another.
        """
        heads = qkv.unflatten(-1, (-1, self.head_dim))
        q, k, v = heads.split([self.num_heads, self.num_kv_heads, self.num_kv_heads], dim=1)
        q, k = self.rotary_emb(positions, self.q_norm(q), self.k_norm(k))
        return self.attn(q, k, v).flatten(1)


class Qwen3MLP(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        if config.hidden_act != "silu":
            raise ValueError(f"hidden_act={config.hidden_act!r} is not supported, only 'silu'")
        hidden_size, intermediate_size = config.hidden_size, config.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(hidden_size, [intermediate_size] * 2)
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size)
        self.act_fn = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        """What the MLP has to say about each token, from that token alone.

        `gate_up_proj` gives twice `intermediate_size` features a token: those of the gate, then
        those that it opens or closes; `act_fn` makes one half of both. `down_proj` leads back.

        Args:
            x: [num_tokens, hidden_size], normalized already; it stays as it is.

        Returns:
            [num_tokens, hidden_size], to be added to the stream by the caller.
        """
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


class Qwen3DecoderLayer(nn.Module):
    """Attention and MLP, each on a normalized copy of the residual stream."""

    def __init__(self, config: Any, rotary_emb: RotaryEmbedding) -> None:
        super().__init__()
        self.self_attn = Qwen3Attention(config, rotary_emb)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, positions: Tensor, stream: Tensor) -> Tensor:
        """The residual stream after this layer: first attention adds to it, then the MLP.

        Each of the two reads a normalized copy of the stream as it is then, attention by
        `input_layernorm`, the MLP by `post_attention_layernorm`. The stream itself is never
        normalized here.

        Args:
            positions: [num_tokens], for attention.
            stream: [num_tokens, hidden_size]; it stays as it is, the result is a tensor of its own.

        Returns:
            [num_tokens, hidden_size].
        """
        stream = stream + self.self_attn(positions, self.input_layernorm(stream))
        return stream + self.mlp(self.post_attention_layernorm(stream))


class Qwen3Model(nn.Module):
    """Embedding, decoder layers, final norm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        rotary_emb = get_rope(config.head_dim, config.max_position_embeddings, config.rope_theta)
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        layers = [Qwen3DecoderLayer(config, rotary_emb) for _ in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states of all tokens of a step.

        The embeddings of the tokens begin the residual stream, each layer makes a new one of it, in
        their order, and the last one is normalized.

        Args:
            input_ids: [num_tokens], int64.
            positions: [num_tokens], int64: where each token is in its own text.

        Returns:
            [num_tokens, hidden_size], what `lm_head` makes logits of; that is done elsewhere.
        """
        stream = self.embed_tokens(input_ids)
        for layer in self.layers:
            stream = layer(positions, stream)
        return self.norm(stream)


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

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        """[num_tokens], [num_tokens] -> hidden states [num_tokens, hidden_size]."""
        return self.model(input_ids, positions)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """[num_tokens, hidden_size] -> [num_seqs, vocab_size] on rank 0, None elsewhere."""
        return self.lm_head(hidden_states)
