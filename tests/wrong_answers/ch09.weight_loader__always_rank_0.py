# ruff: noqa
DIAGNOSIS = """
Every rank loads the heads of rank 0: the rank is not used.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    default_weight_loader(param.data.narrow(0, start, length), loaded_weight[:length])


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    heads = shard(loaded_weight, 0, 0, self.tp_size // replicas)
    default_weight_loader(param.data.narrow(0, *self.shards[shard_id]), heads)
