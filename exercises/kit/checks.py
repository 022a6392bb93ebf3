"""Is an answer right, does the engine run with it, and if not, which mistake is it?

Two grades. *Unit*: only this function is the learner's, so nothing else can be to blame. *Whole*: all of
theirs together must write the same text as ours.
"""

import ast
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import grading, manifest, runner, source
from .assemble import Package, assemble, build_folder
from .grading import Finding, Verdict, last_story, prints_of
from .manifest import BUNDLED_MODEL, ROOT, Exercise
from .workspace import Answer, Workspace, digest, parse, split

WRONG_ANSWERS = ROOT / "tests" / "wrong_answers"
SOLUTIONS = ROOT / "solutions"  # a release for a class has none
# Seconds of computing for writing a few words, the loading of the model included: at first, and once it is known how
# long our engine takes.
ENGINE_LIMIT = 60.0
SHORTEST_LIMIT, TIMES_OURS = 8.0, 6.0


@dataclass
class Result:
    """What came out of a check.

    Args:
        exercise: what was checked.
        status: "passed", "failed", or "todo" if nothing is written yet.
        summary: one line.
        finding: the first thing that is not right, if it was an observation.
        details: more lines: where an error was raised, or where the time was spent.
        diagnosis: the likely mistake, if it is a known one.
        mistake: its name.
        whole: what the engine does with all of the learner's functions together.
        blamed: id of the exercise that breaks the whole.
        prints: what the learner's code printed.
        next_step: what to do now.
    """

    exercise: Exercise
    status: str
    summary: str
    finding: Finding | None = None
    details: tuple[str, ...] = ()
    diagnosis: str = ""
    mistake: str = ""
    whole: str = ""
    blamed: str = ""
    prints: str = ""
    next_step: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the unit grade is a pass."""
        return self.status == "passed"

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of everything there is to say."""
        rows = [("", self.summary)]
        if self.finding:
            rows += [("the case", self.finding.story), ("steps", "\n".join(self.finding.steps))]
            rows += [("raised", "\n".join(self.finding.error))]
            if not (found := self.finding).error:
                rows += [("looked at", found.what)]
                # What a tensor is like says what it should be, too.
                rows += [("expected", found.expected)] * (found.expected != "'as it should be'") + [("got", found.got)]
                is_answer = found.got == "None" and "| None:" in self.exercise.reference()  # and not forgotten
                if not found.what.startswith("shape of ") and not is_answer:  # no set of numbers
                    rows += [("difference", difference(found.expected, found.got))]
        rows += [("likely", self.diagnosis), ("together", self.whole), ("where", "\n".join(self.details))]
        rows += [("your prints", self.prints.rstrip()), ("next", self.next_step)]
        return [(label, text) for label, text in rows if text]

    @property
    def said(self) -> str:
        """What there is to say in one line, among others."""
        if not self.finding:
            return "not written yet" if self.status == "todo" else f"{self.summary} {self.whole}".strip()
        finding = self.finding
        wrong = finding.error[-1] if finding.error else f"{finding.what}: {finding.got}, expected {finding.expected}"
        return self.diagnosis or f"{finding.story} {wrong}"

    @property
    def title(self) -> str:
        """Id, title and status."""
        words = {"passed": "passed", "failed": "not right yet", "todo": "not written yet"}
        return f"{self.exercise.id}  {self.exercise.title}: {words[self.status]}"


def difference(expected: str, got: str) -> str:
    """How two values differ, in a few words, where words are clearer than the values; "" elsewhere."""
    try:
        wanted, found = ast.literal_eval(expected), ast.literal_eval(got)
    except (ValueError, SyntaxError, MemoryError):
        return ""
    if found is None:
        return "None: perhaps something was not returned, or not set."
    if type(wanted) is type(found) is int and abs(wanted - found) == 1:
        return f"one too {'many' if found > wanted else 'few'}"
    if not type(wanted) is type(found) is list or len(wanted) < 2 or isinstance(wanted[0], bool):
        return ""
    if wanted == found[::-1]:
        return "the right values in the opposite order"
    if sorted(map(repr, wanted)) == sorted(map(repr, found)):
        return "the right values in another order"
    missing, extra = ([x for x in one if x not in other] for one, other in ((wanted, found), (found, wanted)))
    words = [f"missing: {_list(missing)}"] * bool(missing) + [f"not expected here: {_list(extra)}"] * bool(extra)
    return "; ".join(words) if len(missing) + len(extra) <= 4 else ""


def _list(values: list[Any]) -> str:
    return ", ".join(map(repr, values))


