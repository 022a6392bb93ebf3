# ruff: noqa
DIAGNOSIS = """
You put the prefix and the tokens into one array. A hash may be larger than any int64, and NumPy then makes floats of all
of them: the last digits of the prefix are lost, and different prefixes become the same. Give the prefix its own bytes.
"""


# --- first
def compute_hash(token_ids, prefix=NO_HASH):
    return xxhash.xxh64(np.asarray([prefix, *token_ids]).tobytes()).intdigest()


# --- second
def compute_hash(token_ids, prefix=NO_HASH):
    hasher = xxhash.xxh64()
    hasher.update(np.array([float(prefix)]).tobytes())
    hasher.update(np.asarray(token_ids, dtype=np.int64).tobytes())
    return hasher.intdigest()
