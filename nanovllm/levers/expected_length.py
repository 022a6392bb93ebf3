"""Admission by the expected peak of memory, so that few sequences have to be preempted.

Follows the Past-Future scheduler (Gong et al., 2025).
"""

from bisect import bisect_right
from collections import deque

from ..config import Config
from ..engine.scheduler import Scheduler
from ..engine.sequence import Sequence

HISTORY = 256  # finished requests remembered for estimating how long the next answers get
QUANTILE = 0.75  # of those that got longer than a request is now: how long it is expected to get
WATERMARK = 0.01  # share of the pool left empty: estimates count parts of blocks, sequences whole


class SchedulerLever(Scheduler):
    """Admits a sequence only if the pool is expected to last until others have ended."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.output_lengths: deque[int] = deque(maxlen=HISTORY)
        self.sorted_lengths: list[int] = []  # the same, shortest first

    def refusal(self, seq: Sequence, budget: int) -> str | None:
        """One reason more."""
        reason = super().refusal(seq, budget)
        joins_others = self.running and not seq.block_table  # alone it may use the whole pool
        if reason is None and joins_others:
            num_blocks = len(self.block_manager.blocks)
            if self.expected_peak_blocks(seq) > num_blocks - int(num_blocks * WATERMARK):
                return "no_headroom"
        return reason

    def finish(self, seq: Sequence, reason: str) -> None:
        """Remember how long the answer got."""
        super().finish(seq, reason)
        if reason != "abort":
            self.output_lengths.append(seq.num_completion_tokens)
            self.sorted_lengths = sorted(self.output_lengths)

    def expected_peak_blocks(self, candidate: Sequence) -> float:
        """Most blocks in use at any time from now on, if `candidate` joined the running sequences.

        Sequences grow by one token a step and give everything back when they end. So the peak is
        reached just before one of them ends: then those that go on at least as long are still
        there, each longer by that number of steps.
        """
        block_manager = self.block_manager
        held = [(self.expected_remaining_tokens(seq), len(seq.block_table)) for seq in self.running]
        shared = sum(blocks for _, blocks in held) - len(block_manager.used_block_ids)
        blocks_needed = block_manager.num_free_blocks_needed(candidate)
        held.append((self.expected_remaining_tokens(candidate), blocks_needed))
        peak, blocks_held = 0.0, 0
        for count, (remaining, blocks) in enumerate(sorted(held, reverse=True), start=1):
            blocks_held += blocks
            peak = max(peak, blocks_held + count * remaining / block_manager.block_size)
        return peak - shared

    def expected_remaining_tokens(self, seq: Sequence) -> int:
        """How many more tokens `seq` is expected to generate.

        Its limit, if nothing else can stop it; otherwise a high quantile of what recently finished
        requests generated beyond the length it has reached, and the limit as long as none has.
        """
        params, length = seq.sampling_params, seq.num_completion_tokens
        limit = min(params.max_tokens - length, self.max_model_len - seq.num_tokens)
        if params.ignore_eos and not params.stop and not params.stop_token_ids:
            return limit
        first_longer = bisect_right(self.sorted_lengths, length)
        num_longer = len(self.sorted_lengths) - first_longer
        if num_longer == 0:
            return limit
        return min(limit, self.sorted_lengths[first_longer + int(num_longer * QUANTILE)] - length)
