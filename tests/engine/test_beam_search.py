"""Beam search against a plain beam search over Hugging Face's logits."""

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanovllm import LLM, BeamSearchParams, SamplingParams

from .reference import LOGITS_TOLERANCE, Reference, assert_clean, drain, edit_json, heavy, make_smooth_model

VOCAB_SIZE = 40
EOS = [3, 17]


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = make_smooth_model(tmp_path_factory.mktemp("beams") / "model", vocab_size=VOCAB_SIZE, seed=4)
    edit_json(path / "generation_config.json", eos_token_id=EOS)
    with LLM(path, kvcache_block_size=2, num_kvcache_blocks=512, max_model_len=64) as llm:
        llm.reference = Reference(path)
        yield llm


def search(reference, prompt, width, max_tokens, ignore_eos=False, length_penalty=1.0, eos=EOS):
    """vLLM's rules, one beam after the other; returns [(tokens, cumulative log-probability)], best first."""

    def score(beam):
        tokens, logprob = beam
        return logprob / (len(tokens) - (tokens[-1] in eos)) ** length_penalty

    live, completed = [(list(prompt), 0.0)], []
    for _ in range(max_tokens):
        candidates = []
        for tokens, logprob in live:
            row = reference.logits(tokens)[-1].double().log_softmax(dim=-1)
            values, ids = row.topk(min(2 * width, VOCAB_SIZE))
            for value, token_id in zip(values.tolist(), ids.tolist(), strict=True):
                beam = ([*tokens, token_id], logprob + value)
                is_done = token_id in eos and not ignore_eos
                (completed if is_done else candidates).append(beam)
        live = sorted(candidates, key=score, reverse=True)[:width]
    return sorted(completed + live, key=score, reverse=True)[:width], bool(completed)


def assert_same_beams(output, expected, prompt):
    assert len(output.sequences) == len(expected)
    for beam, (tokens, logprob) in zip(output.sequences, expected, strict=True):
        assert beam.tokens == tokens and beam.tokens[: len(prompt)] == prompt
        assert beam.cum_logprob == pytest.approx(logprob, abs=10 * LOGITS_TOLERANCE)


@heavy(max_examples=15)
@given(
    prompts=st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=6), min_size=1, max_size=3),
    width=st.integers(1, 5),
    max_tokens=st.integers(1, 5),
    ignore_eos=st.booleans(),
    length_penalty=st.sampled_from([1.0, 0.0, 0.5, 2.0]),
)
def test_beams_are_those_of_a_plain_search(llm, prompts, width, max_tokens, ignore_eos, length_penalty):
    params = BeamSearchParams(
        beam_width=width, max_tokens=max_tokens, ignore_eos=ignore_eos, length_penalty=length_penalty
    )
    outputs = llm.beam_search(prompts, params)
    assert len(outputs) == len(prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        expected, _ = search(llm.reference, prompt, width, max_tokens, ignore_eos, length_penalty)
        assert_same_beams(output, expected, prompt)
    assert_clean(llm)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 3.0])
def test_beams_that_end_early_compete_with_those_that_go_on(llm, length_penalty):
    prompts = [[i, i + 1] for i in range(0, 30, 3)]
    outputs = llm.beam_search(prompts, BeamSearchParams(3, 4, length_penalty=length_penalty))
    num_completed = 0
    for prompt, output in zip(prompts, outputs, strict=True):
        expected, _ = search(llm.reference, prompt, 3, 4, length_penalty=length_penalty)
        assert_same_beams(output, expected, prompt)
        num_completed += sum(tokens[-1] in EOS for tokens, _ in expected)
        for beam in output.sequences:
            assert beam.finish_reason == ("stop" if beam.tokens[-1] in EOS else "length")
    assert num_completed or length_penalty > 1, "the example must have beams that end early"


@pytest.mark.parametrize("width", [1, 2, 3])
def test_beams_go_on_when_the_best_tokens_end_them(llm, tmp_path, width):
    # The most likely tokens are ends, so that only candidates beyond the beam width keep the search alive.
    prompts = [[i, i + 1] for i in range(0, 30, 5)]
    eos = sorted({llm.reference.logits(prompt)[-1].argmax().item() for prompt in prompts})
    path = tmp_path / "model"
    shutil.copytree(llm.config.model_path, path)
    edit_json(path / "generation_config.json", eos_token_id=eos)
    with LLM(path, kvcache_block_size=2, num_kvcache_blocks=512) as other:
        outputs = other.beam_search(prompts, BeamSearchParams(width, 3, length_penalty=0.0))
    for prompt, output in zip(prompts, outputs, strict=True):
        expected, _ = search(llm.reference, prompt, width, 3, length_penalty=0.0, eos=eos)
        assert_same_beams(output, expected, prompt)


