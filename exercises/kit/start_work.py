"""What the start of an engine takes, stage by stage: measured here, or recorded on a GPU.

`python -m exercises.kit.start_work FILE` measures on a GPU, and what each CUDA graph costs there, and writes FILE.
"""

import contextlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch

import nanovllm.engine.llm_engine as engine_module
import nanovllm.engine.model_runner as runner_module
import nanovllm.llm as llm_module
from nanovllm import LLM, measure
from nanovllm.config import Config
from nanovllm.engine.model_runner import ModelRunner
from nanovllm.engine.scheduler import Scheduler
from nanovllm.viz.record import DATA

RECORDED = DATA / "start_h200.json"
OUTER = "ranks"  # has other stages inside
METHODS = {  # of a runner; only with CUDA graphs has it the last one
    "build_model": "weights",
    "warmup_model": "warm-up",
    "allocate_kv_cache": "pool",
    "capture_cudagraph": "graphs",
}


class Stage(NamedTuple):
    """A part of the start.

    Args:
        name: what is done.
        begin, seconds: when, from the start on, and for how long.
    """

    name: str
    begin: float
    seconds: float


def timed_start(model: str, **options: Any) -> tuple[LLM, list[Stage]]:
    """Start an engine, and see how long each part of it takes.

    Args:
        model, options: for `LLM`.

    Returns:
        the LLM, and its stages in the order in which they began.
    """
    stages: list[Stage] = []
    start = time.perf_counter()
    with _watched(lambda name, begin, end: stages.append(Stage(name, begin - start, end - begin))):
        llm = LLM(model, **options)
    return llm, sorted(stages, key=lambda stage: stage.begin)


@contextmanager
def _watched(note: Callable[[str, float, float], None]) -> Iterator[None]:
    """While this lasts, every stage is noted with its begin and end; what happens inside of one is not."""
    inside = list[str]()

    def watch(stage: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if inside and inside[-1] != OUTER:
                return function(*args, **kwargs)
            inside.append(stage)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                note(stage, begin, time.perf_counter())
                inside.pop()

        return call

    def watch_runner(runner: Any) -> None:
        for method, stage in METHODS.items():
            if hasattr(runner, method):
                setattr(runner, method, watch(stage, getattr(runner, method)))

    places: list[tuple[str, Any, str]] = [
        ("config", Config, "__post_init__"),
        ("tokenizer", llm_module, "load_tokenizer"),
        (OUTER, engine_module, "start_runner"),
        ("size of the pool", runner_module, "choose_num_blocks"),
        ("scheduler", Scheduler, "__init__"),
    ]
    with contextlib.ExitStack() as undo:
        for stage, owner, name in places:
            undo.enter_context(mock.patch.object(owner, name, watch(stage, getattr(owner, name))))
        undo.enter_context(_before_start(watch_runner))
        yield


@contextmanager
def _before_start(change: Callable[[Any], None]) -> Iterator[None]:
    """While this lasts, `change` is called with every runner, of whatever class, before it starts."""
    init = ModelRunner.__init__

    def changed(self: Any, *args: Any, **kwargs: Any) -> None:
        change(self)
        init(self, *args, **kwargs)

    with mock.patch.object(ModelRunner, "__init__", changed):
        yield


def load_recorded() -> dict[str, Any]:
    """The start on a GPU, as `measure_start` returned it."""
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def measure_start(folder: str, model: str) -> dict[str, Any]:
    """On a GPU: the stages of a start, and for each graph its seconds and bytes, in the order of recording.

    Args:
        folder: of the model, whose weights are random.
        model: what it is, in words.
    """
    graphs: list[dict[str, Any]] = []

    def look() -> dict[str, Any]:
        torch.cuda.synchronize()
        return {"at": time.perf_counter(), "free": torch.cuda.mem_get_info()[0]}

    def one_by_one(runner: Any) -> None:
        """Between one graph and the next, a look at the clock and at the memory."""
        capture, run = runner.capture_cudagraph, runner.run_in_buffers

        def noted(batch_size: int) -> None:
            if not torch.cuda.is_current_stream_capturing():  # which forbids to wait
                graphs.append({"bs": batch_size} | look())
            run(batch_size)

        def captured(batch_sizes: list[int]) -> None:
            graphs.clear()  # of those that the warm-up has recorded for a try
            capture(batch_sizes)
            graphs.append(look())

        runner.run_in_buffers, runner.capture_cudagraph = noted, captured

    options = {"load_format": "dummy", "max_model_len": 4096}
    LLM(folder, **options).exit()  # compiles kernels, which stay on disk
    llm, stages = timed_start(folder, **options)
    llm.exit()
    with _before_start(one_by_one):
        llm = LLM(folder, **options)
    result = measure.provenance(llm, model)
    result["num_kvcache_blocks"] = llm.config.num_kvcache_blocks
    llm.exit()
    rows = [
        {"bs": one["bs"], "seconds": round(two["at"] - one["at"], 4), "bytes": one["free"] - two["free"]}
        for one, two in itertools.pairwise(graphs)
    ]
    return result | {"stages": [[name, round(a, 4), round(b, 4)] for name, a, b in stages], "rows": rows}


if __name__ == "__main__":
    import bench

    sys.argv[:1] = ["-m", "exercises.kit.start_work"]
    with tempfile.TemporaryDirectory() as made:
        bench.make_model(SimpleNamespace(model=None, shape="qwen3-0.6b", compare=False), made)
        found = measure_start(made, "qwen3-0.6b shape, random weights")
    measure.save_measurement(found, Path(sys.argv[-1]))
