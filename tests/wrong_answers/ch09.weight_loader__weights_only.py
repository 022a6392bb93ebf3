# ruff: noqa
DIAGNOSIS = """
It takes for granted that there are columns. A bias has one dimension, and is loaded by the same function.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    start, length = self.shards[shard_id]
    parts = len(loaded_weight) // length
    first = self.tp_rank * parts // self.tp_size * length
    param.data[start : start + length, :] = loaded_weight[first : first + length, :]


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    heads = shard(loaded_weight, 0, self.tp_rank // replicas, self.tp_size // replicas)
    start, length = self.shards[shard_id]
    param.data[range(start, start + length), :] = heads[:, :].to(param.dtype)
