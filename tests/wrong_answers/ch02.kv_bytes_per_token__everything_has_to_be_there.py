# ruff: noqa
DIAGNOSIS = """
You read both fields with [...], which raises KeyError where a config does not have them. Real ones often do not; the
docstring says what to go by then.
"""


# --- first
def kv_bytes_per_token(config, element_size):
    return 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * element_size


# --- second
def kv_bytes_per_token(config, element_size):
    kv_heads, head_dim = config["num_key_value_heads"], config["head_dim"]
    return config["num_hidden_layers"] * (kv_heads * head_dim + kv_heads * head_dim) * element_size
