"""A vocabulary on one, two, eight ranks: who has a token's row, what the others give, and whose logits come together.

Nothing here knows how a vocabulary is split. A table whose rows are their own numbers goes through the engine's loader
and lookup on each rank, and what comes back tells which row was found.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..utils.parallel_state import TensorParallelGroup
from .drawing import BORDER, SMALL, VERMILION, Drawing, color_of, fit, visible
from .shapes import EMPTY, FREE, LegendItem, Style, arrow, block, legend, legend_html
from .step_widget import Frame, StepWidget

WIDTH, LEFT, RIGHT = 640.0, 136.0, 556.0
TOP, ROW = 62.0, 24.0
STAGES = ("look up", "add up", "logits")
LEGEND: list[LegendItem] = [
    ("12", "colored: row on this rank", None),
    ("0", "white: zeros, another has it", None),
    ("new", "what happens now", None),
]


class Alone(TensorParallelGroup):
    """A rank whose collectives give back its own part: what it would send."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def gather(self, x: Tensor) -> Tensor | None:
        return x


class Share(NamedTuple):
    """What one rank has: its tokens from `start` up to `end`, its rows of some tokens, how many logits it gives.

    Of a token's row: its number in the table counted from 1, 0 for zeros, or the name of an error.
    """

    start: int
    end: int
    found: list[int | str]
    num_logits: int


def share_of(engine: Any, vocab_size: int, token_ids: Sequence[int], rank: int, size: int) -> Share:
    """Have a rank load a table of numbers, look up some tokens, and compute logits."""
    layers, group = engine.layers.embed_head, Alone(rank, size)
    with engine.utils.parallel_state.tensor_parallel_group(group):
        embedding, head = (kind(vocab_size, 1) for kind in (layers.VocabParallelEmbedding, layers.ParallelLMHead))
    embedding.weight_loader(embedding.weight, torch.arange(1.0, vocab_size + 1).unsqueeze(1))
    found = list[int | str]()
    for token_id in token_ids:
        try:
            found.append(int(embedding(torch.tensor([token_id]))[0, 0]))
        except (IndexError, RuntimeError) as error:
            found.append(type(error).__name__)
    return Share(embedding.vocab_start, embedding.vocab_end, found, len(head.weight))


