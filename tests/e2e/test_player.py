"""The HTML player in Chromium, without Jupyter and without network."""

import base64
import re

import pytest

from exercises.kit import attention_work, norm_work, speed_work, story_work
from nanovllm.viz import (
    BlockSizeExplorer,
    BlockTable,
    DataFlow,
    FirstLook,
    GraphSpeedup,
    MemoryBudget,
    ModelShapes,
    NormView,
    PagedGather,
    PrefixExplorer,
    PrefixSimulation,
    Roofline,
    RopeView,
    SamplerView,
    SequenceView,
    SlotMapping,
    TensorParallelView,
    Timeline,
    VocabularyShards,
    WeightMap,
    load_trace,
)
from nanovllm.viz.block_table import sentence_of
from nanovllm.viz.replay import replay
from nanovllm.viz.trace import name_of

from .conftest import expect, open_page, take_screenshot

pytestmark = pytest.mark.slow


def page_of(widgets, path):
    players = "".join(widget.html(b"") for widget in widgets)
    path.write_text(f'<!doctype html><html lang="en"><meta charset="utf-8"><body>{players}</body>', encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def story():
    return load_trace("story")


def step_is(player, step):
    expect(player).to_have_attribute("data-step", str(step))


def test_it_opens_where_most_happens_and_buttons_and_bookmarks_move_it(browser, story, tmp_path):
    with open_page(browser) as page:
        page.goto(page_of([BlockTable(story)], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        step_is(player, 9)
        page.get_by_role("button", name="next step").click()
        page.keyboard.press("Enter")  # still presses the button
        step_is(player, 11)
        page.get_by_role("button", name="previous step").click()
        step_is(player, 10)
        page.get_by_role("button", name="jump to: sharing").click()
        step_is(player, 3)
        expect(player.locator('g[data-b="0"]')).to_have_attribute("data-ref", "2")
        expect(player.locator('g[data-b="0"]')).to_have_attribute("data-change", "+B")
        expect(page.get_by_role("button", name="jump to: sharing")).to_have_attribute("aria-current", "step")
        expect(page.locator(".nv-caption")).to_contain_text("B finds 8 tokens in the cache")
        expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", "step 3 of 14")
        assert page.errors == [] and page.refused == []


WAYS_IN = {
    "a button": lambda page: page.get_by_role("button", name="next step").click(),
    "a bookmark": lambda page: page.get_by_role("button", name="jump to: sharing").click(),
    "the slider": lambda page: page.get_by_role("slider").click(),
    "a lane": lambda page: page.locator('g[data-seq="A"][data-at="6"]').click(),
    "a block": lambda page: page.locator('g[data-b="1"]').click(),
    "the caption": lambda page: page.locator(".nv-caption").click(),
    "Tab": lambda page: page.keyboard.press("Tab"),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_keys_work_wherever_the_focus_is_inside(browser, story, tmp_path, way):
    with open_page(browser) as page:
        page.emulate_media(reduced_motion="reduce")
        page.clock.install()
        page.goto(page_of([BlockTable(story)], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        step_is(player, 9)
        WAYS_IN[way](page)
        page.keyboard.press("Home")
        step_is(player, 0)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        step_is(player, 2)
        page.keyboard.press("ArrowLeft")
        step_is(player, 1)
        page.keyboard.press("Space")
        page.clock.run_for(950)
        step_is(player, 2)
        page.keyboard.press("Space")
        page.clock.run_for(5_000)
        step_is(player, 2)
        page.keyboard.press("End")
        step_is(player, 14)


def test_play_runs_to_the_end_and_can_be_paused(browser, story, tmp_path):
    with open_page(browser) as page:
        page.emulate_media(reduced_motion="reduce")
        page.clock.install()
        page.goto(page_of([BlockTable(story)], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        step_is(player, 9)
        page.get_by_role("button", name="play", exact=True).click()
        page.clock.run_for(950)
        step_is(player, 10)
        page.get_by_role("button", name="pause").click()
        page.clock.run_for(5_000)
        step_is(player, 10)
        page.get_by_role("button", name="play", exact=True).click()
        page.clock.run_for(900 * 5)
        step_is(player, 14)
        expect(page.get_by_role("button", name="play", exact=True)).to_be_visible()


def test_lanes_and_the_playhead(browser, story, tmp_path):
    with open_page(browser) as page:
        page.goto(page_of([Timeline(story)], tmp_path / "page.html"))
        player, head = page.locator(".nv-player"), page.locator("g[data-cursor] rect").first
        page.locator('g[data-seq="A"][data-at="6"]').click()
        step_is(player, 6)
        bar, column = page.locator('g[data-seq="A"][data-at="6"] rect').bounding_box(), head.bounding_box()
        assert abs(bar["x"] - column["x"]) < 2 and abs(bar["width"] - column["width"]) < 3
        assert column["height"] > 3 * bar["height"]
        opaque = "element => getComputedStyle(element).fill"
        assert head.evaluate(opaque).startswith("rgba") and head.evaluate(opaque).endswith("0.25)")
        lane = page.locator('g[data-seq="B"][data-at="3"]').bounding_box()  # nothing is drawn before B arrives
        page.mouse.click(bar["x"] - 4.5 * bar["width"] + 2, lane["y"] + 8)
        step_is(player, 1)
        page.get_by_role("button", name="width by ms").click()
        expect(page.get_by_role("button", name="width by ms")).to_have_attribute("aria-pressed", "true")
        step_is(player, 1)
        expect(player.locator("svg").filter(has_text="ms").first).to_be_visible()


def test_a_pointer_that_rests_points_at_nothing_that_comes_under_it(browser, story, tmp_path):
    """In full screen, and while somebody steps by keys."""
    table = BlockTable(story)
    table.step = 5
    opacities = "() => [...document.querySelectorAll('g[data-b]')].map(block => getComputedStyle(block).opacity)"
    with open_page(browser) as page:
        page.set_viewport_size({"width": 1280, "height": 720})
        page.goto(page_of([table], tmp_path / "page.html"))
        for x, y in [(300, 420), (500, 300)]:
            page.locator(".nv-player").evaluate("player => player.focus()")
            page.mouse.move(x, y)
            for key in ("f", "ArrowRight", "f"):
                page.keyboard.press(key)
                page.wait_for_timeout(900)
                assert set(page.evaluate(opacities)) == {"1"}, (x, y, key)
        page.locator('g[data-b="4"]').hover()
        assert set(page.evaluate(opacities)) != {"1"}


def test_pointing_dims_the_others_and_a_click_keeps_it(browser, story, tmp_path):
    table = BlockTable(story)
    table.step = 5
    opacity = "element => Number(getComputedStyle(element).opacity)"
    with open_page(browser) as page:
        page.goto(page_of([table], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        mine, theirs = page.locator('g[data-b="2"]'), page.locator('g[data-b="4"]')
        expect(mine).to_have_attribute("data-owners", "A")
        assert mine.evaluate(opacity) == theirs.evaluate(opacity) == 1
        page.locator('g[data-row="A"]').first.click()
        page.mouse.move(2, 2)
        assert mine.evaluate(opacity) == 1 and theirs.evaluate(opacity) < 0.5
        page.keyboard.press("ArrowRight")
        step_is(player, 6)
        assert theirs.evaluate(opacity) < 0.5
        page.keyboard.press("Escape")
        assert theirs.evaluate(opacity) == 1
        theirs.click()
        page.mouse.move(2, 2)
        expect(player.locator(".nv-footer")).to_contain_text("block 4: used, reference count 1, in the table of C")
        assert mine.evaluate(opacity) < 0.5
        assert player.locator('g[data-physical="4"]').evaluate(opacity) == 1


def test_by_keyboard_alone(browser, story, tmp_path):
    """Tab goes to the picture once; arrows go on from there, Enter keeps, and the focus survives a step."""
    with open_page(browser) as page:
        page.goto(page_of([BlockTable(story)], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        step_is(player, 9)
        stops = []
        for _ in range(20):
            page.keyboard.press("Tab")
            stops.append(page.evaluate("() => document.activeElement.dataset.row ?? document.activeElement.title"))
            if stops[-1] == "A":
                break
        assert stops[-1] == "A" and "play" in stops and "full screen" in stops and "jump to: eviction" in stops
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("() => document.activeElement.dataset.b") == "0"
        page.keyboard.press("Enter")
        page.keyboard.press("ArrowRight")
        step_is(player, 10)
        assert page.evaluate("() => document.activeElement.dataset.b") == "0"
        expect(player.locator(".nv-footer")).to_contain_text("block 0:")


def test_a_prediction_is_asked_and_answered_by_keyboard(browser, story, tmp_path):
    with open_page(browser) as page:
        page.goto(page_of([BlockTable(story, predict=True)], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        step_is(player, 1)
        page.get_by_role("button", name="jump to: sharing").click()
        expect(page.locator(".nv-caption")).to_contain_text("Predict: B is admitted in step 3.")
        step_is(player, 2)
        page.get_by_role("textbox").fill("9")
        page.keyboard.press("Home")  # moves in the text, not the picture
        page.keyboard.press("Delete")
        page.keyboard.type("8")
        page.keyboard.press("Enter")
        step_is(player, 3)
        expect(page.locator(".nv-caption")).to_contain_text("Right: 8.")
        expect(page.get_by_role("textbox")).to_be_hidden()
        page.get_by_role("button", name="jump to: preemption").click()
        page.get_by_role("textbox").fill("A")
        page.get_by_role("button", name="answer").click()
        expect(page.locator(".nv-caption")).to_contain_text("You said A; it is C.")
        assert page.errors == []


def test_players_of_one_run_move_together(browser, story, tmp_path):
    table, timeline, other = BlockTable(story), Timeline(story), BlockTable(story)
    timeline.follow(table)
    with open_page(browser) as page:
        page.goto(page_of([table, timeline, other], tmp_path / "page.html"))
        players = page.locator(".nv-player")
        players.nth(0).get_by_role("button", name="jump to: revival").click()
        step_is(players.nth(1), 10)
        step_is(players.nth(2), 9)
        players.nth(1).get_by_role("button", name="next step").click()
        step_is(players.nth(0), 11)


# The size of the smallest text that shows, in pixels.
SMALLEST = """() => Math.min(...[...document.querySelectorAll('.nv-player :is(svg text, div, span, button, td)')]
    .filter((element) => element.textContent.trim() && element.getBoundingClientRect().width)
    .map((element) => {
        const svg = element.ownerSVGElement, size = parseFloat(getComputedStyle(element).fontSize);
        return svg ? size * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : size;
    }))"""
SIDEWAYS = "stage => stage.scrollWidth - stage.clientWidth"
RIGHT = "all => Math.max(...all.map((svg) => svg.getBoundingClientRect().right))"


WIDGETS = {
    "story": lambda: BlockTable(load_trace("story")),
    "batch": lambda: BlockTable(load_trace("batch")),
    "timeline of the story": lambda: Timeline(load_trace("story")),
    "timeline of the batch": lambda: Timeline(load_trace("batch")),
    "two timelines": lambda: Timeline(load_trace("story"), compare={"batch": load_trace("batch")}),
}


@pytest.mark.parametrize("name", WIDGETS)
def test_it_fits_a_screen_and_can_be_read(browser, tmp_path, name):
    with open_page(browser) as page:
        address = page_of([WIDGETS[name]()], tmp_path / "page.html")
        for width in (1500, 1024, 890):  # 890 is what JupyterLab leaves of 1,024
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(address)
            player = page.locator(".nv-player")
            expect(player).to_have_attribute("data-step", re.compile("[0-9]+"))
            box, stage = player.bounding_box(), page.locator(".nv-stage")
            assert box["height"] <= 600, (width, box)
            assert page.evaluate(SMALLEST) >= 11.9
            assert stage.evaluate(SIDEWAYS) <= 0
            if width == 1500:  # wide screens are used
                assert page.locator("svg.nv-panel").evaluate_all(RIGHT) > 1100
            top = player.locator(".nv-stage").bounding_box()["y"]
            for _ in range(6):
                page.get_by_role("button", name="next step").click()
            assert player.locator(".nv-stage").bounding_box()["y"] == top  # nothing moves
            assert player.bounding_box()["height"] == box["height"]


def test_the_data_flow_fits_a_screen_and_goes_by_keys(browser, story, tmp_path):
    flow = DataFlow(story)
    with open_page(browser) as page:
        page.set_viewport_size({"width": 890, "height": 900})
        page.goto(page_of([flow], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        step_is(player, flow.first_step())
        assert flow.stages[flow.first_step()] == (1, 3)  # the tensors of the first step, the largest
        assert player.bounding_box()["height"] <= 620 and page.evaluate(SMALLEST) >= 11.9
        player.focus()
        page.keyboard.press("Home")
        for n in range(1, 5):
            page.keyboard.press("ArrowRight")
            step_is(player, n)
            _, stage = flow.stages[n]
            expect(player.locator('g[data-current="1"]')).to_have_attribute("data-stage", str(stage))
            drawn = player.locator('g[data-tensor="input_ids"]').get_attribute("data-values")
            assert bool(drawn) == (stage >= 2)
        page.keyboard.press("End")
        step_is(player, flow.num_steps - 1)
        page.get_by_role("button", name="jump to: decode").click()
        step_is(player, flow.bookmarks["decode"])
        assert page.errors == [] and page.refused == []


def test_a_window_of_1024_at_150_percent_does_not_scroll_sideways(browser, tmp_path):
    """Zoom makes 683 of 1,024 pixels, of which JupyterLab leaves about 590; text keeps 16 of the window's pixels."""
    with open_page(browser) as page:
        page.set_viewport_size({"width": 604, "height": 512})
        for name, widget in everything().items():
            page.goto(page_of([widget], tmp_path / "page.html"))
            expect(page.locator(".nv-bar")).to_be_visible()
            assert page.locator(".nv-stage").evaluate(SIDEWAYS) <= 0, name
            assert 1.5 * page.evaluate(SMALLEST) >= 16, name


@pytest.mark.parametrize("size", [(1920, 1080), (1280, 720), (1024, 768)])
@pytest.mark.parametrize("name", WIDGETS)
def test_full_screen_fills_a_projector(browser, tmp_path, name, size):
    with open_page(browser) as page:
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.goto(page_of([WIDGETS[name]()], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        page.get_by_role("button", name="full screen").click()
        expect(page.locator(".nv-player:fullscreen")).to_have_count(1)
        page.wait_for_function(
            "() => parseFloat(document.querySelector('.nv-player').style.getPropertyValue('--nv-s')) >= 1.5"
        )
        assert page.evaluate(SMALLEST) >= 17.9
        assert player.evaluate("player => player.scrollHeight <= player.clientHeight + 1")
        assert page.locator(".nv-stage").evaluate(SIDEWAYS) <= 0
        step = int(player.get_attribute("data-step"))
        page.keyboard.press("ArrowRight")
        step_is(player, step + 1)
        take_screenshot(page, f"full_screen_{name}_{size[0]}")
        page.keyboard.press("f")
        expect(page.locator(".nv-player:fullscreen")).to_have_count(0)


# How the page gets its script elsewhere. None of these programs runs here; their rules, and where they are written:
#
# VS Code, extensions/notebook-renderers/src/index.ts of microsoft/vscode: `renderOutputItem` shows HTML only where
# `ctx.workspace.isTrusted`; `renderHTML` sets innerHTML, and `domEval` appends a copy of each script, with its type,
# and removes it at once. Without trust "it should fall back to simple outputs" (microsoft/vscode#118584): the PNG. All
# outputs of a notebook share one page.
# Colab: "Outputs are displayed in a sandboxed iframe" (googlecolab/colabtools#2058); one can send messages to another,
# but not reach into it (googlecolab/colabtools#19). Here it is a frame that may run scripts and nothing else.
# GitHub: notebooks "render as static HTML"; "custom JavaScript plots will not work" (docs.github.com, Working with
# non-code files): the PNG. nbviewer and nbconvert keep the page's scripts (test_export.py).
# JupyterLab runs here (test_lab.py): untrusted HTML is sanitized and its scripts are not run (Security in the Jupyter
# notebook server), so that the still shows.
VS_CODE = """markup => {
  const output = document.body.appendChild(document.createElement('div'));
  output.innerHTML = markup;
  for (const node of [...output.getElementsByTagName('script')]) {
    const script = document.createElement('script');
    script.text = node.innerText;
    if (node.type) script.setAttribute('type', node.type);
    output.appendChild(script).parentNode.removeChild(script);
  }
}"""
COLAB = """markup => {
  const frame = document.createElement('iframe');
  frame.sandbox = 'allow-scripts';
  frame.srcdoc = markup;
  frame.width = 900; frame.height = 700;
  document.body.append(frame);
}"""


@pytest.mark.parametrize("place", [VS_CODE, COLAB], ids=["VS Code", "Colab"])
def test_by_the_rules_of_other_notebooks(browser, story, place):
    with open_page(browser) as page:
        page.goto("data:text/html,<!doctype html><body></body>")
        for _ in range(2):
            page.evaluate(place, BlockTable(story).html())
        frames = [page] if place is VS_CODE else page.frames[1:]
        players = [player for frame in frames for player in frame.locator(".nv-player").all()]
        assert len(players) == 2
        for player in players:
            step_is(player, 9)
            expect(player.locator(".nv-bar")).to_have_count(1)
            expect(player.locator(".nv-still")).to_have_count(0)
            player.get_by_role("button", name="next step").click()
            step_is(player, 10)
            for _ in range(2):  # there and back
                player.get_by_role("button", name="full screen").click()
                page.wait_for_timeout(300)
        assert page.errors == []


def test_where_html_is_not_shown_every_picture_has_a_png():
    """VS Code without trust, and GitHub."""
    for name, widget in everything().items():
        kinds = widget.bundle()
        assert base64.b64decode(kinds["image/png"]).startswith(b"\x89PNG"), name
        assert len(kinds["text/plain"]) > 60, name


def test_what_a_notebook_has_to_hold_is_small():
    """All pictures together are less than the 3 MB that a notebook may have."""
    sizes = {name: sum(map(len, widget.bundle().values())) for name, widget in everything().items()}
    assert max(sizes.values()) < 300_000 and sum(sizes.values()) < 2_500_000, sizes


def everything():
    story, batch = load_trace("story"), load_trace("batch")
    timeline, table = Timeline(batch), BlockTable(batch)
    timeline.step = table.step = 16
    return {
        "block_table_story": BlockTable(story),
        "block_table_batch": table,
        "timeline": timeline,
        "timelines": Timeline(story, compare={"the other": batch}),
        "first_look": FirstLook(load_trace("first_look")),
        "prefix": PrefixExplorer(),
        "block_size": BlockSizeExplorer(),
        "simulation": PrefixSimulation(num_requests=50),
        "data_flow": DataFlow(story),
        "memory": MemoryBudget(),
        "sampler": SamplerView(*story_work.logits_after("Once upon a time there was a")),
        "sequence": SequenceView(story, "C"),
        "slots": SlotMapping(story),
        "pages": PagedGather(**attention_work.walked()),
        "graphs": GraphSpeedup(),
        "weights": WeightMap(tensor_parallel_size=2),
        "ranks": TensorParallelView(),
        "rope": RopeView(),
        "norms": NormView(*norm_work.for_view("Tom and Mia went to the park.")),
        "model": ModelShapes(),
        "vocabulary": VocabularyShards(),
        "roofline": Roofline([speed_work.h200()], speed_work.roofline_works()),
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
            assert page.evaluate(SMALLEST) >= 11.9, name
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
            box = player.locator("svg.nv-panel").first.bounding_box()
            assert box["width"] > 300 and box["height"] > 60
            inside = player.locator("svg.nv-panel").first.evaluate(
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


# Movements. Every one is held in its middle, so that no test depends on how fast the machine is.

# All animations of the current movement, and what each does to its element: at the start, and past the middle.
HELD = """() => {
  const held = (window.held = document.getAnimations()), player = document.querySelector('.nv-player');
  const looks = (element) => { const style = getComputedStyle(element);
    return [style.transform, style.opacity, style.strokeDashoffset].join(' '); };
  const ends = held.map((animation) => animation.effect.getComputedTiming().endTime);
  const at = (part) => held.map((animation, n) => { animation.pause(); animation.currentTime = part * ends[n];
    return looks(animation.effect.target); });
  const [first, middle] = [at(0.02), at(0.7)];
  const keys = held.map(({ effect }) => effect.target.dataset.key ?? effect.target.dataset.ghost ?? 'link');
  return { kind: player.dataset.moving, changed: keys.filter((key, n) => first[n] !== middle[n]),
    told: player.querySelector('[data-now]')?.textContent,
    caption: player.querySelector('.nv-caption').textContent,
    said: [...player.querySelectorAll('[role=log][aria-live=polite] > div')].map((piece) => piece.textContent) };
}"""
LET_GO = "() => { held.forEach((animation) => animation.finish()); delete window.held; }"
IS_MOVING = "() => 'moving' in document.querySelector('.nv-player').dataset"
SAID = "() => [...document.querySelectorAll('.nv-said > div')].map((piece) => piece.textContent)"
SHOWN = "() => document.querySelector('.nv-view').innerHTML"


def movements(page):
    """What is seen of each movement from the current step to the next, in order."""
    page.keyboard.press("ArrowRight")
    seen = []
    while page.evaluate(IS_MOVING):
        number = len(seen)
        page.wait_for_function("() => document.getAnimations().length")
        seen.append(page.evaluate(HELD))
        take_screenshot(page.locator(".nv-player"), f"motion_{seen[-1]['kind']}_{number}")
        page.evaluate(LET_GO)
        page.evaluate("() => new Promise((resolve) => setTimeout(resolve, 30))")
    return seen


def expected_to_move(trace, event):
    """Keys of the elements that an event is about."""
    name = name_of(trace, event["seq"])
    block = event.get("block")
    return {
        "share": {f"{block}:{name}", f"{block}:ref"},
        "append": {f"{block}:{name}", f"{block}:ref"},
        "hash": {f"{block}:name"},
        "evict": {f"{block}:name", str(block)},
        "release": {f"{freed}:free" for freed in event.get("blocks", [])},
    }.get(event["event"], {f"{name}:queue"})


def first_steps(trace):
    """For each kind of event, the first step that has one."""
    kinds = {}
    for i, step in enumerate(trace["steps"]):
        for event in step["events"]:
            kinds.setdefault(event["event"], i)
    return kinds


@pytest.mark.parametrize("name", ["story", "batch"])
def test_every_event_moves_the_element_that_it_is_about_and_is_told(browser, tmp_path, name):
    trace = load_trace(name)
    table, steps = BlockTable(trace), first_steps(trace)
    assert name == "story" or "refuse" in steps  # between them, the two have every kind
    with open_page(browser) as page:
        for i in sorted(set(steps.values())):
            table.step = i - 1
            page.goto(page_of([table], tmp_path / "page.html"))
            step_is(page.locator(".nv-player"), i - 1)
            page.locator(".nv-player").focus()
            seen, moments = movements(page), replay(trace, i)
            assert [movement["kind"] for movement in seen] == [moment.event["event"] for moment in moments]
            for movement, (event, _) in zip(seen, moments, strict=True):
                assert movement["told"] == sentence_of(trace, i, event)
                assert movement["caption"] == table.caption(i)
                if "seq" in event:
                    assert expected_to_move(trace, event) <= set(movement["changed"]), (i, event, movement)
            sentences = list(dict.fromkeys(sentence_of(trace, i, event) for event, _ in moments))
            for movement in seen:  # read out as it begins, and each sentence once
                assert movement["said"] == sentences[: sentences.index(movement["told"]) + 1]
            assert page.evaluate(SAID) == sentences
            moved = page.evaluate(SHOWN)
            page.keyboard.press("ArrowLeft")
            assert not page.evaluate(IS_MOVING) and page.evaluate("() => document.getAnimations().length") == 0
            page.get_by_role("slider").press("End")
            page.evaluate(f"() => document.querySelector('.nv-player input').value = {i}")
            page.get_by_role("slider").dispatch_event("input")
            assert page.evaluate(SHOWN) == moved
        assert page.errors == []


def test_a_shared_block_gets_a_link_and_a_block_flies_with_nothing_shining_through(browser, story, tmp_path):
    table = BlockTable(story)
    table.step = 2
    with open_page(browser) as page:
        page.goto(page_of([table], tmp_path / "page.html"))
        step_is(page.locator(".nv-player"), 2)
        page.locator(".nv-player").focus()
        seen = {movement["kind"]: movement["changed"] for movement in movements(page)}
        assert "link" in seen["share"] and "link" in seen["arrive"] and "link" not in seen["append"]
        assert page.locator(".nv-motion").count() == 0


def test_what_no_movement_tells_is_read_out_too_and_nothing_twice(browser, story, tmp_path):
    """A verdict before the first movement, a mistake after the last; of players that go together, only one speaks."""
    broken = load_trace("story")
    broken["steps"][3]["after"]["free"].pop()
    table, timeline = BlockTable(broken, predict=True), Timeline(story)
    timeline.follow(table)
    table.step = 2
    with open_page(browser) as page:
        page.goto(page_of([table, timeline], tmp_path / "page.html"))
        player, other = page.locator(".nv-player").all()
        step_is(other, 2)
        assert page.evaluate(SAID) == []  # nobody asked
        player.focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate(SAID) == [player.locator(".nv-caption").text_content()]  # the question
        page.get_by_role("textbox").fill("9")
        page.keyboard.press("Enter")
        step_is(other, 3)
        while page.evaluate(IS_MOVING):
            page.evaluate("() => document.getAnimations().forEach((animation) => animation.finish())")
        said = page.evaluate(SAID)
        assert said[:2] == ["You said 9; it is 8.", sentence_of(broken, 3, broken["steps"][3]["events"][0])]
        assert said[-1].startswith("Wrong here: ") and len(said) == len(set(said))
        assert len(said) == 2 + len({sentence_of(broken, 3, event) for event, _ in replay(broken, 3)})
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Home")
        assert page.evaluate(SAID) == [table.caption(0)]
        assert page.errors == []


def test_the_playhead_glides_from_step_to_step(browser, story, tmp_path):
    timeline = Timeline(story)
    place = "() => document.querySelector('[data-cursor]').getBoundingClientRect().x"
    with open_page(browser) as page:
        page.goto(page_of([timeline], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        step_is(player, timeline.step)
        player.focus()
        before = page.evaluate(place)
        page.keyboard.press("ArrowRight")
        moving = page.evaluate(HELD)
        assert moving["changed"] and moving["said"] == [timeline.caption(timeline.step + 1)]
        held = page.evaluate(place)
        page.evaluate(LET_GO)
        assert before < held < page.evaluate(place)
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("() => document.getAnimations().length") == 0 and page.evaluate(place) == before
        page.emulate_media(reduced_motion="reduce")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("() => document.getAnimations().length") == 0 and page.evaluate(place) > held


def test_the_state_of_a_sequence_and_its_blocks_move(browser, story, tmp_path):
    life = SequenceView(story, "C")
    with open_page(browser) as page:
        life.step = life.bookmarks["preemption"] - 1
        page.goto(page_of([life], tmp_path / "page.html"))
        step_is(page.locator(".nv-player"), life.step)
        page.locator(".nv-player").focus()
        (seen,) = movements(page)
        assert {"state", "block 0", "block 1"} <= set(seen["changed"])
        expect(page.locator('[data-current="1"]')).to_have_attribute("data-state", "WAITING")


def test_nothing_moves_if_motion_is_to_be_reduced(browser, story, tmp_path):
    table = BlockTable(story)
    table.step = 0
    with open_page(browser) as page:
        page.emulate_media(reduced_motion="reduce")
        page.goto(page_of([table], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        step_is(player, 0)
        player.focus()
        for i in range(1, table.num_steps):
            page.keyboard.press("ArrowRight")
            found = page.evaluate(
                "() => [document.getAnimations().length, document.querySelectorAll('.nv-motion,[data-now]').length]"
            )
            assert found == [0, 0] and not page.evaluate(IS_MOVING)
            assert page.locator(".nv-caption").text_content() == table.caption(i)
            assert page.evaluate(SAID) == [table.caption(i)]
            blocks = page.locator("g[data-b]").evaluate_all(
                "all => all.map((g) => [g.dataset.b, Number(g.dataset.ref)])"
            )
            assert dict(blocks) == {b: story["steps"][i]["after"]["ref"].get(b, 0) for b, _ in blocks}


def test_whoever_steps_on_ends_the_movement_at_once(browser, story, tmp_path):
    """No queue: only the last step may still move, and what is shown in the end is that step."""
    table = BlockTable(story)
    table.step = 0
    with open_page(browser) as page:
        page.goto(page_of([table], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        step_is(player, 0)
        player.focus()
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        step_is(player, 4)
        assert page.evaluate("() => document.querySelector('.nv-player').dataset.moving") == "arrive"
        assert page.locator(".nv-motion").count() == 1
        page.keyboard.press("ArrowLeft")
        assert not page.evaluate(IS_MOVING) and page.locator(".nv-motion").count() == 0
        step_is(player, 3)
        expect(player.locator('g[data-b="0"]')).to_have_attribute("data-ref", "2")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("End")
        assert not page.evaluate(IS_MOVING)
        assert page.evaluate("() => document.getAnimations().length") == 0
        assert page.errors == []


def test_playing_waits_for_the_movement(browser, story, tmp_path):
    table = BlockTable(story)
    table.step = 2
    with open_page(browser) as page:
        page.clock.install()
        page.goto(page_of([table], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        step_is(player, 2)
        page.get_by_role("button", name="play", exact=True).click()
        page.clock.run_for(950)
        step_is(player, 3)
        page.wait_for_function("() => document.getAnimations().length")
        page.evaluate("() => document.getAnimations().forEach((animation) => animation.pause())")
        page.clock.run_for(5_000)
        step_is(player, 3)
        page.evaluate("() => document.getAnimations().forEach((animation) => animation.play())")
        page.wait_for_function("() => !('moving' in document.querySelector('.nv-player').dataset)")
        page.clock.run_for(950)
        step_is(player, 4)


def test_the_first_look_is_stepped_through_in_ten_seconds(browser, tmp_path):
    """By one key, at whatever pace: words fly into memory, and the end is all texts."""
    look = FirstLook(load_trace("first_look"))
    with open_page(browser) as page:
        page.goto(page_of([look], tmp_path / "page.html"))
        player = page.locator(".nv-player")
        step_is(player, 0)
        assert player.bounding_box()["height"] <= 600
        player.focus()
        seen = movements(page)
        assert [movement["kind"] for movement in seen] == ["arrive", "admit", "compute"]
        assert {f"A{k}>{k // 4}" for k in range(9)} | {"A9"} <= set(seen[-1]["changed"])
        for step in range(2, look.num_steps):
            page.keyboard.press("ArrowRight")
            step_is(player, step)
        expect(page.locator(".nv-caption")).to_have_text(look.caption(look.num_steps - 1))
        assert page.errors == [] and look.num_steps <= 10
