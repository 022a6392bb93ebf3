# ruff: noqa
DIAGNOSIS = """
The first block of a prompt has no block before it: its prefix is -1, which is not a hash and cannot be written as an
unsigned number of eight bytes. Feed the prefix in only if it is not NO_HASH.
"""


# --- first
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    hasher = xxhash.xxh64()
    hasher.update(prefix.to_bytes(8, "little"))
    hasher.update(np.asarray(token_ids, dtype=np.int64).tobytes())
    return hasher.intdigest()


# --- second
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    numbers = [prefix, *token_ids]
    return xxhash.xxh64_intdigest(b"".join(int(number).to_bytes(8, "big") for number in numbers))
