"""`Config`: what it fills in from the model's files, and what it refuses, by name and value."""

import importlib.util
import json
import logging
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanovllm import LLM
from nanovllm import config as engine_config
from nanovllm.config import Config
from nanovllm.engine.block_manager import BlockManager
from nanovllm.engine.kv_cache import choose_num_blocks
from nanovllm.engine.llm_engine import LLMEngine
from nanovllm.engine.model_runner import ModelRunner
from nanovllm.engine.scheduler import Scheduler
from nanovllm.layers.attention import Attention
from nanovllm.levers import LEVERS, is_enabled
from nanovllm.model_files import SIZES
from nanovllm.utils.parallel_state import TensorParallelGroup

from .conftest import make_tiny_model
from .reference import edit_json, write_new_spelling, write_old_spelling


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("config") / "model", max_position_embeddings=300, eos_token_id=7)


@pytest.fixture
def own_model(tmp_path):
    """A directory that the test may change."""
    return make_tiny_model(tmp_path / "model")


def test_defaults(model):
    config = Config(str(model))
    assert config.max_num_batched_tokens == 16384 and config.max_num_seqs == 512
    assert config.gpu_memory_utilization == 0.9 and config.tensor_parallel_size == 1
    assert config.enforce_eager is False and config.enable_prefix_caching is True
    assert config.kvcache_block_size == 256 and config.num_kvcache_blocks == -1 and config.seed == 0
    assert config.load_format == "auto"
    assert config.hf_config.num_hidden_layers == 2
    assert tuple(config.eos) == (7,)
    if not torch.cuda.is_available():
        assert config.device == "cpu" and config.dtype == torch.float32 and config.attention_backend == "sdpa"


def test_max_model_len_is_cut_to_what_the_model_can(model):
    assert Config(model).max_model_len == 300
    assert Config(model, max_model_len=299).max_model_len == 299
    assert Config(model, max_model_len=10**9).max_model_len == 300


INTEGERS = {"max_num_batched_tokens": 1, "max_num_seqs": 1, "max_model_len": 1, "kvcache_block_size": 1, "seed": 0}


@given(field=st.sampled_from(sorted(INTEGERS)), value=st.integers(-5, 2))
@settings(max_examples=40)
def test_integers_have_a_minimum(model, field, value):
    if value >= INTEGERS[field]:
        assert getattr(Config(model, **{field: value}), field) == value
    else:
        with pytest.raises(ValueError, match=rf"{field}.*{value}"):
            Config(model, **{field: value})


@pytest.mark.parametrize("field", [*INTEGERS, "num_kvcache_blocks", "tensor_parallel_size"])
@pytest.mark.parametrize("value", [1.5, "8", None, True, [4], math.nan])
def test_integers_of_a_wrong_type(model, field, value):
    with pytest.raises(TypeError, match=field) as error:
        Config(model, **{field: value})
    assert repr(value) in str(error.value)


@pytest.mark.parametrize("value", [0, -2, -100])
def test_a_pool_of_no_blocks(model, value):
    with pytest.raises(ValueError, match=f"num_kvcache_blocks.*{value}"):
        Config(model, num_kvcache_blocks=value)


@pytest.mark.parametrize("value", [0.0, -0.5, 1.01, math.nan, math.inf, 90])
def test_memory_utilization_is_a_share(model, value):
    with pytest.raises(ValueError, match="gpu_memory_utilization") as error:
        Config(model, gpu_memory_utilization=value)
    assert str(value).removesuffix(".0") in str(error.value)