class VocabularyShards(StepWidget):
    """For each number of ranks: the lookup of some tokens, their sum, and the logits that rank 0 gets.

    Args:
        texts: of the tokens.
        token_ids: of the same.
        vocab_size: tokens in the vocabulary.
        sizes: numbers of ranks, from 1 to 8 each.
        engine: whose layers are asked; ours, unless told otherwise.
    """

    title, unit = "a vocabulary on several ranks", "moment"

    def __init__(
        self,
        texts: Sequence[str] = ("Once", " upon", " a", " time"),
        token_ids: Sequence[int] = (3, 700, 1200, 2047),
        vocab_size: int = 2048,
        sizes: Sequence[int] = (1, 2, 3, 8),
        engine: Any = None,
    ) -> None:
        if not sizes or not all(1 <= size <= 8 for size in sizes):
            raise ValueError(f"sizes must be from 1 to 8, got {list(sizes)}")
        self.texts, self.token_ids, self.vocab_size, self.sizes = texts, list(token_ids), vocab_size, list(sizes)
        engine = engine or import_module("..", __package__)
        with torch.inference_mode():
            self.shares = {
                size: [share_of(engine, vocab_size, token_ids, rank, size) for rank in range(size)] for size in sizes
            }
        super().__init__()

    @property
    def num_steps(self) -> int:
        return len(STAGES) * len(self.sizes)

    def at(self, step: int) -> tuple[int, int]:
        """Number of ranks and stage of a step."""
        return self.sizes[step // len(STAGES)], step % len(STAGES)

    def label(self, step: int) -> str:
        size, stage = self.at(step)
        return f"{size} rank{'s' * (size > 1)}, {STAGES[stage]}"

    def padding(self, size: int) -> int:
        """Logits that belong to no token."""
        return sum(share.num_logits for share in self.shares[size]) - self.vocab_size

    def total(self, size: int, n: int) -> int | str:
        """What the all-reduce gives for token n: the number of a row from 1 on, or what is wrong."""
        found = [share.found[n] for share in self.shares[size]]
        return next((one for one in found if isinstance(one, str)), sum(int(one) for one in found))

    def caption(self, step: int) -> str:
        size, stage = self.at(step)
        share, many = self.shares[size][-1], f"{size} ranks have" if size > 1 else "One rank has"
        if stage == 0:
            each = " each" if size > 1 else ""
            return f"{many} {share.num_logits:,} rows{each}. The last one's begin with token {share.start:,}."
        if stage == 1:
            right = sum(self.total(size, n) == token_id + 1 for n, token_id in enumerate(self.token_ids))
            return (
                f"Added up over the ranks: {right} of {len(self.token_ids)} tokens have their own row, on every rank."
            )
        cut = f"; {self.padding(size)} of them belong to no token, and are cut off" if self.padding(size) else ""
        return (
            f"The same rows give logits: side by side on rank 0 they are {self.padding(size) + self.vocab_size:,}{cut}."
        )

    def default_bookmarks(self) -> dict[str, int]:
        return {f"{size} rank{'s' * (size > 1)}": n * len(STAGES) for n, size in enumerate(self.sizes)}

    def first_step(self) -> int:
        return min(len(STAGES), self.num_steps - 1)

    def still_steps(self) -> list[int]:
        return [self.step, self.num_steps - 1]

    def footer(self) -> str:
        return f"rows and ranges from the engine's own layers, {self.vocab_size:,} tokens in the vocabulary"

    def draw(self, step: int) -> Frame:
        return Frame((self.picture(step),), legend_html(LEGEND))

    def still_rows(self, step: int) -> list[list[Drawing]]:
        return [[self.picture(step)], [legend(LEGEND, WIDTH)]]

    def picture(self, step: int) -> Drawing:
        """A row for each token, a column for each rank, the sums on the right, and the logits below."""
        size, stage = self.at(step)
        bottom, wide = TOP + ROW * len(self.token_ids), (RIGHT - LEFT) / size
        picture = Drawing(WIDTH, bottom + 72, self.caption(step))
        for rank, share in enumerate(self.shares[size]):
            x, last = LEFT + rank * wide, min(share.end, self.vocab_size) - 1
            with picture.group(f"rank {rank}", rank=rank, start=share.start, end=share.end):
                lines = (f"rank {rank}", f"{share.start}", f"to {last}" if last >= share.start else "nothing")
                for n, line in enumerate(lines):
                    picture.text(x + wide / 2, 16 + 17 * n, line, SMALL, anchor="middle", bold=not n, mono=bool(n))
            for n in range(len(self.token_ids)):
                self._draw_cell(picture, (x, TOP + ROW * n, wide), rank, n, size)
        for n, (text, token_id) in enumerate(zip(self.texts, self.token_ids, strict=True)):
            y = TOP + ROW * n + 15
            picture.text(84, y, fit(visible(text), 84, SMALL), SMALL, anchor="end", mono=True)
            picture.text(LEFT - 8, y, str(token_id), SMALL, anchor="end", mono=True)
            if stage >= 1:
                self._draw_total(picture, y - 15, n, size, stage == 1)
        if stage == 0:
            picture.rect(LEFT - 2, TOP - 3, RIGHT - LEFT + 4, ROW * len(self.token_ids) + 3, None, VERMILION, 3)
        if stage == 2:
            self._draw_logits(picture, bottom + 14, size)
        return picture

    def _draw_cell(self, picture: Drawing, place: tuple[float, float, float], rank: int, n: int, size: int) -> None:
        """What a rank has for a token: a row of its own, zeros, or an error."""
        (x, y, wide), share = place, self.shares[size][rank]
        number = share.found[n]
        text, style = "0", EMPTY
        if isinstance(number, str):
            text, style = number, Style(VERMILION)
        elif number:
            text, style = str(number - 1 - share.start), Style(color_of(rank % 5))
        with picture.group(f"token {self.token_ids[n]} on rank {rank}: {text}", token=n, on=rank, found=number):
            block(picture, x + 2, y, wide - 4, [(style, 1)], [text])

    def _draw_total(self, picture: Drawing, y: float, n: int, size: int, is_now: bool) -> None:
        total, token_id = self.total(size, n), self.token_ids[n]
        is_right = total == token_id + 1
        arrow(picture, RIGHT + 3, y + 10, RIGHT + 16, y + 10, strong=is_now)
        with picture.group("the sum of all ranks", sum=n, right=int(is_right)):
            block(picture, RIGHT + 20, y, 62, [(Style(color_of(5) if is_right else VERMILION), 1)],
                  [f"row\u00a0{token_id}" if is_right else "wrong"])  # fmt: skip
        if not n:
            picture.text(RIGHT + 51, y - 8, "sum", SMALL, anchor="middle", bold=True)

    def _draw_logits(self, picture: Drawing, y: float, size: int) -> None:
        """The parts side by side, as rank 0 gets them, and the padding at the end."""
        wide, cut = (RIGHT - LEFT) / size, self.padding(size)
        picture.text(LEFT - 8, y + 16, "logits", SMALL, anchor="end", bold=True)
        edge = RIGHT  # where the vocabulary ends
        for rank, share in enumerate(self.shares[size]):
            x, real = LEFT + rank * wide, max(0, min(share.end, self.vocab_size) - share.start)
            arrow(picture, x + wide / 2, y - 10, x + wide / 2, y, strong=True)
            room = 0.0 if real == share.num_logits else min(26.0, wide / 2) if real else wide
            with picture.group(f"logits of rank {rank}", logits=share.num_logits, real=real):
                if real:
                    block(picture, x, y + 2, wide - room, [(Style(color_of(rank % 5)), 1)], [f"{real}"])
                if room:
                    edge = min(edge, x + wide - room)
                    block(picture, x + wide - room, y + 2, room, [(FREE, 1)])
        if cut:
            with picture.group(f"{cut} are cut", cut=cut):
                picture.line(edge, y - 2, edge, y + 26, VERMILION, 3)
            picture.text(RIGHT + 4, y + 16, f"{cut} cut off", SMALL, bold=True)
        picture.line(LEFT, y + 30, RIGHT, y + 30, BORDER)
        picture.text(LEFT, y + 48, f"{self.vocab_size:,} logits on rank 0, one for each token of the vocabulary", SMALL)
