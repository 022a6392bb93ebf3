"""The work of the open exercise of chapter 8: how many sequences the decode steps of a day have.

There is a CUDA graph for some batch sizes only, so a step takes the smallest that is large enough, and computes rows
that nobody needs. `python -m exercises.kit.graph_work` serves the days anew, with the real scheduler and without
weights, and writes batch_sizes.json.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nanovllm.config import Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.sampling_params import SamplingParams

from .workloads import step

LARGEST = 256  # max_num_seqs: the largest batch there can be
MOST = 9  # graphs
POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
POWERS_PAD = 28_621  # rows of padding on the day that counts, with powers of two
BAR = 12_000
# Steps of a day, and how many requests arrive in a hundred of them.
HOURS = ((400, 2), (300, 25), (500, 42), (200, 30), (400, 50), (300, 10))
DAYS = Path(__file__).parent / "batch_sizes.json"


def batch_sizes(day: int = 0) -> dict[int, int]:
    """How many decode steps of a day had how many sequences, by the number of sequences; there are three days."""
    return {int(size): steps for size, steps in json.loads(DAYS.read_text(encoding="utf-8"))[day].items()}


def serve(day: int) -> dict[int, int]:
    """The same from the scheduler itself: it serves the requests of a day until all are done."""
    rng, sizes = random.Random(day), Counter[int]()
    options: dict[str, Any] = {"max_model_len": 512, "kvcache_block_size": 16, "num_kvcache_blocks": 8192}
    scheduler = Scheduler(Config("qwen3-tiny", device="cpu", max_num_seqs=LARGEST, **options))
    arrive = [rng.random() < rate / 100 for length, rate in HOURS for _ in range(length)]
    for seq_id in range(10 * len(arrive)):
        if arrive[seq_id : seq_id + 1] == [True]:
            prompt = [rng.randrange(5, 900) for _ in range(rng.randrange(10, 60))]
            params = SamplingParams(max_tokens=rng.randrange(10, 200), ignore_eos=True)
            scheduler.add(Sequence(prompt, params, 16, seq_id))
        seqs, is_prefill = step(scheduler, lambda seq: 5 + seq.num_tokens % 800)
        if seqs and not is_prefill:
            sizes[len(seqs)] += 1
    return dict(sorted(sizes.items()))


def padding(sizes: Iterable[int], counts: Mapping[int, int]) -> int:
    """Rows that are computed for nobody, in all steps together.

    Args:
        sizes: batch sizes that have a graph.
        counts: how many steps had how many sequences.

    Raises:
        ValueError: no graph is large enough for a step.
    """
    ordered = sorted(sizes)
    if counts and (not ordered or ordered[-1] < max(counts)):
        raise ValueError(f"no graph is large enough for {max(counts)} sequences")
    return sum(steps * (next(size for size in ordered if size >= n) - n) for n, steps in counts.items())


if __name__ == "__main__":
    DAYS.write_text(json.dumps([serve(day) for day in range(3)]) + "\n", encoding="utf-8")
