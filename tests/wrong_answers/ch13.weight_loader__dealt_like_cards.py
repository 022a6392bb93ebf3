# ruff: noqa
DIAGNOSIS = """
The rows are dealt out like cards. A rank has a range of them, from vocab_start on.
"""


# --- first
def weight_loader(self, param, loaded_weight):
    if loaded_weight.shape != (self.num_embeddings, param.shape[1]):
        raise ValueError("another shape")
    rows = loaded_weight[self.group.rank :: self.group.size]
    param.data[: len(rows)].copy_(rows)
    param.data[len(rows) :].zero_()


# --- second
def weight_loader(self, param, loaded_weight):
    if list(loaded_weight.shape) != [self.num_embeddings, param.size(1)]:
        raise ValueError(f"got {tuple(loaded_weight.shape)}")
    param.data.zero_()
    for i in range(self.group.rank, self.num_embeddings, self.group.size):
        param.data[i // self.group.size] = loaded_weight[i]
