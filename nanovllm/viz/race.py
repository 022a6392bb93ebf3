"""A race of two that write the same text: every token stands there when it was measured to come."""

import datetime
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from .drawing import MONO_WIDTH, SMALL, Drawing, color_of, visible
from .shapes import FREE, ROW, LegendItem, Style, axis, block, legend, legend_html, playhead, round_ticks
from .step_widget import Frame, StepWidget

WIDTH, LEFT, RIGHT = 640.0, 84.0, 628.0
MOMENTS = 60  # frames after the first
SLOWEST_PLAY = 100  # milliseconds a frame, at least, so that somebody can see something
LEGEND: list[LegendItem] = [("prefill", "computed for the first time", "#C0C0C0"), ("waiting", "computed again", None)]


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

    def num_shown(self, time: float) -> int:
        """Tokens that are there after `time` seconds."""
        return sum(arrival <= time for arrival in accumulate(self.seconds))

    def num_again(self, step: int) -> int:
        """Of the tokens computed in a step, those that had been computed before: all but one, later than the first."""
        return max(0, self.computed[step] - 1) if step else 0


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
            lengths = {len(values) for values in runner[1:]}
            if len(lengths) > 1 or lengths == {0} or min(runner.seconds) < 0:
                raise ValueError(f"{runner.name!r} needs a text, a time from 0 on and a number for each of its tokens")
        self.runners, self.prompt = list(runners), prompt
        self.ends = [list(accumulate(runner.seconds))[-1] for runner in runners]
        self.total = max(self.ends)
        self.made = f"RECORDED {recorded}" if recorded else f"MEASURED NOW on {this_machine()}"
        self.pace = max(round(1000 * self.total / MOMENTS), SLOWEST_PLAY)
        self._lines = max(1 + max(line for _, line in places(runner.texts)) for runner in runners)
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
        parts = []
        for runner in self.runners:
            shown, count = runner.num_shown(self.time(step)), len(runner.texts)
            parts.append(f"{runner.name}: {f'all {count}' if shown == count else f'{shown} of {count}'} tokens")
        return f"After {self.time(step):.2f} s, " + "; ".join(parts) + "."

    def default_bookmarks(self) -> dict[str, int]:
        steps = range(MOMENTS + 1)
        return {
            f"{runner.name} is done": next(step for step in steps if self.time(step) >= end)
            for end, runner in sorted(zip(self.ends, self.runners, strict=True), key=lambda pair: pair[0])
        }

    def footer(self) -> str:
        slowness = self.pace * MOMENTS / (1000 * self.total or 1)
        played = f"played {slowness:.1f} times as slowly" if slowness > 1.05 else "played as fast as it was"
        return f"{self.made}; {played}"

    def draw(self, step: int) -> Frame:
        return Frame((self._draw(step),), legend_html(LEGEND))

    def still_rows(self, step: int) -> list[list[Drawing]]:
        return [[self._draw(step)], [legend(LEGEND, WIDTH)]]

    def _draw(self, step: int) -> Drawing:
        time, height = self.time(step), 78 + 22 * self._lines
        picture = Drawing(WIDTH, 24 + height * len(self.runners) + 22, self.caption(step))
        picture.text(0, 14, self.prompt if len(self.prompt) < 90 else "…" + self.prompt[-89:], italic=True)
        now = LEFT + (RIGHT - LEFT) * time / (self.total or 1)
        playhead(picture, 24, picture.height - 20, (now - 1, 2))
        for n, runner in enumerate(self.runners):
            self._draw_lane(picture, runner, time, 24.0 + n * height, color_of(1 - n if n < 2 else n))
        ticks = [tick for tick in round_ticks(100 * self.total)]
        marks = [(LEFT + (RIGHT - LEFT) * tick / 100 / (self.total or 1), f"{tick / 100:g}") for tick in ticks]
        axis(picture, (LEFT, RIGHT), picture.height - 20, marks)
        picture.text(0, picture.height - 6, "seconds", SMALL)
        return picture

    def _draw_lane(self, picture: Drawing, runner: Runner, time: float, y: float, fill: str) -> None:
        shown, count = runner.num_shown(time), len(runner.texts)
        again = sum(runner.num_again(step) for step in range(shown))
        with picture.group(lane=runner.name, shown=shown, computed=sum(runner.computed[:shown]), again=again):
            picture.text(0, y + 16, runner.name, 15, bold=True)
            told = f"{shown} of {count} tokens; computed {sum(runner.computed[:shown]):,}, of these {again:,} again"
            picture.text(LEFT, y + 16, told)
            for text, (x, line) in list(zip(runner.texts, places(runner.texts), strict=True))[:shown]:
                block(picture, x, y + 24 + 22 * line, width_of(text), [(Style(fill), 1)], [text])
            y += 28 + 22 * self._lines
            picture.text(0, y + 13, "this step" if shown < count else "done", SMALL)
            if shown < count:  # what is being computed
                n, old, slot = runner.computed[shown], runner.num_again(shown), (RIGHT - LEFT) / max(*runner.computed, 60)
                block(picture, LEFT, y, n * slot, [(FREE, old), (Style(fill), n - old)][not old :], height=16)
            for arrival in list(accumulate(runner.seconds))[:shown]:
                x = LEFT + (RIGHT - LEFT) * arrival / (self.total or 1)
                picture.line(x, y + 22, x, y + ROW + 14, fill, 1.5)


def width_of(text: str) -> float:
    """Of the box of a token."""
    return 8 + SMALL * MONO_WIDTH * len(visible(text.removeprefix(" ")))


def places(texts: Sequence[str]) -> list[tuple[float, int]]:
    """Where the boxes of tokens stand, (x, line): side by side, as far as the line goes."""
    found, x, line = list[tuple[float, int]](), LEFT, 0
    for width in map(width_of, texts):
        if x + width > RIGHT and x > LEFT:
            x, line = LEFT, line + 1
        found.append((x, line))
        x += width + 2
    return found


def this_machine() -> str:
    """The processor, the threads and the version of torch that were measured with, and when."""
    import torch

    from .measure import cpu_name

    threads = torch.get_num_threads()
    when = datetime.datetime.now().strftime("%Y-%m-%d %H:%M")
    return f"{cpu_name()}, {threads} thread{'s' * (threads > 1)}, torch {torch.__version__}, {when}"
