"""One sequence drawn: what stands in its picture is what the trace says of it."""

import itertools
import xml.etree.ElementTree as ElementTree

import pytest

from nanovllm.viz.sequence_view import describe_moment, draw_sequence, find_moments, moment
from nanovllm.viz.trace import state_before
from nanovllm.viz.widgets import SequenceView

from .conftest import random_trace


def groups(drawing, key):
    """The data attributes of all groups that have `key`."""
    root = ElementTree.fromstring(drawing.svg())
    found = [{k.removeprefix("data-"): v for k, v in g.attrib.items()} for g in root.iter("g")]
    return [group for group in found if key in group]


def kinds(drawing):
    """What is drawn for each slot, in order."""
    return [group["kind"] for group in groups(drawing, "kind") for _ in range(int(group["count"]))]


@pytest.mark.parametrize("seed", range(300, 308))
def test_every_slot_of_every_step_is_what_the_run_says(seed):
    trace = random_trace(seed)
    block_size = trace["config"]["block_size"]
    stored = dict.fromkeys(trace["seqs"], 0)
    for i, step in enumerate(trace["steps"]):
        for key, seq in trace["seqs"].items():
            events = {event["event"]: event for event in step["events"] if event["seq"] == int(key)}
            count = sum(item["n"] for item in step["scheduled"] if item["seq"] == int(key))
            start = events["admit"]["cached"] if "admit" in events else 0 if "preempt" in events else stored[key]
            stored[key] = start + count
            after = step["after"]["seqs"].get(key)
            picture = draw_sequence(trace, int(key), i)
            current = [group["state"] for group in groups(picture, "state") if group["current"] == "1"]
            if after is None and not count:
                assert kinds(picture) == []
                assert current == ([] if i < seq["arrive"] else ["FINISHED"])
                continue
            length = state_before(trace, i)["seqs"].get(key, {"len": len(seq["prompt_ids"])})["len"]
            is_cut = start + count < length
            expected = ["cached"] * start + ["scheduled"] * count + ["waiting"] * (length - start - count)
            expected += ["chosen"] * (count > 0 and not is_cut)
            drawn = kinds(picture)
            assert drawn[: len(expected)] == expected
            assert set(drawn[len(expected) :]) <= {"empty"} and len(drawn) % block_size == 0
            assert current == [after["status"] if after else "FINISHED"]
            if after:
                tables = [group["physical"] for group in groups(picture, "logical")]
                assert [name for name in tables if name != "none"] == [f"#{b}" for b in after["table"]]


def test_a_last_step_is_drawn_with_the_blocks_that_it_gives_back(story):
    last = find_moments(story, 0)["finish"]
    now = moment(story, 0, last)
    assert (now.status, now.scheduled, now.chosen) == ("FINISHED", 1, 1)
    before = state_before(story, last)["seqs"]["0"]["table"]
    assert list(now.table[: len(before)]) == before
    assert moment(story, 0, last + 1) == ("FINISHED", 0, 0, 0, 0, ())


def test_the_life_of_a_preempted_sequence_is_told(story):
    marks = find_moments(story, 2)
    assert list(marks) == ["first token", "a block more", "preemption", "starts over", "finish"]
    assert describe_moment(story, 2, 0) == "C has not arrived yet."
    kept = state_before(story, marks["preemption"])["seqs"]["2"]["len"]
    text = describe_moment(story, 2, marks["preemption"])
    assert text == f"C is preempted: it loses its blocks, keeps its {kept} tokens, and waits."
    assert moment(story, 2, marks["preemption"])[1:] == (0, 0, kept, 0, ())
    assert describe_moment(story, 2, marks["starts over"]).startswith("Prefill of C: 8 tokens are cached, 1 scheduled")
    assert "gives its blocks back" in describe_moment(story, 2, marks["finish"])


def test_a_cut_prompt_chooses_no_token(batch):
    cut = [(seq_id, find_moments(batch, int(seq_id)).get("cut")) for seq_id in batch["seqs"]]
    seq_id, step = next((int(seq_id), step) for seq_id, step in cut if step is not None)
    now = moment(batch, seq_id, step)
    assert now.scheduled and now.waiting and not now.chosen and now.status == "WAITING"
    assert "It is cut, so no token is chosen yet." in describe_moment(batch, seq_id, step)


def test_pictures_of_a_sequence_have_one_size(story):
    widget = SequenceView(story, "B")
    assert len({widget.draw(step).drawings[0].height for step in range(widget.num_steps)}) == 1
    assert all(x.width == y.width for x, y in itertools.pairwise(widget.draw(step).drawings[0] for step in range(3)))


def test_it_opens_where_the_sequence_arrives_or_where_something_is_wrong(story):
    assert [SequenceView(story, name).step for name in "ABC"] == [seq["arrive"] for seq in story["seqs"].values()]
    story["steps"][9]["after"]["free"].append(7)
    assert SequenceView(story, "C").step == 9
    assert "Wrong here: block 7 is free" in SequenceView(story, "C").caption(9)


def test_questions_are_about_what_is_hidden(story):
    widget = SequenceView(story, "C", predict=True)
    question, answer = widget.questions[find_moments(story, 2)["preemption"]]
    assert question.startswith("C has to give its blocks back.") and answer == "0"
    widget = SequenceView(story, "A", predict=True)
    step = find_moments(story, 0)["a block more"]
    assert widget.questions[step].answer == str(len(story["steps"][step]["after"]["seqs"]["0"]["table"]))


def test_an_unknown_sequence_is_answered_with_the_known_ones(story):
    with pytest.raises(ValueError, match="no sequence 'D', but A, B, C"):
        SequenceView(story, "D")
