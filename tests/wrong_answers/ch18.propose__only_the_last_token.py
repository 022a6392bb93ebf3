# ruff: noqa
DIAGNOSIS = """
You look for the last token alone. All of the last n have to stand there, in this order.
"""


# --- first
def propose(token_ids, n, k):
    for start in range(len(token_ids) - n - 1, -1, -1):
        if token_ids[start + n - 1] == token_ids[-1]:
            return token_ids[start + n : start + n + k]
    return []


# --- second
def propose(token_ids, n, k):
    tail, found = token_ids[-1], None
    for start in range(len(token_ids) - n):
        if token_ids[start + n - 1] == tail:
            found = start
    return [] if found is None else token_ids[found + n :][:k]
