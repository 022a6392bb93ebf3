# ruff: noqa
DIAGNOSIS = """
One token is missing: the answer may have as many as max_tokens.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(1, max_tokens):
        answer.append(int(model(token_ids + answer).argmax()))
        if answer[-1] in eos:
            break
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    while len(answer) + 1 < max_tokens:
        token_id = model(list(token_ids) + answer).argmax().item()
        answer.append(token_id)
        if token_id in eos:
            break
    return answer
