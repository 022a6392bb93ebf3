"""Where each tensor of a layer goes: from the checkpoint's names into the packed parameters, whole or split over ranks.

Nothing here knows how weights are packed or split. Each tensor is loaded by the engine's own loaders with its numbers
replaced by their places, so what arrives tells where it came from.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from safetensors import safe_open

from ..model_files import load_hf_config, resolve_model
from ..models import get_model_class
from ..utils.loader import load_weight, resolve_packed, weight_files
from ..utils.parallel_state import TensorParallelGroup, tensor_parallel_group
from .drawing import BORDER, MONO_WIDTH, PALETTE, SMALL, VERMILION, Drawing, ink_on
from .shapes import arrow
from .step_widget import Frame, StepWidget

LAYER = "model.layers.0."
LEFT, RANK, TOP = 240.0, 190.0, 44.0  # where the parameters begin, the width of a rank, and the top of both sides
TALLEST = 240.0  # units of the tallest parameter, all ranks together
THIN = 5.0  # of a norm, which has no second dimension
FILLS = dict(zip(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"), PALETTE, strict=True))
OTHER = "#C0C0C0"
# Rows of names, top to bottom: in the checkpoint, and in the model.
STORED = "q_proj k_proj v_proj o_proj, gate_proj up_proj, down_proj, input_layernorm q_norm"
STORED += ", post_attention_layernorm k_norm"
PACKED = "qkv_proj o_proj, gate_up_proj down_proj, q_norm k_norm, input_layernorm, post_attention_layernorm"

Resolve = Callable[..., tuple[str, Any]]
Box = tuple[int, int, int, int]  # first row, first column, rows, columns


class Part(NamedTuple):
    """A piece of a tensor, and where it lies in the parameter of a rank."""

    rank: int
    source: Box
    target: Box


class Stored(NamedTuple):
    """A tensor of the checkpoint, and where it goes."""

    name: str
    shape: list[int]
    param: str
    shard_id: Any
    parts: list[Part]


class WeightMap(StepWidget):
    """Tensor by tensor, a layer is filled; all sizes are true.

    Args:
        model: a model's directory, or its name.
        tensor_parallel_size: ranks that share it: 1, 2 or 4.
        resolve: says for each name the parameter and the shard id, as `resolve_packed` does.

    Raises:
        ValueError: so many ranks have no room in the picture.
    """

    title, unit = "where each tensor goes", "tensor"

    def __init__(
        self, model: str = "qwen3-tiny", tensor_parallel_size: int = 1, resolve: Resolve = resolve_packed
    ) -> None:
        if tensor_parallel_size not in (1, 2, 4):
            raise ValueError(f"tensor_parallel_size must be 1, 2 or 4 here, got {tensor_parallel_size}")
        self.model, self.size = model, tensor_parallel_size
        self.stored, self.shapes = places_of_tensors(model, tensor_parallel_size, resolve)
        self.scale = TALLEST / max(tensor_parallel_size * shape[0] for shape in self.shapes.values())
        super().__init__()

    @property
    def num_steps(self) -> int:
        return len(self.stored) + 1

    def label(self, step: int) -> str:
        return f"{step} of {len(self.stored)} tensors"

    def caption(self, step: int) -> str:
        if step == 0:
            return "On the left is a layer in the file, on the right its parameters, still empty."
        tensor = self.stored[step - 1]
        shard = "" if tensor.shard_id is None else f", shard {tensor.shard_id!r}"
        ranks = [f"{f'rank {part.rank} takes ' * (self.size > 1)}{taken(part, tensor.shape)}" for part in tensor.parts]
        if len({part.source for part in tensor.parts}) == 1 < self.size:
            ranks = [f"every rank takes {taken(tensor.parts[0], tensor.shape)}"]
        first, _, count, _ = tensor.parts[0].target
        where = f" There it is rows {first} to {first + count - 1}." if shard else ""
        return f"{short(tensor.name)} {tensor.shape} is for {short(tensor.param)}{shard}: {'; '.join(ranks)}.{where}"

    def first_step(self) -> int:
        return self.default_bookmarks().get("qkv_proj is full", 0)

    def default_bookmarks(self) -> dict[str, int]:
        last = {short(tensor.param): step for step, tensor in enumerate(self.stored, 1)}
        return {f"{name} is full": last[name] for name in ("gate_up_proj", "qkv_proj") if name in last}

    def footer(self) -> str:
        ranks = f", {self.size} ranks" * (self.size > 1)
        return f"{self.model}, layer 0{ranks}; rows and columns to scale; each tensor went through the engine's loaders"

    def draw(self, step: int) -> Frame:
        picture = Drawing(max(LEFT + RANK * self.size, 560.0), 465.0 if self.size == 1 else 350.0, self.caption(step))
        picture.text(0, 14, "in the checkpoint", bold=True)
        sources = self._lay_out(STORED, {tensor.name: tensor.shape for tensor in self.stored}, 0.0)
        for number, tensor in enumerate(self.stored, 1):
            state = "gone" if number < step else "now" if number == step else "there"
            with picture.group(tensor=tensor.name, state=state):
                fill = None if state == "gone" else fill_of(tensor)
                self._draw_box(picture, sources[tensor.name], whole(tensor.shape), fill, state, short(tensor.name))
        targets = [self._lay_out(PACKED, self.shapes, LEFT + rank * RANK) for rank in range(self.size)]
        for rank, places in enumerate(targets):
            picture.text(LEFT + rank * RANK, 14, f"rank {rank}" if self.size > 1 else "in the model", bold=True)
            for name, place in places.items():
                self._draw_box(picture, place, whole(self.shapes[name]), None, "", short(name))
        for number, tensor in enumerate(self.stored[:step], 1):
            for part in tensor.parts:
                fill, state = fill_of(tensor), "now" if number == step else ""
                with picture.group(param=tensor.param, rank=part.rank, rows=part.target[2], source=tensor.name):
                    at = targets[part.rank][tensor.param]
                    x, y, height, _ = self._draw_box(picture, at, part.target, fill, state)
                    if tensor.shard_id is not None and height > SMALL:
                        word, ink, middle = str(tensor.shard_id), ink_on(fill), y + height / 2
                        picture.text(x + 5, middle + 5, word, SMALL, ink, mono=True, bold=True)
                if state:
                    left, top, tall, wide = self._draw_box(picture, sources[tensor.name], part.source, None, state)
                    arrow(picture, left + wide, top + tall / 2, x - 2, y + height / 2, strong=True)
        return Frame((picture,))

    def _lay_out(self, names: str, shapes: dict[str, list[int]], left: float) -> dict[str, tuple[float, float]]:
        """Upper left corners: rows of names below each other; who has no name here stands nowhere."""
        places, y, full = dict[str, tuple[float, float]](), TOP, {short(name): name for name in shapes}
        for row in names.split(", "):
            x, tallest = left, THIN
            for name in (full[name] for name in row.split() if name in full):
                places[name] = (x, y)
                _, _, rows, columns = (value * self.scale for value in whole(shapes[name]))
                x, tallest = x + max(columns, SMALL * MONO_WIDTH * len(short(name))) + 14, max(tallest, rows)
            y += tallest + 22
        return places

    def _draw_box(
        self, picture: Drawing, place: tuple[float, float], box: Box, fill: str | None, state: str, name: str = ""
    ) -> tuple[float, float, float, float]:
        """Some rows and columns of what begins at a place, below its name; returns left, top, height and width."""
        row, column, rows, columns = (value * self.scale for value in box)
        x, y, height = place[0] + column, place[1] + row, max(rows, THIN)
        stroke, width = (VERMILION, 2.5) if state == "now" else (BORDER, 1.0)
        picture.rect(x, y, columns, height, fill, stroke, width, dashed=state == "gone")
        picture.text(x, y - 4, name, SMALL, mono=True)
        return x, y, height, columns


def places_of_tensors(model: str, size: int, resolve: Resolve) -> tuple[list[Stored], dict[str, list[int]]]:
    """The tensors of the first layer in the order of the file; and the shape of each parameter of a rank."""
    path = resolve_model(model)
    config = copy.copy(load_hf_config(path))
    config.num_hidden_layers = 1
    params = []
    for rank in range(size):
        with tensor_parallel_group(TensorParallelGroup(rank, size)):
            params.append(dict(get_model_class(config)(config).named_parameters()))
    packed, stored = getattr(get_model_class(config), "packed_modules_mapping", {}), []
    with safe_open(weight_files(path)[0], framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys() if name.startswith(LAYER)}  # noqa: SIM118
    for name, shape in shapes.items():
        param, shard_id = resolve(name, packed)
        parts = [Part(rank, *piece(params[rank][param], shape, shard_id, name)) for rank in range(size)]
        stored.append(Stored(name, shape, param, shard_id, parts))
    return stored, {name: list(param.shape) for name, param in params[0].items() if name.startswith(LAYER)}


def piece(param: Any, shape: list[int], shard_id: Any, name: str) -> tuple[Box, Box]:
    """What of a tensor a parameter takes, and where it puts it: every number in it is the place where it was."""
    param.data.zero_()
    load_weight(param, 1 + torch.arange(math.prod(shape)).reshape(shape), shard_id, name)
    filled = param.data.reshape(param.shape if param.dim() > 1 else (1, -1))
    places, columns = filled[filled > 0].long() - 1, whole(shape)[3]
    return box_around(torch.stack((places // columns, places % columns), 1)), box_around(filled.nonzero())


def box_around(points: torch.Tensor) -> Box:
    """The smallest box with all of these rows and columns."""
    (row, column), (last_row, last_column) = points.min(0).values.tolist(), points.max(0).values.tolist()
    return row, column, last_row - row + 1, last_column - column + 1


def whole(shape: list[int]) -> Box:
    """All of a tensor; a vector is a row."""
    return (0, 0, shape[0], shape[1]) if len(shape) > 1 else (0, 0, 1, shape[0])


def taken(part: Part, shape: list[int]) -> str:
    """Which piece of a tensor, in words."""
    row, column, rows, columns = part.source
    if part.source == whole(shape):
        return "all of it"
    first, count, kind = (row, rows, "rows") if columns == whole(shape)[3] else (column, columns, "columns")
    return f"{kind} {first} to {first + count - 1}"


def short(name: str) -> str:
    """The module of a tensor: the last part of its name but one."""
    return name.split(".")[-2]


def fill_of(tensor: Stored) -> str:
    """Its color, the same on both sides."""
    return FILLS.get(short(tensor.name), OTHER)
