"""What the course promises about every exercise: stubs fail, solutions pass, mistakes are recognized."""

import ast
import dataclasses
import importlib.util
import inspect
import random
import tomllib
from pathlib import Path

import nbformat
import pytest

import nanovllm
from exercises.kit import assemble, checks, grading, manifest, notebooks, runner, source, stubs, workspace
from exercises.kit.checks import WRONG_ANSWERS
from exercises.kit.workspace import parse, split
from nanovllm.config import Config
from nanovllm.levers import is_enabled

from .together import Together

ROOT = manifest.ROOT
EXERCISES = manifest.load()
# Every other one; and open ones are measured, for seconds each.
QUICK = [
    pytest.param(id_, marks=[pytest.mark.slow] * (number % 2 == 1 or exercise.kind == "open"))
    for number, (id_, exercise) in enumerate(EXERCISES.items())
]
RIGHT_ANSWERS = Path(__file__).parent / "right_answers"
WRONG = {id_: checks.wrong_answers(exercise) for id_, exercise in EXERCISES.items()}
SPLICED = [id_ for id_, exercise in EXERCISES.items() if exercise.splice]  # those that always run in the engine


def solution(exercise_id):
    return parse(EXERCISES[exercise_id], EXERCISES[exercise_id].reference())


def other_right_answer(exercise_id):
    return parse(EXERCISES[exercise_id], (RIGHT_ANSWERS / f"{exercise_id}.py").read_text())


def mistake(exercise_id, name):
    return next(wrong for wrong in WRONG[exercise_id] if wrong.name == name)


def body_lines(code):
    """The lines that a learner has to write."""
    (function,) = ast.parse(code).body
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return [line.strip() for line in code.splitlines()[body[0].lineno - 1 :] if line.strip()]


# The manifest.


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_an_exercise_is_complete_and_small(exercise_id):
    exercise = EXERCISES[exercise_id]
    same = [other.name for other in EXERCISES.values() if other.chapter == exercise.chapter].count(exercise.name)
    word = exercise.id.split(".")[1]
    assert word == exercise.name if same == 1 else word.replace("_", "") in exercise.qualname.lower().replace(".", "")
    assert exercise.kind in ("", "warm-up", "open")
    shortest, longest = {"warm-up": (3, 15), "open": (5, 20)}.get(exercise.kind, (5, 15))
    assert shortest <= exercise.minutes <= longest and exercise.difficulty in (1, 2, 3)
    assert all(len(text) > 20 for text in (*exercise.hints, exercise.why))
    assert len(body_lines(exercise.reference())) <= 15
    assert len(WRONG[exercise_id]) >= 3 or exercise.kind == "open"  # which has too many right ones to list wrong ones
    assert len(grading.load_grader(grading.grader_path(exercise.file_name), exercise_id)) >= 3
    assert (RIGHT_ANSWERS / f"{exercise_id}.py").is_file()


def test_every_wrong_and_right_answer_belongs_to_an_exercise():
    names = [path.name.rsplit("__", 1)[0] for path in WRONG_ANSWERS.glob("*.py")]
    names += [path.stem for path in RIGHT_ANSWERS.glob("*.py")]
    assert set(names) == set(EXERCISES)


def test_what_goes_around_a_function_is_turned_off_by_options_that_exist():
    """All of the manifest's table, also of functions that no exercise asks for."""
    table = tomllib.loads((ROOT / manifest.MANIFEST).read_text())["bypassed_by"]
    for symbol, options in table.items():
        module, _, qualname = symbol.partition(":")
        source.symbol_source(ROOT, module.replace(".", "/") + ".py", qualname)  # raises if there is none
        config = Config("qwen3-tiny", device="cpu", **options)
        assert all(not is_enabled(config, name) for name in options.get("disabled_optimizations", []))
    asked_for = {exercise.symbol: exercise.bypassed_by for exercise in EXERCISES.values()}
    assert all(options == table.get(symbol, {}) for symbol, options in asked_for.items())


def test_a_misspelled_id_is_answered_with_those_that_are_close():
    with pytest.raises(KeyError, match=r"ch05\.dealocate.*did you mean ch05\.deallocate"):
        manifest.get("ch05.dealocate")


# Fresh stubs.


