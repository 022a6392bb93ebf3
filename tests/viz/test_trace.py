"""The rules of a trace: every real run obeys them, and every kind of mistake is told."""

import contextlib
import copy
import hashlib
import itertools
import json
import sys
import threading
import time

import pytest
import torch

import nanovllm.viz
from nanovllm import LLM, SamplingParams
from nanovllm.config import Config
from nanovllm.engine.block_manager import BlockManager
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.trace import TraceRecorder
from nanovllm.model_files import resolve_model
from nanovllm.viz.block_table import describe_step
from nanovllm.viz.record import record, record_scheduler
from nanovllm.viz.trace import check_trace, complete_events, find_problems, load_trace, save_trace

from .conftest import random_trace


@pytest.mark.parametrize("seed", range(40))
def test_every_run_of_the_real_scheduler_obeys_the_rules(seed):
    trace = random_trace(seed)
    assert check_trace(trace) == []
    json.dumps(trace)


@pytest.mark.parametrize("name", ["story", "batch", "first_look", "story_h200", "batch_h200"])
def test_recorded_traces_obey_the_rules_and_say_where_they_come_from(name):
    trace = load_trace(name)
    assert check_trace(trace) == []
    made = trace["made"]
    assert made["kind"] == "real-model" and made["model"] == "qwen3-tiny"
    assert all(made[key] for key in ("engine_commit", "when", "by", "device", "torch", "weights_sha256"))


@pytest.mark.parametrize("name", ["story", "batch", "first_look", "story_h200", "batch_h200"])
def test_recorded_traces_are_of_the_bundled_weights(name):
    weights = hashlib.sha256((resolve_model("qwen3-tiny") / "model.safetensors").read_bytes()).hexdigest()
    recorded = load_trace(name)["made"]["weights_sha256"]
    assert recorded == weights, "the bundled model has changed: run `python -m nanovllm.viz.record`"


def test_recorded_traces_show_every_kind_of_event():
    kinds = {event["event"] for name in ("story", "batch") for s in load_trace(name)["steps"] for event in s["events"]}
    assert kinds >= {"arrive", "admit", "refuse", "share", "append", "hash", "evict", "preempt", "finish", "release"}


def edit(trace, i):
    return trace["steps"][i]["after"]


def put_used_block_among_free(trace):
    edit(trace, 9)["free"].append(7)


def lose_a_block(trace):
    edit(trace, 9)["free"].remove(6)


def list_a_block_twice(trace):
    edit(trace, 9)["free"].append(6)


def count_too_many_references(trace):
    edit(trace, 4)["ref"]["2"] = 2


def keep_reference_of_free_block(trace):
    edit(trace, 9)["ref"]["6"] = 1


def name_a_block_that_is_not_there(trace):
    edit(trace, 9)["free"].append(99)


def give_too_few_blocks(trace):
    edit(trace, 7)["seqs"]["0"]["table"].remove(6)
    del edit(trace, 7)["ref"]["6"]
    edit(trace, 7)["free"].append(6)


def give_too_many_blocks(trace):
    edit(trace, 1)["seqs"]["0"]["table"].append(3)
    edit(trace, 1)["ref"]["3"] = 1
    edit(trace, 1)["free"].remove(3)


def share_different_tokens(trace):
    trace["seqs"]["1"]["prompt_ids"][1] += 1


def share_a_block_that_is_not_full(trace):
    edit(trace, 3)["seqs"]["1"]["table"][2] = 2
    edit(trace, 3)["ref"] = {"0": 2, "1": 2, "2": 2}
    edit(trace, 3)["free"].insert(0, 3)


def forget_the_prefix_in_a_hash(trace):
    edit(trace, 4)["hash"]["1"] = edit(trace, 4)["hash"]["0"]


def hash_a_block_that_is_not_full(trace):
    edit(trace, 1)["hash"]["2"] = "0" * 16


def forget_to_hash(trace):
    del edit(trace, 1)["hash"]["1"]


def leave_in_both_queues(trace):
    edit(trace, 5)["waiting"].append(0)


def keep_the_wrong_status(trace):
    edit(trace, 5)["seqs"]["0"]["status"] = "WAITING"


def run_too_many(trace):
    trace["config"]["max_num_seqs"] = 2


