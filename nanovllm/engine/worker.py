"""Tensor parallelism: one process a rank, all doing the same step on their part of the model.

Every rank, the first one included, is a child process, so whatever happens to one (an exception, a
kill, a hang in a collective), the engine's own process can notice, end the others and report.
Commands travel through pipes, which take messages of any size and break when a process dies; there
is no shared memory to leak. vLLM's multiprocessing executor has the same shape
(vllm/v1/executor/multiproc_executor.py).
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.distributed as dist

from ..config import Config
from ..utils.parallel_state import TensorParallelGroup
from .sequence import Sequence
from .step_output import StepResult

LOOPBACK = "127.0.0.1"
MAIN_GUARD_HINT = (
    "with tensor_parallel_size > 1 every rank is a new process that imports the main script, so a "
    'script must create its LLM under `if __name__ == "__main__":`'
)


@dataclass(frozen=True)
class Timeouts:
    """When ranks that are alive are given up, in seconds.

    Args:
        start: until all ranks have loaded their weights.
        collective: a rank that has waited this long for another one inside a collective raises (in
            a CUDA graph: does not).
        gpu_step: until a step on GPUs has ended. On a CPU there is no such limit: a long prefill
            may take minutes.
    """

    start: float = 1800.0
    collective: float = 120.0
    gpu_step: float = 300.0


TIMEOUTS = Timeouts()


class WorkerError(RuntimeError):
    """A rank raised, died or hung; the engine cannot go on."""


def start_runner(config: Config, make_runner: Callable[..., Any]) -> Any:
    """The runner of this process, or, for several ranks, one that has them do the work."""
    if config.tensor_parallel_size == 1:
        return make_runner(config)
    return TensorParallelRunner(config, make_runner)


class TensorParallelRunner:
    """Stands in for a `ModelRunner` and has `tensor_parallel_size` of them do the work.

    Args:
        config: of the engine; the ranks get the same. `num_kvcache_blocks` is filled in.
        make_runner: makes a rank's runner of the config and the rank's group; must be picklable.

    Raises:
        RuntimeError: called while a child process is importing the main script, i.e. without a
            `__main__` guard.
        WorkerError: a rank died or hung during its start.
        ValueError, MemoryError: what a rank's `ModelRunner` raised.
    """

    def __init__(self, config: Config, make_runner: Callable[..., Any]) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(MAIN_GUARD_HINT)
        self.step_limit = TIMEOUTS.gpu_step if config.device == "cuda" else math.inf
        self.ranks = Ranks(config, make_runner)
        weakref.finalize(self, self.ranks.end)
        try:
            self.ranks.start()
            config.num_kvcache_blocks = self.ranks.call(None, TIMEOUTS.start)
        except BaseException:
            self.exit()
            raise

    def run(self, seqs: list[Sequence], is_prefill: bool) -> StepResult:
        """Compute one step on all ranks; see `ModelRunner.run`.

        Raises:
            WorkerError: a rank raised, died or hung. All ranks are ended then.
        """
        return self.call("run", seqs, is_prefill)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of every rank's `ModelRunner`, and return what rank 0 returned.

        When this is interrupted (Ctrl-C), the ranks finish the call, and the next one waits for
        them.

        Raises:
            WorkerError: a rank raised, died or hung. All ranks are ended then.
        """
        return self.ranks.call(ForkingPickler.dumps((method, args)), self.step_limit)

    def exit(self) -> None:
        """End all ranks, and drop the pipes and the store."""
        self.ranks.end()