def check(
    exercise_id: str,
    workspace: Workspace | None = None,
    engine: bool = True,
    on_cases: Callable[[Result], None] | None = None,
) -> Result:
    """Check what the learner has written for an exercise, and note the result.

    Args:
        exercise_id: for example "ch05.deallocate".
        engine: also run the engine with it (a second, a little more the first time).
        on_cases: called with the result so far once the cases are through and the engine is still to run.

    Raises:
        KeyError: there is no such exercise.
    """
    workspace = workspace or Workspace()
    exercise = manifest.get(exercise_id)
    answer = workspace.answer(exercise)
    others = [other for other in workspace.answers() if other.exercise.id != exercise_id] if engine else []
    left_out: list[str] = []

    def select() -> list[Answer]:
        # What is wrong would only spoil the whole, perhaps with an engine that never ends.
        left_out.extend(other.exercise.id for other in others if other.exercise.splice and not _works(other, workspace))
        return [other for other in others if other.exercise.id not in left_out]

    result = grade(answer, select, engine, on_cases)
    if left_out and result.passed:
        result.whole = f"{result.whole} Left out, because not right yet: {', '.join(left_out)}.".strip()
    known = workspace.known(exercise)
    if answer.is_stub:
        return result
    if result.status == "failed":
        _advise(result, known)
    workspace.note(
        exercise,
        status=result.status,
        checked=fingerprint(answer),
        source=answer.text,
        failures=known.get("failures", 0) + (result.status == "failed"),
        when=time.strftime("%Y-%m-%d %H:%M:%S"),
    )
    if result.passed and not result.blamed:
        ours = f', solution("{exercise_id}") how ours does it' * SOLUTIONS.is_dir()
        look = f'show("{exercise_id}") shows what yours did{ours}.'
        result.next_step = f"{what_is_next(workspace, exercise.chapter)}\n{look}"
    return result


def _works(answer: Answer, workspace: Workspace) -> bool:
    """Whether the answer, as it stands, has passed; one that was never checked is tried with its cases, once."""
    known, mark = workspace.known(answer.exercise), fingerprint(answer)
    if known.get("checked") == mark:
        return bool(known["status"] == "passed")
    if known.get("tried") != mark:
        known = {"tried": mark, "works": _unit(answer, assemble([answer])).passed}
        workspace.note(answer.exercise, **known)
    return bool(known["works"])


def state(exercise: Exercise, workspace: Workspace) -> str:
    """How far the learner is: "to do", "written", "passed", "not right yet", "changed"."""
    answer, known = workspace.answer(exercise), workspace.known(exercise)
    if answer.is_stub:
        return "to do"
    if not known.get("status"):
        return "written"
    if known.get("checked") != fingerprint(answer):
        return "changed"
    return "passed" if known["status"] == "passed" else "not right yet"


def what_is_next(workspace: Workspace, chapter: str = "") -> str:
    """The first exercise that has not passed: of `chapter`, then of those after it, then of those left out before."""
    for exercise in sorted(manifest.load().values(), key=lambda e: (e.chapter != chapter, e.chapter < chapter)):
        if state(exercise, workspace) != "passed":
            return f"{exercise.id}: {exercise.title}, about {exercise.minutes} minutes."
    return "All exercises are done."


def fingerprint(answer: Answer) -> str:
    """Changes when the answer or its grader does: a pass counts as long as this is the same."""
    grader = grading.grader_path(answer.exercise.file_name)
    return digest(answer.text, grader.read_text(encoding="utf-8") if grader.is_file() else "")


def grade(
    answer: Answer,
    others: list[Answer] | Callable[[], list[Answer]] = (),  # type: ignore[assignment]
    engine: bool = True,
    on_cases: Callable[[Result], None] | None = None,
) -> Result:
    """Check one answer; `others` are what the learner has besides, or a function that finds them."""
    start, exercise = time.perf_counter(), answer.exercise
    if answer.is_stub:
        text = f"Write it in {answer.file}, line {answer.line}, or in the notebook's cell."
        result = Result(exercise, "todo", text)
    elif answer.problem:
        result = Result(exercise, "failed", answer.problem[0].upper() + answer.problem[1:])
    else:
        result = _unit(answer, assemble([answer]))
        if result.passed and engine and exercise.splice:
            if on_cases:
                on_cases(replace(result, whole="The engine is running with it."))
            _plug_in(result, answer, others() if callable(others) else others)
    result.seconds = time.perf_counter() - start
    return result


