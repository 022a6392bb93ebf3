# ruff: noqa
DIAGNOSIS = """
A remainder is left out without a word: the last rows belong to nobody. What cannot be split evenly is a ValueError.
"""


# --- first
def shard(tensor, dim, rank, size):
    length = tensor.shape[dim] // size
    return tensor.narrow(dim, rank * length, length)


# --- second
def shard(tensor, dim, rank, size):
    length = int(tensor.shape[dim] / size)
    index = torch.arange(rank * length, rank * length + length)
    return tensor.index_select(dim, index)
