"""What chapter 17 measures and counts with: limits of machines, steps under them, where the time of a step goes, and
what was recorded on an H200. The recordings are in `nanovllm/viz/data`, each with where it comes from.
"""

import json
import os
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import nanovllm
from nanovllm import LLM, SamplingParams
from nanovllm.measure import compile_layers, this_machine
from nanovllm.viz.roofline import Machine, Work

from . import lever_work
from .roofline_work import model_of

# Classes by name: a learner's engine has its own of the same names.
PARTS = {
    "attention": ("Attention",),
    "matrix products": ("LinearBase", "ParallelLMHead"),
    "norms": ("RMSNorm",),
    "rotary embedding": ("RotaryEmbedding",),
    "activation": ("SiluAndMul",),
}
OTHERS = "all the rest"  # of a step: scheduler, lists and tensors, residual sums, sampling
CONTEXT = 512  # tokens of each sequence in the recorded steps, when their timing began


def recorded(name: str) -> dict[str, Any] | None:
    """A recording of `nanovllm/viz/data`; None if there is none yet."""
    path = files("nanovllm.viz") / "data" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def made(recording: dict[str, Any]) -> str:
    """Where a recording comes from, in a line."""
    return f"{recording['gpu']}, {recording['date']}, commit {recording['commit']}, torch {recording['torch']}"


def gains(workload: str) -> dict[str, float]:
    """How many times as fast the engine is with each lever, on a recorded H200; "all" is for all of them."""
    rows = (recorded("levers_h200") or {"rows": []})["rows"]
    ratios = {
        row["lever"]: [fast / slow for fast, slow in zip(row["with"], row["without"], strict=False)]
        for row in rows
        if row["workload"] == workload
    }
    return {lever: statistics.median(found) for lever, found in ratios.items()}


def rates(workload: str, lever: str = "all") -> tuple[float, float]:
    """Tokens a second with and without a lever, on a recorded H200; an engine that is much slower has run only once."""
    rows = (recorded("levers_h200") or {"rows": []})["rows"]
    (row,) = [row for row in rows if (row["lever"], row["workload"]) == (lever, workload)]
    return statistics.median(row["with"]), statistics.median(row["without"])


# The roofline.


def fastest(function: Callable[[], Any], times: int = 5) -> float:
    """Seconds of the fastest of some calls: whatever else the machine does only makes one slower."""
    seconds = []
    for _ in range(times + 1):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def this_core() -> Machine:
    """The limits of this machine with the threads that torch has now, measured."""
    large, square = torch.rand(8192, 8192), torch.rand(1024, 1024)
    moved, computed = large.nbytes / fastest(lambda: large @ large[0]), 2 * 1024**3 / fastest(lambda: square @ square)
    return Machine("this machine", moved, computed, f"MEASURED NOW on {this_machine()}, float32", large.element_size())


def h200() -> Machine:
    """What was measured on an H200: a large copy, and a large product in bfloat16."""
    peers = recorded("peers_h200") or {}
    bytes_per_second, operations = 1e9 * peers["copy_gb_per_s"], 1e12 * peers["matmul_tflop_per_s"]
    return Machine("H200", bytes_per_second, operations, f"RECORDED, a large copy and a large product: {made(peers)}")


def roofline_works() -> list[Work]:
    """Steps of Qwen3-0.6B in 16 bits: decodes of several batches, with their recorded times, and two prefills."""
    model, works = model_of("Qwen3-0.6B"), []
    rows = (recorded("steps_h200") or {"rows": []})["rows"]
    seconds = {row["bs"]: row["graph_ms"][1] / 1000 for row in rows}
    plans = [("decode, batch ", n, CONTEXT, 1) for n in (1, 8, 64, 256)] + [
        ("prefill of ", 1, 0, n) for n in (64, 1024)
    ]
    for words, num_seqs, stored, new in plans:
        tokens = num_seqs * new
        weights = (model.layer_parameters + model.head_parameters) * model.element_size
        moved = weights + num_seqs * (stored + new) * model.kv_bytes
        operations = 2 * (model.layer_parameters * tokens + model.head_parameters * num_seqs)
        name = f"{words}{num_seqs}" if stored else f"{words}{new}"
        took = {"H200": seconds[num_seqs]} if stored and num_seqs in seconds else {}
        works.append(Work(name, operations, moved, tokens, took))
    return works


# Where the time of a step goes.


