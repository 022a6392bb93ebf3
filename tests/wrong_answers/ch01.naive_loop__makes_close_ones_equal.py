# ruff: noqa
DIAGNOSIS = """
The largest number was looked for among rounded ones: in half precision, numbers that are nearly equal become equal, and
then the first of them is taken. The model's numbers can be compared as they come; shares of 100 % are not needed for it.
"""


# --- first
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    for _ in range(max_tokens):
        logits = model(token_ids + answer)
        shares = torch.softmax(logits.half(), dim=-1)
        answer.append(int(shares.argmax()))
        if answer[-1] in eos:
            break
    return answer


# --- second
def naive_loop(model, token_ids, max_tokens, eos):
    answer = []
    while len(answer) < max_tokens:
        numbers = model([*token_ids, *answer]).to(torch.float16)
        answer.append(numbers.argmax().item())
        if answer[-1] in eos:
            return answer
    return answer