@pytest.mark.parametrize("field", ["enforce_eager", "enable_prefix_caching"])
@pytest.mark.parametrize("value", [0, "true", None])
def test_switches_are_bools(model, field, value):
    with pytest.raises(TypeError, match=field) as error:
        Config(model, **{field: value})
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    "field, value",
    [
        ("device", "tpu"),
        ("device", 0),
        ("dtype", "float64"),
        ("dtype", "fp16"),
        ("dtype", torch.int8),
        ("dtype", None),
        ("attention_backend", "flashinfer"),
        ("attention_backend", None),
        ("load_format", "gguf"),
    ],
)
def test_a_choice_that_does_not_exist_shows_those_that_do(model, field, value):
    with pytest.raises(ValueError, match=field) as error:
        Config(model, **{field: value})
    assert repr(value) in str(error.value) and "auto" in str(error.value)


@pytest.mark.parametrize(
    "dtype, expected",
    [("auto", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16), (torch.bfloat16,) * 2],
)
def test_dtype(model, dtype, expected):
    assert Config(model, dtype=dtype, device="cpu").dtype == expected


@pytest.mark.parametrize("options", [{}, {"device": "cpu"}])
def test_an_unknown_option_is_named_beside_those_that_there_are(model, options):
    with pytest.raises(TypeError, match=r"unknown option 'max_num_seq'.*max_num_seqs") as error:
        LLM(model, max_num_seq=3, **options)
    known = [name for name, field in Config.__dataclass_fields__.items() if field.init and name != "model"]
    assert all(re.search(rf"\b{name}\b", str(error.value)) for name in known)
    assert not any(name in str(error.value) for name in ("hf_config", "model_path", "eos")), "they cannot be given"
    with pytest.raises(TypeError, match=r"zzz.*max_num_batched_tokens"):
        LLM(model, zzz=3, **options)


@pytest.mark.parametrize("field", ["hf_config", "eos", "model_path"])
def test_what_is_filled_in_cannot_be_given(model, field):
    with pytest.raises(TypeError, match=field):
        LLM(model, **{field: 1})


def test_a_missing_model_argument():
    with pytest.raises(TypeError, match="model"):
        LLM()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("option", [{"device": "cuda"}, {"attention_backend": "flash_attn"}])
def test_what_needs_a_gpu_is_refused_without_one(model, option):
    ((field, value),) = option.items()
    with pytest.raises(ValueError, match=f"{field}='{value}'"):
        Config(model, **option)


@pytest.mark.gpu
@pytest.mark.parametrize("block_size", [16, 128, 255, 257, 300])
def test_flash_attn_takes_multiples_of_256(model, block_size):
    pytest.importorskip("flash_attn")
    options = {"device": "cuda", "attention_backend": "flash_attn", "dtype": "bfloat16"}
    with pytest.raises(ValueError, match=f"flash_attn.*kvcache_block_size.*256.*{block_size}"):
        Config(model, **options, kvcache_block_size=block_size)
    Config(model, **options, kvcache_block_size=512)


@pytest.mark.gpu
def test_more_ranks_than_gpus(tmp_path):
    count = torch.cuda.device_count()
    if count >= 8:
        pytest.skip("eight ranks are the most there can be")
    path = make_tiny_model(
        tmp_path, num_attention_heads=840, num_key_value_heads=840, head_dim=2, intermediate_size=840
    )
    with pytest.raises(ValueError, match=f"tensor_parallel_size={count + 1}.*{count}"):
        Config(path, tensor_parallel_size=count + 1, device="cuda")


@pytest.mark.parametrize("block_size", [1, 2, 3, 17, 256, 1000])
def test_sdpa_takes_any_block_size(model, block_size):
    config = Config(model, kvcache_block_size=block_size, attention_backend="sdpa", device="cpu")
    assert config.kvcache_block_size == block_size


def test_auto_says_which_backend_it_chose(model, caplog):
    with caplog.at_level(logging.INFO, logger="nanovllm"):
        config = Config(model)
    assert config.attention_backend in caplog.text and "attention_backend" in caplog.text


# Tensor parallelism.


