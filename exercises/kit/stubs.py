"""Files derived from the engine: stubs for the learner, and the solutions.

A stub file says which text it was derived with. If it is another by now, it is the learner's, and is not touched.
"""

import difflib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import manifest, source
from .manifest import ROOT, Exercise
from .workspace import Workspace, digest, join, parse, read, split

DERIVED = re.compile(r"^# derived: (\w+)$", re.MULTILINE)
PRAGMAS = "# ruff: noqa\n# mypy: ignore-errors\n# fmt: off\n"
STUB_HEADER = '''\
"""Your answers to chapter {number}, {name}.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: {fingerprint}
'''
SOLUTION_HEADER = '''\
"""Our answers to chapter {number}, {name}, cut out of nanovllm/, each with its reason."""

'''


def chapters(root: Path = ROOT) -> dict[str, list[Exercise]]:
    """File name of each chapter that has exercises, with its exercises in order."""
    found: dict[str, list[Exercise]] = {}
    for exercise in manifest.load(root).values():
        found.setdefault(exercise.file_name, []).append(exercise)
    return found


def _imports(exercises: list[Exercise], root: Path, code: Callable[[Exercise, Path], str]) -> str:
    lines: list[str] = ["from __future__ import annotations", ""]
    for module in dict.fromkeys(exercise.module for exercise in exercises):
        inside = [exercise for exercise in exercises if exercise.module == module]
        found = source.imports_of(inside[0].module_text(root), module)
        if module == manifest.LABS:  # one module for all chapters: what its functions for this one speak of
            words = set(re.findall(r"\w+", "\n".join(code(exercise, root) for exercise in inside)))
            found = source.only(found, words)
        lines += [line for line in found if line not in lines]
    return "\n".join(lines)


def _header(template: str, exercises: list[Exercise], fingerprint: str = "") -> str:
    first = exercises[0]
    name = first.chapter_name.replace("_", " ")
    return template.format(number=first.chapter.removeprefix("ch"), name=name, fingerprint=fingerprint)


def stub_text(exercises: list[Exercise], root: Path = ROOT) -> str:
    """The file in which a learner begins a chapter."""
    body = PRAGMAS + "\n" + _imports(exercises, root, Exercise.stub) + "\n"
    for exercise in exercises:
        body = join(body, exercise.id, exercise.stub(root))
    return _header(STUB_HEADER, exercises, digest(body)) + body


def solution_text(exercises: list[Exercise], root: Path = ROOT) -> str:
    """The file with our answers to a chapter."""
    body = _header(SOLUTION_HEADER, exercises) + PRAGMAS + "\n" + _imports(exercises, root, Exercise.reference) + "\n"
    for exercise in exercises:
        why = "\n".join(f"# {line}".rstrip() for line in exercise.why.strip().splitlines())
        body = join(body, exercise.id, f"{why}\n{exercise.reference(root)}")
    return body


def is_edited(text: str) -> bool:
    """Whether a stub file has been changed since it was derived."""
    match = DERIVED.search(text)
    return match is None or match[1] != digest(text[match.end() + 1 :])


def write_stubs(folder: Path, root: Path = ROOT) -> None:
    """Fresh stubs of all chapters in some folder: what a new learner has."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, exercises in chapters(root).items():
        (folder / name).write_text(stub_text(exercises, root), encoding="utf-8")


def sync(root: Path = ROOT, write: bool = True) -> list[str]:
    """Derive stubs and solutions; with `write=False` only compare.

    Returns:
        What could not be done, or is out of step, a message each.
    """
    problems = []
    for name, exercises in chapters(root).items():
        derived = {f"exercises/{name}": stub_text(exercises, root), f"solutions/{name}": solution_text(exercises, root)}
        for relative, text in derived.items():
            path = root / relative
            current = path.read_text(encoding="utf-8") if path.is_file() else None
            if current == text:
                continue
            if current is not None and relative.startswith("exercises/") and is_edited(current):
                problems.append(
                    f"{relative} was edited and is left alone. If these are your answers, all is well:"
                    " python -m exercises update carries them over when the course has changed."
                )
            elif write:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
                print(f"{relative}: written")
            else:
                problems.append(
                    f"{relative} is out of step: run python -m exercises sync\n{_diff(current, text, relative)}"
                )
    return problems + _strays(root)


def _strays(root: Path) -> list[str]:
    known = set(chapters(root))
    folders = (root / "exercises", root / "solutions")
    found = [path for folder in folders for path in sorted(folder.glob("ch[0-9][0-9]_*.py")) if path.name not in known]
    return [f"{path.parent.name}/{path.name} belongs to no chapter of {manifest.MANIFEST}" for path in found]


def _diff(current: str | None, derived: str, name: str) -> str:
    old = [] if current is None else current.splitlines()
    return "\n".join(difflib.unified_diff(old, derived.splitlines(), name, f"{name} (derived)", n=1, lineterm=""))


def update(workspace: Workspace, root: Path = ROOT) -> list[str]:
    """Bring the learner's files to the state of the course, with their answers in them.

    Answers come from the files, or, where a file has only the stub, from what was checked last. The file as it was
    is kept in .attempts/.

    Returns:
        What was done, a line each.
    """
    done = []
    progress: dict[str, dict[str, Any]] = workspace.progress()
    for name, exercises in chapters(root).items():
        path, text = workspace.folder / name, stub_text(exercises, root)
        current = read(path) if path.is_file() else ""
        old = {exercise_id: section for exercise_id, (_, section) in split(current).items()}
        for exercise in exercises:
            section = old.pop(exercise.id, "")
            if not section or parse(exercise, section).is_stub:
                section = progress.get(exercise.id, {}).get("source") or ""
            if section:
                text = join(text, exercise.id, section)
        for exercise_id, section in old.items():  # an exercise that is no more; the work stays
            text = join(text, exercise_id, section)
        text = _with_top_of(current, text)
        if text != current:
            if current and is_edited(current):
                backup = workspace.folder / ".attempts" / f"{path.stem}-{time.strftime('%Y%m%d-%H%M%S')}.py"
                backup.parent.mkdir(exist_ok=True)
                backup.write_text(current, encoding="utf-8")
            path.write_text(text, encoding="utf-8")
            done.append(f"{name}: brought up to date")
    return done


def _with_top_of(old: str, new: str) -> str:
    """A stub file with what a learner had added at the top of the old one; imports of the engine are derived anew."""
    top, at, rest = new.partition("\n# --- ")
    if not (begin := DERIVED.search(old)):
        return new
    lines = old[begin.end() :].split("\n# --- ")[0].splitlines()
    added = [line for line in lines if line not in top.splitlines() and not line.startswith("from nanovllm")]
    return "\n".join([top.rstrip(), *added, "", at.strip("\n")]) + rest if any(added) else new
