"""Traces of engine runs as the widgets use them: files, missing events, and the rules that every run obeys.

A trace is plain JSON data, made by `nanovllm.engine.trace.TraceRecorder`:

    {"format": "nanovllm-trace", "version": 1, "made": {...}, "config": {"block_size", "num_blocks", ...},
     "seqs": {"0": {"name", "prompt_ids", "output_ids", "arrive"}},
     "steps": [{"i", "kind", "scheduled": [{"seq", "n"}], "events": [{"event", "seq", ...}],
                "after": {"waiting", "running", "free", "ref", "hash", "seqs"}, "ms"}]}

`after` is the state at the end of a step; `kv` counts the tokens of a sequence whose keys and values are stored. A run
begins with an entry of the kind "init"; so it does anew after a step that was interrupted, whose events stand there. A
run that raised ends with a step of the kind "error", and `trace["error"]` says what. `config["own_victims"]` is there
if the scheduler has a rule of its own for whom it preempts.
That a trace comes first and pictures are drawn from it, forwards and backwards, is the idea of Python Tutor
(Guo, 2013); that the learner's own run is drawn, right or wrong, that of GPU-Puzzles (Rush).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from ..engine.block_manager import NO_HASH
from ..engine.trace import FORMAT, VERSION, as_hex

Trace = dict[str, Any]
Step = dict[str, Any]
State = dict[str, Any]  # what `after` holds
HashFunction = Callable[[list[int], int], int]


class Problem(NamedTuple):
    """A rule that a trace breaks, and the step after which it is broken."""

    step: int
    message: str


def load_trace(name_or_path: str | Path) -> Trace:
    """Read a trace: a file, or one of the recorded ones by name ("story", "batch").

    Raises:
        FileNotFoundError: there is neither such a file nor such a recorded trace; names the recorded ones.
        ValueError: the file is no trace of this version.
    """
    path = Path(name_or_path)
    if not path.is_file():
        data = Path(str(files("nanovllm.viz"))) / "data"
        known = sorted(p.name.removesuffix(".trace.json") for p in data.glob("*.trace.json"))
        path = data / f"{name_or_path}.trace.json"
        if not path.is_file():
            raise FileNotFoundError(f"no trace {str(name_or_path)!r}; recorded ones are {', '.join(known)}")
    trace = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(trace, dict) or (trace.get("format"), trace.get("version")) != (FORMAT, VERSION):
        raise ValueError(f"{path} is not a {FORMAT} of version {VERSION}")
    return trace


def save_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace as JSON, one line a step."""
    head = {key: value for key, value in trace.items() if key != "steps"}
    steps = ",\n".join(json.dumps(step, ensure_ascii=False) for step in trace["steps"])
    text = json.dumps(head, ensure_ascii=False)[:-1] + ',\n"steps": [\n' + steps + "\n]}\n"
    Path(path).write_text(text, encoding="utf-8")


def name_of(trace: Trace, seq_id: int | str) -> str:
    """The letter of a sequence."""
    return trace["seqs"].get(str(seq_id), {}).get("name", f"sequence {seq_id}")


def tokens_of(trace: Trace, seq_id: int | str) -> list[int]:
    """All token ids of a sequence, those generated later included."""
    seq = trace["seqs"].get(str(seq_id), {})
    return [*seq.get("prompt_ids", []), *seq.get("output_ids", [])]


def state_before(trace: Trace, i: int) -> dict[str, Any]:
    """The state in which step `i` began."""
    return trace["steps"][i - 1 if i else 0]["after"]


def owners(state: dict[str, Any]) -> dict[int, list[int]]:
    """Which sequences have a block in their table, by block id; a sequence that names it twice counts twice."""
    found: dict[int, list[int]] = {}
    for seq_id, seq in state["seqs"].items():
        for block_id in seq["table"]:
            found.setdefault(block_id, []).append(int(seq_id))
    return found


# Events that an engine did not report.


