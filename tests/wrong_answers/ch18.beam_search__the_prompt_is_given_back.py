# ruff: noqa
DIAGNOSIS = """
The tokens of the prompt are among those that you return. A continuation is what comes behind it.
"""


# --- first
def beam_search(ask, token_ids, beam_width, max_tokens, eos):
    beams, done = [([], 0.0)], []
    for _ in range(max_tokens):
        found = ask([token_ids + tokens for tokens, _ in beams])
        longer = [
            ([*tokens, i], total + p) for (tokens, total), logprobs in zip(beams, found) for i, p in logprobs.items()
        ]
        done += [beam for beam in longer if beam[0][-1] in eos]
        beams = sorted([b for b in longer if b[0][-1] not in eos], key=lambda b: -b[1])[:beam_width]
        if not beams:
            break
    found = sorted(done + beams, key=lambda b: -b[1])[:beam_width]
    return [(token_ids + tokens, total) for tokens, total in found]


# --- second
def beam_search(ask, token_ids, beam_width, max_tokens, eos):
    def best(some):
        return sorted(some, key=lambda beam: beam[1], reverse=True)[:beam_width]

    live, ended, step = [(list(token_ids), 0.0)], [], 0
    while live and step < max_tokens:
        answers = ask([beam[0] for beam in live])
        step += 1
        candidates = []
        for beam, answer in zip(live, answers):
            for token in answer:
                candidates.append((beam[0] + [token], beam[1] + answer[token]))
        live = []
        for candidate in candidates:
            if candidate[0][-1] in eos:
                ended.append(candidate)
            else:
                live.append(candidate)
        live = best(live)
    return best(ended + live)
