"""Train qwen3-tiny from nothing: tokenizer, data and weights, in one command.

    python -m training.train --out nanovllm/assets/qwen3-tiny

The data are made by worker processes while the GPU trains, every row is seen once, and the order depends on the
seed alone. AdamW with a warm-up, a constant rate and a linear decay to zero; bf16 arithmetic, fp32 weights.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from .dataset import END, IM_END, Stream
from .tokenizer import VOCAB_SIZE, save_tokenizer, train_tokenizer


@dataclass(frozen=True)
class Architecture:
    """The sizes of the model, in the words of Qwen3's config."""

    vocab_size: int = VOCAB_SIZE
    hidden_size: int = 256
    intermediate_size: int = 896
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0


def build_model(arch: Architecture) -> Qwen3ForCausalLM:
    """A randomly initialized Qwen3 of this size with tied embeddings, in float32."""
    sizes = asdict(arch)
    theta = sizes.pop("rope_theta")
    config = Qwen3Config(**sizes, tie_word_embeddings=True, rope_theta=theta, attn_implementation="sdpa")
    if getattr(config, "rope_parameters", None) is not None:  # transformers 5 keeps theta here
        config.rope_parameters["rope_theta"] = theta
    model = Qwen3ForCausalLM(config)
    for layer in model.model.layers:  # residual branches start small, so depth does not widen the stream
        for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
            linear.weight.data.mul_((2 * arch.num_hidden_layers) ** -0.5)
    return model


def export(model: Qwen3ForCausalLM, arch: Architecture, tokenizer: Tokenizer, out: Path) -> None:
    """Write bf16 safetensors and the configs in the form that transformers 4.51 and 5.x both read right.

    Raises ValueError if the weights file exceeds 16 MB.
    """
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }
    save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})
    if (out / "model.safetensors").stat().st_size > 16_000_000:
        raise ValueError("the weights file exceeds 16 MB")
    im_end, end = tokenizer.token_to_id(IM_END), tokenizer.token_to_id(END)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": end,
        "eos_token_id": im_end,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "model_type": "qwen3",
        "max_window_layers": arch.num_hidden_layers,
        "rms_norm_eps": model.config.rms_norm_eps,
        "rope_scaling": None,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        **asdict(arch),
    }
    generation = {
        "bos_token_id": end,
        "do_sample": True,
        "eos_token_id": [im_end, end],
        "pad_token_id": end,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (out / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    save_tokenizer(tokenizer, out, arch.max_position_embeddings)


def prefetch(stream: Stream, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of the stream on the device, made ready by a thread of their own."""
    ready: queue.Queue = queue.Queue(maxsize=16)
    stop = threading.Event()

    def put(item: object) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def run() -> None:
        batches = iter(stream)
        try:
            for pair in batches:
                pair = tuple(torch.from_numpy(array) for array in pair)
                if device.type == "cuda":
                    pair = tuple(tensor.pin_memory() for tensor in pair)
                if not put(pair):
                    break
        except BaseException as error:  # shown to the training loop, which raises it
            put(error)
        finally:
            batches.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield tuple(tensor.to(device, non_blocking=True) for tensor in item)
    finally:
        stop.set()
        thread.join()


def rate(progress: float, warmup: float = 0.02, decay: float = 0.5) -> float:
    """The learning rate as a fraction of its peak: up over `warmup`, flat, then down to zero over `decay`."""
    return min(1.0, progress / warmup, max(0.0, (1 - progress) / decay))


def train(args: argparse.Namespace, arch: Architecture) -> dict:
    """Train, export and return the numbers of the run."""
    begin = time.perf_counter()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = train_tokenizer(args.seed, args.tokenizer_documents)
    save_tokenizer(tokenizer, args.out, arch.max_position_embeddings)
    print(f"tokenizer {tokenizer.get_vocab_size()} tokens, {time.perf_counter() - begin:.1f} s", flush=True)

    model = build_model(arch).to(device)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.95),
        fused=device.type == "cuda",
    )

    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # A mapping of masks is used as it is; None selects causal attention without a mask tensor.
        hidden = model.model(input_ids=inputs, attention_mask={"full_attention": None}, use_cache=False)
        logits = model.lm_head(hidden.last_hidden_state)
        return F.cross_entropy(logits.float().view(-1, arch.vocab_size), targets.reshape(-1), ignore_index=-100)

    step_loss = torch.compile(loss_of) if args.compile else loss_of
    stream = Stream(args.out / "tokenizer.json", args.seed, args.length, args.rows, args.workers, args.shard_size)
    per_step = args.rows * args.length
    step, start, losses = 0, time.perf_counter(), []
    for inputs, targets in prefetch(stream, device):
        elapsed = (time.perf_counter() - start) / 60
        progress = max(step * per_step / args.tokens, elapsed / args.minutes if args.minutes else 0.0)
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate(progress)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = step_loss(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % args.log_every == 0 or step == 1:
            losses.append((step, round(loss.item(), 4)))
            seconds = time.perf_counter() - start
            print(
                f"step {step} progress {progress:.3f} loss {losses[-1][1]:.4f} "
                f"{step * per_step / seconds / 1e6:.3f}M tok/s documents {stream.documents} "
                f"duplicates {stream.duplicates} {seconds:.0f} s",
                flush=True,
            )
    export(model, arch, tokenizer, args.out)
    args.stories.parent.mkdir(parents=True, exist_ok=True)
    np.save(args.stories, np.fromiter(stream.story_hashes, dtype=np.uint64))
    numbers = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": step,
        "tokens": step * per_step,
        "documents": stream.documents,
        "duplicates_dropped": stream.duplicates,
        "stories": len(stream.story_hashes),
        "minutes": round((time.perf_counter() - begin) / 60, 2),
        "final_loss": losses[-1][1] if losses else None,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "workers": args.workers,
        "seed": args.seed,
        "rows": args.rows,
        "length": args.length,
        "learning_rate": args.lr,
        "torch": torch.__version__,
        **{f"architecture_{k}": v for k, v in asdict(arch).items()},
    }
    (args.out / "training.json").write_text(json.dumps(numbers, indent=2) + "\n")
    print(json.dumps(numbers), flush=True)
    return numbers


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the trained model")
    parser.add_argument(
        "--stories",
        type=Path,
        default=Path("build/qwen3-tiny-stories.npy"),
        help="where the hashes of all training stories go, for training.evaluate",
    )
    parser.add_argument("--tokens", type=float, default=1.7e9, help="training tokens")
    parser.add_argument("--minutes", type=float, default=0.0, help="end after this time if the tokens take longer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--shard-size", type=int, default=8192, help="documents made by one worker at a time")
    parser.add_argument("--tokenizer-documents", type=int, default=40_000)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    return parser.parse_args(argv)


if __name__ == "__main__":
    train(parse_args(), Architecture())
