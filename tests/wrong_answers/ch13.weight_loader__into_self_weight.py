# ruff: noqa
DIAGNOSIS = """
It writes into self.weight. The parameter to fill is `param`.
"""


# --- first
def weight_loader(self, param, loaded_weight):
    if loaded_weight.shape != (self.num_embeddings, param.shape[1]):
        raise ValueError("another shape")
    rows = loaded_weight[self.vocab_start : self.vocab_end]
    self.weight.data[: len(rows)].copy_(rows)
    self.weight.data[len(rows) :].zero_()


# --- second
def weight_loader(self, param, loaded_weight):
    if list(loaded_weight.shape) != [self.num_embeddings, param.size(1)]:
        raise ValueError(f"got {tuple(loaded_weight.shape)}")
    self.weight.data.zero_()
    for i in range(self.vocab_start, min(self.vocab_end, self.num_embeddings)):
        self.weight.data[i - self.vocab_start] = loaded_weight[i]
