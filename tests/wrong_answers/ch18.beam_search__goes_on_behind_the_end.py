# ruff: noqa
DIAGNOSIS = """
You continue what has ended. Behind an end token the model was never meant to say anything: such a continuation is done,
and kept as it is.
"""


# --- first
def beam_search(ask, prompt, width, steps, eos):
    beams, done = [([], 0.0)], []
    for _ in range(steps):
        found = ask([prompt + tokens for tokens, _ in beams])
        longer = [
            ([*tokens, i], total + p) for (tokens, total), logprobs in zip(beams, found) for i, p in logprobs.items()
        ]
        done += [beam for beam in longer if beam[0][-1] in eos]
        beams = sorted(longer, key=lambda b: -b[1])[:width]
        if not beams:
            break
    return sorted(done + beams, key=lambda b: -b[1])[:width]


# --- second
def beam_search(ask, prompt, width, steps, eos):
    def best(some):
        return sorted(some, key=lambda beam: beam[1], reverse=True)[:width]

    live, ended, step = [([], 0.0)], [], 0
    while live and step < steps:
        answers = ask([list(prompt) + beam[0] for beam in live])
        step += 1
        candidates = []
        for beam, answer in zip(live, answers):
            for token in answer:
                candidates.append((beam[0] + [token], beam[1] + answer[token]))
        live = []
        for candidate in candidates:
            if candidate[0][-1] in eos:
                ended.append(candidate)
            live.append(candidate)
        live = best(live)
    return best(ended + live)
