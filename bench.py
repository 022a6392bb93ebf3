"""Throughput of the engine on random prompts, against what the machine could do at best, and beside a peer.

The default work on a GPU is the usual benchmark of small engines: a model of the shape of Qwen3-0.6B with random
weights, 256 requests, prompts and answers of 100 to 1024 tokens, end-of-sequence tokens ignored. On a CPU it is scaled
down: 27 million parameters, 16 requests, prompts of 16 to 200 and answers of 16 to 128 tokens. Other kinds of work:

batch-1        one request: what a single user waits for
shared-prefix  all prompts begin with the same tokens, which the prefix cache can save
short-context  short prompts and answers: the weights count, and the work around a step; attention hardly does
small-pool     the default work with a cache that holds few of the requests at once
early-stop     the same small cache; answers may get long, but most end soon, and nobody knows when
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from nanovllm import LLM, SamplingParams
from nanovllm.config import OPTIMIZATIONS, Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.utils.memory import kv_block_bytes
from nanovllm.viz.measure import measure_steps, save_measurement

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


def make_llm(model: str, args: argparse.Namespace, disabled_optimizations: tuple[str, ...] = ()) -> LLM:
    """An engine with the options of the command line."""
    return LLM(
        model,
        load_format="auto" if args.compare or args.model else "dummy",
        max_model_len=args.max_model_len,
        max_num_seqs=args.max_num_seqs,
        num_kvcache_blocks=args.num_kvcache_blocks,
        kvcache_block_size=args.block_size,
        enforce_eager=args.enforce_eager,
        disabled_optimizations=(*args.disable, *disabled_optimizations),
        attention_backend=args.attention_backend,
        tensor_parallel_size=args.tensor_parallel_size,
        device=args.device,
        dtype=args.dtype,
    )


class Engine:
    """nanovllm on a workload."""

    name = "nanovllm"

    def __init__(self, model: str, args: argparse.Namespace) -> None:
        self.llm = make_llm(model, args)
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
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs to split the model over")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--max-num-seqs", type=int, default=512)
    parser.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs")
    parser.add_argument(
        "--disable",
        choices=OPTIMIZATIONS,
        action="append",
        default=[],
        help="a faster path not to take (can be repeated)",
    )
    parser.add_argument(
        "--measure-steps", type=Path, metavar="FILE", help="instead: time decode steps with and without CUDA graphs"
    )
    args = parser.parse_args()
    chosen = {"shared_len": 0, "mean_stop": 0, "num_kvcache_blocks": -1, "block_size": 256}
    chosen |= WORKLOADS[args.workload][0 if on_gpu else 1]
    for name, value in chosen.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    for name in ("input_len", "output_len"):
        low, high = getattr(args, name)
        if not 1 <= low <= high:
            parser.error(f"--{name.replace('_', '-')} {low} {high}: needs 1 <= MIN <= MAX")
    if args.num_requests < 1 or args.runs < 1:
        parser.error("--num-requests and --runs must be at least 1")
    if args.compare and args.mean_stop:
        parser.error("--compare needs answers of known length; leave out --mean-stop")
    return args


def main() -> None:
    args = parse_args()
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        model = make_model(args, directory)
        if args.measure_steps:
            name = args.model or f"{args.shape} shape, random weights"
            save_measurement(measure_steps(partial(make_llm, model, args), name), args.measure_steps)
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
    results: dict[str, list[Result]] = {engine.name: [] for engine in engines}
    for run in range(args.runs + 1):
        work = work.with_other_tokens(config.hf_config.vocab_size)
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
