# ruff: noqa
DIAGNOSIS = """
You multiply by the attention heads. They are the heads of the queries, which are not kept; where several of them
share a KV head, there are fewer keys and values: num_key_value_heads.
"""


# --- first
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * heads * head_dim * element_size


# --- second
def kv_bytes_per_token(config, element_size):
    width = config["hidden_size"]
    if config.get("head_dim") is not None:
        width = config["num_attention_heads"] * config["head_dim"]
    return config["num_hidden_layers"] * 2 * width * element_size
