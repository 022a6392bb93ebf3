# ruff: noqa
DIAGNOSIS = """
When the head may not join, you try those behind it. Small requests then slip past a large one for as long as new
ones come, and it may never get its turn. Whoever cannot join ends the step.
"""


# --- first
def schedule_prefill(self):
    scheduled = []
    budget = self.max_num_batched_tokens
    for seq in list(self.waiting):
        if not self.may_join(seq, budget):
            continue
        if not seq.block_table:
            self.admit(seq)
        seq.num_scheduled_tokens = min(seq.num_tokens - seq.num_cached_tokens, budget)
        budget -= seq.num_scheduled_tokens
        self.block_manager.hash_blocks(seq)
        scheduled.append(seq)
        if seq.is_cut:
            break
        self.waiting.remove(seq)
        self.running.append(seq)
        seq.status = SequenceStatus.RUNNING
    return scheduled


# --- second
def schedule_prefill(self):
    chosen, position, left = [], 0, self.max_num_batched_tokens
    while position < len(self.waiting):
        seq = self.waiting[position]
        position += 1
        if not self.may_join(seq, left):
            continue
        if len(seq.block_table) == 0:
            self.admit(seq)
        seq.num_scheduled_tokens = min(left, len(seq) - seq.num_cached_tokens)
        left -= seq.num_scheduled_tokens
        self.block_manager.hash_blocks(seq)
        chosen += [seq]
        if seq.is_cut:
            return chosen
        position -= 1
        del self.waiting[position]
        seq.status = SequenceStatus.RUNNING
        self.running.append(seq)
    return chosen
