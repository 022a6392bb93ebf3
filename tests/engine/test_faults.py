"""When something goes wrong, the caller is told within seconds, nothing is left behind, and everything else goes on."""

import contextlib
import copy
import gc
import os
import pickle
import queue
import random
import signal
import sys
import threading
import time
import weakref

import psutil
import pytest
import torch

from nanovllm import LLM, SamplingParams
from nanovllm.engine import model_runner
from nanovllm.engine.trace import TraceRecorder
from nanovllm.progress import ProgressBar
from nanovllm.utils import memory

from .ahead import make_llm, works_ahead
from .conftest import a_tenth, alone_on_the_gpu, in_turn, in_two_sizes, make_tiny_model
from .faults import GREEDY, OPTIONS, PROMPTS, damage, raise_interrupt, tokens
from .interrupts import CallAtLine, InterruptAtLine
from .leaks import leaves_nothing_behind, left_behind, private_temp_dir, snapshot, wait_until
from .reference import assert_clean, drain

WITH_LOGPROBS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=2)
both_ways = pytest.mark.parametrize("runs_ahead", [False, True], ids=["", "ahead"])
# What takes seconds: as engines are by default in the quick suite, the other way in the slow one.
both_ways_slowly = pytest.mark.parametrize(
    "runs_ahead", [pytest.param(False, marks=pytest.mark.slow), True], ids=["", "ahead"]
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("faults") / "model", seed=7, with_tokenizer=True)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path_factory):
    with private_temp_dir(tmp_path_factory.mktemp("tmp")), leaves_nothing_behind():
        yield


def live(llm):
    """Numbers of the requests that the engine still works on."""
    return list(llm.llm_engine.requests)


@pytest.fixture(scope="module")
def expected(path):
    with LLM(path, **OPTIONS) as llm:
        return tokens(llm)


@pytest.fixture(scope="module")
def expected_text(path):
    with LLM(path, **OPTIONS) as llm:
        return "".join(llm.stream(PROMPTS[1], GREEDY))


class Planted(Exception):
    pass


def fail(*args, **kwargs):
    raise Planted


# One process: interrupts and exceptions at any moment.


def interrupt_at(llm, n):
    return InterruptAtLine(n)


def collect_at(llm, n):
    """An abandoned stream is closed at the n-th line, as a garbage collection would do it."""
    abandoned = llm.stream(PROMPTS[0], GREEDY)
    next(abandoned)
    return CallAtLine(n, abandoned.close)


def check_strike_at(llm, n, strike_at, call, expected, expected_text):
    """Strike at the n-th line of `call`, beside a request and a stream that must not notice. False if it has fewer."""
    other = llm.add_request(PROMPTS[1], WITH_LOGPROBS)
    stream = llm.stream(PROMPTS[1], GREEDY)
    text = next(stream)
    request = llm.llm_engine.requests[other]
    strike = strike_at(llm, n)
    with contextlib.suppress(KeyboardInterrupt), strike:
        call(llm)
    note = f"{strike_at.__name__} line {n}, {strike.where}"
    llm.abort(-1)  # what was interrupted is made good by the next call
    assert len(live(llm)) <= 2, f"{note}: what was interrupted goes on"
    assert tokens(llm) == expected, note
    assert text + "".join(stream) == expected_text, note
    assert len(live(llm)) <= 1, f"{note}: {live(llm)}"
    results = drain(llm)
    assert results == {} or results == {other: expected[1]}, note
    assert request.seq.completion_token_ids == expected[1], note
    assert len(request.logprobs) == 8, note
    for token_id, row in zip(expected[1], request.logprobs, strict=True):
        assert row[token_id] == max(row.values()), note
    assert_clean(llm)
    return strike.lines >= n


INTERRUPTIBLE = {
    "generate": lambda llm: llm.generate(PROMPTS, GREEDY, use_tqdm=False),
    "steps": lambda llm: [llm.step() for _ in range(3)],
    "stream": lambda llm: list(llm.stream(PROMPTS[0], GREEDY)),
}


NUM_LINES = {"generate": 4000, "steps": 400, "stream": 2000}  # at least
STRIKES = [interrupt_at, collect_at]


@both_ways_slowly
@pytest.mark.parametrize(
    "call", [pytest.param(call, marks=[pytest.mark.slow] * (call != "generate")) for call in INTERRUPTIBLE]
)
@pytest.mark.parametrize("strike_at", STRIKES)
def test_ctrl_c_and_garbage_at_a_random_line(path, strike_at, call, runs_ahead, expected, expected_text):
    rng = random.Random(call)
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        for _ in range(8):
            n = rng.randrange(1, NUM_LINES[call])
            assert check_strike_at(llm, n, strike_at, INTERRUPTIBLE[call], expected, expected_text)


@pytest.mark.slow
@pytest.mark.timeout(400)
@both_ways
@pytest.mark.parametrize("call", INTERRUPTIBLE)
@pytest.mark.parametrize("strike_at", STRIKES)
def test_ctrl_c_and_garbage_at_every_line(path, strike_at, call, runs_ahead, expected, expected_text):
    """The lines of the first steps, one after the other; what comes later repeats them."""
    turn = 2 * STRIKES.index(strike_at) + runs_ahead
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        for n in in_turn([*range(1, 200), *range(200, 800, 3)], turn, 2 * len(STRIKES)):
            if not check_strike_at(llm, n, strike_at, INTERRUPTIBLE[call], expected, expected_text):
                break


@pytest.mark.slow
@both_ways
def test_ctrl_c_in_abort(path, expected, runs_ahead):
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        n, interrupt = 0, None
        while interrupt is None or interrupt.lines >= n:
            n += 1
            other, aborted = llm.add_request(PROMPTS[1], GREEDY), llm.add_request(PROMPTS[0], GREEDY)
            llm.step()
            llm.step()
            interrupt = InterruptAtLine(n)
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                llm.abort(aborted)
            llm.abort(aborted)
            assert drain(llm) == {other: expected[1]}, interrupt.where
            assert_clean(llm)


