# ruff: noqa
DIAGNOSIS = """
Rows are dealt out like cards, each rank every size-th. A part is a range of neighbors.
"""


# --- first
def shard(tensor, dim, rank, size):
    divide(tensor.shape[dim], size)
    return tensor.index_select(dim, torch.arange(rank, tensor.shape[dim], size))


# --- second
def shard(tensor, dim, rank, size):
    divide(tensor.shape[dim], size)
    return tensor.transpose(0, dim)[rank::size].transpose(0, dim)
