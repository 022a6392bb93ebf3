# ruff: noqa
DIAGNOSIS = """
You count the new token as cached. But the model has only chosen it, not read it: its keys and values do not exist yet. The
next step would find nothing left to compute. num_cached_tokens grows when a step has run.
"""


# --- first
def append_token(self, token_id):
    self.token_ids.append(token_id)
    self.last_token = token_id
    self.num_tokens += 1
    self.num_cached_tokens += 1


# --- second
def append_token(self, token_id):
    self.token_ids.append(token_id)
    self.last_token = token_id
    self.num_tokens = len(self.token_ids)
    self.num_cached_tokens = self.num_cached_tokens + 1