def exceed_the_budget(trace):
    trace["config"]["max_num_batched_tokens"] = 8


def decode_two_tokens(trace):
    trace["steps"][5]["scheduled"][0]["n"] = 2


def schedule_twice(trace):
    trace["steps"][5]["scheduled"].append(trace["steps"][5]["scheduled"][0])


def decode_what_waits(trace):
    trace["steps"][3]["kind"] = "decode"


def compute_without_storing(trace):
    edit(trace, 6)["seqs"]["0"]["kv"] -= 1


def sample_twice(trace):
    edit(trace, 6)["seqs"]["0"]["len"] += 1


def preempt_the_oldest(trace):
    event = next(event for event in trace["steps"][9]["events"] if event["event"] == "preempt")
    event["seq"] = 0


def refuse_for_no_reason(trace):
    trace["steps"][4]["events"].append({"event": "refuse", "seq": 2, "reason": "no_blocks"})


def refuse_with_budget_left(trace):
    trace["steps"][4]["events"].append({"event": "refuse", "seq": 2, "reason": "token_budget"})


def refuse_with_places_left(trace):
    trace["steps"][4]["events"].append({"event": "refuse", "seq": 2, "reason": "max_seqs"})


def refuse_although_nobody_runs(trace):
    trace["steps"][1]["events"].insert(0, {"event": "refuse", "seq": 0, "reason": "no_headroom"})
    trace["steps"][1]["kind"], trace["steps"][1]["scheduled"] = "decode", []


def refuse_and_compute(trace):
    trace["steps"][4]["events"].append({"event": "refuse", "seq": 2, "reason": "something else"})


def never_finish(trace):
    del trace["steps"][14]


