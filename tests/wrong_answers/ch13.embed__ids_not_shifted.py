# ruff: noqa
DIAGNOSIS = """
The ids are not shifted: row 0 of this rank is that of token vocab_start, so the row of a token is its id minus
vocab_start.
"""


# --- first
def forward(self, token_ids):
    is_mine = (token_ids >= self.vocab_start) & (token_ids < self.vocab_end)
    local_ids = torch.where(is_mine, token_ids, 0)
    return self.group.all_reduce(F.embedding(local_ids, self.weight) * is_mine.unsqueeze(-1))


# --- second
def forward(self, token_ids):
    foreign = (token_ids < self.vocab_start) | (token_ids >= self.vocab_end)
    rows = F.embedding(token_ids.masked_fill(foreign, 0), self.weight)
    return self.group.all_reduce(rows.masked_fill(foreign[:, None], 0))
