"""The whole engine around a model made of hashes: the tokens must be those of one request after another."""

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanovllm import RequestOutput, SamplingParams
from tests.engine import hash_model
from tests.engine.conftest import a_tenth, all_levers_are_off
from tests.engine.hash_model import VOCAB_SIZE, check_clean, expected
from tests.engine.interrupts import InterruptAtLine
from tests.engine.oracles import check_block_manager


@pytest.fixture(scope="module", autouse=True)
def model_path(tiny_text_model):
    global MODEL
    MODEL = tiny_text_model


def make_engine(**options):
    return hash_model.make_engine(MODEL, **options)


ahead_or_not = pytest.mark.parametrize("runs_ahead", [False, pytest.param(True, marks=pytest.mark.lever)])
# What takes seconds: as engines are by default in the quick suite, the other way in the slow one.
ahead_or_slowly_not = pytest.mark.parametrize(
    "runs_ahead", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.lever)]
)

# Inputs.

STARTS = [[(7 * i + j) % (VOCAB_SIZE - 1) + 1 for j in range(40)] for i in range(3)]  # prefixes that prompts share
prompts = st.builds(
    lambda which, length, tail: (STARTS[which][:length] + tail)[:40],
    st.integers(0, 2),
    st.integers(0, 36),
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
)
params_draws = st.builds(
    lambda max_tokens, ignore_eos, seed: SamplingParams(
        max_tokens=max_tokens, ignore_eos=ignore_eos, temperature=0.0 if seed is None else 0.8, seed=seed
    ),
    st.integers(1, 20),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 5)),
)
engine_options = st.fixed_dictionaries(
    {
        "kvcache_block_size": st.sampled_from([1, 2, 3, 4, 5, 8, 16, 32]),
        "max_num_batched_tokens": st.integers(1, 64),
        "max_num_seqs": st.integers(1, 6),
        "enable_prefix_caching": st.booleans(),
        "optimistic": st.booleans(),
        "runs_ahead": st.just(False) if all_levers_are_off() else st.booleans(),
    }
)


def with_pool(options, num_tokens):
    """A pool that holds `num_tokens` tokens of one sequence, and little more."""
    return options | {"num_kvcache_blocks": -(-num_tokens // options["kvcache_block_size"])}


# Tests.


def test_the_model_sees_the_whole_context():
    """Otherwise equal tokens would prove nothing."""
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    base = list(range(1, 20))
    reference = [expected(base, greedy).token_ids]
    for i in range(len(base)):
        changed = [*base]
        changed[i] += 100
        reference.append(expected(changed, greedy).token_ids)
    assert len({tuple(token_ids) for token_ids in reference}) == 20


@settings(max_examples=12)
@given(
    options=engine_options,
    pool=st.integers(20, 150),
    arrivals=st.lists(st.tuples(st.integers(0, 12), prompts, params_draws), min_size=1, max_size=7),
    aborts=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 6)), max_size=2),
)
def test_tokens_do_not_depend_on_what_else_runs(options, pool, arrivals, aborts):
    """Any block size, pool, chunks, batch, order of arrival, preemption and cache: the tokens of one by one."""
    with make_engine(**with_pool(options, pool)) as llm:
        check_run(llm, arrivals, aborts)


