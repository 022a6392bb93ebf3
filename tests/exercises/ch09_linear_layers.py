"""Grader of chapter 09. Numbers say where they come from, ranks are simulated one after the other, and products are
computed by hand, number by number.
"""

import random
import re
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from exercises.kit import parallel_work
from exercises.kit.grading import case
from exercises.kit.parallel_work import Linear, SimulatedGroup, compute, numbers_sent, together, weights_held
from exercises.kit.probes import check_tensor


def marked(*shape, dtype=torch.float32):
    """A tensor whose numbers are all different, and not too large for half precision."""
    return torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype)


# shard


def range_of(tensor, dim, first, length):
    """Some rows or columns of a tensor, as far as there are any."""
    last = min(first + length, tensor.shape[dim])
    return tensor.index_select(dim, torch.arange(min(first, last), last))


def part_of(tensor, dim, rank, size):
    length = tensor.shape[dim] // size
    return range_of(tensor, dim, rank * length, length)


ERRORS_OF_SHARD = {
    "ValueError": "A ValueError, though the tensor can be split evenly: what counts is its length along dim.",
    "IndexError": "An index is outside the tensor, or there are fewer parts than asked for: `size` parts are made.",
    "RuntimeError": "The range is not inside the tensor, or the tensor is not contiguous and was viewed: a part is as "
    "long as the length along dim, divided by size, and begins at rank times that.",
    "TypeError": "Something was given another kind of value than it takes; a length is an int, and / makes a float.",
    "AssertionError": "An assert failed, though the tensor can be split evenly.",
}


def mistakes_of_shard(tensor, dim, rank, size):
    """What classic mistakes give."""
    if size == 1:
        return {}
    length = tensor.shape[dim] // size
    found = {
        "The rows or columns were dealt out like cards; a part is a range, of neighbors.": tensor.index_select(
            dim, torch.arange(rank, tensor.shape[dim], size)
        ),
        "This is the part of the next rank: rank 0 has the first part.": part_of(tensor, dim, (rank + 1) % size, size),
        "The part begins at number `rank`; it begins at rank times the length of a part.": range_of(
            tensor, dim, rank, length
        ),
        "The parts are counted from the end: rank 0 has the first.": part_of(tensor, dim, size - 1 - rank, size),
        "Nothing was cut: this is the whole tensor.": tensor,
        "All parts up to this one came back, not only the last of them.": range_of(tensor, dim, 0, (rank + 1) * length),
        "Everything from this part on came back: it ends where the next one begins.": range_of(
            tensor, dim, rank * length, tensor.shape[dim] - rank * length
        ),
        "The part is too long: it ends where the next one begins. narrow takes a start and a length, no end.": range_of(
            tensor, dim, rank * length, (rank + 1) * length
        ),
        "The parts have `size` rows or columns each. split takes the length of a part, chunk the number of parts, "
        "which is `size`.": range_of(tensor, dim, rank * size, size),
    }
    if rank * size + length <= tensor.shape[dim]:
        text = "The part begins at rank times the number of parts; it is rank times the length of a part."
        found[text] = range_of(tensor, dim, rank * size, length)
    if rank:
        found = {"Every rank gets the first part: the rank is not used.": part_of(tensor, dim, 0, size)} | found
    for other in range(tensor.ndim):
        if other != dim and tensor.shape[other] % size == 0:
            text = f"It was cut along dimension {other}, and dim is {dim}."
            found[text] = part_of(tensor, other, rank, size)
        elif other != dim:
            text = f"Dimension {other} was cut, with the length along dim, which is {dim}."
            found[text] = range_of(tensor, other, rank * length, length)
    right, unique = part_of(tensor, dim, rank, size), {}
    for text, wrong in found.items():
        if not any(torch.equal(wrong, other) for other in (right, *unique.values())):
            unique[text] = wrong
    return unique


KEPT = "This is a part of the tensor that was given before, which had the same shape. Nothing is kept between calls."


def check_shard(engine, check, tensor, dim, size, ranks=None, earlier=None):
    before, axes = tensor.clone(), ("row", "column", "third")[: tensor.ndim]
    for rank in range(size) if ranks is None else ranks:
        shape = list(tensor.shape)
        check.step(f"shard(tensor of shape {shape}, dim {dim}, rank {rank}, size {size})", ERRORS_OF_SHARD)
        got = engine.get("layers.linear:shard")(tensor, dim, rank, size)
        mistakes = mistakes_of_shard(before, dim, rank, size)
        if earlier is not None:
            mistakes[KEPT] = part_of(earlier, dim, rank, size)
        right_shape = part_of(before, dim, rank, size).shape
        if isinstance(got, torch.Tensor) and got.shape != right_shape:  # a shape alone tells too little
            mistakes = {text: wrong for text, wrong in mistakes.items() if torch.equal(wrong, got)}
        check_tensor(check, f"part {rank}", got, part_of(before, dim, rank, size), axes, mistakes)
        if not check.true("the tensor stays as it is", torch.equal(tensor, before), "The tensor was changed."):
            return


