"""Our answers to chapter 16, utils, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import BinaryIO
import torch
from torch import Tensor
from exercises.kit.checkpoint_work import DTYPES, StackedCheckpoint
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from nanovllm.utils.loader import PackedModules, Target, default_weight_loader, load_model, load_weights, iterate_weights, weight_files, resolve_packed, targets_of, load_weight, init_dummy_weights


# --- ch16.read_safetensors
# The whole format is ten lines, and that is its point: whoever reads it runs nothing that the file says. The header alone
# tells what there is, so a reader can refuse a file before it has read a single weight, and several processes can each take
# their own part. Offsets count from the end of the header, so that the header can be written last, when its length is
# known. The library maps the file into memory instead of reading it: then it is the operating system that fetches the pages
# that are looked at, and no others.
def read_safetensors(file: BinaryIO) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of everything in a safetensors file, one at a time.

    Such a file has three parts: 8 bytes, the length of the header, a whole number whose lowest byte
    comes first; the header, JSON in UTF-8; and the numbers of all tensors. The header has an entry
    for each tensor: `{"dtype": "BF16", "shape": [2, 3], "data_offsets": [96, 108]}`. The two
    offsets say where its bytes begin and end, counted from the end of the header. Entries may be in
    another order than the bytes. One called `"__metadata__"` is no tensor.

    Whoever takes only some of the tensors does not wait for the others: of the numbers no more is
    read than those of the tensors that were asked for.

    Args:
        file: open for reading bytes, at its beginning: has `read(count)` and `seek(position)`.

    Returns:
        an iterator over pairs, in any order. The tensors have the shape of their entry (`[]` is a
        single number), and the dtype: `DTYPES["BF16"]` is torch.bfloat16. No tensor has
        zero elements.
    """
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            file.seek(8 + length + start)
            numbers = bytearray(file.read(end - start))
            tensor = torch.frombuffer(numbers, dtype=DTYPES[entry["dtype"]])
            yield name, tensor.reshape(entry["shape"])


# --- ch16.resolve_packed
# The mapping belongs to the model, the search to the loader: another model has another mapping, and this function stays as it
# is. It works for a weight and for a bias, since it only looks at what stands between the dots. And the dots matter: without
# them "up_proj" is found in "gate_up_proj", and the name of an innocent module is torn in two. vLLM does the same with a list
# of triples, stacked_params_mapping, in each of its models.
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


# --- ch16.load_weights
# Nothing crashes when a weight is missing: its memory holds something, and the model multiplies by it. So the books are the
# only thing between a wrong file and an engine that writes nonsense. They are kept by target and not by parameter, because
# a packed parameter with one of its three shards missing looks as full as any other. Tensors are handed on one by one: a
# checkpoint of 140 GB is never in memory at once, only the model is, and a rank keeps no more than its own part. Whether
# something unknown is an error is not decided here: load_model forgives a head that repeats tied embeddings, and nothing else.
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


# --- ch16.stream_weights
# Other families' checkpoints differ in spelling, in what is fused, in which way matrices lie, and in whether layers are
# stacked; what a loader needs is always a stream of pairs under its own names. Ours holds one piece at a time, 1,048,576 bytes
# at the most, which is the embedding: no stream of whole tensors can do with less. One stacked tensor at a time would be
# 7.3 MB, everything in one dict 15.2. With 70 billion parameters that is the difference between 2 GB and 140. The
# transposition costs nothing here: it is a view, and the copy into the parameter, which is made anyway, turns it around.
def stream_weights(checkpoint: StackedCheckpoint) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of everything in a checkpoint of another family, under our names.

    The goal: few bytes held at one time. For qwen3-tiny in that spelling, whoever reads everything
    into one dict holds 15 MB; at most 2,000,000 bytes are asked for, and the largest tensor alone
    has 1,048,576. What you have yielded is dropped before the next one is asked for.

    - `checkpoint.whole`, by its name there our name, such as {"embedding":
      "model.embed_tokens.weight"}: tensors that are as we want them.
    - `checkpoint.stacked`, by its name there the parts in it and their sizes, such as {"qkv":
      {"self_attn.q_proj": 256, "self_attn.k_proj": 128, "self_attn.v_proj": 128}}: in one tensor
      all `checkpoint.num_layers` layers (its first dimension), and in each of them the parts side
      by side, in this order, in the last dimension. Our names for these are
      `model.layers.3.self_attn.q_proj.weight` and so on. Matrices are transposed there: [layers,
      inputs, outputs]. Norms have [layers, size].
    - `checkpoint.read(name, *index)` reads a tensor, or only `tensor[index]` of it: a copy. An
      index is made of numbers, slices and `...`, as for any tensor.

    Every tensor comes once, in any order, in the shape and with the numbers that our model wants.

    Returns:
        an iterator over pairs.
    """
    for name, our_name in checkpoint.whole.items():
        yield our_name, checkpoint.read(name)
    for name, parts in checkpoint.stacked.items():
        for layer in range(checkpoint.num_layers):
            start = 0
            for part, size in parts.items():
                where = layer, ..., slice(start, start + size)
                # Nothing but this piece is held, and nobody holds it any longer when the next one is read.
                yield f"model.layers.{layer}.{part}.weight", checkpoint.read(name, *where).transpose(0, -1)
                start += size
