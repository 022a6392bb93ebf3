# ruff: noqa
DIAGNOSIS = """
You add the prefix to the hash of the tokens. A sum does not know the order: the blocks A, B and the blocks B, A get the
same name, though they are different prompts. Feed the prefix into the hash function, before the tokens.
"""


# --- first
def compute_hash(token_ids, prefix=NO_HASH):
    own = xxhash.xxh64(np.asarray(token_ids, dtype=np.int64).tobytes()).intdigest()
    return (own + prefix) % 2**64


# --- second
import hashlib


def compute_hash(token_ids, prefix=NO_HASH):
    text = ",".join(str(token_id) for token_id in token_ids)
    return (prefix + int(hashlib.sha256(text.encode()).hexdigest(), 16)) & (2**64 - 1)
