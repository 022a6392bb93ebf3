# ruff: noqa
DIAGNOSIS = """
A prompt that is cut gets its share, and is not in the list that you return: nobody computes it, in any step. It takes part
in this one with what is left of the budget; only in waiting it stays where it is.
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
        budget -= seq.num_scheduled_tokens
        self.block_manager.hash_blocks(seq)
        if seq.is_cut:
            break
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
        head.num_scheduled_tokens = missing if missing < left else left
        used += head.num_scheduled_tokens
        self.block_manager.hash_blocks(head)
        if head.num_scheduled_tokens < missing:
            return chosen
        chosen += [head]
        self.waiting.popleft()
        self.running.append(head)
        head.status = SequenceStatus.RUNNING
    return chosen
