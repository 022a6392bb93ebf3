"""The numbers that chapter 18 tells, its review, and the package that leaves the course."""

import json
from functools import partial
from pathlib import Path

import pytest

from exercises.kit import actions, assemble, draft_work, manifest, predictions, summary_work
from exercises.kit.labs import accept, my_proposer, propose
from nanovllm import LLM, SamplingParams
from tests import code_size

RIGHT_ANSWERS = Path(__file__).parent / "right_answers"


def test_the_numbers_that_learners_read():
    found = {n: round(draft_work.judge(partial(propose, n=n, k=draft_work.MOST)), 2) for n in (1, 2, 3)}
    assert found == {1: draft_work.PLAIN, 2: 1.06, 3: 1.01}
    assert round(draft_work.judge(my_proposer(draft_work.seen())), 2) == 3.37
    assert draft_work.judge(lambda text: []) == 1


def test_nobody_has_seen_what_counts():
    seen, held_out = draft_work.seen(), draft_work.held_out()
    assert (len(seen), len(held_out)) == (32, 16)
    assert not [prompt for prompt, _ in held_out if any(text[: len(prompt)] == prompt for text in seen)]


@pytest.mark.slow
def test_the_recorded_texts_are_the_models():
    texts = json.loads(draft_work.TEXTS.read_text(encoding="utf-8"))
    options = {"device": "cpu", "kvcache_block_size": 16, "num_kvcache_blocks": 1024, "max_model_len": 512}
    with LLM("qwen3-tiny", **options) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=400)
        answers = llm.generate([prompt for prompt, _ in texts], greedy, use_tqdm=False)
    assert [list(answer["token_ids"]) for answer in answers] == [answer for _, answer in texts]


def test_calls_of_the_model_are_those_that_a_known_answer_tells():
    prompt, answer = draft_work.held_out()[0]
    with LLM("qwen3-tiny", **draft_work.OPTIONS) as llm:
        guess = partial(propose, n=1, k=4)
        calls = draft_work.speculate(llm, prompt, guess, accept, 40)
    assert calls == draft_work.replay(prompt, answer[:40], guess)


def test_a_call_that_adds_nothing_comes_to_an_end():
    with LLM("qwen3-tiny", **draft_work.OPTIONS) as llm:
        calls = draft_work.speculate(llm, [5, 6], lambda text: [], lambda *_: [], 5)
    assert len(calls) == 5 and draft_work.tokens_per_call(calls) == 0


# The review.


def test_there_is_a_question_for_each_chapter():
    assert list(summary_work.QUESTIONS) == [f"{number:02}" for number in range(1, 19)]
    for question in summary_work.QUESTIONS.values():
        assert len(set(question.choices)) == 3 and question.because.endswith((".", ")"))
    rights = [question.right for question in summary_work.QUESTIONS.values()]
    assert all(rights.count(place) >= 3 for place in range(3))


def test_the_score_names_the_chapters_to_go_back_to(monkeypatch, capsys):
    monkeypatch.setattr(predictions, "_asked", {})
    assert summary_work.score() == "0 of 18 are right, 18 were not answered."
    for chapter, question in summary_work.QUESTIONS.items():
        guess = question.choices[0 if chapter == "05" else question.right]
        predictions.predict(f"quiz {chapter}", *summary_work.quiz(chapter), guess=guess)
    assert summary_work.score() == "17 of 18 are right. To read again: 05."
    capsys.readouterr()
    assert summary_work.answer("05") == "its reference count falls to 1"
    assert "A block is free when nobody's table names it." in capsys.readouterr().out


# The engine whole.


def test_the_lines_that_are_counted_are_those_of_the_core(workspace):
    package = code_size.ROOT / "nanovllm"
    names = [path.relative_to(package).as_posix() for path in package.rglob("*.py")]
    counted = {name for name in names if not name.startswith(summary_work.BESIDE)}
    core = {file.path.relative_to("nanovllm").as_posix() for file in code_size.find_files() if file.room == "core"}
    assert counted == core
    exercise = manifest.get("ch05.deallocate")
    nothing = summary_work.lines(actions.mine())
    assert sum(part.yours for part in nothing.values()) == 0
    workspace.write(exercise, exercise.reference())
    parts = summary_work.lines(actions.mine())
    assert parts["engine"].yours > 0 and sum(parts["engine"]) == sum(nothing["engine"])
    for exercise in manifest.load().values():
        if exercise.splice:
            workspace.write(exercise, exercise.reference())
    me = actions.mine()
    assert sum(part.yours for part in summary_work.lines(me).values()) == summary_work.lines_to_write(me)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_exported_engine_of_right_answers_passes_our_quick_tests(workspace, tmp_path, pytestconfig):
    """All of them with `--thorough`; otherwise those of the parts that chapters build."""
    for exercise in manifest.load().values():
        if exercise.splice:
            workspace.write(exercise, exercise.reference())
    me = actions.mine()
    assert len(me.answers) == len(assemble._spliced())
    summary_work.project(me, tmp_path)
    names = ["test_block_manager.py", "test_scheduler.py", "test_sequence.py"]
    if pytestconfig.getoption("--thorough"):
        names = [path.name for path in (tmp_path / "tests" / "engine").glob("test_*.py")]
    passed, said = summary_work.run_tests(tmp_path, names, "-n", "2")
    assert passed, said
    assert "passed" in said


@pytest.mark.slow
def test_tests_of_a_project_run_its_own_engine(workspace, tmp_path):
    exercise = manifest.get("ch04.num_blocks")
    workspace.write(exercise, "@property\ndef num_blocks(self):\n    return 77\n")
    summary_work.project(actions.mine(), tmp_path)
    passed, said = summary_work.run_tests(tmp_path, ["test_sequence.py"])
    assert not passed and "FAILED tests/engine/test_sequence.py" in said
