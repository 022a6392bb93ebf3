"""Your answers to chapter 06, scheduler.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line. "python -m exercises check" says how it is going; "python -m exercises" what there is to do.
"""

# derived: e75d529dcf9e
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from nanovllm.config import Config
from nanovllm.engine.block_manager import BlockManager
from nanovllm.engine.sequence import Sequence, SequenceStatus
from nanovllm.engine.scheduler import Scheduler


# --- ch06.finish_reason
def finish_reason(self, seq: Sequence) -> str | None:
    """Why the last token of `seq` ends it, or None; the first rule that holds decides.

    1. "stop": `last_token` is one of the model's end tokens, `self.eos`, unless the request
       ignores them.
    2. "stop": it is one of the request's own `stop_token_ids`; `seq.stop_reason` says which.
    3. "length": the request has generated `max_tokens` tokens, or prompt and answer together
       have `self.max_model_len`.
    4. "error": they need more blocks than the whole pool has; `seq.error` says so.

    What the request asks for is in `seq.sampling_params`: `ignore_eos`, `stop_token_ids`,
    `max_tokens`.
    """
    raise NotImplementedError("ch06.finish_reason")


# --- ch06.postprocess
def postprocess(self, seqs: list[Sequence], token_ids: list[int | None]) -> None:
    """Take in what the step computed, and finish the sequences that stop here.

    The keys and values of all scheduled tokens of a sequence are in the cache now
    (`num_cached_tokens`), and nothing of it is scheduled any more. A sampled token is appended;
    its own keys and values are computed in the next step. If it was the last one
    (`finish_reason(seq)`), `finish(seq, reason)` ends the sequence.

    Args:
        seqs: what `schedule` returned.
        token_ids: one sampled token for each sequence; None for a prompt that was cut.
    """
    raise NotImplementedError("ch06.postprocess")


# --- ch06.schedule_prefill
def schedule_prefill(self) -> list[Sequence]:
    """Let waiting sequences in, first come first served, until the first that may not join.

    `may_join(seq, budget)` says whether the head of `waiting` can take part when `budget`
    tokens are left of `max_num_batched_tokens`. A sequence without blocks is admitted:
    `admit(seq)` gives it blocks for all its tokens and sets `num_cached_tokens`. What is not
    cached it computes, at most what is left of the budget; this is its `num_scheduled_tokens`.
    Then `block_manager.hash_blocks(seq)` lets others find the blocks that the step fills.

    A sequence that the budget cuts (`seq.is_cut`) ends the step: it stays at the head of
    `waiting`, keeps its blocks, and goes on in the next step. One that is not cut runs from now
    on: it is at the end of `running`, with the status RUNNING.

    Returns:
        the sequences of the step, in order; none if nobody can join.
    """
    raise NotImplementedError("ch06.schedule_prefill")


# --- ch06.preempt
def preempt(self, seq: Sequence) -> None:
    """Take the blocks of a running sequence, and have it wait again, as the very next.

    Its tokens are kept; nothing of it is scheduled any more. `num_preemptions` counts it. When
    it is admitted again, its keys and values are recomputed, but for what the prefix cache
    still has.
    """
    raise NotImplementedError("ch06.preempt")


# --- ch06.make_room
def make_room(self, seq: Sequence) -> bool:
    """Preempt running sequences until `seq` has a slot for its last token.

    Nobody is preempted if there is one already (`block_manager.can_append(seq)`). Who goes,
    `choose_victim(seq)` says; it may be `seq` itself.

    Returns:
        whether there is a slot; False if `seq` was preempted itself.
    """
    raise NotImplementedError("ch06.make_room")
