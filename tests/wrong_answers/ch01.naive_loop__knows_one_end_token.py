# ruff: noqa
DIAGNOSIS = """
The text ended with an end token, but not with the first one. eos may hold several ids; each of them ends it.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    end = next(iter(eos), None)
    answer = []
    for _ in range(max_tokens):
        answer.append(int(model(token_ids + answer).argmax()))
        if answer[-1] == end:
            break
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    while len(answer) < max_tokens:
        answer.append(int(model([*token_ids, *answer]).argmax()))
        if list(eos)[:1] == answer[-1:]:
            return answer
    return answer
