# ruff: noqa
DIAGNOSIS = """
Where num_key_value_heads is missing, you count one KV head. It is missing in models that are older than sharing:
there, each attention head has keys and values of its own.
"""


# --- first
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or 1
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * element_size


# --- second
def kv_bytes_per_token(config, element_size):
    heads, kv_heads = config["num_attention_heads"], 1
    if config.get("num_key_value_heads") is not None:
        kv_heads = config["num_key_value_heads"]
    head_dim = config.get("head_dim")
    if head_dim is None:
        head_dim = config["hidden_size"] // heads
    return config["num_hidden_layers"] * 2 * kv_heads * head_dim * element_size
