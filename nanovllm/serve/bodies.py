"""What clients may ask for: fields of OpenAI, and some of vLLM."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..llm import LLM
from ..prompts import Prompt, as_prompt_list
from ..sampling_params import SamplingParams

# What this server cannot do, and which values therefore must be empty, 0 or false.
MISSING = {"echo", "suffix", "logit_bias", "presence_penalty", "frequency_penalty", "min_tokens"}
MISSING |= {"tools", "functions", "response_format"}
KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
HEADERS = {401: {"WWW-Authenticate": 'Basic realm="the API key is the password"'}}
HEADERS |= {413: {"Connection": "close"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "5"}}


class ApiError(Exception):
    """What is answered in place of a result, in OpenAI's form.

    Args:
        status: of HTTP.
        why: for people.
        param: the field of the body that is to blame.
        code: for programs.
    """

    def __init__(self, status: int, why: str, param: Any = None, code: Any = None) -> None:
        super().__init__(why)
        kind = KINDS.get(min(status, 500), "invalid_request_error")
        self.status, self.headers = status, HEADERS.get(status)
        self.content = {"error": {"message": why, "type": kind, "param": param, "code": code}}


class Message(BaseModel):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class Body(BaseModel):
    """The fields that both routes read here; `SamplingParams` has others, and checks them."""

    model_config = ConfigDict(strict=True, extra="allow")
    is_chat: ClassVar = False
    asks: ClassVar = "prompt"

    model: str = ""
    prompt: Prompt | list[Prompt] | None = None
    messages: list[Message] = []
    chat_template_kwargs: dict[str, bool] = {}  # such as enable_thinking
    n: int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: dict[str, bool] = {}
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)  # its name in chats today
    logprobs: bool | int | None = Field(None, ge=0, le=20)  # in chats a bool
    top_logprobs: int = Field(0, ge=0, le=20)
    stop: str | list[str] = Field([], max_length=1000)  # each is looked for with each token

    @model_validator(mode="before")
    @classmethod
    def leave_out_nulls(cls, fields: Any) -> Any:
        """What is null counts as left out."""
        is_object = isinstance(fields, dict)
        return {k: v for k, v in fields.items() if v is not None} if is_object else fields

    @classmethod
    def read(cls, data: bytes) -> "Body":
        """The fields in a JSON text. Raises `ApiError`, with the name of the field."""
        try:
            body = cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            raise ApiError(400, f"{where}: {first['msg']}", *first["loc"][:1]) from error
        for name, value in (body.model_extra or {}).items():
            if name in MISSING and value:
                raise ApiError(400, f"{name} is not supported by this server", name)
        return body

    def prepare(self, llm: LLM, most: int) -> list[tuple[list[int], SamplingParams]]:
        """Token ids and parameters of each choice, at most so many. Raises `ApiError`."""
        try:
            prompts = self._encode(llm)
            if not 1 <= len(prompts) * self.n <= most:
                raise ValueError(f"from 1 to {most} answers at once")
        except (TypeError, ValueError) as error:
            raise ApiError(400, f"{self.asks}: {error!s:.1000}", self.asks) from error
        work, size = [], llm.config.num_kvcache_tokens
        for token_ids in prompts:
            params = self._sampling_params(max(1, size + 1 - len(token_ids)))
            for i in range(self.n):
                seed = None if params.seed is None else params.seed + i
                work.append((token_ids, replace(params, seed=seed)))
        return work

    def _encode(self, llm: LLM) -> list[list[int]]:
        if not self.is_chat:
            return [llm.processor.encode(prompt) for prompt in as_prompt_list(self.prompt)]
        turns = [message.model_dump() for message in self.messages]
        return [llm.apply_chat_template(turns, **self.chat_template_kwargs)]

    def _sampling_params(self, room: int) -> SamplingParams:
        """The same in the engine's words, with room for so many tokens. Raises `ApiError`."""
        values = self.model_dump(include={*SamplingParams.__slots__}, exclude_unset=True)
        default = room if self.is_chat else 16
        values["max_tokens"] = min(self.max_completion_tokens or self.max_tokens or default, room)
        if isinstance(self.logprobs, bool):
            values["logprobs"] = self.top_logprobs if self.logprobs else None
        try:
            return SamplingParams(**values)
        except (TypeError, ValueError) as error:  # the message begins with the name
            raise ApiError(400, str(error), str(error).split()[0]) from error


class ChatBody(Body):
    """The same, asking for the next turn of a conversation."""

    is_chat: ClassVar = True
    asks: ClassVar = "messages"
