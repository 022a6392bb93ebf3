"""Kernels of learners: what the stand-in of PyTorch refuses, and which spellings of a kernel are understood."""

import pytest
import torch

from exercises.kit import checks, kernel_work, manifest
from exercises.kit.workspace import parse

EXERCISE = "ch10.decode_kernel"
PARAMETERS = "q_ptr, k_ptr, v_ptr, table_ptr, o_ptr, num_tokens, scale, GROUP, KV_HEADS, HEAD_DIM, BLOCK_SIZE"
RIGHT = """
    head, features, places = tl.program_id(0), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_SIZE)
    q = tl.load(q_ptr + head * HEAD_DIM + features) * scale
    maximum, total, output = float("-inf"), 0.0, tl.zeros([HEAD_DIM], tl.float32)
    for i in range(0, tl.cdiv(num_tokens, BLOCK_SIZE)):
        is_token = i * BLOCK_SIZE + places < num_tokens
        rows = cache_rows(table_ptr, i, places, BLOCK_SIZE) * KV_HEADS + head // GROUP
        offsets = rows[:, None] * HEAD_DIM + features[None, :]
        k = tl.load(k_ptr + offsets, mask=is_token[:, None], other=0.0)
        v = tl.load(v_ptr + offsets, mask=is_token[:, None], other=0.0)
        scores = tl.where(is_token, tl.sum(q[None, :] * k, axis=1), float("-inf"))
        new = tl.maximum(maximum, tl.max(scores, axis=0))
        weights, decay = tl.exp(scores - new), tl.exp(maximum - new)
        total, maximum = total * decay + tl.sum(weights, axis=0), new
        output = output * decay + tl.sum(weights[:, None] * v, axis=0)
    tl.store(o_ptr + head * HEAD_DIM + features, output / total)
"""
HELPER = "def cache_rows(table_ptr, i, places, BLOCK_SIZE):\n    return tl.load(table_ptr + i) * BLOCK_SIZE + places\n"


def graded(text):
    return checks.grade(parse(manifest.get(EXERCISE), text), engine=False)


def written(helper=HELPER, body=RIGHT, parameters=PARAMETERS):
    return f"{helper}\n\ndef decode_kernel({parameters}):{body}"


def test_a_helper_is_called():
    assert graded(written()).passed


def test_annotations_are_as_in_any_kernel():
    assert graded(written(HELPER, RIGHT, PARAMETERS.replace("BLOCK_SIZE", "BLOCK_SIZE: tl.constexpr"))).passed


IMPORTS = "import triton\nimport triton.language as tl\n\n"


@pytest.mark.parametrize("decorator", ["@triton.jit", "@triton.jit()"])
def test_a_kernel_may_be_written_as_in_any_tutorial(decorator):
    assert graded(IMPORTS + written().replace("def ", f"{decorator}\ndef ")).passed
    assert graded(written().replace("def ", f"{decorator}\ndef ")).passed


SLIPS = {
    "`tl` is there": written("", RIGHT),
    "no library but tl": written(body=RIGHT.replace("tl.exp(", "torch.exp(")),
    "Here the position in the whole sequence was added": written(
        HELPER.replace("+ places", "+ i * BLOCK_SIZE + places")
    ),
    "there is no @ in a kernel": written(body=RIGHT.replace("tl.sum(q[None, :] * k, axis=1)", "q @ tl.trans(k)")),
    "keeps its shape": written(body=RIGHT.replace("tl.zeros([HEAD_DIM], tl.float32)", "0.0")),
    "has no `other`": written(body=RIGHT.replace("mask=is_token[:, None], other=0.0)", "mask=is_token[:, None])")),
    "Powers of 2": written(body=RIGHT.replace("tl.exp(", "tl.exp2(")),
    "without * HEAD_DIM": written(body=RIGHT.replace("q_ptr + head * HEAD_DIM", "q_ptr + head")),
}


@pytest.mark.parametrize("words", SLIPS)
def test_a_slip_is_called_by_its_name(words, monkeypatch):
    monkeypatch.setattr(checks, "fingerprints", lambda exercise: [])  # what no known mistake has to tell
    result = graded(SLIPS[words])
    assert result.status == "failed" and words in str(result.rows()), result.rows()


def test_a_masked_place_holds_anything_unless_told():
    pointer, mask = kernel_work.Pointer("x", torch.arange(3.0)), torch.tensor([True, False])
    assert kernel_work.twin.load(pointer + torch.tensor([1, 9]), mask=mask).isnan().tolist() == [False, True]
    assert kernel_work.twin.load(pointer + torch.tensor([1, 9]), mask=mask, other=5.0).tolist() == [1, 5]
