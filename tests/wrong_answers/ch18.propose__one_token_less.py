# ruff: noqa
DIAGNOSIS = """
You propose one token less than there could be: k tokens are allowed, as far as the text has them.
"""


# --- first
def propose(token_ids, n, k):
    for start in range(len(token_ids) - n - 1, -1, -1):
        if token_ids[start : start + n] == token_ids[-n:]:
            return token_ids[start + n : start + n + k - 1]
    return []


# --- second
def propose(token_ids, n, k):
    tail, found = token_ids[-n:], None
    for start in range(len(token_ids) - n):
        if token_ids[start : start + n] == tail:
            found = start
    return [] if found is None else token_ids[found + n :][: k - 1]
