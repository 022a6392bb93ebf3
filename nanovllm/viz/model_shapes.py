"""Shapes through the model: one step's tensors, part by part, as hooks have seen them in a real run.

What is drawn is what torch reports: the shape of each input and output, and the parameters of each module.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..llm import LLM
from ..sampling_params import SamplingParams
from .drawing import BORDER, PALETTE, SMALL, VERMILION, Drawing
from .shapes import arrow
from .step_widget import Frame, StepWidget

WIDTH, LEFT, ROW, TOP = 640.0, 232.0, 24.0, 30.0
PROMPTS = ("Mia has a red ball.", "Tom", "The sun was warm")
OPTIONS: dict[str, Any] = {"device": "cpu", "kvcache_block_size": 16, "num_kvcache_blocks": 8, "max_model_len": 64}
OPTIONS |= {"disabled_optimizations": "all"}
# Name, module (of the model, or of its first layer), and what it does.
PARTS = (
    ("embed_tokens", "model.embed_tokens", "each token id becomes a row: the stream begins"),
    ("input_layernorm", "input_layernorm", "a copy of the stream, each row brought to size one"),
    ("qkv_proj", "self_attn.qkv_proj", "one product makes the queries, keys and values of all heads"),
    ("q_norm", "self_attn.q_norm", "each query head by itself is brought to size one"),
    ("k_norm", "self_attn.k_norm", "the same for each key head; there are fewer of them"),
    ("rotary_emb", "self_attn.rotary_emb", "queries and keys are turned to their positions"),
    ("attn", "self_attn.attn", "each token looks at those before it, and here only tokens meet"),
    ("o_proj", "self_attn.o_proj", "what all heads have found becomes a row as wide as the stream"),
    ("add", "", "the row is added to the stream"),
    ("post_attention_layernorm", "post_attention_layernorm", "again a copy, brought to size one"),
    ("gate_up_proj", "mlp.gate_up_proj", "one product makes the gate and what it opens or closes"),
    ("act_fn", "mlp.act_fn", "SiLU of the one half times the other"),
    ("down_proj", "mlp.down_proj", "back to the width of the stream"),
    ("add ", "", "the row is added to the stream, and the layer is done"),
    ("the other layers", "layers", "the same again and again, each layer with weights of its own"),
    ("norm", "model.norm", "the stream itself, brought to size one"),
    ("lm_head", "lm_head", "logits, for the last token of each sequence only"),
)
SPAN = (1, 14)  # the parts of the first layer
WRITERS = ("embed_tokens", "add", "the other layers")  # they add to the stream; these read it:
READERS = ("input_layernorm", "post_attention_layernorm", "norm")


class Seen(NamedTuple):
    """A part in a step: the shapes that went in and came out, its parameters, and their bytes."""

    inputs: list[list[int]]
    outputs: list[list[int]]
    params: int
    bytes: int


def shapes_of(value: Any) -> list[list[int]]:
    """The shapes of all tensors in an argument or a result."""
    values = value if isinstance(value, list | tuple) else [value]
    return [list(x.shape) for x in values if hasattr(x, "shape")]


def record_shapes(llm: LLM, prompts: Sequence[str]) -> dict[str, list[Seen]]:
    """What each part sees in the prefill step of some prompts, and in the decode step after it."""
    model: Any = llm.llm_engine.model_runner.model
    layer, found = model.model.layers[0], dict[str, list[tuple[Any, Any]]]()
    hooks, modules = [], dict[str, Any]()
    for name, path, _ in PARTS:
        if path and path != "layers":
            modules[name] = (model if path.startswith(("model.", "lm_head")) else layer).get_submodule(path)
    for name, module in modules.items():

        def note(module: Any, inputs: Any, output: Any, name: str = name) -> None:
            found.setdefault(name, []).append((shapes_of(inputs), shapes_of(output)))

        hooks.append(module.register_forward_hook(note))
    try:
        asked: list[str | Sequence[int]] = [*prompts]
        llm.generate(asked, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), use_tqdm=False)
    finally:
        for hook in hooks:
            hook.remove()
    others = [param for other in model.model.layers[1:] for param in other.parameters()]
    steps = dict[str, list[Seen]]()
    calls = {name: len(seen) // 2 for name, seen in found.items()}  # the rotary embedding serves all layers
    for number, kind in enumerate(("prefill", "decode")):
        stream = found["embed_tokens"][number][1]
        steps[kind] = []
        for name, path, _ in PARTS:
            params = others if path == "layers" else [*modules[name].parameters()] if name in modules else []
            inputs, outputs = found[name][number * calls[name]] if name in found else (stream, stream)
            size = sum(param.numel() for param in params)
            steps[kind].append(Seen(inputs, outputs, size, sum(param.nbytes for param in params)))
    return steps


class ModelShapes(StepWidget):
    """Part by part through the model, in a prefill step of a few sequences, and then in the decode step after it.

    Args:
        llm: an engine of any package without faster paths; by default ours, with the bundled model.
        prompts: what it reads.
    """

    title, unit = "shapes through the model", "part"

    def __init__(self, llm: Any = None, prompts: Sequence[str] = PROMPTS) -> None:
        if llm is None:
            with LLM("qwen3-tiny", **OPTIONS) as own:
                self.steps, weight = record_shapes(own, prompts), weight_of(own)
        else:
            self.steps, weight = record_shapes(llm, prompts), weight_of(llm)
        self.dtype, self.is_tied = weight
        self.prompts = list(prompts)
        self.places = [(kind, n) for kind in self.steps for n in range(len(PARTS))]
        super().__init__()

    @property
    def num_steps(self) -> int:
        return len(self.places)

    def first_step(self) -> int:
        return 2

    def label(self, step: int) -> str:
        kind, n = self.places[step]
        return f"{kind}: {PARTS[n][0].strip()}"

    def caption(self, step: int) -> str:
        kind, n = self.places[step]
        seen, words = self.steps[kind][n], PARTS[n][2]
        shapes = f"{written(seen.inputs)} -> {written(seen.outputs)}"
        size = f" {seen.params:,} parameters, {seen.bytes:,} bytes." if seen.params else " No parameters."
        return f"{words[0].upper()}{words[1:]}. {shapes}.{size}"

    def default_bookmarks(self) -> dict[str, int]:
        size = len(PARTS)
        marks = {"attention": 6, "MLP": 10, "the head": size - 1}
        return marks | {"decode: qkv_proj": size + 2, "decode: the head": 2 * size - 1}

    def still_steps(self) -> list[int]:
        return [self.step]

    def footer(self) -> str:
        tokens = self.steps["prefill"][0].outputs[0][0]
        tied = "; lm_head has the weight of embed_tokens" * self.is_tied
        return (
            f"{len(self.prompts)} prompts, {tokens} tokens in all; as torch reports it, weights in {self.dtype}{tied}"
        )

    def draw(self, step: int) -> Frame:
        kind, now = self.places[step]
        parts = self.steps[kind]
        said = f"{PARTS[now][0].strip()}. {self.caption(step)}"
        picture = Drawing(WIDTH, TOP + ROW * len(PARTS) + 44, said)
        picture.text(0, 16, f"{kind} step", bold=True)
        picture.text(LEFT, 16, "what comes out, as [tokens, ...]", SMALL, bold=True)
        picture.text(WIDTH, 16, "parameters", SMALL, anchor="end", bold=True)
        first, last = (TOP + ROW * n for n in (SPAN[0], SPAN[1]))
        picture.rect(14, first - 2, WIDTH - 14, last - first, None, BORDER, 1, dashed=True)
        picture.line(6, TOP, 6, TOP + ROW * (len(PARTS) - 1), BORDER, 4)
        widest = max(seen.outputs[0][-1] if len(seen.outputs[0]) == 2 else 1 for seen in parts)
        for n, (part, seen) in enumerate(zip(PARTS, parts, strict=True)):
            name, shape = part[0].strip(), written(seen.outputs)
            with picture.group(f"{name}: {shape}", part=name, shape=shape, now=int(n == now), params=seen.params):
                self._draw_part(picture, n, name, seen, n == now, widest)
        words = "dashed: the first layer; the line on the left: the stream, which parts read or add to"
        picture.text(24, TOP + ROW * len(PARTS) + 14, words, SMALL)
        words = "bars: numbers a token has there; hatched: cut into heads, a dimension of their own"
        picture.text(24, TOP + ROW * len(PARTS) + 32, words, SMALL)
        return Frame((picture,))

    @staticmethod
    def _draw_part(picture: Drawing, n: int, name: str, seen: Seen, is_now: bool, widest: int) -> None:
        y, is_stream = TOP + ROW * n, name in WRITERS
        if is_now:
            picture.rect(16, y, WIDTH - 18, ROW - 4, None, VERMILION, 2.5)
        picture.text(24, y + 14, name, SMALL, mono=True, bold=is_now)
        if is_stream or name in READERS:
            ends = (21, 9) if is_stream else (7, 21)
            arrow(picture, ends[0], y + 10, ends[1], y + 10, strong=is_now)
        shape = seen.outputs[0]
        count = shape[-1] if len(shape) == 2 else shape[-2] * shape[-1]
        width = max(4.0, 150 * count / widest)
        fill = PALETTE[2] if is_stream else PALETTE[1]
        picture.rect(LEFT, y + 4, min(width, 170), ROW - 12, fill, BORDER, 1, hatch=len(shape) > 2)
        picture.text(LEFT + 178, y + 14, written(seen.outputs), SMALL, mono=True)
        if seen.params:
            picture.text(WIDTH - 8, y + 14, f"{seen.params:,}", SMALL, anchor="end", mono=True, bold=is_now)


def written(shapes: list[list[int]]) -> str:
    """Shapes as text."""
    return " and ".join(str(shape) for shape in shapes)


def weight_of(llm: Any) -> tuple[str, bool]:
    """The dtype of a model's weights, and whether head and embedding share one."""
    model = llm.llm_engine.model_runner.model
    weight = model.model.embed_tokens.weight
    return str(weight.dtype).removeprefix("torch."), model.lm_head.weight is weight
