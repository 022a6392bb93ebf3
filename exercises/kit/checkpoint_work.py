"""Checkpoints for chapter 16: some that do not fit the model, and one of the same weights in another spelling.

The open exercise streams that one under our names, and what is measured is how many bytes it holds at one time.
"""

import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .manifest import BUNDLED_MODEL

# How a safetensors file calls what torch calls otherwise.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
}
BAR, GOOD = 2_000_000, 1_100_000  # bytes that may be held at one time; what a good answer needs
LAYER = "model.layers."


def bundled() -> dict[str, Tensor]:
    """The tensors of qwen3-tiny, by name."""
    return load_file(BUNDLED_MODEL / "model.safetensors")


@contextmanager
def model_folder(change: Callable[[dict[str, Tensor]], Any]) -> Iterator[Path]:
    """A copy of qwen3-tiny in a folder of its own, whose tensors `change` has changed."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary, "qwen3-tiny")
        shutil.copytree(BUNDLED_MODEL, folder)
        weights = bundled()
        change(weights)
        save_file({name: tensor.contiguous().clone() for name, tensor in weights.items()}, folder / "model.safetensors")
        yield folder


def exchanged(weights: dict[str, Tensor], layer: int, one: str, other: str) -> None:
    """Two tensors of a layer change places."""
    first, second = (f"{LAYER}{layer}.{part}.weight" for part in (one, other))
    weights[first], weights[second] = weights[second], weights[first]


def loss(llm: Any, token_ids: list[int]) -> float:
    """How badly the model of an engine guesses each token of a text from those before it; 0 is the best."""
    runner = llm.llm_engine.model_runner
    its_own = sys.modules[type(runner).__module__]  # the engine may be somebody's, with a context of its own
    model, ends = runner.model, torch.tensor([0, len(token_ids)], dtype=torch.int32)
    tokens = torch.tensor(token_ids)
    its_own.set_context(is_prefill=True, cu_seqlens_q=ends, cu_seqlens_k=ends)
    try:
        with torch.inference_mode():
            hidden_states = model(tokens, torch.arange(len(token_ids)))
    finally:
        its_own.reset_context()
    logits = hidden_states.float() @ model.lm_head.weight.float().T
    return float(torch.nn.functional.cross_entropy(logits[:-1], tokens[1:]))


def fill(llm: Any, weights: Iterable[tuple[str, Tensor]], engine: Any) -> tuple[set[Any], list[str]]:
    """Give the model of an engine other weights, as the `load_weights` of `engine` does it.

    Returns:
        what is missing and what is unknown.
    """
    model = llm.llm_engine.model_runner.model
    params = dict(model.named_parameters())
    found: tuple[set[Any], list[str]] = loader_of(engine).load_weights(params, model.packed_modules_mapping, weights)
    return found


def loader_of(engine: Any) -> Any:
    """nanovllm/utils/loader.py of ours, or of somebody's engine."""
    if hasattr(engine, "package"):
        return engine.package.module("utils.loader")
    from nanovllm.utils import loader

    return loader


# The same weights in another spelling.


class StackedCheckpoint:
    """A checkpoint of another family, as large training programs write them: all layers in one tensor.

    Args:
        weights: of a model, under our names.
        num_layers: of the model.

    `whole` has the tensors that are stored as they are: by its name here, our name. `stacked` has the others: by its
    name here, the parts in it, in their order, and the size of each.
    """

    def __init__(self, weights: dict[str, Tensor], num_layers: int) -> None:
        self.num_layers, self.num_bytes_read = num_layers, 0
        self.whole = {"embedding": "model.embed_tokens.weight", "final_norm": "model.norm.weight"}
        if "lm_head.weight" in weights:
            self.whole["head"] = "lm_head.weight"
        parts = {
            "attention_norm": ["input_layernorm"],
            "qkv": [f"self_attn.{name}_proj" for name in "qkv"],
            "query_norm": ["self_attn.q_norm"],
            "key_norm": ["self_attn.k_norm"],
            "out": ["self_attn.o_proj"],
            "mlp_norm": ["post_attention_layernorm"],
            "gate_up": ["mlp.gate_proj", "mlp.up_proj"],
            "down": ["mlp.down_proj"],
        }
        self.stacked = {
            name: {part: len(weights[f"{LAYER}0.{part}.weight"]) for part in inside} for name, inside in parts.items()
        }
        self._tensors = {name: weights[ours] for name, ours in self.whole.items()}
        for name, inside in parts.items():
            layers = [
                torch.cat([weights[f"{LAYER}{layer}.{part}.weight"] for part in inside]).transpose(0, -1)
                for layer in range(num_layers)
            ]
            self._tensors[name] = torch.stack(layers).contiguous()
        self._expected = dict(weights)

    def read(self, name: str, *index: Any) -> Tensor:
        """A copy of one tensor, or of what `tensor[index]` is of it; nothing else is read."""
        tensor = self._tensors[name][index or ...].clone(memory_format=torch.contiguous_format)
        self.num_bytes_read += tensor.nbytes
        return tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def shapes(self) -> dict[str, list[int]]:
        """Shape of every tensor."""
        return {name: list(tensor.shape) for name, tensor in self._tensors.items()}

    def expected(self) -> dict[str, Tensor]:
        """What has to come out: the same weights under our names."""
        return dict(self._expected)


