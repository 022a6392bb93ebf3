"""Grades for a class: every submission in processes of its own, with the checks that learners have.

A submission's answers are checked one by one by a worker, a process of its own, and each of them runs in yet another
one, with limits of time and memory (`kit.runner`). What a worker has found out is in a file, line by line: should an
answer bring the worker down, the next one goes on behind that answer. All processes of a submission inherit a mark in
their environment; those that are left behind are ended by it. A line is signed with a key that only the worker gets,
so nothing that an answer writes into such a file counts. This keeps accidents apart; it is no sandbox against somebody
who means harm.
"""

import contextlib
import hmac
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ..kit import checks, manifest
from ..kit.assemble import PACKAGES_VARIABLE
from ..kit.manifest import ROOT
from ..kit.report import Message
from ..kit.workspace import FOLDER_VARIABLE, Workspace
from .submissions import Submission

MARK = "NANOVLLM_GRADING"  # in the environment of all processes of a submission
ENDED = "It ended the process that graded it."
SECONDS = 180  # to load the libraries, the first time on a cold disk
SECONDS_EACH = 120  # for one answer; its own check has stricter limits


@dataclass
class Grade:
    """What came of one submission.

    Args:
        submission: which one.
        results: what was found out for each exercise, as `report_of` gives it; in the order of the course.
        together: what the engine does with all functions that have passed.
        seconds: how long it took.
    """

    submission: Submission
    results: list[dict[str, Any]] = field(default_factory=list)
    together: str = ""
    seconds: float = 0.0

    @property
    def num_passed(self) -> int:
        """How many exercises are right."""
        return sum(result["status"] == "passed" for result in self.results)


def grade_class(
    submissions: Iterable[Submission],
    exercise_ids: list[str],
    jobs: int | None = None,
    on_grade: Callable[[Grade], Any] = lambda grade: None,
) -> list[Grade]:
    """Grade all submissions; after Ctrl-C the grades are those that are finished.

    Args:
        exercise_ids: what is graded, in the order of the course.
        jobs: how many at a time; as many as there are cores if None.
        on_grade: called with each grade as soon as it is there, in threads of this process.
    """
    stopped, finished = threading.Event(), {}

    def work(number: int, submission: Submission) -> None:
        grade = grade_one(submission, exercise_ids, stopped)
        if not stopped.is_set():
            finished[number] = grade
            on_grade(grade)

    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        try:
            for future in [pool.submit(work, *numbered) for numbered in enumerate(submissions)]:
                future.result()
        except BaseException as error:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            if not isinstance(error, KeyboardInterrupt):  # which the workers do not hear
                raise
    return [finished[number] for number in sorted(finished)]


def grade_one(submission: Submission, exercise_ids: list[str], stopped: threading.Event | None = None) -> Grade:
    """Grade one submission, in processes of their own; none of them is left when this returns.

    Args:
        exercise_ids: what is graded, in the order of the course.
        stopped: set if the grade is no longer wanted.

    Raises:
        RuntimeError: the checks themselves do not work here.
    """
    start, grade, stopped = time.perf_counter(), Grade(submission), stopped or threading.Event()
    with tempfile.TemporaryDirectory() as name:
        submission.write(Path(name, "exercises"))
        Path(name, "packages").mkdir()  # for its engines, which nobody needs when it is graded
        while (left := exercise_ids[len(grade.results) :]) and not stopped.is_set():
            reports = _work(Path(name), left, stopped)
            results = [report for report in reports if "id" in report]
            if len(results) < len(left):
                results.append(report_of(checks.Result(manifest.get(left[len(results)]), "failed", ENDED)))
            grade.results += results
            grade.together = next((report["together"] for report in reports if "together" in report), "")
    grade.seconds = time.perf_counter() - start
    return grade