@pytest.mark.slow
def test_ctrl_c_in_add_request(path, expected):
    """A request whose number nobody was told does not run, and the engine still comes to an end."""
    with LLM(path, **OPTIONS) as llm:
        n, interrupt = 0, None
        while interrupt is None or interrupt.lines >= n:
            n += 1
            other, added = llm.add_request(PROMPTS[1], GREEDY), None
            interrupt = InterruptAtLine(n)
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                added = llm.add_request(PROMPTS[0], GREEDY)
            results = drain(llm)
            assert results.pop(other) == expected[1], interrupt.where
            assert added is None or results == {added: expected[0]}, interrupt.where
            assert added is not None or results in ({}, {other + 1: expected[0]}), interrupt.where
            assert_clean(llm)


@pytest.mark.slow
def test_ctrl_c_in_exit(path):
    """The next call ends what is left."""
    n, interrupt = 0, None
    while interrupt is None or interrupt.lines >= n:
        n += 1 if n < 10 else 3
        llm = LLM(path, **OPTIONS)
        seq_id, cache = llm.add_request(PROMPTS[0], GREEDY), weakref.ref(llm.llm_engine.model_runner.kv_cache)
        llm.step()
        interrupt = InterruptAtLine(n)
        with contextlib.suppress(KeyboardInterrupt), interrupt:
            llm.exit()
        llm.exit()
        assert cache() is None, interrupt.where
        for call in (llm.step, lambda llm=llm: tokens(llm), lambda llm=llm: list(llm.stream(PROMPTS[0]))):
            with pytest.raises(RuntimeError, match="closed"):
                call()
        assert llm.abort(seq_id) is None


def test_what_a_progress_bar_has_started_survives_an_interrupt(path, expected, monkeypatch):
    started = []

    class Bar(ProgressBar):
        def show(self):
            if not started:
                stream = llm.stream(PROMPTS[1], GREEDY)
                started.extend([llm.add_request(PROMPTS[0], GREEDY), stream, next(stream)])
                raise KeyboardInterrupt

    with LLM(path, **OPTIONS) as llm:
        with monkeypatch.context() as patch:
            patch.setattr("nanovllm.llm.ProgressBar", Bar)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(PROMPTS, GREEDY)
        seq_id, stream, _ = started
        assert len(live(llm)) == 2
        stream.close()
        assert drain(llm) == {seq_id: expected[0]}
        assert_clean(llm)


@both_ways
def test_a_request_that_somebody_else_aborts(path, expected, runs_ahead, monkeypatch):
    """A stream ends, and `generate` returns what there is; neither waits for tokens that never come."""
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        stream = llm.stream(PROMPTS[1], GREEDY)
        next(stream)
        output = llm.abort(live(llm)[0])
        with pytest.raises(StopIteration) as end:
            while True:
                next(stream)
        for aborted in (output, end.value.value):
            assert aborted["finish_reason"] == "abort"
            assert aborted["token_ids"] == expected[1][: len(aborted["token_ids"])]

        class Bar(ProgressBar):
            def show(self):
                llm.abort(live(llm)[-1] if len(live(llm)) == len(PROMPTS) else -1)

        monkeypatch.setattr("nanovllm.llm.ProgressBar", Bar)
        outputs = llm.generate(PROMPTS, GREEDY)
        assert [output["token_ids"] for output in outputs[:-1]] == expected[:-1]
        assert outputs[-1]["finish_reason"] == "abort"
        assert_clean(llm)


def test_an_engine_cannot_be_copied(path, expected):
    with LLM(path, **OPTIONS) as llm:
        for do in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied"):
                do(llm)
        gc.collect()
        assert tokens(llm) == expected


@both_ways_slowly
def test_ctrl_c_twice(path, expected, runs_ahead, monkeypatch):
    """The second one strikes before anything of the first one has been made good."""
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        for steps in range(8):
            ids = [llm.add_request(prompt, GREEDY) for prompt in PROMPTS]
            for _ in range(steps):
                llm.step()
            for owner, name in ((llm.scheduler.block_manager, "hash_blocks"), (llm.scheduler, "reset")):
                with monkeypatch.context() as patch:
                    patch.setattr(owner, name, raise_interrupt)
                    with contextlib.suppress(KeyboardInterrupt):
                        llm.step()
            assert drain(llm) == dict(zip(ids, expected, strict=True))
            assert_clean(llm)


@both_ways_slowly
def test_ctrl_c_while_generate_makes_good_a_ctrl_c(path, expected, runs_ahead, monkeypatch):
    """What it was asked for does not go on, though its own abort was interrupted, too."""
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        for steps in range(1, 8):
            other, schedule, left = llm.add_request(PROMPTS[0], GREEDY), llm.scheduler.schedule, steps

            def schedule_some(schedule=schedule):
                nonlocal left
                left -= 1
                return schedule() if left else raise_interrupt()

            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(llm.scheduler, "schedule", schedule_some)
                patch.setattr(llm.scheduler, "reset", raise_interrupt)
                tokens(llm)
            llm.step()
            assert live(llm) in ([other], [])
            assert drain(llm) in ({other: expected[0]}, {})
            assert_clean(llm)


@both_ways_slowly
@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, MemoryError, StopIteration, RecursionError])
def test_whatever_a_step_raises(path, expected, runs_ahead, error, monkeypatch):
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        other, stream = llm.add_request(PROMPTS[0], GREEDY), llm.stream(PROMPTS[1], GREEDY)
        next(stream)

        def raise_it(*args):
            raise error

        for owner, name in (
            (llm.scheduler, "schedule"),
            (llm.llm_engine.model_runner, "run_model"),
            (llm.llm_engine, "take_in"),
        ):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, raise_it)
                # Python itself makes a RuntimeError of a StopIteration in a generator.
                with pytest.raises(RuntimeError if error is StopIteration else error):
                    tokens(llm)
            assert len(live(llm)) == 2
        stream.close()
        assert drain(llm) == {other: expected[0]}
        assert tokens(llm) == expected
        assert_clean(llm)


