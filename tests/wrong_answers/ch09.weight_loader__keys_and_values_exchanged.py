# ruff: noqa
DIAGNOSIS = """
Keys lie where the values should, and values where the keys should. In the parameter it is queries, keys, values.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    heads = shard(loaded_weight, 0, self.tp_rank // replicas, self.tp_size // replicas)
    start, length = self.shards[{"q": "q", "k": "v", "v": "k"}[shard_id]]
    default_weight_loader(param.data.narrow(0, start, length), heads)


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    heads = shard(loaded_weight, 0, self.tp_rank // replicas, self.tp_size // replicas)
    q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
    start = {"q": 0, "k": q + kv, "v": q}[shard_id]
    param.data[start : start + len(heads)] = heads
