"""The benchmark runs every kind of work, and its bound is what a count by hand gives."""

import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

import bench
from nanovllm import LLM, SamplingParams, measure
from nanovllm.levers import LEVERS
from nanovllm.levers import table as levers_table
from nanovllm.measure import compile_layers
from nanovllm.viz.record import DATA

ROOT = Path(__file__).resolve().parents[1]

TINY = ["--num-requests", "3", "--input-len", "20", "24", "--output-len", "3", "6", "--runs", "1"]


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["bench.py", "--model", "qwen3-tiny", "--device", "cpu", *TINY, *arguments])
    bench.main()
    return capsys.readouterr().out


@pytest.mark.slow
def test_serving_is_measured_beside_generate(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "--serve")
    ways = [line.partition("  ")[0] for line in out.splitlines() if "tok/s" in line]
    assert ways == ["generate", "served whole", "served as streams"]
    assert out.count("CPU") == 3 and "load average" in out


QUICK = ("small-pool",)  # the others are run so by other tests, or slow


@pytest.mark.parametrize(
    "workload", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in bench.WORKLOADS]
)
def test_every_workload_runs(monkeypatch, capsys, workload):
    # The pools of the work on a CPU have blocks of this size.
    out = run(monkeypatch, capsys, "--workload", workload, "--block-size", "16", "--num-kvcache-blocks", "16")
    assert "run 1" in out and "of the roofline" in out
    assert ("up to" in out) == (workload == "early-stop")


def test_a_shared_prefix_is_computed_once(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "--shared-len", "16", "--block-size", "16", "--num-kvcache-blocks", "16")
    (total,) = [int(line.split("requests, ")[1].split()[0]) for line in out.splitlines() if "prompt tokens" in line]
    computed = [int(line.split(" prefill tokens")[0].split()[-1]) for line in out.splitlines() if "prefill" in line]
    assert computed == [total - 2 * 16] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input-len", "5", "4"], "MIN <= MAX"),
        (["--num-requests", "0"], "at least 1"),
        (["--compare", "hf", "--mean-stop", "9"], "known length"),
    ],
)
def test_what_makes_no_sense_is_refused(monkeypatch, capsys, arguments, message):
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, *arguments)
    assert message in capsys.readouterr().err


def test_the_roofline_is_what_a_count_step_by_step_gives(monkeypatch):
    monkeypatch.setattr(bench.Roofline, "measure_copy", staticmethod(lambda device: 1e9))
    monkeypatch.setattr(bench.Roofline, "measure_matmul", staticmethod(lambda device, dtype: 1e10))
    with LLM("qwen3-tiny", num_kvcache_blocks=8, device="cpu") as llm:
        config, runner = llm.config, llm.llm_engine.model_runner
        model = runner.model
        names = dict(model.named_parameters())
        matrices = sum(p.numel() for name, p in names.items() if p.ndim == 2)
        embedding = names["model.embed_tokens.weight"].numel()
        kv_bytes = runner.kv_cache[:, :, 0, 0].numel() * 4
    input_lens, output_lens = [7, 30, 1], [5, 1, 9]
    roofline = bench.Roofline(config)
    result = SimpleNamespace(output_lens=output_lens, num_prefill_tokens=38)

    read = steps = 0
    running = [[p + 1, n - 1] for p, n in zip(input_lens, output_lens, strict=True)]  # tokens now, tokens to come
    while running := [seq for seq in running if seq[1]]:
        steps += 1
        for seq in running:
            read += seq[0]
            seq[0], seq[1] = seq[0] + 1, seq[1] - 1
    expected = (read * kv_bytes + steps * matrices * 4) / 1e9 + 2 * 38 * (matrices - embedding) / 1e10
    assert roofline.seconds(input_lens, result) == pytest.approx(expected)


def test_steps_are_timed_with_exactly_the_batch_that_was_asked_for():
    with LLM("qwen3-tiny", kvcache_block_size=16, num_kvcache_blocks=64, device="cpu") as llm:
        low, median, high = measure.time_steps(llm, batch_size=3, context_len=20, warmup=2, iters=5)
        assert 0 < low <= median <= high
        assert llm.is_finished() and not llm.scheduler.block_manager.used_block_ids


