"""Our answers to chapter 15, qwen3 model, cut out of nanovllm/, each with its reason."""

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
import torch
import torch.nn.functional as F
from torch import Tensor


# --- ch15.mlp
# Every part is a module that somebody has written already: two linear layers that know about ranks, and a gate. So the MLP is one
# expression. The stream is not added here: that is done by the layer, for attention and for the MLP alike, and so that a fast kernel
# can add and normalize at once. Seven of ten weights of the small model are in these two matrices; in a decode step, most of
# the time goes into reading them.
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


# --- ch15.attend
# A row of qkv has its heads behind one another, so a view is enough: not one number is moved before the norms. num_heads and
# num_kv_heads are those of this rank: with two ranks each of them has half of the heads, and nothing else changes. The norms come
# before the rotation, because their weights belong to features as the checkpoint knows them; a rotation mixes two features, and
# behind it each weight would scale a mixture. Keys are stored normalized and rotated: both depend on the token alone. vLLM has
# the same lines in vllm/model_executor/models/qwen3.py.
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


# --- ch15.decoder_layer
# Nothing is ever taken out of the stream or scaled: whatever a layer writes, all later ones can read. So a layer may also do
# nothing, and gradients find a straight way back through sixty of them; normalizing the stream itself, as the first
# transformers did, makes deep models hard to train. A new tensor is made by each sum, which costs a pass over the memory. That is why vLLM's
# RMSNorm takes the residual as a second argument, adds and normalizes in one kernel, and hands both back; so does one of our levers.
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


# --- ch15.model
# The final norm is the only place where the stream is normalized for good: it has grown from layer to layer, and the head was trained
# with rows of size one. The head is elsewhere, because it is needed for the last token of each sequence only: with a prompt of a
# thousand tokens and a vocabulary of 151,936, logits of all of them would be 600 MB. There is no batch dimension, and no mask: who belongs
# to whom is known to attention, and nobody else has to ask.
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


# --- ch15.read_early
# A plain lens takes for granted that all layers speak the same language. They nearly do, for each adds to one stream, but what
# the last layers add is missing, and on average it is not nothing. A matrix that was fitted to known tokens makes up for that average
# (a "tuned lens"; Belrose et al., 2023): 52.5 % instead of 45.5. Looking for the known token with the nearest stream comes to 54 % by
# distance and 53.4 % by angle, but only to 45.5 % by dot product: there a few long streams win for nearly every token. This is also how a model drafts for itself: with heads behind early layers it guesses the next tokens cheaply,
# and the whole model then checks several of them in one step (LayerSkip, 2024; Medusa and EAGLE put such heads behind the last layer).
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

    def inputs(stream: Tensor) -> Tensor:
        scaled = F.normalize(stream, dim=-1) * stream.shape[-1] ** 0.5
        return torch.cat((scaled, torch.ones(len(stream), 1)), dim=-1)

    x = inputs(early)
    pull = torch.eye(x.shape[-1])  # keeps the numbers small where the known tokens say little
    return inputs(new) @ torch.linalg.solve(x.T @ x + pull, x.T @ late)
