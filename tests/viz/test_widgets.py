"""The widgets without a front end: state, controls, and what they put into a notebook."""

import base64
import copy
import gzip
import json
import random
import re

import pytest
import traitlets

from nanovllm import SamplingParams, viz
from nanovllm.config import Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.viz.memory import MemoryBudget
from nanovllm.viz.player import PlayerData, html_player
from nanovllm.viz.record import record_scheduler
from nanovllm.viz.widgets import BlockSizeExplorer, BlockTable, PrefixExplorer, PrefixSimulation, SequenceView, Timeline

KINDS = ("application/vnd.jupyter.widget-view+json", "text/html", "image/png", "text/plain")


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
    data, _ = widget._repr_mimebundle_()
    assert set(KINDS) <= set(data)
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert all(len(str(data[kind])) < 300_000 for kind in KINDS)
    player = player_data(data["text/html"])
    assert len(player["frames"]) == len(player["captions"]) == len(player["labels"]) == widget.num_steps
    assert player["footer"] == widget.footer() != ""
    assert player["start"] == widget.step
    assert widget.caption(widget.still_steps()[0]) in data["text/plain"] or name == "Timeline"


def test_a_long_run_stays_small_and_whole():
    config = Config("qwen3-tiny", max_model_len=512, kvcache_block_size=16, num_kvcache_blocks=64, device="cpu")
    rng = random.Random(0)
    prompts = [[rng.randrange(9) for _ in range(rng.randint(20, 200))] for _ in range(8)]
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    trace = record_scheduler(Scheduler(config), config, prompts, params, arrive=[5 * n for n in range(8)])
    table = BlockTable(trace)
    data, _ = table._repr_mimebundle_()
    assert table.num_steps > 80
    assert len(data["text/html"]) + len(data["image/png"]) < 500_000
    player = player_data(data["text/html"])
    for step in (0, 40, table.num_steps - 1):
        assert "".join(player["parts"][part] for part in player["frames"][step]) == table.draw(step).drawing.svg()


@pytest.mark.parametrize("name", NAMES)
def test_pages_name_no_address(name, words):
    """Nothing is fetched: no address stands anywhere in the page, nor in what is packed in it."""
    markup = make(name, words).html(b"")
    assert not re.search(r"https?:|//cdn|src=|@import|url\(", markup + json.dumps(player_data(markup)))


def test_slider_step_and_buttons_are_one(story):
    widget = BlockTable(story)
    assert 'data-step="0"' in widget.view.value
    widget.slider.value = 9
    assert widget.step == 9
    assert 'data-step="9"' in widget.view.value
    assert "C is preempted" in widget.text.value
    widget.step = 3
    assert widget.slider.value == 3
    widget.next.click()
    assert widget.step == 4
    widget.previous.click()
    widget.previous.click()
    assert widget.step == 2
    widget.step = 0
    widget.previous.click()
    assert widget.step == 0
    widget.step = 14
    widget.next.click()
    assert widget.step == 14
    with pytest.raises(traitlets.TraitError, match="from 0 to 14"):
        widget.step = 15


def test_bookmarks_jump(story):
    widget = BlockTable(story)
    buttons = {button.description: button for button in widget.marks.children}
    buttons["preemption"].click()
    assert widget.step == 9
    buttons["revival"].click()
    assert widget.step == 10


def test_controls_have_names_for_screen_readers(story):
    widget = BlockTable(story)
    assert all(button.tooltip for button in (widget.previous, widget.next, widget.play, widget.submit))
    assert 'role="status" aria-live="polite"' in widget.text.value


def test_playing_needs_a_kernel(story):
    widget = BlockTable(story)
    widget.play.value = True
    assert widget.play.value is False


def test_one_cursor_for_block_table_and_timeline(story):
    table, timeline = BlockTable(story), Timeline(story)
    timeline.follow(table)
    table.step = 9
    assert timeline.step == 9
    timeline.slider.value = 3
    assert 'data-step="3"' in table.view.value
    groups = {player_data(widget.html(b""))["group"] for widget in (table, timeline)}
    assert len(groups) == 1 and groups != {""}


def test_the_cursor_stands_in_the_step(story):
    timeline = Timeline(story)
    timeline.step = 9
    x = float(re.search(r"--nv-x:([0-9.]+)", timeline.view.value).group(1))
    left = re.search(
        r'data-bar="decode" data-at="9"[^>]*>(?:<title>[^<]*</title>)?<rect x="([0-9.]+)"', timeline.base()
    )
    width = re.search(r'data-bar="decode" data-at="9"[^>]*>.*?width="([0-9.]+)"', timeline.base())
    assert float(left.group(1)) < x < float(left.group(1)) + float(width.group(1))


def test_timeline_can_show_measured_time(story):
    timeline = Timeline(story)
    before = timeline.view.value
    timeline.in_ms.value = True
    assert timeline.time_unit == "ms" and "milliseconds" in timeline.view.value and timeline.view.value != before
    with pytest.raises(ValueError, match="unit must be"):
        Timeline(story, time_unit="days")


