"""Sequence: block arithmetic, the three ranges of tokens, and what is sent to a worker."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanovllm.engine.sequence import Sequence, SequenceStatus
from nanovllm.sampling_params import SamplingParams

tokens = st.lists(st.integers(0, 1000), min_size=1, max_size=70)
block_sizes = st.sampled_from([1, 2, 3, 4, 7, 16, 32, 256])


@given(tokens, st.lists(st.integers(0, 1000), max_size=40), block_sizes)
def test_blocks_cut_the_tokens_in_order_and_only_the_last_is_partial(prompt, generated, block_size):
    seq = Sequence(prompt, SamplingParams(), block_size, seq_id=3)
    for token_id in generated:
        seq.append_token(token_id)
        assert seq.last_token == token_id == seq[-1]
    blocks = [seq.block(i) for i in range(seq.num_blocks)]
    assert [token for block in blocks for token in block] == prompt + generated == seq.token_ids
    assert all(len(block) == block_size for block in blocks[:-1])
    assert 1 <= len(blocks[-1]) == seq.last_block_num_tokens <= block_size
    assert len(seq) == seq.num_tokens == len(prompt) + len(generated)
    assert seq.prompt_token_ids == prompt and seq.num_prompt_tokens == len(prompt)
    assert seq.completion_token_ids == generated and seq.num_completion_tokens == len(generated)
    for i in (-1, seq.num_blocks, seq.num_blocks + 5):
        with pytest.raises(IndexError, match=str(seq.num_blocks)):
            seq.block(i)


@given(tokens, st.data())
def test_scheduled_tokens_follow_the_cached_ones_and_a_rest_means_cut(prompt, data):
    seq = Sequence(prompt, block_size=4)
    seq.num_cached_tokens = data.draw(st.integers(0, len(prompt) - 1))
    seq.num_scheduled_tokens = data.draw(st.integers(1, len(prompt) - seq.num_cached_tokens))
    end = seq.num_cached_tokens + seq.num_scheduled_tokens
    assert seq.scheduled_token_ids == prompt[seq.num_cached_tokens : end]
    assert seq.num_computed_after_step == end
    assert seq.is_cut == (end < len(prompt))
    assert seq.num_cached_blocks == seq.num_cached_tokens // 4


def test_a_new_sequence_waits_with_nothing_computed():
    seq = Sequence([5, 6, 7])
    assert seq.status is SequenceStatus.WAITING and not seq.is_finished
    assert (seq.seq_id, seq.block_size, seq.num_cached_tokens, seq.num_scheduled_tokens) == (0, 256, 0, 0)
    assert seq.block_table == [] and seq.num_cached_blocks == 0 and seq.sampling_params == SamplingParams()
    assert seq[0] == 5 and seq[1:] == [6, 7] and seq.last_token == 7


def test_a_sequence_needs_a_token():
    with pytest.raises(ValueError, match="empty"):
        Sequence([])


def test_a_sequence_owns_its_tokens_and_its_block_size():
    prompt = [1, 2, 3]
    small, large = Sequence(prompt, block_size=2), Sequence(prompt, block_size=4)
    small.append_token(9)
    prompt.append(8)
    assert small.token_ids == [1, 2, 3, 9] and large.token_ids == [1, 2, 3]
    assert (small.num_blocks, large.num_blocks) == (2, 1)
    assert small.block_table is not large.block_table


@given(tokens, st.integers(0, 50), block_sizes)
def test_a_pickled_sequence_knows_what_its_step_needs(prompt, num_generated, block_size):
    seq = Sequence(prompt, SamplingParams(max_tokens=99, seed=4), block_size, seq_id=12)
    for i in range(num_generated):
        seq.append_token(i)
    seq.block_table = list(range(seq.num_blocks))
    # All but the last token computed: a decode step if anything was generated, else a full hit but for one token.
    seq.num_cached_tokens, seq.num_scheduled_tokens = seq.num_tokens - 1, 1
    seq.status = SequenceStatus.RUNNING
    copy = pickle.loads(pickle.dumps(seq))
    for name in (
        "seq_id",
        "num_tokens",
        "num_prompt_tokens",
        "num_cached_tokens",
        "num_scheduled_tokens",
        "block_table",
        "block_size",
        "last_token",
        "sampling_params",
        "status",
        "num_blocks",
        "is_cut",
        "scheduled_token_ids",
        "num_computed_after_step",
    ):
        assert getattr(copy, name) == getattr(seq, name), name


@given(tokens, st.integers(0, 30), st.data())
def test_a_pickled_prefill_keeps_every_scheduled_token(prompt, num_generated, data):
    seq = Sequence(prompt, block_size=4)
    for i in range(num_generated):  # preempted after that many tokens, and recomputed
        seq.append_token(2000 + i)
    seq.num_cached_tokens = data.draw(st.integers(0, seq.num_tokens - 1))
    seq.num_scheduled_tokens = data.draw(st.integers(1, seq.num_tokens - seq.num_cached_tokens))
    copy = pickle.loads(pickle.dumps(seq))
    end = seq.num_cached_tokens + seq.num_scheduled_tokens
    assert copy.scheduled_token_ids == seq.token_ids[seq.num_cached_tokens : end]
    assert copy.is_cut == seq.is_cut


@pytest.mark.parametrize("num_generated", [0, 1], ids=["a prompt found in the cache but for one token", "decode"])
def test_a_sequence_with_one_token_to_compute_pickles_small(num_generated):
    def size(num_tokens):
        seq = Sequence([70000] * (num_tokens + 1 - num_generated), block_size=256)
        for _ in range(num_generated):
            seq.append_token(70000)
        seq.num_cached_tokens, seq.num_scheduled_tokens = num_tokens, 1
        seq.block_hashes = [2**63] * (num_tokens // 256)
        return len(pickle.dumps(seq))

    assert size(100_000) < size(10) + 100


@given(st.integers(1, 12), st.integers(0, 8), st.integers(0, 8))
def test_a_rewound_sequence_is_as_it_was_with_fewer_tokens(num_prompt_tokens, num_kept, num_dropped):
    """Whatever an interrupted step has left behind: tokens, blocks, hashes, an end, a half-appended token."""
    seq = Sequence(list(range(num_prompt_tokens)), block_size=3, seq_id=5)
    for i in range(num_kept + num_dropped):
        seq.append_token(100 + i)
    num_tokens = num_prompt_tokens + num_kept
    seq.block_hashes = list(range(seq.num_tokens // 3))
    seq.block_table, seq.num_cached_tokens, seq.num_scheduled_tokens = [4, 5], seq.num_tokens - 1, 1
    seq.status, seq.finish_reason, seq.stop_reason, seq.error = SequenceStatus.FINISHED, "stop", 7, "no"
    seq.token_ids.append(999)
    seq.rewind(num_tokens)
    fresh = Sequence(list(range(num_prompt_tokens)), block_size=3, seq_id=5)
    for i in range(num_kept):
        fresh.append_token(100 + i)
    fresh.block_hashes = list(range(num_tokens // 3))
    assert vars(seq) == vars(fresh)
