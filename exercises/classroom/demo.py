"""In front of a class: begin at any chapter, type a solution, put in a mistake that is known.

In a notebook of the course: `from exercises.classroom import demo`.
"""

import html
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ..kit import actions, checks, manifest, source, stubs
from ..kit.report import Message, shell
from ..kit.workspace import FOLDER_VARIABLE, Workspace


def at(chapter: str) -> Message:
    """As if all exercises before a chapter were solved, in a folder of its own; your answers stay as they are.

    Args:
        chapter: for example "ch05". What was written in a demonstration before is gone.
    """
    exercises = manifest.load().values()
    if chapter not in {exercise.chapter for exercise in exercises}:
        names = [exercise.chapter for exercise in exercises]
        return Message(f"there is no chapter {chapter!r}; they are {names[0]} to {names[-1]}", kind="failed")
    workspace = Workspace(Path(tempfile.mkdtemp(prefix="demonstration-")))
    stubs.write_stubs(workspace.folder)
    before = [exercise for exercise in exercises if exercise.chapter < chapter]
    for exercise in before:
        workspace.write(exercise, exercise.reference())
        answer = workspace.answer(exercise)
        workspace.note(exercise, status="passed", checked=checks.fingerprint(answer), source=answer.text)
    os.environ[FOLDER_VARIABLE] = str(workspace.folder)
    text = f"Until this kernel ends, answers are in {workspace.folder}; yours stay as they are."
    return Message(f"At {chapter}: {len(before)} exercises are solved", [("", text)], "passed")


def type(exercise_id: str, seconds: float = 0.6) -> None:
    """Show our solution line by line; in a notebook it is then in a cell below, to be run. Ctrl-C shows the rest.

    Args:
        seconds: between two lines.
    """
    exercise = manifest.get(exercise_id)
    lines = source.without_docstring(exercise.reference()).splitlines()
    show = _growing_cell() if hasattr(shell(), "kernel") else _growing_text()
    try:
        for i in range(1, len(lines) + 1):
            show(lines[:i])
            time.sleep(seconds)
    except KeyboardInterrupt:
        show(lines)
    if shell():
        shell().set_next_input("\n".join([f"%%exercise {exercise_id}", *lines]))


def _growing_text() -> Callable[[list[str]], None]:
    printed = 0

    def show(lines: list[str]) -> None:
        nonlocal printed
        print(*lines[printed:], sep="\n", flush=True)
        printed = len(lines)

    return show


def _growing_cell() -> Callable[[list[str]], None]:
    from IPython.display import HTML, display

    place = display(HTML(""), display_id=True)

    def show(lines: list[str]) -> None:
        place.update(HTML(f"<pre style='font-size:1.4em'>{html.escape(chr(10).join(lines))}</pre>"))

    return show


def break_(exercise_id: str, mistake: str = "") -> Message | None:
    """Put a known mistake in the place of an answer, and check it, for the class to find; `reset(id)` takes it out.

    Args:
        mistake: its name; without one, the names are shown, each with what a learner is told.
    """
    exercise, workspace = manifest.get(exercise_id), Workspace()
    known = {wrong.name: wrong for wrong in checks.wrong_answers(exercise)}
    if mistake not in known:
        title = f"{exercise_id}: its known mistakes" if not mistake else f"{exercise_id} has no mistake {mistake!r}"
        return Message(title, [(name, wrong.diagnosis) for name, wrong in known.items()])
    workspace.back_up(exercise)
    workspace.write(exercise, known[mistake].first.text)
    return actions.check(exercise_id)
