"""The exercises as ``exercises/exercises.toml`` lists them, and what can be derived from that alone."""

import ast
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import source

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = "exercises/exercises.toml"
LABS = "exercises.kit.labs"
BUNDLED_MODEL = ROOT / "nanovllm" / "assets" / "qwen3-tiny"


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One function that the learner writes.

    Args:
        id: chapter and name, for example "ch05.deallocate"; where a chapter has several functions of one name, such as
            `forward`, a word that tells them apart: "ch15.mlp".
        symbol: where the function lives, for example "nanovllm.engine.block_manager:BlockManager.deallocate".
        title: what it does, in a few words.
        minutes: how long it takes somebody who has read the chapter up to here.
        difficulty: 1 to 3.
        hints: three: the idea, where to look, almost the code.
        why: the reason behind the solution, shown with it.
        needs: ids of exercises that are better solved before; nothing depends on it but the advice.
        bypassed_by: options of `LLM` and the values that keep faster paths from going around this function; the
            manifest's table [bypassed_by] has them by symbol.
        splice: False for what is not part of the engine; its source is in exercises/kit/labs.py.
        kind: "" for most; "warm-up" for one of a line or two; "open" for one with many right answers, which takes a
            function's place in the engine only on request.
        replaces: the function of the engine whose place an open exercise takes.
        without: what the engine does where the function is missing: the body of a function, as code.
        time_limit: seconds a check may take.
    """

    id: str
    symbol: str
    title: str
    minutes: int
    difficulty: int
    hints: tuple[str, ...]
    why: str
    needs: tuple[str, ...] = ()
    bypassed_by: Mapping[str, Any] = field(default_factory=dict)
    splice: bool = True
    kind: str = ""
    replaces: str = ""
    without: str = "pass"
    time_limit: float = 5.0
    chapter_name: str = ""

    @property
    def chapter(self) -> str:
        """The chapter's short name, for example "ch05"."""
        return self.id.split(".")[0]

    @property
    def file_name(self) -> str:
        """File of the chapter's answers, for example "ch05_block_manager.py"."""
        return f"{self.chapter}_{self.chapter_name}.py"

    @property
    def module(self) -> str:
        """Full name of the module that the function lives in."""
        return self.symbol.split(":")[0]

    @property
    def qualname(self) -> str:
        """Name of the function in its module, for example "BlockManager.deallocate"."""
        return self.symbol.split(":")[1]

    @property
    def name(self) -> str:
        """Name of the function itself."""
        return self.qualname.rsplit(".")[-1]

    @property
    def target(self) -> str:
        """The function whose place it takes: its own, or the one that an open exercise replaces."""
        return self.replaces or self.symbol

    @property
    def place(self) -> str:
        """What it is in an assembled package, for example "BlockManager.deallocate"; the module is `path`."""
        return self.target.split(":")[1]

    @property
    def path(self) -> str:
        """The file that it goes into in an assembled package, for example "engine/block_manager.py"."""
        module = self.target.split(":")[0]
        return "labs.py" if module == LABS else "/".join(module.split(".")[1:]) + ".py"

    def module_text(self, root: Path = ROOT) -> str:
        """Source of the module that the function lives in."""
        return (root / (self.module.replace(".", "/") + ".py")).read_text(encoding="utf-8")

    def reference(self, root: Path = ROOT) -> str:
        """Our own code of the function."""
        return source.symbol_source(root, self.module.replace(".", "/") + ".py", self.qualname)[0]

    def stub(self, root: Path = ROOT) -> str:
        """The signature and the docstring, and nothing that works."""
        return source.make_stub(self.reference(root), self.id)

    def reference_node(self, root: Path = ROOT) -> source.Definition:
        """The function's syntax tree."""
        node = ast.parse(self.reference(root)).body[0]
        assert isinstance(node, source.Definition)
        return node


@dataclass(frozen=True)
class Feature:
    """Something that the learner's engine can do when some functions in it are theirs.

    Args:
        name: in a few words.
        needs: ids of these functions, or chapters.
        until: options of `LLM` for the time before.
        says: what these mean, in a few words.
    """

    name: str
    needs: tuple[str, ...]
    until: Mapping[str, Any]
    says: str

    def exercises(self, root: Path = ROOT) -> list[Exercise]:
        """The functions that it needs."""
        return select(self.needs, root)


def features(root: Path = ROOT) -> list[Feature]:
    """What exercises unlock, in the manifest's order."""
    path = root / MANIFEST
    entries = _read(path.read_text(encoding="utf-8")).get("feature", []) if path.is_file() else []
    return [Feature(**entry | {"needs": tuple(entry["needs"])}) for entry in entries]


def select(ids: Iterable[str], root: Path = ROOT) -> list[Exercise]:
    """The exercises of some ids and chapters, in the manifest's order; those of a chapter without the open ones.

    Raises:
        KeyError: there is none; the message names those that are close.
    """
    exercises, found = load(root), set()
    for wanted in ids:
        in_chapter = {e.id for e in exercises.values() if e.chapter == wanted and e.kind != "open"}
        found |= in_chapter or {get(wanted, root).id}
    return [exercise for exercise in exercises.values() if exercise.id in found]


def load(root: Path = ROOT) -> dict[str, Exercise]:
    """All exercises by id, in the manifest's order; none if there is no manifest.

    Raises:
        SourceError: an entry is wrong; the message names it.
    """
    path = root / MANIFEST
    return _load(path.read_text(encoding="utf-8")) if path.is_file() else {}


_read = lru_cache(maxsize=4)(tomllib.loads)


@lru_cache(maxsize=4)
def _load(text: str) -> dict[str, Exercise]:
    data = _read(text)
    exercises: dict[str, Exercise] = {}
    for entry in data["exercise"]:
        exercise_id = entry.get("id", "an entry without id")
        try:
            known: dict[str, Any] = {name: tuple(entry[name]) for name in ("hints", "needs") if name in entry}
            known["bypassed_by"] = entry.get("bypassed_by") or data.get("bypassed_by", {}).get(entry["symbol"], {})
            exercise = Exercise(chapter_name=data["chapters"][exercise_id.split(".")[0]], **entry | known)
        except (TypeError, KeyError) as error:
            raise source.SourceError(f"{MANIFEST}: {exercise_id}: {error}") from None
        unknown = [other for other in exercise.needs if other not in exercises]
        if exercise_id in exercises or len(exercise.hints) != 3 or unknown:
            problem = (
                f"needs {unknown}, which do not come before it" if unknown else "is there twice, or has not three hints"
            )
            raise source.SourceError(f"{MANIFEST}: {exercise_id} {problem}")
        exercises[exercise_id] = exercise
    return exercises


def get(exercise_id: str, root: Path = ROOT) -> Exercise:
    """The exercise of that id.

    Raises:
        KeyError: there is none; the message names those that are close.
    """
    exercises = load(root)
    if not isinstance(exercise_id, str) or exercise_id not in exercises:
        close = difflib.get_close_matches(str(exercise_id), exercises, n=3, cutoff=0.3) or list(exercises)[:1]
        raise KeyError(f"there is no exercise {exercise_id!r}; did you mean {' or '.join(close)}?")
    return exercises[exercise_id]
