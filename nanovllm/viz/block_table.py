"""Pictures of block tables: the tokens of each sequence, where they are stored, and who owns which block.

The layout, logical blocks beside physical ones with the change marked, is that of the figures in vLLM's blog post on
PagedAttention (2023).
"""

from dataclasses import dataclass, replace
from typing import Any

from .drawing import BORDER, SMALL, VERMILION, Drawing, color_of, fit, ink_on
from .replay import Moment, replay
from .shapes import EMPTY, FREE, ROW, SLOT_HEIGHT, LegendItem, Style, badge, block, tag
from .timeline import REASONS, lane_legend
from .trace import State, Trace, name_of, owners, state_before, tokens_of

WIDTH = 612.0  # of the pool; lanes and tables beside each other have the same
TABLES_WIDTH = 282.0
STATUS = 97.0  # where the boxes of a table begin
BOX = 37.0
PER_LINE = int((TABLES_WIDTH - STATUS) // BOX)
HEAD = 20.0  # above the first row of everything
MAX_SLOTS_WITH_TEXT = 4  # blocks larger than this show how full they are instead of their tokens
MANY_BLOCKS = 24  # more are drawn small
LOST = ("admit", "share", "append", "evict", "hash")  # events of a step whose interruption undoes them
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def describe_step(trace: Trace, i: int, quiet: tuple[str, ...] = ("arrive", "hash")) -> str:
    """What happened in a step, in sentences made from its events, but for those of the `quiet` kinds."""
    told = [text for text, events in tell_step(trace, i) if not events or events[0]["event"] not in quiet]
    return ". ".join(told) + "."


def tell_step(trace: Trace, i: int) -> list[tuple[str, list[dict[str, Any]]]]:
    """What happened in a step: sentences without their full stop, each with the events of which it tells.

    The sentence without events says what was computed; `sentence_of` finds those of the others.
    """
    step = trace["steps"][i]
    work = ", ".join(f"{name_of(trace, item['seq'])} {_tokens(item['n'])}" for item in step["scheduled"])
    if step["kind"] == "error":
        return [("The engine stopped here", [])]
    start = {"init": "Start: nothing has been computed yet", "prefill": "Prefill", "decode": "Decode"}[step["kind"]]
    if i and step["kind"] == "init":
        start = "A step was interrupted: the cache is empty, and whoever is left waits with the tokens it has"
        step = step | {"events": [event for event in step["events"] if event["event"] not in LOST]}
    told: list[tuple[str, list[dict[str, Any]]]] = [(f"{start}: {work}" if work else start, [])]
    arrived, hashed = ([e for e in step["events"] if e["event"] == kind] for kind in ("arrive", "hash"))
    if arrived:
        names = ", ".join(name_of(trace, event["seq"]) for event in arrived)
        told.insert(0, (f"{names} {'arrive' if len(arrived) > 1 else 'arrives'}", arrived))
    number = {id(event): n for n, event in enumerate(step["events"])}
    rest = [*_tell_blocks(trace, step), *_tell_rest(trace, step)]
    told += sorted(rest, key=lambda sentence: min(number[id(event)] for event in sentence[1]))  # as it happened
    return [*told, (f"Full and hashed: {_blocks(hashed)}", hashed)] if hashed else told


def sentence_of(trace: Trace, i: int, event: dict[str, Any]) -> str:
    """The sentence of `tell_step` that tells of an event, or of what was computed."""
    told = tell_step(trace, i)
    found = (text for text, events in told if any(e is event for e in events))
    return next(found, next(text for text, events in told if not events))


def _tokens(n: int) -> str:
    return f"{n} token" if n == 1 else f"{n} tokens"


def _blocks(events: list[dict[str, Any]]) -> str:
    return ", ".join(f"#{event['block']}" for event in events)


def _tell_blocks(trace: Trace, step: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Who got which blocks, one sentence a sequence."""
    told: list[tuple[str, list[dict[str, Any]]]] = []
    cached = {event["seq"]: event["cached"] for event in step["events"] if event["event"] == "admit"}
    for seq_id in dict.fromkeys(event["seq"] for event in step["events"]):
        mine = [e for e in step["events"] if e["seq"] == seq_id and e["event"] in ("share", "append", "admit")]
        shared, new = ([event for event in mine if event["event"] == kind] for kind in ("share", "append"))
        parts = []
        if shared:
            parts.append(f"finds {_tokens(cached.get(seq_id, 0))} in the cache ({_blocks(shared)})")
        if new:
            parts.append(f"takes {'blocks' if len(new) > 1 else 'block'} {_blocks(new)}")
        if parts:
            told.append((f"{name_of(trace, seq_id)} {' and '.join(parts)}", mine))
    evicted = [event for event in step["events"] if event["event"] == "evict"]
    if evicted:
        told.append((f"What {_blocks(evicted)} had cached is lost", evicted))
    return told


def _tell_rest(trace: Trace, step: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    told = []
    for event in step["events"]:
        kind, reason = event["event"], event.get("reason")
        words = {
            "refuse": f"has to wait: {REASONS.get(str(reason), reason)}",
            "preempt": "is preempted: it gives its blocks back and waits",
            "finish": f"is finished ({reason})",
        }
        if kind in words:
            given = [e for e in step["events"] if e["event"] == "release" and e["seq"] == event["seq"]]
            told.append((f"{name_of(trace, event['seq'])} {words[kind]}", [event, *given]))
    return told


def find_bookmarks(trace: Trace) -> dict[str, int]:
    """The first step of everything that is worth a look: a name for a button, and the step."""
    marks: dict[str, int] = {}
    for i, step in enumerate(trace["steps"]):
        admitted, found = set(), revived(trace, i)
        for event in step["events"]:
            kind = event["event"]
            if kind == "share":
                marks.setdefault("revival" if (event["seq"], event["block"]) in found else "sharing", i)
            elif kind in ("evict", "preempt", "finish", "refuse"):
                names = {"evict": "eviction", "preempt": "preemption", "finish": "first finish", "refuse": "refusal"}
                marks.setdefault(names[kind], i)
            elif kind == "admit":
                admitted.add(event["seq"])
        if any(seq_id in admitted and _is_cut(step, seq_id) for seq_id in step["after"]["waiting"]):
            marks.setdefault("cut prompt", i)
    return dict(sorted(marks.items(), key=lambda mark: mark[1]))


def revived(trace: Trace, i: int) -> set[tuple[int, int]]:
    """(sequence, block) of each block that was free before step `i`, and found by its content.

    Only by the first that finds it: the next one of the same step shares it, as does one that finds what another has
    only just begun to fill.
    """
    before = state_before(trace, i)
    free, found = set(before["free"]), set()
    for event in trace["steps"][i]["events"]:
        if event["event"] == "share" and event["block"] in free and str(event["block"]) in before["hash"]:
            found.add((event["seq"], event["block"]))
        if event["event"] in ("share", "append"):
            free.discard(event["block"])
    return found


def most_telling_step(trace: Trace) -> int:
    """The step in which most different things happen, the first of them; never the state before the first step."""
    weights = {"preempt": 5, "share": 4, "evict": 3, "finish": 2, "refuse": 2, "admit": 1}
    scores = [sum(weights.get(kind, 0) for kind in {e["event"] for e in step["events"]}) for step in trace["steps"]]
    return 1 + scores[1:].index(max(scores[1:])) if len(scores) > 1 else 0


def _is_cut(step: dict[str, Any], seq_id: int) -> bool:
    return bool(step["after"]["seqs"][str(seq_id)]["table"])


def block_states(trace: Trace, i: int) -> dict[int, str]:
    """Each block's state after a step: "free", "cached" (free, and an equal prefix would find it), "used", "shared"."""
    after = trace["steps"][i]["after"]
    states = {}
    for block_id in range(trace["config"]["num_blocks"]):
        ref = after["ref"].get(str(block_id), 0)
        unused = "cached" if str(block_id) in after["hash"] else "free"
        states[block_id] = "shared" if ref > 1 else "used" if ref else unused
    return states


def block_contents(trace: Trace) -> list[dict[int, tuple[int, int]]]:
    """For each step, what each block last held: block id to (sequence id, number of its block)."""
    history: list[dict[int, tuple[int, int]]] = []
    held: dict[int, tuple[int, int]] = {}
    for step in trace["steps"]:
        held = _hold(held, step["after"])
        history.append(held)
    return history


def _hold(held: dict[int, tuple[int, int]], state: State) -> dict[int, tuple[int, int]]:
    tables = {int(seq_id): seq["table"] for seq_id, seq in state["seqs"].items()}
    return held | {b: (seq_id, index) for seq_id, table in tables.items() for index, b in enumerate(table)}


@dataclass
class Layout:
    """What is known before a step is drawn.

    Args:
        contents: after each step, what blocks last held.
        lines: rows that each table needs.
        others: what is not as in another run.
        moments: through which states each step went.
        names: after each step and each of its moments, the hash table: names and their blocks.
        parents: of each name, that of the block before.
        queues: the most sequences that ever ran, and that ever waited.
    """

    contents: list[dict[int, tuple[int, int]]]
    lines: dict[str, int]
    others: list[list[str]]
    moments: list[list[Moment]]
    names: list[list[dict[str, int]]]
    parents: dict[str, str | None]
    queues: tuple[int, int]

    def name(self, i: int, name: str) -> str:
        """A name with a sign before it where it differs."""
        return f"≠ {name}" if name in self.others[i] else name

    def at_moment(self, trace: Trace, i: int, k: int) -> tuple[Trace, "Layout"]:
        """The run as if step `i` had ended after the k-th of its moments."""
        step, (_, state) = trace["steps"][i], self.moments[i][k]
        events = [moment.event for moment in self.moments[i][: k + 1]]
        cut = {**trace, "steps": [*trace["steps"][:i], {**step, "events": events, "after": state}]}
        contents = [*self.contents[:i], _hold(self.contents[i - 1], state)]
        return cut, replace(self, contents=contents, names=[*self.names[:i], self.names[i][: k + 1]])


def lay_out(trace: Trace, beside: Trace | None = None) -> Layout:
    """Look through the whole trace once; each step leaves room for the longest tables, so that nothing jumps."""
    longest = dict.fromkeys(trace["seqs"], 1)
    for step in trace["steps"]:
        for seq_id, seq in step["after"]["seqs"].items():
            longest[seq_id] = max(longest.get(seq_id, 1), len(seq["table"]))
    lines = {seq_id: -(-n // PER_LINE) for seq_id, n in longest.items()}
    indices = range(len(trace["steps"]))
    moments = [replay(trace, i) for i in indices]
    names, parents = _follow_names(trace, moments)
    states = [state for i in indices for state in _states(trace, i, moments)]
    queues = max(len(state["running"]) for state in states), max(len(state["waiting"]) for state in states)
    others = [differences(trace, beside, i) for i in indices]
    return Layout(block_contents(trace), lines, others, moments, names, parents, queues)


def _states(trace: Trace, i: int, moments: list[list[Moment]]) -> list[State]:
    return [moment.state for moment in moments[i]] or [trace["steps"][i]["after"]]


def _follow_names(
    trace: Trace, moments: list[list[Moment]]
) -> tuple[list[list[dict[str, int]]], dict[str, str | None]]:
    """The hash table at all moments of all steps: of blocks with equal names, the first is the one that it knows."""
    found, known, before = list[list[dict[str, int]]](), dict[str, int](), dict[str, str]()
    for i in range(len(trace["steps"])):
        found.append([])
        for state in _states(trace, i, moments):
            kept = {name: block_id for name, block_id in known.items() if state["hash"].get(str(block_id)) == name}
            new = {name: int(key) for key, name in state["hash"].items() if before.get(key) != name}
            known, before = kept | {name: new[name] for name in new if name not in kept}, state["hash"]
            found[i].append(known)
    events = [event for step in trace["steps"] for event in step["events"] if event["event"] == "hash"]
    return found, {event["hash"]: event["parent"] for event in events}


QUEUE_ROOM = 9  # badges of sequences above the pool
QUEUES = {"free": "Free list", "running": "Running", "waiting": "Waiting"}


def differences(trace: Trace, other: Trace | None, i: int) -> list[str]:
    """What is not as in another run after step `i`: blocks as "#3", letters of sequences, names of `QUEUES`."""
    if other is None or i >= len(other["steps"]):
        return []
    mine, theirs = trace["steps"][i]["after"], other["steps"][i]["after"]
    named = owners(mine), owners(theirs)
    found = []
    for block_id in range(trace["config"]["num_blocks"]):
        one, two = (
            (state["ref"].get(str(block_id)), state["hash"].get(str(block_id)), tables.get(block_id))
            for state, tables in zip((mine, theirs), named, strict=True)
        )
        found += [f"#{block_id}"] if one != two else []
    found += [name_of(trace, key) for key in trace["seqs"] if mine["seqs"].get(key) != theirs["seqs"].get(key)]
    return found + [word for key, word in QUEUES.items() if mine[key] != theirs[key]]


def draw_tables(trace: Trace, i: int, layout: Layout) -> Drawing:
    """The block tables after step `i`: a row a sequence, beside its lane, with a box for each of its blocks."""
    picture = Drawing(TABLES_WIDTH, HEAD, f"block tables after step {i}")
    picture.text(0, 13, "Block tables", bold=True)
    for index in range(PER_LINE if max(layout.lines.values()) == 1 else 0):
        picture.text(STATUS + (index + 0.5) * BOX, 13, str(index), SMALL, anchor="middle", mono=True)
    step, after = trace["steps"][i], trace["steps"][i]["after"]
    for order, (seq_id, entry) in enumerate(trace["seqs"].items()):
        state, y, name = after["seqs"].get(seq_id), picture.height, entry["name"]
        status = state["status"].lower() if state else "finished" if _has_arrived(trace, i, seq_id) else "not here yet"
        title = f"{name}: {status}" + (f", {state['kv']} of its {state['len']} tokens stored" if state else "")
        with picture.group(title, row=name, status=status, owners=name):
            words = "failed" if state and step["kind"] == "error" else status
            with picture.group(key=f"{name}:status"):
                picture.text(0, y + 16, f"≠ {words}" if name in layout.others[i] else words, SMALL)
            for index, block_id in enumerate(state["table"] if state else []):
                left, top = STATUS + index % PER_LINE * BOX, y + index // PER_LINE * ROW
                stored = max(0, min(trace["config"]["block_size"], state["kv"] - index * trace["config"]["block_size"]))
                words = f"block {index} of {name} is stored in #{block_id}: {stored} tokens"
                data = {"logical": index, "physical": block_id, "block": block_id, "key": f"{block_id}:{name}"}
                with picture.group(words, owners=name, **data):
                    share = stored / trace["config"]["block_size"]
                    picture.rect(left, top + 2, (BOX - 4) * share, 18, color_of(order), None)
                    picture.rect(left, top + 2, BOX - 4, 18)
                    ink = ink_on(color_of(order)) if share > 0.6 else None
                    text = f"#{block_id}"
                    picture.text(left + BOX / 2 - 2, top + 15, text, SMALL, ink, "middle", mono=True)
        picture.height += ROW * layout.lines[seq_id]
    return picture


def _has_arrived(trace: Trace, i: int, seq_id: str) -> bool:
    arrive, events = trace["seqs"][seq_id]["arrive"], trace["steps"][i]["events"]
    return arrive < i or any(event["event"] == "arrive" and event["seq"] == int(seq_id) for event in events)


def draw_pool(trace: Trace, i: int, layout: Layout) -> Drawing:
    """All physical blocks after step `i` with their content, then the free list and the queues."""
    picture = Drawing(WIDTH, 0, f"pool after step {i}")
    states, named = block_states(trace, i), owners(trace["steps"][i]["after"])
    used = len(states) - len(trace["steps"][i]["after"]["free"])
    picture.text(0, 14, "Pool", bold=True)
    picture.text(42, 14, f"{used} of {len(states)} blocks in use", SMALL)
    _draw_queues(picture, trace, i, layout)
    width, pitch, per_row = _pool_grid(trace)
    for block_id in states:
        x, y = block_id % per_row * (WIDTH + 18) / per_row, HEAD + block_id // per_row * pitch
        _draw_pool_block(picture, trace, i, (x, y, width), block_id, named.get(block_id, []), layout)
    below = HEAD + pitch * -(-len(states) // per_row)
    _draw_free(picture, trace, i, below, layout)
    _draw_names(picture, trace, i, below + 21, layout)
    picture.height = below + 42
    return picture


def _pool_grid(trace: Trace) -> tuple[float, float, int]:
    """Width of a block, distance of two rows, and blocks in a row: small ones where there are many."""
    if trace["config"]["num_blocks"] > MANY_BLOCKS:
        return 48.0, 32.0, 10
    per_row = 3 if trace["config"]["block_size"] <= MAX_SLOTS_WITH_TEXT else 4
    return (WIDTH + 18) / per_row - 18, 44.0, per_row


def _draw_pool_block(
    picture: Drawing,
    trace: Trace,
    i: int,
    box: tuple[float, float, float],
    block_id: int,
    seq_ids: list[int],
    layout: Layout,
) -> None:
    (x, y, width), after = box, trace["steps"][i]["after"]
    names, state = [name_of(trace, seq_id) for seq_id in seq_ids], block_states(trace, i)[block_id]
    ref, word = after["ref"].get(str(block_id), 0), what_changed(trace, i, block_id)
    title = f"block {block_id}: {state}, reference count {ref}"
    title += f", in the table of {' and '.join(names)}" if names else ""
    title += f"; {CHANGES[word.rstrip(ALPHABET)]}" if word else ""
    known = after["hash"].get(str(block_id))
    title += f"; hash {known}" if known else ""
    data = {
        "b": block_id,
        "block": block_id,
        "key": block_id,
        "ref": ref,
        "state": state,
        "owners": " ".join(names) or "-",
    }
    is_other = f"#{block_id}" in layout.others[i]
    data |= {"hash": known or "-", "change": word or "-", "other": "yes" if is_other else "-"}
    fills = {str(seq_id): color_of(n) for n, seq_id in enumerate(trace["seqs"])}
    with picture.group(title, focusable=True, **data):
        is_small, top = width < 60, y + (4 if width < 60 else 17)
        if not is_small:
            text = layout.name(i, f"#{block_id}") + (f" ref {ref} {'+'.join(names)}" if names else f" {state}")
            room = width - (8 * len(word) + 8 if word else 0)
            with picture.group(key=f"{block_id}:ref"):
                picture.text(x, y + 12, fit(text, room, SMALL), SMALL, mono=True, bold=word == "new")
        runs, texts = _content(trace, i, block_id, seq_ids, layout.contents[i], fills)
        block(picture, x, top, width, runs, texts)
        if is_small:
            ink = ink_on(runs[0][0].fill) if runs[0][1] else None
            name = layout.name(i, f"#{block_id}")
            picture.text(x + width / 2, top + 14, name, SMALL, ink, "middle", mono=True)
        for n, other in enumerate(seq_ids[1:3]):  # a stripe below for each further owner
            picture.rect(x, top + 21 + 4 * n, width, 3, fills.get(str(other)), None)
        if state == "shared":
            picture.rect(x - 2.5, top - 2.5, width + 5, SLOT_HEIGHT + 5, None, BORDER, 1.5)
        if is_other:
            picture.rect(x - 5, top - 5, width + 10, SLOT_HEIGHT + 10, None, VERMILION, 2, dashed=True)
        if word == "new":
            picture.rect(x - 2, top - 2, width + 4, SLOT_HEIGHT + 4, None, VERMILION, 3)
        if word and not is_small:
            gained = next((seq_id for seq_id in seq_ids if f"+{name_of(trace, seq_id)}" == word), None)
            tag(picture, x + width + 2, y + 12, word, VERMILION if gained is None else fills[str(gained)])


def _content(
    trace: Trace, i: int, block_id: int, seq_ids: list[int], held: dict[int, tuple[int, int]], fills: dict[str, str]
) -> tuple[list[tuple[Style, int]], list[str]]:
    """The slots of a block of the pool: how many of which style, and their tokens if they have room."""
    after, size = trace["steps"][i]["after"], trace["config"]["block_size"]
    if not seq_ids and (str(block_id) not in after["hash"] or block_id not in held):
        return [(EMPTY, size)], []
    seq_id, index, style, stored = *held[block_id], FREE, size
    if seq_ids:
        seq = after["seqs"][str(seq_ids[0])]
        seq_id, index, style = seq_ids[0], seq["table"].index(block_id), Style(fills.get(str(seq_ids[0])))
        stored = max(0, min(size, seq["kv"] - index * size))
    runs = [(style, stored), (EMPTY, size - stored)]
    texts = trace["seqs"].get(str(seq_id), {}).get("texts") or [str(token) for token in tokens_of(trace, seq_id)]
    shown = texts[index * size : index * size + stored] if size <= MAX_SLOTS_WITH_TEXT else []
    return [run for run in runs if run[1]], shown


CHANGES = {
    "new": "taken from the free list in this step",
    "found": "it was free, and its content is found again in this step",
    "+": "one more owner in this step",
}


def what_changed(trace: Trace, i: int, block_id: int) -> str:
    """What step `i` did with a block: "new", "found" (free before, but with content that is used again), "+B" (B shares
    it with its owners), or "" if nothing. A block that one takes and another shares at once is new."""
    if not i:
        return ""
    before, now = owners(state_before(trace, i)).get(block_id, []), owners(trace["steps"][i]["after"]).get(block_id, [])
    gained = [seq_id for seq_id in now if seq_id not in before]
    if not gained:
        return ""
    if set(before) & set(now):
        return f"+{name_of(trace, gained[-1])}"
    return "found" if block_id in {found for _, found in revived(trace, i)} else "new"


def _draw_queues(picture: Drawing, trace: Trace, i: int, layout: Layout) -> None:
    """Above the pool: a badge for each sequence that runs or waits."""
    after, x = trace["steps"][i]["after"], 206.0
    colors = {seq_id: color_of(order) for order, seq_id in enumerate(trace["seqs"])}
    room = min(layout.queues[0], max(QUEUE_ROOM // 2, QUEUE_ROOM - layout.queues[1]))
    for queue, order, most in (("running", "oldest", room), ("waiting", "next one", QUEUE_ROOM - room)):
        picture.text(x, 14, layout.name(i, QUEUES[queue]), bold=True)
        x += 80 if any(layout.others) else 66
        names = [name_of(trace, seq_id) for seq_id in after[queue]]
        with picture.group(f"{queue}, {order} first: {', '.join(names) or 'nobody'}", queue=" ".join(names)):
            for n, (seq_id, name) in enumerate(list(zip(after[queue], names, strict=True))[:most]):
                with picture.group(key=f"{name}:queue", owners=name):
                    badge(picture, x + 22 * n, 0, name, colors.get(str(seq_id), BORDER), 20)
        if not names or len(names) > most:
            picture.text(x + 22 * most * bool(names), 14, f"+{len(names) - most}" if names else "nobody", SMALL)
        x += max(22 * most, 44) + 10


def _draw_free(picture: Drawing, trace: Trace, i: int, y: float, layout: Layout) -> None:
    after = trace["steps"][i]["after"]
    picture.text(0, y + 14, layout.name(i, QUEUES["free"]), bold=True)
    free, x = after["free"], 84.0
    room = int((WIDTH - x - 46 - 102) // 38)
    with picture.group(f"free blocks, the next one first: {free}", free=" ".join(map(str, free))):
        with picture.group(key="next"):
            picture.text(x, y + 14, "next →" if free else "no block is free", SMALL)
        x += 46
        for n, block_id in enumerate(free[:room]):
            with picture.group(f"block {block_id}: free", block=block_id, key=f"{block_id}:free"):
                picture.rect(x, y, 36, 18, hatch=str(block_id) in after["hash"])
                picture.text(x + 18, y + 13, f"#{block_id}", SMALL, anchor="middle", mono=True, bold=n == 0)
            x += 38
        if len(free) > room:
            with picture.group(key="more free"):
                picture.text(x + 3, y + 14, f"… and {len(free) - room} more", SMALL)


def _draw_names(picture: Drawing, trace: Trace, i: int, y: float, layout: Layout) -> None:
    """The hash table: each name with its block, beside or joined to the name of the block before."""
    names, width, left = layout.names[i][-1], 30.0, 84.0
    is_long = trace["config"]["num_blocks"] <= 8
    width += 26 if is_long else 0
    room = int((WIDTH - left) // (width + 10))
    room -= 2 if len(names) > room else 0
    picture.text(0, y + 14, "Hash table", bold=True)
    places: dict[str, float] = {}
    for name in in_chains(names, layout.parents)[:room]:
        x, parent = left + (width + 10) * len(places), layout.parents.get(name)
        title = f"{name} is block {names[name]}" + (f", after block {names[parent]}" if parent in names else "")
        with picture.group(title, name=name, block=names[name], key=f"{names[name]}:name"):
            _draw_link(picture, places.get(parent or ""), x, y, width)
            picture.rect(x, y, width, 18)
            text = f"{name[:3]} " * is_long + f"#{names[name]}"
            picture.text(x + width / 2, y + 13, text, SMALL, anchor="middle", mono=True)
        places[name] = x
    if not names or len(names) > room:
        nothing = "empty" if trace["config"].get("enable_prefix_caching", True) else "off: no prefix caching"
        more = f"… and {len(names) - room} more" if names else nothing
        picture.text(left + (width + 10) * len(places), y + 14, more, SMALL)


def _draw_link(picture: Drawing, parent: float | None, x: float, y: float, width: float) -> None:
    """From the name of the block before, if it is there: straight, or around the names between."""
    if parent is None:
        return
    if x - parent < 1.5 * width:
        picture.line(parent + width, y + 9, x, y + 9, None, 2)
        return
    start, end = parent + width / 2, x + width / 2
    for x1, y1, x2, y2 in ((start, 18, start, 21), (start, 20, end, 20), (end, 21, end, 18)):
        picture.line(x1, y + y1, x2, y + y2, None, 2)


def in_chains(names: dict[str, int], parents: dict[str, str | None]) -> list[str]:
    """Names in an order in which each stands after that of the block before it, as near as can be."""
    following: dict[str | None, list[str]] = {}
    for name in names:
        parent = parents.get(name)
        following.setdefault(parent if parent in names and parent != name else None, []).append(name)
    ordered, rest = list[str](), following.get(None, [])[::-1]
    while rest:
        ordered.append(rest.pop())
        rest += following.get(ordered[-1], [])[::-1]
    return ordered + [name for name in names if name not in ordered]  # if somebody's chain bites its tail


def legend_of(trace: Trace, layout: Layout) -> list[LegendItem]:
    """The marks of the stage that occur in this run, and what they mean; see `shapes.legend_item`."""
    words = {
        what_changed(trace, i, b) for i in range(len(trace["steps"])) for b in range(trace["config"]["num_blocks"])
    }
    is_shared = any(ref > 1 for step in trace["steps"] for ref in step["after"]["ref"].values())
    is_cached = any(str(b) in step["after"]["hash"] for step in trace["steps"] for b in step["after"]["free"])
    items: list[LegendItem] = [item for item in lane_legend(trace) if item[0] != "waiting"]
    items += [("waiting", "waits; in the pool: free, but still cached" if is_cached else "waits", None)]
    items += [("new", "new in this step", None)] if "new" in words else []
    items += [("tag:+B", "one more owner", color_of(1))] if any(word.startswith("+") for word in words) else []
    items += [("tag:found", "was free, found again", VERMILION)] if "found" in words else []
    items += [("shared", "shared", color_of(0))] if is_shared else []
    items += [("≠", "not as in the other run", None)] if any(layout.others) else []
    return items
