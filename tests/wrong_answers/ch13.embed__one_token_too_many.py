# ruff: noqa
DIAGNOSIS = """
The mask includes vocab_end, which is the first token of the next rank: this rank has no row for it.
"""


# --- first
def forward(self, token_ids):
    is_mine = (token_ids >= self.vocab_start) & (token_ids <= self.vocab_end)
    local_ids = torch.where(is_mine, token_ids - self.vocab_start, 0)
    return self.group.all_reduce(F.embedding(local_ids, self.weight) * is_mine.unsqueeze(-1))


# --- second
def forward(self, token_ids):
    local = token_ids - self.vocab_start
    foreign = (local < 0) | (local > self.num_embeddings_per_rank)
    rows = F.embedding(local.masked_fill(foreign, 0), self.weight)
    return self.group.all_reduce(rows.masked_fill(foreign[:, None], 0))
