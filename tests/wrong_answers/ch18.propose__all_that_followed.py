# ruff: noqa
DIAGNOSIS = """
You propose all that followed, up to the end of the text. At most k tokens are wanted: each of them makes the call longer.
"""


# --- first
def propose(token_ids, n, k):
    for start in range(len(token_ids) - n - 1, -1, -1):
        if token_ids[start : start + n] == token_ids[-n:]:
            return token_ids[start + n :]
    return []


# --- second
def propose(token_ids, n, k):
    tail, found = token_ids[-n:], None
    for start in range(len(token_ids) - n):
        if token_ids[start : start + n] == tail:
            found = start
    return [] if found is None else token_ids[found + n :]
