"""Reading weights: what does not fit the model is an error that names it."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from nanovllm import LLM, SamplingParams
from nanovllm.model_files import load_hf_config
from nanovllm.models.qwen3 import Qwen3ForCausalLM
from nanovllm.utils.loader import default_weight_loader, load_model

from .conftest import make_tiny_model
from .reference import Reference, edit_json

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
OPTIONS = {"kvcache_block_size": 16, "num_kvcache_blocks": 8}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    root = tmp_path_factory.mktemp("loader")
    return {
        tied: make_tiny_model(root / str(tied), tie_word_embeddings=tied, attention_bias=True, vocab_size=60, seed=2)
        for tied in (True, False)
    }


@pytest.fixture
def edit(originals, tmp_path):
    """A function that copies a model, lets a function change its weights, and returns the directory."""

    def edit(change, tied=True):
        path = tmp_path / "model"
        shutil.copytree(originals[tied], path)
        weights = load_file(path / "model.safetensors")
        change(weights)
        save_file(weights, path / "model.safetensors")
        return path

    return edit


def generate(path, **options):
    with LLM(path, **OPTIONS, **options) as llm:
        return llm.generate(PROMPT, GREEDY, use_tqdm=False)[0]["token_ids"]


def assert_refused(path, *patterns):
    with pytest.raises(ValueError, match=patterns[0]) as error:
        LLM(path, **OPTIONS)
    for pattern in patterns[1:]:
        assert re.search(pattern, str(error.value)), str(error.value)


LAYER = "model.layers.1"
NAMES = [
    "model.embed_tokens.weight",
    "model.norm.weight",
    f"{LAYER}.input_layernorm.weight",
    f"{LAYER}.post_attention_layernorm.weight",
    *[f"{LAYER}.self_attn.{name}_proj.{kind}" for name in "qkvo" for kind in ("weight", "bias")],
    f"{LAYER}.self_attn.q_norm.weight",
    f"{LAYER}.self_attn.k_norm.weight",
    *[f"{LAYER}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")],
]


def parts_of(name):
    """What of a tensor's name an error about a packed parameter still says."""
    shard = re.search(r"\.([qkv]|gate|up)_proj\.", name)
    if not shard:
        return [re.escape(name)]
    packed = {"gate": "gate_up_proj", "up": "gate_up_proj"}.get(shard[1], "qkv_proj")
    return [re.escape(name.replace(f"{shard[1]}_proj", packed)) + rf".*(\b{shard[1]}\b|0|1)|{re.escape(name)}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_tensor(edit, name):
    assert_refused(edit(lambda weights: weights.pop(name)), "missing", *parts_of(name))


def test_a_missing_head_of_an_untied_model(edit):
    assert_refused(edit(lambda weights: weights.pop("lm_head.weight"), tied=False), r"missing.*lm_head\.weight")


def test_all_that_is_missing_is_named(edit):
    def change(weights):
        del weights["model.norm.weight"], weights[f"{LAYER}.mlp.down_proj.weight"]

    assert_refused(edit(change), r"model\.norm\.weight", r"layers\.1\.mlp\.down_proj\.weight")


@pytest.mark.parametrize("name", ["model.extra.weight", "model.layers.2.mlp.up_proj.weight", "transformer.wte.weight"])
def test_an_unknown_tensor(edit, name):
    assert_refused(edit(lambda weights: weights.update({name: torch.zeros(2, 2)})), f"unknown.*{re.escape(name)}")


def test_a_bias_that_the_config_denies(edit):
    path = edit(lambda weights: None)
    edit_json(path / "config.json", attention_bias=False)
    assert_refused(path, r"unknown.*self_attn.*bias")


@pytest.mark.parametrize("name", [*NAMES, "lm_head.weight"])
@pytest.mark.parametrize("change", ["longer", "one row", "one column", "one number"])
def test_a_tensor_of_a_wrong_shape(edit, name, change):
    def reshape(weights):
        tensor = weights[name]
        weights[name] = {
            "longer": lambda: torch.cat((tensor, tensor[:1])),
            "one row": lambda: tensor[:1].clone(),  # which a copy would broadcast
            "one column": lambda: tensor.reshape(-1, 1).contiguous(),
            "one number": lambda: torch.zeros(()),
        }[change]()

    assert_refused(edit(reshape, tied=False), re.escape(name), "shape")


def test_a_head_beside_tied_embeddings_is_accepted(edit, originals):
    path = edit(lambda weights: weights.update({"lm_head.weight": weights["model.embed_tokens.weight"].clone()}))
    assert generate(path) == generate(originals[True])


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_in_several_files(originals, tmp_path, tied):
    path = tmp_path / "model"
    shutil.copytree(originals[tied], path)
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(weights)
    # Packed parameters get their parts from different files.
    for i in range(3):
        shard = {name: weights[name] for name in names[i::3]}
        save_file(shard, path / f"model-0000{i + 1}-of-00003.safetensors")
    assert generate(path) == generate(originals[tied])
    (path / "model-00002-of-00003.safetensors").unlink()
    assert_refused(path, "missing", *parts_of(names[1]))


def split(path, names_of):
    """Put the weights of model.safetensors into several files, with an index; {file: names in it}."""
    weights = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    files = names_of(sorted(weights))
    for file, names in files.items():
        save_file({name: weights[name] for name in names}, path / file, metadata={"format": "pt"})
    weight_map = {name: file for file, names in files.items() for name in names}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weights


def halves(names):
    return {"first.safetensors": names[::2], "second.safetensors": names[1::2]}


@pytest.mark.parametrize("is_split", [False, True])
def test_other_weights_in_the_directory_are_not_read(originals, tmp_path, is_split):
    """As transformers does: model.safetensors, or what the index names."""
    path = tmp_path / "model"
    shutil.copytree(originals[True], path)
    weights = split(path, halves) if is_split else load_file(path / "model.safetensors")
    save_file({name: 3 * weight for name, weight in weights.items()}, path / "zzz_average.safetensors")
    assert generate(path) == generate(originals[True])


def test_an_index_that_does_not_fit_its_files(originals, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(originals[True], path)
    split(path, halves)
    (path / "second.safetensors").unlink()
    assert_refused(path, "second.safetensors")
    for content in ("{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'):
        (path / "model.safetensors.index.json").write_text(content)
        assert_refused(path, "index.json", "cannot be read")


def test_a_tensor_that_is_there_twice(originals, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(originals[True], path)
    split(path, lambda names: {"first.safetensors": names, "second.safetensors": names[:1]})
    (path / "model.safetensors.index.json").unlink()
    assert_refused(path, "twice")


def test_a_directory_without_weights(originals, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(originals[True], path)
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(b"something else")
    assert_refused(path, re.escape(str(path)), "safetensors")


@pytest.mark.parametrize("keep", [0, 7, 100, 0.5, 0.999])
def test_a_truncated_file(originals, tmp_path, keep):
    path = tmp_path / "model"
    shutil.copytree(originals[True], path)
    data = (path / "model.safetensors").read_bytes()
    size = keep if isinstance(keep, int) else int(len(data) * keep)
    (path / "model.safetensors").write_bytes(data[:size])
    assert_refused(path, r"model\.safetensors")


def test_a_file_that_is_no_checkpoint(originals, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(originals[True], path)
    (path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 123\n")
    assert_refused(path, r"model\.safetensors")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_another_dtype_are_converted(originals, tmp_path, dtype):
    path = make_tiny_model(tmp_path / "model", dtype=dtype, vocab_size=60, seed=2)
    token_ids = generate(path, dtype="float32")
    Reference(path).assert_greedy(PROMPT, token_ids)


def test_every_number_of_the_checkpoint_arrives(originals):
    for tied, path in originals.items():
        model = Qwen3ForCausalLM(load_hf_config(path))
        for parameter in model.parameters():
            parameter.data.fill_(torch.nan)
        load_model(model, path)
        loaded = torch.cat([parameter.flatten() for parameter in model.parameters()])
        stored = torch.cat([tensor.flatten() for tensor in load_file(path / "model.safetensors").values()])
        assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
        torch.testing.assert_close(loaded.sort().values, stored.sort().values, rtol=0, atol=0)


def test_dummy_weights_need_no_files_and_repeat(originals, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(originals[True], path)
    (path / "model.safetensors").unlink()
    params = SamplingParams(temperature=5.0, seed=1, max_tokens=8, ignore_eos=True)
    results = []
    for seed in (0, 0, 1):
        with LLM(path, load_format="dummy", seed=seed, **OPTIONS) as llm:
            weights = torch.cat([parameter.flatten() for parameter in llm.llm_engine.model_runner.model.parameters()])
            assert weights.isfinite().all() and weights.std() > 0
            results.append((weights, llm.generate(PROMPT, params, use_tqdm=False)[0]["token_ids"]))
    assert torch.equal(results[0][0], results[1][0]) and results[0][1] == results[1][1]
    assert not torch.equal(results[0][0], results[2][0])


def test_a_failed_start_leaves_nothing_behind(edit):
    default_dtype = torch.get_default_dtype()
    assert_refused(edit(lambda weights: weights.pop("model.norm.weight")), "missing")
    assert torch.get_default_dtype() == default_dtype
    assert torch.empty(0).device.type == "cpu"


def test_the_default_loader_does_not_broadcast():
    with pytest.raises(ValueError, match=r"\[3, 2\].*\[1, 2\]"):
        default_weight_loader(torch.zeros(3, 2), torch.zeros(1, 2))
