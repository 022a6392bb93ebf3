"""The trace recorder: what it writes is checked by replaying the events, from the JSON alone."""

import contextlib
import copy
import itertools
import json
import random

import pytest
import torch
import xxhash

from nanovllm import SamplingParams
from nanovllm.engine.block_manager import BlockManager
from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.trace import TraceRecorder
from tests.engine import hash_model
from tests.engine.interrupts import InterruptAtLine

STARTS = [[(7 * i + j) % 300 + 1 for j in range(40)] for i in range(3)]


# The oracle.


class Replay:
    """Plays the events of a trace on plain lists; every difference to what is written becomes a problem.

    `may_shrink`: a GPU that ran out of memory has made the steps smaller, for a while.
    """

    def __init__(self, trace, may_shrink=False):
        self.trace, self.config, self.may_shrink = trace, trace["config"], may_shrink
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
        """A step was interrupted: whoever is left waits, oldest first, and the pool is as in the beginning.

        After a step without memory, those that were in it are first, to be tried in smaller steps.
        """
        left, arrived = self.step["after"]["waiting"], [e["seq"] for e in self.step["events"] if e["event"] == "arrive"]
        self.expect({*left} <= {*self.waiting, *self.running, *arrived}, "somebody comes from nowhere")
        self.waiting, self.running = list(left) if self.may_shrink else sorted(left), []
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
            is_used_up = num_tokens == self.config["max_num_batched_tokens"]
            self.expect(is_used_up or self.may_shrink, f"{seq} is refused, with budget left")
        elif reason == "max_seqs":
            is_full = num_owned >= self.config["max_num_seqs"]
            self.expect(is_full or self.may_shrink, f"{seq} is refused, with places left")
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


def check_trace(trace, may_shrink=False):
    """What is wrong with a trace, as sentences; nothing if it is good."""
    return Replay(trace, may_shrink).run()


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
            if llm.llm_engine.requests and rng.random() < 0.05:
                llm.abort(rng.choice(list(llm.llm_engine.requests)))
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


def test_an_llm_engine_by_itself_is_recorded_too(model):
    greedy = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    with hash_model.make_engine(model) as llm:
        recorder = TraceRecorder(llm.llm_engine)
        llm.generate([STARTS[0][:9], STARTS[1][:5]], greedy, use_tqdm=False)
    assert check_trace(recorder.trace) == []
    assert [step["kind"] for step in recorder.trace["steps"]] == ["init", "prefill"] + ["decode"] * 4


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
        runner, count = llm.llm_engine.model_runner, itertools.count()
        recorder, model = TraceRecorder(llm), runner.run_model

        def run_model(*args):
            if next(count) in calls:
                raise Stop
            return model(*args)

        runner.run_model = run_model
        for i in range(4):
            llm.add_request([*STARTS[i % 2][: 5 + 4 * i], i + 1], greedy)
        results = {}
        while not llm.is_finished():
            with contextlib.suppress(Stop):
                results.update(llm.step()[0])
        return json.loads(json.dumps(recorder.trace)), results


@pytest.mark.parametrize("calls", [{0}, pytest.param({1, 2}, marks=pytest.mark.slow), {3, 6, 7, 11}])
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


def test_a_recording_may_begin_after_an_interruption(model):
    greedy = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
    with hash_model.make_engine(model) as llm:
        llm.add_request(STARTS[0][:9], greedy)
        hash_blocks = llm.scheduler.block_manager.hash_blocks
        llm.scheduler.block_manager.hash_blocks = None  # which raises in the middle of an admission
        with pytest.raises(TypeError):
            llm.step()
        llm.scheduler.block_manager.hash_blocks = hash_blocks
        assert llm.scheduler.block_manager.used_block_ids
        recorder = TraceRecorder(llm)
        while not llm.is_finished():
            llm.step()
    first, *others = recorder.trace["steps"]
    assert first["after"]["waiting"] == [0] and first["after"]["ref"] == {}
    assert [step["kind"] for step in others] == ["prefill"] + ["decode"] * 8


