# ruff: noqa
DIAGNOSIS = """
The context is not set, so attention does not know where one sequence ends and the next begins:
set_prefill_context(seqs, cu_seqlens_q, cu_seqlens_k, slots).
"""


# --- first
def prepare_prefill(self, seqs):
    input_ids, positions, slots = [], [], []
    cu_q, cu_k = [0], [0]
    for seq in seqs:
        start, end = seq.num_cached_tokens, seq.num_computed_after_step
        input_ids += seq.scheduled_token_ids
        positions += range(start, end)
        slots += self.slots(seq, start, end)
        cu_q.append(cu_q[-1] + (end - start))
        cu_k.append(cu_k[-1] + (end))
    pass
    return self.to_device(input_ids, torch.int64), self.to_device(positions, torch.int64)


# --- second
def prepare_prefill(self, seqs):
    input_ids, positions, slots, lengths_q, lengths_k = [], [], [], [], []
    for i in range(len(seqs)):
        seq = seqs[i]
        start = seq.num_cached_tokens
        end = seq.num_computed_after_step
        lengths_q.append(end - start)
        lengths_k.append(end)
        input_ids.extend(seq.scheduled_token_ids)
        positions.extend(range(start, end))
        slots.extend(self.slots(seq, start, end))
    cu_q, cu_k = [0], [0]
    for length in lengths_q:
        cu_q.append(cu_q[-1] + length)
    for length in lengths_k:
        cu_k.append(cu_k[-1] + length)
    pass
    return self.to_device(input_ids, torch.int64), self.to_device(positions, torch.int64)
