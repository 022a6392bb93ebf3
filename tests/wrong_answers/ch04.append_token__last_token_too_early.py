# ruff: noqa
DIAGNOSIS = """
You take last_token from the list before the new token is in it, so it is one behind. Look at the order of your lines.
"""


# --- first
def append_token(self, token_id):
    self.last_token = self.token_ids[-1]
    self.token_ids.append(token_id)
    self.num_tokens += 1


# --- second
def append_token(self, token_id):
    self.token_ids.append(token_id)
    self.last_token = self.token_ids[self.num_tokens - 1]
    self.num_tokens = len(self.token_ids)
