"""How requests are cut, mixed, shared, preempted or ordered does not change their tokens (DESIGN, correctness)."""

import random
from functools import cache

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from nanovllm import LLM, SamplingParams

from .conftest import a_tenth, make_tiny_model
from .reference import Reference, assert_clean, drain, heavy

VOCAB_SIZE = 320


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("invariance") / "model", vocab_size=VOCAB_SIZE, seed=3)


@pytest.fixture(scope="session")
def reference(model):
    return Reference(model)


@st.composite
def workloads(draw):
    """Prompts of which many begin alike, and how many tokens each generates."""
    rng = random.Random(draw(st.integers(0, 10_000)))
    stem = [rng.randrange(1, VOCAB_SIZE) for _ in range(24)]
    requests = []
    for _ in range(draw(st.integers(1, 6))):
        shared, own = draw(st.integers(0, 24)), draw(st.integers(0, 10))
        prompt = stem[:shared] + [rng.randrange(1, VOCAB_SIZE) for _ in range(own)]
        requests.append((prompt or stem[:1], draw(st.integers(1, 10))))
    return requests


@st.composite
def engine_options(draw, requests):
    """Any sizes under which every single request fits."""
    block_size = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16, 64]))
    # The last token is never stored.
    needed = max(-(-(len(prompt) + max_tokens - 1) // block_size) for prompt, max_tokens in requests)
    return {
        "kvcache_block_size": block_size,
        "num_kvcache_blocks": needed + draw(st.sampled_from([0, 0, 1, 2, 5, 100])),
        "max_num_batched_tokens": draw(st.sampled_from([1, 2, 3, 5, 7, 16, 33, 64, 1000])),
        "max_num_seqs": draw(st.sampled_from([1, 2, 3, 8])),
        "enable_prefix_caching": draw(st.booleans()),
        "max_model_len": 64,
    }


def preempt_once(llm):
    """Let the next step that decodes find no free block, once, so that it preempts the newest sequence."""
    manager = llm.scheduler.block_manager

    def can_append(seq):
        del manager.can_append
        return False

    manager.can_append = can_append


def run_requests(llm, requests, params, arrivals, preempt_every=0):
    """Tokens of each request; `arrivals[i]` is the step before which request i is added."""
    seq_ids, results, step = {}, {}, 0
    while len(seq_ids) < len(requests) or not llm.is_finished():
        assert step < 5000, "the engine does not come to an end"
        for i, request in enumerate(requests):
            if i not in seq_ids and arrivals[i] <= step:
                seq_ids[i] = llm.add_request(request[0], params[i])
        if preempt_every and step % preempt_every == preempt_every - 1 and llm.scheduler.running:
            preempt_once(llm)
        results.update(llm.step()[0])
        step += 1
    return [results[seq_ids[i]] for i in range(len(requests))]


def check_invariance(data, model, reference):
    requests = data.draw(workloads())
    options = data.draw(engine_options(requests))
    order = data.draw(st.permutations(range(len(requests))))
    arrivals = [data.draw(st.integers(0, 12)) for _ in requests]
    preempt_every = data.draw(st.sampled_from([0, 0, 3, 7]))
    # Without ignore_eos the engine cannot know how long an answer gets, so that it admits more than fits.
    ignore_eos = data.draw(st.booleans())
    requests = [requests[i] for i in order]
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=ignore_eos) for _, count in requests]
    with LLM(model, **options) as llm:
        if data.draw(st.booleans()):
            llm.generate([[1]] * 4, SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
        results = run_requests(llm, requests, params, arrivals, preempt_every)
        assert_clean(llm)
        event(f"preempted: {llm.scheduler.num_preemptions > 0}")
    for (prompt, count), token_ids in zip(requests, results, strict=True):
        assert len(token_ids) == count or (not ignore_eos and token_ids[-1] == 0)
        reference.assert_greedy(prompt, token_ids, note=f"{options}, arrivals {arrivals}")


@heavy(max_examples=12)
@given(data=st.data())
def test_greedy_tokens_do_not_depend_on_how_they_are_computed(data, model, reference):
    check_invariance(data, model, reference)


@pytest.mark.slow
@pytest.mark.timeout(300)
@heavy(max_examples=a_tenth(400))
@given(data=st.data())
def test_greedy_tokens_do_not_depend_on_how_they_are_computed_many_draws(data, model, reference):
    check_invariance(data, model, reference)


# One example of each mechanism, with proof that it was at work.

PROMPTS = [[7, 3, 9, 4, 1, 8, 2, 6, 5, 3, 3, 1], [7, 3, 9, 4, 1, 8, 2, 6, 40, 41], [90, 91, 92], [7, 3, 9, 4, 1]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@cache
def expected_tokens(model):
    with LLM(model, kvcache_block_size=64, num_kvcache_blocks=64, enable_prefix_caching=False) as llm:
        return [llm.generate(prompt, GREEDY, use_tqdm=False)[0]["token_ids"] for prompt in PROMPTS]


def test_one_by_one_is_what_hugging_face_generates(model, reference):
    for prompt, token_ids in zip(PROMPTS, expected_tokens(model), strict=True):
        reference.assert_greedy(prompt, token_ids)
        assert len(set(token_ids)) > 4, "a model that repeats itself would hide mistakes"


@pytest.mark.parametrize("chunk", [1, 4, 5, 13])
def test_every_chunk_size(model, chunk):
    with LLM(model, kvcache_block_size=4, num_kvcache_blocks=64, max_num_batched_tokens=chunk) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        assert llm.scheduler.num_prefill_tokens <= sum(map(len, PROMPTS))
    assert [output["token_ids"] for output in outputs] == expected_tokens(model)


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 6, 7, 13, 256])
def test_every_block_size(model, block_size):
    with LLM(model, kvcache_block_size=block_size, num_kvcache_blocks=128) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    assert [output["token_ids"] for output in outputs] == expected_tokens(model)


