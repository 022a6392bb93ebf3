"""The work of the open exercise of chapter 6: the same requests for everybody, through a scheduler, without weights.

A third are long texts that want a short answer, the others are short questions that want a long one. The pools are too
small for all of them at once, so that somebody has to be preempted again and again.
"""

import random
from collections.abc import Callable
from typing import Any

from .workloads import step

RUNS = [(seed, num_blocks) for num_blocks in (40, 56, 80) for seed in (1, 2, 3)]  # what is counted
OPTIONS = {"kvcache_block_size": 4, "max_num_batched_tokens": 128, "max_num_seqs": 16, "max_model_len": 160}
NEWEST = 3121  # tokens that are computed again in these runs if the newest goes, as in the engine
BAR = 2700  # the shortest is not enough: 2,733
MAX_STEPS = 2000  # a run takes less than 400 with any rule that lets everybody finish


def requests(seed: int) -> list[tuple[list[int], int]]:
    """24 requests: the ids of the prompt, and how many tokens it wants."""
    rng, made = random.Random(seed), []
    for _ in range(24):
        is_text = rng.random() < 1 / 3
        length = rng.randrange(60, 90) if is_text else rng.randrange(3, 9)
        max_tokens = rng.randrange(6, 20) if is_text else rng.randrange(30, 60)
        made.append(([rng.randrange(5, 900) for _ in range(length)], max_tokens))
    return made


def token_at(seq: Any, place: int) -> int:
    """The made-up token at a place of a sequence: the same whenever it is computed."""
    return 5 + (31 * seq.seq_id + 7 * place) % 800


def serve(scheduler: Any, sequence_class: Any, params_class: Any, seed: int) -> list[Any]:
    """Drive an idle scheduler with the requests of a seed, as the engine does, until all have ended, or nobody gets on.

    Returns:
        the sequences. `scheduler.num_prefill_tokens` minus their prompts is what was computed again.
    """
    size = scheduler.block_manager.block_size
    seqs = [
        sequence_class(prompt, params_class(max_tokens=max_tokens, ignore_eos=True), size, i)
        for i, (prompt, max_tokens) in enumerate(requests(seed))
    ]
    for seq in seqs:
        scheduler.add(seq)
    for _ in range(MAX_STEPS):
        if scheduler.is_finished():
            break
        step(scheduler, lambda seq: token_at(seq, seq.num_tokens))
    return seqs


def tokens_computed_again(make_scheduler: Callable[..., Any], sequence_class: Any, params_class: Any) -> int:
    """Tokens that are computed again, in all runs together.

    Args:
        make_scheduler: gets the options of a config, among them `num_kvcache_blocks`; returns an idle scheduler.
        sequence_class, params_class: of the same engine.
    """
    total = 0
    for seed, num_blocks in RUNS:
        scheduler = make_scheduler(**OPTIONS, num_kvcache_blocks=num_blocks)
        seqs = serve(scheduler, sequence_class, params_class, seed)
        total += scheduler.num_prefill_tokens - sum(seq.num_prompt_tokens for seq in seqs)
    return total
