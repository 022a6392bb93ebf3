"""The work of chapter 13: the table of qwen3-tiny, what its head is given along texts, and what a quicker head costs.

Ranks are simulated as in chapter 9: they take turns in one process, and run the code of real ones.
"""

import json
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import nanovllm
from nanovllm import LLM, SamplingParams
from nanovllm.utils.context import get_context

from .model_work import STORIES
from .parallel_work import SimulatedGroup, Together, together

RIGHT, SHARE = 0.99, 0.25  # what is asked for
NUM_EXAMPLES, NUM_STORIES = 14, 26  # stories whose states are shown, and stories in all
OPTIONS: dict[str, Any] = {"device": "cpu", "kvcache_block_size": 16, "num_kvcache_blocks": 512, "max_model_len": 512}
OPTIONS |= {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "enable_prefix_caching": False}
OPTIONS |= {"disabled_optimizations": "all"}

Find = Callable[[Tensor], Tensor]
MakeHead = Callable[[Tensor, Tensor], Find]


# The table.


def table_of(llm: Any) -> Tensor:
    """All rows of an engine's embedding, float32."""
    table: Tensor = llm.llm_engine.model_runner.model.model.embed_tokens.weight.detach().float()
    return table


def neighbors(table: Tensor, token_id: int, count: int = 5) -> list[tuple[int, float]]:
    """The tokens whose rows point most nearly to where a token's row does, each with the cosine of the angle."""
    rows = torch.nn.functional.normalize(table, dim=-1)
    cosines = rows @ rows[token_id]
    cosines[token_id] = -2.0
    best = cosines.topk(count)
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


class Size(NamedTuple):
    """Parameters of a model: of its table, and of everything else; with one table for both ends."""

    table: int
    rest: int

    def share(self, is_tied: bool) -> float:
        """What embedding and head have of all parameters."""
        tables = self.table * (1 if is_tied else 2)
        return tables / (tables + self.rest)


def size_of(config: Any) -> Size:
    """By a Qwen3 config's numbers, counted by hand."""
    hidden, head_dim, middle = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    layer = hidden * head_dim * 2 * (heads + kv_heads) + 3 * hidden * middle + 2 * hidden + 2 * head_dim
    return Size(config["vocab_size"] * hidden, config["num_hidden_layers"] * layer + hidden)


# Ranks.


def shards(table: Tensor, size: int, engine: Any = nanovllm, head: bool = False) -> list[Any]:
    """The embedding (or the head) of each of `size` simulated ranks, loaded by its own loader.

    Args:
        engine: whose layers they are.
    """
    own, layers = engine.layers.embed_head, list[Any]()
    for rank in range(size):
        with engine.utils.parallel_state.tensor_parallel_group(SimulatedGroup(rank, size)):
            layer = (own.ParallelLMHead if head else own.VocabParallelEmbedding)(*table.shape)
        layer.weight_loader(layer.weight, table)
        layers.append(layer)
    return layers


def compute(layers: Sequence[Any], x: Tensor) -> Together:
    """All ranks run their layer together on the same tensor; each row of it is a sequence of its own."""

    def run(group: SimulatedGroup) -> Any:
        layers[group.rank].group = group
        return layers[group.rank](x)

    with torch.inference_mode():
        return together(len(layers), run, most=4)


def side_by_side(heads: Sequence[Any], hidden: Tensor) -> Tensor:
    """What the gather of some heads puts together for one hidden state, the padding included."""
    return torch.cat([calls[0][1] for calls in compute(heads, hidden[None]).calls], dim=-1)[0]


