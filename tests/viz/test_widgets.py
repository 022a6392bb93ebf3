"""The widgets without a front end: state, controls, and what they put into a notebook."""

import base64
import copy
import gzip
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanovllm import SamplingParams, viz
from nanovllm.config import Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.viz.drawing import VERMILION, color_of
from nanovllm.viz.memory import MemoryBudget
from nanovllm.viz.player import PlayerData, html_player
from nanovllm.viz.prefix import ENTRIES, SHARED, STORED
from nanovllm.viz.record import record_scheduler
from nanovllm.viz.widgets import BlockSizeExplorer, BlockTable, PrefixExplorer, PrefixSimulation, SequenceView, Timeline

KINDS = ("text/html", "image/png", "text/plain")
ROOT = Path(viz.__file__).parents[2]


@pytest.fixture
def words():
    """A tokenizer without files: a token a word."""

    class Words:
        def __init__(self):
            self.known = []

        def encode(self, text):
            for word in text.split():
                if word not in self.known:
                    self.known.append(word)
            return [self.known.index(word) for word in text.split()]

        def decode(self, token_ids):
            return " ".join(self.known[token_id] for token_id in token_ids)

    return Words()


def make(name, words=None):
    story = viz.load_trace("story")
    return {
        "BlockTable": lambda: BlockTable(story),
        "BlockTable predicting": lambda: BlockTable(story, predict=True),
        "BlockTable of the batch": lambda: BlockTable(viz.load_trace("batch")),
        "DataFlow": lambda: viz.DataFlow(story),
        "SequenceView": lambda: SequenceView(story, "C"),
        "Timeline": lambda: Timeline(viz.load_trace("batch"), compare={"story": story}),
        "PrefixExplorer": lambda: PrefixExplorer(words),
        "BlockSizeExplorer": lambda: BlockSizeExplorer(),
        "MemoryBudget": lambda: MemoryBudget(),
        "PrefixSimulation": lambda: PrefixSimulation(num_requests=20),
    }[name]()


NAMES = (
    "BlockTable",
    "BlockTable predicting",
    "BlockTable of the batch",
    "DataFlow",
    "SequenceView",
    "Timeline",
    "PrefixExplorer",
    "BlockSizeExplorer",
    "MemoryBudget",
    "PrefixSimulation",
)


def player_data(markup):
    packed = re.search(r'<script type="application/gzip">([^<]*)</script>', markup).group(1)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.mark.parametrize("name", NAMES)
def test_bundle_has_all_forms_and_stays_small(name, words):
    widget = make(name, words)
    data = widget._repr_mimebundle_()
    assert set(KINDS) == set(data)
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert all(len(str(data[kind])) < 300_000 for kind in KINDS)
    player = player_data(data["text/html"])
    assert len(player["frames"]) == len(player["captions"]) == len(player["labels"]) == widget.num_steps
    assert player["footer"] == widget.footer() != ""
    assert player["start"] == widget.step
    assert widget.caption(widget.still_steps()[0]) in data["text/plain"] or name == "Timeline"


@pytest.mark.slow
def test_a_long_run_stays_small_and_whole():
    config = Config("qwen3-tiny", max_model_len=512, kvcache_block_size=16, num_kvcache_blocks=64, device="cpu")
    rng = random.Random(0)
    prompts = [[rng.randrange(9) for _ in range(rng.randint(20, 200))] for _ in range(8)]
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    trace = record_scheduler(Scheduler(config), config, prompts, params, arrive=[5 * n for n in range(8)])
    table = BlockTable(trace)
    data = table._repr_mimebundle_()
    assert table.num_steps > 80
    assert len(data["text/html"]) + len(data["image/png"]) < 500_000
    player = player_data(data["text/html"])
    for step in (0, 40, table.num_steps - 1):
        assert "".join(player["parts"][part] for part in player["frames"][step]) == table.draw(step).html()