def test_every_stub_can_be_imported_and_raises_its_own_id(workspace):
    for name, exercises in stubs.chapters().items():
        sections = split((workspace.folder / name).read_text())
        spec = importlib.util.spec_from_file_location("stubs", workspace.folder / name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for exercise in exercises:
            _, section = sections[exercise.id]
            exec(section, vars(module))  # another function of the chapter may have its name
            function = getattr(module, exercise.name)
            function = function.fget if isinstance(function, property) else function
            with pytest.raises(NotImplementedError) as raised:
                function(*[None] * len(inspect.signature(function).parameters))
            assert raised.value.args == (exercise.id,)


@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_a_fresh_stub_is_not_a_pass(exercise_id, workspace):
    result = checks.check(exercise_id, workspace)
    assert (result.status, result.passed) == ("todo", False)
    assert workspace.known(EXERCISES[exercise_id]) == {}


def test_no_solution_shows_in_stubs_or_notebooks(workspace):
    shown = {f"{path.stem}": path.read_text() for path in workspace.folder.glob("ch*.py")}
    for path in notebooks.sources():
        text = nbformat.writes(notebooks.derive(path))
        shown[f"ch{path.stem}"] = "\n".join(cell.source for cell in nbformat.reads(text, 4).cells)
    for exercise_id, exercise in EXERCISES.items():
        lines = body_lines(exercise.reference())
        for name, text in shown.items():
            if name[:4] <= exercise.chapter:  # later chapters may look back at it
                found = [line.strip() for line in text.splitlines() if line.strip()]
                windows = [found[i : i + len(lines)] for i in range(len(found))]
                assert lines not in windows, f"{name} shows the answer to {exercise_id}"


# Right answers.


def is_right(result):
    """Whether it passes, or is too slow only: how fast it is beside other tests is none."""
    return result.passed or bool(result.finding and result.finding.what.endswith("times as fast"))


@pytest.mark.parametrize("exercise_id", QUICK)
def test_our_solution_and_a_different_one_pass_and_a_stub_fails_with_its_id(exercise_id, monkeypatch):
    """The stub also without the shortcut that recognizes stubs."""
    exercise = EXERCISES[exercise_id]
    stub = parse(exercise, exercise.stub() + "\n    return None")
    answers = {"ours": solution(exercise_id), "another": other_right_answer(exercise_id), "the stub": stub}
    together = Together(exercise, answers)
    monkeypatch.setattr(runner, "run", together)
    for name in ("ours", "another"):
        assert answers[name].problem is None
        result = checks.grade(answers[name], engine=False)
        assert is_right(result), (name, result)
    finding = together.outcomes[together.packages["the stub"].name].value.finding
    assert f"NotImplementedError: {exercise_id}" in "\n".join(finding.error)


@pytest.mark.slow
@pytest.mark.parametrize("exercise_id", EXERCISES)
def test_our_solution_and_a_different_one_run_in_the_engine(exercise_id):
    for answer in (solution(exercise_id), other_right_answer(exercise_id)):
        result = checks.grade(answer)
        assert is_right(result) and ("same as ours" in result.summary or exercise_id not in SPLICED), result


def random_mixture(seed):
    """For each exercise, by chance: ours, our solution spliced in, or a different right answer."""
    rng = random.Random(seed)
    made = [rng.choice([None, solution, other_right_answer]) for _ in SPLICED]
    return [make(exercise_id) for make, exercise_id in zip(made, SPLICED, strict=True) if make]


def assert_same_text(answers):
    outcome = checks.run_engine(answers)
    assert outcome.kind == "returned", outcome
    assert outcome.value == (checks.reference_tokens(), [], ())


def test_different_right_answers_write_the_same_text():
    assert_same_text([other_right_answer(id_) for id_ in SPLICED])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 10))
def test_mixtures_write_the_same_text(seed):
    assert_same_text(random_mixture(seed))


