# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def my_rule(logits, texts):
    p = logits.softmax(dim=-1)
    entropy = torch.special.entr(p).sum(dim=-1)
    rows = []
    for row, h in zip(logits, entropy.tolist()):
        row = row / min(1.2, 0.2 + 0.8 * h)
        rows.append(torch.where(row < row.max() - 5.0, float("-inf"), row))
    return torch.stack(rows)
