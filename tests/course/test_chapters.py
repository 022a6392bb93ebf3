"""Every chapter runs from its first cell to its last, as it does for somebody who has just begun."""

import dataclasses
import re

import nbformat
import pytest

from exercises.kit import manifest, notebooks
from nanovllm import SamplingParams
from nanovllm.config import Config

from ..engine.conftest import in_turn

SOURCES = notebooks.sources()
EXERCISES = manifest.load().values()
each_chapter = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
# A run takes a minute or two: a chapter runs in one of two ways, or, with `--thorough`, in both.
every_other, every_second = (
    pytest.mark.parametrize("source", in_turn(SOURCES, turn, 2), ids=lambda source: source.stem) for turn in (0, 1)
)


def chapter_of(source):
    return f"ch{source.stem[:2]}"


def code_of(source):
    return [cell.source for cell in notebooks.derive(source).cells if cell.cell_type == "code"]


def calls(cells, name):
    """First arguments of all calls of a function, each with the number of its cell."""
    pattern = re.compile(rf"""(?<![\w.]){name}\(\s*["']([^"']+)["']""")
    return [
        (i, match[1])
        for i, cell in enumerate(cells)
        if cell.cell_type == "code"
        for match in pattern.finditer(cell.source)
    ]


@pytest.fixture
def quick_staircase(tmp_path_factory, monkeypatch):
    """Kernels measure the learner's engine once, not three times: a good part of what a chapter takes."""
    folder = tmp_path_factory.mktemp("ipython")
    startup = folder / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "one_round.py").write_text("from exercises.kit import staircase\n\nstaircase.ROUNDS = 1\n")
    monkeypatch.setenv("IPYTHONDIR", str(folder))


def test_there_are_chapters():
    assert SOURCES[0].stem == "01_project_overview"


@each_chapter
def test_torch_is_loaded_by_the_engine(source):
    """Which tells torch, before it is loaded, how its threads wait; on a busy laptop that is a factor."""
    lines = [line for cell in notebooks.derive(source).cells for line in cell.source.splitlines()]
    loads = re.compile(r"(%load_ext exercises|(import|from) (nanovllm|torch|transformers)\b)")
    first = next(line for line in lines if loads.match(line))
    assert "exercises" in first or "nanovllm" in first


@pytest.mark.slow
@pytest.mark.timeout(500)
@every_other
def test_chapter_runs_in_any_folder(source, tmp_path, quick_staircase):
    notebook = notebooks.derive(source)
    notebooks.execute(notebook, tmp_path)
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 4


@pytest.mark.slow
@pytest.mark.timeout(500)
@every_second
def test_chapter_runs_as_solved_up_to_its_own_exercises(source, tmp_path, quick_staircase):
    chapter = chapter_of(source)
    solved = [exercise for exercise in EXERCISES if exercise.chapter <= chapter]
    notebook = notebooks.derive(source)
    notebooks.execute(notebook, tmp_path, answers={exercise.id: exercise.reference() for exercise in solved})
    shown = [str(cell.outputs) for cell in notebook.cells if cell.source.startswith(f"%%exercise {chapter}.")]
    assert len(shown) == sum(exercise.chapter == chapter for exercise in solved)
    assert all(": passed" in text for text in shown), shown


@each_chapter
def test_chapter_has_the_parts_that_every_chapter_has(source):
    headings = [
        line.lstrip("# ").strip()
        for cell in notebooks.derive(source).cells
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if line.startswith("#")
    ]
    for part in ["Where we are", "Predict", "Change it", "Recap", "Explain it aloud", "Read further"]:
        assert part in headings


@each_chapter
def test_cells_are_short(source):
    for cell in notebooks.derive(source).cells:
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= 25, cell.source
        elif "```" not in cell.source:
            unfolded = re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL)
            prose = [line for line in unfolded.splitlines() if not line.startswith("|")]
            assert len(" ".join(prose).split()) <= 130, cell.source


@each_chapter
def test_a_chapter_has_at_most_70_cells(source):
    assert len(notebooks.derive(source).cells) <= 70


@each_chapter
def test_every_prediction_is_revealed_once_and_later(source):
    cells = notebooks.derive(source).cells
    asked, revealed = calls(cells, "predict"), calls(cells, "reveal")
    names = [name for _, name in asked]
    assert len(set(names)) == len(names) and sorted(names) == sorted(name for _, name in revealed)
    reveals = {name: i for i, name in revealed}
    for i, name in asked:
        text = cells[i].source
        assert reveals[name] > i or (reveals[name] == i and text.index("predict(") < text.rindex("reveal(")), name
    assert "my_guess" not in "\n".join(cell.source for cell in cells)


@pytest.mark.slow  # though quick: in a learner's checkout the outputs are theirs
@each_chapter
def test_a_committed_notebook_shows_nothing_from_a_prediction_to_its_reveal(source):
    cells = nbformat.read(notebooks.ROOT / "notebooks" / f"{source.stem}.ipynb", as_version=4).cells
    reveals = {name: i for i, name in calls(cells, "reveal")}
    for first, name in calls(cells, "predict"):
        for cell in cells[first : reveals[name] + 1]:
            assert not cell.get("outputs"), f"{name} is answered below\n{cell.source}"
    assert any(cell.get("outputs") for cell in cells)


@each_chapter
def test_a_function_beside_the_engine_is_asked_for_by_name(source):
    """`mine()` leaves it out, so that ours would run where the cell says that it is the learner's."""
    beside = {exercise.id for exercise in EXERCISES if not exercise.splice}
    for code in code_of(source):
        for exercise_id in re.findall(r'me\.(?:function|owner)\("([^"]+)"\)', code):
            assert exercise_id not in beside or f'mine("{exercise_id}")' in code, code


@each_chapter
def test_code_of_pictures_is_elsewhere(source):
    """More than six lines of it are a function of notebooks/figures.py."""
    for code in code_of(source):
        drawing = [line for line in code.splitlines() if re.search(r"\b(axis|plt|figure)\.|\baxes\b", line)]
        assert len(drawing) <= 6, code


@each_chapter
def test_shown_code_of_the_package_fits_100_columns(source):
    for cell in notebooks.derive(source).cells:
        shown = (
            [cell.source]
            if cell.source.startswith("%%exercise")
            else re.findall(r"```python\n(.*?)```", cell.source, re.S)
        )
        assert [line for code in shown for line in code.splitlines() if len(line) > 100] == []


@each_chapter
def test_a_chapter_has_an_open_exercise_and_says_how_far_one_is(source):
    kinds = [exercise.kind for exercise in EXERCISES if exercise.chapter == chapter_of(source)]
    assert "open" in kinds or len(kinds) == 1
    code = "\n".join(code_of(source))
    assert len(re.findall(r"(?<![\w.])staircase\(", code)) == 1
    assert len(re.findall(r"\bwhose\(", code)) >= 1


@pytest.mark.parametrize("options", [Config, SamplingParams], ids=lambda options: options.__name__)
def test_the_tables_of_chapter_03_name_every_field_with_its_default(options):
    (source,) = (source for source in SOURCES if source.stem.startswith("03_"))
    text = "\n".join(cell.source for cell in notebooks.derive(source).cells)
    for field in dataclasses.fields(options):
        if field.init:
            default = repr(field.default).replace("'", '"') if field.default is not dataclasses.MISSING else ""
            assert f"| `{field.name}` | `{default}` |" in text or (not default and f"| `{field.name}` | |" in text)
