# ruff: noqa
DIAGNOSIS = """
Prompt and answer together have max_tokens tokens. The number is meant for the new ones alone.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    text = list(token_ids)
    while len(text) < max_tokens:
        text.append(int(model(text).argmax()))
        if text[-1] in eos:
            break
    return text[len(token_ids) :]


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(max_tokens - len(token_ids)):
        answer += [int(model([*token_ids, *answer]).argmax())]
        if answer[-1] in eos:
            return answer
    return answer
