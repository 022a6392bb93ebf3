"""The learner's files: read, written one answer at a time, never lost.

A chapter's file holds flat functions, each under a line such as ``# --- ch05.deallocate``. The file is the
truth; notebooks and commands only write into it. What has been checked is kept beside it, in .progress.json.
"""

import ast
import contextlib
import hashlib
import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import manifest, source
from .manifest import ROOT, Exercise

MARKER = re.compile(r"^# --- (ch\d\d\.\w+)\s*$")
FOLDER_VARIABLE = "NANOVLLM_EXERCISES"  # another folder for the learner's files: for tests, and for running notebooks
FOREIGN = ("nanovllm", "exercises", "solutions", "tests")


def digest(*texts: str) -> str:
    """A short hash of some texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def read(path: Path) -> str:
    """The text of a learner's file; one that is not UTF-8 comes from an editor with an old default."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


@dataclass(frozen=True)
class Answer:
    """What somebody wrote for one exercise.

    Args:
        exercise: which one.
        text: all of it, as it stands under the marker.
        file: the file's name, for messages.
        line: line of `text` in the file.
        function: code and line of the function itself, decorators included.
        extras: code and line of everything else: imports, helpers, constants.
        is_stub: nothing has been written yet.
        problem: why it cannot be used, if it cannot.
    """

    exercise: Exercise
    text: str
    file: str
    line: int = 1
    function: tuple[str, int] = ("", 0)
    extras: tuple[tuple[str, int], ...] = ()
    is_stub: bool = False
    problem: str | None = None

    @property
    def is_usable(self) -> bool:
        """Whether it can go into an engine."""
        return not self.is_stub and self.problem is None


def parse(exercise: Exercise, text: str, file: str = "", line: int = 1) -> Answer:
    """Take an answer apart; what is wrong with it is in `problem`."""
    answer = Answer(exercise, text.rstrip() + "\n", file or exercise.file_name, line)
    try:
        tree = ast.parse(answer.text)
        compile(answer.text, answer.file, "exec", dont_inherit=True)
    except SyntaxError as error:
        number = answer.line + (error.lineno or 1) - 1
        quoted = f"\n    {error.text.rstrip()}" if error.text else ""
        return _with(answer, problem=f"Python cannot read it: {error.msg}, in {answer.file}, line {number}{quoted}")
    functions = [node for node in tree.body if isinstance(node, source.Definition) and node.name == exercise.name]
    if len(functions) != 1:
        found = "not there" if not functions else f"there {len(functions)} times"
        return _with(answer, problem=f"the function {exercise.name} is {found}; define it once, with def, flat")
    (function,) = functions
    if not isinstance(function, ast.FunctionDef):
        return _with(answer, problem=f"{exercise.name} has to be a plain function, without async or class")
    lines = answer.text.splitlines()

    def piece(node: Any) -> tuple[str, int]:
        first, last = source.span(node) if isinstance(node, source.Definition) else (node.lineno, node.end_lineno)
        return "\n".join(lines[first - 1 : last]), answer.line + first - 1

    others = [node for node in tree.body if node is not function and not isinstance(node, ast.Expr)]
    others = [node for node in others if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")]
    answer = _with(answer, function=piece(function), extras=tuple(piece(node) for node in others))
    if source.is_stub(function):
        return _with(answer, is_stub=True)
    return _with(answer, problem=_objection(exercise, tree, function))


def _with(answer: Answer, **changes: Any) -> Answer:
    return Answer(**(answer.__dict__ | changes))


def _objection(exercise: Exercise, tree: ast.Module, function: source.Definition) -> str | None:
    """Why an answer that Python can read is none: another signature, or our own code under the hood."""
    reference = exercise.reference_node()
    if isinstance(reference, ast.FunctionDef) and isinstance(function, ast.FunctionDef):
        ours, theirs = ([argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)]
                        for node in (reference, function))  # fmt: skip
        if theirs[: len(ours)] != ours:
            return f"its parameters are ({', '.join(theirs)}), but the engine calls it with ({', '.join(ours)})"
    taken = {node.name for node in ast.parse(exercise.module_text()).body if isinstance(node, source.Definition)}
    for helper in tree.body:
        if isinstance(helper, source.Definition) and helper is not function and helper.name in taken:
            return f"your helper {helper.name} has the name of something in the engine; give it another"
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if node.level == 0 else []
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count("\n") == 0:
            names = [node.value]
        for name in names:
            if name.split(".")[0] in FOREIGN:
                return f"it refers to {name!r}: an answer has to do the work itself, not call ours"
        is_super = isinstance(node, ast.Attribute) and ast.unparse(node.value).startswith("super()")
        if is_super and node.attr == exercise.name:  # type: ignore[attr-defined]
            return "it calls the function that it replaces"
    return None


