"""Our answers to chapter 06, scheduler, cut out of nanovllm/, each with its reason."""

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
# The order matters at the very end: an answer whose last allowed token is the end token is complete, and "length" would
# tell its reader that something is missing. ignore_eos silences the model's own end tokens, for measurements; what a
# request itself asks to stop at always counts. stop_reason tells which of several stop tokens it was; for the model's
# end token it stays None, as in vLLM. A sequence that needs more blocks than there are can never go on, whoever makes
# room for it, and waiting for ever would be worse than an error. One that only lacks a block at the moment is another
# matter: that is what preemption is for.
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
    params = seq.sampling_params
    if not params.ignore_eos and seq.last_token in self.eos:
        return "stop"
    if seq.last_token in params.stop_token_ids:
        seq.stop_reason = seq.last_token
        return "stop"
    if seq.num_completion_tokens >= params.max_tokens or seq.num_tokens >= self.max_model_len:
        return "length"
    if seq.num_blocks > self.block_manager.num_blocks:
        seq.error = f"the sequence of {seq.num_tokens} tokens has outgrown the KV-cache pool; "
        seq.error += "raise num_kvcache_blocks or lower max_tokens"
        return "error"
    return None


# --- ch06.postprocess
# A step stores the keys and values of what it computed, never of what it sampled: the new token is one ahead, and the
# next step computes it. That is why a running sequence has stored all tokens but the last. A cut prompt is stored as
# far as it got, and that is all; its sampled token would be nonsense, for half of the prompt is missing. finish gives
# the blocks back at once, so the very next step can use them. What ends an answer is known to finish_reason alone, so a
# new rule is written in one place.
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
    for seq, token_id in zip(seqs, token_ids, strict=True):
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0
        if token_id is None:
            continue
        seq.append_token(token_id)
        reason = self.finish_reason(seq)
        if reason:
            self.finish(seq, reason)


# --- ch06.schedule_prefill
# The budget bounds how long a step takes, and with it how long everybody who decodes has to wait. It counts tokens
# that are really computed: a prefix hit is free. Because the last prompt may be cut, every step is full, however long
# the prompts are, and a prompt that is longer than the whole budget is no special case. A cut prompt stays the head of
# the queue with all its blocks, so nobody can take the room that its second half needs.
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
    scheduled: list[Sequence] = []
    budget = self.max_num_batched_tokens
    while self.waiting and self.may_join(self.waiting[0], budget):
        seq = self.waiting[0]
        if not seq.block_table:
            self.admit(seq)
        seq.num_scheduled_tokens = min(seq.num_tokens - seq.num_cached_tokens, budget)
        budget -= seq.num_scheduled_tokens
        self.block_manager.hash_blocks(seq)
        scheduled.append(seq)
        if seq.is_cut:
            break
        self.running.append(self.waiting.popleft())
        seq.status = SequenceStatus.RUNNING
    return scheduled


# --- ch06.preempt
# It goes to the head because it was there before all who wait: first come, first served, even for those who had to
# step aside. Its tokens stay. Coming back is then nothing but one more prefill of prompt and answer so far, and the
# code that reads prompts does it without knowing. The freed blocks keep their hashes, so often much of it is still
# in the cache.
def preempt(self, seq: Sequence) -> None:
    """Take the blocks of a running sequence, and have it wait again, as the very next.

    It keeps its tokens, prompt and answer. The block manager has its blocks back, with their
    hashes (`deallocate`), and nothing of it is scheduled any more. The scheduler counts it in
    its `num_preemptions`. When it is admitted again, it computes all its tokens that the prefix
    cache has lost.
    """
    self.running.remove(seq)
    self.block_manager.deallocate(seq)
    seq.status = SequenceStatus.WAITING
    seq.num_scheduled_tokens = 0
    self.waiting.appendleft(seq)
    self.num_preemptions += 1


# --- ch06.make_room
# Who goes is a question of its own, and choose_victim answers it: another policy is another answer, and this loop stays
# as it is. Ours takes the newest. It has the fewest tokens behind it, as a rule, so the least is computed again; and the
# oldest always goes on, so that in the end everybody finishes. A sequence that is chosen itself has to go, too. If it
# were spared, two sequences could take the blocks from each other forever.
def make_room(self, seq: Sequence) -> bool:
    """See that `seq`, which runs, has a slot for its last token, whoever has to go for it.

    Nobody is preempted while there is a slot (`block_manager.can_append(seq)`). One preempted
    sequence may not be enough: others may share its blocks. Who is next, `choose_victim(seq)`
    says, each time anew. It may be `seq` itself; then nobody else goes any more.

    Returns:
        whether there is a slot; False if `seq` was preempted itself.
    """
    while not self.block_manager.can_append(seq):
        victim = self.choose_victim(seq)
        self.preempt(victim)
        if victim is seq:
            return False
    return True


# --- ch06.choose_victim
# Two things count: what is computed again when a sequence goes, its num_tokens, and how much room it would still want if it
# stayed, its tokens still to write. Ours weighs one against the other, and has 2,373 tokens computed again, 24 % fewer
# than when the newest goes (3,121); by num_tokens alone it is 2,733. The longest frees most and costs most: 3,791. On
# other requests of this kind ours was 14 % better than the newest. It has its price: max_tokens is only a limit, and an
# answer that ends by itself makes it a bad guess; each call looks at all that run; and a short question may have to go
# again and again, where the newest becomes the oldest in time. That is why the engine, like vLLM, keeps to the newest.
# Everybody still finishes: whoever gets on has less to write and more to lose with each token, so in the end it stays.
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

    def cost(other: Any) -> int:
        # What it would compute again, and for it: what it will still write, and want room for, if it stays.
        return other.num_tokens - (other.sampling_params.max_tokens - other.num_completion_tokens)

    return min(self.running, key=cost)