def check_run(llm, arrivals, aborts):
    pool = llm.config.num_kvcache_blocks * llm.config.kvcache_block_size
    waiting = sorted(arrivals, key=lambda arrival: arrival[0])
    wanted, results = {}, {}
    for i in range(4000):
        while waiting and waiting[0][0] <= i:
            _, prompt, params = waiting.pop(0)
            if len(prompt) > pool:
                with pytest.raises(ValueError, match="num_kvcache_blocks"):
                    llm.add_request(prompt, params)
                continue
            wanted[llm.add_request(prompt, params)] = expected(prompt, params, pool=pool)
        for when, which in aborts:
            ids = list(llm.llm_engine.requests)
            if when == i and ids:
                seq_id = ids[which % len(ids)]
                output, want = llm.abort(seq_id), wanted.pop(seq_id)
                assert output["finish_reason"] == "abort"
                assert output["token_ids"] == want.token_ids[: len(output["token_ids"])]
                assert len(output["token_ids"]) < len(want.token_ids) or want.reason == "error"
        finished, num_tokens = llm.step()
        assert abs(num_tokens) <= llm.config.max_num_batched_tokens
        for seq_id, token_ids in finished:
            assert seq_id not in results
            results[seq_id] = token_ids
        live = [request.seq for request in llm.llm_engine.requests.values()]
        check_block_manager(llm.scheduler.block_manager, live)
        assert {seq.seq_id for seq in live} == {seq.seq_id for seq in [*llm.scheduler.waiting, *llm.scheduler.running]}
        assert len(llm.scheduler.running) <= llm.config.max_num_seqs
        if llm.is_finished() and not waiting:
            break
    assert results == {seq_id: want.token_ids for seq_id, want in wanted.items()}
    check_clean(llm)


@pytest.mark.slow
@pytest.mark.timeout(300)
@ahead_or_not
def test_many_more_runs(runs_ahead):
    rng = random.Random(runs_ahead)
    for _ in range(a_tenth(120)):
        options = {
            "kvcache_block_size": rng.choice([1, 2, 3, 4, 5, 8, 16, 32]),
            "max_num_batched_tokens": rng.randrange(1, 65),
            "max_num_seqs": rng.randrange(1, 9),
            "enable_prefix_caching": rng.random() < 0.7,
            "optimistic": rng.random() < 0.6,
            "runs_ahead": runs_ahead,
        }
        arrivals = [
            (
                rng.randrange(40),
                (
                    STARTS[rng.randrange(3)][: rng.randrange(37)]
                    + [rng.randrange(1, 7) for _ in range(rng.randrange(1, 7))]
                ),
                SamplingParams(
                    max_tokens=rng.randrange(1, 21),
                    ignore_eos=rng.random() < 0.5,
                    temperature=0.0 if rng.random() < 0.6 else 0.8,
                    seed=rng.randrange(9),
                ),
            )
            for _ in range(rng.randrange(1, 16))
        ]
        with make_engine(**with_pool(options, rng.randrange(20, 200))) as llm:
            check_run(llm, arrivals, [(rng.randrange(1, 60), rng.randrange(9)) for _ in range(rng.randrange(3))])


@ahead_or_not
@pytest.mark.parametrize("block_size", [1, 2, 4, 16, 32])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_generate_under_pressure(block_size, enable_prefix_caching, runs_ahead):
    """Shared and private prompts on a pool for two or three of them; preemption, chunks and hits all happen."""
    rng = random.Random(block_size)
    work = [[*STARTS[i % 2][: rng.randrange(5, 30)], i % 5 + 1] for i in range(12)]
    params = [SamplingParams(temperature=0.0, max_tokens=rng.randrange(5, 20), ignore_eos=True) for _ in work]
    with make_engine(
        kvcache_block_size=block_size,
        num_kvcache_blocks=96 // block_size,
        max_num_batched_tokens=20,
        max_num_seqs=6,
        enable_prefix_caching=enable_prefix_caching,
        optimistic=True,
        runs_ahead=runs_ahead,
    ) as llm:
        outputs = llm.generate(work, params, use_tqdm=False)
        assert [o["token_ids"] for o in outputs] == [
            expected(p, s).token_ids for p, s in zip(work, params, strict=True)
        ]
        assert [o["num_prompt_tokens"] for o in outputs] == [len(p) for p in work]
        assert llm.scheduler.num_preemptions > 0
        hits = sum(o["num_cached_tokens"] for o in outputs)
        assert hits > 0 if enable_prefix_caching and block_size < 32 else hits == 0 or enable_prefix_caching
        check_clean(llm)


# Experiments: another choice of who is preempted, and of which free block is taken, changes no token.


