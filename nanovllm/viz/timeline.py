"""The run as one picture: a lane a sequence, and below what the step's budget and the pool looked like.

Lanes over steps are how Orca (Yu et al., 2022) draws iteration-level scheduling.
"""

from itertools import pairwise
from typing import Any

from .drawing import SMALL, Drawing, color_of
from .shapes import (
    FREE,
    ROW,
    LegendItem,
    Style,
    axis,
    badge,
    lane_bar,
    playhead,
    preempted,
    round_ticks,
    strip,
    table_html,
)
from .trace import Trace, name_of, state_before

HEAD, NAMES, WIDTH, STRIP = 20.0, 30.0, 612.0, 32.0
STAGE_WIDTH = 318.0  # of the lanes that stand beside block tables
# Why a waiting sequence was not admitted, in a sentence; and the letter that says so on its lane.
REASONS = {
    "no_blocks": "not enough free blocks",
    "token_budget": "the step's token budget is used up",
    "max_seqs": "max_num_seqs sequences run already",
    "no_headroom": "the running ones are expected to need the room",
}
LETTERS = {"no_blocks": "b", "token_budget": "t", "max_seqs": "s", "no_headroom": "h"}


def sizes(trace: Trace, unit: str = "step") -> list[float]:
    """How long each step is: 1, or its milliseconds.

    Args:
        unit: "step" or "ms".

    Raises:
        ValueError: the unit is unknown, or the steps were not timed.
    """
    steps = trace["steps"]
    if unit not in ("step", "ms"):
        raise ValueError(f"unit must be 'step' or 'ms', got {unit!r}")
    if unit == "ms" and not has_times(trace):
        raise ValueError("this trace has no times, so its unit can only be 'step'")
    return [1.0 if unit == "step" else float(step["ms"] or 0.0) for step in steps]


def edges(trace: Trace, unit: str = "step", longest: float = 0.0, width: float = WIDTH) -> list[float]:
    """Left edge of each step and the right edge of the last, in units of a drawing of this width.

    Args:
        unit: "step" gives all the same width; "ms" makes a step as wide as it took.
        longest: sum of the sizes of a longer run with which this one is compared; both get the same scale.
    """
    left, right = left_of(width), width - 12
    scale = min((right - left) / (max(longest, sum(sizes(trace, unit))) or 1.0), 36.0 if unit == "step" else 1e9)
    result = [left]
    for size in sizes(trace, unit):
        result.append(result[-1] + size * scale)
    return result


def left_of(width: float) -> float:
    """Where the first step begins: beside block tables there are only letters before it."""
    return NAMES if width < WIDTH else 92.0


def has_times(trace: Trace) -> bool:
    """Whether the steps were timed (the initial state has no time)."""
    return len(trace["steps"]) > 1 and all(step["ms"] is not None for step in trace["steps"][1:])


def lane_bars(trace: Trace, seq_id: int | str) -> list[dict[str, Any]]:
    """What a sequence did in each step, one entry a step in which it was alive.

    Returns:
        dictionaries with `step`, `kind` ("waiting", "paused", "prefill", "decode", or "failed" where the engine raised
        or was interrupted), `n` (tokens computed), `cached` (tokens found in the cache, if it was admitted in this
        step), and `marks` ("preempt", "finish", "refuse: <reason>").
    """
    bars = []
    for i, step in enumerate(trace["steps"]):
        mine = [event for event in step["events"] if event["seq"] == int(seq_id)]
        n = sum(item["n"] for item in step["scheduled"] if item["seq"] == int(seq_id))
        alive = str(seq_id) in step["after"]["seqs"] or any(event["event"] in ("finish", "admit") for event in mine)
        if not alive and not n:
            continue
        marks = [
            f"refuse: {event['reason']}" if event["event"] == "refuse" else event["event"]
            for event in mine
            if event["event"] in ("preempt", "finish", "refuse")
        ]
        cached = sum(event["cached"] for event in mine if event["event"] == "admit")
        idle = "paused" if int(seq_id) in step["after"]["running"] else "waiting"
        idle = "failed" if step["kind"] == "error" or (i and step["kind"] == "init") else idle
        bars.append({"step": i, "kind": step["kind"] if n else idle, "n": n, "cached": cached, "marks": marks})
    return bars