@case("ch09.shard")
def rows(engine, check):
    """A matrix of 6 rows and 4 columns is split along dimension 0, over three ranks. Its numbers count from 1."""
    check_shard(engine, check, marked(6, 4), 0, 3, [1, 0, 2])


@case("ch09.shard")
def columns(engine, check):
    """A matrix of 3 rows and 8 columns, split along dimension 1 over two ranks, then over four."""
    check_shard(engine, check, marked(3, 8), 1, 2, [1, 0])
    check_shard(engine, check, marked(3, 8), 1, 4)


@case("ch09.shard")
def a_bias(engine, check):
    """A vector of 6 numbers, over two ranks and over six."""
    check_shard(engine, check, marked(6), 0, 2)
    check_shard(engine, check, marked(6), 0, 6)


@case("ch09.shard")
def one_rank(engine, check):
    """A single rank gets everything, along either dimension."""
    check_shard(engine, check, marked(3, 5), 0, 1)
    check_shard(engine, check, marked(3, 5), 1, 1)


@case("ch09.shard")
def a_square(engine, check):
    """A matrix of 4 by 4, where rows and columns could be mixed up; and one that is the transpose of another."""
    check_shard(engine, check, marked(4, 4), 1, 2)
    check_shard(engine, check, marked(4, 4), 0, 2)
    check_shard(engine, check, marked(6, 4).T, 1, 2)


@case("ch09.shard")
def one_after_the_other(engine, check):
    """Two matrices of the same shape, one after the other, with other numbers, as two layers of a model have."""
    first = marked(3, 10)
    check_shard(engine, check, first, 1, 2)
    check_shard(engine, check, first + 100, 1, 2, earlier=first)


@case("ch09.shard")
def a_remainder(engine, check):
    """It cannot be split evenly: a ValueError. 5 rows over 2 ranks, 6 columns over 4, and 2 rows over 4."""
    for tensor, dim, size in ((marked(5, 4), 0, 2), (marked(4, 6), 1, 4), (marked(2, 4), 0, 4), (marked(7), 0, 3)):
        for rank in (0, size - 1):
            check.step(f"shard(tensor of shape {list(tensor.shape)}, dim {dim}, rank {rank}, size {size})")
            try:
                got = engine.get("layers.linear:shard")(tensor, dim, rank, size)
                raised = f"nothing; the part has length {got.shape[dim]}"
            except Exception as error:
                raised = type(error).__name__
            check.equal("what is raised", raised, "ValueError", says_remainder)


def says_remainder(got):
    if got.startswith("nothing"):
        return "There is a remainder, and something came back: parts of different lengths, or rows that nobody has."
    return f"There is a remainder, which is a ValueError, and {got} was raised."


@case("ch09.shard")
def other_numbers(engine, check):
    """Random shapes, dtypes and numbers of ranks; all parts together are the whole."""
    for seed in range(12):
        rng = random.Random(seed)
        size, ndim = rng.randrange(1, 6), rng.randrange(1, 4)
        dim = rng.randrange(ndim)
        shape = [rng.randrange(1, 5) for _ in range(ndim)]
        shape[dim] = size * rng.randrange(2, 4)
        dtype = rng.choice([torch.float32, torch.bfloat16, torch.float64, torch.int64])
        check_shard(engine, check, marked(*shape, dtype=dtype), dim, size)


# QKVParallelLinear.weight_loader

KINDS = "qkv"


