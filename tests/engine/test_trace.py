"""The trace recorder: what it writes is checked by replaying the events, from the JSON alone."""

import contextlib
import copy
import itertools
import json
import random

import pytest
import xxhash

from nanovllm import SamplingParams
from nanovllm.engine.trace import TraceRecorder
from tests.engine import hash_model

STARTS = [[(7 * i + j) % 300 + 1 for j in range(40)] for i in range(3)]


# The oracle.


class Replay:
    """Plays the events of a trace on plain lists; every difference to what is written becomes a problem."""

    def __init__(self, trace):
        self.trace, self.config = trace, trace["config"]
        self.block_size = self.config["block_size"]
        self.free = list(range(self.config["num_blocks"]))
        self.tables = {}  # seq -> blocks
        self.hashes = {}  # block -> hash
        self.kv = {}  # seq -> tokens computed
        self.waiting, self.running = [], []
        self.problems = []

    def expect(self, condition, message):
        if not condition:
            self.problems.append(f"step {self.step['i']}: {message}")

    def tokens(self, seq):
        entry = self.trace["seqs"][str(seq)]
        return entry["prompt_ids"] + entry["output_ids"]

    def owners(self, block):
        return [seq for seq, table in self.tables.items() if block in table]

    def run(self):
        for i, step in enumerate(self.trace["steps"]):
            self.step = step
            self.expect(step["i"] == i, "steps are not numbered in order")
            if i and step["kind"] == "init":
                self.begin_anew()
                step = step | {"events": []}
            for event in step["events"]:
                getattr(self, event["event"])(event["seq"], event)
            self.check_scheduled()
            self.check_state(step["after"])
            if self.problems:  # what follows would only repeat it
                break
        return self.problems

    def begin_anew(self):
        """A step was interrupted: whoever is left waits, oldest first, and the pool is as in the beginning."""
        left, arrived = self.step["after"]["waiting"], [e["seq"] for e in self.step["events"] if e["event"] == "arrive"]
        self.expect({*left} <= {*self.waiting, *self.running, *arrived}, "somebody comes from nowhere")
        self.waiting, self.running = sorted(left), []
        self.free, self.tables, self.hashes, self.kv = list(range(self.config["num_blocks"])), {}, {}, {}

    # Events.

    def arrive(self, seq, event):
        self.expect(self.trace["seqs"][str(seq)]["arrive"] == self.step["i"], f"{seq} arrived in another step")
        self.waiting.append(seq)

    def admit(self, seq, event):
        self.start_complete(before=seq)
        self.expect(self.waiting[:1] == [seq], f"{seq} is admitted before its turn")
        shared = [e for e in self.step["events"] if e["event"] == "share" and e["seq"] == seq]
        self.expect(event["cached"] == len(shared) * self.block_size, f"{seq}: cached tokens are wrong")
        self.expect(event["new"] >= 1, f"{seq} computes nothing")
        self.kv[seq] = event["cached"]

    def share(self, seq, event):
        block = event["block"]
        self.expect(block in self.hashes, f"block {block} is shared, but holds no full block")
        if block in self.free:
            self.free.remove(block)
        self.tables.setdefault(seq, []).append(block)

    def evict(self, seq, event):
        self.expect(self.hashes.pop(event["block"], None) == event["hash"], f"block {event['block']} held another hash")
        self.expect(self.free[:1] == [event["block"]], f"block {event['block']} is not the one freed longest ago")

    def append(self, seq, event):
        self.expect(self.free[:1] == [event["block"]], f"block {event['block']} is not the one freed longest ago")
        self.expect(event["block"] not in self.hashes, f"block {event['block']} was not evicted before it is reused")
        if event["block"] in self.free:
            self.free.remove(event["block"])
        self.tables.setdefault(seq, []).append(event["block"])

    def hash(self, seq, event):
        if event["block"] not in self.tables.get(seq, []):
            self.expect(False, f"block {event['block']} is hashed and not in the table of {seq}")
            return
        i, chain = self.tables[seq].index(event["block"]), None
        for j in range(i + 1):
            token_ids = self.tokens(seq)[j * self.block_size : (j + 1) * self.block_size]
            parent, chain = chain, self.hash_of(token_ids, chain)
        self.expect((event["hash"], event["parent"]) == (chain, parent), f"block {event['block']}: wrong hash")
        self.expect(self.owners(event["block"]) == [seq], f"block {event['block']} is written while it is shared")
        self.hashes[event["block"]] = event["hash"]

    @staticmethod
    def hash_of(token_ids, parent):
        data = b"" if parent is None else int(parent, 16).to_bytes(8, "little")
        return f"{xxhash.xxh64_intdigest(data + b''.join(t.to_bytes(8, 'little') for t in token_ids)):016x}"

    def preempt(self, seq, event):
        self.expect(self.running[-1:] == [seq], f"{seq} is preempted, and is not the newest")
        self.running.remove(seq)
        self.waiting.insert(0, seq)

    def release(self, seq, event):
        freed = []
        for block in reversed(self.tables.pop(seq, [])):
            if not self.owners(block):
                freed.append(block)
        self.expect(event["blocks"] == freed, f"{seq} releases {event['blocks']}, should be {freed}, tail first")
        self.free += freed
        self.kv.pop(seq, None)

    def finish(self, seq, event):
        self.expect(event["reason"] in ("stop", "length", "abort", "error"), f"{seq} ends for no known reason")
        queue = self.running if seq in self.running else self.waiting
        self.expect(seq in queue, f"{seq} ends twice")
        if seq in queue:
            queue.remove(seq)

    def refuse(self, seq, event):
        num_tokens = sum(entry["n"] for entry in self.step["scheduled"])
        num_owned = len(self.running) + sum(e["seq"] not in self.running for e in self.step["scheduled"])
        reason = event["reason"]
        if reason == "token_budget":
            self.expect(num_tokens == self.config["max_num_batched_tokens"], f"{seq} is refused, with budget left")
        elif reason == "max_seqs":
            self.expect(num_owned >= self.config["max_num_seqs"], f"{seq} is refused, with places left")
        elif reason == "no_blocks":
            num_tokens = self.length_before(seq)
            self.expect(-(-num_tokens // self.block_size) > len(self.free), f"{seq} is refused, with blocks left")
        else:
            self.expect(reason == "no_headroom" and num_owned > 0, f"{seq} is refused for no known reason: {reason}")

    def length_before(self, seq):
        """Tokens that the sequence had when this step began."""
        previous = self.trace["steps"][self.step["i"] - 1]["after"]["seqs"].get(str(seq))
        return previous["len"] if previous else len(self.trace["seqs"][str(seq)]["prompt_ids"])

    # States.

    def start(self, seq):
        if seq in self.waiting:
            self.expect(self.waiting[0] == seq, f"{seq} overtakes")
            self.waiting.remove(seq)
            self.running.append(seq)

    def start_complete(self, before):
        """Only the last prompt of a step can be cut, so those that stand before another are complete."""
        for entry in self.step["scheduled"]:
            if entry["seq"] == before:
                return
            self.start(entry["seq"])

    def check_scheduled(self):
        scheduled = self.step["scheduled"]
        total = sum(entry["n"] for entry in scheduled)
        self.expect(total <= self.config["max_num_batched_tokens"], "more tokens than the budget")
        self.expect(all(entry["n"] > 0 for entry in scheduled), "a sequence is scheduled for nothing")
        if self.step["kind"] == "decode":
            self.expect(all(entry["n"] == 1 for entry in scheduled), "more than one token a sequence in decode")
        ended = {event["seq"] for event in self.step["events"] if event["event"] == "finish"}
        for entry in scheduled:
            seq = entry["seq"]
            if seq in ended:
                continue
            self.kv[seq] += entry["n"]
            if self.kv[seq] == self.length_before(seq):
                self.start(seq)
        self.expect(len(self.running) <= self.config["max_num_seqs"], "too many run")

    def check_state(self, after):
        owned = {block for table in self.tables.values() for block in table}
        self.expect(after["free"] == self.free, f"free blocks are {after['free']}, should be {self.free}")
        self.expect(set(after["free"]).isdisjoint(owned), "a block is free and in a table")
        self.expect(set(after["free"]) | owned == set(range(self.config["num_blocks"])), "a block is lost")
        self.expect(len(set(after["free"])) == len(after["free"]), "a block is free twice")
        refs = {str(block): len(self.owners(block)) for block in owned}
        self.expect(after["ref"] == refs, f"reference counts are {after['ref']}, should be {refs}")
        hashes = {str(block): value for block, value in self.hashes.items()}
        self.expect(after["hash"] == hashes, "the hashes are not those of the events")
        self.expect((after["waiting"], after["running"]) == (self.waiting, self.running), "the queues are different")
        self.expect(set(after["seqs"]) == {str(seq) for seq in self.waiting + self.running}, "a sequence is lost")
        for name, state in after["seqs"].items():
            seq = int(name)
            self.expect(state["table"] == self.tables.get(seq, []), f"{name}: another block table")
            self.expect(state["kv"] == self.kv.get(seq, 0), f"{name}: {state['kv']} tokens computed")
            self.expect(state["status"] == ("RUNNING" if seq in self.running else "WAITING"), f"{name}: wrong status")
            self.expect(state["kv"] <= state["len"] <= len(self.tokens(seq)), f"{name}: more computed than there is")
            if seq in self.running:
                self.expect(state["kv"] == state["len"] - 1, f"{name}: a running sequence lacks one token")
        self.check_shared(after)

    def check_shared(self, after):
        """A block with several owners is full, and all of them have the same tokens up to its end."""
        for block in {block for table in self.tables.values() for block in table}:
            contents = set()
            for seq in self.owners(block):
                end = (self.tables[seq].index(block) + 1) * self.block_size
                contents.add(tuple(self.tokens(seq)[:end]))
                if len(self.owners(block)) > 1:
                    self.expect(after["seqs"][str(seq)]["kv"] >= end, f"block {block} is shared and not full")
            self.expect(len(contents) == 1, f"block {block} is shared by sequences with other tokens")


def check_trace(trace):
    """What is wrong with a trace, as sentences; nothing if it is good."""
    return Replay(trace).run()


# Recordings.


@pytest.fixture(scope="module")
def model(tiny_text_model):
    return tiny_text_model


def record(path, seed, num_steps=60, **options):
    """A trace of a random run: shared prompts, chunks, preemption, ends of all kinds, aborts."""
    rng = random.Random(seed)
    defaults = {
        "kvcache_block_size": rng.choice([2, 4, 8]),
        "max_num_batched_tokens": rng.randrange(8, 40),
        "max_num_seqs": rng.randrange(1, 6),
        "optimistic": rng.random() < 0.7,
        "enable_prefix_caching": rng.random() < 0.8,
    }
    options = defaults | options
    options.setdefault("num_kvcache_blocks", 70 // options["kvcache_block_size"])
    with hash_model.make_engine(path, **options) as llm:
        recorder = TraceRecorder(llm, made_by="test", commit="abc")
        for _ in range(num_steps):
            if rng.random() < 0.25:
                prompt = [*STARTS[rng.randrange(2)][: rng.randrange(30)], rng.randrange(1, 9)]
                llm.add_request(prompt, SamplingParams(temperature=0.0, max_tokens=rng.randrange(1, 18)))
            if llm.requests and rng.random() < 0.05:
                llm.abort(rng.choice(list(llm.requests)))
            llm.step()
        while not llm.is_finished():
            llm.step()
        llm.step()
        return json.loads(json.dumps(recorder.trace))


def events_of(trace):
    return [event["event"] for step in trace["steps"] for event in step["events"]]


@pytest.fixture(scope="module")
def recordings(model):
    return [record(model, seed) for seed in range(12)]


@pytest.mark.parametrize("number", range(12))
def test_a_recording_keeps_all_invariants(recordings, number):
    trace = recordings[number]
    assert check_trace(trace) == []
    assert sorted(trace["steps"][-1]["after"]["free"]) == list(range(trace["config"]["num_blocks"]))
    assert trace["steps"][-1]["after"]["seqs"] == {} and len(trace["steps"]) > 10


def test_the_recordings_show_everything_that_can_happen(recordings, model):
    full_steps = {"max_num_batched_tokens": 10, "max_num_seqs": 5, "num_kvcache_blocks": 60, "kvcache_block_size": 4}
    with hash_model.make_engine(model, **full_steps) as llm:
        recorder = TraceRecorder(llm)
        llm.generate([STARTS[0][:10], STARTS[1][:5]], SamplingParams(temperature=0.0, max_tokens=2), use_tqdm=False)
    traces = [*recordings, recorder.trace]
    assert check_trace(recorder.trace) == []
    kinds = {kind for trace in traces for kind in events_of(trace)}
    assert kinds == {"arrive", "admit", "refuse", "share", "append", "hash", "evict", "preempt", "finish", "release"}
    reasons = {e["reason"] for t in traces for s in t["steps"] for e in s["events"] if e["event"] == "refuse"}
    assert reasons >= {"token_budget", "max_seqs", "no_blocks"}
    ends = {e["reason"] for t in traces for s in t["steps"] for e in s["events"] if e["event"] == "finish"}
    assert ends >= {"stop", "length", "abort"}


def test_tokens_and_provenance(model):
    greedy = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    with hash_model.make_engine(model) as llm:
        recorder = TraceRecorder(llm, made_by="a test", commit="1234567")
        outputs = llm.generate([STARTS[0][:9], STARTS[1][:5]], greedy, use_tqdm=False)
        trace = recorder.trace
        assert trace["format"] == "nanovllm-trace" and trace["version"] == 1
        assert trace["made"]["by"] == "a test" and trace["made"]["engine_commit"] == "1234567"
        assert trace["config"]["block_size"] == 4 and trace["config"]["num_blocks"] == 30
        assert [entry["prompt_ids"] for entry in trace["seqs"].values()] == [STARTS[0][:9], STARTS[1][:5]]
        assert [entry["output_ids"] for entry in trace["seqs"].values()] == [o["token_ids"] for o in outputs]
        assert [step["kind"] for step in trace["steps"]] == ["init", "prefill"] + ["decode"] * 4
        assert all(step["ms"] > 0 for step in trace["steps"][1:]) and trace["steps"][0]["ms"] is None


def test_an_engine_without_a_recorder_records_nothing_and_detaching_ends_it(model):
    greedy = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    with hash_model.make_engine(model) as llm:
        assert llm.scheduler.recorder is None and llm.scheduler.block_manager.recorder is None
        recorder = TraceRecorder(llm)
        llm.generate(STARTS[0][:9], greedy, use_tqdm=False)
        num_steps = len(recorder.trace["steps"])
        recorder.detach()
        llm.generate(STARTS[0][:9], greedy, use_tqdm=False)
        assert len(recorder.trace["steps"]) == num_steps > 1 and recorder.events == []


def test_recording_changes_no_token(model):
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    work = [STARTS[i % 2][: 10 + i] for i in range(6)]
    with hash_model.make_engine(model, optimistic=True, num_kvcache_blocks=14) as llm:
        TraceRecorder(llm)
        outputs = llm.generate(work, greedy, use_tqdm=False)
    assert [o["token_ids"] for o in outputs] == [hash_model.expected(prompt, greedy).token_ids for prompt in work]


class Stop(Exception):
    """What interrupts a step."""


def interrupted_recording(path, calls):
    """A trace of a run in which the model is interrupted in these of its calls, and what was generated."""
    greedy = SamplingParams(temperature=0.0, max_tokens=9)
    with hash_model.make_engine(path, max_num_batched_tokens=12) as llm:
        recorder, model, count = TraceRecorder(llm), llm.model_runner.run_model, itertools.count()

        def run_model(*args):
            if next(count) in calls:
                raise Stop
            return model(*args)

        llm.model_runner.run_model = run_model
        for i in range(4):
            llm.add_request([*STARTS[i % 2][: 5 + 4 * i], i + 1], greedy)
        results = {}
        while not llm.is_finished():
            with contextlib.suppress(Stop):
                results.update(llm.step()[0])
        return json.loads(json.dumps(recorder.trace)), results


@pytest.mark.parametrize("calls", [{0}, {1, 2}, {3, 6, 7, 11}])
def test_a_recording_begins_anew_after_an_interruption(model, calls):
    trace, results = interrupted_recording(model, calls)
    kinds = [step["kind"] for step in trace["steps"]]
    assert kinds.count("init") == 1 + len(calls)
    assert check_trace(trace) == []
    for step in trace["steps"]:
        if step["kind"] == "init":
            assert step["after"]["running"] == [] and step["after"]["hash"] == {} and step["scheduled"] == []
    assert {int(seq): entry["output_ids"] for seq, entry in trace["seqs"].items()} == results
    assert results == interrupted_recording(model, set())[1]


# The oracle finds what is planted.


def damage(kind, rng):
    """A function that changes one thing in a step, or returns False if there is nothing to change."""

    def of(step, name):
        return [event for event in step["events"] if event["event"] == name]

    def change(step):
        after = step["after"]
        if kind == "drop a reference" and after["ref"]:
            after["ref"].pop(rng.choice(list(after["ref"])))
        elif kind == "swap free blocks" and len(after["free"]) > 1:
            after["free"][0], after["free"][1] = after["free"][1], after["free"][0]
        elif kind == "lose a free block" and after["free"]:
            after["free"].pop()
        elif kind == "another hash" and of(step, "hash"):
            of(step, "hash")[0]["hash"] = "00000000deadbeef"
        elif kind == "another parent" and [e for e in of(step, "hash") if e["parent"]]:
            next(e for e in of(step, "hash") if e["parent"])["parent"] = None
        elif kind == "forget an append" and of(step, "append"):
            step["events"].remove(of(step, "append")[0])
        elif kind == "forget an eviction" and of(step, "evict"):
            step["events"].remove(of(step, "evict")[0])
        elif kind == "head first" and [e for e in of(step, "release") if len(e["blocks"]) > 1]:
            next(e for e in of(step, "release") if len(e["blocks"]) > 1)["blocks"].reverse()
        elif kind == "wrong count of cached tokens" and of(step, "admit"):
            of(step, "admit")[0]["cached"] += 1
        elif kind == "more than the budget" and step["scheduled"]:
            step["scheduled"][0]["n"] += 1000
        elif kind == "a block in a table that is not there" and after["seqs"]:
            next(iter(after["seqs"].values()))["table"].append(0)
        elif kind == "more computed" and after["seqs"]:
            next(iter(after["seqs"].values()))["kv"] += 1
        elif kind == "other queue" and after["running"]:
            after["waiting"].append(after["running"].pop())
        elif kind == "refused for nothing" and of(step, "refuse"):
            event = of(step, "refuse")[0]
            event["reason"] = "token_budget" if event["reason"] != "token_budget" else "bad mood"
        else:
            return False
        return True

    return change


DAMAGES = (
    "drop a reference",
    "swap free blocks",
    "lose a free block",
    "another hash",
    "another parent",
    "forget an append",
    "forget an eviction",
    "head first",
    "wrong count of cached tokens",
    "more than the budget",
    "a block in a table that is not there",
    "more computed",
    "other queue",
    "refused for nothing",
)


@pytest.fixture(scope="module")
def good_trace(model):
    return record(model, 5, kvcache_block_size=4, enable_prefix_caching=True, optimistic=True, num_kvcache_blocks=17)


@pytest.mark.parametrize("kind", DAMAGES)
def test_the_oracle_finds_damage(good_trace, kind):
    trace = good_trace
    assert check_trace(trace) == []
    rng, planted = random.Random(1), 0
    for i in range(1, len(trace["steps"])):
        bad = copy.deepcopy(trace)
        if damage(kind, rng)(bad["steps"][i]):
            planted += 1
            problems = check_trace(bad)
            assert problems and problems[0].startswith(f"step {i}:"), (i, problems)
        if planted == 4:
            break
    assert planted > 0
