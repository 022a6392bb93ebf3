# ruff: noqa
DIAGNOSIS = """
There is an end token in the prompt, and nothing was written. In a chat, every message ends with one. Only a new token ends the answer.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    text = list(token_ids)
    while len(text) < len(token_ids) + max_tokens and not any(end in text for end in eos):
        text.append(int(model(text).argmax()))
    return text[len(token_ids) :]


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    while len(answer) < max_tokens and not set(eos) & {*token_ids, *answer}:
        answer.append(int(model([*token_ids, *answer]).argmax()))
    return answer
