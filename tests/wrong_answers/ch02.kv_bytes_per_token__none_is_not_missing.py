# ruff: noqa
DIAGNOSIS = """
config.get(name, default) gives the default only where the name is missing. Where it is there, with None behind it,
you get None; that means the same, and json files write it as null.
"""


# --- first
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * element_size


# --- second
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"] if "num_key_value_heads" in config else heads
    head_dim = config["head_dim"] if "head_dim" in config else config["hidden_size"] // heads
    return config["num_hidden_layers"] * 2 * kv_heads * head_dim * element_size
