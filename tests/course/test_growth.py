"""What a notebook does beside checking: guesses are held, the engine grows, and a staircase shows by how much."""

from types import SimpleNamespace

import nbformat
import pytest

import nanovllm
from exercises.kit import actions, checks, manifest, notebooks, predictions, source, staircase
from exercises.kit.assemble import Mine
from exercises.kit.predictions import Prediction, predict, reveal
from nanovllm.viz import Bars, Boxes

EXERCISES = manifest.load()
SMALL = {"kvcache_block_size": 4, "num_kvcache_blocks": 8, "max_model_len": 32, "device": "cpu"}


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch):
    monkeypatch.setattr(predictions, "_asked", {})


def solve(workspace, *ids, status="passed"):
    for exercise in manifest.select(ids):
        workspace.write(exercise, exercise.reference())
        workspace.note(exercise, status=status)


# Predictions.


def test_without_widgets_a_guess_is_an_argument(capsys):
    predict("share", "Which share?", unit="%")
    assert "Which share?" in (shown := capsys.readouterr().out) and "guess=50" in shown
    predict("share", "Which share?", unit="%", guess=50)
    assert "Your guess: 50 %" in capsys.readouterr().out
    reveal("share", 23.4)
    assert "You said 50 %. It is 23.4 %." in capsys.readouterr().out


def test_an_unanswered_question_is_no_error(capsys):
    predict("which", "Which goes first?", choices=["the head", "the tail"])
    reveal("which", "the tail")
    reveal("never asked", 7)
    shown = capsys.readouterr().out
    assert "The answer is “the tail”." in shown and "no guess" in shown and "It is 7." in shown


def test_a_right_guess_is_told_so(capsys):
    predict("steps", "How many steps?", guess="1,024 steps")
    reveal("steps", 1024)
    assert "You said 1,024, and so it is." in capsys.readouterr().out


@pytest.mark.parametrize(("guess", "says"), [("many", "That is no number."), ("", ""), (None, "")])
def test_what_is_no_guess_is_not_taken(guess, says):
    prediction = Prediction("a", "How many?", None, "")
    assert prediction.answer(guess) == says and prediction.guess is None


def test_a_guess_outlives_the_kernel_but_not_its_question(monkeypatch, capsys):
    predict("a", "How many?", guess=3)
    monkeypatch.setattr(predictions, "_asked", {})
    predict("a", "How many?")
    predict("b", "How many?")
    reveal("a", 4)
    reveal("b", 4)
    assert "You said 3. It is 4." in (shown := capsys.readouterr().out) and "You made no guess" in shown
    assert Prediction("a", "How many others?", None, "").guess is None


@pytest.mark.parametrize(("choices", "typed", "guess"), [(None, " 1,024.5 %", 1024.5), (["x", "y"], "y", "y")])
def test_the_form_holds_what_is_typed_or_chosen(choices, typed, guess):
    prediction = Prediction("a", "How many?", choices, "%")
    form = prediction.form()
    assert prediction.guess is None and form.field.value in ("", None)
    form.field.value = typed
    assert prediction.guess == guess
    assert "Your guess" in form.children[-1].value
    assert Prediction("a", "How many?", choices, "%").form().field.value in ("1,024", "y")


BLOCKS = ["block 0", "block 1", "block 2"]


@pytest.mark.parametrize(
    ("picture", "guess", "truth", "says"),
    [
        (Boxes(BLOCKS), "block 1", "block 1", "You said “block 1”, and so it is."),
        (Boxes(BLOCKS), "block 0", "block 1", "You said “block 0”. The answer is “block 1”."),
        (Boxes(BLOCKS), None, "block 1", "You made no guess"),
        (Boxes(BLOCKS, in_order=True), "block 2, block 1, block 0", BLOCKS[::-1], "block 0”, and so it is."),
        (Boxes(BLOCKS, in_order=True), "block 0, block 1, block 2", BLOCKS[::-1], "The answer is “block 2, block 1"),
        (Bars("A", 100, unit="%"), 40, 23.4, "You said 40 %. It is 23.4 %."),
    ],
)
def test_a_guess_on_a_picture_is_one_like_any_other(capsys, picture, guess, truth, says):
    unit = "%" if isinstance(picture, Bars) else ""
    predict("a", "Which?", unit=unit, picture=picture)
    assert "To answer, add guess=" in (asked := capsys.readouterr().out) and "<svg" not in asked
    predict("a", "Which?", unit=unit, guess=guess, picture=picture)
    reveal("a", truth)
    assert says in (shown := capsys.readouterr().out) and "<svg" not in shown
    predict("a", "Which?", unit=unit, picture=picture)  # it is remembered
    assert ("Your guess" in capsys.readouterr().out) == (guess is not None)


