"""The vocabulary of the pictures."""

import itertools
import math

import pytest

from nanovllm.viz.drawing import BORDER, MONO_WIDTH, SMALL, VERMILION, Drawing
from nanovllm.viz.shapes import (
    EMPTY,
    FREE,
    SLOT_HEIGHT,
    Style,
    arrow,
    axis,
    block,
    legend,
    legend_html,
    mark,
    round_ticks,
    table_html,
    tensor,
)


def shapes(picture, kind):
    return [shape for shape in picture.shapes if shape["kind"] == kind]


def test_a_tensor_has_a_cell_with_its_text_for_each_number():
    picture = Drawing(300, 100)
    blue = Style("#0072B2")
    rows = [[("1.5", EMPTY), ("-2", blue), ("0", FREE)], [("7", blue), ("8", EMPTY), ("9", EMPTY)]]
    end = tensor(picture, 40, 10, rows, 50, names=("query", "key"))
    assert end == 10 + 2 * SLOT_HEIGHT
    cells = shapes(picture, "rect")
    assert [(cell["x"], cell["y"], cell["w"], cell["h"]) for cell in cells] == [
        (x, y, 50, SLOT_HEIGHT) for y in (10, 10 + SLOT_HEIGHT) for x in (40, 90, 140)
    ]
    assert [cell["fill"] for cell in cells] == [None, "#0072B2", None, "#0072B2", None, None]
    assert len(shapes(picture, "hatch")) == 1 and shapes(picture, "hatch")[0]["x"] == 140
    texts = {text["text"]: text for text in shapes(picture, "text")}
    assert list(texts) == ["1.5", "-2", "0", "query", "7", "8", "9", "key"]
    assert texts["query"]["x"] < 40 and texts["query"]["anchor"] == "end"  # beside its row
    assert 10 < texts["query"]["y"] < 10 + SLOT_HEIGHT < texts["key"]["y"] < end
    assert texts["-2"]["color"] == "#fff" and texts["1.5"]["color"] is None  # readable on each fill
    for text, x in (("1.5", 40), ("9", 140)):
        assert texts[text]["x"] == x + 25 and texts[text]["anchor"] == "middle"


def test_text_of_a_cell_never_leaves_it():
    picture = Drawing(300, 100)
    tensor(picture, 0, 0, [[("0.123456789", EMPTY)]], 40)
    (text,) = shapes(picture, "text")
    assert text["text"].endswith("…") and SMALL * MONO_WIDTH * len(text["text"]) <= 40


def test_rows_of_a_tensor_may_be_of_different_lengths_and_without_names():
    picture = Drawing(300, 100)
    tensor(picture, 0, 0, [[("1", EMPTY)], [("2", EMPTY)] * 3, []], 20, 14)
    assert [shape["y"] for shape in shapes(picture, "rect")] == [0, 14, 14, 14]


@pytest.mark.parametrize("to", [(100, 20), (20, 100), (20, 20), (90, 90)])
def test_an_arrow_points_where_it_ends(to):
    picture = Drawing(200, 200)
    arrow(picture, 50, 50, *to)
    shaft, *barbs = shapes(picture, "line")
    assert (shaft["x"], shaft["y"], shaft["x2"], shaft["y2"]) == (50, 50, *to)
    assert len(barbs) == 2 and all((barb["x2"], barb["y2"]) == to for barb in barbs)
    for barb in barbs:  # they lie behind the tip, one on each side
        back = (to[0] - barb["x"]) * (to[0] - 50) + (to[1] - barb["y"]) * (to[1] - 50)
        assert back > 0 and math.isclose(math.dist((barb["x"], barb["y"]), to), math.hypot(7, 4))
    assert math.isclose(math.dist(*((barb["x"], barb["y"]) for barb in barbs)), 8)
    assert {line["stroke"] for line in (shaft, *barbs)} == {BORDER} and not shapes(picture, "text")


def test_a_strong_arrow_differs_by_more_than_color_and_words_stand_beside_the_shaft():
    weak, strong = Drawing(200, 200), Drawing(200, 200)
    arrow(weak, 10, 50, 110, 50, "forth")
    arrow(strong, 110, 50, 10, 50, "back", strong=True)
    lines = [shapes(picture, "line")[0] for picture in (weak, strong)]
    assert lines[1]["stroke"] == VERMILION and lines[1]["line_width"] > lines[0]["line_width"]
    (forth,), (back,) = shapes(weak, "text"), shapes(strong, "text")
    assert forth["x"] == back["x"] == 60 and forth["y"] < 50 < back["y"]  # a pair of them does not collide
    assert back["bold"] and not forth["bold"]


def test_an_arrow_of_no_length_is_no_error():
    arrow(Drawing(10, 10), 5, 5, 5, 5)


def test_a_block_is_as_wide_as_its_slots_and_marks_are_more_than_colors():
    picture = Drawing(300, 100)
    block(picture, 10, 10, 160, [(Style("#E69F00"), 3), (Style(frame=True), 1), (Style(struck=True), 4)], ["a", "b c"])
    outer = [shape for shape in shapes(picture, "rect") if shape["stroke"] == BORDER]
    assert [(shape["x"], shape["w"]) for shape in outer] == [(10, 60), (70, 20), (90, 80)]
    (frame,) = (shape for shape in shapes(picture, "rect") if shape["stroke"] == VERMILION)
    assert frame["x"] > 70 and frame["x"] + frame["w"] < 90 and frame["line_width"] == 3
    diagonals = [line for line in shapes(picture, "line") if line["x"] != line["x2"]]
    assert len(diagonals) == 4


@pytest.mark.parametrize("total", [0.4, 3, 35, 36, 200, 1234.5])
def test_ticks_are_round_few_and_inside(total):
    ticks = round_ticks(total)
    assert ticks[0] == 0 and ticks[-1] <= total * 1.001 + 1e-9 and len(ticks) <= 9
    assert len({round(b - a, 6) for a, b in itertools.pairwise(ticks)}) <= 1


def test_texts_of_an_axis_do_not_touch():
    picture = Drawing(300, 30)
    axis(picture, [0, 300], 5, [(10 * n, str(100 + n)) for n in range(30)])
    texts = shapes(picture, "text")
    assert len(texts) > 5
    assert all(b["x"] - a["x"] > SMALL * MONO_WIDTH * 3 for a, b in itertools.pairwise(texts))


def test_a_legend_has_a_mark_and_words_for_each_item_in_both_forms():
    items = [("prefill", "prompt", "#C0C0C0"), ("tag:+B", "one more", "#56B4E9"), ("≠", "differs", None)]
    picture = legend(items, 150)
    words = [text["text"] for text in shapes(picture, "text")]
    assert [word for word in words if word in ("prompt", "one more", "differs", "+B", "≠")] == words
    assert picture.height > 22  # wrapped
    assert all(text["x"] < 150 for text in shapes(picture, "text"))
    assert all(f"</svg>{text}</span>" in legend_html(items) for _, text, _ in items)
    assert mark(Drawing(0, 20), "tag:a long one", None, 0, 0) > 24


def test_a_table_escapes_what_it_holds():
    markup = table_html(("run", "a<b"), [("<i>", 3)])
    assert "<th>a&lt;b</th>" in markup and "<td>&lt;i&gt;</td><td>3</td>" in markup
