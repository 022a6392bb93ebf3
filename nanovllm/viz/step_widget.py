"""The base of all widgets: live through ipywidgets, and everywhere else a step player in HTML or a still picture.

One object carries all forms; Jupyter picks the best one that the place can show. Python draws every frame, so nothing
is written twice and a learner can read how a picture is made.
"""

import asyncio
import html
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ipywidgets as w  # type: ignore[import-untyped]
import traitlets as t

from .drawing import Drawing, stack
from .player import CSS, PlayerData, as_base64, html_player

MAX_STILL_HEIGHT = 2400  # of the pictures in a still, in units of a drawing

Answer = str | int | Callable[[int], Any]


class Frame(NamedTuple):
    """What one step shows: the picture, and HTML below it."""

    drawing: Drawing
    below: str = ""


class Question(NamedTuple):
    """What has to be predicted before a step shows."""

    question: str
    answer: str


class StepWidget(w.VBox):
    """A picture with steps.

    Subclasses say what a step shows: `num_steps`, `draw(step)`, `caption(step)`, and whatever of the rest differs.
    `widget.step = 9` moves it, `traitlets.link((a, "step"), (b, "step"))` or `a.follow(b)` ties two together.

    Args:
        predict: ask `default_questions` before the steps that answer them.
        **kwargs: go to `ipywidgets.VBox`.
    """

    step = t.Int(0)
    title = "steps"
    unit = "step"

    def __init__(self, predict: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.group = ""
        self.questions: dict[int, Question] = {}
        self.answers: dict[int, str] = {}
        self.bookmarks: dict[str, int] = self.default_bookmarks()
        self.add_class("nv")
        self._make_controls()
        if predict:
            for step, question in self.default_questions().items():
                self.ask(step, question.question, question.answer)
        self.refresh()

    # What a subclass says.

    @property
    def num_steps(self) -> int:
        """How many steps there are; the first is 0."""
        raise NotImplementedError

    def draw(self, step: int) -> Frame:
        """Picture of a step."""
        raise NotImplementedError

    def caption(self, step: int) -> str:
        """What there is to see, in sentences."""
        raise NotImplementedError

    def label(self, step: int) -> str:
        """What stands beside the slider."""
        return f"{self.unit} {step} of {self.num_steps - 1}"

    def default_bookmarks(self) -> dict[str, int]:
        """Names and steps of the moments worth jumping to."""
        return {}

    def default_questions(self) -> dict[int, Question]:
        """Questions for predict mode."""
        return {}

    def still_steps(self) -> list[int]:
        """The steps of the still picture; never one that is to be predicted."""
        steps = sorted(set(self.bookmarks.values())) or [self.num_steps - 1]
        return [step for step in steps if step not in self.questions][:4] or [0]

    def footer(self) -> str:
        """Where the data come from."""
        return ""

    def base(self) -> str:
        """HTML that stays the same at all steps, shown above the frame."""
        return ""

    def cursor(self) -> list[float]:
        """Where the cursor of `base` stands at each step."""
        return []

    # What a user calls.

    def ask(self, step: int, question: str, answer: Answer) -> None:
        """Hide a step until somebody has predicted it.

        Args:
            answer: the right one, or a function of the step that gives it.

        Raises:
            ValueError: there is no such step.
        """
        if not 0 <= step < self.num_steps:
            raise ValueError(f"step must be from 0 to {self.num_steps - 1}, got {step}")
        self.questions[step] = Question(question, str(answer(step) if callable(answer) else answer))
        self.refresh()

    def follow(self, other: "StepWidget") -> None:
        """Share one cursor with another widget of the same run; in exported pages, too, if called before they show."""
        self.group = other.group = other.group or f"run-{id(other):x}"
        self._link = t.link((other, "step"), (self, "step"))

    def answer(self, text: str) -> None:
        """Answer the question that the current step asks."""
        if self._is_open() and text.strip():
            self.answers[self.step] = text.strip()
            self.refresh()

    # Live.

    def _make_controls(self) -> None:
        narrow = w.Layout(width="3.5em")
        self.previous = w.Button(description="◀", tooltip=f"previous {self.unit}", layout=narrow)
        self.play = w.ToggleButton(description="▶▶", tooltip="play", layout=narrow)
        self.next = w.Button(description="▶", tooltip=f"next {self.unit}", layout=narrow)
        self.slider = w.IntSlider(
            min=0, max=self.num_steps - 1, description=self.unit, readout=False, layout=w.Layout(width="24em")
        )
        self.count = w.HTML()
        parts = [self.previous, self.play, self.next, self.slider, self.count]
        self.controls = w.HBox(parts, layout=w.Layout(align_items="center"))
        self.marks = w.HBox([self._bookmark(name) for name in self.bookmarks], layout=w.Layout(flex_flow="row wrap"))
        self.guess = w.Text(placeholder="your answer", continuous_update=False, layout=w.Layout(width="12em"))
        self.submit = w.Button(description="answer", tooltip="show the step")
        self.question = w.HBox([self.guess, self.submit])
        self.text, self.view, self.note = w.HTML(), w.HTML(), w.HTML()
        t.link((self.slider, "value"), (self, "step"))
        self.previous.on_click(lambda _: self._move(-1))
        self.next.on_click(lambda _: self._move(1))
        self.submit.on_click(lambda _: self.answer(self.guess.value))
        self.play.observe(self._on_play, names="value")
        self.children = self.layout_children()

    def layout_children(self) -> tuple[w.Widget, ...]:
        """The parts from top to bottom."""
        style = w.HTML(f"<style>{CSS}</style>")
        return (style, self.controls, self.marks, self.text, self.question, self.view, self.note)

    def _bookmark(self, name: str) -> w.Button:
        button = w.Button(description=name, tooltip=f"jump to: {name}", layout=w.Layout(width="auto"))
        button.on_click(lambda _: self.set_trait("step", self.bookmarks[name]))
        return button

    def _move(self, by: int) -> None:
        self.step = max(0, min(self.num_steps - 1, self.step + by))

    def _on_play(self, change: dict[str, Any]) -> None:
        if not change["new"]:
            return
        try:
            self._playing = asyncio.get_running_loop().create_task(self._play())
        except RuntimeError:  # no kernel is listening
            self.play.value = False

    async def _play(self) -> None:
        if self.step == self.num_steps - 1:
            self.step = 0
        while self.play.value and self.step < self.num_steps - 1 and not self._is_open():
            await asyncio.sleep(0.9)
            if self.play.value:
                self.step += 1
        self.play.value = False

    @t.validate("step")
    def _check_step(self, proposal: dict[str, Any]) -> int:
        step = proposal["value"]
        if not 0 <= step < self.num_steps:
            raise t.TraitError(f"step must be from 0 to {self.num_steps - 1}, got {step}")
        return step

    @t.observe("step")
    def _on_step(self, _: Any) -> None:
        self.refresh()

    def _is_open(self) -> bool:
        return self.step in self.questions and self.step not in self.answers

    def shown_step(self) -> int:
        """The step whose picture is visible: the one before, while a question is open."""
        return max(0, self.step - 1) if self._is_open() else self.step

    def refresh(self) -> None:
        """Draw the current step."""
        if not hasattr(self, "view"):  # a trait changed before the parts were made
            return
        shown = self.shown_step()
        self.count.value = html.escape(self.label(self.step))
        self.question.layout.display = "flex" if self._is_open() else "none"
        message = html.escape(self._message())
        self.text.value = f'<div class="nv-caption" role="status" aria-live="polite">{message}</div>'
        cursor = self.cursor()
        style = f' style="--nv-x:{cursor[shown]:.1f}"' if cursor else ""
        self.view.value = f'<div data-step="{shown}"{style}>{self.base()}{self._frame_html(shown)}</div>'
        self.note.value = f'<div class="nv-footer">{html.escape(self.footer())}</div>'

    def _message(self) -> str:
        if self._is_open():
            return "Predict: " + self.questions[self.step].question
        caption = self.caption(self.step)
        if self.step not in self.questions:
            return caption
        given, right = self.answers[self.step], self.questions[self.step].answer
        return (f"Right: {right}. " if is_same(given, right) else f"You said {given}; it is {right}. ") + caption

    def _frame_html(self, step: int) -> str:
        frame = self.draw(step)
        return (frame.drawing.svg() if frame.drawing.shapes else "") + frame.below

    # Everywhere else.

    def html(self, png: bytes | None = None) -> str:
        """The widget as a self-contained HTML player; `png` is the still to put in, if it is drawn already."""
        steps = range(self.num_steps)
        data = PlayerData(
            title=self.title,
            unit=self.unit,
            frames=[self._frame_html(step) for step in steps],
            captions=[self.caption(step) for step in steps],
            labels=[self.label(step) for step in steps],
            base=self.base(),
            x=[round(x, 1) for x in self.cursor()],
            bookmarks=list(self.bookmarks.items()),
            questions={step: question._asdict() for step, question in self.questions.items()},
            start=self.step,
            footer=self.footer(),
            group=self.group,
        )
        return html_player(data, self.png() if png is None else png)

    def still(self, steps: Sequence[int] | None = None) -> Drawing:
        """Key steps below each other, with captions, as one picture."""
        pictures: list[tuple[str, Drawing]] = []
        height = 0.0
        for step in self.still_steps() if steps is None else steps:
            drawing = self.draw(step).drawing
            height += drawing.height
            if pictures and steps is None and height > MAX_STILL_HEIGHT:
                break
            label = self.label(step)
            pictures.append((f"{label[:1].upper()}{label[1:]}. {self.caption(step)}", drawing))
        return stack(pictures, self.footer())

    def png(self) -> bytes:
        """The still picture as a PNG file."""
        return self.still().png()

    def plain_text(self) -> str:
        """The captions of the still picture."""
        lines = [f"{self.label(step)}: {self.caption(step)}" for step in self.still_steps()]
        return "\n".join([f"{type(self).__name__}: {self.title}", *lines, self.footer()])

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        result = super()._repr_mimebundle_(**kwargs)
        data, metadata = result if isinstance(result, tuple) else (result, {})
        png = self.png()
        data = {**(data or {}), "text/html": self.html(png), "image/png": as_base64(png)}
        data["text/plain"] = self.plain_text()
        return data, metadata


def is_same(given: str, right: str) -> bool:
    """Whether two answers are the same word or number."""
    try:
        return float(given) == float(right)
    except ValueError:
        return given.strip().casefold() == right.strip().casefold()
