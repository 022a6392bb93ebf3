"""A race of two that write the same text: every token stands there when it was measured to come."""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ..measure import this_machine
from .drawing import MONO_WIDTH, SMALL, Drawing, color_of, visible
from .shapes import FREE, LegendItem, Style, axis, block, legend, legend_html, playhead, round_ticks
from .step_widget import Frame, StepWidget

WIDTH, LEFT, RIGHT = 640.0, 84.0, 628.0
MOMENTS = 60  # frames after the first
SLOWEST_PLAY = 100  # milliseconds a frame, at least, so that somebody can see something
WORDS = ("computed for the first time", "computed again")
LEGEND: list[LegendItem] = [("prefill", WORDS[0], "#C0C0C0"), ("waiting", WORDS[1], None)]


class Runner(NamedTuple):
    """One that writes.

    Args:
        name: as it is called in the picture.
        texts: of the new tokens.
        seconds: that each of them took, measured.
        computed: tokens that were computed for each; the first time, the prompt.
    """

    name: str
    texts: Sequence[str]
    seconds: Sequence[float]
    computed: Sequence[int]

    @property
    def arrivals(self) -> list[float]:
        """Seconds from the start until each token is there."""
        return list(accumulate(self.seconds))

    @property
    def again(self) -> list[int]:
        """Of the tokens computed for each, those computed before: none for the first, then all but one."""
        return [0, *(count - 1 for count in self.computed[1:])]


class Race(StepWidget):
    """Lanes of tokens that appear at their measured times, and below each lane what its current step computes.

    Args:
        runners: usually the loop and the engine.
        prompt: the text that they go on with.
        recorded: where, when and how the times were measured; "" if it was just now, on this machine.

    Raises:
        ValueError: a runner has not one text, time and number for each token, or a time is negative.
    """

    title, unit = "race", "moment"

    def __init__(self, runners: Sequence[Runner], prompt: str, recorded: str = "") -> None:
        for runner in runners:
            if len({len(values) for values in runner[1:]}) > 1 or not runner.texts or min(runner.seconds) < 0:
                raise ValueError(f"{runner.name!r} needs a text, a time from 0 on and a number for each of its tokens")
        self.runners, self.prompt = sorted(runners, key=lambda runner: -runner.arrivals[-1]), prompt
        self.total = self.runners[0].arrivals[-1] or 1.0
        self.made = f"RECORDED {recorded}" if recorded else f"MEASURED NOW on {this_machine()}"
        self.pace = max(round(1000 * self.total / MOMENTS), SLOWEST_PLAY)
        self.height = 100 + 22 * max(places(runner.texts)[-1][1] for runner in runners)  # of a lane
        super().__init__()

    @property
    def num_steps(self) -> int:
        return MOMENTS + 1

    def time(self, step: int) -> float:
        """Seconds from the start."""
        return self.total if step == MOMENTS else self.total * step / MOMENTS

    def label(self, step: int) -> str:
        return f"{self.time(step):.2f} of {self.total:.2f} s"

    def caption(self, step: int) -> str:
        counts = [(r.name, num_shown(r, self.time(step)), len(r.texts)) for r in self.runners]
        told = (f"{name}: {'all ' * (n == count)}{n}{f' of {count}' * (n < count)} tokens" for name, n, count in counts)
        return f"After {self.time(step):.2f} s, " + "; ".join(told) + "."

    def default_bookmarks(self) -> dict[str, int]:
        times = [self.time(step) for step in range(self.num_steps)]
        done = {f"{r.name} is done": sum(time < r.arrivals[-1] for time in times) for r in self.runners}
        return dict(reversed(done.items()))

    def footer(self) -> str:
        slowness = self.pace * MOMENTS / (1000 * self.total)
        played = f"played {slowness:.1f} times as slowly" if slowness > 1.05 else "played as fast as it was"
        return f"{self.made}; {played}"

    def draw(self, step: int) -> Frame:
        return Frame((self._draw(step),), legend_html(LEGEND))

    def still_rows(self, step: int) -> list[list[Drawing]]:
        return [[self._draw(step)], [legend(LEGEND, WIDTH)]]

    def _draw(self, step: int) -> Drawing:
        time = self.time(step)
        picture = Drawing(WIDTH, 46 + self.height * len(self.runners), self.caption(step))
        picture.text(0, 14, self.prompt if len(self.prompt) < 90 else "…" + self.prompt[-89:], italic=True)
        playhead(picture, 24, picture.height - 20, (self.x_at(time) - 1, 2))
        for n, runner in enumerate(self.runners):
            with picture.group(lane=runner.name, shown=num_shown(runner, time)):
                self._draw_lane(picture, runner, num_shown(runner, time), 24.0 + n * self.height, color_of(n))
        ticks = [tick / 100 for tick in round_ticks(100 * self.total)]
        axis(picture, (LEFT, RIGHT), picture.height - 20, [(self.x_at(tick), f"{tick:g}") for tick in ticks])
        picture.text(0, picture.height - 6, "seconds", SMALL)
        return picture

    def x_at(self, time: float) -> float:
        """Where a moment stands on the axis."""
        return LEFT + (RIGHT - LEFT) * time / self.total

    def _draw_lane(self, picture: Drawing, runner: Runner, shown: int, y: float, fill: str) -> None:
        computed, again, count = sum(runner.computed[:shown]), sum(runner.again[:shown]), len(runner.texts)
        picture.text(0, y + 16, runner.name, 15, bold=True)
        picture.text(LEFT, y + 16, f"{shown} of {count} tokens; computed {computed:,}, of these {again:,} again")
        for text, (x, line, width) in list(zip(runner.texts, places(runner.texts), strict=True))[:shown]:
            block(picture, x, y + 24 + 22 * line, width, [(Style(fill), 1)], [text])
        y += self.height - 50
        picture.text(0, y + 13, "this step" if shown < count else "done", SMALL)
        if shown < count:
            squares, old = runner.computed[shown], runner.again[shown]
            runs = [(FREE, old), (Style(fill), squares - old)]
            width = squares * (RIGHT - LEFT) / max(60, *runner.computed)
            block(picture, LEFT, y, width, [run for run in runs if run[1]], height=16)
        for x in map(self.x_at, runner.arrivals[:shown]):
            picture.line(x, y + 22, x, y + 38, fill, 1.5)


def num_shown(runner: Runner, time: float) -> int:
    """Tokens that are there after so many seconds."""
    return sum(arrival <= time for arrival in runner.arrivals)


def places(texts: Sequence[str]) -> list[tuple[float, int, float]]:
    """Boxes of tokens, side by side as far as the line goes: the left edge, the line and the width of each."""
    found, x, line = list[tuple[float, int, float]](), LEFT, 0
    for text in texts:
        width = 8 + SMALL * MONO_WIDTH * len(visible(text.removeprefix(" ")))
        x, line = (LEFT, line + 1) if x + width > RIGHT and x > LEFT else (x, line)
        found.append((x, line, width))
        x += width + 2
    return found