def draw_lanes(
    trace: Trace,
    unit: str = "step",
    label: str = "Sequences",
    longest: float = 0.0,
    width: float = WIDTH,
    lines: dict[str, int] | None = None,
    at: int | None = None,
    has_playhead: bool = True,
) -> Drawing:
    """A lane a sequence over the whole run.

    Args:
        label: stands above.
        longest: as for `edges`.
        lines: rows that each lane takes, where a block table of more than one row stands beside it.
        at: the step at which the playhead stands; None leaves that to the player.
    """
    xs = edges(trace, unit, longest, width)
    picture = Drawing(width, HEAD, f"{len(trace['seqs'])} sequences over {len(trace['steps']) - 1} steps")
    picture.text(0, 13, label, bold=True)
    bottom = HEAD + ROW * sum((lines or {}).get(seq_id, 1) for seq_id in trace["seqs"])
    if has_playhead:
        playhead(picture, HEAD - 4, bottom, None if at is None else (xs[at], xs[at + 1] - xs[at]))
    for order, seq_id in enumerate(trace["seqs"]):
        _draw_lane(picture, trace, seq_id, order, xs, picture.height)
        picture.height += ROW * (lines or {}).get(seq_id, 1)
    _draw_axis(picture, trace, xs, bottom, unit)
    picture.height += 18
    return picture


def _draw_lane(picture: Drawing, trace: Trace, seq_id: str, order: int, xs: list[float], y: float) -> None:
    name, fill = trace["seqs"][seq_id]["name"], color_of(order)
    with picture.group(f"sequence {name}", focusable=True, row=name, owners=name, key=name):
        badge(picture, 0, y + 2, name, fill)
    words = {
        "waiting": "waits",
        "paused": "runs, but not in this step",
        "decode": "decodes one token",
        "failed": "is lost: the step failed",
    }
    with picture.group(owners=name):
        for bar in lane_bars(trace, seq_id):
            i, x, width = bar["step"], xs[bar["step"]], xs[bar["step"] + 1] - xs[bar["step"]]
            title = f"step {i}: {name} " + words.get(bar["kind"], f"computes {bar['n']} tokens of its prompt")
            title += f", {bar['cached']} from the cache" if bar["cached"] else ""
            for mark in bar["marks"]:
                kind, _, reason = mark.partition(": ")
                title += f", refused: {REASONS.get(reason, reason)}" if kind == "refuse" else f", {kind}"
            with picture.group(title, seq=name, bar=bar["kind"], at=i, n=bar["n"]):
                text = str(bar["n"]) if bar["kind"] == "prefill" else ""
                lane_bar(picture, x, y, width, bar["kind"], fill, text)
                _draw_marks(picture, bar, x, y, width)


def _draw_marks(picture: Drawing, bar: dict[str, Any], x: float, y: float, width: float) -> None:
    middle = x + width / 2
    for mark in bar["marks"]:
        kind, _, reason = mark.partition(": ")
        if kind == "preempt":
            preempted(picture, x, y, width)
        elif kind == "finish":
            picture.text(x + width + 5, y + 15, "●", SMALL, anchor="middle")
        elif width >= 7:
            picture.text(middle, y + 15, LETTERS.get(reason, "r"), SMALL, anchor="middle", bold=True)


