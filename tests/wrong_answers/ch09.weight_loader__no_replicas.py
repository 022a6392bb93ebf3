# ruff: noqa
DIAGNOSIS = """
With fewer KV heads than ranks it is still cut into as many parts as there are ranks: a KV head is torn apart, or
cannot be cut. It is held whole, by several neighbors.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    heads = shard(loaded_weight, 0, self.tp_rank, self.tp_size)
    default_weight_loader(param.data.narrow(0, *self.shards[shard_id]), heads)


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    size = divide(len(loaded_weight), self.tp_size)
    own = loaded_weight[self.tp_rank * size : (self.tp_rank + 1) * size]
    default_weight_loader(param.data[start : start + length], own)
