# ruff: noqa
DIAGNOSIS = """
Every rank gives a row for every token: the remainder of a foreign id is the row of another token.
"""


# --- first
def forward(self, token_ids):
    return self.group.all_reduce(F.embedding(token_ids % self.num_embeddings_per_rank, self.weight))


# --- second
def forward(self, token_ids):
    rows = self.weight[(token_ids - self.vocab_start).remainder(len(self.weight))]
    return self.group.all_reduce(rows)
