"""One request of a caller: its sequence, and what the caller is told about it."""

import time
from dataclasses import dataclass, field

from .sequence import Sequence, SequenceStatus


@dataclass(eq=False)
class Request:
    """A sequence with its times and log-probabilities.

    Its first `num_final` generated tokens are never taken back: a step that was interrupted is
    computed again from there.
    """

    seq: Sequence
    num_final: int = 0
    logprobs: list[dict[int, float]] = field(default_factory=list)
    arrival_time: float = field(default_factory=time.perf_counter)
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the sequence has ended and all of it is final."""
        return self.seq.is_finished and self.num_final == self.seq.num_completion_tokens

    def take_in(self, token_id: int, logprobs: dict[int, float] | None) -> str | None:
        """The sequence has one token more. Returns the stop string that it completes, if any."""
        self.last_token_time = time.perf_counter()
        self.first_token_time = self.first_token_time or self.last_token_time
        if logprobs is not None:
            self.logprobs.append(logprobs)
        return None

    def rewind(self) -> None:
        """Go back to what is final, whatever an interrupted step has left."""
        self.seq.rewind(self.seq.num_prompt_tokens + self.num_final)
        del self.logprobs[self.num_final :]

    def end(self, reason: str, error: str | None = None) -> None:
        """End it with what is final. The scheduler is not told: it begins anew after this."""
        self.rewind()
        self.seq.finish_reason, self.seq.error = reason, error
        self.seq.status = SequenceStatus.FINISHED
