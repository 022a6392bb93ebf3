"""Anything a caller may do, in any order, with good and bad arguments: right results or documented errors, no more."""

import decimal
import fractions
import json
import math
import unicodedata

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nanovllm import LLM, BeamSearchParams, SamplingParams
from nanovllm.config import Config
from nanovllm.model_files import load_tokenizer
from nanovllm.models.qwen3 import Qwen3ForCausalLM
from nanovllm.utils.loader import load_model

from .conftest import a_tenth, in_two_sizes, make_tiny_model
from .oracles import check_block_manager

VOCAB_SIZE, MAX_MODEL_LEN = 320, 40
QUIET = {"use_tqdm": False}
# Strings that are valid Unicode, and strings that no encoding has.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
broken_text = st.text(st.characters(categories=["Cs"]), min_size=1, max_size=5).map(lambda s: f"a{s}b")

numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-3, 70),
    st.floats(),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from([np.int64(3), np.int8(-1), np.float32(0.5), np.float64("nan"), np.bool_(True), 10**400]),
    st.sampled_from([decimal.Decimal("0.5"), decimal.Decimal("sNaN"), fractions.Fraction(1, 2), 1j, math.inf]),
)
things = st.one_of(
    st.none(),
    text,
    broken_text,
    st.binary(max_size=4),
    st.sampled_from([np.array([1, 2]), np.array(1), np.array([]), torch.tensor(1), torch.tensor([1.0, 2.0])]),
    st.sampled_from([object(), object, len, SamplingParams(), ..., {"a": 1}, {1}, range(2), torch.float32]),
)
anything = st.recursive(
    st.one_of(numbers, things), lambda inner: st.one_of(st.lists(inner, max_size=3), st.tuples(inner)), max_leaves=4
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny_model(
        tmp_path_factory.mktemp("fuzz") / "model", vocab_size=VOCAB_SIZE, seed=11, with_tokenizer=True
    )


def is_documented(error, name):
    return isinstance(error, TypeError | ValueError) and name in str(error)


def many(quick, whole):
    """A test in two sizes. The quick one draws what the other one begins with."""
    return in_two_sizes("max_examples", quick, a_tenth(whole))


def draw(strategy, max_examples, check):
    settings(max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck))(
        given(strategy)(check)
    )()


# SamplingParams, BeamSearchParams, Config: a valid object, or an error that names the argument.


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, kvcache_block_size=4, num_kvcache_blocks=30, max_model_len=MAX_MODEL_LEN) as llm:
        yield llm


def fuzz_params(llm, kind, max_examples, run):
    names = list(kind.__dataclass_fields__)

    def check(arguments):
        name, value = arguments
        required = {"beam_width": 2, "max_tokens": 2}
        given_arguments = (required if kind is BeamSearchParams else {"max_tokens": 3}) | {name: value}
        try:
            params = kind(**given_arguments)
        except Exception as error:
            assert is_documented(error, name), f"{name}={value!r}: {error!r}"
        else:
            values = [getattr(params, name) for name in names]
            assert all(math.isfinite(value) for value in values if isinstance(value, float | np.floating)), params
            run(params)

    draw(st.tuples(st.sampled_from(names), anything), max_examples, check)


@many(150, 5000)
def test_any_sampling_params(llm, max_examples):
    """Whatever is accepted also works."""

    def run(params):
        (output,) = llm.generate([5, 6], params, **QUIET)
        assert output["finish_reason"] in ("stop", "length")
        assert 1 <= len(output["token_ids"]) <= params.max_tokens
        assert all(0 <= token_id < VOCAB_SIZE for token_id in output["token_ids"])

    fuzz_params(llm, SamplingParams, max_examples, run)


@many(50, 500)
def test_any_beam_search_params(llm, max_examples):
    def run(params):
        if params.beam_width <= 70:
            (output,) = llm.beam_search([5, 6], params)
            assert 1 <= len(output.sequences) <= params.beam_width

    fuzz_params(llm, BeamSearchParams, max_examples, run)