def override(thing, **methods):
    """As if it had been made of a subclass."""
    thing.__class__ = type(type(thing).__name__, (type(thing),), methods)


VICTIMS = {
    "oldest": lambda self, seq: self.running[0],
    "longest": lambda self, seq: max(self.running, key=len),
    "who asks": lambda self, seq: seq,
    "anyone": lambda self, seq: self.running[sum(map(len, self.running)) * 7919 % len(self.running)],
}
CHOICES = {
    "last freed": lambda self: next(reversed(self.free_block_ids)),
    "smallest id": lambda self: min(self.free_block_ids),
    "anyone": lambda self: list(self.free_block_ids)[sum(self.free_block_ids) * 7919 % len(self.free_block_ids)],
}
experiments = st.tuples(st.sampled_from([None, *VICTIMS]), st.sampled_from([None, *CHOICES]))


def make_experiment(victim, choice, **options):
    llm = make_engine(**options)
    if victim:
        override(llm.scheduler, choose_victim=VICTIMS[victim])
    if choice:
        override(llm.scheduler.block_manager, choose_block_to_evict=CHOICES[choice])
    return llm


@settings(max_examples=8)
@given(
    options=engine_options,
    experiment=experiments,
    pool=st.integers(20, 80),
    arrivals=st.lists(st.tuples(st.integers(0, 12), prompts, params_draws), min_size=3, max_size=8),
)
def test_tokens_do_not_depend_on_who_is_preempted_or_which_block_is_taken(options, experiment, pool, arrivals):
    with make_experiment(*experiment, **with_pool(options | {"optimistic": True}, pool)) as llm:
        check_run(llm, arrivals, [])


@ahead_or_not
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("choice", CHOICES)
def test_experiments_under_pressure(victim, choice, runs_ahead):
    """Blocks are shared, taken and given back in another order than usual, and preemption happens."""
    rng = random.Random(victim + choice)
    arrivals = [
        (
            rng.randrange(10),
            [*STARTS[i % 2][: rng.randrange(5, 30)], i % 5 + 1],
            SamplingParams(temperature=0.0, max_tokens=rng.randrange(5, 20), ignore_eos=True),
        )
        for i in range(12)
    ]
    options = {"max_num_batched_tokens": 20, "max_num_seqs": 6, "optimistic": True, "runs_ahead": runs_ahead}
    with make_experiment(victim, choice, num_kvcache_blocks=24, **options) as llm:
        check_run(llm, arrivals, [])
        assert llm.scheduler.num_preemptions >= 2


# Memory that is full.


