# ruff: noqa
DIAGNOSIS = """
You compute the prompt. That is not enough for a sequence that was preempted: the tokens that it had generated have lost
their keys and values, too. num_tokens counts all that there is.
"""


# --- first
def schedule_prefill(self):
    scheduled = []
    budget = self.max_num_batched_tokens
    while self.waiting and self.may_join(self.waiting[0], budget):
        seq = self.waiting[0]
        if not seq.block_table:
            self.admit(seq)
        seq.num_scheduled_tokens = min(seq.num_prompt_tokens - seq.num_cached_tokens, budget)
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
        if not self.may_join(head, left):
            return chosen
        if len(head.block_table) == 0:
            self.admit(head)
        missing = head.num_prompt_tokens - head.num_cached_tokens
        head.num_scheduled_tokens = missing if missing < left else left
        used += head.num_scheduled_tokens
        self.block_manager.hash_blocks(head)
        chosen += [head]
        if head.is_cut:
            return chosen
        self.waiting.popleft()
        self.running.append(head)
        head.status = SequenceStatus.RUNNING
    return chosen
