# ruff: noqa
DIAGNOSIS = """
You call the block manager's allocate. The blocks come out right, but nobody writes down how much of the prompt was found
in the cache, and the user is told nothing of it. admit does both.
"""


# --- first
def schedule_prefill(self):
    scheduled, budget = [], self.max_num_batched_tokens
    while self.waiting and self.may_join(self.waiting[0], budget):
        seq = self.waiting[0]
        if not seq.block_table:
            self.block_manager.allocate(seq)
        seq.num_scheduled_tokens = min(seq.num_tokens - seq.num_cached_tokens, budget)
        budget -= seq.num_scheduled_tokens
        self.block_manager.hash_blocks(seq)
        scheduled.append(seq)
        if seq.is_cut:
            break
        self.running.append(self.waiting.popleft())
        seq.status = SequenceStatus.RUNNING
    return scheduled


# --- second
def schedule_prefill(self):
    step, left = [], self.max_num_batched_tokens
    for seq in list(self.waiting):
        if not self.may_join(seq, left):
            break
        if len(seq.block_table) == 0:
            self.block_manager.allocate(seq)
        share = min(left, seq.num_tokens - seq.num_cached_tokens)
        seq.num_scheduled_tokens, left = share, left - share
        self.block_manager.hash_blocks(seq)
        step.append(seq)
        if seq.is_cut:
            return step
        self.waiting.remove(seq)
        seq.status = SequenceStatus.RUNNING
        self.running.append(seq)
    return step
