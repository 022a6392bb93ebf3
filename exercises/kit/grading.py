"""What graders are made of: cases, each a short story with observations in it.

A grader (tests/exercises/chNN_*.py) says what is right by invariants, counting or brute force, never by
comparing with our code: a different but right answer passes. Every observation is kept, right or wrong. All of
them together are a fingerprint of how a function behaves, and by that known mistakes are recognized.

    @case("ch05.deallocate")
    def two_owners(engine, check):
        '''Two requests share a block. The first one ends.'''
        manager = engine.get("engine.block_manager:BlockManager")(num_blocks=8, block_size=4)
        ...
        check.equal("reference count of the shared block", manager.blocks[0].ref_count, 1,
                    says={0: "The block was freed although the other request still uses it."})

What `says` says is shown as the likely mistake if that observation is the first that is wrong: a string, a dict from
wrong values to strings, or a function of the wrong value that returns a string or None. Say what went wrong in plain
words; it must be true whenever it is said. A step's `says` is about an error that is raised before the next step.
"""

import contextlib
import hashlib
import importlib.util
import itertools
import pickle
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from . import runner
from .assemble import Package, with_options
from .manifest import ROOT
from .runner import CASE_MARK

STEPS_SHOWN = 10
LONGEST_VALUE = 400
Says = str | dict[Any, str] | Callable[[Any], str | None] | None
# What the plugged-in engine works on: shared prefixes, prompts that are cut into chunks, and too few blocks for all.
# It is the plain engine, which admits whatever fits right now, and has to preempt when answers grow.
PROMPTS = [
    "Once upon a time, there was a little girl named Mia. She had a red kite.",
    "Once upon a time, there was a little girl named Mia. She had a big dog and they",
    "One day, a fox",
    "Once upon a time, there was a little girl named Mia. She had a red kite.",
]
ENGINE_OPTIONS = {
    "kvcache_block_size": 4,
    "num_kvcache_blocks": 16,
    "max_num_batched_tokens": 24,
    "max_num_seqs": 3,
    "max_model_len": 64,
    "disabled_optimizations": "all",
    "device": "cpu",
}
# Most tokens of an answer, and how they are chosen: with top_k=1 a draw gives what is most likely, whatever the noise.
ROUNDS = {2: {"temperature": 0.7, "top_k": 1, "top_p": 0.9, "min_p": 0.1}, 16: {"temperature": 0.0}}
MOST_STEPS = 400


@dataclass
class Finding:
    """The first thing in a case that is not as it should be."""

    case: str
    story: str
    steps: tuple[str, ...]
    what: str
    expected: str = ""
    got: str = ""
    error: tuple[str, ...] = ()
    likely: str = ""
    at: int = 0  # which of the case's observations it is
    scene: dict[str, Any] | None = None  # the pool in that moment, see `scene_of`

    @property
    def key(self) -> tuple[str, ...]:
        """What of it tells one mistake from another; an error is another one at another step."""
        error = (self.error[-1].split(":")[0], *self.steps[-1:]) if self.error else ()
        return (self.case, self.what, self.got, *error)


@dataclass
class Verdict:
    """What a grader found: a fingerprint of the behavior, and the first finding, None if all is right.

    `signature` has what is wrong first in each case that fails; `measured` the numbers that an open exercise is about.
    """

    fingerprint: str
    finding: Finding | None
    observations: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    num_cases: int = 0
    num_failed: int = 0
    signature: list[tuple[str, ...]] = field(default_factory=list)
    measured: list[str] = field(default_factory=list)
    scene: dict[str, Any] | None = None  # of the observation that was asked for


def prints_of(text: str, case_name: str | None = None) -> str:
    """What was printed during a case (by default the last one that was begun)."""
    parts = [part.partition("\n") for part in text.split(CASE_MARK)[1:]]
    chosen = [rest for head, _, rest in parts if case_name in (None, head.split("|")[0])] or [text]
    return chosen[-1]


def last_story(text: str) -> str:
    """The story of the case that was begun last, from what a grader printed."""
    return text.split(CASE_MARK)[-1].partition("\n")[0].partition("|")[2]


class Engine:
    """The assembled package, as a grader sees it."""

    def __init__(self, package: Package) -> None:
        self.package = package

    def get(self, symbol: str) -> Any:
        """Something of the package, for example "engine.block_manager:BlockManager"."""
        module, _, qualname = symbol.partition(":")
        value = self.package.module(module)
        for name in qualname.split(".") if qualname else []:
            value = getattr(value, name)
        return value


