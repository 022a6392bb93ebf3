"""The view of a layer on several ranks: what it draws is what the engine's loaders do, counted by hand."""

import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

from nanovllm import models
from nanovllm.utils import loader, parallel_state
from nanovllm.viz import TensorParallelView
from nanovllm.viz.shapes import SMALL
from nanovllm.viz.tensor_parallel import Piece, pieces_of


@pytest.fixture(scope="module")
def view():
    return TensorParallelView()


def groups(widget, step, key):
    (drawing,) = widget.draw(step).drawings
    found = [group.attrib for group in ElementTree.fromstring(drawing.svg()).iter("g")]
    return [group for group in found if f"data-{key}" in group]


def test_ranges_of_heads_and_features(view):
    assert view.heads(1, 0, "qkv_proj") == [*(("q", n) for n in range(4)), ("k", 0), ("k", 1), ("v", 0), ("v", 1)]
    assert view.heads(2, 1, "qkv_proj") == [("q", 2), ("q", 3), ("k", 1), ("v", 1)]
    assert [view.heads(4, rank, "qkv_proj")[1] for rank in range(4)] == [("k", 0), ("k", 0), ("k", 1), ("k", 1)]
    assert [view.heads(4, rank, "o_proj") for rank in range(4)] == [[("", rank)] for rank in range(4)]
    assert view.shares[2][1].pieces["gate_up_proj"] == [Piece("gate_proj", 448, 448), Piece("up_proj", 448, 448)]
    assert view.shares[2][1].pieces["down_proj"] == [Piece("down_proj", 448, 448)]


def test_weights_are_counted(view):
    norms = 2 * 256 + 2 * 64
    assert view.shares[1][0].num_weights == 256 * (256 + 128 + 128 + 256 + 3 * 896) + norms
    assert view.shares[2][0].num_weights == 256 * (256 + 128 + 128 + 256 + 3 * 896) // 2 + norms
    assert view.shares[4][0].num_weights == 256 * (64 + 64 + 64 + 64 + 3 * 224) + norms  # KV heads twice


def test_marks_that_count_up_belong_together():
    kinds = ["a", "b"]
    assert pieces_of([65536, 65537, 0, 1, 2, 5, -1], kinds) == [
        Piece("b", 0, 2), Piece("a", 0, 3), Piece("a", 5, 1), Piece("?", 65535, 1)
    ]  # fmt: skip


def test_all_steps_say_where_they_are(view):
    assert view.num_steps == 15 and view.bookmarks == {"1 rank": 1, "2 ranks": 6, "4 ranks": 11} and view.step == 6
    assert view.label(6) == "2 ranks, qkv_proj" and "q0 q1 k0 v0, q2 q3 k1 v1" in view.caption(6)
    assert "One all-reduce" in view.caption(7) and "One all-reduce" not in view.caption(2)
    for step in range(view.num_steps):
        size, _ = view.at(step)
        assert [int(group["data-rank"]) for group in groups(view, step, "rank")] == list(range(size))
        assert len(groups(view, step, "meets")) == (2 if size > 1 else 0)
        assert len(groups(view, step, "matrix")) == 5 * size
    held = [group["data-holds"] for group in groups(view, 11, "matrix") if group["data-matrix"] == "qkv_proj"]
    assert held == ["q0, k0 ×2, v0 ×2", "q1, k0 ×2, v0 ×2", "q2, k1 ×2, v1 ×2", "q3, k1 ×2, v1 ×2"]


def test_it_is_drawn_with_the_loaders_that_it_is_given():
    def always_the_first(param, loaded_weight, shard_id, name):
        group = SimpleNamespace(rank=0)
        layer = getattr(param.weight_loader, "__self__", None) if hasattr(param, "weight_loader") else None
        if hasattr(layer, "tp_rank"):
            layer.tp_rank = group.rank
        loader.load_weight(param, loaded_weight, shard_id, name)

    first_loader = SimpleNamespace(**vars(loader) | {"load_weight": always_the_first})
    utils = SimpleNamespace(parallel_state=parallel_state, loader=first_loader)
    wrong = TensorParallelView(sizes=[2], engine=SimpleNamespace(models=models, utils=utils))
    assert wrong.heads(2, 1, "qkv_proj") == [("q", 0), ("q", 1), ("k", 0), ("v", 0)]
    assert wrong.step == 1


def test_text_is_large_enough_and_the_picture_fits(view):
    for step in range(view.num_steps):
        (drawing,) = view.draw(step).drawings
        assert min(shape["size"] for shape in drawing.shapes if shape["kind"] == "text") >= SMALL
        assert drawing.width <= 640 and drawing.height <= 600
        for shape in drawing.shapes:
            if shape["kind"] == "rect":
                assert shape["x"] >= 0 and shape["x"] + shape["w"] <= drawing.width
                assert shape["y"] >= 0 and shape["y"] + shape["h"] <= drawing.height
    assert view.png().startswith(b"\x89PNG") and "a layer on several ranks" in view.plain_text()


@pytest.mark.parametrize("sizes", [[], [0], [5]])
def test_other_numbers_of_ranks_are_refused(sizes):
    with pytest.raises(ValueError, match="from 1 to 4"):
        TensorParallelView(sizes=sizes)
    with pytest.raises(ValueError, match="cannot be split evenly"):
        TensorParallelView(sizes=[3])
