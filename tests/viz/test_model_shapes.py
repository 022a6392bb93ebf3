"""ModelShapes: what it draws is what the config says by hand, in both steps."""

import xml.etree.ElementTree as ElementTree

import pytest

from nanovllm import LLM
from nanovllm.viz import ModelShapes
from nanovllm.viz.model_shapes import OPTIONS, PARTS

HIDDEN, HEADS, KV_HEADS, SIZE, MIDDLE, VOCAB, LAYERS = 256, 4, 2, 64, 896, 2048, 8
LAYER = 2 * HIDDEN + 2 * SIZE + HIDDEN * (HEADS + 2 * KV_HEADS) * SIZE + HEADS * SIZE * HIDDEN + 3 * MIDDLE * HIDDEN


@pytest.fixture(scope="module")
def view():
    return ModelShapes()


def by_hand(tokens, seqs):
    """What comes out of each part, and its parameters."""
    row = [[tokens, HIDDEN]]
    q, k = [tokens, HEADS, SIZE], [tokens, KV_HEADS, SIZE]
    rows = (HEADS + 2 * KV_HEADS) * SIZE
    return {
        "embed_tokens": (row, VOCAB * HIDDEN), "input_layernorm": (row, HIDDEN),
        "qkv_proj": ([[tokens, rows]], HIDDEN * rows), "q_norm": ([q], SIZE), "k_norm": ([k], SIZE),
        "rotary_emb": ([q, k], 0), "attn": ([q], 0), "o_proj": (row, HEADS * SIZE * HIDDEN), "add": (row, 0),
        "post_attention_layernorm": (row, HIDDEN), "gate_up_proj": ([[tokens, 2 * MIDDLE]], 2 * MIDDLE * HIDDEN),
        "act_fn": ([[tokens, MIDDLE]], 0), "down_proj": (row, MIDDLE * HIDDEN), "add ": (row, 0),
        "the other layers": (row, (LAYERS - 1) * LAYER), "norm": (row, HIDDEN),
        "lm_head": ([[seqs, VOCAB]], VOCAB * HIDDEN),
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "tokens"), [("prefill", 13), ("decode", 3)])
def test_every_part_has_the_shapes_and_parameters_that_follow_from_the_config(view, kind, tokens):
    for (name, _, _), seen in zip(PARTS, view.steps[kind], strict=True):
        outputs, params = by_hand(tokens, 3)[name]
        assert (seen.outputs, seen.params, seen.bytes) == (outputs, params, 4 * params), name


def test_the_parts_of_a_step_stand_in_the_picture_and_one_is_marked(view):
    assert view.num_steps == 2 * len(PARTS) and view.label(view.bookmarks["decode: qkv_proj"]) == "decode: qkv_proj"
    (drawing,) = view.draw(view.bookmarks["MLP"]).drawings
    groups = [g.attrib for g in ElementTree.fromstring(drawing.svg()).iter("g") if "data-part" in g.attrib]
    assert [g["data-part"] for g in groups if g["data-now"] == "1"] == ["gate_up_proj"] and len(groups) == len(PARTS)
    assert "[13, 256] -> [13, 1792]" in view.caption(view.bookmarks["MLP"])
    assert "lm_head has the weight of embed_tokens" in view.footer() and "float32" in view.plain_text()


def test_an_engine_of_somebody_else_is_left_as_it_was():
    with LLM("qwen3-tiny", **OPTIONS) as llm:
        view = ModelShapes(llm, ["One day", "A cat"])
        assert view.steps["decode"][-1].outputs == [[2, VOCAB]]
        assert not any(module._forward_hooks for module in llm.llm_engine.model_runner.model.modules())
