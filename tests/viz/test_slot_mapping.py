"""SlotMapping: what it shows is what the model runner prepares."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.utils.context import get_context
from nanovllm.viz import SlotMapping, record
from nanovllm.viz.shapes import SMALL as SMALL_TEXT

from .conftest import random_trace

SMALL = {"kvcache_block_size": 4, "num_kvcache_blocks": 14, "max_model_len": 48, "max_num_seqs": 8, "device": "cpu"}


def groups_of(widget, step, name):
    """The data of all groups that have an attribute."""
    (drawing,) = widget.draw(step).drawings
    found = [group.attrib for group in ElementTree.fromstring(drawing.svg()).iter("g")]
    return [
        {key.removeprefix("data-"): value for key, value in data.items()} for data in found if f"data-{name}" in data
    ]


def test_positions_and_slots_are_those_of_the_runner():
    """Prefix hits, a prompt that is cut, and decodes."""
    llm = LLM(
        "qwen3-tiny", **SMALL, enable_prefix_caching=True, max_num_batched_tokens=10, disabled_optimizations="all"
    )
    runner, prepared = llm.llm_engine.model_runner, []

    def note(prepare):
        def call(seqs):
            ids, positions = prepare(seqs)
            slots = get_context().slot_mapping
            prepared.extend(zip(ids.tolist(), positions.tolist(), slots.tolist(), strict=True))
            return ids, positions

        return call

    runner.prepare_prefill, runner.prepare_decode = note(runner.prepare_prefill), note(runner.prepare_decode)
    prompts = ["Once upon a time there was a cat", "The sun was", "Once upon a time there was a dog"]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (4, 7, 3)]
    widget = SlotMapping(record(llm, prompts, params, arrive=[0, 0, 3]))
    assert [found.columns[found.k][1:] for found in widget.lookups] == prepared


@pytest.mark.parametrize("seed", range(5))
def test_every_lookup_is_told_and_drawn(seed):
    widget = SlotMapping(random_trace(seed))
    size = widget.trace["config"]["block_size"]
    for step in range(0, widget.num_steps, max(1, widget.num_steps // 12)):
        found = widget.lookups[step]
        numbers = [int(number) for number in re.findall(r"\d+", widget.caption(step).split(" at position ")[1])]
        position, index, _, rest, entry, block_id, *_, slot = numbers
        assert (position, entry, slot) == (found.position, index, found.slot)
        assert position == index * size + rest and slot == block_id * size + rest
        (now,) = (group for group in groups_of(widget, step, "slot") if group["now"] == "1")
        assert (int(now["slot"]), int(now["owner"])) == (found.slot, found.seq_id)
        (entry_now,) = (group for group in groups_of(widget, step, "entry") if group["now"] == "1")
        assert (int(entry_now["entry"]), int(entry_now["block"])) == (index, block_id)
        shown = " ".join(group["slots"] for group in groups_of(widget, step, "slots")).split()
        assert [int(slot) for slot in shown] == [column[3] for column in found.columns[: found.k + 1]]


def test_texts_are_large_enough_and_nothing_is_outside():
    widget = SlotMapping(random_trace(1))
    for step in {0, widget.num_steps // 2, widget.num_steps - 1}:
        (drawing,) = widget.draw(step).drawings
        assert min(shape["size"] for shape in drawing.shapes if shape["kind"] == "text") >= SMALL_TEXT
        for shape in drawing.shapes:
            if shape["kind"] == "rect":
                assert shape["x"] >= -1 and shape["x"] + shape["w"] <= drawing.width + 1
                assert shape["y"] + shape["h"] <= drawing.height + 1


def test_a_sequence_without_a_block_has_no_slot(story):
    step = story["steps"][1]
    seq_id = step["scheduled"][0]["seq"]
    for moment in story["steps"]:
        for seq in moment["after"]["seqs"].values():
            seq["table"] = []
        moment["events"] = [event for event in moment["events"] if event["event"] not in ("share", "append")]
    widget = SlotMapping(story, complete=False)
    assert widget.problems and widget.lookups[0].slot == -1 and widget.lookups[0].seq_id == seq_id
    assert "so there is no slot" in widget.caption(0) and widget.draw(0)
