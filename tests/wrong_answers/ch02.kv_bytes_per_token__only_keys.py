# ruff: noqa
DIAGNOSIS = """
You count one vector for each head and layer. A token leaves two behind: its key, by which later tokens find it, and
its value, which is what they get.
"""


# --- first
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return config["num_hidden_layers"] * kv_heads * head_dim * element_size


# --- second
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = heads if config.get("num_key_value_heads") is None else config["num_key_value_heads"]
    head_dim = config["hidden_size"] // heads if config.get("head_dim") is None else config["head_dim"]
    one_layer = kv_heads * head_dim * element_size
    return sum(one_layer for _ in range(config["num_hidden_layers"]))
