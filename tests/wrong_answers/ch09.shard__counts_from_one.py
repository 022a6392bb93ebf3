# ruff: noqa
DIAGNOSIS = """
Ranks are counted from 1 here. They begin at 0, and the last one would get nothing.
"""


# --- first
def shard(tensor, dim, rank, size):
    length = divide(tensor.shape[dim], size)
    return tensor.narrow(dim, (rank - 1) % size * length, length)


# --- second
def shard(tensor, dim, rank, size):
    return tensor.split(divide(tensor.shape[dim], size), dim)[rank - 1]
