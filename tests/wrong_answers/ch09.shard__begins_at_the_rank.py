# ruff: noqa
DIAGNOSIS = """
The part begins at row number rank. It begins at rank times the length of a part.
"""


# --- first
def shard(tensor, dim, rank, size):
    return tensor.narrow(dim, rank, divide(tensor.shape[dim], size))


# --- second
def shard(tensor, dim, rank, size):
    length = divide(tensor.shape[dim], size)
    return tensor.index_select(dim, torch.arange(rank, rank + length))