@both_ways
def test_what_fails_every_time_does_not_make_an_engine_unusable(path, expected, runs_ahead, monkeypatch):
    """Broken methods of a learner, say: an abort that cannot be obeyed, a request that cannot be queued."""
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        for name in ("finish", "add", "schedule"):
            other = llm.add_request(PROMPTS[0], GREEDY)
            llm.step()
            stream = llm.stream(PROMPTS[1], GREEDY)
            next(stream)
            with monkeypatch.context() as patch:
                patch.setattr(llm.scheduler, name, fail)
                for _ in range(3):
                    with pytest.raises(Planted):
                        tokens(llm)
                with contextlib.suppress(Planted):
                    llm.add_request(PROMPTS[0], GREEDY)
                with contextlib.suppress(Planted):
                    stream.close()
            results = drain(llm)
            assert results.pop(other) == expected[0], name
            assert list(results.values()) in ([], [expected[0]])  # where only the step was broken, it was added
            assert_clean(llm)
            assert tokens(llm) == expected


def test_a_tokenizer_that_fails(path, expected, monkeypatch):
    """Whoever asked for text is told, in the step; all others go on, and so does the engine."""
    stops = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, stop=["nowhere to be found"])
    with LLM(path, **OPTIONS) as llm:
        other = llm.add_request(PROMPTS[0], GREEDY)
        with monkeypatch.context() as patch:
            patch.setattr(type(llm.tokenizer), "decode", fail)
            for _ in range(3):
                with pytest.raises(Planted):
                    tokens(llm, PROMPTS, stops)
                with pytest.raises(Planted):
                    list(llm.stream(PROMPTS[1], GREEDY))
            assert live(llm) == [other]
            assert drain(llm) == {other: expected[0]}
        assert tokens(llm, PROMPTS, stops) == expected
        assert_clean(llm)


@pytest.mark.slow
@both_ways
def test_garbage_with_a_stream_is_collected_in_the_middle_of_a_step(path, expected, runs_ahead, monkeypatch):
    class Reader:
        def __init__(self, llm):
            self.itself, self.stream = self, llm.stream(PROMPTS[0], GREEDY)
            next(self.stream)

    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        may_append = llm.scheduler.block_manager.may_append
        for _ in range(1 if runs_ahead else 3):
            Reader(llm)
            calls = []

            def collect_and_append(seq, calls=calls):
                calls.append(seq)
                if len(calls) <= 3:  # later ones would find nothing any more
                    gc.collect()
                may_append(seq)

            monkeypatch.setattr(llm.scheduler.block_manager, "may_append", collect_and_append)
            assert tokens(llm) == expected
            assert len(calls) > 3
            assert_clean(llm)


def schedule_and(llm, monkeypatch, call):
    """From now on, every step begins with a call from within it."""
    schedule = llm.scheduler.schedule
    monkeypatch.setattr(llm.scheduler, "schedule", lambda: (call(), schedule())[1])


@both_ways_slowly
@pytest.mark.parametrize("call", ["generate", "step", "stream"])
def test_a_step_within_a_step_is_refused(path, expected, runs_ahead, monkeypatch, call):
    errors = []

    def try_to_call():
        try:
            INTERRUPTIBLE["steps" if call == "step" else call](llm)
        except RuntimeError as error:
            errors.append(str(error))

    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        schedule_and(llm, monkeypatch, try_to_call)
        assert tokens(llm) == expected
        assert errors and all("in the middle of a step" in error for error in errors)
        monkeypatch.undo()
        assert_clean(llm)
        assert tokens(llm) == expected


@both_ways
def test_add_and_abort_from_within_a_step_are_obeyed_with_it(path, expected, runs_ahead, monkeypatch):
    added = []

    def add_two_and_abort_one():
        if len(added) < 10:
            added.extend(llm.add_request(prompt, GREEDY) for prompt in PROMPTS[:2])
            assert llm.abort(added[-1]) is None, "it is not known yet"

    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        seq_id = llm.add_request(PROMPTS[0], GREEDY)
        schedule_and(llm, monkeypatch, add_two_and_abort_one)
        llm.step()
        assert live(llm) == [seq_id, added[0]], "with the step"
        results = drain(llm)
        assert len(added) == 10
        assert results == dict.fromkeys([seq_id, *added[::2]], expected[0])
        assert_clean(llm)


@both_ways
def test_exit_in_the_middle_of_a_step_or_in_a_progress_bar(path, runs_ahead, monkeypatch):
    """What is under way is told that the engine has been closed, and nothing is kept."""

    class Bar(ProgressBar):
        def show(self):
            llm.exit()

    for where in ("step", "bar"):
        llm = make_llm(path, runs_ahead, **OPTIONS)
        other, stream = llm.add_request(PROMPTS[0], GREEDY), llm.stream(PROMPTS[1], GREEDY)
        next(stream)
        cache = weakref.ref(llm.llm_engine.model_runner.kv_cache)
        with monkeypatch.context() as patch:
            if where == "step":
                schedule_and(llm, patch, llm.exit)
            else:
                patch.setattr("nanovllm.llm.ProgressBar", Bar)
            with pytest.raises(RuntimeError, match="closed"):
                llm.generate(PROMPTS, GREEDY)
        assert cache() is None, where
        with pytest.raises(RuntimeError, match="closed"):
            list(stream)
        with pytest.raises(RuntimeError, match="closed"):
            llm.step()
        assert llm.abort(other) is None
        llm.exit()


