"""Guesses on pictures in a real JupyterLab: each kind by mouse and by keyboard, then beside the truth."""

import re

import pytest

from exercises.kit.workspace import FOLDER_VARIABLE

from .conftest import active_cell, expect, open_notebook, open_page, run_all, run_lab, take_screenshot, write_notebook
from .test_chapter import cells, go_to, outputs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CELLS = [
    "%load_ext exercises\nfrom nanovllm.viz import Bars, Boxes\nblocks = {f'block {i}': 4 for i in range(4)}",
    'predict("choose", "Which block goes first?", picture=Boxes(blocks, owner=0))',
    'predict("order", "In which order do they go?", picture=Boxes(blocks, in_order=True, owner=1))',
    'predict("drag", "How much is found?", unit="%", picture=Bars("LRU", 100, {"a pool without end": 47}, "%"))',
]
TRUTH = {"choose": "block 3", "order": [f"block {i}" for i in (3, 2, 1, 0)], "drag": 38}


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """The questions, open in JupyterLab, after Run All."""
    home, root = tmp_path_factory.mktemp("hands"), tmp_path_factory.mktemp("root")
    write_notebook(root / "hands.ipynb", [*CELLS, *(f'reveal("{name}", {truth!r})' for name, truth in TRUTH.items())])
    learner = str(tmp_path_factory.mktemp("learner"))
    with open_page(browser) as page, run_lab(home, root, **{FOLDER_VARIABLE: learner}) as lab:
        open_notebook(page, lab, "hands.ipynb")
        run_all(page)
        yield page


def picture(page, name):
    """The cell that asks, once its picture listens."""
    cell = go_to(page, f'predict("{name}"')
    expect(cell.locator(".nv-hand[data-awake]")).to_have_count(1)
    return cell


def revealed(page, name):
    """The cell with the truth, run again."""
    go_to(page, f'reveal("{name}"')
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-cell')")
    return outputs(go_to(page, f'reveal("{name}"'))


def test_unanswered_they_are_no_error(page):
    expect(outputs(go_to(page, 'reveal("drag"'))).to_contain_text("You made no guess this time")
    assert "error" not in {out["output_type"] for cell in cells(page) for out in cell["outputs"]}


def test_a_block_is_clicked_and_another_one_chosen_by_keyboard(page):
    cell = picture(page, "choose")
    cell.locator('[data-choice="block 0"]').click()
    expect(cell).to_contain_text("Your guess: block 0")
    take_screenshot(page, "hands_choose_light")
    expect(cell.locator("[data-chosen]")).to_have_attribute("data-choice", "block 0")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(cell.get_by_role("radio", name="block 2")).to_be_focused()
    page.keyboard.press("Enter")
    expect(cell).to_contain_text("Your guess: block 2")
    expect(cell.locator('[aria-checked="true"]')).to_have_attribute("data-choice", "block 2")
    expect(revealed(page, "choose")).to_contain_text("You said “block 2”. The answer is “block 3”.")
    expect(revealed(page, "choose").locator('[data-choice="block 3"]')).to_contain_text("✓ it is")


def test_blocks_are_put_in_order_by_clicks_and_by_keyboard(page):
    cell = picture(page, "order")
    for n in (3, 1):
        cell.locator(f'[data-choice="block {n}"]').click()
    expect(cell).to_contain_text("2 of 4: all of them are to be put in order.")
    cell.locator('[data-choice="block 1"]').click()  # taken back
    cell.locator('[data-choice="block 2"]').click()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    expect(cell).to_contain_text("Your guess: block 3, block 2, block 1, block 0")
    expect(cell.locator('[data-choice="block 1"]')).to_have_attribute("aria-label", "block 1, yours: no. 3")
    expect(revealed(page, "order")).to_contain_text("and so it is")
    expect(revealed(page, "order").locator('[data-choice="block 0"]')).to_contain_text("is: no. 4 ✓")


def test_a_bar_is_dragged_and_moved_by_keyboard(page):
    cell = picture(page, "drag")
    bar = cell.get_by_role("slider")
    knob, whole = cell.locator("[data-knob] rect").bounding_box(), bar.bounding_box()
    page.mouse.move(knob["x"] + 4, knob["y"] + 10)
    page.mouse.down()
    page.mouse.move(whole["x"] + whole["width"] / 2, knob["y"] + 10, steps=4)
    page.mouse.up()
    expect(bar).to_have_attribute("aria-valuenow", re.compile("[45]."))
    expect(cell).to_contain_text("Your guess: ")
    page.keyboard.press("Home")
    page.keyboard.press("PageUp")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(bar).to_be_focused()
    expect(bar).to_have_attribute("aria-valuetext", "13 %")
    expect(cell).to_contain_text("Your guess: 13 %")
    number = active_cell(page)
    page.keyboard.press("Escape")  # the notebook has the keys again
    page.keyboard.press("j")
    assert active_cell(page) == number + 1
    page.keyboard.press("k")
    field = cell.locator("input[type=text]")
    field.fill("29")
    page.keyboard.press("Enter")
    expect(bar).to_have_attribute("aria-valuenow", "29")
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    expect(revealed(page, "drag")).to_contain_text("You said 29 %. It is 38 %.")
    expect(revealed(page, "drag").locator("svg")).to_contain_text("LRU: it is")
    take_screenshot(page, "hands_drag_dark")


def test_nothing_went_wrong_in_the_browser(page):
    assert page.refused == []
    assert [error for error in page.errors if not re.search(r"favicon|404|Failed to load resource", error)] == []
