"""Your answers to chapter 17, performance optimization.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: a1d2a742e1af
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
import torch
import torch.nn.functional as F
from nanovllm.utils.swap import swap
from exercises.kit.labs import Kernels


# --- ch17.bytes_moved
def bytes_moved(kernels: Kernels, sizes: Mapping[str, int], outputs: Collection[str]) -> int:
    """Bytes that cross a GPU's memory while kernels run one after the other.

    A kernel does one operation, or several that were fused.

    - It reads each tensor that its operations use and that it does not make itself: once, however
      many of them use it. What an earlier kernel has read is read again.
    - What it makes stays inside it, and costs nothing, unless somebody else wants it: a later
      kernel uses it, or it is one of `outputs`. Then it is written, once.

    Args:
        kernels: in the order in which they run; each is a list of operations, in their order. An
            operation is a pair: the names of the tensors that it uses, and the name of the one
            that it makes. No name is made twice.
        sizes: bytes of each tensor, by name.
        outputs: names of made tensors that are needed after the last kernel.

    Returns:
        the bytes that are read and written, an `int`.
    """
    raise NotImplementedError("ch17.bytes_moved")


# --- ch17.end_of_step
def end_of_step(launches: Sequence[float], kernels: Sequence[float]) -> float:
    """Seconds from the beginning of a step until its last kernel is done.

    The CPU launches the kernels one after the other, without waiting for them: each call takes it
    some time, and when it returns the kernel is in the GPU's queue. The GPU runs one kernel at a
    time, in this order. A kernel begins at once when it is in the queue and the one before it is
    done.

    Args:
        launches: seconds of the CPU for each call, a list or a tuple; it stays as it is.
        kernels: seconds of the GPU for each kernel; as many, and likewise.

    Returns:
        seconds. A step without kernels takes 0.
    """
    raise NotImplementedError("ch17.end_of_step")


# --- ch17.my_lever
def my_lever(model: torch.nn.Module, sampler: torch.nn.Module) -> None:
    """Make a plain engine faster from outside, without a line of it changed.

    The goal: in `exercises.kit.lever_work`, 32 short questions at once on one core of a CPU, the
    engine with the lever is at least 1.1 times as fast as the one without. What counts is the
    median of seven runs, each beside one of the plain engine; what is timed is computing.

    The seam is that of all levers: it is called once, with the modules of a loaded engine, and
    gives some of them another `forward` or other methods; `swap` is there for that, and `F`, which
    is `torch.nn.functional`. Nothing else of the engine is touched.

    With any requests, every answer has the very same greedy tokens as without it, and the same
    log-probabilities up to rounding: with shared blocks, with prompts in pieces, with tables in
    any order, alone and in a crowd.

    Args:
        model: a `nanovllm.models.qwen3.Qwen3ForCausalLM`, with all its layers.
        sampler: a `nanovllm.layers.sampler.Sampler`.
    """
    raise NotImplementedError("ch17.my_lever")