def test_an_order_is_taken_when_all_are_in_it():
    prediction = Prediction("a", "Which?", None, "", Boxes(BLOCKS, in_order=True))
    form = prediction.form()
    form.field.value = "block 1, block 0"
    assert prediction.guess is None and "2 of 3" in form.children[-1].value
    form.field.value = "block 1, block 0, block 2"
    assert prediction.guess == "block 1, block 0, block 2" and "Your guess" in form.children[-1].value
    assert "data-chosen" in Prediction("a", "Which?", None, "", Boxes(BLOCKS, in_order=True)).form().children[1].value


def notebook_of(*cells):
    made = [nbformat.v4.new_code_cell(cell, outputs=[nbformat.v4.new_output("stream", text="!")]) for cell in cells]
    return nbformat.v4.new_notebook(cells=made)


def test_nothing_that_answers_a_prediction_is_stored():
    notebook = notebook_of("1", 'predict("a", "?")', "print(2)", 'x = 3\nreveal("a", x)', "4")
    notebooks.hide_answers(notebook)
    assert [len(cell.outputs) for cell in notebook.cells] == [1, 0, 0, 0, 1]


@pytest.mark.parametrize(
    "cells",
    [['predict("a", "?")'], ['reveal("a", 1)', 'predict("a", "?")'], ['predict("a", "?")'] * 2 + ['reveal("a", 1)']],
)
def test_a_prediction_has_one_reveal_after_it(cells):
    with pytest.raises(notebooks.NotebookError, match="'a' needs one predict and, after it, one reveal"):
        notebooks.cells_of_predictions(notebook_of(*cells))


# Checks as pictures.


def in_a_notebook(monkeypatch):
    monkeypatch.setattr(actions, "_shell", lambda: SimpleNamespace(kernel=True))


@pytest.mark.parametrize(
    ("exercise_id", "mistake", "differs"),
    [
        ("ch05.deallocate", "head_first", "the free blocks."),
        pytest.param("ch06.preempt", "always_the_newest", "running.", marks=pytest.mark.slow),
    ],
)
def test_a_failed_check_is_two_pools_in_a_notebook_and_words_elsewhere(
    workspace, monkeypatch, exercise_id, mistake, differs
):
    wrong = next(w for w in checks.wrong_answers(EXERCISES[exercise_id]) if w.name == mistake)
    result = checks.grade(wrong.first, engine=False)
    assert actions.describe(result).picture == "" and "<svg" not in actions.describe(result)._repr_html_()
    in_a_notebook(monkeypatch)
    page = actions.describe(result)._repr_html_()
    assert page.count("<svg") == 2 and "Expected" in page and f"≠ Not the same: {differs}" in page
    assert "<svg" not in repr(actions.describe(result))


def test_the_pool_of_a_case_is_the_right_one_with_our_function():
    wrong = next(w for w in checks.wrong_answers(EXERCISES["ch05.may_append"]) if w.name == "always")
    finding = checks.grade(wrong.first, engine=False).finding
    expected = checks.expected_scene(wrong.first.exercise, finding)
    assert expected["tables"] == {"A": [0, 1]} and finding.scene["tables"] == {"A": [0, 1, 2]}
    assert [block[0] for block in expected["blocks"][:3]] == [1, 1, 0]


@pytest.mark.slow
def test_a_case_without_a_pool_has_no_picture(monkeypatch):
    wrong = checks.wrong_answers(EXERCISES["ch05.compute_hash"])[0]
    result = checks.grade(wrong.first, engine=False)
    in_a_notebook(monkeypatch)
    assert result.finding.scene is None and actions.describe(result).picture == ""


