"""When something goes wrong, the caller is told within seconds, nothing is left behind, and everything else goes on."""

import contextlib
import copy
import gc
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import weakref
from functools import partial
from multiprocessing.process import BaseProcess

import psutil
import pytest
import torch

from nanovllm import LLM, SamplingParams
from nanovllm.engine import llm_engine, model_runner, worker
from nanovllm.engine.trace import TraceRecorder
from nanovllm.engine.worker import Timeouts, WorkerError
from nanovllm.utils import memory

from .conftest import alone_on_the_gpu, device_of_ranks, make_tiny_model
from .interrupts import CallAtLine, InterruptAtLine
from .leaks import child_processes, leaves_nothing_behind, left_behind, private_temp_dir, snapshot, wait_until
from .misbehave import Fault
from .reference import assert_clean, drain

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
WITH_LOGPROBS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=2)
PROMPTS = [[5, 6, 7], [5, 6, 7, 8, 9, 10], [300, 301], [5]]
OPTIONS = {"kvcache_block_size": 4, "num_kvcache_blocks": 40, "max_num_batched_tokens": 16, "max_model_len": 64}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("faults") / "model", seed=7, with_tokenizer=True)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path_factory):
    with private_temp_dir(tmp_path_factory.mktemp("tmp")), leaves_nothing_behind():
        yield


def tokens(llm, prompts=PROMPTS, params=GREEDY):
    return [output["token_ids"] for output in llm.generate(prompts, params, use_tqdm=False)]


@pytest.fixture(scope="module")
def expected(path):
    with LLM(path, **OPTIONS) as llm:
        return tokens(llm)


@pytest.fixture(scope="module")
def expected_text(path):
    with LLM(path, **OPTIONS) as llm:
        return "".join(llm.stream(PROMPTS[1], GREEDY))


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
    request = llm.requests[other]
    strike = strike_at(llm, n)
    with contextlib.suppress(KeyboardInterrupt), strike:
        call(llm)
    note = f"{strike_at.__name__} line {n}, {strike.where}"
    assert len(llm.requests) <= 2, f"{note}: what was interrupted goes on"
    assert tokens(llm) == expected, note
    assert text + "".join(stream) == expected_text, note
    assert len(llm.requests) <= 1, f"{note}: {llm.requests}"
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


STRIKES = [interrupt_at, collect_at]


@pytest.mark.parametrize("call", INTERRUPTIBLE)
@pytest.mark.parametrize("strike_at", STRIKES)
def test_ctrl_c_and_garbage_at_a_random_line(path, strike_at, call, expected, expected_text):
    rng = random.Random(call)
    with LLM(path, **OPTIONS) as llm:
        for _ in range(30):
            n = rng.randrange(1, 400)
            assert check_strike_at(llm, n, strike_at, INTERRUPTIBLE[call], expected, expected_text)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("call", INTERRUPTIBLE)
@pytest.mark.parametrize("strike_at", STRIKES)
def test_ctrl_c_and_garbage_at_every_line(path, strike_at, call, expected, expected_text):
    """The lines of the first steps, one after the other; what comes later repeats them."""
    with LLM(path, **OPTIONS) as llm:
        for n in [*range(1, 120), *range(120, 600, 3)]:
            if not check_strike_at(llm, n, strike_at, INTERRUPTIBLE[call], expected, expected_text):
                break


def test_ctrl_c_in_abort(path, expected):
    with LLM(path, **OPTIONS) as llm:
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


def test_what_a_progress_bar_has_started_survives_an_interrupt(path, expected, monkeypatch):
    started = []

    class Bar(llm_engine.tqdm):
        def update(self, *args):
            if not started:
                stream = llm.stream(PROMPTS[1], GREEDY)
                started.extend([llm.add_request(PROMPTS[0], GREEDY), stream, next(stream)])
                raise KeyboardInterrupt

    with LLM(path, **OPTIONS) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(llm_engine, "tqdm", Bar)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(PROMPTS, GREEDY)
        seq_id, stream, _ = started
        assert len(llm.requests) == 2
        stream.close()
        assert drain(llm) == {seq_id: expected[0]}
        assert_clean(llm)


def test_a_stream_whose_request_is_gone_says_so(path):
    with LLM(path, **OPTIONS) as llm:
        stream = llm.stream(PROMPTS[1], GREEDY)
        next(stream)
        llm.requests.clear()
        llm._rewind()
        with pytest.raises(RuntimeError, match="request is gone"):
            list(stream)