@pytest.mark.parametrize("mode", ["as on this machine", "one step ahead"])
@pytest.mark.parametrize("make", [pytest.param(solution, marks=pytest.mark.slow), other_right_answer])
def test_the_levers_work_around_answers(make, mode, monkeypatch):
    """A check runs the plain engine; `mine()` has levers around it, on a GPU the one that knows a token a step late."""
    made = [make(exercise_id) for exercise_id in SPLICED]
    if mode == "one step ahead":  # without the functions that it would go around: it is turned off for their sake
        off = "disabled_optimizations"
        made = [answer for answer in made if "step_ahead" not in answer.exercise.bypassed_by.get(off, ())]
    package = assemble.assemble(made)
    levers = package.module("levers")
    if mode == "one step ahead":  # which needs no GPU, but gains nothing without one
        lever = dataclasses.replace(levers.LEVERS["step_ahead"], works=levers.works_everywhere, builds_on=())
        monkeypatch.setitem(levers.LEVERS, "step_ahead", lever)
    options = {key: value for key, value in grading.ENGINE_OPTIONS.items() if key != "disabled_optimizations"}
    tokens = []
    with package.load().LLM("qwen3-tiny", **(options | package.options)) as llm:
        assert hasattr(llm.scheduler, "expected_peak_blocks")
        assert hasattr(llm.scheduler, "resolve") == (mode == "one step ahead")
        for max_tokens in grading.ROUNDS:
            params = package.load().SamplingParams(temperature=0.0, max_tokens=max_tokens)
            tokens += [answer["token_ids"] for answer in llm.generate(grading.PROMPTS, params, use_tqdm=False)]
    assert tokens == checks.reference_tokens()


def test_the_engine_has_to_work_hard_enough_to_tell():
    """The work that mixtures are compared on: hits, chunks, preemptions, and different texts."""
    tokens = checks.reference_tokens()
    assert len({tuple(answer) for answer in tokens[-4:]}) == 3  # two of the four prompts are equal
    assert sum(len(answer) for answer in tokens) > 40
    with nanovllm.LLM("qwen3-tiny", **grading.ENGINE_OPTIONS) as llm:
        assert len(llm.tokenizer.encode(grading.PROMPTS[0])) * 2 > grading.ENGINE_OPTIONS["max_num_batched_tokens"]
        for max_tokens in grading.ROUNDS:
            params = nanovllm.SamplingParams(temperature=0.0, max_tokens=max_tokens)
            answers = llm.generate(grading.PROMPTS, params, use_tqdm=False)
        assert llm.scheduler.num_preemptions > 0
        assert any(answer["num_cached_tokens"] > 0 for answer in answers)


# Wrong answers.


@pytest.mark.slow
@pytest.mark.parametrize("exercise_id", [id_ for id_ in EXERCISES if WRONG[id_]])
def test_known_mistakes_can_be_told_apart_and_each_spelling_gets_exactly_its_diagnosis(exercise_id, monkeypatch):
    exercise = EXERCISES[exercise_id]
    spellings = {
        f"tests/wrong_answers/{exercise_id}__{wrong.name}.py, {spelling} spelling": (wrong, getattr(wrong, spelling))
        for wrong in WRONG[exercise_id]
        for spelling in ("first", "second")
    }
    unusable = [f"{where}: {answer.problem}" for where, (_, answer) in spellings.items() if not answer.is_usable]
    assert not unusable, "\n".join(unusable)
    together = Together(exercise, {where: answer for where, (_, answer) in spellings.items()})
    last, package = list(together.packages.items())[-1]
    alone = checks.run_cases(exercise, package)
    assert alone.value == together.outcomes[package.name].value, f"{last}: not the same verdict as in its own process"

    monkeypatch.setattr(runner, "run", together)
    known = checks.fingerprints(exercise)
    assert [name for name, _, _, finding in known if not finding] == [], "these pass"
    names = {
        fingerprint: [name for name, _, other, _ in known if other == fingerprint] for _, _, fingerprint, _ in known
    }
    assert [alike for alike in names.values() if len(alike) > 1] == [], "these behave the same"
    monkeypatch.setattr(checks, "fingerprints", lambda exercise: known)  # for each answer the same
    problems = []
    for where, (wrong, answer) in spellings.items():
        result = checks.grade(answer, engine=False)
        found = (result.status, result.mistake, result.diagnosis)
        if found != ("failed", wrong.name, wrong.diagnosis):
            problems.append(f"{where}: {found}")
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exercise_id", "name", "says"),
    [
        ("ch04.num_blocks", "made_a_float", "/ and float() make a float"),
        ("ch04.num_blocks", "rounds_to_nearest", "For 3 tokens you say 1."),
        ("ch04.num_blocks", "rounds_down", "as many as are full"),
        ("ch04.num_blocks", "asks_the_block_table", "how many physical blocks its table has"),
        ("ch05.can_allocate", "counts_every_block", "sharing with somebody who runs takes no free one"),
        ("ch05.can_allocate", "hits_cost_nothing", "A cached block that nobody uses is one of the free ones"),
        ("ch05.can_allocate", "compares_with_the_pool", "How many blocks the pool has in all does not matter"),
        ("ch05.can_allocate", "tries_it_out", "can_allocate ends up calling itself"),
        ("ch05.allocate", "shares_before_it_asks", "has changed reference counts before"),
        ("ch05.may_append", "counts_a_token_as_cached", "may_append has changed num_cached_tokens"),
        ("ch05.may_append", "only_names_it", "It is still among the free ones, too."),
        ("ch06.finish_reason", "ignores_eos_when_it_should_not", "that condition is the wrong way round"),
        ("ch06.preempt", "always_the_newest", "C was taken out of running in its place"),
        ("ch06.postprocess", "only_marks_the_end", "finish was not called"),
        ("ch06.postprocess", "clears_before_it_adds", "to be added to it, before that becomes 0"),
        ("ch06.schedule_prefill", "budget_below_zero", "only these cost budget"),
        ("ch06.schedule_prefill", "breaks_with_the_share_set", "it is to be cut"),
    ],
)
def test_a_class_hears_what_is_wrong_where_no_mistakes_are_known(exercise_id, name, says, monkeypatch):
    """As in the copy of the course that a class gets, which has no wrong answers in it."""
    monkeypatch.setattr(checks, "fingerprints", lambda exercise: [])
    result = checks.grade(mistake(exercise_id, name).first, engine=False)
    assert result.status == "failed" and says in result.diagnosis


