# ruff: noqa
DIAGNOSIS = """
The position is the number of the sequence in the batch. It is the token's place in its own text.
"""


# --- first
def prepare_decode(self, seqs):
    ids = self.to_device([seq.last_token for seq in seqs], torch.int64)
    positions = self.to_device([seqs.index(seq) for seq in seqs], torch.int64)
    slots = [seq.block_table[-1] * self.block_size + (seq.num_tokens - 1) % self.block_size for seq in seqs]
    context_lens = [seq.num_tokens for seq in seqs]
    set_context(
        is_prefill=False,
        slot_mapping=self.to_device(slots, torch.int64),
        context_lens=self.to_device(context_lens, torch.int32),
        block_tables=self.prepare_block_tables(seqs),
    )
    return ids, positions


# --- second
def prepare_decode(self, seqs):
    id_list, position_list, slots, lens = [], [], [], []
    for seq in seqs:
        id_list.append(seq.last_token)
        position_list.append(seqs.index(seq))
        slots.append(seq.block_table[-1] * self.block_size + (seq.num_tokens - 1) % self.block_size)
        lens.append(seq.num_tokens)
    block_tables = self.prepare_block_tables(seqs)
    slot_mapping = self.to_device(slots, torch.int64)
    set_context(False, None, None, 0, 0, slot_mapping, self.to_device(lens, torch.int32), block_tables)
    ids = self.to_device(id_list, torch.int64)
    positions = self.to_device(position_list, torch.int64)
    return ids, positions
