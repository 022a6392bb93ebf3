# ruff: noqa
DIAGNOSIS = """
You give a prompt the whole rest that it lacks, and stop when that is more than the budget has left: it keeps that share, and
is not in the step. It is to be cut: its share is what is left of the budget, and it takes part.
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
        head.num_scheduled_tokens = len(head) - head.num_cached_tokens
        if left < head.num_scheduled_tokens:
            return chosen
        used += head.num_scheduled_tokens
        self.block_manager.hash_blocks(head)
        chosen += [head]
        self.waiting.popleft()
        self.running.append(head)
        head.status = SequenceStatus.RUNNING
    return chosen
