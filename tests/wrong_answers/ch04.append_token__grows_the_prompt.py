# ruff: noqa
DIAGNOSIS = """
You make the prompt longer. The new token belongs to the answer, and where the prompt ends is what tells the two apart: now the
answer would stay empty for ever. What came with the request does not change.
"""


# --- first
def append_token(self, token_id):
    self.token_ids.append(token_id)
    self.last_token = token_id
    self.num_tokens += 1
    self.num_prompt_tokens += 1


# --- second
def append_token(self, token_id):
    self.token_ids.append(token_id)
    self.last_token = token_id
    self.num_tokens = len(self.token_ids)
    self.num_prompt_tokens = self.num_prompt_tokens + 1
