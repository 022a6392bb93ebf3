"""The command line of the course: ``python -m exercises``."""

import argparse
import sys
from pathlib import Path

from . import classroom

SOURCES = Path(__file__).parents[1] / "notebooks" / "src"  # a release for a class has none
DESCRIPTION = """\
The exercises of the nanovllm course. Without a command: what there is to do, and how far you are.

You write functions of the engine, in the notebooks or in the files exercises/ch*.py, whichever you like. Each is
checked by itself, and then the engine runs with it.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m exercises", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    check = commands.add_parser("check", help="check answers; without an id, all that are written")
    check.add_argument("id", nargs="*", help="for example ch05.deallocate, or ch05 for a whole chapter")
    for name, text in [
        ("hint", "the next of three hints"),
        ("show", "your run beside ours"),
        ("solution", "our answer and its reason, after a pass or the hints"),
        ("reset", "back to the stub; your answer is kept in exercises/.attempts/"),
    ]:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("id", help="for example ch05.deallocate")
        if name == "solution":
            command.add_argument("--now", action="store_true", help="do not wait for the hints")
    commands.add_parser("watch", help="check an answer again whenever its file is saved; Ctrl-C ends it")
    commands.add_parser("mine", help="the map of your engine: which functions are yours")
    commands.add_parser("doctor", help="look at this machine: what is installed, what runs here")
    commands.add_parser(
        "update",
        help="after the course has changed: carry your answers over",
        description="Bring exercises/ch*.py, and notebooks that you have edited, to the state of the course, with"
        " your answers in them. To get a new version with git: git stash, git pull, then this command; answers that"
        " were checked once are known even without the files.",
    )
    if SOURCES.is_dir():
        _add_sync(commands)
    classroom.add_parsers(commands)
    return parser


def _add_sync(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    sync = commands.add_parser(
        "sync",
        help="derive stubs, solutions and notebooks (for authors)",
        description="Derive exercises/ch*.py and solutions/ch*.py from the engine, and notebooks/*.ipynb from"
        " notebooks/src/*.py. A notebook whose code did not change keeps its outputs; the others are run. What was"
        " edited by hand is never overwritten.",
    )
    text = 'only notebooks whose file name starts like this, for example "01" (default: all)'
    sync.add_argument("chapter", nargs="*", help=text)
    how = sync.add_mutually_exclusive_group()
    text = "change nothing; fail with a diff if something is out of step"
    how.add_argument("--check", action="store_true", help=text)
    how.add_argument("--run", action="store_true", help="run every notebook again, for fresh outputs")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status (0: all is well, 1: there are problems, 130: Ctrl-C)."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "sync":
            return _sync(options)
        if options.command in classroom.COMMANDS:
            return classroom.run(options)
        from .kit import terminal  # imports rich and the engine's helpers: too slow before the arguments are right

        return terminal.run(options)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130


def _sync(options: argparse.Namespace) -> int:
    from .kit import notebooks, stubs

    problems = stubs.sync(write=not options.check)
    if options.check:
        problems += notebooks.check(chapters=options.chapter)
    else:
        problems += notebooks.sync(chapters=options.chapter, run_all=options.run)
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print("Stubs, solutions, notebooks and their sources are in step.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
