# ruff: noqa
DIAGNOSIS = """
The parameter itself stays as it was: the heads went into a copy of its rows, or were only given a name.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    heads = shard(loaded_weight, 0, self.tp_rank // replicas, self.tp_size // replicas)
    start, length = self.shards[shard_id]
    rows = param.data[list(range(start, start + length))]
    rows.copy_(heads)


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    parts = len(loaded_weight) // length
    first = self.tp_rank * parts // self.tp_size * length
    whole = param.data.clone()
    whole[start : start + length] = loaded_weight[first : first + length]