@pytest.mark.parametrize("name", NAMES)
def test_pages_name_no_address(name, words):
    """Nothing is fetched: no address stands anywhere in the page, nor in what is packed in it."""
    markup = make(name, words).html(b"")
    assert not re.search(r"https?:|//cdn|src=|@import|url\(", markup + json.dumps(player_data(markup)))


def test_the_step_is_checked(story):
    widget = BlockTable(story)
    widget.step = 3
    assert player_data(widget.html(b""))["start"] == widget.step == 3
    for wrong in (-1, 15):
        with pytest.raises(ValueError, match="step must be from 0 to 14"):
            widget.step = wrong


class Outputs:
    """What a notebook would show: the bundles of all outputs, by their handles."""

    def __init__(self, monkeypatch):
        import IPython.display

        self.shown = []
        monkeypatch.setattr(IPython.display, "display", self.display)

    def display(self, bundle, raw, display_id=None):
        assert raw
        self.shown.append(bundle)
        number = len(self.shown) - 1
        return SimpleNamespace(update=lambda bundle, raw: self.shown.__setitem__(number, bundle))


def test_what_is_shown_follows_the_step_that_python_sets(story, monkeypatch):
    outputs = Outputs(monkeypatch)
    table, timeline = BlockTable(story), Timeline(story)
    timeline.follow(table)
    table._ipython_display_()
    timeline._ipython_display_()
    timeline.step = 5
    assert [player_data(bundle["text/html"])["start"] for bundle in outputs.shown] == [5, 5]
    assert table.step == timeline.step == 5


def test_recorded_steps_need_no_widget_and_no_kernel(story):
    """The output has no model that a restarted kernel would not know."""
    for widget in (BlockTable(story), Timeline(story), SequenceView(story, "C"), BlockSizeExplorer()):
        assert set(widget._repr_mimebundle_()) == set(KINDS)
    code = "import sys; from nanovllm.viz import BlockTable, Timeline, load_trace; story = load_trace('story');"
    code += "BlockTable(story).html(b''), Timeline(story).html(b''); sys.exit('ipywidgets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_live_pictures_leave_a_player_that_stands_in_for_them(words, monkeypatch):
    outputs = Outputs(monkeypatch)
    explorer = PrefixExplorer(words, block_size=2, presets={"pair": ("a b c d e f", "a b c d x f")})
    explorer._ipython_display_()
    view, stand_in = outputs.shown
    assert "application/vnd.jupyter.widget-view+json" in view and view["text/html"] == view["text/plain"] == ""
    assert set(stand_in) == set(KINDS) and f"data-live={explorer.live_class}" in stand_in["text/html"]
    assert explorer.live_class in explorer.panel._dom_classes
    explorer.areas[1].value = "z b c d x f"
    saved = player_data(outputs.shown[1]["text/html"])
    assert saved["labels"] == ["your texts"] and "B: 0 of 6 tokens" in saved["captions"][0]


def test_one_step_for_block_table_and_timeline(story):
    table, timeline = BlockTable(story), Timeline(story)
    timeline.follow(table)
    table.step = 9
    assert timeline.step == 9
    timeline.step = 3
    assert table.step == 3
    groups = {player_data(widget.html(b""))["group"] for widget in (table, timeline)}
    assert len(groups) == 1 and groups != {""}


@pytest.mark.parametrize("unit", ["step", "ms"])
def test_the_playhead_covers_the_column_of_the_step(story, unit):
    timeline = Timeline(story, time_unit=unit)
    (view,) = [view for view in player_data(timeline.html(b""))["views"] if view["name"] == unit]
    bar = re.search(
        r'data-bar="decode" data-at="9"[^>]*>.*?<rect x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)"', view["base"]
    )
    assert float(bar.group(1)) == view["x"][9] and float(bar.group(2)) == pytest.approx(view["widths"][9], abs=0.06)


