"""The race: at every moment, what is drawn is what the measured times say."""

import base64
import gzip
import json
import random
import re
import xml.etree.ElementTree as ElementTree
from itertools import accumulate

import pytest

from nanovllm.viz import Race
from nanovllm.viz.race import MOMENTS, SLOWEST_PLAY, Runner
from nanovllm.viz.shapes import SMALL


def random_race(seed, recorded="somewhere"):
    """Two runners of the same text; one of them computes the whole text for every token."""
    rng = random.Random(seed)
    count, prompt = rng.randint(1, 60), rng.randint(1, 30)
    texts = [f" {'x' * rng.randint(1, 8)}{i}" for i in range(count)]
    slow = [rng.uniform(0, 0.05) for _ in range(count)]
    fast = [rng.uniform(0, 0.01) for _ in range(count)]
    return Race(
        [
            Runner("loop", texts, slow, [prompt + i for i in range(count)]),
            Runner("engine", texts, fast, [prompt] + [1] * (count - 1)),
        ],
        "Once upon a time",
        recorded,
    )


def lanes(race, step):
    """By name: the data of a lane, the texts of its tokens, and how many squares it draws for the current step."""
    (drawing,) = race.draw(step).drawings
    found = {}
    for group in ElementTree.fromstring(drawing.svg()).iter("g"):
        if "data-lane" in group.attrib:
            data = {key.removeprefix("data-"): value for key, value in group.attrib.items()}
            words = [text.text for text in group.iter("text") if text.attrib.get("class") == "m"]
            found[data["lane"]] = (data, words)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_at_every_moment_the_tokens_are_there_whose_time_has_come(seed):
    race = random_race(seed)
    for step in range(race.num_steps):
        for runner in race.runners:
            data, words = lanes(race, step)[runner.name]
            arrived = [i for i, time in enumerate(accumulate(runner.seconds)) if time <= race.time(step)]
            assert words == [runner.texts[i].removeprefix(" ") for i in arrived]
            assert int(data["shown"]) == len(arrived)
            computed, again = (sum(runner.computed[i] - k for i in arrived if i >= k) for k in (0, 1))
            (drawing,) = race.draw(step).drawings
            told = f"{len(arrived)} of {len(runner.texts)} tokens; computed {computed:,}, of these {again:,} again"
            assert told in [shape.get("text") for shape in drawing.shapes]


def test_all_are_there_at_the_end_and_none_at_the_start():
    race = Race(
        [Runner("loop", ["a", "b"], [0.5, 0.25], [3, 4]), Runner("engine", ["a", "b"], [0.1, 0.1], [3, 1])], "Once"
    )
    assert [int(data["shown"]) for data, _ in lanes(race, 0).values()] == [0, 0]
    assert [int(data["shown"]) for data, _ in lanes(race, race.num_steps - 1).values()] == [2, 2]
    assert (race.total, race.num_steps) == (0.75, MOMENTS + 1)


@pytest.mark.parametrize("seed", range(6))
def test_bookmarks_are_the_first_moments_at_which_a_runner_is_done(seed):
    race = random_race(seed)
    for runner in race.runners:
        step = race.bookmarks[f"{runner.name} is done"]
        count = str(len(runner.texts))
        assert lanes(race, step)[runner.name][0]["shown"] == count
        assert step == 0 or lanes(race, step - 1)[runner.name][0]["shown"] != count
    assert list(race.bookmarks) == ["engine is done", "loop is done"]


def test_squares_are_what_the_current_step_computes():
    """Three seconds of which each runner needs one a token; in between, squares show the step that is under way."""
    runner = Runner("loop", ["a", "b", "c"], [1.0, 1.0, 1.0], [2, 3, 4])
    race = Race([runner], "Once")

    def squares(step):
        (drawing,) = race.draw(step).drawings
        begin = next(i for i, shape in enumerate(drawing.shapes) if shape.get("data", {}).get("lane"))
        return [shape["w"] for shape in drawing.shapes[begin:] if shape["kind"] == "rect" and shape["h"] == 16]

    slot = squares(0)[0] / 2  # the prompt, of two tokens, is all new
    assert len(squares(0)) == 1
    assert squares(MOMENTS // 2) == pytest.approx([2 * slot, slot])  # two again, one new
    assert squares(MOMENTS - 1) == pytest.approx([3 * slot, slot])
    assert squares(MOMENTS) == []


def test_it_says_whether_it_was_measured_now_or_recorded_and_how_fast_it_is_played():
    fast = Runner("engine", ["a"], [0.6], [2])
    now, then = Race([fast], "Once"), Race([fast], "Once", recorded="on an NVIDIA H200, 2026-11-22")
    assert re.match(r"MEASURED NOW on .+, \d+ threads?, torch \S+, \d{4}-\d\d-\d\d \d\d:\d\d; ", now.footer())
    assert then.footer().startswith("RECORDED on an NVIDIA H200, 2026-11-22; ")
    slowness = SLOWEST_PLAY * MOMENTS / 600
    assert then.footer().endswith(f"played {slowness:.1f} times as slowly")
    slow = Race([Runner("loop", ["a"], [30.0], [2])], "Once")
    assert slow.pace == 500 and slow.footer().endswith("played as fast as it was")


def test_the_player_gets_the_pace_and_the_text_is_large_enough():
    race = random_race(1)
    packed = re.search(r'<script type="application/gzip">([^<]*)</script>', race.html(b"")).group(1)
    assert json.loads(gzip.decompress(base64.b64decode(packed)))["pace"] == race.pace
    (drawing,) = race.draw(MOMENTS).drawings
    assert min(shape["size"] for shape in drawing.shapes if shape["kind"] == "text") >= SMALL
    assert drawing.height < 600


@pytest.mark.parametrize(
    "runner",
    [
        Runner("loop", ["a", "b"], [1.0], [2, 3]),
        Runner("loop", [], [], []),
        Runner("loop", ["a"], [-1.0], [2]),
    ],
)
def test_numbers_that_do_not_fit_are_refused_with_the_runners_name(runner):
    with pytest.raises(ValueError, match="'loop' needs a text, a time from 0 on and a number for each"):
        Race([runner], "Once")