def _draw_axis(picture: Drawing, trace: Trace, xs: list[float], y: float, unit: str) -> None:
    if unit == "step":
        marks = [((a + b) / 2, str(i)) for i, (a, b) in enumerate(pairwise(xs))]
    else:
        total = sum(sizes(trace, unit))
        marks = [(xs[0] + (xs[-1] - xs[0]) * tick / total, f"{tick:g}") for tick in round_ticks(total)]
    axis(picture, xs, y + 1, marks)
    if xs[0] > NAMES:
        picture.text(0, y + 15, unit, SMALL)


def lane_legend(trace: Trace) -> list[LegendItem]:
    """The marks that occur on the lanes of this run, and what they mean."""
    bars = [bar for seq_id in trace["seqs"] for bar in lane_bars(trace, seq_id)]
    kinds, marks = {bar["kind"] for bar in bars}, {mark for bar in bars for mark in bar["marks"]}
    words = {
        "prefill": "tokens of a prompt",
        "decode": "one more token",
        "waiting": "waits",
        "paused": "not in this step",
        "failed": "the step failed",
    }
    items: list[LegendItem] = [(kind, words[kind], "#C0C0C0") for kind in words if kind in kinds]
    items += [("preempt", "preempted", None)] if "preempt" in marks else []
    items += [("●", "finished", None)] if "finish" in marks else []
    for mark in sorted(mark for mark in marks if mark.startswith("refuse: ")):
        reason = mark.removeprefix("refuse: ")
        items.append((LETTERS.get(reason, "r"), f"refused: {reason.replace('_', ' ')}", None))
    return items


def strips(trace: Trace) -> dict[str, list[float]]:
    """Per step: `running`, `waiting` (sequences), `used`, `cached`, `free` (blocks), `tokens` (computed)."""
    rows: dict[str, list[float]] = {name: [] for name in ("running", "waiting", "used", "cached", "free", "tokens")}
    for step in trace["steps"]:
        after = step["after"]
        cached = sum(str(block_id) in after["hash"] for block_id in after["free"])
        values = (len(after["running"]), len(after["waiting"]), len(after["ref"]), cached, len(after["free"]) - cached)
        for name, value in zip(rows, (*values, sum(item["n"] for item in step["scheduled"])), strict=True):
            rows[name].append(value)
    return rows


def draw_strips(trace: Trace, unit: str = "step", at: int | None = None) -> Drawing:
    """What queues, pool and token budget looked like over the whole run; arguments as for `draw_lanes`."""
    rows, config, xs = strips(trace), trace["config"], edges(trace, unit)
    queued = max(1.0, *(a + b for a, b in zip(rows["running"], rows["waiting"], strict=True)))
    most, budget = max(1.0, *rows["tokens"]), float(config["max_num_batched_tokens"])
    pool = float(config["num_blocks"])
    tokens = (f"budget {budget:.0f}", budget) if budget <= 4 * most else (f"of {most:.0f}", most)
    plan: list[tuple[str, str, list[tuple[str, Style]], float]] = [
        ("Sequences", f"of {queued:.0f}", [("running", Style("#0072B2")), ("waiting", FREE)], queued),
        ("Blocks", f"of {pool:.0f}", [("used", Style("#009E73")), ("cached", FREE), ("free", Style())], pool),
        ("Tokens", tokens[0], [("tokens", Style("#E69F00"))], tokens[1]),
    ]
    picture = Drawing(WIDTH, len(plan) * (STRIP + 11) + 18, "queues, pool and token budget")
    playhead(picture, 0, picture.height - 18, None if at is None else (xs[at], xs[at + 1] - xs[at]))
    for n, (name, note, parts, limit) in enumerate(plan):
        y = n * (STRIP + 11) + 8
        picture.text(0, y + 12, name, bold=True)
        picture.text(0, y + 27, note, SMALL)
        strip(picture, xs, y, STRIP, [(rows[part], style) for part, style in parts if part != "free"], limit)
        for i, (left, right) in enumerate(pairwise(xs)):
            values = ", ".join(f"{rows[part][i]:.0f} {part}" for part, _ in parts)
            with picture.group(f"step {i}: {values}", strip=name.lower(), at=i):
                picture.rect(left, y, right - left, STRIP, "#00000000", None)
    _draw_axis(picture, trace, xs, picture.height - 18, unit)
    return picture


