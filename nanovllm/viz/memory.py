"""The memory budget of an engine on some GPU: weights, activations, and what is left for the KV cache.

Sizes of models come from the engine's own layers, built without memory (on PyTorch's "meta" device) from the shapes
that the models' config.json files publish; the number of blocks comes from the function that the engine calls.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch

from ..layers.attention import Attention
from ..model_files import load_hf_config, resolve_model
from ..models.qwen3 import Qwen3ForCausalLM
from ..utils.memory import kv_block_bytes, num_blocks_that_fit
from ..utils.parallel_state import TensorParallelGroup, tensor_parallel_group
from .drawing import BORDER, PALETTE, SMALL, VERMILION, Drawing
from .live import Examples
from .shapes import Style, tensor
from .step_widget import Frame

GB = 10**9
# From huggingface.co/Qwen. All have heads of 128 numbers and a vocabulary of 151,936 tokens.
FIELDS = [
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "tie_word_embeddings"),
]
PUBLISHED = {
    "Qwen3-0.6B": (1024, 3072, 28, 16, 8, True),
    "Qwen3-1.7B": (2048, 6144, 28, 16, 8, True),
    "Qwen3-4B": (2560, 9728, 36, 32, 8, True),
    "Qwen3-8B": (4096, 12288, 36, 32, 8, False),
    "Qwen3-14B": (5120, 17408, 40, 40, 8, False),
    "Qwen3-32B": (5120, 25600, 64, 64, 8, False),
}
MODELS = ("qwen3-tiny", *PUBLISHED)
OTHER_BYTES = GB // 2  # what CUDA itself takes on a GPU, about; measured by the engine, assumed here

Fit = Callable[[int, int, int, float, int], int]


@dataclass(frozen=True)
class ModelSize:
    """What the budget has to know of a model, for one rank.

    Args:
        num_parameters: of the rank's share of the weights.
        activations_per_token: numbers that are alive at the widest moment of a layer, for each token of a step: in the
            MLP, four vectors of the hidden and four of the intermediate size (see tests/viz/test_memory.py).
        num_layers, num_kv_heads, head_dim: shape of the KV cache.
    """

    num_parameters: int
    activations_per_token: int
    num_layers: int
    num_kv_heads: int
    head_dim: int

    def kv_bytes_per_token(self, element_size: int = 2) -> int:
        """Bytes of one token's keys and values."""
        return kv_block_bytes(self.num_layers, 1, self.num_kv_heads, self.head_dim, element_size)


