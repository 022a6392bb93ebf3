"""What a request gives back, and the text of its tokens."""

from dataclasses import dataclass
from typing import Any

from .engine.request import Request


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
    """Result of one request.

    Reads as a dict (`out["text"]`) and as vLLM's object (`out.outputs[0].text`). Keys:

    `text`
    `token_ids`: generated ones only, a stop token included.
    `finish_reason`: "stop", "length", "abort" or "error".
    `num_prompt_tokens`
    `num_cached_tokens`: prompt tokens that were found in the prefix cache.
    `metrics`: `queue_time`, `time_to_first_token`, `time_per_output_token` in seconds; None where
        there was no such token.
    `logprobs`, if they were asked for: a token, a dict of token id to log-probability.
    `error`, if that is the finish reason: why.
    """

    def __init__(self, request: "TextRequest", text: str) -> None:
        seq, token_ids = request.seq, request.seq.completion_token_ids
        super().__init__(
            text=text,
            token_ids=token_ids,
            finish_reason=seq.finish_reason,
            num_prompt_tokens=seq.num_prompt_tokens,
            num_cached_tokens=seq.num_prefix_hit_tokens or 0,
            metrics=request.metrics(),
        )
        if seq.finish_reason == "error":
            self["error"] = seq.error
        logprobs = cumulative = None
        if seq.sampling_params.logprobs is not None:
            logprobs = self["logprobs"] = request.logprobs
            cumulative = sum(row[i] for row, i in zip(logprobs, token_ids, strict=False))
        self.request_id, self.finished = str(seq.seq_id), True
        self.prompt, self.prompt_token_ids = request.prompt, seq.prompt_token_ids
        self.num_cached_tokens, self.metrics = self["num_cached_tokens"], self["metrics"]
        reasons = seq.finish_reason, seq.stop_reason
        self.outputs = [CompletionOutput(0, text, token_ids, cumulative, logprobs, *reasons)]


@dataclass(eq=False)
class TextRequest(Request):
    """A request whose tokens are read as text while they come, if somebody wants that."""

    prompt: str | None = None
    detokenizer: "Detokenizer | None" = None

    def take_in(self, token_id: int, logprobs: dict[int, float] | None) -> str | None:
        """Look for stop strings, too."""
        super().take_in(token_id, logprobs)
        if self.detokenizer is None:
            return None
        self.read_tokens(self.detokenizer)
        if self.seq.is_finished:
            self.detokenizer.finish()
        return self.detokenizer.stopped_by

    def rewind(self) -> None:
        """Have the final tokens read again, when the next one comes."""
        super().rewind()
        if self.detokenizer is not None:
            self.detokenizer = Detokenizer(self.detokenizer.tokenizer, self.detokenizer.stop)

    def read_tokens(self, detokenizer: "Detokenizer") -> None:
        """Append the tokens that have not been read yet, but for one that stops the text."""
        start = self.seq.num_prompt_tokens + len(detokenizer.token_ids)
        for token_id in self.seq.token_ids[start : self.seq.num_tokens - self.ends_with_stop_token]:
            detokenizer.append(token_id)

    @property
    def ends_with_stop_token(self) -> bool:
        """Whether the last token is an end or stop token, which is not part of the text."""
        return self.seq.finish_reason == "stop" and not isinstance(self.seq.stop_reason, str)

    def text(self, tokenizer: Any) -> str:
        """The whole text; nothing without a tokenizer."""
        if self.detokenizer is not None:
            self.read_tokens(self.detokenizer)
            self.detokenizer.finish()
            return self.detokenizer.text
        token_ids = self.seq.completion_token_ids[: -1 if self.ends_with_stop_token else None]
        return "" if tokenizer is None else tokenizer.decode(token_ids, skip_special_tokens=True)

    def metrics(self) -> dict[str, float | None]:
        """Times in seconds; None for what never happened."""

        def since(start: float | None, end: float | None, count: int = 1) -> float | None:
            return None if start is None or end is None or count < 1 else (end - start) / count

        count = self.seq.num_completion_tokens - 1
        return {
            "queue_time": since(self.arrival_time, self.first_scheduled_time),
            "time_to_first_token": since(self.arrival_time, self.first_token_time),
            "time_per_output_token": since(self.first_token_time, self.last_token_time, count),
        }


class Detokenizer:
    """Turns tokens into text as they come, one call a token.

    A token can be part of a character, and how it reads can depend on its neighbors. So a window of
    a few tokens is decoded twice, with and without the new ones, and only what is added is
    appended: the method of Hugging Face TGI and of vLLM's `detokenize_incrementally`.

    Args:
        tokenizer: Hugging Face tokenizer.
        stop: strings that end the text.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...]) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self.text = ""
        self.stopped_by: str | None = None
        self._held_back = max((len(string) - 1 for string in stop), default=0)
        self.token_ids: list[int] = []
        self._window_start = self._window_read = 0

    def append(self, token_id: int) -> None:
        """Add a token; when a stop string appears, cut the text before it and set `stopped_by`."""
        self.token_ids.append(token_id)
        new = self._decode_new()
        if not new or new.endswith("\ufffd"):
            return  # nothing visible yet, or an unfinished character
        self._window_start, self._window_read = self._window_read, len(self.token_ids)
        self._add_text(new)

    def finish(self) -> None:
        """Add what was held because it might have been an unfinished character."""
        new = self._decode_new()
        self._window_start = self._window_read = len(self.token_ids)
        if self.stopped_by is None:
            self._add_text(new)

    def visible_length(self, finished: bool) -> int:
        """Characters that can be shown: what may begin a stop string is held back."""
        return len(self.text) if finished else max(0, len(self.text) - self._held_back)

    def _add_text(self, new: str) -> None:
        search_from = max(0, len(self.text) - self._held_back)
        text = self.text + new
        # The stop string that is complete first wins.
        found = [(text.find(string, search_from), string) for string in self.stop]
        ends = [(start + len(string), start, string) for start, string in found if start >= 0]
        if ends:
            _, start, self.stopped_by = min(ends)
            text = text[:start]
        self.text = text  # at once, because a stream in another thread may look at it

    def _decode_new(self) -> str:
        """What the tokens that have not been read yet add to the text."""
        window = self.token_ids[self._window_start :]
        read = self._window_read - self._window_start
        decode = self.tokenizer.decode
        before, after = (decode(ids, skip_special_tokens=True) for ids in (window[:read], window))
        return after[len(before) :]
