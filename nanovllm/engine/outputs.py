"""What a request gives back, and what the engine remembers of it until then."""

import time
from dataclasses import dataclass, field
from typing import Any

from .sequence import Sequence


@dataclass(slots=True)
class CompletionOutput:
    """The generated part of a result, in vLLM's form (vllm/outputs.py)."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, float]] | None
    finish_reason: str | None
    stop_reason: int | str | None


class RequestOutput(dict):
    """Result of one request; reads as a dict (`out["text"]`) and as vLLM's object (`out.outputs[0].text`).

    Keys: `text`, `token_ids` (generated ones only, a stop token included), `finish_reason` ("stop", "length",
    "abort" or "error"), `num_prompt_tokens`, `num_cached_tokens` (prompt tokens found in the prefix cache),
    `metrics` (seconds: `queue_time`, `time_to_first_token`, `time_per_output_token`; None where there was no
    such token), `logprobs` if they were asked for (a token: a dict of token id to log-probability), and `error`
    (why) if the finish reason is "error".
    """

    def __init__(self, request: "Request", text: str) -> None:
        seq = request.seq
        super().__init__(
            text=text,
            token_ids=seq.completion_token_ids,
            finish_reason=seq.finish_reason,
            num_prompt_tokens=seq.num_prompt_tokens,
            num_cached_tokens=seq.num_prefix_hit_tokens or 0,
            metrics=request.metrics(),
        )
        if seq.sampling_params.logprobs is not None:
            self["logprobs"] = request.logprobs
        if seq.error is not None:
            self["error"] = seq.error
        self.request_id = str(seq.seq_id)
        self.prompt = request.prompt
        self.prompt_token_ids = seq.prompt_token_ids
        self.num_cached_tokens = self["num_cached_tokens"]
        self.metrics = self["metrics"]
        self.finished = seq.is_finished
        self.outputs = [
            CompletionOutput(
                index=0,
                text=text,
                token_ids=self["token_ids"],
                cumulative_logprob=request.cumulative_logprob(),
                logprobs=self.get("logprobs"),
                finish_reason=seq.finish_reason,
                stop_reason=seq.stop_reason,
            )
        ]


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam: all its tokens, the prompt's included, in vLLM's form (vllm/beam_search.py)."""

    tokens: list[int]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None


@dataclass(slots=True)
class BeamSearchOutput:
    """The beams of one prompt, best first."""

    sequences: list[BeamSearchSequence]


class Detokenizer:
    """Turns tokens into text as they come, one call a token.

    A token can be part of a character, and how it reads can depend on its neighbors. So a window of a few
    tokens is decoded twice, with and without the new ones, and only what is added is appended: the
    method of Hugging Face TGI and of vLLM's `detokenize_incrementally`.

    Args:
        tokenizer: Hugging Face tokenizer.
        stop: strings that end the text.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...]) -> None:
        self.tokenizer = tokenizer
        self.stop = stop
        self.text = ""
        self.stopped_by: str | None = None
        self._held_back = max((len(string) - 1 for string in stop), default=0)
        self._token_ids: list[int] = []
        self._window_start = 0
        self._window_read = 0

    def append(self, token_id: int) -> None:
        """Add a token; when a stop string appears, cut the text before it and set `stopped_by`."""
        self._token_ids.append(token_id)
        new = self._decode_new()
        if not new or new.endswith("\ufffd"):
            return  # nothing visible yet, or an unfinished character
        self._window_start, self._window_read = self._window_read, len(self._token_ids)
        self._add_text(new)

    def finish(self) -> None:
        """Add what was held because it might have been an unfinished character."""
        new = self._decode_new()
        self._window_start = self._window_read = len(self._token_ids)
        if self.stopped_by is None:
            self._add_text(new)

    def visible_length(self, finished: bool) -> int:
        """Characters that can be shown: while more may come, the start of a stop string is held back."""
        return len(self.text) if finished else max(0, len(self.text) - self._held_back)

    def _add_text(self, new: str) -> None:
        search_from = max(0, len(self.text) - self._held_back)
        self.text += new
        # The stop string that is complete first wins.
        found = [(self.text.find(string, search_from), string) for string in self.stop]
        ends = [(start + len(string), start, string) for start, string in found if start >= 0]
        if ends:
            _, start, self.stopped_by = min(ends)
            self.text = self.text[:start]

    def _decode_new(self) -> str:
        """What the tokens that have not been read yet add to the text."""
        window = self._token_ids[self._window_start :]
        read = self._window_read - self._window_start
        before, after = (self.tokenizer.decode(ids, skip_special_tokens=True) for ids in (window[:read], window))
        return after[len(before) :]


@dataclass(slots=True)
class Request:
    """A sequence with what its caller wants to know of it."""

    seq: Sequence
    prompt: str | None
    detokenizer: Detokenizer | None  # only where text is needed while tokens come
    is_external: bool  # came by `add_request`, so `step` reports it
    num_taken_in: int = 0  # generated tokens that all of this knows of
    logprobs: list[dict[int, float]] = field(default_factory=list)
    arrival_time: float = field(default_factory=time.perf_counter)
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether the sequence has ended and its last token has been taken in."""
        return self.seq.is_finished and self.seq.num_completion_tokens == self.num_taken_in

    def rewind(self) -> None:
        """Go back to the last token that was taken in, from whatever state an interrupted step has left."""
        self.seq.rewind(self.seq.num_prompt_tokens + self.num_taken_in)
        del self.logprobs[self.num_taken_in :]
        if self.detokenizer is not None:
            self.detokenizer = Detokenizer(self.detokenizer.tokenizer, self.detokenizer.stop)
            for token_id in self.seq.completion_token_ids:
                self.detokenizer.append(token_id)

    def finish_text(self) -> None:
        """Show what was held back as an unfinished character: no more tokens will come."""
        if self.detokenizer is not None:
            self.detokenizer.finish()

    def metrics(self) -> dict[str, float | None]:
        """Times in seconds; None for what never happened."""

        def since(start: float | None, end: float | None) -> float | None:
            return None if start is None or end is None else end - start

        decode_time = since(self.first_token_time, self.last_token_time)
        num_decoded = self.seq.num_completion_tokens - 1
        return {
            "queue_time": since(self.arrival_time, self.first_scheduled_time),
            "time_to_first_token": since(self.arrival_time, self.first_token_time),
            "time_per_output_token": decode_time / num_decoded if decode_time is not None and num_decoded > 0 else None,
        }

    def cumulative_logprob(self) -> float | None:
        """Sum of the log-probabilities of the generated tokens, if they were asked for."""
        if self.seq.sampling_params.logprobs is None:
            return None
        pairs = zip(self.seq.completion_token_ids, self.logprobs, strict=False)
        return sum(logprobs[token_id] for token_id, logprobs in pairs)