@pytest.mark.parametrize("heads", [6, 8])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [*range(-1, 11), 16])
def test_tensor_parallel_sizes(tmp_path, heads, kv_heads, size):
    if heads % kv_heads:
        return
    path = tmp_path / "model"
    path.mkdir()
    options = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": 840}
    (path / "config.json").write_text(json.dumps(minimal_config() | options))
    fits = 1 <= size <= 8 and heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)
    if fits:
        assert Config(path, tensor_parallel_size=size, device="cpu").tensor_parallel_size == size
    else:
        with pytest.raises(ValueError, match=rf"tensor_parallel_size.*{size}"):
            Config(path, tensor_parallel_size=size, device="cpu")


def minimal_config():
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 100,
        "rope_theta": 10000.0,
    }


# The model's files.


@pytest.mark.parametrize("theta", [1.5, 10_000, 5_000_000.0])
def test_both_spellings_of_rope_theta(own_model, theta):
    write_old_spelling(own_model, theta)
    assert Config(own_model).hf_config.rope_theta == theta
    write_new_spelling(own_model, theta)
    assert Config(own_model).hf_config.rope_theta == theta


def test_two_different_rope_thetas(own_model):
    write_new_spelling(own_model, 1e6)
    edit_json(own_model / "config.json", rope_theta=1e6)
    assert Config(own_model).hf_config.rope_theta == 1e6
    edit_json(own_model / "config.json", rope_theta=1e4)
    with pytest.raises(ValueError, match="must have one rope_theta"):
        Config(own_model)


def test_a_config_without_rope_theta(own_model):
    edit_json(own_model / "config.json", remove=("rope_theta", "rope_parameters"))
    with pytest.raises(ValueError, match=f"{re.escape(str(own_model))}.*rope_theta"):
        Config(own_model)


@pytest.mark.parametrize(
    "change",
    [
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0}},
    ],
)
def test_rope_scaling_is_an_error_not_another_result(own_model, change):
    write_old_spelling(own_model, 10_000.0)
    edit_json(own_model / "config.json", **change)
    (scaling,) = change.values()
    with pytest.raises(ValueError, match=f"rope.*{scaling.get('rope_type', scaling.get('type'))}"):
        Config(own_model)


@pytest.mark.parametrize("scaling", [None, {"rope_type": "default"}, {"type": "default"}])
def test_no_rope_scaling_in_every_spelling(own_model, scaling):
    write_old_spelling(own_model, 123.0)
    edit_json(own_model / "config.json", rope_scaling=scaling)
    assert Config(own_model).hf_config.rope_theta == 123.0


def test_a_sliding_window_is_refused(own_model):
    edit_json(own_model / "config.json", use_sliding_window=True, sliding_window=16, max_window_layers=1)
    with pytest.raises(ValueError, match="use_sliding_window"):
        Config(own_model)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("model_type", ["mistral", "qwen2", "gpt2", "mamba", "bert"])
def test_an_architecture_that_is_not_supported_is_named(tmp_path, monkeypatch, model_type, device):
    from transformers import AutoConfig

    # The error comes before anything is put on the device, so there need not be one.
    monkeypatch.setattr(engine_config, "resolve_device", lambda name: device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("nanovllm.devices.shared_memory", lambda device: 227 * 1024)
    config = AutoConfig.for_model(model_type)
    config.architectures = [f"{model_type.title()}ForCausalLM"]
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{model_type.title()}ForCausalLM"):
        LLM(tmp_path)


def test_a_config_without_architectures(own_model):
    edit_json(own_model / "config.json", remove=("architectures",))
    with pytest.raises(ValueError, match="architectures"):
        LLM(own_model)


def test_an_activation_that_is_not_supported(own_model):
    edit_json(own_model / "config.json", hidden_act="gelu")
    with pytest.raises(ValueError, match=r"hidden_act.*gelu"):
        LLM(own_model, num_kvcache_blocks=4)


def test_a_directory_that_is_no_model(tmp_path):
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path))}.*config.json"):
        Config(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model_type": "no-such-type"}', "{}"])
def test_a_config_that_cannot_be_read_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path)) + ".*config.json"):
        Config(tmp_path)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -1, 1.5, "32", True, {}])
