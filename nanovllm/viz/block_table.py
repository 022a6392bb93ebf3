"""Pictures of block tables: the tokens of each sequence, where they are stored, and who owns which block.

The layout, logical blocks beside physical ones with the change marked, is that of the figures in vLLM's blog post on
PagedAttention (2023).
"""

from dataclasses import dataclass
from typing import Any

from .drawing import BORDER, VERMILION, Drawing, color_of, fit, ink_on, visible
from .trace import Trace, name_of, owners, state_before, tokens_of

WIDTH = 860.0
LABEL_WIDTH = 116.0
SLOT_WIDTH = 43.0
BAR_WIDTH = 100.0
MAX_SLOTS_WITH_TEXT = 4  # blocks larger than this show how full they are instead of their tokens

REASONS = {
    "no_blocks": "not enough free blocks",
    "token_budget": "the step's token budget is used up",
    "max_seqs": "max_num_seqs sequences run already",
    "no_headroom": "the running ones are expected to need the room",
}


def describe_step(trace: Trace, i: int) -> str:
    """What happened in a step, in sentences made from its events."""
    step = trace["steps"][i]
    work = ", ".join(f"{name_of(trace, item['seq'])} {_tokens(item['n'])}" for item in step["scheduled"])
    if step["kind"] == "error":
        return "The engine stopped here."
    start = {"init": "Start: nothing has been computed yet", "prefill": "Prefill", "decode": "Decode"}[step["kind"]]
    if i and step["kind"] == "init":
        start = "A step was interrupted: the cache is empty, and whoever is left waits with the tokens it has"
    sentences = [f"{start}: {work}" if work else start, *_describe_blocks(trace, step), *_describe_rest(trace, step)]
    return ". ".join(sentences) + "."


def _tokens(n: int) -> str:
    return f"{n} token" if n == 1 else f"{n} tokens"


def _describe_blocks(trace: Trace, step: dict[str, Any]) -> list[str]:
    """Who got which blocks, one sentence a sequence."""
    sentences = []
    cached = {event["seq"]: event["cached"] for event in step["events"] if event["event"] == "admit"}
    for seq_id in dict.fromkeys(event["seq"] for event in step["events"]):
        mine = [event for event in step["events"] if event["seq"] == seq_id]
        shared = [f"#{event['block']}" for event in mine if event["event"] == "share"]
        new = [f"#{event['block']}" for event in mine if event["event"] == "append"]
        parts = []
        if shared:
            parts.append(f"finds {_tokens(cached.get(seq_id, 0))} in the cache ({', '.join(shared)})")
        if new:
            parts.append(f"takes {'blocks' if len(new) > 1 else 'block'} {', '.join(new)}")
        if parts:
            sentences.append(f"{name_of(trace, seq_id)} {' and '.join(parts)}")
    evicted = [f"#{event['block']}" for event in step["events"] if event["event"] == "evict"]
    if evicted:
        sentences.append(f"What {', '.join(evicted)} had cached is lost")
    return sentences


def _describe_rest(trace: Trace, step: dict[str, Any]) -> list[str]:
    sentences = []
    for event in step["events"]:
        name = name_of(trace, event["seq"])
        if event["event"] == "refuse":
            sentences.append(f"{name} has to wait: {REASONS.get(event['reason'], event['reason'])}")
        elif event["event"] == "preempt":
            sentences.append(f"{name} is preempted: it gives its blocks back and waits")
        elif event["event"] == "finish":
            sentences.append(f"{name} is finished ({event['reason']})")
    return sentences


def find_bookmarks(trace: Trace) -> dict[str, int]:
    """The first step of everything that is worth a look: a name for a button, and the step."""
    marks: dict[str, int] = {}
    for i, step in enumerate(trace["steps"]):
        free_before, admitted = set(state_before(trace, i)["free"]), set()
        for event in step["events"]:
            kind = event["event"]
            if kind == "share":
                marks.setdefault("revival" if event["block"] in free_before else "sharing", i)
            elif kind in ("evict", "preempt", "finish", "refuse"):
                names = {"evict": "eviction", "preempt": "preemption", "finish": "first finish", "refuse": "refusal"}
                marks.setdefault(names[kind], i)
            elif kind == "admit":
                admitted.add(event["seq"])
        if any(seq_id in admitted and _is_cut(step, seq_id) for seq_id in step["after"]["waiting"]):
            marks.setdefault("cut prompt", i)
    return dict(sorted(marks.items(), key=lambda mark: mark[1]))


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
        held = dict(held)
        for seq_id, seq in step["after"]["seqs"].items():
            for index, block_id in enumerate(seq["table"]):
                held[block_id] = (int(seq_id), index)
        history.append(held)
    return history


