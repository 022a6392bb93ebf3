"""What is drawn is what the trace says."""

import copy
import itertools
import random
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from nanovllm.config import Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.engine.trace import as_hex
from nanovllm.sampling_params import SamplingParams
from nanovllm.viz.block_table import (
    block_states,
    describe_step,
    draw_pool,
    draw_tables,
    find_bookmarks,
    lay_out,
    legend_of,
    most_telling_step,
    what_changed,
)
from nanovllm.viz.drawing import VERMILION, fit, visible
from nanovllm.viz.record import record_scheduler
from nanovllm.viz.timeline import (
    STAGE_WIDTH,
    WIDTH,
    draw_lanes,
    draw_strips,
    edges,
    lane_bars,
    lane_legend,
    strips,
    totals,
)
from nanovllm.viz.trace import complete_events, load_trace, name_of, owners
from nanovllm.viz.widgets import BlockTable

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
        tables, pool = draw_tables(trace, i, lay_out(trace)), draw_pool(trace, i, lay_out(trace))
        pool = {int(group["b"]): group for group in groups(pool, "b")}
        assert sorted(pool) == list(range(trace["config"]["num_blocks"]))
        for block_id, group in pool.items():
            ref = after["ref"].get(str(block_id), 0)
            assert int(group["ref"]) == ref
            assert (group["state"] in ("free", "cached")) == (block_id in after["free"])
            assert (group["state"] == "shared") == (ref > 1)
            names = [name_of(trace, seq_id) for seq_id in owners(after).get(block_id, [])]
            assert group["owners"] == (" ".join(names) or "-")
        drawn = {}
        for group in groups(tables, "logical"):
            drawn.setdefault(group["owners"], []).append(int(group["physical"]))
        expected = {name_of(trace, s): seq["table"] for s, seq in after["seqs"].items() if seq["table"]}
        assert drawn == expected
        assert {group["row"] for group in groups(tables, "row")} == {s["name"] for s in trace["seqs"].values()}


@pytest.mark.parametrize(("block_size", "pool"), [(4, 10), (16, 8), (2, 40)])
def test_frames_show_an_engine_that_is_stepped_beside_them(block_size, pool):
    """A second engine makes the same steps, and nobody records it; each frame shows what it holds then."""
    options = {"max_model_len": block_size * pool, "kvcache_block_size": block_size, "num_kvcache_blocks": pool}
    config = Config("qwen3-tiny", max_num_seqs=3, max_num_batched_tokens=24, device="cpu", **options)
    rng = random.Random(block_size)
    common = [rng.randrange(5) for _ in range(2 * block_size)]
    prompts = [common + [rng.randrange(5) for _ in range(rng.randint(1, 2 * block_size))] for _ in range(5)]
    params = SamplingParams(max_tokens=2 * block_size, ignore_eos=True)
    arrive = [0, 1, 1, 4, 9]
    trace = record_scheduler(Scheduler(config), config, prompts, params, arrive, seed=7)

    other, tokens, layout, seqs = Scheduler(config), random.Random(7), lay_out(trace), {}
    for i in range(1, len(trace["steps"])):
        while len(seqs) < len(prompts) and (arrive[len(seqs)] < i or other.is_finished()):
            seq = Sequence(prompts[len(seqs)], params, block_size, len(seqs))
            seqs["ABCDE"[len(seqs)]] = seq
            other.add(seq)
        scheduled, _ = other.schedule()
        other.postprocess(scheduled, [None if seq.is_cut else tokens.randrange(1, 1000) for seq in scheduled])
        manager, drawn = other.block_manager, {}
        for group in groups(draw_tables(trace, i, layout), "logical"):
            drawn.setdefault(group["owners"], []).append(int(group["physical"]))
        assert drawn == {name: seq.block_table for name, seq in seqs.items() if seq.block_table}
        picture = draw_pool(trace, i, layout)
        blocks = {int(group["b"]): group for group in groups(picture, "b")}
        assert {b: int(group["ref"]) for b, group in blocks.items()} == {
            block_id: block.ref_count for block_id, block in enumerate(manager.blocks)
        }
        assert [group["hash"] for _, group in sorted(blocks.items())] == [
            as_hex(block.hash) or "-" for block in manager.blocks
        ]
        (free,) = groups(picture, "free")
        assert free["free"].split() == [str(block_id) for block_id in manager.free_block_ids]
    assert other.is_finished()


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
    drawn = Counter(group["bar"] for group in groups(draw_lanes(trace), "bar"))
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
    assert re.search(r"E waits, refused: max_num_seqs sequences run already", draw_lanes(batch).svg())


def test_refusals_have_a_letter_for_their_reason_and_the_legend_names_it(batch):
    texts = [e.text for e in ElementTree.fromstring(draw_lanes(batch).svg()).iter("text")]
    assert {"s", "b", "h"} <= set(texts) and "r" not in texts
    words = {kind: words for kind, words, _ in lane_legend(batch)}
    assert words["s"] == "refused: max seqs" and words["b"] == "refused: no blocks"