def test_a_size_of_the_model_that_is_none(own_model, name, value):
    edit_json(own_model / "config.json", **{name: value})
    with pytest.raises(ValueError, match=rf"(?s)config\.json.*{name}"):
        Config(own_model)


def test_numbers_of_numpy_become_numbers_of_python(model):
    config = Config(model, kvcache_block_size=np.int16(16), num_kvcache_blocks=np.int8(120), seed=np.uint8(200))
    fields = (config.kvcache_block_size, config.num_kvcache_blocks, config.seed)
    assert fields == (16, 120, 200) and {type(field) for field in fields} == {int}


@pytest.mark.parametrize("content", ["[]", "null", "5", '"text"'])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_a_file_that_holds_something_else(own_model, file, content):
    (own_model / file).write_text(content)
    with pytest.raises(ValueError, match=rf"{file} must hold a JSON object"):
        Config(own_model)


@pytest.mark.parametrize("eos", ["abc", 1.5, [None], -1, [3, True]])
def test_an_end_of_sequence_id_that_is_none(own_model, eos):
    (own_model / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises((TypeError, ValueError), match="eos_token_id"):
        Config(own_model)


@pytest.mark.parametrize("kv_heads", [3, 8])
def test_kv_heads_that_do_not_divide_the_heads(own_model, kv_heads):
    edit_json(own_model / "config.json", num_key_value_heads=kv_heads)
    with pytest.raises(ValueError, match=f"num_key_value_heads={kv_heads} does not divide num_attention_heads=4"):
        Config(own_model)


@pytest.mark.skipif(torch.cuda.is_available(), reason="about the memory of the CPU")
def test_a_model_that_does_not_fit_into_memory(own_model):
    edit_json(own_model / "config.json", intermediate_size=2**40)
    with pytest.raises(MemoryError, match="out of memory at start; use a smaller model"):
        LLM(own_model, load_format="dummy", device="cpu")


@pytest.mark.parametrize("theta", ["abc", [1.0], math.nan, -1.0])
def test_a_rope_theta_that_is_none(own_model, theta):
    edit_json(own_model / "config.json", remove=("rope_parameters",), rope_theta=theta)
    with pytest.raises((TypeError, ValueError), match=r"config\.json"):
        Config(own_model)


@pytest.mark.parametrize("model_name", ["no/such-model", "", " ", "x" * 5000, "a\0b", "~", "x/" * 3000])
def test_a_model_that_is_nowhere(model_name):
    with pytest.raises(ValueError, match=r"model=.* is not a directory"):
        Config(model_name)


@pytest.mark.parametrize("model_name", [None, 3, ["qwen3-tiny"]])
def test_a_model_of_a_wrong_type(model_name):
    with pytest.raises(TypeError, match="model"):
        Config(model_name)


@pytest.mark.parametrize(
    "in_generation_config, in_config, expected",
    [
        ([3, 5], 9, {3, 5}),
        (4, [8, 9], {4}),
        ("missing file", [8, 9], {8, 9}),
        ("missing file", 2, {2}),
        ("missing key", 2, {2}),
        ("missing file", None, set()),
    ],
)
def test_end_of_sequence_ids(own_model, in_generation_config, in_config, expected):
    edit_json(own_model / "config.json", eos_token_id=in_config)
    path = own_model / "generation_config.json"
    if in_generation_config == "missing file":
        path.unlink(missing_ok=True)
    elif in_generation_config == "missing key":
        path.write_text("{}")
    else:
        path.write_text(json.dumps({"eos_token_id": in_generation_config}))
    assert set(Config(own_model).eos) == expected


# Levers: the faster paths.

KERNELS = {"fused_norm", "fused_activation", "fused_qkv", "fused_sampler", "folded_norm", "small_batch"}


@pytest.fixture
def config_of(model, monkeypatch):
    """Makes a `Config` as another machine would have it; `has_triton` says whether triton is installed there."""
    find_spec = importlib.util.find_spec

    def make(has_triton=True, capability=(9, 0), **changes):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        found = object() if has_triton else None
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *args: found if name == "triton" else find_spec(name, *args)
        )
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
        monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", object(), raising=False)
        config = Config(model, device="cpu", disabled_optimizations=())
        for name, value in changes.items():
            setattr(config, name, value)
        return config

    return make


