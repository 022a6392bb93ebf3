"""Pictures to guess on: what can be clicked carries its name, and the guess is marked beside the truth."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from nanovllm.viz import Bars, Boxes

NAMES = [f"block {i}" for i in range(5)]


def texts(picture, guess=None, truth=None):
    """What is written in each element that can be clicked, or in the whole picture of bars."""
    root = ElementTree.fromstring(picture.draw(guess, truth).svg())
    groups = root.findall(".//g[@data-choice]")
    said = {group.get("data-choice"): [text.text for text in group.iter("text") if text.text] for group in groups}
    return said or [text.text for text in root.iter("text")]


def test_boxes_carry_their_names_and_can_have_the_focus():
    root = ElementTree.fromstring(Boxes(NAMES).draw().svg())
    groups = root.findall(".//g[@data-choice]")
    assert [group.get("data-choice") for group in groups] == NAMES
    assert all(group.get("tabindex") == "-1" and group.find("title").text in NAMES for group in groups)


def test_until_the_truth_is_shown_nothing_tells_it():
    for picture in (Boxes(NAMES), Boxes(NAMES, in_order=True), Bars("LRU", 100, unit="%")):
        page = picture.html()
        assert "data-kind" in page and "✓" not in page and "it is" not in page
        assert "data-kind" not in picture.html(None, 38 if isinstance(picture, Bars) else NAMES[1])


@pytest.mark.parametrize(
    ("guess", "said"),
    [
        ("block 1", {"block 1": ["your guess", "block 1"], "block 3": ["block 3", "✓ it is"]}),
        ("block 3", {"block 1": ["block 1"], "block 3": ["your guess", "block 3", "✓ it is"]}),
        (None, {"block 1": ["block 1"], "block 3": ["block 3", "✓ it is"]}),
        ("of another question", {"block 1": ["block 1"], "block 3": ["block 3", "✓ it is"]}),
    ],
)
def test_a_choice_is_marked_beside_the_truth(guess, said):
    found = texts(Boxes(NAMES), guess, "block 3")
    assert {name: found[name] for name in said} == said


def test_an_order_is_numbered_beside_the_true_one():
    true = "block 4, block 3, block 2, block 1, block 0"
    found = texts(Boxes(NAMES, in_order=True), "block 0, block 3, block 2, block 1, block 4", true)
    assert found["block 0"] == ["yours: no. 1", "block 0", "is: no. 5 ≠"]
    assert found["block 3"] == ["yours: no. 2", "block 3", "is: no. 2 ✓"]
    assert texts(Boxes(NAMES, in_order=True), None, true)["block 4"] == ["block 4", "is: no. 1"]


def test_parts_and_texts_are_drawn_into_boxes():
    halves = {"upper": [(0, 0, 1, 0.5)], "lower": [(0, 0.5, 1, 0.5)]}
    svg = Boxes(halves).draw().svg()
    assert svg.count("<rect") == 2 * 3  # the box, its part, the frame of the guess
    assert "Once" in texts(Boxes({"first": ["Once", "upon"], "second": ["a", "time"]}))["first"]


@pytest.mark.parametrize("guess", [29.0, None])
def test_a_bar_lies_beside_the_true_one_and_known_ones(guess):
    bars = Bars("LRU", 100, {"a pool without end": 47}, "%")
    said = texts(bars, guess, 38)
    assert {"47 %", "38 %", "LRU: it is", "29 %" if guess else "no guess"} <= set(said)
    assert "38" not in bars.html(guess)
    found = re.search(r'data-left="([\d.]+)" data-width="([\d.]+)" data-top="100" data-step="1"', bars.html(guess))
    assert found and float(found[2]) > 300


def test_a_bar_stays_on_its_scale():
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', Bars("x", 10).draw(1e9, 1e9).svg())]
    assert max(widths) <= 612
