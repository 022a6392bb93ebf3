"""Measures what an engine holds outside of Python's own memory, to see that nothing of it stays."""

import gc
import os
import re
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

# What Python's multiprocessing and torch call their pieces of shared memory; other programs have some, too.
SHARED = ("psm_", "sem.", "torch_")
IS_KEPT = re.compile("pytest|^torchinductor_")  # the folders of pytest and of torch's compiler


def child_processes():
    """Processes started by this one, but for the helper of Python's multiprocessing, which lives as long as we do."""
    children = psutil.Process().children(recursive=True)
    return {child for child in children if child.is_running() and not is_resource_tracker(child)}


def is_resource_tracker(process):
    try:
        return "multiprocessing.resource_tracker" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def wait_until(condition, seconds):
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def snapshot():
    """Sets of names of what this process holds, or has left on the machine."""
    held = {
        "process": {f"{child.pid} {child.name()} {child.status()}" for child in child_processes()},
        "port": {c.laddr.port for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN},
        "thread": {thread for thread in threading.enumerate() if thread.name.startswith("nanovllm")},
        "shared memory": {path.name for prefix in SHARED for path in Path("/dev/shm").glob(f"{prefix}*")},
        "temp file": {path for path in Path(tempfile.gettempdir()).glob("*") if not IS_KEPT.search(path.name)},
    }
    if os.path.isdir("/proc/self/fd"):
        held["file descriptor"] = {(fd, kind) for fd, kind in file_descriptors()}
    return held


def file_descriptors():
    for fd in os.listdir("/proc/self/fd"):
        try:
            yield int(fd), os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the one of this listing
            continue


def left_behind(before):
    """{kind: what is there now and was not before}, empty if that is nothing."""
    gc.collect()
    now = snapshot()
    extra = {kind: now[kind] - before[kind] for kind in now}
    return {kind: things for kind, things in extra.items() if things}


@contextmanager
def leaves_nothing_behind(seconds=5.0):
    """Fails if anything is left some seconds after the block; kills what is, so that other tests run undisturbed."""
    # What Python's multiprocessing keeps for good, it makes now.
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()
    if torch.cuda.is_available():  # and so does CUDA
        torch.ones(8, 8).pin_memory().cuda().mm(torch.ones(8, 8, device="cuda"))
    before, children = snapshot(), child_processes()
    try:
        yield
        assert wait_until(lambda: not left_behind(before), seconds), left_behind(before)
    finally:
        for child in child_processes() - children:
            child.kill()


@contextmanager
def private_temp_dir(path):
    """Temporary files of this process, and of its children, go to `path`: others' do not count."""
    old, old_env = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = str(path)
    try:
        yield
    finally:
        tempfile.tempdir = old
        os.environ.pop("TMPDIR") if old_env is None else os.environ.update(TMPDIR=old_env)
