"""What the attention layers need to know about the current step, beside its tensors.

It travels past the model's `forward` signature, as in vLLM (vllm/forward_context.py), so that the model code
reads like a plain transformer.
"""

import threading
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass
class Context:
    """Layout of one step's batch. All tensors are int32 on the engine's device, `slot_mapping` is int64.

    Args:
        is_prefill: whether the step computes prompts (many tokens a sequence) or one token for each sequence.
        cu_seqlens_q: prefill: [num_seqs + 1], where each sequence's query tokens start in the flat batch.
        cu_seqlens_k: prefill: [num_seqs + 1], the same for all its tokens so far, cached ones included.
        max_seqlen_q, max_seqlen_k: longest of each.
        slot_mapping: [num_tokens], the KV-cache slot (block id * block size + offset) of every token.
        context_lens: decode: [num_seqs], tokens each sequence attends to, the new one included.
        block_tables: [num_seqs, max_blocks], block ids padded with -1; None in a prefill without cached tokens.
    """

    is_prefill: bool = False
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_k: torch.Tensor | None = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    slot_mapping: torch.Tensor | None = None
    context_lens: torch.Tensor | None = None
    block_tables: torch.Tensor | None = None

    @cached_property
    def query_starts(self) -> list[int]:
        """`cu_seqlens_q` as a list, read from the device once a step."""
        assert self.cu_seqlens_q is not None
        return self.cu_seqlens_q.tolist()

    @cached_property
    def kv_lens(self) -> list[int]:
        """Number of keys each sequence attends to."""
        if not self.is_prefill:
            assert self.context_lens is not None
            return self.context_lens.tolist()
        assert self.cu_seqlens_k is not None
        return self.cu_seqlens_k.diff().tolist()

    @cached_property
    def kv_blocks(self) -> list[list[int]]:
        """Block ids of each sequence, without the padding."""
        assert self.block_tables is not None
        return [[block_id for block_id in row if block_id >= 0] for row in self.block_tables.tolist()]


class _Current(threading.local):
    """One context a thread: engines in different threads do not see each other's."""

    context = Context()
    overlaps_launches = False


_current = _Current()


def get_context() -> Context:
    """The context of the step that this thread is running."""
    return _current.context


def set_context(
    is_prefill: bool,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    slot_mapping: torch.Tensor | None = None,
    context_lens: torch.Tensor | None = None,
    block_tables: torch.Tensor | None = None,
) -> None:
    """Describe the step that is about to run; see `Context` for the fields."""
    _current.context = Context(
        is_prefill, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, slot_mapping, context_lens, block_tables
    )


def set_overlapped_launches(is_on: bool) -> None:
    """Let the kernels of the step that this thread launches start before the one before them has ended, or not."""
    _current.overlaps_launches = is_on


def overlaps_launches() -> bool:
    """What `set_overlapped_launches` has set; off if nothing was set."""
    return _current.overlaps_launches


def reset_context() -> None:
    """Forget the step that has run, and whether its launches overlapped."""
    _current.context = Context()
    _current.overlaps_launches = False
