# ruff: noqa
DIAGNOSIS = """
You throw away what the sequence had generated. Its reader has seen these tokens already, perhaps. Only the blocks go;
the tokens stay, and are computed again together with the prompt.
"""


# --- first
def preempt(self, seq):
    self.running.remove(seq)
    self.block_manager.deallocate(seq)
    seq.status = SequenceStatus.WAITING
    seq.num_scheduled_tokens = 0
    seq.token_ids = seq.prompt_token_ids
    seq.num_tokens = seq.num_prompt_tokens
    seq.last_token = seq.token_ids[-1]
    self.waiting.appendleft(seq)
    self.num_preemptions += 1


# --- second
def preempt(self, seq):
    del seq.token_ids[seq.num_prompt_tokens :]
    seq.num_tokens, seq.last_token = len(seq.token_ids), seq.token_ids[-1]
    seq.num_scheduled_tokens = 0
    self.num_preemptions = self.num_preemptions + 1
    self.waiting.insert(0, seq)
    del self.running[self.running.index(seq)]
    seq.status = SequenceStatus["WAITING"]
    self.block_manager.deallocate(seq)
