# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def choose_messages(messages, left_out, budget, count_tokens):
    system = [message for message in messages[:1] if message["role"] == "system"]
    talk = messages[len(system) :]
    sent = talk[left_out:]
    if count_tokens(system + sent) <= budget:
        return system + sent
    sent = talk[-1:]
    if count_tokens(system + sent) > budget:
        raise ValueError("the question is too long for the budget")
    while len(sent) + 2 <= len(talk):
        more = talk[-len(sent) - 2 :]
        if count_tokens(system + more) > budget // 2:
            break
        sent = more
    return system + sent