def test_graphs_are_not_measured_without_a_gpu():
    def make_llm(disabled_optimizations):
        return LLM("qwen3-tiny", num_kvcache_blocks=8, device="cpu", disabled_optimizations=disabled_optimizations)

    with pytest.raises(ValueError, match="on a GPU"):
        measure.measure_steps(make_llm, "qwen3-tiny")


def test_a_measurement_is_saved_with_its_provenance(tmp_path):
    with LLM("qwen3-tiny", num_kvcache_blocks=8, device="cpu") as llm:
        found = measure.provenance(llm, "qwen3-tiny") | {"rows": [{"bs": 1}, {"bs": 2}]}
    measure.save_measurement(found, tmp_path / "steps.json")
    assert json.loads((tmp_path / "steps.json").read_text()) == found
    assert found["torch"] == torch.__version__ and found["dtype"] == "float32" and found["gpu"] is None


def test_the_recorded_measurement_says_where_it_comes_from():
    recorded = json.loads((DATA / "steps_h200.json").read_text())
    where = ("gpu", "driver", "torch", "triton", "commit", "date", "command", "model", "dtype", "iters")
    assert all(recorded[key] for key in where)
    rows = recorded["rows"]
    assert {row["context_len"] for row in rows} == {512}
    assert [row["bs"] for row in rows] == list(measure.BATCH_SIZES)
    for row in rows:
        assert row["graph_bs"] >= row["bs"] and row["kernels_per_step"] > 28
        for kind in ("eager_ms", "graph_ms"):
            low, median, high = row[kind]
            assert 0 < low <= median <= high
    # What the notebooks tell: graphs help, and small batches most.
    speed_ups = [row["eager_ms"][1] / row["graph_ms"][1] for row in rows]
    assert min(speed_ups) > 1 and speed_ups[0] > 3 * speed_ups[-1]


