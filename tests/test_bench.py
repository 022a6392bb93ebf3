"""The benchmark runs every kind of work, and its bound is what a count by hand gives."""

import argparse
import json
import sys
from types import SimpleNamespace

import pytest
import torch

import bench
from nanovllm import LLM
from nanovllm.viz import measure
from nanovllm.viz.record import DATA

TINY = ["--num-requests", "3", "--input-len", "20", "24", "--output-len", "3", "6", "--runs", "1"]


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["bench.py", "--model", "qwen3-tiny", "--device", "cpu", *TINY, *arguments])
    bench.main()
    return capsys.readouterr().out


@pytest.mark.parametrize("workload", bench.WORKLOADS)
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
        config, model = llm.config, llm.model_runner.model
        names = dict(model.named_parameters())
        matrices = sum(p.numel() for name, p in names.items() if p.ndim == 2)
        embedding = names["model.embed_tokens.weight"].numel()
        kv_bytes = llm.model_runner.kv_cache[:, :, 0, 0].numel() * 4
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
    where = ("gpu", "driver", "torch", "triton", "commit", "date", "command", "model", "dtype", "context_len", "iters")
    assert all(recorded[key] for key in where)
    rows = recorded["rows"]
    assert [row["bs"] for row in rows] == list(measure.BATCH_SIZES)
    for row in rows:
        assert row["graph_bs"] >= row["bs"] and row["kernels_per_step"] > 28
        for kind in ("eager_ms", "graph_ms"):
            low, median, high = row[kind]
            assert 0 < low <= median <= high
    # What the notebooks tell: graphs help, and small batches most.
    speed_ups = [row["eager_ms"][1] / row["graph_ms"][1] for row in rows]
    assert min(speed_ups) > 1 and speed_ups[0] > 3 * speed_ups[-1]


def test_the_options_of_the_command_line_reach_the_engine(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench.py", "--model", "qwen3-tiny", "--disable", "packed_weights", *TINY])
    args = bench.parse_args()
    assert isinstance(args, argparse.Namespace)
    with bench.make_llm("qwen3-tiny", args) as llm:
        assert llm.config.disabled_optimizations == ("packed_weights",)
