# ruff: noqa
DIAGNOSIS = """
You look at the budget and at nothing else. Whether there is a place under max_num_seqs, and whether there are blocks,
is what may_join knows: ask it for every sequence.
"""


# --- first
def schedule_prefill(self):
    scheduled = []
    budget = self.max_num_batched_tokens
    while self.waiting and budget > 0:
        seq = self.waiting[0]
        if not seq.block_table:
            self.admit(seq)
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
    chosen, used = [], 0
    for _ in range(len(self.waiting)):
        head, left = self.waiting[0], self.max_num_batched_tokens - used
        if left <= 0:
            return chosen
        if len(head.block_table) == 0:
            self.admit(head)
        missing = len(head) - head.num_cached_tokens
        head.num_scheduled_tokens = missing if missing < left else left
        used += head.num_scheduled_tokens
        self.block_manager.hash_blocks(head)
        chosen += [head]
        if head.num_scheduled_tokens < missing:
            return chosen
        self.waiting.popleft()
        self.running.append(head)
        head.status = SequenceStatus.RUNNING
    return chosen
