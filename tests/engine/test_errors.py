"""Bad requests and failures on the way: the message names argument and value, and all other requests go on."""

import math
import re

import numpy as np
import pytest
import torch

from nanovllm import LLM, BeamSearchParams, SamplingParams

from . import ahead
from .ahead import works_ahead
from .conftest import make_tiny_model
from .reference import assert_clean, drain

VOCAB_SIZE = 320
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
OTHER_PROMPTS = [[11, 12, 13], [21, 22, 23, 24, 25, 26]]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("errors") / "model", vocab_size=VOCAB_SIZE, with_tokenizer=True)


OPTIONS = {"kvcache_block_size": 4, "num_kvcache_blocks": 16, "max_model_len": 48}


def make_llm(path, **options):
    return LLM(path, **(OPTIONS | options))


@pytest.fixture(scope="module")
def llm(path):
    with make_llm(path) as llm:
        llm.expected = [out["token_ids"] for out in llm.generate(OTHER_PROMPTS, GREEDY, use_tqdm=False)]
        yield llm


CALLS = {
    "generate": lambda llm, prompt, params: llm.generate(prompt, params, use_tqdm=False),
    "generate_list": lambda llm, prompt, params: llm.generate([[1, 2], prompt, [3]], params, use_tqdm=False),
    "add_request": lambda llm, prompt, params: llm.add_request(prompt, params),
    "stream": lambda llm, prompt, params: llm.stream(prompt, params),
    "beam_search": lambda llm, prompt, params: llm.beam_search(prompt, BeamSearchParams(2, 2)),
}


def assert_refused_beside_others(llm, call, error, *patterns):
    """`call` raises while other requests run, and these give what they give without it."""
    ids = [llm.add_request(OTHER_PROMPTS[0], GREEDY)]
    llm.step()
    ids.append(llm.add_request(OTHER_PROMPTS[1], GREEDY))
    num_live = len(llm.scheduler.waiting) + len(llm.scheduler.running)
    assert len(llm.llm_engine.requests) == num_live
    try:
        with pytest.raises(error) as caught:
            call()
        for pattern in patterns:
            assert re.search(pattern, str(caught.value), re.DOTALL), str(caught.value)
        assert len(llm.scheduler.waiting) + len(llm.scheduler.running) == num_live, "nothing was started"
        assert len(llm.llm_engine.requests) == num_live and not llm.llm_engine.inbox, "nor will it be"
    finally:
        results = drain(llm)
    assert [results[i] for i in ids] == llm.expected
    assert_clean(llm)


