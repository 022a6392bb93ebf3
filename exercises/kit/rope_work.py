"""The work of chapter 11: real queries and keys, and texts two and three times as long as the model was trained on.

qwen3-tiny has read rows of 2,048 tokens in its training, and has never seen a later position. Its table of cosines and
sines is made anew here, from other frequencies and for more positions; nothing else of the model changes.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from nanovllm import LLM, SamplingParams
from nanovllm.layers import rotary_embedding

from .manifest import BUNDLED_MODEL
from .model_work import STORIES, logits_of

HEAD_DIM, BASE, TRAINED = 64, 10_000.0, 2048
LONGEST = 3 * TRAINED
# The mean loss of texts, by the number of their tokens, with frequencies for that length; and that of the first 2,048
# tokens of the second.
PLAIN = {4096: 0.90, 6144: 1.31, 2048: 0.38}
INTERPOLATED = {4096: 1.82, 6144: 4.33, 2048: 1.79}
BARS = {4096: 0.45, 6144: 0.70, 2048: 0.42}
END = 0  # the token between two texts


def plain(head_dim: int, base: float) -> Tensor:
    """Radians that each pair turns from one position to the next."""
    return base ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def table_of(frequencies: Tensor, num_positions: int) -> Tensor:
    """Cosines and sines as the model has them: [num_positions, 1, head_dim]."""
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies.float())
    return torch.cat((angles.cos(), angles.sin()), dim=-1).unsqueeze(1)


def neighbors(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Another convention: the pairs are neighbors, x[0] with x[1], x[2] with x[3]."""
    first, second = x.float()[..., ::2], x.float()[..., 1::2]
    both = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return both.flatten(-2).to(x.dtype)


@contextmanager
def rotating(rotate: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Iterator[None]:
    """All engines of nanovllm rotate with this function for a while."""
    with mock.patch.object(rotary_embedding, "apply_rotary_emb", rotate):
        yield


def queries_and_keys(llm: Any, text: str, layer: int) -> tuple[list[str], Tensor, Tensor]:
    """Tokens of a text, and their queries and keys in a layer, before they are rotated.

    Returns:
        token texts, [num_tokens, num_heads, head_dim], [num_tokens, num_kv_heads, head_dim].
    """
    model, found = llm.llm_engine.model_runner.model, list[tuple[Tensor, Tensor]]()
    rotary = model.model.layers[0].self_attn.rotary_emb
    hook = rotary.register_forward_pre_hook(lambda _, inputs: found.append((inputs[1].clone(), inputs[2].clone())))
    try:
        llm.generate(text, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    finally:
        hook.remove()
    q, k = found[layer]
    return [llm.tokenizer.decode([token]) for token in llm.tokenizer.encode(text)], q, k


@lru_cache(maxsize=1)
def long_model() -> Any:
    """An engine with qwen3-tiny that accepts texts of any length up to `LONGEST`, without levers."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary, "qwen3-tiny")
        shutil.copytree(BUNDLED_MODEL, folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["max_position_embeddings"] = LONGEST + 64
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        options = {"kvcache_block_size": 64, "num_kvcache_blocks": LONGEST // 64 + 1, "max_model_len": LONGEST + 64}
        options |= {"max_num_batched_tokens": LONGEST + 64, "enable_prefix_caching": False}
        return LLM(str(folder), device="cpu", disabled_optimizations="all", **options)


@contextmanager
def with_table(table: Tensor) -> Iterator[Any]:
    """The long model with another table for a while."""
    llm = long_model()
    rotary = llm.llm_engine.model_runner.model.model.layers[0].self_attn.rotary_emb
    before, rotary.cos_sin_cache = rotary.cos_sin_cache, table
    try:
        yield llm
    finally:
        rotary.cos_sin_cache = before


def long_text(num_tokens: int, seed: int = 0) -> list[int]:
    """Stories behind one another, in an order that depends on the seed, as in the training."""
    stories = json.loads(STORIES.read_text(encoding="utf-8"))
    random.Random(seed).shuffle(stories)
    tokenizer = long_model().tokenizer
    token_ids = [token for story in stories for token in [*tokenizer.encode(story), END]]
    return token_ids[:num_tokens]


def losses(table: Tensor, token_ids: list[int]) -> Tensor:
    """How badly the model guesses each token but the first from those before it, with a table for so many tokens."""
    with with_table(table) as llm:
        logits = logits_of(llm, token_ids)
    return torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(token_ids[1:]), reduction="none")


def losses_of(frequencies: Tensor, num_tokens: int, seed: int = 0) -> Tensor:
    """The same for a text of stories, with a table of these frequencies."""
    return losses(table_of(frequencies, num_tokens), long_text(num_tokens, seed))
