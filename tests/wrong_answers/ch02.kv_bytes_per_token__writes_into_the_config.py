# ruff: noqa
DIAGNOSIS = """
You put the missing fields into the config. It is the caller's, and says something else to everybody now.
"""


# --- first
def kv_bytes_per_token(config, element_size):
    config.setdefault("num_key_value_heads", None)
    config.setdefault("head_dim", None)
    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"] or heads
    head_dim = config["head_dim"] or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * element_size


# --- second
def kv_bytes_per_token(config, element_size):
    for name in ("num_key_value_heads", "head_dim"):
        if name not in config:
            config[name] = None
    heads = config["num_attention_heads"]
    kv_heads = heads if config["num_key_value_heads"] is None else config["num_key_value_heads"]
    head_dim = config["hidden_size"] // heads if config["head_dim"] is None else config["head_dim"]
    return config["num_hidden_layers"] * 2 * kv_heads * head_dim * element_size
