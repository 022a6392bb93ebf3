"""Pictures on which a guess is made: a box is clicked, boxes are put in order, or a bar is dragged.

`predict` asks with such a picture and `reveal` shows the guess and the truth on it. What the browser does in between
is in `hands.js`: it writes the guess as text into the form's field, and never knows the truth.
"""

# What a subclass of Picture says is documented there.
# ruff: noqa: D102

import html
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .drawing import BORDER, PALETTE, SMALL, VERMILION, Drawing, color_of, ink_on
from .player import CSS
from .shapes import Style, block

STYLE = CSS + Path(__file__).with_name("hands.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("hands.js").read_text(encoding="utf-8")
WIDTH = 612.0
YOURS, TRUE = VERMILION, PALETTE[2]  # and dashed the one, solid the other
LINE = 16.0


class Picture:
    """A picture to guess on.

    `choices` are the names of what can be clicked, none if the guess is a number; `in_order` tells whether all of them
    are to be put in order. A guess and the truth are a name, names in order, or a number.
    """

    choices: Sequence[str] = ()
    in_order = False
    hint = ""

    def draw(self, guess: Any = None, truth: Any = None) -> Drawing:
        """The picture with a guess; while there is no truth, it is to be clicked."""
        raise NotImplementedError

    def html(self, guess: Any = None, truth: Any = None) -> str:
        """The picture for a page, in its theme."""
        kind = "order" if self.in_order else "choose" if self.choices else "drag"
        live = f" data-kind={kind} data-live" if truth is None else ""
        hint = f"<div class='nv-hint'>{html.escape(self.hint)}</div>" if truth is None else ""
        body = f'<div class="nv-stage">{self.draw(guess, truth).svg()}</div>'
        return f'<div class="nv nv-hand"{live}><style>{STYLE}</style>{body}{hint}</div>'

    def script(self) -> str:
        """What makes the picture answer to the mouse and to keys."""
        return f"<script>{SCRIPT}</script>"


class Boxes(Picture):
    """Boxes beside each other: one is chosen, or all are put in order.

    Args:
        boxes: the names; or for each name what is in its box: a number of slots, the texts of slots, or parts that are
            filled, each (left, top, width, height) from 0 to 1.
        in_order: whether all are to be put in order.
        owner: number of the sequence whose blocks they are, which decides their color; None leaves them empty.
    """

    def __init__(
        self,
        boxes: Sequence[str] | Mapping[str, Any],
        in_order: bool = False,
        owner: int | None = None,
    ) -> None:
        self.boxes: dict[str, Any] = dict(boxes) if isinstance(boxes, Mapping) else dict.fromkeys(boxes, 1)
        self.choices, self.in_order, self.owner = list(self.boxes), in_order, owner
        keys = "Or with the keyboard: arrow keys, and Enter."
        many = "Click all of them, the first one first; a second click takes one back."
        self.hint = f"{many if in_order else 'Click one.'} {keys}"

    def draw(self, guess: Any = None, truth: Any = None) -> Drawing:
        per_row = min(len(self.choices), 8 if len(self.choices) > 6 else 6)
        pitch = min(WIDTH / per_row, 150.0)
        width = pitch - 18
        names = {name: textwrap.wrap(name, max(6, int(width / 6.6))) for name in self.choices}
        above, size = LINE + 10, 44.0 if self._has_parts() else 26.0
        height = above + size + LINE * (max(map(len, names.values())) + (truth is not None)) + 12
        picture = Drawing(WIDTH, height * -(-len(self.choices) // per_row), "the boxes to choose from")
        for n, name in enumerate(self.choices):
            x, y = 8 + n % per_row * pitch, n // per_row * height + above
            mine, true = self._mark(guess, name, "your guess"), self._mark(truth, name, "it is")
            chosen = {"chosen": ""} if mine else {}
            with picture.group(name, focusable=True, choice=name, **chosen):
                self._fill(picture, name, x, y, width, size)
                if truth is None or mine:
                    with picture.group(frame=""):
                        picture.rect(x - 4, y - 4, width + 8, size + 8, None, YOURS, 3, dashed=True)
                        picture.text(x + width / 2, y - 8, mine or " ", SMALL, None, "middle", bold=True)
                for k, line in enumerate(names[name]):
                    picture.text(x + width / 2, y + size + LINE * (k + 1), line, SMALL, None, "middle")
                line_y = y + size + LINE * (len(names[name]) + 1)
                if true and not self.in_order:
                    picture.rect(x - 1, y - 1, width + 2, size + 2, None, TRUE, 3)
                    true = f"✓ {true}"
                elif true and mine:
                    true += " ✓" if true.split()[-1] == mine.split()[-1] else " ≠"
                picture.text(x + width / 2, line_y, true, SMALL, None, "middle", bold=True)
        return picture

    def _has_parts(self) -> bool:
        return any(not isinstance(what, int) and what and not isinstance(what[0], str) for what in self.boxes.values())

    def _mark(self, value: object, name: str, word: str) -> str:
        """What is said of a box in a guess or the truth."""
        if not self.in_order:
            return word if value == name else ""
        names = str(value or "").split(", ")
        return f"{'yours' if word == 'your guess' else 'is'}: no. {names.index(name) + 1}" if name in names else ""

    def _fill(self, picture: Drawing, name: str, x: float, y: float, width: float, height: float) -> None:
        what = self.boxes[name]
        style = Style(None if self.owner is None else color_of(self.owner))
        if self._has_parts():
            picture.rect(x, y, width, height)
            for left, top, wide, high in what:
                box = (x + left * width, y + top * height, wide * width, high * height)
                picture.rect(*box, color_of(1), BORDER, hatch=True)
            return
        texts = [] if isinstance(what, int) else [str(text) for text in what]
        count = what if isinstance(what, int) else len(texts)
        block(picture, x, y, width, [(style, count)], texts, height)


class Bars(Picture):
    """Bars of which one is dragged to where one expects its end.

    Args:
        name: of the bar that is asked for.
        top: where the scale ends.
        known: the lengths of other bars, drawn above it.
        unit: of the numbers.
        step: the smallest difference that counts.
    """

    LEFT, RIGHT, ROW = 150.0, 66.0, 30.0

    def __init__(
        self, name: str, top: float, known: Mapping[str, float] | None = None, unit: str = "", step: float = 1
    ) -> None:
        self.name, self.top, self.known, self.unit, self.step = name, top, dict(known or {}), unit, step
        self.hint = "Drag the end of the bar. Or with the keyboard: arrow keys, and Page Up and Page Down."

    def _x(self, value: float) -> float:
        return (WIDTH - self.LEFT - self.RIGHT) * min(max(value / self.top, 0.0), 1.0)

    def _say(self, value: float) -> str:
        return f"{value:,.{0 if value == round(value) else 1}f} {self.unit}".strip()

    def draw(self, guess: Any = None, truth: Any = None) -> Drawing:
        picture = Drawing(WIDTH, self.ROW * (len(self.known) + 1 + (truth is not None)) + 24, "the bars")
        y = 4.0
        for name, value in self.known.items():
            self._row(picture, name, y, value, color_of(1))
            y += self.ROW
        number = guess if isinstance(guess, int | float) else None
        if truth is None:
            self._handle(picture, y, number)
        else:
            self._row(picture, f"{self.name}: you", y, number, None)
            y += self.ROW
            self._row(picture, f"{self.name}: it is", y, float(truth), TRUE)
        y += self.ROW
        for share in (0.0, 0.5, 1.0):
            x = self.LEFT + self._x(self.top * share)
            picture.line(x, y - 6, x, y, BORDER)
            picture.text(x, y + 13, self._say(self.top * share), SMALL, None, "middle")
        return picture

    def _name(self, picture: Drawing, name: str, y: float) -> None:
        lines = textwrap.wrap(name, 22)[:2]
        for k, line in enumerate(lines):
            picture.text(self.LEFT - 8, y + 16 + 13 * (k - (len(lines) - 1) / 2), line, SMALL, None, "end")

    def _row(self, picture: Drawing, name: str, y: float, value: float | None, fill: str | None) -> None:
        self._name(picture, name, y)
        width = self._x(value or 0)
        picture.rect(self.LEFT, y, width, 22, fill, YOURS if fill is None else BORDER, 2, fill is None, fill is None)
        text = "no guess" if value is None else self._say(value)
        inside = width > self._x(self.top) - 10
        x, ink = self.LEFT + width + (-6 if inside else 6), ink_on(fill) if inside else None
        picture.text(x, y + 16, text, SMALL, ink, "end" if inside else "start", bold=True)

    def _handle(self, picture: Drawing, y: float, value: float | None) -> None:
        """The bar that is dragged; the script moves its parts."""
        self._name(picture, self.name, y)
        whole, width = self._x(self.top), self._x(value or 0)
        data = {"left": self.LEFT, "width": whole, "top": self.top, "step": self.step, "unit": self.unit}
        with picture.group(self.name, focusable=True, bar=self.name, **data):
            picture.rect(self.LEFT, y, whole, 22, dashed=True)
            with picture.group(fill=""):
                picture.rect(self.LEFT, y, width, 22, YOURS, None)
            with picture.group(knob=""):
                picture.rect(self.LEFT + width - 4, y - 4, 8, 30, "#fff", VERMILION, 2)
            with picture.group(said=""):
                text = "?" if value is None else self._say(value)
                picture.text(WIDTH - self.RIGHT + 10, y + 16, text, SMALL, bold=True)
