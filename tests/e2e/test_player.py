"""The HTML player in Chromium, without Jupyter and without network."""

import pytest

from nanovllm.viz import (
    BlockSizeExplorer,
    BlockTable,
    MemoryBudget,
    PrefixExplorer,
    PrefixSimulation,
    Timeline,
    load_trace,
)

from .conftest import expect, open_page, take_screenshot

pytestmark = pytest.mark.slow


def page_of(widgets, path):
    players = "".join(widget.html(b"") for widget in widgets)
    path.write_text(f'<!doctype html><html lang="en"><meta charset="utf-8"><body>{players}</body>', encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def story():
    return load_trace("story")


def test_buttons_keys_and_bookmarks_move_the_block_table(browser, story, tmp_path):
    with open_page(browser) as page:
        page.goto(page_of([BlockTable(story)], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        expect(player).to_have_attribute("data-step", "0")
        page.get_by_role("button", name="next step").click()
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        expect(player).to_have_attribute("data-step", "3")
        expect(player.locator('g[data-b="0"]')).to_have_attribute("data-ref", "2")
        expect(player.locator('g[data-b="0"]')).to_have_attribute("data-state", "shared")
        page.get_by_role("button", name="previous step").click()
        expect(player.locator('g[data-b="0"]')).to_have_attribute("data-ref", "1")
        page.keyboard.press("Tab")  # play
        page.keyboard.press("Tab")  # next
        page.keyboard.press("Tab")
        expect(page.get_by_role("slider")).to_be_focused()
        page.keyboard.press("End")
        expect(player).to_have_attribute("data-step", "14")
        page.keyboard.press("ArrowLeft")
        expect(player).to_have_attribute("data-step", "13")
        page.get_by_role("button", name="jump to: preemption").click()
        expect(player).to_have_attribute("data-step", "9")
        expect(page.get_by_role("status")).to_contain_text("C is preempted")
        expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", "step 9 of 14")
        assert page.errors == [] and page.refused == []


def test_play_runs_to_the_end_and_can_be_paused(browser, story, tmp_path):
    with open_page(browser) as page:
        page.clock.install()
        page.goto(page_of([BlockTable(story)], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        page.get_by_role("button", name="play").click()
        page.clock.run_for(950)
        expect(player).to_have_attribute("data-step", "1")
        page.get_by_role("button", name="pause").click()
        page.clock.run_for(5_000)
        expect(player).to_have_attribute("data-step", "1")
        page.get_by_role("button", name="play").click()
        page.clock.run_for(30_000)
        expect(player).to_have_attribute("data-step", "14")
        expect(page.get_by_role("button", name="play")).to_be_visible()


def test_a_prediction_is_asked_for(browser, story, tmp_path):
    with open_page(browser) as page:
        page.goto(page_of([BlockTable(story, predict=True)], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        expect(page.get_by_role("textbox")).to_be_hidden()
        page.get_by_role("button", name="jump to: sharing").click()
        expect(page.get_by_role("status")).to_contain_text("Predict: B is admitted in step 3.")
        expect(player).to_have_attribute("data-step", "2")
        expect(player.locator('g[data-b="0"]')).to_have_attribute("data-ref", "1")
        page.get_by_role("textbox").fill("8")
        page.keyboard.press("Enter")
        expect(player).to_have_attribute("data-step", "3")
        expect(page.get_by_role("status")).to_contain_text("Right: 8.")
        expect(page.get_by_role("textbox")).to_be_hidden()
        page.get_by_role("button", name="jump to: preemption").click()
        page.get_by_role("textbox").fill("A")
        page.get_by_role("button", name="answer").click()
        expect(page.get_by_role("status")).to_contain_text("You said A; it is C.")
        assert page.errors == []


def test_players_of_one_run_move_together_and_the_cursor_with_them(browser, story, tmp_path):
    table, timeline, other = BlockTable(story), Timeline(story), BlockTable(story)
    timeline.follow(table)
    with open_page(browser) as page:
        page.goto(page_of([table, timeline, other], tmp_path / "page.html"))
        players = page.locator(".nv-player")
        line = players.nth(1).locator("g[data-cursor] path")
        expect(players.nth(1)).to_have_attribute("data-step", "0")
        before = line.bounding_box()["x"]
        players.nth(0).get_by_role("button", name="jump to: preemption").click()
        expect(players.nth(1)).to_have_attribute("data-step", "9")
        expect(players.nth(2)).to_have_attribute("data-step", "0")
        bar = players.nth(1).locator('g[data-seq="A"][data-at="9"]').bounding_box()
        now = line.bounding_box()
        assert before < bar["x"] < now["x"] + now["width"] / 2 < bar["x"] + bar["width"]
        players.nth(1).get_by_role("button", name="next step").click()
        expect(players.nth(0)).to_have_attribute("data-step", "10")


def test_a_row_dims_what_is_not_its_own(browser, story, tmp_path):
    table = BlockTable(story)
    table.step = 5
    with open_page(browser) as page:
        page.goto(page_of([table], tmp_path / "page.html"))
        opacity = "element => Number(getComputedStyle(element).opacity)"
        mine, theirs = page.locator('g[data-b="2"]'), page.locator('g[data-b="4"]')
        expect(mine).to_have_attribute("data-owners", "A")
        assert mine.evaluate(opacity) == theirs.evaluate(opacity) == 1
        page.get_by_role("slider").focus()
        for _ in range(6):  # the bookmarks come between
            page.keyboard.press("Tab")
        expect(page.locator('g[data-row="A"]')).to_be_focused()
        assert mine.evaluate(opacity) == 1 and theirs.evaluate(opacity) < 0.5
        page.locator('g[data-row="C"]').hover()
        page.get_by_role("slider").focus()
        assert mine.evaluate(opacity) < 0.5 and theirs.evaluate(opacity) == 1


def everything():
    story, batch = load_trace("story"), load_trace("batch")
    timeline, table = Timeline(batch), BlockTable(batch)
    timeline.step = table.step = 16
    return {
        "block_table_story": BlockTable(story),
        "block_table_batch": table,
        "timeline": timeline,
        "timelines": Timeline(story, compare={"the other": batch}),
        "prefix": PrefixExplorer(),
        "block_size": BlockSizeExplorer(),
        "simulation": PrefixSimulation(num_requests=50),
        "memory": MemoryBudget(),
    }


BRIGHTNESS = """element => { const [r, g, b] = getComputedStyle(element)[PROPERTY].match(/[0-9.]+/g).map(Number);
return (r + g + b) / 765; }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_players_step_and_can_be_read(browser, tmp_path, scheme):
    for name, widget in everything().items():
        with open_page(browser, scheme) as page:
            page.goto(page_of([widget], tmp_path / f"{name}.html"))
            player = page.locator(".nv-player")
            expect(player).to_have_attribute("data-step", str(widget.step))
            take_screenshot(player, f"player_{name}_{scheme}")
            paper = player.evaluate(BRIGHTNESS.replace("PROPERTY", "'backgroundColor'"))
            ink = player.evaluate(BRIGHTNESS.replace("PROPERTY", "'color'"))
            assert (paper > 0.9 and ink < 0.2) if scheme == "light" else (paper < 0.2 and ink > 0.8)
            for text in player.locator("svg text[fill='#000']").all()[:3]:  # text on a color stays black in the dark
                assert text.evaluate(BRIGHTNESS.replace("PROPERTY", "'fill'")) == 0
            page.get_by_role("slider").press("Home")
            expect(player).to_have_attribute("data-step", "0")
            page.get_by_role("slider").press("End")
            expect(player).to_have_attribute("data-step", str(widget.num_steps - 1))
            box = player.locator("svg").first.bounding_box()
            assert box["width"] > 400 and box["height"] > 60
            inside = player.locator("svg").first.evaluate(
                "svg => { const a = svg.getBBox(), b = svg.viewBox.baseVal; return a.x + a.width <= b.width + 14; }"
            )
            assert inside, name
            assert page.errors == [] and page.refused == []


def test_without_scripts_the_still_shows(browser, story, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(f'<!doctype html><meta charset="utf-8">{BlockTable(story).html()}', encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    image = page.locator("img.nv-still")
    assert image.bounding_box()["width"] > 500
    assert "block tables and pool" in image.get_attribute("alt")
    assert page.locator("button").count() == 0
    context.close()
