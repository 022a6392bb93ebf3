# ruff: noqa
DIAGNOSIS = """
The step is prepared as a prefill. Everything is there, but not in the form of a decode: no context_lens, and is_prefill
says the wrong thing.
"""


# --- first
def prepare_decode(self, seqs):
    return self.prepare_prefill(seqs)


# --- second
def prepare_decode(self, seqs):
    input_ids, positions = self.prepare_prefill(list(seqs))
    return input_ids, positions
