# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
def group_requests(lengths, max_batch):
    """Batches by size of the answers, as boxes: what is left over from one box goes into the next smaller one."""
    batches, boxes = [], {}
    for place, length in enumerate(lengths):
        boxes.setdefault(length, []).append(place)
    batch = []
    for length in range(max(lengths, default=0), 0, -1):
        for place in boxes.get(length, ()):
            batch.append(place)
            if len(batch) == max_batch:
                batches.append(batch)
                batch = []
    if batch:
        batches.append(batch)
    return batches
