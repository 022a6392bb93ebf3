# ruff: noqa
DIAGNOSIS = """
The rows beyond the vocabulary stay as they were, and that may be anything: they have to be set to zero.
"""


# --- first
def weight_loader(self, param, loaded_weight):
    if loaded_weight.shape != (self.num_embeddings, param.shape[1]):
        raise ValueError("another shape")
    rows = loaded_weight[self.vocab_start : self.vocab_end]
    param.data[: len(rows)].copy_(rows)


# --- second
def weight_loader(self, param, loaded_weight):
    if list(loaded_weight.shape) != [self.num_embeddings, param.size(1)]:
        raise ValueError(f"got {tuple(loaded_weight.shape)}")
    for i in range(self.vocab_start, min(self.vocab_end, self.num_embeddings)):
        param.data[i - self.vocab_start] = loaded_weight[i]
