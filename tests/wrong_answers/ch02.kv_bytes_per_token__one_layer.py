# ruff: noqa
DIAGNOSIS = """
You count the keys and values of one layer. Every layer has its own attention, and so its own keys and values of each
token.
"""


# --- first
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * kv_heads * head_dim * element_size


# --- second
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = heads if config.get("num_key_value_heads") is None else config["num_key_value_heads"]
    dim = config["hidden_size"] // heads if config.get("head_dim") is None else config["head_dim"]
    return element_size * dim * kv_heads + element_size * dim * kv_heads
