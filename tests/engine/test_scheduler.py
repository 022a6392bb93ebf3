"""Scheduler: who computes what in each step, against a plain second scheduler."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence, SequenceStatus
from nanovllm.levers import compose, expected_length
from nanovllm.sampling_params import SamplingParams
from tests.engine.conftest import a_tenth
from tests.engine.oracles import CHOICES, KVMemory, ReferenceBlockManager, check_block_manager, with_choice
from tests.engine.scheduling import EOS, Requests, make_scheduler

ExpectedLengthScheduler = compose(Scheduler, [expected_length])
# Which of the running sequences, oldest first, gives up its blocks: the engine's choice, and others.
VICTIMS = {
    "newest": lambda running: running[-1],
    "oldest": lambda running: running[0],
    "longest": lambda running: max(running, key=len),
    "anyone": lambda running: running[sum(map(len, running)) * 7919 % len(running)],
}


def with_victim(scheduler_class, victim):
    """A subclass that preempts another one."""
    if victim == "newest":
        return scheduler_class
    methods = {"choose_victim": lambda self, seq: VICTIMS[victim](list(self.running))}
    return type(scheduler_class.__name__, (scheduler_class,), methods)


# Small scenes.


def test_a_scheduler_needs_a_pool():
    with pytest.raises(ValueError, match="num_kvcache_blocks"):
        make_scheduler(num_kvcache_blocks=-1)


def test_prompts_that_fit_are_prefilled_in_one_step_then_decoded_together():
    requests = Requests(num_kvcache_blocks=20)
    for length in (5, 9, 3):
        requests.add(length)
    assert requests.step() == ([(0, 5), (1, 9), (2, 3)], True)
    assert requests.step() == ([(0, 1), (1, 1), (2, 1)], False)
    late = requests.add(6)
    assert requests.step() == ([(late.seq_id, 6)], True)
    assert requests.step() == ([(0, 1), (1, 1), (2, 1), (3, 1)], False)


def test_an_idle_scheduler_schedules_nothing():
    requests = Requests()
    assert requests.scheduler.is_finished() and requests.step() == ([], False)


def test_a_long_prompt_is_cut_at_the_budget_and_goes_on_first():
    requests = Requests(num_kvcache_blocks=30, max_num_batched_tokens=10)
    long, short = requests.add(25), requests.add(4)
    assert requests.step() == ([(0, 10)], True)
    assert requests.ids() == ([0, 1], []) and len(long.block_table) == 7 and long.num_completion_tokens == 0
    assert requests.step() == ([(0, 10)], True)
    assert requests.step() == ([(0, 5), (1, 4)], True)
    assert requests.ids() == ([], [0, 1]) and (long.num_completion_tokens, short.num_completion_tokens) == (1, 1)


def test_any_prompt_of_a_step_is_cut_not_only_the_first():
    requests = Requests(num_kvcache_blocks=30, max_num_batched_tokens=10)
    for _ in range(3):
        requests.add(8)
    assert [requests.step()[0] for _ in range(3)] == [[(0, 8), (1, 2)], [(1, 6), (2, 4)], [(2, 4)]]


def test_no_prompt_overtakes_one_that_waits_for_blocks():
    requests = Requests(num_kvcache_blocks=6, max_model_len=16)
    requests.add(14, SamplingParams(max_tokens=2, ignore_eos=True))
    requests.add(12)
    requests.add(1)
    assert requests.step() == ([(0, 14)], True)
    assert requests.step() == ([(0, 1)], False) and requests.all[0].is_finished
    assert requests.step() == ([(1, 12), (2, 1)], True)


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 12])
def test_max_num_seqs_bounds_the_running_sequences_always(max_num_seqs):
    requests = Requests(num_kvcache_blocks=200, max_num_seqs=max_num_seqs)
    for _ in range(30):
        requests.add(3)
    sizes = set()
    while not requests.scheduler.is_finished():
        plan, _ = requests.step()
        sizes.add(len(requests.scheduler.running))
        assert len(plan) <= max_num_seqs and len(requests.scheduler.running) <= max_num_seqs
    assert max(sizes) == max_num_seqs


def test_a_cut_prompt_counts_against_max_num_seqs():
    requests = Requests(num_kvcache_blocks=30, max_num_seqs=2, max_num_batched_tokens=6)
    requests.add(4)
    requests.add(8)
    requests.add(2)
    assert requests.step()[0] == [(0, 4), (1, 2)]
    assert requests.step()[0] == [(1, 6)]
    assert requests.ids() == ([2], [0, 1])


def test_a_decode_step_keeps_to_the_token_budget():
    requests = Requests(num_kvcache_blocks=60, max_num_seqs=8, max_num_batched_tokens=3)
    for _ in range(8):
        requests.add(1)
    while not requests.scheduler.is_finished():
        plan, _ = requests.step()
        assert 0 < sum(n for _, n in plan) <= 3


def test_equal_prompts_of_one_step_share_their_blocks():
    requests = Requests(num_kvcache_blocks=30)
    prompt = list(range(10))
    for _ in range(4):
        requests.add(prompt)
    assert requests.step() == ([(0, 10), (1, 2), (2, 2), (3, 2)], True)
    assert {tuple(seq.block_table[:2]) for seq in requests.all} == {tuple(requests.all[0].block_table[:2])}
    assert requests.scheduler.num_prefill_tokens == 16
    assert [seq.num_prefix_hit_tokens for seq in requests.all] == [0, 8, 8, 8]


def test_the_newest_is_preempted_and_keeps_its_tokens():
    requests = Requests(num_kvcache_blocks=4, enable_prefix_caching=False)
    for _ in range(2):
        requests.add(7, SamplingParams(max_tokens=20))
    requests.step()
    requests.step()  # eight tokens each, two full blocks each, none left
    plan, is_prefill = requests.step(token_id=6)
    assert (plan, is_prefill) == ([(0, 1)], False)
    old, new = requests.all
    assert requests.ids() == ([1], [0]) and requests.scheduler.num_preemptions == 1
    assert new.status is SequenceStatus.WAITING and new.block_table == [] and new.num_cached_tokens == 0
    assert new.completion_token_ids == [5, 5] and old.completion_token_ids == [5, 5, 6]
    while not old.is_finished:
        requests.step()
    plan, is_prefill = requests.step()
    assert (plan, is_prefill) == ([(1, 9)], True) and new.completion_token_ids == [5, 5, 5]


@pytest.mark.parametrize(
    ("victim", "scheduled", "waiting"),
    [("newest", [0, 1], [2]), ("oldest", [1, 2], [0]), ("longest", [0, 2], [1]), ("itself", [0, 2], [1])],
)
def test_a_subclass_chooses_who_is_preempted(victim, scheduled, waiting):
    class OwnScheduler(Scheduler):
        def choose_victim(self, seq):
            assert seq in self.running and not self.block_manager.can_append(seq)
            return seq if victim == "itself" else VICTIMS[victim](self.running)

    requests = Requests(OwnScheduler, num_kvcache_blocks=6, enable_prefix_caching=False)
    for length in (4, 7, 4):  # two blocks each with the next token; then the second one needs a third
        requests.add(length, SamplingParams(max_tokens=20, ignore_eos=True))
    requests.step()
    requests.step()
    assert requests.step() == ([(seq_id, 1) for seq_id in scheduled], False)
    assert requests.ids() == (waiting, scheduled) and requests.scheduler.num_preemptions == 1
    check_block_manager(requests.scheduler.block_manager, requests.all)


def test_a_preempted_sequence_is_recomputed_only_where_the_cache_has_lost_it():
    requests = Requests(num_kvcache_blocks=30)
    seq = requests.add(10, SamplingParams(max_tokens=20))
    requests.step()
    requests.step()
    requests.scheduler.preempt(seq)
    assert requests.ids() == ([0], [])
    assert requests.step() == ([(0, 4)], True)  # 12 tokens, of which two full blocks are still there
    assert seq.num_prefix_hit_tokens == 0, "what is said of the prompt is what the first admission found"


def test_a_sequence_that_outgrows_the_pool_alone_ends_with_an_error():
    requests = Requests(num_kvcache_blocks=3)
    seq = requests.add(9, SamplingParams(max_tokens=50, ignore_eos=True))
    others = [requests.add(3, SamplingParams(max_tokens=2)) for _ in range(2)]
    for _ in range(30):
        requests.step()
    assert seq.finish_reason == "error" and "num_kvcache_blocks" in seq.error
    assert seq.num_tokens == 13 and seq.block_table == []
    assert [other.finish_reason for other in others] == ["length", "length"] and requests.scheduler.is_finished()


def test_a_sequence_that_outgrows_the_pool_beside_others_ends_with_an_error_too():
    """Two sequences share most of the pool: the newer one has as many tokens as there are slots, and one more comes."""
    requests = Requests(num_kvcache_blocks=4, kvcache_block_size=1)
    params = SamplingParams(max_tokens=50, ignore_eos=True)
    old = requests.add([1, 2, 3], params)
    requests.step(6)
    new = requests.add([1, 2, 3, 7], params)
    requests.step(8)  # it shares three blocks, takes the last one, and has five tokens now
    assert new.finish_reason == "error" and "num_kvcache_blocks" in new.error and new.completion_token_ids == [8]
    assert new.block_table == [] and requests.ids() == ([], [0])
    check_block_manager(requests.scheduler.block_manager, [old])
    assert requests.step(9) == ([(0, 1)], False)
    assert old.finish_reason == "error" and old.completion_token_ids == [6, 9] and requests.scheduler.is_finished()


@pytest.mark.parametrize("params", [{"max_tokens": 4}, {"ignore_eos": False, "max_tokens": 9}, {"stop_token_ids": [5]}])
def test_what_ends_by_itself_with_the_token_that_outgrows_the_pool_is_no_error(params):
    requests = Requests(num_kvcache_blocks=3)
    seq = requests.add(9, SamplingParams(**({"ignore_eos": True, "max_tokens": 9} | params)))
    for token_id in (7, 7, 7, 5 if "stop_token_ids" in params else EOS):
        requests.step(token_id)
    assert seq.num_tokens == 13 and seq.error is None
    assert seq.finish_reason == ("length" if params == {"max_tokens": 4} else "stop")


def test_a_prompt_larger_than_the_pool_is_refused_at_once():
    requests = Requests(num_kvcache_blocks=3)
    requests.add(12)
    with pytest.raises(ValueError, match="num_kvcache_blocks"):
        requests.add(13)
    assert len(requests.scheduler.waiting) == 1


@pytest.mark.parametrize(("num_blocks", "max_model_len", "limit"), [(3, 64, 12), (16, 20, 20), (5, 20, 20)])
def test_the_longest_prompt_that_can_be_run(num_blocks, max_model_len, limit):
    requests = Requests(num_kvcache_blocks=num_blocks, max_model_len=max_model_len)
    requests.scheduler.check(Sequence([7] * limit, block_size=4))
    with pytest.raises(ValueError, match=rf"prompt has {limit + 1} tokens.*max_model_len.*num_kvcache_blocks"):
        requests.scheduler.check(Sequence([7] * (limit + 1), block_size=4))
    assert requests.scheduler.is_finished(), "to be checked is not to be added"
    requests.add(limit, SamplingParams(max_tokens=1))
    requests.step()
    assert requests.all[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("params", "tokens", "reason", "stop_reason"),
    [
        ({}, [5, 6, EOS], "stop", None),
        ({"ignore_eos": True, "max_tokens": 4}, [EOS, EOS, 5, EOS], "length", None),
        ({"stop_token_ids": [7]}, [5, 7], "stop", 7),
        ({"stop_token_ids": [7], "ignore_eos": True}, [EOS, 7], "stop", 7),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, [5, EOS], "stop", EOS),
        ({"max_tokens": 1}, [5], "length", None),
        ({"max_tokens": 3}, [5, 5, EOS], "stop", None),  # an end at the limit is still an end
        ({"max_tokens": 3}, [5, 5, 5], "length", None),
        ({"max_tokens": 60}, [5] * 15, "length", None),  # max_model_len is 20, the prompt has 5
    ],
)
def test_why_a_sequence_ends(params, tokens, reason, stop_reason):
    requests = Requests(num_kvcache_blocks=30, max_model_len=20)
    seq = requests.add(5, SamplingParams(**params))
    for token_id in tokens:
        assert not seq.is_finished
        requests.step(token_id)
    assert (seq.finish_reason, seq.stop_reason) == (reason, stop_reason)
    assert seq.completion_token_ids == tokens and seq.status is SequenceStatus.FINISHED
    assert requests.scheduler.is_finished() and seq.block_table == []
    assert len(requests.scheduler.block_manager.free_block_ids) == 30


@pytest.mark.parametrize(
    ("options", "budget", "reason"),
    [
        ({}, 0, "token_budget"),
        ({"max_num_seqs": 1}, 64, "max_seqs"),
        ({"num_kvcache_blocks": 4}, 64, "no_blocks"),
        ({"num_kvcache_blocks": 8}, 64, None),  # as if nobody would grow
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


def test_a_prompt_that_was_cut_may_go_on_as_long_as_there_is_budget():
    requests = Requests(num_kvcache_blocks=4, max_num_batched_tokens=6, max_num_seqs=1)
    seq = requests.add(14, SamplingParams(max_tokens=50, ignore_eos=True))
    requests.step()
    assert requests.scheduler.may_join(seq, 1) and not requests.scheduler.may_join(seq, 0)


@pytest.mark.parametrize("num_steps", [0, 1, 2, 4])
def test_a_sequence_can_be_ended_from_outside_in_any_state(num_steps):
    requests = Requests(num_kvcache_blocks=30, max_num_batched_tokens=6)
    first, second = requests.add(14), requests.add(3)  # waits; cut; cut; runs
    for _ in range(num_steps):
        requests.step()
    requests.scheduler.finish(first, "abort")
    assert first.finish_reason == "abort" and first.block_table == []
    check_block_manager(requests.scheduler.block_manager, [second])
    while not requests.scheduler.is_finished():
        requests.step()
    assert second.finish_reason == "length" and first.finish_reason == "abort"
    assert first.completion_token_ids == [5] * max(0, num_steps - 2) and second.completion_token_ids == [5] * 8


def test_reset_queues_all_sequences_again_with_their_tokens_and_forgets_the_cache():
    requests = Requests(num_kvcache_blocks=30)
    prompt = list(range(9))
    for _ in range(3):
        requests.add(prompt)
    requests.step()
    requests.add(prompt)
    requests.scheduler.schedule()
    for seq in requests.all:
        seq.rewind(seq.num_tokens)
    requests.scheduler.reset(requests.all)
    assert requests.ids() == ([0, 1, 2, 3], [])
    check_block_manager(requests.scheduler.block_manager, requests.all)
    assert all(seq.block_table == [] and seq.num_cached_tokens == 0 for seq in requests.all)
    # The first computes everything again, its tokens included; nothing of before can be hit.
    assert requests.step()[0] == [(0, 10), (1, 2), (2, 2), (3, 1)]


# Steps that the GPU has no memory for.


def drain(requests, most_tokens, max_num_seqs=8):
    """Run to the end; every step has so many tokens at most."""
    for _ in range(500):
        if requests.scheduler.is_finished():
            return
        plan, _ = requests.step()
        assert 0 < sum(num_tokens for _, num_tokens in plan) <= most_tokens and len(plan) <= max_num_seqs
    raise AssertionError("the scheduler does not come to an end")


def begin_anew(requests):
    live = [seq for seq in requests.all if not seq.is_finished]
    for seq in live:
        seq.rewind(seq.num_tokens)
    requests.scheduler.reset(live)


@pytest.mark.parametrize("num_steps", [0, 1, 4])  # a prefill, its second chunk, a decode
def test_steps_are_half_as_large_as_the_one_that_failed_until_the_scheduler_is_idle(num_steps):
    requests = Requests(num_kvcache_blocks=60, max_num_batched_tokens=16)
    for _ in range(4):
        requests.add(6)
    for _ in range(num_steps):
        requests.step()
    seqs, _ = requests.scheduler.schedule()
    size = sum(seq.num_scheduled_tokens for seq in seqs)
    assert size == (16, 8, 4)[[0, 1, 4].index(num_steps)]
    requests.scheduler.shrink_steps(seqs)
    begin_anew(requests)
    requests.add(6)  # a new request does not make the steps large again
    drain(requests, most_tokens=size // 2)
    assert all(seq.completion_token_ids == [5] * 8 and seq.finish_reason == "length" for seq in requests.all)
    for _ in range(3):
        requests.add(6)
    assert requests.step() == ([(5, 6), (6, 6), (7, 4)], True), "an idle scheduler has forgotten it"


def test_steps_shrink_to_one_token_and_no_further():
    requests = Requests(num_kvcache_blocks=60, max_num_batched_tokens=16)
    for _ in range(3):
        requests.add(7)
    for size in (16, 8, 4, 2, 1, 1):
        seqs, _ = requests.scheduler.schedule()
        assert sum(seq.num_scheduled_tokens for seq in seqs) == size
        requests.scheduler.shrink_steps(seqs)
        begin_anew(requests)
    drain(requests, most_tokens=1)
    assert all(seq.completion_token_ids == [5] * 8 for seq in requests.all)


def test_steps_can_be_restored_at_once():
    requests = Requests(num_kvcache_blocks=60, max_num_batched_tokens=16, max_num_seqs=3)
    for _ in range(4):
        requests.add(7)
    requests.scheduler.shrink_steps(requests.scheduler.schedule()[0])
    begin_anew(requests)
    requests.scheduler.restore_steps()
    assert requests.step() == ([(0, 7), (1, 7), (2, 2)], True)
    drain(requests, most_tokens=16, max_num_seqs=3)


# Everything in any order.


class SchedulerMachine(RuleBasedStateMachine):
    """Random requests on a small pool. Each step is predicted: admissions, hits, chunks, preemptions, tables, ends.

    Only the estimate of future memory is taken as it is, and only where requests run already.
    """

    @initialize(
        block_size=st.sampled_from([1, 2, 3, 4, 8]),
        num_blocks=st.integers(1, 16),
        budget=st.integers(1, 20),
        max_num_seqs=st.integers(1, 5),
        max_model_len=st.integers(4, 40),
        enabled=st.sampled_from([True, True, False]),
        has_estimate=st.booleans(),
        victim=st.sampled_from(["newest", *VICTIMS]),
        choice=st.sampled_from(["longest freed", *CHOICES]),
    )
    def start(self, block_size, num_blocks, budget, max_num_seqs, max_model_len, enabled, has_estimate, victim, choice):
        self.block_size, self.num_blocks, self.budget = block_size, num_blocks, budget
        self.max_num_seqs, self.max_model_len = min(max_num_seqs, budget), max_model_len
        self.scheduler = make_scheduler(
            with_victim(ExpectedLengthScheduler if has_estimate else Scheduler, victim),
            kvcache_block_size=block_size,
            num_kvcache_blocks=num_blocks,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            enable_prefix_caching=enabled,
        )
        self.has_estimate = has_estimate  # without it, preemption happens often
        self.victim = victim
        self.enabled = enabled
        manager = self.scheduler.block_manager
        manager.__class__ = with_choice(type(manager), choice)
        self.choice = choice
        self.model = ReferenceBlockManager(num_blocks, block_size, enabled, CHOICES[choice])
        self.memory = KVMemory(block_size)
        self.live = []  # oldest first
        self.history = {}  # seq_id -> every token it was given
        self.num_preemptions = self.num_prefill_tokens = self.num_seqs = 0
        self.seen = Counter()

    # What users do.

    @rule(token_ids=st.lists(st.integers(1, 2), min_size=1, max_size=20), pick=st.integers(0, 2**16))
    def add(self, token_ids, pick):
        if self.history and pick % 3:  # begin as another one did
            earlier = list(self.history.values())[pick // 3 % len(self.history)]
            token_ids = (earlier[: 1 + pick // 64 % len(earlier)] + token_ids)[:24]
        token_ids = token_ids[: self.max_model_len]
        params = SamplingParams(
            max_tokens=1 + pick // 7 % 12,
            ignore_eos=pick % 2 == 0,
            stop_token_ids=[3] if pick // 2 % 4 == 0 else None,
        )
        seq = Sequence(token_ids, params, self.block_size, self.num_seqs)
        if -(-len(token_ids) // self.block_size) > self.num_blocks:
            with pytest.raises(ValueError, match="num_kvcache_blocks"):
                self.scheduler.add(seq)
            return
        self.scheduler.add(seq)
        self.num_seqs += 1
        self.live.append(seq)
        self.history[seq.seq_id] = list(token_ids)

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 2**16))
    def abort(self, pick):
        seq = self.live[pick % len(self.live)]
        self.scheduler.finish(seq, "abort")
        self.check_ended(seq, "abort")
        self.seen["aborted"] += 1

    @precondition(lambda self: self.live)
    @rule(computed=st.booleans())
    def interrupt(self, computed):
        """A step that raises: nothing of the cache is trusted, all sequences wait again."""
        seqs, _ = self.scheduler.schedule()
        if computed:
            for seq in seqs:
                seq.num_cached_tokens += 1
        for seq in self.live:
            seq.rewind(seq.num_tokens)
        self.scheduler.reset(self.live)
        self.model = ReferenceBlockManager(self.num_blocks, self.block_size, self.enabled, CHOICES[self.choice])
        self.num_preemptions = self.scheduler.num_preemptions
        self.num_prefill_tokens = self.scheduler.num_prefill_tokens
        assert list(self.scheduler.waiting) == self.live and not self.scheduler.running
        self.seen["interrupted"] += 1

    @rule(tokens=st.lists(st.integers(0, 3), min_size=5, max_size=5))
    def step(self, tokens):
        waiting, running = list(self.scheduler.waiting), list(self.scheduler.running)
        computed_before = {seq.seq_id: seq.num_cached_tokens for seq in self.live}
        seqs, is_prefill = self.scheduler.schedule()
        assert len({id(seq) for seq in seqs}) == len(seqs)
        if is_prefill:
            assert seqs
            self.check_prefill(seqs, waiting, running, computed_before)
        else:
            self.check_decode(seqs, waiting, running)
        check_block_manager(self.scheduler.block_manager, self.live)
        for seq in self.scheduler.running:
            assert seq.block_table == self.model.tables[seq.seq_id]
        self.memory.run(seqs, self.live)
        sampled = [None if seq.is_cut else tokens[i % 5] for i, seq in enumerate(seqs)]
        self.scheduler.postprocess(seqs, sampled)
        self.check_ends(seqs, sampled)

    # What must come of it.

    def check_prefill(self, seqs, waiting, running, computed_before):
        budget, num_running = self.budget, len(running)
        assert seqs == waiting[: len(seqs)], "admission is first come, first served"
        for seq in seqs:
            assert budget > 0 and num_running < self.max_num_seqs
            start = computed_before[seq.seq_id]
            if seq.seq_id not in self.model.tables:
                assert self.model.num_new_blocks(seq.token_ids) <= len(self.model.free)
                start = self.model.allocate(seq.seq_id, seq.token_ids)
                self.seen["hit"] += start > 0
                if not self.enabled:
                    assert start == 0
                if seq.num_completion_tokens == 0 and self.seen["interrupted"] == 0:
                    assert seq.num_prefix_hit_tokens == start
            assert seq.block_table == self.model.tables[seq.seq_id] and seq.num_cached_tokens == start
            assert seq.num_scheduled_tokens == min(seq.num_tokens - start, budget) > 0
            budget -= seq.num_scheduled_tokens
            self.num_prefill_tokens += seq.num_scheduled_tokens
            self.model.fill(seq.seq_id, seq.token_ids, start, start + seq.num_scheduled_tokens)
            num_running += 1
        cut = seqs[-1].num_computed_after_step < seqs[-1].num_tokens
        assert not any(seq.is_cut for seq in seqs[:-1]) and seqs[-1].is_cut == cut
        self.seen["cut"] += cut
        admitted = seqs[:-1] if cut else seqs
        assert list(self.scheduler.running) == running + admitted
        assert list(self.scheduler.waiting) == waiting[len(admitted) :]
        if not cut and len(seqs) < len(waiting):
            self.check_refusal(waiting[len(seqs)], budget)

    def check_refusal(self, seq, budget):
        """The head of the queue stays out only for a reason."""
        if budget == 0 or len(self.scheduler.running) == self.max_num_seqs:
            return
        if self.model.num_new_blocks(seq.token_ids) > len(self.model.free):
            self.seen["no blocks"] += 1
            return
        assert self.scheduler.running and self.has_estimate, "nothing speaks against the head of the queue"
        self.seen["no headroom"] += 1

    def check_decode(self, seqs, waiting, running):
        """Oldest first, each takes its block; if none is free somebody goes: by itself, or for another."""
        if waiting:
            assert waiting[0].seq_id not in self.model.tables, "a cut prompt goes on before anyone decodes"
            self.check_refusal_before_decode(waiting[0], running)
        left, preempted = list(running), []
        for seq in running:
            while seq in left and self.needs_block(seq) and not self.model.free:
                self.num_preemptions += 1
                self.seen["preempted"] += 1
                preempted.insert(0, VICTIMS[self.victim](left))
                left.remove(preempted[0])
                self.model.release(preempted[0].seq_id)
            if seq in left:
                self.model.append(seq.seq_id, seq.token_ids)
        for seq in left:
            self.model.fill(seq.seq_id, seq.token_ids, seq.num_tokens - 1, seq.num_tokens)
        assert seqs == left == list(self.scheduler.running)
        assert all(seq.num_scheduled_tokens == 1 and seq.num_cached_tokens == seq.num_tokens - 1 for seq in seqs)
        assert list(self.scheduler.waiting) == preempted + waiting, "preempted ones wait in front, the last one first"
        assert all(seq.block_table == [] and seq.status is SequenceStatus.WAITING for seq in preempted)
        assert all(seq.num_scheduled_tokens == seq.num_cached_tokens == 0 for seq in preempted)
        assert seqs or not self.live, "a step without progress"

    def check_refusal_before_decode(self, seq, running):
        if len(running) < self.max_num_seqs and self.model.num_new_blocks(seq.token_ids) <= len(self.model.free):
            assert running and self.has_estimate
            self.seen["no headroom"] += 1

    def needs_block(self, seq):
        return seq.num_tokens > len(self.model.tables[seq.seq_id]) * self.block_size

    def has_outgrown(self, seq):
        return seq.num_tokens > self.num_blocks * self.block_size

    def check_ends(self, seqs, sampled):
        ended = [seq for seq in self.live if seq.is_finished]
        assert all(seq in seqs for seq in ended)
        for seq, token_id in zip(seqs, sampled, strict=True):
            assert seq.num_scheduled_tokens == 0
            if token_id is None:
                assert seq not in ended and self.scheduler.waiting[0] is seq
                continue
            self.history[seq.seq_id].append(token_id)
            params, reason, stop_reason = seq.sampling_params, None, None
            if token_id == EOS and not params.ignore_eos:
                reason = "stop"
            elif token_id in (params.stop_token_ids or ()):
                reason, stop_reason = "stop", token_id
            elif seq.num_completion_tokens == params.max_tokens or seq.num_tokens >= self.max_model_len:
                reason = "length"
            elif self.has_outgrown(seq):
                reason = "error"
                self.seen["outgrew"] += 1
            assert (seq.error is not None) == (reason == "error")
            assert (seq in ended) == (reason is not None) == seq.is_finished
            if reason:
                self.check_ended(seq, reason)
                assert seq.stop_reason == stop_reason

    def check_ended(self, seq, reason):
        assert seq.is_finished and seq.finish_reason == reason
        assert seq.block_table == []
        self.live.remove(seq)
        if seq.seq_id in self.model.tables:
            self.model.release(seq.seq_id)

    @invariant()
    def holds(self):
        scheduler = self.scheduler
        waiting, running = list(scheduler.waiting), list(scheduler.running)
        queued = running + waiting
        if self.victim != "newest":
            queued.sort(key=self.live.index)
        assert queued == self.live, "every live sequence is in exactly one queue, in order of arrival"
        assert all(seq.status is SequenceStatus.WAITING for seq in waiting)
        assert all(seq.status is SequenceStatus.RUNNING for seq in running)
        assert all(seq.block_table == [] for seq in waiting[1:]), "only the head of the queue can be half computed"
        assert len(running) + sum(bool(seq.block_table) for seq in waiting[:1]) <= self.max_num_seqs
        assert scheduler.is_finished() == (not self.live)
        for seq in self.live:
            assert seq.token_ids == self.history[seq.seq_id] and seq.finish_reason is None
        for seq in running:
            assert seq.num_cached_tokens == seq.num_tokens - 1, "a running sequence has one token to compute"
        check_block_manager(scheduler.block_manager, self.live)
        assert list(scheduler.block_manager.free_block_ids) == self.model.free
        findable = {entry.block_id for entry in self.model.index.values()}
        assert set(scheduler.block_manager.hash_to_block_id.values()) == findable, "what is computed, and nothing else"
        assert scheduler.num_preemptions == self.num_preemptions
        assert scheduler.num_prefill_tokens == self.num_prefill_tokens
        for seq in self.live:
            self.memory.check_computed(seq, seq.num_cached_tokens)

    def teardown(self):
        """All that is left comes to an end, and every block is free then."""
        for _ in range(500):
            if not self.live:
                break
            self.step([1, 2, 1, 1, 2])
            self.holds()
        assert not self.live and self.scheduler.is_finished()
        assert len(self.scheduler.block_manager.free_block_ids) == self.num_blocks


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=40, stateful_step_count=30)


def random_walk(seed, num_steps, victim="newest", choice="longest freed"):
    """The same rules in long runs without hypothesis."""
    rng = random.Random(seed)
    machine = SchedulerMachine()
    machine.start(
        block_size=rng.choice([1, 2, 3, 4, 8]),
        num_blocks=rng.randrange(2, 17),
        budget=rng.randrange(1, 21),
        max_num_seqs=rng.randrange(1, 6),
        max_model_len=rng.randrange(10, 41),
        enabled=rng.random() < 0.8,
        has_estimate=rng.random() >= 0.5,
        victim=victim,
        choice=choice,
    )
    for _ in range(num_steps):
        name = rng.choices(["add", "step", "abort", "interrupt"], [10, 40, 2, 0.5])[0]
        pick = rng.randrange(2**16)
        if name == "add" and len(machine.live) < 8:
            machine.add(token_ids=[rng.randrange(1, 3) for _ in range(rng.randrange(1, 21))], pick=pick)
        elif name == "step":
            machine.step(tokens=[rng.choices(range(4), [1, 8, 8, 1])[0] for _ in range(5)])
        elif machine.live and name == "abort":
            machine.abort(pick=pick)
        elif machine.live and name == "interrupt":
            machine.interrupt(computed=rng.random() < 0.5)
        machine.holds()
    machine.teardown()
    return machine.seen


def test_long_random_walks():
    seen = sum((random_walk(seed, 300) for seed in range(25)), Counter())
    things = ("hit", "cut", "preempted", "outgrew", "no blocks", "no headroom", "interrupted")
    assert min(seen[thing] for thing in things) >= 10, seen


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("choice", CHOICES)
def test_long_random_walks_with_another_victim_or_block(victim, choice):
    seen = sum((random_walk(seed, 200, victim, choice) for seed in range(12)), Counter())
    assert seen["preempted"] >= 4 and seen["hit"] >= 20, seen


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_more_walks():
    experiments = list(itertools.product(VICTIMS, CHOICES))
    for seed in range(1000, 1000 + a_tenth(250)):
        random_walk(seed, 500, *(experiments[seed // 2 % len(experiments)] if seed % 2 else ()))
