"""The roofline: what a step can reach at most, by the operations that it makes with each byte it moves."""

# What a subclass says is documented in StepWidget.
# ruff: noqa: D102

import math
from collections.abc import Sequence
from typing import NamedTuple

from .drawing import BORDER, PALETTE, SMALL, VERMILION, Drawing, color_of
from .shapes import legend, legend_html, table_html
from .step_widget import Frame, StepWidget

WIDTH, HEIGHT = 640.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 628.0, 12.0, 284.0
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


class Machine(NamedTuple):
    """A roof.

    Args:
        name: as the picture calls it.
        bytes_per_second, operations_per_second: how fast it moves and how fast it computes.
        made: where these two come from, for the footer.
        element_size: bytes of a weight, or of a number in the cache, there.
    """

    name: str
    bytes_per_second: float
    operations_per_second: float
    made: str = ""
    element_size: int = 2

    @property
    def bend(self) -> float:
        """Operations a byte from which on arithmetic is the limit."""
        return self.operations_per_second / self.bytes_per_second

    def reaches(self, intensity: float) -> float:
        """Operations a second, at most."""
        return min(self.operations_per_second, intensity * self.bytes_per_second)

    def intensity(self, work: "Work") -> float:
        """Operations that a step makes here with each byte: half as many where a number has 4 bytes."""
        return work.intensity * 2 / self.element_size

    def least(self, work: "Work") -> float:
        """Seconds that a step takes at least."""
        return work.operations / self.reaches(self.intensity(work))


class Work(NamedTuple):
    """A step: what it computes and moves at least, and how long it took where it was measured.

    Args:
        name: "decode, batch 8".
        operations, moved: of the step; bytes, if each number has 2 of them.
        tokens: that it computes.
        seconds: measured, by the machine's name.
    """

    name: str
    operations: float
    moved: float
    tokens: int
    seconds: dict[str, float]

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.moved


