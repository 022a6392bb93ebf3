"""The run as one picture: a lane a sequence, and below what the step's budget and the pool looked like.

Lanes over steps are how Orca (Yu et al., 2022) draws iteration-level scheduling.
"""

from itertools import pairwise
from typing import Any

from .block_table import REASONS
from .drawing import BORDER, VERMILION, Drawing, color_of, ink_on
from .trace import Trace, name_of, state_before

LEFT, RIGHT, LANE, STRIP = 116.0, 850.0, 24.0, 52.0


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


def edges(trace: Trace, unit: str = "step", longest: float = 0.0) -> list[float]:
    """Left edge of each step and the right edge of the last, in units of the drawing.

    Args:
        unit: "step" gives all the same width; "ms" makes a step as wide as it took.
        longest: sum of the sizes of a longer run with which this one is compared; both get the same scale.
    """
    scale = min((RIGHT - LEFT) / (max(longest, sum(sizes(trace, unit))) or 1.0), 44.0 if unit == "step" else 1e9)
    result = [LEFT]
    for size in sizes(trace, unit):
        result.append(result[-1] + size * scale)
    return result


def has_times(trace: Trace) -> bool:
    """Whether the steps were timed (the initial state has no time)."""
    return len(trace["steps"]) > 1 and all(step["ms"] is not None for step in trace["steps"][1:])


def cursor_positions(trace: Trace, unit: str = "step", longest: float = 0.0) -> list[float]:
    """Where the cursor stands at each step: the middle of it."""
    xs = edges(trace, unit, longest)
    return [(a + b) / 2 for a, b in pairwise(xs)]


