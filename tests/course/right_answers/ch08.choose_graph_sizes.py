# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def choose_graph_sizes(counts, largest, most):
    def padding(sizes):
        return sum(steps * (min(size for size in sizes if size >= n) - n) for n, steps in counts.items())

    chosen = {largest}
    while len(chosen) < most:
        others = set(counts) - chosen
        if not others:
            break
        chosen.add(min(others, key=lambda size: (padding(chosen | {size}), size)))
    return list(chosen)
