# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
import heapq


def beam_search(ask, prompt, width, steps, eos):
    """By recursion, with a heap: what has ended, and what the rest of the steps makes of those that go on."""

    def rest(beams, left):
        if not beams or not left:
            return beams
        longer = []
        for (total, tokens), named in zip(beams, ask([[*prompt, *tokens] for _, tokens in beams])):
            longer.extend((total + p, tokens + (i,)) for i, p in named.items())
        ended = [beam for beam in longer if beam[1][-1] in eos]
        going_on = heapq.nlargest(width, (beam for beam in longer if beam not in ended))
        return ended + rest(going_on, left - 1)

    return [(list(tokens), total) for total, tokens in heapq.nlargest(width, rest([(0.0, ())], steps))]