class Roofline(StepWidget):
    """Roofs of some machines, and a work under them that moves from step to step.

    Args:
        machines: the first is the one that the caption is about.
        works: a step of the widget each.

    Raises:
        ValueError: there is no machine or no work, or one of their numbers is not above 0.
    """

    title, unit = "roofline", "step"

    def __init__(self, machines: Sequence[Machine], works: Sequence[Work]) -> None:
        values = [value for machine in machines for value in machine[1:3]] + [v for w in works for v in w[1:4]]
        if not machines or not works or not all(value > 0 for value in values):
            raise ValueError("a roofline needs machines and works, and all of their numbers above 0")
        self.machines, self.works = list(machines), list(works)
        ends = [machine.intensity(work) for machine in machines for work in works]
        ends += [machine.bend for machine in machines]
        self.xs = (math.floor(math.log10(min(ends)) - 0.2), math.ceil(math.log10(max(ends)) + 0.2))
        tops = [machine.operations_per_second for machine in machines]
        lows = [machine.reaches(10 ** self.xs[0]) for machine in machines]
        self.ys = (math.floor(math.log10(min(lows))), math.ceil(math.log10(max(tops)) + 0.1))
        super().__init__()

    @property
    def num_steps(self) -> int:
        return len(self.works)

    def label(self, step: int) -> str:
        return self.works[step].name

    def default_bookmarks(self) -> dict[str, int]:
        return {work.name: step for step, work in enumerate(self.works)}

    def still_steps(self) -> list[int]:
        return [self.step]

    def caption(self, step: int) -> str:
        work, machine = self.works[step], self.machines[0]
        intensity = machine.intensity(work)
        share = machine.reaches(intensity) / machine.operations_per_second
        limit = "memory" if intensity < machine.bend else "arithmetic"
        return (
            f"{intensity:,.1f} operations a byte. {machine.name}: at most {percent(share)} of its "
            f"arithmetic can be in use; the limit is {limit}."
        )

    def footer(self) -> str:
        return "; ".join(f"{machine.name}: {machine.made}" for machine in self.machines if machine.made)

    def draw(self, step: int) -> Frame:
        heads = ["", "operations a byte", "least", "measured", "of the roof", "tokens/s at most"]
        return Frame((self._draw(step),), legend_html(self.legend()) + table_html(heads, self.rows(step)))

    def still_rows(self, step: int) -> list[list[Drawing]]:
        return [[self._draw(step)], [legend(self.legend(), WIDTH)]]

    def legend(self) -> list[tuple[str, str, str | None]]:
        marks: list[tuple[str, str, str | None]] = [("prefill", "this step, on the roof", VERMILION)]
        if any(work.seconds for work in self.works):
            marks.append(("prefill", "as it was measured", PALETTE[4]))
        return marks

    def rows(self, step: int) -> list[list[str]]:
        """For each machine: the least time of the step, the measured one, and what follows."""
        work, rows = self.works[step], []
        for machine in self.machines:
            least, intensity = machine.least(work), f"{machine.intensity(work):,.1f}"
            seconds = work.seconds.get(machine.name)
            measured = (milliseconds(seconds), percent(least / seconds)) if seconds else ("-", "-")
            rows.append([machine.name, intensity, milliseconds(least), *measured, f"{work.tokens / least:,.0f}"])
        return rows

    def x_at(self, intensity: float) -> float:
        """Where it stands on the axis."""
        return LEFT + (RIGHT - LEFT) * (math.log10(intensity) - self.xs[0]) / (self.xs[1] - self.xs[0])

    def y_at(self, speed: float) -> float:
        """Where operations a second stand on the axis."""
        share = (math.log10(speed) - self.ys[0]) / (self.ys[1] - self.ys[0])
        return BOTTOM - (BOTTOM - TOP) * max(0.0, share)

    def _draw(self, step: int) -> Drawing:
        picture, work = Drawing(WIDTH, HEIGHT, self.caption(step)), self.works[step]
        for k in range(self.xs[0], self.xs[1] + 1):
            picture.line(self.x_at(10**k), TOP, self.x_at(10**k), BOTTOM, BORDER, 0.4)
            picture.text(self.x_at(10**k), BOTTOM + 16, f"{10.0**k:g}", SMALL, anchor="middle", mono=True)
        for k in range(self.ys[0], self.ys[1] + 1):
            picture.line(LEFT, self.y_at(10**k), RIGHT, self.y_at(10**k), BORDER, 0.4)
            picture.text(LEFT - 6, self.y_at(10**k) + 4, in_units(10.0**k), SMALL, anchor="end", mono=True)
        picture.text((LEFT + RIGHT) / 2, HEIGHT - 12, "operations a byte", SMALL, anchor="middle")
        picture.text(LEFT + 6, BOTTOM - 6, "upwards: operations a second", SMALL)
        x = self.x_at(self.machines[0].intensity(work))
        picture.line(x, TOP, x, BOTTOM, VERMILION, 2, dashed=True)
        for n, machine in enumerate(self.machines):
            with picture.group(machine.name, machine=machine.name, bend=round(machine.bend, 2)):
                self._draw_roof(picture, machine, color_of(n + 1))
            for i, other in enumerate(self.works):
                with picture.group(other.name, work=i, machine=machine.name, current=int(i == step)):
                    self._draw_work(picture, machine, other, i == step)
        return picture

    def _draw_roof(self, picture: Drawing, machine: Machine, color: str) -> None:
        left, right = 10.0 ** self.xs[0], 10.0 ** self.xs[1]
        bend = (self.x_at(machine.bend), self.y_at(machine.operations_per_second))
        picture.line(self.x_at(left), self.y_at(machine.reaches(left)), *bend, color, 3)
        picture.line(*bend, self.x_at(right), bend[1], color, 3)
        picture.text(self.x_at(right) - 4, bend[1] - 6, machine.name, anchor="end", bold=True)

    def _draw_work(self, picture: Drawing, machine: Machine, work: Work, is_current: bool) -> None:
        size, intensity = 12.0 if is_current else 6.0, machine.intensity(work)
        spots = [(machine.reaches(intensity), VERMILION if is_current else BORDER)]
        if machine.name in work.seconds:
            spots.append((work.operations / work.seconds[machine.name], PALETTE[4]))
        for speed, fill in spots:
            x, y = self.x_at(intensity), self.y_at(speed)
            picture.rect(x - size / 2, y - size / 2, size, size, fill)


def in_units(value: float) -> str:
    """A power of ten, as 100 G."""
    size, letter = next((pair for pair in PREFIXES if value >= pair[0]), (1.0, ""))
    return f"{value / size:g} {letter}".strip()


def milliseconds(seconds: float) -> str:
    """Seconds, as milliseconds with three digits."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{1000 * seconds:,.0f} ms"


def percent(share: float) -> str:
    """A share, with two digits where it is small."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
