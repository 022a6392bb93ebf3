"""What a learner can do: check, show, hint, solution, reset, mine, and the notebook's %%exercise."""

import difflib
import functools
import itertools
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from . import checks, grading, manifest, runner, source, stubs
from .assemble import Mine, Package, Without, assemble
from .checks import Result
from .manifest import Exercise
from .predictions import predict, reveal
from .report import KINDS, Message
from .report import shell as _shell
from .staircase import staircase
from .workspace import FOLDER_VARIABLE, MARKER, Answer, Workspace, digest, parse

# What happens to blocks, by how much there is to see in it.
WEIGHTS = {"preempt": 5, "share": 4, "evict": 3, "release": 3, "refuse": 2, "append": 1}
STOPPED = "Stopped. Nothing was noted down."
FIGURES = manifest.ROOT / "notebooks"  # figures.py, the pictures of the notebooks


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn a wrong id into a message: a notebook that is run from top to bottom must not stop."""

    @functools.wraps(function)
    def call(exercise_id: str = "", *args: Any, **kwargs: Any) -> Any:
        if exercise_id == "":
            return Message(f'Which exercise? For example: {function.__name__}("ch05.deallocate")', kind="failed")
        return _caught(lambda: function(exercise_id, *args, **kwargs))

    return call


def _caught(call: Callable[[], Any]) -> Any:
    """What a call returns; a message if it names no exercise, cannot write, or is stopped."""
    try:
        return call()
    except KeyError as error:
        title, _, more = str(error.args[0]).partition("; ")  # a title is one line
        return Message(title, [("", more)] * bool(more), "failed")
    except OSError as error:
        text = f"Your answers are in {Workspace().folder}; the environment variable {FOLDER_VARIABLE} names another."
        return Message(f"This could not be written: {error}", [("", text)], "failed")
    except KeyboardInterrupt:
        return Message(STOPPED)


def describe(result: Result) -> Message:
    """A result in words."""
    message = Message(result.title, result.rows(), result.status)
    if hasattr(_shell(), "kernel"):
        message.picture = picture(result)
    return message


def picture(result: Result) -> str:
    """HTML of a result: of a failed case the pool that was expected beside the one that came out; of a pass the map."""
    finding, exercise = result.finding, result.exercise
    with suppress(ImportError):  # there are no pictures here
        from nanovllm.viz.pools import compare

        if finding and finding.scene:
            return compare(checks.expected_scene(exercise, finding), finding.scene)
    if not result.passed or not result.next_step or not exercise.splice:
        return ""
    return Mine(load=False).map(exercise.id, result.next_step.partition(":")[0])


@guarded
def check(exercise_id: str, engine: bool = True) -> Message | None:
    """Check your answer, in your file: its cases, then the engine with it.

    Args:
        exercise_id: for example "ch05.deallocate", or "ch05" for all that is written of a chapter.
        engine: False leaves the engine out, which saves a second.
    """
    workspace = Workspace()
    chapter = [exercise for exercise in manifest.load().values() if exercise.chapter == exercise_id]
    if not chapter:
        return _check(exercise_id, workspace, engine)
    results = [checks.check(exercise.id, workspace, engine) for exercise in chapter]
    rows = [(result.exercise.id, f"{KINDS[result.status][0]} {result.said}") for result in results]
    num_right = sum(result.passed for result in results)
    rows.append(("next", checks.what_is_next(workspace, exercise_id)))
    kind = next(kind for kind in ("failed", "todo", "passed") if kind in {result.status for result in results})
    return Message(f"{exercise_id}: {num_right} of {len(results)} are right", rows, kind)


def _check(exercise_id: str, workspace: Workspace, engine: bool = True, note: str = "") -> Message | None:
    """The result of a check; in a notebook, that of its cases appears first, and is completed in its place."""
    shown = []

    def show_cases(result: Result) -> None:
        from IPython.display import display

        shown.append(display(describe(result), display_id=True))

    result = checks.check(exercise_id, workspace, engine, show_cases if hasattr(_shell(), "kernel") else None)
    message = describe(result)
    message.rows += [("note", note)] if note else []
    return shown[0].update(message) if shown else message


@guarded
def hint(exercise_id: str) -> Message:
    """The next of three hints; all of them, once you have seen the last."""
    workspace, exercise = Workspace(), manifest.get(exercise_id)
    shown = min(3, workspace.known(exercise).get("hints", 0) + 1)
    workspace.note(exercise, hints=shown)
    rows = [(f"hint {i + 1}", exercise.hints[i]) for i in range(shown)]
    if shown == 3 and checks.SOLUTIONS.is_dir():
        rows.append(("next", f'That was the last one. solution("{exercise_id}") shows our answer.'))
    return Message(f"{exercise.id}  {exercise.title}", rows)


@guarded
def solution(exercise_id: str, now: bool = False) -> Message:
    """Our answer and its reason, compared with yours. It opens after a pass, or after the three hints.

    Args:
        now: show it in any case.
    """
    workspace, exercise = Workspace(), manifest.get(exercise_id)
    if not checks.SOLUTIONS.is_dir():
        return Message(f"{exercise.id}  The solution is closed", [("", "It is with your instructor.")])
    known, answer = workspace.known(exercise), workspace.answer(exercise)
    has_passed = known.get("status") == "passed" and known.get("checked") == checks.fingerprint(answer)
    if not (now or has_passed or known.get("hints", 0) >= 3):
        text = f'hint("{exercise_id}") has {3 - known.get("hints", 0)} more for you; then it opens.\n'
        text += f'solution("{exercise_id}", now=True) does not wait.'
        return Message(f"{exercise.id}  The solution is still closed", [("", text)])
    code = exercise.reference()
    if answer.is_usable:
        theirs, ours = (source.without_docstring(text).splitlines() for text in (answer.function[0], code))
        lines = list(difflib.unified_diff(theirs, ours, n=99, lineterm=""))[3:]
        code = "\n".join(["- yours, + ours", *lines]) if lines else code
    return Message(f"{exercise.id}  {exercise.title}", [("our answer", code), ("why", " ".join(exercise.why.split()))])


@guarded
def reset(exercise_id: str) -> Message:
    """Back to the stub. What you had is kept in exercises/.attempts/."""
    workspace, exercise = Workspace(), manifest.get(exercise_id)
    backup = workspace.reset(exercise)
    text = f"Your answer was kept in {backup.parent.name}/{backup.name}." if backup else "There was nothing to keep."
    return Message(f"{exercise.id}  is a stub again", [("", text)])


def mine(*open_ids: str, **options: Any) -> Mine:
    """Your engine: ours, with every function that you have written in its place.

    Shown, it is the map of what is yours. `mine().LLM("qwen3-tiny")` runs it; `mine().export(path)` keeps it. For a
    function that has failed its check ours stands in, so that what you see works, unless you name it.

    Args:
        open_ids: answers that are to take part in any case: to open exercises, such as "ch06.choose_victim", and such
            as have failed.
        options: of its `LLM`, for those who do not say otherwise, for example `max_num_seqs=8`.
    """
    return Mine(open_ids=open_ids, options=options)


def without(exercise_id: str) -> Without:
    """Our engine, which lacks the function of an exercise; used like `mine()`, to see what the function is for.

    Raises:
        KeyError: there is no such function in the engine.
    """
    exercise = manifest.get(exercise_id)
    if not exercise.splice:
        raise KeyError(f"{exercise_id} is no part of the engine, so there is none without it")
    return Without(exercise)


@guarded
def show(exercise_id: str) -> Any:
    """Your run beside ours: the observations of the case that fails, and, with widgets, the blocks at that step."""
    exercise = manifest.get(exercise_id)
    answer = Workspace().answer(exercise)
    package = assemble([answer] if answer.is_usable else [])
    outcome = checks.run_cases(exercise, package)
    if outcome.kind != "returned" or not answer.is_usable:
        return describe(checks.grade(answer, engine=False))
    finding, is_notebook = outcome.value.finding, hasattr(_shell(), "kernel")
    if finding is None:
        traces = _traces(exercise, package)
        step, text = _what_it_did(traces[0]) if traces else (None, "It passes its cases. In the first of them:")
        (first,) = outcome.value.observations.values()
        beside = [] if traces else [(what, expected, got) for what, got, expected in first[:5]]
        message = Message(f"{exercise.id}  What it did", [("", text)], "passed", beside)
    else:
        packages = (assemble(), package)
        ours, theirs = (checks.run_cases(exercise, p, finding.case).value.observations[finding.case] for p in packages)
        last = finding.steps[-1].strip() if finding.steps else ""
        rows = [("the case", finding.story)] + ([("when", last)] if last else [])
        message = Message(f"{exercise.id}  Your run beside ours", rows, "failed", _beside(ours, theirs))
        traces, step = _traces(exercise, package, assemble()) if is_notebook else [], None
    if not is_notebook:
        return message
    from IPython.display import display

    display(message, *(_pictures(traces, step) if traces else []))
    return None


def _beside(ours: list[tuple[str, str, str]], theirs: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """A few observations around the first that differ: what it is, ours, yours."""
    pairs = itertools.zip_longest(ours, theirs, fillvalue=("", "(not reached)", ""))
    found = [(a[0] or b[0], a[1], b[1] if a[0] in ("", b[0]) else f"{b[0]}: {b[1]}") for a, b in pairs]
    first = next((i for i, (_, one, other) in enumerate(found) if one != other), 0)
    return found[max(0, first - 2) : first + 4]


def _traces(exercise: Exercise, *packages: Package) -> list[dict[str, Any]]:
    """Engines at the same work; nothing for what pictures do not show, or if there are none here."""
    if not exercise.splice or not exercise.id.startswith(("ch04", "ch05", "ch06", "ch07")):
        return []
    outcomes = [runner.run(grading.record, package=p, limit=checks.ENGINE_LIMIT) for p in packages]
    return [outcome.value for outcome in outcomes] if all(o.kind == "returned" for o in outcomes) else []


def _what_it_did(trace: dict[str, Any]) -> tuple[int, str]:
    """The step in which most happened while the function was called, and what that was."""
    from nanovllm.viz.block_table import describe_step
    from nanovllm.viz.trace import name_of

    steps = trace["steps"]
    called = [i for i in trace["called"] if i < len(steps)] or [0]
    step = max(called, key=lambda i: sum(WEIGHTS.get(event["event"], 0) for event in steps[i]["events"]))
    text = f"It was called in {len(called)} of {len(steps) - 1} steps. Step {step}: {describe_step(trace, step)}"
    for event in steps[step]["events"]:
        if event["event"] == "release" and event["blocks"]:
            blocks = ", ".join(f"#{block_id}" for block_id in event["blocks"])
            text += f" {blocks} of {name_of(trace, event['seq'])} came back to the pool."
    return step, text


def _pictures(traces: list[dict[str, Any]], step: int | None) -> list[Any]:
    """Block tables, open at a step; of two runs at the one where they part, one below the other, moving together, and
    with a mark at what differs in the first."""
    from nanovllm.viz import BlockTable

    titles = [Message("The engine with your function"), Message("Our engine at the same work")]
    if step is None:
        pairs = enumerate(zip(*(trace["steps"] for trace in traces), strict=False))
        step = next((i for i, (a, b) in pairs if a["after"] != b["after"]), -1)
    if step < 0:
        return [Message("In the engine, at its own work, yours does what ours does: only the case above differs")]
    tables = [BlockTable(traces[0], beside=traces[-1]), *map(BlockTable, traces[1:])]
    for table in tables[1:]:
        table.follow(tables[0])
    tables[0].step = step
    return [part for pair in zip(titles, tables, strict=False) for part in pair]


# The notebook.


def exercise(line: str, cell: str | None = None) -> Message | None:
    """%%exercise ID: write the cell's code into your file, check it, and show what came out.

    The file is the truth. If it was changed since the cell last wrote to it, nothing is overwritten: the difference
    is shown. `%%exercise ID --force` writes the cell's code all the same, `%%exercise ID --pull` fills the cell from
    the file; so does `%exercise ID` in an empty cell.
    """
    words = line.split() + (["--pull"] if cell is None else [])
    options = [word for word in words if word.startswith("--")]
    unknown = [option for option in options if option not in ("--force", "--pull")]
    if len(words) - len(options) != 1 or unknown:
        return Message("Write %%exercise and an id, for example: %%exercise ch05.deallocate", kind="failed")
    (exercise_id,) = set(words) - set(options)
    return _caught(lambda: _exercise(exercise_id, cell or "", options))


def _exercise(exercise_id: str, cell: str, options: list[str]) -> Message | None:
    workspace, exercise_ = Workspace(), manifest.get(exercise_id)
    current = workspace.answer(exercise_)
    if "--pull" in options:
        _shell().set_next_input(f"%%exercise {exercise_id}\n{current.text}", replace=True)
        return None
    if mark := next((line for line in cell.splitlines() if MARKER.match(line)), None):
        text = (
            f"The cell has the line {mark.strip()!r}. Such a line divides the file of your answers: leave it out, and"
        )
        return describe(Result(exercise_, "failed", f"{text} put one answer into a cell. Nothing was written."))
    new = parse(exercise_, cell, "the cell", 2)
    if new.problem and "Python cannot read it" in new.problem:
        return describe(Result(exercise_, "failed", new.problem))
    note = ""
    if new.is_stub and current.text != new.text and not current.is_stub:
        note = f"The cell holds the stub, so your answer in {current.file} was checked.\n"
        note += f'"%%exercise {exercise_id} --pull" brings it here.'
    elif new.text != current.text:
        if not _may_overwrite(workspace, current) and "--force" not in options:
            return _conflict(current, new)
        workspace.back_up(exercise_)
        workspace.write(exercise_, new.text)
    return _check(exercise_id, workspace, note=note)


def _may_overwrite(workspace: Workspace, current: Answer) -> bool:
    """Whether what is in the file came from a cell, or is no answer."""
    return current.is_stub or workspace.known(current.exercise).get("written") == digest(current.text)


def _conflict(current: Answer, new: Answer) -> Message:
    lines = difflib.unified_diff(
        current.text.splitlines(), new.text.splitlines(), current.file, "this cell", lineterm=""
    )
    id_ = current.exercise.id
    text = f'Nothing was written. "%%exercise {id_} --force" takes the cell, "%%exercise {id_} --pull" takes the file.'
    rows = [("steps", "\n".join(lines)), ("note", current.problem or ""), ("next", text)]
    rows = [row for row in rows if row[1]]
    return Message(f"{id_}  {current.file} was changed since this cell wrote to it", rows, "failed")


def load_ipython_extension(shell: Any) -> None:
    """%load_ext exercises: %%exercise, and the words that a notebook of the course knows."""
    runner.prepare_triton()
    runner.warm_up()
    if not any(Workspace().folder.glob("ch*.py")):
        stubs.write_stubs(Workspace().folder)
    shell.register_magic_function(exercise, "line_cell")
    if str(FIGURES) not in sys.path:
        sys.path.append(str(FIGURES))
    words = (check, show, hint, solution, reset, mine, without, predict, reveal, staircase)
    shell.push({f.__name__: f for f in words})