BAD_PROMPTS = [
    # what, error, what the message says
    pytest.param("", ValueError, ["prompt", "empty"], id="empty string"),
    pytest.param([5, VOCAB_SIZE], ValueError, [f"token id {VOCAB_SIZE} .*vocabulary"], id="token too large"),
    pytest.param([5, -1], ValueError, ["token id", "-1"], id="negative token"),
    pytest.param([5, 10**30], ValueError, ["1" + "0" * 30, "vocabulary"], id="huge token"),
    pytest.param([1] * 49, ValueError, ["49", "max_model_len", "48"], id="longer than max_model_len"),
    pytest.param([5, 1.5], TypeError, ["token id", "1.5"], id="float token"),
    pytest.param([5, None], TypeError, ["token id", "None"], id="None token"),
    pytest.param([5, "a"], TypeError, ["token id", "'a'"], id="string token"),
    pytest.param([5, True], TypeError, ["token id", "True"], id="bool token"),
    pytest.param([5, [6]], TypeError, ["token id", "6"], id="nested token"),
    pytest.param([5, math.nan], TypeError, ["token id", "nan"], id="nan token"),
    pytest.param(None, TypeError, ["prompt", "None"], id="None"),
    pytest.param(5, TypeError, ["prompt", "5"], id="number"),
    pytest.param(b"bytes", TypeError, ["prompt", "bytes"], id="bytes"),
    pytest.param({"prompt": "a"}, TypeError, ["prompt"], id="dict"),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("prompt, error, patterns", BAD_PROMPTS)
def test_a_bad_prompt(llm, call, prompt, error, patterns):
    assert_refused_beside_others(llm, lambda: CALLS[call](llm, prompt, GREEDY), error, *patterns)


@pytest.mark.parametrize("prompts", [[[]], [[1, 2], []], ["a", ""], [(), [1]]])
def test_an_empty_prompt_in_a_list(llm, prompts):
    assert_refused_beside_others(llm, lambda: llm.generate(prompts, GREEDY, use_tqdm=False), ValueError, "empty")


@pytest.mark.parametrize("call", ["add_request", "stream"])
@pytest.mark.parametrize("prompts", [["a", "b"], [[1], [2]], [], [[]]])
def test_one_request_takes_one_prompt(llm, call, prompts):
    assert_refused_beside_others(llm, lambda: CALLS[call](llm, prompts, GREEDY), (TypeError, ValueError), "prompt")


@pytest.mark.parametrize("call", ["generate", "generate_list", "add_request"])
def test_a_prompt_larger_than_the_pool(path, call):
    with make_llm(path, num_kvcache_blocks=5) as llm:
        llm.expected = [out["token_ids"] for out in llm.generate(OTHER_PROMPTS, GREEDY, use_tqdm=False)]
        assert_refused_beside_others(
            llm, lambda: CALLS[call](llm, [1] * 21, GREEDY), ValueError, "21", "20", "num_kvcache_blocks"
        )
        fits = llm.generate([1] * 20, SamplingParams(max_tokens=1), use_tqdm=False)[0]
        assert fits["finish_reason"] == "length" and len(fits["token_ids"]) == 1


@pytest.mark.parametrize("call", [*CALLS, "engine", "scheduler"])
def test_what_can_never_be_run_is_told_in_one_place(llm, monkeypatch, call):
    """A subclass that refuses more, or fewer, is asked by every way in, before anything is started."""

    def check(seq):
        if 77 in seq.token_ids:
            raise ValueError("no 77 here")

    def add(owner, method):
        request = llm._make_request([5, 6], GREEDY)
        request.seq.token_ids[0] = 77
        getattr(owner, method)(request if owner is llm.llm_engine else request.seq)

    ways = {
        "engine": lambda: add(llm.llm_engine, "add_request"),
        "scheduler": lambda: add(llm.scheduler, "add"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(llm.scheduler, "check", check)
        way_in = ways.get(call, lambda: CALLS[call](llm, [5, 77], GREEDY))
        assert_refused_beside_others(llm, way_in, ValueError, "^no 77 here$")


@pytest.mark.parametrize("call", ["generate", "add_request", "stream"])
@pytest.mark.parametrize("params", [{"max_tokens": 4}, 3, "greedy", BeamSearchParams(2, 2), SamplingParams])
def test_sampling_params_of_a_wrong_type(llm, call, params):
    assert_refused_beside_others(llm, lambda: CALLS[call](llm, [1, 2], params), TypeError, "sampling_params")


def test_a_list_of_sampling_params_with_something_else_in_it(llm):
    assert_refused_beside_others(
        llm, lambda: llm.generate([[1], [2]], [GREEDY, None], use_tqdm=False), TypeError, "sampling_params", "None"
    )


@pytest.mark.parametrize("num_prompts, num_params", [(3, 2), (2, 3), (1, 0), (1, 2), (0, 1)])
def test_lists_of_different_lengths(llm, num_prompts, num_params):
    call = lambda: llm.generate([[1, 2]] * num_prompts, [GREEDY] * num_params, use_tqdm=False)  # noqa: E731
    assert_refused_beside_others(llm, call, ValueError, str(num_prompts), str(num_params), "sampling_params")


def test_add_request_with_two_sampling_params(llm):
    assert_refused_beside_others(llm, lambda: llm.add_request([1], [GREEDY, GREEDY]), ValueError, "sampling_params")


@pytest.mark.parametrize("params", [None, GREEDY, 3])
def test_beam_search_params_of_a_wrong_type(llm, params):
    assert_refused_beside_others(
        llm, lambda: llm.beam_search([[1, 2]], params), TypeError, "params", "BeamSearchParams"
    )


@pytest.mark.parametrize("text_need", ["prompt", "stop", "stream", "chat"])
def test_what_needs_a_tokenizer_says_so(tmp_path, text_need):
    with make_llm(make_tiny_model(tmp_path, vocab_size=VOCAB_SIZE)) as llm:
        llm.expected = [out["token_ids"] for out in llm.generate(OTHER_PROMPTS, GREEDY, use_tqdm=False)]
        call = {
            "prompt": lambda: llm.generate("text", GREEDY),
            "stop": lambda: llm.generate([1, 2], SamplingParams(stop="x")),
            "stream": lambda: llm.stream([1, 2], GREEDY),
            "chat": lambda: llm.chat([{"role": "user", "content": "x"}], GREEDY),
        }[text_need]
        assert_refused_beside_others(llm, call, ValueError, "tokenizer")
        output = llm.generate([1, 2], GREEDY, use_tqdm=False)[0]
        assert output["text"] == "" and len(output["token_ids"]) == 8


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        [[]],
        ["hello"],
        "hello",
        [{"role": "user"}],
        [{"content": "x"}],
        [[{"role": "user", "content": "x"}], ["y"]],
        {"role": "user", "content": "x"},
        5,
    ],
)
def test_bad_messages(llm, messages):
    assert_refused_beside_others(llm, lambda: llm.chat(messages, GREEDY), (TypeError, ValueError), "message")


def test_a_chat_without_a_template(tmp_path):
    path = make_tiny_model(tmp_path, with_tokenizer=True)
    for name in ("chat_template.jinja",):
        (path / name).unlink(missing_ok=True)
    from .reference import edit_json

    edit_json(path / "tokenizer_config.json", remove=("chat_template",))
    with make_llm(path) as llm, pytest.raises(ValueError, match="chat template"):
        llm.chat([{"role": "user", "content": "x"}])


# Requests that end before they are done.


@pytest.mark.parametrize("length", [1, 39, 40, 47, 48])
def test_a_generation_that_reaches_max_model_len_ends_with_length(llm, length):
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    short, other = llm.generate([[7] * length, OTHER_PROMPTS[0]], [params, GREEDY], use_tqdm=False)
    assert short["finish_reason"] == "length" and "error" not in short
    assert len(short["token_ids"]) == max(48 - length, 1)
    assert other["token_ids"] == llm.expected[0]


def test_a_sequence_that_outgrows_the_pool_alone_ends_with_error(path):
    endless = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    with make_llm(path, num_kvcache_blocks=5) as llm:
        expected = llm.generate(OTHER_PROMPTS, GREEDY, use_tqdm=False)
        large, *others = llm.generate([[7] * 5, *OTHER_PROMPTS], [endless, GREEDY, GREEDY], use_tqdm=False)
        assert large["finish_reason"] == "error" == large.outputs[0].finish_reason
        assert "num_kvcache_blocks" in large["error"] and "max_tokens" in large["error"]
        # The pool holds 20 tokens, and the last token generated needs no slot.
        assert len(large["token_ids"]) == 16
        assert [output["token_ids"] for output in others] == [output["token_ids"] for output in expected]
        assert all("error" not in output for output in others)
        assert_clean(llm)
        seq_id = llm.add_request([7] * 5, endless)
        assert drain(llm) == {seq_id: large["token_ids"]}
        again = llm.generate([7] * 5, SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True), use_tqdm=False)
        assert again[0]["finish_reason"] == "length" and again[0]["token_ids"] == large["token_ids"]


