# ruff: noqa
DIAGNOSIS = """
The rest of the parameter is cleared, and with it what was loaded before. Only this projection's rows are written.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    heads = shard(loaded_weight, 0, self.tp_rank // replicas, self.tp_size // replicas)
    param.data.zero_()
    default_weight_loader(param.data.narrow(0, *self.shards[shard_id]), heads)


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    parts = len(loaded_weight) // length
    first = self.tp_rank * parts // self.tp_size * length
    param.data.fill_(0)
    param.data[start : start + length].copy_(loaded_weight[first : first + length])
