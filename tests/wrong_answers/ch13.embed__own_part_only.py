# ruff: noqa
DIAGNOSIS = """
The parts are not added up: each rank has zeros for the tokens of the others, and needs their rows.
"""


# --- first
def forward(self, token_ids):
    is_mine = (token_ids >= self.vocab_start) & (token_ids < self.vocab_end)
    local_ids = torch.where(is_mine, token_ids - self.vocab_start, 0)
    return F.embedding(local_ids, self.weight) * is_mine.unsqueeze(-1)


# --- second
def forward(self, token_ids):
    local = token_ids - self.vocab_start
    is_here = (local >= 0) & (local < len(self.weight))
    return self.weight[local * is_here] * is_here[:, None]
