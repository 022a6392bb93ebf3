# ruff: noqa
DIAGNOSIS = """
You also say that nothing is scheduled any more. Who appends does not know how much the step computes; that count belongs
to the scheduler, which sets it back by itself. Touch only what tells of the tokens.
"""


# --- first
def append_token(self, token_id):
    self.token_ids.append(token_id)
    self.last_token = token_id
    self.num_tokens += 1
    self.num_scheduled_tokens = 0


# --- second
def append_token(self, token_id):
    self.token_ids, self.num_scheduled_tokens = self.token_ids + [token_id], 0
    self.num_tokens, self.last_token = len(self.token_ids), token_id