@settings(max_examples=8)
@given(
    options=engine_options,
    pool=st.integers(40, 150),
    arrivals=st.lists(st.tuples(st.integers(0, 12), prompts, params_draws), min_size=1, max_size=7),
    room=st.lists(st.integers(1, 24), min_size=1, max_size=6),
)
def test_steps_without_memory_end_their_requests_at_most(options, pool, arrivals, room):
    """A GPU with room for so many tokens a step, now more and now fewer: all tokens are right, or their beginning."""
    with make_engine(**with_pool(options, pool)) as llm:
        launches = Counter()

        def run_model(input_ids, positions):
            launches["all"] += 1
            if len(input_ids) > room[launches["all"] // 3 % len(room)]:
                launches["failed"] += 1
                raise torch.OutOfMemoryError("planned")
            return llm.fake(input_ids, positions)

        llm.llm_engine.model_runner.run_model = run_model
        pool = llm.config.num_kvcache_tokens
        work = [(prompt, params) for _, prompt, params in arrivals if len(prompt) <= pool]
        outputs = llm.generate([prompt for prompt, _ in work], [params for _, params in work], use_tqdm=False)
        for (prompt, params), output in zip(work, outputs, strict=True):
            want = expected(prompt, params, pool=pool)
            if output.get("error", "").startswith("out of GPU memory"):
                assert launches["failed"] > 1
                assert output["token_ids"] == want.token_ids[: len(output["token_ids"])]
            else:
                assert (output["token_ids"], output["finish_reason"]) == (want.token_ids, want.reason)
        check_clean(llm)


@ahead_or_not
def test_a_prefix_hit_is_counted_and_changes_nothing(runs_ahead):
    with make_engine(num_kvcache_blocks=40, runs_ahead=runs_ahead) as llm:
        greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        prompt = STARTS[0][:22]
        first, second = (llm.generate(prompt, greedy, use_tqdm=False)[0] for _ in range(2))
        assert (first["num_cached_tokens"], second["num_cached_tokens"]) == (0, 20)
        assert first["token_ids"] == second["token_ids"] == expected(prompt, greedy).token_ids
        turn = prompt + first["token_ids"] + [5, 6]
        third = llm.generate(turn, greedy, use_tqdm=False)[0]
        assert third["num_cached_tokens"] == 24 and third["token_ids"] == expected(turn, greedy).token_ids


@ahead_or_not
def test_a_request_that_outgrows_the_pool_fails_alone(runs_ahead):
    with make_engine(num_kvcache_blocks=6, runs_ahead=runs_ahead) as llm:
        long = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
        short = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
        work = [(STARTS[0][:10], long), (STARTS[1][:6], short), (STARTS[2][:20], long), (STARTS[1][:9], short)]
        outputs = llm.generate([p for p, _ in work], [s for _, s in work], use_tqdm=False)
        for (prompt, params), output in zip(work, outputs, strict=True):
            want = expected(prompt, params, pool=24)
            assert (output["token_ids"], output["finish_reason"]) == (want.token_ids, want.reason)
            assert ("error" in output) == (want.reason == "error")
        assert [output["finish_reason"] for output in outputs] == ["error", "length", "error", "length"]
        check_clean(llm)


@ahead_or_not
def test_no_step_is_wasted(runs_ahead):
    """A request of n tokens takes one prefill and n - 1 decodes; ahead of time at most one more."""
    with make_engine(runs_ahead=runs_ahead) as llm:
        for max_tokens in (1, 2, 3, 5):
            before = llm.fake.num_calls
            llm.generate(STARTS[0][:9], SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True), False)
            assert llm.fake.num_calls - before == max_tokens


def test_generate_beside_other_requests():
    with make_engine(num_kvcache_blocks=60) as llm:
        greedy = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
        brief = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
        early = [llm.add_request(STARTS[i][:12], params) for i, params in enumerate((greedy, brief))]
        llm.step()
        (output,) = llm.generate([STARTS[2][:7]], greedy, use_tqdm=False)
        assert output["token_ids"] == expected(STARTS[2][:7], greedy).token_ids
        results = dict(llm.step()[0])
        while not llm.is_finished():
            results |= dict(llm.step()[0])
        assert results == {
            early[0]: expected(STARTS[0][:12], greedy).token_ids,
            early[1]: expected(STARTS[1][:12], brief).token_ids,
        }
        check_clean(llm)


