# ruff: noqa
DIAGNOSIS = """
Every rank gets the first part: the rank is not used.
"""


# --- first
def shard(tensor, dim, rank, size):
    return tensor.narrow(dim, 0, divide(tensor.shape[dim], size))


# --- second
def shard(tensor, dim, rank, size):
    return tensor.split(divide(tensor.shape[dim], size), dim)[0]