def enabled(config):
    return {name for name in LEVERS if is_enabled(config, name)}


@pytest.mark.parametrize(
    "changes, off",
    [
        ({}, set()),
        ({"dtype": torch.float32}, set()),
        ({"dtype": torch.float16}, {"folded_norm"}),
        ({"enforce_eager": True}, {"cuda_graph", "step_ahead"}),
        ({"attention_backend": "sdpa"}, {"cuda_graph", "step_ahead"}),
        ({"attention_backend": "flash_attn"}, set()),
        ({"tensor_parallel_size": 2}, set()),
        ({"has_triton": False}, KERNELS | {"overlapped_launch"}),
        ({"capability": (7, 0)}, KERNELS | {"overlapped_launch"}),
        ({"capability": (7, 5), "dtype": torch.float16}, {"folded_norm"}),
        ({"disabled_optimizations": ("step_ahead",)}, {"step_ahead"}),
        ({"disabled_optimizations": ["step_ahead", "small_batch"]}, {"step_ahead", "small_batch"}),
        ({"disabled_optimizations": ("overlapped_launch",)}, {"overlapped_launch"}),
        ({"disabled_optimizations": ("expected_length",)}, {"expected_length"}),
        ({"disabled_optimizations": ("folded_norm",)}, {"folded_norm"}),
        ({"disabled_optimizations": ("fused_sampler",)}, {"fused_sampler"}),
        ({"disabled_optimizations": ("small_batch",)}, {"small_batch"}),
        ({"disabled_optimizations": ("cuda_graph",)}, {"cuda_graph", "step_ahead"}),
        ({"disabled_optimizations": ("fused_norm",)}, {"fused_norm", "folded_norm"}),
        ({"disabled_optimizations": ("fused_qkv",)}, {"fused_qkv", "folded_norm"}),
        ({"disabled_optimizations": ("fused_activation",)}, {"fused_activation", "folded_norm"}),
        ({"disabled_optimizations": tuple(LEVERS)}, set(LEVERS)),
        ({"disabled_optimizations": "all"}, set(LEVERS)),
    ],
)
def test_the_levers_of_a_gpu(config_of, changes, off):
    options = {"device": "cuda", "dtype": torch.bfloat16, "attention_backend": "triton"} | changes
    assert enabled(config_of(**options)) == set(LEVERS) - off - {"packed_weights"}


@pytest.mark.parametrize(
    "changes, on",
    [
        ({"device": "cpu"}, {"packed_weights", "expected_length"}),
        ({"device": "cpu", "has_triton": False}, {"packed_weights", "expected_length"}),
        ({"device": "cpu", "dtype": torch.bfloat16}, {"expected_length"}),
        ({"device": "cpu", "disabled_optimizations": ("packed_weights",)}, {"expected_length"}),
        ({"device": "cpu", "disabled_optimizations": ("expected_length",)}, {"packed_weights"}),
        ({"device": "cpu", "disabled_optimizations": "all"}, set()),
        ({"device": "mps"}, {"expected_length"}),
    ],
)
def test_the_levers_without_a_gpu(config_of, changes, on):
    assert enabled(config_of(**({"dtype": torch.float32} | changes))) == on


