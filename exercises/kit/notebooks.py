"""Build ``notebooks/*.ipynb`` from ``notebooks/src/*.py``, always in this direction.

A source is a Python file in jupytext's percent format. The notebook built from it is executed, so that it
shows real output wherever it is read, and carries a fingerprint of its cells, so that an edit made in the
notebook itself is noticed and never overwritten.

A line ``# {{source nanovllm/engine/scheduler.py:Scheduler.schedule}}`` stands for the code of that function
or class, which is cut out of the package at build time. No engine code is ever typed into a chapter.
A line ``# {{exercise ch05.deallocate}}`` stands for the box of an exercise and the cell to write it in.

One-way derivation follows scikit-learn's course and nbgrader's experience: two-way sync loses work.
"""

import ast
import difflib
import hashlib
import itertools
import os
import re
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

from . import manifest, stubs
from .manifest import ROOT
from .source import SourceError as NotebookError
from .source import symbol_source
from .workspace import FOLDER_VARIABLE, Workspace

CELL_TIMEOUT = 300  # seconds; a chapter's slowest cell takes a few
KEPT_OUTPUT_TYPES = ("image/png", "text/plain")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
# A chapter that tries to download something fails at once instead of hanging.
KERNEL_ENVIRONMENT = {"HF_HUB_OFFLINE": "1"}
ANSI_COLOR = re.compile(r"\x1b\[[\d;]*m")
SOURCE_DIRECTIVE = re.compile(r"^(?:# ?)?\{\{source (?P<path>[^\s:}]+):(?P<symbol>[\w.]+)\}\}$")
EXERCISE_DIRECTIVE = re.compile(r"^(?:# ?)?\{\{exercise (?P<id>[\w.]+)\}\}$")
EXERCISE_CELL = re.compile(r"^%%exercise +(?P<id>[\w.]+)")
FIGURE = re.compile(r"\bfigures\.(\w+)\(")
PREDICT, REVEAL = (re.compile(rf"\b{word}\(\s*[\"']([^\"']+)[\"']") for word in ("predict", "reveal"))
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}


def expand_directives(text: str, root: Path) -> tuple[str, bool]:
    """Replace the source directives in a cell by the code they name, as Markdown; say if there was any."""
    lines, found = [], False
    for line in text.splitlines():
        match = SOURCE_DIRECTIVE.match(line.strip())
        if match is None:
            lines.append(line)
            continue
        found = True
        path, symbol = match["path"], match["symbol"]
        code, first = symbol_source(root, path, symbol)
        lines += [f"[`{path}:{first}`](../{path}) `{symbol}`", "", "```python", *code.splitlines(), "```"]
    return "\n".join(lines), found


def _build_cells(cell: NotebookNode, name: str, cell_id: str, root: Path) -> list[NotebookNode]:
    if match := EXERCISE_DIRECTIVE.match(cell.source.strip()):
        return _exercise_cells(match["id"], name, root)
    text, expanded = expand_directives(cell.source, root)
    code_left = any(not SOURCE_DIRECTIVE.match(line.strip()) for line in cell.source.splitlines() if line.strip())
    if expanded and cell.cell_type == "code" and code_left:
        raise NotebookError(f"{name}: a source directive shares a code cell with other code")
    make = nbformat.v4.new_code_cell
    if expanded or cell.cell_type == "markdown":
        make = nbformat.v4.new_markdown_cell
    built = make(text, id=cell_id)
    if "tags" in cell.metadata:
        built.metadata["tags"] = cell.metadata["tags"]
    return [built]


def _exercise_cells(exercise_id: str, name: str, root: Path) -> list[NotebookNode]:
    """The box that says what is to be done, and the cell with the stub."""
    exercise = manifest.load(root).get(exercise_id)
    if exercise is None:
        raise NotebookError(f"{name}: there is no exercise {exercise_id}")
    kind = {"": f"Difficulty {exercise.difficulty} of 3", "warm-up": "A warm-up", "open": "Open"}[exercise.kind]
    before = f" Better after {', '.join(f'`{needed}`' for needed in exercise.needs)}." if exercise.needs else ""
    box = (
        f"### Exercise `{exercise.id}`: {exercise.title}\n\n"
        f"*{kind}, about {exercise.minutes} minutes.*{before} Run the cell to check it;"
        f' stuck: `hint("{exercise.id}")`. Your code is kept in `exercises/{exercise.file_name}`.'
    )
    ids = [hashlib.sha256(f"{exercise.id}/{part}".encode()).hexdigest()[:12] for part in ("box", "cell")]
    code = f"%%exercise {exercise.id}\n{exercise.stub(root)}"
    return [nbformat.v4.new_markdown_cell(box, id=ids[0]), nbformat.v4.new_code_cell(code, id=ids[1])]