MISTAKES = {
    put_used_block_among_free: (9, "block 7 is free, but in the table of B"),
    lose_a_block: (9, "block 6 is lost: it is neither free nor in any table"),
    list_a_block_twice: (9, "block 6 is 2 times among the free ones"),
    count_too_many_references: (4, "block 2 has reference count 2, but is in 1 tables (A)"),
    keep_reference_of_free_block: (9, "block 6 is free, but its reference count is 1"),
    name_a_block_that_is_not_there: (9, "block 99 does not exist"),
    give_too_few_blocks: (7, "A has 13 tokens stored, but its 3 blocks hold 12"),
    give_too_many_blocks: (1, "A has 10 tokens, but 4 blocks"),
    share_different_tokens: (3, "A and B share block 0, but their first 4 tokens differ"),
    share_a_block_that_is_not_full: (3, "block 2 is shared, but A has not filled it"),
    forget_the_prefix_in_a_hash: (4, "block 1 of A has a hash that is not that of its tokens and those before"),
    hash_a_block_that_is_not_full: (1, "block 2 of A is not full, but has a hash"),
    forget_to_hash: (1, "block 1 of A is full, but has no hash"),
    leave_in_both_queues: (5, "A is 2 times in the queues"),
    keep_the_wrong_status: (5, "A is in `running`, but its status is WAITING"),
    run_too_many: (4, "3 sequences run; max_num_seqs is 2"),
    exceed_the_budget: (1, "9 tokens are computed; max_num_batched_tokens is 8"),
    decode_two_tokens: (5, "A computes 2 tokens in a decode step"),
    schedule_twice: (5, "a sequence is scheduled twice"),
    decode_what_waits: (3, "B decodes, but was not running"),
    compute_without_storing: (6, "A had 11 tokens stored and computed 1, but now has 11"),
    sample_twice: (6, "A went from 12 to 14 tokens instead of 13"),
    preempt_the_oldest: (9, "A was preempted, but the newest running sequence is C"),
    refuse_for_no_reason: (4, "C was refused for want of blocks, but needs 1 and 3 are free"),
    refuse_with_budget_left: (4, "C was refused for want of token budget, but only 4 tokens are computed"),
    refuse_with_places_left: (4, "C was refused because of max_num_seqs, but only 3 sequences run"),
    refuse_although_nobody_runs: (1, "A was refused to leave room for others, but no other runs"),
    refuse_and_compute: (4, "C was refused and computed in the same step"),
    never_finish: (13, "the run has ended, but B never finished"),
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_every_mistake_is_told_at_its_step(story, mistake):
    step, message = MISTAKES[mistake]
    mistake(story)
    problems = find_problems(story)
    assert (step, message) in problems
    assert problems[0].step == step
    assert f"step {step}: {message}" in check_trace(story)


def test_a_run_that_is_still_going_is_not_a_mistake(story):
    never_finish(story)
    assert check_trace(story, complete=False) == []


def test_an_engine_may_name_its_blocks_as_it_likes_but_one_content_has_one_name(story):
    renamed = copy.deepcopy(story)
    for step in renamed["steps"]:
        step["after"]["hash"] = {block: value[::-1] for block, value in step["after"]["hash"].items()}
    assert check_trace(renamed) == []
    assert check_trace(renamed, compute_hash=BlockManager.compute_hash)[0].startswith("step 1: block 0 of A has a hash")
    last = next(i for i, step in reversed(list(enumerate(renamed["steps"]))) if step["after"]["seqs"])
    (block, *_) = next(iter(renamed["steps"][last]["after"]["seqs"].values()))["table"]
    renamed["steps"][last]["after"]["hash"][str(block)] = "f" * 16  # another name for what had one before
    assert [message for message in check_trace(renamed) if "has a hash that is not that" in message]


def test_an_own_hash_function_is_checked_against_itself(story):
    assert check_trace(story, compute_hash=lambda token_ids, prefix: 1)[0].startswith("step 1: block 0 of A has a hash")


def test_a_trace_of_another_version_is_refused(story, tmp_path):
    story["version"] = 2
    assert check_trace(story) == ["step 0: this is not a nanovllm-trace of version 1"]
    save_trace(story, tmp_path / "new.json")
    with pytest.raises(ValueError, match="not a nanovllm-trace of version 1"):
        load_trace(tmp_path / "new.json")


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(FileNotFoundError, match="recorded ones are batch, batch_h200, first_look, story, story_h200"):
        load_trace("tale")


def test_saving_and_loading_gives_the_same(story, tmp_path):
    save_trace(story, tmp_path / "copy.json")
    assert load_trace(tmp_path / "copy.json") == story


def test_events_that_nobody_reported_are_derived(story):
    silent = copy.deepcopy(story)
    for step in silent["steps"]:
        step["events"] = []
    complete_events(silent)
    for told, derived in zip(story["steps"], silent["steps"], strict=True):
        # Within a step that frees what it took, and for reasons, the states do not say enough.
        kinds = ("arrive", "admit", "share", "append", "evict", "preempt", "finish")
        expected = {(e["event"], e["seq"], e.get("block")) for e in told["events"] if e["event"] in kinds}
        found = {(e["event"], e["seq"], e.get("block")) for e in derived["events"]}
        assert found == expected, told["i"]
    assert complete_events(copy.deepcopy(story)) == story  # nothing is told twice


class SilentScheduler(Scheduler):
    """Like a learner's: it works, but by none of the methods at which a recorder watches."""

    def schedule(self):
        things = (self, self.block_manager)
        watched = [{name: vars(thing).pop(name) for name in list(vars(thing)) if name in WATCHED} for thing in things]
        try:
            return super().schedule()
        finally:
            for thing, methods in zip(things, watched, strict=True):
                vars(thing).update(methods)


WATCHED = ("admit", "preempt", "refusal", "_share", "_append_new_block", "_register")


def test_a_scheduler_that_reports_nothing_is_recorded_all_the_same():
    config = Config("qwen3-tiny", max_model_len=64, kvcache_block_size=4, num_kvcache_blocks=16, device="cpu")
    prompts = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7], [9]]
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    trace = record_scheduler(SilentScheduler(config), config, prompts, params, arrive=[0, 1, 5])
    assert check_trace(trace) == []
    assert [entry["prompt_ids"] for entry in trace["seqs"].values()] == prompts
    assert {"event": "share", "seq": 1, "block": 0, "derived": True} in trace["steps"][2]["events"]


def test_several_preemptions_in_a_step_are_derived_newest_first():
    config = Config("qwen3-tiny", max_model_len=16, kvcache_block_size=4, num_kvcache_blocks=7, device="cpu")
    prompts = [[10 * n + k for k in range(1, 5)] for n in range(5)]
    trace = record_scheduler(SilentScheduler(config), config, prompts, SamplingParams(max_tokens=10), seed=3)
    preempted = [[e["seq"] for e in step["events"] if e["event"] == "preempt"] for step in trace["steps"]]
    assert max(map(len, preempted)) > 1, preempted
    assert check_trace(trace) == []