def test_a_thread_that_calls_between_the_steps_of_another(path, expected, monkeypatch):
    errors = []

    class Bar(llm_engine.tqdm):
        def update(self, *args):
            thread = threading.Thread(target=call)
            thread.start()
            thread.join()

    def call():
        try:
            llm.generate(PROMPTS, GREEDY)
        except RuntimeError as error:
            errors.append(str(error))

    with LLM(path, **OPTIONS) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(llm_engine, "tqdm", Bar)
            assert [output["token_ids"] for output in llm.generate(PROMPTS, GREEDY)] == expected
        assert len(errors) > 5 and all("another thread" in error for error in errors)
        results = []
        thread = threading.Thread(target=lambda: results.append(tokens(llm)))  # one after the other is fine
        thread.start()
        thread.join()
        assert results == [expected]
        assert_clean(llm)


@pytest.mark.parametrize("do", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_engine_cannot_be_copied(path, expected, do):
    with LLM(path, **OPTIONS) as llm:
        with pytest.raises(TypeError, match="cannot be copied"):
            do(llm)
        gc.collect()
        assert tokens(llm) == expected


def test_ctrl_c_twice(path, expected, monkeypatch):
    """The second one strikes before anything of the first one has been made good."""
    with LLM(path, **OPTIONS) as llm:
        for steps in range(8):
            ids = [llm.add_request(prompt, GREEDY) for prompt in PROMPTS]
            for _ in range(steps):
                llm.step()
            with monkeypatch.context() as patch:
                patch.setattr(llm.scheduler.block_manager, "hash_blocks", lambda *args: (_ for _ in ()).throw(Planted))
                patch.setattr(llm, "_rewind", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
                with contextlib.suppress(KeyboardInterrupt):
                    llm.step()
            assert drain(llm) == dict(zip(ids, expected, strict=True))
            assert_clean(llm)


def test_garbage_with_a_stream_is_collected_in_the_middle_of_a_step(path, expected, monkeypatch):
    class Reader:
        def __init__(self, llm):
            self.itself, self.stream = self, llm.stream(PROMPTS[0], GREEDY)
            next(self.stream)

    with LLM(path, **OPTIONS) as llm:
        may_append = llm.scheduler.block_manager.may_append
        monkeypatch.setattr(llm.scheduler.block_manager, "may_append", lambda seq: [gc.collect(), may_append(seq)])
        for _ in range(3):
            Reader(llm)
            assert tokens(llm) == expected
            assert_clean(llm)


@pytest.mark.parametrize(
    "call",
    [
        tokens,
        lambda llm: llm.step(),
        lambda llm: llm.add_request(PROMPTS[0]),
        lambda llm: list(llm.stream(PROMPTS[0])),
    ],
    ids=["generate", "step", "add_request", "stream"],
)
@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_call_in_the_middle_of_a_step(path, expected, monkeypatch, call, in_a_thread):
    errors = []

    def try_to_call():
        try:
            call(llm)
        except RuntimeError as error:
            errors.append(str(error))

    with LLM(path, **OPTIONS) as llm:
        schedule = llm.scheduler.schedule

        def scheduling():
            if in_a_thread:
                thread = threading.Thread(target=try_to_call)
                thread.start()
                thread.join()
            else:
                try_to_call()
            return schedule()

        monkeypatch.setattr(llm.scheduler, "schedule", scheduling)
        assert tokens(llm) == expected
        message = "another thread is using" if in_a_thread else "in the middle of a step"
        assert errors and all(message in error for error in errors)
        monkeypatch.undo()
        assert_clean(llm)
        assert tokens(llm) == expected


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


class Planted(Exception):
    pass


def test_an_exception_in_the_body_of_a_stream(path, expected):
    with LLM(path, **OPTIONS) as llm:
        other = llm.add_request(PROMPTS[0], GREEDY)

        def read():
            for _ in llm.stream(PROMPTS[1], GREEDY):
                raise Planted

        with pytest.raises(Planted):
            read()
        gc.collect()  # the stream is closed when its last reference is gone
        assert list(llm.requests) == [other]
        assert drain(llm) == {other: expected[0]}
        assert tokens(llm) == expected
        assert_clean(llm)


@pytest.mark.parametrize("method", ["__init__", "__enter__", "update", "set_postfix", "__exit__"])
def test_an_exception_in_a_progress_bar(path, expected, method, monkeypatch):
    class Bar(llm_engine.tqdm):
        pass

    def fail(*args, **kwargs):
        raise Planted

    setattr(Bar, method, fail)
    with LLM(path, **OPTIONS) as llm:
        other = llm.add_request(PROMPTS[0], GREEDY)
        monkeypatch.setattr(llm_engine, "tqdm", Bar)
        with pytest.raises(Planted):
            llm.generate(PROMPTS, GREEDY, use_tqdm=True)
        monkeypatch.undo()
        assert list(llm.requests) in ([], [other])
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


@pytest.mark.parametrize("keeps_failing", [False, True])
def test_an_exception_in_a_trace_recorder(path, expected, keeps_failing):
    with LLM(path, **OPTIONS) as llm:
        for n in range(1, 1000):
            other = llm.add_request(PROMPTS[0], GREEDY)
            llm.step()
            recorder = FailingRecorder(llm, n, keeps_failing)
            with contextlib.suppress(Planted):
                llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            recorder.detach()
            assert list(llm.requests) in ([], [other])
            assert drain(llm) == {other: expected[0]}, n
            assert tokens(llm) == expected, n
            assert_clean(llm)
            if recorder.calls < n:
                break
    assert n > 40, "the last run had fewer calls than that"


def test_an_exception_in_the_model(path, expected, monkeypatch):
    with LLM(path, **OPTIONS) as llm:
        computes = {name: getattr(llm.model_runner, name) for name in ("run_model", "replay_cudagraph")}
        for n in range(1, 9):
            calls = iter(range(1, 1000))

            def fail(name, *args, n=n, calls=calls):
                if next(calls) == n:
                    raise Planted
                return computes[name](*args)

            other = llm.add_request(PROMPTS[0], GREEDY)
            with monkeypatch.context() as patch, pytest.raises(Planted):
                for name in computes:
                    patch.setattr(llm.model_runner, name, partial(fail, name))
                llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            assert drain(llm) == {other: expected[0]}
            assert tokens(llm) == expected
            assert_clean(llm)


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
        cache, model = weakref.ref(llm.model_runner.kv_cache), weakref.ref(llm.model_runner.model)
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


def damage(path, how):
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    size = {"empty": 0, "half a length": 4, "half a header": 100, "half the data": len(data) // 2}
    size |= {"one byte short": len(data) - 1}
    if how in size:
        del data[size[how] :]
    elif how == "one byte more":
        data.append(0)
    elif how == "huge header":
        data[:8] = (2**63 - 1).to_bytes(8, "little")
    elif how == "no JSON":
        data[8:12] = b"\xff\xfe\x00["
    elif how == "other dtype":
        header = int.from_bytes(data[:8], "little")
        data[8 : 8 + header] = data[8 : 8 + header].replace(b'"F32"', b'"Q32"')
    file.write_bytes(data)


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


# Several processes. Each test needs ranks of its own, since they do not survive it.

TWO_RANKS = OPTIONS | {"tensor_parallel_size": 2, "device": device_of_ranks(2)}


@pytest.fixture
def two_ranks(path):
    llm = LLM(path, **TWO_RANKS)
    yield llm
    llm.exit()


@pytest.fixture
def short_timeouts(monkeypatch):
    monkeypatch.setattr(worker, "TIMEOUTS", Timeouts(start=60.0, idle=3.0, collective=60.0))


def rank_pids(llm):
    return [process.pid for process in llm.model_runner._processes]


def plant(llm, fault):
    llm.model_runner.call("__eq__", fault)


def assert_fails(llm, pattern, seconds, call=tokens):
    """The call raises in time, all ranks are gone, and later calls say the same."""
    pids, start = rank_pids(llm), time.monotonic()
    with pytest.raises(WorkerError, match=pattern) as caught:
        call(llm)
    needed = time.monotonic() - start
    print(f"{needed:.2f} s: {caught.value}")
    assert needed < seconds, f"{needed:.1f} s: {caught.value}"
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(WorkerError, match=pattern):
        tokens(llm)
    llm.exit()
    with pytest.raises(RuntimeError, match="closed"):
        tokens(llm)
    return caught.value


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_is_killed_between_calls(path, two_ranks, expected, rank):
    with LLM(path, **OPTIONS) as other:
        assert tokens(two_ranks) == expected
        os.kill(rank_pids(two_ranks)[rank], signal.SIGKILL)
        assert_fails(two_ranks, rf"rank {rank} died \(killed by SIGKILL", 15)
        assert tokens(other) == expected


@pytest.mark.slow
@pytest.mark.parametrize("rank, delay", [(0, 0.05), (1, 0.1)])
def test_a_rank_is_killed_within_a_call(two_ranks, rank, delay):
    threading.Timer(delay, os.kill, (rank_pids(two_ranks)[rank], signal.SIGKILL)).start()
    long = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    assert_fails(
        two_ranks, rf"rank {rank} died \(killed by SIGKILL", 5, lambda llm: tokens(llm, PROMPTS[3:] * 200, long)
    )


def test_a_rank_is_stopped(two_ranks):
    os.kill(rank_pids(two_ranks)[1], signal.SIGSTOP)
    assert_fails(two_ranks, "rank 1 has been stopped", 15)


@pytest.mark.slow
def test_a_rank_is_stopped_and_the_message_does_not_fit_into_the_pipe(two_ranks):
    os.kill(rank_pids(two_ranks)[0], signal.SIGSTOP)
    big = list(range(10**6))
    assert_fails(two_ranks, "rank 0 has been stopped", 15, lambda llm: llm.model_runner.call("__eq__", big))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, pattern, seconds",
    [
        (Fault("raise", 0), "rank 0 raised ValueError.*planted error", 15),
        (Fault("raise", 1), "rank 1 raised ValueError.*planted error", 15),
        (Fault("raise"), r"rank [01] raised ValueError.*planted error", 15),
        (Fault("raise unpicklable", 1), "rank 1 raised RuntimeError.*Unpicklable: 1 and 2", 15),
        (Fault("exit", 0), r"rank 0 died \(exit code 3\)", 15),
        (Fault("sys.exit", 1), "rank 1 raised SystemExit", 15),
        (Fault("abort", 1), "rank 1 died .*SIGABRT", 15),
        (Fault("sleep", 1), r"rank\(s\) \[(0, )?1\] hang", 15),  # on GPUs, rank 0 has launched its part and answered
        (Fault("sleep"), r"rank\(s\) \[0, 1\] hang", 15),
    ],
    ids=lambda value: "-".join(map(str, value.plan[:2])) if isinstance(value, Fault) else "",
)
def test_a_fault_within_a_step(short_timeouts, two_ranks, fault, pattern, seconds):
    plant(two_ranks, fault)
    error = assert_fails(two_ranks, pattern, seconds)
    if "planted" in pattern:
        assert "in act" in "".join(error.__cause__.__notes__), "the rank's traceback is shown"


@pytest.mark.slow
def test_a_rank_that_computes_without_end_is_given_up_by_its_neighbor(monkeypatch, path):
    monkeypatch.setattr(worker, "TIMEOUTS", Timeouts(collective=4.0))
    with LLM(path, **TWO_RANKS) as llm:
        plant(llm, Fault("compute", 1))
        # NCCL's watchdog ends its process.
        assert_fails(llm, r"rank 0 (raised RuntimeError.*[Tt]imed out|died .*SIGABRT)", 15)


def test_a_step_on_gpus_has_a_limit(monkeypatch, path):
    """A rank that waits for a GPU looks busy for ever, and a CUDA graph's collectives have no limit of their own."""
    monkeypatch.setattr(worker, "TIMEOUTS", Timeouts(gpu_step=2.0))
    with LLM(path, **TWO_RANKS) as llm:
        llm.model_runner.device = "cuda"
        plant(llm, Fault("compute"))
        assert_fails(llm, "did not end a step in 2 s", 15)


@pytest.mark.slow
def test_what_takes_long_is_not_taken_for_a_hang(monkeypatch, path, expected):
    """Longer than a hang may last: all ranks compute; one computes while its neighbor waits for it."""
    monkeypatch.setattr(worker, "TIMEOUTS", Timeouts(idle=2.0))
    with LLM(path, **TWO_RANKS) as llm:
        for fault in (Fault("compute", seconds=5.0), Fault("compute", 0, seconds=5.0)):
            plant(llm, fault)
            assert tokens(llm) == expected


@pytest.mark.slow
def test_ctrl_c_while_a_step_takes_long_and_exit_right_after(path, expected):
    llm = LLM(path, **TWO_RANKS)
    plant(llm, Fault("compute", seconds=100.0))
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), llm:
        tokens(llm)
    assert time.monotonic() - start < 15  # it would take 100


def test_ctrl_c_while_ranks_are_ended(path, monkeypatch):
    """The next `exit` ends what is left."""
    llm = LLM(path, **TWO_RANKS)
    with monkeypatch.context() as patch:
        patch.setattr(BaseProcess, "join", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            llm.exit()
    llm.exit()
    llm.exit()
    assert not llm.model_runner._processes and not llm.model_runner._exchange._thread.is_alive()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_engines_with_ranks_come_and_go(path, expected):
    """Closed; broken by a kill; never closed; interrupted while starting. Each leaves the process as it was."""
    with LLM(path, **TWO_RANKS) as llm:
        assert tokens(llm) == expected
    del llm
    with leaves_nothing_behind():
        llm = LLM(path, **TWO_RANKS)
        os.kill(rank_pids(llm)[1], signal.SIGKILL)
        assert_fails(llm, "SIGKILL", 15)
        del llm
    with leaves_nothing_behind(seconds=10):
        others = child_processes()  # such as the one that an earlier test of the course's checks has left to fork from
        llm = LLM(path, **TWO_RANKS)
        assert tokens(llm) == expected
        assert len(child_processes() - others) == 2
        del llm
        assert wait_until(lambda: not child_processes() - others, 10)
    for seconds in (0.02, 0.3, 1.5):
        with leaves_nothing_behind(seconds=10):
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                LLM(path, **TWO_RANKS)
                time.sleep(10)
    with leaves_nothing_behind(), LLM(path, **TWO_RANKS) as llm:
        assert tokens(llm) == expected


@pytest.mark.slow
@pytest.mark.parametrize("how", ["half the data", "no JSON"])
def test_a_damaged_file_with_ranks(tmp_path, how):
    path = make_tiny_model(tmp_path / "model")
    damage(path, how)
    messages = []
    for size in (1, 2):
        with pytest.raises(ValueError) as caught:
            LLM(path, **(TWO_RANKS | {"tensor_parallel_size": size}))
        messages.append(str(caught.value))
        assert type(caught.value) is ValueError
    assert messages[0] == messages[1]
    assert "in rank" in caught.value.__notes__[0]


@pytest.mark.slow
def test_a_cache_that_does_not_fit_into_memory_with_ranks(path):
    with pytest.raises(MemoryError, match="num_kvcache_blocks"):
        LLM(path, **(TWO_RANKS | {"num_kvcache_blocks": 10**12}))


PROGRAM = """
import os, signal, sys, threading, time
import psutil
from nanovllm import LLM, SamplingParams

def main(path):
    GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    print("started", flush=True)
    options = dict(tensor_parallel_size=2, kvcache_block_size=4, num_kvcache_blocks=40, max_model_len=64)
    options["device"] = "{device}"
    llm = LLM(path, **options)
    children = psutil.Process().children()
    ranks = [child.pid for child in children if "resource_tracker" not in " ".join(child.cmdline())]
    print("ranks", *ranks, flush=True)
    {body}

if __name__ == "__main__":
    main(sys.argv[1])
"""


def start_program(tmp_path, path, body):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM.replace("{body}", body).replace("{device}", TWO_RANKS["device"]))
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(file), str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,  # a process group of its own, as a shell makes for a job
    )


