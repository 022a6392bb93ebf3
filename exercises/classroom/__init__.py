"""For a class: what learners hand in, grades with feedback, a release without solutions, and live demonstrations.

Grading uses the checks that learners use, from `exercises.kit`; here is only what a class needs besides. A release has
nothing of it but `submit`.
"""

import argparse
from pathlib import Path

IS_RELEASE = not Path(__file__).with_name("commands.py").is_file()
COMMANDS = ("submit",) if IS_RELEASE else ("submit", "grade", "release")


def add_parsers(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Tell the command line about them."""
    text = "zip your answers, to hand them in"
    submit = commands.add_parser("submit", help=text, description=text)
    submit.add_argument("zip", nargs="?", type=Path, default=Path("submission.zip"), help="the file that is written")
    if IS_RELEASE:
        return
    text = "grade a class: every zip and every folder in a folder (for instructors)"
    grade = commands.add_parser("grade", help=text, description=text)
    grade.add_argument("submissions", type=Path, help="the folder")
    grade.add_argument("--out", type=Path, default=Path("grades"), help="a new folder for what is written")
    grade.add_argument("--only", nargs="+", metavar="ID", help="such as ch05 or ch05.deallocate; open ones by id only")
    grade.add_argument("--jobs", type=int, help="how many at a time; else as many as there are cores")
    text = "copy the course, as it is committed, for a class that is graded (for instructors)"
    release = commands.add_parser("release", help=text, description=text)
    release.add_argument("folder", type=Path, help="a folder that is made")
    release.add_argument("--without-solutions", action="store_true", required=True, help="nor mistakes, and last hints")


def run(options: argparse.Namespace) -> int:
    """Run one of them; returns the exit status."""
    try:
        if options.command == "submit":
            from .hand_in import submit as command
        else:
            from .commands import run as command
        return command(options)
    except (OSError, RuntimeError, KeyError) as error:
        print(error.args[0] if isinstance(error, KeyError) else error)
        return 1
