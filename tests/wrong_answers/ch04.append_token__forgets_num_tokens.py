# ruff: noqa
DIAGNOSIS = """
The token is in the list, but num_tokens has not changed. So no block is ever added for it, the answer has no length, and the
request does not come to its end. A number that is stored has to be kept in step by hand.
"""


# --- first
def append_token(self, token_id):
    self.token_ids.append(token_id)
    self.last_token = token_id


# --- second
def append_token(self, token_id):
    self.last_token = token_id
    self.token_ids.extend([self.last_token])
