"""The commands of ``python -m exercises`` that learners use."""

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import actions, checks, grading, manifest, runner, stubs
from .assemble import Mine, assemble
from .manifest import ROOT
from .report import Message
from .workspace import Workspace

PACKAGES = ["torch", "transformers", "triton", "flash-attn", "xxhash", "jupyterlab", "ipywidgets", "pytest"]


def run(options: argparse.Namespace, console: Console | None = None) -> int:
    """Run a command; returns the exit status."""
    console = console or Console()
    workspace = Workspace()
    if options.command == "check":
        return _check(options.id, workspace, console)
    if options.command in ("update", "watch"):
        return {"update": _update, "watch": watch}[options.command](workspace, console)
    if options.command in (None, "doctor", "mine"):
        shown = {None: overview, "doctor": doctor, "mine": lambda workspace: repr(Mine(workspace))}
        console.print(shown[options.command](workspace), highlight=False)
        return 0
    arguments = {"now": True} if getattr(options, "now", False) else {}
    message = getattr(actions, options.command)(options.id, **arguments)
    console.print(message)
    return 1 if isinstance(message, Message) and message.kind == "failed" else 0


def overview(workspace: Workspace) -> Table:
    """All exercises, with how far the learner is, and what comes next."""
    exercises = manifest.load()
    states = {id_: checks.state(exercise, workspace) for id_, exercise in exercises.items()}
    left = [exercise for id_, exercise in exercises.items() if states[id_] != "passed"]
    caption = "All done."
    if left:
        minutes = sum(exercise.minutes for exercise in left)
        caption = f"{len(exercises) - len(left)} of {len(exercises)} passed, about {minutes} minutes left."
        caption += f" Next: {left[0].id}, in exercises/{left[0].file_name}"
    table = Table(title="Exercises", caption=caption, title_justify="left", caption_justify="left")
    for column in ("exercise", "what it does", "minutes", "difficulty", "state"):
        table.add_column(column, justify="right" if column == "minutes" else "left")
    colors = {"passed": "green", "not right yet": "red", "changed": "yellow", "written": "yellow"}
    notes = {"changed": "changed, check again", "written": "written, not checked"}
    for id_, exercise in exercises.items():
        color = colors.get(states[id_], "default")
        text = f"[{color}]{notes.get(states[id_], states[id_])}[/{color}]"
        table.add_row(id_, exercise.title, str(exercise.minutes), "*" * exercise.difficulty, text)
    return table


def _check(ids: list[str], workspace: Workspace, console: Console) -> int:
    exercises = manifest.load()
    wanted = [id_ for id_, exercise in exercises.items() if id_ in ids or exercise.chapter in ids]
    if not ids:
        wanted = [answer for answer in exercises if not workspace.answer(exercises[answer]).is_stub]
    for id_ in [id_ for id_ in ids if id_ not in exercises and not any(e.chapter == id_ for e in exercises.values())]:
        console.print(actions.check(id_))
        return 1
    if not wanted:
        console.print(f"Nothing is written yet. Begin with {next(iter(exercises), 'the first chapter')}.")
        return 1
    have_passed = [_check_one(id_, workspace, console) for id_ in wanted]
    return 0 if all(have_passed) else 1


def _check_one(exercise_id: str, workspace: Workspace, console: Console) -> bool:
    """Print the result, that of the cases as soon as it is there; whether it is a pass."""

    def show_cases(result: checks.Result) -> None:
        console.print(f"{exercise_id}: {result.summary} {result.whole}", style="dim", highlight=False)

    result = checks.check(exercise_id, workspace, on_cases=show_cases)
    console.print(actions.describe(result))
    return result.passed


def _update(workspace: Workspace, console: Console) -> int:
    from . import notebooks

    for line in [*stubs.update(workspace), *notebooks.update(workspace)] or ["Everything is up to date."]:
        console.print(line, highlight=False)
    return 0


def watch(workspace: Workspace, console: Console, interval: float = 0.5, rounds: int | None = None) -> int:
    """Check every answer whose text changes, until Ctrl-C.

    Args:
        interval: seconds between two looks at the files.
        rounds: how often to look; None for ever.
    """

    def texts() -> dict[str, str]:
        return {id_: workspace.answer(exercise).text for id_, exercise in manifest.load().items()}

    runner.warm_up()
    console.print(f"Watching {workspace.folder.name}/ch*.py. Save a file to check what changed; Ctrl-C ends this.")
    seen = texts()
    try:
        while rounds is None or rounds > 0:
            time.sleep(interval)
            now = texts()
            for id_ in [id_ for id_, text in now.items() if text != seen.get(id_)]:
                _check_one(id_, workspace, console)
            seen, rounds = now, None if rounds is None else rounds - 1
    except KeyboardInterrupt:
        console.print("Until next time.")
    return 0


def doctor(workspace: Workspace) -> Table:
    """What is installed here, and what of the course runs live."""
    import torch

    import nanovllm

    table = Table(title="This machine", show_header=False, title_justify="left")
    table.add_row("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in PACKAGES:
        try:
            table.add_row(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            needed = {"triton": "only for kernels", "flash-attn": "optional, GPU only"}.get(name, "MISSING")
            table.add_row(name, f"not installed ({needed})")
    package = Path(nanovllm.__file__).parent
    table.add_row("nanovllm", f"{package}" + ("" if package == ROOT / "nanovllm" else f"  (not the one in {ROOT})"))
    access = "" if os.access(workspace.folder, os.W_OK) else "  (read-only)"
    table.add_row("your files", f"{workspace.folder}{access}")
    has_gpu = torch.cuda.is_available()
    table.add_row("GPU", torch.cuda.get_device_name() if has_gpu else "none: everything graded runs without")
    kernels = "compiled for the GPU" if has_gpu else "interpreted, one program after the other"
    has_triton = importlib.util.find_spec("triton")
    table.add_row("Triton kernels", kernels if has_triton else "not here: read chapter 10's plain twins")
    table.add_row("CUDA graphs", "live" if has_gpu else "replayed from measurements on an H200")
    table.add_row("an engine run", _try_engine())
    return table


def _try_engine() -> str:
    start = time.perf_counter()
    outcome: Any = runner.run(grading.reference, package=assemble(), limit=checks.ENGINE_LIMIT)
    if outcome.kind == "returned":
        return f"works ({time.perf_counter() - start:.1f} s)"
    return "\n".join(["does not work:", *outcome.where, outcome.prints, f"Python is {sys.executable}"])
