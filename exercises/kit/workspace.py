"""The learner's files: read, written one answer at a time, never lost.

A chapter's file holds flat functions, each under a line such as ``# --- ch05.deallocate``. The file is the
truth; notebooks and commands only write into it. What has been checked is kept beside it, in .progress.json.
"""

import ast
import contextlib
import dataclasses
import difflib
import hashlib
import itertools
import json
import os
import re
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import manifest, source
from .manifest import ROOT, Exercise

MARKER = re.compile(r"^# --- (ch\d\d\.\w+)\s*$")
FOLDER_VARIABLE = "NANOVLLM_EXERCISES"  # another folder for the learner's files: for tests, and for running notebooks
IMPORTS = (ast.Import, ast.ImportFrom)
FOREIGN = ("exercises", "solutions", "tests")


def digest(*texts: str) -> str:
    """A short hash of some texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def read(path: Path) -> str:
    """The text of a learner's file; one that is not UTF-8 comes from an editor with an old default."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-16" if is_utf16(data) else "utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_utf16(data: bytes) -> bool:
    """Whether an editor has saved a file so that Python cannot read it: null bytes are in no other text."""
    return b"\0" in data


@dataclass(frozen=True)
class Answer:
    """What somebody wrote for one exercise.

    Args:
        exercise: which one.
        text: all of it, as it stands under the marker.
        file: the file's name, for messages.
        line: line of `text` in the file.
        function: code and line of the function itself, decorators included.
        extras: code and line of everything else: imports, helpers, constants, also those at the top of the file.
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


def parse(exercise: Exercise, text: str, file: str = "", line: int = 1, top: str = "") -> Answer:
    """Take an answer apart; what is wrong with it is in `problem`.

    Args:
        line: of `text` in its file.
        top: the beginning of that file; what the answer uses of it belongs to the answer.
    """
    answer = Answer(exercise, text.rstrip() + "\n", file or exercise.file_name, line)
    trees = []
    for code, first in ((answer.text, line), (top, 1)):
        try:
            trees.append(ast.parse(code))
            compile(code, answer.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            quoted = f"\n    {error.text.rstrip()}" if error.text else ""
            place = f"{answer.file}, line {first + (error.lineno or 1) - 1}"
            below = source.find(trees[0], exercise.name) if trees else None  # what it cannot read is above it
            if below is not None and source.is_stub(below):
                return _with(answer, is_stub=True)
            return _with(answer, problem=f"Python cannot read it: {error.msg}, in {place}{quoted}")
    tree, above = trees
    functions = [node for node in tree.body if isinstance(node, source.Definition) and node.name == exercise.name]
    if len(functions) != 1:
        found = "not there" if not functions else f"there {len(functions)} times"
        return _with(answer, problem=f"the function {exercise.name} is {found}; define it once, with def, flat")
    (function,) = functions
    if not isinstance(function, ast.FunctionDef):
        return _with(answer, problem=f"{exercise.name} has to be a plain function, without async or class")

    def piece(node: Any, code: str, start: int) -> tuple[str, int]:
        first, last = source.span(node) if isinstance(node, source.Definition) else (node.lineno, node.end_lineno)
        return "\n".join(code.splitlines()[first - 1 : last]), start + first - 1

    module = exercise.target.split(":")[0]
    taken = module_names(exercise)
    others = [node for node in tree.body if node is not function and _counts(node, module, taken)]
    used = {"*"} | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    others = [node for node in others if not isinstance(node, IMPORTS) or used & source.bindings([node], "").keys()]
    shared: list[ast.stmt] = []
    for node in reversed([node for node in above.body if _counts(node, module, taken)]):
        names = source.bindings([node], "").keys()
        if used & (names - taken.keys() if isinstance(node, IMPORTS) else names):
            shared.insert(0, node)
            used |= {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    extras = [piece(node, top, 1) for node in shared] + [piece(node, answer.text, line) for node in others]
    answer = _with(answer, function=piece(function, answer.text, line), extras=tuple(extras))
    if source.is_stub(function):
        return _with(answer, is_stub=True)
    # Imports at the top are derived, for several modules; of one name, the engine's module has the right one.
    helpers = [node for node in shared if not isinstance(node, IMPORTS)] + others
    return _with(answer, problem=_objection(exercise, tree, function, helpers, taken))


def module_names(exercise: Exercise) -> dict[str, str]:
    """What the module that an answer goes into has already; see `source.bindings`."""
    place = dataclasses.replace(exercise, symbol=exercise.target)
    return _bindings(place.module_text(), place.module)


@lru_cache(maxsize=64)
def _bindings(text: str, module: str) -> dict[str, str]:
    return source.bindings(ast.parse(text).body, module)


def _counts(node: ast.stmt, module: str, taken: dict[str, str]) -> bool:
    """Whether a statement is needed in the engine: no test of the learner's, nothing that is there already."""
    names = source.bindings([node], module, "yours").items()
    is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
    # Kernels get the language that they are to run in, Triton's or a stand-in (`kernel_work`).
    is_there = {name for name, _ in names} <= taken.keys() and all(re.match(r"triton\b", what) for _, what in names)
    is_triton = isinstance(node, IMPORTS) and is_there
    return bool(names) and not is_future and not is_triton and not names <= taken.items()


def _with(answer: Answer, **changes: Any) -> Answer:
    return Answer(**(answer.__dict__ | changes))