def read_ranks(program):
    assert program.stdout.readline() == "started\n", program.communicate(timeout=60)
    pids = [int(pid) for pid in program.stdout.readline().split()[1:]]
    assert len(pids) == 2
    return pids


def all_gone(pids, seconds):
    return wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body, how",
    [
        ("time.sleep(1000)", signal.SIGKILL),
        ("time.sleep(1000)", signal.SIGTERM),
        ("from tests.engine.misbehave import Fault; llm.model_runner.call('__eq__', Fault('sleep')); "
         "print('hanging', flush=True); llm.generate([1], GREEDY)", signal.SIGKILL),
    ],
    ids=["SIGKILL", "SIGTERM", "SIGKILL while the ranks hang"],
)  # fmt: skip
def test_the_ranks_end_when_their_parent_dies(tmp_path, path, body, how):
    program = start_program(tmp_path, path, body)
    try:
        pids = read_ranks(program)
        if "hanging" in body:
            assert program.stdout.readline() == "hanging\n"
            time.sleep(0.5)
        program.send_signal(how)
        program.wait(timeout=10)
        assert all_gone(pids, 3), "ranks outlive their parent"
    finally:
        program.kill()
        program.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    "body, code",
    [
        ("print(llm.generate([1], GREEDY, use_tqdm=False)[0]['token_ids'])", 0),
        ("global kept; kept = llm; raise SystemError('planted')", 1),
        ("global kept; kept = llm; import multiprocessing\n"
         "    child = multiprocessing.get_context('fork').Process(target=print, args=('child',))\n"
         "    child.start(); child.join()\n"
         "    llm.generate([1], GREEDY, use_tqdm=False)\n    sys.exit(5)", 5),
        ("llm.exit(); out = []\n"
         "    make = lambda: out.append(LLM(path, **options))\n"
         "    thread = threading.Thread(target=make); thread.start(); thread.join()\n"
         "    out[0].generate([1], GREEDY, use_tqdm=False)", 0),
    ],
    ids=["end", "exception", "fork and sys.exit", "made in a thread"],
)  # fmt: skip
def test_the_interpreter_ends_with_an_engine_open(tmp_path, path, body, code):
    program = start_program(tmp_path, path, body)
    try:
        pids = read_ranks(program)
        _, errors = program.communicate(timeout=60)
        assert program.returncode == code, errors
        assert all_gone(pids, 3)
        allowed = "SystemError: planted" if "planted" in body else ""
        assert (allowed in errors and errors.count("Traceback") == 1) if allowed else errors == "", errors
    finally:
        program.kill()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at once", "imports", "generate"])