def test_a_pass_lights_up_the_map_and_names_what_is_next(workspace, monkeypatch):
    solve(workspace, "ch05.allocate")
    result = checks.Result(EXERCISES["ch05.allocate"], "passed", "Right.")
    result.next_step = checks.what_is_next(workspace, "ch05")
    assert actions.describe(result).picture == ""
    in_a_notebook(monkeypatch)
    page = actions.describe(result).picture
    assert "ch05.allocate: just passed" in page and "★ BlockManager.allocate" in page
    assert "ch05.compute_hash: next" in page and "next: BlockManager.compute_hash" in page
    shown, folded = page.split("<details>")
    assert "engine/block_manager.py" in shown and "layers/sampler.py" in folded
    assert "just passed" not in Mine()._repr_html_() and "<details>" not in Mine()._repr_html_()


# The engine grows.


def config_of(me, **options):
    with me.LLM("qwen3-tiny", **(SMALL | options)) as llm:
        return llm.config


def test_an_engine_does_without_what_is_not_yet_the_learners(workspace):
    config = config_of(Mine())
    assert (config.max_num_seqs, config.enable_prefix_caching) == (1, False)
    assert "ch05.compute_hash and ch05.allocate" in repr(Mine())
    solve(workspace, "ch05.compute_hash", "ch05.allocate")
    config = config_of(Mine())
    assert (config.max_num_seqs, config.enable_prefix_caching) == (1, True)
    solve(workspace, "ch06", status="failed")
    assert config_of(Mine()).max_num_seqs == 1
    solve(workspace, "ch06")
    assert config_of(Mine()).max_num_seqs > 1
    assert "does without" not in repr(Mine())


def test_whoever_names_an_option_gets_it():
    assert config_of(actions.mine(max_num_seqs=3)).max_num_seqs == 3
    assert config_of(actions.mine(max_num_seqs=3), max_num_seqs=2).max_num_seqs == 2
    assert config_of(actions.mine(), enable_prefix_caching=True).enable_prefix_caching


def test_an_engine_says_whose_its_functions_are(workspace):
    assert Mine().whose("ch05").startswith("Nothing here is yours yet: compute_hash, ")
    solve(workspace, "ch05.deallocate")
    assert Mine().whose("ch05.allocate", "ch05.deallocate") == "Yours: deallocate. Still ours: allocate."
    assert Mine().whose("ch01.naive_loop") == "Nothing here is yours yet: naive_loop is ours, and so is what you see."
    solve(workspace, "ch05", "ch01")
    assert Mine().whose("ch01.naive_loop") == "Yours: naive_loop."
    assert Mine().whose("ch05").startswith("Yours: compute_hash, ") and "Still" not in Mine().whose("ch05")


def test_an_engine_gives_the_functions_of_exercises(workspace):
    lab, part = EXERCISES["ch01.naive_loop"], EXERCISES["ch05.deallocate"]
    workspace.write(lab, "def naive_loop(model, token_ids, max_tokens, eos):\n    return 'theirs'\n")
    workspace.write(part, "def deallocate(self, seq):\n    return 'theirs'\n")
    me = actions.mine(lab.id)
    assert me.owner(lab.id) == "yours" and me.function(lab.id)(None, [], 0, ()) == "theirs"
    assert me.function(part.id)(None, None) == "theirs"
    assert me.function(part.id) is me.engine.block_manager.BlockManager.deallocate
    assert me.owner("ch05.allocate") == "ours" and me.function("ch05.allocate").__name__ == "allocate"
    assert Mine().owner(lab.id) == "ours", "what is beside the engine takes part only if it is named"


def test_what_has_failed_stays_out_unless_it_is_named(workspace):
    exercise = EXERCISES["ch05.deallocate"]
    workspace.write(exercise, "def deallocate(self, seq):\n    self.used_block_ids.remove(None)\n")
    text = workspace.answer(exercise).text
    assert Mine().answers, "nobody has checked it yet"
    workspace.note(exercise, status="failed", source=text)
    me = Mine()
    assert not me.answers and me.whose("ch05.deallocate").startswith("Nothing here is yours yet: deallocate (yours has")
    assert 'mine("ch05.deallocate") takes yours' in repr(me) and "ours (yours has failed)" in me._repr_html_()
    with actions.mine("ch05.deallocate").LLM("qwen3-tiny", **SMALL) as llm, pytest.raises(KeyError) as raised:
        llm.generate("Once upon a time", nanovllm.SamplingParams(max_tokens=2), use_tqdm=False)
    (note,) = raised.value.__notes__
    assert note.startswith("In this engine, ch05.deallocate is yours and not passed yet")
    workspace.write(exercise, exercise.reference())  # another answer, which nobody has checked
    assert Mine().answers


