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

import hashlib
import importlib.util
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
ROUNDS = (2, 16)  # most tokens of an answer


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

    @property
    def key(self) -> tuple[str, ...]:
        """What of it tells one mistake from another; an error is another one at another step."""
        error = (self.error[-1].split(":")[0], *self.steps[-1:]) if self.error else ()
        return (self.case, self.what, self.got, *error)


@dataclass
class Verdict:
    """What a grader found: a fingerprint of the behavior, and the first finding, None if all is right."""

    fingerprint: str
    finding: Finding | None
    observations: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    num_cases: int = 0
    num_failed: int = 0


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


class Check:
    """Takes down the observations of one case."""

    def __init__(self) -> None:
        self.observations: list[tuple[str, str, str]] = []
        self.steps: list[str] = []
        self.first: tuple[str, str, str, tuple[str, ...]] | None = None
        self.likely = ""  # what the first finding means
        self._raise_says: Says = None

    def step(self, text: str, says: Says = None) -> None:
        """Tell what happens next; the learner reads the last few of these when something is wrong.

        Args:
            says: what it means if an error is raised in this step; keys and arguments are names of exceptions.
        """
        self.steps.append(text)
        self._raise_says = says

    def equal(self, what: str, got: Any, expected: Any, says: Says = None) -> bool:
        """Observe a value; it should equal `expected`. Give plain lists and numbers: their text is compared.

        Args:
            says: what it means if it does not, see above.
        """
        self.observations.append((what, _text(got), _text(expected)))
        is_right = _same(got, expected)
        if not is_right and self.first is None:
            self.first = (what, _text(expected), _text(got), tuple(self.steps[-STEPS_SHOWN:]))
            self.likely = _meaning(says, got)
        return is_right

    def true(self, what: str, condition: Any, says: Says = None) -> bool:
        """Observe whether something holds that should."""
        return self.equal(what, bool(condition), True, says)

    def raised(self, error: str) -> None:
        """The case ended with an exception of that name."""
        self.observations.append(("raised", error, "no error"))
        if self.first is None:
            self.first = ("an error", "no error", error, tuple(self.steps[-STEPS_SHOWN:]))
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


def grade(package: Package, path: Path, exercise_id: str, keep: str | None = None) -> Verdict:
    """Run all cases of an exercise on a package; meant for a process of its own (see `runner`).

    Args:
        keep: name of the case whose observations are wanted in full.
    """
    hasher, finding, num_failed = hashlib.sha256(), None, 0
    kept: dict[str, list[tuple[str, str, str]]] = {}
    cases = load_grader(path, exercise_id)
    for function in cases:
        story = " ".join((function.__doc__ or function.__name__).split())
        print(f"{CASE_MARK}{function.__name__}|{story}", flush=True)
        check = Check()
        error: tuple[str, ...] = ()
        try:
            function(Engine(package), check)
        except Exception as raised:
            # After a wrong observation it is a consequence.
            error = () if check.first else runner.describe_error(raised, package)
            check.raised(type(raised).__name__)
        hasher.update(repr((function.__name__, [entry[:2] for entry in check.observations])).encode())
        num_failed += check.first is not None
        if check.first and finding is None:
            what, expected, got, steps = check.first
            finding = Finding(function.__name__, story, steps, what, expected, got, error, check.likely)
        if function.__name__ == keep:
            kept[keep] = check.observations
    return Verdict(hasher.hexdigest(), finding, kept, len(cases), num_failed)


class Written(NamedTuple):
    """What an engine did: the tokens of each answer, who was not needed, and which rule was broken first.

    Args:
        tokens: of each answer.
        never_called: ids of exercises whose spliced function was never called.
        broken_rule: a few lines; empty if all steps keep the rules, or if there is nothing here to check them with.
    """

    tokens: list[list[int]]
    never_called: list[str]
    broken_rule: tuple[str, ...]


def generate(package: Package) -> Written:
    """Have a package's engine write, greedily, and watch its blocks and queues meanwhile."""
    # tqdm makes a semaphore of the system for its bars, even hidden ones; a thread's lock leaves nothing behind.
    tqdm.set_lock(threading.RLock())
    module = package.load()
    calls = _Calls(package)
    options = with_options(package.options, ENGINE_OPTIONS)
    sys.setprofile(calls)
    try:
        rounds = [module.SamplingParams(temperature=0.0, max_tokens=max_tokens) for max_tokens in ROUNDS]
        with module.LLM("qwen3-tiny", **options) as llm:
            _run_as_in_a_worker(llm)
            recorder = package.module("engine.trace").TraceRecorder(llm)
            answers = [answer for params in rounds for answer in llm.generate(PROMPTS, params, use_tqdm=False)]
    finally:
        sys.setprofile(None)
    failed = [answer["error"] for answer in answers if answer["finish_reason"] == "error"]
    if failed:
        raise RuntimeError(failed[0])
    tokens = [list(answer["token_ids"]) for answer in answers]
    return Written(tokens, sorted(calls.missing.values()), first_broken_rule(recorder.trace, package))


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

    Raises:
        ImportError: there are no widgets here.
    """
    from nanovllm.engine.trace import TraceRecorder
    from nanovllm.viz.record import token_texts
    from nanovllm.viz.trace import complete_events

    tqdm.set_lock(threading.RLock())
    module = package.load()
    params = module.SamplingParams(temperature=0.0, max_tokens=ROUNDS[-1])
    with module.LLM("qwen3-tiny", **with_options(package.options, ENGINE_OPTIONS)) as llm:
        _run_as_in_a_worker(llm)
        recorder = TraceRecorder(llm, made_by="show")
        for i, prompt in enumerate(PROMPTS):
            llm.add_request(prompt, params)
            for _ in range(2 * (i % 2) if i < len(PROMPTS) - 1 else 100):
                try:
                    if not llm.is_finished():
                        llm.step()
                except Exception:
                    break
        recorder.detach()
        for seq in recorder.trace["seqs"].values():
            seq["texts"] = token_texts(llm.tokenizer, [*seq["prompt_ids"], *seq.get("output_ids", [])])
    return complete_events(recorder.trace)


def _run_as_in_a_worker(llm: Any) -> None:
    """Have the model runner get every step's sequences as a worker process does: pickled, through a pipe."""
    runner = llm.llm_engine.model_runner
    run = runner.run
    runner.run = lambda seqs, is_prefill: run(pickle.loads(pickle.dumps(seqs)), is_prefill)


class _Calls:
    """A profiler that waits until every spliced function has been called once, and then removes itself."""

    def __init__(self, package: Package) -> None:
        functions = [piece for piece in package.pieces if piece.name]
        self.missing = {(piece.name, piece.first): piece.exercise_id for piece in functions}
        self.names = {piece.name for piece in functions}
        self.package = package

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name in self.names:
            for line in (code.co_firstlineno, code.co_firstlineno + 1):  # a decorator may be ours, above their lines
                piece, _ = runner.locate(code.co_filename, line, self.package)
                if piece is not None:
                    self.missing.pop((piece.name, piece.first), None)
        if not self.missing:
            sys.setprofile(None)
