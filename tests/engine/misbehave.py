"""Faults to send to a rank: unpickling one there plants it in that process, and its next step shows it.

Imported by the ranks, so it imports little.
"""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import torch


class Fault:
    """Make the `ModelRunner` of one rank (or of all) do `what` in the next step, after `delay` seconds of work."""

    def __init__(self, what, rank=None, seconds=0.0, file=None):
        self.plan = (what, rank, seconds, file)

    def __reduce__(self):
        return plant, self.plan


class LittleMemory:
    """Stands for `value` in what a rank is sent; unpickled by that rank, it leaves it `num_bytes` of free memory."""

    def __init__(self, value, rank, num_bytes):
        self.plan = (value, rank, num_bytes)

    def __reduce__(self):
        return limit_memory, self.plan


def limit_memory(value, rank, num_bytes):
    if multiprocessing.current_process().name == f"nanovllm-rank-{rank}":
        from nanovllm.engine import kv_cache

        kv_cache.available_memory = lambda: num_bytes
    return value


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def plant(what, rank, seconds, file):
    if rank is not None and multiprocessing.current_process().name != f"nanovllm-rank-{rank}":
        return
    from nanovllm.engine.model_runner import ModelRunner

    launch = ModelRunner.launch

    def faulty_launch(self, *args):
        ModelRunner.launch = launch
        if file is not None:
            Path(file).touch()
        act(what, seconds)
        return launch(self, *args)

    ModelRunner.launch = faulty_launch


def act(what, seconds):
    if what == "raise":
        raise ValueError("the planted error")
    if what == "raise unpicklable":
        raise Unpicklable(1, 2)
    if what == "out of memory":
        raise torch.OutOfMemoryError("CUDA out of memory")
    if what == "exit":
        os._exit(3)
    if what == "sys.exit":
        raise SystemExit(4)
    if what == "abort":
        os.kill(os.getpid(), signal.SIGABRT)
    if what == "sleep":
        time.sleep(seconds or 10_000)
    if what == "compute":
        end = time.monotonic() + (seconds or 10_000)
        while time.monotonic() < end:
            pass
