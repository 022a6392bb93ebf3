"""The data flow of a run: what it shows is what a second engine computes, step by step, that nobody records."""

import itertools
import xml.etree.ElementTree as ElementTree

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.utils.context import get_context
from nanovllm.viz import DataFlow, record
from nanovllm.viz.data_flow import ADD, POSTPROCESS, PREPARE, RUN, SCHEDULE, STAGES, WIDTH, draw_flow

from .conftest import random_trace

OPTIONS = {"kvcache_block_size": 4, "num_kvcache_blocks": 24, "max_model_len": 64, "device": "cpu"}
OPTIONS |= {"disabled_optimizations": "all", "max_num_seqs": 3, "max_num_batched_tokens": 12}
TEXTS = ["One day, a small fox", "Once upon a time there was a little cat", "Once upon a time there was a little dog"]
LENGTHS, ARRIVE = (6, 3, 5), (0, 0, 3)
PARAMS = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in LENGTHS]


@pytest.fixture(scope="module")
def three():
    """Prompts that are cut, a prefix that is shared, a request that comes later."""
    with LLM("qwen3-tiny", **OPTIONS) as llm:
        return record(llm, TEXTS, PARAMS, ARRIVE)


def groups(drawing, key):
    """The data attributes of all groups that have `key`."""
    root = ElementTree.fromstring(drawing.svg())
    found = [{k.removeprefix("data-"): v for k, v in g.attrib.items()} for g in root.iter("g")]
    return [group for group in found if key in group]


def numbers(text):
    return [int(word) for word in text.split()]


def drawn_tensors(picture):
    return {group["tensor"]: numbers(group["values"]) for group in groups(picture, "tensor")}


def drawn_queues(picture):
    return {group["queue"]: numbers(group["ids"]) for group in groups(picture, "queue")}


def drawn_tables(picture):
    """Blocks in the order in which they are drawn, row by row."""
    return [int(group["physical"]) for group in groups(picture, "logical")]


def drawn_tokens(picture, seq_id):
    return [(int(g["token"]), g["kind"]) for g in groups(picture, "kind") if g["seq"] == str(seq_id)]


def test_every_number_is_one_that_an_engine_computes_that_is_stepped_beside_it(three):
    with LLM("qwen3-tiny", **OPTIONS) as llm:
        runner, scheduler, seen = llm.llm_engine.model_runner, llm.scheduler, {}
        run_model, sample, postprocess = runner.run_model, runner.sample, scheduler.postprocess

        def watch_inputs(input_ids, positions):
            context = get_context()
            tensors = {"input_ids": input_ids, "positions": positions, "slot_mapping": context.slot_mapping}
            seen["tensors"] = {name: tensor.tolist() for name, tensor in tensors.items()}
            return run_model(input_ids, positions)

        def watch_tokens(logits, metadata, num_seqs):
            tokens = sample(logits, metadata, num_seqs)
            seen["sampled"] = tokens.tolist()
            return tokens

        def watch_state(seqs, token_ids):
            seen["queues"] = {name: [s.seq_id for s in getattr(scheduler, name)] for name in ("waiting", "running")}
            alive = sorted([*scheduler.waiting, *scheduler.running], key=lambda seq: seq.seq_id)
            seen["tables"] = [block_id for seq in alive for block_id in seq.block_table]
            seen["tokens"] = {seq.seq_id: (list(seq.token_ids), seq.num_cached_tokens) for seq in alive}
            seen["counts"] = {seq.seq_id: seq.num_scheduled_tokens for seq in seqs}
            postprocess(seqs, token_ids)

        runner.run_model, runner.sample, scheduler.postprocess = watch_inputs, watch_tokens, watch_state
        for i in range(1, len(three["steps"])):
            for text, params, at in zip(TEXTS, PARAMS, ARRIVE, strict=True):
                if at == i - 1:
                    llm.add_request(text, params)
            llm.step()
            for stage in (SCHEDULE, PREPARE, RUN):
                picture = draw_flow(three, i, stage)
                assert drawn_queues(picture) == seen["queues"]
                assert drawn_tables(picture) == seen["tables"]
                assert drawn_tensors(picture) == (
                    seen["tensors"] if stage >= PREPARE else {name: [] for name in seen["tensors"]}
                )
                sampled = [int(group["sampled"]) for group in groups(picture, "sampled")]
                assert sampled == (seen["sampled"] if stage == RUN else [])
                for seq_id, (token_ids, cached) in seen["tokens"].items():
                    count = seen["counts"].get(seq_id, 0)
                    kinds = ["cached"] * cached + ["scheduled"] * count
                    kinds += ["waiting"] * (len(token_ids) - cached - count)
                    assert drawn_tokens(picture, seq_id) == list(zip(token_ids, kinds, strict=True))
            after = draw_flow(three, i, POSTPROCESS)
            alive = sorted([*scheduler.waiting, *scheduler.running], key=lambda seq: seq.seq_id)
            assert drawn_queues(after)["running"] == [seq.seq_id for seq in scheduler.running]
            assert drawn_queues(after)["waiting"] == [seq.seq_id for seq in scheduler.waiting]
            assert drawn_tables(after) == [block_id for seq in alive for block_id in seq.block_table]
            for seq in alive:
                assert [token for token, _ in drawn_tokens(after, seq.seq_id)] == seq.token_ids
                cached = [kind for _, kind in drawn_tokens(after, seq.seq_id)].count("cached")
                assert cached == seq.num_cached_tokens
        assert llm.is_finished()
    kinds = {kind for i in range(1, len(three["steps"])) for _, kind in drawn_tokens(draw_flow(three, i, SCHEDULE), 1)}
    assert {"cached", "scheduled", "waiting"} <= kinds  # a prompt was cut on the way


