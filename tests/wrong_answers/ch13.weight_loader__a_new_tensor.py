# ruff: noqa
DIAGNOSIS = """
The rows are right, but in a memory of their own: a head that is tied to the embedding keeps the old one. They have to
be copied into the parameter's memory.
"""


# --- first
def weight_loader(self, param, loaded_weight):
    if loaded_weight.shape != (self.num_embeddings, param.shape[1]):
        raise ValueError("another shape")
    rows = loaded_weight[self.vocab_start : self.vocab_end]
    param.data = torch.cat((rows, rows.new_zeros(len(param) - len(rows), rows.shape[1]))).to(param.dtype)


# --- second
def weight_loader(self, param, loaded_weight):
    if list(loaded_weight.shape) != [self.num_embeddings, param.size(1)]:
        raise ValueError(f"got {tuple(loaded_weight.shape)}")
    rows = loaded_weight[self.vocab_start : self.vocab_end].to(param.dtype)
    param.data = F.pad(rows, (0, 0, 0, param.shape[0] - rows.shape[0]))
