"""A layer's weights on one, two, four ranks: who holds which heads and features, and where the ranks meet.

Nothing here knows how weights are split. Each tensor goes through the engine's own loaders with its numbers replaced by
the numbers of their rows or columns; what arrives tells what a rank holds.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

import copy
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from typing import Any, NamedTuple

import torch
from safetensors import safe_open

from ..model_files import load_hf_config, resolve_model
from .drawing import SMALL, VERMILION, Drawing, color_of
from .shapes import Style, arrow, block
from .step_widget import Frame, StepWidget
from .weight_map import short

LAYER = "model.layers.0."
WIDE, RANK = 140.0, 154.0  # of what a rank holds, and from one rank to the next
ROW, GAP = 19.0, 30.0  # height of a head, and room between matrices with a name in it
GRAY, NO_BREAK = "#C0C0C0", "\u00a0"
KIND = 1 << 16  # a mark is the number of a tensor, times this, and a row or a column
BY_COLUMNS = ("o_proj", "down_proj")  # which take what the rows of another matrix have made
STAGES = ("x", "qkv_proj", "o_proj", "gate_up_proj", "down_proj")
TOLD = (
    "",
    "By rows: {shape} a rank. The heads, rank by rank: {heads}.",
    "By columns: {shape} a rank. What comes out of a rank's heads goes into its columns: a part of every sum.",
    "By rows: {shape} a rank. Gate and up are cut alike, so that a rank has both factors of each product.",
    "By columns: {shape} a rank. They take what the rank's own rows have made: again a part of every sum.",
)


class Piece(NamedTuple):
    """Rows or columns side by side that come from side by side: of which tensor, which, and how many."""

    kind: str
    first: int
    length: int


class Share(NamedTuple):
    """What a rank holds of a layer: shapes and pieces by module, and how many weights in all."""

    shapes: dict[str, list[int]]
    pieces: dict[str, list[Piece]]
    num_weights: int


def shares_of(model: str, size: int, engine: Any) -> list[Share]:
    """What every rank holds of the first layer, by an engine's loaders."""
    path = resolve_model(model)
    config = copy.copy(load_hf_config(path))
    config.num_hidden_layers = config.vocab_size = 1
    state, loader, result = engine.utils.parallel_state, engine.utils.loader, list[Share]()
    model_class = engine.models.get_model_class(config)
    with safe_open(loader.weight_files(path)[0], framework="pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys() if name.startswith(LAYER)}  # noqa: SIM118
    for rank in range(size):
        with state.tensor_parallel_group(state.TensorParallelGroup(rank, size)):
            params = dict(model_class(config).named_parameters())
        own = {short(name): param.data.fill_(-1) for name, param in params.items() if name.startswith(LAYER)}
        for number, (name, shape) in enumerate(shapes.items()):
            target, shard_id = loader.resolve_packed(name, model_class.packed_modules_mapping)
            is_by_columns = len(shape) == 1 or short(target) in BY_COLUMNS
            marks = torch.arange(shape[-1 if is_by_columns else 0]) + number * KIND
            marks = (marks if is_by_columns else marks[:, None]).expand(shape)
            loader.load_weight(params[target], marks.float(), shard_id, name)
        kinds, matrices = [short(name) for name in shapes], {name: data for name, data in own.items() if data.dim() > 1}
        marked = {name: data[0] if name in BY_COLUMNS else data[:, 0] for name, data in matrices.items()}
        pieces = {name: pieces_of(marks.int().tolist(), kinds) for name, marks in marked.items()}
        sizes = {name: list(data.shape) for name, data in own.items()}
        result.append(Share(sizes, pieces, sum(data.numel() for data in own.values())))
    return result


def pieces_of(marks: list[int], kinds: list[str]) -> list[Piece]:
    """Marks that count up, taken together; -1 is what nobody has filled."""
    found = list[Piece]()
    for _, run in groupby(enumerate(marks), lambda entry: entry[1] - entry[0]):
        values = [mark for _, mark in run]
        kind = kinds[values[0] // KIND] if values[0] >= 0 else "?"
        found.append(Piece(kind, values[0] % KIND, len(values)))
    return found


class TensorParallelView(StepWidget):
    """On the way through a layer: each matrix as the ranks hold it, and the two places where they meet.

    Args:
        model: a model's directory, or its name.
        sizes: numbers of ranks, from 1 to 4 each.
        engine: whose loaders are asked; ours, unless told otherwise.
    """

    title, unit = "a layer on several ranks", "moment"

    def __init__(self, model: str = "qwen3-tiny", sizes: Sequence[int] = (1, 2, 4), engine: Any = None) -> None:
        if not sizes or not all(1 <= size <= 4 for size in sizes):
            raise ValueError(f"sizes must be from 1 to 4, got {list(sizes)}")
        self.model, self.sizes, config = model, list(sizes), load_hf_config(resolve_model(model))
        engine = engine or import_module("..", __package__)
        self.shares = {size: shares_of(model, size, engine) for size in sizes}
        self.head_dim, self.hidden_size = config.head_dim, config.hidden_size
        self.group_size = config.num_attention_heads // config.num_key_value_heads
        super().__init__()

    @property
    def num_steps(self) -> int:
        return len(STAGES) * len(self.sizes)

    def at(self, step: int) -> tuple[int, int]:
        """Number of ranks and stage of a step."""
        return self.sizes[step // len(STAGES)], step % len(STAGES)

    def heads(self, size: int, rank: int, name: str) -> list[tuple[str, int]]:
        """Kind and number of each head that a rank holds, in the order of the matrix; -1 for what is no whole head."""
        found = list[tuple[str, int]]()
        for kind, first, count in self.shares[size][rank].pieces[name]:
            is_whole = first % self.head_dim == 0 == count % self.head_dim and kind != "?"
            numbers = range(first // self.head_dim, (first + count) // self.head_dim) if is_whole else [-1]
            found += [(kind[0] if name == "qkv_proj" else "", number) for number in numbers]
        return found

    def label(self, step: int) -> str:
        size, stage = self.at(step)
        return f"{size} rank{'s' * (size > 1)}, {STAGES[stage]}"

    def caption(self, step: int) -> str:
        size, stage = self.at(step)
        share, name = self.shares[size][0], STAGES[stage]
        if stage == 0:
            who = "Every rank has" if size > 1 else "One rank has"
            return f"{who} all {self.hidden_size} numbers of a token, all norms, and {share.num_weights:,} weights."
        held = [self.heads(size, rank, "qkv_proj") for rank in range(size)]
        heads = ", ".join(" ".join(f"{kind}{n}" for kind, n in own) for own in held)
        is_met = size > 1 and stage in (2, 4)
        meet = f" One all-reduce adds the parts up: {self.hidden_size} numbers a token." if is_met else ""
        return TOLD[stage].format(shape=share.shapes[name], heads=heads) + meet

    def first_step(self) -> int:
        return len(STAGES) * (len(self.sizes) > 1) + 1

    def default_bookmarks(self) -> dict[str, int]:
        return {f"{size} rank{'s' * (size > 1)}": len(STAGES) * n + 1 for n, size in enumerate(self.sizes)}

    def still_steps(self) -> list[int]:
        return super().still_steps()[-2:]

    def footer(self) -> str:
        marks = "a color is a KV head and who asks it; ×2: on two ranks"
        return f"{self.model}, layer 0, loaded by the engine's loaders; {marks}"

    def draw(self, step: int) -> Frame:
        size, stage = self.at(step)
        tops = [GAP + ROW, 2 * GAP + 2 * ROW]
        for rows in (len(self.heads(size, 0, "qkv_proj")), 3, 2):  # an all-reduce has its place below columns
            tops.append(tops[-1] + rows * ROW + GAP)
        picture = Drawing(RANK * max(self.sizes), tops[-1] + (3 if size > 1 else 1) * ROW + 4, self.caption(step))
        held = Counter(head for rank in range(size) for head in self.heads(size, rank, "qkv_proj"))
        for rank, share in enumerate(self.shares[size]):
            picture.text(rank * RANK + 2, 14, f"rank {rank}", bold=True)
            with picture.group(f"rank {rank}", rank=rank, weights=share.num_weights):
                for number, top in enumerate(tops):
                    self._draw_matrix(picture, (size, rank, number), top, number == stage, held)
        for number in (2, 4) if size > 1 else ():
            y, fill = tops[number] + ROW, VERMILION if number == stage else GRAY
            with picture.group("all-reduce", meets=STAGES[number]):
                for middle in (rank * RANK + 2 + WIDE / 2 for rank in range(size)):
                    arrow(picture, middle, y, middle, y + ROW - 2, strong=number == stage)
                block(picture, 2, y + ROW, RANK * size - RANK + WIDE, [(Style(fill), 1)], ["all-reduce"])
        return Frame((picture,))

    def _draw_matrix(
        self, picture: Drawing, place: tuple[int, int, int], y: float, is_now: bool, held: Counter[tuple[str, int]]
    ) -> None:
        """What a rank holds of one matrix: rows below each other, columns side by side."""
        size, rank, number = place
        x, name, share = rank * RANK + 2, STAGES[number], self.shares[size][rank]
        shape = share.shapes.get(name, [self.hidden_size])
        if number in (1, 2):
            heads = self.heads(size, rank, name)
            texts = ["?" if n < 0 else f"{kind}{n}" + f" ×{held[kind, n]}" * (held[kind, n] > 1) for kind, n in heads]
            groups = [n // (1 if kind in ("k", "v") else self.group_size) for kind, n in heads]
            # From the third color on: the first two are those of ranks in the chapter's other pictures.
            fills = [None if n < 0 else color_of(group + 2) for (_, n), group in zip(heads, groups, strict=True)]
        else:
            pieces = share.pieces.get(name, [Piece("all", 0, self.hidden_size)])[:4]
            texts = [f"{kind.removesuffix('_proj')} {first} to {first + n - 1}" for kind, first, n in pieces]
            fills = [GRAY if number == 0 else color_of(5)] * len(texts)
        cells, rows = [(Style(fill), 1) for fill in fills], len(fills) if number in (1, 3) else 1
        shown = [text.replace(" ", NO_BREAK) for text in texts]
        with picture.group(f"{name} {shape}", matrix=name, shape="x".join(map(str, shape)), holds=", ".join(texts)):
            picture.text(x, y - 6, f"{name.removesuffix('_proj')} {shape}", SMALL, mono=True, bold=is_now)
            for n in range(rows):
                own = slice(n, n + 1) if rows > 1 else slice(None)
                block(picture, x, y + n * ROW, WIDE, cells[own], shown[own], ROW)
            if is_now:
                picture.rect(x - 1, y - 2, WIDE + 2, rows * ROW + 4, None, VERMILION, 3)
