"""One engine from two hands: ours, with every function the learner has written put in its place.

The result is a complete package of real files in ``build/``. Its name carries the hash of its content and it
is never rewritten, so it can be imported beside ours, pickled, traced, and started in worker processes.
"""

import ast
import dataclasses
import html
import importlib
import json
import operator
import os
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from . import manifest, source
from .manifest import ROOT, Exercise
from .workspace import Answer, Workspace, digest, parse

KEPT_PACKAGES = 100
KEPT_SECONDS = 3600.0
PACKAGES_VARIABLE = "NANOVLLM_PACKAGES"  # another folder for them than build/: while a class is graded
WIDTH = 88  # of printed text: JupyterLab breaks longer lines in the middle of a word
PARAMETER_CLASSES = ("SamplingParams", "BeamSearchParams")
# How the map of the engine looks.
CELL = "text-align:left;vertical-align:top;padding:0.2em 0.8em 0.2em 0;background:none;line-height:1.9"
BOX = "border-radius:0.3em;padding:0.1em 0.5em;white-space:nowrap;display:inline-block;line-height:1.4"
YOURS = "background:#009E73;border:1px solid #009E73;color:#000"
WON = f"{YOURS};outline:3px solid #E69F00;outline-offset:1px;font-weight:bold"
NEXT = "border:2px dotted #0072B2"
NOT_PASSED = "border:1px dashed #D55E00"
OURS = "border:1px solid #767676;opacity:0.85"


@dataclasses.dataclass(frozen=True)
class Piece:
    """Where some lines of an assembled file come from: a line of the package, and the learner's own."""

    path: str
    first: int
    last: int
    file: str
    line: int
    exercise_id: str = ""
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Package:
    """An assembled package on disk.

    Args:
        name: to import it by.
        folder: the package's own folder, in build/.
        pieces: what of it the learner wrote.
        options: what `LLM` must be called with, so that nothing goes around the learner's functions.
    """

    name: str
    folder: Path
    pieces: tuple[Piece, ...]
    options: dict[str, Any]

    def load(self) -> ModuleType:
        """Import it."""
        if str(self.folder.parent) not in sys.path:
            sys.path.append(str(self.folder.parent))
        importlib.invalidate_caches()
        return importlib.import_module(self.name)

    def module(self, name: str) -> ModuleType:
        """One of its modules, for example "engine.scheduler"."""
        self.load()
        return importlib.import_module(f"{self.name}.{name}")


def build_folder() -> Path:
    """Where packages are put: build/ in the checkout, or a temporary folder if that cannot be written."""
    folder = ROOT / "build"
    try:
        folder.mkdir(exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir()) / "nanovllm-build"
    folder.mkdir(exist_ok=True)
    return folder


def splice(text: str, answers: list[Answer], path: str) -> tuple[str, list[Piece]]:
    """Put answers into the source of a module.

    Helpers, imports and constants go before the class or function that the answer belongs to, those that several
    answers share before the first of them. Decorators come from ours if the answer has none.

    Raises:
        SourceError: the module has no such function.
    """
    tree, lines = ast.parse(text), text.splitlines()
    taken = source.bindings(tree.body, path)
    edits: list[tuple[int, int, list[str], Answer, int, int]] = []
    found = []
    for answer in answers:
        node = source.find(tree, answer.exercise.place)
        outer = source.find(tree, answer.exercise.place.split(".")[0])
        if node is None or outer is None:
            raise source.SourceError(f"{path} has no {answer.exercise.place}")
        found.append((source.span(outer)[0], node, answer))
    shared: set[tuple[str, str, int]] = set()
    for before, node, answer in sorted(found, key=lambda entry: entry[0]):
        above = [child for child in tree.body if (child.end_lineno or 0) < before]
        own = [child for code, _ in answer.extras for child in ast.parse(code).body]
        known = source.bindings([*above, *own], path)
        for code, line in answer.extras:
            if (answer.file, code, line) not in shared:
                shared.add((answer.file, code, line))
                new = source.localize(code, path, taken, known).splitlines()
                edits.append((before, before - 1, [*new, ""], answer, line, 0))
        code, line = answer.function
        code = source.localize(code, path, (), known)
        (function,) = ast.parse(code).body
        assert isinstance(function, source.Definition)
        prefix = " " * node.col_offset
        decorators = [] if function.decorator_list else [f"@{ast.unparse(d)}" for d in node.decorator_list]
        new = [prefix + decorator for decorator in decorators] + source.indent(code, prefix)
        edits.append((*source.span(node), new, answer, line, len(decorators)))
    result: list[str] = []
    pieces, position = [], 0
    for first, last, new, answer, line, added in sorted(edits, key=lambda edit: (edit[0], edit[4])):
        result += lines[position : first - 1]
        is_function = last >= first
        start = len(result) + 1 + added
        result += new
        name = answer.exercise.name if is_function else ""
        pieces.append(Piece(path, start, len(result), answer.file, line, answer.exercise.id, name))
        position = max(position, last)
    return "\n".join([*result, *lines[position:]]) + "\n", pieces


