# ruff: noqa
DIAGNOSIS = """
The row of every token is looked up on every rank. A rank has no row for a token of another one: that index is
outside, and has to be masked before the lookup.
"""


# --- first
def forward(self, token_ids):
    return self.group.all_reduce(F.embedding(token_ids - self.vocab_start, self.weight))


# --- second
def forward(self, token_ids):
    rows = torch.nn.functional.embedding(token_ids - self.vocab_start, self.weight)
    self.group.all_reduce(rows)
    return rows
