# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def step_seconds(scheduled, model, device):
    """By speeds of bytes and operations in one list, and the worst of them."""
    pairs = np.array(scheduled, dtype=float).reshape(-1, 2)
    runs = min(1, len(pairs))
    sizes = np.array([model.layer_parameters, model.head_parameters], dtype=float)
    tokens = np.array([pairs[:, 1].sum(), float(len(pairs))])
    amounts = [runs * model.element_size * sizes.sum() + pairs.sum() * model.kv_bytes, 2 * sizes @ tokens]
    speeds = [device.bytes_per_second, device.flops_per_second]
    return float(max(amount / speed for amount, speed in zip(amounts, speeds)))
