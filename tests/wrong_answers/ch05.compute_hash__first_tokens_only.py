# ruff: noqa
DIAGNOSIS = """
You hash a fixed number of tokens, and a block may hold more. Two blocks that differ behind that point get the same name,
and one request reads what belongs to another. Hash all of token_ids, however many there are.
"""


# --- first
def compute_hash(token_ids, prefix=NO_HASH):
    hasher = xxhash.xxh64()
    if prefix != NO_HASH:
        hasher.update(prefix.to_bytes(8, "little"))
    hasher.update(np.asarray(token_ids[:4], dtype=np.int64).tobytes())
    return hasher.intdigest()


# --- second
def compute_hash(token_ids, prefix=NO_HASH):
    words = ["first" if prefix == NO_HASH else str(prefix)]
    for i in range(min(4, len(token_ids))):
        words.append(str(token_ids[i]))
    return xxhash.xxh64(" ".join(words).encode()).intdigest()
