# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def read_early(early, late, new):
    def unit(x):
        return x / x.square().mean(-1, keepdim=True).sqrt()

    return unit(new) @ torch.linalg.lstsq(unit(early), late).solution
