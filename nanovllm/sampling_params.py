"""How one request wants its tokens chosen, and when it wants to stop.

Names and meaning follow vLLM's `SamplingParams` (vllm/sampling_params.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .validation import check_bool, check_float, check_int

# vLLM treats temperatures below this as greedy: dividing the logits by less only adds rounding.
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling and stopping rules of one request.

    Args:
        temperature: divides the logits; 0 picks the most likely token (greedy).
        top_k: keep the k most likely tokens; -1 or 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches top_p, in (0, 1].
        min_p: keep tokens at least min_p times as likely as the most likely one, in [0, 1].
        max_tokens: stop after this many generated tokens, at least 1.
        ignore_eos: go on after an end-of-sequence token (used by benchmarks).
        seed: the same seed gives the same tokens, whatever else runs; None draws from
            `Config.seed`.
        stop: a string or several; the text ends before the first one that appears. Kept as a tuple.
        stop_token_ids: token ids that end the generation, beside the model's own. Kept as a
            frozenset.
        logprobs: return the log-probabilities of this many most likely tokens, and of the chosen
            one.

    Raises:
        TypeError, ValueError: a field has the wrong type or is out of range.
    """

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 64
    ignore_eos: bool = False
    seed: int | None = None
    stop: Any = ()
    stop_token_ids: Any = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        checked = {
            "temperature": check_float("temperature", self.temperature),
            "top_k": check_int("top_k", self.top_k, minimum=-1),
            "top_p": check_float("top_p", self.top_p, maximum=1.0),
            "min_p": check_float("min_p", self.min_p, maximum=1.0),
            "max_tokens": check_int("max_tokens", self.max_tokens, minimum=1),
            "ignore_eos": check_bool("ignore_eos", self.ignore_eos),
            "seed": None if self.seed is None else check_int("seed", self.seed, minimum=0),
            "logprobs": None
            if self.logprobs is None
            else check_int("logprobs", self.logprobs, minimum=0),
            "stop": normalize_stop(self.stop),
            "stop_token_ids": _normalize_stop_token_ids(self.stop_token_ids),
        }
        if checked["top_p"] == 0.0:
            raise ValueError("top_p must be in (0, 1], got 0; use temperature=0 to be greedy")
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE


def normalize_stop(stop: str | Iterable[str] | None) -> tuple[str, ...]:
    """Bring the three ways to give stop strings into one form: a tuple, in the order given.

    A string on its own is one stop string, and None means that there are none. Anything else is
    a collection of stop strings: a list, a tuple, or an iterator, which can be gone through
    only once.

    Raises:
        TypeError: `stop`, or something in it, is no string. The message names the argument,
            `stop`, says what is accepted ("a non-empty string"), and holds the `repr` of what
            was wrong.
        ValueError: one of the strings is empty, which every text would contain; with such a
            message, too.
    """
    accepted = "a non-empty string or a list of them"
    strings = (stop,) if isinstance(stop, str) else as_tuple("stop", stop, accepted)
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be {accepted}, got {string!r} ({type(string).__name__})")
        if not string:
            raise ValueError(f"stop must be {accepted}, got {string!r}")
    return strings


def _normalize_stop_token_ids(stop_token_ids: Iterable[int] | None) -> frozenset[int]:
    token_ids = as_tuple("stop_token_ids", stop_token_ids, "a list of token ids")
    return frozenset(check_int("stop_token_ids", token_id, minimum=0) for token_id in token_ids)


def as_tuple(name: str, values: Any, accepted: str) -> tuple[Any, ...]:
    """All `values` as a tuple, an empty one for None; raise `TypeError` if that cannot be."""
    try:
        return () if values is None else tuple(values)
    except TypeError:
        raise TypeError(f"{name} must be {accepted}, got {values!r}") from None
