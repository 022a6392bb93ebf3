# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def naive_loop(model, token_ids, max_tokens, eos):
    text = tuple(token_ids)
    length = len(text) + max_tokens
    while len(text) < length:
        numbers = model(text).tolist()
        text += (max(range(len(numbers)), key=numbers.__getitem__),)
        if any(text[-1] == end for end in eos):
            break
    return [*text[length - max_tokens :]]
