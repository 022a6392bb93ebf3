"""Running learner's code where it can do no harm: a process of its own, with a time limit.

The processes are forked from a server that has the large libraries loaded already, so that a check starts in
milliseconds and nothing of an earlier one is left; where the system cannot fork they are started afresh.
"""

import difflib
import faulthandler
import gc
import io
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TextIO

import psutil
from tqdm import tqdm

from .assemble import Package, Piece

PRELOADED = ["nanovllm", "torch", "xxhash", "exercises.kit.grading", "nanovllm.viz.block_table"]
PRELOADED += ["transformers.models.auto.tokenization_auto"]
START_LIMIT = 180.0  # seconds until torch is imported; the first time on a cold disk that takes a while
PATIENCE = 4  # times the limit of computing: seconds in all, for what waits, and for a busy machine
CASE_MARK = "\0case "  # a line of it tells where the prints of a case begin
MOST_LINES = 30  # of what is printed in a case
MOST_PRINTS = 4000  # characters of it
LONGEST_MESSAGE = 300  # characters of an error's own text
LONGEST_TRACEBACK = 8  # lines, two for each call; an even number of calls
MEMORY = 4 * 2**30  # bytes that an answer may take, all its processes each
CAN_FORK = "forkserver" in multiprocessing.get_all_start_methods()