def test_one_beam_is_greedy(llm):
    (output,) = llm.beam_search([[5, 6, 7]], BeamSearchParams(1, 8, ignore_eos=True))
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)
    expected = llm.generate([5, 6, 7], greedy, use_tqdm=False)[0]
    assert output.sequences[0].tokens == [5, 6, 7, *expected["token_ids"]]
    assert output.sequences[0].cum_logprob == pytest.approx(expected.outputs[0].cumulative_logprob, abs=1e-3)


def test_wider_beams_are_never_worse_with_two_steps(llm):
    # With as many beams as tokens, two steps look at everything.
    (output,) = llm.beam_search([[9, 8]], BeamSearchParams(VOCAB_SIZE, 2, ignore_eos=True))
    first = llm.reference.logits([9, 8])[-1].log_softmax(dim=-1)
    best = max(
        (first[i] + llm.reference.logits([9, 8, i])[-1].log_softmax(dim=-1).max()).item() for i in range(VOCAB_SIZE)
    )
    assert output.sequences[0].cum_logprob == pytest.approx(best, abs=1e-3)


def test_beams_share_their_blocks(llm):
    before = llm.scheduler.num_prefill_tokens
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    llm.beam_search([prompt], BeamSearchParams(4, 6, ignore_eos=True))
    computed = llm.scheduler.num_prefill_tokens - before
    # One prompt, then for each of 5 steps 4 beams with at most a block of two and a token each that is not shared.
    assert computed <= 12 + 5 * 4 * 3


def test_requests_in_flight_go_on_beside_a_beam_search(llm):
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    expected = llm.generate([20, 21, 22], params, use_tqdm=False)[0]["token_ids"]
    seq_id = llm.add_request([20, 21, 22], params)
    llm.beam_search([[5, 6]], BeamSearchParams(2, 3))
    assert drain(llm) == {seq_id: expected}


def test_a_beam_search_ends_at_max_model_len(llm):
    prompt = [i % VOCAB_SIZE for i in range(62)]
    (output,) = llm.beam_search([prompt], BeamSearchParams(2, 10, ignore_eos=True))
    assert output.sequences and all(beam.finish_reason == "length" for beam in output.sequences)
    assert all(62 < len(beam.tokens) <= 65 for beam in output.sequences)
    assert_clean(llm)


def test_a_beam_search_ends_where_the_pool_does(tmp_path):
    path = make_smooth_model(tmp_path)
    with LLM(path, kvcache_block_size=2, num_kvcache_blocks=8) as llm:
        (output,) = llm.beam_search([[5] * 14], BeamSearchParams(2, 10, ignore_eos=True))
        assert [(len(beam.tokens), beam.finish_reason) for beam in output.sequences] == [(17, "length")] * 2
        assert_clean(llm)


def test_the_largest_length_penalty_gives_numbers(llm):
    (output,) = llm.beam_search([[i % VOCAB_SIZE for i in range(50)]], BeamSearchParams(2, 3, length_penalty=10.0))
    assert len(output.sequences) == 2 and all(beam.cum_logprob < 0 for beam in output.sequences)


def test_a_beam_that_fails_on_its_way_is_an_error(llm, monkeypatch):
    def run_model(*args):
        raise torch.OutOfMemoryError("planned")

    with monkeypatch.context() as patch:
        patch.setattr(llm.llm_engine.model_runner, "run_model", run_model)
        with pytest.raises(RuntimeError, match="beam could not be continued: out of GPU memory"):
            llm.beam_search([[5, 6]], BeamSearchParams(2, 3))
    assert_clean(llm)
    assert len(llm.beam_search([[5, 6]], BeamSearchParams(2, 3))[0].sequences) == 2


def test_text_of_beams(tmp_path):
    path = make_smooth_model(tmp_path, with_tokenizer=True)
    with LLM(path, kvcache_block_size=4, num_kvcache_blocks=64) as llm:
        (output,) = llm.beam_search("The quick", BeamSearchParams(2, 4))
        for beam in output.sequences:
            prompt = llm.tokenizer.encode("The quick")
            assert beam.tokens[: len(prompt)] == prompt
            assert beam.text == llm.tokenizer.decode(beam.tokens[len(prompt) :], skip_special_tokens=True)
        assert llm.beam_search([], BeamSearchParams(2, 4)) == []
        prompts = ["The quick", [5, 6]]
        assert [len(output.sequences) for output in llm.beam_search(prompts, BeamSearchParams(3, 2))] == [3, 3]
