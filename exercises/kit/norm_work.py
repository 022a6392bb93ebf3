"""The work of chapter 12: how large the numbers of a real model are, and what becomes of it without norms and gates.

qwen3-tiny reads stories; one function of it is exchanged for a while, and nothing else. Its loss says what that does.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nanovllm import LLM
from nanovllm.layers.activation import SiluAndMul
from nanovllm.layers.layernorm import RMSNorm

from .model_work import STORIES, logits_of
from .rope_work import END

NUM_TOKENS = 1024  # of the text whose loss is measured
# Loss of that text: with statistics in float32, and with RMSNorm's formula as it stands, all of it in float16.
IN_FLOAT32, IN_FLOAT16 = 0.375, 2.16
BAR = 0.38  # what is asked for in float16
LARGEST_ERROR = 0.005  # of a number in a row that is scaled to 1

Norm = Callable[[RMSNorm, Tensor], Tensor]
Activation = Callable[[SiluAndMul, Tensor], Tensor]


def in_dtype(norm: RMSNorm, x: Tensor, dtype: torch.dtype) -> Tensor:
    """RMSNorm by its formula, all of it in one dtype; what comes back is float32."""
    narrow = x.to(dtype)
    factor = torch.rsqrt(narrow.square().mean(-1, keepdim=True) + norm.eps)
    return (narrow * factor * norm.weight.to(dtype)).float()


def _of_size(size: Callable[[Tensor], Tensor]) -> Norm:
    return lambda norm, x: x / (size(x) + norm.eps) * norm.weight


def _gated(pass_through: Callable[[Tensor, Tensor], Tensor]) -> Activation:
    return lambda _, x: pass_through(*x.tensor_split(2, dim=-1))


# What is tried in the places of RMSNorm and SiluAndMul.
NORMS: dict[str, Norm | None] = {
    "right": None,
    "no weight": lambda norm, x: in_dtype(RMSNorm(x.shape[-1], norm.eps), x, torch.float32),
    "mean of |x|": _of_size(lambda x: x.abs().mean(-1, keepdim=True)),
    "no root": _of_size(lambda x: x.square().mean(-1, keepdim=True)),
    "the largest number": _of_size(lambda x: x.abs().amax(-1, keepdim=True)),
    "mean over the tokens": _of_size(lambda x: x.square().mean(0, keepdim=True).sqrt()),
}
ACTIVATIONS: dict[str, Activation] = {
    "SiLU": _gated(lambda gate, up: F.silu(gate) * up),
    "ReLU": _gated(lambda gate, up: F.relu(gate) * up),
    "ReLU above 0, SiLU below": _gated(lambda gate, up: torch.where(gate > 0, gate, F.silu(gate)) * up),
    "SiLU above 0, nothing below": _gated(lambda gate, up: F.silu(gate).relu() * up),
    "the sigmoid alone": _gated(lambda gate, up: gate.sigmoid() * up),
    "gate and up exchanged": _gated(lambda gate, up: F.silu(up) * gate),
    "gate times up, no SiLU": _gated(lambda gate, up: gate * up),
}


@lru_cache(maxsize=1)
def engine() -> Any:
    """An engine with qwen3-tiny, without levers, in float32."""
    options = {"kvcache_block_size": 64, "num_kvcache_blocks": 33, "max_model_len": 2048}
    return LLM("qwen3-tiny", device="cpu", disabled_optimizations="all", enable_prefix_caching=False, **options)


def model() -> Any:
    """Its model."""
    return engine().llm_engine.model_runner.model


def stories(num_tokens: int = NUM_TOKENS) -> list[int]:
    """Stories behind one another, as in the training."""
    encode = engine().tokenizer.encode
    texts = json.loads(STORIES.read_text(encoding="utf-8"))
    return [token for text in texts for token in [*encode(text), END]][:num_tokens]


@contextmanager
def replaced(normalize: Norm | None = None, activate: Activation | None = None) -> Iterator[None]:
    """All engines of nanovllm normalize, or activate, with these functions for a while.

    Inside of them, the module that they are given does what it did before.
    """
    with ExitStack() as stack:
        if normalize is not None:
            stack.enter_context(_exchanged(RMSNorm, "normalize", normalize))
        if activate is not None:
            stack.enter_context(_exchanged(SiluAndMul, "forward", activate))
        yield


def _exchanged(kind: type, name: str, function: Callable[[Any, Tensor], Tensor]) -> Any:
    original = getattr(kind, name)

    def instead(module: Any, x: Tensor) -> Tensor:
        with mock.patch.object(kind, name, original):
            return function(module, x)

    return mock.patch.object(kind, name, instead)


def read(token_ids: list[int]) -> Tensor:
    """Logits after each token of a text: [num_tokens, vocab_size]."""
    return logits_of(engine(), token_ids)


def loss(normalize: Norm | None = None, activate: Activation | None = None, num_tokens: int = NUM_TOKENS) -> float:
    """How badly the model guesses the next token of stories, with these functions in it."""
    token_ids = stories(num_tokens)
    with replaced(normalize, activate):
        logits = read(token_ids)
    return float(F.cross_entropy(logits[:-1], torch.tensor(token_ids[1:])))


class Place(NamedTuple):
    """A norm of the residual stream, while a text is read.

    Args:
        name: where it stands.
        norm: the module.
        before: [num_tokens, hidden_size], the stream.
        after: the same, normalized.
    """

    name: str
    norm: Any
    before: Tensor
    after: Tensor


def places(text: str | list[int], normalize: Norm | None = None) -> list[Place]:
    """All norms of the residual stream, in their order, and what goes in and comes out while a text is read."""
    found = list[Place]()
    names = [f"layer {i}, {part}" for i in range(len(model().model.layers)) for part in ("attention", "MLP")]
    norms = [norm for layer in model().model.layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]

    def note(name: str) -> Callable[..., None]:
        return lambda norm, inputs, output: found.append(Place(name, norm, inputs[0].clone(), output.clone()))

    pairs = zip([*norms, model().model.norm], [*names, "the end"], strict=True)
    hooks = [norm.register_forward_hook(note(name)) for norm, name in pairs]
    try:
        with replaced(normalize):
            read(engine().tokenizer.encode(text) if isinstance(text, str) else text)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def rms(x: Tensor) -> Tensor:
    """Root mean square of each row."""
    return x.double().square().mean(-1).sqrt()


def gates(token_ids: list[int]) -> list[Tensor]:
    """The gates of each layer, before SiLU, [num_tokens, intermediate_size]."""
    found = list[Tensor]()

    def note(module: SiluAndMul, x: Tensor) -> Any:
        found.append(x.tensor_split(2, dim=-1)[0].clone())
        return module(x)

    with replaced(activate=note):
        read(token_ids)
    return found


class Closed(NamedTuple):
    """What closed gates do: the share of them that was closed, and the loss."""

    share: float
    loss: float


def close_gates(is_open: Callable[[Tensor], Tensor], num_tokens: int = 512) -> Closed:
    """Leave out what is behind some gates, in all layers.

    Args:
        is_open: of gates, [num_tokens, intermediate_size], which stay: booleans of that shape.
    """
    num_open = num_all = 0

    def activate(module: SiluAndMul, x: Tensor) -> Tensor:
        nonlocal num_open, num_all
        kept = is_open(x.tensor_split(2, dim=-1)[0])
        num_open, num_all = num_open + int(kept.sum()), num_all + kept.numel()
        return torch.where(kept, module(x), 0.0)

    found = loss(activate=activate, num_tokens=num_tokens)
    return Closed(1 - num_open / num_all, found)


def largest(gate: Tensor, share: float) -> Tensor:
    """Of each token's gates a share: those through which most passes, whatever its sign."""
    size = (gate * gate.sigmoid()).abs()
    return size >= size.topk(max(1, round(share * size.shape[-1])), dim=-1).values[..., -1:]