def scene_of(manager: Any, seqs: dict[str, Any], queues: dict[str, list[str]]) -> dict[str, Any]:
    """What pictures show of a pool: its blocks, some sequences with their block tables, and queues; plain data.

    Of a block: its reference count, and whether it is free, used, and known by its hash.
    """
    free, used = list(manager.free_block_ids), manager.used_block_ids
    blocks = [(int(b.ref_count), i in free, i in used, b.hash != -1) for i, b in enumerate(manager.blocks)]
    tables = {name: list(seq.block_table) for name, seq in seqs.items()}
    facts = {name: f"{seq.num_cached_tokens} of {seq.num_tokens} tokens stored" for name, seq in seqs.items()}
    return {"blocks": blocks, "free": free, "tables": tables, "facts": facts, "queues": queues}


class Check:
    """Takes down the observations of one case.

    Args:
        at: number of the observation whose scene is wanted; without it, that of the first that is wrong.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at, self.scene = at, None
        self.look: Callable[[], Any] = lambda: None  # what the scene is, for cases that have one
        self.observations: list[tuple[str, str, str]] = []
        self.steps: list[str] = []
        self.first: tuple[str, str, str, tuple[str, ...]] | None = None
        self.likely = ""  # what the first finding means
        self._raise_says: Says = None
        self.measures: list[str] = []

    def step(self, text: str, says: Says = None) -> None:
        """Tell what happens next; the learner reads the last few of these when something is wrong.

        Args:
            says: what it means if an error is raised in this step; keys and arguments are names of exceptions.
        """
        self.steps.append(text)
        self._raise_says = says

    def measured(self, text: str) -> None:
        """A step that tells the number which an open exercise is about; a learner reads it after a pass, too."""
        self.step(text)
        self.measures.append(text)

    def equal(self, what: str, got: Any, expected: Any, says: Says = None) -> bool:
        """Observe a value; it should equal `expected`. Give plain lists and numbers: their text is compared.

        Args:
            says: what it means if it does not, see above.
        """
        self.observations.append((what, _text(got), _text(expected)))
        is_right = _same(got, expected)
        self._take_scene(is_right)
        if not is_right and self.first is None:
            self.first = (what, _text(expected), _text(got), self._last_steps())
            self.likely = _meaning(says, got)
        return is_right

    def _take_scene(self, is_right: bool) -> None:
        number = len(self.observations) - 1
        if number == self.at or (self.at is None and not is_right and self.first is None):
            self.at = number
            with contextlib.suppress(Exception):  # the state may be anything
                self.scene = self.look()

    def _last_steps(self) -> tuple[str, ...]:
        """The first step, which says what there is, and the last ones."""
        if len(self.steps) <= STEPS_SHOWN:
            return tuple(self.steps)
        return (self.steps[0], "    ...", *self.steps[2 - STEPS_SHOWN :])

    def true(self, what: str, condition: Any, says: Says = None) -> bool:
        """Observe whether something holds that should."""
        return self.equal(what, bool(condition), True, says)

    def raised(self, error: str) -> None:
        """The case ended with an exception of that name."""
        self.observations.append(("raised", error, "no error"))
        self._take_scene(False)
        if self.first is None:
            self.first = ("an error", "no error", error, self._last_steps())
            self.likely = _meaning(self._raise_says, error)


def _same(got: Any, expected: Any) -> bool:
    """Whether two values are equal; an array that is to be a list is not, and comparing it may even raise."""
    try:
        return bool(got == expected)
    except Exception:
        return False


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} ... ({len(text)} characters)"


def _meaning(says: Says, value: Any) -> str:
    """What a wrong value says about the mistake, "" if nothing."""
    if isinstance(says, dict):
        as_key = tuple(value) if isinstance(value, list) else value  # True is not 1: their texts differ
        return next((text for wrong, text in says.items() if _text(wrong) == _text(as_key)), "")
    try:
        return str((says(value) if callable(says) else says) or "")
    except Exception:  # the value may be anything
        return ""


Case = Callable[[Engine, Check], None]
CASES: dict[str, list[Case]] = {}


def case(exercise_id: str) -> Callable[[Case], Case]:
    """Register a function as a case of an exercise. Its docstring is the story that the learner reads."""

    def register(function: Case) -> Case:
        CASES.setdefault(exercise_id, []).append(function)
        return function

    return register


def grader_path(file_name: str, root: Path = ROOT) -> Path:
    """The grader of a chapter, by the name of its file of answers."""
    return root / "tests" / "exercises" / file_name


def load_grader(path: Path, exercise_id: str) -> list[Case]:
    """The cases of an exercise, read afresh.

    Raises:
        LookupError: there is none.
    """
    CASES.pop(exercise_id, None)
    spec = importlib.util.spec_from_file_location(f"grader_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not CASES.get(exercise_id):
        raise LookupError(f"{path.name} has no case for {exercise_id}")
    return CASES[exercise_id]


def grade(package: Package, path: Path, exercise_id: str, keep: str | None = None, at: int | None = None) -> Verdict:
    """Run all cases of an exercise on a package; meant for a process of its own (see `runner`).

    Args:
        keep: name of the case whose observations are wanted in full; without it, the first.
        at: number of the observation of that case whose scene is wanted.
    """
    hasher, findings, scene = hashlib.sha256(), list[Finding](), None
    kept: dict[str, list[tuple[str, str, str]]] = {}
    measured: list[str] = []
    cases = load_grader(path, exercise_id)
    for function in cases:
        story = " ".join((function.__doc__ or function.__name__).split())
        print(f"{CASE_MARK}{function.__name__}|{story}", flush=True)
        check = Check(at if function.__name__ == keep else None)
        error: tuple[str, ...] = ()
        try:
            function(Engine(package), check)
        except Exception as raised:
            # After a wrong observation it is a consequence.
            error = () if check.first else runner.describe_error(raised, package)
            check.raised(type(raised).__name__)
        hasher.update(repr((function.__name__, [entry[:2] for entry in check.observations])).encode())
        if check.first:
            what, expected, got, steps = check.first
            finding = Finding(function.__name__, story, steps, what, expected, got, error, check.likely)
            finding.at, finding.scene = check.at or 0, check.scene
            findings.append(finding)
        measured += check.measures
        if function.__name__ == (keep or cases[0].__name__):
            kept[function.__name__], scene = check.observations, check.scene
    first, signature = next(iter(findings), None), [finding.key for finding in findings]
    return Verdict(hasher.hexdigest(), first, kept, len(cases), len(findings), signature, measured, scene)


def grade_each(_: Package, packages: list[Package], path: Path, exercise_id: str) -> list[Verdict]:
    """Grade one package after the other in one process, where each of them is known to come to an end."""
    return [grade(package, path, exercise_id) for package in packages]


class Written(NamedTuple):
    """What an engine did: the tokens of each answer, who was not needed, and which rule was broken first.

    Args:
        tokens: of each answer.
        never_called: ids of exercises whose spliced function was never called.
        broken_rule: a few lines, also about where another text begins; empty if all steps keep the rules, or if there
            is nothing here to check them with.
    """

    tokens: list[list[int]]
    never_called: list[str]
    broken_rule: tuple[str, ...]


def generate(package: Package, reference: dict[str, Any] | None = None) -> Written:
    """Have a package's engine write, greedily, and watch its blocks and queues meanwhile.

    Args:
        reference: what `reference` returned for our engine, to say where this one parts from it.
    """
    tokens, missing, trace = _write(package)
    rule = first_broken_rule(trace, package)
    if reference and not rule and tokens != reference["tokens"]:
        rule = _first_difference(reference["steps"], describe_steps(trace))
    return Written(tokens, missing, rule)


def reference(package: Package) -> dict[str, Any]:
    """The tokens of each answer and a description of each step, for comparison."""
    tokens, _, trace = _write(package)
    return {"tokens": tokens, "steps": describe_steps(trace)}


def _write(package: Package) -> tuple[list[list[int]], list[str], dict[str, Any]]:
    # tqdm makes a semaphore of the system for its bars, even hidden ones; a thread's lock leaves nothing behind.
    tqdm.set_lock(threading.RLock())
    module = package.load()
    calls = _Calls(package)
    options = with_options(package.options, ENGINE_OPTIONS)
    sys.setprofile(calls)
    try:
        rounds = [module.SamplingParams(**how, max_tokens=most) for most, how in ROUNDS.items()]
        with module.LLM("qwen3-tiny", **options) as llm:
            _run_as_in_a_worker(llm)
            recorder = package.module("engine.trace").TraceRecorder(llm)
            _limit_steps(llm)
            try:
                answers = [answer for params in rounds for answer in llm.generate(PROMPTS, params, use_tqdm=False)]
                if failed := [answer["error"] for answer in answers if answer["finish_reason"] == "error"]:
                    raise RuntimeError(failed[0])
            except Exception as error:
                for line in _before_error(recorder, package, error):
                    error.add_note(line)
                raise
    finally:
        sys.setprofile(None)
    return [list(answer["token_ids"]) for answer in answers], sorted(calls.missing.values()), recorder.trace


def _limit_steps(llm: Any) -> None:
    """An engine that goes on and on is stopped long before its time is over, where it can still be asked."""
    step, numbers = llm._step, itertools.count(1)

    def limited() -> int:
        if next(numbers) > MOST_STEPS:
            raise RuntimeError(f"the engine has made {MOST_STEPS} steps and is still not done; ours needs about 50")
        return int(step())

    llm._step = limited


def _before_error(recorder: Any, package: Package, error: Exception) -> tuple[str, ...]:
    """What was wrong before a step raised, or at least which step it was."""
    recorder.trace["error"] = f"{type(error).__name__}: {error}"
    with contextlib.suppress(Exception):  # the state may be anything
        last = len(recorder.trace["steps"])
        recorder.end_step("error", [], None)
        rule = first_broken_rule(recorder.trace, package)
        if rule and not rule[0].startswith(f"step {last} "):
            return ("before that:", *rule)
        # The engine has begun anew since, and what had happened in the step that raised is among the events of that.
        last -= last > 1 and recorder.trace["steps"][last - 1]["kind"] == "init"
        return (f"it was in step {last} of the run; the one before it: {describe_steps(recorder.trace)[last - 1]}",)
    return ()


def describe_steps(trace: dict[str, Any]) -> list[str]:
    """What happened in each step, in words; nothing where the widgets' part of the package is missing."""
    try:
        from nanovllm.viz.block_table import describe_step
    except ImportError:
        return []
    return [describe_step(trace, i) for i in range(len(trace["steps"]))]


