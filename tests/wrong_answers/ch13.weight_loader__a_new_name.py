# ruff: noqa
DIAGNOSIS = """
Nothing arrives: param = ... only gives the name to another tensor. The rows have to be copied into the parameter's
memory.
"""


# --- first
def weight_loader(self, param, loaded_weight):
    if loaded_weight.shape != (self.num_embeddings, param.shape[1]):
        raise ValueError("another shape")
    rows = loaded_weight[self.vocab_start : self.vocab_end]
    param = torch.cat((rows, rows.new_zeros(len(param) - len(rows), rows.shape[1])))


# --- second
def weight_loader(self, param, loaded_weight):
    if list(loaded_weight.shape) != [self.num_embeddings, param.size(1)]:
        raise ValueError(f"got {tuple(loaded_weight.shape)}")
    rows = loaded_weight[self.vocab_start : self.vocab_end]
    param = nn.Parameter(F.pad(rows, (0, 0, 0, param.shape[0] - rows.shape[0])), requires_grad=False)
