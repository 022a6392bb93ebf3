"""The first picture of the course: what it shows is what the recorded run says."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from nanovllm.viz import FirstLook, load_trace
from nanovllm.viz.trace import name_of

from .conftest import random_trace


def texts(drawing, key):
    """The texts of all groups whose key fits, by key."""
    groups = ElementTree.fromstring(drawing.svg()).iter("g")
    found = {g.get("data-key"): g for g in groups if re.fullmatch(key, g.get("data-key", ""))}
    return {name: [text.text for text in group.iter("text")] for name, group in found.items()}


@pytest.fixture
def look():
    return FirstLook(load_trace("first_look"))


def test_texts_grow_by_what_the_run_computed(look):
    for i in range(look.num_steps):
        requests, _ = look.draw(i).drawings
        after = look.trace["steps"][i]["after"]["seqs"]
        for seq_id, seq in look.trace["seqs"].items():
            drawn = texts(requests, f"{seq['name']}[0-9]+")
            count = after[seq_id]["len"] if seq_id in after else len(seq["texts"]) * (seq["arrive"] <= i)
            assert len(drawn) == count


def test_memory_holds_what_is_stored(look):
    for i in range(look.num_steps):
        _, memory = look.draw(i).drawings
        after, size = look.trace["steps"][i]["after"], look.trace["config"]["block_size"]
        expected = set()
        for seq_id, seq in after["seqs"].items():
            name = name_of(look.trace, seq_id)
            expected |= {(k // size, seq["table"][k // size], k, name) for k in range(seq["kv"])}
        drawn = {tuple(re.split("(?<=[A-Z])(?=[0-9])|>", key)) for key in texts(memory, "[A-Z][0-9]+>[0-9]+")}
        places = {(block_id, k) for _, block_id, k, _ in expected}
        kept = {int(b) for b in after["hash"] if int(b) in after["free"]}
        assert places == {(int(b), int(k)) for _, k, b in drawn if int(b) not in kept}
        assert {int(b) for _, _, b in drawn} == {block_id for _, block_id, _, _ in expected} | kept


def test_it_tells_in_plain_words_what_happens(look):
    assert look.caption(1) == (
        "A arrives. A gets room for its tokens: 3 new blocks. "
        "The model reads 9 tokens of A at once, and one new token comes out."
    )
    assert "C begins like another: 4 of its tokens are in memory already." in look.caption(4)
    assert look.caption(5) == "One more token for A, B and C, in the same step."
    assert look.caption(8).endswith("A is done, and its blocks are free again.")
    assert look.bookmarks == {"first request": 1, "shared memory": 4, "first one done": 7}
    assert look.num_steps <= 10 and "real run of qwen3-tiny" in look.footer()


def test_movements_have_their_sentences_and_end_with_the_step(look):
    for i in range(1, look.num_steps):
        moves = look.moves(i)
        assert moves[-1].frame == look.draw(i)
        assert all(move.sentence in look.caption(i) for move in moves)


@pytest.mark.parametrize("seed", [700, 701])
def test_any_run_can_be_drawn(seed):
    look = FirstLook(random_trace(seed))
    for i in range(look.num_steps):
        assert look.draw(i).html() and look.caption(i)
        look.moves(i)
