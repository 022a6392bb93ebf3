# ruff: noqa
DIAGNOSIS = """
Your tokens are cut to two bytes, so 70000 and 70000 - 65536 look the same. The vocabulary of a Qwen3 model has more than
150,000 tokens: use eight bytes for each, np.int64.
"""


# --- first
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    hasher = xxhash.xxh64()
    if prefix != NO_HASH:
        hasher.update(prefix.to_bytes(8, "little"))
    hasher.update(np.asarray(token_ids).astype(np.uint16).tobytes())
    return hasher.intdigest()


# --- second
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    data = b"" if prefix == NO_HASH else prefix.to_bytes(8, "little")
    data += b"".join((token_id % 65536).to_bytes(2, "big") for token_id in token_ids)
    return xxhash.xxh64_intdigest(data)
