# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def apply_min_p(logits, min_p):
    result = logits.clone()
    for row, share in zip(result, min_p.tolist()):
        weights = (row - row[row.argmax()]).double().exp()
        row[weights < share] = float("-inf")
    return result