def test_requests_of_one_step_share_blocks_that_are_filled_in_it(model):
    with LLM(model, kvcache_block_size=2, num_kvcache_blocks=128) as llm:
        ids = [llm.add_request(prompt, GREEDY) for prompt in PROMPTS]
        _, num_tokens = llm.step()
        # The second begins with 8 tokens of the first, the fourth with 5; only whole blocks of two are shared.
        assert num_tokens == sum(map(len, PROMPTS)) - 8 - 4
        results = drain(llm)
    assert [results[i] for i in ids] == expected_tokens(model)


def test_a_second_call_computes_only_what_is_not_cached(model):
    with LLM(model, kvcache_block_size=4, num_kvcache_blocks=128) as llm:
        first = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)[0]
        computed = llm.scheduler.num_prefill_tokens
        second = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False)[0]
        assert first["num_cached_tokens"] == 0
        # 12 tokens are three full blocks, but the last token has to be computed.
        assert second["num_cached_tokens"] == 8
        assert llm.scheduler.num_prefill_tokens - computed == 4
        follow_up = PROMPTS[0] + first["token_ids"] + [50]
        third = llm.generate(follow_up, GREEDY, use_tqdm=False)[0]
        # 12 + 12 tokens, of which the last generated one was never stored: five full blocks.
        assert third["num_cached_tokens"] == 20
    with LLM(model, kvcache_block_size=4, num_kvcache_blocks=128, enable_prefix_caching=False) as llm:
        outputs = [llm.generate(prompt, GREEDY, use_tqdm=False)[0] for prompt in (PROMPTS[0], PROMPTS[0], follow_up)]
    assert [output["num_cached_tokens"] for output in outputs] == [0, 0, 0]
    assert [output["token_ids"] for output in outputs] == [x["token_ids"] for x in (first, second, third)]
    assert first["token_ids"] == expected_tokens(model)[0]


