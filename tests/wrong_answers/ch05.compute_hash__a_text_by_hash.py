# ruff: noqa
DIAGNOSIS = """
Python's hash() of a text begins with another number in each process (against attacks on dictionaries), and so do hashes of
bytes. What one process has cached no other one would find, nor the same one after a restart. xxhash gives the same everywhere.
"""


# --- first
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    return hash(f"{prefix}: {list(token_ids)}") & (2**64 - 1)


# --- second
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    data = np.asarray(token_ids, dtype=np.int64).tobytes()
    return hash(str(prefix).encode() + b":" + data) % 2**64