class ForgetfulScheduler(Scheduler):
    """Like a learner's: wrong after a while."""

    def postprocess(self, seqs, token_ids):
        if seqs[0].num_completion_tokens:
            raise KeyError("seq")
        super().postprocess(seqs, token_ids)


def test_a_run_that_raises_is_drawn_up_to_there():
    config = Config("qwen3-tiny", max_model_len=64, kvcache_block_size=4, num_kvcache_blocks=16, device="cpu")
    arguments = (config, [[1, 2, 3]], SamplingParams(max_tokens=4))
    with pytest.raises(KeyError):
        record_scheduler(ForgetfulScheduler(config), *arguments)
    trace = record_scheduler(ForgetfulScheduler(config), *arguments, keep_error=True)
    assert [step["kind"] for step in trace["steps"]] == ["init", "prefill", "error"]
    assert check_trace(trace) == ["step 2: the engine raised KeyError: 'seq'"]


def test_nothing_is_derived_where_the_engine_has_told_everything():
    prompt = list(range(1, 10))
    config = Config("qwen3-tiny", max_model_len=64, kvcache_block_size=4, num_kvcache_blocks=16, device="cpu")
    # The second finds blocks that the first has taken in the same step.
    trace = record_scheduler(Scheduler(config), config, [prompt, prompt], SamplingParams(max_tokens=2))
    events = [event for step in trace["steps"] for event in step["events"]]
    assert [event["seq"] for event in events if event["event"] == "share"] == [1, 1]
    assert not any("derived" in event for event in events)


SMALL = {"kvcache_block_size": 4, "num_kvcache_blocks": 16, "max_model_len": 64, "device": "cpu"}


def interrupt(llm, calls):
    """Have the model raise in these of its calls."""
    runner, count = llm.llm_engine.model_runner, itertools.count()
    run = runner.run

    def run_or_raise(seqs, is_prefill):
        if next(count) in calls:
            raise InterruptedError("somebody pressed Ctrl-C")
        return run(seqs, is_prefill)

    runner.run = run_or_raise


def test_a_run_that_was_interrupted_keeps_the_rules_and_says_so():
    with LLM("qwen3-tiny", **SMALL) as llm:
        interrupt(llm, {2})
        recorder = TraceRecorder(llm)
        for prompt in ("Once upon a time there was a little cat", "Once upon a time there was a little dog"):
            llm.add_request(prompt, SamplingParams(temperature=0, max_tokens=6))
        while not llm.is_finished():
            with contextlib.suppress(InterruptedError):
                llm.step()
    trace = complete_events(recorder.trace)
    assert check_trace(trace) == []
    assert [step["kind"] for step in trace["steps"][:5]] == ["init", "prefill", "decode", "init", "prefill"]
    assert "interrupted" in describe_step(trace, 3) and "interrupted" not in describe_step(trace, 0)
    assert not any(event.get("derived") for event in trace["steps"][3]["events"])


def test_a_run_of_an_engine_that_raises_ends_with_its_error():
    with LLM("qwen3-tiny", **SMALL) as llm:
        interrupt(llm, {1})
        trace = record(llm, ["Once upon a time"], SamplingParams(max_tokens=4), keep_error=True)
    assert [step["kind"] for step in trace["steps"]] == ["init", "prefill", "error"]
    assert check_trace(trace) == ["step 2: the engine raised InterruptedError: somebody pressed Ctrl-C"]


def test_record_is_the_function_even_after_the_module_of_that_name_was_imported():
    assert sys.modules["nanovllm.viz.record"].record is record
    assert nanovllm.viz.record is record and callable(nanovllm.viz.record_scheduler)


def test_lists_of_different_length_are_refused():
    config = Config("qwen3-tiny", max_model_len=64, kvcache_block_size=4, num_kvcache_blocks=16, device="cpu")
    scheduler = Scheduler(config)
    before = set(vars(scheduler))
    with pytest.raises(ValueError, match="got 2 prompts, 2 params and 1 arrivals"):
        record_scheduler(scheduler, config, [[1], [2]], SamplingParams(), arrive=[0])
    assert set(vars(scheduler)) == before


