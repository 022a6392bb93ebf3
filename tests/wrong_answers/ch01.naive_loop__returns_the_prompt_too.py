# ruff: noqa
DIAGNOSIS = """
The answer begins with the prompt. The caller has that already; only the new tokens are asked for.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    text = list(token_ids)
    for _ in range(max_tokens):
        text.append(int(model(text).argmax()))
        if text[-1] in eos:
            break
    return text


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    text = token_ids[:]
    while len(text) < len(token_ids) + max_tokens:
        token_id = model(text).argmax().item()
        text = text + [token_id]
        if token_id in eos:
            return text
    return text