def test_a_step_without_enough_gpu_memory_is_recorded(model):
    greedy = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    with hash_model.make_engine(model) as llm:
        runner = llm.llm_engine.model_runner
        fake, recorder = runner.run_model, TraceRecorder(llm)

        def run_model(input_ids, positions):
            if 300 in input_ids.tolist():
                raise torch.OutOfMemoryError("planted")
            return fake(input_ids, positions)

        runner.run_model = run_model
        good = llm.add_request(STARTS[0][:9], greedy)
        llm.step()
        bad = llm.add_request([300, 1, 2], greedy)
        while not llm.is_finished():
            llm.step()
        assert llm.step() == ([], 0)
    assert check_trace(recorder.trace, may_shrink=True) == []
    assert [step["kind"] for step in recorder.trace["steps"]].count("init") > 2  # each time, smaller steps were tried
    ends = [e for step in recorder.trace["steps"] for e in step["events"] if e["event"] == "finish"]
    assert {e["seq"]: e["reason"] for e in ends} == {bad: "error", good: "length"} and len(ends) == 2


# The recorder comes and goes.


def watched(llm):
    """What an engine's objects have of their own, beside their classes' methods."""
    engine = llm.llm_engine
    objects = (engine, engine.scheduler, engine.scheduler.block_manager)
    return [{name: vars(thing)[name] for name in vars(thing) if callable(vars(thing)[name])} for thing in objects]


def names(llm):
    engine = llm.llm_engine
    return [set(vars(thing)) for thing in (llm, engine, engine.scheduler, engine.scheduler.block_manager)]


def work(llm, num_steps):
    """So many steps, with a request or two always there."""
    greedy = SamplingParams(temperature=0.0, max_tokens=7)
    for i in range(num_steps):
        if i % 3 == 0:
            llm.add_request([*STARTS[i % 2][: 5 + i], i + 1], greedy)
        llm.step()


def test_nothing_is_left_after_detaching(model):
    with hash_model.make_engine(model) as llm:
        before, callables = names(llm), watched(llm)
        recorder = TraceRecorder(llm)
        work(llm, 7)
        assert names(llm) != before
        recorder.detach()
        num_steps = len(recorder.trace["steps"])
        assert num_steps == 8 and names(llm) == before and watched(llm) == callables
        work(llm, 7)
        recorder.detach()
        assert len(recorder.trace["steps"]) == num_steps and recorder.events == []
        assert names(llm) == before and watched(llm) == callables


def test_attaching_twice_notes_nothing_twice(model):
    with hash_model.make_engine(model) as llm:
        before = names(llm)
        recorder = TraceRecorder(llm)
        recorder.attach()
        work(llm, 9)
        assert [step["kind"] for step in recorder.trace["steps"][:3]] == ["init", "init", "prefill"]
        assert len(recorder.trace["steps"]) == 11 and events_of(recorder.trace).count("arrive") == 3
        recorder.detach()
        assert names(llm) == before


def test_two_recorders_in_turn(model):
    with hash_model.make_engine(model) as llm:
        before = names(llm)
        first = TraceRecorder(llm)
        work(llm, 4)
        second = TraceRecorder(llm)  # the first was not detached: it ends here
        while not llm.is_finished():
            llm.step()
        first.detach()  # nothing is left to do, and the second goes on
        work(llm, 3)
        while not llm.is_finished():
            llm.step()
        second.detach()
        assert names(llm) == before
    assert len(first.trace["steps"]) == 5 and check_trace(first.trace) == []
    assert len(second.trace["steps"]) > 10 and "finish" in events_of(second.trace)
    assert second.trace["steps"][0]["after"] == first.trace["steps"][-1]["after"]


@pytest.mark.parametrize("calls", [{0}, {2}, {1, 3}])
def test_nothing_is_left_of_a_recording_that_was_interrupted(model, calls):
    with hash_model.make_engine(model) as llm:
        before, runner, count = names(llm), llm.llm_engine.model_runner, itertools.count()
        recorder, fake = TraceRecorder(llm), runner.run_model

        def run_model(*args):
            if next(count) in calls:
                raise Stop
            return fake(*args)

        runner.run_model = run_model
        for _ in range(4):
            with contextlib.suppress(Stop):
                work(llm, 1)
        recorder.detach()
        assert names(llm) == before
        while not llm.is_finished():
            llm.step()
        hash_model.check_clean(llm)


def test_nothing_is_left_of_a_recorder_that_was_interrupted_itself(model):
    """Ctrl-C at any line of a recorder: another one takes its place, and what it leaves is the engine as it was."""
    greedy = SamplingParams(temperature=0.0, max_tokens=4)
    with hash_model.make_engine(model, num_kvcache_blocks=8) as llm:
        before, n, done = names(llm), 0, False
        while not done:
            n += 1 if n < 120 else 5
            with (
                InterruptAtLine(n, KeyboardInterrupt, {"trace.py"}) as interrupt,
                contextlib.suppress(KeyboardInterrupt),
            ):
                recorder = TraceRecorder(llm)
                llm.add_request(STARTS[0][: 7 + n % 9], greedy)
                llm.step()
                llm.step()
                recorder.detach()
            done = interrupt.lines < n
            TraceRecorder(llm).detach()
            assert names(llm) == before, interrupt.where
            seqs = [request.seq for request in llm.llm_engine.requests.values()]
            while not llm.is_finished():
                llm.step()
            for seq in seqs:
                assert seq.completion_token_ids == hash_model.expected(seq.prompt_token_ids, greedy).token_ids
        hash_model.check_clean(llm)
    assert n > 300