def test_ctrl_c_in_a_terminal(tmp_path, path, when):
    """The terminal signals all processes of the job. Only ours raises; the ranks neither die nor complain."""
    body = """
    try:
        print("generating", flush=True)
        llm.generate([[i] for i in range(1, 300)], SamplingParams(max_tokens=60), use_tqdm=False)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    print("tokens", len(llm.generate([1], GREEDY, use_tqdm=False)[0]["token_ids"]), flush=True)
    llm.exit()"""
    program = start_program(tmp_path, path, body)
    try:
        if when == "generate":
            pids = read_ranks(program)
            assert program.stdout.readline() == "generating\n"
            time.sleep(0.3)
            os.killpg(program.pid, signal.SIGINT)
            out, errors = program.communicate(timeout=60)
            assert (out, errors, program.returncode) == ("interrupted\ntokens 8\n", "", 0)
            assert all_gone(pids, 3)
        else:
            assert program.stdout.readline() == "started\n"
            group = psutil.Process(program.pid)
            count = 2 if when == "at once" else 3
            assert wait_until(lambda: len(group.children()) >= count, 30)
            time.sleep(0 if when == "at once" else 0.7)
            pids = [child.pid for child in group.children()]
            os.killpg(program.pid, signal.SIGINT)
            _, errors = program.communicate(timeout=30)
            assert program.returncode in (1, 130, -signal.SIGINT)
            assert errors.count("Traceback") == 1 and errors.rstrip().endswith("KeyboardInterrupt"), errors
            assert all_gone(pids, 3)
    finally:
        program.kill()