def test_a_run_of_a_model_is_recorded_with_its_texts():
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    with LLM("qwen3-tiny", device="cpu", kvcache_block_size=4, num_kvcache_blocks=16, max_model_len=64) as llm:
        expected = llm.generate("Once upon a time", params, use_tqdm=False)[0]
        things = (llm, llm.llm_engine, llm.scheduler, llm.scheduler.block_manager)
        before = [set(vars(thing)) for thing in things]
        trace = record(llm, ["Once upon a time", "The sun"], [params, params], arrive=[0, 3])
        assert [set(vars(thing)) for thing in things] == before  # nobody watches any more
    assert check_trace(trace) == []
    first, second = trace["seqs"].values()
    assert (first["name"], second["name"]) == ("A", "B")  # although the engine has served others before
    assert "".join(first["texts"]) == "Once upon a time" + expected["text"]
    assert first["output_ids"] == expected["token_ids"]
    assert (first["arrive"], second["arrive"]) == (1, 4)
    assert all(step["ms"] > 0 for step in trace["steps"][1:])


def test_a_recorder_may_come_and_go_while_another_thread_runs_the_engine():
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    traces, is_over = [], threading.Event()
    with LLM("qwen3-tiny", **SMALL) as llm:

        def serve():
            while not is_over.is_set():
                llm.generate(["Once upon a time", "Once upon a day", "The sun"], params, use_tqdm=False)

        server = threading.Thread(target=serve)
        server.start()
        try:
            for i in range(1000):
                recorder = TraceRecorder(llm)
                time.sleep(0.01 * (i % 4))
                recorder.detach()
                traces.append(recorder.trace)
                num_steps = sum(len(trace["steps"]) for trace in traces)
                if i >= 14 and num_steps > 30:  # a busy machine needs more than 15 looks
                    break
        finally:
            is_over.set()
            server.join()
    assert num_steps > 30
    for trace in traces:
        assert check_trace(complete_events(trace), complete=False) == []


class OldestGoes(Scheduler):
    """A learner's experiment."""

    def choose_victim(self, seq):
        return self.running[0]


def test_whom_an_own_rule_preempts_is_no_mistake():
    config = Config("qwen3-tiny", max_model_len=16, kvcache_block_size=4, num_kvcache_blocks=7, device="cpu")
    prompts = [[10 * n + k for k in range(1, 5)] for n in range(5)]
    trace = record_scheduler(OldestGoes(config), config, prompts, SamplingParams(max_tokens=10), seed=3)
    preempted = [event for step in trace["steps"] for event in step["events"] if event["event"] == "preempt"]
    assert preempted and check_trace(trace) == []
    del trace["config"]["own_victims"]
    assert any("was preempted, but the newest running sequence is" in problem for problem in check_trace(trace))


def test_a_gpu_without_memory_for_a_step_makes_smaller_ones():
    with LLM("qwen3-tiny", **SMALL) as llm:
        runner, count = llm.llm_engine.model_runner, itertools.count()
        run = runner.run

        def run_out_once(seqs, is_prefill):
            if next(count) == 1:
                raise torch.OutOfMemoryError("planted")
            return run(seqs, is_prefill)

        runner.run = run_out_once
        prompts = ["Once upon a time there was a little cat", "The sun was warm", "The rain fell"]
        trace = record(llm, prompts, SamplingParams(temperature=0, max_tokens=6))
    assert [step["kind"] for step in trace["steps"][:3]] == ["init", "prefill", "init"]
    refusals = [e["reason"] for step in trace["steps"] for e in step["events"] if e["event"] == "refuse"]
    assert "max_seqs" in refusals and len(prompts) < trace["config"]["max_num_seqs"]
    assert check_trace(trace) == []


def test_an_engine_that_works_one_step_ahead_is_told_what_to_leave_out():
    from nanovllm.levers import step_ahead

    with LLM("qwen3-tiny", **SMALL) as llm:
        llm.llm_engine.__class__ = step_ahead.LLMEngineLever
        with pytest.raises(ValueError, match=r"unlike nanovllm\.levers\.step_ahead; make the engine without it"):
            record(llm, ["Once upon a time"], SamplingParams(max_tokens=4))
