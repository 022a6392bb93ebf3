"""The widgets in a real JupyterLab, driven in Chromium."""

import json
import re

import pytest

from .conftest import active_cell, expect, open_notebook, open_page, run_all, run_code, take_screenshot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def page(browser, lab):
    """The notebook, open and run."""
    with open_page(browser) as page:
        open_notebook(page, lab, "live.ipynb")
        run_all(page)
        yield page


PLAYERS = ("bt", "tl", "predicting", "sizes", "life")  # of conftest.CELLS, in their order
LIVE = ("explorer", "simulation", "budget")


def player(page, name):
    """A picture that steps through what was recorded."""
    found = page.locator(".jp-OutputArea-output .nv-player:not([data-live])").nth(PLAYERS.index(name))
    found.scroll_into_view_if_needed()
    return found


def panel(page, name):
    """A picture with controls that need the kernel."""
    found = page.locator(".jp-OutputArea-output .nv.jupyter-widgets").nth(LIVE.index(name))
    found.scroll_into_view_if_needed()
    return found


def stand_in(page, name):
    return page.locator(".jp-OutputArea-output .nv-player[data-live]").nth(LIVE.index(name))


def button(box, name):
    return box.locator(f'button[title="{name}"]')


def step_is(box, step):
    expect(box).to_have_attribute("data-step", str(step))


def test_block_table_follows_buttons_keys_and_python(page):
    table = player(page, "bt")
    step_is(table, 9)
    expect(table.locator(".nv-caption")).to_contain_text("C is preempted")
    button(table, "jump to: sharing").click()
    step_is(table, 3)
    expect(table.locator('g[data-b="0"]')).to_have_attribute("data-ref", "2")
    page.keyboard.press("ArrowRight")  # JupyterLab has shortcuts of its own for all of these
    step_is(table, 4)
    page.keyboard.press("Home")
    step_is(table, 0)
    table.locator('g[data-b="1"]').click()
    page.keyboard.press("ArrowRight")
    step_is(table, 1)
    page.keyboard.press("End")
    step_is(table, 14)
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    step_is(table, 2)  # it plays
    page.keyboard.press("Space")
    run_code(page, "bt.step = 10")
    step_is(player(page, "bt"), 10)
    take_screenshot(player(page, "bt"), "lab_block_table_light")


def test_escape_gives_the_keys_back_to_the_notebook(page):
    table = player(page, "bt")
    table.locator('g[data-b="1"]').click()  # is held
    page.keyboard.press("Escape")  # let go
    number = active_cell(page)
    page.keyboard.press("j")
    assert active_cell(page) == number
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert active_cell(page) == number + 1


def test_timeline_and_block_table_share_a_step(page):
    table, timeline = player(page, "bt"), player(page, "tl")
    run_code(page, "tl.step = 5")
    step_is(table, 5)
    step_is(timeline, 5)
    button(timeline, "next step").click()
    step_is(table, 6)
    button(timeline, "width by ms").click()
    expect(button(timeline, "width by ms")).to_have_attribute("aria-pressed", "true")
    take_screenshot(timeline, "lab_timeline_light")


def test_a_life_is_stepped_through(page):
    box = player(page, "life")
    step_is(box, 4)
    button(box, "next step").click()
    expect(box.locator('g[data-kind="scheduled"]')).to_have_attribute("data-count", "1")
    button(box, "jump to: preemption").click()
    step_is(box, 9)
    expect(box.locator('g[data-state="WAITING"]')).to_have_attribute("data-current", "1")
    expect(box.locator(".nv-caption")).to_contain_text("it loses its blocks")
    take_screenshot(box, "lab_sequence_view_light")


def test_prediction_in_the_notebook(page):
    box = player(page, "predicting")
    button(box, "jump to: sharing").click()
    expect(box.locator(".nv-caption")).to_contain_text("Predict:")
    step_is(box, 2)
    box.get_by_role("textbox").fill("8")
    page.keyboard.press("Enter")
    step_is(box, 3)
    expect(box.locator(".nv-caption")).to_contain_text("Right: 8.")


def test_the_picture_follows_while_one_types(page):
    box = panel(page, "explorer")
    expect(stand_in(page, "explorer")).to_be_hidden()
    hits = box.locator('g[data-prompt="B"] g[data-state="hit"]')
    expect(hits).to_have_count(4)
    take_screenshot(box, "lab_prefix_light")
    area = box.locator("textarea").nth(1)
    area.focus()
    page.keyboard.press("Home")
    page.keyboard.type("X")
    expect(hits).to_have_count(0)  # the focus is still in the text
    button(box, "jump to: the same twice").click()
    expect(hits).not_to_have_count(0)
    expect(area).to_have_value("Once upon a time there was a little cat.")


