"""A recorded step, event by event: what the queues, the tables and the pool looked like after each of them.

A trace has the state at the end of a step, and the events that led there. Here they are gone through once more, so that
a picture can show one movement for each. It holds for every run of our scheduler that the last of these states is the
recorded one; if a learner's engine did something that it did not report, the recorded one still comes last.
"""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from .trace import State, Trace, state_before

COMPUTE = "compute"  # what a step is for; no event, as `scheduled` tells it


class Moment(NamedTuple):
    """The state just after an event of a step; its kind may also be `COMPUTE`."""

    event: dict[str, Any]
    state: State


def replay(trace: Trace, i: int) -> list[Moment]:
    """The states through which step `i` went, in order; none for a step that begins a run or failed."""
    moments = list(follow_events(trace, i))
    return [*moments[:-1], Moment(moments[-1].event, trace["steps"][i]["after"])] if moments else []


def follow_events(trace: Trace, i: int) -> Iterator[Moment]:
    """The same as far as events tell."""
    step = trace["steps"][i]
    if not i or step["kind"] in ("init", "error"):
        return
    state = copy.deepcopy(state_before(trace, i))
    for event in _with_compute(step):
        _CHANGES[event["event"]](state, event, trace, i)
        yield Moment(event, copy.deepcopy(state))


def _with_compute(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events, and where the model ran: before the first sequence finished."""
    events, ends = step["events"], [n for n, event in enumerate(step["events"]) if event["event"] == "finish"]
    at = ends[0] if ends else len(events)
    while ends and at and events[at - 1]["event"] == "release" and events[at - 1]["seq"] == events[at]["seq"]:
        at -= 1
    yield from events[:at]
    if step["scheduled"]:
        yield {"event": COMPUTE}
    yield from events[at:]


def _arrive(state: State, event: dict[str, Any], trace: Trace, i: int) -> None:
    seq = {"status": "WAITING", "len": len(trace["seqs"][str(event["seq"])]["prompt_ids"]), "kv": 0, "cached": 0}
    state["seqs"][str(event["seq"])] = seq | {"table": []}
    state["waiting"].append(event["seq"])


def _admit(state: State, event: dict[str, Any], trace: Trace, i: int) -> None:
    after, seq_id = trace["steps"][i]["after"], event["seq"]
    seq = state["seqs"].get(str(seq_id), {})
    seq["kv"], seq["cached"] = event["cached"], after["seqs"].get(str(seq_id), {}).get("cached", event["cached"])
    if seq_id not in after["waiting"]:  # of a prompt that was cut, the rest waits
        _run(state, seq_id)


def _run(state: State, seq_id: int) -> None:
    """Who waits joins those that run, after all who wait before it: one whose prompt was cut, for example."""
    waiting = state["waiting"]
    joining = waiting[: waiting.index(seq_id) + 1] if seq_id in waiting else []
    state["waiting"] = waiting[len(joining) :]
    state["running"] += joining
    for joined in joining:
        state["seqs"][str(joined)]["status"] = "RUNNING"


def _take(state: State, event: dict[str, Any], trace: Trace, i: int) -> None:
    block_id, ref = event["block"], state["ref"].get(str(event["block"]), 0)
    state["ref"][str(block_id)] = ref + 1
    if block_id in state["free"]:
        state["free"].remove(block_id)
    seq = state["seqs"].get(str(event["seq"]), {"table": [], "kv": 0})
    seq["table"].append(block_id)
    seq["kv"] += trace["config"]["block_size"] if event["event"] == "share" else 0


def _evict(state: State, event: dict[str, Any], trace: Trace, i: int) -> None:
    state["hash"].pop(str(event["block"]), None)


def _name(state: State, event: dict[str, Any], trace: Trace, i: int) -> None:
    state["hash"][str(event["block"])] = event["hash"]


def _release(state: State, event: dict[str, Any], trace: Trace, i: int) -> None:
    seq = state["seqs"].get(str(event["seq"]), {"table": []})
    for block_id in reversed(seq["table"]):
        state["ref"][str(block_id)] = state["ref"].get(str(block_id), 1) - 1
        if state["ref"][str(block_id)] <= 0:
            del state["ref"][str(block_id)]
            state["free"].append(block_id)
    seq |= {"table": [], "kv": 0}


def _preempt(state: State, event: dict[str, Any], trace: Trace, i: int) -> None:
    _release(state, event, trace, i)
    if event["seq"] in state["running"]:
        state["running"].remove(event["seq"])
        state["waiting"].insert(0, event["seq"])
        state["seqs"][str(event["seq"])]["status"] = "WAITING"


def _compute(state: State, event: dict[str, Any], trace: Trace, i: int) -> None:
    step = trace["steps"][i]
    for item in step["scheduled"]:
        seq, known = state["seqs"].get(str(item["seq"])), step["after"]["seqs"].get(str(item["seq"]))
        if not seq:
            continue
        seq["kv"] += item["n"]
        seq["len"] = known["len"] if known else seq["len"] + 1
        if known and known["status"] == "RUNNING":
            _run(state, item["seq"])


def _finish(state: State, event: dict[str, Any], trace: Trace, i: int) -> None:
    _release(state, event, trace, i)
    for queue in ("waiting", "running"):
        state[queue] = [seq_id for seq_id in state[queue] if seq_id != event["seq"]]
    state["seqs"].pop(str(event["seq"]), None)


_CHANGES = {
    "arrive": _arrive,
    "admit": _admit,
    "refuse": lambda *_: None,
    "share": _take,
    "append": _take,
    "evict": _evict,
    "hash": _name,
    "release": _release,
    "preempt": _preempt,
    "finish": _finish,
    COMPUTE: _compute,
}