def split(text: str) -> dict[str, tuple[int, str]]:
    """The sections of a file: id to line number (of what follows the marker) and text."""
    sections: dict[str, tuple[int, str]] = {}
    current, start, lines = "", 0, text.splitlines()
    for number, line in enumerate([*lines, "# --- ch00.end"], start=1):
        if match := MARKER.match(line):
            if current:
                sections[current] = (start, "\n".join(lines[start - 1 : number - 1]).strip("\n") + "\n")
            current, start = match[1], number + 1
    return sections


def join(text: str, exercise_id: str, code: str) -> str:
    """`text` with the section of `exercise_id` replaced by `code`, or appended."""
    lines = text.splitlines()
    marks = {match[1]: i for i, line in enumerate(lines) if (match := MARKER.match(line))}
    if exercise_id not in marks:
        return f"{text.rstrip()}\n\n\n# --- {exercise_id}\n{code.strip(chr(10))}\n"
    first = marks[exercise_id] + 1
    end = min((i for i in marks.values() if i >= first), default=len(lines))
    tail = ["", "", *lines[end:]] if end < len(lines) else []
    return "\n".join([*lines[:first], code.strip("\n"), *tail]) + "\n"


@dataclass
class Workspace:
    """A folder with the learner's files; ``exercises/`` unless told otherwise."""

    folder: Path = field(default_factory=lambda: Path(os.environ.get(FOLDER_VARIABLE) or ROOT / "exercises"))

    def path(self, exercise: Exercise) -> Path:
        """The file that holds the answer."""
        return self.folder / exercise.file_name

    def answer(self, exercise: Exercise) -> Answer:
        """What the learner has written; the stub if there is no file or no such section."""
        path = self.path(exercise)
        sections = split(read(path)) if path.is_file() else {}
        line, text = sections.get(exercise.id, (1, exercise.stub()))
        return parse(exercise, text, f"{path.parent.name}/{path.name}", line)

    def answers(self) -> list[Answer]:
        """Everything that is written and can go into an engine, in the course's order."""
        found = (self.answer(exercise) for exercise in manifest.load().values())
        return [answer for answer in found if answer.is_usable]

    def write(self, exercise: Exercise, code: str) -> None:
        """Put an answer into its file, and note that it was written from here."""
        path = self.path(exercise)
        text = read(path) if path.is_file() else ""
        path.write_text(join(text, exercise.id, code), encoding="utf-8")
        self.note(exercise, written=digest(self.answer(exercise).text))

    def back_up(self, exercise: Exercise) -> Path | None:
        """Keep a copy of the answer in .attempts/; returns where, or None if nothing is written yet."""
        answer = self.answer(exercise)
        if answer.is_stub:
            return None
        folder = self.folder / ".attempts"
        folder.mkdir(exist_ok=True)
        path = folder / f"{exercise.id}-{time.strftime('%Y%m%d-%H%M%S')}-{digest(answer.text)[:4]}.py"
        path.write_text(answer.text, encoding="utf-8")
        return path

    def reset(self, exercise: Exercise) -> Path | None:
        """Back to the stub; returns where the answer was kept."""
        backup = self.back_up(exercise)
        self.write(exercise, exercise.stub())
        self.note(exercise, status=None, source=None, hints=0, failures=0)
        return backup

    def progress(self) -> dict[str, dict[str, Any]]:
        """What is known about each exercise: status, hash of what was checked, hints shown. Only a cache."""
        path = self.folder / ".progress.json"
        try:
            return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except ValueError:
            return {}

    def known(self, exercise: Exercise) -> dict[str, Any]:
        """The part of `progress` that is about one exercise."""
        return self.progress().get(exercise.id, {})

    def note(self, exercise: Exercise, **facts: Any) -> None:
        """Remember facts about an exercise."""
        progress = self.progress()
        progress[exercise.id] = progress.get(exercise.id, {}) | facts
        path = self.folder / ".progress.json"
        temporary = path.with_suffix(".tmp")
        with contextlib.suppress(OSError):  # a folder that is read-only; this is only a cache
            temporary.write_text(json.dumps(progress, indent=1) + "\n", encoding="utf-8")
            temporary.replace(path)
