"""The work of the open exercise of chapter 17: many short questions at once, for an engine with and without a lever.

What is timed is what the process computes (`time.process_time`), on one core, in turn, because a laptop does other
things, too; what counts is the median of the ratios of neighbors.
"""

import random
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

NUM_REQUESTS, MAX_TOKENS = 32, 12
PAIRS = 7  # runs with the lever, each beside one without it
BAR = 1.1  # times as fast
OPTIONS = {
    "device": "cpu",
    "disabled_optimizations": "all",
    "kvcache_block_size": 16,
    "num_kvcache_blocks": 128,
    "max_model_len": 64,
    "max_num_seqs": NUM_REQUESTS,
    "enable_prefix_caching": False,
}
Lever = Callable[[Any, Any], None]


class Comparison(NamedTuple):
    """What came of runs in turn.

    Args:
        plain, lever: seconds of computing of each run without and with the lever.
        same: whether all answers had the same tokens.
    """

    plain: list[float]
    lever: list[float]
    same: bool

    @property
    def ratios(self) -> list[float]:
        """How many times as fast each run was as the one beside it."""
        return [slow / fast for slow, fast in zip(self.plain, self.lever, strict=True)]

    @property
    def gain(self) -> float:
        """The median of them."""
        return statistics.median(self.ratios)


def prompts(seed: int = 0) -> list[list[int]]:
    """Short questions of different lengths, token ids at random."""
    rng = random.Random(seed)
    return [[rng.randrange(5, 2000) for _ in range(rng.randint(3, 24))] for _ in range(NUM_REQUESTS)]


def one_of_them_long(seed: int = 0) -> list[list[int]]:
    """The same, but the first question has 300 tokens."""
    return [[7] * 300, *prompts(seed)[1:]]


def engine_with(package: Any, lever: Lever | None, **options: Any) -> Any:
    """A plain engine of `nanovllm`, or of a learner's; with a lever, if there is one."""
    llm = package.LLM("qwen3-tiny", **OPTIONS | options)
    if lever:
        runner = llm.llm_engine.model_runner
        lever(runner.model, runner.sampler)
    return llm


def answers(package: Any, llm: Any, asked: list[list[int]], max_tokens: int = MAX_TOKENS, **more: Any) -> list[Any]:
    """Greedy answers of an engine of the package, `max_tokens` long."""
    params = package.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **more)
    return llm.generate(asked, params, use_tqdm=False)


def compare(
    package: Any, lever: Lever, pairs: int = PAIRS, asked: Callable[[int], list[list[int]]] = prompts, **options: Any
) -> Comparison:
    """Time the work with and without a lever, in turn.

    Args:
        asked: gives the prompts of a run by its number.
        options: of the engines, beside `OPTIONS`.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with engine_with(package, None, **options) as plain, engine_with(package, lever, **options) as other:
            seconds: list[list[float]] = [[], []]
            tokens: list[list[Any]] = [[], []]
            for run in range(pairs + 1):
                for n, llm in enumerate((plain, other)):
                    start = time.process_time()
                    found = answers(package, llm, asked(run))
                    seconds[n].append(time.process_time() - start)
                    tokens[n].append([answer["token_ids"] for answer in found])
    finally:
        torch.set_num_threads(num_threads)
    return Comparison(seconds[0][1:], seconds[1][1:], tokens[0] == tokens[1])  # the first run warms up
