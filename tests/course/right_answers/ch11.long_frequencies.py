# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def long_frequencies(head_dim, base, trained, wanted):
    stretch = max(1.0, wanted / trained)
    return torch.tensor([(base * stretch) ** (-2 * i / head_dim) for i in range(head_dim // 2)])
