# ruff: noqa
DIAGNOSIS = """
Query heads are given to several ranks, too. Only KV heads are held by several ranks.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    parts = self.tp_size // self.num_kv_head_replicas
    first = self.tp_rank // self.num_kv_head_replicas * length
    param.data[start : start + length] = loaded_weight[first : first + length]


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    part = self.tp_rank // self.num_kv_head_replicas
    own = loaded_weight.narrow(0, part * length, length)
    default_weight_loader(param.data.narrow(0, start, length), own)