def set_constant(text: str, name: str, value: str) -> str:
    """Replace the value of a module's constant by an expression.

    Raises:
        SourceError: the module has no such constant.
    """
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            lines = text.splitlines()
            lines[node.lineno - 1 : node.end_lineno] = [f"{name} = {value}"] + [""] * (
                (node.end_lineno or node.lineno) - node.lineno
            )
            return "\n".join(lines) + "\n"
    raise source.SourceError(f"no constant {name}")


def _is_ours(answer: Answer) -> bool:
    function = ast.parse(answer.function[0]).body[0]
    assert isinstance(function, source.Definition)
    return not answer.extras and source.same_code(function, answer.exercise.reference_node())


def combine(answers: Iterable[Answer], root: Path = ROOT) -> tuple[dict[str, str], list[Piece], dict[str, Any]]:
    """Text of every file of the package, where the learner's lines are, and the options that keep them in use.

    Files are named as in nanovllm/. Pictures, the server and the model are not among them.
    """
    package = root / "nanovllm"
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    texts = {k: path.read_text(encoding="utf-8") for k, path in files.items() if not k.startswith(("viz/", "serve/"))}
    labs = root / (manifest.LABS.replace(".", "/") + ".py")
    if labs.is_file():
        # With the classes of this package, so that a lever finds those that are in its engine.
        texts["labs.py"] = labs.read_text(encoding="utf-8").replace("\nfrom nanovllm.", "\nfrom .")
    pieces: list[Piece] = []
    options: dict[str, Any] = {}
    by_path: dict[str, list[Answer]] = {}
    for answer in answers:
        if answer.exercise.replaces:  # the file that it goes into does not import what labs.py does
            imports = source.imports_of(answer.exercise.module_text(root), manifest.LABS)
            answer = dataclasses.replace(answer, extras=(*((line, 0) for line in imports), *answer.extras))
        by_path.setdefault(answer.exercise.path, []).append(answer)
    for path, group in by_path.items():
        texts[path], new = splice(texts[path], group, path)
        pieces += new
    for answer in (answer for group in by_path.values() for answer in group if not _is_ours(answer)):
        options = with_options(options, answer.exercise.bypassed_by)
    return texts, pieces, options


