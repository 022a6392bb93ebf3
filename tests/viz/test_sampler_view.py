"""The picture of sampling: what it draws is what the functions keep, and how often they draw it."""

import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
import torch

from nanovllm.layers import sampler
from nanovllm.viz import SamplerView
from nanovllm.viz.sampler_view import LEFT, PRESETS, RIGHT, Cut, outcome_of
from nanovllm.viz.shapes import SMALL

LOGITS = torch.tensor([2.0, 0.5, 3.0, -1.0, 1.5, -4.0]).repeat(5) - torch.arange(30) / 7
TOKENIZER = SimpleNamespace(decode=lambda token_ids: f" token{token_ids[0]}")


def view(**more):
    return SamplerView(LOGITS, TOKENIZER, "a prompt", **more)


def groups(widget, step):
    (drawing,) = widget.draw(step).drawings
    found = [group for group in ElementTree.fromstring(drawing.svg()).iter("g") if "data-token" in group.attrib]
    return {int(group.attrib["data-token"]): (group, group.attrib) for group in found}


@pytest.mark.parametrize("name", PRESETS)
def test_bars_are_what_the_filters_keep(name):
    widget, cut = view(), PRESETS[name]
    step = list(PRESETS).index(name)
    scaled = LOGITS.double() / cut.temperature
    kept = scaled >= scaled.max() + torch.log(torch.tensor(cut.min_p)) if cut.min_p else torch.ones(30, dtype=bool)
    if cut.top_k:
        kept &= scaled >= scaled.topk(cut.top_k).values[-1]
    if cut.top_p < 1:
        chances = scaled.masked_fill(~kept, -torch.inf).softmax(-1)
        order = chances.argsort(descending=True)
        kept[order[chances[order].cumsum(-1) - chances[order] >= cut.top_p]] = False
    expected = scaled.masked_fill(~kept, -torch.inf).softmax(-1)
    torch.testing.assert_close(widget.outcome(step).kept.double(), expected, atol=1e-6, rtol=1e-5)
    for token_id, (_, data) in groups(widget, step).items():
        assert data["data-kept"] == str(int(kept[token_id]))
    assert f"{int(kept.sum()):,} of 30 tokens can be drawn" in widget.caption(step)


def test_draws_are_about_as_frequent_as_likely_and_only_of_what_is_kept():
    for cut in PRESETS.values():
        found = outcome_of(LOGITS, cut)
        assert int(found.counts.sum()) == 1000 and not found.counts[found.kept == 0].any()
        assert (found.counts / 1000 - found.kept).abs().max() < 0.06


def test_marks_and_bars_stay_in_their_columns():
    widget = view()
    for step in range(widget.num_steps):
        for group, _ in groups(widget, step).values():
            ends = [float(rect.attrib["x"]) + float(rect.attrib["width"]) for rect in group.iter("rect")]
            assert max(ends) <= RIGHT + 0.2 and min(float(rect.attrib["x"]) for rect in group.iter("rect")) >= LEFT


def test_it_calls_the_functions_that_it_is_given():
    def keeps_two(logits, top_k, top_p):
        return logits.masked_fill(logits < logits.topk(2).values[:, -1:], -torch.inf)

    names = ("apply_temperature", "apply_min_p", "gumbel_noise")
    other = SimpleNamespace(**{name: getattr(sampler, name) for name in names}, apply_top_k_top_p=keeps_two)
    widget = view(sampler=other, presets={"one": Cut(top_k=5)})
    assert int((widget.outcome(0).kept > 0).sum()) == 2 and "your engine's functions" in widget.footer()


def test_a_caption_does_not_say_again_what_the_name_says_and_dropped_others_are_counted():
    widget = view()
    for step, (name, cut) in enumerate(PRESETS.items()):
        assert all(f"{kind} " not in widget.caption(step) for kind in ("temperature", "top-k", "top-p", "min-p")), name
        texts = [shape["text"] for shape in widget.draw(step).drawings[0].shapes if shape["kind"] == "text"]
        others = next(text for text in texts if text.endswith("others"))
        assert others != "and 0 others" and (cut.top_k == 0 or others == "and 14 others")
    assert view(presets={"hot": Cut(3.0)}).caption(0).startswith("temperature 3. ")


def test_controls_make_a_setting_of_their_own():
    widget = view()
    widget.make_panel()
    widget.inputs["top_k"].value = 3
    assert widget.label(widget.step) == "your setting"
    assert int((widget.outcome(widget.step).kept > 0).sum()) == 3
    widget.step = 2
    assert widget.inputs["temperature"].value == 2.0 and widget.label(2) == "temperature 2"


def test_all_texts_can_be_read():
    widget = view()
    for step in range(widget.num_steps):
        (drawing,) = widget.draw(step).drawings
        assert all(shape["size"] >= SMALL for shape in drawing.shapes if shape["kind"] == "text")
    assert widget.png().startswith(b"\x89PNG") and "SamplerView" in widget.plain_text()
