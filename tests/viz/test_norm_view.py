"""NormView: bars and root mean squares are those of the rows that it is given."""

import math
import xml.etree.ElementTree as ElementTree

import pytest
import torch

from nanovllm.layers.layernorm import RMSNorm
from nanovllm.viz import NormView
from nanovllm.viz.norm_view import PANEL
from nanovllm.viz.shapes import SMALL

NAMES = ["first", "second", "third", "the end"]


def rows(seed=0):
    scale = torch.tensor([0.05, 3.0, 400.0, 20.0]).unsqueeze(1)
    return torch.randn(4, 12, generator=torch.Generator().manual_seed(seed)) * scale


def view(norms=None):
    return NormView(norms or [RMSNorm(12) for _ in NAMES], rows(), NAMES, "kite")


def panels(widget, step):
    (drawing,) = widget.draw(step).drawings
    found = [group for group in ElementTree.fromstring(drawing.svg()).iter("g") if "data-when" in group.attrib]
    return {group.attrib["data-when"]: group for group in found}


def lengths(group):
    """Of the bars, upward is positive."""
    ends = [path.attrib["d"][1:].replace("L", " ").split() for path in group.iter("path")]
    return [float(y1) - float(y2) for _, y1, _, y2 in ends]


@pytest.mark.parametrize("step", range(4))
def test_bars_are_the_numbers_of_a_row(step):
    widget, row = view(), rows()[step]
    size = math.sqrt(sum(float(value) ** 2 for value in row) / 12)
    before, after = panels(widget, step).values()
    assert float(before.attrib["data-rms"]) == pytest.approx(size, rel=1e-4)
    assert float(after.attrib["data-rms"]) == pytest.approx(1, rel=1e-3)
    scale = PANEL / 2 / float(row.abs().max())
    expected = [float(value) * scale for value in row if abs(float(value) * scale) >= 0.3]
    assert lengths(before) == pytest.approx(expected, abs=0.11)
    normalized = [float(value) / size for value in row]
    scale = PANEL / 2 / float(after.attrib["data-most"])
    expected = [value * scale for value in normalized if abs(value * scale) >= 0.3]
    assert lengths(after) == pytest.approx(expected, abs=0.11)


def test_what_comes_out_is_on_one_scale_and_computed_by_the_given_norms():
    widget = view([lambda x: 2 * x / x.abs().amax()] * 4)
    assert {panels(widget, step)["after"].attrib["data-most"] for step in range(4)} == {"2"}
    assert widget.rows["before"].equal(rows())


def test_it_begins_in_the_middle_and_knows_its_moments():
    widget = view()
    assert widget.step == 2
    assert widget.bookmarks == {"the embedding": 0, "in the middle": 2, "the end": 3}
    assert widget.label(1) == "second" and "'kite'" in widget.footer()
    with pytest.raises(ValueError, match="do not belong together"):
        NormView([RMSNorm(12)], rows(), NAMES)


def test_one_norm_a_row_of_zeros_and_huge_numbers_can_be_drawn():
    for row in (torch.zeros(1, 5), torch.full((1, 5), 6e4)):
        widget = NormView([RMSNorm(5)], row, ["the only one"])
        assert widget.png().startswith(b"\x89PNG") and "nan" not in widget.draw(0).html()


def test_all_texts_can_be_read_and_stay_inside():
    widget = view()
    for step in range(widget.num_steps):
        (drawing,) = widget.draw(step).drawings
        assert all(shape["size"] >= SMALL for shape in drawing.shapes if shape["kind"] == "text")
        ys = [shape[key] for shape in drawing.shapes for key in ("y", "y2") if key in shape]
        assert min(ys) >= 0 and max(ys) <= drawing.height
    assert "root mean square" in widget.plain_text()
