# ruff: noqa
DIAGNOSIS = """
Of several places you take the earliest. The latest counts: what was written last resembles most what comes next.
"""


# --- first
def propose(token_ids, n, k):
    for start in range(len(token_ids) - n):
        if token_ids[start : start + n] == token_ids[-n:]:
            return token_ids[start + n : start + n + k]
    return []


# --- second
def propose(token_ids, n, k):
    tail, found = token_ids[-n:], None
    for start in range(len(token_ids) - n):
        if token_ids[start : start + n] == tail:
            found = start if found is None else found
    return [] if found is None else token_ids[found + n :][:k]