def test_block_size_and_simulation_follow_their_sliders(page):
    sizes = player(page, "sizes")
    expect(sizes.locator(".nv-caption")).to_contain_text("Blocks of 16")
    sizes.get_by_role("slider").focus()
    page.keyboard.press("ArrowRight")
    expect(sizes.locator(".nv-caption")).to_contain_text("Blocks of 32")
    take_screenshot(sizes, "lab_block_size_light")
    simulation = panel(page, "simulation")
    expect(simulation.locator(".nv-caption")).to_contain_text("28 start with the common prefix")
    simulation.locator(".noUi-handle").first.focus()
    page.keyboard.press("ArrowRight")
    expect(simulation.locator(".nv-caption")).to_contain_text("32 start with the common prefix")
    take_screenshot(simulation, "lab_simulation_light")


def test_the_memory_budget_follows_its_options_by_keyboard(page):
    box = panel(page, "budget")
    status = box.locator(".nv-caption")
    expect(status).to_contain_text("8B on 24 GB.")
    expect(status).to_contain_text("4 sequences of 4,096")
    box.locator("select").select_option("Qwen3-14B")
    expect(status).to_contain_text("your setting. Qwen3-14B on a GPU of 24 GB: no block of the KV cache fits")
    box.locator(".noUi-handle").first.focus()  # the GPU's memory: 24, 32, 40 GB
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(status).to_contain_text("Qwen3-14B on a GPU of 40 GB: the cache holds")
    take_screenshot(box, "lab_memory_light")


def test_dark_theme(page):
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    color = "element => getComputedStyle(element).{}.match(/[0-9.]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
    for name in (*PLAYERS, *LIVE):
        box = player(page, name) if name in PLAYERS else panel(page, name)
        assert box.evaluate(color.format("backgroundColor")) < 150
        assert box.locator("svg").last.evaluate(color.format("color")) > 550
        take_screenshot(box, f"lab_{name}_dark")


def test_nothing_went_wrong_in_the_browser(page):
    assert page.refused == []
    assert [error for error in page.errors if not re.search(r"favicon|404|Failed to load resource", error)] == []


def test_the_next_day_everything_still_works(browser, page, lab):
    """Saved, the kernel restarted, and the page loaded anew: no cell is run."""
    run_code(page, "bt.step = 3")
    panel(page, "budget").locator("select").select_option("Qwen3-32B")
    expect(stand_in(page, "budget")).to_be_hidden()
    page.wait_for_timeout(2_000)  # the stand-in is drawn a moment after the last change
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    expect(stand_in(page, "budget")).to_be_visible()
    expect(stand_in(page, "budget").locator(".nv-caption")).to_contain_text("Qwen3-32B on a GPU of 40 GB")
    with open_page(browser) as reloaded:
        open_notebook(reloaded, lab, "live.ipynb")
        table = player(reloaded, "bt")
        step_is(table, 3)
        button(table, "next step").click()
        step_is(table, 4)
        step_is(player(reloaded, "tl"), 4)
        for name in LIVE:
            box = stand_in(reloaded, name)
            box.scroll_into_view_if_needed()
            box.get_by_role("slider").press("Home")
            step_is(box, 0)
        take_screenshot(reloaded, "lab_next_day")
        assert not any(found.is_visible() for found in reloaded.get_by_text("Error displaying widget").all())
    notebook = json.loads((lab.folder / "live.ipynb").read_text())
    assert "widgets" not in notebook["metadata"]
    assert len(json.dumps(notebook)) < 3_000_000


def test_an_untrusted_notebook_shows_the_still(browser, lab):
    with open_page(browser) as page:
        open_notebook(page, lab, "untrusted.ipynb")
        images = page.locator(".jp-OutputArea-output img")
        expect(images.first).to_be_visible()
        assert images.count() >= 3  # as far as the window reaches
        assert images.first.evaluate("image => image.complete && image.naturalWidth") > 500
        assert page.locator(".jp-OutputArea-output .nv-bar").count() == 0
        take_screenshot(page, "lab_untrusted")
        page.evaluate("() => { window.jupyterapp.commands.execute('notebook:trust'); }")
        page.get_by_role("button", name="Trust").click()
        step_is(player(page, "bt"), 9)  # trusted, the same output steps
        expect(player(page, "bt").locator(".nv-bar")).to_have_count(1)
