"""The base of all widgets: a step player that runs in the browser, and a still picture for everywhere else.

One object carries all forms; Jupyter picks the best one that the place can show. Python draws every frame, so nothing
is written twice and a learner can read how a picture is made. No kernel is needed to step through what was recorded:
the output works after a restart, in a saved notebook and in an exported page.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .drawing import Drawing, stack
from .player import PlayerData, View, as_base64, html_player

MAX_STILL_HEIGHT = 2000  # of the pictures in a still, in units of a drawing

Answer = str | int | Callable[[int], Any]


class Frame(NamedTuple):
    """What one step shows: pictures, and HTML after them."""

    drawings: tuple[Drawing, ...]
    below: str = ""

    def html(self) -> str:
        """All of it."""
        return "".join(drawing.svg() for drawing in self.drawings) + self.below


class Move(NamedTuple):
    """One of the movements that lead to a step: something that happened, and what the picture shows then.

    Args:
        kind: of event.
        sentence: of the step's caption; the one that tells of it.
        frame: the picture just after it; the last one is that of the step.
        key: of the element that it is about; it nods if nothing else moves.
    """

    kind: str
    sentence: str
    frame: Frame
    key: str


class Question(NamedTuple):
    """What has to be predicted before a step shows."""

    question: str
    answer: str


class StepWidget:
    """A picture with steps.

    Subclasses say what a step shows: `num_steps`, `draw(step)`, `caption(step)`, and whatever of the rest differs.
    `widget.step = 9` moves it, also where it is shown already; `a.follow(b)` ties two together.

    Args:
        predict: ask `default_questions` before the steps that answer them.
    """

    title = "steps"
    unit = "step"
    pace = 900  # milliseconds a step, while it plays

    def __init__(self, predict: bool = False) -> None:
        self.group = ""
        self.followers = [self]
        self.questions: dict[int, Question] = {}
        self.bookmarks: dict[str, int] = self.default_bookmarks()
        if predict:
            for step, question in self.default_questions().items():
                self.ask(step, question.question, question.answer)
        self._step = self.first_step()
        self._shown: Any = None  # the handle of the output
        self._png: tuple[list[dict[str, Any]], bytes] = ([], b"")  # what was drawn last

    # What a subclass says.

    @property
    def num_steps(self) -> int:
        """How many steps there are; the first is 0."""
        raise NotImplementedError

    def draw(self, step: int) -> Frame:
        """Pictures of a step."""
        raise NotImplementedError

    def moves(self, step: int) -> list[Move]:
        """How the picture gets from the step before to this one; without any, all changes are one movement."""
        return []

    def caption(self, step: int) -> str:
        """What there is to see, in sentences."""
        raise NotImplementedError

    def label(self, step: int) -> str:
        """What stands beside the slider."""
        return f"{self.unit} {step} of {self.num_steps - 1}"

    def first_step(self) -> int:
        """Where the picture opens."""
        return 0

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

    def views(self) -> list[View]:
        """What stays the same at all steps, shown before the frame: one, or two to choose from."""
        return []

    # What a user calls.

    @property
    def step(self) -> int:
        """The step on show, as far as Python knows; whoever looks at the picture may have gone on."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        for widget in self.followers:
            if not 0 <= step < widget.num_steps:
                raise ValueError(f"step must be from 0 to {widget.num_steps - 1}, got {step}")
        for widget in self.followers:
            widget._step = step
            widget.refresh()

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

    def follow(self, other: "StepWidget") -> None:
        """Share one step with another widget of the same run; call it before they are shown."""
        self.group = other.group = other.group or f"run-{id(other):x}"
        other.followers.append(self)
        self.followers, self._step = other.followers, other.step

    # What a notebook shows.

    def refresh(self) -> None:
        """Draw anew what is shown already."""
        if self._shown is not None:
            self._shown.update(self._repr_mimebundle_(), raw=True)

    def html(self, png: bytes | None = None, live: str = "") -> str:
        """The widget as a self-contained HTML player.

        Args:
            png: the still to put in, if it is drawn already.
            live: as for `html_player`.
        """
        steps = range(self.num_steps)
        data = PlayerData(
            title=self.title,
            unit=self.unit,
            frames=[self.draw(step).html() for step in steps],
            moves=[[(*move[:2], move.frame.html(), move.key) for move in self.moves(step)] for step in steps],
            captions=[self.caption(step) for step in steps],
            labels=[self.label(step) for step in steps],
            views=self.views(),
            bookmarks=list(self.bookmarks.items()),
            questions={step: question._asdict() for step, question in self.questions.items()},
            start=self.step,
            footer=self.footer() + ("; run the cell to change the settings" if live else ""),
            group=self.group,
            pace=self.pace,
        )
        return html_player(data, self.png() if png is None else png, live)

    def still(self, steps: Sequence[int] | None = None) -> Drawing:
        """Key steps below each other, with captions, as one picture."""
        rows: list[tuple[str, list[Drawing]]] = []
        height = 0.0
        for step in self.still_steps() if steps is None else steps:
            first, *others = self.still_rows(step)
            height += sum(max(drawing.height for drawing in row) for row in (first, *others))
            if rows and steps is None and height > MAX_STILL_HEIGHT:
                break
            label = self.label(step)
            rows.append((f"{label[:1].upper()}{label[1:]}. {self.caption(step)}", first))
            rows += [("", row) for row in others]
        return stack(rows, self.footer())

    def still_rows(self, step: int) -> list[list[Drawing]]:
        """What a still picture shows of a step: rows of drawings."""
        return [[drawing] for drawing in self.draw(step).drawings]

    def png(self) -> bytes:
        """The still picture as a PNG file."""
        drawing = self.still()
        if self._png[0] != drawing.shapes:
            self._png = (drawing.shapes, drawing.png())
        return self._png[1]

    def plain_text(self) -> str:
        """The captions of the still picture."""
        lines = [f"{self.label(step)}: {self.caption(step)}" for step in self.still_steps()]
        return "\n".join([f"{type(self).__name__}: {self.title}", *lines, self.footer()])

    def bundle(self, live: str = "") -> dict[str, str]:
        """All forms by their media types."""
        png = self.png()
        return {"text/html": self.html(png, live), "image/png": as_base64(png), "text/plain": self.plain_text()}

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        return self.bundle()

    def _ipython_display_(self) -> None:
        from IPython.display import display

        self._shown = display(self._repr_mimebundle_(), raw=True, display_id=True)
