"""Tensor parallelism: one process a rank, all doing the same step on their part of the model.

Every rank, the first one included, is a child process, so whatever happens to one (an exception, a kill, a hang in a
collective), the engine's own process can notice, end the others and report. Commands travel through pipes, which take
messages of any size and break when a process dies; there is no shared memory to leak. vLLM's multiprocessing executor
has the same shape (vllm/v1/executor/multiproc_executor.py).
"""

import gc
import math
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

import psutil
import torch
import torch.distributed as dist

from ..config import Config
from ..utils.parallel_state import TensorParallelGroup
from .model_runner import ModelRunner, StepOutput, StepResult
from .sequence import Sequence

LOOPBACK = "127.0.0.1"
CHECK_INTERVAL = 1.0  # while a call runs, its ranks are looked at this often, in seconds
IDLE_SHARE = 0.02  # of the time; background threads wake up now and then, even if nothing is done


@dataclass(frozen=True)
class Timeouts:
    """When ranks are given up, in seconds. A dead process is noticed at once, and a stopped one after two looks.

    On a CPU there is no limit for a step: a long prefill may take minutes, and differs from a hang in that it
    computes. On GPUs no step takes that long, and a rank that waits for a GPU looks as busy as one that computes.

    Args:
        start: until all ranks have loaded their weights.
        idle: a step in which practically no processor time is used for this long will never end.
        collective: a rank that has waited this long for another one inside a collective raises (in a CUDA graph:
            does not).
        gpu_step: until a step on GPUs has ended.
    """

    start: float = 1800.0
    idle: float = 10.0
    collective: float = 120.0
    gpu_step: float = 300.0


TIMEOUTS = Timeouts()


class WorkerError(RuntimeError):
    """A rank raised, died or hung; the engine cannot go on."""


