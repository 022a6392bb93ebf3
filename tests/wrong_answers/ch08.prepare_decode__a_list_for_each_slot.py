# ruff: noqa
DIAGNOSIS = """
The right numbers, but as a list of lists. slot_mapping is flat, [num_tokens]: the slots of all sequences in one list.
"""


# --- first
def prepare_decode(self, seqs):
    ids = self.to_device([seq.last_token for seq in seqs], torch.int64)
    positions = self.to_device([seq.num_tokens - 1 for seq in seqs], torch.int64)
    slots = [self.slots(seq, seq.num_tokens - 1, seq.num_tokens) for seq in seqs]
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
        position_list.append(seq.num_tokens - 1)
        slots.append(self.slots(seq, seq.num_tokens - 1, seq.num_tokens))
        lens.append(seq.num_tokens)
    slot_mapping = self.to_device(slots, torch.int64)
    set_context(
        False, None, None, 0, 0, slot_mapping, self.to_device(lens, torch.int32), self.prepare_block_tables(seqs)
    )
    return self.to_device(id_list, torch.int64), self.to_device(position_list, torch.int64)
