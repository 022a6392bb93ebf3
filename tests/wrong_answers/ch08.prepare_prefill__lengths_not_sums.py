# ruff: noqa
DIAGNOSIS = """
The lengths themselves are in the lists, not their sums. An entry of cu_seqlens says where a sequence begins in the flat
batch.
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
        cu_q.append(end - start)
        cu_k.append(end)
    self.set_prefill_context(seqs, cu_q, cu_k, slots)
    return self.to_device(input_ids, torch.int64), self.to_device(positions, torch.int64)


# --- second
def prepare_prefill(self, seqs):
    ids = [token_id for seq in seqs for token_id in seq.scheduled_token_ids]
    spans = [(seq, seq.num_cached_tokens, seq.num_computed_after_step) for seq in seqs]
    positions = [p for _, start, end in spans for p in range(start, end)]
    slots = [slot for span in spans for slot in self.slots(*span)]
    cu_q = [0] + [end - start for _, start, end in spans]
    cu_k = [0] + [end for _, start, end in spans]
    self.set_prefill_context(seqs, cu_q, cu_k, slots)
    return self.to_device(ids, torch.int64), self.to_device(positions, torch.int64)
