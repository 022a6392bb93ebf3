"""Your answers to chapter 06, scheduler.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: eecd86a59441
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
from typing import Any


# --- ch06.finish_reason
def finish_reason(self, seq: Sequence) -> str | None:
    """Why the last token of `seq` ends it, or None. The first rule that holds decides.

    1. "stop": `last_token` is one of the model's end tokens, `self.eos`, unless the request
       ignores them.
    2. "stop": it is one of the request's own `stop_token_ids`; `seq.stop_reason` says which.
    3. "length": the request has generated `max_tokens` tokens or more, or prompt and answer
       together have reached `self.max_model_len`.
    4. "error": they need more blocks than the whole pool has, which are
       `self.block_manager.num_blocks`; a sentence in `seq.error` says so.

    What the request asks for is in `seq.sampling_params`: `ignore_eos`, `stop_token_ids`,
    `max_tokens`. Nothing else of the sequence changes: whoever asks ends it.
    """
    raise NotImplementedError("ch06.finish_reason")


# --- ch06.postprocess
def postprocess(self, seqs: list[Sequence], token_ids: list[int | None]) -> None:
    """Take in what the step computed, and finish the sequences that stop here.

    After the call the scheduled tokens of a sequence count as stored, with those that were
    before (`num_cached_tokens`), and nothing of it is scheduled any more. A sampled token is
    the last one of its sequence now (`append_token`); its keys and values do not exist yet. A
    sequence that ends with it, by what `finish_reason(seq)` says, has been ended by
    `finish(seq, reason)`. For a prompt that was cut nobody asks whether it is over.

    Args:
        seqs: what `schedule` returned.
        token_ids: one sampled token for each sequence, 0 or more; None for a prompt that was
            cut.
    """
    raise NotImplementedError("ch06.postprocess")


# --- ch06.schedule_prefill
def schedule_prefill(self) -> list[Sequence]:
    """Let waiting sequences in, first come first served, as far as `may_join` says yes.

    A step computes at most `max_num_batched_tokens` tokens: that is its budget. What holds
    after the call:

    * A sequence of the step has blocks for all its tokens. One that had none was admitted:
      `admit(seq)` gives them, and sets `num_cached_tokens`.
    * Its `num_scheduled_tokens` are the tokens that are not cached, or as many of them as those
      before it leave of the budget.
    * The blocks that it fills can be found (`block_manager.hash_blocks(seq)`), also by those
      behind it in the same step.
    * If the budget cuts it (`seq.is_cut`), it is the last of the step, and is still the head of
      `waiting`: it goes on in the next step. If not, it runs from now on: it is the last of
      `running`, and its status is RUNNING.
    * Whoever is the head of `waiting` then, and is not cut, may not join: `may_join(seq, left)`
      is False for what is left of the budget. Nobody overtakes it.

    Returns:
        all sequences of the step, in order, also one that is cut; none if nobody can join.
    """
    raise NotImplementedError("ch06.schedule_prefill")


# --- ch06.preempt
def preempt(self, seq: Sequence) -> None:
    """Take the blocks of a running sequence, and have it wait again, as the very next.

    It keeps its tokens, prompt and answer. The block manager has its blocks back, with their
    hashes (`deallocate`), and nothing of it is scheduled any more. The scheduler counts it in
    its `num_preemptions`. When it is admitted again, it computes all its tokens that the prefix
    cache has lost.
    """
    raise NotImplementedError("ch06.preempt")


# --- ch06.make_room
def make_room(self, seq: Sequence) -> bool:
    """See that `seq`, which runs, has a slot for its last token, whoever has to go for it.

    Nobody is preempted while there is a slot (`block_manager.can_append(seq)`). One preempted
    sequence may not be enough: others may share its blocks. Who is next, `choose_victim(seq)`
    says, each time anew. It may be `seq` itself; then nobody else goes any more.

    Returns:
        whether there is a slot; False if `seq` was preempted itself.
    """
    raise NotImplementedError("ch06.make_room")


# --- ch06.choose_victim
def choose_victim(self: Any, seq: Any) -> Any:
    """Which running sequence gives up its blocks, so that `seq` can go on.

    The goal: of the work in `exercises.kit.mixed_work`, as few tokens as possible shall be computed
    again. When the newest goes it is 3,121 tokens, when the shortest does 2,733; at most 2,700
    are asked for.

    It is called while the blocks do not suffice, and then again. It only says who goes, and changes
    nothing. With any work, every request has to get to its end.

    Args:
        seq: the running sequence that needs a block.

    Returns:
        one of `self.running`, a deque with the oldest first; `seq` is one of them, too.
    """
    raise NotImplementedError("ch06.choose_victim")
