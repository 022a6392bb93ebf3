"""Every chapter runs from its first cell to its last, as it does for somebody who has just begun."""

import dataclasses
import re

import pytest

from exercises.kit import manifest, notebooks
from nanovllm import SamplingParams
from nanovllm.config import Config

SOURCES = notebooks.sources()


def test_there_are_chapters():
    assert SOURCES[0].stem == "01_project_overview"


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_torch_is_loaded_by_the_engine(source):
    """Which tells torch, before it is loaded, how its threads wait; on a busy laptop that is a factor."""
    lines = [line for cell in notebooks.derive(source).cells for line in cell.source.splitlines()]
    loads = re.compile(r"(%load_ext exercises|(import|from) (nanovllm|torch|transformers)\b)")
    first = next(line for line in lines if loads.match(line))
    assert "exercises" in first or "nanovllm" in first


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_chapter_runs_in_any_folder(source, tmp_path):
    notebook = notebooks.derive(source)
    notebooks.execute(notebook, tmp_path)
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 4


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "source", [s for s in SOURCES if "{{exercise" in s.read_text(encoding="utf-8")], ids=lambda source: source.stem
)
def test_chapter_runs_as_solved_up_to_its_own_exercises(source, tmp_path):
    chapter = f"ch{source.stem[:2]}"
    solved = [exercise for exercise in manifest.load().values() if exercise.chapter <= chapter]
    notebook = notebooks.derive(source)
    notebooks.execute(notebook, tmp_path, answers={exercise.id: exercise.reference() for exercise in solved})
    shown = [str(cell.outputs) for cell in notebook.cells if cell.source.startswith(f"%%exercise {chapter}.")]
    assert len(shown) == sum(exercise.chapter == chapter for exercise in solved)
    assert all(": passed" in text for text in shown), shown


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
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


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_cells_are_short(source):
    for cell in notebooks.derive(source).cells:
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= 25, cell.source
        elif "```" not in cell.source:
            prose = [line for line in cell.source.splitlines() if not line.startswith("|")]
            assert len(" ".join(prose).split()) <= 130, cell.source


@pytest.mark.parametrize("options", [Config, SamplingParams], ids=lambda options: options.__name__)
def test_the_tables_of_chapter_03_name_every_field_with_its_default(options):
    (source,) = (source for source in SOURCES if source.stem.startswith("03_"))
    text = "\n".join(cell.source for cell in notebooks.derive(source).cells)
    for field in dataclasses.fields(options):
        if field.init:
            default = repr(field.default).replace("'", '"') if field.default is not dataclasses.MISSING else ""
            assert f"| `{field.name}` | `{default}` |" in text or (not default and f"| `{field.name}` | |" in text)