def test_ctrl_c_as_a_signal(path, expected, request):
    # A shell that starts this run in the background has SIGINT ignored, and Python then leaves it so.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, previous))
    with LLM(path, **OPTIONS) as llm:
        interrupted = 0
        for i in range(40):
            timer = threading.Timer(0.0015 * i, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                tokens(llm, PROMPTS * 3)
                timer.join()
                time.sleep(0.01)
            except KeyboardInterrupt:
                interrupted += 1
            timer.join()
            assert_clean(llm)
            assert tokens(llm, PROMPTS[i % 4]) == [expected[i % 4]]
            assert_clean(llm)
        assert interrupted == 40


@contextlib.contextmanager
def alarm_handler(handler):
    previous = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a signal may strike in a finalizer
def test_signals_while_a_progress_bar_is_made_leave_no_lock():
    """The bars of all threads share one."""

    def make_one():
        ProgressBar([], disable=True).close()
        return "made"

    rng = random.Random(1)
    with alarm_handler(signal.default_int_handler):
        for i in range(1000):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 5e-5))
                make_one()
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert in_a_thread(make_one, seconds=10) == "made", i


def stream_and_generate(llm):
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)
    tokens(llm, PROMPTS * 2)
    time.sleep(0.05)


@both_ways_slowly
@in_two_sizes("num_runs", 30, a_tenth(500))
def test_signals_at_any_moment_leave_no_request_no_block_and_no_lock(path, expected, runs_ahead, num_runs):
    with alarm_handler(signal.default_int_handler), make_llm(path, runs_ahead, **OPTIONS) as llm:
        rng = random.Random(1)
        for i in range(num_runs):
            other = llm.add_request(PROMPTS[1], GREEDY)
            # A signal that strikes in a finalizer is swallowed there, as Python does.
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 0.02))
                stream_and_generate(llm)
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert drain(llm) in ({other: expected[1]}, {})
            assert_clean(llm)
            assert in_a_thread(lambda: tokens(llm)) == expected, f"{i}: other threads are let in"


@pytest.mark.slow
@both_ways
def test_abort_in_a_signal_handler(path, expected, runs_ahead):
    """At any moment, also in the middle of a step, and of another abort."""
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        strikes = []

        def handler(*args):
            strikes.append(llm.abort(aborted))
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 0.003))

        rng = random.Random(2)
        with alarm_handler(handler):
            for _ in range(40):
                aborted, other = llm.add_request(PROMPTS[2], GREEDY), llm.add_request(PROMPTS[0], GREEDY)
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 0.01))
                assert tokens(llm) == expected
                assert "".join(llm.stream("a", GREEDY))
                results = drain(llm)
                assert results.pop(other, expected[0]) == expected[0]
                assert results in ({}, {aborted: expected[2]})
                signal.setitimer(signal.ITIMER_REAL, 0)
                llm.abort(aborted)
                assert_clean(llm)
        assert len(strikes) > 40


def test_ctrl_c_during_start(path, expected, monkeypatch):
    loaded = []

    def interrupt(model, *args):
        loaded.append(weakref.ref(model))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model_runner, "load_model", interrupt)
        with pytest.raises(KeyboardInterrupt):
            LLM(path, **OPTIONS)
    gc.collect()
    assert loaded[0]() is None
    with LLM(path, **OPTIONS) as llm:
        assert tokens(llm) == expected


def test_an_exception_in_the_body_of_a_stream(path, expected):
    with LLM(path, **OPTIONS) as llm:
        other = llm.add_request(PROMPTS[0], GREEDY)

        def read():
            for _ in llm.stream(PROMPTS[1], GREEDY):
                raise Planted

        with pytest.raises(Planted):
            read()
        gc.collect()  # the stream is closed when its last reference is gone
        assert live(llm) == [other]
        assert drain(llm) == {other: expected[0]}
        assert tokens(llm) == expected
        assert_clean(llm)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a broken bar cannot be closed
@pytest.mark.parametrize("method", ["__init__", "__enter__", "show", "look", "set_postfix_str", "close", "__exit__"])
def test_an_exception_in_a_progress_bar(path, expected, method, monkeypatch):
    class Bar(ProgressBar):
        pass

    setattr(Bar, method, fail)
    with LLM(path, **OPTIONS) as llm:
        other = llm.add_request(PROMPTS[0], GREEDY)
        monkeypatch.setattr("nanovllm.llm.ProgressBar", Bar)
        with pytest.raises(Planted):
            llm.generate(PROMPTS, GREEDY, use_tqdm=True)
        monkeypatch.undo()
        assert live(llm) in ([], [other])
        results = drain(llm)
        assert results == {other: expected[0]}
        assert tokens(llm) == expected
        assert_clean(llm)


class FailingRecorder(TraceRecorder):
    """Raises at its n-th call, and, if `keeps_failing`, at all after it."""

    def __init__(self, llm, n, keeps_failing):
        super().__init__(llm)
        self.n, self.keeps_failing, self.calls = n, keeps_failing, 0

    def count(self):
        self.calls += 1
        if self.calls == self.n or (self.keeps_failing and self.calls > self.n):
            raise Planted(f"call {self.calls}")

    def event(self, kind, seq, **data):
        self.count()
        super().event(kind, seq, **data)

    def end_step(self, *args):
        if self.trace["steps"]:
            self.count()
        super().end_step(*args)


@pytest.mark.slow
@pytest.mark.parametrize("keeps_failing", [False, True])
def test_an_exception_in_a_trace_recorder(path, expected, keeps_failing):
    with LLM(path, **OPTIONS, disabled_optimizations=("step_ahead",)) as llm:
        for n in range(1, 1000):
            other = llm.add_request(PROMPTS[0], GREEDY)
            llm.step()
            recorder = FailingRecorder(llm, n, keeps_failing)
            with contextlib.suppress(Planted):
                llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            recorder.detach()
            assert live(llm) in ([], [other])
            assert drain(llm) == {other: expected[0]}, n
            assert tokens(llm) == expected, n
            assert_clean(llm)
            if recorder.calls < n:
                break
    assert n > 40, "the last run had fewer calls than that"


