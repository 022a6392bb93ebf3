# ruff: noqa
DIAGNOSIS = """
Your proposal begins with the tokens that were looked for. The text has them already: what followed them is wanted.
"""


# --- first
def propose(token_ids, n, k):
    for start in range(len(token_ids) - n - 1, -1, -1):
        if token_ids[start : start + n] == token_ids[-n:]:
            return token_ids[start : start + k]
    return []


# --- second
def propose(token_ids, n, k):
    tail, found = token_ids[-n:], None
    for start in range(len(token_ids) - n):
        if token_ids[start : start + n] == tail:
            found = start
    return [] if found is None else token_ids[found:][:k]
