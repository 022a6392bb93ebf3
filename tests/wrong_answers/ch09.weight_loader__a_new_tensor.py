# ruff: noqa
DIAGNOSIS = """
The parameter gets a new tensor, with the heads of this projection only. They belong to their rows of the memory that
is there.
"""


# --- first
def weight_loader(self, param, loaded_weight, shard_id):
    replicas = 1 if shard_id == "q" else self.num_kv_head_replicas
    param.data = shard(loaded_weight, 0, self.tp_rank // replicas, self.tp_size // replicas)


# --- second
def weight_loader(self, param, loaded_weight, shard_id):
    length = self.shards[shard_id][1]
    parts = len(loaded_weight) // length
    part = self.tp_rank * parts // self.tp_size
    param.data = loaded_weight[part * length : (part + 1) * length]