class TensorParallelRunner:
    """Stands in for a `ModelRunner` and has `tensor_parallel_size` of them do the work.

    Args:
        config: of the engine; the ranks get the same. `num_kvcache_blocks` is filled in.

    Raises:
        RuntimeError: called while a child process is importing the main script, i.e. without a `__main__` guard.
        WorkerError: a rank died or hung during its start.
        ValueError, MemoryError: what a rank's `ModelRunner` raised.
    """

    def __init__(self, config: Config) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(MAIN_GUARD_HINT)
        self.size = config.tensor_parallel_size
        self.device = config.device
        self.timeouts = TIMEOUTS
        self.failure: str | None = None
        self._is_started = False
        self._processes: list[BaseProcess] = []
        # The ranks find each other through this store.
        self._store: dist.TCPStore | None = make_store()
        self._exchange = Exchange()
        num_threads = max(1, torch.get_num_threads() // self.size)
        # In a thread, where Ctrl-C does not strike: a process that is half started could not be ended.
        self._starter = Starter(
            (config, self._store.port, self.timeouts, num_threads), self._processes, self._exchange.connections
        )
        self._shut_down = partial(shut_down, self._starter, self._processes, self._exchange, os.getpid())
        self._finalizer = weakref.finalize(self, self._shut_down)
        try:
            self._starter.start()
            self._starter.join()
            if self._starter.error is not None:
                raise self._starter.error
            config.num_kvcache_blocks = self._wait(self._exchange.submit(None))
            self._is_started = True
        except BaseException:
            self.exit()
            raise

    def run(self, seqs: list[Sequence], is_prefill: bool) -> StepResult:
        """Compute one step on all ranks; see `ModelRunner.run`.

        Raises:
            WorkerError: a rank raised, died or hung. All ranks are ended then.
        """
        return self.call("run", seqs, is_prefill)

    def launch(self, seqs: list[Sequence], is_prefill: bool, previous: "RankStep | None" = None) -> "RankStep":
        """Start one step on all ranks, and wait for the one before only; see `ModelRunner.launch`.

        Raises:
            WorkerError: as for `run`.
        """
        result = self.call("launch_ahead", seqs, is_prefill, previous is not None)
        if previous is not None:
            previous.result = result
        return RankStep(self, seqs)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of every rank's `ModelRunner`, and return what rank 0 returned.

        When this is interrupted (Ctrl-C), the ranks finish the call, and the next one waits for them.

        Raises:
            WorkerError: a rank raised, died or hung. All ranks are ended then.
        """
        if self.failure is not None:
            raise WorkerError(f"the engine has stopped: {self.failure}; make a new LLM")
        return self._wait(self._exchange.submit(ForkingPickler.dumps((method, args))))

    def _wait(self, reply: "queue.SimpleQueue[Reply]") -> Any:
        """What rank 0 answers to a call; looks after the ranks until then."""
        health = Health(self._processes, self.device)
        while True:
            try:
                rank, error, value = reply.get(timeout=CHECK_INTERVAL)
            except queue.Empty:
                self._check(health)
                continue
            if error is not None:
                self._fail(rank, error)
            return value

    def _check(self, health: "Health") -> None:
        health.look(self._exchange.pending)
        # Counted in looks and not by a clock, which goes on while this process itself is suspended.
        if health.stopped_rank is not None:
            self._stop(f"rank {health.stopped_rank} has been stopped by a signal (SIGSTOP, SIGTSTP)")
        if self._is_started and health.idle_looks * CHECK_INTERVAL >= self.timeouts.idle:
            self._stop(f"rank(s) {health.idle_ranks} hang: no processor time used for {self.timeouts.idle:g} seconds")
        if self._is_started and self.device == "cuda" and health.looks * CHECK_INTERVAL >= self.timeouts.gpu_step:
            self._stop(f"rank(s) {sorted(self._exchange.pending)} did not end a step in {self.timeouts.gpu_step:g} s")
        if not self._is_started and health.looks * CHECK_INTERVAL >= self.timeouts.start:
            self._stop(f"rank(s) {sorted(self._exchange.pending)} did not start in {self.timeouts.start:g} seconds")

    def _fail(self, rank: int, error: BaseException) -> NoReturn:
        """End all ranks because of one, and raise.

        When a rank dies, its neighbors' collectives fail, too, and their complaint may arrive first; so an
        error that may come from a collective is held back for a moment, to see whether a process has died.
        """
        if isinstance(error, EOFError | RuntimeError):
            wait([process.sentinel for process in self._processes], timeout=1.0)
        for i, process in enumerate(self._processes):
            process.join(timeout=0.1)  # the sentinel closes a moment before the exit code can be read
            if process.exitcode:
                hint = f"; {MAIN_GUARD_HINT}" if process.exitcode == 1 and not self._is_started else ""
                self._stop(f"rank {i} died ({describe_exit_code(process.exitcode)}){hint}", error)
        if not self._is_started and not isinstance(error, EOFError):  # e.g. bad weights: the very exception
            raise error
        self._stop(f"rank {rank} raised {error!r}", error)

    def _stop(self, failure: str, cause: BaseException | None = None) -> NoReturn:
        self.failure = failure
        self.exit()
        cause = None if isinstance(cause, EOFError) else cause  # which would only repeat that a rank is gone
        raise WorkerError(f"{failure}; all ranks were stopped, make a new LLM") from cause

    def exit(self) -> None:
        """End all ranks and drop the pipes and the store. Calling it again finishes what an interrupt has left."""
        if self.failure is None:
            self.failure = "it was closed"
        self._shut_down()
        self._finalizer.detach()
        self._store = None


@dataclass
class RankStep:
    """A step that the ranks have launched. Its result comes with their answer to the launch of the next one.

    Args:
        runner: whose ranks it is.
        seqs: the step's sequences.
        result: what it has sampled, once that is known.
    """

    runner: TensorParallelRunner
    seqs: list[Sequence]
    result: StepResult | None = None

    def wait(self) -> StepResult:
        """What the step has sampled; see `StepOutput.wait`. Raises `WorkerError` as `TensorParallelRunner.run` does."""
        return self.result or self.runner.call("collect")


class RankRunner(ModelRunner):
    """The `ModelRunner` of a rank, which works one step ahead at another process's bidding."""

    step_under_way: StepOutput | None = None

    def launch_ahead(self, seqs: list[Sequence], is_prefill: bool, has_previous: bool) -> StepResult | None:
        """Launch a step, and wait for the one before.

        Args:
            has_previous: whether the step before is still of interest; one that an interrupt has left behind is not.
        """
        previous = self.step_under_way if has_previous else None
        self.step_under_way = self.launch(seqs, is_prefill, previous)
        return None if previous is None else previous.wait()

    def collect(self) -> StepResult:
        """Wait for the step under way, after which nothing is launched for now."""
        assert self.step_under_way is not None
        return self.step_under_way.wait()


MAIN_GUARD_HINT = (
    "with tensor_parallel_size > 1 every rank is a new process that imports the main script, so a script must "
    'create its LLM under `if __name__ == "__main__":`'
)

# The rank that failed, its exception (or None), and what rank 0 returned. An `EOFError`: the rank is gone.
Reply = tuple[int, BaseException | None, Any]


class Starter(threading.Thread):
    """Starts the ranks.

    Args:
        arguments: of `worker_main`, but for the rank and its pipe.
        processes, connections: the ranks and our ends of their pipes, filled in as they come.
    """

    def __init__(self, arguments: tuple[Any, ...], processes: list[BaseProcess], connections: list[Connection]) -> None:
        super().__init__(name="nanovllm-starter", daemon=True)
        self.arguments, self.processes, self.connections = arguments, processes, connections
        self.error: BaseException | None = None

    def run(self) -> None:
        """Body of the thread."""
        try:
            for rank in range(self.arguments[0].tensor_parallel_size):
                self._start_rank(rank)
        except BaseException as error:
            self.error = error

    def _start_rank(self, rank: int) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.connections.append(ours)
        arguments = (*self.arguments, rank, theirs)
        process = context.Process(target=worker_main, args=arguments, name=f"nanovllm-rank-{rank}", daemon=True)
        with interrupts_blocked(), unimportable_main_hidden():
            process.start()
        self.processes.append(process)
        theirs.close()  # the child has its own copy; with ours closed, its death ends the pipe


class Exchange:
    """Sends calls to the ranks and collects their answers, one call after the other, in a thread of its own.

    So a Ctrl-C, which strikes the main thread between any two instructions, cannot leave half a message in a pipe,
    or one rank with a call that the others never get; and a rank that reads no more cannot block the engine.
    """

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.pending: set[int] = set()  # ranks whose answer to the current call has not come yet
        self._calls: queue.SimpleQueue[tuple[bytes | None, queue.SimpleQueue[Reply]] | None] = queue.SimpleQueue()
        # A daemon, because the interpreter must be able to end while a call runs.
        self._thread = threading.Thread(target=self._serve, name="nanovllm-exchange", daemon=True)
        self._thread.start()

    def submit(self, message: Any) -> "queue.SimpleQueue[Reply]":
        """Queue a pickled call, or None to only wait for an answer; returns where the reply will be."""
        reply: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._calls.put((message, reply))
        return reply

    def close(self) -> None:
        """Close the pipes and end the thread; the ranks must have ended."""
        self._calls.put(None)
        if self._thread is not threading.current_thread():  # garbage is collected in any thread
            self._thread.join(timeout=5.0)

    def _serve(self) -> None:
        failure: Reply | None = None
        while call := self._calls.get():
            message, reply = call
            result = failure or self._exchange(message)
            if result[1] is not None:
                failure = result  # of no use any more, and every later call is told why
            reply.put(result)
        for connection in self.connections:
            connection.close()

    def _exchange(self, message: bytes | None) -> Reply:
        self.pending = set(range(len(self.connections)))
        result = None
        if message is not None:
            for rank, connection in enumerate(self.connections):
                try:
                    connection.send_bytes(message)
                except OSError:
                    return rank, EOFError(f"rank {rank} reads no more"), None
        while self.pending:
            ready = wait([self.connections[rank] for rank in self.pending])
            answers = {
                rank: receive(self.connections[rank]) for rank in self.pending if self.connections[rank] in ready
            }
            errors = [(rank, error) for rank, (error, _) in answers.items() if error is not None]
            if errors:  # the neighbors of a rank that raised complain of it, with a RuntimeError
                rank, error = min(errors, key=lambda item: isinstance(item[1], EOFError | RuntimeError))
                return rank, error, None
            self.pending -= answers.keys()
            result = answers[0][1] if 0 in answers else result
        return 0, None, result


def receive(connection: Connection) -> tuple[BaseException | None, Any]:
    """One answer of a rank; an `EOFError` if the rank is gone."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return EOFError("it closed its connection"), None


class Health:
    """What can be seen of the ranks from outside while they should be working.

    Args:
        processes: the ranks.
        device: on a GPU a rank that waits for it, or for its neighbors, spins; on a CPU it sleeps.
    """

    def __init__(self, processes: list[BaseProcess], device: str) -> None:
        self.processes = processes
        self.waiting_ranks_sleep = device != "cuda"
        self.looks = 0
        self.idle_looks = 0  # in a row
        self.idle_ranks: list[int] = []
        self.stopped_rank: int | None = None  # at this look and the one before
        self._stopped: set[int] = set()
        self._cpu_times: dict[int, float] = {}

    def look(self, pending: set[int]) -> None:
        """Look at all ranks; those in `pending` have not answered yet."""
        self.looks += 1
        stopped, cpu_times = set(), {}
        for rank, process in enumerate(self.processes):
            try:
                seen = psutil.Process(process.pid)
                cpu_times[rank] = sum(seen.cpu_times()[:2])
                if seen.status() == psutil.STATUS_STOPPED:
                    stopped.add(rank)
            except psutil.Error:
                continue  # it has ended, and the pipe will say so
        # Two looks, because a whole job that was suspended (Ctrl-Z) does not wake up all at once.
        self.stopped_rank = min(stopped & self._stopped, default=None)
        used = {rank: cpu_times[rank] - self._cpu_times.get(rank, -math.inf) for rank in pending & cpu_times.keys()}
        self.idle_ranks = sorted(rank for rank in used if used[rank] < IDLE_SHARE * CHECK_INTERVAL)
        is_idle = len(self.idle_ranks) == len(pending) if self.waiting_ranks_sleep else bool(self.idle_ranks)
        self.idle_looks = self.idle_looks + 1 if is_idle else 0
        self._stopped, self._cpu_times = stopped, cpu_times


def worker_main(
    config: Config, store_port: int, timeouts: Timeouts, num_threads: int, rank: int, connection: Connection
) -> None:
    """Body of a rank's process: build the runner, then answer calls until the pipe closes.

    Answers are (exception or None, value); the first one comes unasked, and says that the rank is ready.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine's process, which goes on after it
    threading.Thread(target=exit_with_parent, daemon=True).start()
    try:
        torch.set_num_threads(num_threads)
        runner = RankRunner(config, join_group(config, rank, store_port, timeouts))
        gc.freeze()  # a full collection would go through all objects of torch, and let the other ranks wait
        connection.send((None, config.num_kvcache_blocks))
        while True:
            method, args = connection.recv()
            connection.send((None, getattr(runner, method)(*args)))
    except (EOFError, ConnectionError):
        pass  # the engine has gone, or wants this rank to go
    except BaseException as error:
        error.add_note(f"in rank {rank}:\n{traceback.format_exc()}")
        connection.send((as_picklable(error), None))
    finally:
        # Not a clean exit of the process group: a neighbor may be gone, and cleaning up would wait for it.
        os._exit(0)


def exit_with_parent() -> None:
    """Wait for the engine's process to end, however that happens, and end this one."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def join_group(config: Config, rank: int, store_port: int, timeouts: Timeouts) -> TensorParallelGroup:
    """Connect this process to the other ranks."""
    if config.device == "cuda":
        torch.cuda.set_device(rank)
        # Before NCCL's watchdog ends a process, it gives reports on all ranks four times this long to be written.
        os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "250")
    elif sys.platform != "win32":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    size = config.tensor_parallel_size
    dist.init_process_group(
        "nccl" if config.device == "cuda" else "gloo",
        store=dist.TCPStore(LOOPBACK, store_port, is_master=False, use_libuv=False),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeouts.collective),
    )
    return TensorParallelGroup(rank, size, dist.group.WORLD)


def make_store() -> dist.TCPStore:
    """A store on a free port that only this machine can reach; by itself it would listen on every network.

    Without libuv, which not every build of torch has, and which keeps a pipe open after the store has gone.
    """
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=False
    )


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, not even while they import, before they can ignore it themselves."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def unimportable_main_hidden() -> Iterator[None]:
    """Keep a child from importing a main script that is no file, such as "<stdin>"."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or os.path.exists(path):
        yield
        return
    main.__file__ = None
    try:
        yield
    finally:
        main.__file__ = path


def as_picklable(error: BaseException) -> BaseException:
    """The exception, or a `RuntimeError` with its text if the exception does not survive a pipe."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        substitute = RuntimeError(f"{type(error).__name__}: {error}")
        substitute.__notes__ = error.__notes__
        return substitute


def shut_down(starter: Starter, processes: list[BaseProcess], exchange: Exchange, owner: int) -> None:
    """Kill the ranks, which have nothing to save, and close the pipes."""
    if os.getpid() != owner:  # a fork of the engine's process has a copy of everything, and must leave it alone
        return
    if starter.is_alive():
        starter.join()
    for process in processes:
        process.kill()
    while processes:
        process = processes[-1]
        process.join()
        processes.pop()
        process.close()
    exchange.close()


def describe_exit_code(exit_code: int) -> str:
    """ "exit code 1", or the name of the signal that ended a process."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    return f"killed by {name}{', perhaps for lack of memory' if name == 'SIGKILL' else ''}"
