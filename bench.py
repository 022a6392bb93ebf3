"""Throughput of the engine on random prompts, against what the machine could do at best, and beside a peer.

The default work on a GPU is the usual benchmark of small engines: a model of the shape of Qwen3-0.6B with random
weights, 256 requests, prompts and answers of 100 to 1024 tokens, end-of-sequence tokens ignored. On a CPU it is scaled
down: 27 million parameters, 16 requests, prompts of 16 to 200 and answers of 16 to 128 tokens. Other kinds of work:

batch-1        one request: what a single user waits for
shared-prefix  all prompts begin with the same tokens, which the prefix cache can save
short-context  short prompts and answers: the weights count, and the work around a step; attention hardly does
small-pool     the default work with a cache that holds few of the requests at once
early-stop     the same small cache; answers may get long, but most end soon, and nobody knows when

`--levers FILE` measures what each lever (a faster path of `nanovllm.levers`) gains: engines with and without it, in
processes side by side, work in turn. `--measure-compile FILE` does the same with three engines: the plain one, the
plain one with its layers compiled by torch, and the one with all levers.

`--serve` measures what `python -m nanovllm.serve` costs: the same requests through `LLM.generate`, and from a client in
another process over HTTP, all at once, with whole answers and with streams.
"""

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from nanovllm import LLM, SamplingParams  # isort: skip - before torch, which reads what it sets when it is loaded

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from nanovllm.config import Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.levers import LEVERS, QUANTIZATIONS, is_enabled
from nanovllm.levers.table import ALL, dependents, levers_markdown, load_measurements
from nanovllm.measure import compile_layers, cpu_name, measure_steps, provenance, save_measurement
from nanovllm.utils.memory import kv_block_bytes

SHAPES = {
    "qwen3-27m": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 4096,
        "max_position_embeddings": 4096,
    },
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    },
    "qwen3-8b": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
    },
}


# Of each kind of work: its size on a GPU, its size on a CPU. Lengths are the least and the most, in tokens.
ON_GPU: dict[str, Any] = {"num_requests": 256, "input_len": [100, 1024], "output_len": [100, 1024]}
ON_CPU: dict[str, Any] = {"num_requests": 16, "input_len": [16, 200], "output_len": [16, 128]}
SMALL_ON_GPU = ON_GPU | {"num_kvcache_blocks": 180}
SMALL_ON_CPU = ON_CPU | {"num_kvcache_blocks": 64, "block_size": 16}
WORKLOADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": (ON_GPU, ON_CPU),
    "batch-1": (
        {"num_requests": 1, "input_len": [128, 128], "output_len": [1024, 1024]},
        {"num_requests": 1, "input_len": [64, 64], "output_len": [64, 64]},
    ),
    "shared-prefix": (
        {"num_requests": 256, "input_len": [600, 1024], "output_len": [64, 128], "shared_len": 512},
        {"num_requests": 16, "input_len": [144, 200], "output_len": [16, 32], "shared_len": 128, "block_size": 16},
    ),
    "short-context": (
        {"num_requests": 256, "input_len": [16, 64], "output_len": [128, 256]},
        {"num_requests": 16, "input_len": [8, 16], "output_len": [16, 64]},
    ),
    "small-pool": (SMALL_ON_GPU, SMALL_ON_CPU),
    "early-stop": (
        SMALL_ON_GPU | {"num_requests": 1024, "output_len": [1024, 1024], "mean_stop": 100},
        SMALL_ON_CPU | {"num_requests": 64, "output_len": [128, 128], "mean_stop": 16},
    ),
}
UNLESS_SAID = {"shared_len": 0, "mean_stop": 0, "num_kvcache_blocks": -1, "block_size": 256}
SIZES = (*ON_GPU, *UNLESS_SAID)


Disabled = str | tuple[str, ...]  # as in Config.disabled_optimizations


