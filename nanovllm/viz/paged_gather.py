"""A query's walk over the block table: block by block the scores of its keys, and what is known of all keys so far.

It computes with the tensors that it is given, one block after the other, as the kernels do: nothing is drawn that was
not computed.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .drawing import PALETTE, SMALL, VERMILION, Drawing
from .shapes import EMPTY, FREE, LegendItem, Style, arrow, block, legend_html, tensor
from .step_widget import Frame, StepWidget

WIDTH, LEFT, CELL, ENTRY, POOL_ROW, ROW = 632.0, 130.0, 64.0, 44.0, 34.0, 22.0
PER_POOL_ROW = 6
SHOWN = 3  # numbers of the output, which has many more
COLUMNS = ("block", "maximum", "factor", "total", *(f"output[{i}]" for i in range(SHOWN)))
BLUE, ORANGE = PALETTE[1], PALETTE[0]
LEGEND: list[LegendItem] = [
    ("prefill", "keys and values of the sequence", BLUE),
    ("new", "read now", None),
    ("struck", "of another sequence", ORANGE),
    ("waiting", "free", None),
]


class Tile(NamedTuple):
    """One block on the walk, and what is known after it.

    Args:
        block_id: where it lies.
        first: the position of its first token.
        scores, weights: of its tokens, as lists; a weight is exp(score - maximum).
        decay: what the old sums were multiplied by.
        maximum, total, output: of all tokens so far; the output is not divided yet.
    """

    block_id: int
    first: int
    scores: list[float]
    weights: list[float]
    decay: float
    maximum: float
    total: float
    output: Tensor


def walk(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Sequence[int], num_tokens: int, scale: float
) -> list[Tile]:
    """Online softmax over the blocks of a table."""
    maximum, total, output = torch.tensor(-torch.inf).double(), 0.0, torch.zeros_like(v_cache[0, 0]).double()
    tiles: list[Tile] = []
    for first, block_id in zip(range(0, num_tokens, k_cache.shape[1]), table, strict=False):
        count = min(k_cache.shape[1], num_tokens - first)
        scores = scale * k_cache[block_id, :count].double() @ q.double()
        larger = torch.maximum(maximum, scores.max())
        weights, decay = (scores - larger).exp(), float((maximum - larger).exp())
        maximum, total = larger, total * decay + float(weights.sum())
        output = output * decay + weights @ v_cache[block_id, :count].double()
        tiles.append(Tile(block_id, first, scores.tolist(), weights.tolist(), decay, float(maximum), total, output))
    return tiles


class PagedGather(StepWidget):
    """A stepper through the blocks that one query reads.

    Args:
        q: [head_dim], of one query head.
        k_cache, v_cache: [num_blocks, block_size, head_dim], of the KV head that it looks at.
        block_table: ids of the sequence's blocks.
        num_tokens: of the sequence.
        scale: factor of the scores.
        texts: of the tokens.
        others: ids of blocks that belong to other sequences.
    """

    title, unit, pace = "paged gather", "block", 1400

    def __init__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Sequence[int],
        num_tokens: int,
        scale: float,
        texts: Sequence[str] = (),
        others: Sequence[int] = (),
    ) -> None:
        self.num_blocks, self.size = k_cache.shape[:2]
        self.table, self.num_tokens = list(block_table)[: -(-num_tokens // self.size)], num_tokens
        self.others = set(others)
        self.texts = list(texts) or [str(i) for i in range(num_tokens)]
        self.tiles = walk(q, k_cache, v_cache, self.table, num_tokens, scale)
        super().__init__()

    @property
    def num_steps(self) -> int:
        return len(self.tiles) + 1

    def label(self, step: int) -> str:
        return f"block {step + 1} of {len(self.tiles)}" if step < len(self.tiles) else "the end"

    def caption(self, step: int) -> str:
        if step == len(self.tiles):
            last = self.tiles[-1]
            return (
                f"All {self.num_tokens} keys are in. Now the output is divided, once, by the total {last.total:.3f}: "
                f"{', '.join(f'{x:.3f}' for x in (last.output / last.total)[:SHOWN].tolist())}, ..."
            )
        tile = self.tiles[step]
        where = f"Entry {step} of the table: block {tile.block_id}, tokens {tile.first} to "
        where += f"{tile.first + len(tile.scores) - 1}. "
        if not step:
            return where + f"The largest score is {tile.maximum:.2f}."
        if tile.decay == 1.0:
            return where + f"No score is above {tile.maximum:.2f}: the old sums stay as they are."
        return where + f"A larger score, {tile.maximum:.2f}: the old sums are multiplied by {tile.decay:.3f}."

    def default_bookmarks(self) -> dict[str, int]:
        larger = [n for n, tile in enumerate(self.tiles) if n and tile.decay < 1.0]
        kept = [n for n, tile in enumerate(self.tiles) if tile.decay == 1.0]
        marks = {"a larger score": larger[:1], "none is larger": kept[:1], "the end": [len(self.tiles)]}
        return {name: found[0] for name, found in marks.items() if found}

    def footer(self) -> str:
        return "computed from the tensors that are drawn"

    def draw(self, step: int) -> Frame:
        rows = -(-self.num_blocks // PER_POOL_ROW)
        top = 84 + POOL_ROW * rows
        picture = Drawing(WIDTH, top + 122 + ROW * (len(self.tiles) + 1), f"paged gather, {self.label(step)}")
        now = min(step, len(self.tiles) - 1)
        entry, spot = self._draw_pages(picture, now if step == now else -1)
        if step == now:
            arrow(picture, *entry, *spot, strong=True)
        self._draw_tile(picture, top, self.tiles[now])
        self._draw_sums(picture, top + 112, step)
        return Frame((picture,), legend_html(LEGEND))

    def _draw_pages(self, picture: Drawing, now: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """The table above the pool; returns the places of the current entry and its block."""
        picture.text(0, 14, "block table", bold=True)
        entry = spot = (0.0, 0.0)
        for i, block_id in enumerate(self.table):
            x = LEFT + ENTRY * i
            with picture.group(f"entry {i}: block {block_id}", entry=i, block=block_id, now=int(i == now)):
                block(picture, x, 0, ENTRY - 4, [(Style(BLUE, frame=i == now), 1)], [f"#{block_id}"])
            entry = (x + ENTRY / 2 - 2, 20.0) if i == now else entry
        picture.text(0, 66, "pool", bold=True)
        width = (WIDTH - LEFT) / PER_POOL_ROW
        for block_id in range(self.num_blocks):
            x, y = LEFT + width * (block_id % PER_POOL_ROW), 52 + POOL_ROW * (block_id // PER_POOL_ROW)
            held = (
                min(self.size, self.num_tokens - self.size * self.table.index(block_id))
                if block_id in self.table
                else 0
            )
            current = now >= 0 and self.table[now] == block_id
            picture.text(x + 28, y + 14, f"#{block_id}", SMALL, anchor="end", mono=True)
            other = int(block_id in self.others)
            name = f"block {block_id}{', of another sequence' * other}"
            with picture.group(name, pool=block_id, held=held, other=other, now=int(current)):
                rest = Style(ORANGE, struck=True) if other else FREE
                runs = [(Style(BLUE, frame=current), held), (rest, self.size - held)]
                block(picture, x + 32, y, width - 34, [run for run in runs if run[1]])
            spot = (x + 32 + (width - 34) / 2, y) if current else spot
        return entry, spot

    def _draw_tile(self, picture: Drawing, top: float, tile: Tile) -> None:
        """The tokens of a block, their scores, and their weights."""
        lines = {
            "token": self.texts[tile.first : tile.first + len(tile.scores)],
            "score": [f"{score:.2f}" for score in tile.scores],
            "exp(score - max)": [f"{weight:.3f}" for weight in tile.weights],
        }
        style = Style(BLUE)
        cells = [[(text, style) for text in texts] for texts in lines.values()]
        with picture.group("scores", scores=" ".join(lines["score"])):
            tensor(picture, LEFT, top, cells, CELL, names=list(lines))

    def _draw_sums(self, picture: Drawing, top: float, step: int) -> None:
        """A line for each block that has been read."""
        width = (WIDTH - 4) / len(COLUMNS)
        for n, name in enumerate(COLUMNS):
            picture.text(2 + width * n, top - 6, name, SMALL, bold=True)
        for i, tile in enumerate(self.tiles[: step + 1]):
            y, style = top + ROW * i, Style(BLUE) if i == step else EMPTY
            values = [f"{tile.maximum:.2f}", f"{tile.decay:.3f}", f"{tile.total:.3f}"]
            values += [f"{x:.3f}" for x in tile.output[:SHOWN].tolist()]
            with picture.group(f"after block {i}", line=i, values=" ".join(values)):
                tensor(picture, 2, y, [[(text, style) for text in (f"#{tile.block_id}", *values)]], width)
        if step == len(self.tiles):
            last, y = self.tiles[-1], top + ROW * len(self.tiles)
            values = [f"{x:.3f}" for x in (last.output / last.total)[:SHOWN].tolist()]
            with picture.group("the output", result=" ".join(values)):
                tensor(picture, 2 + 4 * width, y, [[(text, Style(VERMILION)) for text in values]], width)
            picture.text(2 + 4 * width - 6, y + 14, "output / total", SMALL, anchor="end", bold=True)
