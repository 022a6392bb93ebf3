"""What clients may ask for: the fields of OpenAI, and some of vLLM."""

from typing import Any

from ..sampling_params import SamplingParams

# What is read here: types, and ranges of numbers. All else is left to the engine.
TYPES: dict[str, Any] = {"model": (str,), "stream": (bool,), "stream_options": (dict,), "n": (int,)}
TYPES |= {"max_tokens": (int,), "max_completion_tokens": (int,), "chat_template_kwargs": (dict,)}
TYPES |= {"logprobs": (bool, int), "top_logprobs": (int,), "stop": (str, list), "messages": (list,)}
RANGES = {"n": (1, 128), "logprobs": (0, 20), "top_logprobs": (0, 20)}
# What is not there, and with which values it changes nothing.
MISSING: dict[str, Any] = {"echo": (False,), "best_of": (1,), "repetition_penalty": (1,)}
MISSING |= dict.fromkeys(("tools", "functions", "tool_choice"), ([], "none", "auto"))
MISSING |= dict.fromkeys(("presence_penalty", "frequency_penalty", "min_tokens"), (0,))
MISSING |= dict.fromkeys(("suffix", "logit_bias", "response_format"), ("", {}, {"type": "text"}))
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}
HEADERS = {401: {"WWW-Authenticate": 'Basic realm="the API key is the password"'}}
HEADERS |= {429: {"Retry-After": "1"}, 503: {"Retry-After": "5"}}


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


def check(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not null. Raises `ApiError`, with the name of the field."""
    body = {name: value for name, value in fields.items() if value is not None}
    for name, value in body.items():
        low, high = RANGES.get(name, (0, 0))
        if type(value) not in TYPES.get(name, (type(value),)):
            kinds = " or ".join(kind.__name__ for kind in TYPES[name])
            raise ApiError(400, f"{name} must be {kinds}, got {value!r:.100}", name)
        if name in RANGES and not low <= value <= high:
            raise ApiError(400, f"{name} must be from {low} to {high}, got {value}", name)
        if name in MISSING and value not in MISSING[name]:
            raise ApiError(400, f"{name} is not supported by this server", name)
        if name == "stop" and len(value) > 1000:  # each is looked for with each token
            raise ApiError(400, "stop is too long", name)
    return body


def sampling_params(body: dict[str, Any], max_tokens: int, room: int) -> SamplingParams:
    """The same in the engine's words. Raises `ApiError`.

    Args:
        max_tokens: if the body does not say.
        room: for how many there is room.
    """
    values = {name: body[name] for name in body.keys() & {*SamplingParams.__slots__}}
    most = body.get("max_completion_tokens", body.get("max_tokens", max_tokens))
    values["max_tokens"] = min(most, room)
    if isinstance(body.get("logprobs"), bool):  # so it is in chats
        values["logprobs"] = body.get("top_logprobs", 0) if body["logprobs"] else None
    try:
        return SamplingParams(**values)
    except (TypeError, ValueError) as error:  # the message begins with the name
        raise ApiError(400, str(error), str(error).split()[0]) from error


def as_turn(message: Any) -> dict[str, str]:
    """A message as chat templates read it. Raises `TypeError`, `ValueError` if it is none."""
    try:
        parts = message["content"]
        text = parts if isinstance(parts, str) else "".join(part["text"] for part in parts)
        return {"role": ROLES[message["role"]], "content": text}
    except KeyError as error:
        raise ValueError(f"{error} is missing, or not one of {[*ROLES]}") from error
