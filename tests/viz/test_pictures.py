"""What is drawn is what the trace says."""

import itertools
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from nanovllm.viz.block_table import block_states, describe_step, draw_blocks, find_bookmarks
from nanovllm.viz.drawing import VERMILION, fit, visible
from nanovllm.viz.timeline import cursor_positions, draw_timeline, edges, lane_bars, strips, totals
from nanovllm.viz.trace import load_trace, name_of, owners

from .conftest import random_trace


def groups(drawing, key):
    """The data attributes of all groups that have `key`."""
    root = ElementTree.fromstring(drawing.svg())
    found = [{k.removeprefix("data-"): v for k, v in g.attrib.items()} for g in root.iter("g")]
    return [group for group in found if key in group]


@pytest.mark.parametrize("seed", range(100, 106))
def test_block_table_shows_the_state_of_every_block_and_sequence(seed):
    trace = random_trace(seed)
    for i in range(0, len(trace["steps"]), 3):
        after = trace["steps"][i]["after"]
        picture = draw_blocks(trace, i)
        pool = {int(group["b"]): group for group in groups(picture, "b")}
        assert sorted(pool) == list(range(trace["config"]["num_blocks"]))
        for block_id, group in pool.items():
            ref = after["ref"].get(str(block_id), 0)
            assert int(group["ref"]) == ref
            assert (group["state"] in ("free", "cached")) == (block_id in after["free"])
            assert (group["state"] == "shared") == (ref > 1)
            names = [name_of(trace, seq_id) for seq_id in owners(after).get(block_id, [])]
            assert group["owners"] == (" ".join(names) or "-")
        tables = {}
        for group in groups(picture, "logical"):
            tables.setdefault(group["owners"], []).append(int(group["physical"]))
        expected = {name_of(trace, s): seq["table"] for s, seq in after["seqs"].items() if seq["table"]}
        assert tables == expected
        assert {group["row"] for group in groups(picture, "row")} == {s["name"] for s in trace["seqs"].values()}


def test_states_of_the_story(story):
    assert block_states(story, 3)[0] == "shared"
    assert block_states(story, 9)[2] == "cached"
    assert block_states(story, 9)[6] == "free"
    assert block_states(story, 9)[7] == "used"


def test_captions_of_the_story_tell_what_happens(story):
    assert describe_step(story, 0) == "Start: nothing has been computed yet."
    assert describe_step(story, 3) == "Prefill: B 1 token. B finds 8 tokens in the cache (#0, #1) and takes block #3."
    assert "C is preempted: it gives its blocks back and waits." in describe_step(story, 9)
    assert describe_step(story, 10).startswith("Prefill: C 1 token. C finds 8 tokens in the cache (#4, #5)")
    assert "What #2 had cached is lost." in describe_step(story, 13)


def test_bookmarks_lead_to_the_moments(story, batch):
    marks = {"sharing": 3, "preemption": 9, "first finish": 9, "revival": 10, "eviction": 13}
    assert find_bookmarks(story) == marks
    kinds = {"sharing": "share", "eviction": "evict", "preemption": "preempt", "refusal": "refuse", "revival": "share"}
    for name, step in find_bookmarks(batch).items():
        events = [event["event"] for event in batch["steps"][step]["events"]]
        assert kinds.get(name, events[0]) in events
    assert find_bookmarks(batch)["cut prompt"] == 1


@pytest.mark.parametrize("seed", range(200, 206))
def test_lanes_show_every_token_and_never_overlap(seed):
    trace = random_trace(seed)
    bars = {seq_id: lane_bars(trace, seq_id) for seq_id in trace["seqs"]}
    for lane in bars.values():
        steps = [bar["step"] for bar in lane]
        assert steps == list(range(steps[0], steps[-1] + 1))  # one bar a step, without holes
    for step in trace["steps"]:
        at = [bar for lane in bars.values() for bar in lane if bar["step"] == step["i"]]
        assert sum(bar["n"] for bar in at) == sum(item["n"] for item in step["scheduled"])
        assert sum(bar["kind"] in ("prefill", "decode") for bar in at) == len(step["scheduled"])
    events = Counter(event["event"] for step in trace["steps"] for event in step["events"])
    marks = Counter(mark.split(":")[0] for lane in bars.values() for bar in lane for mark in bar["marks"])
    assert marks == {kind: events[kind] for kind in ("preempt", "finish", "refuse") if events[kind]}
    drawn = Counter(group["bar"] for group in groups(draw_timeline(trace), "bar"))
    assert drawn == Counter(bar["kind"] for lane in bars.values() for bar in lane)


