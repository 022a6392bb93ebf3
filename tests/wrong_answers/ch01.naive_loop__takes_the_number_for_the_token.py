# ruff: noqa
DIAGNOSIS = """
That is the largest number itself, cut to an integer. The token is its place in the row, and argmax gives that.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(max_tokens):
        answer.append(int(model(token_ids + answer).max()))
        if answer[-1] in eos:
            break
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    while len(answer) < max_tokens:
        token_id = int(max(model([*token_ids, *answer]).tolist()))
        answer.append(token_id)
        if token_id in eos:
            break
    return answer
