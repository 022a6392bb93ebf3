# ruff: noqa
DIAGNOSIS = """
The part begins with head number rank. It begins with rank times as many heads as a rank has.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    first = self.tp_rank // replicas * self.head_dim
    param.data[start : start + length] = loaded_weight[first : first + length]


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    start, length = self.shards[shard_id]
    head = self.tp_rank // replicas
    rows = loaded_weight.narrow(0, head * self.head_dim, length)
    default_weight_loader(param.data.narrow(0, start, length), rows)
