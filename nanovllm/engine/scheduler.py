"""Continuous batching: which sequences compute what in the next step.

Iteration-level scheduling follows Orca (Yu et al., 2022); the order of queues and preemption by
recomputation follow vLLM (vllm/v1/core/sched/scheduler.py).
"""

import logging
from collections import deque
from collections.abc import Iterable

from ..config import Config
from .block_manager import BlockManager
from .sequence import Sequence, SequenceStatus

logger = logging.getLogger(__name__)


class Scheduler:
    """Two queues and a block manager.

    Every live sequence is in `waiting` or in `running`, nowhere else. A step is a prefill of
    waiting sequences if one can be admitted, else one decode token for each running sequence.

    Args:
        config: `num_kvcache_blocks` must be set; no weights are read.
    """

    def __init__(self, config: Config) -> None:
        if config.num_kvcache_blocks < 1:
            raise ValueError(f"num_kvcache_blocks must be set, got {config.num_kvcache_blocks}")
        self.config = config
        self.max_model_len = config.max_model_len
        self.eos = frozenset(config.eos)
        self.block_manager = BlockManager(
            config.num_kvcache_blocks, config.kvcache_block_size, config.enable_prefix_caching
        )
        if (num_tokens := config.num_kvcache_tokens) < config.max_model_len:
            message = "num_kvcache_blocks hold %d tokens, fewer than max_model_len=%d"
            logger.warning(message, num_tokens, config.max_model_len)
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()
        self.num_preemptions = 0
        self.num_prefill_tokens = 0  # computed, so a recomputed token counts twice
        self.restore_steps()

    def is_finished(self) -> bool:
        """Whether no sequence is waiting or running."""
        return not self.waiting and not self.running

    def check(self, seq: Sequence) -> None:
        """Raise `ValueError` if the sequence can never be run, because its prompt is too long."""
        if seq.num_tokens > min(self.max_model_len, self.config.num_kvcache_tokens):
            cache = f"the KV cache (num_kvcache_blocks) holds {self.config.num_kvcache_tokens}"
            limits = f"max_model_len is {self.max_model_len}, and {cache}"
            raise ValueError(f"the prompt has {seq.num_tokens} tokens; {limits}; shorten it")

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence. Raises `ValueError` if it can never be run (`check`)."""
        self.check(seq)
        if self.is_finished():
            self.restore_steps()
        self.waiting.append(seq)

    def schedule(self) -> tuple[list[Sequence], bool]:
        """Choose the sequences of the next step and give them blocks.

        Returns:
            the sequences, with `num_scheduled_tokens` set, and whether the step is a prefill.
            Only the last sequence of a prefill can be cut (`seq.is_cut`).
        """
        seqs = self.schedule_prefill()
        if not seqs:
            return self.schedule_decode(), False
        self.num_prefill_tokens += sum(seq.num_scheduled_tokens for seq in seqs)
        return seqs, True

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

    def may_join(self, seq: Sequence, budget: int) -> bool:
        """Whether the head of `waiting` can join a prefill that has `budget` tokens left."""
        return self.refusal(seq, budget) is None

    def refusal(self, seq: Sequence, budget: int) -> str | None:
        """Why the head of `waiting` cannot join this step, or None if it can."""
        if budget == 0:
            return "token_budget"
        if seq.block_table:  # was admitted before and cut
            return None
        if len(self.running) >= self.max_num_seqs:
            return "max_seqs"
        return None if self.block_manager.can_allocate(seq) else "no_blocks"

    def admit(self, seq: Sequence) -> None:
        """Give a waiting sequence its blocks; what the prefix cache has of it is not computed."""
        self.block_manager.allocate(seq)
        if seq.num_prefix_hit_tokens is None:
            seq.num_prefix_hit_tokens = seq.num_cached_tokens

    def schedule_decode(self) -> list[Sequence]:
        """One token for each running sequence, oldest first, as far as there are blocks."""
        for seq in list(self.running):
            # One that is not running any more has just been preempted for another.
            if seq.status is SequenceStatus.RUNNING and self.make_room(seq):
                self.block_manager.may_append(seq)
                seq.num_scheduled_tokens = 1
        scheduled = [seq for seq in self.running if seq.num_scheduled_tokens]
        for seq in scheduled:
            self.block_manager.hash_blocks(seq)
        return scheduled

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

    def choose_victim(self, seq: Sequence) -> Sequence:
        """Who of those that run gives up its blocks for `seq`, which is one of them: the newest."""
        return self.running[-1]

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

    def finish(self, seq: Sequence, reason: str) -> None:
        """End a live sequence and free its blocks at once."""
        (self.running if seq.status is SequenceStatus.RUNNING else self.waiting).remove(seq)
        self.block_manager.deallocate(seq)
        seq.finish_reason = reason
        seq.status = SequenceStatus.FINISHED

    # What the engine asks for when something went wrong.

    def reset(self, seqs: Iterable[Sequence]) -> None:
        """Begin anew: nothing is cached, and these sequences, oldest first, wait."""
        self.block_manager.reset()
        self.running.clear()
        self.waiting.clear()
        self.waiting.extend(seqs)

    def shrink_steps(self, seqs: list[Sequence]) -> None:
        """Let steps be half as large as one of these sequences, until the scheduler is idle."""
        self.limit_steps(max(1, sum(seq.num_scheduled_tokens for seq in seqs) // 2))

    def restore_steps(self) -> None:
        """Let steps be as large as the config says."""
        self.limit_steps(self.config.max_num_batched_tokens)

    def limit_steps(self, num_tokens: int) -> None:
        """Bound the tokens of a step; with one a sequence in a decode step, these, too."""
        self.max_num_batched_tokens = num_tokens
        self.max_num_seqs = min(self.config.max_num_seqs, num_tokens)
