# ruff: noqa
DIAGNOSIS = """
Prefix 0 gives the same hash as no prefix, perhaps because 0 counts as false. 0 is a hash like any other (rare, but legal); only
NO_HASH, which is -1, means that there is no block before.
"""


# --- first
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    hasher = xxhash.xxh64()
    if prefix > 0:
        hasher.update(prefix.to_bytes(8, "little"))
    hasher.update(np.asarray(token_ids, dtype=np.int64).tobytes())
    return hasher.intdigest()


# --- second
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    before = max(prefix, 0)
    numbers = [before, *token_ids] if before else list(token_ids)
    return xxhash.xxh64_intdigest(b"".join(number.to_bytes(8, "big") for number in numbers))
