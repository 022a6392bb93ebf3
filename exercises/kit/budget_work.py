"""The work that `ch03.choose_options` is judged on: requests on a GPU with little room, through a real scheduler.

No model is loaded: which step computes what does not depend on what the tokens say.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nanovllm.config import Config
from nanovllm.engine import scheduler, sequence
from nanovllm.sampling_params import SamplingParams

from .workloads import step

# Qwen3-8B on 24 GB, where another program has more than one of them: what weights and that program leave.
ROOM = 3_500_000_000  # bytes for cache and activations together
KV_BYTES = 147_456  # of one token in the cache
STEP_BYTES = 131_072  # of activations, for each token that a step may have
DEFAULTS = {"kvcache_block_size": 256, "max_num_batched_tokens": 16384, "max_num_seqs": 512}

Workload = Sequence[tuple[int, int]]


def _requests(count: int, prompt: tuple[int, int], answer: tuple[int, int], seed: int = 3) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    return [(rng.randrange(*prompt), rng.randrange(*answer)) for _ in range(count)]


# Tokens of prompt and answer of each request; all of them come at once.
WORKLOADS: dict[str, list[tuple[int, int]]] = {
    "chat": _requests(96, (50, 300), (20, 250)),
    "documents": _requests(40, (1000, 1800), (5, 30)),
    "stories": _requests(64, (10, 60), (200, 600)),
}


class Run(NamedTuple):
    """What came of a workload.

    Args:
        steps: until the last request had ended.
        mean_batch: requests in a decode step, on average.
        num_preemptions: how often a request lost its blocks.
        num_blocks: of the cache.
    """

    steps: int
    mean_batch: float
    num_preemptions: int
    num_blocks: int


def simulate(
    options: Mapping[str, Any],
    workload: Workload,
    room: int = ROOM,
    kv_bytes: int = KV_BYTES,
    step_bytes: int = STEP_BYTES,
) -> Run:
    """Run a workload through the real scheduler, with a cache as large as the options leave room for.

    Args:
        options: any of `DEFAULTS`, with other values.
        workload: tokens of prompt and answer of each request.
        room: bytes for cache and activations together.
        kv_bytes: of one token in the cache.
        step_bytes: of activations, for each token that a step may have.

    Raises:
        MemoryError: the largest step leaves no room for the longest of the requests.
        TypeError, ValueError: an option does not exist, or has a value that the engine refuses.
    """
    unknown = sorted(set(options) - set(DEFAULTS))
    if unknown:
        raise ValueError(f"options may be {', '.join(DEFAULTS)}; got {unknown}")
    chosen = {**DEFAULTS, **options}
    config = Config("qwen3-tiny", device="cpu", enable_prefix_caching=False, **chosen)
    left = room - step_bytes * config.max_num_batched_tokens
    num_blocks, longest = left // (kv_bytes * config.kvcache_block_size), max(map(sum, workload))
    if num_blocks * config.kvcache_block_size < longest:
        raise MemoryError(f"{chosen} leaves room for {max(0, num_blocks)} blocks: too few for {longest} tokens")
    config.num_kvcache_blocks = num_blocks
    logger = logging.getLogger(scheduler.__name__)
    logger.disabled = True  # a pool that is smaller than the longest text is what this is about
    try:
        return _run(scheduler.Scheduler(config), workload, config)
    finally:
        logger.disabled = False


def _run(the_scheduler: scheduler.Scheduler, workload: Workload, config: Config) -> Run:
    for i, (num_prompt, num_answer) in enumerate(workload):
        params = SamplingParams(max_tokens=num_answer, ignore_eos=True)
        the_scheduler.add(sequence.Sequence([i] * num_prompt, params, config.kvcache_block_size, i))
    steps, batches = 0, []
    while not the_scheduler.is_finished():
        seqs, is_prefill = step(the_scheduler, lambda seq: 1)
        steps += 1
        batches += [] if is_prefill else [len(seqs)]
    mean_batch = sum(batches) / max(1, len(batches))
    return Run(steps, mean_batch, the_scheduler.num_preemptions, config.num_kvcache_blocks)
