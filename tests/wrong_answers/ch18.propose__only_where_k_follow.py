# ruff: noqa
DIAGNOSIS = """
You look only at places that at least k tokens follow. The latest place counts, and fewer than k tokens are welcome.
"""


# --- first
def propose(token_ids, n, k):
    for start in range(len(token_ids) - n - k, -1, -1):
        if token_ids[start : start + n] == token_ids[-n:]:
            return token_ids[start + n : start + n + k]
    return []


# --- second
def propose(token_ids, n, k):
    places = [i for i in range(len(token_ids) - n) if token_ids[i : i + n] == token_ids[-n:]]
    drafts = [token_ids[i + n : i + n + k] for i in places]
    drafts = [draft for draft in drafts if len(draft) == k]
    return drafts[-1] if drafts else []
