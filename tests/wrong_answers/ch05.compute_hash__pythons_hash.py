# ruff: noqa
DIAGNOSIS = """
Python's hash() gives a signed number: half of the time it is negative, and -1 means "no hash" here. It may also change
with the version of Python, so two processes need not agree. Take a hash function that is made for bytes, as xxhash is.
"""


# --- first
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    return hash((prefix, *token_ids))


# --- second
@staticmethod
def compute_hash(token_ids, prefix=NO_HASH):
    everything = (prefix,) + tuple(token_ids)
    return everything.__hash__()
