"""The two forms of an answer: whole, or piece by piece as server-sent events; in OpenAI's shape."""

import json
import time
import uuid
from collections.abc import AsyncIterator
from itertools import accumulate
from typing import Any

from ..llm import LLM
from ..outputs import Detokenizer, RequestOutput, TextRequest
from ..sampling_params import SamplingParams
from .bodies import ApiError, Body


class Answer:
    """All choices of one request of a client.

    Args:
        llm: the engine.
        body: what was asked for.
        model: what clients call the engine.
    """

    def __init__(self, llm: LLM, body: Body, model: str) -> None:
        self.llm, self.body, self.choices = llm, body, list[Choice]()
        kinds = ("chat.completion", "chatcmpl-") if body.is_chat else ("text_completion", "cmpl-")
        self.head = {"id": kinds[1] + uuid.uuid4().hex, "created": int(time.time())}
        self.head |= {"object": kinds[0] + ".chunk" * (body.is_chat and body.stream)}
        self.head["model"] = model

    def start(self, work: list[tuple[list[int], SamplingParams]], max_requests: int) -> None:
        """Queue a request for each choice, between two steps. Raises `ApiError`, if none is."""
        if len(self.llm.added) + len(work) > max_requests:
            raise ApiError(429, f"{len(self.llm.added)} requests run or wait", code="queue_full")
        try:
            for token_ids, params in work:
                request = self.llm.added[self.llm.add_request(token_ids, params)]
                if self.body.stream:  # its text is read with every token
                    request.detokenizer = Detokenizer(self.llm.tokenizer, params.stop)
                self.choices.append(Choice(self, len(self.choices), request))
        except RuntimeError as error:  # the engine has been closed
            raise ApiError(503, str(error)) from error
        except ValueError as error:  # it can never run; all else is known to be good
            self.abort()
            why, code = f"{self.body.asks}: {error}", "context_length_exceeded"
            raise ApiError(400, why, self.body.asks, code) from error

    def abort(self) -> None:
        """End what still goes on; its blocks are free before the next step."""
        for choice in self.choices:
            self.llm.abort(choice.request.seq.seq_id)

    @property
    def num_unread(self) -> int:
        """Most tokens that a choice of a stream has, and its reader has not taken."""
        unread = [choice.request.num_final - choice.num_read for choice in self.choices]
        return max(unread) if self.body.stream else 0

    def block_tables(self) -> list[dict[str, Any]]:
        """Where in the cache its choices are."""
        seqs = [choice.request.seq for choice in self.choices]
        return [{"id": self.head["id"], "blocks": list(seq.block_table)} for seq in seqs]

    async def whole(self, next_step: Any) -> dict[str, Any]:
        """All of it, when it is complete. Raises `ApiError`."""
        while not all(choice.request.is_finished for choice in self.choices):
            await next_step()
        return self.head | {"choices": [choice.piece() for choice in self.choices]} | self._usage()

    async def stream(self, next_step: Any) -> AsyncIterator[str]:
        """Its pieces, after each step what is new."""
        live = self.choices
        try:
            while live:
                pieces = [piece for choice in live if (piece := choice.piece())]
                live = [choice for choice in live if not choice.output]
                if pieces:
                    yield "".join(event(self.head | {"choices": [piece]}) for piece in pieces)
                if live:
                    await next_step()
            if self.body.stream_options.get("include_usage"):
                yield event(self.head | {"choices": []} | self._usage())
        except ApiError as error:
            yield event(error.content)
        yield "data: [DONE]\n\n"

    def _usage(self) -> dict[str, Any]:
        """The tokens; those of a prompt count once. And the engine's times, which only we tell."""
        outputs: list[Any] = [choice.output for choice in self.choices]
        firsts = outputs[:: self.body.n]
        num_prompt = sum(output["num_prompt_tokens"] for output in firsts)
        num_new = sum(len(output["token_ids"]) for output in outputs)
        cached = {"cached_tokens": sum(output["num_cached_tokens"] for output in firsts)}
        usage: dict[str, Any] = {"prompt_tokens": num_prompt, "completion_tokens": num_new}
        usage |= {"total_tokens": num_prompt + num_new, "prompt_tokens_details": cached}
        return {"usage": usage, "metrics": outputs[0]["metrics"]}


class Choice:
    """One answer of several, each of which is a request of the engine.

    What is new is read from that request, also while a step goes on.

    Args:
        answer: all of them.
        index: its number.
        request: the engine's.
    """

    output: RequestOutput | None = None  # when all has been read
    num_read = num_shown = offset = num_counted = 0
    last_time: Any = None  # of the last token that was counted

    def __init__(self, answer: Answer, index: int, request: TextRequest) -> None:
        self.body, self.tokenizer = answer.body, answer.llm.tokenizer
        self.index, self.request = index, request
        self.role = {"role": "assistant"}

    def piece(self) -> dict[str, Any] | None:
        """What is new; None if that is nothing to be shown."""
        request, start = self.request, self.num_read
        if request.is_finished:  # asked before all else: a step may go on
            self.output = RequestOutput(request, request.text(self.tokenizer))
        self.num_read = max(start, request.num_final - request.ends_with_stop_token)
        text, logprobs = self._new_text(), None
        if request.seq.sampling_params.logprobs is not None:
            logprobs = self._logprobs(start)
        if not (text or self.output or (logprobs and start < self.num_read)):
            return None
        shown: dict[str, Any] = {"text": text}
        if self.body.is_chat:
            key = "delta" if self.body.stream else "message"
            shown, self.role = {key: self.role | {"content": text}}, {}  # the role is told once
        end = self.output and self.output.outputs[0]
        reasons = {name: getattr(end, name, None) for name in ("finish_reason", "stop_reason")}
        return shown | {"index": self.index, "logprobs": logprobs} | reasons

    def _new_text(self) -> str:
        reader: Any = self.request.detokenizer
        visible = None if self.output else reader.visible_length(finished=False)
        text: str = (self.output["text"] if self.output else reader.text)[:visible]
        start, self.num_shown = self.num_shown, max(self.num_shown, len(text))
        return text[start:]

    def _logprobs(self, start: int) -> dict[str, Any]:
        most, decode = self.request.seq.sampling_params.logprobs, self.tokenizer.decode
        token_ids = self.request.seq.completion_token_ids[start : self.num_read]
        rows = []  # of a token: text and log-probability of itself, then of the most likely ones
        for token_id, row in zip(token_ids, self.request.logprobs[start:], strict=False):
            top = sorted(row.items(), key=lambda item: -item[1])[:most]
            rows.append([(decode([i]), value) for i, value in [(token_id, row[token_id]), *top]])
        if self.body.is_chat:
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
    return f"data: {json.dumps(content)}\n\n"
