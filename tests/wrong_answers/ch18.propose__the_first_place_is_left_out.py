# ruff: noqa
DIAGNOSIS = """
The very beginning of the text is never looked at: what stands there counts like any other place.
"""


# --- first
def propose(token_ids, n, k):
    for start in range(len(token_ids) - n - 1, 0, -1):
        if token_ids[start : start + n] == token_ids[-n:]:
            return token_ids[start + n : start + n + k]
    return []


# --- second
def propose(token_ids, n, k):
    start = len(token_ids) - n - 1
    while start >= 1:
        if token_ids[start : start + n] == token_ids[len(token_ids) - n :]:
            return token_ids[start + n :][:k]
        start -= 1
    return []