@lru_cache(maxsize=64)
def model_size(name: str, num_ranks: int = 1) -> ModelSize:
    """Size of a model of `MODELS`, or of one in a directory, split over some ranks.

    Raises:
        ValueError: the model is unknown, or cannot be split like this.
    """
    hf_config = _published_config(name) if name in PUBLISHED else load_hf_config(resolve_model(name))
    with torch.device("meta"), tensor_parallel_group(TensorParallelGroup(0, num_ranks)):
        model = Qwen3ForCausalLM(hf_config)
    layers = [layer for layer in model.modules() if isinstance(layer, Attention)]
    return ModelSize(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        activations_per_token=4 * (hf_config.hidden_size + hf_config.intermediate_size // num_ranks),
        num_layers=len(layers),
        num_kv_heads=layers[0].num_kv_heads,
        head_dim=layers[0].head_dim,
    )


def _published_config(name: str) -> Any:
    from transformers import Qwen3Config

    sizes: dict[str, Any] = dict(zip(FIELDS, PUBLISHED[name], strict=True))
    hf_config: Any = Qwen3Config(**sizes, head_dim=128, vocab_size=151_936)
    hf_config.rope_theta = 1e6
    return hf_config


@dataclass(frozen=True)
class Setting:
    """A model on a GPU, and the options of `Config` that decide about memory."""

    model: str = "Qwen3-8B"
    memory_gb: int = 24
    gpu_memory_utilization: float = 0.9
    max_num_batched_tokens: int = 16384
    max_model_len: int = 4096
    kvcache_block_size: int = 256
    tensor_parallel_size: int = 1
    element_size: int = 2


@dataclass(frozen=True)
class Budget:
    """Where the bytes of one GPU go."""

    setting: Setting
    total: int
    other: int
    weights: int
    activations: int
    block_bytes: int
    num_blocks: int

    @property
    def limit(self) -> int:
        """Bytes that may be filled."""
        return int(self.total * self.setting.gpu_memory_utilization)

    @property
    def needed(self) -> int:
        """Bytes that are taken before the first block of the cache."""
        return self.other + self.weights + self.activations

    @property
    def cache(self) -> int:
        """Bytes of the KV cache."""
        return self.num_blocks * self.block_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_blocks * self.setting.kvcache_block_size

    @property
    def num_full_seqs(self) -> int:
        """Sequences of the greatest length that fit at the same time."""
        blocks = -(-self.setting.max_model_len // self.setting.kvcache_block_size)
        return self.num_blocks // blocks


def budget_of(setting: Setting, fit: Fit = num_blocks_that_fit) -> Budget:
    """The memory budget of a setting.

    Args:
        fit: decides about the number of blocks, as `nanovllm.utils.memory.num_blocks_that_fit` does; a learner's.
    """
    size = model_size(setting.model, setting.tensor_parallel_size)
    total = setting.memory_gb * GB
    weights = size.num_parameters * setting.element_size
    activations = size.activations_per_token * setting.max_num_batched_tokens * setting.element_size
    block_bytes = size.kv_bytes_per_token(setting.element_size) * setting.kvcache_block_size
    num_blocks = fit(total, OTHER_BYTES + weights, activations, setting.gpu_memory_utilization, block_bytes)
    return Budget(setting, total, OTHER_BYTES, weights, activations, block_bytes, int(num_blocks))


def describe_budget(budget: Budget) -> str:
    """What fits, or why nothing does, in sentences."""
    s = budget.setting
    where = f"{s.model} on {_gpus(s)}: "
    if budget.num_blocks < 1:
        return (
            f"{where}no block of the KV cache fits. {budget.needed / GB:.1f} GB are needed before the first, and "
            f"{budget.limit / GB:.1f} GB may be filled: the engine refuses to start."
        )
    room = f"the cache holds {budget.num_tokens:,} tokens, "
    if budget.num_full_seqs < 1:
        return f"{where}{room}less than one sequence of {s.max_model_len:,}."
    return f"{where}{room}{_count(budget.num_full_seqs, 'sequence')} of {s.max_model_len:,} at once."


def _gpus(setting: Setting) -> str:
    ranks = setting.tensor_parallel_size
    return f"a GPU of {setting.memory_gb} GB" if ranks == 1 else f"{ranks} GPUs of {setting.memory_gb} GB each"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _parts(budget: Budget) -> list[tuple[str, int, str | None, bool, str]]:
    """Name, bytes, color, hatching and origin of each part of the memory."""
    s, size = budget.setting, model_size(budget.setting.model, budget.setting.tensor_parallel_size)
    numbers = f"{size.num_parameters / 1e9:.2f} billion" if size.num_parameters > 10**8 else f"{size.num_parameters:,}"
    a_block = f"{budget.block_bytes / 1e6:.1f} MB each"
    blocks = f"{_count(budget.num_blocks, 'block')} of {_count(s.kvcache_block_size, 'token')}, {a_block}"
    left = budget.total - max(budget.limit, budget.needed + budget.cache)
    rest = max(0, budget.limit - budget.needed - budget.cache)
    return [
        ("other", budget.other, None, True, "CUDA itself; more if other programs use the GPU"),
        ("weights", budget.weights, PALETTE[1], False, f"{numbers} numbers of {s.element_size} bytes"),
        ("activations", budget.activations, PALETTE[0], True, f"max_num_batched_tokens={s.max_num_batched_tokens:,}"),
        ("KV cache", budget.cache, PALETTE[2], False, blocks),
        ("a rest", rest, None, False, "too small for one more block"),
        ("left alone", max(0, left), None, False, f"gpu_memory_utilization={s.gpu_memory_utilization:g}"),
    ]


def draw_budget(budget: Budget, bar_width: float = 608) -> Drawing:
    """One bar for the memory of a GPU, a legend with numbers, and a box for each sequence that fits."""
    picture = Drawing(bar_width + 24, 0, f"memory budget: {describe_budget(budget)}")
    left, top, height = 10.0, 40.0, 46.0
    scale = bar_width / max(budget.total, budget.needed + budget.cache)
    x, end = left, left + budget.total * scale
    for name, size, fill, hatch, origin in _parts(budget):
        with picture.group(f"{name}: {size / GB:.2f} GB, {origin}", focusable=True, part=name, bytes=size):
            picture.rect(x, top, size * scale, height, fill, hatch=hatch, dashed=name in ("a rest", "left alone"))
            # The name goes into the longer part of what lies within the GPU and beyond it.
            first, last = max(
                ((x, min(end, x + size * scale)), (max(end, x), x + size * scale)), key=lambda p: p[1] - p[0]
            )
            if fill and last - first > 8 * len(name) + 8:
                middle = (first + last) / 2
                if hatch:  # a plate, so that the lines do not run through the name
                    picture.rect(middle - 4 * len(name) - 4, top + 13, 8 * len(name) + 8, 20, fill, None)
                picture.text(middle, top + 28, name, color="#000", anchor="middle", bold=True)
        x += size * scale
    picture.rect(left, top, budget.total * scale, height, None, BORDER, 3)
    limit = left + budget.limit * scale
    picture.line(limit, top - 14, limit, top + height + 8, VERMILION, 3)
    text = f"limit: {budget.setting.gpu_memory_utilization:g} × {budget.setting.memory_gb} GB"
    picture.text(limit - 6, top - 8, text, SMALL, anchor="end", bold=True)
    if budget.needed + budget.cache > budget.total:
        picture.rect(end, top - 4, x - end, height + 8, None, VERMILION, 2, dashed=True)
        picture.text(x, top + height + 20, "does not fit into the GPU", SMALL, anchor="end", bold=True)
    picture.text(end, top + height + 20, f"{budget.setting.memory_gb} GB", SMALL, anchor="end")
    picture.text(left, top + height + 20, "0", SMALL)
    y = _draw_legend(picture, budget, left, top + height + 44)
    picture.height = _draw_seqs(picture, budget, left, y + 10, bar_width)
    return picture


def _draw_legend(picture: Drawing, budget: Budget, left: float, y: float) -> float:
    for name, size, fill, hatch, origin in _parts(budget):
        if name == "a rest" and size < GB / 200:  # would read as 0.00 GB
            continue
        picture.rect(left, y - 11, 22, 14, fill, hatch=hatch, dashed=name in ("a rest", "left alone"))
        picture.text(left + 32, y, name)
        picture.text(left + 190, y, f"{size / GB:.2f} GB", anchor="end", mono=True)
        picture.text(left + 212, y, origin, SMALL)
        y += 21
    return y


def _draw_seqs(picture: Drawing, budget: Budget, left: float, y: float, width: float, shown: int = 60) -> float:
    """A box for each sequence of the greatest length that fits, the last one perhaps partly filled."""
    s = budget.setting
    seqs = budget.num_tokens / s.max_model_len
    picture.text(left, y + 6, f"sequences of {s.max_model_len:,} tokens (max_model_len) that fit", bold=True)
    y += 14
    if seqs < 1e-9:
        picture.text(left, y + 14, "none", SMALL)
        return y + 24
    whole, per_row = min(shown, int(seqs)), 30
    cells = [("", Style(PALETTE[2]))] * whole
    y = tensor(picture, left, y, [cells[k : k + per_row] for k in range(0, whole, per_row)], width / per_row, 14)
    if seqs > shown:
        picture.text(left, y + 15, f"and {seqs - shown:,.1f} more", SMALL)
    elif seqs > whole:
        picture.rect(left, y + 3, width / per_row, 14, dashed=True)
        picture.rect(left, y + 3, width / per_row * (seqs - whole), 14, PALETTE[2], None)
        picture.text(left + width / per_row + 8, y + 15, f"and {100 * (seqs - whole):.0f} % of one more", SMALL)
    return y + 24


PRESETS = {
    "a small model, a small GPU": Setting("Qwen3-0.6B", 8),
    "too large for it": Setting("Qwen3-8B", 8),
    "8B on 24 GB": Setting("Qwen3-8B", 24),
    "a lower limit": Setting("Qwen3-8B", 24, gpu_memory_utilization=0.75),
    "a higher limit": Setting("Qwen3-8B", 24, gpu_memory_utilization=0.95),
    "smaller steps": Setting("Qwen3-8B", 24, gpu_memory_utilization=0.95, max_num_batched_tokens=2048),
    "8B on 80 GB": Setting("Qwen3-8B", 80),
    "32B on 80 GB": Setting("Qwen3-32B", 80),
    "32B on two": Setting("Qwen3-32B", 80, tensor_parallel_size=2),
}
MEMORY_GB = (8, 12, 16, 24, 32, 40, 48, 80, 141)
UTILIZATIONS = tuple(round(0.05 * k, 2) for k in range(1, 21))
BATCHED_TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
MODEL_LENS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 40960)


class MemoryBudget(Examples):
    """What fits on a GPU: weights, activations, and a KV cache of what is left.

    Live, every option can be moved; the steps of the player are the presets.

    Args:
        presets: name to `Setting`.
        num_blocks_that_fit: a learner's function.
    """

    title = "memory budget"

    def __init__(
        self, presets: dict[str, Setting] | None = None, num_blocks_that_fit: Fit = num_blocks_that_fit
    ) -> None:
        self.fit_function = num_blocks_that_fit
        super().__init__(presets or PRESETS)

    def first_step(self) -> int:
        return min(2, self.num_steps - 1)

    def budget(self, step: int | None = None) -> Budget:
        """The budget of a step, by default of the current one."""
        return budget_of(self.chosen(self.step if step is None else step), self.fit_function)

    def caption(self, step: int) -> str:
        return describe_budget(self.budget(step))

    def draw(self, step: int) -> Frame:
        return Frame((draw_budget(self.budget(step)),))

    def plain_text(self) -> str:
        lines = [f"{self.label(step)}: {self.caption(step)}" for step in range(self.num_steps)]
        return "\n".join([f"MemoryBudget: {self.title}", *lines, self.footer()])

    def footer(self) -> str:
        whose = "the engine's num_blocks_that_fit" if self.fit_function is num_blocks_that_fit else "the function given"
        return (
            f"blocks counted by {whose}; weights and cache from the models' published shapes, "
            "activations estimated from them, 0.5 GB assumed for CUDA; the engine measures these. 1 GB = 10⁹ bytes"
        )

    def make_controls(self) -> list[Any]:
        import ipywidgets as w  # type: ignore[import-untyped]

        start = asdict(self.chosen(self.step))
        models = dict.fromkeys([*PUBLISHED, *(setting.model for setting in self.presets.values())])
        self.inputs = {"model": w.Dropdown(options=list(models), value=start["model"])}
        choices = {
            "memory_gb": MEMORY_GB,
            "gpu_memory_utilization": UTILIZATIONS,
            "max_num_batched_tokens": BATCHED_TOKENS,
            "max_model_len": MODEL_LENS,
            "tensor_parallel_size": (1, 2, 4, 8),
        }
        for name, values in choices.items():
            options = sorted({*values, *(getattr(setting, name) for setting in self.presets.values())})
            self.inputs[name] = w.SelectionSlider(options=options, value=start[name])
        for name, control in self.inputs.items():
            control.description = "GPU memory in GB" if name == "memory_gb" else name
            control.layout.width, control.style.description_width = "28em", "13.5em"
            control.observe(self._on_input, names="value")
        return [w.HBox(list(self.inputs.values()), layout=w.Layout(flex_flow="row wrap"))]
