"""Beam search on top of the engine's ordinary requests.

Every live beam is a request for one token with its log-probabilities; beams share their blocks through the prefix
cache, so nothing is computed twice but the last block. Rules and scores are vLLM's
(vllm/entrypoints/llm.py, `beam_search`).
"""

from typing import TYPE_CHECKING

from tqdm.auto import tqdm

from ..sampling_params import BeamSearchParams, SamplingParams
from .outputs import BeamSearchOutput, BeamSearchSequence

if TYPE_CHECKING:
    from .llm_engine import LLMEngine, Prompt


def beam_search(
    engine: "LLMEngine", prompts: list[list[int]], params: BeamSearchParams, use_tqdm: bool
) -> list[BeamSearchOutput]:
    """Find the best `beam_width` continuations of every prompt.

    Args:
        engine: runs the one-token requests.
        prompts: token ids.
        params: width, length and scoring.
    """
    width = params.beam_width
    config = engine.config
    longest = min(config.max_model_len, config.num_kvcache_blocks * config.kvcache_block_size)
    one_token = SamplingParams(temperature=0.0, max_tokens=1, logprobs=2 * width)
    live = [[BeamSearchSequence(list(prompt))] for prompt in prompts]
    completed: list[list[BeamSearchSequence]] = [[] for _ in prompts]
    for _ in tqdm(range(params.max_tokens), desc="Beam search", disable=not use_tqdm):
        beams = [beam for group in live for beam in group]
        if not beams:
            break
        prompts_so_far: list[Prompt] = [beam.tokens for beam in beams]
        outputs = iter(engine.generate(prompts_so_far, one_token, use_tqdm=False))
        for i, group in enumerate(live):
            candidates = []
            for beam in group:
                for token_id, logprob in next(outputs)["logprobs"][0].items():
                    candidate = BeamSearchSequence([*beam.tokens, token_id], beam.cum_logprob + logprob)
                    if token_id in config.eos and not params.ignore_eos:
                        candidate.finish_reason = "stop"
                        completed[i].append(candidate)
                    elif len(candidate.tokens) > longest:
                        candidate.finish_reason = "length"
                        completed[i].append(candidate)
                    else:
                        candidates.append(candidate)
            live[i] = sorted(candidates, key=lambda beam: score(beam, params, config.eos), reverse=True)[:width]
    results = []
    for prompt, done, group in zip(prompts, completed, live, strict=True):
        for beam in group:
            beam.finish_reason = "length"
        best = sorted(done + group, key=lambda beam: score(beam, params, config.eos), reverse=True)[:width]
        for beam in best:
            beam.text = decode(engine, beam.tokens[len(prompt) :])
        results.append(BeamSearchOutput(best))
    return results


def score(beam: BeamSearchSequence, params: BeamSearchParams, eos: tuple[int, ...]) -> float:
    """Log-probability a token (to the power of the length penalty), an end-of-sequence token not counted."""
    length = len(beam.tokens) - (beam.tokens[-1] in eos)
    return beam.cum_logprob / length**params.length_penalty


def decode(engine: "LLMEngine", token_ids: list[int]) -> str | None:
    """Text of the generated tokens; None if the model has no tokenizer."""
    return None if engine.tokenizer is None else engine.tokenizer.decode(token_ids, skip_special_tokens=True)