def found_by_rank(token_ids: Sequence[int], vocab_size: int, size: int) -> list[float]:
    """The share of some tokens that each rank has a row for, if the vocabulary is cut into ranges."""
    per_rank = math.ceil(vocab_size / size)
    counts = [0] * size
    for token_id in token_ids:
        counts[token_id // per_rank] += 1
    return [count / len(token_ids) for count in counts]


# A step.


class Step(NamedTuple):
    """A prefill: ids of its tokens, where its sequences begin and the end, and whether the last prompt is cut."""

    token_ids: list[int]
    ends: list[int]
    is_cut: bool


def first_steps(prompts: Sequence[Sequence[int]], most_tokens: int) -> list[Step]:
    """The prefills that an engine makes of some prompts, with at most so many tokens each."""
    seen = list[tuple[list[int], list[int]]]()
    with LLM("qwen3-tiny", **OPTIONS | {"max_num_batched_tokens": most_tokens}) as llm:

        def look(_: Any, inputs: tuple[Tensor, ...]) -> None:
            if (ends := get_context().cu_seqlens_q) is not None:
                seen.append((inputs[0].tolist(), ends.tolist()))

        model: Any = llm.llm_engine.model_runner.model
        model.register_forward_pre_hook(look)
        params = SamplingParams(temperature=0, max_tokens=1)
        asked: list[Any] = [list(prompt) for prompt in prompts]
        llm.generate(asked, params, use_tqdm=False)
    lasts = {prompt[-1] for prompt in prompts}
    return [Step(token_ids, ends, token_ids[-1] not in lasts) for token_ids, ends in seen]


# What the head is given along stories.


class States(NamedTuple):
    """What the head of qwen3-tiny meets.

    Args:
        table: [vocab_size, hidden_size], its rows.
        examples: [n, hidden_size], hidden states along some stories.
        others: the same along other stories, for the measure.
        token_ids: the tokens of all stories.
    """

    table: Tensor
    examples: Tensor
    others: Tensor
    token_ids: list[int]


@lru_cache(maxsize=1)
def states() -> States:
    """The model reads 26 stories; each of their tokens has a hidden state from which the next one is guessed."""
    seen = list[Tensor]()
    with LLM("qwen3-tiny", **OPTIONS) as llm:
        model: Any = llm.llm_engine.model_runner.model
        compute_logits = model.compute_logits

        def look(hidden: Tensor) -> Any:
            seen.append(hidden.clone().float())
            return compute_logits(hidden)

        model.compute_logits = look
        stories = json.loads(STORIES.read_text(encoding="utf-8"))[:NUM_STORIES]
        prompts = [llm.tokenizer.encode(story) for story in stories]
        llm.generate(list(prompts), SamplingParams(max_tokens=1), use_tqdm=False)
        table = table_of(llm).clone()
    counts = [len(prompt) for prompt in prompts]
    examples, others = torch.cat(seen).split([sum(counts[:NUM_EXAMPLES]), sum(counts[NUM_EXAMPLES:])])
    return States(table, examples, others, [token for prompt in prompts for token in prompt])


# A head that looks at fewer rows.

aten = torch.ops.aten
PRODUCTS: dict[Any, Callable[..., int]] = {
    aten.mm: lambda a, b: a.numel() * b.shape[1],
    aten.addmm: lambda _, a, b: a.numel() * b.shape[1],
    aten.bmm: lambda a, b: a.numel() * b.shape[2],
    aten.baddbmm: lambda _, a, b: a.numel() * b.shape[2],
    aten.mv: lambda a, b: a.numel(),
    aten.addmv: lambda _, a, b: a.numel(),
    aten.dot: lambda a, b: a.numel(),
    aten.vdot: lambda a, b: a.numel(),
    aten._cdist_forward: lambda a, b, *_: a.numel() * b.shape[-2],
    aten._euclidean_dist: lambda a, b: a.numel() * b.shape[-2],
}
EACH = (aten.mul, aten.mul_, aten.div, aten.div_, aten.pow, aten.addcmul, aten.linalg_vector_norm, aten.norm)
NOT_COUNTED = ("linalg", "svd", "conv", "fft", "qr", "eig", "embedding_bag", "sparse")


class Multiplications(TorchDispatchMode):
    """Counts the multiplications that torch does inside a `with` block.

    Args:
        strict: refuse what cannot be counted.
    """

    def __init__(self, strict: bool = True) -> None:
        super().__init__()
        self.count, self.strict = 0, strict

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet, kwargs = func.overloadpacket, kwargs or {}
        if packet in PRODUCTS:
            self.count += PRODUCTS[packet](*args[:3])
        elif packet in EACH:
            result = func(*args, **kwargs)  # larger than both where they are broadcast
            self.count += max(one.numel() for one in (*args, result) if isinstance(one, Tensor))
            return result
        else:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
            if self.strict and any(word in str(packet) for word in NOT_COUNTED):
                raise RuntimeError(f"nobody counts the multiplications of {packet}; do it before, or in another way")
        return func(*args, **kwargs)


class Judged(NamedTuple):
    """A quick head: how often it finds the best token, and its multiplications as a share of those of all rows."""

    right: float
    share: float


def judge(make_head: MakeHead) -> Judged:
    """Make a head from the table and the examples, and let it find tokens along the other stories."""
    here = states()
    with torch.no_grad():
        find = make_head(here.table.clone(), here.examples.clone())
        with Multiplications() as done:
            found = find(here.others.clone())
        best = (here.others @ here.table.T).argmax(-1)
    return Judged(float((found == best).double().mean()), done.count / (len(here.others) * here.table.numel()))


def all_rows(table: Tensor, examples: Tensor) -> Find:
    """The plain head."""
    return lambda hidden: (hidden @ table.T).argmax(-1)


def frequent_rows(table: Tensor, examples: Tensor, count: int = 500) -> Find:
    """Only the rows of those tokens that win most often along the examples."""
    wins = torch.bincount((examples @ table.T).argmax(-1), minlength=len(table))
    rows = wins.topk(min(count, len(table))).indices
    chosen = table[rows]
    return lambda hidden: rows[(hidden @ chosen.T).argmax(-1)]


def random_directions(table: Tensor, examples: Tensor, width: int = 48, count: int = 48) -> Find:
    """A guess from a few random directions, then the true logits of the best few."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(table.shape[1], width, generator=generator)
    rough = table @ directions

    def find(hidden: Tensor) -> Tensor:
        few = ((hidden @ directions) @ rough.T).topk(count).indices
        logits = (table[few] @ hidden.unsqueeze(-1)).squeeze(-1)
        return few.gather(1, logits.argmax(-1, keepdim=True)).flatten()

    return find