class Ranks(threading.Thread):
    """Starts the ranks, sends calls to them and collects their answers, one call after the other.

    In a thread of its own, because Ctrl-C strikes the main thread, and between any two
    instructions: here it cannot leave a process half started, half a message in a pipe, or one
    rank with a call that the others never get. And a rank that reads no more cannot block the
    engine.
    """

    def __init__(self, config: Config, make_runner: Callable[..., Any]) -> None:
        # A daemon, because the interpreter must be able to end while a call runs.
        super().__init__(name="nanovllm-ranks", daemon=True)
        self.size = config.tensor_parallel_size
        self.store: dist.TCPStore | None = make_store()  # through which the ranks find each other
        num_threads = max(1, torch.get_num_threads() // self.size)
        self.arguments = (config, make_runner, self.store.port, TIMEOUTS, num_threads)
        self.owner = os.getpid()
        self.processes: list[BaseProcess] = []
        self.connections: list[Connection] = []  # our ends of the pipes
        self.calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self.pending: set[int] = set()  # ranks whose answer to the current call has not come yet
        self.is_started = self.is_ending = False
        self.failure: BaseException | None = None  # every call from then on is told why

    # From the engine's threads.

    def call(self, message: Any, limit: float) -> Any:
        """Have all ranks do a pickled call, and return rank 0's answer.

        Args:
            message: None waits for the answer that says that the ranks have started.
            limit: in seconds.
        """
        if os.getpid() != self.owner:
            raise WorkerError(
                "this process is a fork of the one that made the engine, and the ranks work for "
                "that one alone; make a new LLM here"
            )
        if self.is_ending:
            raise WorkerError(f"the engine has stopped: {self.failure or 'it was closed'}")
        reply: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self.calls.put((message, reply))
        seconds = 0  # not read from a clock, which goes on while this process itself is suspended
        while seconds < limit:
            try:
                value, failure = reply.get(timeout=1.0)
            except queue.Empty:
                seconds += 1
                continue
            if failure is not None:
                raise failure.with_traceback(None)
            return value
        what = "end a step" if self.is_started else "start"
        self.failure = stopped(f"rank(s) {sorted(self.pending)} did not {what} in {limit:g} s")
        self.end()
        raise self.failure

    def end(self) -> None:
        """Kill the ranks, which have nothing to save. If it is interrupted, call it again."""
        if os.getpid() != self.owner:  # a fork, which has a copy of everything
            return
        self.is_ending = True
        self.calls.put(None)
        for process in list(self.processes):
            process.kill()
        if self.is_alive() and self is not threading.current_thread():  # garbage ends in any
            self.join()
        self.store = None

    # In this thread.

    def run(self) -> None:
        """Start the ranks, and serve until the end."""
        self.attempt(self.start_ranks)
        while call := self.calls.get():
            message, reply = call
            reply.put((self.attempt(self.exchange, message), self.failure))
        self.reap()

    def attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function, unless one has failed before: then no rank is left."""
        if self.failure is None:
            try:
                return function(*args)
            except BaseException as error:
                self.failure = self.failure or error  # who gave the ranks up has said why
                self.reap()
        return None

    def start_ranks(self) -> None:
        """Start a process for each rank."""
        context = multiprocessing.get_context("spawn")
        for rank in range(self.size):
            if self.is_ending:
                break
            ours, theirs = context.Pipe()
            self.connections.append(ours)
            arguments = (*self.arguments, rank, theirs)
            name = f"nanovllm-rank-{rank}"
            process = context.Process(target=worker_main, args=arguments, name=name, daemon=True)
            with interrupts_blocked(), unimportable_main_hidden():
                process.start()
            self.processes.append(process)
            theirs.close()  # the child has its own copy; with ours closed, its death ends the pipe

    def exchange(self, message: Any) -> Any:
        """Send a call to all ranks, wait for all answers, and return rank 0's."""
        self.pending = set(range(self.size))
        for rank, connection in enumerate(self.connections if message is not None else ()):
            try:
                connection.send_bytes(message)
            except OSError:
                raise self.diagnose({rank: EOFError("it reads no more")}) from None
        value = None
        while self.pending:
            ready = wait([self.connections[rank] for rank in self.pending])
            ranks = [rank for rank in self.pending if self.connections[rank] in ready]
            answers = {rank: receive(self.connections[rank]) for rank in ranks}
            errors = {rank: error for rank, (error, _) in answers.items() if error is not None}
            if errors:
                raise self.diagnose(errors)
            self.pending -= answers.keys()
            value = answers[0][1] if 0 in answers else value
        self.is_started = True
        return value

    def diagnose(self, errors: dict[int, BaseException]) -> BaseException:
        """What to tell the caller when these ranks have raised or are gone.

        When a rank dies or raises, its neighbors' collectives fail, too, and their complaint may
        arrive first. So an error that may come from a collective is held back for a moment, to see
        whether a process has died.
        """
        rank = min(errors, key=lambda rank: isinstance(errors[rank], MAY_BE_A_COMPLAINT))
        error = errors[rank]
        if isinstance(error, MAY_BE_A_COMPLAINT):
            wait([process.sentinel for process in self.processes], timeout=1.0)
        for i, process in enumerate(self.processes):
            process.join(timeout=0.1)  # the sentinel ends a moment before the exit code is there
            if process.exitcode:
                is_unguarded = process.exitcode == 1 and not self.is_started
                hint = f"; {MAIN_GUARD_HINT}" if is_unguarded else ""
                return stopped(f"rank {i} died ({describe_exit_code(process.exitcode)}){hint}")
        if not self.is_started and not isinstance(error, EOFError):
            return error  # e.g. bad weights: the very exception
        failure = stopped(f"rank {rank} raised {error!r}")
        failure.__cause__ = error
        return failure

    def reap(self) -> None:
        """End the processes and close the pipes."""
        for process in self.processes:
            process.kill()
            process.join()
        self.processes.clear()
        for connection in self.connections:
            connection.close()
        self.connections.clear()


# What a collective raises when a neighbor is gone, and what we make of a pipe that has ended.
MAY_BE_A_COMPLAINT = (RuntimeError, EOFError)
# What rank 0 returned, and why the ranks were ended, if they were.
Reply = tuple[Any, BaseException | None]
# A pickled method with its arguments, and where the reply is waited for.
Call = tuple[Any, "queue.SimpleQueue[Reply]"]


def stopped(reason: str) -> WorkerError:
    """The error that says so."""
    return WorkerError(f"{reason}; all ranks were stopped, make a new LLM")


def receive(connection: Connection) -> tuple[BaseException | None, Any]:
    """One answer of a rank: an exception, or None and a value."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return EOFError("it closed its connection"), None


def worker_main(
    config: Config,
    make_runner: Callable[..., Any],
    store_port: int,
    timeouts: Timeouts,
    num_threads: int,
    rank: int,
    connection: Connection,
) -> None:
    """Body of a rank's process: build the runner, then answer calls until the pipe closes.

    Answers are (exception or None, value); the first one comes unasked, and says that the rank is
    ready.
    """
    # Ctrl-C is for the engine's process, which goes on after it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, daemon=True).start()
    try:
        torch.set_num_threads(num_threads)
        runner = make_runner(config, join_group(config, rank, store_port, timeouts))
        gc.freeze()  # a full collection goes through all of torch's objects while others wait
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
        # No clean exit of the process group: it would wait for a neighbor that may be gone.
        os._exit(0)


def exit_with_parent() -> None:
    """Wait for the engine's process to end, however that happens, and end this one."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def join_group(
    config: Config, rank: int, store_port: int, timeouts: Timeouts
) -> TensorParallelGroup:
    """Connect this process to the other ranks."""
    if config.device == "cuda":
        torch.cuda.set_device(rank)
        # Before NCCL's watchdog ends a process, it gives reports on all ranks four times this long
        # to be written.
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
    """A store on a free port that only this machine can reach.

    By itself it would listen on every network. Without libuv, which not every build of torch has,
    and which keeps a pipe open after the store has gone.
    """
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    return dist.TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        use_libuv=False,
    )


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes that are started in this block are out of Ctrl-C's reach.

    A rank ignores it by itself, too, but only when it has imported all it needs.
    """
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


def describe_exit_code(exit_code: int) -> str:
    """ "exit code 1", or the name of the signal that ended a process."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    return f"killed by {name}{', perhaps for lack of memory' if name == 'SIGKILL' else ''}"