@dataclass
class Outcome:
    """What came of running a function elsewhere.

    Args:
        kind: "returned", "raised" (a BaseException that the function itself did not handle), "timeout", "ended" (the
            process, by its own doing), "crashed".
        value: what it returned.
        prints: what it printed.
        where: for "timeout", the learner's line it was at; for the others, what is known.
        seconds: how long it computed.
    """

    kind: str
    value: Any = None
    prints: str = ""
    where: tuple[str, ...] = ()
    seconds: float = 0.0


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
        with _interrupts_ignored():
            multiprocessing.forkserver.ensure_running()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A process that is started meanwhile does not hear Ctrl-C; who started it ends it."""
    before = None
    with suppress(ValueError):  # not in the main thread, which alone may do so
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def run(function: Callable[..., Any], *args: Any, package: Package, limit: float = 10.0) -> Outcome:
    """Call `function(package, *args)` in a process of its own, which ends with all that it has started.

    Args:
        function: a function of a module, so that the process can import it.
        package: imported before the clock starts.
        limit: seconds of computing; `PATIENCE` times as many may pass.
    """
    warm_up()
    context: Any = multiprocessing.get_context("forkserver" if CAN_FORK else "spawn")
    with tempfile.TemporaryDirectory() as folder:
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(sending, folder, function, package, args, limit), daemon=False)
        try:
            with _no_main_module():
                process.start()
            sending.close()
            outcome = _wait(receiving, process, limit)
        finally:
            with suppress(AttributeError, OSError, TypeError):  # no groups here; or it has ended; or not begun
                os.killpg(process.pid, signal.SIGKILL)
            if process.is_alive():
                process.kill()
                process.join()
        outcome.prints, more = _read(Path(folder, "prints")), _read(Path(folder, "more"))
        outcome.prints += f"... {int(more):,} more lines\n" if int(more or 0) > 0 else ""
        if stack := _read(Path(folder, "stack")):
            outcome = Outcome("timeout", prints=outcome.prints, where=stack_lines(stack, package))
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
    for seconds in (START_LIMIT, PATIENCE * limit + 5.0):  # first it says that it is ready, then what came out
        multiprocessing.connection.wait([receiving, process.sentinel], seconds)
        if not receiving.poll() and process.is_alive():
            return Outcome("timeout")
        try:
            if not receiving.poll():  # something that it has started may hold the other end
                raise EOFError
            outcome = receiving.recv()
        except EOFError:
            process.join()
            kind = "ended" if 0 <= process.exitcode < 256 else "crashed"  # by a signal, or, on Windows, a large number
            return Outcome(kind, where=(f"the process ended by itself, with exit status {process.exitcode}",))
    return outcome


class _Prints(io.TextIOWrapper):
    """Keeps the first lines that are printed in each case, and counts the others, in a file of their own."""

    def __init__(self, folder: str) -> None:
        prints, self.more = (io.FileIO(f"{folder}/{name}", "w") for name in ("prints", "more"))
        super().__init__(prints, "utf-8", "replace", line_buffering=True)
        self.lines = self.hidden = self.characters = 0

    def write(self, text: str) -> int:
        if text.startswith(CASE_MARK):
            super().write(f"... {self.hidden:,} more lines\n" if self.hidden > 0 else "")
            self.lines, self.hidden, self.characters = -1, 0, -len(text)
            self.more.truncate(0)
        for line in text.splitlines(keepends=True):
            if self.lines < MOST_LINES and self.characters < MOST_PRINTS:
                self.lines += line.endswith("\n")
                self.characters += len(line)
                is_cut = self.characters > MOST_PRINTS
                super().write(f"{line[: MOST_PRINTS - self.characters]} ...\n" if is_cut else line)
                self.hidden -= is_cut and not line.endswith("\n")  # its end is still to come
            elif line.endswith("\n"):
                self.hidden += 1
                self.more.seek(0)
                self.more.write(str(self.hidden).encode())
        return len(text)


def _child(
    sending: multiprocessing.connection.Connection,
    folder: str,
    function: Callable[..., Any],
    package: Package,
    args: tuple[Any, ...],
    limit: float,
) -> None:
    if not os.path.isdir(folder):  # Ctrl-C came before this process
        os._exit(0)
    pid = os.getpid()
    if hasattr(os, "setsid"):
        os.setsid()  # a group of its own, which is ended as a whole
    gc.freeze()  # what was loaded before the fork will not be garbage; the engine collects when it ends
    sys.stdin = open(os.devnull)  # noqa: SIM115 - it stays open as long as the process lives
    sys.stdout = sys.stderr = _Prints(folder)
    tqdm.set_lock(threading.RLock())  # its own would be left behind in the system
    logging.disable(logging.WARNING)  # what the engine says of the small pools of cases is not for learners
    prepare_triton()
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.is_available():  # whose driver reserves more addresses than there is memory
        _limit_memory()
    is_ready = False
    try:
        package.load()
        sending.send("ready")
        is_ready = True
        with open(Path(folder, "stack"), "w") as stack:
            _set_alarm(limit, stack)
            start = time.process_time()
            value = function(package, *args)
            seconds = time.process_time() - start
            _set_alarm(0, stack)
        outcome = Outcome("returned", value, seconds=seconds)
    except BaseException as error:  # SystemExit too: a learner may call exit()
        outcome = Outcome("raised", where=describe_error(error, package))
        if not is_ready:
            sending.send("ready")
    sys.stdout.flush()
    if os.getpid() == pid:  # and not a copy of this process that the learner's code has made
        sending.send(outcome)
    os._exit(0)  # all is said; taking torch apart in good order would cost more than the whole check


def _limit_memory() -> None:
    """What asks for more gets a MemoryError, before the machine has none left for others."""
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limits
        import resource

        used = psutil.Process().memory_info()
        limit = getattr(used, "data", used.vms) + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _set_alarm(limit: float, stack: TextIO) -> None:
    """End this process after `limit` seconds of computing, and note where it is then; 0 calls it off."""
    if hasattr(signal, "setitimer"):
        faulthandler.register(signal.SIGPROF, stack, all_threads=False, chain=True)  # and then it ends
        signal.setitimer(signal.ITIMER_PROF, limit)
    if limit:
        faulthandler.dump_traceback_later(PATIENCE * limit, file=stack, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


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
    message = str(error) + _suggestion(error)
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[:LONGEST_MESSAGE]} ... ({len(message)} characters)"
    return (*lines, f"{type(error).__name__}: {message}".rstrip(": "), *getattr(error, "__notes__", ()))


def _suggestion(error: BaseException) -> str:
    """The name that may have been meant."""
    name, known = getattr(error, "name", None) or "", []
    if isinstance(error, AttributeError):
        known = dir(error.obj)
    elif isinstance(error, NameError) and name in sys.stdlib_module_names:
        return f'; put "import {name}" into the same cell, or at the top of the file'
    elif isinstance(error, NameError) and (frames := list(traceback.walk_tb(error.__traceback__))):
        known = [*frames[-1][0].f_locals, *frames[-1][0].f_globals]
    # An attribute that is merely like another one would mislead: embedding_dim is not num_embeddings.
    found = difflib.get_close_matches(name, known, 1, 0.75 if isinstance(error, AttributeError) else 0.6)
    return f"; did you mean {found[0]}?" if found else ""


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
