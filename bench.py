"""Throughput of the engine on random prompts, and of Hugging Face transformers beside it.

The default work on a GPU is the usual benchmark of small engines: a model of the shape of Qwen3-0.6B with random
weights, 256 requests, prompts and answers of 100 to 1024 tokens, end-of-sequence tokens ignored. On a CPU it is scaled
down: 27 million parameters, 16 requests, prompts of 16 to 200 and answers of 16 to 128 tokens.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from nanovllm import LLM, SamplingParams
from nanovllm.config import OPTIMIZATIONS

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
}


@dataclass
class Workload:
    """Prompts as token ids, and how many tokens to generate for each."""

    prompts: list[list[int]]
    output_lens: list[int]

    @property
    def num_output_tokens(self) -> int:
        return sum(self.output_lens)

    def with_other_tokens(self, vocab_size: int) -> "Workload":
        """The same lengths with different tokens, so that a run finds nothing of the one before in the prefix cache."""
        return Workload([[(t + 1) % vocab_size for t in prompt] for prompt in self.prompts], self.output_lens)


@dataclass
class Result:
    """One timed run."""

    seconds: float
    num_tokens: int
    note: str = ""

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds


class Engine:
    """nanovllm on a workload."""

    name = "nanovllm"

    def __init__(self, model: str, args: argparse.Namespace) -> None:
        self.llm = LLM(
            model,
            load_format="auto" if args.compare or args.model else "dummy",
            max_model_len=args.max_model_len,
            max_num_seqs=args.max_num_seqs,
            num_kvcache_blocks=args.num_kvcache_blocks,
            kvcache_block_size=args.block_size,
            enforce_eager=args.enforce_eager,
            disabled_optimizations=tuple(args.disable),
            attention_backend=args.attention_backend,
            device=args.device,
            dtype=args.dtype,
        )

    def run(self, work: Workload) -> Result:
        scheduler = self.llm.scheduler
        before = scheduler.num_prefill_tokens, scheduler.num_preemptions
        params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=n) for n in work.output_lens]
        start = time.perf_counter()
        outputs = self.llm.generate(work.prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        num_prefill_tokens = scheduler.num_prefill_tokens - before[0]
        num_preemptions = scheduler.num_preemptions - before[1]
        note = f"{num_prefill_tokens} prefill tokens computed, {num_preemptions} preemptions"
        return Result(seconds, sum(len(output["token_ids"]) for output in outputs), note)


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
        return Result(time.perf_counter() - start, work.num_output_tokens)


def make_workload(args: argparse.Namespace, vocab_size: int) -> Workload:
    """Random token ids: nothing is shared, so the prefix cache cannot help."""
    random = Random(args.seed)
    max_token_id = min(10000, vocab_size - 1)  # as in the benchmark that peers use, so that the lengths are the same
    prompts = [
        [random.randint(0, max_token_id) for _ in range(random.randint(args.min_input_len, args.max_input_len))]
        for _ in range(args.num_requests)
    ]
    return Workload(prompts, [random.randint(args.min_output_len, args.max_output_len) for _ in prompts])


def make_model(args: argparse.Namespace, directory: str) -> str:
    """Model directory: the one asked for, or one of the benchmark's shape; with random weights if a peer needs them."""
    if args.model:
        return args.model
    hf_config = Qwen3Config(
        **SHAPES[args.shape], tie_word_embeddings=True, rope_theta=1e6, architectures=["Qwen3ForCausalLM"]
    )
    if args.compare:
        torch.manual_seed(args.seed)
        dtype = torch.float32 if args.device == "cpu" or not torch.cuda.is_available() else torch.bfloat16
        Qwen3ForCausalLM(hf_config).to(dtype).save_pretrained(directory)
    else:
        hf_config.save_pretrained(directory)
    return directory


def parse_args() -> argparse.Namespace:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--compare", choices=["hf"], help="run this peer on the same work, in turn with the engine")
    parser.add_argument("--model", help="a directory, hub id or bundled name instead of a shape with random weights")
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen3-0.6b" if on_gpu else "qwen3-27m")
    parser.add_argument("--num-requests", type=int, default=256 if on_gpu else 16)
    parser.add_argument("--min-input-len", type=int, default=100 if on_gpu else 16)
    parser.add_argument("--max-input-len", type=int, default=1024 if on_gpu else 200)
    parser.add_argument("--min-output-len", type=int, default=100 if on_gpu else 16)
    parser.add_argument("--max-output-len", type=int, default=1024 if on_gpu else 128)
    parser.add_argument("--runs", type=int, default=3, help="timed runs, after one that warms up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--attention-backend", default="auto")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--max-num-seqs", type=int, default=512)
    parser.add_argument("--block-size", type=int, default=256)
    parser.add_argument("--num-kvcache-blocks", type=int, default=-1, help="a small pool makes memory pressure")
    parser.add_argument("--enforce-eager", action="store_true", help="no CUDA graphs")
    parser.add_argument(
        "--disable",
        choices=OPTIMIZATIONS,
        action="append",
        default=[],
        help="a faster path not to take (can be repeated)",
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        model = make_model(args, directory)
        engines: list[Engine | HuggingFace] = [Engine(model, args)]
        if args.compare == "hf":
            engines.append(HuggingFace(model, args))
    config = engines[0].llm.config
    work = make_workload(args, config.hf_config.vocab_size)
    print(
        f"{Path(model).name if args.model else args.shape}, {config.device}, {config.dtype}, "
        f"attention {config.attention_backend}, {config.num_kvcache_blocks} blocks of {config.kvcache_block_size}, "
        f"{torch.get_num_threads()} threads\n"
        f"{len(work.prompts)} requests, {sum(map(len, work.prompts))} prompt tokens, "
        f"{work.num_output_tokens} output tokens"
    )
    results: dict[str, list[Result]] = {engine.name: [] for engine in engines}
    for run in range(args.runs + 1):
        work = work.with_other_tokens(config.hf_config.vocab_size)
        for engine in engines:
            result = engine.run(work)
            label = f"run {run}" if run else "warm-up"
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
