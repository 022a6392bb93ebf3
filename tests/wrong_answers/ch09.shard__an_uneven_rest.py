# ruff: noqa
DIAGNOSIS = """
With a remainder the parts are of different lengths. What cannot be split evenly is a ValueError.
"""


# --- first
def shard(tensor, dim, rank, size):
    return tensor.tensor_split(size, dim)[rank]


# --- second
def shard(tensor, dim, rank, size):
    whole, rest = divmod(tensor.shape[dim], size)
    start = rank * whole + min(rank, rest)
    return tensor.narrow(dim, start, whole + (rank < rest))