def inside(drawing, block_id):
    """The element of a block of the pool."""
    return ElementTree.fromstring(drawing.svg()).find(f".//g[@data-b='{block_id}']")


def changes(trace, i):
    """The marks on the blocks of the pool, by block."""
    found = groups(draw_pool(trace, i, lay_out(trace)), "b")
    return {int(group["b"]): group["change"] for group in found if group["change"] != "-"}


def framed(trace, i):
    """Blocks with the thick orange border."""
    picture = draw_pool(trace, i, lay_out(trace))
    return [b for b in block_states(trace, i) if inside(picture, b).findall(f"rect[@stroke='{VERMILION}']")]


def test_new_blocks_and_further_owners_have_different_marks(story, batch):
    assert changes(story, 0) == {}
    assert changes(story, 3) == {0: "+B", 1: "+B", 3: "new"}
    assert framed(story, 3) == [3]
    assert changes(story, 10) == {4: "found", 5: "found", 6: "new"}
    assert framed(story, 10) == [6]
    assert changes(batch, 12)[11] == "new"  # taken from the preempted D in the same step
    words = [words for _, words, _ in legend_of(story, lay_out(story))]
    assert {"new in this step", "one more owner", "was free, found again"} <= set(words)


def shares_in_the_same_step(story):
    """A run in which B takes the blocks that A has only just taken, in the step in which both arrive."""
    step = copy.deepcopy(story["steps"][3])
    step["i"] = 1
    step["events"] = [{**event, "seq": 0} for event in story["steps"][1]["events"] if event["event"] == "append"]
    step["events"] += [event for event in story["steps"][3]["events"] if event["event"] != "arrive"]
    story["steps"] = [story["steps"][0], step]
    return story


def test_sharing_in_the_same_step_is_no_revival(story):
    assert "revival" in find_bookmarks(story)
    marks = find_bookmarks(shares_in_the_same_step(story))
    assert "revival" not in marks and marks["sharing"] == 1
    assert {what_changed(story, 1, b) for b in (0, 1, 3)} == {"new"}


def test_cached_blocks_still_show_their_tokens(story):
    def words(i, block_id):
        return [text.text for text in inside(draw_pool(story, i, lay_out(story)), block_id).iter("text")]

    texts = story["seqs"]["0"]["texts"]
    expected = [fit(visible(text.removeprefix(" ")), 46, 12) for text in texts[8:12]]
    assert words(9, 2) == ["#2 cached", *expected]
    assert words(0, 2) == ["#2 free"]
    assert words(13, 2)[0] == "#2 ref 1 B" and expected[0] not in words(13, 2)


def test_a_run_opens_where_most_happens_and_never_before_it_begins(story, batch):
    assert most_telling_step(story) == 9  # a preemption and a finish
    for trace in (story, batch, *(random_trace(seed) for seed in range(400, 410))):
        step = trace["steps"][most_telling_step(trace)]
        assert step["scheduled"] and step["kind"] != "init"


def test_a_failed_step_is_marked_as_failed(story):
    del story["steps"][9:]
    story["steps"].append({**story["steps"][8], "i": 9, "kind": "error", "events": [], "scheduled": []})
    story["error"] = "KeyError: 'seq'"
    for seq_id in story["seqs"]:
        assert lane_bars(story, seq_id)[-1]["kind"] == "failed"
    assert {group["bar"] for group in groups(draw_lanes(story), "at") if group["at"] == "9"} == {"failed"}
    assert "the step failed" in [words for _, words, _ in lane_legend(story)]
    texts = [e.text for e in ElementTree.fromstring(draw_tables(story, 9, lay_out(story)).svg()).iter("text")]
    assert texts.count("failed") == 3 and "running" not in texts


def test_the_free_list_says_how_much_is_left_out_and_only_then(story):
    def words(num_blocks):
        story["config"]["num_blocks"] = num_blocks
        story["steps"][0]["after"]["free"] = list(range(num_blocks))
        drawing = draw_pool(story, 0, lay_out(story))
        return [
            e.text for e in ElementTree.fromstring(drawing.svg()).iter("text") if re.search("next|more", e.text or "")
        ]

    assert words(8) == ["next →"]
    assert words(9) == ["next →"]
    first, text = words(64)
    assert first == "next →"
    shown = 64 - int(re.search(r"… and (\d+) more", text)[1])
    assert 8 <= shown <= 14