def test_rows_of_half_norm_are_as_large_as_its_cases_say():
    """Its docstring promises 0.05 or more."""
    case = grading.load_grader(grading.grader_path("ch12_normalization.py"), "ch12.half_norm")[0]
    rows_of = case.__globals__["rows_of"]
    sizes = (1.0, 0.05, 20.0, 300.0, 20_000.0)
    rows = rows_of(*sizes).double()
    found = rows.square().mean(-1).sqrt().tolist()
    assert all(size <= got < 1.01 * size for size, got in zip(sizes, found, strict=True)) and rows.isfinite().all()


def test_the_two_spellings_are_two():
    for exercise_id, wrong_answers in WRONG.items():
        for wrong in wrong_answers:
            one, other = (ast.dump(ast.parse(answer.function[0])) for answer in (wrong.first, wrong.second))
            assert one != other, (exercise_id, wrong.name)


def test_a_mistake_that_only_begins_like_a_known_one_is_not_taken_for_it():
    exercise = EXERCISES["ch05.deallocate"]
    code = mistake("ch05.deallocate", "keeps_the_table").first.text.replace(
        "reversed(seq.block_table)", "seq.block_table"
    )
    result = checks.grade(parse(exercise, code), engine=False)
    assert result.status == "failed" and result.diagnosis != mistake("ch05.deallocate", "keeps_the_table").diagnosis


def test_a_mistake_that_nobody_knows_is_told_what_was_observed_and_no_more():
    code = "def may_append(self, seq):\n    return\n"
    result = checks.grade(parse(EXERCISES["ch05.may_append"], code), engine=False)
    assert (result.status, result.mistake) == ("failed", "")
    assert result.diagnosis in ("", result.finding.likely)


# Derived files.


def test_the_workspace_of_these_tests_is_not_the_learners(workspace):
    assert workspace.folder != ROOT / "exercises"
    with pytest.raises(AssertionError, match="belongs to the learner"):
        (ROOT / "exercises" / "ch05_block_manager.py").read_text()


def test_solutions_are_what_the_engine_says():
    for name, exercises in stubs.chapters().items():
        assert (ROOT / "solutions" / name).read_text() == stubs.solution_text(exercises), "run python -m exercises sync"
    assert sorted(path.name for path in (ROOT / "solutions").glob("*.py")) == sorted(stubs.chapters())


def test_each_solution_stands_with_its_reason():
    for name, exercises in stubs.chapters().items():
        sections = workspace.split((ROOT / "solutions" / name).read_text())
        assert list(sections) == [exercise.id for exercise in exercises]
        for exercise in exercises:
            answer = parse(exercise, sections[exercise.id][1])
            assert answer.function[0] == exercise.reference()
            assert sections[exercise.id][1].startswith("# ")
