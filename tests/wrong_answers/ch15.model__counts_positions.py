# ruff: noqa
DIAGNOSIS = """
The positions are counted through the step. They are given: a step has tokens of several sequences, and each begins anywhere in
its text.
"""


# --- first
def forward(self, input_ids, positions):
    import torch

    stream = self.embed_tokens(input_ids)
    positions = torch.arange(len(input_ids), device=input_ids.device)
    for layer in self.layers:
        stream = layer(positions, stream)
    return self.norm(stream)


# --- second
def forward(self, input_ids, positions):
    stream = self.embed_tokens(input_ids)
    counted = (input_ids * 0 + 1).cumsum(0) - 1
    for layer in self.layers:
        stream = layer(counted, stream)
    return self.norm(stream)