# Interruptions.


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, told apart from a real one."""


def interrupt_at_line(number):
    files = ("llm.py", "outputs.py", "llm_engine.py", "request.py", "scheduler.py", "block_manager.py", "sequence.py")
    levers = ("step_ahead.py", "expected_length.py")
    return InterruptAtLine(number, Interrupted, files + levers)


def text_of(llm, want):
    token_ids = want.token_ids[:-1] if want.reason == "stop" else want.token_ids
    return llm.tokenizer.decode(token_ids, skip_special_tokens=True)


class Scene:
    """Requests of every kind in the middle of their work: the next step does something of interest."""

    # name -> number of steps before, options
    kinds = {  # noqa: RUF012
        "prefill with sharing and a cut": (0, {"num_kvcache_blocks": 40}),
        "second chunk": (1, {"num_kvcache_blocks": 40}),
        "decode": (3, {"num_kvcache_blocks": 40, "max_num_batched_tokens": 60}),
        "requests end": (4, {"num_kvcache_blocks": 40, "max_num_batched_tokens": 60}),
        "preemption": (2, {"num_kvcache_blocks": 13, "max_num_batched_tokens": 60, "optimistic": True}),
    }

    def __init__(self, llm):
        self.llm = llm
        # A stop string that never comes: the text is kept up to date with every token.
        greedy = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True, logprobs=2, stop="not in the text")
        brief = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        self.wanted = {
            llm.add_request(prompt, params): expected(prompt, params)
            for prompt, params in ((STARTS[0][:16], brief), (STARTS[0][:17], greedy), (STARTS[1][:15], greedy))
        }
        self.requests = {seq_id: llm.llm_engine.requests[seq_id] for seq_id in self.wanted}
        self.stream_wants = expected(STARTS[2][:3], greedy)
        self.stream = llm.stream(STARTS[2][:3], greedy)
        self.text = ""
        self.results = {}

    def step(self):
        self.results |= dict(self.llm.step()[0])

    def finish(self):
        """Everything that was not itself stopped comes to its right end."""
        while True:
            try:
                self.text += next(self.stream)
            except StopIteration as end:
                output = end.value
                break
        assert output["token_ids"] == self.stream_wants.token_ids
        assert self.text == output["text"] == text_of(self.llm, self.stream_wants)
        for _ in range(200):
            if self.llm.is_finished():
                break
            self.step()
        assert self.results == {seq_id: want.token_ids for seq_id, want in self.wanted.items()}
        for seq_id, want in self.wanted.items():
            output = RequestOutput(self.requests[seq_id], self.requests[seq_id].text(self.llm.tokenizer))
            assert output["text"] == text_of(self.llm, want) and output["finish_reason"] == want.reason
            if want.params.logprobs:
                assert all(t in table for t, table in zip(want.token_ids, output["logprobs"], strict=True))
        check_clean(self.llm)


@ahead_or_slowly_not
@pytest.mark.parametrize("kind", Scene.kinds)
def test_a_step_can_be_interrupted_anywhere(kind, runs_ahead):
    """Ctrl-C at any line of a step: nothing is lost, repeated or wrong afterwards."""
    num_steps, options = Scene.kinds[kind]
    with make_engine(runs_ahead=runs_ahead, **options) as llm:
        number, done = 0, False
        while not done:
            number += 1 if number < 20 else 13
            llm.scheduler.reset([])  # an empty cache, so that each round is the same
            scene = Scene(llm)
            for _ in range(num_steps):
                scene.step()
            with interrupt_at_line(number) as interrupt:
                try:
                    llm.llm_engine.step()
                    done = interrupt.lines < number
                except Interrupted:
                    pass
            llm.abort(-1)  # what was interrupted is made good by the next call
            live = [request.seq for request in llm.llm_engine.requests.values()]
            check_block_manager(llm.scheduler.block_manager, live)
            scene.finish()
        assert number > 100


@ahead_or_slowly_not
def test_generate_can_be_interrupted_anywhere(runs_ahead):
    """From the first line to the last: its requests are gone, the others go on, the next call gets its own results."""
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    with make_engine(runs_ahead=runs_ahead, max_num_batched_tokens=60) as llm:
        number, was_interrupted = 0, True
        while was_interrupted:
            number += 13
            prompt = STARTS[0][:9]
            other = llm.add_request(prompt, greedy)
            llm.step()
            with interrupt_at_line(number):
                try:
                    llm.generate([STARTS[1][:20], STARTS[2][:11]], greedy, use_tqdm=False)
                    was_interrupted = False
                except Interrupted:
                    assert llm.llm_engine.requests.keys() <= {other}
                    assert len(llm.scheduler.waiting) + len(llm.scheduler.running) == len(llm.llm_engine.requests)
            (output,) = llm.generate([STARTS[1][:13]], greedy, use_tqdm=False)
            assert output["token_ids"] == expected(STARTS[1][:13], greedy).token_ids
            results = {}
            while not llm.is_finished():
                results |= dict(llm.step()[0])
            assert results == {other: expected(prompt, greedy).token_ids}
            check_clean(llm)
        assert number > 500


# Everything in any order.


class EngineMachine(RuleBasedStateMachine):
    """Requests by `add_request`, streams and `generate`, steps, aborts and failing steps, interleaved."""

    @initialize(options=engine_options, pool=st.integers(20, 150))
    def start(self, options, pool):
        self.llm = make_engine(**with_pool(options, pool))
        self.pool = self.llm.config.num_kvcache_blocks * self.llm.config.kvcache_block_size
        self.wanted = {}  # seq_id -> what `step` must report
        self.streams = []  # [generator, what it must give, text so far]
        self.seen = Counter()

    def take(self, finished):
        for seq_id, token_ids in finished:
            assert token_ids == self.wanted.pop(seq_id).token_ids
            self.seen["reported"] += 1

    @rule(prompt=prompts, params=params_draws)
    def add_request(self, prompt, params):
        if len(prompt) <= self.pool:
            self.wanted[self.llm.add_request(prompt, params)] = expected(prompt, params, pool=self.pool)

    @rule()
    def step(self):
        finished, num_tokens = self.llm.step()
        self.take(finished)
        self.seen["prefill"] += num_tokens > 0
        self.seen["decode"] += num_tokens < 0

    @precondition(lambda self: self.wanted)
    @rule(pick=st.integers(0, 2**16))
    def abort(self, pick):
        seq_id = list(self.wanted)[pick % len(self.wanted)]
        is_live = seq_id in self.llm.llm_engine.requests
        output = self.llm.abort(seq_id)
        assert (output is not None) == is_live, "a request that has ended is reported, not aborted"
        if output is not None:
            want = self.wanted.pop(seq_id)
            assert output["finish_reason"] == "abort" and output.prompt_token_ids == want.prompt
            assert output["token_ids"] == want.token_ids[: len(output["token_ids"])]
            self.seen["aborted"] += 1
        assert self.llm.abort(10**6) is None

    @rule(prompt=prompts, params=params_draws)
    def open_stream(self, prompt, params):
        if len(prompt) <= self.pool and len(self.streams) < 3:
            self.streams.append([self.llm.stream(prompt, params), expected(prompt, params, pool=self.pool), ""])

    @precondition(lambda self: self.streams)
    @rule(pick=st.integers(0, 2**16))
    def advance_stream(self, pick):
        entry = self.streams[pick % len(self.streams)]
        stream, want, text = entry
        full = text_of(self.llm, want)
        try:
            piece = next(stream)
        except StopIteration as end:
            self.streams.remove(entry)
            assert end.value["token_ids"] == want.token_ids and end.value["finish_reason"] == want.reason
            assert text == end.value["text"] == full
            self.seen["streamed"] += 1
            return
        assert piece and full.startswith(text + piece)
        entry[2] = text + piece

    @precondition(lambda self: self.streams)
    @rule(pick=st.integers(0, 2**16))
    def close_stream(self, pick):
        stream, *_ = self.streams.pop(pick % len(self.streams))
        stream.close()

    @rule(work=st.lists(st.tuples(prompts, params_draws), max_size=3))
    def generate(self, work):
        work = [(prompt, params) for prompt, params in work if len(prompt) <= self.pool]
        outputs = self.llm.generate([prompt for prompt, _ in work], [params for _, params in work], use_tqdm=False)
        for output, (prompt, params) in zip(outputs, work, strict=True):
            want = expected(prompt, params, pool=self.pool)
            assert (output["token_ids"], output["finish_reason"]) == (want.token_ids, want.reason)
            assert output.prompt_token_ids == prompt and output["text"] == text_of(self.llm, want)
            self.seen["generated"] += 1

    @rule(in_generate=st.booleans(), error=st.sampled_from([KeyboardInterrupt, RuntimeError, MemoryError]))
    def fail(self, in_generate, error):
        """The model raises, half way: after it has written to the cache."""

        def broken(input_ids, positions):
            self.llm.fake(input_ids, positions)
            raise error("on purpose")

        will_run = in_generate or bool(self.llm.scheduler.waiting or self.llm.scheduler.running)
        self.llm.llm_engine.model_runner.run_model = broken
        try:
            if in_generate:
                self.llm.generate([[1, 2, 3]], SamplingParams(max_tokens=5), use_tqdm=False)
            else:
                self.take(self.llm.step()[0])
        except error:
            self.seen["failed"] += 1
        else:
            assert not will_run or not in_generate
        finally:
            self.llm.llm_engine.model_runner.run_model = self.llm.fake

    @invariant()
    def holds(self):
        llm = self.llm
        llm.abort(-1)  # what was interrupted is made good by the next call
        live = [request.seq for request in llm.llm_engine.requests.values()]
        check_block_manager(llm.scheduler.block_manager, live)
        queued = [*llm.scheduler.running, *llm.scheduler.waiting]
        assert queued == live, "every live request is in one queue, in order of arrival"
        unreported = {seq_id for seq_id, request in llm.added.items() if request.is_finished}
        assert set(self.wanted) <= set(llm.llm_engine.requests) | unreported
        assert len(llm.scheduler.running) <= llm.scheduler.max_num_seqs
        assert llm.is_finished() == (not live and not unreported)

    def teardown(self):
        for _ in range(3000):
            if not self.wanted and not self.streams:
                break
            if self.streams:
                self.advance_stream(pick=0)
            else:
                self.step()
            self.holds()
        check_clean(self.llm)
        self.llm.exit()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=8, stateful_step_count=25)


@ahead_or_not
def test_long_random_walk(runs_ahead):
    """The same rules in one long life of an engine."""
    rng = random.Random(3 + runs_ahead)

    def a_prompt():
        return STARTS[rng.randrange(3)][: rng.randrange(30)] + [rng.randrange(1, 7) for _ in range(rng.randrange(1, 7))]

    def some_params():
        temperature = rng.choice([0.0, 0.8])
        return SamplingParams(
            max_tokens=rng.randrange(1, 15),
            ignore_eos=rng.random() < 0.5,
            temperature=temperature,
            seed=rng.randrange(5),
        )

    machine = EngineMachine()
    machine.start(
        options={
            "kvcache_block_size": 4,
            "max_num_batched_tokens": 24,
            "max_num_seqs": 5,
            "enable_prefix_caching": True,
            "optimistic": True,
            "runs_ahead": runs_ahead,
        },
        pool=64,
    )
    for _ in range(400):
        kind = rng.choices(range(8), [4, 12, 1, 2, 6, 0.5, 0.5, 0.5])[0]
        pick = rng.randrange(2**16)
        if kind == 0 and len(machine.wanted) < 8:
            machine.add_request(prompt=a_prompt(), params=some_params())
        elif kind == 1:
            machine.step()
        elif kind == 2 and machine.wanted:
            machine.abort(pick=pick)
        elif kind == 3:
            machine.open_stream(prompt=a_prompt(), params=some_params())
        elif kind == 4 and machine.streams:
            machine.advance_stream(pick=pick)
        elif kind == 5 and machine.streams:
            machine.close_stream(pick=pick)
        elif kind == 6:
            machine.generate(work=[(a_prompt(), some_params()) for _ in range(rng.randrange(3))])
        elif kind == 7:
            machine.fail(in_generate=pick % 2 == 0, error=KeyboardInterrupt)
        machine.holds()
    assert machine.llm.scheduler.num_preemptions > 5
    machine.teardown()
    things = ("prefill", "decode", "reported", "aborted", "streamed", "generated", "failed")
    assert min(machine.seen[thing] for thing in things) >= 3, machine.seen