@both_ways
def test_an_exception_in_the_model(path, expected, runs_ahead, monkeypatch):
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        run_model = llm.llm_engine.model_runner.run_model
        for n in range(1, 9):
            calls = iter(range(1, 1000))

            def compute_or_fail(*args, n=n, calls=calls):
                return fail() if next(calls) == n else run_model(*args)

            other = llm.add_request(PROMPTS[0], GREEDY)
            with monkeypatch.context() as patch, pytest.raises(Planted):
                patch.setattr(llm.llm_engine.model_runner, "run_model", compute_or_fail)
                llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            assert drain(llm) == {other: expected[0]}
            assert tokens(llm) == expected
            assert_clean(llm)


# Several threads: whoever comes in the middle of a step waits for its end, and all requests are one batch.


def in_a_thread(call, seconds=60):
    """What the call returns in a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert results, "it does not come to an end, or has raised"
    return results[0]


def run_threads(calls, seconds=60):
    """Run all calls, each in a thread of its own; what they raise is raised here."""
    errors = []

    def run(call):
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "one does not come to an end"


@pytest.fixture
def switching_often():
    """Python goes from thread to thread all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@both_ways
def test_a_thread_that_calls_between_the_steps_of_another(path, expected, runs_ahead, monkeypatch):
    results = []

    class Bar(ProgressBar):
        def show(self):
            if not self.disable:
                results.append(in_a_thread(lambda: tokens(llm)))

    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        monkeypatch.setattr("nanovllm.llm.ProgressBar", Bar)
        assert [output["token_ids"] for output in llm.generate(PROMPTS, GREEDY)] == expected
        assert results and results == [expected] * len(results)
        assert in_a_thread(lambda: tokens(llm)) == expected  # one after the other
        assert_clean(llm)


@both_ways
def test_a_thread_that_calls_in_the_middle_of_a_step(path, expected, runs_ahead, monkeypatch):
    """It is served when the step has ended."""
    calls = [lambda: tokens(llm), lambda: drain(llm), lambda: llm.add_request(PROMPTS[0], GREEDY)]
    calls.append(lambda: "".join(llm.stream(PROMPTS[1], GREEDY)))
    results, threads = queue.SimpleQueue(), []

    def start_a_thread():
        if len(threads) < len(calls):
            call = calls[len(threads)]
            threads.append(threading.Thread(target=lambda: results.put(call()), daemon=True))
            threads[-1].start()
            time.sleep(0.02)

    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        schedule_and(llm, monkeypatch, start_a_thread)
        assert tokens(llm) == expected
        for thread in threads:
            thread.join(60)
        assert results.qsize() == len(calls) == len(threads)
        drain(llm)
        assert_clean(llm)


@both_ways_slowly
def test_threads_that_generate_share_the_steps(path, expected, runs_ahead, switching_often):
    """Their requests run as one batch, and each gets its own."""
    batches = []
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        note_start = llm.llm_engine.note_start
        llm.llm_engine.note_start = lambda seqs: (batches.append({seq.seq_id for seq in seqs}), note_start(seqs))[1]
        begin = threading.Barrier(4)

        def work():
            begin.wait()
            for _ in range(10):
                assert tokens(llm) == expected

        run_threads([work] * 4)
        assert_clean(llm)
    assert max(len(batch) for batch in batches) > len(PROMPTS)


@both_ways_slowly
def test_threads_that_stream_add_step_and_abort(path, expected, expected_text, runs_ahead, switching_often):
    stop = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, stop=[expected_text[2:5]])
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        cut = llm.generate([PROMPTS[1]], stop, use_tqdm=False)[0]["text"]
        assert cut == expected_text[: expected_text.index(expected_text[2:5])]
        reported = {}

        def stream():
            for _ in range(8):
                assert "".join(llm.stream(PROMPTS[1], GREEDY)) == expected_text
                assert "".join(llm.stream(PROMPTS[1], stop)) == cut

        def generate():
            for _ in range(8):
                assert tokens(llm) == expected

        def give_up():
            for _ in range(8):
                abandoned = llm.stream(PROMPTS[0], GREEDY)
                next(abandoned)
                del abandoned

        def step():
            for seq_id, token_ids in llm.step()[0]:
                assert seq_id not in reported, "reported twice"
                reported[seq_id] = token_ids

        def add_and_step():
            for _ in range(8):
                ids = [llm.add_request(prompt, GREEDY) for prompt in PROMPTS]
                aborted = llm.add_request(PROMPTS[0], GREEDY)
                step()
                llm.abort(aborted)
                while not all(seq_id in reported for seq_id in ids):
                    step()
                assert [reported[seq_id] for seq_id in ids] == expected

        run_threads([stream, generate, give_up, add_and_step, add_and_step], seconds=100)
        assert_clean(llm)


@both_ways_slowly
@in_two_sizes("num_runs", 30, a_tenth(1000))
def test_streams_closed_in_another_thread(path, expected, runs_ahead, switching_often, num_runs):
    """As its garbage collection would. The next call need not come: no block is held when all is quiet."""
    to_close = queue.SimpleQueue()

    def close_all():
        while stream := to_close.get():
            stream.close()

    def work():
        for _ in range(num_runs):
            streams = [llm.stream(PROMPTS[1], GREEDY) for _ in range(3)]
            for stream in streams:
                next(stream)
                to_close.put(stream)
            assert tokens(llm) == expected
        to_close.put(None)

    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        run_threads([close_all, work], seconds=100)
        assert_clean(llm)


