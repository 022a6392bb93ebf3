# ruff: noqa
DIAGNOSIS = """
The end token is missing. It ends the text and is part of the answer: take the token first, and then ask whether it was the last.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(max_tokens):
        token_id = int(model(token_ids + answer).argmax())
        if token_id in eos:
            break
        answer.append(token_id)
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    while len(answer) < max_tokens:
        token_id = int(model([*token_ids, *answer]).argmax())
        if token_id in set(eos):
            return answer
        answer += [token_id]
    return answer
