"""The two forms of an answer: whole, or piece by piece as server-sent events; in OpenAI's shape."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from itertools import accumulate, repeat
from typing import Any

from ..outputs import Detokenizer, RequestOutput
from ..sampling_params import SamplingParams
from .bodies import ApiError


class Answer:
    """All choices of one request of a client.

    Args:
        body: what was asked for.
        is_chat: whose shape it has.
        model, tokenizer: its name; the engine's.
        connection: where it goes; None if it goes nowhere.
    """

    def __init__(
        self, body: Any, is_chat: bool, model: str, tokenizer: Any, connection: Any
    ) -> None:
        self.body, self.is_chat, self.tokenizer = body, is_chat, tokenizer
        self.streams, self.connection = body.get("stream", False), connection
        self.jobs: list[Job] = []
        self.changed = asyncio.Event()
        kind, name = ("chat.completion", "chatcmpl-") if is_chat else ("text_completion", "cmpl-")
        self.head = {"id": name + uuid.uuid4().hex, "created": int(time.time()), "model": model}
        self.head["object"] = kind + ".chunk" if is_chat and self.streams else kind

    async def news(self) -> None:
        """Wait until there is something new. Raises `ApiError` if one of the jobs has failed."""
        await self.changed.wait()
        self.changed.clear()
        for job in self.jobs:
            if isinstance(job.end, ApiError):
                raise job.end

    async def whole(self) -> dict[str, Any]:
        """All of it, when it is complete. Raises `ApiError`."""
        while not all(job.end for job in self.jobs):
            await self.news()
        return self.head | {"choices": [job.piece() for job in self.jobs]} | self._usage()

    async def stream(self) -> AsyncIterator[str]:
        """Its pieces, after the first `news`."""
        jobs = self.jobs
        try:
            while jobs:
                pieces = [piece for job in jobs if (piece := job.piece())]
                jobs = [job for job in jobs if not job.end]
                if pieces:
                    yield "".join(event(self.head | {"choices": [piece]}) for piece in pieces)
                if jobs:
                    await self.news()
            if self.body.get("stream_options", {}).get("include_usage"):
                yield event(self.head | {"choices": []} | self._usage())
        except ApiError as error:
            yield event(error.content)
        yield "data: [DONE]\n\n"

    def _usage(self) -> dict[str, Any]:
        """The tokens; those of a prompt count once. And the engine's times, which only we tell."""
        ends = [job.end for job in self.jobs]
        firsts = ends[:: self.body.get("n", 1)]
        num_prompt = sum(end["num_prompt_tokens"] for end in firsts)
        num_new = sum(len(end["token_ids"]) for end in ends)
        cached = {"cached_tokens": sum(end["num_cached_tokens"] for end in firsts)}
        usage: dict[str, Any] = {"prompt_tokens": num_prompt, "completion_tokens": num_new}
        usage |= {"total_tokens": num_prompt + num_new, "prompt_tokens_details": cached}
        return {"usage": usage, "metrics": ends[0]["metrics"]}


class Job:
    """One request to the engine, which is one choice of an answer.

    Args:
        answer, index: what it belongs to; its number there.
        token_ids: the prompt.
        params: how its tokens are chosen.
    """

    request: Any = None  # once the engine has it
    end: Any = None  # a RequestOutput, or an ApiError
    is_aborted = False

    def __init__(
        self, answer: Answer, index: int, token_ids: list[int], params: SamplingParams
    ) -> None:
        self.answer, self.index, self.token_ids, self.params = answer, index, token_ids, params
        self.num_taken = self.num_shown = self.offset = 0
        self.unsent: list[tuple[int, Any]] = []  # tokens and their log-probabilities
        self.detokenizer = Detokenizer(answer.tokenizer, params.stop)
        self.role = {"role": "assistant"}

    def read(self) -> None:
        """Take in what the engine's last step has brought."""
        request = self.request
        is_finished, first = request.is_finished, request.seq.num_prompt_tokens
        if self.answer.streams or is_finished:
            last = request.num_final - request.ends_with_stop_token
            token_ids = request.seq.token_ids[first + self.num_taken : first + last]
            rows = request.logprobs[self.num_taken : last] or repeat(None)
            self.unsent += zip(token_ids, rows, strict=False)
            self.num_taken = max(last, self.num_taken)
        if is_finished:
            self.end = RequestOutput(request, request.text(self.answer.tokenizer))
            if self.end["finish_reason"] == "error":
                self.end = ApiError(500, self.end["error"])

    def piece(self) -> dict[str, Any] | None:
        """What is new; None if that is nothing to be shown."""
        (tokens, self.unsent), is_done = (self.unsent, []), self.end is not None
        text = self._new_text(tokens, is_done) if self.answer.streams else self.end["text"]
        logprobs = None if self.params.logprobs is None else self._logprobs(tokens)
        if not (text or is_done or (tokens and logprobs)):
            return None
        shown: dict[str, Any] = {"text": text}
        if self.answer.is_chat:
            shown = {"delta" if self.answer.streams else "message": self.role | {"content": text}}
            self.role = {}  # it is told once
        if is_done:
            shown["stop_reason"] = self.end.outputs[0].stop_reason
        reason = self.end["finish_reason"] if is_done else None
        return shown | {"index": self.index, "logprobs": logprobs, "finish_reason": reason}

    def _new_text(self, tokens: list[tuple[int, Any]], is_done: bool) -> str:
        for token_id, _ in tokens:
            self.detokenizer.append(token_id)
        if is_done:
            self.detokenizer.finish()
        start, self.num_shown = self.num_shown, self.detokenizer.visible_length(is_done)
        return self.detokenizer.text[start : self.num_shown]

    def _logprobs(self, tokens: list[tuple[int, dict[int, float]]]) -> dict[str, Any]:
        rows = []  # of a token: text and log-probability of itself, then of the most likely ones
        for token_id, row in tokens:
            top = sorted(row.items(), key=lambda item: -item[1])[: self.params.logprobs]
            pairs = [(token_id, row[token_id]), *top]
            rows.append([(self.answer.tokenizer.decode([i]), logprob) for i, logprob in pairs])
        if self.answer.is_chat:
            named = [[as_entry(*pair) for pair in row] for row in rows]
            return {"content": [first | {"top_logprobs": top} for first, *top in named]}
        texts = [row[0][0] for row in rows]
        *offsets, self.offset = accumulate(map(len, texts), initial=self.offset)
        found = {"tokens": texts, "token_logprobs": [row[0][1] for row in rows]}
        return found | {"top_logprobs": [dict(row[1:]) for row in rows], "text_offset": offsets}


def as_entry(token: str, logprob: float) -> dict[str, Any]:
    """A token in the log-probabilities of a chat."""
    return {"token": token, "logprob": logprob, "bytes": [*token.encode()]}


def event(content: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(content, separators=(',', ':'))}\n\n"
