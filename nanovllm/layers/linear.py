"""Linear layers split over tensor-parallel ranks (Megatron-LM: Shoeybi et al., 2019, section 3).

A column-parallel layer computes a part of the outputs on every rank, the row-parallel layer after
it takes that part as its input, and one all-reduce adds the partial results up. Each layer knows
how to cut its share out of a full checkpoint tensor (`weight_loader`). Compare
vllm/model_executor/layers/linear.py.
"""

# mypy: disable-error-code="override"
# (The loaders of merged weights take one argument more.)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..utils.loader import default_weight_loader
from ..utils.parallel_state import get_tensor_parallel_group


def divide(numerator: int, denominator: int) -> int:
    """Exact quotient. Raises `ValueError` if there is a remainder."""
    if numerator % denominator:
        raise ValueError(f"{numerator} cannot be split evenly over {denominator}")
    return numerator // denominator


class LinearBase(nn.Module):
    """Weight [output_size, input_size] and an optional bias; both are this rank's share."""

    def __init__(self, input_size: int, output_size: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(output_size, input_size), requires_grad=False)
        self.weight.weight_loader = self.weight_loader  # type: ignore[attr-defined]
        self.bias: nn.Parameter | None
        if bias:
            self.bias = nn.Parameter(torch.empty(output_size), requires_grad=False)
            self.bias.weight_loader = self.weight_loader  # type: ignore[attr-defined]
        else:
            self.register_parameter("bias", None)

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """[..., input_size] @ weight.T + bias."""
        return F.linear(x, self.weight, bias)

    def weight_loader(self, param: nn.Parameter, loaded_weight: Tensor) -> None:
        """Fill `param`, this rank's share of weight or bias, from the full `loaded_weight`."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """[..., input_size] -> [..., output_size]."""
        return self.multiply(x, self.bias)


class ReplicatedLinear(LinearBase):
    """Every rank holds the whole weight and computes the whole output."""

    def weight_loader(self, param: nn.Parameter, loaded_weight: Tensor) -> None:
        """Copy everything."""
        default_weight_loader(param, loaded_weight)


class ColumnParallelLinear(LinearBase):
    """Rank r holds the r-th part of the output features, i.e. of the rows of the weight.

    Args:
        input_size, output_size: of the full layer.
    """

    def __init__(self, input_size: int, output_size: int, bias: bool = False) -> None:
        group = get_tensor_parallel_group()
        self.tp_rank, self.tp_size = group.rank, group.size
        super().__init__(input_size, divide(output_size, self.tp_size), bias)

    def weight_loader(self, param: nn.Parameter, loaded_weight: Tensor) -> None:
        """Copy this rank's rows."""
        default_weight_loader(param, shard(loaded_weight, 0, self.tp_rank, self.tp_size))


class MergedColumnParallelLinear(ColumnParallelLinear):
    """Several column-parallel layers with the same input in one product (gate and up projection).

    Args:
        input_size: of each layer.
        output_sizes: full output size of each layer.
    """

    def __init__(self, input_size: int, output_sizes: list[int], bias: bool = False) -> None:
        super().__init__(input_size, sum(output_sizes), bias)
        self.output_sizes = [divide(size, self.tp_size) for size in output_sizes]

    def weight_loader(self, param: nn.Parameter, loaded_weight: Tensor, shard_id: int) -> None:
        """Copy this rank's rows of the layer number `shard_id` to their place."""
        rows = param.data.narrow(0, sum(self.output_sizes[:shard_id]), self.output_sizes[shard_id])
        default_weight_loader(rows, shard(loaded_weight, 0, self.tp_rank, self.tp_size))


class QKVParallelLinear(ColumnParallelLinear):
    """Query, key and value projections in one matrix product, split by heads.

    With fewer KV heads than ranks, each KV head is held by several ranks.

    Args:
        hidden_size: input size.
        head_dim: size of a head.
        num_heads, num_kv_heads: heads of the full layer.
    """

    def __init__(
        self, hidden_size: int, head_dim: int, num_heads: int, num_kv_heads: int, bias: bool = False
    ) -> None:
        tp_size = get_tensor_parallel_group().size
        self.head_dim = head_dim
        self.num_heads = divide(num_heads, tp_size)
        self.num_kv_heads = divide(num_kv_heads, tp_size) if num_kv_heads > tp_size else 1
        self.num_kv_head_replicas = divide(tp_size, num_kv_heads) if tp_size > num_kv_heads else 1
        num_all_heads = (self.num_heads + 2 * self.num_kv_heads) * tp_size
        super().__init__(hidden_size, num_all_heads * head_dim, bias)
        q_size, kv_size = self.num_heads * head_dim, self.num_kv_heads * head_dim
        self.shards = {"q": (0, q_size), "k": (q_size, kv_size), "v": (q_size + kv_size, kv_size)}

    def weight_loader(self, param: nn.Parameter, loaded_weight: Tensor, shard_id: str) -> None:
        """Copy this rank's heads of one projection to their place; the rest of `param` stays.

        This is rank `self.tp_rank` of `self.tp_size`, and has a range of the heads; rank 0 has the
        first. Where a KV head is held by several ranks, these are neighbors. Inside `param` lie
        first the queries, then the keys, then the values.

        Args:
            param: this rank's weight, [rows, hidden_size], or its bias, [rows].
            loaded_weight: of all heads, one after the other, `head_dim` rows each.
            shard_id: "q", "k" or "v"; `self.shards` has its first row in `param`, and how many.
        """
        replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
        heads = shard(loaded_weight, 0, self.tp_rank // replicas, self.tp_size // replicas)
        default_weight_loader(param.data.narrow(0, *self.shards[shard_id]), heads)


class RowParallelLinear(LinearBase):
    """Rank r holds the r-th part of the input features, i.e. of the columns; results are added up.

    Args:
        input_size, output_size: of the full layer.
    """

    def __init__(self, input_size: int, output_size: int, bias: bool = False) -> None:
        self.group = get_tensor_parallel_group()
        super().__init__(divide(input_size, self.group.size), output_size, bias)

    def weight_loader(self, param: nn.Parameter, loaded_weight: Tensor) -> None:
        """Copy this rank's columns; a bias is copied whole."""
        if param is not self.bias:
            loaded_weight = shard(loaded_weight, 1, self.group.rank, self.group.size)
        default_weight_loader(param, loaded_weight)

    def forward(self, x: Tensor) -> Tensor:
        """[..., input_size / ranks] -> [..., output_size], the layer's whole result on every rank.

        Together the ranks' inputs are the input of the full layer, and the result is what the full
        layer makes of it: the bias counts once, however many ranks there are. It takes one
        all-reduce, `self.group.all_reduce`. Input, weight and bias stay as they are.

        Args:
            x: the features whose columns this rank has.
        """
        bias = self.bias if self.group.rank == 0 else None
        return self.group.all_reduce(self.multiply(x, bias))


def shard(tensor: Tensor, dim: int, rank: int, size: int) -> Tensor:
    """The `rank`-th of `size` equal parts of `tensor` along `dim`; parts are contiguous ranges.

    The tensor stays as it is. Raises `ValueError` if it cannot be split evenly.
    """
    length = divide(tensor.shape[dim], size)
    return tensor.narrow(dim, rank * length, length)
