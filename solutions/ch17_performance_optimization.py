"""Our answers to chapter 17, performance optimization, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
import torch
import torch.nn.functional as F
from torch import Tensor
from nanovllm.layers.attention import Attention
from nanovllm.utils.swap import swap
from exercises.kit.labs import Kernels


# --- ch17.bytes_moved
# An operation on a vector does next to nothing with each number: it is limited by the memory. So its time is the bytes
# that it moves, and the way to make a chain of them faster is to have them in one kernel, where what one makes and the
# next uses never leaves the chip. Nothing is computed that was not computed before, and nothing less. What somebody else
# needs later has to be written all the same: that is why the levers that fuse stop at a matrix product, and why the
# residual stream is written whatever is fused around it.
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
    total = 0
    for i, kernel in enumerate(kernels):
        made = {name for _, name in kernel}
        used = {name for names, _ in kernel for name in names}
        wanted = {name for other in kernels[i + 1 :] for names, _ in other for name in names}
        written = made & (wanted | set(outputs))
        total += sum(sizes[name] for name in (used - made) | written)
    return total


# --- ch17.end_of_step
# The GPU is a queue. Where kernels are long, the CPU runs ahead, and only the first call shows. Where they are short, the
# GPU waits for every single call, and what a kernel takes does not matter at all. So the same lever, a kernel half as
# long, gives a factor of two or nothing, and which of the two depends on other levers: a CUDA graph makes all calls one.
# That is why gains do not multiply.
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
    launched = done = 0.0
    for launch, kernel in zip(launches, kernels, strict=True):
        launched += launch
        done = max(launched, done) + kernel
    return done


# --- ch17.my_lever
# For 32 sequences and 8 layers the plain loop makes 256 calls of attention a step, and about ten small operations around
# each. Their arithmetic is nothing; the calls are what takes the time. One call for all does more work, because short
# sequences are filled up to the longest, and the keys are copied; it is faster all the same, as long as the lengths do
# not differ by much. A GPU's kernel has neither disadvantage: it looks the blocks up while it attends, and each sequence
# is as long as it is (chapter 10). What the plain engine has instead is a loop that can be read.
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

    class Batched(Attention):
        def attend(self, q: Any, k: Any, v: Any, context: Any) -> torch.Tensor:
            if context.is_prefill:
                return super().attend(q, k, v, context)
            table = context.block_tables  # shorter ones are filled up with -1, the last block: masked below
            keys, values = (cache[table].flatten(1, 2).transpose(1, 2) for cache in (self.k_cache, self.v_cache))
            is_there = torch.arange(keys.shape[2], device=q.device) < context.context_lens[:, None]
            q = q.unflatten(1, (self.num_kv_heads, -1))  # the heads of a group share their keys
            mask = is_there[:, None, None]
            return F.scaled_dot_product_attention(q, keys, values, mask, scale=self.scale).flatten(1, 2)

    swap(model, Attention, Batched)