def test_what_was_put_on_the_objects_before_is_there_again(model):
    with hash_model.make_engine(model) as llm:
        calls, preempt = [], llm.scheduler.preempt
        llm.scheduler.preempt = lambda seq: (calls.append(seq), preempt(seq))
        before, mine = names(llm), llm.scheduler.preempt
        recorder = TraceRecorder(llm)
        seq = llm.llm_engine.requests[llm.add_request(STARTS[0][:9])].seq
        llm.step()
        llm.scheduler.preempt(seq)
        recorder.detach()
        assert calls == [seq] and llm.scheduler.preempt is mine and names(llm) == before
    assert recorder.events == [] and len(recorder.trace["steps"]) == 2


class OwnScheduler(Scheduler):
    """A learner's: other words for the same, a victim of its own choice, and calls by keyword."""

    def schedule_prefill(self):
        scheduled = super().schedule_prefill()
        return scheduled

    def may_join(self, seq, budget):
        return self.refusal(seq=seq, budget=budget) is None

    def make_room(self, seq):
        while not self.block_manager.can_append(seq=seq):
            victim = self.choose_victim(seq=seq)
            self.preempt(seq=victim)
            if victim is seq:
                return False
        return True

    def postprocess(self, seqs, token_ids):
        for seq, token_id in zip(seqs, token_ids, strict=True):
            super().postprocess([seq], [token_id])

    def finish(self, seq, reason):
        super().finish(seq=seq, reason=reason)


class OwnBlockManager(BlockManager):
    """A learner's: the block that was freed last is taken first."""

    def choose_block_to_evict(self):
        return next(reversed(self.free_block_ids))

    def may_append(self, seq):
        if len(seq.block_table) < seq.num_blocks:
            self._append_new_block(seq=seq)


def use_own_classes(llm):
    """The engine's objects become those of a learner."""
    for thing, own in ((llm.scheduler, OwnScheduler), (llm.scheduler.block_manager, OwnBlockManager)):
        thing.__class__ = type(own.__name__, (own, type(thing)), {})


def test_learners_classes_are_recorded(model):
    options = {"optimistic": True, "num_kvcache_blocks": 14}
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = [STARTS[i % 2][: 10 + i] for i in range(6)]
    with hash_model.make_engine(model, **options) as llm:
        use_own_classes(llm)
        before, recorder = names(llm), TraceRecorder(llm)
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
        recorder.detach()
        assert names(llm) == before
    assert [o["token_ids"] for o in outputs] == [hash_model.expected(prompt, greedy).token_ids for prompt in prompts]
    problems = check_trace(recorder.trace)
    assert problems and all("is not the one freed longest ago" in problem for problem in problems)
    kinds = events_of(recorder.trace)
    assert {"preempt", "refuse", "evict", "share"} <= set(kinds)
    for step, after in itertools.pairwise(recorder.trace["steps"]):
        for event in after["events"]:
            if event["event"] == "evict" and str(event["block"]) in step["after"]["hash"]:
                assert event["hash"] == step["after"]["hash"][str(event["block"])]


def test_an_engine_that_works_one_step_ahead_is_refused(model):
    with hash_model.make_engine(model, runs_ahead=True) as llm:
        before = names(llm)
        with pytest.raises(ValueError, match=r'unlike nanovllm.levers.step_ahead.* disabled_optimizations .* "all"'):
            TraceRecorder(llm)
        assert names(llm) == before
        greedy = SamplingParams(temperature=0.0, max_tokens=5)
        (output,) = llm.generate(STARTS[0][:9], greedy, use_tqdm=False)
        assert output["token_ids"] == hash_model.expected(STARTS[0][:9], greedy).token_ids


def test_an_own_step_is_refused_too(model):
    class OwnEngine(LLMEngine):
        def run_step(self):
            return super().run_step()

    with hash_model.make_engine(model) as llm:
        llm.llm_engine.__class__ = OwnEngine
        with pytest.raises(ValueError, match="steps that end before the next begins"):
            TraceRecorder(llm)


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