def totals(trace: Trace) -> dict[str, float]:
    """Figures by which two runs are compared.

    Returns:
        `steps`; `mean_ttft` (steps from arrival to the first token); `mean_tpot` (steps a further token);
        `preemptions`; `computed` (tokens of all prefills); `cached` (prompt tokens found in the cache at first);
        `recomputed` (tokens of prefills beyond those that had to be computed once).
    """
    firsts, gaps, cached = [], [], 0
    for seq_id, entry in trace["seqs"].items():
        tokens = [i for i, length in _lengths(trace, seq_id) if length > len(entry["prompt_ids"])]
        if tokens:
            firsts.append(tokens[0] - entry["arrive"] + 1)
            if len(entry["output_ids"]) > 1:
                gaps.append((tokens[-1] - tokens[0]) / (len(entry["output_ids"]) - 1))
        admits = [e for s in trace["steps"] for e in s["events"] if e["event"] == "admit" and e["seq"] == int(seq_id)]
        cached += admits[0]["cached"] if admits else 0
    events = [event["event"] for step in trace["steps"] for event in step["events"]]
    computed = sum(item["n"] for s in trace["steps"] if s["kind"] == "prefill" for item in s["scheduled"])
    needed = sum(len(entry["prompt_ids"]) for entry in trace["seqs"].values()) - cached
    return {
        "steps": len(trace["steps"]) - 1,
        "mean_ttft": sum(firsts) / len(firsts) if firsts else 0.0,
        "mean_tpot": sum(gaps) / len(gaps) if gaps else 0.0,
        "preemptions": events.count("preempt"),
        "computed": computed,
        "cached": cached,
        "recomputed": max(0, computed - needed),
    }


def _lengths(trace: Trace, seq_id: str) -> list[tuple[int, int]]:
    """(step, tokens) of a sequence at every step that gave it a token."""
    found, known = [], len(trace["seqs"][seq_id]["prompt_ids"])
    for i, step in enumerate(trace["steps"]):
        state = step["after"]["seqs"].get(seq_id)
        before = state_before(trace, i)["seqs"].get(seq_id, {"len": known})
        finished = any(e["event"] == "finish" and e["seq"] == int(seq_id) for e in step["events"])
        if state and state["len"] > before["len"]:
            found.append((i, state["len"]))
        elif not state and finished and any(item["seq"] == int(seq_id) for item in step["scheduled"]):
            found.append((i, before["len"] + 1))
    return found


HEADS = {
    "steps": "steps",
    "mean_ttft": "steps to 1st token",
    "mean_tpot": "steps per further token",
    "preemptions": "preemptions",
    "computed": "prefill tokens",
    "cached": "from cache",
    "recomputed": "computed again",
}


def totals_table(traces: dict[str, Trace]) -> str:
    """The totals of one or more runs as an HTML table, a row a run."""
    rows = []
    for name, trace in traces.items():
        values = totals(trace)
        rows.append([name, *(f"{values[key]:.2f}" if "mean" in key else values[key] for key in HEADS)])
    return table_html(["run", *HEADS.values()], rows, extra=len(rows) == 1)


def _count(n: float, word: str) -> str:
    return f"{n:.0f} {word}" if n == 1 else f"{n:.0f} {word}s"


def describe_run(trace: Trace) -> str:
    """The whole run in a sentence."""
    values = totals(trace)
    names = ", ".join(name_of(trace, seq_id) for seq_id in trace["seqs"])
    return (
        f"{names} in {values['steps']} steps: {values['computed']} prefill tokens computed, {values['cached']} from "
        f"the cache, {_count(values['preemptions'], 'preemption')}, "
        f"{_count(values['recomputed'], 'token')} computed again."
    )
