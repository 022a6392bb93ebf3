"""Time whole decode steps with and without CUDA graphs, and note down what was measured where.

`python bench.py --measure-steps FILE` writes the files in `nanovllm/viz/data` that the widgets
replay on machines without a GPU.
"""

import datetime
import importlib.metadata
import json
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

from .llm import LLM
from .sampling_params import SamplingParams

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def measure_steps(
    make_llm: Callable[..., LLM],
    model: str,
    batch_sizes: tuple[int, ...] = BATCH_SIZES,
    context_lens: tuple[int, ...] = (512,),
    warmup: int = 10,
    iters: int = 50,
) -> dict[str, Any]:
    """Eager against graph, a row for each batch size and length; all of a step is timed.

    Args:
        make_llm: called with `disabled_optimizations`; returns an engine on a GPU.
        model: what the engine runs, in words.
        context_lens: tokens of each sequence when the timing starts. What has no room in the KV
            cache is left out.
        warmup, iters: steps before the timing, and timed.

    Returns:
        the measurement with its provenance; times are [10th percentile, median, 90th percentile]
        in milliseconds.

    Raises:
        ValueError: the engine is not on a GPU.
    """
    rows: list[dict[str, Any]] = [
        {"bs": bs, "context_len": length} for length in context_lens for bs in batch_sizes
    ]
    result: dict[str, Any] = {}
    # One step ahead hides the CPU's part of a step; here it is to be seen.
    for name, disabled in (("eager", ("cuda_graph", "step_ahead")), ("graph", ("step_ahead",))):
        with make_llm(disabled_optimizations=disabled) as llm:
            if llm.config.device != "cuda":
                raise ValueError(
                    f"CUDA graphs are measured on a GPU, and the engine is on {llm.config.device!r}"
                )
            block_size, num_blocks = llm.config.kvcache_block_size, llm.config.num_kvcache_blocks
            seq_blocks = {
                length: -(-(length + warmup + iters + 1) // block_size) for length in context_lens
            }
            rows = [row for row in rows if row["bs"] * seq_blocks[row["context_len"]] <= num_blocks]
            for row in rows:
                batch_size, context_len = row["bs"], row["context_len"]
                row[f"{name}_ms"] = time_steps(llm, batch_size, context_len, warmup, iters)
                if name == "eager":
                    row["kernels_per_step"] = count_kernels(llm, batch_size, context_len)
                else:
                    graphs = llm.llm_engine.model_runner.graphs
                    row["graph_bs"] = min(size for size in graphs if size >= batch_size)
            result = provenance(llm, model)
    return result | {"warmup": warmup, "iters": iters, "rows": rows}


def time_steps(llm: LLM, batch_size: int, context_len: int, warmup: int, iters: int) -> list[float]:
    """A decode step of `batch_size` sequences: [10th percentile, median, 90th] in milliseconds."""
    seq_ids = start_decode(llm, batch_size, context_len, warmup + iters + 1)
    times = []
    for _ in range(warmup + iters):
        start = time.perf_counter()
        _, num_tokens = llm.step()
        times.append((time.perf_counter() - start) * 1e3)
        if num_tokens != -batch_size:
            raise RuntimeError(
                f"a step computed {num_tokens} tokens, not one for each of {batch_size} sequences"
            )
    for seq_id in seq_ids:
        llm.abort(seq_id)
    cuts = statistics.quantiles(times[warmup:], n=10, method="inclusive")
    return [round(value, 4) for value in (cuts[0], statistics.median(times[warmup:]), cuts[-1])]


def start_decode(llm: LLM, batch_size: int, context_len: int, max_tokens: int) -> list[int]:
    """Add requests of random tokens, and run steps until all decode; returns their numbers."""
    rng = Random(batch_size)
    params = SamplingParams(temperature=1.0, max_tokens=max_tokens, ignore_eos=True)
    vocab_size = llm.config.hf_config.vocab_size
    seq_ids = [
        llm.add_request([rng.randrange(vocab_size) for _ in range(context_len)], params)
        for _ in range(batch_size)
    ]
    while llm.scheduler.waiting:
        llm.step()
    return seq_ids


def count_kernels(llm: LLM, batch_size: int, context_len: int) -> int:
    """Kernels that one decode step launches on the GPU."""
    from torch.profiler import ProfilerActivity, profile

    seq_ids = start_decode(llm, batch_size, context_len, 4)
    llm.step()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        llm.step()
        torch.cuda.synchronize()
    for seq_id in seq_ids:
        llm.abort(seq_id)
    events = profiler.events() or []
    return sum(
        event.device_type == torch.autograd.DeviceType.CUDA
        and not event.name.startswith(("Memcpy", "Memset"))
        for event in events
    )


def provenance(llm: LLM, model: str) -> dict[str, Any]:
    """On what, with what, when and by which command something was measured."""
    on_gpu = llm.config.device == "cuda"
    return {
        "gpu": torch.cuda.get_device_name() if on_gpu else None,
        "driver": driver_version() if on_gpu else None,
        "torch": torch.__version__,
        "triton": package_version("triton"),
        "flash_attn": package_version("flash-attn"),
        "commit": git_commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": shlex.join(["python", *sys.argv]),
        "model": model,
        "dtype": str(llm.config.dtype).removeprefix("torch."),
        "attention_backend": llm.config.attention_backend,
    }


def package_version(name: str) -> str | None:
    """Version of an installed package, None if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver_version() -> str:
    """Version of the GPU's driver, "unknown" where nvidia-smi cannot be asked."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=30
        ).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def this_machine() -> str:
    """What measures here and now: processor, threads, version of torch, date and time."""
    threads = torch.get_num_threads()
    when = datetime.datetime.now().strftime("%Y-%m-%d %H:%M")
    return f"{cpu_name()}, {threads} thread{'s' * (threads > 1)}, torch {torch.__version__}, {when}"


def git_commit() -> str:
    """Revision of the checkout that this package lies in, or "unknown"."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return result.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def save_measurement(measurement: dict[str, Any], path: Path) -> None:
    """Write a measurement as JSON, a row a line, so that a new one can be compared with the old."""
    rows = ",\n".join("    " + json.dumps(row) for row in measurement["rows"])
    head = json.dumps({key: value for key, value in measurement.items() if key != "rows"}, indent=2)
    path.write_text(f'{head[:-2]},\n  "rows": [\n{rows}\n  ]\n}}\n', encoding="utf-8")


def compile_layers(llm: LLM, **options: Any) -> None:
    """Have torch compile every decoder layer, for any number of tokens; attention stays as it is.

    It asks for lengths and tables that are no tensors, so it cannot be a part of a compiled graph.
    `options` are those of `torch.compile`.
    """
    for layer in llm.llm_engine.model_runner.model.model.layers:
        attention = layer.self_attn.attn
        attention.forward = torch.compiler.disable(attention.forward)
        layer.compile(dynamic=True, **options)