def test_strips_add_up(batch):
    rows, config = strips(batch), batch["config"]
    for i, step in enumerate(batch["steps"]):
        assert rows["used"][i] + rows["cached"][i] + rows["free"][i] == config["num_blocks"]
        assert rows["tokens"][i] == sum(item["n"] for item in step["scheduled"])
        assert rows["running"][i] + rows["waiting"][i] == len(step["after"]["seqs"])


def test_time_makes_steps_as_wide_as_they_took(batch):
    xs = edges(batch, "ms")
    widths = [b - a for a, b in itertools.pairwise(xs)]
    ratio = widths[1] / batch["steps"][1]["ms"]
    for width, step in zip(widths[1:], batch["steps"][1:], strict=True):
        assert width == pytest.approx(ratio * step["ms"])
    assert all(a < x < b for a, x, b in zip(xs[1:], cursor_positions(batch, "ms")[1:], xs[2:], strict=False))
    with pytest.raises(ValueError, match="unit must be"):
        edges(batch, "seconds")
    batch["steps"][3]["ms"] = None
    with pytest.raises(ValueError, match="no times"):
        edges(batch, "ms")


def test_totals_of_the_story(story):
    # A waits for nobody: its first token comes in the step before which it arrived.
    assert totals(story) == {
        "steps": 14,
        "mean_ttft": 1.0,
        "mean_tpot": pytest.approx((8 / 6 + 11 / 9 + 9 / 8) / 3),
        "preemptions": 1,
        "computed": 9 + 1 + 4 + 1,
        "cached": 8,
        "recomputed": 1,
    }


def test_totals_count_what_was_computed_again():
    for name in ("story", "batch"):
        trace = load_trace(name)
        admits = [e for step in trace["steps"] for e in step["events"] if e["event"] == "admit"]
        seen, again = set(), 0
        for event in admits:
            again += event["new"] if event["seq"] in seen else 0
            seen.add(event["seq"])
        assert totals(trace)["recomputed"] == again


def test_tooltips_say_why_somebody_was_refused(batch):
    svg = draw_timeline(batch).svg()
    assert re.search(r"E waits, refused: max_num_seqs sequences run already", svg)


def inside(drawing, block_id):
    """The element of a block of the pool."""
    return ElementTree.fromstring(drawing.svg()).find(f".//g[@data-b='{block_id}']")


def new_blocks(trace, i):
    """Blocks with the thick orange border."""
    picture = draw_blocks(trace, i)
    return [b for b in block_states(trace, i) if inside(picture, b).findall(f"rect[@stroke='{VERMILION}']")]


def test_what_changed_is_marked(story, batch):
    assert new_blocks(story, 0) == []
    assert new_blocks(story, 3) == [0, 1, 3]
    assert new_blocks(story, 6) == []
    assert new_blocks(story, 10) == [4, 5, 6]
    assert new_blocks(batch, 12) == [11]  # taken from the preempted D in the same step


def test_cached_blocks_still_show_their_tokens(story):
    def words(i, block_id):
        return [text.text for text in inside(draw_blocks(story, i), block_id).findall("text")]

    texts = story["seqs"]["0"]["texts"]
    expected = [fit(visible(text.removeprefix(" ")), 40, 10) for text in texts[8:12]]
    assert words(9, 2) == ["#2 cached", *expected]
    assert words(0, 2) == ["#2 free"]
    assert words(13, 2)[0] == "#2 ref 1 B" and expected[0] not in words(13, 2)


def test_running_sequences_pause_while_others_prefill(story):
    kinds = {seq_id: {bar["step"]: bar["kind"] for bar in lane_bars(story, seq_id)} for seq_id in story["seqs"]}
    assert [kinds["0"][i] for i in (1, 2, 3, 4, 5)] == ["prefill", "decode", "paused", "paused", "decode"]
    assert [kinds["2"][i] for i in (8, 9, 10)] == ["decode", "waiting", "prefill"]
