# ruff: noqa
DIAGNOSIS = """
You choose the best of all continuations, and what has ended among them takes the place of a beam. So fewer go on. The
beams of the next step are the best of those that go on.
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
        beams = [b for b in beams if b[0][-1] not in eos]
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
        ended += [c for c in candidates if c[0][-1] in eos]
        live = [c for c in best(candidates) if c[0][-1] not in eos]
    return best(ended + live)
