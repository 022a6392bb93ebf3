# ruff: noqa
DIAGNOSIS = """
Foreign ids are pressed into the range of rows, and the rows found there are added. A rank has zeros to give for a
token of another one.
"""


# --- first
def forward(self, token_ids):
    local_ids = (token_ids - self.vocab_start).clamp(0, self.num_embeddings_per_rank - 1)
    return self.group.all_reduce(F.embedding(local_ids, self.weight))


# --- second
def forward(self, token_ids):
    last = torch.tensor(len(self.weight) - 1)
    local_ids = torch.minimum(torch.relu(token_ids - self.vocab_start), last)
    return self.group.all_reduce(self.weight[local_ids])
