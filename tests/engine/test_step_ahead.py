"""Working one step ahead, as the engine does on a GPU, must not change any result.

The tests run on a CPU (see `ahead.py`); those of the whole engine, with graphs, are in test_gpu.py.
"""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanovllm import LLM, SamplingParams
from nanovllm.engine.model_runner import ModelRunner
from nanovllm.engine.sequence import Sequence
from nanovllm.engine.step_output import StepOutput
from nanovllm.levers import compose, cuda_graph, step_ahead
from nanovllm.levers.step_ahead import PENDING

from .ahead import make_llm
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
@settings(max_examples=6, deadline=None)
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
    with make_llm(model_path, **options) as llm:
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
    with make_llm(model_path, kvcache_block_size=4, num_kvcache_blocks=128) as llm:
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
    with make_llm(model_path, kvcache_block_size=4, num_kvcache_blocks=128) as llm:
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


def test_an_exception_when_the_results_are_read_recomputes_them(model_path, monkeypatch):
    """Also the second time, when what is recomputed is read."""
    with make_llm(model_path, kvcache_block_size=4, num_kvcache_blocks=128) as llm:
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=20, ignore_eos=True, logprobs=1)
        (expected,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
        seq_id = llm.add_request([5, 6, 7], params)
        request = llm.llm_engine.requests[seq_id]
        for _ in range(6):
            llm.step()
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(StepOutput, "wait", lambda *_: (_ for _ in ()).throw(RuntimeError("lost")))
                with pytest.raises(RuntimeError, match="lost"):
                    for _ in range(3):
                        llm.step()
        finished = []
        while not llm.is_finished():
            finished += llm.step()[0]
        assert finished == [(seq_id, expected["token_ids"])]
        assert [list(row) for row in request.logprobs] == [list(row) for row in expected["logprobs"]]


def test_an_interrupt_between_the_copies_leaves_no_pending_token_in_a_padding_row(tiny_model):
    """The next graph may read more rows than there are sequences, and a model has no embedding for -1."""
    options = {"device": "cpu", "kvcache_block_size": 8, "num_kvcache_blocks": 16, "max_num_seqs": 8}
    seqs = [Sequence([5, 6, 7], block_size=8, seq_id=i) for i in range(8)]
    for i, seq in enumerate(seqs):
        seq.block_table, seq.num_scheduled_tokens = [i], 1
        seq.append_token(PENDING)
    read = []

    class Interrupt:
        """A step before, whose tokens cannot be had."""

        @property
        def seqs(self):
            raise KeyboardInterrupt

    with LLM(tiny_model, **options) as llm:
        runner = llm.llm_engine.model_runner
        runner.__class__ = compose(ModelRunner, [cuda_graph, step_ahead])
        runner.to_device = lambda data, dtype: torch.tensor(data, dtype=dtype)  # there is no memory to pin
        runner.buffers = runner.allocate_buffers()
        runner.graphs = dict.fromkeys((4, 8), SimpleNamespace(replay=lambda: read.append(snapshot())))
        runner.num_filled_rows = runner.num_graph_replays = 0
        runner.fill_padding(0, 8)

        def snapshot():
            return {name: runner.buffers[name].tolist() for name in ("input_ids", "slot_mapping", "context_lens")}

        with pytest.raises(KeyboardInterrupt):
            runner.launch_after(Interrupt(), seqs, False)
        assert PENDING in runner.buffers["input_ids"], "nothing was tested"
        for seq in seqs:
            seq.token_ids[-1] = seq.last_token = 9
        runner.launch_after(None, seqs[:5], False)
        assert runner.num_filled_rows == 5
        pad_slot = 16 * 8
    assert read == [
        {
            "input_ids": [9] * 5 + [0] * 3,
            "slot_mapping": [8 * i + 3 for i in range(5)] + [pad_slot] * 3,
            "context_lens": [4] * 5 + [1] * 3,
        }
    ]
