"""PagedGather: what it shows after the last block is the softmax of all keys at once."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch

from exercises.kit import attention_work
from nanovllm.viz import PagedGather
from nanovllm.viz.shapes import SMALL


def random_step(seed):
    """Some blocks of a pool, in no order, the last of them not full."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks, size, num_tokens = 9, (1, 4, 8)[seed % 3], 5 + 3 * seed % 7
    table = torch.randperm(num_blocks, generator=generator)[: -(-num_tokens // size)].tolist()
    q, k_cache, v_cache = (torch.randn(*shape, 8, generator=generator) for shape in ((), *[(num_blocks, size)] * 2))
    step = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "block_table": table}
    return step | {"num_tokens": num_tokens, "scale": 0.7}


def expected(step):
    """Attention to all keys, by a softmax that sees them all."""
    places = [divmod(i, step["k_cache"].shape[1]) for i in range(step["num_tokens"])]
    keys, values = (
        torch.stack([step[name][step["block_table"][i], j] for i, j in places]) for name in ("k_cache", "v_cache")
    )
    return (step["scale"] * keys @ step["q"]).softmax(0) @ values


def groups_of(widget, step, name):
    (drawing,) = widget.draw(step).drawings
    found = [group.attrib for group in ElementTree.fromstring(drawing.svg()).iter("g")]
    return [data for data in found if f"data-{name}" in data]


@pytest.mark.parametrize("seed", range(6))
def test_the_end_is_the_whole_softmax_and_every_block_is_drawn(seed):
    step = random_step(seed)
    widget = PagedGather(**step)
    right = [f"{x:.3f}" for x in expected(step)[:3].tolist()]
    (result,) = groups_of(widget, widget.num_steps - 1, "result")
    assert result["data-result"].split() == right and right[0] in widget.caption(widget.num_steps - 1)
    size = step["k_cache"].shape[1]
    for i, block_id in enumerate(step["block_table"]):
        (entry,) = (group for group in groups_of(widget, i, "entry") if group["data-now"] == "1")
        (block,) = (group for group in groups_of(widget, i, "pool") if group["data-now"] == "1")
        assert (entry["data-entry"], entry["data-block"], block["data-pool"]) == (str(i), str(block_id), str(block_id))
        keys = step["k_cache"][block_id, : step["num_tokens"] - i * size]
        scores = [f"{score:.2f}" for score in (step["scale"] * keys @ step["q"]).tolist()]
        assert groups_of(widget, i, "scores")[0]["data-scores"].split() == scores
        assert len(groups_of(widget, i, "line")) == i + 1
        assert re.match(rf"Entry {i} of the table: block {block_id}, ", widget.caption(i))


def test_a_step_of_the_bundled_model():
    step = attention_work.walked()
    widget = PagedGather(**step)
    last = widget.tiles[-1]
    assert torch.allclose((last.output / last.total).float(), expected(step), atol=1e-4)
    drawn = {int(group["data-pool"]): int(group["data-other"]) for group in groups_of(widget, 0, "pool")}
    assert step["others"] and [n for n, is_other in drawn.items() if is_other] == sorted(step["others"])
    assert not {*step["others"]} & {*step["block_table"]}
    assert step["block_table"] != sorted(range(len(step["block_table"]))) and widget.bookmarks["a larger score"] == 2


def test_texts_are_large_enough_and_nothing_is_outside():
    widget = PagedGather(**attention_work.walked())
    for step in range(widget.num_steps):
        (drawing,) = widget.draw(step).drawings
        assert min(shape["size"] for shape in drawing.shapes if shape["kind"] == "text") >= SMALL
        for shape in drawing.shapes:
            if shape["kind"] == "rect":
                assert shape["x"] >= -1 and shape["x"] + shape["w"] <= drawing.width + 1
                assert shape["y"] + shape["h"] <= drawing.height + 1
