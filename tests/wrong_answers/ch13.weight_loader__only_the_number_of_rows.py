# ruff: noqa
DIAGNOSIS = """
Only the number of rows is looked at: a table of another width is not refused, and torch repeats a single column.
"""


# --- first
def weight_loader(self, param, loaded_weight):
    if len(loaded_weight) != self.num_embeddings:
        raise ValueError("another number of rows")
    rows = loaded_weight[self.vocab_start : self.vocab_end]
    param.data[: len(rows)].copy_(rows)
    param.data[len(rows) :].zero_()


# --- second
def weight_loader(self, param, loaded_weight):
    if loaded_weight.shape[0] != self.num_embeddings:
        raise ValueError(f"got {loaded_weight.shape[0]} rows")
    rows = loaded_weight[self.vocab_start : self.vocab_end]
    param.data.zero_()
    param.data[: rows.shape[0]] = rows
