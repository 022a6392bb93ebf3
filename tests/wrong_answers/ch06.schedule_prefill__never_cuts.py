# ruff: noqa
DIAGNOSIS = """
A prompt that is longer than what is left of the budget does not take part at all. One that is longer than the whole
budget waits for ever, and everybody behind it, too. Let it have what is left.
"""


# --- first
def schedule_prefill(self):
    scheduled = []
    budget = self.max_num_batched_tokens
    while self.waiting and self.may_join(self.waiting[0], budget):
        seq = self.waiting[0]
        if not seq.block_table:
            self.admit(seq)
        seq.num_scheduled_tokens = seq.num_tokens - seq.num_cached_tokens
        if seq.num_scheduled_tokens > budget:
            seq.num_scheduled_tokens = 0
            break
        budget -= seq.num_scheduled_tokens
        self.block_manager.hash_blocks(seq)
        scheduled.append(seq)
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
        if missing > left:
            return chosen
        head.num_scheduled_tokens = missing
        used += head.num_scheduled_tokens
        self.block_manager.hash_blocks(head)
        chosen += [head]
        self.waiting.popleft()
        self.running.append(head)
        head.status = SequenceStatus.RUNNING
    return chosen