@pytest.mark.slow
def test_ranks_do_not_die_of_ctrl_c_even_while_they_import(tmp_path, path):
    """A notebook's kernel may catch the interrupt of its process group and go on with the start."""
    program = start_program(tmp_path, path, "print(len(llm.generate([1], GREEDY, use_tqdm=False)), flush=True)")
    try:
        assert program.stdout.readline() == "started\n"
        parent = psutil.Process(program.pid)
        signaled = set()
        while program.poll() is None and len(signaled) < 3:
            signaled |= {child.pid for child in parent.children()}
            time.sleep(0.01)
        for _ in range(60):
            for pid in signaled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
            time.sleep(0.05)
        out, errors = program.communicate(timeout=60)
        assert (program.returncode, errors) == (0, "") and out.endswith("\n1\n")
    finally:
        program.kill()


@pytest.mark.slow
def test_ctrl_z_in_a_terminal(tmp_path, path):
    """A job that is suspended, for longer than a hang may last, goes on when it is continued."""
    body = """
    print("generating", flush=True)
    out = llm.generate([[i] for i in range(1, 30)], SamplingParams(max_tokens=60, ignore_eos=True), use_tqdm=False)
    print("tokens", sum(len(o["token_ids"]) for o in out), flush=True)"""
    program = start_program(tmp_path, path, body)
    try:
        pids = read_ranks(program)
        assert program.stdout.readline() == "generating\n"
        time.sleep(0.3)
        os.killpg(program.pid, signal.SIGSTOP)
        time.sleep(12)
        os.killpg(program.pid, signal.SIGCONT)
        out, errors = program.communicate(timeout=60)
        assert (out, errors, program.returncode) == (f"tokens {29 * 60}\n", "", 0)
        assert all_gone(pids, 3)
    finally:
        program.kill()


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
