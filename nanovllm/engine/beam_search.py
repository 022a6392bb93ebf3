"""Beam search on top of the engine's ordinary requests.

Every live beam is a request for one token with its log-probabilities; beams share their blocks
through the prefix cache, so nothing is computed twice but the last block. Rules and scores are
vLLM's (vllm/entrypoints/llm.py, `beam_search`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from ..config import Config
from ..sampling_params import SamplingParams
from ..validation import check_bool, check_float, check_int


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Width, length and scoring of a beam search.

    Args:
        beam_width: how many beams are kept, and returned, a prompt.
        max_tokens: longest generation, in tokens.
        ignore_eos: treat an end-of-sequence token like any other.
        length_penalty: a beam's score is its log-probability divided by its length to this power,
            at most 10.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        checked = {
            "beam_width": check_int("beam_width", self.beam_width, minimum=1),
            "max_tokens": check_int("max_tokens", self.max_tokens, minimum=1),
            "ignore_eos": check_bool("ignore_eos", self.ignore_eos),
            "length_penalty": check_float("length_penalty", self.length_penalty, maximum=10.0),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen


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


def beam_search(
    llm: Any, prompts: list[Any], params: BeamSearchParams, use_tqdm: bool
) -> list[BeamSearchOutput]:
    """Find the best `beam_width` continuations of every prompt.

    Args:
        llm: its `generate` runs the one-token requests.
        prompts: texts or lists of token ids.
        params: width, length and scoring.

    Raises:
        TypeError, ValueError: a prompt or `params` is bad.
        RuntimeError: a request failed on its way; says why.
    """
    if not isinstance(params, BeamSearchParams):
        raise TypeError(f"params must be BeamSearchParams, got {type(params).__name__}")
    requests = [llm._make_request(prompt, SamplingParams()) for prompt in prompts]
    encoded = [request.seq.prompt_token_ids for request in requests]
    live = [[BeamSearchSequence(list(token_ids))] for token_ids in encoded]
    completed: list[list[BeamSearchSequence]] = [[] for _ in encoded]
    for _ in tqdm(range(params.max_tokens), desc="Beam search", disable=not use_tqdm):
        if not any(live):
            break
        rows = next_logprobs(llm, [beam.tokens for group in live for beam in group], params)
        for i, group in enumerate(live):
            candidates = [longer for beam in group for longer in extend(beam, next(rows))]
            completed[i] += [beam for beam in candidates if is_complete(beam, params, llm.config)]
            going_on = [beam for beam in candidates if beam.finish_reason is None]
            live[i] = best(going_on, params, llm.config)
    results = []
    for token_ids, done, group in zip(encoded, completed, live, strict=True):
        sequences = best(done + group, params, llm.config)
        read_text(sequences, len(token_ids), llm.tokenizer)
        results.append(BeamSearchOutput(sequences))
    return results


def next_logprobs(
    llm: Any, beams: list[list[int]], params: BeamSearchParams
) -> Iterator[dict[int, float]]:
    """The most likely next tokens of each beam, with their log-probabilities."""
    one_token = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2 * params.beam_width)
    outputs = llm.generate(beams, one_token, use_tqdm=False)
    for output in outputs:
        if output["finish_reason"] == "error":
            raise RuntimeError(f"a beam could not be continued: {output['error']}")
    return iter(output["logprobs"][0] for output in outputs)


def read_text(beams: list[BeamSearchSequence], prompt_len: int, tokenizer: Any) -> None:
    """Fill in the text of what was generated, and why it ended."""
    for beam in beams:
        beam.finish_reason = beam.finish_reason or "length"
        if tokenizer is not None:
            beam.text = tokenizer.decode(beam.tokens[prompt_len:], skip_special_tokens=True)


def extend(beam: BeamSearchSequence, logprobs: dict[int, float]) -> list[BeamSearchSequence]:
    """The beam with each of these tokens added."""
    return [
        BeamSearchSequence([*beam.tokens, token_id], beam.cum_logprob + logprob)
        for token_id, logprob in logprobs.items()
    ]


def is_complete(beam: BeamSearchSequence, params: BeamSearchParams, config: Config) -> bool:
    """Whether the last token ends the beam, which then has a finish reason."""
    if beam.tokens[-1] in config.eos and not params.ignore_eos:
        beam.finish_reason = "stop"
    elif len(beam.tokens) > min(config.max_model_len, config.num_kvcache_tokens):
        beam.finish_reason = "length"
    return beam.finish_reason is not None


def best(
    beams: list[BeamSearchSequence], params: BeamSearchParams, config: Config
) -> list[BeamSearchSequence]:
    """The `beam_width` beams with the highest scores, best first.

    A score is the log-probability a token (to the power of the length penalty), an
    end-of-sequence token not counted.
    """

    def score(beam: BeamSearchSequence) -> float:
        length = len(beam.tokens) - (beam.tokens[-1] in config.eos)
        return beam.cum_logprob / length**params.length_penalty

    return sorted(beams, key=score, reverse=True)[: params.beam_width]
