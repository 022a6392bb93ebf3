# ruff: noqa
DIAGNOSIS = """
Heads are dealt out like cards, rank 0 gets 0, 2, 4. A rank has a range of neighbors, and with it the KV heads that
they ask.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    count = len(loaded_weight) // self.head_dim
    own = length // self.head_dim
    heads = loaded_weight.unflatten(0, (count, self.head_dim))
    step = count // own
    first = self.tp_rank * step // self.tp_size
    chosen = heads[first::step].flatten(0, 1)
    param.data[start : start + length] = chosen


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    own = length // self.head_dim
    step = len(loaded_weight) // length
    first = self.tp_rank * step // self.tp_size
    for i in range(own):
        head = (first + i * step) * self.head_dim
        param.data[start + i * self.head_dim : start + (i + 1) * self.head_dim] = loaded_weight[
            head : head + self.head_dim
        ]