def complete_events(trace: Trace) -> Trace:
    """Add the events that the states show and nobody recorded, marked `"derived": True`; returns the trace.

    A learner's scheduler or block manager need not have the methods that the recorder watches; its run is drawn all
    the same. Why a sequence was refused cannot be derived.
    """
    for i, step in enumerate(trace["steps"]):
        if step["kind"] == "error" or (i and step["kind"] == "init"):
            continue
        told = {_what_happened(event) for event in step["events"]}
        for event in _derived_events(trace, i):
            if _what_happened(event) not in told:
                step["events"].append({**event, "derived": True})
    return trace


def _what_happened(event: dict[str, Any]) -> tuple[Any, ...]:
    # A block that was new to one sequence and shared by the next in the same step looks shared by both afterwards.
    kind = "got" if event["event"] in ("append", "share") else event["event"]
    return kind, event["seq"], event.get("block")


def _derived_events(trace: Trace, i: int) -> Iterator[dict[str, Any]]:
    step, after = trace["steps"][i], trace["steps"][i]["after"]
    before = state_before(trace, i) if i else {"seqs": {}, "ref": {}, "hash": {}}
    scheduled = {item["seq"]: item["n"] for item in step["scheduled"]}
    for preempted in reversed(before.get("running", [])):  # the newest is the first to go
        if after["seqs"].get(str(preempted), {}).get("status") == "WAITING":
            yield {"event": "preempt", "seq": preempted}
    for seq_id, seq in after["seqs"].items():
        old = before["seqs"].get(seq_id, {"table": [], "status": "WAITING", "kv": 0})
        if seq_id not in before["seqs"]:
            yield {"event": "arrive", "seq": int(seq_id)}
        if seq["table"] and not old["table"]:
            cached = seq["kv"] - scheduled.get(int(seq_id), 0)
            yield {"event": "admit", "seq": int(seq_id), "cached": cached, "new": seq["len"] - cached}
        for block_id in seq["table"][len(old["table"]) :]:
            yield from _derived_block_events(int(seq_id), block_id, before, after)
    for seq_id in before["seqs"].keys() - after["seqs"].keys():
        yield {"event": "finish", "seq": int(seq_id), "reason": "unknown"}


