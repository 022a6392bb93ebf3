# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def predict_seconds(seen, num_seqs, context_len):
    """The three prices by hand: the normal equations, solved by elimination."""
    rows = [([1.0, n / 100, n * length / 1e5], s) for n, length, s in seen]
    table = [[sum(x[i] * x[j] for x, _ in rows) for j in range(3)] + [sum(x[i] * s for x, s in rows)] for i in range(3)]
    for i in range(3):
        table[i] = [value / table[i][i] for value in table[i]]
        for k in range(3):
            if k != i:
                table[k] = [a - table[k][i] * b for a, b in zip(table[k], table[i])]
    a, b, c = (row[3] for row in table)
    return a + b * num_seqs / 100 + c * num_seqs * context_len / 1e5
