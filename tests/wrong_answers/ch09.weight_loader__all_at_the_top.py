# ruff: noqa
DIAGNOSIS = """
All three projections are copied to the first rows of the parameter. Each has its own place: queries, keys, values.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    length = self.shards[shard_id][1]
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    heads = shard(loaded_weight, 0, self.tp_rank // replicas, self.tp_size // replicas)
    param.data[:length] = heads


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    heads = shard(loaded_weight, 0, self.tp_rank // replicas, self.tp_size // replicas)
    default_weight_loader(param.data.narrow(0, 0, len(heads)), heads)
