"""Reads Hugging Face safetensors into the model's packed and sharded parameters."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

# Checkpoint names of separate projections -> (packed parameter, shard id).
PackedModules = dict[str, tuple[str, str | int]]
# A parameter, or one shard of it.
Target = tuple[str, str | int | None]


def default_weight_loader(param: Tensor, loaded_weight: Tensor) -> None:
    """Copy a whole tensor. Raises `ValueError` for another shape (`copy_` would broadcast)."""
    if param.shape != loaded_weight.shape:
        raise ValueError(f"expected shape {list(param.shape)}, got {list(loaded_weight.shape)}")
    param.data.copy_(loaded_weight)


def load_model(model: nn.Module, path: str | Path) -> None:
    """Fill every parameter of `model` from the safetensors files in the directory `path`.

    A model may name packed parameters in `packed_modules_mapping`, e.g. `{"q_proj": ("qkv_proj",
    "q")}`: the tensor `...q_proj.weight` goes to the parameter `...qkv_proj.weight`, as its shard
    `"q"`. A parameter with an attribute `weight_loader` is filled by it.

    Raises:
        ValueError: no safetensors files, an unreadable one, or tensors that are missing, unknown,
            mis-shaped, or there twice.
    """
    params, packed = dict(model.named_parameters()), getattr(model, "packed_modules_mapping", {})
    missing, unknown = load_weights(params, packed, iterate_weights(Path(path)))
    # Tied embeddings may be there once more, as a head.
    unknown = [name for name in unknown if name != "lm_head.weight"]
    if missing or unknown:
        names = [name if shard is None else f"{name}[{shard}]" for name, shard in missing]
        lists = f"missing: {sorted(names) or 'none'}; unknown: {sorted(unknown) or 'none'}"
        raise ValueError(f"the weights in {path} do not fit the model; {lists}")


def load_weights(
    params: Mapping[str, nn.Parameter], packed: PackedModules, weights: Iterable[tuple[str, Tensor]]
) -> tuple[set[Target], list[str]]:
    """Fill parameters with the tensors of a checkpoint, and keep the books.

    Each tensor is handed to `load_weight` before the next one is taken from `weights`: together
    they may not fit into memory. What `resolve_packed` makes of a name says where it goes.

    Args:
        params: all parameters of the model, by name. The mapping stays as it is.
        packed: see `resolve_packed`.
        weights: name and tensor, as the checkpoint has them, in any order; can be read once.

    Returns:
        what is missing and what is unknown. Missing are those of all `targets_of` the parameters
        that no tensor was for, a set; unknown the names in the checkpoint of the tensors that are
        for no parameter, a list.

    Raises:
        ValueError: a name came twice, known or not, and the message says it; or a tensor does not
            fit (`load_weight` says so).
    """
    missing = {target for name in params for target in targets_of(name, packed)}
    unknown, seen = list[str](), set[str]()
    for name, loaded_weight in weights:
        if name in seen:
            raise ValueError(f"the weights hold {name} twice; keep one model's files")
        seen.add(name)
        param_name, shard_id = resolve_packed(name, packed)
        if param_name in params:
            load_weight(params[param_name], loaded_weight, shard_id, name)
            missing.discard((param_name, shard_id))
        else:
            unknown.append(name)
    return missing, unknown


def iterate_weights(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of everything in the directory's safetensors files, one at a time.

    Raises:
        ValueError: there are no such files, or one cannot be read.
    """
    for file in weight_files(path):
        try:
            with safe_open(file, framework="pt", device="cpu") as weights:
                for name in weights.keys():  # noqa: SIM118 (not a dict)
                    yield name, weights.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} cannot be read, it may be truncated: {error}") from error


def weight_files(path: Path) -> list[Path]:
    """The files that transformers would read: model.safetensors, else those of the index; else all.

    Raises:
        ValueError: there are none, or the index cannot be read.
    """
    single, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if index.exists():
        try:
            names = json.loads(index.read_text("utf-8"))["weight_map"].values()
            return [path / name for name in sorted(set(names))]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{index} cannot be read: {error!r}") from error
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{path} has no *.safetensors files; convert it or load_format='dummy'")
    return files


def resolve_packed(name: str, packed: PackedModules) -> Target:
    """Which parameter, and which shard of it, the tensor `name` of a checkpoint is for.

    A packed parameter is made of parts that have names of their own in a checkpoint. Such a name
    stands between two dots: with `{"q_proj": ("qkv_proj", "q")}`, the tensor `model.q_proj.bias` is
    for the parameter `model.qkv_proj.bias`, as its shard `"q"`. At the very beginning or end of a
    name, with a dot on one side only, it does not count. All other names are those of whole
    parameters already.

    Args:
        name: of the tensor. At most one of the parts stands in it between dots.
        packed: for each part the name of the packed module, which may be that of a part, too, and
            the shard id; it stays as it is.

    Returns:
        name of the parameter, and the shard id as `packed` has it; None for a whole parameter.
    """
    for part, (packed_part, shard_id) in packed.items():
        if f".{part}." in name:
            return name.replace(f".{part}.", f".{packed_part}."), shard_id
    return name, None


def targets_of(name: str, packed: PackedModules) -> list[Target]:
    """Every (parameter, shard id) that has to be filled for the parameter `name`."""
    shards = [shard_id for packed_part, shard_id in packed.values() if f".{packed_part}." in name]
    return [(name, shard_id) for shard_id in shards] or [(name, None)]


def load_weight(
    param: nn.Parameter, loaded_weight: Tensor, shard_id: str | int | None, name: str
) -> None:
    """Hand one tensor to its parameter's weight loader.

    Raises:
        ValueError: the shapes do not fit; names the tensor.
    """
    loader: Callable[..., None] = getattr(param, "weight_loader", default_weight_loader)
    try:
        loader(param, loaded_weight) if shard_id is None else loader(param, loaded_weight, shard_id)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"{name} of shape {list(loaded_weight.shape)} does not fit a parameter of shape "
            f"{list(param.shape)}{'' if shard_id is None else f' (shard {shard_id!r})'}: {error}"
        ) from error


def init_dummy_weights(model: nn.Module, seed: int = 0) -> None:
    """Fill the parameters with small random numbers, norms with ones: for benchmarks."""
    device = next(model.parameters()).device
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, param in model.named_parameters():
        if "norm" in name:
            param.data.fill_(1.0)
        elif name.endswith("bias"):
            param.data.zero_()
        else:
            param.data.normal_(std=0.02, generator=generator)
