"""Course tests have a learner's folder of their own; the real one is not even opened."""

import shutil
import sys
from pathlib import Path

import pytest

from exercises.kit import stubs
from exercises.kit.workspace import FOLDER_VARIABLE, Workspace

ROOT = Path(__file__).resolve().parents[2]
_guard = {"armed": False}


def _refuse_learner_files(event, arguments):
    if event == "open" and _guard["armed"] and isinstance(arguments[0], str):
        path = Path(arguments[0])
        if path.parent == ROOT / "exercises" and (path.name.startswith("ch") or path.name == ".progress.json"):
            raise AssertionError(f"a course test opens {path}, which belongs to the learner")


sys.addaudithook(_refuse_learner_files)


@pytest.fixture(scope="session")
def fresh_stubs(tmp_path_factory):
    """What a new learner has, derived once."""
    folder = tmp_path_factory.mktemp("stubs") / "exercises"
    stubs.write_stubs(folder)
    return folder


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch, fresh_stubs):
    """A new learner's folder."""
    folder = tmp_path / "learner" / "exercises"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    shutil.copytree(fresh_stubs, folder)
    _guard["armed"] = True
    yield Workspace()
    _guard["armed"] = False