@dataclass
class Layout:
    """What the pictures of all steps have in common: what blocks last held, and the room for each sequence."""

    contents: list[dict[int, tuple[int, int]]]
    lines: dict[str, int]


def lay_out(trace: Trace) -> Layout:
    """Look through the whole trace once; each step leaves room for the longest tables, so that nothing jumps."""
    longest = dict.fromkeys(trace["seqs"], 1)
    for step in trace["steps"]:
        for seq_id, seq in step["after"]["seqs"].items():
            longest[seq_id] = max(longest.get(seq_id, 1), len(seq["table"]))
    return Layout(block_contents(trace), {seq_id: -(-n // _per_row(trace)) for seq_id, n in longest.items()})


def draw_blocks(trace: Trace, i: int, layout: Layout | None = None) -> Drawing:
    """The state after step `i`: a row a sequence with its block table, then the pool, then the queues."""
    layout = layout or lay_out(trace)
    picture = Drawing(WIDTH, 0, f"block tables and pool after step {i}")
    y = _draw_sequences(picture, trace, i, 4.0, layout)
    y = _draw_pool(picture, trace, i, y + 8, layout)
    picture.height = _draw_queues(picture, trace, i, y + 4)
    return picture


def _block_width(trace: Trace) -> float:
    block_size = trace["config"]["block_size"]
    return block_size * SLOT_WIDTH if block_size <= MAX_SLOTS_WITH_TEXT else BAR_WIDTH


def _per_row(trace: Trace) -> int:
    return max(1, int((WIDTH - LABEL_WIDTH) // (_block_width(trace) + 10)))


def _draw_sequences(picture: Drawing, trace: Trace, i: int, y: float, layout: Layout) -> float:
    picture.text(4, y + 13, "Block tables", bold=True)
    picture.text(LABEL_WIDTH, y + 13, "logical block → physical block; crossed slots are computed in a later step", 11)
    y += 22
    after = trace["steps"][i]["after"]
    for order, (seq_id, entry) in enumerate(trace["seqs"].items()):
        state = after["seqs"].get(seq_id)
        status = state["status"].lower() if state else ("not here yet" if entry["arrive"] > i else "finished")
        name, fill = entry["name"], color_of(order)
        with picture.group(title=f"{name}: {status}", focusable=True, row=name, status=status):
            picture.rect(4, y, 22, 18, fill)
            picture.text(15, y + 14, name, color=ink_on(fill), anchor="middle", bold=True)
            picture.text(32, y + 14, status, 11)
            if state:
                picture.text(4, y + 32, f"{state['kv']} of {state['len']} stored", 10)
        if state and not state["table"]:
            picture.text(LABEL_WIDTH, y + 14, "no blocks", 11, italic=True)
        for index, block_id in enumerate(state["table"] if state else []):
            x = LABEL_WIDTH + index % _per_row(trace) * (_block_width(trace) + 10)
            top = y + index // _per_row(trace) * 40
            with picture.group(owners=name, logical=index, physical=block_id):
                picture.text(x, top + 11, f"{index} → #{block_id}", 11, mono=True)
                _draw_slots(picture, trace, x, top + 14, int(seq_id), index, state["kv"], state["len"], fill)
        y += 40 * layout.lines[seq_id]
    return y


def _draw_slots(
    picture: Drawing,
    trace: Trace,
    x: float,
    y: float,
    seq_id: int,
    index: int,
    stored: int,
    length: int,
    fill: str | None,
    faded: bool = False,
) -> None:
    """The slots of one block: tokens as text if they are few, else a bar as long as the stored part."""
    block_size, width = trace["config"]["block_size"], _block_width(trace)
    first = index * block_size
    num_stored = max(0, min(block_size, stored - first))
    if block_size > MAX_SLOTS_WITH_TEXT:
        picture.rect(x, y, width, 18)
        if num_stored:
            picture.rect(x, y, width * num_stored / block_size, 18, None if faded else fill, hatch=faded)
        is_inside = num_stored > block_size / 2 and not faded
        ink, anchor = (ink_on(fill), "start") if is_inside else (None, "end")
        edge = x + 4 if is_inside else x + width - 4
        picture.text(edge, y + 13, f"{num_stored}/{block_size}", 11, ink, anchor, mono=True)
        return
    texts = trace["seqs"].get(str(seq_id), {}).get("texts") or [str(t) for t in tokens_of(trace, seq_id)]
    for slot in range(block_size):
        position, left = first + slot, x + slot * SLOT_WIDTH
        is_stored = position < stored
        picture.rect(left, y, SLOT_WIDTH, 18, fill if is_stored and not faded else None, hatch=faded and is_stored)
        if position < min(length, len(texts)):
            text = fit(visible(texts[position].removeprefix(" ")), SLOT_WIDTH - 3, 10)
            ink = ink_on(fill) if is_stored and not faded else None
            middle = left + SLOT_WIDTH / 2
            picture.text(middle, y + 13, text, 10, ink, "middle", mono=True, italic=faded)
            if not is_stored:
                picture.line(left, y + 18, left + SLOT_WIDTH, y, BORDER)


def _draw_pool(picture: Drawing, trace: Trace, i: int, y: float, layout: Layout) -> float:
    picture.text(4, y + 13, "Pool", bold=True)
    note = "physical blocks; double border: shared; stripe: a further owner; hatched: free, still cached; "
    note += "thick orange: new"
    picture.text(LABEL_WIDTH, y + 13, note, 11)
    y += 22
    states, named = block_states(trace, i), owners(trace["steps"][i]["after"])
    before = owners(state_before(trace, i)) if i else {}
    contents, per_row = layout.contents[i], _per_row(trace)
    for block_id, state in states.items():
        x = LABEL_WIDTH + block_id % per_row * (_block_width(trace) + 10)
        top = y + block_id // per_row * 56
        is_new = i > 0 and bool(set(named.get(block_id, [])) - set(before.get(block_id, [])))
        _draw_pool_block(picture, trace, i, x, top, block_id, state, named.get(block_id, []), contents, is_new)
    picture.text(4, y + 14, f"{len(states) - len(trace['steps'][i]['after']['free'])} of {len(states)}", 11)
    picture.text(4, y + 28, "in use", 11)
    return y + 56 * -(-len(states) // per_row)


def _draw_pool_block(
    picture: Drawing,
    trace: Trace,
    i: int,
    x: float,
    y: float,
    block_id: int,
    state: str,
    seq_ids: list[int],
    contents: dict[int, tuple[int, int]],
    is_new: bool,
) -> None:
    names = [name_of(trace, seq_id) for seq_id in seq_ids]
    after, width = trace["steps"][i]["after"], _block_width(trace)
    ref = after["ref"].get(str(block_id), 0)
    title = (
        f"block {block_id}: {state}, reference count {ref}{', in the table of ' + ' and '.join(names) if names else ''}"
    )
    order = {seq_id: n for n, seq_id in enumerate(trace["seqs"])}
    with picture.group(title, b=block_id, ref=ref, state=state, owners=" ".join(names) or "-"):
        words = f"ref {ref} {'+'.join(names)}" if names else state
        picture.text(x, y + 11, fit(f"#{block_id} {words}", width + 6, 11), 11, mono=True, bold=is_new)
        holder = contents.get(block_id)
        if state in ("used", "shared") and seq_ids:
            seq_id, index = seq_ids[0], after["seqs"][str(seq_ids[0])]["table"].index(block_id)
            seq = after["seqs"][str(seq_id)]
            _draw_slots(picture, trace, x, y + 17, seq_id, index, seq["kv"], seq["kv"], color_of(order[str(seq_id)]))
        elif state == "cached" and holder:
            end = (holder[1] + 1) * trace["config"]["block_size"]
            _draw_slots(picture, trace, x, y + 17, holder[0], holder[1], end, end, None, faded=True)
        else:
            picture.rect(x, y + 17, width, 18)
        for n, other in enumerate(seq_ids[1:4]):  # a stripe below for each further owner
            picture.rect(x, y + 36 + 5 * n, width, 4, color_of(order[str(other)]), None)
        height = 24 + 5 * min(3, max(0, len(seq_ids) - 1))
        if state == "shared":
            picture.rect(x - 3, y + 14, width + 6, height, None, None if is_new else "#555", 1.5)
        if is_new:
            picture.rect(x - 3, y + 14, width + 6, height, None, VERMILION, 3)


def _draw_queues(picture: Drawing, trace: Trace, i: int, y: float) -> float:
    after = trace["steps"][i]["after"]
    for word, order in (("running", "oldest first"), ("waiting", "next one first")):
        names = ", ".join(name_of(trace, seq_id) for seq_id in after[word]) or "nobody"
        picture.text(4, y + 14, word.capitalize(), bold=True)
        picture.text(LABEL_WIDTH, y + 14, names + (f" ({order})" if len(after[word]) > 1 else ""))
        y += 19
    picture.text(4, y + 14, "Free list", bold=True)
    free, x = after["free"], LABEL_WIDTH
    with picture.group("the left end is handed out next", free=" ".join(map(str, free))):
        for n, block_id in enumerate(free[:20]):
            cached = str(block_id) in after["hash"]
            picture.rect(x, y, 32, 18, hatch=cached)
            picture.text(x + 16, y + 13, f"#{block_id}", 11, anchor="middle", mono=True, bold=n == 0)
            x += 35
        note = "none" if not free else "← next" if len(free) == 1 else "left: next to be handed out"
        picture.text(x + 3 if free else LABEL_WIDTH, y + 14, note if len(free) <= 14 else "…", 11)
    return y + 24
