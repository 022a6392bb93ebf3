"""Sampling: filters against their definitions and Hugging Face's warpers, draws against the softmax."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from nanovllm import LLM, SamplingParams
from nanovllm.layers.sampler import (
    Sampler,
    SamplingMetadata,
    apply_min_p,
    apply_temperature,
    apply_top_k_top_p,
    compute_logprobs,
    gumbel_noise,
)

from .conftest import make_tiny_model
from .reference import LOGITS_TOLERANCE, Reference, drain, heavy, make_smooth_model, record_logits

PROMPT = [5, 6, 7, 8, 9]


def random_logits(seed, rows=3, vocab_size=40, scale=3.0):
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def kept_by_definition(logits, temperature, min_p, top_k, top_p):
    """Which tokens of one row can be drawn, in the order of vLLM: min-p, then top-k, then top-p of the rest."""
    logits = logits.astype(np.float64) / temperature
    probabilities = softmax(logits)
    kept = probabilities >= min_p * probabilities.max()
    if 0 < top_k < kept.sum():
        kth_best = np.sort(logits[kept])[-top_k]
        kept &= logits >= kth_best
    probabilities = np.where(kept, softmax(np.where(kept, logits, -np.inf)), 0.0)
    chosen, total = np.zeros_like(kept), 0.0
    for token_id in np.argsort(-probabilities, kind="stable"):
        if total < top_p and kept[token_id]:
            chosen[token_id] = True
            total += probabilities[token_id]
    return chosen, probabilities


def filtered(logits, temperature, min_p, top_k, top_p):
    rows = len(logits)
    scaled = apply_temperature(logits, torch.full((rows,), temperature))
    scaled = apply_min_p(scaled, torch.full((rows,), min_p))
    top_k = torch.full((rows,), top_k if 0 < top_k < logits.shape[1] else logits.shape[1])
    return apply_top_k_top_p(scaled, top_k, torch.full((rows,), top_p))


@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    min_p=st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 7, 39, 40, 1000]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0]),
)
@settings(max_examples=150)
def test_filters_keep_what_the_definitions_say(seed, temperature, min_p, top_k, top_p):
    logits = random_logits(seed)
    result = filtered(logits, temperature, min_p, top_k, top_p)
    scaled = logits / temperature
    for row, got, values in zip(logits.numpy(), result, scaled, strict=True):
        kept = got > -torch.inf
        torch.testing.assert_close(got[kept], values[kept])
        expected, probabilities = kept_by_definition(row, temperature, min_p, top_k, top_p)
        # Sums of probabilities are rounded: a token whose exclusion is that close to call may be on either side.
        disputed = np.flatnonzero(kept.numpy() != expected)
        for token_id in disputed:
            before = probabilities[probabilities > probabilities[token_id]].sum()
            assert abs(before - top_p) < 1e-5 or abs(before + probabilities[token_id] - top_p) < 1e-5
        assert kept.any() and kept[row.argmax()]


WARPERS = [
    (TemperatureLogitsWarper(0.3), (0.3, 0.0, -1, 1.0)),
    (TopKLogitsWarper(1), (1.0, 0.0, 1, 1.0)),
    (TopKLogitsWarper(11), (1.0, 0.0, 11, 1.0)),
    (TopKLogitsWarper(500), (1.0, 0.0, 500, 1.0)),
    (TopPLogitsWarper(0.05), (1.0, 0.0, -1, 0.05)),
    (TopPLogitsWarper(0.6), (1.0, 0.0, -1, 0.6)),
    (TopPLogitsWarper(0.97), (1.0, 0.0, -1, 0.97)),
    (MinPLogitsWarper(0.02), (1.0, 0.02, -1, 1.0)),
    (MinPLogitsWarper(0.4), (1.0, 0.4, -1, 1.0)),
]


@pytest.mark.parametrize("warper, arguments", WARPERS, ids=lambda x: type(x).__name__ if callable(x) else str(x))
def test_each_filter_is_that_of_hugging_face(warper, arguments):
    for seed in range(20):
        logits = random_logits(seed)
        torch.testing.assert_close(filtered(logits, *arguments), warper(None, logits.clone()))


@pytest.mark.parametrize("top_k, top_p", [(5, 0.7), (12, 0.4), (3, 0.999)])
def test_top_p_counts_what_top_k_left(top_k, top_p):
    for seed in range(20):
        logits = random_logits(seed)
        expected = TopPLogitsWarper(top_p)(None, TopKLogitsWarper(top_k)(None, logits.clone()))
        torch.testing.assert_close(filtered(logits, 1.0, 0.0, top_k, top_p), expected)


def test_rows_have_their_own_parameters():
    logits = random_logits(1, rows=4)
    mixed = apply_top_k_top_p(logits, torch.tensor([1, 40, 3, 40]), torch.tensor([1.0, 1.0, 1.0, 1e-6]))
    assert (mixed > -torch.inf).sum(dim=-1).tolist() == [1, 40, 3, 1]
    min_p = apply_min_p(logits, torch.tensor([0.0, 1.0, 0.0, 1.0]))
    assert (min_p > -torch.inf).sum(dim=-1).tolist() == [40, 1, 40, 1]


def test_ties_at_the_kth_token_are_all_kept():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 0.0]])
    kept = apply_top_k_top_p(logits, torch.tensor([2]), None) > -torch.inf
    assert kept.tolist() == [[False, True, True, True, False]]


def test_the_input_is_left_as_it_is():
    logits = random_logits(0)
    before = logits.clone()
    metadata = metadata_of(3, temperature=0.5, top_k=3, top_p=0.5, min_p=0.1)
    Sampler()(logits, metadata)
    assert torch.equal(logits, before)


def metadata_of(rows, temperature=1.0, seeds=None, positions=None, min_p=None, top_k=None, top_p=None):
    def full(value, dtype):
        return None if value is None else torch.full((rows,), value, dtype=dtype)

    return SamplingMetadata(
        temperatures=full(temperature, torch.float32),
        seeds=torch.arange(rows) if seeds is None else seeds,
        positions=torch.zeros(rows, dtype=torch.int64) if positions is None else positions,
        min_p=full(min_p, torch.float32),
        top_k=full(top_k, torch.int64),
        top_p=full(top_p, torch.float32),
    )


# Draws.

# Quantiles at 1 - 1e-6 of the chi-square distribution, by degrees of freedom (from tables).
CHI_SQUARE_LIMIT = {2: 27.6, 7: 40.5, 9: 44.8}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(SamplingMetadata) if f.default is None])
def test_every_optional_parameter_counts_as_a_filter(field):
    """Who has none is sampled by the shortest way, which knows nothing but temperatures."""
    plain = SamplingMetadata(torch.ones(1), torch.zeros(1), torch.zeros(1))
    assert not plain.has_filters and dataclasses.replace(plain, **{field: torch.ones(1)}).has_filters


def chi_square(counts, probabilities):
    expected = probabilities * counts.sum()
    assert (expected > 5).all(), "the approximation needs a few expected draws of each kind"
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("varying", ["seeds", "positions", "large seeds"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_draws_are_distributed_as_the_softmax_says(varying, temperature):
    num = 20_000
    row = torch.tensor([0.5, -0.4, 1.0, 0.0, -1.0, 0.7, 0.2, -0.6])
    numbers = torch.arange(num)
    seeds, positions = {
        "seeds": (numbers, torch.full((num,), 17)),
        "positions": (torch.full((num,), 3), numbers),
        "large seeds": (numbers * 2**33 + 5, torch.full((num,), 17)),
    }[varying]
    drawn = Sampler()(row.repeat(num, 1), metadata_of(num, temperature, seeds, positions))
    counts = np.bincount(drawn.numpy(), minlength=8)
    probabilities = softmax(row.numpy().astype(np.float64) / temperature)
    assert chi_square(counts, probabilities) < CHI_SQUARE_LIMIT[7]


def test_draws_after_filters_are_distributed_as_the_rest_says():
    num = 20_000
    row = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5])
    drawn = Sampler()(row.repeat(num, 1), metadata_of(num, top_k=4, top_p=0.85, seeds=torch.arange(num)))
    # Softmax of the best four is .46 .28 .17 .10: the first three pass 0.85.
    probabilities = softmax(row.numpy().astype(np.float64)[:3])
    counts = np.bincount(drawn.numpy(), minlength=6)
    assert counts[3:].sum() == 0
    assert chi_square(counts[:3], probabilities) < CHI_SQUARE_LIMIT[2]


def test_successive_draws_do_not_depend_on_each_other():
    # Three draws of two tokens, at neighboring positions or with neighboring seeds: eight equally likely outcomes.
    num = 20_000
    numbers = torch.arange(num)
    fixed = torch.zeros(num, dtype=torch.int64)
    logits = torch.zeros(num, 2)
    draw = {
        "position": lambda i: Sampler()(logits, metadata_of(num, 1.0, numbers, fixed + i)),
        "seed": lambda i: Sampler()(logits, metadata_of(num, 1.0, numbers * 7 + i, fixed)),
    }
    for kind, sample in draw.items():
        triples = sample(0) * 4 + sample(1) * 2 + sample(2)
        counts = np.bincount(triples.numpy(), minlength=8)
        assert chi_square(counts, np.full(8, 1 / 8)) < CHI_SQUARE_LIMIT[7], kind


def test_noise_is_a_gumbel_distribution_and_finite():
    noise = gumbel_noise(torch.arange(200), torch.arange(200), 1000).flatten()
    assert noise.isfinite().all() and noise.dtype == torch.float32
    # Ten equally likely intervals of the Gumbel distribution, whose distribution function is exp(-exp(-x)).
    edges = -np.log(-np.log(np.arange(1, 10) / 10))
    counts = np.bincount(np.searchsorted(edges, noise.numpy()), minlength=10)
    assert chi_square(counts, np.full(10, 0.1)) < CHI_SQUARE_LIMIT[9]


def test_noise_of_a_row_does_not_depend_on_the_others():
    seeds, positions = torch.tensor([3, 2**62 + 1, 0]), torch.tensor([0, 5, 2**20])
    together = gumbel_noise(seeds, positions, 300)
    for i in range(3):
        assert torch.equal(gumbel_noise(seeds[i : i + 1], positions[i : i + 1], 300)[0], together[i])
        assert torch.equal(gumbel_noise(seeds[i : i + 1], positions[i : i + 1], 50)[0], together[i, :50])
    assert len({tuple(row.tolist()) for row in together}) == 3


def test_every_bit_of_a_seed_counts():
    seeds = torch.tensor([0] + [1 << bit for bit in range(63)])
    noise = gumbel_noise(seeds, torch.zeros(64, dtype=torch.int64), 16)
    assert len({tuple(row.tolist()) for row in noise}) == 64


# Greedy rows.


@given(seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_greedy_rows_take_the_best_token_beside_rows_that_draw(seed):
    logits = random_logits(seed, rows=6)
    metadata = metadata_of(6, top_k=5, top_p=0.9, min_p=0.01)
    metadata.temperatures = torch.tensor([0.0, 1.0, 0.0, 5.0, 0.0, 0.3])
    drawn = Sampler()(logits, metadata)
    assert torch.equal(drawn[::2], logits.argmax(dim=-1)[::2])
    assert torch.equal(Sampler()(logits), logits.argmax(dim=-1))


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}])
def test_filters_that_leave_one_token_leave_the_best(filters):
    logits = random_logits(3, rows=50)
    assert torch.equal(Sampler()(logits, metadata_of(50, temperature=2.0, **filters)), logits.argmax(dim=-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_sampled_in_float32(dtype):
    logits = random_logits(4, rows=20).to(dtype)
    metadata = metadata_of(20, temperature=0.9, top_p=0.8)
    assert torch.equal(Sampler()(logits, metadata), Sampler()(logits.float(), metadata))
    assert compute_logprobs(logits).dtype == torch.float32


# Through the engine.


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return make_smooth_model(tmp_path_factory.mktemp("sampler") / "model", vocab_size=50, seed=1)


@pytest.fixture(scope="module")
def llm(model_path):
    with LLM(model_path, kvcache_block_size=8, num_kvcache_blocks=512) as llm:
        llm.reference = Reference(model_path)
        yield llm


@heavy(max_examples=15)
@given(
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 3]),
    num=st.sampled_from([0, 1, 4, 50, 10**6]),
    seed=st.integers(0, 100),
)
def test_logprobs_are_those_of_hugging_face_before_temperature_and_filters(llm, temperature, top_k, num, seed):
    params = SamplingParams(
        temperature=temperature, top_k=top_k, logprobs=num, seed=seed, max_tokens=5, ignore_eos=True
    )
    plain = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    output, other = llm.generate([PROMPT, PROMPT[:2]], [params, plain], use_tqdm=False)
    assert "logprobs" not in other and other.outputs[0].logprobs is None
    token_ids, logprobs = output["token_ids"], output["logprobs"]
    assert len(logprobs) == len(token_ids) == 5
    expected = llm.reference.logits(PROMPT + token_ids)[len(PROMPT) - 1 : -1].log_softmax(dim=-1)
    total = 0.0
    for token_id, found, row in zip(token_ids, logprobs, expected, strict=True):
        best = row.topk(min(num, 50)).indices.tolist()
        assert set(found) == {*best, token_id}
        assert list(found)[: len(best)] == best
        for other_id, logprob in found.items():
            assert type(other_id) is int and type(logprob) is float
            assert logprob == pytest.approx(row[other_id].item(), abs=LOGITS_TOLERANCE)
        total += found[token_id]
    assert output.outputs[0].cumulative_logprob == pytest.approx(total)


def test_the_engine_passes_every_parameter_on(model_path, monkeypatch):
    # One request a parameter; the logits that the engine sampled from, put through the definitions.
    base = {"temperature": 1.5, "max_tokens": 30, "ignore_eos": True, "seed": 11}
    cases = [{}, {"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.3}, {"top_k": 9, "top_p": 0.7, "min_p": 0.05}]
    with LLM(model_path, kvcache_block_size=8, num_kvcache_blocks=64, enforce_eager=True) as llm:
        recorded = record_logits(llm, monkeypatch)
        ids = [llm.add_request(PROMPT, SamplingParams(**base, **case)) for case in cases]
        results = drain(llm)
    sizes = []
    for seq_id, case in zip(ids, cases, strict=True):
        full = {"min_p": 0.0, "top_k": -1, "top_p": 1.0} | case
        allowed = [kept_by_definition(row.numpy(), 1.5, **full)[0] for row in recorded[seq_id]]
        assert all(kept[token_id] for kept, token_id in zip(allowed, results[seq_id], strict=True))
        sizes.append(np.mean([kept.sum() for kept in allowed]))
    assert sizes[0] == 50 and max(sizes[1:]) < 25, "the filters must have something to do"


@pytest.mark.parametrize("temperature", [1e300, 1e-300, 1e-5, 1e-4])
def test_extreme_temperatures_work(tmp_path, temperature):
    path = make_tiny_model(tmp_path, vocab_size=50)
    with LLM(path, kvcache_block_size=8, num_kvcache_blocks=8) as llm:
        params = SamplingParams(temperature=temperature, max_tokens=5, ignore_eos=True)
        drawn = llm.generate(PROMPT, params, use_tqdm=False)[0]["token_ids"]
        greedy = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), use_tqdm=False)
    assert all(0 <= token_id < 50 for token_id in drawn)
    if temperature < 1:
        assert drawn == greedy[0]["token_ids"]


def test_no_random_state_is_touched(llm):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    llm.generate(PROMPT, SamplingParams(temperature=1.0, max_tokens=3), use_tqdm=False)
    assert torch.equal(torch.get_rng_state(), before)