def test_timeline_offers_measured_time_and_opens_with_the_one_asked_for(story):
    views = player_data(Timeline(story).html(b""))["views"]
    assert [view["name"] for view in views] == ["step", "ms"] and views[0]["base"] != views[1]["base"]
    assert player_data(Timeline(story, time_unit="ms").html(b""))["views"][0]["name"] == "ms"
    with pytest.raises(ValueError, match="unit must be"):
        Timeline(story, time_unit="days")
    story["steps"][3]["ms"] = None
    assert len(player_data(Timeline(story).html(b""))["views"]) == 1


def test_questions_and_their_answers_go_with_the_player(story):
    widget = BlockTable(story, predict=True)
    questions = player_data(widget.html(b""))["questions"]
    assert questions["3"]["question"].startswith("B is admitted in step 3.") and questions["3"]["answer"] == "8"
    assert 3 not in widget.still_steps() and 9 not in widget.still_steps()
    assert widget.step == 1  # before the first question
    widget.ask(5, "How many blocks are free?", lambda step: len(story["steps"][step]["after"]["free"]))
    assert widget.questions[5].answer == "2"
    with pytest.raises(ValueError, match="step must be from 0 to 14"):
        widget.ask(15, "?", 1)


def test_still_does_not_give_answers_away(story):
    widget = BlockTable(story, predict=True)
    assert "8 tokens in the cache (#0, #1)" not in widget.plain_text()


def test_a_wrong_run_opens_where_it_goes_wrong(story):
    broken = copy.deepcopy(story)
    broken["steps"][9]["after"]["free"].append(7)
    widget = BlockTable(broken)
    assert widget.step == 9
    assert "Wrong here: block 7 is free, but in the table of B." in widget.caption(9)
    assert next(iter(widget.bookmarks)) == "problem"
    assert "block 7 is free, but in the table of B" in widget.plain_text()


def test_a_run_that_raised_opens_at_its_end(story):
    del story["steps"][9:]
    story["steps"].append({**story["steps"][8], "i": 9, "kind": "error", "events": [], "scheduled": []})
    story["error"] = "KeyError: 'seq'"
    widget = BlockTable(story)
    assert widget.step == 9
    assert "The engine stopped here. Wrong here: the engine raised KeyError" in widget.caption(9)
    assert Timeline(story).step == 9


def test_provenance_is_in_every_form(story):
    for widget in (BlockTable(story), Timeline(story)):
        for part in ("qwen3-tiny", story["made"]["when"][:10], story["made"]["engine_commit"], "8 blocks of 4 tokens"):
            assert part in widget.plain_text() and part in player_data(widget.html(b""))["footer"]


def test_scripted_tokens_are_called_so(story):
    story["made"]["kind"] = "real-scheduler+scripted-tokens"
    assert "real scheduler, scripted tokens" in BlockTable(story).footer()


def test_explorer_follows_text_block_size_and_chaining(words):
    widget = PrefixExplorer(words, block_size=2, presets={"pair": ("a b c d e f", "a b c d x f"), "other": ("a", "b")})
    widget.make_panel()
    assert all(area.continuous_update for area in widget.areas)  # while one types
    assert [area.description for area in widget.areas] == ["A", "B"]
    assert "B: 4 of 6 tokens from the cache (67 %), 2 of 3 full blocks hit" in widget.text.value
    assert widget.view.value.count("parts here") == 1
    widget.areas[1].value = "z b c d x f"
    assert "B: 0 of 6 tokens from the cache" in widget.text.value and "your texts" in widget.text.value
    assert "false-hit" not in widget.view.value
    widget.chain.value = False
    assert "false-hit" in widget.view.value and "wrong answers" in widget.text.value
    widget.chain.value = True
    buttons = {button.description: button for button in widget.marks}
    buttons["pair"].click()
    assert widget.areas[1].value == "a b c d x f"
    widget.sizes.value = 4
    assert widget.block_size == 4
    assert "B: 4 of 6 tokens from the cache (67 %), 1 of 1 full blocks hit" in widget.text.value
    buttons["other"].click()
    assert widget.areas[0].value == "a" and "A: 0 of 1" in widget.text.value
    widget.areas[1].value = ""
    assert "B:" not in widget.text.value
    with pytest.raises(ValueError, match="block_size must be from 1 to 32, got 33"):
        PrefixExplorer(words, block_size=33)


