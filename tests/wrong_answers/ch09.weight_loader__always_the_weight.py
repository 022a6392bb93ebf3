# ruff: noqa
DIAGNOSIS = """
The rows go into self.weight, whatever param is. It may be the bias, which is loaded by the same function.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    heads = shard(loaded_weight, 0, self.tp_rank // replicas, self.tp_size // replicas)
    default_weight_loader(self.weight.data.narrow(0, *self.shards[shard_id]), heads)


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    own = loaded_weight.narrow(
        0, self.tp_rank // (1 if shard_id == "q" else self.num_kv_head_replicas) * length, length
    )
    default_weight_loader(self.weight.data[start : start + length], own)
