"""A query and a key as arrows: each pair of features turns with the position, and what is left of that in the score.

All angles come from the table of a `RotaryEmbedding`, the engine's own by default.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..layers.rotary_embedding import RotaryEmbedding, get_rope
from .drawing import BORDER, SMALL, VERMILION, Drawing, color_of
from .shapes import LegendItem, Style, arrow, axis, block, legend, legend_html
from .step_widget import Frame, StepWidget

WIDTH, LEFT, RIGHT = 640.0, 60.0, 624.0
RADIUS, DIAL, TOP = 56.0, 158.0, 86.0
CURVE_TOP, CURVE = 246.0, 96.0
FAR = 1000  # how far both move at the end
LEGEND: list[LegendItem] = [
    ("q", "the query's pair, thick", None),
    ("k", "the key's pair, thin", None),
    ("new", "the score now", None),
]
CIRCLE = [math.tau * n / 28 for n in range(29)]


class RopeView(StepWidget):
    """A stepper: first the query moves away from the key, then both move on together.

    Args:
        q, k: a query and a key before they are rotated, [head_dim] each; by default every arrow points to the right.
        rotary: whose table is used; by default that of qwen3-tiny.
        pairs: which pairs are drawn, four at most.
        most: the largest distance.
    """

    title, unit, pace = "rotary embedding", "move", 500

    def __init__(
        self,
        q: Sequence[float] | Tensor | None = None,
        k: Sequence[float] | Tensor | None = None,
        rotary: RotaryEmbedding | None = None,
        pairs: Sequence[int] = (0, 4, 8, 16),
        most: int = 16,
    ) -> None:
        self.rotary = rotary or get_rope(64, 2048, 10_000.0)
        half = self.rotary.cos_sin_cache.shape[-1] // 2
        right = torch.cat((torch.ones(half), torch.zeros(half)))
        self.q, self.k = (right if x is None else torch.as_tensor(x).float() for x in (q, k))
        self.pairs, self.most = tuple(pairs), most
        self.places = [(n, 0) for n in range(most + 1)]
        self.places += [(most + n, n) for n in range(1, most // 2 + 1)]
        if most + FAR < len(self.rotary.cos_sin_cache):
            self.places.append((most + FAR, FAR))
        self.curve = [self.score(n, 0) for n in range(most + 1)]
        super().__init__()

    def turned(self, q_at: int, k_at: int) -> tuple[Tensor, Tensor]:
        """The query and the key, rotated to two positions by the engine."""
        both = torch.stack((self.q, self.k)).unsqueeze(1)
        q, _ = self.rotary(torch.tensor([q_at, k_at]), both, both)
        return q[0, 0], q[1, 0]

    def score(self, q_at: int, k_at: int) -> float:
        """Their dot product there."""
        q, k = self.turned(q_at, k_at)
        return float(q @ k)

    @property
    def num_steps(self) -> int:
        return len(self.places)

    def first_step(self) -> int:
        return min(3, self.most)

    def label(self, step: int) -> str:
        return "query at {:,}, key at {:,}".format(*self.places[step])

    def caption(self, step: int) -> str:
        q_at, k_at = self.places[step]
        moved = "Both have moved on. " if k_at else ""
        return f"{moved}The query is at position {q_at:,}, the key at {k_at:,}: q . k = {self.score(q_at, k_at):.3f}."

    def default_bookmarks(self) -> dict[str, int]:
        marks = {"same place": 0, "far apart": self.most, "both move": self.most + 1}
        return marks | ({f"{FAR:,} further": len(self.places) - 1} if self.places[-1][1] == FAR else {})

    def still_steps(self) -> list[int]:
        return [self.first_step(), self.num_steps - 1]

    def footer(self) -> str:
        long = f"{len(self.rotary.cos_sin_cache):,} positions"
        return f"angles from the engine's table, {long}; in each circle, the longer arrow reaches the edge"

    def draw(self, step: int) -> Frame:
        return Frame((self._draw(step),), legend_html(LEGEND))

    def still_rows(self, step: int) -> list[list[Drawing]]:
        return [[self._draw(step)], [legend(LEGEND, WIDTH)]]

    def _draw(self, step: int) -> Drawing:
        q_at, k_at = self.places[step]
        picture = Drawing(WIDTH, CURVE_TOP + CURVE + 42, self.caption(step))
        for n, pair in enumerate(self.pairs[:4]):
            self._draw_dial(picture, DIAL * (n + 0.5), pair, q_at, k_at)
        self._draw_curve(picture, q_at, k_at)
        return picture

    def _draw_dial(self, picture: Drawing, x: float, pair: int, q_at: int, k_at: int) -> None:
        """One pair of the query and of the key, as hands of a clock."""
        half = len(self.q) // 2
        points = [(float(v[pair]), float(v[pair + half])) for v in self.turned(q_at, k_at)]
        longest = max(math.hypot(*point) for point in points) or 1.0
        speed = math.acos(max(-1.0, min(1.0, float(self.rotary.cos_sin_cache[1, 0, pair]))))
        picture.text(x, 16, f"pair {pair}", anchor="middle", bold=True)
        around = [(RADIUS * math.cos(a), RADIUS * math.sin(a)) for a in CIRCLE]
        lines = [(*one, *other) for one, other in pairwise(around)]
        picture.shapes.append({"kind": "hatch", "x": x, "y": TOP, "lines": lines})
        part = sum(a * b for a, b in zip(*points, strict=True))
        degrees = [math.degrees(speed * at) % 360 for at in (q_at, k_at)]
        with picture.group(f"pair {pair}", pair=pair, part=f"{part:.4f}", q_turned=f"{degrees[0]:.1f}"):
            for name, (first, second) in zip("kq", points[::-1], strict=True):
                end = x + RADIUS * first / longest, TOP - RADIUS * second / longest
                arrow(picture, x, TOP, *end, strong=name == "q")
                ux, uy = (end[0] - x) / RADIUS, (end[1] - TOP) / RADIUS
                # The query's letter at its tip, the key's beside the middle of its arrow: they never meet.
                spot = (x + 1.18 * (end[0] - x), TOP + 1.18 * (end[1] - TOP) + 5)
                spot = spot if name == "q" else (x + 32 * ux - 11 * uy, TOP + 32 * uy + 11 * ux + 5)
                picture.text(*spot, name, color=VERMILION if name == "q" else None, anchor="middle", bold=True)
        for n, line in enumerate((
            f"{math.degrees(speed):.3g}° a position",
            f"turned {degrees[0]:.0f}° and {degrees[1]:.0f}°",
            f"its part: {part:+.2f}",
        )):  # fmt: skip
            picture.text(x, TOP + RADIUS + 30 + 17 * n, line, SMALL, anchor="middle")

    def _draw_curve(self, picture: Drawing, q_at: int, k_at: int) -> None:
        """The score over the distance, and where it is now."""
        low, high = min(0.0, *self.curve), max(0.0, *self.curve)
        xs = [LEFT + (RIGHT - LEFT) * n / self.most for n in range(self.most + 1)]
        ys = [CURVE_TOP + CURVE * (high - score) / ((high - low) or 1.0) for score in (*self.curve, 0.0)]
        picture.text(0, CURVE_TOP - 14, "score q . k, the sum over all pairs, by distance", bold=True)
        picture.line(LEFT, ys[-1], RIGHT, ys[-1], BORDER, 1, dashed=True)
        for value, y in ((high, CURVE_TOP), (low, CURVE_TOP + CURVE)):
            picture.text(LEFT - 8, y + 4, f"{value:.2g}", SMALL, anchor="end", mono=True)
        for n in range(self.most):
            picture.line(xs[n], ys[n], xs[n + 1], ys[n + 1], color_of(1), 2)
        distance, score = q_at - k_at, self.score(q_at, k_at)
        y = CURVE_TOP + CURVE * (high - score) / ((high - low) or 1.0)
        with picture.group(f"distance {distance}: {score:.3f}", distance=distance, score=f"{score:.4f}"):
            block(picture, xs[distance] - 5, y - 5, 10, [(Style(VERMILION), 1)], height=10)
        marks = [(x, str(n)) for n, x in enumerate(xs)]
        axis(picture, xs, CURVE_TOP + CURVE + 10, marks)
        picture.text(RIGHT, CURVE_TOP + CURVE + 38, "distance", SMALL, anchor="end")
