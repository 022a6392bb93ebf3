# ruff: noqa
def decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    o_ptr,
    num_tokens,
    scale,
    GROUP,
    KV_HEADS,
    HEAD_DIM,
    BLOCK_SIZE,
):
    # A token at a time, in two passes: the largest score first, then the sums.
    h = tl.program_id(0)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + h * HEAD_DIM + d)
    top = float("-inf")
    for t in range(0, num_tokens):
        block = tl.load(table_ptr + t // BLOCK_SIZE)
        row = (block * BLOCK_SIZE + t % BLOCK_SIZE) * KV_HEADS + h // GROUP
        k = tl.load(k_ptr + row * HEAD_DIM + d)
        top = tl.maximum(top, tl.sum(q * k, axis=0) * scale)
    total = 0.0
    output = tl.zeros([HEAD_DIM], dtype=tl.float32)
    for t in range(0, num_tokens):
        block = tl.load(table_ptr + t // BLOCK_SIZE)
        row = (block * BLOCK_SIZE + t % BLOCK_SIZE) * KV_HEADS + h // GROUP
        k = tl.load(k_ptr + row * HEAD_DIM + d)
        v = tl.load(v_ptr + row * HEAD_DIM + d)
        weight = tl.exp(tl.sum(q * k, axis=0) * scale - top)
        total += weight
        output += weight * v
    tl.store(o_ptr + h * HEAD_DIM + d, output / total)
