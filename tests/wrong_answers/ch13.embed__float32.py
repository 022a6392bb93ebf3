# ruff: noqa
DIAGNOSIS = """
The mask was made float32, and so is the result: it has to stay in the dtype of the weight.
"""


# --- first
def forward(self, token_ids):
    is_mine = (token_ids >= self.vocab_start) & (token_ids < self.vocab_end)
    local_ids = torch.where(is_mine, token_ids - self.vocab_start, 0)
    return self.group.all_reduce(F.embedding(local_ids, self.weight) * is_mine.float().unsqueeze(-1))


# --- second
def forward(self, token_ids):
    rows = torch.zeros(len(token_ids), self.weight.shape[1])
    is_mine = (token_ids >= self.vocab_start) & (token_ids < self.vocab_end)
    rows[is_mine] = self.weight[token_ids[is_mine] - self.vocab_start].float()
    return self.group.all_reduce(rows)
