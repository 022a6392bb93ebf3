# ruff: noqa
DIAGNOSIS = """
Every call of the model got the prompt alone, so it said the same each time. Where do the new tokens get into what it reads?
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(max_tokens):
        token_id = int(model(token_ids).argmax())
        answer.append(token_id)
        if token_id in eos:
            break
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    text = list(token_ids)
    answer = []
    while len(answer) < max_tokens and not set(answer) & set(eos):
        answer = answer + [model(text).argmax().item()]
    return answer
