# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
from collections import Counter, defaultdict


def my_proposer(seen):
    """Token by token: what followed most often behind the last three, two, or one."""
    counts = defaultdict(Counter)
    for text in seen:
        for i in range(1, len(text)):
            for n in (1, 2, 3):
                if i >= n:
                    counts[tuple(text[i - n : i])][text[i]] += 1
    best = {key: count.most_common(1)[0][0] for key, count in counts.items()}

    def propose(token_ids):
        draft = []
        for _ in range(4):
            last = (*token_ids[-3:], *draft)[-3:]
            found = [best[last[-n:]] for n in (3, 2, 1) if n <= len(last) and last[-n:] in best]
            if not found:
                break
            draft.append(found[0])
        return draft

    return propose