def test_requests_stand_in_the_queue_before_their_first_step(three):
    widget = DataFlow(three)
    assert widget.stages[0] == (1, ADD)
    picture = widget.draw(0).drawings[0]
    assert drawn_queues(picture) == {"waiting": [0, 1], "running": []}
    assert {kind for _, kind in drawn_tokens(picture, 0)} == {"waiting"} and drawn_tokens(picture, 2) == []
    later = next(n for n, (i, stage) in enumerate(widget.stages) if n and stage == ADD)
    before, now = (widget.draw(n).drawings[0] for n in (later - 1, later))
    assert drawn_queues(now)["waiting"] == [*drawn_queues(before)["waiting"], 2]
    assert drawn_queues(now)["running"] == drawn_queues(before)["running"]
    assert [drawn_tokens(now, seq_id) for seq_id in (0, 1)] == [drawn_tokens(before, seq_id) for seq_id in (0, 1)]


def test_each_step_goes_through_the_same_stations_in_order(three):
    widget = DataFlow(three)
    stages = [stage for _, stage in widget.stages if stage != ADD]
    assert stages == [SCHEDULE, PREPARE, RUN, POSTPROCESS] * (len(three["steps"]) - 1)
    for n, (i, stage) in enumerate(widget.stages):
        (current,) = [g for g in groups(widget.draw(n).drawings[0], "current") if g["current"] == "1"]
        assert int(current["stage"]) == stage and widget.label(n) == f"step {i}, {STAGES[stage]}"
    assert list(widget.bookmarks) == ["prefill", "decode"]
    assert all(widget.stages[n][1] == RUN for n in widget.bookmarks.values())


@pytest.mark.parametrize("seed", range(400, 408))
def test_any_run_can_be_drawn_and_its_tokens_add_up(seed):
    trace = random_trace(seed)
    widget = DataFlow(trace)
    for n, (i, stage) in enumerate(widget.stages):
        picture = widget.draw(n).drawings[0]
        if stage == RUN:
            tensors, counts = drawn_tensors(picture), [item["n"] for item in trace["steps"][i]["scheduled"]]
            assert {len(values) for values in tensors.values()} == {sum(counts)}
            assert len(set(tensors["slot_mapping"])) == sum(counts)  # no two tokens go into the same place
            size = trace["config"]["block_size"]
            assert all(p % size == s % size for p, s in zip(tensors["positions"], tensors["slot_mapping"], strict=True))
        if stage == POSTPROCESS:
            assert drawn_queues(picture) == {name: trace["steps"][i]["after"][name] for name in ("waiting", "running")}
    chosen = {key: [] for key in trace["seqs"]}
    for n, (_, stage) in enumerate(widget.stages):
        for group in groups(widget.draw(n).drawings[0], "sampled") if stage == RUN else []:
            chosen[group["seq"]].append(int(group["sampled"]))
    assert chosen == {key: seq["output_ids"] for key, seq in trace["seqs"].items()}


def test_text_is_legible_stays_inside_and_nothing_jumps(three):
    pictures = [DataFlow(three).draw(n).drawings[0] for n in range(DataFlow(three).num_steps)]
    assert all(one.height == other.height <= 480 for one, other in itertools.pairwise(pictures))
    for picture in pictures:
        for shape in picture.shapes:
            if shape["kind"] == "text":
                assert shape["size"] >= 12 and 0 <= shape["x"] <= WIDTH and 0 < shape["y"] <= picture.height


def test_captions_tell_where_a_token_goes_and_who_is_done(three):
    widget = DataFlow(three)
    first = widget.stages.index((1, PREPARE))
    assert "Three tensors of 12, no padding" in widget.caption(first)
    assert "A (6), B (9)" in widget.caption(0)
    ends = "".join(widget.caption(n).partition("blocks are free:")[2] for n in range(widget.num_steps))
    assert sorted(name for name in "ABC" for _ in range(ends.count(name))) == ["A", "B", "C"]


def test_a_wrong_run_opens_where_it_goes_wrong_and_a_missing_block_has_no_slot(story):
    alone = [i for i, step in enumerate(story["steps"]) if [item["seq"] for item in step["scheduled"]] == [0]]
    i = next(i for i in alone if "0" in story["steps"][i]["after"]["seqs"])
    story["steps"][i]["after"]["seqs"]["0"]["table"] = []
    widget = DataFlow(story)
    assert widget.stages[widget.step] == (i, POSTPROCESS) and "Wrong here" in widget.caption(widget.step)
    slots = drawn_tensors(draw_flow(story, i, PREPARE))["slot_mapping"]
    assert set(slots) == {-1} and "goes into no slot" in widget.caption(widget.stages.index((i, PREPARE)))