def with_options(options: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Both; `more` wins, but levers that either of them turns off stay off."""
    merged, key = {**options, **more}, "disabled_optimizations"
    if key in options and key in more:
        both = (options[key], more[key])
        merged[key] = "all" if "all" in both else sorted({*both[0], *both[1]})
    return merged


def assemble(answers: Iterable[Answer] = (), root: Path = ROOT) -> Package:
    """Write the package that has these answers and is ours in everything else."""
    texts, pieces, options = combine(answers, root)
    # The model's files are large, and pictures are drawn from traces: both stay where they are.
    bundled = f"Path({str(root / 'nanovllm' / 'assets')!r})"
    texts["model_files.py"] = set_constant(texts["model_files.py"], "BUNDLED_MODELS", bundled)
    texts["viz.py"] = "from nanovllm.viz import *  # noqa: F403\n"
    name = "nanovllm_" + digest(json.dumps(texts, sort_keys=True))
    folder = Path(os.environ.get(PACKAGES_VARIABLE) or build_folder()) / name
    if not folder.is_dir():
        _prune(folder.parent)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
        _write(texts, temporary)
        try:
            temporary.rename(folder)
        except OSError:  # somebody else was faster, with the same content
            shutil.rmtree(temporary)
    os.utime(folder)  # in use: not the next to be cleared away
    return Package(name, folder, tuple(pieces), options)


def _write(texts: dict[str, str], folder: Path) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _prune(folder: Path) -> None:
    """Drop the packages that were made longest ago, but none that may still be in use here or in another process."""

    def last_used(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except FileNotFoundError:  # another process has dropped it
            return 0.0

    times = {path: last_used(path) for path in folder.glob("nanovllm_*")}
    for path in sorted(times, key=times.__getitem__)[:-KEPT_PACKAGES]:
        if times[path] < time.time() - KEPT_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


class Assembled:
    """An engine with some functions exchanged. `LLM`, `SamplingParams` and all other names of nanovllm are its own.

    Args:
        answers: what takes the place of our functions.
        defaults: options of its `LLM`, for those who do not say otherwise.
        load: whether it is to run; without that, it can only be shown.
    """

    def __init__(self, answers: Iterable[Answer], defaults: Mapping[str, Any] | None = None, load: bool = True) -> None:
        self.answers = list(answers)
        self.package = assemble(self.answers)
        if load:
            self._module = self.package.load()
            self.LLM = _accepting(self._module, self.package.options, defaults or {}, self.warning())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_module"], name)

    def warning(self) -> str:
        """What is said with an error of this engine, "" if it has nothing that may be at fault."""
        return ""


class Without(Assembled):
    """Our engine, which lacks one function; what `without(id)` returns."""

    def __init__(self, exercise: Exercise) -> None:
        super().__init__([parse(exercise, source.replace_body(exercise.reference(), exercise.without))])
        does = "which does nothing" if exercise.without == "pass" else "which only does: " + exercise.without
        self.text = f"Our engine without {exercise.place}, {does}"

    def __repr__(self) -> str:
        return self.text


class Mine(Assembled):
    """The learner's engine; what `mine()` returns. Shown, it is a map of who wrote what.

    It grows: what functions that are still ours would bring, it does without (`manifest.features`). What has failed
    its check stays out, so that what is shown works; ours stands in.

    Args:
        open_ids: exercises whose answers are to take part in any case: open ones, and such as have failed.
        options: of its `LLM`, for those who do not say otherwise; they win over what it does without.
        only_passed: leave out what is written and has not passed.
        load: as for any engine.
    """

    def __init__(
        self,
        workspace: Workspace | None = None,
        open_ids: Iterable[str] = (),
        options: Mapping[str, Any] | None = None,
        only_passed: bool = False,
        load: bool = True,
    ) -> None:
        self.workspace = workspace or Workspace()
        opened = {exercise.id for exercise in manifest.select(open_ids)}
        self.missing = [feature for feature in manifest.features() if not all(map(self.has, feature.exercises()))]
        defaults = {key: value for feature in self.missing for key, value in feature.until.items()}
        usable = [answer for answer in self.workspace.answers() if self.has(answer.exercise) or not only_passed]
        self.failed = {answer.exercise.id for answer in usable if self._has_failed(answer)} - opened
        taken = {answer.exercise.id for answer in usable if answer.exercise.splice} - self.failed | opened
        answers = [answer for answer in usable if answer.exercise.id in taken]
        super().__init__(answers, defaults | dict(options or {}), load)

    def _has_failed(self, answer: Answer) -> bool:
        """Whether a function of the engine has failed its check, as it is now."""
        known = self.workspace.known(answer.exercise)
        return answer.exercise.splice and known.get("status") == "failed" and known.get("source") == answer.text

    def warning(self) -> str:
        """Which of the functions in it have not passed."""
        ids = [answer.exercise.id for answer in self.answers if not self.has(answer.exercise)]
        if not ids:
            return ""
        return f'In this engine, {_listed(ids)} {_are(ids)} yours and not passed yet: check("{ids[0]}") says more.'

    def has(self, exercise: Exercise) -> bool:
        """Whether the learner's function has passed."""
        is_usable = self.workspace.answer(exercise).is_usable
        return is_usable and self.workspace.known(exercise).get("status") == "passed"

    def function(self, exercise_id: str) -> Any:
        """The function of an exercise as this engine has it: the learner's, or ours."""
        exercise = manifest.get(exercise_id)
        module = self.package.module(exercise.path.removesuffix(".py").replace("/", "."))
        return operator.attrgetter(exercise.place)(module)

    def owner(self, exercise_id: str) -> str:
        """Whose function of an exercise this engine has: "yours" or "ours"."""
        return "yours" if exercise_id in {answer.exercise.id for answer in self.answers} else "ours"

    def whose(self, *ids: str) -> str:
        """Which functions of some exercises or chapters are the learner's in this engine, in a sentence.

        Raises:
            KeyError: there is no such exercise.
        """
        exercises = manifest.select(ids)
        theirs = {answer.exercise.id for answer in self.answers}
        # What is no part of the engine plays no part in it, and still is theirs.
        theirs |= {answer.exercise.id for answer in self.workspace.answers() if answer.exercise.path == "labs.py"}
        yours = [
            exercise.id[5:] if self.has(exercise) else f"{exercise.id[5:]} (not passed yet)"
            for exercise in exercises
            if exercise.id in theirs
        ]
        ours = [
            f"{exercise.id[5:]} (yours has failed)" if exercise.id in self.failed else exercise.id[5:]
            for exercise in exercises
            if exercise.id not in theirs
        ]
        if not yours:
            text = f"Nothing here is yours yet: {_listed(ours)} {_are(ours)} ours, and so is what you see."
        else:
            text = f"Yours: {_listed(yours)}." + (f" Still ours: {_listed(ours)}." if ours else "")
        return textwrap.fill(text, WIDTH)

    def export(self, path: str | Path) -> Path:
        """Write a package of its own: the learner's engine with the model, to keep and to import anywhere.

        Args:
            path: the package's folder; its last part is the name to import.

        Raises:
            FileExistsError: there is something already.
        """
        target = Path(path)
        shutil.copytree(ROOT / "nanovllm", target, ignore=shutil.ignore_patterns("__pycache__"))
        texts, _, _ = combine(self.answers)
        _write({name: text for name, text in texts.items() if name != "labs.py"}, target)
        return target

    def rows(self) -> list[tuple[str, str, str]]:
        """Exercise, the function's place in the engine, and whose it is, for every function of the course."""
        return [(e.id, f"{e.path}: {e.place}", self._whose(e)) for e in _spliced()]

    def _whose(self, exercise: Exercise) -> str:
        if self.owner(exercise.id) == "yours":
            passed = self.workspace.known(exercise).get("status") == "passed"
            return "yours" if passed else "yours, not passed yet"
        if exercise.id in self.failed:
            return "ours (yours has failed)"
        return "ours (yours cannot be used)" if self.workspace.answer(exercise).problem else "ours"

    def __repr__(self) -> str:
        rows = self.rows()
        width = max((len(place) for _, place, _ in rows), default=0)
        lines = [f"{'*' if whose.startswith('yours') else ' '} {place:{width}}  {whose}" for _, place, whose in rows]
        return "\n".join([f"Your engine: {self._progress()}", *lines, *self._grows()])

    def _progress(self) -> str:
        """How many functions of the engine are theirs; and exercises, of which some are beside the engine."""
        num_theirs = sum(answer.exercise.splice for answer in self.answers)
        exercises = manifest.load().values()
        return (
            f"{num_theirs} of {len(_spliced())} functions are yours; {sum(map(self.has, exercises))} of all "
            f"{len(exercises)} exercises passed"
        )

    def _grows(self) -> list[str]:
        """What stays out, and what it does without as yet, a line each."""
        found = []
        if self.failed:
            ids = sorted(self.failed)
            names = ", ".join(f'"{exercise_id}"' for exercise_id in ids)
            found.append(f"{_listed(ids)} failed the last check, so ours stands in; mine({names}) takes yours.")
        for feature in self.missing:
            left = [exercise.id for exercise in feature.exercises() if not self.has(exercise)]
            found.append(f"Until {_listed(left)} {_are(left)} passed it does without {feature.name}: {feature.says}.")
        return found

    def _repr_html_(self) -> str:
        return self.map()

    def map(self, won: str = "", following: str = "") -> str:
        """The map: a row a file, a box a function; the learner's are filled, and marked for those who see no color.

        Args:
            won: the exercise that has just passed; its box is lit, and rows without it are folded.
            following: the exercise that comes next.
        """
        styles = {"yours": ("✓ ", YOURS), "yours, not passed yet": ("… ", NOT_PASSED)}
        styles["ours (yours has failed)"] = ("✗ ", NOT_PASSED)
        shown = styles | {"just passed": ("★ ", WON), "next": ("next: ", NEXT)}

        def box(text: str, whose: str, title: str = "") -> str:
            mark, style = shown.get(whose, ("", OURS))
            hover = f" title='{html.escape(title)}'" if title else ""
            return f"<span{hover} style='{BOX};{style}'>{mark}{html.escape(text)}</span>"

        boxes: dict[str, list[str]] = {}
        lit = set()
        for exercise_id, place, whose in self.rows():
            path, _, name = place.partition(": ")
            whose = {won: "just passed", following: "next"}.get(exercise_id, whose)
            lit |= {path} if exercise_id in (won, following) else set()
            boxes.setdefault(path, []).append(box(name, whose, f"{exercise_id}: {whose}"))
        rows = {
            path: f"<tr style='background:none'><td style='{CELL};white-space:nowrap'>{html.escape(path)}</td>"
            f"<td style='{CELL}'>{' '.join(functions)}</td></tr>"
            for path, functions in boxes.items()
        }
        near, far = ("".join(row for path, row in rows.items() if (path in lit) == is_lit) for is_lit in (True, False))
        head = f"<b>Your engine:</b> {self._progress()}"
        key = " ".join(box(whose, whose) for whose in (*styles, "ours"))
        grows = "".join(f"<div>{html.escape(line)}</div>" for line in self._grows())
        if not won:
            return f"<div>{head} &nbsp; {key}<table style='font-size:1em'>{far}</table>{grows}</div>"
        rest = f"<details><summary>all of it</summary>{key}<table style='font-size:1em'>{far}</table></details>"
        return f"<div>{head}<table style='font-size:1em'>{near}</table>{rest}</div>"


def _spliced() -> list[Exercise]:
    return [exercise for exercise in manifest.load().values() if exercise.splice]


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _accepting(module: ModuleType, options: dict[str, Any], defaults: Mapping[str, Any], warning: str) -> type:
    """The package's `LLM`, made to take parameters of another copy of the package, by their fields.

    `options` win over what the caller asks for: they keep the learner's functions in use. `defaults` do not. The
    warning, if there is one, is told with every error: what is at fault may be far from where it shows.
    """

    def adopt(value: Any) -> Any:
        if isinstance(value, list | tuple) and value and dataclasses.is_dataclass(value[0]):
            return [adopt(item) for item in value]
        name = type(value).__name__
        if name in PARAMETER_CLASSES and not isinstance(value, getattr(module, name)):
            return getattr(module, name)(**{f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
        return value

    def adopting(name: str) -> Any:
        method = getattr(module.LLM, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *map(adopt, args), **{key: adopt(value) for key, value in kwargs.items()})
            except Exception as error:
                if warning and warning not in getattr(error, "__notes__", ()):
                    error.add_note(warning)
                raise

        call.__name__, call.__doc__ = name, method.__doc__
        return call

    def start(self: Any, model: Any, **kwargs: Any) -> None:
        module.LLM.__init__(self, model, **with_options({**defaults, **kwargs}, options))

    names = ("generate", "chat", "stream", "add_request", "beam_search", "step")
    body = {"__init__": start, "__doc__": module.LLM.__doc__, "__module__": module.__name__}
    return type("LLM", (module.LLM,), body | {name: adopting(name) for name in names})
