# ruff: noqa
DIAGNOSIS = """
The text went on after an end token, up to max_tokens. eos holds all the ids that end a text: is the new token one of them?
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(max_tokens):
        answer.append(int(model(token_ids + answer).argmax()))
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    while len(answer) < max_tokens:
        token_id = int(model([*token_ids, *answer]).argmax())
        answer.append(token_id)
        if token_id == eos:
            break
    return answer
