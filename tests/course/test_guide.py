"""The guide for instructors speaks of what is there."""

import re

from exercises.__main__ import _parser
from exercises.classroom import demo
from exercises.kit import checks, manifest
from exercises.kit.manifest import ROOT

GUIDE = (ROOT / "INSTRUCTORS.md").read_text(encoding="utf-8")
EXERCISES = manifest.load()
BREAKS = sorted(set(re.findall(r'demo\.break_\("([^"]+)", (?:"(\w+)"|(\d+))\)', GUIDE)))


def test_every_mistake_that_it_names_is_known():
    assert len(BREAKS) >= 36
    assert {exercise_id[:4] for exercise_id, *_ in BREAKS} == {exercise.chapter for exercise in EXERCISES.values()}
    for exercise_id, name, number in BREAKS:
        known = [path.stem for path in (ROOT / "tests" / "wrong_answers").glob(f"{exercise_id}__*.py")]
        is_known = f"{exercise_id}__{name}" in known or 0 < int(number or 0) <= len(known)
        assert is_known, f"{exercise_id} has no mistake {name or number}"


def test_the_mistake_of_the_script_is_the_one_that_it_asks_about():
    assert checks.wrong_answers(EXERCISES["ch05.deallocate"])[2].name == "head_first"


def test_every_exercise_that_it_names_exists():
    assert set(re.findall(r"ch\d\d\.\w+", GUIDE)) <= set(EXERCISES)


def test_everything_that_it_calls_exists():
    assert all(hasattr(demo, name) for name in re.findall(r"demo\.(\w+)", GUIDE))
    commands = _parser()._subparsers._group_actions[0].choices
    assert set(re.findall(r"python -m exercises (\w+)", GUIDE)) <= set(commands)


def test_its_minutes_are_those_of_the_readme():
    rows = re.findall(r"^\| (\d\d) \| \[.*\| (\d+) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    said = re.findall(r"\b(\d\d) (?:about )?(\d\d)(?= ·| \|)", GUIDE)
    assert said == rows and len(rows) == 18


def test_its_minutes_of_a_session_are_those_of_the_exercises_that_are_left():
    said = dict(re.findall(r"\b(\d\d): (\d+)\b", GUIDE.split("**Two days.**")[0]))
    left = [exercise for exercise in EXERCISES.values() if exercise.kind == ""]
    minutes = {number: sum(e.minutes for e in left if e.chapter == f"ch{number}") for number in said}
    assert {number: int(text) for number, text in said.items()} == minutes and len(said) == 10
    assert max(minutes.values()) <= 60


def test_it_is_short():
    assert len(GUIDE.split()) < 2500
