# ruff: noqa
DIAGNOSIS = """
You find the end of the text itself: of course the last tokens stand there. Nothing follows it, so nothing is ever proposed.
"""


# --- first
def propose(token_ids, n, k):
    for start in range(len(token_ids) - n, -1, -1):
        if token_ids[start : start + n] == token_ids[-n:]:
            return token_ids[start + n : start + n + k]
    return []


# --- second
def propose(token_ids, n, k):
    tail, found = token_ids[-n:], None
    for start in range(len(token_ids) - n + 1):
        if token_ids[start : start + n] == tail:
            found = start
    return [] if found is None else token_ids[found + n :][:k]
