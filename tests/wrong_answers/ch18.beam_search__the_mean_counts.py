# ruff: noqa
DIAGNOSIS = """
You compare the mean of a token. The sum over all tokens counts, whatever their number: a mean prefers long texts.
"""


# --- first
def beam_search(ask, prompt, width, steps, eos):
    def mean(beam):
        return -beam[1] / len(beam[0])

    beams, done = [([], 0.0)], []
    for _ in range(steps):
        longer = []
        for (tokens, total), row in zip(beams, ask([prompt + tokens for tokens, _ in beams])):
            longer += [([*tokens, i], total + p) for i, p in row.items()]
        done += [beam for beam in longer if beam[0][-1] in eos]
        beams = sorted((beam for beam in longer if beam[0][-1] not in eos), key=mean)[:width]
        if not beams:
            break
    return sorted(done + beams, key=mean)[:width]


# --- second
def beam_search(ask, prompt, width, steps, eos):
    open_, ended = [([], 0.0)], []
    while open_ and steps:
        steps -= 1
        rows, grown = ask([list(prompt) + tokens for tokens, _ in open_]), []
        for k in range(len(open_)):
            for token, p in rows[k].items():
                new = (open_[k][0] + [token], open_[k][1] + p)
                (ended if token in eos else grown).append(new)
        grown.sort(key=lambda b: b[1] / len(b[0]), reverse=True)
        open_ = grown[:width]
    ended.extend(open_)
    ended.sort(key=lambda b: b[1] / len(b[0]), reverse=True)
    return ended[:width]