def _unit(answer: Answer, package: Package) -> Result:
    exercise = answer.exercise
    outcome = run_cases(exercise, package)
    if outcome.kind != "returned":
        summary = {
            "timeout": f"It was stopped after {exercise.time_limit:g} seconds: it had not come to an end.",
            "crashed": "Python itself broke down while it ran.",
            "ended": "It ended the process that it ran in.",
            "raised": "It ended the check.",
        }[outcome.kind]
        story = last_story(outcome.prints)
        where = (*([f"the case: {story}"] if story else []), *outcome.where)
        return Result(exercise, "failed", summary, details=where, prints=prints_of(outcome.prints))
    verdict: Verdict = outcome.value
    if verdict.finding is None:
        prints = prints_of(outcome.prints)
        said = [f"Right in all {verdict.num_cases} cases."]
        said += [f"{text[0].upper()}{text[1:]}." for text in verdict.measured]
        return Result(exercise, "passed", " ".join(said), prints=prints)
    name, diagnosis = diagnose(exercise, verdict)
    summary = f"{verdict.num_cases - verdict.num_failed} of {verdict.num_cases} cases are right. The first that is not:"
    if source.is_empty(ast.parse(answer.function[0]).body[0]):  # type: ignore[arg-type]
        name, diagnosis, summary = "", "", f"It does nothing yet. {summary}"
    prints = prints_of(outcome.prints, verdict.finding.case)
    return Result(exercise, "failed", summary, verdict.finding, (), diagnosis, name, prints=prints)


def run_cases(exercise: Exercise, package: Package, keep: str | None = None, at: int | None = None) -> runner.Outcome:
    """The grader's verdict on a package, from a process of its own."""
    path = grading.grader_path(exercise.file_name)
    return runner.run(grading.grade, path, exercise.id, keep, at, package=package, limit=exercise.time_limit)


def expected_scene(exercise: Exercise, finding: Finding) -> dict[str, Any] | None:
    """What `finding.scene` is with our function; None if ours comes to another observation there."""
    outcome = run_cases(exercise, assemble(), finding.case, finding.at)
    if outcome.kind != "returned" or outcome.value.finding:
        return None
    seen = outcome.value.observations[finding.case][finding.at : finding.at + 1]
    is_same = bool(seen) and (finding.error or seen[0][0] == finding.what)
    return outcome.value.scene if is_same else None


# The engine with it.


def run_engine(answers: list[Answer]) -> runner.Outcome:
    """The text that the engine writes with some answers in place; see `grading.generate`."""
    ours = reference()
    limit = max(SHORTEST_LIMIT, TIMES_OURS * ours["seconds"])
    return runner.run(grading.generate, ours, package=assemble(answers), limit=limit)


def reference() -> dict[str, Any]:
    """What our own engine writes, step by step, and its seconds; in build/ until the engine or the model changes.

    Raises:
        RuntimeError: our own engine does not work here.
    """
    package = assemble()
    weights = BUNDLED_MODEL / "model.safetensors"
    state = weights.stat() if weights.is_file() else None
    workload = repr((grading.PROMPTS, grading.ENGINE_OPTIONS, grading.ROUNDS))
    stamp = repr((package.name, state and (state.st_size, state.st_mtime_ns), workload))

    def compute() -> dict[str, Any]:
        outcome = runner.run(grading.reference, package=package, limit=ENGINE_LIMIT)
        if outcome.kind != "returned":
            raise RuntimeError("\n".join(["the engine itself does not run here:", *outcome.where, outcome.prints]))
        return {**outcome.value, "seconds": outcome.seconds}

    return _cached("reference-steps", stamp, compute)


def reference_tokens() -> list[list[int]]:
    """The tokens of each answer of our own engine."""
    return reference()["tokens"]


def _cached(name: str, stamp: str, compute: Callable[[], Any]) -> Any:
    path = build_folder() / "results" / f"{name}-{digest(stamp)}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        value = compute()
    if value is None:  # it did not work this time
        return None
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(f".{time.time_ns()}")
    temporary.write_text(json.dumps(value), encoding="utf-8")
    temporary.replace(path)
    return value


def _problem(answers: list[Answer]) -> tuple[str, runner.Outcome]:
    """Why the engine with these answers is not as good as ours; "" if it is."""
    outcome = run_engine(answers)
    if outcome.kind == "timeout":
        return "the engine did not come to an end", outcome
    if outcome.kind != "returned":
        return "the engine stopped with an error", outcome
    written: grading.Written = outcome.value
    if written.never_called:
        return f"the engine never called your {', '.join(written.never_called)}", outcome
    outcome.where = written.broken_rule
    if written.tokens != reference_tokens():
        return "the engine writes another text than ours", outcome
    if written.broken_rule:
        return "the engine writes the same text as ours, but its blocks or queues are not in order", outcome
    return "", outcome


def _plug_in(result: Result, answer: Answer, others: list[Answer]) -> None:
    problem, outcome = _problem([answer])
    if problem:
        result.status, result.details, result.prints = "failed", outcome.where, prints_of(outcome.prints)
        result.summary = f"It passes its cases, but plugged in, {problem}."
        return
    result.summary += " Plugged into the engine, the text is the same as ours."
    others = [other for other in others if other.exercise.splice]
    if not others:
        return
    together = in_order([*others, answer])
    problem, outcome = _problem(together)
    if not problem:
        result.whole = f"All {len(together)} functions of yours together: the same text."
        return
    blamed = blame(together)
    result.blamed = blamed.exercise.id
    result.whole = (
        f"With all {len(together)} functions of yours, {problem}. It goes wrong as soon as {result.blamed} is among "
        f'them: check("{result.blamed}").'
    )
    result.details = outcome.where


