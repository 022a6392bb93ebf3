# ruff: noqa
DIAGNOSIS = """
You always divide hidden_size by the attention heads. That was so in older models; newer ones say head_dim, and it
need not be that quotient.
"""


# --- first
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    return 2 * config["num_hidden_layers"] * kv_heads * (config["hidden_size"] // heads) * element_size


# --- second
def kv_bytes_per_token(config, element_size):
    kv_heads = config.get("num_key_value_heads")
    if kv_heads is None:
        kv_heads = config["num_attention_heads"]
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    key = kv_heads * head_dim * element_size
    return (key + key) * config["num_hidden_layers"]
