# ruff: noqa
DIAGNOSIS = """
You leave out the places that overlap with the end. They are as good as others: where a token comes again and again, the
place just before says so.
"""


# --- first
def propose(token_ids, n, k):
    for start in range(len(token_ids) - 2 * n, -1, -1):
        if token_ids[start : start + n] == token_ids[-n:]:
            return token_ids[start + n : start + n + k]
    return []


# --- second
def propose(token_ids, n, k):
    tail, found = token_ids[-n:], None
    for start in range(len(token_ids) - 2 * n + 1):
        if token_ids[start : start + n] == tail:
            found = start
    return [] if found is None else token_ids[found + n :][:k]
