"""`SamplingParams` and `BeamSearchParams`: defaults, what is accepted, and messages that name argument and value."""

import dataclasses
import math
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanovllm import BeamSearchParams, SamplingParams

INTEGER_FIELDS = {"top_k": -1, "max_tokens": 1, "seed": 0, "logprobs": 0}  # and the smallest accepted value
FLOAT_FIELDS = {"temperature": math.inf, "top_p": 1.0, "min_p": 1.0}  # and the largest accepted value


def test_defaults():
    params = SamplingParams()
    assert params.temperature == 1.0 and params.top_k == -1 and params.top_p == 1.0 and params.min_p == 0.0
    assert params.max_tokens == 64 and params.ignore_eos is False and params.seed is None and params.logprobs is None
    assert not params.stop and not params.stop_token_ids


@given(st.sampled_from(sorted(INTEGER_FIELDS)), st.integers())
def test_integer_fields_take_integers_from_their_minimum(field, value):
    if value >= INTEGER_FIELDS[field]:
        assert getattr(SamplingParams(**{field: value}), field) == value
    else:
        with pytest.raises(ValueError, match=rf"{field}.*{value}"):
            SamplingParams(**{field: value})


@given(st.sampled_from(sorted(FLOAT_FIELDS)), st.floats())
def test_float_fields_take_finite_numbers_in_their_range(field, value):
    lowest_is_out = field == "top_p" and value == 0
    if math.isfinite(value) and 0 <= value <= FLOAT_FIELDS[field] and not lowest_is_out:
        assert getattr(SamplingParams(**{field: value}), field) == value
    else:
        with pytest.raises(ValueError) as error:
            SamplingParams(**{field: value})
        shown = "0" if value == 0 else str(value)
        assert field in str(error.value) and shown in str(error.value)


@pytest.mark.parametrize("field", [*INTEGER_FIELDS, *FLOAT_FIELDS])
@pytest.mark.parametrize("value", ["3", True, [1], {}, 1j])
def test_numbers_of_a_wrong_type(field, value):
    with pytest.raises(TypeError, match=field) as error:
        SamplingParams(**{field: value})
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("field", INTEGER_FIELDS)
@pytest.mark.parametrize("value", [1.0, 2.5, math.nan, math.inf])
def test_integers_that_are_floats(field, value):
    with pytest.raises(TypeError, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "max_tokens"])
def test_none_is_no_number(field):
    with pytest.raises(TypeError, match=field):
        SamplingParams(**{field: None})


@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_ignore_eos_is_a_bool(value):
    with pytest.raises(TypeError, match="ignore_eos") as error:
        SamplingParams(ignore_eos=value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_numbers_of_numpy_become_numbers_of_python(dtype):
    """A sum or product of small numpy integers would overflow."""
    params = SamplingParams(seed=dtype(3), max_tokens=dtype(100), top_k=dtype(5), logprobs=dtype(2))
    assert {type(value) for value in (params.seed, params.max_tokens, params.top_k, params.logprobs)} == {int}
    assert type(SamplingParams(temperature=np.float16(0.5)).temperature) is float
    assert type(BeamSearchParams(dtype(100), dtype(1)).beam_width) is int


def test_numbers_of_numpy_are_numbers():
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), max_tokens=np.int32(7), seed=np.int64(1))
    assert params.temperature == 0.5 and params.top_k == 3 and params.max_tokens == 7 and params.seed == 1


def test_an_integer_is_a_float():
    assert SamplingParams(temperature=0).temperature == 0 and SamplingParams(temperature=2).temperature == 2


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_integers_beyond_any_float(value):
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(temperature=value)


@pytest.mark.parametrize("temperature, is_greedy", [(0, True), (0.0, True), (1e-6, True), (0.01, False), (1, False)])
def test_temperatures_too_small_to_divide_by_are_greedy(temperature, is_greedy):
    assert SamplingParams(temperature=temperature).is_greedy is is_greedy


@pytest.mark.parametrize("stop", ["end", ["end"], ("end", "\n"), iter(["end"])])
def test_stop_takes_a_string_or_several(stop):
    assert "end" in list(SamplingParams(stop=stop).stop)


@pytest.mark.parametrize("stop", ["", [""], ["end", ""], [3], [None], 5, 1.5, True, [b"end"]])
def test_bad_stop_strings(stop):
    with pytest.raises((TypeError, ValueError), match="stop") as error:
        SamplingParams(stop=stop)
    assert "non-empty string" in str(error.value)


@pytest.mark.parametrize("ids", [[1, 2], (1, 2), {1, 2}, iter([1, 2]), np.array([1, 2])])
def test_stop_token_ids_take_any_collection_of_integers(ids):
    assert sorted(SamplingParams(stop_token_ids=ids).stop_token_ids) == [1, 2]


@pytest.mark.parametrize("ids", [[-1], ["1"], [1.0], [None], 5, "12", [True]])
def test_bad_stop_token_ids(ids):
    with pytest.raises((TypeError, ValueError), match="stop_token_ids"):
        SamplingParams(stop_token_ids=ids)


def test_an_unknown_field_is_named():
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=0.5)


def test_parameters_cannot_be_changed_and_can_be_shared():
    params = SamplingParams(stop=["a"], stop_token_ids=[3])
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 0.0
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, max_tokens=5) == SamplingParams(stop=["a"], stop_token_ids=[3], max_tokens=5)


def test_beam_search_params():
    params = BeamSearchParams(beam_width=3, max_tokens=5)
    assert params.beam_width == 3 and params.max_tokens == 5
    assert params.ignore_eos is False and params.length_penalty == 1.0
    assert BeamSearchParams(2, 7) == BeamSearchParams(beam_width=2, max_tokens=7)


@pytest.mark.parametrize(
    "field, value, error",
    [
        ("beam_width", 0, ValueError),
        ("beam_width", 1.5, TypeError),
        ("max_tokens", 0, ValueError),
        ("max_tokens", "5", TypeError),
        ("ignore_eos", 1, TypeError),
        ("length_penalty", math.nan, ValueError),
        ("length_penalty", 1000, ValueError),  # a length to this power would be no number
        ("length_penalty", 10.01, ValueError),
        ("length_penalty", -1.0, ValueError),
        ("length_penalty", "1", TypeError),
    ],
)
def test_bad_beam_search_params(field, value, error):
    with pytest.raises(error, match=field) as caught:
        BeamSearchParams(**({"beam_width": 2, "max_tokens": 4} | {field: value}))
    assert re.search(re.escape(str(value)), str(caught.value))