def test_prediction_hides_the_step_until_answered(story):
    widget = BlockTable(story, predict=True)
    widget.step = 3
    assert 'data-step="2"' in widget.view.value  # what was before stays visible, to think with
    assert "Predict: B is admitted in step 3." in widget.text.value
    assert widget.question.layout.display == "flex"
    widget.guess.value = "  "
    widget.submit.click()
    assert widget.step not in widget.answers
    widget.guess.value = "4"
    widget.submit.click()
    assert 'data-step="3"' in widget.view.value
    assert "You said 4; it is 8." in widget.text.value
    assert widget.question.layout.display == "none"
    assert 3 not in widget.still_steps() and 9 not in widget.still_steps()


def test_right_answers_are_told_so(story):
    widget = BlockTable(story)
    widget.ask(5, "How many blocks are free?", lambda step: len(story["steps"][step]["after"]["free"]))
    widget.step = 5
    widget.answer("2.0")
    assert "Right: 2." in widget.text.value
    widget.ask(9, "Who goes?", "C")
    widget.step = 9
    widget.answer("c")
    assert "Right: C." in widget.text.value
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
    assert "Wrong here: block 7 is free, but in the table of B." in widget.text.value
    assert next(iter(widget.bookmarks)) == "problem"
    assert "block 7 is free, but in the table of B" in widget.plain_text()


def test_a_run_that_raised_opens_at_its_end(story):
    del story["steps"][9:]
    story["steps"].append({**story["steps"][8], "i": 9, "kind": "error", "events": [], "scheduled": []})
    story["error"] = "KeyError: 'seq'"
    widget = BlockTable(story)
    assert widget.step == 9
    assert "The engine stopped here. Wrong here: the engine raised KeyError" in widget.text.value
    assert Timeline(story).step == 9


def test_provenance_is_in_every_form(story):
    for widget in (BlockTable(story), Timeline(story)):
        for part in ("qwen3-tiny", story["made"]["when"][:10], story["made"]["engine_commit"], "8 blocks of 4 tokens"):
            assert part in widget.note.value and part in widget.plain_text() and part in widget.footer()


def test_scripted_tokens_are_called_so(story):
    story["made"]["kind"] = "real-scheduler+scripted-tokens"
    assert "real scheduler, scripted tokens" in BlockTable(story).footer()


def test_explorer_follows_text_block_size_and_chaining(words):
    widget = PrefixExplorer(words, block_size=2, presets={"pair": ("a b c d e f", "a b c d x f"), "other": ("a", "b")})
    assert "B: 4 of 6 tokens from the cache (67 %), 2 of 3 full blocks hit" in widget.text.value
    widget.areas[1].value = "z b c d x f"
    assert "B: 0 of 6 tokens from the cache" in widget.text.value
    widget.chain.value = False
    assert "false-hit" in widget.view.value and "wrong answers" in widget.text.value
    widget.chain.value = True
    buttons = {button.description: button for button in widget.marks.children}
    buttons["pair"].click()
    assert widget.areas[1].value == "a b c d x f"
    widget.sizes.value = 4
    assert widget.block_size == 4
    assert "B: 4 of 6 tokens from the cache (67 %), 1 of 1 full blocks hit" in widget.text.value
    buttons["other"].click()
    assert widget.areas[0].value == "a" and "A: 0 of 1" in widget.text.value
    widget.areas[1].value = ""
    assert "B:" not in widget.text.value


def test_explorer_escapes_what_is_typed(words):
    widget = PrefixExplorer(words, presets={"markup": ("<img src=x onerror=alert(1)>", "b")})
    assert "<img" not in widget.view.value


def test_explorer_of_the_bundled_tokenizer_says_so():
    widget = PrefixExplorer()
    assert "tokenizer: qwen3-tiny" in widget.footer() and "the engine's BlockManager" in widget.footer()
    assert "a learner's BlockManager" in PrefixExplorer(compute_hash=lambda token_ids, prefix=-1: 1).footer()
    assert len({widget.caption(step) for step in range(widget.num_steps)}) == widget.num_steps


def test_block_size_explorer_marks_the_current_row():
    widget = BlockSizeExplorer()
    assert widget.label(widget.step) == "block size 16"
    assert "<tr aria-current=true><td>16</td>" in widget.view.value
    widget.step = 0
    assert "0 of them empty (0.0 %)" in widget.text.value


def test_simulation_is_run_again_for_other_settings():
    widget = PrefixSimulation(num_requests=20)
    before = widget.simulation.prefill_tokens
    widget.shares.value = 0
    assert widget.simulation.prefill_tokens > before and widget.simulation.hit_rate() == 0
    widget.pool.value = 24
    assert "24 blocks of 16 tokens" in widget.footer()
    widget.step = 4
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
