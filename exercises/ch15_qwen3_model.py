"""Your answers to chapter 15, qwen3 model.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: fbdb0c897076
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from typing import Any, ClassVar
from torch import Tensor, nn
from nanovllm.layers.activation import SiluAndMul
from nanovllm.layers.attention import Attention
from nanovllm.layers.embed_head import ParallelLMHead, VocabParallelEmbedding
from nanovllm.layers.layernorm import RMSNorm
from nanovllm.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from nanovllm.layers.rotary_embedding import RotaryEmbedding, get_rope
from nanovllm.models.qwen3 import Qwen3Attention, Qwen3MLP, Qwen3DecoderLayer, Qwen3Model, Qwen3ForCausalLM
from torch import Tensor


# --- ch15.mlp
def forward(self, x: Tensor) -> Tensor:
    """What the MLP has to say about each token, from that token alone.

    `gate_up_proj` gives twice `intermediate_size` features a token: those of the gate, then
    those that it opens or closes; `act_fn` makes one half of both. `down_proj` leads back.

    Args:
        x: [num_tokens, hidden_size], normalized already; it stays as it is.

    Returns:
        [num_tokens, hidden_size], to be added to the stream by the caller.
    """
    raise NotImplementedError("ch15.mlp")


# --- ch15.attend
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
    raise NotImplementedError("ch15.attend")


# --- ch15.decoder_layer
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
    raise NotImplementedError("ch15.decoder_layer")


# --- ch15.model
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
    raise NotImplementedError("ch15.model")


# --- ch15.read_early
def read_early(early: Tensor, late: Tensor, new: Tensor) -> Tensor:
    """Guess what the last layers will make of a token, two layers before the end.

    The goal: on stories that are none of the known ones, the head finds the same token most likely
    in your guess as in what the whole model really makes, at least 50 times in 100. The plain lens,
    which is the last norm applied to the early stream, comes to 45.5. No weight of the model is
    given; what its last layers do to a stream can be seen in the known tokens.

    A row of the result may depend on all of `early` and `late`, and of `new` only on its own row.

    Args:
        early: [num_known, hidden_size] float32, the streams of known tokens after six of eight
            layers.
        late: [num_known, hidden_size] float32, of the same tokens in the same order: what the head
            reads at the end, normalized already.
        new: [num_tokens, hidden_size] float32, the streams of other tokens after six layers.

    Returns:
        [num_tokens, hidden_size] float32: what the head shall read for these. The arguments stay as
        they are.
    """
    raise NotImplementedError("ch15.read_early")
