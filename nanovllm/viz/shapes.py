"""The vocabulary of the pictures: badge, tag, block, tensor, arrow, lane, axis and legend, the same in all of them.

A block is a row of slots, as the KV cache has them; a tensor is rows of cells; a lane is what a sequence did over time.
"""

import html
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from .drawing import BORDER, MONO_WIDTH, SMALL, VERMILION, Drawing, fit, ink_on, visible

PLAYHEAD = VERMILION + "40"  # translucent: it lies under the marks
ROW = 23.0  # height of a lane, and of a row of a block table
SLOT_HEIGHT = 20.0


class Style(NamedTuple):
    """How a slot, a cell or a bar looks. `frame` is a thick orange line inside; `struck` a diagonal."""

    fill: str | None = None
    hatch: bool = False
    dashed: bool = False
    frame: bool = False
    struck: bool = False
    italic: bool = False


EMPTY = Style()
FREE = Style(hatch=True)


def badge(picture: Drawing, x: float, y: float, name: str, fill: str, width: float = 22) -> None:
    """The letter of a sequence on its color, 18 high."""
    picture.rect(x, y, width, 18, fill)
    picture.text(x + width / 2, y + 14, name, color=ink_on(fill), anchor="middle", bold=True)


def tag(picture: Drawing, right: float, y: float, word: str, fill: str) -> None:
    """A word on a color that ends at `right`, its baseline at `y`."""
    width = SMALL * MONO_WIDTH * len(word) + 6
    picture.rect(right - width, y - 12, width, 15, fill)
    picture.text(right - width / 2, y, word, SMALL, ink_on(fill), "middle", mono=True, bold=True)


def block(
    picture: Drawing,
    x: float,
    y: float,
    width: float,
    runs: Sequence[tuple[Style, int]],
    texts: Sequence[str] = (),
    height: float = SLOT_HEIGHT,
) -> None:
    """Slots beside each other: `runs` says how many of which style there are, `texts` what stands in them."""
    count = sum(n for _, n in runs)
    slot, at = width / (count or 1), 0
    for style, n in runs:
        left, hatch = x + at * slot, style.hatch or (style.struck and slot < 8)
        picture.rect(left, y, n * slot, height, style.fill, BORDER, 1, hatch, style.dashed)
        for k in range(n):
            if k and slot >= 3:
                picture.line(left + k * slot, y, left + k * slot, y + height, BORDER)
            if style.struck and not hatch:
                picture.line(left + k * slot, y + height, left + (k + 1) * slot, y, BORDER)
        if style.frame:
            picture.rect(left + 1, y + 1, n * slot - 2, height - 2, None, VERMILION, 3)
        for k in (k for k in range(at, min(at + n, len(texts))) if texts[k]):
            text = fit(visible(texts[k].removeprefix(" ")), slot - 2, SMALL)
            middle, ink = x + (k + 0.5) * slot, ink_on(style.fill)
            picture.text(middle, y + height - 6, text, SMALL, ink, "middle", mono=True, italic=style.italic)
        at += n


def tensor(
    picture: Drawing,
    x: float,
    y: float,
    rows: Sequence[Sequence[tuple[str, Style]]],
    cell_width: float,
    cell_height: float = SLOT_HEIGHT,
    names: Sequence[str] = (),
) -> float:
    """Rows of cells with a text each, and the names of the rows to the left of `x`; returns where it ends below."""
    for n, row in enumerate(rows):
        texts, runs = [text for text, _ in row], [(style, 1) for _, style in row]
        block(picture, x, y, cell_width * len(row), runs, texts, cell_height)
        if n < len(names):
            picture.text(x - 6, y + cell_height - 6, names[n], SMALL, anchor="end")
        y += cell_height
    return y


def arrow(picture: Drawing, x1: float, y1: float, x2: float, y2: float, word: str = "", strong: bool = False) -> None:
    """From one point to another, with a word in the middle; `strong` marks what happens now."""
    color, width = (VERMILION, 3.0) if strong else (BORDER, 1.0)
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 or 1.0
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    picture.line(x1, y1, x2, y2, color, width)
    for side in (4, -4):
        picture.line(x2 - 7 * ux - side * uy, y2 - 7 * uy + side * ux, x2, y2, color, width)
    if word:
        below = 16 if x2 < x1 else -4
        picture.text((x1 + x2) / 2, (y1 + y2) / 2 + below, word, SMALL, None, "middle", bold=strong)


def lane_bar(picture: Drawing, x: float, y: float, width: float, kind: str, fill: str | None, text: str = "") -> None:
    """What a sequence did in one step, on a lane whose top is at `y`."""
    if kind == "failed":
        picture.rect(x, y + 1, width, 20, None, VERMILION, 2)
        picture.line(x, y + 1, x + width, y + 21, VERMILION, 2)
        picture.line(x, y + 21, x + width, y + 1, VERMILION, 2)
        return
    top, height, style = {
        "prefill": (1, 20, Style(fill)),
        "decode": (6, 10, Style(fill)),
        "paused": (6, 10, Style(dashed=True)),
        "waiting": (3, 16, FREE),
    }[kind]
    picture.rect(x, y + top, width, height, style.fill, BORDER, 1, style.hatch, style.dashed)
    if text and width >= SMALL * MONO_WIDTH * len(text) + 2:
        picture.text(x + width / 2, y + 16, text, SMALL, ink_on(style.fill), "middle", mono=True)