def test_a_stream_that_outgrows_the_pool_ends(path):
    with make_llm(path, num_kvcache_blocks=3) as llm:
        stream = llm.stream([7] * 5, SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True))
        text = ""
        while True:
            try:
                text += next(stream)
            except StopIteration as stop:
                output = stop.value
                break
        assert output["finish_reason"] == "error" and output["text"] == text
        assert_clean(llm)


# A step that raises.


class Failure(Exception):
    """Raised by the tests inside the engine."""


def failing(function, error, when):
    """`function`, raising at its call number `when`, before or after it did its work."""
    calls = [0]

    def call(*args, **kwargs):
        calls[0] += 1
        if calls[0] == when:
            raise error
        return function(*args, **kwargs)

    return call


# One step ahead, the tokens of a step are looked at after the next one has been launched.
PLACES = {
    "schedule": lambda llm: (llm.scheduler, "schedule"),
    "may_append": lambda llm: (llm.scheduler.block_manager, "may_append"),
    "hash_blocks": lambda llm: (llm.scheduler.block_manager, "hash_blocks"),
    "prepare": lambda llm: (llm.llm_engine.model_runner, "prepare_decode"),
    "run_model": lambda llm: (llm.llm_engine.model_runner, "run_model"),
    "sample": lambda llm: (llm.llm_engine.model_runner, "sample"),
    "postprocess": lambda llm: (llm.scheduler, "resolve" if works_ahead(llm) else "postprocess"),
    "take_in": lambda llm: (llm.llm_engine, "take_in"),
}


@pytest.fixture(scope="module")
def ahead_llm(path, llm):
    with ahead.make_llm(path, **OPTIONS) as ahead_llm:
        ahead_llm.expected = llm.expected
        yield ahead_llm


