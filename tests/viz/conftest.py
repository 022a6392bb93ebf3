"""Traces of the real scheduler for the tests of the widgets."""

import logging
import random

import pytest

from nanovllm.config import Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.sampling_params import SamplingParams
from nanovllm.viz.record import record_scheduler
from nanovllm.viz.trace import load_trace


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Small pools are the point here."""
    caplog.set_level(logging.ERROR, logger="nanovllm")


@pytest.fixture
def story():
    """The smaller recorded trace; a new copy each time."""
    return load_trace("story")


@pytest.fixture
def batch():
    """The larger recorded trace; a new copy each time."""
    return load_trace("batch")


def random_trace(seed):
    """A run of the real scheduler in a random small setting, with prompts that share prefixes."""
    rng = random.Random(seed)
    block_size, num_blocks = rng.choice([1, 2, 4, 16]), rng.randint(6, 20)
    config = Config(
        "qwen3-tiny",
        max_model_len=block_size * num_blocks,
        kvcache_block_size=block_size,
        num_kvcache_blocks=num_blocks,
        max_num_seqs=rng.randint(1, 5),
        max_num_batched_tokens=rng.randint(4, 40),
        enable_prefix_caching=rng.random() < 0.8,
        device="cpu",
    )
    longest = max(1, block_size * num_blocks // 2)
    common = [rng.randrange(5) for _ in range(longest)]
    prompts, params = [], []
    for _ in range(rng.randint(1, 8)):
        shared = rng.randint(0, longest - 1)
        prompts.append(common[:shared] + [rng.randrange(5) for _ in range(rng.randint(1, longest - shared))])
        params.append(SamplingParams(max_tokens=rng.randint(1, 12), ignore_eos=rng.random() < 0.5))
    arrive = sorted(rng.randint(0, 12) for _ in prompts)
    return record_scheduler(Scheduler(config), config, prompts, params, arrive, seed)