def playhead(picture: Drawing, top: float, bottom: float, column: tuple[float, float] | None) -> None:
    """The column of the current step, under all marks; without `column`, it stands where the player puts it."""
    if column:
        picture.rect(column[0], top, column[1], bottom - top, PLAYHEAD, None)
        return
    with picture.group(cursor="yes"):
        picture.rect(0, top, 1, bottom - top, PLAYHEAD, None)


def axis(picture: Drawing, xs: Sequence[float], y: float, marks: Sequence[tuple[float, str]]) -> None:
    """A line from the first to the last of `xs`, and below it texts as far as they have room."""
    picture.line(xs[0], y, xs[-1], y, BORDER)
    last = xs[0] - 100.0
    for x, text in marks:
        if x - last >= 9 * len(text) + 8:
            picture.line(x, y, x, y + 3, BORDER)
            picture.text(x, y + 14, text, SMALL, anchor="middle", mono=True)
            last = x


def round_ticks(total: float, most: int = 8) -> list[float]:
    """Round numbers from 0 to `total`, at most about `most` of them."""
    size = 10.0 ** (len(str(int(max(1.0, total)))) - 2)
    step = next(size * k for k in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if total / (size * k) <= most)
    return [k * step for k in range(int(total / step) + 1)]


def strip(
    picture: Drawing,
    xs: Sequence[float],
    y: float,
    height: float,
    parts: Sequence[tuple[Sequence[float], Style]],
    most: float,
) -> None:
    """Columns over time, the parts of each above each other; `most` is as high as the strip."""
    for i, (left, right) in enumerate(pairwise(xs)):
        bottom = y + height
        for values, style in parts:
            size = values[i] / most * height
            bottom -= size
            if size:
                picture.rect(left, bottom, right - left, size, style.fill, BORDER, 0.7, style.hatch)
    picture.line(xs[0], y, xs[-1], y, BORDER, 1, dashed=True)
    picture.line(xs[0], y + height, xs[-1], y + height, BORDER)


LegendItem = tuple[str, str, str | None]  # kind of a mark, what it means, and its color if it is not always the same


def mark(picture: Drawing, kind: str, fill: str | None, x: float, y: float) -> float:
    """A mark of a legend, 20 high; returns its width.

    The kind is that of a lane's bar, "preempt", "new", "shared", "struck", "tag:word" for a tag, or a letter.
    """
    if kind in ("prefill", "decode", "paused", "waiting", "failed"):
        lane_bar(picture, x, y - 1, 24, kind, fill)
    elif kind.startswith("tag:"):
        width = SMALL * MONO_WIDTH * (len(kind) - 4) + 6
        tag(picture, x + width, y + 14, kind[4:], fill or VERMILION)
        return max(24.0, width)
    elif kind == "new":
        picture.rect(x + 1, y + 3, 22, 13, None, VERMILION, 3)
    elif kind == "shared":
        picture.rect(x, y + 2, 24, 15)
        picture.rect(x + 2, y + 4, 20, 11, fill)
    elif kind == "struck":
        block(picture, x, y + 1, 24, [(Style(fill, struck=True), 1)], height=18)
    elif kind == "preempt":
        preempted(picture, x, y - 1, 24)
    else:
        picture.text(x + 12, y + 14, kind, SMALL, anchor="middle", bold=True)
    return 24.0


def legend(items: Sequence[LegendItem], width: float) -> Drawing:
    """What the marks mean, wrapped."""
    picture, x = Drawing(width, 22, "what the marks mean"), 0.0
    for kind, words, fill in items:
        if x and x + 42 + 6.6 * len(words) > width:
            x, picture.height = 0.0, picture.height + 22
        x += mark(picture, kind, fill, x, picture.height - 22) + 6
        picture.text(x, picture.height - 8, words, SMALL)
        x += 6.6 * len(words) + 12
    return picture


def legend_html(items: Sequence[LegendItem]) -> str:
    """The same as HTML that wraps where the page does."""
    parts = []
    for kind, words, fill in items:
        picture = Drawing(0, 20)
        picture.width = mark(picture, kind, fill, 0.0, 0.0)
        parts.append(f'<span class="nv-key">{picture.svg("nv-mark")}{html.escape(words)}</span>')
    return f'<div class="nv-below nv-legend nv-extra">{"".join(parts)}</div>'


def table_html(heads: Sequence[str], rows: Sequence[Sequence[object]], extra: bool = False) -> str:
    """A table of figures below a picture; what is `extra` gives way on a low projector."""
    lines = [f"<tr>{''.join(f'<th>{html.escape(head)}</th>' for head in heads)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows]
    return f'<table class="nv-below{" nv-extra" if extra else ""}">{"".join(lines)}</table>'


def preempted(picture: Drawing, x: float, y: float, width: float) -> None:
    """A step in which a sequence lost its blocks."""
    picture.rect(x, y + 1, width, 20, VERMILION)
    picture.text(x + width / 2, y + 16, "×", 14, "#000", "middle", bold=True)
