# ruff: noqa
DIAGNOSIS = """
Every token is 0. That is what argmax gives for a single number, such as logits[-1]. The logits are one row here, with one number for
each token of the vocabulary.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(max_tokens):
        logits = model(token_ids + answer)
        answer.append(int(logits[-1].argmax()))
        if answer[-1] in eos:
            break
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    while len(answer) < max_tokens:
        token_id = torch.argmax(model([*token_ids, *answer])[-1]).item()
        answer.append(token_id)
        if token_id in eos:
            break
    return answer
