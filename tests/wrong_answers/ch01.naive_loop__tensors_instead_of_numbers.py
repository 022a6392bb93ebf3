# ruff: noqa
DIAGNOSIS = """
The ids are tensors that hold one number each. int(...) makes a plain number of one.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(max_tokens):
        answer.append(model(token_ids + answer).argmax())
        if int(answer[-1]) in eos:
            break
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    while len(answer) < max_tokens:
        token_id = torch.argmax(model([*token_ids, *answer]), dim=-1)
        answer += [token_id]
        if int(token_id) in eos:
            break
    return answer