def _work(folder: Path, exercise_ids: list[str], stopped: threading.Event) -> list[dict[str, Any]]:
    """What a worker has found out about some answers before it ended, or was ended."""
    found, log, mark = folder / "found.jsonl", folder / "log.txt", uuid.uuid4().hex
    found.write_bytes(b"")
    key = uuid.uuid4().hex
    folders = {FOLDER_VARIABLE: str(folder / "exercises"), PACKAGES_VARIABLE: str(folder / "packages")}
    variables = folders | {MARK: mark, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", __name__, str(found), *exercise_ids]
    # No pipes for what is written: what an answer leaves behind would hold their other ends.
    with log.open("w") as errors:
        files: Any = {"stdin": subprocess.PIPE, "stdout": errors, "stderr": errors}
        # A session of its own: an answer that kills all around it does not reach this process.
        process = subprocess.Popen(command, env=os.environ | variables, cwd=folder, start_new_session=True, **files)
        stdin: Any = process.stdin
        with contextlib.suppress(OSError), stdin:  # it may have ended already
            stdin.write(key.encode())
        end = time.monotonic() + SECONDS + SECONDS_EACH * len(exercise_ids)
        while process.poll() is None and time.monotonic() < end and not stopped.wait(0.1):
            pass
        _end_all(mark)
        process.wait()
    reports = _read(found, key)
    if not reports and not stopped.is_set():
        raise RuntimeError(f"the checks do not work here:\n{log.read_text(errors='replace')[-2000:]}")
    return reports[1:]


def _read(path: Path, key: str) -> list[dict[str, Any]]:
    """The lines that the worker wrote, in its order; all others are passed over."""
    reports: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        signature, _, text = line.partition(" ")
        if hmac.compare_digest(signature.encode(), _signature(key, len(reports), text).encode()):
            reports.append(json.loads(text))
    return reports


def _signature(key: str, number: int, text: str) -> str:
    return hmac.new(key.encode(), f"{number} {text}".encode(), "sha256").hexdigest()


def _end_all(mark: str) -> None:
    """End the processes that a submission has left behind, and those that they start meanwhile."""
    for _ in range(10):
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                    process.kill()
                    found.append(process)
        if not found:
            return
        psutil.wait_procs(found, timeout=1)


def report_of(result: checks.Result) -> dict[str, Any]:
    """A result as plain values.

    What it is about, and in which case, a line each; whether it is more than a wrong answer: it could not be read, did
    not end, ended its process, or took too much; and the words that learners read.
    """
    message = repr(Message(result.title, result.rows(), result.status))
    about, case, is_strange = result.summary, "", result.status == "failed" and "plugged in" not in result.summary
    if finding := result.finding:
        about, case = [finding.what, *finding.error][-1], "" if result.mistake else finding.story
        is_strange = any(line.startswith("MemoryError") for line in finding.error)
    names = {"id": result.exercise.id, "status": result.status, "mistake": result.mistake, "is_strange": is_strange}
    names |= {"about": " ".join((result.diagnosis or about).split()), "case": case}
    return names | {"feedback": message if result.status != "todo" else ""}


def worker(path: str, exercise_ids: list[str]) -> None:
    """Check the answers of the workspace that the environment names, and write a line for each."""
    workspace, passed, numbers, key = Workspace(), [], itertools.count(), sys.stdin.read()
    with open(path, "a", encoding="utf-8") as found:

        def say(report: dict[str, Any]) -> None:
            text = json.dumps(report)
            # A line of its own, also behind one that something else left without an end.
            print(f"\n{_signature(key, next(numbers), text)} {text}", file=found, flush=True)

        say({"is_ready": True})
        for exercise_id in exercise_ids:
            answer = workspace.answer(manifest.get(exercise_id))
            result = checks.grade(answer)
            passed += [answer] if result.passed and answer.exercise.splice else []
            say(report_of(result))
        together = checks.grade(passed[-1], passed[:-1]).whole if len(passed) > 1 else ""
        say({"together": together})


if __name__ == "__main__":
    worker(sys.argv[1], sys.argv[2:])
