"""A new learner in chapter 5: runs it, makes a mistake, takes a hint, solves an exercise, and steps a picture."""

import re
import shutil

import pytest

from exercises.kit import checks, manifest
from exercises.kit.workspace import FOLDER_VARIABLE

from .conftest import expect, open_notebook, open_page, run_all, run_lab, take_screenshot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

CHAPTER = "05_block_manager"
EXERCISE = "ch05.deallocate"
LONG = 300_000  # milliseconds: two cores, and others at work on them
# What a course is made of. A learner's answers are no part of it.
PARTS = ["exercises", "nanovllm", "notebooks", "tests/exercises", "tests/wrong_answers", "pyproject.toml"]
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".attempts", ".progress.json", ".ipynb_checkpoints", "ch[0-9]*_*.py")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A copy of the checkout in which nobody has written anything."""
    root = tmp_path_factory.mktemp("course")
    for part in PARTS:
        source = manifest.ROOT / part
        if source.is_file():
            shutil.copy(source, root / part)
        else:  # the graders are named like the answers
            shutil.copytree(source, root / part, ignore=LEFT_OUT if part == "exercises" else None)
    return root


@pytest.fixture(scope="module")
def page(browser, course, tmp_path_factory):
    """The chapter, open in JupyterLab, with a kernel that takes the copy for the installed course."""
    with (
        pytest.MonkeyPatch.context() as environment,
        open_page(browser) as page,
    ):
        environment.delenv(FOLDER_VARIABLE, raising=False)
        home = tmp_path_factory.mktemp("learner")
        with run_lab(home, course, PYTHONPATH=str(course), HF_HUB_OFFLINE="1") as lab:
            open_notebook(page, lab, f"notebooks/{CHAPTER}.ipynb")
            yield page


def cells(page):
    """Source and outputs of all cells, as the notebook has them now."""
    return page.evaluate(
        """() => window.jupyterapp.shell.currentWidget.content.widgets.map(cell => ({
            source: cell.model.sharedModel.source, outputs: cell.model.outputs?.toJSON() ?? [] }))"""
    )


def go_to(page, start):
    """Bring the cell that begins with `start` into view, as the active one; cells far away are not even drawn."""
    index = next(i for i, cell in enumerate(cells(page)) if cell["source"].startswith(start))
    page.evaluate(
        """async (index) => { const notebook = window.jupyterapp.shell.currentWidget.content;
        notebook.activeCellIndex = index; notebook.deselectAll();
        await notebook.scrollToItem(index, 'start'); await notebook.widgets[index].ready; }""",
        index,
    )
    cell = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell.jp-mod-active")
    expect(cell).to_have_count(1)
    return cell


def type_and_run(page, cell, code):
    """Replace what is in a cell, as somebody does who types, and run it."""
    editor = cell.locator(".cm-content")
    editor.click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(code)
    expect(editor).to_contain_text(code.strip().splitlines()[-1].strip())
    page.keyboard.press("Shift+Enter")


def run_below(page, start, code):
    """Write a new cell below another one and run it; returns the new one."""
    go_to(page, start)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:insert-cell-below')")
    type_and_run(page, page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell.jp-mod-active"), code)
    return go_to(page, code)


def outputs(cell):
    return cell.locator(".jp-OutputArea-output")


def answer(code):
    return f"%%exercise {EXERCISE}\n{code}"


def test_a_new_learner_runs_the_chapter_from_top_to_bottom(page):
    run_all(page)
    found = cells(page)
    assert [cell["source"] for cell in found for out in cell["outputs"] if out["output_type"] == "error"] == []
    for exercise_id, exercise in manifest.load().items():
        if exercise.chapter == EXERCISE.split(".")[0]:
            (cell,) = [cell for cell in found if cell["source"].startswith(f"%%exercise {exercise_id}")]
            assert "not written yet" in str(cell["outputs"])
    expect(outputs(go_to(page, f"%%exercise {EXERCISE}"))).to_contain_text("not written yet", timeout=LONG)


def test_the_block_table_is_stepped_by_keyboard(page):
    cell = go_to(page, "tiny = LLM")
    box = outputs(cell).locator(".nv-player").first
    expect(box.locator(".nv-bar")).to_have_count(1, timeout=LONG)
    box.get_by_role("slider").focus()
    page.keyboard.press("Home")
    expect(box).to_have_attribute("data-step", "0", timeout=LONG)
    expect(box.locator('g[data-b="0"]')).to_have_attribute("data-ref", "0")
    page.keyboard.press("ArrowRight")
    expect(box).to_have_attribute("data-step", "1", timeout=LONG)
    expect(box.locator('g[data-b="0"]')).to_have_attribute("data-ref", "1")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(box).to_have_attribute("data-step", "3", timeout=LONG)
    expect(box.locator('g[data-b="0"]')).to_have_attribute("data-owners", "A B")
    expect(box.locator(".nv-caption")).to_contain_text("B finds 8 tokens in the cache")
    take_screenshot(page, "chapter_block_table_light")


def test_a_mistake_is_diagnosed(page, course):
    wrong = next(w for w in checks.wrong_answers(manifest.get(EXERCISE)) if w.name == "head_first")
    cell = go_to(page, f"%%exercise {EXERCISE}")
    type_and_run(page, cell, answer(wrong.first.text))
    cell = go_to(page, f"%%exercise {EXERCISE}")
    expect(outputs(cell)).to_contain_text("not right yet", timeout=LONG)
    expect(outputs(cell)).to_contain_text(wrong.diagnosis)
    pools = outputs(cell).locator(".nv-pools svg")
    expect(pools).to_have_count(2)
    expect(pools.nth(0)).to_contain_text("Expected")
    expect(pools.nth(1)).to_contain_text("≠ free, the next one first")
    expect(outputs(cell).locator(".nv-pools .nv-footer")).to_contain_text("Not the same: the free blocks.")
    take_screenshot(page, "chapter_diagnosis_light")
    assert "for block_id in seq.block_table:" in (course / "exercises" / f"ch{CHAPTER}.py").read_text()


def test_a_hint_is_given(page):
    cell = run_below(page, f"%%exercise {EXERCISE}", f'hint("{EXERCISE}")')
    expect(outputs(cell)).to_contain_text(manifest.get(EXERCISE).hints[0], timeout=LONG)
    expect(outputs(cell)).not_to_contain_text(manifest.get(EXERCISE).hints[1])
    take_screenshot(page, "chapter_hint_light")


def test_the_right_answer_passes_and_is_plugged_in(page, course):
    right = (manifest.ROOT / "tests" / "course" / "right_answers" / f"{EXERCISE}.py").read_text()
    type_and_run(page, go_to(page, f"%%exercise {EXERCISE}"), answer(right))
    cell = go_to(page, f"%%exercise {EXERCISE}")
    expect(outputs(cell)).to_contain_text("Plugged into the engine, the text is the same as ours", timeout=LONG)
    expect(outputs(cell)).to_contain_text(re.compile(r"✓ .*: passed"))
    expect(outputs(cell).locator("span[title$=': just passed']")).to_have_text(
        "★ BlockManager.deallocate", timeout=LONG
    )
    expect(outputs(cell).locator("span[title$=': next']").first).to_contain_text("next: ")
    expect(outputs(cell).locator("details")).not_to_have_attribute("open", "")
    take_screenshot(page, "chapter_passed_light")
    assert right.strip() in (course / "exercises" / f"ch{CHAPTER}.py").read_text()


def test_the_map_shows_it_as_theirs(page):
    cell = run_below(page, f'hint("{EXERCISE}")', "mine()")
    boxes = outputs(cell).locator("span[title$=': yours']")
    expect(boxes).to_have_text(["✓ BlockManager.deallocate"], timeout=LONG)
    take_screenshot(page, "chapter_map_light")


def test_the_engine_with_it_is_drawn(page):
    """The picture of their own engine's run, made anew after the answer has passed."""
    with_picture = next(c["source"] for c in cells(page) if "mine(" in c["source"] and "BlockTable(" in c["source"])
    cell = go_to(page, with_picture)
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    cell = go_to(page, with_picture)
    expect(outputs(cell).locator(".nv-caption").last).to_contain_text("tokens in the cache", timeout=LONG)
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    take_screenshot(page, "chapter_own_engine_dark")


def test_nothing_went_wrong_in_the_browser(page):
    assert page.refused == []
    assert [error for error in page.errors if not re.search(r"favicon|404|Failed to load resource", error)] == []