def _objection(
    exercise: Exercise, tree: ast.Module, function: ast.FunctionDef, helpers: list[ast.stmt], taken: dict[str, str]
) -> str | None:
    """Why an answer that Python can read is none: another signature, or our own code under the hood."""
    reference = exercise.reference_node()
    assert isinstance(reference, ast.FunctionDef)
    ours, theirs = ([argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)]
                    for node in (reference, function))  # fmt: skip
    if theirs[: len(ours)] != ours:
        return f"its parameters are ({', '.join(theirs)}), but the engine calls it with ({', '.join(ours)})"
    found = [ast.unparse(node) for node in function.decorator_list]
    for wanted in (ast.unparse(node) for node in reference.decorator_list):
        is_there = wanted in found or (wanted == "property" and any(name.endswith("property") for name in found))
        if not is_there and wanted != "staticmethod":  # which is put back silently: nothing is called otherwise
            return f'the line "@{wanted}" above it is gone; put it back: the engine relies on it'
    module = exercise.target.split(":")[0]
    for name, what in source.bindings(helpers, module, "yours").items():
        if name in taken and taken[name] != what:
            return f"your helper {name} has the name of something in the engine; leave it out or rename it"
    from_engine: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                modules = [source.origin(node, exercise.module)]
                if any(f"{modules[0]}:{alias.name}" == exercise.symbol for alias in node.names):
                    return "it imports the function that it is to be: an answer has to do the work itself"
            # What a work is made of stands in stubs, too, and holds no answers.
            if foreign := [name for name in modules if name.split(".")[0] in FOREIGN and not name.endswith("_work")]:
                return f"it imports {foreign[0]!r}: an answer has to do the work itself"
            if any(name.split(".")[0] == "nanovllm" for name in modules):
                from_engine |= source.bindings([node], exercise.module).keys()
    has_parent = ("." in exercise.qualname and hasattr(object, exercise.name)) or _has_bases(exercise)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == exercise.name:
            owner = ast.unparse(node.value)
            if owner.split(".")[0] in from_engine or (owner.startswith("super()") and not has_parent):
                return "it calls the function that it replaces"
    return None


def _has_bases(exercise: Exercise) -> bool:
    """Whether the class that the function belongs to has a parent."""
    node = source.find(ast.parse(exercise.module_text()), exercise.qualname.split(".")[0])
    return isinstance(node, ast.ClassDef) and bool(node.bases)


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


def _lost_marker(exercise: Exercise, text: str) -> str:
    """What to say if a file has an answer, but not the line that it is found by; "" if it has none."""
    marker, lines = f"# --- {exercise.id}", text.splitlines()
    known = {f"# --- {id_}" for id_ in manifest.load()}
    comments = [line for line in lines if line.startswith("#") and line.strip() not in known]
    near = difflib.get_close_matches(marker, comments, n=1, cutoff=0.8)
    below = [i for i, line in enumerate(lines, start=1) if re.match(rf"def {exercise.name}\b", line)]
    if near:
        return f'the line "{marker}" is missing; write it in place of "{near[0]}", line {lines.index(near[0]) + 1}'
    said = f'the line "{marker}" is missing; write it above your "def {exercise.name}", line '
    return f"{said}{below[0]}" if below else ""


def _clash(answer: Answer, sections: dict[str, tuple[int, str]]) -> str | None:
    """Two answers of one module may not have different helpers of one name: the later would take the other's place."""
    exercises, mine = manifest.load(), _definitions(sections.get(answer.exercise.id, (0, ""))[1])
    for other in itertools.takewhile(lambda id_: id_ != answer.exercise.id, sections):
        if other in exercises and exercises[other].path == answer.exercise.path:
            theirs = _definitions(sections[other][1])
            # The functions themselves may have one name: they are methods of different classes.
            if names := [n for n in mine if n != answer.exercise.name and theirs.get(n, mine[n]) != mine[n]]:
                return f"your helper {names[0]} is another one than in {other}; give it another name"
    return None


@lru_cache(maxsize=256)
def _definitions(text: str) -> dict[str, str]:
    """Code of the functions and classes of a section."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return {}
    return {node.name: ast.dump(node) for node in body if isinstance(node, source.Definition)}


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
        file, text = f"{path.parent.name}/{path.name}", read(path) if path.is_file() else ""
        sections = split(text)
        if exercise.id not in sections and (problem := _lost_marker(exercise, text)):
            return Answer(exercise, "", file, problem=f"{problem} in {file}")
        line, section = sections.get(exercise.id, (1, exercise.stub()))
        lines = text.splitlines()
        first = next((i for i, line in enumerate(lines) if MARKER.match(line)), len(lines))
        answer = parse(exercise, section, file, line, "\n".join(lines[:first]))
        if not answer.is_stub and path.is_file() and is_utf16(path.read_bytes()):
            return _with(answer, problem=f"Python cannot read {file}: it is not UTF-8; save it as UTF-8")
        return _with(answer, problem=_clash(answer, sections)) if answer.is_usable else answer

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
        return self.recall(exercise.id)

    def note(self, exercise: Exercise, **facts: Any) -> None:
        """Remember facts about an exercise."""
        self.remember(exercise.id, facts)

    def recall(self, topic: str) -> dict[str, Any]:
        """The part of `progress` that is about an exercise, or "guesses", or "staircase"."""
        return self.progress().get(topic, {})

    def remember(self, topic: str, facts: dict[str, Any]) -> None:
        """Add facts to a part of `progress`."""
        progress = self.progress()
        progress[topic] = progress.get(topic, {}) | facts
        path = self.folder / ".progress.json"
        temporary = path.with_suffix(".tmp")
        with contextlib.suppress(OSError):  # a folder that is read-only; this is only a cache
            temporary.write_text(json.dumps(progress, indent=1) + "\n", encoding="utf-8")
            temporary.replace(path)
