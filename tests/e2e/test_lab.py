"""The widgets in a real JupyterLab, driven in Chromium."""

import re

import pytest

from .conftest import expect, open_notebook, open_page, run_all, run_code, take_screenshot

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def page(browser, lab):
    """The notebook, open and run."""
    with open_page(browser) as page:
        open_notebook(page, lab, "live.ipynb")
        run_all(page)
        yield page


def widget(page, n):
    """The n-th widget on the page."""
    found = page.locator(".jp-OutputArea-output .nv.widget-vbox, .jp-OutputArea-output .nv.jupyter-widgets").nth(n)
    found.scroll_into_view_if_needed()
    return found


def step_of(box):
    return box.locator("div[data-step]")


def button(box, name):
    return box.locator(f'button[title="{name}"]')


def test_block_table_follows_buttons_slider_and_python(page):
    table = widget(page, 0)
    expect(step_of(table)).to_have_attribute("data-step", "0")
    for _ in range(3):
        button(table, "next step").click()
    expect(step_of(table)).to_have_attribute("data-step", "3")
    expect(table.locator('g[data-b="0"]')).to_have_attribute("data-ref", "2")
    table.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")
    expect(step_of(table)).to_have_attribute("data-step", "4")
    button(table, "jump to: preemption").click()
    expect(step_of(table)).to_have_attribute("data-step", "9")
    expect(table.get_by_role("status")).to_contain_text("C is preempted")
    run_code(page, "bt.step = 10")
    expect(step_of(table)).to_have_attribute("data-step", "10")
    button(table, "previous step").focus()
    page.keyboard.press("Enter")
    expect(step_of(table)).to_have_attribute("data-step", "9")
    take_screenshot(table, "lab_block_table_light")


def test_timeline_and_block_table_share_a_cursor(page):
    table, timeline = widget(page, 0), widget(page, 1)
    run_code(page, "tl.step = 5")
    expect(step_of(table)).to_have_attribute("data-step", "5")
    expect(step_of(timeline)).to_have_attribute("data-step", "5")
    button(timeline, "next step").click()
    expect(step_of(table)).to_have_attribute("data-step", "6")
    timeline.get_by_label("width by measured time").check()
    expect(timeline.locator("svg")).to_contain_text("milliseconds")
    take_screenshot(timeline, "lab_timeline_light")


def test_a_life_is_stepped_through(page):
    box = widget(page, 6)
    expect(step_of(box)).to_have_attribute("data-step", "4")
    button(box, "next step").click()
    expect(box.locator('g[data-kind="scheduled"]')).to_have_attribute("data-count", "1")
    button(box, "jump to: preemption").click()
    expect(step_of(box)).to_have_attribute("data-step", "9")
    expect(box.locator('g[data-state="WAITING"]')).to_have_attribute("data-current", "1")
    expect(box.get_by_role("status")).to_contain_text("it loses its blocks")
    take_screenshot(box, "lab_sequence_view_light")


def test_play_moves_by_itself_while_the_kernel_is_free(page):
    table = widget(page, 0)
    run_code(page, "bt.step = 11")
    button(table, "play").click()
    expect(step_of(table)).to_have_attribute("data-step", "14")


def test_prediction_in_the_notebook(page):
    box = widget(page, 2)
    button(box, "jump to: sharing").click()
    expect(box.get_by_role("status")).to_contain_text("Predict:")
    expect(step_of(box)).to_have_attribute("data-step", "2")
    box.locator("input[type=text]").fill("8")
    box.locator("input[type=text]").press("Tab")
    button(box, "show the step").click()
    expect(step_of(box)).to_have_attribute("data-step", "3")
    expect(box.get_by_role("status")).to_contain_text("Right: 8.")


def test_typing_moves_the_first_miss(page):
    box = widget(page, 3)
    hits = box.locator('g[data-prompt="B"] g[data-state="hit"]')
    expect(hits).to_have_count(4)
    take_screenshot(box, "lab_prefix_light")
    area = box.locator("textarea").nth(1)
    area.focus()
    page.keyboard.press("Home")
    page.keyboard.type("X")
    page.keyboard.press("Tab")
    expect(hits).to_have_count(0)
    button(box, "jump to: the same twice").click()
    expect(hits).not_to_have_count(0)
    expect(area).to_have_value("Once upon a time there was a little cat.")


def test_block_size_and_simulation_follow_their_sliders(page):
    sizes, simulation = widget(page, 4), widget(page, 5)
    expect(sizes.get_by_role("status")).to_contain_text("Blocks of 16")
    sizes.locator(".noUi-handle").focus()
    page.keyboard.press("ArrowRight")
    expect(sizes.get_by_role("status")).to_contain_text("Blocks of 32")
    expect(sizes.locator("tr[aria-current] td").first).to_have_text("32")
    take_screenshot(sizes, "lab_block_size_light")
    expect(simulation.get_by_role("status")).to_contain_text("28 start with the common prefix")
    simulation.locator(".noUi-handle").first.focus()
    page.keyboard.press("ArrowRight")
    expect(simulation.get_by_role("status")).to_contain_text("32 start with the common prefix")
    take_screenshot(simulation, "lab_simulation_light")


def test_the_memory_budget_follows_its_options_by_keyboard(page):
    box = page.locator(".jp-OutputArea-output .nv.jupyter-widgets", has=page.locator("select"))
    box.scroll_into_view_if_needed()
    status = box.get_by_role("status")
    expect(status).to_contain_text("4 sequences of 4,096")
    box.locator("select").select_option("Qwen3-14B")
    expect(status).to_contain_text("no block of the KV cache fits")
    box.locator(".noUi-handle").first.focus()  # the GPU's memory: 24, 32, 40 GB
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(status).to_contain_text("Qwen3-14B on a GPU of 40 GB: the cache holds")
    take_screenshot(box, "lab_memory_light")
    button(box, "jump to: 8B on 24 GB").click()
    expect(status).to_contain_text("4 sequences of 4,096")


def test_dark_theme(page):
    page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    page.wait_for_function("() => document.body.dataset.jpThemeLight === 'false'")
    names = ("block_table", "timeline", "predict", "prefix", "block_size", "simulation", "sequence_view", "memory")
    for n, name in enumerate(names):
        box = widget(page, n)
        color = (
            "element => getComputedStyle(element).{}.match(/[0-9.]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
        )
        assert box.evaluate(color.format("backgroundColor")) < 150
        assert step_of(box).evaluate(color.format("color")) > 550
        take_screenshot(box, f"lab_{name}_dark")


def test_nothing_went_wrong_in_the_browser(page):
    assert page.refused == []
    assert [error for error in page.errors if not re.search(r"favicon|404|Failed to load resource", error)] == []


def test_an_untrusted_notebook_shows_the_still(browser, lab):
    with open_page(browser) as page:
        open_notebook(page, lab, "untrusted.ipynb")
        first = page.locator(".jp-OutputArea-output img").first
        expect(first).to_be_visible()
        assert first.evaluate("image => image.complete && image.naturalWidth") > 500
        assert page.locator(".jp-OutputArea-output .nv-controls").count() == 0
        take_screenshot(page, "lab_untrusted")
