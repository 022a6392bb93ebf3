# ruff: noqa
DIAGNOSIS = """
Every row is one too late: the first is that of vocab_start itself.
"""


# --- first
def weight_loader(self, param, loaded_weight):
    if loaded_weight.shape != (self.num_embeddings, param.shape[1]):
        raise ValueError("another shape")
    rows = loaded_weight[self.vocab_start + 1 : self.vocab_end + 1]
    param.data[: len(rows)].copy_(rows)
    param.data[len(rows) :].zero_()


# --- second
def weight_loader(self, param, loaded_weight):
    if list(loaded_weight.shape) != [self.num_embeddings, param.size(1)]:
        raise ValueError(f"got {tuple(loaded_weight.shape)}")
    param.data.zero_()
    for i in range(self.vocab_start + 1, min(self.vocab_end + 1, self.num_embeddings)):
        param.data[i - self.vocab_start - 1] = loaded_weight[i]
