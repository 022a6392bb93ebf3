"""Drawings: both outputs hold what was drawn; the colors can be read."""

import io
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from nanovllm.viz.drawing import BORDER, PALETTE, VERMILION, Drawing, diagonals, fit, ink_on, stack, visible


def sample():
    picture = Drawing(200, 100, "a <label>")
    with picture.group("a & b", focusable=True, b=3, state="shared"):
        picture.rect(10, 10, 80, 40, PALETTE[1], hatch=True)
        picture.text(50, 30, "<script>alert(1)</script> $x$", anchor="middle", bold=True)
    with picture.group(cursor="yes"):
        picture.line(150, 0, 150, 100, VERMILION, 6)
    return picture


def test_svg_is_well_formed_and_escapes_text():
    root = ElementTree.fromstring(sample().svg())
    assert root.get("viewBox") == "0 0 200 100"
    assert root.get("aria-label") == "a <label>"
    group = root.find(".//g[@data-b='3']")
    assert group.get("data-state") == "shared" and group.get("tabindex") == "-1"
    assert group.find("title").text == "a & b"
    assert group.find("text").text == "<script>alert(1)</script> $x$"


def test_png_has_the_size_and_the_fill_and_no_cursor():
    image = Image.open(io.BytesIO(sample().png())).convert("RGB")
    assert image.size == (200, 100)
    colors = {color for _, color in image.getcolors(100_000)}
    assert tuple(bytes.fromhex(PALETTE[1][1:])) in colors
    assert tuple(bytes.fromhex(VERMILION[1:])) not in colors
    assert image.getpixel((image.width - 3, image.height - 3)) == (255, 255, 255)


def test_what_is_drawn_later_covers_what_was_drawn_before():
    picture = Drawing(40, 40)
    picture.rect(0, 0, 40, 40, hatch=True)
    picture.rect(0, 0, 40, 40, PALETTE[0], stroke=None)
    image = Image.open(io.BytesIO(picture.png())).convert("RGB")
    assert max(image.getcolors()) == (39 * 39, tuple(bytes.fromhex(PALETTE[0][1:]))) or image.getcolors() == [
        (image.width * image.height, tuple(bytes.fromhex(PALETTE[0][1:])))
    ]


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    bright, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("fill", [*PALETTE, VERMILION])
def test_text_on_every_fill_is_readable(fill):
    ink = {"#000": "#000000", "#fff": "#ffffff"}[ink_on(fill)]
    assert contrast(fill, ink) >= 4.5


@pytest.mark.parametrize("paper", ["#ffffff", "#161616", "#111111"])
def test_borders_and_marks_stand_out_in_light_and_dark(paper):
    assert contrast(BORDER, paper) >= 3
    assert contrast(VERMILION, paper) >= 3


def test_hatching_stays_inside():
    for x1, y1, x2, y2 in diagonals(43, 18):
        assert 0 <= x1 <= x2 <= 43 and 0 <= y2 <= y1 <= 18


def test_stacked_drawings_keep_all_shapes_apart():
    result = stack([("first", [sample(), sample()]), ("second", [sample()])], "where it is from")
    boxes = [shape for shape in result.shapes if shape["kind"] == "rect"]
    assert boxes[1]["x"] - boxes[0]["x"] > 200 and boxes[1]["y"] == boxes[0]["y"]
    assert boxes[2]["y"] - boxes[0]["y"] > 100 and boxes[2]["x"] == boxes[0]["x"]
    assert {"first", "second", "where it is from"} <= {s["text"] for s in result.shapes if s["kind"] == "text"}
    assert result.height > 200


def test_texts_are_cut_and_made_visible():
    assert fit("abcdef", 30, 10) == "abc…"
    assert fit("abc", 30, 10) == "abc"
    assert visible(" a\n") == "·a⏎"
    assert visible("") == "''"