def test_whose_fits_a_narrow_window(workspace):
    assert max(map(len, Mine().whose("ch03", "ch04", "ch05", "ch06").splitlines())) <= 88


def test_an_engine_without_a_function(workspace):
    solve(workspace, "ch05.deallocate")  # which plays no part
    lacking = actions.without("ch05.deallocate")
    with lacking.LLM("qwen3-tiny", **SMALL) as llm:
        llm.generate("Once upon a time", lacking.SamplingParams(max_tokens=2), use_tqdm=False)
        assert len(llm.scheduler.block_manager.used_block_ids) > 0
    assert "without BlockManager.deallocate" in repr(lacking)


@pytest.mark.parametrize("exercise_id", [e.id for e in EXERCISES.values() if e.splice])
def test_every_function_can_be_missing(exercise_id):
    exercise = EXERCISES[exercise_id]
    code = source.replace_body(exercise.reference(), exercise.without)
    assert exercise.name in code and actions.without(exercise_id).package.pieces


def test_what_is_no_part_of_the_engine_cannot_be_missing():
    with pytest.raises(KeyError, match=r"ch01\.naive_loop is no part of the engine"):
        actions.without("ch01.naive_loop")


@pytest.mark.parametrize("exercise_id", [e.id for e in EXERCISES.values() if e.replaces])
def test_an_open_exercise_takes_part_on_request(exercise_id, workspace):
    exercise = EXERCISES[exercise_id]
    workspace.write(exercise, exercise.reference())
    assert all(piece.exercise_id != exercise_id for piece in Mine().package.pieces)
    me = actions.mine(exercise_id)
    assert any(piece.exercise_id == exercise_id for piece in me.package.pieces)
    with me.LLM("qwen3-tiny", **SMALL) as llm:
        (answer,) = llm.generate("Once upon a time", me.SamplingParams(max_tokens=4), use_tqdm=False)
    assert answer["finish_reason"] == "length"


# The staircase.


@pytest.fixture
def short_work(monkeypatch):
    monkeypatch.setattr(staircase, "TOPICS", staircase.TOPICS[:2])
    monkeypatch.setattr(staircase, "MAX_TOKENS", 2)
    monkeypatch.setattr(staircase, "ROUNDS", 1)


def test_the_staircase_keeps_its_steps(short_work, workspace):
    assert "Nothing has been measured" in staircase.staircase()
    first = staircase.staircase("01")
    assert [name for name, *_ in first.rows()] == ["the naive loop"]
    solve(workspace, "ch04.num_blocks")
    second = staircase.staircase("04")
    assert [name for name, *_ in second.rows()] == ["the naive loop", "after 04"]
    assert "1 function of yours" in repr(second) and "1 function of yours" in second._repr_html_()
    assert repr(staircase.staircase()) == repr(second)
    assert all(step["naive"] > 0 for step in second.steps.values())


def test_a_step_names_the_loop_it_was_timed_beside():
    """The computer may be slower in one chapter than in another: then two speeds of other days say nothing."""
    steps = {
        "02": {"naive": 30.0, "engine": 105.0, "functions": 0},
        "03": {"naive": 10.0, "engine": 31.0, "functions": 2},
    }
    shown = staircase.Staircase(steps)
    said = [words for _, words, _ in shown.rows()[1:]]
    assert said[0].startswith("3.5x: 105 tokens/s, the loop 30;")
    assert said[1] == "3.1x: 31 tokens/s, the loop 10; 2 functions of yours in it"
    assert "table-layout:auto" in shown._repr_html_()  # or JupyterLab hides the first column


def test_only_what_has_passed_is_measured(short_work, workspace):
    broken = "def num_blocks(self):\n    raise RuntimeError\n"
    workspace.write(EXERCISES["ch04.num_blocks"], "@property\n" + broken)
    assert staircase.staircase("04").steps["04"]["functions"] == 0
