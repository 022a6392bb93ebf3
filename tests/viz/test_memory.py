"""The memory budget: sizes of models against what is published and measured, and the widget's controls."""

import json
import struct

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import nanovllm
from nanovllm import LLM, SamplingParams
from nanovllm.model_files import BUNDLED_MODELS
from nanovllm.viz import memory
from nanovllm.viz.memory import GB, PRESETS, MemoryBudget, Setting, budget_of, describe_budget, draw_budget, model_size

# Billions of parameters, as the models' cards at huggingface.co/Qwen say.
CARDS = {"Qwen3-0.6B": 0.6, "Qwen3-1.7B": 1.7, "Qwen3-4B": 4.0, "Qwen3-8B": 8.2, "Qwen3-14B": 14.8, "Qwen3-32B": 32.8}


@pytest.mark.parametrize("name", CARDS)
def test_models_have_as_many_parameters_as_their_cards_say(name):
    assert model_size(name).num_parameters / 1e9 == pytest.approx(CARDS[name], abs=0.05)


def test_the_bundled_model_has_as_many_parameters_as_its_file():
    with (BUNDLED_MODELS / "qwen3-tiny" / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    shapes = [entry["shape"] for name, entry in header.items() if name != "__metadata__"]
    assert model_size("qwen3-tiny").num_parameters == sum(torch.Size(shape).numel() for shape in shapes)


def test_a_token_takes_a_key_and_a_value_in_every_layer_and_kv_head():
    assert model_size("Qwen3-0.6B").kv_bytes_per_token() == 28 * 8 * (128 + 128) * 2
    assert model_size("Qwen3-8B").kv_bytes_per_token() == 36 * 8 * (128 + 128) * 2
    assert model_size("Qwen3-8B", 4).kv_bytes_per_token() == 36 * 2 * (128 + 128) * 2
    with LLM("qwen3-tiny", num_kvcache_blocks=3, kvcache_block_size=16, device="cpu") as llm:
        assert llm.llm_engine.model_runner.kv_cache.nbytes == 3 * 16 * model_size("qwen3-tiny").kv_bytes_per_token(4)


@pytest.mark.parametrize("num_tokens", [400, 1200])
def test_activations_are_what_a_real_prefill_takes(num_tokens):
    options = {"num_kvcache_blocks": 8, "disabled_optimizations": ["packed_weights"], "device": "cpu"}
    with LLM("qwen3-tiny", **options) as llm:
        llm.add_request([7] * num_tokens, SamplingParams(max_tokens=1, temperature=0.0))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
            llm.step()
    now = peak = 0
    for event in run.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    assert peak == pytest.approx(num_tokens * model_size("qwen3-tiny").activations_per_token * 4, rel=0.1)


@pytest.mark.parametrize("name", PRESETS)
def test_the_parts_fill_the_gpu(name):
    budget = budget_of(PRESETS[name])
    parts = {name: size for name, size, *_ in memory._parts(budget)}
    assert all(size >= 0 for size in parts.values())
    if budget.num_blocks:
        assert sum(parts.values()) == pytest.approx(budget.total, abs=2)
        assert budget.needed + budget.cache <= budget.limit < budget.needed + budget.cache + budget.block_bytes
    else:
        assert budget.needed + budget.block_bytes > budget.limit


def test_every_knob_turns_the_way_that_the_engine_says():
    def blocks(**changes):
        return budget_of(Setting(**changes)).num_blocks

    assert blocks(gpu_memory_utilization=0.95) > blocks() > blocks(gpu_memory_utilization=0.85)
    assert blocks(max_num_batched_tokens=2048) > blocks() > blocks(max_num_batched_tokens=32768)
    assert blocks(memory_gb=48) > blocks() > blocks(memory_gb=16) == 0
    assert blocks(tensor_parallel_size=2) > 2 * blocks()
    assert blocks(max_model_len=512) == blocks(), "shorter sequences make no room, only more of them fit"
    assert budget_of(Setting(max_model_len=512)).num_full_seqs > budget_of(Setting()).num_full_seqs


def test_a_budget_that_does_not_work_out_says_so():
    budget = budget_of(PRESETS["too large for it"])
    assert "no block of the KV cache fits" in describe_budget(budget) and "7.2 GB may be filled" in describe_budget(
        budget
    )
    svg = draw_budget(budget).svg()
    assert "does not fit into the GPU" in svg and ">none<" in svg
    assert "less than one sequence" in describe_budget(budget_of(Setting("Qwen3-32B", 80, max_model_len=16384)))


@pytest.mark.parametrize("setting", [*PRESETS.values(), Setting("qwen3-tiny", 8), Setting("Qwen3-32B", 8)])
def test_nothing_is_drawn_outside_of_the_picture(setting):
    picture = draw_budget(budget_of(setting))
    for shape in picture.shapes:
        if shape["kind"] == "rect":
            assert shape["w"] >= 0 and shape["x"] >= -0.5 and shape["x"] + shape["w"] <= picture.width + 0.5
            assert shape["y"] + shape["h"] <= picture.height


def test_the_number_of_blocks_is_the_learners():
    asked = []

    def five(total, in_use, activations, utilization, block_bytes):
        asked.append((total, in_use, activations, utilization, block_bytes))
        return 5

    widget = MemoryBudget(num_blocks_that_fit=five)
    assert "the cache holds 1,280 tokens" in widget.caption(widget.step) and "the function given" in widget.footer()
    weights = 2 * model_size("Qwen3-8B").num_parameters
    assert (24 * GB, memory.OTHER_BYTES + weights, 4 * (4096 + 12288) * 16384 * 2, 0.9, 256 * 147456) in asked


def test_moving_an_option_and_going_back_to_the_example():
    widget = MemoryBudget()
    widget.make_panel()
    assert "68 blocks" in widget.view.value and "8B on 24 GB.</b>" in widget.text.value
    widget.inputs["gpu_memory_utilization"].value = 0.75
    assert "no block of the KV cache fits" in widget.text.value
    assert "your setting.</b>" in widget.text.value and "8B on 24 GB" not in widget.text.value  # the title follows
    assert "68 blocks" not in widget.view.value
    buttons = {button.description: button for button in widget.marks}
    buttons["8B on 24 GB"].click()
    assert widget.inputs["gpu_memory_utilization"].value == 0.9 and "68 blocks" in widget.view.value
    widget.inputs["memory_gb"].value = 80
    widget.step = 0
    assert widget.inputs["model"].value == "Qwen3-0.6B" and widget.inputs["memory_gb"].value == 8
    assert "Qwen3-0.6B on a GPU of 8 GB" in widget.text.value


def test_what_is_exported_are_the_examples():
    widget = MemoryBudget({"mine": Setting("qwen3-tiny", 8, kvcache_block_size=16), "other": Setting("Qwen3-4B", 12)})
    widget.make_panel()
    widget.step = 0
    widget.inputs["memory_gb"].value = 12
    text = widget.plain_text()
    assert (
        text.count(" GB") >= 2
        and "your setting: qwen3-tiny on a GPU of 12 GB" in text
        and "other: Qwen3-4B on a GPU of 12 GB" in text
    )
    assert nanovllm.viz.MemoryBudget is MemoryBudget
