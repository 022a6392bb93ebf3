"""One step ahead: launch a step, and only then look at what the one before has sampled.

So the GPU never waits for the CPU. A token that has been computed on the GPU, and is still on its
way to the CPU, is called pending, and stands as -1 at the end of its sequence. A sequence whose end
shows only when it comes has been launched once too often; that token is dropped. Compare
vllm/v1/core/sched/async_scheduler.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..engine.block_manager import BlockManager
from ..engine.llm_engine import LLMEngine
from ..engine.model_runner import ModelRunner
from ..engine.scheduler import Scheduler
from ..engine.sequence import Sequence
from ..engine.step_output import Logprobs, StepOutput, StepResult
from ..engine.worker import TensorParallelRunner
from ..utils.swap import stack

PENDING = -1


def is_pending(seq: Sequence) -> bool:
    """Whether the last token is not known yet."""
    return seq.last_token == PENDING


class LLMEngineLever(LLMEngine):
    """Keeps the step that the GPU is computing."""

    scheduler: "SchedulerLever"

    def _begin_anew(self) -> None:
        self.in_flight: StepOutput | RankStep | None = None
        super()._begin_anew()

    def run_step(self) -> int:
        """Launch a step, then look at what the one before has sampled."""
        seqs, is_prefill = self.scheduler.schedule()
        num_tokens = self.note_start(seqs)
        previous = self.in_flight
        try:
            self.in_flight = self.launch_after(previous, seqs, is_prefill) if seqs else None
        except torch.OutOfMemoryError:  # this step will be made anew, not the one before
            self.resolve(previous)
            raise
        self.resolve(previous)
        self.scheduler.advance(seqs)
        if all(seq.is_finished for seq in seqs):  # nobody waits for these tokens
            self.in_flight = None
        return num_tokens if is_prefill else -num_tokens

    def resolve(self, step: "StepOutput | RankStep | None") -> None:
        """Wait for a step's tokens, and take them in."""
        if step is None:
            return
        token_ids, logprobs = step.wait()
        pairs = zip(step.seqs, token_ids, strict=True)
        known = [None if seq.is_finished else token_id for seq, token_id in pairs]
        self.scheduler.resolve(step.seqs, known)
        self.take_in(step.seqs, known, logprobs)

    def launch_after(self, previous: Any, seqs: list[Sequence], is_prefill: bool) -> Any:
        """Launch a step whose inputs may be the pending tokens of the one before."""
        runner = self.model_runner
        if not isinstance(runner, TensorParallelRunner):
            return runner.launch_after(previous, seqs, is_prefill)
        # One message a step: the ranks answer with the tokens of the step before.
        result = runner.call("launch_and_collect", previous is not None, seqs, is_prefill)
        if previous is not None:
            previous.result = result
        return RankStep(runner, seqs)


class SchedulerLever(Scheduler):
    """Counts a step as computed while it runs, with pending tokens, and fills them in later."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        manager: Any = self.block_manager
        manager.__class__ = stack(KnownTokensOnly, manager.__class__)

    def advance(self, seqs: list[Sequence]) -> None:
        """First half of a step's end: all but the tokens themselves."""
        # For some of them, the token before was the last one.
        live = [seq for seq in seqs if not seq.is_finished]
        self.postprocess(live, [None if seq.is_cut else PENDING for seq in live])

    def resolve(self, seqs: list[Sequence], token_ids: list[int | None]) -> None:
        """Second half, one step later."""
        for seq, token_id in zip(seqs, token_ids, strict=True):
            if token_id is None:
                continue
            seq.token_ids[-1] = seq.last_token = token_id
            reason = self.finish_reason(seq)
            if reason:
                self.finish(seq, reason)
            else:  # the step that is running may fill a block with this token
                self.block_manager.hash_blocks(seq)

    def make_room(self, seq: Sequence) -> bool:
        """No more tokens for a sequence that ends, whatever it is, with the one on its way."""
        return not (is_pending(seq) and super().finish_reason(seq)) and super().make_room(seq)

    def finish_reason(self, seq: Sequence) -> str | None:
        """None before the token is known."""
        return None if is_pending(seq) else super().finish_reason(seq)

    def finish(self, seq: Sequence, reason: str) -> None:
        """Forget a token that will not be waited for."""
        if is_pending(seq):
            del seq.token_ids[-1]
            seq.num_tokens -= 1
            seq.last_token = seq.token_ids[-1]
        super().finish(seq, reason)


class KnownTokensOnly(BlockManager):
    """A block is named by its tokens, so it must wait for the last one."""

    def hash_blocks(self, seq: Sequence) -> None:
        """See `BlockManager`."""
        if not is_pending(seq):
            super().hash_blocks(seq)


class CopiedOutput(StepOutput):
    """The copies to the CPU start at once, and are waited for later."""

    def __init__(self, seqs: list[Sequence], token_ids: Tensor, logprobs: Logprobs | None) -> None:
        self.copies = StepOutput(seqs, to_host(token_ids), None)
        if logprobs is not None:
            self.copies.logprobs = (logprobs[0], to_host(logprobs[1]), to_host(logprobs[2]))
        super().__init__(seqs, token_ids, logprobs)
        self.event = torch.cuda.Event() if token_ids.is_cuda else None
        if self.event is not None:
            self.event.record()

    def wait(self) -> StepResult:
        """See `StepOutput`."""
        if self.event is not None:
            self.event.synchronize()
        return self.copies.wait()


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the CPU; from a GPU, it is not there before the work of the stream is done."""
    if not tensor.is_cuda:
        return tensor.clone()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(
        tensor, non_blocking=True
    )


class ModelRunnerLever(ModelRunner):
    """Fills pending tokens in on the device, and does not wait for what is sampled."""

    output_class = CopiedOutput
    previous: Any = None
    under_way: StepOutput | None = None  # of a rank, which keeps it at another process's bidding

    def launch_after(self, previous: Any, seqs: list[Sequence], is_prefill: bool) -> StepOutput:
        """Launch a step whose inputs may be the pending tokens of the one before."""
        self.previous = previous
        return self.launch(seqs, is_prefill)

    def launch_and_collect(
        self, has_previous: bool, seqs: list[Sequence], is_prefill: bool
    ) -> StepResult | None:
        """Launch a step, and wait for the one before, unless an interrupt has left it behind."""
        previous = self.under_way if has_previous else None
        self.under_way = self.launch_after(previous, seqs, is_prefill)
        return None if previous is None else previous.wait()

    def collect(self) -> StepResult:
        """Wait for the step under way, after which nothing is launched for now."""
        assert self.under_way is not None
        return self.under_way.wait()

    def prepare_decode(self, seqs: list[Sequence]) -> tuple[Tensor, Tensor]:
        """See `ModelRunner`."""
        input_ids, positions = super().prepare_decode(seqs)
        if any(is_pending(seq) for seq in seqs):
            row_of = {seq.seq_id: row for row, seq in enumerate(self.previous.seqs)}
            rows = self.to_device([row_of.get(seq.seq_id, 0) for seq in seqs], torch.int64)
            input_ids.copy_(
                torch.where(input_ids == PENDING, self.previous.token_ids[rows], input_ids)
            )
        return input_ids, positions


@dataclass
class RankStep:
    """A step that ranks have launched; its result comes with their answer to the next launch."""

    runner: TensorParallelRunner
    seqs: list[Sequence]
    result: StepResult | None = None

    def wait(self) -> StepResult:
        """See `StepOutput`."""
        return self.result or self.runner.call("collect")
