"""A decode step launched kernel by kernel, and the same step replayed from a CUDA graph, at true relative speed.

The times are those of `nanovllm.measure.measure_steps`: recorded on some GPU, or measured just now. Below them stands
the staircase of padding: there is a graph for some batch sizes only, and a batch takes the next larger one.
"""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from .drawing import SMALL, Drawing, color_of
from .shapes import FREE, LegendItem, Style, axis, block, legend, legend_html, playhead, round_ticks, strip
from .step_widget import Frame, StepWidget

WIDTH, LEFT, RIGHT = 640.0, 84.0, 628.0
MOMENTS = 20  # frames of each batch size after the first
MILLISECONDS = 200  # that a frame is shown
NAMES = ("eager", "graph")
LEGEND: list[LegendItem] = [("prefill", "a step, as long as it takes", "#C0C0C0"), ("waiting", "padding", None)]


def load_steps(name: str = "steps_h200") -> dict[str, Any]:
    """Steps that were measured on a GPU, with where, when and how."""
    found: dict[str, Any] = json.loads((files("nanovllm.viz") / "data" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def told(measured: dict[str, Any]) -> str:
    """Where, with what, when and by which command it was measured."""
    versions = [f"{name} {measured[name]}" for name in ("driver", "torch", "triton") if measured.get(name)]
    return (
        f"on {measured['gpu']}, {', '.join(versions)}, {measured['date']}, commit {measured['commit']}, "
        f"by `{measured['command']}`; {measured['model']}, {measured['dtype']}, {measured['attention_backend']}"
    )


class GraphSpeedup(StepWidget):
    """Two lanes on one clock, for each batch size in turn, and the staircase of padding below them.

    Args:
        measured: what `measure_steps` returned; None for what was recorded on an H200.
        sizes: batch sizes that have a graph; None for those of the engine.

    Raises:
        ValueError: no graph is large enough for a batch that was measured.
    """

    title, unit, pace = "graph speedup", "moment", MILLISECONDS

    def __init__(self, measured: dict[str, Any] | None = None, sizes: Sequence[int] | None = None) -> None:
        self.made = "RECORDED" if measured is None else "MEASURED NOW"
        self.measured = load_steps() if measured is None else measured
        self.rows: list[dict[str, Any]] = self.measured["rows"]
        self.largest = max(row["bs"] for row in self.rows)
        self.sizes = sorted(sizes or {row["graph_bs"] for row in self.rows})
        if self.sizes[-1] < self.largest:
            raise ValueError(f"no graph is large enough for a batch of {self.largest}: the sizes are {self.sizes}")
        # The same clock for all: two of the slowest steps fit.
        self.total = 2.1 * max(row["eager_ms"][1] for row in self.rows)
        super().__init__()

    @property
    def num_steps(self) -> int:
        return len(self.rows) * (MOMENTS + 1)

    def at(self, step: int) -> tuple[dict[str, Any], float]:
        """The measured row of a frame, and the milliseconds since its first step began."""
        number, k = divmod(step, MOMENTS + 1)
        return self.rows[number], self.total * k / MOMENTS

    def label(self, step: int) -> str:
        row, time = self.at(step)
        return f"batch of {row['bs']}, {time:.1f} ms"

    def caption(self, step: int) -> str:
        row, time = self.at(step)
        eager, graph = (row[f"{name}_ms"][1] for name in NAMES)
        done = ", ".join(f"{name} {int(time / row[f'{name}_ms'][1])}" for name in NAMES)
        return (
            f"Batch of {row['bs']}: a step takes {eager:.2f} ms eager ({row['kernels_per_step']} kernels) and "
            f"{graph:.2f} ms as a graph, {eager / graph:.1f} times as fast. Steps done after {time:.1f} ms: {done}."
        )

    def first_step(self) -> int:
        return MOMENTS // 2  # the first of the slow steps is done

    def default_bookmarks(self) -> dict[str, int]:
        return {f"batch of {row['bs']}": n * (MOMENTS + 1) for n, row in enumerate(self.rows)}

    def still_steps(self) -> list[int]:
        return [MOMENTS, self.num_steps - 1]

    def footer(self) -> str:
        slower = MOMENTS * MILLISECONDS / self.total
        return f"{self.made} {told(self.measured)}; medians; played {slower:.0f} times as slowly"

    def draw(self, step: int) -> Frame:
        return Frame((self._draw(step),), legend_html(LEGEND))

    def still_rows(self, step: int) -> list[list[Drawing]]:
        return [[self._draw(step)], [legend(LEGEND, WIDTH)]]

    def _draw(self, step: int) -> Drawing:
        row, time = self.at(step)
        picture = Drawing(WIDTH, 300, self.caption(step))
        playhead(picture, 8, 132, (self.x_at(time) - 1, 2))
        for n, name in enumerate(NAMES):
            length, y = row[f"{name}_ms"][1], 16.0 + 56 * n
            done = int(time / length)
            picture.text(0, y + 20, name, 15, bold=True)
            with picture.group(f"{name}: {done} steps", lane=name, done=done, ms=length):
                for k in range(done):
                    fill = Style(color_of(n))
                    block(picture, self.x_at(k * length), y, self.x_at(length) - LEFT, [(fill, 1)], height=28)
                left = self.x_at(done * length)
                block(picture, left, y, self.x_at(time) - left, [(Style(dashed=True), 1)], height=28)
            rate = f"steps done: {done}, tokens: {done * row['bs']:,}; {1000 * row['bs'] / length:,.0f} tokens a second"
            picture.text(LEFT, y + 44, rate, SMALL)
        ticks = round_ticks(self.total)
        axis(picture, (LEFT, RIGHT), 132, [(self.x_at(tick), f"{tick:g}") for tick in ticks])
        picture.text(0, 146, "milliseconds", SMALL)
        self._draw_stairs(picture, row["bs"], 186.0)
        return picture

    def x_at(self, time: float) -> float:
        """Where a moment stands on the axis."""
        return LEFT + (RIGHT - LEFT) * time / self.total

    def _draw_stairs(self, picture: Drawing, batch_size: int, y: float) -> None:
        """Rows that a graph computes, over the batch size: those of sequences, and padding above them."""
        graphs = [min(size for size in self.sizes if size >= n) for n in range(1, self.largest + 1)]
        xs = [LEFT + (RIGHT - LEFT) * n / self.largest for n in range(self.largest + 1)]
        graph = graphs[batch_size - 1]
        spare = sum(graphs) - sum(range(1, self.largest + 1))
        picture.text(0, y - 10, f"rows of the graph, {len(self.sizes)} graphs", bold=True)
        used = [(range(1, self.largest + 1), Style(color_of(1)))]
        parts = [*used, ([size - n for n, size in enumerate(graphs, 1)], FREE)]
        with picture.group(f"padding over all sizes: {spare} rows", stairs=" ".join(map(str, graphs)), padding=spare):
            strip(picture, xs, y, 80, parts, self.largest)
        playhead(picture, y, y + 80, (xs[batch_size - 1], max(2.0, xs[1] - xs[0])))
        axis(picture, xs, y + 80, [(xs[n] - 0.5 * (xs[1] - xs[0]), str(n)) for n in self.sizes])
        picture.text(0, y + 94, "batch size", SMALL)
        words = f"{batch_size} of {graph} rows" if graph > batch_size else f"all {graph} rows"
        picture.text(RIGHT, y - 10, f"a batch of {batch_size} needs {words}", SMALL, anchor="end")
