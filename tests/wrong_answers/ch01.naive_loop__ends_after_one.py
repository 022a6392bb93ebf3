# ruff: noqa
DIAGNOSIS = """
The answer ends after its first token, which is no end token, although more are allowed.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(max_tokens):
        answer.append(int(model(token_ids + answer).argmax()))
        if answer[-1] in eos:
            break
        return answer
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    while len(answer) < max_tokens:
        answer += [int(model([*token_ids, *answer]).argmax())]
        break
    return answer
