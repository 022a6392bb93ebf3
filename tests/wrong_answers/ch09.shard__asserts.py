# ruff: noqa
DIAGNOSIS = """
An assert says that there is a remainder, and a ValueError should: asserts can be switched off.
"""


# --- first
def shard(tensor, dim, rank, size):
    assert tensor.shape[dim] % size == 0
    return tensor.chunk(size, dim)[rank]


# --- second
def shard(tensor, dim, rank, size):
    length, rest = divmod(tensor.shape[dim], size)
    assert not rest, "cannot be split evenly"
    return tensor.narrow(dim, rank * length, length)