def test_chained_and_unchained_hashes_are_a_static_pair_where_they_differ(words):
    pair = PrefixExplorer(
        words, block_size=2, presets={"parts early": ("a b c d e f", "z b c d x f"), "same": ("a b", "a b")}
    )
    data = player_data(pair.html(b""))
    frames = ["".join(data["parts"][part] for part in frame) for frame in data["frames"]]
    assert "Chained hashes" in frames[0] and "Unchained hashes" in frames[0] and "false-hit" in frames[0]
    assert "Unchained" not in frames[1]
    assert "If each block were hashed by itself" in data["captions"][0] and "wrong answers" in data["captions"][0]
    texts = [shape["text"] for shape in pair.still().shapes if shape["kind"] == "text"]
    assert "Chained hashes" in texts and "Unchained hashes" in texts


def test_explorer_escapes_what_is_typed(words):
    widget = PrefixExplorer(words, presets={"markup": ("<img src=x onerror=alert(1)>", "b")})
    widget.make_panel()
    assert "<img" not in widget.view.value and "<img" not in widget.draw(0).html()


def test_explorer_of_the_bundled_tokenizer_says_so():
    widget = PrefixExplorer()
    assert "tokenizer: qwen3-tiny" in widget.footer() and "the engine's BlockManager" in widget.footer()
    assert "a learner's BlockManager" in PrefixExplorer(compute_hash=lambda token_ids, prefix=-1: 1).footer()
    assert len({widget.caption(step) for step in range(widget.num_steps)}) == widget.num_steps


def test_block_size_explorer_marks_the_current_size_in_each_chart():
    widget = BlockSizeExplorer()
    assert widget.label(widget.step) == "block size 16"
    for step in (0, widget.step):
        charts = widget.draw(step).drawings[1].shapes
        frames = [n for n, shape in enumerate(charts) if shape.get("stroke") == VERMILION]
        sizes = [next(s["data"]["size"] for s in charts[n::-1] if s["kind"] == "begin") for n in frames]
        assert sizes == 3 * [widget.rows[step].block_size]
    assert "0 of them empty (0.0 %)" in widget.caption(0)


def test_colors_of_the_block_size_mean_one_thing():
    widget = BlockSizeExplorer()
    bars, charts = widget.draw(4).drawings
    fills = [{s["fill"] for s in p.shapes if s["kind"] == "rect" and s["fill"]} for p in (bars, charts)]
    assert fills == [{STORED, SHARED}, {ENTRIES, SHARED}]
    assert not fills[0] & {color_of(0)}  # no color of a sequence


def test_simulation_is_run_again_for_other_settings():
    widget = PrefixSimulation(num_requests=20)
    widget.make_panel()
    before = widget.simulation.prefill_tokens
    widget.shares.value = 0
    assert widget.simulation.prefill_tokens > before and widget.simulation.hit_rate() == 0
    widget.pool.value = 24
    assert "24 blocks of 16 tokens" in widget.footer()
    widget.arrived.value = 10
    assert "After 10 of 20 requests" in widget.text.value


def test_player_survives_any_text():
    text = '</script><script>alert("1")</script> & <b> ä 漢字'
    markup = html_player(PlayerData(text, [text], [text], [text], bookmarks=[(text, 0)], footer=text), b"png")
    assert markup.count("<script") == 2
    assert player_data(markup)["footer"] == text


def test_widgets_are_loaded_only_when_asked_for():
    assert viz.BlockTable is BlockTable
    with pytest.raises(AttributeError, match="no attribute 'Blocktable'"):
        viz.Blocktable  # noqa: B018
