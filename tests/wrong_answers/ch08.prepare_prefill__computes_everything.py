# ruff: noqa
DIAGNOSIS = """
All tokens of each sequence are in the batch. The cached ones have their keys and values already: only the scheduled ones
are computed.
"""


# --- first
def prepare_prefill(self, seqs):
    input_ids, positions, slots = [], [], []
    cu_q, cu_k = [0], [0]
    for seq in seqs:
        start, end = 0, seq.num_computed_after_step
        input_ids += seq.token_ids[:end]
        positions += range(start, end)
        slots += self.slots(seq, 0, end)
        cu_q.append(cu_q[-1] + (end - start))
        cu_k.append(cu_k[-1] + (end))
    self.set_prefill_context(seqs, cu_q, cu_k, slots)
    return self.to_device(input_ids, torch.int64), self.to_device(positions, torch.int64)


# --- second
def prepare_prefill(self, seqs):
    input_ids, positions, slots, lengths_q, lengths_k = [], [], [], [], []
    for i in range(len(seqs)):
        seq = seqs[i]
        start = 0
        end = seq.num_computed_after_step
        lengths_q.append(end - start)
        lengths_k.append(end)
        input_ids.extend(seq.token_ids[:end])
        positions.extend(range(start, end))
        slots.extend(self.slots(seq, 0, end))
    cu_q, cu_k = [0], [0]
    for length in lengths_q:
        cu_q.append(cu_q[-1] + length)
    for length in lengths_k:
        cu_k.append(cu_k[-1] + length)
    self.set_prefill_context(seqs, cu_q, cu_k, slots)
    return self.to_device(input_ids, torch.int64), self.to_device(positions, torch.int64)
