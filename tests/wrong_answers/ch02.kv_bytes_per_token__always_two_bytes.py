# ruff: noqa
DIAGNOSIS = """
You count two bytes for every number. That is right in bfloat16; element_size says what it is here.
"""


# --- first
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * 2 * config["num_hidden_layers"] * kv_heads * head_dim


# --- second
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = heads if config.get("num_key_value_heads") is None else config["num_key_value_heads"]
    dim = config["hidden_size"] // heads if config.get("head_dim") is None else config["head_dim"]
    return 4 * dim * kv_heads * config["num_hidden_layers"]