def in_order(answers: list[Answer]) -> list[Answer]:
    """In the manifest's order."""
    position = {exercise_id: i for i, exercise_id in enumerate(manifest.load())}
    return sorted(answers, key=lambda answer: position[answer.exercise.id])


def blame(answers: list[Answer]) -> Answer:
    """The answer with which the engine starts to fail, when they are put in one after the other; by bisection."""
    good, bad = 0, len(answers)
    while bad - good > 1:
        middle = (good + bad) // 2
        if _problem(answers[:middle])[0]:
            bad = middle
        else:
            good = middle
    return answers[bad - 1]


# Known mistakes.

QUESTION = "Some who come this far have made this mistake; have you? "


@dataclass(frozen=True)
class WrongAnswer:
    """A mistake that learners make: two spellings of it, and what to tell them."""

    name: str
    diagnosis: str
    first: Answer
    second: Answer


def mistake_files(exercise: Exercise) -> list[Path]:
    """The files of the known mistakes of an exercise."""
    return sorted(WRONG_ANSWERS.glob(f"{exercise.id}__*.py"))


def wrong_answers(exercise: Exercise) -> list[WrongAnswer]:
    """The known mistakes of an exercise, from tests/wrong_answers/<id>__<mistake>.py.

    Such a file has DIAGNOSIS, a string, and twice the function: under ``# --- first`` and ``# --- second``.
    """
    found = []
    for path in mistake_files(exercise):
        text = path.read_text(encoding="utf-8")
        for spelling in ("first", "second"):
            text = text.replace(f"# --- {spelling}\n", f"# --- ch00.{spelling}\n")
        sections = split(text)
        names: dict[str, Any] = {}
        exec(compile(text.split("# --- ch00.first")[0], str(path), "exec"), names)
        answers = [
            parse(exercise, sections[f"ch00.{spelling}"][1], path.name, sections[f"ch00.{spelling}"][0])
            for spelling in ("first", "second")
        ]
        diagnosis = " ".join(names["DIAGNOSIS"].split())
        found.append(WrongAnswer(path.stem.removeprefix(f"{exercise.id}__"), diagnosis, *answers))
    return found


def fingerprints(exercise: Exercise) -> list[tuple[str, str, str, list[list[str]]]]:
    """Name, diagnosis, fingerprint and first findings of every known mistake of an exercise."""
    grader = grading.grader_path(exercise.file_name)
    files = [Path(grading.__file__), grader, *mistake_files(exercise)]

    def measure() -> list[Any] | None:
        known = wrong_answers(exercise)
        packages = [assemble([wrong.first]) for wrong in known]
        limit = exercise.time_limit * len(known)
        outcome = runner.run(grading.grade_each, packages, grader, exercise.id, package=packages[0], limit=limit)
        if outcome.kind != "returned":
            return None
        return [[w.name, w.diagnosis, v.fingerprint, v.signature] for w, v in zip(known, outcome.value, strict=True)]

    stamp = repr([assemble().name, *(path.read_text(encoding="utf-8") for path in files)])
    found = _cached(f"mistakes-{exercise.id}", stamp, measure) if files[2:] else None
    return [(name, says, print_, [list(key) for key in keys]) for name, says, print_, keys in found or []]


def diagnose(exercise: Exercise, verdict: Verdict) -> tuple[str, str]:
    """Name and diagnosis of the known mistake that behaves like this; two empty strings if none does.

    A mistake that behaves the same in every observation is it. Failing that, what the first wrong observation means
    is likely. Failing that, a mistake that fails in the same cases, in the same way, is worth a question.
    """
    known = fingerprints(exercise)
    for name, diagnosis, print_, _ in known:
        if print_ == verdict.fingerprint:
            return name, diagnosis
    assert verdict.finding is not None
    if verdict.finding.likely:
        return "", verdict.finding.likely
    found = [list(key) for key in verdict.signature]
    alike = [diagnosis for _, diagnosis, _, signature in known if signature == found]
    return "", f"{QUESTION}{alike[0]}" if len(alike) == 1 else ""


def _advise(result: Result, known: dict[str, Any]) -> None:
    shown, id_ = known.get("hints", 0), result.exercise.id
    if result.blamed:
        return
    if shown < 3:
        result.next_step = f'hint("{id_}") shows {("the first hint", "the second hint", "the last hint")[shown]}.'
    else:
        result.next_step = f'show("{id_}") puts your run beside ours; solution("{id_}") shows our answer.'