@pytest.mark.slow
def test_the_options_of_the_command_line_reach_the_engine(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench.py", "--model", "qwen3-tiny", "--disable", "packed_weights", *TINY])
    args = bench.with_sizes(bench.parse_args(), "default")
    assert isinstance(args, argparse.Namespace)
    with bench.make_llm("qwen3-tiny", args) as llm:
        assert llm.config.disabled_optimizations == ("packed_weights",)
    with bench.make_llm("qwen3-tiny", args, "all") as llm:
        assert llm.config.disabled_optimizations == "all"


@pytest.mark.slow
def test_a_busy_machine_is_measured_beside_an_idle_one(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "--busy", "1")
    idle, busy = out.split("beside 1 busy programs")
    assert idle.count("median   nanovllm") == busy.count("median   nanovllm") == 1


def test_busy_programs_end():
    with bench.busy_programs(2):
        names = [child.cmdline()[-1] for child in psutil.Process().children()]
        assert names.count("while True: pass") == 2
    assert not [child for child in psutil.Process().children() if child.cmdline()[-1] == "while True: pass"]


# Levers: what each gains, and the table of it.


def test_a_lever_is_compared_with_an_engine_that_differs_in_nothing_else():
    for name, lever in LEVERS.items():
        comparison = bench.Comparison(name)
        (fast, _), (slow, _) = comparison.tasks[:2]
        assert set(slow.disabled) - set(fast.disabled) == {name} and fast.pool == slow.pool
        # What is off both times builds on the lever, and nothing that the lever builds on is off.
        assert all(name in LEVERS[other].builds_on for other in fast.disabled)
        assert not set(lever.builds_on) & set(slow.disabled)


@pytest.mark.parametrize("size", [4, 5, 9])
def test_every_lever_is_measured_once_and_few_engines_are_in_memory_at_a_time(size):
    comparisons = [bench.Comparison(name) for name in (*LEVERS, "all")]
    packs = bench.pack(comparisons, size)
    assert sorted(c.lever for pack in packs for c in pack) == sorted(c.lever for c in comparisons)
    assert all(len({setup for c in pack for setup, _ in c.tasks}) <= size for pack in packs)


def test_the_cache_for_levers_holds_all_requests_at_once():
    work = bench.Workload([[1] * 5, [1] * 8, [1]], [4, 1, 30], [])
    # In blocks of 4: at first 2 + 2 + 1; then the second ends, and the last one grows to 1 + 29 tokens.
    assert work.num_blocks(4) == 8
    assert work.shortened(3).output_lens == [3, 1, 3] and work.shortened(3).num_blocks(4) == 5


def test_a_much_slower_engine_is_run_once():
    fast, slow = bench.Setup((), "default"), bench.Setup(("cuda_graph",), "default")

    class Fake:
        def __init__(self, rate):
            self.rate, self.num_runs = rate, 0

        def run(self, work):
            self.num_runs += 1
            return SimpleNamespace(rate=self.rate)

    engines = {fast: Fake(100.0), slow: Fake(20.0)}
    works = {"default": bench.Workload([[1, 2]], [4], [])}
    rates = bench.run_in_turn([(fast, "default"), (slow, "default")], engines, works, 16, runs=3)
    assert rates == {(fast, "default"): [100.0] * 3, (slow, "default"): [20.0]}
    assert (engines[fast].num_runs, engines[slow].num_runs) == (4, 2)  # the first of each warms up


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_levers_are_measured_side_by_side(monkeypatch, capfd, tmp_path):
    run(monkeypatch, capfd, "--levers", str(tmp_path / "levers_cpu.json"), "--block-size", "16", "--side-by-side", "6")
    (measurement,) = levers_table.load_measurements(tmp_path)
    assert measurement["runs"] == 1 and measurement["cpu"] and measurement["copy_gb_per_s"] > 0
    found = {(row["lever"], row["workload"]): (row["with"], row["without"]) for row in measurement["rows"]}
    assert {name for name, _ in found} >= {"expected_length", "all"}
    assert all(rate > 0 for pair in found.values() for runs in pair for rate in runs)


@pytest.mark.slow
def test_compiled_layers_write_the_same_text():
    """Without a compiler: torch finds the graphs, and runs them as they are."""
    options = {"num_kvcache_blocks": 32, "kvcache_block_size": 16, "max_model_len": 64, "device": "cpu"}
    answers = []
    for is_compiled in (False, True):
        with LLM("qwen3-tiny", disabled_optimizations="all", **options) as llm:
            if is_compiled:
                compile_layers(llm, backend="eager")
            params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
            answers.append([a["token_ids"] for a in llm.generate([[7] * 9, [8, 9], [10]], params, use_tqdm=False)])
    assert answers[0] == answers[1]


def test_compiled_layers_are_measured_between_plain_ones_and_levers(monkeypatch, capsys, tmp_path):
    class Fake:
        def __init__(self, model, args, disabled, is_compiled):
            self.rate = 100.0 * (disabled == ()) + 10.0 + is_compiled

        def start(self):
            pass

        close = start

        def run(self, work):
            return SimpleNamespace(rate=self.rate, seconds=0.5)

    monkeypatch.setattr(bench, "EngineProcess", Fake)
    run(monkeypatch, capsys, "--measure-compile", str(tmp_path / "compile.json"), "--runs", "3")
    recorded = json.loads((tmp_path / "compile.json").read_text())
    found = {(row["engine"], row["workload"]): row["tokens_per_second"] for row in recorded["rows"]}
    rates = {"plain": 10.0, "compiled": 11.0, "levers": 110.0}
    assert found == {(name, work): [rate] * 3 for name, rate in rates.items() for work in ("default", "batch-1")}
    assert recorded["copy_gb_per_s"] > 0 and recorded["torch"] == torch.__version__ and recorded["runs"] == 3


@pytest.mark.slow
def test_an_engine_that_cannot_start_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench.py", "--model", "no-such-model", "--device", "cpu", *TINY])
    args = bench.with_sizes(bench.parse_args(), "default")
    engine = bench.EngineProcess("no-such-model", args, ())
    with pytest.raises(RuntimeError, match="has ended"):
        engine.start()
    engine.close()
    assert not engine.process.is_alive()


MEASURED = {
    "gpu": "NVIDIA X",
    "driver": "1.2",
    "cpu": "a CPU",
    "torch": "2.11",
    "triton": "3.6",
    "commit": "abc",
    "date": "2026-01-02",
    "command": "python bench.py --levers x.json",
    "model": "a shape",
    "dtype": "bfloat16",
    "copy_gb_per_s": 4000.0,
    "runs": 3,
    "rows": [
        {"lever": "cuda_graph", "workload": "batch-1", "with": [1000.0, 990.0, 1010.0], "without": [100.0]},
        {"lever": "step_ahead", "workload": "batch-1", "with": [103.0, 102.0, 99.0], "without": [100.0, 90.0, 101.0]},
        {"lever": "all", "workload": "batch-1", "with": [1100.0], "without": [50.0]},
    ],
}


def test_the_table_says_what_was_measured_and_what_a_lever_costs():
    table = levers_table.levers_markdown([MEASURED])
    lines = {line.split("|")[1].strip().split("]")[0].strip("[`"): line for line in table.splitlines() if "|" in line}
    assert set(lines) >= {*LEVERS, "all of them"}
    for name, lever in LEVERS.items():
        assert lever.sentence in lines[name] and f" {levers_table.lever_lines(name)} |" in lines[name]
    # A ratio for each pair of runs: 1000 / 100; and 103 / 100, 102 / 90, 99 / 101.
    assert "batch-1: 10.0 times" in lines["cuda_graph"] and "batch-1: +3.0 %" in lines["step_ahead"]
    assert "batch-1: 22.0 times" in lines["all of them"]
    assert 'Off, but for `quantization="int8"`.' in lines["weight_int8"]
    caption = table.splitlines()[-1]
    for text in ("2026-01-02", "abc", "NVIDIA X, driver 1.2", "torch 2.11", "triton 3.6", "a shape", "4,000 GB/s"):
        assert text in caption
    # Quarters of 90, 100 and 101 are at 95 and 100.5.
    assert "within 5.5 % or less" in caption and "batch-1 1,100 and 50" in caption


def test_the_table_of_levers_is_printed(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "--levers-table")
    assert out == levers_table.levers_markdown(levers_table.load_measurements()) + "\n"


@pytest.mark.parametrize("path", sorted(DATA.glob("levers_*.json")), ids=lambda path: path.stem)
def test_a_recorded_measurement_of_levers_says_where_it_comes_from(path):
    recorded = json.loads(path.read_text(encoding="utf-8"))
    where = ("torch", "commit", "date", "command", "model", "dtype", "cpu", "copy_gb_per_s", "runs", "workloads")
    assert all(recorded[key] for key in where)
    assert recorded["commit"] != "unknown"
    if recorded["gpu"]:
        assert recorded["driver"] and recorded["triton"]
    assert {row["lever"] for row in recorded["rows"]} <= {*LEVERS, "all"}
    assert all(row["with"] and row["without"] for row in recorded["rows"])


def test_the_recorded_peers_say_where_they_come_from():
    recorded = json.loads((DATA / "peers_h200.json").read_text(encoding="utf-8"))
    where = ("gpu", "driver", "torch", "triton", "commit", "date", "command", "model", "dtype", "work", "limit_made")
    assert all(recorded[key] for key in where)
    for row in recorded["rows"]:
        assert 0 < row["theirs"] < row["ours"] < recorded["limit"].get(row["work"], float("inf"))
        assert row["work"] in recorded["work"] or "others" in recorded["work"]


@pytest.mark.parametrize("path", sorted(DATA.glob("compile_*.json")), ids=lambda path: path.stem)
def test_a_recorded_measurement_of_the_compiler_says_where_it_comes_from(path):
    recorded = json.loads(path.read_text(encoding="utf-8"))
    where = ("gpu", "driver", "torch", "triton", "commit", "date", "command", "model", "dtype", "copy_gb_per_s")
    assert all(recorded[key] for key in where) and recorded["commit"] != "unknown"
    works = {row["workload"] for row in recorded["rows"]}
    found = {(row["engine"], row["workload"]) for row in recorded["rows"] if row["tokens_per_second"]}
    assert found == {(name, work) for name in bench.COMPILE_SETUPS for work in works}