@contextmanager
def carried(engine: Any) -> Iterator[None]:
    """The layers of an engine hand the residual on, as vLLM's do: a norm adds it, and gives the sum back.

    Args:
        engine: nanovllm, or what `mine` or `without` returned.
    """
    name = engine.package.name if hasattr(engine, "package") else engine.__name__
    qwen3 = import_module(f"{name}.models.qwen3")

    def through_layer(self: Any, positions: Tensor, hidden: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
        x, residual = hidden
        first = self.input_layernorm
        x, residual = (first(x), x) if residual is None else first(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(positions, x), residual)
        return self.mlp(x), residual

    def through_model(self: Any, input_ids: Tensor, positions: Tensor) -> Tensor:
        hidden = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden = layer(positions, hidden)
        result: Tensor = self.norm(*hidden)[0]
        return result

    with (
        mock.patch.object(qwen3.Qwen3DecoderLayer, "forward", through_layer),
        mock.patch.object(qwen3.Qwen3Model, "forward", through_model),
    ):
        yield


class Operations(TorchDispatchMode):
    """Notes the tensor operations that are done while it is on, but not those that only look at numbers in another way.

    `names` are the operations, `moved` the bytes that they read and write.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names, self.moved = list[str](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it, and note it."""
        result = func(*args, **(kwargs or {}))
        inputs, outputs = ([x for x in tree_leaves(part) if isinstance(x, Tensor)] for part in ((args, kwargs), result))
        if not func.is_view and "detach" not in str(func):
            self.names.append(func._schema.name.removeprefix("aten::"))
            self.moved += sum(tensor.nbytes for tensor in (*inputs, *outputs))
        return result


class OnlyHalf(TorchDispatchMode):
    """Notes in `broken` what is first computed in another float than float16. Single numbers do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it, and look at the results."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            is_row = isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.ndim
            if is_row and tensor.dtype != torch.float16 and not self.broken:
                kind = str(tensor.dtype).removeprefix("torch.")
                self.broken = f"{func._schema.name.removeprefix('aten::')} gives a tensor of {kind}"
        return result


class NothingOut(TorchFunctionMode):
    """Notes in `broken` which call first takes numbers out of tensors, to compute with them elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call it, and look at its name."""
        name = getattr(func, "__name__", "")
        if name in ("numpy", "tolist", "item", "__array__", "__float__") and not self.broken:
            self.broken = f"{name} takes numbers out of a tensor"
        return func(*args, **(kwargs or {}))


def in_float16(half_norm: Callable[..., Any], x: Tensor, weight: Tensor, eps: float) -> tuple[Any, str]:
    """What a norm makes of rows, and the first thing in it that is not float16, "" if there is none."""
    with NothingOut() as out, OnlyHalf() as half:
        result = half_norm(x, weight, eps)
    return result, out.broken or half.broken


def loss_in_float16(half_norm: Callable[..., Tensor]) -> float:
    """The loss of the model with such a norm everywhere; the rest of it stays float32."""
    return loss(lambda norm, x: half_norm(x.half(), norm.weight.half(), norm.eps).float())


def for_view(text: str, token: int = -1, normalize: Norm | None = None) -> tuple[list[Any], Tensor, list[str], str]:
    """What a `NormView` shows of one token of a text.

    Args:
        token: its place in the text.
        normalize: in place of ours, for what comes out; what goes in stays the same.
    """
    found = places(text)
    token_ids = engine().tokenizer.encode(text)
    norms = [place.norm if normalize is None else _with(normalize, place.norm) for place in found]
    stream = torch.stack([place.before[token] for place in found])
    return norms, stream, [place.name for place in found], engine().tokenizer.decode([token_ids[token]])


def _with(normalize: Norm, norm: RMSNorm) -> Callable[[Tensor], Tensor]:
    return lambda x: normalize(norm, x)
