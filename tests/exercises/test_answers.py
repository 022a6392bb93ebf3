"""Grades what stands in exercises/ch*.py, with the checks that the notebooks use."""

import pytest

from exercises.kit import actions, checks, manifest


@pytest.mark.parametrize("exercise_id", manifest.load())
def test_answer(exercise_id):
    result = checks.check(exercise_id)
    assert result.passed, f"\n{actions.describe(result)}"
