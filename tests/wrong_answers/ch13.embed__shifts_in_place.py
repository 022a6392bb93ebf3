# ruff: noqa
DIAGNOSIS = """
token_ids is changed: -= writes into the caller's tensor. token_ids - vocab_start is a new one.
"""


# --- first
def forward(self, token_ids):
    if self.group.size == 1:
        return F.embedding(token_ids, self.weight)
    is_mine = (token_ids >= self.vocab_start) & (token_ids < self.vocab_end)
    token_ids -= self.vocab_start
    token_ids[~is_mine] = 0
    return self.group.all_reduce(F.embedding(token_ids, self.weight) * is_mine.unsqueeze(-1))


# --- second
def forward(self, token_ids):
    if self.group.size < 2:
        return self.weight[token_ids]
    foreign = (token_ids < self.vocab_start) | (token_ids >= self.vocab_end)
    rows = self.weight[token_ids.sub_(self.vocab_start).masked_fill_(foreign, 0)]
    return self.group.all_reduce(rows.masked_fill(foreign[:, None], 0))