@pytest.fixture(params=["llm", pytest.param("ahead_llm", marks=pytest.mark.lever)])
def any_llm(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [Failure("planned"), KeyboardInterrupt()])
@pytest.mark.parametrize("when", [1, 2, 4])
def test_a_step_that_raises_loses_no_other_request(any_llm, monkeypatch, place, error, when):
    llm = any_llm
    ids = [llm.add_request(prompt, GREEDY) for prompt in OTHER_PROMPTS]
    with monkeypatch.context() as patch:
        owner, name = PLACES[place](llm)
        patch.setattr(owner, name, failing(getattr(owner, name), error, when))
        with pytest.raises(type(error)):
            # Its prompt shares blocks with a request that goes on.
            llm.generate([OTHER_PROMPTS[1] + [9], [1, 2]], GREEDY, use_tqdm=False)
    assert len(llm.llm_engine.requests) == 2, "only the requests of the call that was interrupted are gone"
    results = drain(llm)
    assert [results[i] for i in ids] == llm.expected
    assert_clean(llm)
    outputs = llm.generate(OTHER_PROMPTS, GREEDY, use_tqdm=False)
    assert [output["token_ids"] for output in outputs] == llm.expected


@pytest.mark.parametrize("when", [1, 2, 5])
def test_text_and_logprobs_survive_a_step_that_raises_after_sampling(any_llm, monkeypatch, when):
    llm, params = any_llm, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, stop="\x00", logprobs=0)
    expected = llm.generate(OTHER_PROMPTS[0], params, use_tqdm=False)[0]
    stream = llm.stream(OTHER_PROMPTS[0], params)
    text = next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(llm.llm_engine, "take_in", failing(llm.llm_engine.take_in, KeyboardInterrupt(), when))
        with pytest.raises(KeyboardInterrupt):
            llm.generate([1, 2], GREEDY, use_tqdm=False) if when > 1 else list(llm.stream([1, 2], GREEDY))
    try:
        while True:
            text += next(stream)
    except StopIteration as stop:
        output = stop.value
    assert text == expected["text"]
    assert [list(row) for row in output["logprobs"]] == [list(row) for row in expected["logprobs"]]
    assert_clean(llm)


# A step for which the GPU has no memory.


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("when", [1, 2, 4])
def test_a_step_without_memory_is_tried_once_more(any_llm, monkeypatch, place, when):
    llm, error = any_llm, torch.OutOfMemoryError("planned")
    ids = [llm.add_request(prompt, GREEDY) for prompt in OTHER_PROMPTS]
    with monkeypatch.context() as patch:
        owner, name = PLACES[place](llm)
        patch.setattr(owner, name, failing(getattr(owner, name), error, when))
        outputs = llm.generate(OTHER_PROMPTS, GREEDY, use_tqdm=False)
    assert [output["token_ids"] for output in outputs] == llm.expected
    results = drain(llm)
    assert [results[i] for i in ids] == llm.expected
    assert_clean(llm)


class FullMemory:
    """A GPU that has memory for so many tokens a step; `steps` holds their numbers and their requests."""

    def __init__(self, llm, patch, num_tokens):
        runner, self.num_tokens, self.steps = llm.llm_engine.model_runner, num_tokens, []
        self.launch = runner.launch
        patch.setattr(runner, "launch", self)

    def __call__(self, seqs, is_prefill):
        num_tokens = sum(seq.num_scheduled_tokens for seq in seqs)
        self.steps.append((num_tokens, [seq.seq_id for seq in seqs]))
        if num_tokens > self.num_tokens:
            raise torch.OutOfMemoryError("planned")
        return self.launch(seqs, is_prefill)

    def too_large_twice(self):
        """Requests of steps that did not fit after one that had not fitted."""
        fits = [num_tokens <= self.num_tokens for num_tokens, _ in self.steps]
        return {
            seq_id
            for i, (_, seq_ids) in enumerate(self.steps)
            if i and not fits[i] and not fits[i - 1]
            for seq_id in seq_ids
        }


