"""The tensor-parallel group that layers are built for.

A layer reads the group when it is constructed and keeps it, so models of different groups live in
one process. The names follow vllm/distributed/parallel_state.py; the scheme is Megatron-LM's
(Shoeybi et al., 2019).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class TensorParallelGroup:
    """This rank's place among the ranks that share a model.

    Args:
        rank: 0 to size - 1.
        size: number of ranks.
        process_group: the torch.distributed group that connects them; not needed for one rank.
    """

    rank: int = 0
    size: int = 1
    process_group: dist.ProcessGroup | None = None

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum of `x` over the ranks, in place, on every rank."""
        if self.size > 1:
            dist.all_reduce(x, group=self.process_group)
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        """Rank 0's `x`, in place, on every rank."""
        if self.size > 1:
            dist.broadcast(x, group=self.process_group, group_src=0)
        return x

    def gather(self, x: Tensor) -> Tensor | None:
        """Concatenation of every rank's `x` along the last dimension, on rank 0; None elsewhere."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(x, parts, group=self.process_group, group_dst=0)
        return torch.cat(parts, dim=-1) if parts is not None else None

    def minimum(self, value: int) -> int:
        """Smallest of all ranks' values, on every rank."""
        if self.size == 1:
            return value
        values: list[int] = [0] * self.size
        dist.all_gather_object(values, value, group=self.process_group)
        return min(values)


class _Current(threading.local):
    group = TensorParallelGroup()


_current = _Current()


def get_tensor_parallel_group() -> TensorParallelGroup:
    """The group for which layers are being built in this thread."""
    return _current.group


@contextmanager
def tensor_parallel_group(group: TensorParallelGroup) -> Iterator[None]:
    """Build layers for `group` inside the `with` block."""
    previous, _current.group = _current.group, group
    try:
        yield
    finally:
        _current.group = previous
