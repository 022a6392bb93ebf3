"""The words about a wrong tensor: each has to be true of it, and nothing may be said of one that is right."""

import pytest
import torch

from exercises.kit.grading import Check
from exercises.kit.probes import check_tensor, describe, looks_like

AXES = ("token", "head", "feature")


def right(*shape):
    return torch.randn(shape or (5, 4, 6), generator=torch.Generator().manual_seed(0))


def find(got, expected=None, axes=AXES, **more):
    """What is said of a tensor."""
    check = Check()
    check_tensor(check, "output", got, right() if expected is None else expected, axes, **more)
    return check


CASES = {
    "5 times": lambda x: 5 * x,
    "0.1768 times": lambda x: x * 32**-0.5,
    "opposite sign": lambda x: -x,
    "0.5 more": lambda x: x + 0.5,
    "All numbers are 0": torch.zeros_like,
    "There is nan": lambda x: x / 0 * 0,
    "There is inf": lambda x: x.abs() / 0,
    "half precision": lambda x: x * (1 + 1e-3 * torch.linspace(-1, 1, 6)),
    "tokens are shifted by 1, forward": lambda x: x.roll(1, 0),
    "tokens are shifted by 2, backward": lambda x: x.roll(-2, 0),
    "tokens are in the opposite order": lambda x: x.flip(0),
    "two halves of the heads have changed places": lambda x: x.roll(2, 1),
    "two halves of the features": lambda x: torch.cat((x[..., 3:], x[..., :3]), -1),
    "features alternate between the first half and the second half": lambda x: torch.stack(
        (x[..., :3], x[..., 3:]), -1
    ).flatten(-2),
    "First come the features with even numbers": lambda x: torch.cat((x[..., ::2], x[..., 1::2]), -1),
    "The heads are right, but in the order [1, 0, 2, 3]": lambda x: x[:, [1, 0, 2, 3]],
    "Every head has the numbers of head 0": lambda x: x[:, :1].expand_as(x).contiguous(),
    "Every head has numbers of a head, but of another one: [0, 1, 0, 1]": lambda x: x[:, [0, 1, 0, 1]],
}


@pytest.mark.parametrize("words", CASES)
def test_a_wrong_tensor_is_called_by_what_was_done_to_it(words):
    check = find(CASES[words](right()))
    assert words in check.likely and check.first is not None


def test_transposed_axes_are_named_with_and_without_another_shape():
    square = right(4, 4, 3)
    assert "transposed: tokens and heads" in find(square.transpose(0, 1), square).likely
    assert "transposed: heads and features" in find(right().transpose(1, 2)).likely
    reshaped = right().transpose(0, 1).reshape(5, 4, 6)
    assert "heads were swapped before a view" in find(reshaped).likely


def test_shapes_types_and_dtypes_come_before_numbers():
    assert find(None).likely.startswith("Nothing came back")
    assert find([1.0]).first[:2] == ("type of output", "'Tensor'")
    assert find(right().flatten(1)).likely == (
        "The numbers are right and in the right order; only the shape is another one."
    )
    assert find(right()[:, :3]).likely == "There should be 4 heads, and there are 3."
    assert find(right().double()).likely == "It should be float32, and is float64."
    assert find(right().double(), dtype=torch.float64).first is None


def test_the_first_wrong_number_is_named_with_its_place():
    got = right()
    got[1:3, 2, 4] = 9.0
    text = describe(got, right(), AXES)
    assert text.startswith("token 1, head 2, feature 4: 9, should be")
    assert text.endswith(
        "2 of 120 numbers are wrong; only in token 1 and 2 of 5; only in head 2 of 4; only in feature 4 of 6"
    )
    assert looks_like(got, right(), AXES) == ""


def test_mistakes_that_the_grader_knows_are_compared_first():
    x = right()
    known = {"Twice is once too often.": 2 * x, "The last token is gone.": x[:-1]}
    assert find(2 * x, mistakes=known).likely == "Twice is once too often."
    assert find(x[:-1], mistakes=known).likely == "The last token is gone."
    y = torch.ones(5, 4, 6)
    assert find(y, inputs={"q": y}).likely == "What came back is q, unchanged."


@pytest.mark.parametrize("factor", [1.0, 1 + 1e-6, 1 - 1e-5])
def test_rounding_is_not_a_difference(factor):
    assert find(right() * factor).first is None
    masked = torch.tensor([1.0, -float("inf")])
    assert find(masked * factor, masked, ("key",)).first is None
    assert find(torch.tensor([1.0, 2.0]), masked, ("key",)).first is not None


def test_infinite_numbers_are_no_surprise_where_some_are_expected():
    masked = torch.tensor([1.0, -float("inf"), 2.0, 3.0])
    assert looks_like(torch.tensor([1.0, -float("inf"), -float("inf"), 3.0]), masked, ("key",)) == ""
    assert "There is nan" in looks_like(torch.tensor([1.0, float("nan"), 2.0, 3.0]), masked, ("key",))


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (1, 1, 1), (2, 1)])
def test_any_shape_can_be_looked_at(shape):
    x, axes = right(*shape) if shape else torch.tensor(1.5), AXES[: len(shape)]
    assert find(x, x, axes).first is None
    if x.numel():
        assert find(x + 1, x, axes).first is not None


def test_queries_are_called_queries():
    assert "The queries are shifted by 1" in find(right().roll(1, 0), axes=("query", "head", "feature")).likely
    assert "shape of output, [queries, heads]" in find(right(3, 2), right(4, 2), axes=("query", "head")).first[0]
