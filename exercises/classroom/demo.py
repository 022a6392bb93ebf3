"""In front of a class: begin at any chapter, show a solution line by line, put in a mistake that is known.

In a notebook of the course: `from exercises.classroom import demo`.
"""

import html
import os
import tempfile
import time
from pathlib import Path

from ..kit import actions, checks, manifest, source, stubs
from ..kit.assemble import Mine
from ..kit.manifest import Exercise
from ..kit.report import Message, shell
from ..kit.workspace import FOLDER_VARIABLE, Workspace

# The colors are those of the notebook's theme; pages without one show the code plain.
CODE = "<pre class='highlight' style='font-size:1.3em;line-height:1.45;margin:0.3em 0;background:none'>{}</pre>"
FOLDED = "<details style='margin:0.4em 0'><summary>What a learner is told</summary><p>{}</p></details>"
_folders: dict[str, tempfile.TemporaryDirectory[str]] = {}  # of demonstrations; they go when the kernel ends
_typed: set[str] = set()


def at(chapter: str) -> Message:
    """As if all exercises before a chapter were solved, in a folder of its own; your answers stay as they are.

    Args:
        chapter: for example "ch05". What was written in a demonstration before is gone.
    """
    exercises = manifest.load().values()
    if chapter not in {exercise.chapter for exercise in exercises}:
        names = [exercise.chapter for exercise in exercises]
        return Message(f"there is no chapter {chapter!r}; they are {names[0]} to {names[-1]}", kind="failed")
    temporary = tempfile.TemporaryDirectory(prefix="demonstration-")
    _folders[temporary.name] = temporary
    workspace = Workspace(Path(temporary.name))
    stubs.write_stubs(workspace.folder)
    before = [exercise for exercise in exercises if exercise.chapter < chapter]
    for exercise in before:
        workspace.write(exercise, exercise.reference())
        answer = workspace.answer(exercise)
        workspace.note(exercise, status="passed", checked=checks.fingerprint(answer), source=answer.text)
    os.environ[FOLDER_VARIABLE] = str(workspace.folder)
    text = f"Until this kernel ends, answers are in {workspace.folder}; yours stay as they are."
    engine = Mine(workspace, load=False).map()
    return Message(f"At {chapter}: {len(before)} exercises are solved", [("", text)], "passed", picture=engine)


def _in_use(exercise_id: str) -> tuple[Exercise, Workspace]:
    """An exercise, and the folder of a demonstration that has begun.

    Raises:
        KeyError: there is no such exercise, or the answers in use are the instructor's own.
    """
    exercise, workspace = manifest.get(exercise_id), Workspace()
    if str(workspace.folder) not in _folders:
        raise KeyError(f'begin with demo.at("{exercise.chapter}"): this would be written over your own answers')
    return exercise, workspace


@actions.guarded
def type(exercise_id: str, seconds: float = 0.6) -> None:
    """Show our solution line by line, and put it in the place of an answer; `check(id)` is the next cell then.

    In a notebook you show each line when you have come to it: click the picture, then the right arrow key.

    Args:
        seconds: between two lines where they come by themselves: in a terminal, and with the space bar.
    """
    exercise, workspace = _in_use(exercise_id)
    code = exercise.reference()
    workspace.back_up(exercise)
    workspace.write(exercise, code)
    lines = source.without_docstring(code).splitlines()
    if hasattr(shell(), "kernel"):
        _step_through(f"{exercise_id}: {exercise.title}", lines, seconds)
        if exercise_id not in _typed:  # else the cell is there already
            shell().set_next_input(f'check("{exercise_id}")')
        _typed.add(exercise_id)
        return
    for line in lines:
        print(line, flush=True)
        time.sleep(seconds)


def _step_through(title: str, lines: list[str], seconds: float) -> None:
    """A player of which each step shows a line more."""
    from IPython.display import display

    from nanovllm.viz.player import PlayerData, html_player

    frames = [colored(lines[: i + 1] + [""] * (len(lines) - i - 1)) for i in range(len(lines))]
    labels = [f"line {i + 1} of {len(lines)}" for i in range(len(lines))]
    data = PlayerData(title, frames, [title] * len(lines), labels, "line", pace=round(1000 * seconds))
    display({"text/html": html_player(data), "text/plain": "\n".join(lines)}, raw=True)


def colored(lines: list[str]) -> str:
    """HTML of code, with the classes of Pygments."""
    from pygments import formatters, highlight, lexers  # type: ignore[import-untyped]

    lexer, formatter = lexers.PythonLexer(stripnl=False), formatters.HtmlFormatter(nowrap=True)
    return CODE.format(highlight("\n".join(lines), lexer, formatter))


@actions.guarded
def break_(exercise_id: str, mistake: str | int = "") -> Message:
    """Put a known mistake in the place of an answer, and check it, for the class to find; `reset(id)` takes it out.

    In a notebook the code is shown, too, and what a learner is told of it can be unfolded.

    Args:
        mistake: its name, or its number, which tells the class nothing; without one, all of them are shown.
    """
    bank = dict(enumerate(checks.wrong_answers(manifest.get(exercise_id)), start=1))
    if mistake == "":
        rows = [(f"{i}  {wrong.name}", wrong.diagnosis) for i, wrong in bank.items()]
        return Message(f"{exercise_id} has {len(bank)} known mistakes", rows)
    wrong = next((wrong for i, wrong in bank.items() if mistake in (i, wrong.name)), None)
    if wrong is None:  # no more than that, on a screen that the class sees
        there = f"numbers from 1 to {len(bank)}" if bank else "an open exercise has none"
        raise KeyError(f"{exercise_id} has no mistake {mistake!r}: {there}")
    exercise, workspace = _in_use(exercise_id)
    workspace.back_up(exercise)
    workspace.write(exercise, wrong.first.text)
    message = actions.describe(checks.check(exercise_id, workspace))
    if hasattr(shell(), "kernel"):
        from IPython.display import HTML, display

        display(HTML(colored(source.without_docstring(wrong.first.text).splitlines())))
        told = dict(message.rows).get("likely", "")
        message.rows = [row for row in message.rows if row[0] not in ("likely", "next")]
        message.picture += FOLDED.format(html.escape(told))
    return message
