# ruff: noqa
DIAGNOSIS = """
It is always split by rows: dim is not used.
"""


# --- first
def shard(tensor, dim, rank, size):
    length = divide(tensor.shape[0], size)
    return tensor.narrow(0, rank * length, length)


# --- second
def shard(tensor, dim, rank, size):
    length = divide(len(tensor), size)
    return tensor[rank * length : (rank + 1) * length]
