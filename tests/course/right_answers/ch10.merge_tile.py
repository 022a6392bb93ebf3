# ruff: noqa
def merge_tile(scores, values, maximum, total, output):
    maxima, totals, outputs = [], [], []
    for row, old, old_total, old_output in zip(scores, maximum.tolist(), total, output):
        new = max(old, float(row.max()))
        maxima.append(new)
        if new == float("-inf"):
            totals.append(old_total.clone())
            outputs.append(old_output.clone())
            continue
        shrink = math.exp(old - new)
        weights = (row - new).exp()
        totals.append(old_total * shrink + weights.sum())
        outputs.append(old_output * shrink + (weights[:, None] * values).sum(0))
    return torch.tensor(maxima), torch.stack(totals), torch.stack(outputs)
