# ruff: noqa
DIAGNOSIS = """
You turn the tokens into text without anything between them, so [1, 23] and [12, 3] become the same "123". Give every
token the same number of bytes, for example as a NumPy array of int64.
"""


# --- first
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    hasher = xxhash.xxh64()
    if prefix != NO_HASH:
        hasher.update(prefix.to_bytes(8, "little"))
    hasher.update("".join(str(token_id) for token_id in token_ids).encode())
    return hasher.intdigest()


# --- second
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    text = "" if prefix == NO_HASH else f"{prefix}:"
    for token_id in token_ids:
        text += str(token_id)
    return xxhash.xxh64_intdigest(text.encode())
