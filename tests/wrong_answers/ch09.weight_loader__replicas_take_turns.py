# ruff: noqa
DIAGNOSIS = """
Where a KV head is held by several ranks, ranks take turns: 0, 1, 0, 1. Neighbors hold the same one: 0, 0, 1, 1, as
their query heads ask it.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    parts = len(loaded_weight) // length
    part = self.tp_rank % parts
    param.data[start : start + length] = loaded_weight[part * length : (part + 1) * length]


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    parts = self.tp_size // replicas
    heads = shard(loaded_weight, 0, self.tp_rank % parts, parts)
    default_weight_loader(param.data.narrow(0, *self.shards[shard_id]), heads)
