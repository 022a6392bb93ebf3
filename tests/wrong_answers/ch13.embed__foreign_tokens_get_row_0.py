# ruff: noqa
DIAGNOSIS = """
A token of another rank looks up row 0 of this one, and that row is added: the mask has to make it zero after the
lookup, too.
"""


# --- first
def forward(self, token_ids):
    is_mine = (token_ids >= self.vocab_start) & (token_ids < self.vocab_end)
    local_ids = torch.where(is_mine, token_ids - self.vocab_start, 0)
    return self.group.all_reduce(F.embedding(local_ids, self.weight))


# --- second
def forward(self, token_ids):
    local = (token_ids - self.vocab_start) * ((token_ids >= self.vocab_start) & (token_ids < self.vocab_end))
    rows = self.weight[local]
    self.group.all_reduce(rows)
    return rows
