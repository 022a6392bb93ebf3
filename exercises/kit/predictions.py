"""Predictions: a question with a place for a guess, and later the truth beside it.

A guess that was written down before the answer is seen is remembered better than an answer that was only read
(Kapur, 2014, and the work on "predict, observe, explain"). It is kept in the learner's progress file.
"""

import re
from contextlib import suppress
from numbers import Real
from typing import Any

from .report import Message, shell
from .workspace import Workspace, digest

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
NOT_A_NUMBER = "That is no number."
_asked: dict[str, "Prediction"] = {}


class Prediction:
    """A question and the learner's guess.

    Args:
        name: of the question, once in a notebook.
        question: what it asks.
        choices: the answers to choose from; None asks for a number.
        unit: of the number, for example "%".
        picture: where the guess is made, a `Picture` of `nanovllm.viz.hands`.
    """

    def __init__(self, name: str, question: str, choices: list[str] | None, unit: str, picture: Any = None) -> None:
        self.name, self.question, self.unit, self.picture = name, question, unit, picture
        self.choices = list(picture.choices if picture else choices or []) or None
        self.guess: float | str | None = Workspace().recall("guesses").get(self._key)

    @property
    def is_order(self) -> bool:
        """Whether all choices are to be put in order; the guess is then their names, with commas between them."""
        return bool(self.picture and self.picture.in_order)

    @property
    def _key(self) -> str:
        return f"{self.name}-{digest(self.question)}"

    def answer(self, guess: Any) -> str:
        """Take a guess down; a number may come as text, with its unit. Returns why not, "" if it was taken."""
        if guess is None or guess == "":
            return ""
        if self.choices:
            names = str(guess).split(", ")
            if self.is_order and sorted(names) != sorted(self.choices):
                return f"{len(names)} of {len(self.choices)}: all of them are to be put in order."
            if not self.is_order and guess not in self.choices:
                return f"Choose one of: {', '.join(self.choices)}."
            self.guess = guess
        else:
            match = re.fullmatch(r"\s*(-?[\d,_ ]*\.?\d+)\s*(\D*)", str(guess))
            if match is None:
                return NOT_A_NUMBER
            self.guess = float(re.sub("[,_ ]", "", match[1]))
        Workspace().remember("guesses", {self._key: self.guess})
        return ""

    @property
    def said(self) -> str:
        """The guess in words; "" if there is none."""
        return "" if self.guess is None else f"Your guess: {self.text(self.guess)}"

    def text(self, value: Any) -> str:
        """A value as it is said, with its unit."""
        return f"{number(value)} {self.unit}".strip() if isinstance(value, Real) else str(value)

    def __repr__(self) -> str:
        example = repr(", ".join(self.choices) if self.is_order else self.choices[0]) if self.choices else "50"
        lines = [self.question, *(f"  - {choice}" for choice in self.choices or [])]
        return "\n".join([*lines, self.said or f"To answer, add guess={example} to the call and run the cell again."])

    def form(self) -> Any:
        """The question as a widget. Tab goes to it, keys choose or type, and leaving a field takes the number."""
        import ipywidgets  # type: ignore[import-untyped]

        said = ipywidgets.HTML(self.said)
        if self.choices and not self.picture:
            value = self.guess if self.guess in self.choices else None
            layout = ipywidgets.Layout(width="auto")
            field: Any = ipywidgets.RadioButtons(options=self.choices, value=value, layout=layout)
        else:
            shown = number(self.guess) if isinstance(self.guess, Real) else self.guess or ""
            words = ", ".join(self.choices or ["a number"])
            layout = {"width": "98%" if self.choices else "9em"}
            field = ipywidgets.Text(shown, placeholder=words, continuous_update=False, layout=layout)

        def take(change: Any) -> None:
            said.value = self.answer(change["new"]) or (change["new"] and f"{self.said}. The answer comes below.")

        field.observe(take, "value")
        row = ipywidgets.HBox([field, ipywidgets.Label(self.unit)]) if self.unit else field
        title = ipywidgets.HTML(f"<b>{self.question}</b>")
        parts = [title, row, said]
        if self.picture:  # its script finds the form and the field by their classes
            parts.insert(1, ipywidgets.HTML(self.picture.html(self.guess)))
            field.add_class("nv-hand-text" if self.choices else "nv-hand-number")
        form = ipywidgets.VBox(parts, layout={"border": "1px solid #7f7f7f", "padding": "0.3em 0.8em"})
        form.add_class("nv-hand-form")
        form.field = field
        return form


def number(value: Any) -> str:
    """A number as it is said: whole, or with three digits that count."""
    value = float(value)
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"


def predict(
    name: str,
    question: str,
    choices: list[str] | None = None,
    unit: str = "",
    guess: Any = None,
    picture: Any = None,
) -> None:
    """Ask for a guess, in a small form; `reveal(name, truth)` in a later cell sets the truth beside it.

    Args:
        name: of the question, once in a notebook.
        question: what you are asked.
        choices: the answers to choose from; without them the answer is a number.
        unit: of the number, for example "%".
        guess: your answer, where no form can be shown.
        picture: `Boxes` or `Bars` of `nanovllm.viz`, on which the guess is made; it has the choices.
    """
    prediction = _asked[name] = Prediction(name, question, choices, unit, picture)
    if problem := prediction.answer(guess):
        print(problem)
    if hasattr(shell(), "kernel"):
        from IPython.display import display

        with suppress(ImportError):  # there are no widgets here
            form = prediction.form()._repr_mimebundle_()
            display({WIDGET_VIEW: form[WIDGET_VIEW], "text/plain": repr(prediction)}, raw=True)
            if picture:
                display({"text/html": picture.script(), "text/plain": ""}, raw=True)
            return
    print(repr(prediction))


def reveal(name: str, truth: Any) -> None:
    """The truth beside the guess that `predict` asked for.

    Args:
        name: the question's.
        truth: a number, or one of its choices; all of them in order, where that is asked for.
    """
    truth = ", ".join(truth) if isinstance(truth, list) else truth
    prediction = _asked.get(name) or Prediction(name, "", None, "")
    right = prediction.text(truth)
    is_choice = isinstance(truth, str)
    it_is = f"The answer is “{right}”." if is_choice else f"It is {right}."
    if prediction.guess is None:
        message = Message(it_is, [("", "You made no guess this time.")] if prediction.question else [])
    elif (guess := prediction.text(prediction.guess)) == right:
        message = Message(f"You said {f'“{guess}”' if is_choice else guess}, and so it is.", kind="passed")
    elif is_choice:
        message = Message(f"You said “{guess}”. {it_is}")
    else:
        is_near = abs(float(prediction.guess) - truth) <= 0.03 * abs(truth)
        message = Message(f"You said {guess}. {it_is}", kind="passed" if is_near else "todo")
    if prediction.picture:
        message.picture = prediction.picture.html(prediction.guess, truth)
    from IPython.display import display  # outside of IPython it prints

    display(message)
