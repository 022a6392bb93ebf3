# ruff: noqa
DIAGNOSIS = """
You divide with /, which gives a float of Python even where nothing is left over. Bytes are whole; // keeps them so.
"""


# --- first
def kv_bytes_per_token(config, element_size):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] / heads
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * element_size


# --- second
def kv_bytes_per_token(config, element_size):
    kv_heads, head_dim = config.get("num_key_value_heads"), config.get("head_dim")
    if kv_heads is None:
        kv_heads = config["num_attention_heads"]
    if head_dim is None:
        head_dim = config["hidden_size"] / config["num_attention_heads"]
    return head_dim * kv_heads * 2 * config["num_hidden_layers"] * element_size
