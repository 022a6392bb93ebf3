# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def forward(self, logits, metadata=None):
    chosen = []
    for i in range(len(logits)):
        row = logits[i : i + 1]
        if metadata is None or float(metadata.temperatures[i]) == 0:
            chosen.append(int(row.argmax()))
            continue
        mine = {
            name: None if getattr(metadata, name) is None else getattr(metadata, name)[i : i + 1]
            for name in ("temperatures", "min_p", "top_k", "top_p", "seeds", "positions")
        }
        row = apply_temperature(row, mine["temperatures"])
        if mine["min_p"] is not None:
            row = apply_min_p(row, mine["min_p"])
        if mine["top_k"] is not None:
            row = apply_top_k_top_p(row, mine["top_k"], None)
        if mine["top_p"] is not None:
            row = apply_top_k_top_p(row, None, mine["top_p"])
        chosen.append(int((row + gumbel_noise(mine["seeds"], mine["positions"], row.shape[-1])).argmax()))
    return torch.tensor(chosen, dtype=torch.int64)