@many(200, 8000)
def test_any_config(path, max_examples):
    names = [name for name, field in Config.__dataclass_fields__.items() if field.init]

    def check(arguments):
        name, value = arguments
        try:
            config = Config(**({"model": path} | {name: value}))
        except Exception as error:
            assert is_documented(error, name), f"{name}={value!r}: {error!r}"
            return
        assert config.max_model_len >= 1 and config.dtype.is_floating_point
        assert config.tensor_parallel_size in (1, 2, 4) and config.num_kvcache_blocks != 0

    draw(st.tuples(st.sampled_from(names), anything), max_examples, check)


@many(100, 1000)
def test_any_prompt(llm, max_examples):
    """A result for each prompt, or an error and nothing started."""

    def check(prompt):
        for call in (llm.generate, llm.add_request, llm.stream):
            try:
                result = call(prompt, SamplingParams(max_tokens=1), **(QUIET if call == llm.generate else {}))
            except (TypeError, ValueError) as error:
                assert str(error), f"{prompt!r}"
                assert not llm.llm_engine.requests
            else:
                if call == llm.add_request:
                    assert llm.abort(result)["token_ids"] == []

    prompt = st.one_of(anything, text, st.lists(st.integers(-2, VOCAB_SIZE + 2), max_size=5), st.lists(anything))
    draw(prompt, max_examples, check)


# Text through the bundled model's tokenizer.


@pytest.fixture(scope="module")
def bundled():
    """The bundled model's tokenizer with random weights: only the text matters."""
    config = Config("qwen3-tiny")
    return load_tokenizer(config.model_path), config


@many(200, 5000)
def test_any_text_survives_the_bundled_tokenizer(bundled, max_examples):
    tokenizer, config = bundled

    def check(prompt):
        token_ids = tokenizer.encode(prompt)
        assert all(0 <= token_id < config.hf_config.vocab_size for token_id in token_ids)
        decoded = tokenizer.decode(token_ids, clean_up_tokenization_spaces=False)
        assert unicodedata.normalize("NFC", decoded) == unicodedata.normalize("NFC", prompt)

    plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
    special = st.lists(
        st.sampled_from(["\x00", " ", "\n", "\r\n", "\t", "<|im_end|>", "<|", "\ufeff", "\u200d", "e\u0301"])
    )
    draw(st.one_of(plain, special.map("".join)), max_examples, check)


@pytest.fixture(scope="module")
def bundled_llm():
    with LLM("qwen3-tiny", max_model_len=128, num_kvcache_blocks=2, load_format="dummy") as llm:
        yield llm


@many(15, 200)
def test_any_text_through_the_bundled_model(bundled_llm, max_examples):
    def check(prompt):
        params = SamplingParams(temperature=1.0, max_tokens=3)
        try:
            (output,) = bundled_llm.generate(prompt, params, **QUIET)
        except ValueError as error:
            assert prompt == "" and "empty" in str(error)
        else:
            assert 1 <= len(output["token_ids"]) <= 3 and isinstance(output["text"], str)
        (output,) = bundled_llm.chat([{"role": "user", "content": prompt}], params, **QUIET)
        assert isinstance(output["text"], str)

    draw(text, max_examples, check)