def lane_bars(trace: Trace, seq_id: int | str) -> list[dict[str, Any]]:
    """What a sequence did in each step, one entry a step in which it was alive.

    Returns:
        dictionaries with `step`, `kind` ("waiting", "paused", "prefill", "decode"), `n` (tokens computed), `cached`
        (tokens found in the cache, if it was admitted in this step), and `marks` ("preempt", "finish",
        "refuse: <reason>").
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
        bars.append({"step": i, "kind": step["kind"] if n else idle, "n": n, "cached": cached, "marks": marks})
    return bars


def draw_timeline(trace: Trace, unit: str = "step", label: str = "", longest: float = 0.0) -> Drawing:
    """Lanes and strips of a whole run; a group with `data-cursor` is moved to the current step by a style."""
    xs = edges(trace, unit, longest)
    picture = Drawing(RIGHT + 10, 0, f"timeline of {len(trace['seqs'])} sequences over {len(trace['steps']) - 1} steps")
    y = 4.0
    picture.text(4, y + 12, label or "Sequences", bold=True)
    legend = "hatched: waits; dashed: runs, but not in this step; number: tokens of a prefill, +n: from the cache; "
    picture.text(LEFT, y + 12, legend + "×: preempted; ●: finished; r: refused", 10)
    y = top = y + 20
    for order, seq_id in enumerate(trace["seqs"]):
        _draw_lane(picture, trace, seq_id, order, xs, y)
        y += LANE
    y = _draw_axis(picture, trace, xs, y, unit)
    y = _draw_strips(picture, trace, xs, y + 8)
    with picture.group(cursor="yes"):
        picture.line(0, top - 4, 0, y, VERMILION, 2)
    picture.height = y + 6
    return picture


def _draw_lane(picture: Drawing, trace: Trace, seq_id: str, order: int, xs: list[float], y: float) -> None:
    name, fill = trace["seqs"][seq_id]["name"], color_of(order)
    picture.rect(4, y + 1, 22, 18, fill)
    picture.text(15, y + 15, name, color=ink_on(fill), anchor="middle", bold=True)
    for bar in lane_bars(trace, seq_id):
        i, x, width = bar["step"], xs[bar["step"]], xs[bar["step"] + 1] - xs[bar["step"]]
        words = {"waiting": "waits", "paused": "runs, but not in this step", "decode": "decodes one token"}
        words["prefill"] = f"prefill of {bar['n']} tokens"
        title = f"step {i}: {name} {words[bar['kind']]}"
        title += f", {bar['cached']} from the cache" if bar["cached"] else ""
        for mark in bar["marks"]:
            kind, _, reason = mark.partition(": ")
            title += f", refused: {REASONS.get(reason, reason)}" if kind == "refuse" else f", {kind}"
        with picture.group(title, seq=name, bar=bar["kind"], at=i, n=bar["n"]):
            _draw_bar(picture, bar, x, y, width, fill)


def _draw_bar(picture: Drawing, bar: dict[str, Any], x: float, y: float, width: float, fill: str) -> None:
    middle = x + width / 2
    if bar["kind"] == "waiting":
        picture.rect(x, y + 3, width, 14, hatch=True)
    elif bar["kind"] == "paused":
        picture.rect(x, y + 6, width, 8, dashed=True)
    elif bar["kind"] == "decode":
        picture.rect(x, y + 6, width, 8, fill)
    else:
        picture.rect(x, y + 1, width, 18, fill)
        text = str(bar["n"]) + (f"+{bar['cached']}" if bar["cached"] and width >= 38 else "")
        if width >= 7 * len(text):
            picture.text(middle, y + 14, text, 10, ink_on(fill), "middle", mono=True)
    for mark in bar["marks"]:
        if mark == "preempt":
            picture.rect(x, y + 1, width, 18, VERMILION)
            picture.text(middle, y + 15, "×", 14, "#000", "middle", bold=True)
        elif mark == "finish":
            picture.text(min(x + width + 6, RIGHT + 4), y + 15, "●", 12, anchor="middle")
        elif width >= 9:
            picture.text(middle, y + 14, "r", 11, anchor="middle", bold=True)


def _draw_axis(picture: Drawing, trace: Trace, xs: list[float], y: float, unit: str) -> float:
    picture.line(LEFT, y + 2, xs[-1], y + 2, BORDER)
    last = LEFT - 100.0
    elapsed = 0.0
    for step, a, b in zip(trace["steps"], xs, xs[1:], strict=False):
        elapsed += step["ms"] or 0.0
        if (a + b) / 2 - last >= 28:
            last = (a + b) / 2
            text = str(step["i"]) if unit == "step" else f"{elapsed:.0f}"
            picture.text(last, y + 14, text, 10, anchor="middle", mono=True)
    picture.text(4, y + 14, "step" if unit == "step" else "milliseconds", 11)
    return y + 18


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


def _draw_strips(picture: Drawing, trace: Trace, xs: list[float], y: float) -> float:
    rows, config = strips(trace), trace["config"]
    most = max(1.0, *(a + b for a, b in zip(rows["running"], rows["waiting"], strict=True)))
    parts: list[tuple[str, str | None, bool]] = [("running", "#0072B2", False), ("waiting", None, True)]
    y = _draw_strip(picture, rows, xs, y, "Sequences", parts, most, f"running, waiting; up to {most:.0f}")
    parts = [("used", "#009E73", False), ("cached", None, True), ("free", None, False)]
    pool = float(config["num_blocks"])
    y = _draw_strip(picture, rows, xs, y, "Blocks", parts, pool, f"used, cached, free; {pool:.0f} in all")
    most, budget = max(1.0, *rows["tokens"]), config["max_num_batched_tokens"]
    limit = float(budget) if budget <= 4 * most else most
    note = f"computed; budget {budget}"
    return _draw_strip(picture, rows, xs, y, "Tokens", [("tokens", "#E69F00", False)], limit, note)


def _draw_strip(
    picture: Drawing,
    rows: dict[str, list[float]],
    xs: list[float],
    y: float,
    name: str,
    parts: list[tuple[str, str | None, bool]],
    most: float,
    note: str,
) -> float:
    height = STRIP - 14
    picture.text(4, y + 14, name, bold=True)
    for n, line in enumerate(note.split("; ")):
        picture.text(4, y + 27 + 12 * n, line, 10)
    for i in range(len(xs) - 1):
        base = y + height
        values = ", ".join(f"{part} {rows[part][i]:.0f}" for part, _, _ in parts)
        with picture.group(f"step {i}: {values}", strip=name.lower(), at=i):
            for part, fill, hatch in parts:
                size = rows[part][i] / most * height
                base -= size
                if size and (fill or hatch):
                    picture.rect(xs[i], base, xs[i + 1] - xs[i], size, fill, BORDER, 0.7, hatch)
    picture.line(LEFT, y, xs[-1], y, BORDER, 1, dashed=True)
    picture.line(LEFT, y + height, xs[-1], y + height, BORDER)
    return y + STRIP


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


def totals_table(traces: dict[str, Trace]) -> str:
    """The totals of one or more runs as an HTML table, a row a run."""
    import html

    heads = {
        "steps": "steps",
        "mean_ttft": "mean steps to first token",
        "mean_tpot": "mean steps per further token",
        "preemptions": "preemptions",
        "computed": "prefill tokens computed",
        "cached": "prompt tokens from the cache",
        "recomputed": "tokens computed again",
    }
    rows = ["<tr><th>run</th>" + "".join(f"<th>{head}</th>" for head in heads.values()) + "</tr>"]
    for name, trace in traces.items():
        values = totals(trace)
        cells = "".join(f"<td>{values[key]:.2f}</td>" if "mean" in key else f"<td>{values[key]}</td>" for key in heads)
        rows.append(f"<tr><td>{html.escape(name)}</td>{cells}</tr>")
    return f"<table>{''.join(rows)}</table>"


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
