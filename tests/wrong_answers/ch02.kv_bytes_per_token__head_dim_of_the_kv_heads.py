# ruff: noqa
DIAGNOSIS = """
Without head_dim, you share hidden_size among the KV heads. It is shared among the attention heads; a KV head is as
long as one of them, there are only fewer.
"""


# --- first
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // kv_heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * element_size


# --- second
def kv_bytes_per_token(config, element_size):
    kv_heads = config.get("num_key_value_heads")
    kv_heads = config["num_attention_heads"] if kv_heads is None else kv_heads
    head_dim = config.get("head_dim")
    if head_dim is None:
        head_dim = int(config["hidden_size"] / kv_heads)
    return config["num_hidden_layers"] * kv_heads * head_dim * 2 * element_size
