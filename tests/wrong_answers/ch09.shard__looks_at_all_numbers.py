# ruff: noqa
DIAGNOSIS = """
How many numbers the whole tensor has decides whether it can be split. The length along dim does.
"""


# --- first
def shard(tensor, dim, rank, size):
    if tensor.numel() % size:
        raise ValueError("uneven")
    length = tensor.shape[dim] // size
    return tensor.narrow(dim, rank * length, length)


# --- second
def shard(tensor, dim, rank, size):
    divide(tensor.numel(), size)
    length = tensor.shape[dim] // size
    return tensor.split(length, dim)[rank] if length else tensor.narrow(dim, 0, 0)
