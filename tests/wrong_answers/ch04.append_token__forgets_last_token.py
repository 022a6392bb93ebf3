# ruff: noqa
DIAGNOSIS = """
last_token still names the token before. The next step would compute that one a second time, and the model would never see its
own newest token. Which attributes tell of the end of the list?
"""


# --- first
def append_token(self, token_id):
    self.token_ids.append(token_id)
    self.num_tokens += 1


# --- second
def append_token(self, token_id):
    self.token_ids += [token_id]
    self.num_tokens = len(self.token_ids)
