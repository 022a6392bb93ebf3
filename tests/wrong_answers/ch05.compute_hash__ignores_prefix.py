# ruff: noqa
DIAGNOSIS = """
You hash the tokens of this block alone. Then a block in the middle of one prompt is taken for the start of another,
and a sequence reads keys and values that belong to other words. Feed `prefix` into the hash, too.
"""


# --- first
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    hasher = xxhash.xxh64()
    hasher.update(np.asarray(token_ids, dtype=np.int64).tobytes())
    return hasher.intdigest()


# --- second
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    data = b"".join(int(token_id).to_bytes(8, "little") for token_id in token_ids)
    return xxhash.xxh64_intdigest(data)
