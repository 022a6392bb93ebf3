# ruff: noqa
DIAGNOSIS = """
A rank that holds none of the tokens skips the all-reduce, and the others wait for it for ever. Every rank takes part,
with zeros.
"""


# --- first
def forward(self, token_ids):
    is_mine = (token_ids >= self.vocab_start) & (token_ids < self.vocab_end)
    if not is_mine.any():
        return torch.zeros(len(token_ids), self.weight.shape[1], dtype=self.weight.dtype)
    local_ids = torch.where(is_mine, token_ids - self.vocab_start, 0)
    return self.group.all_reduce(F.embedding(local_ids, self.weight) * is_mine.unsqueeze(-1))


# --- second
def forward(self, token_ids):
    rows = torch.zeros(len(token_ids), self.weight.shape[1], dtype=self.weight.dtype)
    is_mine = (token_ids >= self.vocab_start) & (token_ids < self.vocab_end)
    rows[is_mine] = self.weight[token_ids[is_mine] - self.vocab_start]
    return self.group.all_reduce(rows) if is_mine.sum() > 0 else rows
