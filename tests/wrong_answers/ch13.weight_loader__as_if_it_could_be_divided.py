# ruff: noqa
DIAGNOSIS = """
It copies as many rows as the parameter has, on every rank. The last ranks have fewer, perhaps none.
"""


# --- first
def weight_loader(self, param, loaded_weight):
    if loaded_weight.shape != (self.num_embeddings, param.shape[1]):
        raise ValueError("another shape")
    param.data.copy_(loaded_weight[self.vocab_start : self.vocab_end])


# --- second
def weight_loader(self, param, loaded_weight):
    if list(loaded_weight.shape) != [self.num_embeddings, param.size(1)]:
        raise ValueError(f"got {tuple(loaded_weight.shape)}")
    param.data.copy_(loaded_weight[self.vocab_start :][: self.num_embeddings_per_rank])
