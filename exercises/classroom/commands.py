"""The commands of ``python -m exercises`` that a class needs: submit, grade, release."""

import argparse

from rich.console import Console
from rich.progress import Progress

from ..kit import manifest
from . import grades, release, reports, submissions


def run(options: argparse.Namespace, console: Console | None = None) -> int:
    """Run a command; returns the exit status."""
    console = console or Console()
    try:
        return COMMANDS[options.command](options, console)
    except (OSError, RuntimeError, KeyError) as error:
        console.print(str(error.args[0] if isinstance(error, KeyError) else error), style="red", highlight=False)
        return 1


def _submit(options: argparse.Namespace, console: Console) -> int:
    names = submissions.pack(options.zip)
    console.print(f"{options.zip} has your {len(names)} files of answers, {names[0]} to {names[-1]}.", highlight=False)
    return 0


def _grade(options: argparse.Namespace, console: Console) -> int:
    wanted = options.only or [exercise.id for exercise in manifest.load().values() if exercise.kind != "open"]
    ids = [exercise.id for exercise in manifest.select(wanted)]
    found = submissions.find(options.submissions)
    with Progress(console=console) as progress:
        task = progress.add_task(f"{len(found)} submissions", total=len(found))

        def show(grade: grades.Grade) -> None:
            numbers = f"{grade.num_passed} of {len(ids)}, {grade.seconds:.0f} s"
            remarks = f"  ({'; '.join(grade.submission.remarks)})" if grade.submission.remarks else ""
            progress.console.print(f"{grade.submission.student}: {numbers}{remarks}", highlight=False, markup=False)
            progress.advance(task)

        graded = grades.grade_class(found, ids, options.jobs, show)
    for path in reports.write(graded, ids, options.out):
        console.print(f"written: {path}", highlight=False)
    return 0


def _release(options: argparse.Namespace, console: Console) -> int:
    number = release.release(options.folder)
    console.print(f"{options.folder} has {number} files, and no solutions.", highlight=False)
    return 0


COMMANDS = {"submit": _submit, "grade": _grade, "release": _release}
