# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
import math


def rope_table(head_dim, max_position, base):
    table = torch.zeros(max_position, 1, head_dim, dtype=torch.float32)
    positions = torch.arange(max_position, dtype=torch.float64)
    for i in range(head_dim // 2):
        angles = positions * math.exp(-2 * i / head_dim * math.log(base))
        table[:, 0, i] = torch.cos(angles)
        table[:, 0, i + head_dim // 2] = torch.sin(angles)
    return table
