"""The work of the open exercise of chapter 1: answers of known lengths, in batches that wait for the longest."""

from collections.abc import Sequence

MAX_BATCH = 4
# Tokens of 24 answers, in the order of arrival.
LENGTHS = [21, 28, 20, 10, 82, 23, 7, 8, 94, 23, 18, 23, 23, 83, 52, 65, 28, 18, 10, 24, 50, 18, 17, 6]
ARRIVAL = 365  # steps that they take in the order of arrival
BAR = 260

Batches = Sequence[Sequence[int]]
Span = tuple[int, int, int]  # a request, the step with which it begins, and the one with which its last token is there


def in_order_of_arrival(num_requests: int, max_batch: int) -> list[list[int]]:
    """The batches of somebody who does not look at the lengths."""
    return [list(range(i, min(i + max_batch, num_requests))) for i in range(0, num_requests, max_batch)]


def num_steps(batches: Batches, lengths: Sequence[int]) -> int:
    """Steps until the last batch is done: each lasts as long as its longest member."""
    return sum(max(lengths[i] for i in batch) for batch in batches)


def spans(batches: Batches, lengths: Sequence[int]) -> list[Span]:
    """From which step to which each request is computed."""
    found, start = list[Span](), 0
    for batch in batches:
        found += [(i, start, start + lengths[i]) for i in batch]
        start += max(lengths[i] for i in batch)
    return found


def mean_wait(batches: Batches, lengths: Sequence[int]) -> float:
    """Steps until a request has its answer, on average; a batch hands its answers over when it is done."""
    total, end = 0, 0
    for batch in batches:
        end += max(lengths[i] for i in batch)
        total += end * len(batch)
    return total / len(lengths)
