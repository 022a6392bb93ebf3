# ruff: noqa
DIAGNOSIS = """
Ranks are counted from 1 here: rank 1 gets the first part, which is that of rank 0.
"""


# --- first
def shard(tensor, dim, rank, size):
    length = divide(tensor.shape[dim], size)
    return tensor.narrow(dim, (rank - 1) % size * length, length)


# --- second
def shard(tensor, dim, rank, size):
    return tensor.split(divide(tensor.shape[dim], size), dim)[rank - 1]
