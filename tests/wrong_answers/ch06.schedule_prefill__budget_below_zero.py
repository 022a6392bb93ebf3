# ruff: noqa
DIAGNOSIS = """
You take all tokens of a sequence off the budget, also those that this step does not compute: they are in the cache, or wait
for a later step. So the budget can fall below zero, and the next share with it. Take off num_scheduled_tokens.
"""


# --- first
def schedule_prefill(self):
    scheduled = []
    budget = self.max_num_batched_tokens
    while self.waiting and self.may_join(self.waiting[0], budget):
        seq = self.waiting[0]
        if not seq.block_table:
            self.admit(seq)
        seq.num_scheduled_tokens = min(seq.num_tokens - seq.num_cached_tokens, budget)
        budget -= seq.num_tokens
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
        if not self.may_join(head, left):
            return chosen
        if len(head.block_table) == 0:
            self.admit(head)
        missing = len(head) - head.num_cached_tokens
        head.num_scheduled_tokens = missing if missing < left else left
        used = used + len(head)
        self.block_manager.hash_blocks(head)
        chosen += [head]
        if head.num_scheduled_tokens < missing:
            return chosen
        self.waiting.popleft()
        self.running.append(head)
        head.status = SequenceStatus.RUNNING
    return chosen
