# ruff: noqa
DIAGNOSIS = """
You ask whether a prompt is cut before you have set its num_scheduled_tokens. Until then nothing of it is scheduled, and
every prompt looks cut. First the share, then the question.
"""


# --- first
def schedule_prefill(self):
    scheduled = []
    budget = self.max_num_batched_tokens
    while self.waiting and self.may_join(self.waiting[0], budget):
        seq = self.waiting[0]
        if not seq.block_table:
            self.admit(seq)
        is_cut = seq.is_cut
        seq.num_scheduled_tokens = min(seq.num_tokens - seq.num_cached_tokens, budget)
        budget -= seq.num_scheduled_tokens
        self.block_manager.hash_blocks(seq)
        scheduled.append(seq)
        if is_cut:
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
        cut = head.is_cut
        missing = len(head) - head.num_cached_tokens
        head.num_scheduled_tokens = missing if missing < left else left
        used += head.num_scheduled_tokens
        self.block_manager.hash_blocks(head)
        chosen += [head]
        if cut:
            return chosen
        self.waiting.popleft()
        self.running.append(head)
        head.status = SequenceStatus.RUNNING
    return chosen
