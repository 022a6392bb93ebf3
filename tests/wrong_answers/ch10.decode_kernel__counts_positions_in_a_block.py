# ruff: noqa
DIAGNOSIS = """
The position in the whole sequence was added to the block's first row, and not the place in the block: of a position
only position % BLOCK_SIZE counts there.
"""


# --- first
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
    head = tl.program_id(0)
    features, places = tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_SIZE)
    q = tl.load(q_ptr + head * HEAD_DIM + features) * scale
    maximum, total, output = float("-inf"), 0.0, tl.zeros([HEAD_DIM], tl.float32)
    for i in range(0, tl.cdiv(num_tokens, BLOCK_SIZE)):
        is_token = i * BLOCK_SIZE + places < num_tokens
        rows = (tl.load(table_ptr + i) * BLOCK_SIZE + i * BLOCK_SIZE + places) * KV_HEADS + head // GROUP
        offsets = rows[:, None] * HEAD_DIM + features[None, :]
        k = tl.load(k_ptr + offsets, mask=is_token[:, None], other=0.0)
        v = tl.load(v_ptr + offsets, mask=is_token[:, None], other=0.0)
        scores = tl.where(is_token, tl.sum(q[None, :] * k, axis=1), float("-inf"))
        new = tl.maximum(maximum, tl.max(scores, axis=0))
        weights = tl.exp(scores - new)
        decay = tl.exp(maximum - new)
        total = total * decay + tl.sum(weights, axis=0)
        output = output * decay + tl.sum(weights[:, None] * v, axis=0)
        maximum = new
    tl.store(o_ptr + head * HEAD_DIM + features, output / total)


# --- second
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
    h = tl.program_id(0)
    d = tl.arange(0, HEAD_DIM)
    query = tl.load(q_ptr + h * HEAD_DIM + d)
    top = float("-inf")
    sum_of_weights = 0.0
    summed = tl.zeros([HEAD_DIM], tl.float32)
    for first in range(0, num_tokens, BLOCK_SIZE):
        t = first + tl.arange(0, BLOCK_SIZE)
        valid = t < num_tokens
        block = tl.load(table_ptr + first // BLOCK_SIZE)
        base = block * BLOCK_SIZE * KV_HEADS * HEAD_DIM + (h // GROUP) * HEAD_DIM
        at = base + t[:, None] * (KV_HEADS * HEAD_DIM) + d[None, :]
        keys = tl.load(k_ptr + at, mask=valid[:, None], other=0.0)
        values = tl.load(v_ptr + at, mask=valid[:, None], other=0.0)
        s = tl.sum(keys * query[None, :], axis=1) * scale
        s = tl.where(valid, s, float("-inf"))
        higher = tl.maximum(tl.max(s, axis=0), top)
        shrink = tl.exp(top - higher)
        w = tl.exp(s - higher)
        sum_of_weights = sum_of_weights * shrink + tl.sum(w, axis=0)
        summed = summed * shrink + tl.sum(values * w[:, None], axis=0)
        top = higher
    tl.store(o_ptr + h * HEAD_DIM + d, summed / sum_of_weights)