def derive(source: Path, root: Path = ROOT) -> NotebookNode:
    """The notebook that a source stands for, without outputs.

    Cell ids come from the chapter's name and the cell's position, or from its ``role="..."`` where the
    percent marker gives one: the same source always gives the same notebook, byte for byte.

    Raises:
        NotebookError: a directive names nothing or is malformed, or a role occurs twice.
    """
    parsed = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    cells, taken = [], set()
    for index, cell in enumerate(parsed.cells):
        role = str(cell.metadata.get("role", index))
        if role in taken:
            raise NotebookError(f"{source.name}: the role {role!r} is given to two cells")
        taken.add(role)
        cell_id = hashlib.sha256(f"{source.stem}/{role}".encode()).hexdigest()[:12]
        try:
            cells += _build_cells(cell, source.name, cell_id, root)
        except NotebookError as error:
            raise NotebookError(f"{source.name}: {error}") from None
        for kind in ("source", "exercise"):
            if f"{{{{{kind}" in cells[-1].source:
                raise NotebookError(f"{source.name}: cell {index + 1} has a malformed {kind} directive")
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=NOTEBOOK_METADATA)
    try:
        cells_of_predictions(notebook)
    except NotebookError as error:
        raise NotebookError(f"{source.name}: {error}") from None
    notebook.nbformat_minor = 5
    notebook.metadata["nanovllm"] = {"source": f"src/{source.name}", "fingerprint": fingerprint(notebook)}
    return notebook


def cells_of_predictions(notebook: NotebookNode) -> set[int]:
    """The cells from each `predict("name", ...)` to its `reveal("name", ...)`: what they show would answer it.

    Raises:
        NotebookError: a prediction has no reveal after it, or more than one, or is there twice; or the reverse.
    """
    places: dict[str, list[tuple[int, str]]] = {}
    for index, cell in enumerate(notebook.cells):
        for kind, pattern in (("predict", PREDICT), ("reveal", REVEAL)):
            for name in pattern.findall(cell.source) if cell.cell_type == "code" else []:
                places.setdefault(name, []).append((index, kind))
    hidden: set[int] = set()
    for name, found in places.items():
        if [kind for _, kind in found] != ["predict", "reveal"]:
            raise NotebookError(f"{name!r} needs one predict and, after it, one reveal; there is {found}")
        hidden.update(range(found[0][0], found[1][0] + 1))
    return hidden


def fingerprint(notebook: NotebookNode) -> str:
    """A hash of what an author writes: types, ids and text of the cells, not outputs or metadata."""
    text = "\0".join(f"{cell.cell_type}\0{cell.get('id', '')}\0{cell.source}" for cell in notebook.cells)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def recorded_fingerprint(notebook: NotebookNode) -> str | None:
    """The fingerprint that the notebook was built with, or None if it was not built here."""
    return notebook.metadata.get("nanovllm", {}).get("fingerprint")


def edited_by_hand(notebook: NotebookNode) -> bool:
    """Whether somebody changed the cells of a built notebook."""
    return recorded_fingerprint(notebook) != fingerprint(notebook)


def difference(old: NotebookNode, new: NotebookNode, name: str) -> str:
    """A unified diff of the cells of two notebooks, outputs left out."""

    def lines(notebook: NotebookNode) -> list[str]:
        return [
            line
            for cell in notebook.cells
            for line in (f"# %% {cell.cell_type} {cell.get('id', '')}", *cell.source.splitlines())
        ]

    return "\n".join(difflib.unified_diff(lines(old), lines(new), name, f"{name} (derived)", n=2, lineterm=""))


