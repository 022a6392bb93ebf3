"""Your answers to chapter 16, utils.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: cec31979a475
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO
import torch
from torch import Tensor
from exercises.kit.checkpoint_work import DTYPES, StackedCheckpoint
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from nanovllm.utils.loader import PackedModules, Target, default_weight_loader, load_model, load_weights, iterate_weights, weight_files, resolve_packed, targets_of, load_weight, init_dummy_weights


# --- ch16.read_safetensors
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
    raise NotImplementedError("ch16.read_safetensors")


# --- ch16.resolve_packed
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
    raise NotImplementedError("ch16.resolve_packed")


# --- ch16.load_weights
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
    raise NotImplementedError("ch16.load_weights")


# --- ch16.stream_weights
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
    raise NotImplementedError("ch16.stream_weights")
