# ruff: noqa
def choose_blocks(query, smallest, largest, mean, scale, budget):
    # The newest two in any case; then the blocks whose mean key pleases the mean query most.
    n = len(mean)
    wish = (mean @ query.mean(0)).tolist()
    newest = [n - 1, n - 2]
    order = sorted(range(n), key=lambda i: (i in newest, wish[i]), reverse=True)
    return order[:budget]