@dataclass
class Workload:
    """Prompts as token ids, the most tokens to generate for each, and token ids that end an answer."""

    prompts: list[list[int]]
    output_lens: list[int]
    stop_token_ids: list[int]

    def with_other_tokens(self, vocab_size: int) -> "Workload":
        """The same lengths with different tokens, so that a run finds nothing of the one before in the prefix cache."""
        prompts = [[(token_id + 1) % vocab_size for token_id in prompt] for prompt in self.prompts]
        return Workload(prompts, self.output_lens, self.stop_token_ids)

    def shortened(self, max_tokens: int) -> "Workload":
        """The same prompts with short answers."""
        return Workload(self.prompts, [min(n, max_tokens) for n in self.output_lens], self.stop_token_ids)

    def num_blocks(self, block_size: int) -> int:
        """Most blocks of the cache in use when all requests run at once."""
        lengths = [(len(prompt), n) for prompt, n in zip(self.prompts, self.output_lens, strict=True)]
        steps = range(max(self.output_lens))
        return max(sum(-(-(length + step) // block_size) for length, n in lengths if n > step) for step in steps)


@dataclass
class Result:
    """One timed run.

    Args:
        seconds: from the first request to the last token.
        output_lens: generated tokens of each request; padding beyond what a request asked for is not counted.
        note: what else is worth knowing.
        num_prefill_tokens: prompt tokens that were computed.
    """

    seconds: float
    output_lens: list[int]
    note: str = ""
    num_prefill_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(self.output_lens)

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


class Roofline:
    """The least time some work can take: every byte is read once, at the speed that was measured on this machine.

    A decode step reads all weights and the keys and values of every token it attends to. A prefill multiplies every
    token with every weight. Everything else is taken to be free, also what tensor-parallel ranks exchange, so the share
    that an engine reaches is below 100 %.

    Args:
        config: of the engine.
    """

    def __init__(self, config: Config) -> None:
        hf_config = config.hf_config
        self.max_num_seqs, self.num_ranks = config.max_num_seqs, config.tensor_parallel_size
        num_layers, kv_heads, head_dim = hf_config.num_hidden_layers, hf_config.num_key_value_heads, hf_config.head_dim
        self.kv_bytes = kv_block_bytes(num_layers, 1, kv_heads, head_dim, config.dtype.itemsize)  # of one token
        attention = hf_config.hidden_size * 2 * (hf_config.num_attention_heads + kv_heads) * head_dim
        mlp = 3 * hf_config.hidden_size * hf_config.intermediate_size
        self.layer_parameters = num_layers * (attention + mlp)
        self.weight_bytes = (
            self.layer_parameters + hf_config.vocab_size * hf_config.hidden_size
        ) * config.dtype.itemsize
        self.bytes_per_second = self.measure_copy(config.device)
        self.flops_per_second = self.measure_matmul(config.device, config.dtype)

    @staticmethod
    def measure_copy(device: str) -> float:
        """Bytes read and written a second by copying a large tensor."""
        size = 2**31 if device == "cuda" else 2**28
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        return 2 * size / best_time(lambda: target.copy_(source), device)

    @staticmethod
    def measure_matmul(device: str, dtype: torch.dtype) -> float:
        """Floating-point operations a second of a large matrix product."""
        size = 8192 if device == "cuda" else 1024
        matrix = torch.randn(size, size, device=device).to(dtype)
        return 2 * size**3 / best_time(lambda: matrix @ matrix, device)

    def seconds(self, input_lens: list[int], result: Result) -> float:
        """Bound for a run: decode limited by reading memory, prefill by arithmetic."""
        lengths = result.output_lens
        num_read = sum(p * (n - 1) + n * (n - 1) // 2 for p, n in zip(input_lens, lengths, strict=True))
        num_steps = max(max(lengths) - 1, math.ceil(sum(n - 1 for n in lengths) / self.max_num_seqs))
        decode = (num_steps * self.weight_bytes + num_read * self.kv_bytes) / self.bytes_per_second
        prefill = 2 * self.layer_parameters * result.num_prefill_tokens / self.flops_per_second
        return (decode + prefill) / self.num_ranks


def best_time(function: Callable[[], Any], device: str, runs: int = 5) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


class PoolWatch:
    """Notes, before each decode step, how many sequences run, and how full the cache is while others wait.

    Args:
        scheduler: from now on its `schedule` reports here.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.batch_sizes: list[int] = []
        self.shares: list[float] = []
        self.scheduler, self.schedule = scheduler, scheduler.schedule
        scheduler.schedule = self.watch  # type: ignore[method-assign]

    def watch(self) -> tuple[list[Sequence], bool]:
        seqs, is_prefill = self.schedule()
        if seqs and not is_prefill:
            self.batch_sizes.append(len(seqs))
            if self.scheduler.waiting:
                manager = self.scheduler.block_manager
                self.shares.append(len(manager.used_block_ids) / len(manager.blocks))
        return seqs, is_prefill

    def describe(self) -> str:
        """What was seen since this was called last."""
        text = f"decode batch {statistics.mean(self.batch_sizes or [0]):.0f}"
        if self.shares:
            text += f", cache {100 * statistics.mean(self.shares):.0f} % full while requests wait"
        self.batch_sizes, self.shares = [], []
        return text


def engine_options(args: argparse.Namespace, disabled: Disabled = ()) -> dict[str, Any]:
    """The options of the command line that an engine takes."""
    everything = ALL in (disabled, *args.disable)
    return {
        "load_format": "auto" if args.compare or args.model else "dummy",
        "max_model_len": args.max_model_len,
        "max_num_seqs": args.max_num_seqs,
        "num_kvcache_blocks": args.num_kvcache_blocks,
        "kvcache_block_size": args.block_size,
        "enforce_eager": args.enforce_eager,
        "disabled_optimizations": ALL if everything else (*args.disable, *disabled),
        "attention_backend": args.attention_backend,
        "quantization": args.quantization,
        "tensor_parallel_size": args.tensor_parallel_size,
        "device": args.device,
        "dtype": args.dtype,
    }


def make_llm(model: str, args: argparse.Namespace, disabled_optimizations: Disabled = ()) -> LLM:
    """An engine with the options of the command line."""
    return LLM(model, **engine_options(args, disabled_optimizations))


class Engine:
    """nanovllm on a workload."""

    name = "nanovllm"

    def __init__(
        self, model: str, args: argparse.Namespace, disabled: Disabled = (), is_compiled: bool = False
    ) -> None:
        self.llm = make_llm(model, args, disabled)
        if is_compiled:
            compile_layers(self.llm)
        self.pool = PoolWatch(self.llm.scheduler)

    def run(self, work: Workload) -> Result:
        scheduler = self.llm.scheduler
        before = scheduler.num_prefill_tokens, scheduler.num_preemptions
        params = [
            SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=n, stop_token_ids=work.stop_token_ids)
            for n in work.output_lens
        ]
        start = time.perf_counter()
        outputs = self.llm.generate(work.prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        num_prefill_tokens = scheduler.num_prefill_tokens - before[0]
        num_preemptions = scheduler.num_preemptions - before[1]
        note = f"{num_prefill_tokens} prefill tokens computed, {num_preemptions} preemptions, {self.pool.describe()}"
        return Result(seconds, [len(output["token_ids"]) for output in outputs], note, num_prefill_tokens)


class HuggingFace:
    """transformers' `generate` on one left-padded batch: all requests run as long as the longest."""

    name = "transformers generate"

    def __init__(self, model: str, args: argparse.Namespace) -> None:
        self.device = (
            "cuda" if args.device == "auto" and torch.cuda.is_available() else args.device.replace("auto", "cpu")
        )
        dtype = torch.float32 if self.device == "cpu" else torch.bfloat16
        self.model = Qwen3ForCausalLM.from_pretrained(model, torch_dtype=dtype).to(self.device).eval()
        self.model.generation_config.pad_token_id = 0

    @torch.inference_mode()
    def run(self, work: Workload) -> Result:
        start = time.perf_counter()
        width = max(map(len, work.prompts))
        input_ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in work.prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in work.prompts])
        self.model.generate(
            input_ids.to(self.device),
            attention_mask=mask.to(self.device),
            max_new_tokens=max(work.output_lens),
            min_new_tokens=max(work.output_lens),
            do_sample=True,
            temperature=0.6,
            top_k=0,
        )
        if self.device == "cuda":
            torch.cuda.synchronize()
        # Tokens beyond what a request asked for are padding, not work done.
        return Result(time.perf_counter() - start, work.output_lens)


def make_workload(args: argparse.Namespace, vocab_size: int) -> Workload:
    """Random token ids: nothing is shared but what was asked for, so the prefix cache can help with nothing else."""
    random = Random(args.seed)
    max_token_id = min(10000, vocab_size - 1)  # as in the benchmark that peers use, so that the lengths are the same
    prompts = [
        [random.randint(0, max_token_id) for _ in range(random.randint(*args.input_len))]
        for _ in range(args.num_requests)
    ]
    output_lens = [random.randint(*args.output_len) for _ in prompts]
    prompts = [prompts[0][: args.shared_len] + prompt[args.shared_len :] for prompt in prompts]
    # With random weights every token is about as likely as every other.
    stop_token_ids = random.sample(range(vocab_size), vocab_size // args.mean_stop) if args.mean_stop else []
    return Workload(prompts, output_lens, stop_token_ids)


def make_model(args: argparse.Namespace, directory: str) -> str:
    """Model directory: the one asked for, or one of the benchmark's shape; with random weights if a peer needs them."""
    if args.model:
        return args.model
    shape = {"tie_word_embeddings": True, "rope_theta": 1e6, "architectures": ["Qwen3ForCausalLM"]} | SHAPES[args.shape]
    hf_config = Qwen3Config(**shape)
    if args.compare:
        torch.manual_seed(args.seed)
        dtype = torch.float32 if args.device == "cpu" or not torch.cuda.is_available() else torch.bfloat16
        Qwen3ForCausalLM(hf_config).to(dtype).save_pretrained(directory)
    else:
        hf_config.save_pretrained(directory)
    return directory


# The gain of each lever.

# A lever is measured on these workloads, unless it says something else here.
LEVER_WORKLOADS: dict[str, tuple[str, ...]] = {"expected_length": ("small-pool", "early-stop")}
MOST_LEVERS = ("default", "batch-1")
WARM_UP_TOKENS = 8
MUCH_SLOWER = 2.0  # an engine that takes so many times as long as the fastest is run only once
MOST_REQUESTS = 512  # of a workload, so that it all takes minutes
ROOM = 1.05  # size of the cache, where it should not matter: so much more than all requests take at once


@dataclass(frozen=True)
class Setup:
    """What makes an engine differ from the others that are measured.

    Args:
        disabled: levers that are off.
        pool: the workload that the cache is sized for.
        is_compiled: whether torch compiles its layers.
    """

    disabled: Disabled
    pool: str
    is_compiled: bool = False


@dataclass(frozen=True)
class Comparison:
    """A lever on and off, or all of them. Levers that build on it are off both times."""

    lever: str

    @property
    def workloads(self) -> tuple[str, ...]:
        return LEVER_WORKLOADS.get(self.lever, MOST_LEVERS)

    def setup(self, workload: str, is_on: bool) -> Setup:
        others = () if self.lever == ALL else dependents(self.lever)
        disabled = others if is_on else ALL if self.lever == ALL else (self.lever, *others)
        return Setup(disabled, next(other for other in WORKLOADS if pool_of(other) == pool_of(workload)))

    @property
    def tasks(self) -> list[tuple[Setup, str]]:
        """The engines that are needed, each with a workload."""
        return [(self.setup(workload, is_on), workload) for workload in self.workloads for is_on in (True, False)]


def pool_of(workload: str) -> tuple[int | None, ...]:
    """The size of a workload's cache, on a GPU and on a CPU."""
    return tuple(size.get("num_kvcache_blocks") for size in WORKLOADS[workload])


def pack(comparisons: list[Comparison], size: int) -> list[list[Comparison]]:
    """Put comparisons together that use the same engines, and no more than `size` of them in all."""
    packs: list[list[Comparison]] = []
    for comparison in comparisons:
        for others in packs:
            if len({setup for other in (*others, comparison) for setup, _ in other.tasks}) <= size:
                others.append(comparison)
                break
        else:
            packs.append([comparison])
    return packs


class EngineProcess:
    """An engine in a process of its own, which loads its libraries at once, and takes memory only after `start`.

    Args:
        args: with the size of the cache filled in.
        disabled, is_compiled: see `Setup`.
    """

    def __init__(self, model: str, args: argparse.Namespace, disabled: Disabled, is_compiled: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other_end = context.Pipe()
        self.process = context.Process(target=self.serve, args=(other_end, model, args, disabled, is_compiled))
        self.process.start()
        other_end.close()

    @staticmethod
    def serve(connection: Any, model: str, args: argparse.Namespace, disabled: Disabled, is_compiled: bool) -> None:
        if connection.recv() is None:
            return
        engine = Engine(model, args, disabled, is_compiled)
        connection.send("ready")
        while (work := connection.recv()) is not None:
            connection.send(engine.run(work))
        engine.llm.exit()

    def ask(self, message: Any) -> Any:
        """Send something, and wait for the answer."""
        try:
            self.connection.send(message)
            return self.connection.recv()
        except (EOFError, OSError):
            raise RuntimeError("an engine's process has ended; what it printed above says why") from None

    def start(self) -> None:
        self.ask("start")

    def run(self, work: Workload) -> Result:
        return self.ask(work)

    def close(self) -> None:
        with suppress(OSError):  # it has ended already
            self.connection.send(None)
        self.process.join(60)
        self.process.kill()


def prepare(
    model: str, args: argparse.Namespace, workloads: tuple[str, ...]
) -> tuple[dict[str, argparse.Namespace], dict[str, Workload], Config, dict[str, Any]]:
    """Sizes and requests of some workloads, "default" among them; the engine's config; and where this is measured."""
    sizes = {workload: with_sizes(args, workload) for workload in workloads}
    config = Config(model, **engine_options(sizes["default"]))
    vocab_size = config.hf_config.vocab_size
    for size in sizes.values():
        size.num_requests = min(size.num_requests, MOST_REQUESTS)
    works = {workload: make_workload(size, vocab_size) for workload, size in sizes.items()}
    if sizes["default"].num_kvcache_blocks == -1:
        sizes["default"].num_kvcache_blocks = int(ROOM * works["default"].num_blocks(sizes["default"].block_size)) + 1
    head = describe_machine(config, args) | {
        "runs": args.runs,
        "workloads": {workload: {n: getattr(size, n) for n in SIZES} for workload, size in sizes.items()},
    }
    return sizes, works, config, head


def measure_levers(model: str, args: argparse.Namespace, path: Path) -> None:
    """Measure what each lever gains, and write it to `path` after every pack, so that nothing is lost."""
    sizes, works, config, head = prepare(model, args, (*MOST_LEVERS, *sum(LEVER_WORKLOADS.values(), ())))
    vocab_size = config.hf_config.vocab_size
    names = [name for name in LEVERS if is_enabled(config, name)]
    packs = pack([*map(Comparison, names), Comparison(ALL)], args.side_by_side)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        processes = []
        for comparisons in packs:
            setups = dict.fromkeys(setup for comparison in comparisons for setup, _ in comparison.tasks)
            processes.append({setup: EngineProcess(model, sizes[setup.pool], setup.disabled) for setup in setups})
            for process in processes[-1].values():
                stack.callback(process.close)
        for comparisons, engines in zip(packs, processes, strict=True):
            for engine in engines.values():  # one after another: each looks how much memory there is
                engine.start()
            tasks = dict.fromkeys(task for comparison in comparisons for task in comparison.tasks)
            rates = run_in_turn(list(tasks), engines, works, vocab_size, args.runs)
            for engine in engines.values():
                engine.close()
            for comparison, workload in ((c, workload) for c in comparisons for workload in c.workloads):
                fast, slow = (rates[comparison.setup(workload, is_on), workload] for is_on in (True, False))
                rows.append({"lever": comparison.lever, "workload": workload, "with": fast, "without": slow})
            rows.sort(key=lambda row: [*LEVERS, ALL].index(row["lever"]))
            save_measurement(head | {"rows": rows}, path)


def run_in_turn(
    tasks: list[tuple[Setup, str]],
    engines: dict[Setup, EngineProcess],
    works: dict[str, Workload],
    vocab_size: int,
    runs: int,
    much_slower: float = MUCH_SLOWER,
) -> dict[tuple[Setup, str], list[float]]:
    """Run each task several times; returns the tokens a second of its runs."""
    rates: dict[tuple[Setup, str], list[float]] = {task: [] for task in tasks}
    for setup, workload in tasks:
        engines[setup].run(works[workload].shortened(WARM_UP_TOKENS))
    for _ in range(runs):
        works.update({workload: work.with_other_tokens(vocab_size) for workload, work in works.items()})
        for task in tasks:
            setup, workload = task
            fastest = max(max(found, default=0.0) for (_, other), found in rates.items() if other == workload)
            if rates[task] and much_slower * rates[task][0] < fastest:
                continue
            result = engines[setup].run(works[workload])
            rates[task].append(round(result.rate, 1))
            compiled = ", compiled" * setup.is_compiled
            print(f"{workload:12} {result.rate:10,.0f} tok/s  off: {setup.disabled or 'none'}{compiled}", flush=True)
    return rates


COMPILE_SETUPS = {
    "plain": Setup(ALL, "default"),
    "compiled": Setup(ALL, "default", is_compiled=True),
    "levers": Setup((), "default"),
}


def measure_compile(model: str, args: argparse.Namespace, path: Path) -> None:
    """Measure what torch's compiler gains on the plain layers, beside the levers, and write it to `path`.

    The first run of each engine on each work is not counted; in it the compiler compiles. It is a short one, so its
    seconds are those of compiling, nearly.
    """
    sizes, works, config, head = prepare(model, args, MOST_LEVERS)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        engines = {
            setup: EngineProcess(model, sizes["default"], setup.disabled, setup.is_compiled)
            for setup in COMPILE_SETUPS.values()
        }
        first_seconds = {}
        for process in engines.values():
            stack.callback(process.close)
            process.start()
        for setup, process in engines.items():
            for workload in MOST_LEVERS:
                result = process.run(works[workload].shortened(WARM_UP_TOKENS))
                first_seconds[setup, workload] = round(result.seconds, 2)
        tasks = list(first_seconds)
        rates = run_in_turn(tasks, engines, works, config.hf_config.vocab_size, args.runs, math.inf)
        for workload in MOST_LEVERS:
            for name, setup in COMPILE_SETUPS.items():
                row = {"engine": name, "workload": workload, "tokens_per_second": rates[setup, workload]}
                rows.append(row | {"first_run_seconds": first_seconds[setup, workload]})
    save_measurement(head | {"rows": rows}, path)


async def ask_server(port: int, body: dict[str, Any], patience: float = math.inf) -> tuple[bytes, float]:
    """The response of a server on this machine, in the plainest way, and the seconds until its first event.

    Who has little patience hangs up when that many bytes have come.
    """
    start, first, response = time.perf_counter(), math.nan, b""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Type: application/json"
    writer.write(f"{head}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    try:
        while len(response) < patience and (new := await reader.read(65536)):
            if math.isnan(first) and b"data: " in new:
                first = time.perf_counter() - start
            response += new
    finally:
        writer.close()
    return response, first


def ask_all(port: int, bodies: list[dict[str, Any]]) -> list[bytes]:
    """The responses to requests that are sent at once."""

    async def ask_at_once() -> list[tuple[bytes, float]]:
        return await asyncio.gather(*[ask_server(port, body) for body in bodies])

    return [response for response, _ in asyncio.run(ask_at_once())]


def measure_serving(args: argparse.Namespace) -> None:
    """Print what serving costs beside `generate` on the same work, in turn: wall time, and this process' CPU time."""
    from nanovllm.serve.server import Server  # needs the extra `serve`

    sizes = {"model": args.model or "qwen3-tiny", "num_requests": args.num_requests or 64}
    args = argparse.Namespace(**vars(with_sizes(args, args.workload)) | sizes)
    with (
        make_llm(args.model, args) as llm,
        Server(llm) as server,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as client,
    ):
        port = server.socket.getsockname()[1]
        work = make_workload(args, llm.config.hf_config.vocab_size)
        print(
            f"{args.model}, {llm.config.device}, {len(work.prompts)} requests at once, {sum(work.output_lens)} tokens"
        )

        def generate(stream: bool) -> None:
            params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=n) for n in work.output_lens]
            llm.generate(work.prompts, params, use_tqdm=False)

        def serve(stream: bool) -> None:
            same = {"temperature": 0, "ignore_eos": True, "stream": stream}
            pairs = zip(work.prompts, work.output_lens, strict=True)
            bodies = [same | {"prompt": prompt, "max_tokens": n} for prompt, n in pairs]
            for response in client.submit(ask_all, port, bodies).result():
                assert b" 200 OK" in response, response[:500]

        ways = {"generate": (generate, False), "served whole": (serve, False), "served as streams": (serve, True)}
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(args.runs + 1):
            for name, (way, stream) in ways.items():
                work = work.with_other_tokens(llm.config.hf_config.vocab_size)
                start = time.perf_counter(), time.process_time()
                way(stream)
                seconds[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    print(f"medians of {args.runs} runs in turn; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, runs in seconds.items():
        pairs = zip(runs[1:], seconds["generate"][1:], strict=True)
        ratios = [(wall / other_wall, cpu / other_cpu) for (wall, cpu), (other_wall, other_cpu) in pairs]
        wall, cpu = (statistics.median(each) for each in zip(*runs[1:], strict=True))
        more_wall, more_cpu = (statistics.median(each) - 1 for each in zip(*ratios, strict=True))
        rate = f"{sum(work.output_lens) / wall:7,.0f} tok/s"
        print(f"{name:18} {rate}, wall {wall:6.2f} s ({more_wall:+.1%}), CPU {cpu:6.2f} s ({more_cpu:+.1%})")


def describe_machine(config: Config, args: argparse.Namespace) -> dict[str, Any]:
    """Provenance of a measurement, and how fast the machine copies."""
    name = args.model or f"{args.shape} shape, random weights"
    copy_speed = copy_gb_per_s(config.device)
    if config.device == "cuda":
        torch.cuda.empty_cache()
    return provenance(SimpleNamespace(config=config), name) | {  # type: ignore[arg-type]
        "cpu": f"{cpu_name()}, {torch.get_num_threads()} threads",
        "copy_gb_per_s": copy_speed,
    }


def copy_gb_per_s(device: str) -> float:
    """How fast the machine copies, as it stands beside a measurement."""
    return round(Roofline.measure_copy(device) / 1e9, 1)


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Other programs that want a core each, as on a laptop."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def parse_args() -> argparse.Namespace:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", choices=["hf"], help="run this peer on the same work, in turn with the engine")
    parser.add_argument("--model", help="a directory, hub id or bundled name instead of a shape with random weights")
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b" if on_gpu else "qwen3-27m")
    parser.add_argument("--workload", choices=list(WORKLOADS), default="default", help="see above")
    size = parser.add_argument_group("size of the work, where it should differ from the workload's")
    size.add_argument("--num-requests", type=int)
    size.add_argument("--input-len", type=int, nargs=2, metavar=("MIN", "MAX"), help="tokens of a prompt")
    size.add_argument("--output-len", type=int, nargs=2, metavar=("MIN", "MAX"), help="tokens of an answer, at most")
    size.add_argument("--shared-len", type=int, help="tokens that all prompts begin with")
    size.add_argument("--mean-stop", type=int, help="answers end after so many tokens on average; 0: never early")
    size.add_argument("--num-kvcache-blocks", type=int, help="a small pool makes memory pressure; -1: what fits")
    size.add_argument("--block-size", type=int, help="tokens of a block of the cache")
    parser.add_argument("--runs", type=int, default=3, help="timed runs, after one that warms up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--attention-backend", default="auto")
    parser.add_argument("--quantization", choices=list(QUANTIZATIONS), help="how weights are made smaller")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs to split the model over")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--max-num-seqs", type=int, default=512)
    parser.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs")
    parser.add_argument(
        "--disable",
        choices=[*LEVERS, ALL],
        action="append",
        default=[],
        help="a lever to leave out (can be repeated)",
    )
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="run everything once more beside N programs that never wait"
    )
    parser.add_argument("--levers", type=Path, metavar="FILE", help="instead: measure what each lever gains")
    parser.add_argument(
        "--measure-compile", type=Path, metavar="FILE", help="instead: measure what torch's compiler gains beside them"
    )
    parser.add_argument(
        "--side-by-side", type=int, default=4, metavar="N", help="engines in memory at a time while levers are measured"
    )
    parser.add_argument(
        "--levers-table",
        action="store_true",
        help="instead: print the table of levers that follows from code and measurements",
    )
    parser.add_argument("--serve", action="store_true", help="instead: measure what serving over HTTP costs")
    parser.add_argument(
        "--measure-steps", type=Path, metavar="FILE", help="instead: time decode steps with and without CUDA graphs"
    )
    parser.add_argument(
        "--context-lens", type=int, nargs="+", default=[512], metavar="N", help="tokens of the sequences in these steps"
    )
    args = parser.parse_args()
    sized = with_sizes(args, args.workload)
    for name in ("input_len", "output_len"):
        low, high = getattr(sized, name)
        if not 1 <= low <= high:
            parser.error(f"--{name.replace('_', '-')} {low} {high}: needs 1 <= MIN <= MAX")
    if sized.num_requests < 1 or args.runs < 1:
        parser.error("--num-requests and --runs must be at least 1")
    if args.compare and sized.mean_stop:
        parser.error("--compare needs answers of known length; leave out --mean-stop")
    return args


def with_sizes(args: argparse.Namespace, workload: str) -> argparse.Namespace:
    """The options with the size of a workload filled in, where the command line gives no other."""
    on_gpu = torch.cuda.is_available() and args.device != "cpu"
    chosen = UNLESS_SAID | WORKLOADS[workload][0 if on_gpu else 1]
    asked = {name: value for name in chosen if (value := getattr(args, name)) is not None}
    return argparse.Namespace(**vars(args) | chosen | asked)


def main() -> None:
    args = parse_args()
    transformers_logging.disable_progress_bar()
    if args.levers_table:
        print(levers_markdown(load_measurements()))
        return
    if args.serve:
        measure_serving(args)
        return
    with tempfile.TemporaryDirectory() as directory:
        model = make_model(args, directory)
        if args.levers:
            measure_levers(model, args, args.levers)
            return
        if args.measure_compile:
            measure_compile(model, args, args.measure_compile)
            return
        args = with_sizes(args, args.workload)
        if args.measure_steps:
            name = args.model or f"{args.shape} shape, random weights"
            measured = measure_steps(partial(make_llm, model, args), name, context_lens=tuple(args.context_lens))
            save_measurement({"copy_gb_per_s": copy_gb_per_s("cuda")} | measured, args.measure_steps)
            return
        engines: list[Engine | HuggingFace] = [Engine(model, args)]
        if args.compare == "hf":
            engines.append(HuggingFace(model, args))
    config = engines[0].llm.config
    work = make_workload(args, config.hf_config.vocab_size)
    print(
        f"{Path(model).name if args.model else args.shape}, {config.tensor_parallel_size} x {config.device}, "
        f"{config.dtype}, "
        f"attention {config.attention_backend}, {config.num_kvcache_blocks} blocks of {config.kvcache_block_size}, "
        f"{torch.get_num_threads()} threads\n"
        f"{len(work.prompts)} requests, {sum(map(len, work.prompts))} prompt tokens, "
        f"{'up to ' if args.mean_stop else ''}{sum(work.output_lens)} output tokens"
    )
    roofline = Roofline(config)
    print(
        f"this machine: copies {roofline.bytes_per_second / 1e9:,.0f} GB/s, "
        f"multiplies {roofline.flops_per_second / 1e12:,.1f} TFLOP/s"
    )
    compare(engines, work, roofline, args)
    if args.busy:
        print(f"beside {args.busy} busy programs")
        with busy_programs(args.busy):
            compare(engines, work, roofline, args)


def compare(engines: list[Any], work: Workload, roofline: Roofline, args: argparse.Namespace) -> None:
    """Run the work on each engine in turn, several times, and print how fast it was."""
    results: dict[str, list[Result]] = {engine.name: [] for engine in engines}
    for run in range(args.runs + 1):
        work = work.with_other_tokens(engines[0].llm.config.hf_config.vocab_size)
        for engine in engines:
            result = engine.run(work)
            label = f"run {run}" if run else "warm-up"
            if isinstance(engine, Engine):
                share = roofline.seconds(list(map(len, work.prompts)), result) / result.seconds
                result.note = f"{share:.0%} of the roofline, {result.note}"
            print(
                f"{label:8} {engine.name:22} {result.num_tokens} tokens in {result.seconds:.2f} s = "
                f"{result.rate:,.0f} tok/s  {result.note}"
            )
            if run:
                results[engine.name].append(result)
    medians = {name: statistics.median(result.rate for result in runs) for name, runs in results.items()}
    for name, median in medians.items():
        print(f"median   {name:22} {median:,.0f} tok/s")
    if args.compare:
        ratio = medians[Engine.name] / medians[HuggingFace.name]
        print(f"ratio    {ratio:.2f} (median of {args.runs} runs each, warm, in turn)")


if __name__ == "__main__":
    main()
