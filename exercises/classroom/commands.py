"""The commands of ``python -m exercises`` for instructors: grade, release."""

import argparse

from rich.console import Console
from rich.progress import Progress

from ..kit import manifest
from . import grades, release, reports, submissions


def run(options: argparse.Namespace) -> int:
    """Run a command; returns the exit status."""
    console = Console(highlight=False, markup=False)
    return _grade(options, console) if options.command == "grade" else _release(options, console)


def _grade(options: argparse.Namespace, console: Console) -> int:
    wanted = options.only or [exercise.id for exercise in manifest.load().values() if exercise.kind != "open"]
    ids = [exercise.id for exercise in manifest.select(wanted)]
    if options.out.is_file() or (options.out.is_dir() and any(options.out.iterdir())):  # pages of another class
        raise FileExistsError(f"{options.out} is there already, and not empty: name a new folder with --out")
    found, others = submissions.find(options.submissions)
    remarks = [f"{name}: neither a zip nor a folder, so not graded" for name in others]
    with Progress(console=console) as progress:
        task = progress.add_task(f"{len(found)} submissions", total=len(found))

        def show(grade: grades.Grade) -> None:
            notes = f"  ({'; '.join(grade.submission.remarks)})" if grade.submission.remarks else ""
            numbers = f"{grade.num_passed} of {len(ids)}, {grade.seconds:.0f} s"
            console.print(f"{grade.submission.student}: {numbers}{notes}")
            progress.advance(task)

        graded = grades.grade_class(found, ids, options.jobs, show)
    done = {grade.submission.student for grade in graded}
    remarks += [f"{one.student}: not graded, because grading was stopped" for one in found if one.student not in done]
    lines = [f"written: {path}" for path in reports.write(graded, ids, options.out, remarks)]
    console.print(*remarks, *lines, f"{len(done)} of {len(found)} submissions are graded.", sep="\n")
    return 0 if len(done) == len(found) else 130


def _release(options: argparse.Namespace, console: Console) -> int:
    number, remarks = release.release(options.folder)
    console.print(f"{options.folder} has {number} files, and no solutions.", *remarks, sep="\n")
    return 0
