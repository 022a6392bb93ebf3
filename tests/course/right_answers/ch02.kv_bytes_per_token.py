# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def kv_bytes_per_token(config, element_size):
    get = lambda name, otherwise: otherwise if config.get(name, None) is None else config[name]
    queries = config["num_attention_heads"]
    numbers = 0
    for layer in range(config["num_hidden_layers"]):
        for head in range(get("num_key_value_heads", queries)):
            key = value = get("head_dim", round(config["hidden_size"] / queries))
            numbers += key + value
    return numbers * element_size
