"""A rank that dies, hangs or raises, and everybody who is there when it does: told within seconds, nothing left."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.engine import worker
from nanovllm.engine.worker import Timeouts, WorkerError

from .conftest import device_of_ranks, make_tiny_model
from .faults import OPTIONS, PROMPTS, damage, raise_interrupt, tokens
from .leaks import child_processes, leaves_nothing_behind, private_temp_dir, wait_until
from .misbehave import Fault

TWO_RANKS = OPTIONS | {"tensor_parallel_size": 2, "device": device_of_ranks(2)}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("faults") / "model", seed=7, with_tokenizer=True)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path_factory):
    with private_temp_dir(tmp_path_factory.mktemp("tmp")), leaves_nothing_behind():
        yield


@pytest.fixture(scope="module")
def expected(path):
    with LLM(path, **OPTIONS) as llm:
        return tokens(llm)


# Each test needs ranks of its own, since they do not survive it.


@pytest.fixture
def two_ranks(path):
    llm = LLM(path, **TWO_RANKS)
    yield llm
    llm.exit()


def rank_pids(llm):
    return [process.pid for process in llm.llm_engine.model_runner.ranks.processes]


def plant(llm, fault):
    llm.llm_engine.model_runner.call("__eq__", fault)


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


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, pattern",
    [
        (Fault("raise", 0), "rank 0 raised ValueError.*planted error"),
        (Fault("raise", 1), "rank 1 raised ValueError.*planted error"),
        (Fault("raise"), r"rank [01] raised ValueError.*planted error"),
        (Fault("raise unpicklable", 1), "rank 1 raised RuntimeError.*Unpicklable: 1 and 2"),
        (Fault("out of memory", 1), "rank 1 raised OutOfMemoryError.*CUDA out of memory"),
        (Fault("exit", 0), r"rank 0 died \(exit code 3\)"),
        (Fault("sys.exit", 1), "rank 1 raised SystemExit"),
        (Fault("abort", 1), "rank 1 died .*SIGABRT"),
    ],
    ids=lambda value: "-".join(map(str, value.plan[:2])) if isinstance(value, Fault) else "",
)
def test_a_fault_within_a_step(two_ranks, fault, pattern):
    plant(two_ranks, fault)
    error = assert_fails(two_ranks, pattern, 5)
    if "planted" in pattern:
        assert "in act" in "".join(error.__cause__.__notes__), "the rank's traceback is shown"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["compute", "sleep", "SIGSTOP"])
def test_a_rank_that_never_comes_back_is_given_up_by_its_neighbor(monkeypatch, path, how):
    monkeypatch.setattr(worker, "TIMEOUTS", Timeouts(collective=4.0))
    with LLM(path, **TWO_RANKS) as llm:
        if how == "SIGSTOP":
            os.kill(rank_pids(llm)[1], signal.SIGSTOP)
        else:
            plant(llm, Fault(how, 1))
        # NCCL's watchdog ends its process.
        assert_fails(llm, r"rank 0 (raised RuntimeError.*[Tt]imed out|died .*SIGABRT)", 15)


@pytest.mark.slow
def test_a_step_on_gpus_has_a_limit(path):
    """A rank that waits for a GPU looks busy for ever, and a CUDA graph's collectives have no limit of their own."""
    with LLM(path, **TWO_RANKS) as llm:
        llm.llm_engine.model_runner.step_limit = 2.0
        plant(llm, Fault("compute"))
        assert_fails(llm, r"rank\(s\) \[0, 1\] did not end a step in 2 s", 5)


@pytest.mark.slow
def test_a_start_has_a_limit(monkeypatch, path):
    monkeypatch.setattr(worker, "TIMEOUTS", Timeouts(start=1.0))  # to import torch alone takes longer
    with pytest.raises(WorkerError, match=r"rank\(s\) \[0, 1\] did not start in 1 s"):
        LLM(path, **TWO_RANKS)


@pytest.mark.slow
def test_what_takes_long_on_a_cpu_is_not_taken_for_a_hang(monkeypatch, path, expected):
    """All ranks compute; one computes while its neighbor waits for it."""
    monkeypatch.setattr(worker, "TIMEOUTS", Timeouts(gpu_step=2.0))
    with LLM(path, **TWO_RANKS | {"device": "cpu"}) as llm:
        for fault in (Fault("compute", seconds=5.0), Fault("compute", 0, seconds=5.0)):
            plant(llm, fault)
            assert tokens(llm) == expected


@pytest.mark.slow
def test_ctrl_c_while_a_rank_reads_no_more(path):
    """The message does not fit into its pipe; what waits there does not keep anybody from going on."""
    llm = LLM(path, **TWO_RANKS)
    os.kill(rank_pids(llm)[0], signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), llm:
        llm.llm_engine.model_runner.call("__eq__", list(range(10**6)))
    assert time.monotonic() - start < 5


@pytest.mark.slow
def test_ctrl_c_while_a_step_takes_long_and_exit_right_after(path, expected):
    llm = LLM(path, **TWO_RANKS)
    plant(llm, Fault("compute", seconds=100.0))
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), llm:
        tokens(llm)
    assert time.monotonic() - start < 15  # it would take 100


@pytest.mark.slow
def test_ctrl_c_while_ranks_are_ended(path, monkeypatch):
    """The next `exit` ends what is left."""
    llm = LLM(path, **TWO_RANKS)
    pids = rank_pids(llm)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.exit()
    llm.exit()
    llm.exit()
    assert not any(psutil.pid_exists(pid) for pid in pids)


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
        ("from tests.engine.misbehave import Fault; llm.llm_engine.model_runner.call('__eq__', Fault('sleep')); "
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
def test_a_fork_that_uses_its_parents_engine_is_told_so(tmp_path, path):
    """And disturbs nothing: the parent goes on."""
    body = """
    import multiprocessing
    def use():
        for _ in range(2):
            try:
                llm.generate([1], GREEDY, use_tqdm=False)
            except RuntimeError as error:
                print(error, flush=True)
            llm.exit()
    child = multiprocessing.get_context("fork").Process(target=use)
    child.start(); child.join()
    print(child.exitcode, len(llm.generate([1], GREEDY, use_tqdm=False)[0]["token_ids"]), flush=True)"""
    program = start_program(tmp_path, path, body)
    try:
        pids = read_ranks(program)
        out, errors = program.communicate(timeout=60)
        assert (errors, program.returncode) == ("", 0)
        first, second, last = out.splitlines()
        assert "a fork of the one that made the engine" in first and "stopped" not in first
        assert "closed" in second
        assert last == "0 8"
        assert all_gone(pids, 3)
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
