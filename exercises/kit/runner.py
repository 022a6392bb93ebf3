"""Running learner's code where it can do no harm: a process of its own, with a time limit.

The processes are forked from a server that has the large libraries loaded already, so that a check starts in
milliseconds and nothing of an earlier one is left; where the system cannot fork they are started afresh.
"""

import faulthandler
import gc
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from .assemble import Package, Piece

PRELOADED = [
    "nanovllm",
    "torch",
    "xxhash",
    "exercises.kit.grading",
    "nanovllm.viz.block_table",
    "transformers.models.auto.tokenization_auto",
]
START_LIMIT = 180.0  # seconds until torch is imported; the first time on a cold disk that takes a while
LONGEST_PRINTS = 1_000_000  # characters
LONGEST_MESSAGE = 300  # characters of an error's own text
LONGEST_TRACEBACK = 8  # lines, two for each call; an even number of calls
CAN_FORK = "forkserver" in multiprocessing.get_all_start_methods()


@dataclass
class Outcome:
    """What came of running a function elsewhere.

    Args:
        kind: "returned", "raised" (a BaseException that the function itself did not handle), "timeout", "crashed".
        value: what it returned.
        prints: what it printed.
        where: for "timeout", the learner's line it was at; for "raised" and "crashed", what is known.
    """

    kind: str
    value: Any = None
    prints: str = ""
    where: tuple[str, ...] = ()


def prepare_triton() -> None:
    """Without a GPU, have Triton interpret its kernels; must happen before anything imports triton."""
    import nanovllm  # noqa: F401 - before torch, which reads what it sets when it is loaded  # isort: skip
    import torch

    if "triton" not in sys.modules and not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


def warm_up() -> None:
    """Start loading the libraries that checks need, in the background."""
    if CAN_FORK:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        multiprocessing.forkserver.ensure_running()


def run(function: Callable[..., Any], *args: Any, package: Package, limit: float = 10.0) -> Outcome:
    """Call `function(package, *args)` in a process of its own.

    Args:
        function: a function of a module, so that the process can import it.
        package: imported before the clock starts.
        limit: seconds.
    """
    warm_up()
    context: Any = multiprocessing.get_context("forkserver" if CAN_FORK else "spawn")
    with tempfile.TemporaryDirectory() as folder:
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(sending, folder, function, package, args, limit), daemon=False)
        with _no_main_module():
            process.start()
        sending.close()
        try:
            outcome = _wait(receiving, process, limit)
        finally:
            if process.is_alive():
                process.kill()
            process.join()
        outcome.prints = _read(Path(folder, "prints"))
        if outcome.kind == "timeout":
            outcome.where = stack_lines(_read(Path(folder, "stack")), package)
    return outcome


@contextmanager
def _no_main_module() -> Iterator[None]:
    """Keep multiprocessing from running the script that asked for a check a second time, in the new process."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _wait(receiving: multiprocessing.connection.Connection, process: Any, limit: float) -> Outcome:
    try:
        for seconds in (START_LIMIT, limit + 1.0):  # first it says that it is ready, then what came out
            if not receiving.poll(seconds):
                return Outcome("timeout")
            outcome = receiving.recv()
        return outcome
    except EOFError:
        process.join()
        return Outcome("crashed", where=(f"the process ended by itself, with exit status {process.exitcode}",))


def _child(
    sending: multiprocessing.connection.Connection,
    folder: str,
    function: Callable[..., Any],
    package: Package,
    args: tuple[Any, ...],
    limit: float,
) -> None:
    gc.freeze()  # what was loaded before the fork will not be garbage; the engine collects when it ends
    sys.stdin = open(os.devnull)  # noqa: SIM115 - it stays open as long as the process lives
    sys.stdout = sys.stderr = open(Path(folder, "prints"), "w", buffering=1, encoding="utf-8")  # noqa: SIM115
    prepare_triton()
    import torch

    torch.set_num_threads(1)
    is_ready = False
    try:
        package.load()
        sending.send("ready")
        is_ready = True
        with open(Path(folder, "stack"), "w") as stack:
            faulthandler.dump_traceback_later(limit, file=stack)
            value = function(package, *args)
            faulthandler.cancel_dump_traceback_later()
        outcome = Outcome("returned", value)
    except BaseException as error:  # SystemExit too: a learner may call exit()
        outcome = Outcome("raised", where=describe_error(error, package))
        if not is_ready:
            sending.send("ready")
    sys.stdout.flush()
    sending.send(outcome)
    os._exit(0)  # all is said; taking torch apart in good order would cost more than the whole check


def _read(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(LONGEST_PRINTS)


def locate(path: str, line: int, package: Package) -> tuple[Piece | None, str]:
    """The learner's piece that a line of an assembled package belongs to, if any, and where to look for it."""
    try:
        name = Path(path).resolve().relative_to(package.folder.resolve()).as_posix()
    except ValueError:
        return None, ""
    for piece in package.pieces:
        if piece.path == name and piece.first <= line <= piece.last:
            return piece, f"{piece.file}, line {line - piece.first + piece.line}"
    return None, f"nanovllm/{name}"


def describe_error(error: BaseException, package: Package) -> tuple[str, ...]:
    """The learner's own lines of a traceback, innermost last, and what was raised."""
    if type(error).__name__ == "InterpreterError" and (
        error.__cause__ or error.args
    ):  # Triton's wrapper around the real one
        error = error.__cause__ or (error.args[0] if isinstance(error.args[0], BaseException) else error)
    lines: list[str] = []
    frame: TracebackType | None = error.__traceback__
    last = ""
    while frame is not None:
        code = frame.tb_frame.f_code
        piece, place = locate(code.co_filename, frame.tb_lineno, package)
        if piece is not None:
            lines += [f"{place}, in {code.co_name}", "    " + _source_line(code.co_filename, frame.tb_lineno)]
        last = f"{place}, in {code.co_name}" if place and piece is None else ("" if piece else last)
        frame = frame.tb_next
    if len(lines) > LONGEST_TRACEBACK:  # a function that calls itself without end
        half = LONGEST_TRACEBACK // 2
        lines[half:-half] = [f"... {(len(lines) - LONGEST_TRACEBACK) // 2} more calls ..."]
    if last:
        lines.append(f"from there: {last}" if lines else last)
    message = str(error)
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]} ... ({len(message)} characters)"
    return (*lines, f"{type(error).__name__}: {message}".rstrip(": "))


def _source_line(path: str, line: int) -> str:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return lines[line - 1].strip() if line <= len(lines) else ""


def stack_lines(text: str, package: Package) -> tuple[str, ...]:
    """The learner's lines in a stack that was dumped because time was up."""
    found = []
    for path, line, name in re.findall(r'File "(.+?)", line (\d+) in (\S+)', text):
        piece, place = locate(path, int(line), package)
        if piece is not None:
            found.append(f"it was at {place}, in {name}: {_source_line(path, int(line))}")
    return tuple(found[:1])
