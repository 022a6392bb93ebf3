# ruff: noqa
DIAGNOSIS = """
You multiply by a small number and add the next token. Tokens can be larger than that number, and then different blocks
come to the same sum: with 31, [0, 31] and [1, 0] do. Take a hash function that is made for bytes, as xxhash is.
"""


# --- first
def compute_hash(token_ids, prefix=NO_HASH):
    value = prefix + 1
    for token_id in token_ids:
        value = (value * 31 + token_id) % 2**64
    return value


# --- second
from functools import reduce


def compute_hash(token_ids, prefix=NO_HASH):
    return reduce(lambda value, token_id: 31 * value + token_id, token_ids, prefix + 1) & (2**64 - 1)
