# ruff: noqa
DIAGNOSIS = """
Every rank copies the first rows of the table; its own begin at vocab_start.
"""


# --- first
def weight_loader(self, param, loaded_weight):
    if loaded_weight.shape != (self.num_embeddings, param.shape[1]):
        raise ValueError("another shape")
    rows = loaded_weight[: len(param)]
    param.data[: len(rows)].copy_(rows)
    param.data[len(rows) :].zero_()


# --- second
def weight_loader(self, param, loaded_weight):
    if list(loaded_weight.shape) != [self.num_embeddings, param.size(1)]:
        raise ValueError(f"got {tuple(loaded_weight.shape)}")
    param.data.zero_()
    param.data[:] = loaded_weight.narrow(0, 0, param.shape[0])