def test_the_playhead_is_a_column_under_the_marks(story):
    xs = edges(story, "step", 0.0, STAGE_WIDTH)
    picture = draw_lanes(story, width=STAGE_WIDTH, at=9)
    first = next(n for n, shape in enumerate(picture.shapes) if shape["kind"] == "rect")
    column = picture.shapes[first]
    assert (column["x"], column["w"]) == (xs[9], xs[10] - xs[9]) and len(column["fill"]) == 9  # with an alpha
    assert not any(shape["kind"] == "rect" for shape in picture.shapes[:first])
    bars = [g for g in ElementTree.fromstring(picture.svg()).iter("g") if g.get("data-at") == "9"]
    assert len(bars) == 3 and all(float(bar.find("rect").get("x")) == round(xs[9], 1) for bar in bars)


def test_time_has_round_marks(batch):
    texts = [e.text for e in ElementTree.fromstring(draw_strips(batch, "ms").svg()).iter("text")]
    numbers = [int(text) for text in texts if text.isdigit()]
    assert numbers == list(range(0, numbers[-1] + 1, numbers[1])) and numbers[1] in (50, 100, 200)
    assert len(numbers) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["story", "batch"])
def test_no_text_is_smaller_than_twelve_and_none_leaves_the_picture(name):
    trace = load_trace(name)
    for i in range(len(trace["steps"])):
        for picture in (draw_tables(trace, i, lay_out(trace)), draw_pool(trace, i, lay_out(trace)), draw_lanes(trace)):
            for shape in picture.shapes:
                if shape["kind"] == "text":
                    assert shape["size"] >= 12
                    assert 0 <= shape["x"] <= picture.width and 0 < shape["y"] <= picture.height


def test_lanes_and_tables_are_in_line_and_fit_beside_each_other(batch):
    lanes, tables = draw_lanes(batch, width=STAGE_WIDTH), draw_tables(batch, 12, lay_out(batch))
    assert lanes.width + tables.width + 12 <= WIDTH + 1
    known = {*"ABCDEF", "running", "waiting", "finished", "not here yet"}
    rows = [[s["y"] for s in p.shapes if s["kind"] == "text" and s["text"] in known] for p in (lanes, tables)]
    assert len(rows[0]) == len(rows[1]) == 6
    assert all(abs(a - b) <= 4 for a, b in zip(*rows, strict=True))


def test_derived_events_of_a_learners_engine_draw_the_same(story):
    plain = copy.deepcopy(story)
    for step in plain["steps"]:
        step["events"] = [event for event in step["events"] if event["event"] == "hash"]
    complete_events(plain)
    for i in range(len(story["steps"])):
        assert changes(plain, i) == changes(story, i)


def test_running_sequences_pause_while_others_prefill(story):
    kinds = {seq_id: {bar["step"]: bar["kind"] for bar in lane_bars(story, seq_id)} for seq_id in story["seqs"]}
    assert [kinds["0"][i] for i in (1, 2, 3, 4, 5)] == ["prefill", "decode", "paused", "paused", "decode"]
    assert [kinds["2"][i] for i in (8, 9, 10)] == ["decode", "waiting", "prefill"]


def test_what_is_not_as_in_another_run_is_marked(story):
    """By a frame, a sign and in words; a run that does the same has none of them."""
    theirs = copy.deepcopy(story)
    after = theirs["steps"][5]["after"]
    a, *_, b = (next(iter(seq["table"])) for seq in after["seqs"].values() if seq["table"])
    after["ref"][str(a)] += 1
    after["seqs"][next(iter(after["seqs"]))]["status"] = "FINISHED"
    after["free"].reverse()
    name = name_of(story, next(iter(after["seqs"])))
    table = BlockTable(theirs, beside=story)
    tables, pool = table.draw(5).drawings
    assert [group["b"] for group in groups(pool, "b") if group["other"] == "yes"] == [str(a)] != [str(b)]
    frames = {n: inside(pool, n).findall(f"rect[@stroke='{VERMILION}'][@stroke-dasharray]") for n in (a, b)}
    assert len(frames[a]) == 1 and not frames[b]
    texts = [e.text for e in ElementTree.fromstring(pool.svg()).iter("text")]
    assert sum(text.startswith(f"≠ #{a} ref {after['ref'][str(a)]}") for text in texts) == 1
    assert "≠ Free list" in texts and "Running" in texts
    assert "≠ finished" in [e.text for e in ElementTree.fromstring(tables.svg()).iter("text")]
    assert f"Not as in the other run (≠): #{a}, {name}, Free list." in table.caption(5)
    assert "≠" not in table.caption(4) + table.draw(4).drawings[1].svg()
    assert "not as in the other run" in table.draw(4).below
    same = BlockTable(story, beside=copy.deepcopy(story))
    assert "≠" not in "".join(same.caption(i) + same.draw(i).html() for i in range(same.num_steps))


def test_a_run_that_ended_early_is_compared_as_far_as_it_goes(story):
    short = copy.deepcopy(story)
    short["steps"] = short["steps"][:5]
    assert "≠" not in "".join(BlockTable(story, beside=short).caption(i) for i in range(len(story["steps"])))
    assert BlockTable(short, complete=False, beside=story).num_steps == 5