def execute(notebook: NotebookNode, folder: Path, root: Path = ROOT, answers: dict[str, str] | None = None) -> None:
    """Run all cells in a fresh kernel, as a new learner does who chooses "Run All", and keep what they show.

    Args:
        notebook: filled in place; its outputs are cut by :func:`trim_outputs`.
        folder: the kernel's working directory.
        root: a path that must not appear in any output.
        answers: code by exercise, for a learner who has solved something; the files in exercises/ play no part.

    Raises:
        NotebookError: a cell raised, took too long, or printed a path of this machine.
    """
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    with tempfile.TemporaryDirectory() as temporary:
        learner = Path(temporary, "exercises")
        stubs.write_stubs(learner, root)
        for exercise_id, code in (answers or {}).items():
            Workspace(learner).write(manifest.get(exercise_id, root), code)
        try:
            client.execute(env=KERNEL_ENVIRONMENT | os.environ | {FOLDER_VARIABLE: str(learner)})
        except (CellExecutionError, CellTimeoutError) as error:
            raise NotebookError(f"a cell failed\n{ANSI_COLOR.sub('', str(error))}") from None
    trim_outputs(notebook, root)
    for index, cell in enumerate(notebook.cells):
        if str(root) in str(cell.get("outputs", "")):
            raise NotebookError(f"cell {index + 1} prints a path of this machine")


def trim_outputs(notebook: NotebookNode, root: Path = ROOT) -> None:
    """Keep printed text, plain text and PNG pictures, each with words for those who cannot see it; drop the rest.

    A widget says itself what it shows; of another picture it is the first line about the function that draws it.
    """
    about = _about_figures(root)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        cell.outputs = _join_streams([output for output in cell.outputs if _is_kept(output)])
        drawn = itertools.cycle([about[name] for name in FIGURE.findall(cell.source) if name in about] or [""])
        for output in (output for output in cell.outputs if "data" in output):
            output.data = {kind: output.data[kind] for kind in KEPT_OUTPUT_TYPES if kind in output.data}
            text = output.data.get("text/plain", "")
            text = next(drawn) or text if text.startswith("<Figure") else text
            output.metadata = nbformat.from_dict({"image/png": {"alt": text}} if "image/png" in output.data else {})
    notebook.metadata = nbformat.from_dict(NOTEBOOK_METADATA | {"nanovllm": notebook.metadata["nanovllm"]})


def _about_figures(root: Path) -> dict[str, str]:
    """The first line about each function of notebooks/figures.py that draws, which is to say, returns None."""
    path = root / "notebooks" / "figures.py"
    nodes = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    drawing = [node for node in nodes if isinstance(node, ast.FunctionDef) and isinstance(node.returns, ast.Constant)]
    return {node.name: (ast.get_docstring(node) or "").split("\n")[0] for node in drawing}


def hide_answers(notebook: NotebookNode) -> None:
    """Drop all that would answer a prediction, or an open exercise, before the reader has run it."""
    open_ids = [f'"{exercise.id}"' for exercise in manifest.load().values() if exercise.kind == "open"]
    predictions = cells_of_predictions(notebook)
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and (index in predictions or any(name in cell.source for name in open_ids)):
            cell.outputs = []


def _is_kept(output: NotebookNode) -> bool:
    # A widget without a picture of itself, such as a progress bar, leaves nothing worth reading behind.
    data = output.get("data", {})
    return output.get("name") != "stderr" and (WIDGET_VIEW not in data or "image/png" in data)


def _join_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    # How printed text is cut into messages depends on timing; joined, a run gives the same file as the one before.
    joined: list[NotebookNode] = []
    for output in outputs:
        if joined and output.output_type == joined[-1].output_type == "stream":
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _carry_outputs(old: NotebookNode, new: NotebookNode) -> bool:
    """Copy the outputs if no code cell changed: a new paragraph is no reason to run a chapter again."""
    before = [cell for cell in old.cells if cell.cell_type == "code"]
    after = [cell for cell in new.cells if cell.cell_type == "code"]
    if [cell.source for cell in before] != [cell.source for cell in after]:
        return False
    for source, target in zip(before, after, strict=True):
        target.outputs, target.execution_count = source.outputs, source.execution_count
    trim_outputs(new)
    return any(cell.outputs for cell in after)


