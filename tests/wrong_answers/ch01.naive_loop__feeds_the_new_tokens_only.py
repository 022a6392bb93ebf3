# ruff: noqa
DIAGNOSIS = """
The model was given the new tokens without the prompt. It has no memory of the prompt: every call needs the whole text.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(max_tokens):
        answer.append(int(model(answer or token_ids).argmax()))
        if answer[-1] in eos:
            break
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = [int(model(token_ids).argmax())]
    while len(answer) < max_tokens and answer[-1] not in eos:
        answer.append(int(model(answer).argmax()))
    return answer