@pytest.mark.slow
def test_a_short_generate_does_not_wait_for_a_long_one(path):
    """A thread gets its turn while another one steps on and on: it makes few steps more than it needs."""
    steps, is_over = [], False
    with LLM(path, **OPTIONS | {"max_model_len": 500, "num_kvcache_blocks": 400}) as llm:
        run_step = llm.llm_engine.run_step
        llm.llm_engine.run_step = lambda: (steps.append(None), time.sleep(0.002), run_step())[2]

        def generate_for_long():
            while not is_over:
                tokens(llm, PROMPTS[:1], SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True))

        def generate_a_little():
            nonlocal is_over
            needed = []
            for _ in range(20):
                before = len(steps)
                tokens(llm, PROMPTS[2:3])
                needed.append(len(steps) - before)
            is_over = True
            assert max(needed) < 60, needed  # 8 tokens; 100 to 257 were seen before threads took turns

        run_threads([generate_for_long, generate_a_little])
        assert_clean(llm)


@both_ways_slowly
def test_exit_while_other_threads_generate_and_stream(path, runs_ahead):
    """Each is told so; none waits for ever."""
    for i in range(3):
        llm = make_llm(path, runs_ahead, **OPTIONS)
        errors = queue.SimpleQueue()

        def work(call, llm=llm, errors=errors):
            try:
                while True:
                    call(llm)
            except RuntimeError as error:
                errors.put(str(error))

        def end(llm=llm, i=i):
            time.sleep(0.01 * i)
            cache = weakref.ref(llm.llm_engine.model_runner.kv_cache)
            llm.exit()
            assert cache() is None

        run_threads([lambda call=call, work=work: work(call) for call in INTERRUPTIBLE.values()] + [end])
        assert errors.qsize() == 3
        while not errors.empty():
            assert "closed" in errors.get()


@both_ways_slowly
def test_exit_while_other_threads_wait_for_their_turn(path, runs_ahead):
    """Whoever asks for something is told; a stream that is closed is just closed."""
    calls = {
        "step": lambda llm, stream: llm.step(),
        "generate": lambda llm, stream: tokens(llm),
        "stream": lambda llm, stream: list(stream),
        "close": lambda llm, stream: stream.close(),
        "abort": lambda llm, stream: llm.abort(0),
    }
    errors = {}
    for name, call in calls.items():
        with make_llm(path, runs_ahead, **OPTIONS) as llm:
            stream = llm.stream(PROMPTS[0], GREEDY)
            next(stream)

            def run(call=call, llm=llm, stream=stream, name=name):
                try:
                    call(llm, stream)
                except Exception as error:
                    errors[name] = str(error)

            thread = threading.Thread(target=run, daemon=True)
            with llm.llm_engine.lock:  # as a thread has it in its step
                thread.start()
                assert wait_until(lambda llm=llm: llm.llm_engine.waiting_threads, 10)
                time.sleep(0.01)
                llm.exit()
            thread.join(30)
            assert not thread.is_alive()
    assert errors.keys() == {"step", "generate", "stream"} and all("closed" in error for error in errors.values())


def test_an_exception_in_the_step_of_another_thread(path, expected, monkeypatch):
    """It is raised where the step was made; the requests of all others are computed again, and right."""
    with LLM(path, **OPTIONS) as llm:
        run_model, raised = llm.llm_engine.model_runner.run_model, []

        def compute_or_fail(*args):
            if threading.current_thread().name == "unlucky":
                raise Planted
            return run_model(*args)

        def be_unlucky():
            threading.current_thread().name = "unlucky"
            while len(raised) < 30:
                try:
                    tokens(llm)
                except Planted as error:
                    raised.append(error)

        def work():
            while len(raised) < 30:
                assert tokens(llm) == expected

        monkeypatch.setattr(llm.llm_engine.model_runner, "run_model", compute_or_fail)
        run_threads([be_unlucky, work, work])
        assert_clean(llm)


# One process: a GPU without memory for a step.


class LittleMemory:
    """Lets a runner raise, as a GPU does, in steps that are too large.

    Args:
        num_tokens: most tokens of a prefill.
        num_seqs: most sequences of a decode.
    """

    def __init__(self, llm, num_tokens=10**6, num_seqs=10**6):
        self.limits = {True: num_tokens, False: num_seqs}
        runner = llm.llm_engine.model_runner
        self.name = "launch_after" if works_ahead(llm) else "run"
        self.runner, self.method = runner, getattr(runner, self.name)
        self.steps = []  # (is_prefill, tokens, whether it was done)

    def __call__(self, *args):
        seqs, is_prefill = args[-2:]
        size = sum(seq.num_scheduled_tokens for seq in seqs)
        self.steps.append((is_prefill, size, size <= self.limits[is_prefill]))
        if size > self.limits[is_prefill]:
            raise torch.OutOfMemoryError(f"CUDA out of memory for {size} tokens")
        return self.method(*args)

    def __enter__(self):
        setattr(self.runner, self.name, self)
        return self

    def __exit__(self, *exc_info):
        delattr(self.runner, self.name)


LONG = [[(7 * i + j) % 300 + 1 for i in range(14)] for j in range(6)]


@pytest.fixture(scope="module")
def expected_long(path):
    with LLM(path, **OPTIONS) as llm:
        return tokens(llm, LONG)