@pytest.mark.parametrize("prompt", ["\ud800", "a\udfffb", "\udc80\ud800"])
def test_text_that_is_not_unicode(bundled_llm, prompt):
    calls = [
        lambda: bundled_llm.generate(prompt, **QUIET),
        lambda: bundled_llm.generate(["fine", prompt], **QUIET),
        lambda: bundled_llm.add_request(prompt),
        lambda: bundled_llm.stream(prompt),
        lambda: bundled_llm.chat([{"role": "user", "content": prompt}], **QUIET),
        lambda: bundled_llm.beam_search(prompt, BeamSearchParams(2, 2)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="surrogate"):
            call()
        assert bundled_llm.is_finished()


@pytest.mark.parametrize("length", [10**4, pytest.param(10**6, marks=pytest.mark.slow)])
def test_a_very_long_text(bundled_llm, length):
    for prompt in ("a" * length, "word " * (length // 5), "\x00" * length):
        with pytest.raises(ValueError, match="max_model_len"):
            bundled_llm.generate(prompt, **QUIET)
    assert bundled_llm.is_finished()


# Bytes of weights and words of a config.


@many(100, 1500)
def test_any_damage_to_a_safetensors_file(path, tmp_path, max_examples):
    """Loaded, if only numbers have changed, or a `ValueError`."""
    config = Config(path)
    model, file = Qwen3ForCausalLM(config.hf_config), tmp_path / "model.safetensors"
    good = (path / "model.safetensors").read_bytes()
    header_size = 8 + int.from_bytes(good[:8], "little")

    def check(damages):
        data = bytearray(good)
        for kind, where, value in damages:
            if not data:
                break
            start = where % header_size if kind != "cut" else where % len(data)
            start = min(start, len(data) - 1)
            if kind == "flip":
                data[start] ^= 1 + value % 255
            elif kind == "delete":
                del data[start : start + 1 + value % 9]
            elif kind == "insert":
                data[start:start] = bytes([value % 256]) * (1 + value % 7)
            elif kind == "length":
                data[:8] = value.to_bytes(8, "little")
            elif kind == "cut":
                del data[start:]
        file.write_bytes(data)
        try:
            load_model(model, tmp_path)
        except ValueError as error:
            assert str(error)

    kinds = st.sampled_from(["flip", "flip", "delete", "insert", "length", "cut"])
    damage = st.tuples(kinds, st.integers(0, 2**32), st.integers(0, 2**64 - 1))
    draw(st.lists(damage, min_size=1, max_size=3), max_examples, check)


@many(50, 1500)
def test_any_header_of_a_safetensors_file(path, tmp_path, max_examples):
    """Well-formed JSON that says wrong things of the tensors."""
    model, file = Qwen3ForCausalLM(Config(path).hf_config), tmp_path / "model.safetensors"
    good = (path / "model.safetensors").read_bytes()
    size = int.from_bytes(good[:8], "little")
    header, data = json.loads(good[8 : 8 + size]), good[8 + size :]
    names = [name for name in header if name != "__metadata__"]

    def check(change):
        name, key, value = change
        changed = json.loads(json.dumps(header))
        if key == "name":
            changed[str(value)] = changed.pop(name)
        elif key == "missing":
            del changed[name]
        elif key == "all":
            changed[name] = value
        else:
            changed[name][key] = value
        encoded = json.dumps(changed).encode()
        file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
        if changed == header:
            return
        try:
            load_model(model, tmp_path)
        except ValueError as error:
            assert str(error)
        else:
            # Nothing that the model needs has changed: another tensor's numbers, or an equal spelling.
            assert key in ("data_offsets", "dtype", "shape"), change

    json_values = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-3, 2**64), st.floats(), st.text(max_size=4)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
        max_leaves=4,
    )
    values = st.one_of(json_values, st.sampled_from(["F32", "BF16", "F64", "I64", "U8", "F8_E4M3", [32], [0, 0]]))
    keys = st.sampled_from(["name", "missing", "all", "dtype", "shape", "data_offsets"])
    draw(st.tuples(st.sampled_from(names), keys, values), max_examples, check)


# The engine's public interface, in any order.


class Engine(RuleBasedStateMachine):
    """A user who mixes everything; expected tokens come from an engine that runs one request at a time."""

    path = None
    one_by_one = None
    memory: dict = {}  # noqa: RUF012 (set by the test)

    prompts = st.one_of(
        st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=24),
        st.integers(1, 20).map(lambda n: list(range(1, n + 1))),
        st.sampled_from(["the little cat", "again and again", "Zażółć", "a\x00b"]),
    )
    params = st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.0, 1.5]),
        seed=st.sampled_from([3, 2**40]),
        max_tokens=st.sampled_from([1, 2, 7, 30]),
        ignore_eos=st.booleans(),
        logprobs=st.sampled_from([None, None, 0, 3]),
        stop=st.sampled_from([(), (), "e", ["the", "a"]]),
        stop_token_ids=st.sampled_from([None, [7, 9, 100]]),
    )

    def __init__(self):
        super().__init__()
        self.llm = None
        self.requests = {}  # seq_id -> (prompt, params), not reported yet
        self.streams = []  # [generator, text so far, prompt, params]

    @initialize(
        block_size=st.sampled_from([1, 3, 4, 16]),
        tokens=st.sampled_from([MAX_MODEL_LEN, 60, 200]),
        budget=st.sampled_from([1, 7, 16, 100]),
        max_num_seqs=st.sampled_from([1, 2, 8]),
        caching=st.booleans(),
    )
    def open(self, block_size, tokens, budget, max_num_seqs, caching):
        self.llm = LLM(
            self.path,
            kvcache_block_size=block_size,
            num_kvcache_blocks=-(-tokens // block_size),
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            enable_prefix_caching=caching,
            max_model_len=MAX_MODEL_LEN,
        )

    def teardown(self):
        if self.llm is not None:
            self.llm.exit()

    def expected(self, prompt, params):
        key = (str(prompt), params)
        if key not in self.memory:
            self.memory[key] = self.one_by_one.generate(prompt, params, **QUIET)[0]
        return self.memory[key]

    def check(self, output, prompt, params):
        expected = self.expected(prompt, params)
        for key in ("token_ids", "text", "finish_reason", "num_prompt_tokens"):
            assert output[key] == expected[key], (key, prompt, params)
        if params.logprobs is not None:
            assert [row.keys() for row in output["logprobs"]] == [row.keys() for row in expected["logprobs"]]

    def is_open(self):
        return not self.llm.is_closed

    @precondition(is_open)
    @rule(requests=st.lists(st.tuples(prompts, params), max_size=4))
    def generate(self, requests):
        prompts, params = [list(column) for column in zip(*requests, strict=True)] or ([], [])
        if not requests:
            assert self.llm.generate([], **QUIET) == []
            return
        if len({type(prompt) for prompt in prompts}) == 1:
            for output, request in zip(self.llm.generate(prompts, params, **QUIET), requests, strict=True):
                self.check(output, *request)

    @precondition(is_open)
    @rule(prompt=prompts, params=params)
    def add_request(self, prompt, params):
        seq_id = self.llm.add_request(prompt, params)
        assert seq_id not in self.requests
        self.requests[seq_id] = (prompt, params)

    @precondition(is_open)
    @rule(times=st.integers(1, 8))
    def step(self, times):
        for _ in range(times):
            finished, num_tokens = self.llm.step()
            assert isinstance(num_tokens, int)
            for seq_id, token_ids in finished:
                assert token_ids == self.expected(*self.requests.pop(seq_id))["token_ids"]

    @precondition(is_open)
    @rule(data=st.data())
    def abort(self, data):
        seq_id = data.draw(st.one_of(st.sampled_from(sorted(self.requests) or [10**9]), st.sampled_from([-1, 10**9])))
        output = self.llm.abort(seq_id)
        if output is not None:
            prompt, params = self.requests.pop(seq_id)
            token_ids = output["token_ids"]
            assert token_ids == self.expected(prompt, params)["token_ids"][: len(token_ids)]
            assert output["finish_reason"] == "abort"
        assert self.llm.abort(seq_id) is None

    @precondition(is_open)
    @rule(prompt=prompts, params=params)
    def start_stream(self, prompt, params):
        if len(self.streams) < 4:
            self.streams.append([self.llm.stream(prompt, params), "", prompt, params])

    @precondition(lambda self: self.is_open() and self.streams)
    @rule(data=st.data(), times=st.integers(1, 12))
    def read_stream(self, data, times):
        entry = data.draw(st.sampled_from(self.streams))
        stream, _, prompt, params = entry
        expected = self.expected(prompt, params)
        try:
            for _ in range(times):
                entry[1] += next(stream)
                assert expected["text"].startswith(entry[1])
        except StopIteration as end:
            assert entry[1] == expected["text"]
            self.check(end.value, prompt, params)
            self.streams.remove(entry)

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def close_stream(self, data):
        entry = data.draw(st.sampled_from(self.streams))
        entry[0].close()
        self.streams.remove(entry)

    @precondition(is_open)
    @rule(prompt=st.lists(st.integers(1, VOCAB_SIZE - 1), min_size=1, max_size=8), width=st.integers(1, 3))
    def beam_search(self, prompt, width):
        (output,) = self.llm.beam_search(prompt, BeamSearchParams(width, 3))
        (expected,) = self.one_by_one.beam_search(prompt, BeamSearchParams(width, 3))
        assert [beam.tokens for beam in output.sequences] == [beam.tokens for beam in expected.sequences]

    @precondition(is_open)
    @rule(content=st.sampled_from(["cats", "1 2"]))
    def chat(self, content):
        messages = [{"role": "user", "content": content}]
        params = SamplingParams(temperature=0.0, max_tokens=4)
        (output,) = self.llm.chat(messages, params, **QUIET)
        (expected,) = self.one_by_one.chat(messages, params, **QUIET)
        assert output["text"] == expected["text"]

    @precondition(is_open)
    @rule(what=anything, call=st.sampled_from(["prompt", "params", "pair", "abort", "beams", "chat", "tqdm"]))
    def nonsense(self, what, call):
        before = list(self.llm.llm_engine.requests)
        try:
            if call == "prompt":
                self.llm.generate(what, SamplingParams(max_tokens=1), **QUIET)
            elif call == "params":
                self.llm.generate([[1], [2]], what, **QUIET)
            elif call == "pair":
                self.requests[self.llm.add_request(what, SamplingParams(max_tokens=1))] = (what, SamplingParams())
                self.llm.abort(self.requests.popitem()[0])
            elif call == "abort":
                assert what in self.requests or self.llm.abort(what) is None
            elif call == "beams":
                self.llm.beam_search([1], what)
            elif call == "chat":
                self.llm.chat(what, SamplingParams(max_tokens=1), **QUIET)
            elif call == "tqdm":
                self.llm.stream(what, what)
        except (TypeError, ValueError) as error:
            assert str(error)
        # Those before may have ended beside a call that was valid after all.
        assert set(self.llm.llm_engine.requests) <= set(before)

    @rule(is_last=st.sampled_from([False] * 15 + [True]))
    def exit(self, is_last):
        if not is_last:
            return
        self.llm.exit()
        self.requests.clear()
        for call in (
            lambda: self.llm.generate([1]),
            lambda: self.llm.add_request([1]),
            lambda: self.llm.stream([1]),
            lambda: self.llm.step(),
            lambda: self.llm.beam_search([1], BeamSearchParams(1, 1)),
            lambda: self.llm.chat([{"role": "user", "content": "a"}]),
        ):
            with pytest.raises(RuntimeError, match="closed"):
                call()
        for stream, *_ in self.streams:
            try:
                list(stream)  # what a request that had finished still has to show
            except RuntimeError as error:
                assert "closed" in str(error)
        self.streams.clear()

    @invariant()
    def state_is_right(self):
        if self.llm is None or self.llm.is_closed:
            return
        scheduler = self.llm.scheduler
        queued = [*scheduler.waiting, *scheduler.running]
        assert {seq.seq_id for seq in queued} == set(self.llm.llm_engine.requests)
        unreported = {seq_id for seq_id, request in self.llm.added.items() if request.is_finished}
        assert set(self.requests) <= set(self.llm.llm_engine.requests) | unreported
        assert len(scheduler.running) <= scheduler.max_num_seqs
        check_block_manager(scheduler.block_manager, queued)


@in_two_sizes("examples, steps", (8, 20), (a_tenth(80), 40), timeout=400)
def test_the_interface_in_any_order(path, examples, steps):
    roomy = {"kvcache_block_size": 64, "num_kvcache_blocks": 2, "max_num_seqs": 1, "enable_prefix_caching": False}
    with LLM(path, max_model_len=MAX_MODEL_LEN, **roomy) as one_by_one:
        machine = type("AnyOrder", (Engine,), {"path": path, "one_by_one": one_by_one, "memory": {}})
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                phases=[Phase.explicit, Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )
