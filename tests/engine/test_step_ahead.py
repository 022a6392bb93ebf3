"""Working one step ahead, as the engine does on a GPU, must not change any result.

The switch is forced on the CPU, too: the tokens are there at once, but the engine looks at them one step late, so all
of its bookkeeping of pending tokens is the same as on a GPU.
"""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanovllm import LLM, SamplingParams
from nanovllm.engine.sequence import PENDING_TOKEN, Sequence

from .conftest import make_tiny_model

VOCAB_SIZE = 64


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"), vocab_size=VOCAB_SIZE, eos_token_id=1)


requests = st.lists(
    st.tuples(
        st.lists(st.integers(2, VOCAB_SIZE - 1), min_size=1, max_size=40),
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 1.0]),
            seed=st.integers(0, 100),
            top_k=st.sampled_from([-1, 5]),
            max_tokens=st.integers(1, 30),
            ignore_eos=st.booleans(),
            stop_token_ids=st.sampled_from([(), (2, 3, 4, 5, 6, 7)]),
            logprobs=st.sampled_from([None, 2]),
        ),
    ),
    min_size=1,
    max_size=8,
)


@given(
    requests=requests,
    block_size=st.sampled_from([1, 2, 4, 16]),
    pool_tokens=st.sampled_from([80, 160, 400]),
    budget=st.sampled_from([8, 16, 64]),
    max_num_seqs=st.sampled_from([1, 2, 4, 16]),
)
@settings(max_examples=10, deadline=None)
def test_one_step_ahead_gives_the_same_results(model_path, requests, block_size, pool_tokens, budget, max_num_seqs):
    prompts, params = [list(part) for part in zip(*requests, strict=True)]
    options = {
        "kvcache_block_size": block_size,
        "num_kvcache_blocks": pool_tokens // block_size,
        "max_num_batched_tokens": budget,
        "max_num_seqs": max_num_seqs,
    }
    with LLM(model_path, disabled_optimizations=("step_ahead",), **options) as llm:
        expected = llm.generate(prompts, params, use_tqdm=False)
    with LLM(model_path, **options) as llm:
        llm.runs_ahead = True
        for _ in range(2):  # the second time with a warm prefix cache
            outputs = llm.generate(prompts, params, use_tqdm=False)
            for output, reference in zip(outputs, expected, strict=True):
                assert output["token_ids"] == reference["token_ids"]
                assert output["finish_reason"] == reference["finish_reason"]
                if "logprobs" in reference:
                    assert [list(row) for row in output["logprobs"]] == [list(row) for row in reference["logprobs"]]
            assert llm.is_finished()
            assert not llm.scheduler.block_manager.used_block_ids


def test_an_abort_between_steps_leaves_no_pending_token(model_path):
    with LLM(model_path, kvcache_block_size=4, num_kvcache_blocks=128) as llm:
        llm.runs_ahead = True
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        expected = llm.generate([[5, 6, 7], [8, 9]], params, use_tqdm=False)
        aborted, other = llm.add_request([5, 6, 7], params), llm.add_request([8, 9], params)
        for _ in range(5):
            llm.step()
        output = llm.abort(aborted)
        assert output["finish_reason"] == "abort"
        assert 0 < len(output["token_ids"]) < 20
        assert output["token_ids"] == expected[0]["token_ids"][: len(output["token_ids"])]
        finished = []
        while not llm.is_finished():
            finished += llm.step()[0]
        assert finished == [(other, expected[1]["token_ids"])]


def test_an_interrupted_step_recomputes_what_was_pending(model_path, monkeypatch):
    with LLM(model_path, kvcache_block_size=4, num_kvcache_blocks=128) as llm:
        llm.runs_ahead = True
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        (expected,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
        seq_id = llm.add_request([5, 6, 7], params)
        for _ in range(6):
            llm.step()
        with monkeypatch.context() as patch:
            patch.setattr(llm.scheduler, "resolve", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                llm.step()
        finished = []
        while not llm.is_finished():
            finished += llm.step()[0]
        assert finished == [(seq_id, expected["token_ids"])]


def test_an_interrupt_between_the_copies_leaves_no_pending_token_in_a_padding_row(tiny_model, monkeypatch):
    """The next graph may read more rows than there are sequences, and a model has no embedding for -1."""
    options = {"device": "cpu", "kvcache_block_size": 8, "num_kvcache_blocks": 16, "max_num_seqs": 8}
    seqs = [Sequence([5, 6, 7], block_size=8, seq_id=i) for i in range(8)]
    for i, seq in enumerate(seqs):
        seq.block_table, seq.num_scheduled_tokens = [i], 1
        seq.append_token(PENDING_TOKEN)
    read = []
    with LLM(tiny_model, **options) as llm:
        runner = llm.model_runner
        runner.graph_buffers = runner.allocate_graph_buffers()
        runner.graphs = dict.fromkeys((4, 8), SimpleNamespace(replay=lambda: read.append(snapshot())))
        runner.fill_graph_padding(0, 8)

        def snapshot():
            return {name: runner.graph_buffers[name].tolist() for name in ("input_ids", "slot_mapping", "context_lens")}

        with monkeypatch.context() as patch:
            patch.setattr(runner, "fill_in_pending", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                runner.launch(seqs, False, previous=SimpleNamespace(seqs=seqs))
        for seq in seqs:
            seq.resolve_pending_token(9)
        runner.launch(seqs[:5], False)
        assert runner.num_filled_rows == 5
        pad_slot = 16 * 8
    assert read == [
        {
            "input_ids": [9] * 5 + [0] * 3,
            "slot_mapping": [8 * i + 3 for i in range(5)] + [pad_slot] * 3,
            "context_lens": [4] * 5 + [1] * 3,
        }
    ]