def _first_difference(ours: list[str], theirs: list[str]) -> tuple[str, ...]:
    for i, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return (f"step {i} of the run is the first that is another than ours:", f"yours: {other}", f"ours:  {one}")
    return ("All steps are the same as ours; so it is what the model reads or keeps in them that differs.",)


def first_broken_rule(trace: dict[str, Any], package: Package) -> tuple[str, ...]:
    """The step at which a run first breaks a rule of scheduling or paging, in words; empty if it never does.

    Nothing is found where the widgets' part of the package is missing: the rules are there.
    """
    try:
        from nanovllm.viz.block_table import describe_step
        from nanovllm.viz.trace import complete_events, find_problems
    except ImportError:
        return ()
    compute_hash = package.module("engine.block_manager").BlockManager.compute_hash
    problems = find_problems(complete_events(trace), compute_hash=compute_hash)
    if not problems:
        return ()
    step = problems[0].step
    wrong = [problem.message for problem in problems if problem.step == step]
    more = [f"and {len(wrong) - 3} more like these"] if len(wrong) > 3 else []
    return (f"step {step} of the run: {describe_step(trace, step)}", "after it:", *wrong[:3], *more)


def record(package: Package) -> dict[str, Any]:
    """A trace of a package's engine at work, for the widgets; it ends early if a step raises.

    Beside what the format asks for, it has "called": the steps in which functions of the learner were called.

    Raises:
        ImportError: there are no widgets here.
    """
    from nanovllm.engine.trace import TraceRecorder
    from nanovllm.viz.record import token_texts
    from nanovllm.viz.trace import complete_events

    tqdm.set_lock(threading.RLock())
    module = package.load()
    params = module.SamplingParams(temperature=0.0, max_tokens=max(ROUNDS))
    with module.LLM("qwen3-tiny", **with_options(package.options, ENGINE_OPTIONS)) as llm:
        _run_as_in_a_worker(llm)
        recorder = TraceRecorder(llm, made_by="show")
        called: set[int] = set()
        calls = _Calls(package, lambda: called.add(len(recorder.trace["steps"])))
        sys.setprofile(calls)
        try:
            for i, prompt in enumerate(PROMPTS):
                llm.add_request(prompt, params)
                for _ in range(2 * (i % 2) if i < len(PROMPTS) - 1 else 100):
                    if not llm.is_finished():
                        llm.step()
        except Exception as error:
            recorder.trace["error"] = f"{type(error).__name__}: {error}"
            recorder.end_step("error", [], None)
        finally:
            sys.setprofile(None)
        recorder.detach()
        for seq in recorder.trace["seqs"].values():
            seq["texts"] = token_texts(llm.tokenizer, [*seq["prompt_ids"], *seq.get("output_ids", [])])
    return complete_events(recorder.trace) | {"called": sorted(called)}


def _run_as_in_a_worker(llm: Any) -> None:
    """Have the model runner get every step's sequences as a worker process does: pickled, through a pipe."""
    runner = llm.llm_engine.model_runner
    run = runner.run
    runner.run = lambda seqs, is_prefill: run(pickle.loads(pickle.dumps(seqs)), is_prefill)


class _Calls:
    """A profiler that waits until every spliced function has been called once, and then removes itself.

    Args:
        note: is called at every call instead, and it stays.
    """

    def __init__(self, package: Package, note: Callable[[], None] | None = None) -> None:
        functions = [piece for piece in package.pieces if piece.name]
        self.missing = {(piece.name, piece.first): piece.exercise_id for piece in functions}
        self.names = {piece.name for piece in functions}
        self.package, self.note = package, note

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name in self.names:
            for line in (code.co_firstlineno, code.co_firstlineno + 1):  # a decorator may be ours, above their lines
                piece, _ = runner.locate(code.co_filename, line, self.package)
                if piece is not None:
                    self.missing.pop((piece.name, piece.first), None)
                    if self.note:
                        self.note()
        if not self.missing and not self.note:
            sys.setprofile(None)
