"""One token's residual stream on its way through the layers: its numbers before and after each norm.

What comes out is computed by the norms that the picture is given: a learner's, if they are theirs.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .drawing import BORDER, PALETTE, SMALL, VERMILION, Drawing, color_of, fit
from .shapes import LegendItem, axis, block, legend, legend_html
from .shapes import Style as SlotStyle
from .step_widget import Frame, StepWidget

WIDTH, LEFT, RIGHT = 640.0, 64.0, 624.0
CURVE_TOP, CURVE = 26.0, 96.0
PANEL = 92.0
TOPS = {"before": 196.0, "after": 322.0}
COLORS = {"before": color_of(1), "after": PALETTE[2]}
LEGEND: list[LegendItem] = [
    ("prefill", "before the norm", COLORS["before"]),
    ("prefill", "after it", COLORS["after"]),
    ("paused", "plus and minus the root mean square", None),
    ("new", "the norm on show", None),
]


class NormView(StepWidget):
    """A stepper: a norm at a time, from the first layer to the end.

    Args:
        norms: functions of rows, such as `RMSNorm` modules.
        stream: [num_norms, hidden_size]: what one token's stream was before each of them.
        names: where they stand.
        token: the token's text.
    """

    title, unit, pace = "normalization", "norm", 700

    def __init__(
        self, norms: Sequence[Callable[[Tensor], Tensor]], stream: Tensor, names: Sequence[str], token: str = ""
    ) -> None:
        if not len(norms) == len(stream) == len(names):
            raise ValueError(f"{len(norms)} norms, {len(stream)} rows and {len(names)} names do not belong together")
        self.names, self.token = list(names), token
        with torch.inference_mode():
            after = [norm(row.unsqueeze(0))[0].float() for norm, row in zip(norms, stream, strict=True)]
        self.rows = {"before": stream.float(), "after": torch.stack(after)}
        self.sizes = {
            when: [float(row.double().square().mean().sqrt()) for row in rows] for when, rows in self.rows.items()
        }
        super().__init__()

    @property
    def num_steps(self) -> int:
        return len(self.names)

    def first_step(self) -> int:
        return self.num_steps // 2

    def label(self, step: int) -> str:
        return self.names[step]

    def caption(self, step: int) -> str:
        before, after = (self.sizes[when][step] for when in ("before", "after"))
        largest = float(self.rows["before"][step].abs().max())
        return (
            f"Before the norm the root mean square is {_number(before)}, and the largest number {_number(largest)}; "
            f"after it the root mean square is {_number(after)}."
        )

    def default_bookmarks(self) -> dict[str, int]:
        steps = {"the embedding": 0, "in the middle": self.num_steps // 2, "the end": self.num_steps - 1}
        largest = max(range(self.num_steps), key=self.sizes["before"].__getitem__)
        return steps if largest in steps.values() else steps | {"at its largest": largest}

    def still_steps(self) -> list[int]:
        return sorted({0, self.num_steps - 1})

    def footer(self) -> str:
        of = f" of {self.token!r}" if self.token else ""
        return f"{self.rows['before'].shape[1]} features{of}; the green scale is the same at every norm"

    def draw(self, step: int) -> Frame:
        return Frame((self._draw(step),), legend_html(LEGEND))

    def still_rows(self, step: int) -> list[list[Drawing]]:
        return [[self._draw(step)], [legend(LEGEND, WIDTH)]]

    def _draw(self, step: int) -> Drawing:
        picture = Drawing(WIDTH, TOPS["after"] + PANEL + 8, f"{self.names[step]}. {self.caption(step)}")
        self._draw_way(picture, step)
        for when, rows in self.rows.items():
            shown = rows[step] if when == "before" else rows  # a scale of its own, or one for all
            self._draw_row(picture, step, when, float(shown.abs().max()) or 1.0)
        return picture

    def _draw_way(self, picture: Drawing, step: int) -> None:
        """The root mean square before and after every norm, on a logarithmic scale."""
        logs = {when: [math.log10(max(size, 1e-6)) for size in sizes] for when, sizes in self.sizes.items()}
        low = math.floor(min(map(min, logs.values())))
        high = max(low + 1, math.ceil(max(map(max, logs.values()))))
        xs = [LEFT + (RIGHT - LEFT) * n / max(1, self.num_steps - 1) for n in range(self.num_steps)]
        picture.text(0, 12, "root mean square at each norm (each line is ten times the one below)", bold=True)
        for power in range(low, high + 1):
            y = CURVE_TOP + CURVE * (high - power) / (high - low)
            picture.line(LEFT, y, RIGHT, y, BORDER, 0.5, dashed=True)
            picture.text(LEFT - 10, y + 4, f"{10.0**power:g}", SMALL, anchor="end", mono=True)
        for when, values in logs.items():
            ys = [CURVE_TOP + CURVE * (high - value) / (high - low) for value in values]
            for n in range(self.num_steps - 1):
                picture.line(xs[n], ys[n], xs[n + 1], ys[n + 1], COLORS[when], 2, dashed=when == "after")
            for n, (x, y) in enumerate(zip(xs, ys, strict=True)):
                side = 9 if n == step else 5
                mark = SlotStyle(VERMILION if n == step else COLORS[when])
                block(picture, x - side / 2, y - side / 2, side, [(mark, 1)], height=side)
        marks = [(x, str(n)) for n, x in enumerate(xs)]
        axis(picture, [*xs, xs[-1] + 0.1], CURVE_TOP + CURVE + 12, marks)

    def _draw_row(self, picture: Drawing, step: int, when: str, most: float) -> None:
        """All numbers of a row, upward or downward from the middle."""
        row, size, top = self.rows[when][step], self.sizes[when][step], TOPS[when]
        middle, width = top + PANEL / 2, (RIGHT - LEFT) / len(self.rows[when][step])
        what = "before the norm" if when == "before" else "after the norm"
        text = f"{what}: root mean square {_number(size)}"
        picture.text(0, top - 8, fit(text, WIDTH, SMALL), bold=True)
        with picture.group(text, when=when, rms=f"{size:.6g}", most=f"{most:.6g}"):
            for n, value in enumerate(row.tolist()):
                if abs(height := PANEL / 2 * max(-1.0, min(1.0, value / most))) >= 0.3:
                    x = LEFT + width * (n + 0.5)
                    picture.line(x, middle, x, middle - height, COLORS[when], round(max(1.0, 0.8 * width), 1))
        picture.line(LEFT, middle, RIGHT, middle, BORDER)
        for sign in (1, -1):
            y = middle - sign * PANEL / 2 * min(1.0, size / most)
            picture.line(LEFT, y, RIGHT, y, None, 1, dashed=True)
            picture.text(LEFT - 8, middle - sign * (PANEL / 2 - 6) + 4, _number(sign * most), SMALL, anchor="end")


def _number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