class Layer:
    """The sizes of a layer, and what every rank's parameter has to hold."""

    def __init__(self, num_heads, num_kv_heads, size, head_dim=3, hidden_size=2, dtype=torch.float32):
        self.heads = {"q": num_heads, "k": num_kv_heads, "v": num_kv_heads}
        self.size, self.head_dim, self.hidden_size, self.dtype = size, head_dim, hidden_size, dtype
        self.own = {kind: max(1, count // size) for kind, count in self.heads.items()}

    def number(self, kind, row, column):
        """Of a row of a full projection: kind, head, row in the head, column, one digit each."""
        head, row = divmod(row, self.head_dim)
        return 1000 * (1 + KINDS.index(kind)) + 100 * head + 10 * row + column

    def full(self, kind, is_bias=False):
        """A projection as the checkpoint has it."""
        rows = self.heads[kind] * self.head_dim
        numbers = [[self.number(kind, row, column) for column in range(self.hidden_size)] for row in range(rows)]
        return torch.tensor([row[0] for row in numbers] if is_bias else numbers, dtype=torch.float32)

    def heads_of(self, kind, rank):
        """Which heads a rank has: so many, and the KV head that its first query head asks."""
        first = rank * self.heads["q"] // self.size
        if kind != "q":
            first //= self.heads["q"] // self.heads[kind]  # query heads share KV heads in groups of neighbors
        return list(range(first, first + self.own[kind]))

    def rows(self, kind):
        return self.head_dim * self.own[kind]

    def start_of(self, kind):
        return self.head_dim * sum(self.own[other] for other in KINDS[: KINDS.index(kind)])

    def rows_of(self, kind, rank):
        return [head * self.head_dim + row for head in self.heads_of(kind, rank) for row in range(self.head_dim)]

    def in_groups(self, kind, i):
        """Where row i of a projection lies if each KV head stands behind its own query heads."""
        group = max(1, self.own["q"] // self.own["k"]) * self.head_dim
        number, row = divmod(i, group if kind == "q" else self.head_dim)
        return number * (group + 2 * self.head_dim) + row + {"q": 0, "k": group, "v": group + self.head_dim}[kind]

    def param(self, rank, kinds, is_bias=False, rows_of=None, start_of=None, rest=-1.0, place_of=None):
        """What a rank's parameter holds when these projections are loaded; the last four say it otherwise."""
        total = self.head_dim * sum(self.own.values())
        result = torch.full((total, self.hidden_size), rest)
        for kind in kinds:
            start = (start_of or self.start_of)(kind)
            for i, row in enumerate((rows_of or self.rows_of)(kind, rank)):
                place = place_of(kind, i) if place_of else start + i
                if place < total:
                    result[place] = torch.tensor([self.number(kind, row, c) for c in range(self.hidden_size)])
        return (result[:, 0] if is_bias else result).to(self.dtype)

    def mistakes(self, rank, kinds, is_bias):
        """What classic mistakes give, as far as they differ here."""

        def with_heads(heads_of):
            def rows_of(kind, rank):
                heads = [head % self.heads[kind] for head in heads_of(kind, rank)]
                return [head * self.head_dim + row for head in heads for row in range(self.head_dim)]

            return {"rows_of": rows_of}

        def with_order(order):
            return {"start_of": lambda kind: self.head_dim * sum(self.own[k] for k in order[: order.index(kind)])}

        def dealt(kind, rank):
            return [rank + self.size * i for i in range(self.own[kind])]

        def dealt_rows(kind, rank):
            step = self.heads[kind] // self.own[kind]
            return [rank % step + step * i for i in range(self.own[kind] * self.head_dim)]

        known = {
            f"Rank {rank} has got the heads of rank 0. Is the rank used, and divided by the right number?": with_heads(
                lambda kind, rank: range(self.own[kind])
            ),
            f"Rank {rank} has the wrong KV head. One with several owners is held by neighbors.": with_heads(
                lambda kind, rank: (
                    self.heads_of(kind, rank) if self.size <= self.heads[kind] else [rank % self.heads[kind]]
                )
            ),
            "The heads were dealt out like cards. A rank has a range of them: neighbors, which share their KV heads.": (
                with_heads(dealt)
            ),
            "Single rows were dealt out, and heads torn apart: a head is head_dim rows that stay together.": {
                "rows_of": dealt_rows
            },
            "Each part was taken from the end: rank 0 has the first heads.": with_heads(
                lambda kind, rank: self.heads_of(kind, self.size - 1 - rank)
            ),
            "These are the heads of the next rank: rank 0 has the first.": with_heads(
                lambda kind, rank: self.heads_of(kind, (rank + 1) % self.size)
            ),
            "The part begins with head number `rank`, not with rank times the number of heads that a rank has.": (
                with_heads(lambda kind, rank: [rank + i for i in range(self.own[kind])])
            ),
            "The rows of the other projections were set to 0; they stay as they are.": {"rest": 0.0},
            "The part begins in the middle of a head: heads were taken for rows, or the number of the first row was "
            "divided once too often. A head has head_dim rows.": {
                "rows_of": lambda kind, rank: (
                    [self.heads_of(kind, rank)[0] + i for i in range(self.own[kind] * self.head_dim)]
                )
            },
            "Each KV head lies behind its own query heads, group by group. In the parameter come first all queries, "
            "then all keys, then all values.": {"place_of": self.in_groups},
        }
        orders = ["qvk", "kqv", "vkq", "kvq", "vqk"]
        if len(kinds) == 1:
            wrong = f"The rows of {kinds[0]} are right, but they begin at row %d; self.shards says where they belong."
            starts = {0} | {self.head_dim * sum(self.own[k] for k in o[: o.index(kinds[0])]) for o in orders}
            known |= {wrong % start: {"start_of": lambda _, start=start: start} for start in sorted(starts)}
        else:
            known["All projections begin at row 0 of the parameter; each has its own place."] = {
                "start_of": lambda _: 0
            }
            for order in orders:
                text = f"In the parameter it is queries, keys, values; here the order is {', '.join(order)}."
                known[text] = with_order(order)
        if "q" in kinds and self.size > self.heads["k"]:
            replicas = self.size // self.heads["k"]
            known["Several ranks have the same query heads. Only KV heads are held by several ranks."] = with_heads(
                lambda kind, rank: (
                    range(rank // replicas * self.own["q"], (rank // replicas + 1) * self.own["q"])
                    if kind == "q"
                    else self.heads_of(kind, rank)
                )
            )
        right, found = self.param(rank, kinds, is_bias), {}
        for text, other in known.items():
            wrong = self.param(rank, kinds, is_bias, **other)
            if not any(torch.equal(wrong, seen) for seen in (right, *found.values())):
                found[text] = wrong
        if len(kinds) == 1:
            more = self.param(rank, kinds, is_bias).float()
            found["The heads were added to what was there; they replace it."] = torch.where(more == -1, more, more - 1)
            nothing = self.param(rank, "", is_bias)
            found[
                "Nothing has arrived in the parameter: what is copied has to go into it, not into a copy or a name."
            ] = nothing
        return found


ERRORS_OF_LOADER = {
    "ValueError": "The rows that were taken and their place in the parameter are not equally long, or something cannot "
    "be split evenly. self.shards has the first row and how many, not the first and the last; with fewer KV heads than "
    "ranks there are tp_size // num_kv_head_replicas different parts.",
    "IndexError": "An index is outside the tensor: with fewer KV heads than ranks, the rank is not the number of the "
    "part.",
    "RuntimeError": "What was taken has not the shape of its place, or lies outside the tensor. Rows are counted, "
    "head_dim for each head, and a bias has no second dimension.",
    "KeyError": 'A key was looked up that is not there: shard_id is "q", "k" or "v".',
    "AttributeError": "An attribute was asked for that the layer does not have: it has tp_rank, tp_size, head_dim, "
    "num_heads, num_kv_heads, num_kv_head_replicas and shards.",
    "TypeError": "Something was given another kind of value than it takes.",
    "UnboundLocalError": "A name has no value on this path: there are three shard ids.",
    "ZeroDivisionError": "Divided by 0: num_kv_heads is at least 1.",
}


ASKS_THE_GROUP = (  # if it succeeds while the layer's group is the current one
    "get_tensor_parallel_group() knows the rank only while layers are built. Weights are loaded later, and then there "
    "seems to be one rank. The layer has noted its own: self.tp_rank of self.tp_size."
)


def succeeds(action):
    try:
        action()
    except Exception:
        return False
    return True


def says_rows(layer, kind, param, error):
    """What a ValueError means, "" if it may mean several things."""
    if "evenly" in error:
        many = kind != "q" and layer.heads[kind] < layer.size
        return (
            f"Of {kind} there are fewer heads than ranks: each is held whole, by several ranks, so there are "
            "tp_size // num_kv_head_replicas different parts."
            if many
            else ""
        )
    expected, *got = [int(number.group(1)) for number in re.finditer(r"\[(\d+)", error)]
    own = layer.rows(kind)
    if got == [own] and expected == len(param):
        return f"{kind} was copied to the whole parameter. self.shards says which rows of it are those of {kind}."
    if got == [own]:
        return "The right number of rows was taken, and their place has another one. self.shards has the first row " \
            "and how many: a slice ends at the sum of both."  # fmt: skip
    if kind == "q" and expected == own and got == [own * layer.size // layer.heads["k"]]:
        return "Queries were shared out as KV heads are, among fewer than all ranks. Only KV heads have replicas."
    return ""


def load(engine, check, layer, kinds="qkv", is_bias=False, ranks=None, turned=False):
    """Build the layer for each rank, load some projections, and compare what its parameter holds."""
    package = engine.package
    group_of = package.module("utils.parallel_state").tensor_parallel_group
    for rank in range(layer.size) if ranks is None else ranks:
        with group_of(SimulatedGroup(rank, layer.size)):
            linear = engine.get("layers.linear:QKVParallelLinear")(
                layer.hidden_size, layer.head_dim, layer.heads["q"], layer.heads["k"], True
            )
        linear = linear.to(layer.dtype)
        for one in (linear.weight, linear.bias):
            one.data.fill_(-1.0)
        param, other = (linear.bias, linear.weight) if is_bias else (linear.weight, linear.bias)
        memory = param.data_ptr()
        what = "bias" if is_bias else "weight"
        for kind in kinds:
            full = layer.full(kind, is_bias)
            full = full.T.contiguous().T if turned else full
            before = full.clone()
            many = f"{layer.heads[kind]} head{'s' * (layer.heads[kind] > 1)} of {layer.head_dim} rows"
            check.step(f"rank {rank} of {layer.size}: load {kind} into the {what}: {many}", ERRORS_OF_LOADER)
            try:
                linear.weight_loader(param, full, kind)
            except ValueError as error:
                with group_of(SimulatedGroup(rank, layer.size)):
                    is_lost = succeeds(partial(linear.weight_loader, param, full, kind))
                if says := ASKS_THE_GROUP if is_lost else says_rows(layer, kind, param, str(error)):
                    check.step(f"the parameter has {len(param)} rows, of which {kind} has {layer.rows(kind)}", says)
                raise
            check.true(
                f"the full {kind} stays as it is", torch.equal(full, before), "The checkpoint's tensor was changed."
            )
        expected, axes = layer.param(rank, kinds, is_bias), ("row",) if is_bias else ("row", "column")
        mistakes = layer.mistakes(rank, kinds, is_bias)
        check_tensor(check, f"{what} of rank {rank}", param.data, expected, axes, mistakes)
        says = "The numbers are right, but not in the memory of the parameter: another tensor was put in its place."
        check.true("the parameter's memory is the same", param.data_ptr() == memory, says)
        says = "The other parameter was changed, and only `param` should be: it may be the weight or the bias."
        check.true("the other parameter stays", bool((other.data == -1).all()), says)


@case("ch09.weight_loader")
def queries_of_two_ranks(engine, check):
    """4 query heads, 2 KV heads, 2 ranks; a head has 3 rows. Only queries are loaded. A number such as 1201 says:
    q (1), head 2, row 0, column 1. Before, everything is -1."""
    load(engine, check, Layer(4, 2, 2), "q", ranks=[0, 1])


@case("ch09.weight_loader")
def keys_and_values_of_two_ranks(engine, check):
    """The same layer: only values are loaded, then, into a new one, only keys. 2201 is head 2 of the keys, 3201 of the
    values."""
    load(engine, check, Layer(8, 4, 2), "v", ranks=[1, 0])
    load(engine, check, Layer(8, 4, 2), "k", ranks=[1, 0])


@case("ch09.weight_loader")
def in_any_order(engine, check):
    """All three projections, in the order of a checkpoint that is sorted by name: k, q, v. 6 heads, 3 KV heads, 3
    ranks."""
    load(engine, check, Layer(6, 3, 3, head_dim=2), "kqv")


@case("ch09.weight_loader")
def fewer_kv_heads_than_ranks(engine, check):
    """4 ranks, 2 KV heads: each is held by two ranks, which are neighbors. 8 query heads."""
    load(engine, check, Layer(8, 2, 4), "k", ranks=[1, 2, 0, 3])
    load(engine, check, Layer(8, 2, 4), "q", ranks=[1, 2])
    load(engine, check, Layer(8, 2, 4), "vqk")


@case("ch09.weight_loader")
def one_kv_head_for_all(engine, check):
    """One KV head, which every one of 4 ranks holds. 4 query heads."""
    load(engine, check, Layer(4, 1, 4), "qkv")


@case("ch09.weight_loader")
def a_bias_too(engine, check):
    """The bias is loaded the same way; it has one dimension. 2 ranks, then 4, which share 2 KV heads."""
    load(engine, check, Layer(4, 2, 2), "qkv", is_bias=True)
    load(engine, check, Layer(4, 2, 4), "qkv", is_bias=True)


@case("ch09.weight_loader")
def a_single_rank(engine, check):
    """One rank has everything: 3 query heads and 1 KV head of 4 rows."""
    load(engine, check, Layer(3, 1, 1, head_dim=4), "qkv")
    load(engine, check, Layer(2, 2, 1, head_dim=1), "v")


@case("ch09.weight_loader")
def as_many_kv_heads_as_heads(engine, check):
    """Every query head has a KV head of its own: 6 of each, over 2 ranks, over 3, over 6."""
    for size in (2, 3, 6):
        load(engine, check, Layer(6, 6, size, head_dim=2), "qkv")


@case("ch09.weight_loader")
def half_precision(engine, check):
    """The parameter is float16, the checkpoint float32: what is copied is rounded, the dtype stays."""
    load(engine, check, Layer(4, 2, 2, dtype=torch.float16), "qkv")


@case("ch09.weight_loader")
def not_contiguous(engine, check):
    """The full tensor lies transposed in memory, so that it cannot be viewed as another shape."""
    load(engine, check, Layer(4, 2, 2), "qkv", turned=True)


@case("ch09.weight_loader")
def other_layers(engine, check):
    """Random numbers of heads, KV heads and ranks."""
    for seed in range(12):
        rng = random.Random(seed)
        size = rng.choice([1, 2, 3, 4, 8])
        kv_heads = rng.choice([n for n in (1, 2, 3, 4, 6, 8) if n % size == 0 or size % n == 0])
        heads = kv_heads * rng.choice([n for n in range(1, 9) if n * kv_heads % size == 0])
        sizes = rng.randrange(1, 5), rng.randrange(1, 6)
        load(engine, check, Layer(heads, kv_heads, size, *sizes), rng.sample(KINDS, 3), is_bias=rng.random() < 0.3)


# RowParallelLinear.forward

ERRORS_OF_FORWARD = {
    "NobodyThere": "A rank waits in a collective for others that never come, or are in another one. Every rank has "
    "to call the same collectives, whatever its number.",
    "AttributeError": "An attribute was asked for that is not there: a bias may be None, and self.group has rank, size "
    "and all_reduce.",
    "RuntimeError": "Refused by torch, shapes that do not fit: x has the columns of this rank's weight, and the "
    "result output_size features.",
    "TypeError": "Something was given another kind of value than it takes; a bias may be None.",
}
IN_ERRORS_OF_FORWARD = {
    "process group": "torch's own collectives were called, where there is no process group: self.group.all_reduce "
    "knows what to do.",
    "evenly": "Something was cut once more: x and the weight are this rank's parts already, and the bias is whole.",
    "Boolean value": "A tensor was asked whether it is true. Whether there is a bias, `is not None` says.",
}


def by_hand(x, weight, bias):
    """x @ weight.T + bias in float64, one dot product after the other."""
    rows = [[float(sum(a * b for a, b in zip(token, row, strict=True))) for row in weight.double().tolist()]
            for token in x.double().reshape(-1, x.shape[-1]).tolist()]  # fmt: skip
    result = torch.tensor(rows, dtype=torch.float64).reshape(*x.shape[:-1], len(weight))
    return result if bias is None else result + bias.double()


def forward(engine, check, size, shape, out, has_bias=True, dtype=torch.float32, turned=False, seed=0):
    """Build the layer for each rank, have all compute together, and compare with the full product."""
    generator = torch.Generator().manual_seed(seed)
    features = shape[-1]
    full, weight = (torch.randn(*s, generator=generator).to(dtype) for s in (shape, (out, features)))
    bias = (torch.randn(out, generator=generator) + 2).to(dtype) if has_bias else None
    group_of, linears, inputs = engine.package.module("utils.parallel_state").tensor_parallel_group, [], []
    width = features // size
    for rank in range(size):
        with group_of(SimulatedGroup(rank, size)):
            linear = engine.get("layers.linear:RowParallelLinear")(features, out, has_bias).to(dtype)
        own = slice(rank * width, (rank + 1) * width)
        linear.weight.data.copy_(weight[:, own])
        if has_bias:
            linear.bias.data.copy_(bias)
        x = full[..., own]
        linears.append(linear)
        inputs.append(x if turned else x.contiguous())
    tokens = "x".join(map(str, shape[:-1])) or "1"
    story = f"{size} rank{'s' * (size > 1)}, {tokens} tokens of {features} features, {out} come out"
    check.step(f"{story}, {'a' if has_bias else 'no'} bias: all ranks compute", ERRORS_OF_FORWARD)

    def run(group):
        linears[group.rank].group = group
        return linears[group.rank](inputs[group.rank])

    before = [tensor.clone() for tensor in inputs]
    try:
        with torch.no_grad():
            done = together(size, run, most=6)
    except Exception as error:
        for part, says in IN_ERRORS_OF_FORWARD.items():
            if part in str(error):
                check.step("an error is raised", says)
        raise
    parts = [by_hand(full[..., r * width : (r + 1) * width], weight[:, r * width : (r + 1) * width], None)
             for r in range(size)]  # fmt: skip
    expected = by_hand(full, weight, bias)
    summed = sum(full[..., r * width : (r + 1) * width].double() for r in range(size))
    tolerance = 2e-2 if dtype != torch.float32 else 1e-4
    axes = (*("batch", "token")[3 - len(shape) :], "feature")[-len(shape) :]
    for rank in range(size):
        of_summed = by_hand(summed, weight[:, rank * width : (rank + 1) * width], None)
        check_tensor(
            check, f"what rank {rank} returns", done.results[rank], expected, axes,
            mistakes_of_forward(parts, bias, rank, expected, of_summed), {"the input": before[rank]}, dtype, tolerance,
        )  # fmt: skip
    kinds = [kind for kind, _ in done.calls[0]]
    check.equal("collectives of a rank", kinds, ["all_reduce"], says_collectives)
    stay = all(torch.equal(now, then) for now, then in zip(inputs, before, strict=True))
    check.true("the input stays as it is", stay, "The input was changed; somebody else may still need it.")
    held = all(torch.equal(linears[r].weight.data, weight[:, r * width : (r + 1) * width]) for r in range(size))
    check.true("the weight stays as it is", held, "The weight was changed.")
    if has_bias:
        held = all(isinstance(one.bias, nn.Parameter) and torch.equal(one.bias.data, bias) for one in linears)
        check.true("the bias stays as it is", held, "The bias was changed: with the next token it would be wrong.")


def says_collectives(got):
    if not got:
        return "Nothing was added up: there was no all-reduce."
    if len(got) > 1:
        return "There is more than one collective. One all-reduce is enough, and each costs time."
    return "The ranks meet in another collective than an all-reduce."


def mistakes_of_forward(parts, bias, rank, expected, of_summed):
    """What classic mistakes give on a rank; `of_summed` is its product with the sum of all inputs."""
    size, total = len(parts), sum(parts)
    known = {}
    if size > 1:
        known["This is this rank's part alone, without a bias; the parts of all ranks have to be added up."] = parts[
            rank
        ]
        known["The sum was divided by the number of ranks: parts of a sum are added, not averaged."] = expected / size
        known["The sum was counted once for each rank."] = expected * size
        known["This is rank 0's part alone; the parts of all ranks have to be added up."] = parts[0]
        known["Only numbers of other ranks came together: this rank's part is missing."] = expected - parts[rank]
        known["The parts came side by side; they have to be added up."] = torch.cat(parts, -1)
        text = "The inputs were added up, which are different features: what has to be added up is the products."
        known[text] = of_summed if bias is None else of_summed + bias.double()
    if bias is not None:
        add = bias.double()
        known[f"The bias is missing on rank {rank}."] = total
        if size > 1:
            known[f"The bias was added {size} times, once by each rank."] = total + size * add
            known["This is this rank's part alone, with the bias; the parts have to be added up."] = parts[rank] + add
            known["This is rank 0's part alone, with the bias; the parts of all ranks have to be added up."] = (
                parts[0] + add
            )
            known["The bias was added by all ranks but one."] = total + (size - 1) * add
            known["The bias was added once too often: before the sum and after it."] = total + (size + 1) * add
            known["The bias was divided by the number of ranks, and then added only once."] = total + add / size
            known["The bias was multiplied by the number of ranks."] = total + size * size * add
            known[
                "The sum was divided by the number of ranks, and the bias added to that: parts are added, not averaged."
            ] = total / size + add
        known["The bias was added twice."] = total + 2 * add
        known["The sum was multiplied by the number of ranks, and the bias added to that."] = total * size + add
    found = {}
    for text, wrong in known.items():
        if not any(wrong.shape == seen.shape and torch.allclose(wrong, seen) for seen in (expected, *found.values())):
            found[text] = wrong
    return found


@case("ch09.forward")
def four_ranks(engine, check):
    """Four ranks and a bias: 2 tokens, 8 features, of which each rank has two, and 5 come out."""
    forward(engine, check, 4, (2, 8), 5)


@case("ch09.forward")
def without_a_bias(engine, check):
    """Two ranks, and no bias."""
    forward(engine, check, 2, (3, 4), 5, has_bias=False)


@case("ch09.forward")
def alone(engine, check):
    """A single rank: its part is everything. With a bias, and without."""
    forward(engine, check, 1, (2, 3), 4)
    forward(engine, check, 1, (2, 3), 4, has_bias=False)


@case("ch09.forward")
def one_token(engine, check):
    """Five ranks and a bias, and a single token; as many features go in as come out."""
    forward(engine, check, 5, (1, 10), 10)


@case("ch09.forward")
def more_dimensions(engine, check):
    """The input has three dimensions, or one, or its numbers are not side by side in memory."""
    forward(engine, check, 2, (2, 3, 4), 3)
    forward(engine, check, 2, (3, 6), 2, turned=True)
    forward(engine, check, 2, (4,), 3)


@case("ch09.forward")
def half_precision_too(engine, check):
    """All numbers are bfloat16, and so is the result."""
    forward(engine, check, 2, (3, 8), 6, dtype=torch.bfloat16)


@case("ch09.forward")
def again_and_again(engine, check):
    """A bias of 5 on one layer that computes three times, with the inputs 1, 2 and 3. The first result stays."""
    group_of = engine.package.module("utils.parallel_state").tensor_parallel_group
    linears, inputs = [], [1.0]
    for rank in range(2):
        with group_of(SimulatedGroup(rank, 2)):
            linears.append(engine.get("layers.linear:RowParallelLinear")(2, 1, True))
        linears[-1].weight.data.fill_(1.0 + rank)
        linears[-1].bias.data.fill_(5.0)

    def run(group):
        linears[group.rank].group = group
        return linears[group.rank](torch.full((1, 1), inputs[0]))

    first = None
    for number in (1.0, 2.0, 3.0):
        inputs[0] = number
        check.step(f"the input is {number}", ERRORS_OF_FORWARD)
        results = together(2, run).results
        first = first or results
        got = [result.tolist() if isinstance(result, torch.Tensor) else None for result in results]
        says = "It should be the input and twice the input from the two ranks, and 5 from the bias, every time."
        check.equal("what both ranks return", got, [[[3 * number + 5]]] * 2, says)
    kept = [float(result) if isinstance(result, torch.Tensor) else None for result in first]
    says = "A result has changed with a later computation: each needs memory of its own."
    check.equal("the first results, afterwards", kept, [8.0, 8.0], says)


@case("ch09.forward")
def random_layers(engine, check):
    """Random numbers of ranks, tokens and features."""
    for seed in range(8):
        rng = random.Random(seed)
        size = rng.randrange(1, 6)
        shape = (rng.randrange(1, 5), size * rng.randrange(1, 4))
        forward(engine, check, size, shape, rng.randrange(1, 6), rng.random() < 0.6, seed=seed)


# choose_cuts


def choose(engine, check, linears, num_ranks, memory, text):
    """Have a chain cut; returns how many numbers a rank sends, or None if the answer is no plan."""
    check.step(text)
    before = list(linears)
    cuts = engine.get("labs:choose_cuts")(linears, num_ranks, memory)
    check.true("the list of matrices stays as it is", linears == before, "The list was changed.")
    if not check.true(
        "a list comes back", isinstance(cuts, list | tuple), "A list with a word for each matrix is asked for."
    ):
        return None
    words = [cut for cut in cuts if cut not in parallel_work.CUTS]
    says = 'There is something else in the list than "column", "row" and "replicated".'
    fits = check.equal("words that are no cuts", words[:2], [], says)
    if not check.equal("how many cuts", len(cuts), len(linears), "A cut for each matrix is asked for.") or not fits:
        return None
    held = weights_held(linears, cuts, num_ranks)
    says = f"A rank would hold {held:,} weights, and has room for {memory:,}."
    check.true("it fits into the memory of a rank", held <= memory, says)
    is_right, sent = compute(linears, cuts, num_ranks)
    check.true("every rank computes the right result", is_right)
    return sent


@case("ch09.choose_cuts")
def three_models(engine, check):
    """The three chains of the exercise. All that counts: it fits, and how many numbers a rank sends."""
    total = 0
    for task in parallel_work.tasks():
        text = f"{task.name}: {len(task.linears)} matrices, {task.num_ranks} ranks, room for {task.memory:,} weights"
        sent = choose(engine, check, task.linears, task.num_ranks, task.memory, text)
        if sent is None:
            return
        check.step(f"a rank sends {sent:,} numbers for a token")
        total += sent
    check.measured(f"sent in all three: {total:,} numbers; column and row in turn make it 2,616")
    says = f"At most {parallel_work.BAR:,} are asked for, and it was {total:,}."
    check.true(f"at most {parallel_work.BAR:,} numbers in all three", total <= parallel_work.BAR, says)


def random_chain(seed):
    """Matrices of random sizes, and a number of ranks."""
    rng = random.Random(seed)
    num_ranks = rng.choice([2, 3, 4])
    sizes = [num_ranks * rng.randrange(1, 13) for _ in range(rng.randrange(2, 9))]
    linears = [Linear(f"matrix {n}", *pair, rng.choice(["norm", "each"])) for n, pair in enumerate(pairwise(sizes))]
    return linears, num_ranks, rng


@case("ch09.choose_cuts")
def other_chains(engine, check):
    """Random chains with more or less room. Never more is sent than with "row" everywhere, or with both in turn."""
    for seed in range(16):
        linears, num_ranks, rng = random_chain(seed)
        total = sum(linear.num_weights for linear in linears)
        memory = total // num_ranks + rng.randrange(0, total // 2)
        sizes = [linears[0].input_size, *(linear.output_size for linear in linears)]
        text = f"chain {seed}: sizes {sizes}, {num_ranks} ranks, room for {memory} weights"
        sent = choose(engine, check, linears, num_ranks, memory, text)
        if sent is None:
            return
        plain = min(
            numbers_sent(linears, plan(linears, num_ranks, memory), num_ranks)
            for plan in (parallel_work.row_everywhere, parallel_work.in_turn)
        )
        check.true("not more than a plain plan", sent <= plain, f"It sends {sent}, and a plain plan sends {plain}.")


@case("ch09.choose_cuts")
def enough_room(engine, check):
    """Each rank has room for everything; or there is only one rank. Then nothing has to be sent."""
    for seed in range(4):
        linears, num_ranks, _ = random_chain(100 + seed)
        total = sum(linear.num_weights for linear in linears)
        for ranks in (num_ranks, 1):
            sent = choose(engine, check, linears, ranks, total, f"chain {seed}: {ranks} ranks, room for all {total}")
            check.equal("numbers sent", sent, 0, "There is room for everything everywhere, and something is sent.")
