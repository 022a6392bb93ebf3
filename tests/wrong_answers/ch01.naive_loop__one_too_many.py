# ruff: noqa
DIAGNOSIS = """
That is one token more than max_tokens. How many tokens are there when the loop asks whether to go on?
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    while len(answer) <= max_tokens:
        answer.append(int(model(token_ids + answer).argmax()))
        if answer[-1] in eos:
            break
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for i in range(max_tokens + 1):
        token_id = int(model([*token_ids, *answer]).argmax())
        answer += [token_id]
        if token_id in eos:
            return answer
    return answer
