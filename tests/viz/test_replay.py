"""What happens within a step, event by event, as the pictures move."""

import copy

import pytest

from nanovllm.viz import PrefixExplorer
from nanovllm.viz import player as player_module
from nanovllm.viz.block_table import describe_step, in_chains, lay_out, sentence_of
from nanovllm.viz.replay import COMPUTE, follow_events, replay
from nanovllm.viz.trace import complete_events, load_trace
from nanovllm.viz.widgets import BlockTable

from .conftest import random_trace


@pytest.mark.parametrize("seed", range(500, 530))
def test_events_alone_lead_to_the_recorded_state(seed):
    trace = random_trace(seed)
    for i, step in enumerate(trace["steps"]):
        moments = list(follow_events(trace, i))
        assert [m.event for m in moments if m.event["event"] != COMPUTE] == (step["events"] if i else [])
        assert moments == replay(trace, i)
        assert not moments or moments[-1].state == step["after"]


@pytest.mark.parametrize("name", ["story", "batch"])
def test_every_event_has_its_sentence_in_the_caption(name):
    trace = load_trace(name)
    table, kinds = BlockTable(trace), set()
    for i in range(table.num_steps):
        assert "." not in sentence_of(trace, i, {"event": COMPUTE})
        for move in table.moves(i):
            assert move.sentence and f"{move.sentence}." in table.caption(i)
            kinds.add(move.kind)
    expected = {"arrive", "admit", "share", "append", "hash", "evict", "preempt", "finish", "release", COMPUTE}
    assert kinds >= expected


def test_the_sentences_name_what_moves(story):
    table = BlockTable(story)
    told = [(move.kind, move.sentence, move.key) for move in table.moves(13)]
    assert told == [
        ("evict", "What #2 had cached is lost", "2"),
        ("append", "B takes block #2", "2"),
        ("hash", "Full and hashed: #6", "6"),
        ("compute", "Decode: B 1 token, C 1 token", ""),
        ("release", "C is finished (length)", "C:queue"),
        ("finish", "C is finished (length)", "C:queue"),
    ]
    assert table.caption(3).startswith("B arrives. Prefill: B 1 token. B finds 8 tokens in the cache (#0, #1)")
    assert describe_step(story, 3).startswith("Prefill")  # reports of checks compare what every engine has


@pytest.mark.parametrize("seed", range(600, 604))
def test_movements_end_with_the_frame_of_the_step(seed):
    table = BlockTable(random_trace(seed))
    layout = table._layout
    for i in range(1, table.num_steps):
        moves = table.moves(i)
        assert not moves or moves[-1].frame == table.draw(i)
        if moves:
            k = len(moves) - 1
            cut, cut_layout = layout.at_moment(table.trace, i, k)
            assert cut["steps"][i]["after"] == table.trace["steps"][i]["after"]
            assert cut_layout.contents[i] == layout.contents[i]


def test_a_block_is_in_one_place_at_every_moment(story):
    """First it leaves the free list, then it is in a table; the name goes before the block is taken."""
    table = BlockTable(story)
    evicted, taken, *_ = (move.frame.html() for move in table.moves(13))
    assert 'data-key="2:free"' in evicted and 'data-key="2:name"' not in evicted
    assert 'data-key="2:free"' not in taken and 'data-key="2:B"' in taken
    released, preempted, *_ = (move.frame.html() for move in table.moves(9))
    assert 'data-free="5 4"' in released and 'data-queue="A B C"' in released
    assert 'data-queue="C"' in preempted


def test_an_engine_that_reports_little_is_moved_as_far_as_it_shows(story):
    plain = copy.deepcopy(story)
    for step in plain["steps"]:
        step["events"] = []
    complete_events(plain)
    table = BlockTable(plain)
    for i in range(1, table.num_steps):
        assert not table.moves(i) or table.moves(i)[-1].frame == table.draw(i)
    wrong = copy.deepcopy(story)
    wrong["steps"][9]["after"]["seqs"].pop("1")
    wrong["steps"][4]["events"].append({"event": "release", "seq": 7, "blocks": [99]})
    wrong["steps"][5]["events"].append({"event": "append", "seq": 2, "block": 99})
    table = BlockTable(wrong)
    for i in range(1, table.num_steps):
        assert not table.moves(i) or table.moves(i)[-1].frame == table.draw(i)


def test_steps_that_begin_a_run_or_failed_have_no_moments(story):
    assert replay(story, 0) == []
    story["steps"][5]["kind"] = "error"
    story["error"] = "KeyError: 1"
    assert replay(story, 5) == []


def test_the_hash_table_is_drawn_in_chains(story):
    layout = lay_out(story)
    blocks = [layout.names[9][-1][name] for name in in_chains(layout.names[9][-1], layout.parents)]
    assert blocks == [0, 1, 2, 3, 4, 5]
    blocks = [layout.names[13][-1][name] for name in in_chains(layout.names[13][-1], layout.parents)]
    assert blocks == [0, 1, 3, 7, 4, 5, 6]
    assert in_chains({"a": 1, "b": 2}, {"a": "b", "b": "a"}) == ["a", "b"]


def test_of_blocks_with_the_same_name_the_first_is_known(story):
    for step in story["steps"][4:]:
        step["after"]["hash"]["5"] = step["after"]["hash"]["0"]
        step["events"] = []
    assert set(lay_out(story).names[4][-1].values()) == {0, 1, 4}


def test_the_script_that_moves_things_is_small_and_only_where_it_is_needed(story):
    assert len(player_module.MOTION) < 6000
    assert player_module.MOTION in BlockTable(story).html(b"")
    assert player_module.MOTION not in PrefixExplorer().html(b"")
    assert "//" not in player_module.MOTION