def _derived_block_events(
    seq_id: int, block_id: int, before: dict[str, Any], after: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    old, new = before["hash"].get(str(block_id)), after["hash"].get(str(block_id))
    if after["ref"].get(str(block_id), 0) > 1 or (old and old == new):
        yield {"event": "share", "seq": seq_id, "block": block_id}
        return
    if old:
        yield {"event": "evict", "seq": seq_id, "block": block_id, "hash": old}
    yield {"event": "append", "seq": seq_id, "block": block_id}


# The rules.


def check_trace(trace: Trace, complete: bool = True, compute_hash: HashFunction | None = None) -> list[str]:
    """The rules of scheduling and paging that a trace breaks, in order; an empty list if it is right.

    Args:
        trace: of any engine with the same recorder, a learner's too.
        complete: the run is over, so after the last step nothing may be left.
        compute_hash: the engine's hash function. Without it, only equal content must have equal hashes and different
            content different ones, so that an engine may name its blocks as it likes.

    Returns:
        sentences such as "step 9: block 4 is free, but in the table of B".
    """
    return [f"step {problem.step}: {problem.message}" for problem in find_problems(trace, complete, compute_hash)]


def find_problems(trace: Trace, complete: bool = True, compute_hash: HashFunction | None = None) -> list[Problem]:
    """The same as `check_trace`, with the step beside the message."""
    if (trace.get("format"), trace.get("version")) != (FORMAT, VERSION):
        return [Problem(0, f"this is not a {FORMAT} of version {VERSION}")]
    names = Names(compute_hash)
    problems: list[Problem] = []
    for i, step in enumerate(trace["steps"]):
        if step["kind"] == "error":  # the state may be anything
            return [*problems, Problem(i, f"the engine raised {trace['error']}")]
        messages = [*_check_pool(trace, i), *_check_tables(trace, i), *_check_content(trace, i, names)]
        messages += _check_queues(trace, i)
        if step["kind"] != "init":
            messages += [*_check_progress(trace, i), *_check_refusals(trace, i), *_check_preemptions(trace, i)]
        if step["i"] != i:
            messages.append(f"it is numbered {step['i']}")
        problems += [Problem(i, message) for message in messages]
    if complete:
        problems += [Problem(len(trace["steps"]) - 1, message) for message in _check_end(trace)]
    return problems


def _check_pool(trace: Trace, i: int) -> Iterator[str]:
    """Free and used blocks are all blocks and disjoint; a block's count is the number of tables that name it."""
    after, num_blocks = trace["steps"][i]["after"], trace["config"]["num_blocks"]
    free, named = Counter(after["free"]), owners(after)
    for block_id in sorted({*free, *named, *map(int, after["ref"]), *range(num_blocks)}):
        ref, tables = after["ref"].get(str(block_id), 0), named.get(block_id, [])
        who = " and ".join(name_of(trace, seq_id) for seq_id in tables)
        if not 0 <= block_id < num_blocks:
            yield f"block {block_id} does not exist"
        elif free[block_id] > 1:
            yield f"block {block_id} is {free[block_id]} times among the free ones"
        elif free[block_id] and tables:
            yield f"block {block_id} is free, but in the table of {who}"
        elif free[block_id] and ref:
            yield f"block {block_id} is free, but its reference count is {ref}"
        elif not free[block_id] and not ref and not tables:
            yield f"block {block_id} is lost: it is neither free nor in any table"
        elif ref != len(tables):
            yield f"block {block_id} has reference count {ref}, but is in {len(tables)} tables ({who or 'nobody'})"


def _check_tables(trace: Trace, i: int) -> Iterator[str]:
    """A table has room for every token whose keys and values are stored, and only live work holds blocks."""
    after, block_size = trace["steps"][i]["after"], trace["config"]["block_size"]
    for seq_id, seq in after["seqs"].items():
        name, table = name_of(trace, seq_id), seq["table"]
        if len(set(table)) < len(table):
            yield f"the table of {name} names a block twice: {table}"
        if len(table) * block_size < seq["kv"]:
            yield f"{name} has {seq['kv']} tokens stored, but its {len(table)} blocks hold {len(table) * block_size}"
        if len(table) > -(-seq["len"] // block_size):
            yield f"{name} has {seq['len']} tokens, but {len(table)} blocks"
        if seq["kv"] >= seq["len"]:
            yield f"{name} has {seq['kv']} of {seq['len']} tokens stored; the last is always still to be computed"
        if seq["status"] == "RUNNING" and seq["kv"] != seq["len"] - 1:
            yield f"{name} is running, but has {seq['kv']} of {seq['len']} tokens stored instead of all but the last"


class Names:
    """Whether blocks have the hashes that they should: those of a function, or else one for each content."""

    def __init__(self, compute_hash: HashFunction | None) -> None:
        self.compute_hash = compute_hash
        self.contents: dict[tuple[int, tuple[int, ...]], int] = {}  # a block after a content: a number
        self.hash_of: dict[int, str] = {}
        self.content_of: dict[str, int] = {}

    def follow(self, chain: int, token_ids: list[int]) -> int:
        """What stands for a block and all before it: the function's hash, or a number of our own."""
        if self.compute_hash:
            return self.compute_hash(token_ids, chain)
        return self.contents.setdefault((chain, tuple(token_ids)), len(self.contents))

    def is_right(self, chain: int, found: str) -> bool:
        """Whether a block that `chain` stands for may have this hash."""
        if self.compute_hash:
            return found == as_hex(chain)
        return self.hash_of.setdefault(chain, found) == found and self.content_of.setdefault(found, chain) == chain


def _check_content(trace: Trace, i: int, names: Names) -> Iterator[str]:
    """A shared block holds the same tokens for all its owners, and a block's hash is that of its content."""
    after, block_size = trace["steps"][i]["after"], trace["config"]["block_size"]
    prefixes: dict[int, tuple[str, list[int]]] = {}
    for seq_id, seq in after["seqs"].items():
        name, tokens, chain = name_of(trace, seq_id), tokens_of(trace, seq_id), NO_HASH
        for index, block_id in enumerate(seq["table"]):
            end = (index + 1) * block_size
            is_full, found = end <= seq["kv"], after["hash"].get(str(block_id))
            if after["ref"].get(str(block_id), 0) > 1 and not is_full:
                yield f"block {block_id} is shared, but {name} has not filled it"
            other, prefix = prefixes.setdefault(block_id, (name, tokens[:end]))
            if prefix != tokens[:end]:
                yield f"{other} and {name} share block {block_id}, but their first {end} tokens differ"
            if is_full:
                chain = names.follow(chain, tokens[end - block_size : end])
            if found and not is_full:
                yield f"block {block_id} of {name} is not full, but has a hash"
            elif found and not names.is_right(chain, found):
                yield f"block {block_id} of {name} has a hash that is not that of its tokens and those before"
            elif is_full and not found and trace["config"].get("enable_prefix_caching", True):
                yield f"block {block_id} of {name} is full, but has no hash"


def _check_queues(trace: Trace, i: int) -> Iterator[str]:
    """Every live sequence is in one queue, as its status says; at most the head of `waiting` holds blocks."""
    after = trace["steps"][i]["after"]
    places = Counter([*after["waiting"], *after["running"]])
    for seq_id, count in places.items():
        if count > 1:
            yield f"{name_of(trace, seq_id)} is {count} times in the queues"
    for queue in ("waiting", "running"):
        for seq_id in after[queue]:
            status = after["seqs"].get(str(seq_id), {}).get("status", "missing")
            if status != queue.upper():
                yield f"{name_of(trace, seq_id)} is in `{queue}`, but its status is {status}"
    for seq_id in after["waiting"][1:]:
        if after["seqs"].get(str(seq_id), {}).get("table"):
            yield f"{name_of(trace, seq_id)} holds blocks, but waits behind another sequence"
    if len(after["running"]) > trace["config"]["max_num_seqs"]:
        yield f"{len(after['running'])} sequences run; max_num_seqs is {trace['config']['max_num_seqs']}"


def _check_progress(trace: Trace, i: int) -> Iterator[str]:
    """A step computes what it says, within the budget, and nothing else moves."""
    step, before = trace["steps"][i], state_before(trace, i)
    scheduled = {item["seq"]: item["n"] for item in step["scheduled"]}
    budget = trace["config"]["max_num_batched_tokens"]
    if len(scheduled) < len(step["scheduled"]):
        yield "a sequence is scheduled twice"
    if sum(scheduled.values()) > budget:
        yield f"{sum(scheduled.values())} tokens are computed; max_num_batched_tokens is {budget}"
    for seq_id, n in scheduled.items():
        if n < 1 or (step["kind"] == "decode" and n != 1):
            yield f"{name_of(trace, seq_id)} computes {n} tokens in a {step['kind']} step"
        if step["kind"] == "decode" and seq_id not in before["running"]:
            yield f"{name_of(trace, seq_id)} decodes, but was not running"
    restarted = {event["seq"] for event in step["events"] if event["event"] in ("admit", "preempt")}
    cached = {event["seq"]: event["cached"] for event in step["events"] if event["event"] == "admit"}
    for key, seq in step["after"]["seqs"].items():
        seq_id, old = int(key), before["seqs"].get(key, {"kv": 0, "len": seq["len"]})
        n = scheduled.get(seq_id, 0)
        start = cached.get(seq_id, 0) if seq_id in restarted else old["kv"]
        if seq["kv"] != start + n:
            yield f"{name_of(trace, key)} had {start} tokens stored and computed {n}, but now has {seq['kv']}"
        grown = 1 if n and start + n == old["len"] else 0
        if seq["len"] != old["len"] + grown:
            yield f"{name_of(trace, key)} went from {old['len']} to {seq['len']} tokens instead of {old['len'] + grown}"


def _check_refusals(trace: Trace, i: int) -> Iterator[str]:
    """A sequence that was refused really lacked what the reason says."""
    step, before, config = trace["steps"][i], state_before(trace, i), trace["config"]
    taken = 0
    # Whom a prefill computes has joined the running ones by the time that somebody is refused.
    running = len(before["running"]) + (len(step["scheduled"]) if step["kind"] == "prefill" else 0)
    computed = sum(item["n"] for item in step["scheduled"])
    budget, most = config["max_num_batched_tokens"], min(config["max_num_seqs"], config["max_num_batched_tokens"])
    if any(earlier["kind"] == "init" for earlier in trace["steps"][1:i]):
        budget = most = 0  # the engine began anew, perhaps with smaller steps, because a GPU had no memory for one
    for event in step["events"]:
        kind, name = event["event"], name_of(trace, event["seq"])
        taken += kind == "append" or (kind == "share" and event["block"] in before["free"])
        if kind != "refuse":
            continue
        length = before["seqs"].get(str(event["seq"]), {}).get("len") or len(
            trace["seqs"][str(event["seq"])]["prompt_ids"]
        )
        needed, free = -(-length // config["block_size"]), len(before["free"]) - taken
        # Asking once more about a prompt that was cut, with nothing left of the budget, does no harm.
        is_cut = event["reason"] == "token_budget" and event["seq"] in step["after"]["waiting"]
        if any(item["seq"] == event["seq"] for item in step["scheduled"]) and not is_cut:
            yield f"{name} was refused and computed in the same step"
        if event["reason"] == "no_blocks" and needed <= free:
            yield f"{name} was refused for want of blocks, but needs {needed} and {free} are free"
        if event["reason"] == "token_budget" and computed < budget:
            yield f"{name} was refused for want of token budget, but only {computed} tokens are computed"
        if event["reason"] == "max_seqs" and running < most:
            yield f"{name} was refused because of max_num_seqs, but only {running} sequences run"
        if event["reason"] == "no_headroom" and not running:
            yield f"{name} was refused to leave room for others, but no other runs"


def _check_preemptions(trace: Trace, i: int) -> Iterator[str]:
    """The newest running sequence makes room, unless the scheduler has a rule of its own, and loses all its blocks."""
    running, after = list(state_before(trace, i)["running"]), trace["steps"][i]["after"]
    has_own_rule = trace["config"].get("own_victims", False)
    for event in trace["steps"][i]["events"]:
        if event["event"] == "finish" and event["seq"] in running:
            running.remove(event["seq"])
        if event["event"] != "preempt":
            continue
        if event["seq"] not in (running if has_own_rule else running[-1:]):
            newest = name_of(trace, running[-1]) if running else "nobody"
            yield f"{name_of(trace, event['seq'])} was preempted, but the newest running sequence is {newest}"
        if event["seq"] in running:
            running.remove(event["seq"])
        if after["seqs"].get(str(event["seq"]), {}).get("table"):
            yield f"{name_of(trace, event['seq'])} was preempted, but still holds blocks"


def _check_end(trace: Trace) -> Iterator[str]:
    after = trace["steps"][-1]["after"]
    if after["seqs"]:
        names = ", ".join(name_of(trace, seq_id) for seq_id in after["seqs"])
        yield f"the run has ended, but {names} never finished"
    elif len(after["free"]) != trace["config"]["num_blocks"]:
        yield f"the run has ended, but only {len(after['free'])} of {trace['config']['num_blocks']} blocks are free"
