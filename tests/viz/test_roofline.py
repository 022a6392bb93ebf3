"""The roofline: roofs, steps and the table are what the numbers say."""

import random
import xml.etree.ElementTree as ElementTree

import pytest

from exercises.kit import speed_work
from nanovllm.viz import Roofline
from nanovllm.viz.roofline import BOTTOM, LEFT, RIGHT, TOP, Machine, Work, in_units, milliseconds, percent
from nanovllm.viz.shapes import SMALL

FAST, SLOW = Machine("fast", 1e12, 1e14, "recorded"), Machine("slow", 1e10, 1e11)


def random_roofline(seed):
    rng = random.Random(seed)
    works = []
    for i in range(rng.randint(1, 6)):
        operations, moved = 10 ** rng.uniform(8, 13), 10 ** rng.uniform(8, 11)
        least = operations / FAST.reaches(operations / moved)
        seconds = {"fast": least * rng.uniform(1, 5)} if rng.random() < 0.6 else {}
        works.append(Work(f"work {i}", operations, moved, rng.randint(1, 500), seconds))
    return Roofline([FAST, SLOW], works)


def rectangles(roofline, step):
    """For each machine and work: the corners of what is drawn, and whether it is the current one."""
    (drawing,) = roofline.draw(step).drawings
    found = {}
    for group in ElementTree.fromstring(drawing.svg()).iter("g"):
        if "data-work" in group.attrib:
            spots = [{key: float(rect.attrib[key]) for key in ("x", "y", "width")} for rect in group.iter("rect")]
            found[group.attrib["data-machine"], int(group.attrib["data-work"])] = spots, group.attrib["data-current"]
    return found


@pytest.mark.parametrize("seed", range(6))
def test_every_step_stands_on_the_roof_and_measured_ones_below_it(seed):
    roofline = random_roofline(seed)
    for step in range(roofline.num_steps):
        for (name, i), (spots, current) in rectangles(roofline, step).items():
            work, machine = roofline.works[i], FAST if name == "fast" else SLOW
            assert current == str(int(i == step)) and len(spots) == 1 + (name in work.seconds)
            speeds = [min(machine.operations_per_second, work.intensity * machine.bytes_per_second)]
            speeds += [work.operations / work.seconds[name]] if name in work.seconds else []
            for spot, speed in zip(spots, speeds, strict=True):
                assert spot["x"] + spot["width"] / 2 == pytest.approx(roofline.x_at(work.intensity), abs=0.2)
                assert spot["y"] + spot["width"] / 2 == pytest.approx(roofline.y_at(speed), abs=0.2)
                assert LEFT <= spot["x"] <= RIGHT and TOP - 6 <= spot["y"] <= BOTTOM
            assert [spot["y"] for spot in spots] == sorted(spot["y"] for spot in spots)  # measured ones are lower


def test_the_bend_is_where_bytes_and_operations_take_the_same_time():
    work = Work("at the bend", 1e12, 1e10, 10, {})
    assert FAST.bend == 100 == work.intensity
    assert work.operations / FAST.operations_per_second == work.moved / FAST.bytes_per_second
    below, above = Work("below", 1e12, 1.1e10, 1, {}), Work("above", 1e12, 0.9e10, 1, {})
    roofline = Roofline([FAST], [below, above])
    assert "the limit is memory" in roofline.caption(0) and "at most 91 % of its" in roofline.caption(0)
    assert "the limit is arithmetic" in roofline.caption(1) and "at most 100 % of its" in roofline.caption(1)


def test_the_table_says_the_least_time_and_what_was_measured():
    roofline = Roofline([FAST, SLOW], [Work("decode", 1e9, 1e9, 4, {"fast": 2e-3})])
    assert roofline.rows(0) == [
        ["fast", "1.0", "1 ms", "2 ms", "50 %", "4,000"],
        ["slow", "1.0", "100 ms", "-", "-", "40"],
    ]
    assert "<td>50 %</td>" in roofline.draw(0).html() and roofline.footer() == "fast: recorded"


def test_where_a_number_has_4_bytes_a_step_moves_twice_as_many():
    works = [Work("decode", 6e9, 1e9, 4, {}), Work("prefill", 6e12, 1e9, 4, {})]
    halves, floats = FAST, FAST._replace(name="floats", element_size=4)
    roofline = Roofline([halves, floats], works)
    assert [row[1] for row in roofline.rows(0)] == ["6.0", "3.0"]
    assert floats.least(works[0]) == 2 * halves.least(works[0])  # memory is the limit
    assert floats.least(works[1]) == halves.least(works[1])  # arithmetic is
    spots = {name: rectangle[0][0]["x"] for (name, i), rectangle in rectangles(roofline, 0).items() if i == 0}
    assert spots["floats"] < spots["fast"]


def test_numbers_are_short():
    assert [in_units(10.0**k) for k in (5, 6, 11, 15)] == ["100000", "1 M", "100 G", "1000 T"]
    assert [milliseconds(s) for s in (0.000291, 0.054, 2.5)] == ["0.291 ms", "54 ms", "2,500 ms"]
    assert [percent(share) for share in (0.0052, 0.27, 1.0)] == ["0.52 %", "27 %", "100 %"]


@pytest.mark.parametrize(
    ("machines", "works"),
    [([], [Work("a", 1, 1, 1, {})]), ([FAST], []), ([FAST], [Work("a", 0, 1, 1, {})]), ([Machine("m", 0, 1)], [])],
)
def test_what_cannot_be_drawn_is_refused(machines, works):
    with pytest.raises(ValueError, match="above 0"):
        Roofline(machines, works)


def test_all_texts_can_be_read_and_the_still_picture_is_the_one_on_show():
    roofline = random_roofline(3)
    for step in range(roofline.num_steps):
        (drawing,) = roofline.draw(step).drawings
        assert all(shape["size"] >= SMALL for shape in drawing.shapes if shape["kind"] == "text")
    roofline.step = roofline.num_steps - 1
    assert roofline.still_steps() == [roofline.num_steps - 1]
    assert roofline.png().startswith(b"\x89PNG")


def test_the_recorded_steps_take_longer_than_the_roof_allows():
    machine = speed_work.h200()
    works = speed_work.roofline_works()
    assert sum("H200" in work.seconds for work in works) == 4
    for work in works:
        least = work.operations / machine.reaches(work.intensity)
        assert all(seconds > least for seconds in work.seconds.values())