@both_ways_slowly
@pytest.mark.parametrize("limits", [{"num_tokens": 8}, {"num_seqs": 2}, {"num_tokens": 9, "num_seqs": 3}], ids=str)
def test_a_step_without_memory_is_tried_again_half_as_large(path, expected_long, runs_ahead, limits):
    """Everything gets its right tokens, and after a failure no step is larger than half of what failed."""
    with make_llm(path, runs_ahead, **OPTIONS) as llm, LittleMemory(llm, **limits) as gpu:
        outputs = llm.generate(LONG, WITH_LOGPROBS, use_tqdm=False)
        assert [output["token_ids"] for output in outputs] == expected_long
        assert {output["finish_reason"] for output in outputs} == {"length"}
        assert all(len(output["logprobs"]) == 8 for output in outputs)
        failed = [i for i, (_, _, is_done) in enumerate(gpu.steps) if not is_done]
        assert failed, "nothing was tested"
        for i in failed:
            assert max(size for _, size, _ in gpu.steps[i + 1 :]) <= max(1, gpu.steps[i][1] // 2)
        assert_clean(llm)


@both_ways
def test_requests_whose_step_fails_twice_end_with_an_error(path, expected_long, runs_ahead):
    """They say why; all others go on, with the right tokens."""
    with make_llm(path, runs_ahead, **OPTIONS) as llm, LittleMemory(llm, num_tokens=6):
        seq_id = llm.add_request(PROMPTS[2], GREEDY)
        outputs = llm.generate(LONG, GREEDY, use_tqdm=False)
        ended = [output for output in outputs if output["finish_reason"] == "error"]
        assert 0 < len(ended) < len(LONG)
        for output, token_ids in zip(outputs, expected_long, strict=True):
            if output["finish_reason"] == "error":
                assert "out of GPU memory" in output["error"] and "CUDA out of memory for" in output["error"]
                assert output["token_ids"] == token_ids[: len(output["token_ids"])]
                assert output.outputs[0].finish_reason == "error"
            else:
                assert output["token_ids"] == token_ids and "error" not in output
        assert list(drain(llm)) in ([], [seq_id])
        assert_clean(llm)


@both_ways
def test_a_request_that_runs_does_not_pay_for_a_large_newcomer(path, expected, expected_long, runs_ahead):
    with make_llm(path, runs_ahead, **OPTIONS) as llm, LittleMemory(llm, num_tokens=6):
        running = llm.add_request(PROMPTS[1], GREEDY)
        while llm.llm_engine.requests[running].num_final < 3:
            llm.step()
        outputs = llm.generate([LONG[0], LONG[1][:5]], GREEDY, use_tqdm=False)
        assert outputs[0]["finish_reason"] == "error" and outputs[1]["finish_reason"] == "length"
        assert drain(llm) in ({running: expected[1]}, {})
        assert_clean(llm)


@both_ways
def test_no_memory_for_any_step(path, expected, runs_ahead):
    """Everything that is asked for ends with an error, and the engine is as good as new when there is memory again."""
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        with LittleMemory(llm, num_tokens=0):
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            assert all(output["finish_reason"] == "error" and not output["token_ids"] for output in outputs)
            stream = llm.stream(PROMPTS[1], GREEDY)
            with pytest.raises(StopIteration) as end:
                next(stream)
            assert end.value.value["finish_reason"] == "error"
            seq_id = llm.add_request(PROMPTS[0], GREEDY)
            assert drain(llm) == {seq_id: []}
        assert_clean(llm)
        assert tokens(llm) == expected


@both_ways_slowly
def test_a_decode_without_memory(path, expected, runs_ahead):
    """A decode that fails is followed by steps that compute its tokens anew, none of them larger than half of it."""
    with make_llm(path, runs_ahead, **OPTIONS) as llm, LittleMemory(llm, num_seqs=0) as gpu:
        assert tokens(llm) == expected
        first = next(i for i, (is_prefill, _, _) in enumerate(gpu.steps) if not is_prefill)
        assert max(size for _, size, _ in gpu.steps[first + 1 :]) <= len(PROMPTS) // 2
        assert_clean(llm)


@both_ways
def test_an_idle_engine_has_its_whole_budget_again(path, expected_long, runs_ahead):
    with make_llm(path, runs_ahead, enable_prefix_caching=False, **OPTIONS) as llm:
        with LittleMemory(llm, num_tokens=8, num_seqs=3):
            assert tokens(llm, LONG) == expected_long
            assert llm.scheduler.max_num_batched_tokens <= 8 and llm.scheduler.max_num_seqs <= 8
        with LittleMemory(llm) as gpu:
            assert tokens(llm, LONG) == expected_long
        assert max(size for is_prefill, size, _ in gpu.steps if is_prefill) == OPTIONS["max_num_batched_tokens"]
        assert max(size for is_prefill, size, _ in gpu.steps if not is_prefill) == len(LONG)


@pytest.mark.slow
@both_ways
def test_ctrl_c_while_a_lack_of_memory_is_made_good(path, expected, runs_ahead):
    """At every line of it, beside a request that must not notice."""
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        (large,) = tokens(llm, [PROMPTS[0] * 4])
        n, interrupt = 0, None
        while interrupt is None or interrupt.lines >= n:
            n += 3
            other = llm.add_request(PROMPTS[1], GREEDY)
            while llm.llm_engine.requests[other].num_final < 2:
                llm.step()
            with LittleMemory(llm, num_tokens=4), contextlib.suppress(KeyboardInterrupt):
                ids = [llm.add_request(prompt, GREEDY) for prompt in (PROMPTS[0] * 4, PROMPTS[2])]
                with InterruptAtLine(n, files={"llm_engine.py", "request.py", "scheduler.py"}) as interrupt:
                    llm.step()
            results = drain(llm)
            assert results.pop(other) == expected[1], interrupt.where
            assert results.get(ids[0], []) in ([], large), interrupt.where  # after an early one, there is memory
            assert results.get(ids[1], expected[2]) == expected[2], interrupt.where
            assert_clean(llm)
        assert n > 60


@both_ways
def test_a_failed_step_is_let_go_before_the_next_try(path, runs_ahead, monkeypatch):
    """What it had computed takes the very memory that was missing."""
    kept, alive = [], []
    with make_llm(path, runs_ahead, **OPTIONS) as llm:
        run_model = llm.llm_engine.model_runner.run_model

        def compute(input_ids, positions):
            alive.append([tensor() is not None for tensor in kept])
            activations = torch.ones(10)
            kept.append(weakref.ref(activations))
            if len(kept) == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return run_model(input_ids, positions)

        monkeypatch.setattr(llm.llm_engine.model_runner, "run_model", compute)
        tokens(llm)
    assert alive[1] == [False]


# One process: starts, ends and bad files.


def test_two_engines_at_once(path, expected):
    with LLM(path, **OPTIONS) as first:
        ids = [first.add_request(prompt, GREEDY) for prompt in PROMPTS]
        first.step()
        with LLM(path, **(OPTIONS | {"kvcache_block_size": 7, "max_num_batched_tokens": 3})) as second:
            assert tokens(second) == expected
            first.step()
            assert tokens(second) == expected
        results = drain(first)
    assert [results[seq_id] for seq_id in ids] == expected


@pytest.mark.slow
def test_engines_come_and_go_without_growth(path, expected):
    def use(is_closed):
        llm = LLM(path, **(OPTIONS | {"num_kvcache_blocks": 4000}))  # a cache of 8 MB
        if is_closed:
            assert tokens(llm) == expected
            llm.exit()
            llm.exit()
        # Otherwise nobody closes it, and it is garbage from here on.

    for i in range(5):
        use(i % 2)
    gc.collect()
    before, memory = snapshot(), psutil.Process().memory_info().rss
    for i in range(20):
        use(i % 2)
    gc.collect()
    growth = psutil.Process().memory_info().rss - memory
    print(f"20 engines: {growth / 1e6:.1f} MB more memory")
    assert not left_behind(before)
    assert growth < 16e6, "less than two of the twenty caches"


def test_exit_frees_the_cache_at_once_and_garbage_does_too(path):
    for is_closed in (True, False):
        llm = LLM(path, **OPTIONS)
        tokens(llm)
        cache, model = weakref.ref(llm.llm_engine.model_runner.kv_cache), weakref.ref(llm.llm_engine.model_runner.model)
        if is_closed:
            llm.exit()
        else:
            del llm
        assert cache() is None and model() is None, "closed" if is_closed else "garbage"


def test_a_request_in_flight_does_not_keep_an_engine_alive(path):
    llm = LLM(path, **OPTIONS)
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)
    llm.exit()
    with pytest.raises(RuntimeError, match="closed"):
        next(stream)
    engine = weakref.ref(llm)
    del llm, stream
    gc.collect()
    assert engine() is None