def stacked_checkpoint() -> StackedCheckpoint:
    """qwen3-tiny in that spelling."""
    return StackedCheckpoint(bundled(), num_layers=8)


class Held(TorchDispatchMode):
    """Counts the bytes of all tensors that are made while it is on, as long as they live."""

    def __init__(self, others: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.others = {tensor.untyped_storage().data_ptr() for tensor in others}
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and see what there is afterwards."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.others:
                    reference = StorageWeakRef(storage)
                    self.live[reference.cdata] = (reference, storage.nbytes())
        self.peak = max(self.peak, self.now())
        return result

    def now(self) -> int:
        """Bytes of what lives now."""
        self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
        return sum(nbytes for _, nbytes in self.live.values())


def held_while_streaming(
    stream: Callable[[Any], Iterable[tuple[str, Tensor]]],
    checkpoint: StackedCheckpoint,
    take: Callable[[str, Tensor], Any] = lambda name, tensor: None,
    most: int = 10_000,
) -> tuple[int, list[int]]:
    """Stream a checkpoint, and drop each tensor before the next one is asked for.

    Args:
        take: called with each name and tensor.
        most: so many pairs are taken at the most.

    Returns:
        the most bytes that were held at one time, and those that were held whenever a tensor came.
    """
    held, course = Held(checkpoint._tensors.values()), list[int]()
    with held:
        pairs = iter(stream(checkpoint))
    for _ in range(most):
        with held:
            pair = next(pairs, None)
            course.append(held.now())
        if pair is None:
            break
        take(*pair)
        del pair
    return held.peak, course


def all_at_once(checkpoint: StackedCheckpoint) -> Iterator[tuple[str, Tensor]]:
    """The plain answer: read everything into one dict, then cut it into pieces."""
    tensors = {name: checkpoint.read(name) for name in (*checkpoint.whole, *checkpoint.stacked)}
    for name in tensors:
        yield from pieces(checkpoint, name, tensors[name])


def tensor_by_tensor(checkpoint: StackedCheckpoint) -> Iterator[tuple[str, Tensor]]:
    """Another one: read a tensor of theirs, cut it into pieces, and then read the next."""
    for name in (*checkpoint.whole, *checkpoint.stacked):
        yield from pieces(checkpoint, name, checkpoint.read(name))


def pieces(checkpoint: StackedCheckpoint, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What is in a tensor of theirs, under our names."""
    if name in checkpoint.whole:
        yield checkpoint.whole[name], tensor
        return
    parts = checkpoint.stacked[name]
    for layer in range(checkpoint.num_layers):
        for part, piece in zip(parts, tensor[layer].split(list(parts.values()), -1), strict=True):
            yield f"{LAYER}{layer}.{part}.weight", piece.transpose(0, -1)


def seconds_of_products(
    hidden_size: int, sizes: tuple[int, ...], counts: tuple[int, ...], rounds: int = 31
) -> dict[int, tuple[float, float]]:
    """One product with the packed weight, and one with each of its parts, in turn on this machine.

    Args:
        hidden_size: numbers of a token that go in.
        sizes: numbers that each part makes of them.
        counts: of tokens.

    Returns:
        by count the medians of both, in seconds: packed, apart.
    """
    parts = [torch.randn(size, hidden_size) for size in sizes]
    packed, found = torch.cat(parts), dict[int, tuple[float, float]]()
    for count in counts:
        x, times = torch.randn(count, hidden_size), list[tuple[float, float]]()
        for _ in range(rounds + 3):
            start = time.perf_counter()
            torch.nn.functional.linear(x, packed)
            middle = time.perf_counter()
            for part in parts:
                torch.nn.functional.linear(x, part)
            times.append((middle - start, time.perf_counter() - middle))
        one, three = zip(*times[3:], strict=True)  # the first ones are slow
        found[count] = statistics.median(one), statistics.median(three)
    return found
