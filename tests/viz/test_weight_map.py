"""The map of weights: what it draws is what the engine's loaders do, and what can be counted by hand."""

import xml.etree.ElementTree as ElementTree

import pytest

from nanovllm.utils.loader import resolve_packed
from nanovllm.viz import WeightMap
from nanovllm.viz.shapes import SMALL

LAYER = "model.layers.0."
SIZES = {"q_proj": 256, "k_proj": 128, "v_proj": 128, "o_proj": 256, "gate_proj": 896, "up_proj": 896, "down_proj": 256}


def by_name(widget):
    return {tensor.name.split(".")[-2]: tensor for tensor in widget.stored}


def groups(widget, step, key):
    (drawing,) = widget.draw(step).drawings
    found = [group.attrib for group in ElementTree.fromstring(drawing.svg()).iter("g")]
    return [{k.removeprefix("data-"): v for k, v in group.items()} for group in found if f"data-{key}" in group]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_tensor_of_the_layer_is_there_once_and_what_is_packed_fills_its_parameter(size):
    widget = WeightMap(tensor_parallel_size=size)
    tensors = by_name(widget)
    assert len(widget.stored) == 11 and {name: tensors[name].shape[0] for name in SIZES} == SIZES
    for rank in range(size):
        for param, shape in widget.shapes.items():
            parts = [part for tensor in widget.stored if tensor.param == param for part in tensor.parts]
            boxes, at = sorted(part.target for part in parts if part.rank == rank), 0
            for row, column, rows, columns in boxes:
                assert (row, column, columns) == (at, 0, shape[-1])
                at += rows
            assert at == (shape[0] if len(shape) > 1 else 1), param


def test_two_ranks_share_rows_of_heads_and_columns_of_what_comes_out_of_them():
    tensors = by_name(WeightMap(tensor_parallel_size=2))
    sources = {name: [part.source for part in tensors[name].parts] for name in tensors}
    assert sources["q_proj"] == [(0, 0, 128, 256), (128, 0, 128, 256)]
    assert sources["gate_proj"] == [(0, 0, 448, 256), (448, 0, 448, 256)]
    assert sources["o_proj"] == [(0, 0, 256, 128), (0, 128, 256, 128)]
    assert sources["down_proj"] == [(0, 0, 256, 448), (0, 448, 256, 448)]
    assert sources["q_norm"] == [(0, 0, 1, 64)] * 2
    assert [part.target for part in tensors["v_proj"].parts] == [(192, 0, 64, 256)] * 2


def test_with_more_ranks_than_kv_heads_two_of_them_hold_the_same_one():
    tensors = by_name(WeightMap(tensor_parallel_size=4))
    assert [part.source[0] for part in tensors["k_proj"].parts] == [0, 0, 64, 64]
    assert [part.source[0] for part in tensors["q_proj"].parts] == [0, 64, 128, 192]


@pytest.mark.parametrize("size", [1, 2])
def test_at_each_step_one_tensor_more_has_arrived(size):
    widget = WeightMap(tensor_parallel_size=size)
    for step in range(widget.num_steps):
        names = [tensor.name for tensor in widget.stored]
        states = [group["state"] for group in groups(widget, step, "state")]
        assert states == ["gone"] * (step - 1) + ["now"] * (step > 0) + ["there"] * (11 - step)
        arrived = [group["source"] for group in groups(widget, step, "source")]
        assert arrived == [name for name in names[:step] for _ in range(size)]


def test_sizes_are_true():
    widget = WeightMap()
    (drawing,) = widget.draw(0).drawings
    boxes = [(shape["w"], shape["h"]) for shape in drawing.shapes if shape["kind"] == "rect"]
    for tensor in widget.stored:
        rows, columns = tensor.shape if len(tensor.shape) > 1 else (0, tensor.shape[0])
        assert any(w == pytest.approx(columns * widget.scale) and (h == pytest.approx(rows * widget.scale) or not rows)
                   for w, h in boxes)  # fmt: skip


def test_captions_say_rows_columns_and_shards():
    widget = WeightMap(tensor_parallel_size=2)
    told = {tensor.name.split(".")[-2]: widget.caption(step) for step, tensor in enumerate(widget.stored, 1)}
    assert told["o_proj"].endswith("rank 0 takes columns 0 to 127; rank 1 takes columns 128 to 255.")
    assert "shard 'k': rank 0 takes rows 0 to 63" in told["k_proj"] and told["k_proj"].endswith("rows 128 to 191.")
    assert told["k_norm"].endswith("every rank takes all of it.")
    one = WeightMap()
    assert one.bookmarks == {"gate_up_proj is full": 4, "qkv_proj is full": 11}
    assert one.caption(0).startswith("On the left") and "layer 0;" in one.footer() and "2 ranks" in widget.footer()


def test_it_is_drawn_with_the_function_that_it_is_given():
    def swapped(name, packed):
        param, shard_id = resolve_packed(name, packed)
        return param, {"k": "v", "v": "k"}.get(shard_id, shard_id)

    ours, theirs = by_name(WeightMap()), by_name(WeightMap(resolve=swapped))
    assert theirs["k_proj"].parts[0].target == ours["v_proj"].parts[0].target


@pytest.mark.parametrize("size", [1, 2, 4])
def test_text_is_large_enough_and_the_picture_fits(size):
    widget = WeightMap(tensor_parallel_size=size)
    for step in (0, 5, 11):
        (drawing,) = widget.draw(step).drawings
        assert min(shape["size"] for shape in drawing.shapes if shape["kind"] == "text") >= SMALL
        assert drawing.width <= 1024 and drawing.height <= 600
        for shape in drawing.shapes:
            if shape["kind"] == "rect":
                assert shape["x"] >= 0 and shape["x"] + shape["w"] <= drawing.width
                assert shape["y"] >= 0 and shape["y"] + shape["h"] <= drawing.height
    assert widget.png().startswith(b"\x89PNG") and "where each tensor goes" in widget.plain_text()


def test_other_numbers_of_ranks_are_refused():
    with pytest.raises(ValueError, match="1, 2 or 4 here, got 3"):
        WeightMap(tensor_parallel_size=3)
