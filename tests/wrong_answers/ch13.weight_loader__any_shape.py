# ruff: noqa
DIAGNOSIS = """
Another shape is not refused. A slice of a table that is too short is short and says nothing, and torch repeats a
single column.
"""


# --- first
def weight_loader(self, param, loaded_weight):
    rows = loaded_weight[self.vocab_start : self.vocab_end]
    param.data[: len(rows)].copy_(rows)
    param.data[len(rows) :].zero_()


# --- second
def weight_loader(self, param, loaded_weight):
    rows = loaded_weight[self.vocab_start : self.vocab_end]
    param.data.zero_()
    param.data[: rows.shape[0]] = rows
