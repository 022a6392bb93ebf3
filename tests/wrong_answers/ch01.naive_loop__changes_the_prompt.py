# ruff: noqa
DIAGNOSIS = """
The new tokens were put into the list that the caller passed. It belongs to the caller, who may want to use the same prompt again. Where
else could they be collected?
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    start = len(token_ids)
    for _ in range(max_tokens):
        token_ids.append(int(model(token_ids).argmax()))
        if token_ids[-1] in eos:
            break
    return token_ids[start:]


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    text = token_ids
    while len(answer) < max_tokens:
        token_id = int(model(text).argmax())
        answer.append(token_id)
        text += [token_id]
        if token_id in eos:
            break
    return answer