def test_a_pool_that_runs_full_preempts_and_loses_nothing(model):
    params = SamplingParams(temperature=0.0, max_tokens=12)
    with LLM(model, kvcache_block_size=2, num_kvcache_blocks=13) as llm:
        # Short answers before let the engine expect short ones.
        llm.generate([[1]] * 8, SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        assert llm.scheduler.num_preemptions > 0
        assert_clean(llm)
    for output, tokens in zip(outputs, expected_tokens(model), strict=True):
        assert output["token_ids"] == (tokens[: tokens.index(0) + 1] if 0 in tokens else tokens)


def test_any_arrival_order(model):
    rng = random.Random(0)
    for _ in range(5):
        order, arrivals = rng.sample(range(4), 4), [rng.randrange(15) for _ in range(4)]
        with LLM(model, kvcache_block_size=4, num_kvcache_blocks=40, max_num_batched_tokens=7) as llm:
            requests = [(PROMPTS[i], 12) for i in order]
            results = run_requests(llm, requests, [GREEDY] * 4, arrivals)
        assert results == [expected_tokens(model)[i] for i in order]


# Sampling with noise.


def sampled(seed):
    return SamplingParams(temperature=0.9, top_p=0.95, top_k=50, min_p=0.001, seed=seed, max_tokens=10, ignore_eos=True)


def check_seeded(data, model):
    prompt, seed = PROMPTS[0], data.draw(st.sampled_from([0, 1, 12345, 2**40 + 17]))
    with LLM(model, kvcache_block_size=16, num_kvcache_blocks=16) as llm:
        alone = llm.generate(prompt, sampled(seed), use_tqdm=False)[0]["token_ids"]
    others = data.draw(workloads())
    requests = [(prompt, 10), *others]
    other_params = st.sampled_from(
        [SamplingParams(max_tokens=5), sampled(seed), sampled(seed + 1), SamplingParams(temperature=0.0)]
    )
    params = [sampled(seed)] + [data.draw(other_params) for _ in others]
    options = data.draw(engine_options([(p, param.max_tokens) for (p, _), param in zip(requests, params, strict=True)]))
    arrivals = [data.draw(st.integers(0, 8)) for _ in requests]
    with LLM(model, **options, seed=data.draw(st.integers(0, 3))) as llm:
        results = run_requests(llm, requests, params, arrivals, preempt_every=data.draw(st.sampled_from([0, 4])))
    assert results[0] == alone


@heavy(max_examples=4)
@given(data=st.data())
def test_a_seeded_request_gives_the_same_tokens_whatever_else_runs(data, model):
    check_seeded(data, model)


@pytest.mark.slow
@heavy(max_examples=a_tenth(200))
@given(data=st.data())
def test_a_seeded_request_gives_the_same_tokens_whatever_else_runs_many_draws(data, model):
    check_seeded(data, model)


def test_seeds_make_a_difference(model):
    with LLM(model, kvcache_block_size=16, num_kvcache_blocks=64) as llm:
        params = [SamplingParams(temperature=3.0, seed=seed, max_tokens=10, ignore_eos=True) for seed in range(40)]
        outputs = llm.generate([PROMPTS[0]] * 40, params, use_tqdm=False)
    assert len({tuple(output["token_ids"]) for output in outputs}) == 40


def test_requests_without_a_seed_differ_and_repeat_with_the_engine(model):
    def run(seed):
        with LLM(model, kvcache_block_size=16, num_kvcache_blocks=64, seed=seed) as llm:
            outputs = llm.generate([PROMPTS[0]] * 10, SamplingParams(max_tokens=10, ignore_eos=True), use_tqdm=False)
        return [tuple(output["token_ids"]) for output in outputs]

    first = run(seed=1)
    assert len(set(first)) == 10
    assert run(seed=1) == first
    assert not set(run(seed=2)) & set(first)
