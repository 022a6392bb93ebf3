"""Pictures of one sequence: its state, and its tokens in logical blocks, as cached, scheduled and waiting ones."""

from itertools import groupby
from typing import NamedTuple

from .drawing import SMALL, Drawing, color_of, ink_on, visible
from .shapes import EMPTY, Style, arrow, block
from .timeline import REASONS
from .trace import Trace, name_of, state_before, tokens_of

WIDTH = 632.0
BLOCK_WIDTH = 200.0
GAP = 14.0
PER_ROW = int((WIDTH + GAP) // (BLOCK_WIDTH + GAP))
MAX_SLOTS_WITH_TEXT = 4
ROW_HEIGHT = 44.0
TOP = 100.0  # where the blocks begin
STATES = ("WAITING", "RUNNING", "FINISHED")
KINDS = ("cached", "scheduled", "waiting", "chosen", "empty")


class Moment(NamedTuple):
    """One sequence while a step runs.

    Its tokens are `cached`, then `scheduled` in this step, then `waiting`; `chosen` is 1 if the model chooses the next
    token at the end of the step. `table` names its physical blocks. `status` is that at the end of the step, "" before
    it has arrived.
    """

    status: str
    cached: int = 0
    scheduled: int = 0
    waiting: int = 0
    chosen: int = 0
    table: tuple[int, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens without the one that is chosen in this step."""
        return self.cached + self.scheduled + self.waiting

    def kind_of(self, position: int) -> str:
        """What the token at a position is to this step."""
        ends = (self.cached, self.scheduled, self.waiting, self.chosen)
        for kind, length in zip(KINDS, ends, strict=False):
            if position < length:
                return kind
            position -= length
        return "empty"


def moment(trace: Trace, seq_id: int, i: int) -> Moment:
    """What becomes of a sequence in step `i`."""
    step, key, known = trace["steps"][i], str(seq_id), trace["seqs"][str(seq_id)]
    before = state_before(trace, i)["seqs"].get(key)
    after = step["after"]["seqs"].get(key)
    scheduled = sum(item["n"] for item in step["scheduled"] if item["seq"] == seq_id)
    length = before["len"] if before else len(known["prompt_ids"])
    if after:
        cached, table, status = after["kv"] - scheduled, after["table"], after["status"]
        chosen = after["len"] - length
    elif scheduled:  # its last step
        events = [event for event in step["events"] if event["seq"] == seq_id]
        found = [event["cached"] for event in events if event["event"] == "admit"]
        cached = found[0] if found else before["kv"] if before else 0
        new = [event["block"] for event in events if event["event"] in ("share", "append")]
        table, status = [*(before["table"] if before else []), *new], "FINISHED"
        chosen = len(tokens_of(trace, seq_id)) - length
    else:
        return Moment("" if known["arrive"] > i else "FINISHED")
    return Moment(status, cached, scheduled, length - cached - scheduled, chosen, tuple(table))


def describe_moment(trace: Trace, seq_id: int, i: int) -> str:
    """What happens to a sequence in a step, in sentences."""
    now, name, step = moment(trace, seq_id, i), name_of(trace, seq_id), trace["steps"][i]
    events = {event["event"]: event for event in step["events"] if event["seq"] == seq_id}
    if not now.num_tokens:
        return f"{name} is finished; its blocks are free." if now.status else f"{name} has not arrived yet."
    parts = []
    if "preempt" in events:
        parts.append(f"{name} is preempted: it loses its blocks, keeps its {now.num_tokens} tokens, and waits")
    elif not now.scheduled and now.status == "RUNNING":
        parts.append(f"{name} pauses while the step reads the prompt of another sequence")
    elif not now.scheduled:
        parts.append(f"{name} waits; {now.cached} of its {now.num_tokens} tokens are cached")
    else:
        ranges = f"{now.cached} tokens are cached, {now.scheduled} scheduled, {now.waiting} wait"
        parts.append(f"{step['kind'].capitalize()} of {name}: {ranges}")
    if "refuse" in events:
        parts.append(f"It cannot join: {REASONS.get(events['refuse']['reason'], events['refuse']['reason'])}")
    if now.scheduled and now.waiting:
        parts.append("It is cut, so no token is chosen yet")
    if now.chosen:
        token = visible(texts_of(trace, seq_id)[now.num_tokens])
        parts.append(f'At the end of the step, the model chooses the next token, "{token}"')
    if now.scheduled and now.status == "FINISHED":
        reason = events.get("finish", {}).get("reason", "unknown")
        parts.append(f"That is the last one ({reason}); {name} gives its blocks back")
    return ". ".join(parts) + "."


def find_moments(trace: Trace, seq_id: int) -> dict[str, int]:
    """The steps in the life of a sequence that are worth a look, by name."""
    marks: dict[str, int] = {}
    for i, step in enumerate(trace["steps"]):
        now = moment(trace, seq_id, i)
        events = {event["event"] for event in step["events"] if event["seq"] == seq_id}
        if now.scheduled and now.waiting:
            marks.setdefault("cut", i)
        if now.chosen:
            marks.setdefault("first token", i)
        if "append" in events and step["kind"] == "decode":
            marks.setdefault("a block more", i)
        if "preempt" in events:
            marks.setdefault("preemption", i)
        if "admit" in events and "preemption" in marks:
            marks.setdefault("starts over", i)
        if now.scheduled and now.status == "FINISHED":
            marks["finish"] = i
    return dict(sorted(marks.items(), key=lambda mark: mark[1]))


def texts_of(trace: Trace, seq_id: int) -> list[str]:
    """Each token of a sequence as text; its id if the trace has no texts."""
    return trace["seqs"][str(seq_id)].get("texts") or [str(token) for token in tokens_of(trace, seq_id)]


def num_lines(trace: Trace, seq_id: int) -> int:
    """Rows of blocks that the longest moment needs."""
    longest = 1
    for i in range(len(trace["steps"])):
        now = moment(trace, seq_id, i)
        longest = max(longest, _num_boxes(now, trace["config"]["block_size"]))
    return -(-longest // PER_ROW)


def _num_boxes(now: Moment, block_size: int) -> int:
    return max(len(now.table), -(-(now.num_tokens + now.chosen) // block_size))


def draw_sequence(trace: Trace, seq_id: int, i: int, lines: int | None = None) -> Drawing:
    """The sequence while step `i` runs; `lines` rows of blocks are left free, so that nothing jumps between steps."""
    now, block_size = moment(trace, seq_id, i), trace["config"]["block_size"]
    order = list(trace["seqs"]).index(str(seq_id))
    lines = num_lines(trace, seq_id) if lines is None else lines
    picture = Drawing(WIDTH, TOP + lines * ROW_HEIGHT + 42, f"sequence {name_of(trace, seq_id)} in step {i}")
    _draw_states(picture, trace, seq_id, i, now, color_of(order))
    draw_legend(picture, color_of(order), 52)
    picture.text(4, 90, "logical block → physical block", SMALL, italic=True)
    for index in range(_num_boxes(now, block_size)):
        x = index % PER_ROW * (BLOCK_WIDTH + GAP) + 4
        y = TOP + index // PER_ROW * ROW_HEIGHT
        _draw_block(picture, trace, seq_id, now, index, x, y, color_of(order))
    y = TOP + lines * ROW_HEIGHT + 14
    sums = f"num_tokens {now.num_tokens} = {now.cached} cached + {now.scheduled} scheduled + {now.waiting} waiting"
    num_blocks = -(-now.num_tokens // block_size)
    with picture.group(num_tokens=now.num_tokens, num_blocks=num_blocks, in_table=len(now.table)):
        picture.text(4, y, sums, 12, mono=True)
        last = now.num_tokens - (num_blocks - 1) * block_size if num_blocks else 0
        words = (
            f"num_blocks {num_blocks}, in the block table {len(now.table)}; in the last block {last} of {block_size}"
        )
        picture.text(4, y + 19, words, 12, mono=True)
    return picture


def style_of(kind: str, fill: str) -> Style:
    """How a slot of one of the `KINDS` looks."""
    styles = {
        "cached": Style(fill),
        "scheduled": Style(frame=True),
        "waiting": Style(struck=True),
        "chosen": Style(dashed=True, italic=True),
    }
    return styles.get(kind, EMPTY)


def _draw_states(picture: Drawing, trace: Trace, seq_id: int, i: int, now: Moment, fill: str) -> None:
    before = state_before(trace, i)["seqs"].get(str(seq_id), {"status": "WAITING"})["status"]
    change = (before, now.status)
    picture.text(4, 22, name_of(trace, seq_id), 15, bold=True)
    for n, state in enumerate(STATES):
        x, is_now = 40 + n * 220, state == now.status
        picture.rect(x, 6, 110, 24, dashed=True)
        with picture.group(state=state, current=int(is_now), key="state" if is_now else state):
            if is_now:
                picture.rect(x, 6, 110, 24, fill, line_width=2)
            ink = ink_on(fill) if is_now else None
            picture.text(x + 55, 22, state, SMALL, ink, "middle", bold=is_now)
    arrow(picture, 152, 14, 258, 14, "all scheduled", change == ("WAITING", "RUNNING"))
    arrow(picture, 258, 25, 152, 25, "preempted", change == ("RUNNING", "WAITING"))
    arrow(picture, 372, 18, 478, 18, "finished", now.scheduled > 0 and now.status == "FINISHED")


def draw_legend(picture: Drawing, fill: str, y: float) -> None:
    """What the kinds of tokens look like, 18 high."""
    x = 4.0
    words = ("cached", "scheduled in this step", "waiting", "chosen in this step", "empty")
    for kind, word in zip(KINDS, words, strict=True):
        block(picture, x, y, 22, [(style_of(kind, fill), 1)], height=18)
        picture.text(x + 27, y + 14, word, SMALL)
        x += 46 + 6.7 * len(word)


def _draw_block(
    picture: Drawing, trace: Trace, seq_id: int, now: Moment, index: int, x: float, y: float, fill: str
) -> None:
    block_size = trace["config"]["block_size"]
    slot = BLOCK_WIDTH / block_size
    positions = range(index * block_size, (index + 1) * block_size)
    physical = f"#{now.table[index]}" if index < len(now.table) else "none"
    texts = texts_of(trace, seq_id)[: now.num_tokens + now.chosen] if block_size <= MAX_SLOTS_WITH_TEXT else []
    title = f"logical block {index}, physical block {physical}"
    with picture.group(title, logical=index, physical=physical, key=f"block {index}"):
        picture.text(x, y + 11, f"{index} → {physical}", SMALL, mono=True)
        for kind, run in groupby(positions, now.kind_of):
            where = list(run)
            left, words = x + (where[0] - positions[0]) * slot, texts[where[0] : where[-1] + 1]
            with picture.group(kind=kind, first=where[0], count=len(where)):
                block(picture, left, y + 15, slot * len(where), [(style_of(kind, fill), len(where))], words)
