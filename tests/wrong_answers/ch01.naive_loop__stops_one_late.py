# ruff: noqa
DIAGNOSIS = """
After the end token there is one token more. Ask about the token that has just been chosen.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer, last = [], None
    while len(answer) < max_tokens:
        token_id = int(model(token_ids + answer).argmax())
        answer.append(token_id)
        if last in eos:
            break
        last = token_id
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(max_tokens):
        answer.append(int(model([*token_ids, *answer]).argmax()))
        if len(answer) > 1 and answer[-2] in eos:
            break
    return answer
