"""What the attention layers need to know about the current step, beside its tensors.

It travels past the model's `forward` signature, as in vLLM (vllm/forward_context.py), so that the
model code reads like a plain transformer.
"""

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor


@dataclass
class Context:
    """Layout of one step's batch; tensors are int32 on the engine's device, `slot_mapping` int64.

    Args:
        is_prefill: whether the step computes prompts (many tokens a sequence) or one token for each
            sequence.
        cu_seqlens_q: prefill: [num_seqs + 1], where each sequence's query tokens start in the flat
            batch.
        cu_seqlens_k: prefill: [num_seqs + 1], the same for all its tokens so far, cached ones
            included.
        max_seqlen_q, max_seqlen_k: longest of each.
        slot_mapping: [num_tokens], the KV-cache slot (block id * block size + offset) of every
            token.
        context_lens: decode: [num_seqs], tokens each sequence attends to, the new one included.
        block_tables: [num_seqs, max_blocks], block ids padded with -1; None in a prefill without
            cached tokens.
    """

    is_prefill: bool = False
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    slot_mapping: Tensor | None = None
    context_lens: Tensor | None = None
    block_tables: Tensor | None = None

    @cached_property
    def query_starts(self) -> list[int]:
        """Where each sequence's queries start, and the last one's end; read once a step."""
        if self.cu_seqlens_q is not None:
            return self.cu_seqlens_q.tolist()
        return list(range(len(self.kv_lens) + 1))  # decode: one query a sequence

    @cached_property
    def kv_lens(self) -> list[int]:
        """Number of keys each sequence attends to."""
        lens = self.cu_seqlens_k.diff() if self.is_prefill else self.context_lens  # type: ignore[union-attr]
        return lens.tolist()  # type: ignore[union-attr]

    @cached_property
    def kv_blocks(self) -> list[list[int]]:
        """Block ids of each sequence, with the padding."""
        return self.block_tables.tolist()  # type: ignore[union-attr]


_current = threading.local()  # engines in different threads do not see each other's


def get_context() -> Context:
    """The context of the step that this thread is running; an empty one between steps."""
    return getattr(_current, "context", None) or Context()


def set_context(*args: Any, **fields: Any) -> None:
    """Describe the step that is about to run; see `Context` for the fields."""
    _current.context = Context(*args, **fields)


def reset_context() -> None:
    """Forget the step that has run."""
    _current.context = None