DAMAGES = ["empty", "half a length", "half a header", "half the data", "one byte short", "one byte more"]
DAMAGES += ["huge header", "no JSON", "other dtype"]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file(tmp_path, how):
    path = make_tiny_model(tmp_path / "model")
    damage(path, how)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        LLM(path, **OPTIONS)


def test_a_read_only_model_directory(tmp_path, expected):
    path = make_tiny_model(tmp_path / "model", seed=7, with_tokenizer=True)
    before = {file.name: file.stat().st_mtime_ns for file in path.iterdir()}
    path.chmod(0o555)
    try:
        with LLM(path, **OPTIONS) as llm:
            assert tokens(llm) == expected
            assert llm.generate("text", GREEDY, use_tqdm=False)[0]["text"]
    finally:
        path.chmod(0o755)
    assert {file.name: file.stat().st_mtime_ns for file in path.iterdir()} == before


ON_CPU = OPTIONS | {"device": "cpu"}  # whose memory these tests are about
BLOCK_BYTES = 2 * 2 * 4 * 2 * 16 * 4  # keys and values, layers, block size, heads, head_dim, float32


@pytest.mark.parametrize("times_of_memory", [1.02, 2, 1000, 10**7])
def test_a_cache_that_does_not_fit_into_memory(path, times_of_memory):
    """Said at once; the system would promise a little more than it has, and then kill the process."""
    num_blocks = int(times_of_memory * psutil.virtual_memory().total) // BLOCK_BYTES
    start = time.monotonic()
    with pytest.raises(MemoryError, match=r"GB.*lower num_kvcache_blocks"):
        LLM(path, **(ON_CPU | {"num_kvcache_blocks": num_blocks}))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("free_blocks, gets", [(3, None), (4, 1), (43, 10), (4000, 16)])
def test_a_cache_in_a_container(path, monkeypatch, tmp_path, free_blocks, gets):
    """A quarter of what the container's limit leaves, however much memory the machine has."""
    used = 10**9
    (tmp_path / "memory.max").write_text(f"{used - 5000 + free_blocks * BLOCK_BYTES}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "memory.stat").write_text("anon 123\nfile 5000\nkernel 17\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    options = ON_CPU | {"num_kvcache_blocks": -1, "max_num_seqs": 1}
    if gets is None:
        with pytest.raises(MemoryError, match=r"KV cache.*free the device"):
            LLM(path, **options)
    else:
        with LLM(path, **options) as llm:
            assert llm.config.num_kvcache_blocks == gets
    if free_blocks < 100:
        with pytest.raises(MemoryError, match=r"lower num_kvcache_blocks"):
            LLM(path, **(ON_CPU | {"num_kvcache_blocks": free_blocks + 1}))


def test_no_memory_for_a_single_block(path, monkeypatch):
    class NoMemory:
        available = 1000

    monkeypatch.setattr(psutil, "virtual_memory", NoMemory)
    with pytest.raises(MemoryError, match=r"KV cache.*(lower|free)"):
        LLM(path, **(ON_CPU | {"num_kvcache_blocks": -1}))


@pytest.mark.gpu
@pytest.mark.slow
@alone_on_the_gpu
@pytest.mark.parametrize("is_closed", [True, False])
def test_gpu_memory_comes_back(path, is_closed):
    def used():
        free, total = torch.cuda.mem_get_info()
        return total - free

    for i in range(4):
        llm = LLM(path, device="cuda", gpu_memory_utilization=0.3, max_model_len=64)
        tokens(llm)
        if is_closed:
            llm.exit()
        del llm
        gc.collect()
        if i == 0:
            before = used()
    assert used() - before < 50e6
