"""Which sequences compute what in the next step: continuous batching with chunked prefill and preemption.

Iteration-level scheduling follows Orca (Yu et al., 2022); the order of queues and preemption by
recomputation follow vLLM (vllm/v1/core/sched/scheduler.py); admission by the expected peak of memory
follows the Past-Future scheduler (Gong et al., 2025).
"""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..config import Config
from .block_manager import BlockManager
from .sequence import PENDING_TOKEN, Sequence, SequenceStatus

if TYPE_CHECKING:
    from .trace import TraceRecorder

logger = logging.getLogger(__name__)

# Finished requests remembered for estimating how long the next answers get.
LENGTH_HISTORY = 256
# Of those that got longer than a request is now, so many ended before the length it is expected to reach.
LENGTH_QUANTILE = 0.75
# Share of the pool that admission leaves empty: the estimate counts parts of blocks, the sequences need whole ones.
WATERMARK = 0.01


class Scheduler:
    """Two queues and a block manager.

    Every live sequence is in `waiting` or in `running`, nowhere else. A step is a prefill of waiting
    sequences if one can be admitted, else one decode token for each running sequence.

    Args:
        config: `num_kvcache_blocks` must be set; no weights are read.

    Raises:
        ValueError: `num_kvcache_blocks` is still -1.
    """

    def __init__(self, config: Config) -> None:
        if config.num_kvcache_blocks < 1:
            raise ValueError(f"num_kvcache_blocks must be set for a scheduler, got {config.num_kvcache_blocks}")
        # A decode step computes one token a sequence, so the token budget bounds the sequences, too.
        self.max_num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        self.max_num_batched_tokens = config.max_num_batched_tokens
        self.max_model_len = config.max_model_len
        self.eos = frozenset(config.eos)
        self.block_manager = BlockManager(
            config.num_kvcache_blocks, config.kvcache_block_size, config.enable_prefix_caching
        )
        if config.num_kvcache_blocks * config.kvcache_block_size < config.max_model_len:
            logger.warning(
                "the KV cache holds %d tokens (num_kvcache_blocks=%d), fewer than max_model_len=%d",
                config.num_kvcache_blocks * config.kvcache_block_size,
                config.num_kvcache_blocks,
                config.max_model_len,
            )
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()
        self.finished: list[Sequence] = []  # since `take_finished` was called last
        self.num_preemptions = 0
        self.num_prefill_tokens = 0  # computed, so a recomputed token counts twice
        self.output_lengths: deque[int] = deque(maxlen=LENGTH_HISTORY)
        self.sorted_lengths: list[int] = []  # the same, shortest first
        self.recorder: TraceRecorder | None = None

    def is_finished(self) -> bool:
        """Whether no sequence is waiting or running."""
        return not self.waiting and not self.running

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence.

        Raises:
            ValueError: the prompt alone needs more blocks than the pool has.
        """
        if seq.num_blocks > len(self.block_manager.blocks):
            raise ValueError(
                f"the prompt of {seq.num_tokens} tokens needs {seq.num_blocks} KV-cache blocks, and the pool has "
                f"{len(self.block_manager.blocks)}; shorten it or raise num_kvcache_blocks"
            )
        self.waiting.append(seq)
        self._note("arrive", seq)

    def schedule(self) -> tuple[list[Sequence], bool]:
        """Choose the sequences of the next step and give them blocks.

        Returns:
            the sequences, with `num_scheduled_tokens` set, and whether the step is a prefill.
            Only the last sequence of a prefill can be cut (`seq.is_cut`).
        """
        while self.waiting and not self._fits_into_pool(self.waiting[0]):  # it grew before it was preempted
            self._finish_outgrown(self.waiting[0])
        seqs = self.schedule_prefill()
        if not seqs:
            return self.schedule_decode(), False
        self.num_prefill_tokens += sum(seq.num_scheduled_tokens for seq in seqs)
        return seqs, True

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
        """Whether the head of `waiting` can join a prefill that has `budget` tokens left; a recorder hears why not."""
        reason = self.refusal(seq, budget)
        if reason:
            self._note("refuse", seq, reason=reason)
        return reason is None

    def refusal(self, seq: Sequence, budget: int) -> str | None:
        """Why the head of `waiting` cannot join this step, or None if it can."""
        if budget == 0:
            return "token_budget"
        if seq.block_table:  # was admitted before and cut
            return None
        if len(self.running) >= self.max_num_seqs:
            return "max_seqs"
        if not self.block_manager.can_allocate(seq):
            return "no_blocks"
        # Alone it may use the whole pool. Otherwise room must be left for what the others will still write.
        num_blocks = len(self.block_manager.blocks)
        if self.running and self.expected_peak_blocks(seq) > num_blocks - int(num_blocks * WATERMARK):
            return "no_headroom"
        return None

    def admit(self, seq: Sequence) -> None:
        """Give a waiting sequence its blocks; what the prefix cache has of it need not be computed."""
        self.block_manager.allocate(seq)
        if seq.num_prefix_hit_tokens is None:
            seq.num_prefix_hit_tokens = seq.num_cached_tokens
        self._note("admit", seq, cached=seq.num_cached_tokens, new=seq.num_tokens - seq.num_cached_tokens)

    def schedule_decode(self) -> list[Sequence]:
        """One token for each running sequence, oldest first; the newest makes room if blocks run out."""
        scheduled: list[Sequence] = []
        for seq in list(self.running):
            fits = self._fits_into_pool(seq)
            if seq.has_pending_token and (not fits or self.finish_reason(seq)):
                continue  # what may be its last token is on its way
            if seq.status is not SequenceStatus.RUNNING:  # preempted a moment ago
                continue
            if not fits:
                self._finish_outgrown(seq)
            elif self.make_room(seq):
                self.block_manager.may_append(seq)
                seq.num_scheduled_tokens = 1
                self.block_manager.hash_blocks(seq)
                scheduled.append(seq)
        return scheduled

    def _fits_into_pool(self, seq: Sequence) -> bool:
        return seq.num_blocks <= len(self.block_manager.blocks)

    def _finish_outgrown(self, seq: Sequence) -> None:
        """End a sequence that needs more blocks than there are."""
        seq.error = f"the sequence of {seq.num_tokens} tokens has outgrown the KV-cache pool; "
        seq.error += "raise num_kvcache_blocks or lower max_tokens"
        self.finish(seq, "error")

    def make_room(self, seq: Sequence) -> bool:
        """Preempt running sequences, the newest first, until `seq` has a slot for its last token.

        Nobody is preempted if there is one already (`block_manager.can_append(seq)`). The end of
        `running` is the newest; it may be `seq` itself.

        Returns:
            whether there is a slot; False if `seq` was preempted itself.
        """
        while not self.block_manager.can_append(seq):
            newest = self.running[-1]
            self.preempt(newest)
            if newest is seq:
                return False
        return True

    def preempt(self, seq: Sequence) -> None:
        """Take the blocks of a running sequence, and have it wait again, as the very next.

        Its tokens are kept; nothing of it is scheduled any more. `num_preemptions` counts it. When
        it is admitted again, its keys and values are recomputed, but for what the prefix cache
        still has.
        """
        self.running.remove(seq)
        self.block_manager.deallocate(seq)
        seq.status = SequenceStatus.WAITING
        seq.num_scheduled_tokens = 0
        self.waiting.appendleft(seq)
        self.num_preemptions += 1
        self._note("preempt", seq)

    def postprocess(self, seqs: list[Sequence], token_ids: list[int | None], is_prefill: bool) -> None:
        """Take in what the step computed, and finish the sequences that stop here.

        The keys and values of all scheduled tokens of a sequence are in the cache now
        (`num_cached_tokens`), and nothing of it is scheduled any more. A sampled token is appended;
        its own keys and values are computed in the next step. If it was the last one
        (`finish_reason(seq)`), `finish(seq, reason)` ends the sequence.

        Args:
            seqs, is_prefill: what `schedule` returned.
            token_ids: one sampled token for each sequence; None for a prompt that was cut.
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
        """Why the last token of `seq` ends it, or None if it goes on; the first rule that holds decides.

        1. "stop": `last_token` is one of the model's end tokens, `self.eos`, unless the request
           ignores them.
        2. "stop": it is one of the request's own `stop_token_ids`; `seq.stop_reason` says which.
        3. "length": the request has generated `max_tokens` tokens, or prompt and answer together
           have `self.max_model_len`.

        What the request asks for is in `seq.sampling_params`: `ignore_eos`, `stop_token_ids`,
        `max_tokens`.
        """
        params = seq.sampling_params
        if not params.ignore_eos and seq.last_token in self.eos:
            return "stop"
        if seq.last_token in params.stop_token_ids:
            seq.stop_reason = seq.last_token
            return "stop"
        is_longest = seq.num_completion_tokens >= params.max_tokens or seq.num_tokens >= self.max_model_len
        return "length" if is_longest else None

    def advance(self, seqs: list[Sequence]) -> None:
        """First half of `postprocess`, for a step that is running: count it as computed, its tokens as pending."""
        for seq in seqs:
            if seq.is_finished:  # by the token before, which has just become known
                continue
            is_cut = seq.is_cut
            seq.num_cached_tokens += seq.num_scheduled_tokens
            seq.num_scheduled_tokens = 0
            if not is_cut:
                seq.append_token(PENDING_TOKEN)

    def resolve(self, seqs: list[Sequence], token_ids: list[int | None]) -> None:
        """Second half, when the tokens have come: fill them in, and finish the sequences that stop here."""
        for seq, token_id in zip(seqs, token_ids, strict=True):
            if token_id is None or seq.is_finished:
                continue
            seq.resolve_pending_token(token_id)
            reason = self.finish_reason(seq)
            if reason:
                self.finish(seq, reason)
            else:
                self.block_manager.hash_blocks(seq)  # the step that is running may fill a block with this token

    def finish(self, seq: Sequence, reason: str) -> None:
        """End a live sequence and free its blocks at once."""
        (self.running if seq.status is SequenceStatus.RUNNING else self.waiting).remove(seq)
        seq.drop_pending_token()
        seq.finish_reason = reason
        seq.status = SequenceStatus.FINISHED
        self.block_manager.deallocate(seq)
        self.finished.append(seq)
        if reason in ("stop", "length"):
            self.output_lengths.append(seq.num_completion_tokens)
            self.sorted_lengths = sorted(self.output_lengths)
        self._note("finish", seq, reason=reason)

    def take_finished(self) -> list[Sequence]:
        """The sequences finished since the last call."""
        finished, self.finished = self.finished, []
        return finished

    def reset(self, seqs: Iterable[Sequence]) -> None:
        """Start over after a step that was interrupted at some unknown point.

        The queues and the block manager may be half updated and the cache half written, so nothing of them is
        trusted: all blocks are free and forgotten, and every live sequence waits, with its tokens, to be recomputed.

        Args:
            seqs: the live sequences, oldest first.
        """
        old = self.block_manager
        self.block_manager = BlockManager(len(old.blocks), old.block_size, old.enable_prefix_caching)
        self.waiting.clear()
        self.running.clear()
        for seq in seqs:
            seq.rewind(seq.num_tokens - seq.has_pending_token)
            self.waiting.append(seq)
        if self.recorder:
            self.recorder.attach()

    def expected_peak_blocks(self, candidate: Sequence) -> float:
        """Most blocks in use at any time from now on, if `candidate` joined the running sequences.

        Sequences grow by one token a step and give everything back when they end. So the peak is reached
        just before one of them ends: then those that go on at least as long are still there, each
        longer by that number of steps.
        """
        block_manager = self.block_manager
        held = [(self.expected_remaining_tokens(seq), len(seq.block_table)) for seq in self.running]
        shared = sum(blocks for _, blocks in held) - len(block_manager.used_block_ids)
        held.append((self.expected_remaining_tokens(candidate), block_manager.num_new_blocks(candidate)))
        peak, blocks_held = 0.0, 0
        for count, (remaining, blocks) in enumerate(sorted(held, reverse=True), start=1):
            blocks_held += blocks
            peak = max(peak, blocks_held + count * remaining / block_manager.block_size)
        return peak - shared

    def expected_remaining_tokens(self, seq: Sequence) -> int:
        """How many more tokens `seq` is expected to generate.

        Its limit, if nothing else can stop it; otherwise a high quantile of what recently finished requests
        generated beyond the length it has reached, and the limit as long as none has.
        """
        params, length = seq.sampling_params, seq.num_completion_tokens
        limit = min(params.max_tokens - length, self.max_model_len - seq.num_tokens)
        if params.ignore_eos and not params.stop and not params.stop_token_ids:
            return limit
        first_longer = bisect_right(self.sorted_lengths, length)
        num_longer = len(self.sorted_lengths) - first_longer
        if num_longer == 0:
            return limit
        return min(limit, self.sorted_lengths[first_longer + int(num_longer * LENGTH_QUANTILE)] - length)

    def _note(self, event: str, seq: Sequence, **data: Any) -> None:
        """Tell the recorder, if one is attached."""
        if self.recorder:
            self.recorder.event(event, seq, **data)