@contextmanager
def _timed(model: torch.nn.Module, seconds: dict[str, float]) -> Iterator[None]:
    """Add up what each part takes, without what is called inside it."""
    stack: list[float] = []

    def timed(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            stack.append(0.0)
            start = time.perf_counter()
            result = forward(*args)
            took = time.perf_counter() - start
            seconds[name] += took - stack.pop()
            if stack:
                stack[-1] += took
            return result

        return call

    changed = []
    for module in model.modules():
        for name, classes in PARTS.items():
            if {base.__name__ for base in type(module).__mro__} & set(classes):
                module.forward = timed(name, module.forward)
                changed.append(module)
    yield
    for module in changed:
        del module.forward


def decoding(llm: LLM, num_seqs: int, num_tokens: int = 48) -> list[int]:
    """Requests that all decode from the next step on."""
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    numbers = [llm.add_request([5 + i] * num_tokens, params) for i in range(num_seqs)]
    while llm.scheduler.waiting:
        llm.step()
    llm.step()
    return numbers


def seconds_by_part(llm: LLM, num_seqs: int, num_steps: int = 10) -> dict[str, float]:
    """Seconds of a decode step by the parts of the model, the quickest step of some; and of all the rest."""
    numbers, steps = decoding(llm, num_seqs), []
    for _ in range(num_steps):
        seconds: dict[str, float] = defaultdict(float)
        with _timed(llm.llm_engine.model_runner.model, seconds):
            start = time.perf_counter()
            llm.step()
            total = time.perf_counter() - start
        steps.append((total, {name: seconds[name] for name in PARTS} | {OTHERS: total - sum(seconds.values())}))
    for number in numbers:
        llm.abort(number)
    return min(steps, key=lambda step: step[0])[1]


@contextmanager
def _without_notes() -> Iterator[None]:
    """What lies below torch's profiler writes two lines to the process's stderr each time, whatever it is told."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def profiled(llm: LLM, num_seqs: int, num_rows: int = 8) -> list[tuple[str, int, float]]:
    """A decode step in torch's profiler: the operations that took most, how often they ran, and milliseconds."""
    numbers = decoding(llm, num_seqs)
    with _without_notes(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        llm.step()
    for number in numbers:
        llm.abort(number)
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return [(event.key, event.count, event.self_cpu_time_total / 1000) for event in events[:num_rows]]


def memory_by_kind(llm: LLM, num_tokens: int) -> dict[str, float]:
    """Bytes of weights and pool, and the most that a prefill of so many tokens took besides, as the profiler saw it."""
    runner = llm.llm_engine.model_runner
    llm.add_request([7] * num_tokens, SamplingParams(temperature=0, max_tokens=1))
    with _without_notes(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        llm.step()
    now = most = 0.0
    for event in sorted(profiler.events() or [], key=lambda event: event.time_range.start):
        now += event.self_cpu_memory_usage
        most = max(most, now)
    weights = sum(weight.nbytes for weight in runner.model.parameters())
    return {"weights": weights, "pool": runner.kv_cache.nbytes, f"activations, {num_tokens} tokens": most}


# What fusing saves: the norm between two parts of a layer, as PyTorch runs it.

NORM = [
    (("stream", "x"), "sum"),  # the residual stream, and what is added to it
    (("sum",), "in float32"),
    (("in float32",), "squares"),
    (("squares",), "mean"),
    (("mean",), "mean + eps"),
    (("mean + eps",), "factor"),
    (("in float32", "factor"), "scaled"),
    (("scaled",), "in 16 bits"),
    (("in 16 bits", "weight"), "y"),
]
NUM_NORMS = 57  # in Qwen3-0.6B: two a layer, and the last one


def norm_sizes(num_tokens: int, hidden_size: int = 1024) -> dict[str, int]:
    """Bytes of the tensors of `NORM`."""
    half, full = 2 * num_tokens * hidden_size, 4 * num_tokens * hidden_size
    sizes = dict.fromkeys(("in float32", "squares", "scaled"), full)
    sizes |= dict.fromkeys(("mean", "mean + eps", "factor"), 4 * num_tokens)
    return sizes | dict.fromkeys(("stream", "x", "sum", "in 16 bits", "y"), half) | {"weight": 2 * hidden_size}


def lever_ratios(names: tuple[str, ...], pairs: int = 3, **options: Any) -> list[float]:
    """How many times as fast this machine is with levers of ours, in runs side by side; on a CPU, of computing."""
    options = {**lever_work.OPTIONS, **options, "device": "auto"}
    with (
        LLM("qwen3-tiny", **options | {"disabled_optimizations": ()}) as fast,
        LLM("qwen3-tiny", **options | {"disabled_optimizations": names}) as slow,
    ):
        return side_by_side(fast, slow, pairs)


def compiled_ratios(pairs: int = 3) -> list[float]:
    """How many times as fast the plain engine is on this machine when torch has compiled its layers.

    Raises:
        RuntimeError: there is no compiler here.
    """
    if not find_compiler():
        raise RuntimeError("torch.compile needs a C++ compiler (g++ or clang++, on Windows cl), and there is none here")
    options = lever_work.OPTIONS | {"device": "auto", "disabled_optimizations": "all"}
    with LLM("qwen3-tiny", **options) as compiled, LLM("qwen3-tiny", **options) as plain:
        compile_layers(compiled)
        return side_by_side(compiled, plain, pairs)


def find_compiler() -> str:
    """The C++ compiler that torch will find; "" if there is none."""
    names = (os.environ.get("CXX", ""), "g++", "clang++", "cl")
    return next((name for name in names if name and shutil.which(name)), "")


def side_by_side(fast: LLM, slow: LLM, pairs: int) -> list[float]:
    """How many times as long the second takes, run for run; the first pair is not counted."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    ratios = []
    for run in range(pairs + 1):
        seconds = []
        for llm in (fast, slow):
            start = clock()
            lever_work.answers(nanovllm, llm, lever_work.prompts(run))
            seconds.append(clock() - start)
        ratios.append(seconds[1] / seconds[0])
    return ratios[1:]
