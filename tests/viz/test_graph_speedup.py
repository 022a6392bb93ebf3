"""GraphSpeedup: both lanes on one clock, the staircase, and always where the numbers are from."""

import xml.etree.ElementTree as ElementTree

import pytest

from nanovllm.levers.cuda_graph import graph_batch_sizes
from nanovllm.viz import GraphSpeedup
from nanovllm.viz.graph_speedup import LEFT, MILLISECONDS, MOMENTS, RIGHT, load_steps
from nanovllm.viz.shapes import SMALL


def groups_of(widget, step):
    (drawing,) = widget.draw(step).drawings
    for group in ElementTree.fromstring(drawing.svg()).iter("g"):
        yield {key.removeprefix("data-"): value for key, value in group.attrib.items()}


def lanes(widget, step):
    return {data["lane"]: data for data in groups_of(widget, step) if "lane" in data}


def test_each_lane_has_as_many_steps_as_fit_into_the_time():
    widget = GraphSpeedup()
    for step in range(0, widget.num_steps, 7):
        row, time = widget.at(step)
        for name, data in lanes(widget, step).items():
            length = row[f"{name}_ms"][1]
            done = int(data["done"])
            assert done * length <= time + 1e-9 < (done + 1) * length + 1e-6
            assert f"{name} {done}" in widget.caption(step)


def test_both_lanes_and_all_batch_sizes_have_the_same_clock():
    """A bar is as wide as its step took, at the same scale everywhere; and so is every frame."""
    widget = GraphSpeedup()
    for n, row in enumerate(widget.rows):
        last = n * (MOMENTS + 1) + MOMENTS
        assert widget.at(last) == (row, pytest.approx(widget.total))
        (drawing,) = widget.draw(last).drawings
        bars = {round(shape["w"], 6) for shape in drawing.shapes if shape["kind"] == "rect" and shape["h"] == 28}
        for name in ("eager", "graph"):
            assert round(row[f"{name}_ms"][1] * (RIGHT - LEFT) / widget.total, 6) in bars
    assert widget.pace == MILLISECONDS
    assert list(widget.bookmarks.values()) == list(range(0, widget.num_steps, MOMENTS + 1))


def test_it_says_where_the_numbers_are_from():
    footer = GraphSpeedup().footer()
    measured = load_steps()
    assert footer.startswith("RECORDED on NVIDIA H200")
    for name in ("torch", "triton", "driver", "date", "commit", "command", "model", "dtype"):
        assert measured[name] in footer
    assert GraphSpeedup(measured).footer().startswith("MEASURED NOW on NVIDIA H200")


@pytest.mark.parametrize("sizes", [None, [256], [3, 100, 256], graph_batch_sizes(256)])
def test_the_staircase_is_the_smallest_graph_that_is_large_enough(sizes):
    widget = GraphSpeedup(sizes=sizes)
    (data,) = (data for data in groups_of(widget, 0) if "stairs" in data)
    stairs = [int(size) for size in data["stairs"].split()]
    known = widget.sizes if sizes is None else sizes
    for n, size in enumerate(stairs, 1):
        assert size in known and size >= n and not any(n <= other < size for other in known)
    assert int(data["padding"]) == sum(size - n for n, size in enumerate(stairs, 1))


def test_a_batch_without_a_graph_is_refused():
    with pytest.raises(ValueError, match="no graph is large enough for a batch of 256"):
        GraphSpeedup(sizes=[1, 2, 128])


def test_texts_are_large_enough_and_the_picture_is_not_too_high():
    widget = GraphSpeedup()
    (drawing,) = widget.draw(widget.num_steps - 1).drawings
    assert min(shape["size"] for shape in drawing.shapes if shape["kind"] == "text") >= SMALL
    assert drawing.height < 600
