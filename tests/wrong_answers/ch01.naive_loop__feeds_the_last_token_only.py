# ruff: noqa
DIAGNOSIS = """
The model was given the newest token alone. It has no memory: what it is not told in this call, it does not know. It needs the
prompt and everything that has been written so far.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    logits = model(token_ids)
    for _ in range(max_tokens):
        token_id = int(logits.argmax())
        answer.append(token_id)
        if token_id in eos:
            break
        logits = model([token_id])
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer, text = [], list(token_ids)
    while len(answer) < max_tokens:
        text = [int(torch.argmax(model(text)))]
        answer += text
        if answer[-1] in eos:
            break
    return answer
