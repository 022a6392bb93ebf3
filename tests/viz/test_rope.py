"""RopeView: arrows and scores are those of a rotation, and moving both changes no score."""

import math
import xml.etree.ElementTree as ElementTree

import pytest
import torch

from nanovllm.layers.rotary_embedding import get_rope
from nanovllm.viz import RopeView


def groups(view, step, name):
    """The groups of a frame that have an attribute."""
    (drawing,) = view.draw(step).drawings
    return [g.attrib for g in ElementTree.fromstring(drawing.svg()).iter("g") if f"data-{name}" in g.attrib]


@pytest.mark.parametrize("seed", range(3))
def test_every_part_and_score_is_that_of_complex_numbers(seed):
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 16, generator=generator).unbind()
    view = RopeView(q, k, get_rope(16, 3000, 500.0), pairs=(0, 3, 7), most=9)
    for step, (q_at, k_at) in enumerate(view.places):
        parts = []
        for i in range(8):
            turn = complex(math.cos(a := (q_at - k_at) * 500.0 ** (-i / 8)), math.sin(a))
            parts.append((complex(q[i], q[i + 8]) * turn * complex(k[i], k[i + 8]).conjugate()).real)
        for dial, pair in zip(groups(view, step, "pair"), (0, 3, 7), strict=True):
            assert int(dial["data-pair"]) == pair
            assert float(dial["data-part"]) == pytest.approx(parts[pair], abs=5e-3)
        (now,) = groups(view, step, "score")
        assert float(now["data-score"]) == pytest.approx(sum(parts), abs=2e-2)
        assert int(now["data-distance"]) == q_at - k_at
        assert f"{view.score(q_at, k_at):.3f}" in view.caption(step)


def test_it_moves_the_query_then_both_and_ends_far_away():
    view = RopeView(most=4)
    assert view.places == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 2), (1004, 1000)]
    assert view.bookmarks == {"same place": 0, "far apart": 4, "both move": 5, "1,000 further": 7}
    assert RopeView(rotary=get_rope(64, 100, 1e4)).places[-1] == (24, 8)  # a short table has no such place


def test_by_default_it_is_the_table_of_the_bundled_model_and_equal_arrows():
    view = RopeView()
    assert view.score(0, 0) == pytest.approx(32)
    assert view.rotary.cos_sin_cache.shape == (2048, 1, 64)
    assert "q . k" in view.plain_text()