def test_a_head_without_halves_that_are_powers_of_two_is_not_fused(config_of):
    config = config_of(device="cuda", dtype=torch.bfloat16, attention_backend="sdpa")
    config.hf_config.head_dim = 96
    assert not {"fused_qkv", "folded_norm"} & enabled(config)


def test_all_levers_off_is_the_plain_engine(model):
    """Not a class of it is another one, and no module of the model has another forward."""
    with LLM(model, num_kvcache_blocks=4, disabled_optimizations="all") as llm:
        engine = llm.llm_engine
        assert type(engine) is LLMEngine and type(engine.scheduler) is Scheduler
        assert type(engine.scheduler.block_manager) is BlockManager
        assert type(engine.model_runner) is ModelRunner
        assert not levers_of_modules(engine)


@pytest.mark.lever
@pytest.mark.skipif(torch.cuda.is_available(), reason="about the levers of a CPU")
@pytest.mark.parametrize("disabled", [(), [], ("packed_weights",), ["expected_length", "packed_weights"]])
def test_a_lever_is_on_unless_it_is_named(model, disabled):
    with LLM(model, num_kvcache_blocks=4, disabled_optimizations=disabled) as llm:
        engine = llm.llm_engine
        is_packed = "nanovllm.levers.packed_weights" in levers_of_modules(engine)
        assert is_packed == is_enabled(llm.config, "packed_weights")
        assert is_packed <= ("packed_weights" not in disabled)
        assert (type(engine.scheduler) is Scheduler) == ("expected_length" in disabled)


def levers_of_modules(engine):
    """Files of levers whose methods a module of the model has."""
    modules = [*engine.model_runner.model.modules(), engine.model_runner.sampler]
    files = {base.__module__ for module in modules for base in type(module).__mro__}
    return {name for name in files if name.startswith("nanovllm.levers")}


@pytest.mark.parametrize("names", [["cuda_graphs"], ("packed_weights", "nonsense"), [""], ["all"]])
def test_an_optimization_that_no_lever_has_names_those_that_there_are(model, names):
    with pytest.raises(ValueError, match=rf"disabled_optimizations.*{re.escape(repr(names[-1]))}") as error:
        LLM(model, num_kvcache_blocks=4, disabled_optimizations=names)
    assert all(name in str(error.value) for name in LEVERS)


@pytest.mark.parametrize(
    "names",
    ["step_ahead", "ALL", "", None, True, 3, {"step_ahead"}, {"all": 1}, [3], [["all"]], (None,), np.array([1, 2])],
)
def test_optimizations_of_a_wrong_type(model, names):
    with pytest.raises(TypeError, match=r'disabled_optimizations must be "all" or a list, got') as error:
        LLM(model, num_kvcache_blocks=4, disabled_optimizations=names)
    assert repr(names) in str(error.value)


# Sizes.


@pytest.mark.parametrize("block_size, num_blocks", [(1, 7), (6, 7), (256, 1)])
def test_the_tokens_that_the_whole_pool_holds(model, block_size, num_blocks):
    config = Config(model, kvcache_block_size=block_size, num_kvcache_blocks=num_blocks)
    assert config.num_kvcache_tokens == block_size * num_blocks
    with LLM(model, kvcache_block_size=block_size, max_num_seqs=1, device="cpu") as llm:  # sized by the engine
        pool = llm.scheduler.block_manager
        assert llm.config.num_kvcache_tokens == len(pool.blocks) * pool.block_size >= llm.config.max_model_len


def test_a_scheduler_needs_no_weights(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(minimal_config()))
    scheduler = Scheduler(Config(tmp_path, num_kvcache_blocks=8))
    assert len(scheduler.block_manager.blocks) == 8 and scheduler.is_finished()
    with pytest.raises(ValueError, match=r"num_kvcache_blocks.*-1"):
        Scheduler(Config(tmp_path))