def test_a_prefill_without_memory_is_cut_in_halves(any_llm, monkeypatch):
    llm = any_llm
    prompts = [[50 + i, *range(1, 12)] for i in range(3)]
    expected = [output["token_ids"] for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
    llm.scheduler.reset([])  # an empty cache
    with monkeypatch.context() as patch:
        memory = FullMemory(llm, patch, num_tokens=20)
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        assert [num_tokens for num_tokens, _ in memory.steps[:4]] == [36, 18, 18, 3]
        assert [output["token_ids"] for output in outputs] == expected
        assert not any("error" in output for output in outputs)
        assert_clean(llm)
        llm.generate([[60] * 20], GREEDY, use_tqdm=False)
        assert memory.steps[-8][0] == 20, "an idle engine forgets that the memory was full"
    llm.generate(prompts, GREEDY, use_tqdm=False)
    assert_clean(llm)


def test_a_decode_without_memory_runs_with_half_the_sequences(any_llm, monkeypatch):
    llm, prompts = any_llm, [[50 + i] for i in range(4)]
    expected = [output["token_ids"] for output in llm.generate(prompts, GREEDY, use_tqdm=False)]
    with monkeypatch.context() as patch:
        memory = FullMemory(llm, patch, num_tokens=10**6)
        ids = [llm.add_request(prompt, GREEDY) for prompt in prompts]
        llm.step()
        memory.num_tokens = 3
        results = drain(llm)
        assert [results[i] for i in ids] == expected
        sizes = [num_tokens for num_tokens, _ in memory.steps]
        assert sizes[:2] == [4, 4] and max(sizes[2:]) == 2, "what is computed again is cut, too"
        assert max(len(seq_ids) for _, seq_ids in memory.steps[2:]) == 2


def test_a_step_that_does_not_fit_in_halves_either_ends_its_requests_only(any_llm, monkeypatch):
    llm = any_llm
    prompts = [[50] * 40, *OTHER_PROMPTS, [51] * 30, [52] * 3]
    alone = [llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in prompts]
    llm.scheduler.reset([])
    with monkeypatch.context() as patch:
        memory = FullMemory(llm, patch, num_tokens=12)
        first = llm.add_request(prompts[0], GREEDY)
        outputs = llm.generate(prompts[1:], GREEDY, use_tqdm=False)
        failed = memory.too_large_twice()
        assert first in failed and len(memory.steps) > 1 and len(failed) < len(prompts)
        for seq_id, output in enumerate(outputs, start=first + 1):
            assert (output["finish_reason"] == "error") == (seq_id in failed)
            if seq_id in failed:
                assert "out of GPU memory" in output["error"]
            assert output["token_ids"] == alone[seq_id - first]["token_ids"][: len(output["token_ids"])]
            assert len(output["token_ids"]) == (0 if seq_id in failed else 8)
        assert drain(llm) == {first: []}, "it has ended, with what it had"
        assert_clean(llm)
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output["token_ids"] for output in outputs] == [output["token_ids"] for output in alone]


# What was scheduled and never computed.


def test_keys_that_were_never_computed_are_not_shared_after_a_failure(llm, monkeypatch):
    # The blocks are registered when the step is scheduled; a step that fails must take that back.
    prompt = [31, 32, 33, 34, 35, 36, 37, 38, 39]
    with monkeypatch.context() as patch:
        runner = llm.llm_engine.model_runner
        patch.setattr(runner, "run_model", failing(runner.run_model, Failure("planned"), 1))
        with pytest.raises(Failure):
            llm.generate(prompt, GREEDY, use_tqdm=False)
    output = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
    assert output["num_cached_tokens"] == 0
    with make_llm(llm.config.model_path) as fresh:
        assert fresh.generate(prompt, GREEDY, use_tqdm=False)[0]["token_ids"] == output["token_ids"]


def test_a_request_that_is_bad_inside_a_list_starts_nothing(llm):
    with pytest.raises(ValueError, match="vocabulary"):
        llm.generate([[1, 2], [3, 4], [VOCAB_SIZE]], GREEDY, use_tqdm=False)
    assert_clean(llm)
    assert llm.step() == ([], 0)


def test_numpy_tokens_are_tokens(llm):
    expected = llm.generate([11, 12, 13], GREEDY, use_tqdm=False)[0]["token_ids"]
    assert llm.generate(list(np.array([11, 12, 13])), GREEDY, use_tqdm=False)[0]["token_ids"] == expected
    assert all(type(token_id) is int for token_id in expected)


@pytest.mark.parametrize("call", ["generate", "add_request", "step", "stream", "beam_search", "chat", "next"])
def test_a_closed_engine_says_so(path, call):
    llm = make_llm(path)
    stream = llm.stream([1, 2], GREEDY)
    next(stream)
    llm.exit()
    with pytest.raises(RuntimeError, match="closed"):
        {
            "generate": lambda: llm.generate([1, 2]),
            "add_request": lambda: llm.add_request([1, 2]),
            "step": llm.step,
            "stream": lambda: llm.stream([1, 2]),
            "beam_search": lambda: llm.beam_search([[1]], BeamSearchParams(1, 1)),
            "chat": lambda: llm.chat([{"role": "user", "content": "x"}]),
            "next": lambda: list(stream),
        }[call]()