def sources(root: Path = ROOT, chapters: list[str] | None = None) -> list[Path]:
    """The chapters' sources in order; only those whose name starts with one of ``chapters``, if given."""
    found = sorted((root / "notebooks" / "src").glob("[0-9]*.py"))
    return [source for source in found if not chapters or source.name.startswith(tuple(chapters))]


def sync(root: Path = ROOT, chapters: list[str] | None = None, run_all: bool = False) -> list[str]:
    """Write every notebook that its source has moved on from.

    Args:
        root: the checkout.
        chapters: only sources whose name starts with one of these ("01"); all when None.
        run_all: execute also the notebooks whose code cells did not change, for fresh outputs.

    Returns:
        What could not be done, a message each; empty when all is well.
    """
    problems = _strays(root)
    for source in sources(root, chapters):
        try:
            problems += _sync_one(source, root, run_all)
        except NotebookError as error:
            problems.append(str(error))
    return problems


def _sync_one(source: Path, root: Path, run_all: bool) -> list[str]:
    target = root / "notebooks" / f"{source.stem}.ipynb"
    derived = derive(source, root)
    current = nbformat.read(target, as_version=4) if target.exists() else None
    if current is not None and edited_by_hand(current):
        return [
            f"{target.name} was edited by hand and is left alone. Move the edit into src/{source.name}, or"
            f" delete the notebook, then run this again.\n{difference(current, derived, target.name)}"
        ]
    if run_all or current is None or not _carry_outputs(current, derived):
        print(f"{target.name}: running", flush=True)
        try:
            execute(derived, target.parent, root)
        except NotebookError as error:
            return [f"{source.name}: {error}"]
    hide_answers(derived)
    text = nbformat.writes(derived) + "\n"
    if current is None or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")
        print(f"{target.name}: written")
    return []


def _strays(root: Path) -> list[str]:
    stems = {source.stem for source in sources(root)}
    return [
        f"{path.name} has no source in notebooks/src"
        for path in sorted((root / "notebooks").glob("[0-9]*.ipynb"))
        if path.stem not in stems
    ]


def check(root: Path = ROOT, chapters: list[str] | None = None, allow_edits: bool = False) -> list[str]:
    """Compare the notebooks with what their sources give; outputs do not matter. Writes nothing.

    Args:
        root: the checkout.
        chapters: as for :func:`sync`.
        allow_edits: accept a notebook in which somebody typed (a learner at work), as long as it was built
            from the current source.

    Returns:
        What is out of step, a message with a diff each; empty when all is well.
    """
    problems = _strays(root)
    for source in sources(root, chapters):
        target = root / "notebooks" / f"{source.stem}.ipynb"
        try:
            derived = derive(source, root)
        except NotebookError as error:
            problems.append(str(error))
            continue
        if not target.exists():
            problems.append(f"{target.name} is missing: run python -m exercises sync")
            continue
        current = nbformat.read(target, as_version=4)
        found = recorded_fingerprint(current) if allow_edits else fingerprint(current)
        if found != fingerprint(derived) or recorded_fingerprint(current) != fingerprint(derived):
            problems.append(f"{target.name} is out of step\n{difference(current, derived, target.name)}")
    return problems


def update(workspace: Workspace, root: Path = ROOT) -> list[str]:
    """Rebuild the notebooks that a learner has edited and whose source has moved on, with the learner's answers in.

    The notebook as it was is kept in .attempts/.

    Returns:
        What was done, a line each.
    """
    done = []
    for source in sources(root):
        target = root / "notebooks" / f"{source.stem}.ipynb"
        if not target.exists():
            continue
        current, derived = nbformat.read(target, as_version=4), derive(source, root)
        if not edited_by_hand(current) or recorded_fingerprint(current) == fingerprint(derived):
            continue
        theirs = {match["id"]: cell.source for cell in current.cells if (match := EXERCISE_CELL.match(cell.source))}
        for cell in derived.cells:
            if match := EXERCISE_CELL.match(cell.source):
                cell.source = theirs.get(match["id"], cell.source)
        backup = workspace.folder / ".attempts" / f"{source.stem}-{time.strftime('%Y%m%d-%H%M%S')}.ipynb"
        backup.parent.mkdir(exist_ok=True)
        backup.write_bytes(target.read_bytes())
        nbformat.write(derived, target)
        done.append(f"{target.name}: rebuilt with your answers; as it was, it is in .attempts/{backup.name}")
    return done
