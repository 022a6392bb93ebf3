"""What the open exercise of chapter 16 is measured with, and the changed checkpoints of its notebook."""

import pytest
import torch

from exercises.kit import checkpoint_work, labs
from exercises.kit.checkpoint_work import BAR, GOOD, Held, StackedCheckpoint
from nanovllm import LLM

OPTIONS = {"device": "cpu", "disabled_optimizations": "all", "num_kvcache_blocks": 8, "max_model_len": 128}
OPTIONS |= {"kvcache_block_size": 16}


def test_what_lives_is_counted_and_what_is_gone_is_not():
    others = torch.zeros(1000)
    with Held([others]) as held:
        one = torch.zeros(100)  # 400 bytes
        view = one[:50]
        copy = view.clone()  # 200 bytes
        assert held.now() == 600
        del copy
        assert held.now() == 400
        del one
        assert held.now() == 400, "the view still needs it"
        del view
        others[:10].add_(1)
        assert held.now() == 0
    assert held.peak == 600


@pytest.fixture(scope="module")
def checkpoint():
    return checkpoint_work.stacked_checkpoint()


@pytest.mark.parametrize(
    ("stream", "low", "high"),
    [
        (checkpoint_work.all_at_once, 15_000_000, 15_300_000),
        (checkpoint_work.tensor_by_tensor, 7_300_000, 7_400_000),
        (labs.stream_weights, 1_048_576, 1_048_576),
    ],
)
def test_the_stated_numbers_are_those_that_are_measured(checkpoint, stream, low, high):
    expected, seen = checkpoint.expected(), []

    def take(name, tensor):
        assert torch.equal(tensor, expected[name])
        seen.append(name)

    peak, course = checkpoint_work.held_while_streaming(stream, checkpoint, take)
    assert low <= peak <= high and max(course) <= peak and sorted(seen) == sorted(expected)
    assert len(course) == len(expected) + 1


def test_only_our_answer_is_below_the_bar():
    assert 1_048_576 < GOOD < BAR < 7_300_000


def test_a_part_that_is_read_is_a_copy_and_is_counted(checkpoint):
    before = checkpoint.num_bytes_read
    piece = checkpoint.read("qkv", 3, ..., slice(256, 384))
    assert piece.shape == (256, 128) and checkpoint.num_bytes_read - before == 256 * 128 * 2
    piece.zero_()
    assert checkpoint.read("qkv", 3, ..., slice(256, 384)).abs().sum() > 0


def test_a_model_with_a_head_of_its_own_has_it_among_the_whole_ones():
    weights = {
        name: tensor for name, tensor in checkpoint_work.bundled().items() if ".layers." not in name or ".0." in name
    }
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    assert "head" in StackedCheckpoint(weights, 1).whole


def test_an_exchange_changes_two_tensors_and_a_bad_one_changes_the_loss():
    def change(weights):
        checkpoint_work.exchanged(weights, 0, "self_attn.k_proj", "self_attn.v_proj")

    losses, story = [], "Once upon a time, a friendly boy named Kasper lived in a valley full of flowers."
    for edit in (lambda weights: None, change):
        with checkpoint_work.model_folder(edit) as folder, LLM(folder, **OPTIONS) as llm:
            losses.append(checkpoint_work.loss(llm, llm.tokenizer.encode(story)))
    assert losses[0] < 1 < 5 < losses[1]


def test_both_ways_to_multiply_are_timed():
    found = checkpoint_work.seconds_of_products(16, (8, 4, 4), (1, 3), rounds=3)
    assert list(found) == [1, 3] and all(0 < time < 1 for times in found.values() for time in times)
