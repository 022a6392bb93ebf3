"""Admission by expected length: the estimate of future memory, and how well the scheduler packs with it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanovllm import LLM
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.levers import compose, expected_length
from nanovllm.sampling_params import SamplingParams
from tests.engine import scheduling
from tests.engine.scheduling import EOS, make_scheduler

ExpectedLengthScheduler = compose(Scheduler, [expected_length])


def Requests(**options):
    return scheduling.Requests(ExpectedLengthScheduler, **options)


# The lever.


@pytest.mark.parametrize("disabled", [(), ("expected_length",)])
def test_the_lever_is_a_class_around_the_scheduler(tiny_model, disabled):
    with LLM(tiny_model, num_kvcache_blocks=4, disabled_optimizations=disabled, device="cpu") as llm:
        assert isinstance(llm.scheduler, expected_length.SchedulerLever) == (not disabled)
    assert ExpectedLengthScheduler.__mro__[1:3] == (expected_length.SchedulerLever, Scheduler)


@pytest.mark.parametrize(
    ("options", "budget", "reason"),
    [
        ({}, 0, "token_budget"),
        ({"max_num_seqs": 1}, 64, "max_seqs"),
        ({"num_kvcache_blocks": 4}, 64, "no_blocks"),
        ({"num_kvcache_blocks": 8}, 64, "no_headroom"),
        ({}, 64, None),
        ({}, 1, None),
    ],
)
def test_why_a_sequence_stays_out(options, budget, reason):
    requests = Requests(**({"num_kvcache_blocks": 30} | options))
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    requests.add(10, params)
    requests.step()
    seq = requests.add(6, params)
    assert requests.scheduler.refusal(seq, budget) == reason
    assert requests.scheduler.may_join(seq, budget) == (reason is None)


def test_alone_a_sequence_may_use_the_whole_pool():
    requests = Requests(num_kvcache_blocks=4)
    seq = requests.add(14, SamplingParams(max_tokens=50, ignore_eos=True))
    assert requests.step() == ([(0, 14)], True)
    while not seq.is_finished:
        requests.step()
    assert seq.num_tokens == 17 and seq.finish_reason == "error"


# The estimate of future memory.


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 30)), min_size=0, max_size=6), st.integers(1, 30))
def test_the_expected_peak_is_the_maximum_over_all_future_steps(others, remaining):
    """Against a simulation in which each sequence grows by a token a step and then gives its blocks back."""
    requests = Requests(num_kvcache_blocks=100, max_num_batched_tokens=200, max_model_len=500, max_num_seqs=20)
    requests.scheduler.expected_peak_blocks, original = lambda seq: 0, requests.scheduler.expected_peak_blocks
    for num_blocks, left in others:
        requests.add(4 * num_blocks, SamplingParams(max_tokens=left + 1, ignore_eos=True))
    if others:
        requests.scheduler.schedule()
    sizes = [(num_blocks, left + 1) for num_blocks, left in others]
    candidate = Sequence([9000] * 6, SamplingParams(max_tokens=remaining, ignore_eos=True), 4, 99)
    sizes.append((2, remaining))
    peak = max(
        sum(num_blocks + step / 4 for num_blocks, left in sizes if left >= step)
        for step in range(1, 1 + max(left for _, left in sizes))
    )
    assert original(candidate) == pytest.approx(peak)


def test_shared_blocks_count_once_in_the_expected_peak():
    requests = Requests(num_kvcache_blocks=100)
    prompt = list(range(17))
    for _ in range(3):
        requests.add(prompt, SamplingParams(max_tokens=4, ignore_eos=True))
    requests.scheduler.schedule()
    candidate = Sequence(prompt, SamplingParams(max_tokens=4, ignore_eos=True), 4, 9)
    assert requests.scheduler.expected_peak_blocks(candidate) == pytest.approx(4 + 4 * 1 + 4 * 4 / 4)


def test_expected_remaining_tokens():
    requests = Requests(num_kvcache_blocks=100, max_model_len=60)
    scheduler = requests.scheduler

    def remaining(num_generated=0, **params):
        seq = Sequence([7] * 10, SamplingParams(**params), 4)
        for _ in range(num_generated):
            seq.append_token(8)
        return scheduler.expected_remaining_tokens(seq)

    assert remaining(max_tokens=30) == 30, "nothing is known yet: the limit"
    assert remaining(max_tokens=99) == 50, "max_model_len is a limit, too"
    assert remaining(max_tokens=30, num_generated=12) == 18
    for length in (4, 5, 6, 7):
        seq = requests.add(3, SamplingParams(max_tokens=length, ignore_eos=True))
        while not seq.is_finished:
            requests.step()
    assert 6 <= remaining(max_tokens=30) <= 7, "as long as most recent answers"
    assert 1 <= remaining(max_tokens=30, num_generated=5) <= 2, "as long as those that got beyond five tokens"
    assert remaining(max_tokens=30, num_generated=7) == 23, "longer than all before it: the limit"
    assert remaining(max_tokens=3) == 3, "never more than the limit"
    assert remaining(max_tokens=30, ignore_eos=True) == 30, "exactly known"
    assert remaining(max_tokens=30, ignore_eos=True, stop_token_ids=[4]) <= 7
    aborted = requests.add(3, SamplingParams(max_tokens=20, ignore_eos=True))
    for _ in range(10):
        requests.step()
    requests.scheduler.finish(aborted, "abort")
    assert remaining(max_tokens=30, num_generated=7) == 23, "an aborted request says nothing about lengths"


# How well it packs: the real scheduler with scripted lengths, on the memory of an 8 GB card.


def simulate(prompts, lengths, params, exact=False, num_blocks=180, scheduler_class=ExpectedLengthScheduler):
    """Run all requests; `exact` replaces the estimate of lengths by the truth. Returns what it cost."""
    scheduler = make_scheduler(
        scheduler_class,
        kvcache_block_size=256,
        num_kvcache_blocks=num_blocks,
        max_num_batched_tokens=16384,
        max_num_seqs=512,
        max_model_len=4096,
    )
    if exact:
        scheduler.expected_remaining_tokens = lambda seq: lengths[seq.seq_id] - seq.num_completion_tokens
    for i, prompt in enumerate(prompts):
        scheduler.add(Sequence(prompt, params[i], 256, i))
    batches = []
    while not scheduler.is_finished():
        seqs, is_prefill = scheduler.schedule()
        if not is_prefill and scheduler.waiting:
            batches.append(len(seqs))
        tokens = []
        for seq in seqs:
            ends = seq.num_completion_tokens + 1 == lengths[seq.seq_id]
            tokens.append(None if seq.is_cut else EOS if ends else 1 + (31 * seq.seq_id + seq.num_tokens) % 999)
        scheduler.postprocess(seqs, tokens)
    return scheduler.num_prefill_tokens, sum(batches) / len(batches) if batches else None


def benchmark_work(seed, num_requests=256):
    rng = random.Random(seed)
    prompts = [[rng.randint(0, 10000) for _ in range(rng.randint(100, 1024))] for _ in range(num_requests)]
    return prompts, [rng.randint(100, 1024) for _ in range(num_requests)]


@pytest.mark.parametrize("seed", range(3))
def test_memory_pressure_does_not_turn_into_recomputation(seed):
    """256 requests of known length on a pool of 46,080 tokens, a sixth of what all would need at once."""
    prompts, lengths = benchmark_work(seed)
    ideal = sum(map(len, prompts))
    if seed == 0:
        assert ideal == 142827  # the work of the published benchmark
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
    num_prefill_tokens, _ = simulate(prompts, lengths, params)
    assert ideal <= num_prefill_tokens <= 1.1 * ideal, num_prefill_tokens / ideal
    without_lever, _ = simulate(prompts, lengths, params, scheduler_class=Scheduler)
    assert without_lever > 1.1 * ideal, "the plain scheduler lets everybody in who fits now"


@pytest.mark.parametrize("scheduler_class", [ExpectedLengthScheduler, Scheduler])
def test_nothing_is_computed_twice_when_there_is_room(scheduler_class):
    prompts, lengths = benchmark_work(0)
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
    assert simulate(prompts, lengths, params, num_blocks=2000, scheduler_class=scheduler_class)[0] == 142827


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("spread", ["narrow", "exponential"])
def test_the_batch_is_nearly_as_large_as_the_pool_allows(seed, spread):
    """max_tokens=1024, but all stop near 100: reserving the limit would run half of what fits."""
    prompts, _ = benchmark_work(seed)
    rng = random.Random(seed + 100)
    if spread == "narrow":
        lengths = [rng.randint(80, 120) for _ in prompts]
    else:
        lengths = [max(1, min(1024, int(rng.expovariate(0.01)))) for _ in prompts]
    params = [SamplingParams(max_tokens=1024)] * len(prompts)
    num_prefill_tokens, batch = simulate(prompts, lengths, params)
    _, best = simulate(prompts, lengths, params, exact=True)
    # What fits if every request had its final size all the time; and what a scheduler reaches that knows the lengths.
    capacity = 180 / (sum(-(-(len(p) + n) // 256) for p, n in zip(prompts, lengths, strict=True)) / len(prompts))
    assert batch >= 0.8 * capacity and batch >= 0.8 * best, (batch, capacity, best)
    assert num_prefill_tokens <= 1.1 * sum(map(len, prompts))