@pytest.mark.parametrize(
    "options, tokens",
    [
        ({"max_num_seqs": 3, "max_model_len": 40}, 3 * 40),
        ({"max_num_seqs": 500, "max_model_len": 40}, 64 * 40),
        ({"max_num_seqs": 1, "max_model_len": 1}, 1),
    ],
)
@pytest.mark.parametrize("block_size", [1, 7, 256])
def test_the_pool_on_a_cpu_holds_what_the_options_ask_for(model, options, tokens, block_size):
    with LLM(model, kvcache_block_size=block_size, device="cpu", **options) as llm:
        num_blocks = llm.config.num_kvcache_blocks
        assert num_blocks == math.ceil(tokens / block_size)
        assert len(llm.scheduler.block_manager.blocks) == num_blocks
        assert llm.llm_engine.model_runner.kv_cache.shape[2] == num_blocks


def test_the_pool_on_a_cpu_takes_a_quarter_of_the_free_memory_at_most(model, monkeypatch):
    import psutil

    free = psutil.virtual_memory()._replace(available=4 * 100_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with LLM(model, kvcache_block_size=4, device="cpu") as llm:
        cache = llm.llm_engine.model_runner.kv_cache
        block = cache.numel() * cache.element_size() / cache.shape[2]
        assert llm.config.num_kvcache_blocks == 100_000 // block
    free = free._replace(available=1000)
    with pytest.raises(MemoryError, match="KV cache"):
        LLM(model, kvcache_block_size=4, device="cpu")


@pytest.mark.parametrize(
    ("asked", "utilization", "in_use", "gets"),
    [
        (-1, 0.9, 300, 500),  # 0.9 of 1000 blocks, less what is in use and what a step takes
        (-1, 0.5, 300, 100),
        (-1, 0.4, 300, "40 %.*lower .*max_num_batched_tokens.*raise gpu_memory_utilization"),
        (-1, 1.0, 950, "100 %.*lower .*max_num_batched_tokens.*raise gpu_memory_utilization"),
        (600, 0.9, 300, 600),  # the limit is for a pool that the engine sizes itself
        (601, 0.9, 300, "KV cache of 601 block.*100 %.*lower num_kvcache_blocks"),
    ],
)
def test_the_pool_on_a_gpu_is_what_the_limit_leaves(model, monkeypatch, asked, utilization, in_use, gets):
    """As a GPU with room for a thousand blocks would be measured; a step takes a hundred."""
    config = Config(model, kvcache_block_size=4, num_kvcache_blocks=asked, gpu_memory_utilization=utilization)
    config.device, config.dtype = "cuda", torch.float32
    block = 2 * 2 * 4 * 2 * 16 * 4  # keys and values, layers, tokens, KV heads, numbers of a head, bytes
    total = 1000 * block + 3
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (total - in_use * block, total))
    arguments = [Attention(4, 16, 0.25, 2)] * 2, TensorParallelGroup(), 100 * block
    if isinstance(gets, int):
        assert choose_num_blocks(config, *arguments) == gets
    else:
        with pytest.raises(MemoryError, match=gets):
            choose_num_blocks(config, *arguments)


def test_a_pool_larger_than_the_memory_says_which_knob(model):
    with pytest.raises(MemoryError, match="num_kvcache_blocks"):
        LLM(model, num_kvcache_blocks=10**10, device="cpu")


def test_a_pool_smaller_than_one_sequence_is_legal_and_warned_of(model, caplog):
    with caplog.at_level(logging.WARNING, logger="nanovllm"), LLM(model, kvcache_block_size=4, num_kvcache_blocks=3):
        pass
    assert "num_kvcache_blocks" in caplog.text and "12 tokens" in caplog.text and "max_model_len=300" in caplog.text
    caplog.clear()
    with (
        caplog.at_level(logging.WARNING, logger="nanovllm"),
        LLM(model, kvcache_block_size=4, num_kvcache_blocks=75, device="cpu"),
    ):
        pass
    assert caplog.text == ""
