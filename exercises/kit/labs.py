"""Our answers to the exercises that are no part of the engine: small programs around it, and experiments in it.

An open exercise has many right answers; here is one. Some take the place of a function of the engine on request
(`replaces` in the manifest): `mine("ch05.choose_block_to_evict")`.
"""

import json
import math
import struct
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from exercises.kit.budget_work import simulate
from exercises.kit.checkpoint_work import DTYPES, StackedCheckpoint
from exercises.kit.kernel_work import triton_twin, twin
from exercises.kit.parallel_work import CUTS, Linear, numbers_sent, weights_held
from exercises.kit.roofline_work import Device, Model
from nanovllm.layers.attention import Attention
from nanovllm.utils.memory import num_blocks_that_fit
from nanovllm.utils.swap import swap

tl: Any = twin  # what PyTorch puts in the place of triton.language, until a kernel is launched
triton: Any = triton_twin

# Chapter 01.


def naive_loop(
    model: Callable[[list[int]], torch.Tensor],
    token_ids: list[int],
    max_tokens: int,
    eos: Collection[int],
) -> list[int]:
    """Continue a text greedily, without a cache: every new token reads the whole text again.

    Args:
        model: takes the ids of all tokens so far; returns the logits of the next token, a tensor
            of one number for each token of the vocabulary.
        token_ids: ids of the prompt's tokens; the list stays as it is.
        max_tokens: the most new tokens, at least 1.
        eos: ids of the end tokens. The first new token that is one of them ends the text, and is
            part of the answer.

    Returns:
        the ids of the new tokens, without those of the prompt.
    """
    answer: list[int] = []
    while len(answer) < max_tokens and (not answer or answer[-1] not in eos):
        logits = model([*token_ids, *answer])
        answer.append(int(logits.argmax()))
    return answer


def group_requests(lengths: Sequence[int], max_batch: int) -> list[list[int]]:
    """Group requests into batches that run one after the other.

    All requests of a batch begin together, and the next batch begins when the longest of them is
    done: a batch lasts as many steps as its longest answer has tokens.

    The goal: few steps in all. The 24 requests of `exercises.kit.batch_work`, in batches of 4, take
    365 steps in the order of arrival; at most 260 are asked for. With any other requests it shall
    never be more steps than with full batches in the order of arrival.

    Args:
        lengths: tokens of each answer, at least 1; the list stays as it is.
        max_batch: the most requests in a batch, at least 1.

    Returns:
        the batches, a list of lists, in the order in which they run. A request is named by its
        place in `lengths`, from 0 on. Each is in exactly one batch, and no batch is empty.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches = [order[i : i + max_batch] for i in range(0, len(order), max_batch)]
    return batches[::-1]  # the short ones first: fewer wait for the long ones


# Chapter 02.


def kv_bytes_per_token(config: Mapping[str, Any], element_size: int) -> int:
    """Bytes that the KV cache needs for one token of a model.

    In every layer, and for every KV head, a token has a key and a value: two vectors of `head_dim`
    numbers each.

    Args:
        config: what the model's `config.json` says, and stays as it is. These are always there:
            "num_hidden_layers", "num_attention_heads" and "hidden_size". Two others may be
            missing, or None:

            - "num_key_value_heads": without it, every attention head is a KV head of its own;
            - "head_dim": without it, the attention heads share "hidden_size" evenly.
        element_size: bytes of one number: 2 in bfloat16, 4 in float32.

    Returns:
        a whole number (an `int`) of bytes.
    """
    num_heads = config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    return int(2 * config["num_hidden_layers"] * num_kv_heads * head_dim * element_size)


def step_seconds(scheduled: Sequence[tuple[int, int]], model: Model, device: Device) -> float:
    """The least time that one step of the engine takes on a device: its roofline.

    Memory and arithmetic work side by side, so a step takes as long as the longer of the two.

    - Memory: all weights, layers and head, are read once a step. Keys and values of tokens stored
      before are read, those of tokens computed now are written: each token's once.
    - Arithmetic: a token that is computed takes two operations, a multiplication and an addition,
      for each parameter of the layers. The head takes two for each of its parameters, and runs
      once for each sequence, however many of its tokens are computed.

    Nothing else counts (activations, the arithmetic of attention, the program around it).

    Args:
        scheduled: for each sequence of the step, how many of its tokens are stored in the cache
            already, and how many this step computes.
        model: has `layer_parameters`, `head_parameters`, `kv_bytes` (of one token, all layers) and
            `element_size` (bytes of one parameter).
        device: has `bytes_per_second` and `flops_per_second`, operations per second.

    Returns:
        seconds, a `float`. A step without sequences does not run: 0.0.
    """
    if not scheduled:
        return 0.0
    stored, computed = (sum(counts) for counts in zip(*scheduled, strict=True))
    weights = (model.layer_parameters + model.head_parameters) * model.element_size
    moved = weights + model.kv_bytes * (stored + computed)
    operations = 2 * (model.layer_parameters * computed + model.head_parameters * len(scheduled))
    return max(moved / device.bytes_per_second, operations / device.flops_per_second)


def predict_seconds(
    seen: Sequence[tuple[int, int, float]],
    num_seqs: int,
    context_len: int,
) -> float:
    """How long a decode step takes, judged by steps that were measured on the same GPU.

    The goal: of the recorded steps of an H100, half are seen, and the others are asked for. Who
    answers with the nearest step that was seen is wrong by 27 % (the median of all answers); at
    most 8 % are asked for. The same holds on a GPU that takes three times as long for everything.
    And if no context beyond 2,100 tokens was seen, the error at 8,200 is at most 20 %, where the
    nearest one is wrong by half.

    It is called again for each answer, and keeps nothing in between. `np` is there.

    Args:
        seen: for each measured step the number of its sequences, the tokens of each of them, and
            its seconds; eight steps or more, in any order. The list stays as it is.
        num_seqs, context_len: of the step that is asked for.

    Returns:
        seconds, a `float`.
    """

    def work(num_seqs: int, context_len: int) -> list[float]:
        # What every step reads, what each sequence costs, and the keys and values that are read.
        return [1.0, num_seqs, num_seqs * context_len]

    features = np.array([work(n, length) for n, length, _ in seen])
    prices = np.linalg.lstsq(features, np.array([seconds for *_, seconds in seen]), rcond=None)[0]
    return float(prices @ work(num_seqs, context_len))


# Chapter 03.


def what_would_help(
    total: int, in_use: int, activations: int, utilization: float, block_bytes: int, block_size: int
) -> list[str]:
    """Which options would let an engine start that has no room for a single block of KV cache.

    An option helps if a change of it alone, however large, makes room for at least one block:

    - "gpu_memory_utilization" can be raised to 1;
    - "max_num_batched_tokens" can be lowered until a step takes next to nothing: 0 bytes;
    - "kvcache_block_size" can be lowered to 1: such a block takes `block_bytes / block_size`,
      which is a whole number.

    Args:
        total, in_use, activations, utilization, block_bytes: as in `num_blocks_that_fit`, which
            can be called here.
        block_size: tokens in a block.

    Returns:
        the names of those that help, in the order above. The list is empty if a block fits as it
        is, so that nothing has to be changed; and also if no option helps, so that it has to be
        another model or another GPU.
    """
    if num_blocks_that_fit(total, in_use, activations, utilization, block_bytes):
        return []
    changes = {
        "gpu_memory_utilization": (total, in_use, activations, 1.0, block_bytes),
        "max_num_batched_tokens": (total, in_use, 0, utilization, block_bytes),
        "kvcache_block_size": (total, in_use, activations, utilization, block_bytes // block_size),
    }
    return [name for name, changed in changes.items() if num_blocks_that_fit(*changed) > 0]


def how_many_fit(
    lengths: Sequence[int],
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
) -> int:
    """How many requests have room in the KV cache beside one another.

    They come in the order of the list, and the first that has no room ends it: nobody overtakes.

    Args:
        lengths: tokens of each request. It takes whole blocks, as many as its tokens need; no two
            requests share one.
        num_blocks: of the whole cache.
        block_size: tokens that a block holds.
        max_num_seqs: the most requests that run at once, however much room there is.

    Returns:
        a whole number (an `int`) of requests.
    """
    count = 0
    for length in lengths[:max_num_seqs]:
        num_blocks -= (length + block_size - 1) // block_size
        if num_blocks < 0:
            break
        count += 1
    return count


def choose_options(
    workload: Sequence[tuple[int, int]],
    room: int,
    kv_bytes: int,
    step_bytes: int,
) -> dict[str, int]:
    """Options with which an engine gets a workload done in few steps, with the memory there is.

    The goal: the three workloads, which take 2,242 steps with the defaults and 3.5 GB, take at most
    1,000 with the same room, and none of them takes more than before. And the engine has to start
    with less room, too, down to 0.4 GB: the longest request of the workload has to fit into the
    cache. `simulate` can be called here.

    Args:
        workload: tokens of prompt and answer of each request; all of them come at once.
        room: bytes; what the largest step does not take of them, the cache gets, in whole blocks.
        kv_bytes: of one token in the cache.
        step_bytes: of activations, for each token that a step may have.

    Returns:
        some or all of "kvcache_block_size" (a multiple of 16, as fast kernels want it),
        "max_num_batched_tokens" and "max_num_seqs".
    """

    def with_steps_of(num_tokens: int) -> dict[str, int]:
        return {"kvcache_block_size": 16, "max_num_batched_tokens": num_tokens}

    def num_steps(num_tokens: int) -> float:
        try:
            return simulate(with_steps_of(num_tokens), workload, room, kv_bytes, step_bytes).steps
        except MemoryError:
            return math.inf

    return with_steps_of(min([2**n for n in range(8, 13)], key=num_steps))


# Chapter 04.


def codec() -> tuple[Callable[[Any], bytes], Callable[[bytes], dict[str, Any]]]:
    """Two functions: `pack` makes bytes of what a worker needs of a sequence, `unpack` reads them.

    The goal: few bytes. Over the steps that the check plays (prompts in one piece and in several,
    decode, preemption, short and long texts, large and small ids) at most a tenth of what
    `pickle.dumps(vars(seq))` takes.

    `pack(seq)` gives bytes and leaves the sequence as it is. `unpack(data)` runs in another process
    and has nothing but these bytes. It gives a dict:

    - "seq_id": its number;
    - "tokens": ids of the tokens that the step computes (`seq.scheduled_token_ids`), a list;
    - "start": the position of the first of them, `seq.num_cached_tokens`;
    - "is_cut": whether tokens are left for a later step, `True` or `False`;
    - "block_table": as it is, a list.

    Ids of sequences are below 2**63, positions and ids of tokens and blocks below 2**31.

    Returns:
        `pack` and `unpack`.
    """

    def pack(seq: Any) -> bytes:
        tokens = seq.scheduled_token_ids
        head = struct.pack("<QII?", seq.seq_id, seq.num_cached_tokens, len(tokens), seq.is_cut)
        return zlib.compress(head + array("i", [*tokens, *seq.block_table]).tobytes(), 1)

    def unpack(data: bytes) -> dict[str, Any]:
        whole = zlib.decompress(data)
        size = struct.calcsize("<QII?")
        seq_id, start, num_tokens, is_cut = struct.unpack("<QII?", whole[:size])
        ids = array("i", whole[size:]).tolist()
        tokens, table = ids[:num_tokens], ids[num_tokens:]
        state = {"seq_id": seq_id, "tokens": tokens, "start": start, "is_cut": is_cut}
        return {**state, "block_table": table}

    return pack, unpack


# Chapter 05.


def choose_block_to_evict(self: Any) -> int:
    """Id of the free block that is taken next; what it holds is lost.

    The goal: of the prompt tokens of `exercises.kit.workloads.chat_service()`, the cache shall find
    as many as possible, in 48 blocks of 16 tokens. The block that was freed longest ago (LRU) finds
    20,832 of them, a random one 17,356; at least 21,600 are asked for.

    It is called only when a block is free. It takes nothing itself and changes nothing of the pool,
    but it may keep attributes of its own on the manager, which is new at the start of a run. What
    was found or computed since the last call shows in `used_block_ids`: its blocks are there. After
    an error the engine calls `reset()`: then all blocks are free, nothing is cached, and content
    ids begin at 0 again.

    Returns:
        a key of `self.free_block_ids`.
    """
    if not hasattr(self, "visits"):
        self.visits, self.in_use = Counter(), set()
    # A content that is in use now and was not when we looked last has been computed or found: a visit.
    in_use = {self.blocks[block_id].content_id for block_id in self.used_block_ids}
    self.visits.update(in_use - self.in_use)
    self.in_use = in_use

    def worth(block_id: int) -> int:
        block = self.blocks[block_id]
        is_findable = self.hash_to_block_id.get(block.hash) == block_id
        return self.visits[block.content_id] if is_findable else -1

    return min(self.free_block_ids, key=worth)  # of equal ones the first, which was freed longest ago


# Chapter 06.


def choose_victim(self: Any, seq: Any) -> Any:
    """Which running sequence gives up its blocks, so that `seq` can go on.

    The goal: of the work in `exercises.kit.mixed_work`, as few tokens as possible shall be computed
    again. When the newest goes it is 3,121 tokens, when the shortest does 2,733; at most 2,700
    are asked for.

    It is called while the blocks do not suffice, and then again. It only says who goes, and changes
    nothing. With any work, every request has to get to its end.

    Args:
        seq: the running sequence that needs a block.

    Returns:
        one of `self.running`, a deque with the oldest first; `seq` is one of them, too.
    """

    def cost(other: Any) -> int:
        # What it would compute again, and for it: what it will still write, and want room for, if it stays.
        return other.num_tokens - (other.sampling_params.max_tokens - other.num_completion_tokens)

    return min(self.running, key=cost)


# Chapter 07.


def choose_messages(
    messages: list[dict[str, str]], left_out: int, budget: int, count_tokens: Callable[..., int]
) -> list[dict[str, str]]:
    """Which messages of a long chat are sent to the model, when all of them are too many.

    The goal: of the talk in `exercises.kit.talk_work`, at most 5,000 prompt tokens shall be
    computed (14,560 if as much is sent as fits), and at least two thirds sent of what fits.

    The system message, if there is one, comes first, and the newest question last. Between them
    are the newest exchanges before it, as many as you choose, none left out on the way; of an
    exchange both question and answer. All is sent as long as it fits and nothing was left out.

    Args:
        messages: the talk: perhaps a "system" message, then "user" and "assistant" in turn; the
            last is a question. Each is {"role": ..., "content": ...}.
        left_out: how many after the system message were left out the time before; 0 at first.
        budget: the most tokens of the prompt.
        count_tokens: a function: takes a list of messages, returns the tokens of their prompt.

    Raises:
        ValueError: not even system message and newest question fit.
    """
    start = int(messages[0]["role"] == "system")

    def from_(first: int) -> list[dict[str, str]]:
        return [*messages[:start], *messages[start + first :]]

    last, first = len(messages) - start - 1, left_out
    least = count_tokens(from_(last))
    if least > budget:
        raise ValueError(f"system message and question have {least} tokens, and the budget is {budget}")
    if count_tokens(from_(first)) > budget:  # then much is left out at once, and nothing for a long time
        room = budget * 0.4
        first = next((i for i in range(first, last, 2) if count_tokens(from_(i)) <= room), last)
    return from_(first)


# Chapter 08.


def choose_graph_sizes(counts: Mapping[int, int], largest: int, most: int) -> list[int]:
    """For which batch sizes a CUDA graph is recorded.

    A decode step of n sequences replays the smallest graph for n sequences or more. What the graph
    computes beyond n is padding.

    The goal: little padding in all steps together. On the day of `exercises.kit.graph_work`, nine
    graphs for powers of two pad 28,621 rows; at most 12,000 are asked for.

    Every batch that can come has to find a graph, from one sequence to `largest`, also where
    `counts` has none of its size.

    Args:
        counts: how many steps had how many sequences, by the number of sequences; may be empty.
        largest: the most sequences that a step can have.
        most: how many graphs there may be, at least 1.

    Returns:
        at most `most` different sizes from 1 to `largest`, ints, in any order.
    """
    sizes = sorted({*counts, largest})
    numbers = range(1, len(sizes) + 1)

    def rows(i: int, j: int) -> int:
        # Padding of the steps with sizes i to j - 1 if all of them take the largest of these.
        return sum(counts.get(size, 0) * (sizes[j - 1] - size) for size in sizes[i:j])

    padding = {(i, j): rows(i, j) for j in numbers for i in range(j)}
    # For the first j sizes, with so many graphs: the least padding, and the graphs.
    best: list[tuple[float, tuple[int, ...]]] = [(0, ()), *((math.inf, ()) for _ in numbers)]
    for _ in range(most):
        choices = [[(best[i][0] + padding[i, j], (*best[i][1], sizes[j - 1])) for i in range(j)] for j in numbers]
        best = [best[0], *map(min, choices)]
    return list(best[-1][1])


# Chapter 09.


def choose_cuts(linears: Sequence[Linear], num_ranks: int, memory: int) -> list[str]:
    """Which matrix of a chain is cut how, so that little is sent between the ranks.

    "column" needs the whole input and makes a part of the output; "row" needs a part of the input,
    and an all-reduce after it; "replicated" is whole on every rank, as are its input and output. A
    part becomes whole by an all-gather where the next cut, a norm or the end of the chain needs it.
    `numbers_sent(linears, cuts, num_ranks)` and `weights_held(...)` count.

    The goal: for the three chains of `exercises.kit.parallel_work.tasks()` together, a rank sends
    at most 1,300 numbers a token. "row" everywhere is 5,112, "column" and "row" in turn 2,616. With
    any other chain it is never more than with either of these, and 0 where a rank has room for
    everything.

    Args:
        linears: the matrices, each with `input_size`, `output_size`, and `then`: "norm", or "each"
            where every number is treated by itself. The list stays as it is.
        num_ranks: divides all sizes.
        memory: weights that a rank has room for; enough for its share if everything is cut.

    Returns:
        "column", "row" or "replicated" for each matrix; together they fit into `memory`.
    """
    plans: list[list[str]] = [[]]
    for n in range(1, len(linears) + 1):
        begun, longer = linears[:n], [[*plan, cut] for plan in plans for cut in CUTS]
        plans = []
        for is_cut in (False, True):  # what comes later depends on that alone, and on the room that is left
            alike = [plan for plan in longer if (plan[-1] == "column") == is_cut]
            costs = [(numbers_sent(begun, plan, num_ranks), weights_held(begun, plan, num_ranks)) for plan in alike]
            least = memory + 1
            for (_, held), plan in sorted(zip(costs, alike, strict=True)):
                if held < least:  # whoever sends more has to hold less
                    least = held
                    plans.append(plan)
    return min(plans, key=lambda plan: numbers_sent(linears, plan, num_ranks))


# Chapter 10.


def merge_tile(
    scores: Tensor, values: Tensor, maximum: Tensor, total: Tensor, output: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Take one more tile of keys into a softmax that has seen others before.

    Of all keys so far, each query knows `maximum`, the largest score; `total`, the sum of
    exp(score - maximum); and `output`, the sum of exp(score - maximum) * value, not divided yet.
    Before the first tile these are -inf, 0 and 0, and so they stay for a query that may see none of
    the keys. Nothing is ever nan, however large or small the scores are.

    Args:
        scores: [num_queries, tile_size] of the new keys; -inf where a query may not see a key.
        values: [tile_size, head_dim].
        maximum, total: [num_queries].
        output: [num_queries, head_dim].

    Returns:
        the three for all keys so far, the new ones included, as new tensors.
    """
    new_maximum = torch.maximum(maximum, scores.amax(1))
    shift = new_maximum.masked_fill(new_maximum == -math.inf, 0.0)  # -inf - -inf would be nan
    weights, decay = torch.exp(scores - shift[:, None]), torch.exp(maximum - shift)
    return new_maximum, total * decay + weights.sum(1), output * decay[:, None] + weights @ values


def decode_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, table_ptr, o_ptr, num_tokens, scale, GROUP, KV_HEADS, HEAD_DIM, BLOCK_SIZE
):
    """A kernel: one query of one sequence attends to all its keys, which lie in the paged cache.

    A program for each query head, `tl.program_id(0)`, writes the output of that head. What comes is
    pointers to contiguous tensors, float32 but for the table:

    - q, and o for the output: [num_heads, HEAD_DIM];
    - k and v, the caches: [num_blocks, BLOCK_SIZE, KV_HEADS, HEAD_DIM]; 32 bits hold any offset;
    - table: int32, an entry for each block of the sequence: token i lies in the block
      table[i // BLOCK_SIZE], at place i % BLOCK_SIZE. It ends with the last block.

    Behind the last token lie numbers of others; beside the tensors nothing may be read. A masked
    load without `other` gives anything. `tl` is there, and no other library works in a kernel.

    Args:
        num_tokens: of the sequence, at least 1.
        scale: factor of the scores.
        GROUP: query heads that share a KV head: query head h looks at KV head h // GROUP.
        KV_HEADS, HEAD_DIM, BLOCK_SIZE: as above; names in capitals are `tl.constexpr`, and the
            last two are powers of two.
    """
    head, features, places = tl.program_id(0), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_SIZE)
    q = tl.load(q_ptr + head * HEAD_DIM + features) * scale
    maximum, total, output = float("-inf"), 0.0, tl.zeros([HEAD_DIM], tl.float32)
    for i in range(0, tl.cdiv(num_tokens, BLOCK_SIZE)):
        is_token = i * BLOCK_SIZE + places < num_tokens
        rows = (tl.load(table_ptr + i) * BLOCK_SIZE + places) * KV_HEADS + head // GROUP
        offsets = rows[:, None] * HEAD_DIM + features[None, :]
        k = tl.load(k_ptr + offsets, mask=is_token[:, None], other=0.0)
        v = tl.load(v_ptr + offsets, mask=is_token[:, None], other=0.0)
        scores = tl.where(is_token, tl.sum(q[None, :] * k, axis=1), float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=0))
        weights, decay = tl.exp(scores - new_maximum), tl.exp(maximum - new_maximum)
        total, maximum = total * decay + tl.sum(weights, axis=0), new_maximum
        output = output * decay + tl.sum(weights[:, None] * v, axis=0)
    tl.store(o_ptr + head * HEAD_DIM + features, output / total)


def choose_blocks(
    query: Tensor, smallest: Tensor, largest: Tensor, mean: Tensor, scale: float, budget: int
) -> list[int]:
    """Which blocks of the KV cache a decode step reads, if it may not read all.

    The goal: with a quarter of the blocks, as little attention as possible shall be lost: the share
    that falls on blocks that are not read. In `exercises.kit.attention_work`, on queries and keys
    of the bundled model, the newest blocks lose 11.9 %, and whoever knows all scores 8.3 %. At most
    10.5 % are asked for; and on another text less than the newest lose.

    It is called for each KV head of each layer, and keeps nothing in between.

    Args:
        query: [group, head_dim], of the query heads that share this KV head.
        smallest, largest, mean: [num_blocks, head_dim], over the keys of each block, feature by
            feature. The block of the newest token is the last, and may hold fewer tokens.
        scale: factor of the scores.
        budget: the most blocks that may be read, at least 1. It may be more than there are.

    Returns:
        their numbers, from 0 to num_blocks - 1, in any order, each of them once.
    """
    # A block's share is about exp(score of its mean key), and more where its scores differ widely.
    scores = scale * query @ mean.T
    variance = (scale * query) ** 2 @ ((largest - smallest) / 4).T ** 2
    shares = (scores + variance / 2).softmax(-1).sum(0)
    return shares.topk(min(budget, len(shares))).indices.tolist()


# Chapter 11.


def long_frequencies(head_dim: int, base: float, trained: int, wanted: int) -> torch.Tensor:
    """How fast each pair turns, in a text that is longer than those of the training.

    The model was trained with base ** (-2 i / head_dim) radians a position for pair i, on texts of
    `trained` tokens. It is not trained again; only its table is made with other frequencies.

    The goal: a small loss on long texts, and nearly the same as before on short ones. In
    `exercises.kit.rope_work`, qwen3-tiny reads stories two and three times as long as in its
    training. A loss of at most 0.45 and 0.70 is asked for; and of at most 0.42 for the first 2,048
    tokens, with the frequencies for twice as many.

    Args:
        head_dim: size of a head, even.
        base, trained: of the training.
        wanted: tokens of the longest text that has to be read. If that is not more than `trained`,
            the frequencies stay those of the training.

    Returns:
        [head_dim / 2], floats, finite and not negative: radians a position, of pair 0 first.
    """
    plain = base ** -(torch.arange(0, head_dim, 2) / head_dim)
    turns = trained * plain / (2 * math.pi)  # of each pair, in the longest text of the training
    # Who has gone round knows every angle. The others must not come where they have never been.
    return torch.where(turns >= 1, plain, plain * min(1.0, trained / wanted))


# Chapter 12.


def half_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm on a chip that has no float but float16.

    The goal, in `exercises.kit.norm_work`: qwen3-tiny with this norm everywhere has a loss of at
    most 0.38 on stories. With the formula of RMSNorm as it stands, all in float16, it has 2.16;
    with statistics in float32, 0.375.

    Each number has to be right to 0.005, or to 0.005 of itself if it is larger than 1, in rows with
    a root mean square of 0.05 or more and weights near 1, whatever float16 holds: up to 65,504. A
    row of zeros stays zeros.

    All tensors on the way are float16 (single numbers, booleans and integers do not count), and no
    number is taken out of a tensor. What comes in stays as it is.

    Args:
        x: [..., hidden_size], float16; hidden_size is at most 2,048.
        weight: [hidden_size], float16.
        eps: that of the norm, 1e-6; it may be left out where it makes no difference.

    Returns:
        [..., hidden_size], float16: each row divided by its root mean square, times the weight.
    """
    top = x.abs().amax(dim=-1, keepdim=True).clamp_min(1e-4)  # a row of zeros is divided by something, too
    small = x / top  # from -1 to 1; whatever the row was divided by, the norm takes it out again
    return small * torch.rsqrt(small.square().mean(dim=-1, keepdim=True) + eps) * weight


# Chapter 13.


def quick_head(table: Tensor, examples: Tensor) -> Callable[[Tensor], Tensor]:
    """Make a head that finds the best token without looking at all rows.

    The goal: along stories that are not among the examples, it finds the token with the largest
    logit at least 99 times in 100, with at most 25 % of the multiplications of the plain head,
    which are one for each number of `table` and each hidden state.

    - Whatever you do in here, once for a model, costs nothing.
    - What counts is done by the function that you return: each multiplication (a division or a
      power, too) of floats. Comparing, sorting, indexing and adding are free.

    Args:
        table: [vocab_size, hidden_size], the rows of the head. Any model's.
        examples: [n, hidden_size], hidden states as the head meets them, n at least 1.

    Returns:
        a function that is given hidden states, [m, hidden_size], m at least 1, and returns the ids
        of m tokens, [m] int64.
    """
    directions = torch.linalg.svd(examples.T @ examples).U[:, : max(1, table.shape[1] // 6)]
    rough = table @ directions
    count = min(len(table), 64)

    def find(hidden: Tensor) -> Tensor:
        few = ((hidden @ directions) @ rough.T).topk(count).indices
        logits = (table[few] @ hidden.unsqueeze(-1)).squeeze(-1)
        return few.gather(1, logits.argmax(-1, keepdim=True)).flatten()

    return find


# Chapter 14.


def my_rule(logits: torch.Tensor, texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """A sampling rule of your own: bold in stories, sure in sums.

    The goal, in `exercises.kit.story_work`: temperature 0.8 with top-p 0.95 chooses among 1.68
    tokens at an average place of a story, and writes 99.24 % of the tasks right. At least 1.75
    choices are asked for, and at least 99.3 %. What it chooses in stories has to be likely: a mean
    log-probability of at least -0.65, as the model sees it.

    The rule is all there is: the next token of a row is drawn from the softmax of what comes back.
    A row is treated the same alone and in any batch, and what came in stays as it is.

    Args:
        logits: [num_seqs, vocab_size] float32, as the model gives them.
        texts: for each row, the tokens of its answer so far; at first there are none.

    Returns:
        [num_seqs, vocab_size] float32 logits; -inf for tokens that must not be drawn, but not for
        all tokens of a row.
    """
    chances = logits.softmax(dim=-1)
    entropy = -(chances * chances.clamp_min(1e-30).log()).sum(dim=-1, keepdim=True)
    # Two candidates are a doubt, and the better one is taken; many are a choice.
    temperatures = torch.where(entropy < 0.7, 0.05, 1.2)
    unlikely = logits < logits.amax(dim=-1, keepdim=True) + math.log(0.01)
    return (logits / temperatures).masked_fill(unlikely, -torch.inf)


# Chapter 15.


def read_early(early: Tensor, late: Tensor, new: Tensor) -> Tensor:
    """Guess what the last layers will make of a token, two layers before the end.

    The goal: on stories that are none of the known ones, the head finds the same token most likely
    in your guess as in what the whole model really makes, at least 50 times in 100. The plain lens,
    which is the last norm applied to the early stream, comes to 45.5. No weight of the model is
    given; what its last layers do to a stream can be seen in the known tokens.

    A row of the result may depend on all of `early` and `late`, and of `new` only on its own row.

    Args:
        early: [num_known, hidden_size] float32, the streams of known tokens after six of eight
            layers.
        late: [num_known, hidden_size] float32, of the same tokens in the same order: what the head
            reads at the end, normalized already.
        new: [num_tokens, hidden_size] float32, the streams of other tokens after six layers.

    Returns:
        [num_tokens, hidden_size] float32: what the head shall read for these. The arguments stay as
        they are.
    """

    def inputs(stream: Tensor) -> Tensor:
        scaled = F.normalize(stream, dim=-1) * stream.shape[-1] ** 0.5
        return torch.cat((scaled, torch.ones(len(stream), 1)), dim=-1)

    x = inputs(early)
    pull = torch.eye(x.shape[-1])  # keeps the numbers small where the known tokens say little
    return inputs(new) @ torch.linalg.solve(x.T @ x + pull, x.T @ late)


# Chapter 16.


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


# Chapter 17.

# A kernel is a list of operations, and each of these names the tensors that it uses, and the one that it makes.
Kernels = Sequence[Sequence[tuple[Sequence[str], str]]]


def bytes_moved(kernels: Kernels, sizes: Mapping[str, int], outputs: Collection[str]) -> int:
    """Bytes that cross a GPU's memory while kernels run one after the other.

    A kernel does one operation, or several that were fused.

    - It reads each tensor that its operations use and that it does not make itself: once, however
      many of them use it. What an earlier kernel has read is read again.
    - What it makes stays inside it, and costs nothing, unless somebody else wants it: a later
      kernel uses it, or it is one of `outputs`. Then it is written, once.

    Args:
        kernels: in the order in which they run; each is a list of operations, in their order. An
            operation is a pair: the names of the tensors that it uses, and the name of the one
            that it makes. No name is made twice.
        sizes: bytes of each tensor, by name.
        outputs: names of made tensors that are needed after the last kernel.

    Returns:
        the bytes that are read and written, an `int`.
    """
    total = 0
    for i, kernel in enumerate(kernels):
        made = {name for _, name in kernel}
        used = {name for names, _ in kernel for name in names}
        wanted = {name for other in kernels[i + 1 :] for names, _ in other for name in names}
        written = made & (wanted | set(outputs))
        total += sum(sizes[name] for name in (used - made) | written)
    return total


def end_of_step(launches: Sequence[float], kernels: Sequence[float]) -> float:
    """Seconds from the beginning of a step until its last kernel is done.

    The CPU launches the kernels one after the other, without waiting for them: each call takes it
    some time, and when it returns the kernel is in the GPU's queue. The GPU runs one kernel at a
    time, in this order. A kernel begins at once when it is in the queue and the one before it is
    done.

    Args:
        launches: seconds of the CPU for each call, a list or a tuple; it stays as it is.
        kernels: seconds of the GPU for each kernel; as many, and likewise.

    Returns:
        seconds. A step without kernels takes 0.
    """
    launched = done = 0.0
    for launch, kernel in zip(launches, kernels, strict=True):
        launched += launch
        done = max(launched, done) + kernel
    return done


def my_lever(model: torch.nn.Module, sampler: torch.nn.Module) -> None:
    """Make a plain engine faster from outside, without a line of it changed.

    The goal: in `exercises.kit.lever_work`, 32 short questions at once on one core of a CPU, the
    engine with the lever is at least 1.1 times as fast as the one without. What counts is the
    median of seven runs, each beside one of the plain engine; what is timed is computing.

    The seam is that of all levers: it is called once, with the modules of a loaded engine, and
    gives some of them another `forward` or other methods; `swap` is there for that, and `F`, which
    is `torch.nn.functional`. Nothing else of the engine is touched.

    With any requests, every answer has the very same greedy tokens as without it, and the same
    log-probabilities up to rounding: with shared blocks, with prompts in pieces, with tables in
    any order, alone and in a crowd.

    Args:
        model: a `nanovllm.models.qwen3.Qwen3ForCausalLM`, with all its layers.
        sampler: a `nanovllm.layers.sampler.Sampler`.
    """

    class Batched(Attention):
        def attend(self, q: Any, k: Any, v: Any, context: Any) -> torch.Tensor:
            if context.is_prefill:
                return super().attend(q, k, v, context)
            table = context.block_tables  # shorter ones are filled up with -1, the last block: masked below
            keys, values = (cache[table].flatten(1, 2).transpose(1, 2) for cache in (self.k_cache, self.v_cache))
            is_there = torch.arange(keys.shape[2], device=q.device) < context.context_lens[:, None]
            q = q.unflatten(1, (self.num_kv_heads, -1))  # the heads of a group share their keys
            mask = is_there[:, None, None]
            return F.scaled_dot_product_attention(q, keys, values, mask, scale=self.scale).flatten(1, 2)

    swap(model, Attention, Batched)


# Chapter 18.

Beam = tuple[list[int], float]  # new tokens, and the sum of their log-probabilities
Ask = Callable[[list[list[int]]], Sequence[Mapping[int, float]]]


def beam_search(ask: Ask, prompt: list[int], width: int, steps: int, eos: set[int]) -> list[Beam]:
    """Continue a text in several ways at once, and find those that are most likely as a whole.

    At first there is one beam, which is empty. In each step every beam is continued by every token
    that the model names for it. Those that now end with an end token are done: they are kept, and
    never continued. Of the others, of all beams together, the `width` most likely are the beams
    of the next step. Likely means: the sum of the log-probabilities of all new tokens.

    Args:
        ask: the engine. For a list of texts it gives, in this order, a dict of next tokens with
            their log-probabilities each. It is asked once a step, about all beams, so that they
            run as one batch, and never about none.
        prompt: its token ids; the list stays as it is.
        width: the most beams, at least 1.
        steps: the most of them, and so the most tokens of a continuation; at least 1.
        eos: ids of the end tokens.

    Returns:
        the `width` most likely of all that are done and of the beams of the last step (fewer,
        if there are fewer), best first: pairs of their tokens, without the prompt, and their sum.
    """
    beams: list[Beam] = [([], 0.0)]
    done: list[Beam] = []
    for _ in range(steps):
        found = ask([prompt + tokens for tokens, _ in beams])
        longer = [
            ([*tokens, token_id], total + logprob)
            for (tokens, total), logprobs in zip(beams, found, strict=True)
            for token_id, logprob in logprobs.items()
        ]
        done += [beam for beam in longer if beam[0][-1] in eos]
        going_on = [beam for beam in longer if beam[0][-1] not in eos]
        beams = sorted(going_on, key=lambda beam: -beam[1])[:width]
        if not beams:
            break
    return sorted(done + beams, key=lambda beam: -beam[1])[:width]


def propose(token_ids: list[int], n: int, k: int) -> list[int]:
    """Guess how a text goes on: the way it went on when its last words stood there before.

    The last `n` tokens are looked for earlier in the text. Of the places where they all stand, in
    this order, the latest counts; it may overlap with the end, but is not the end itself.

    Args:
        token_ids: prompt and answer so far; the list stays as it is.
        n: how many tokens have to be the same, at least 1.
        k: the most tokens to propose, at least 1.

    Returns:
        the tokens that followed there, at most `k`; fewer if the text ends before. An empty list if
        there is no such place.
    """
    for start in range(len(token_ids) - n - 1, -1, -1):
        if token_ids[start : start + n] == token_ids[-n:]:
            return token_ids[start + n : start + n + k]
    return []


def accept(draft: list[int], choices: list[int], eos: Collection[int]) -> list[int]:
    """The tokens that one call of the model adds to a text, so that it is what greedy would write.

    The model has read the text and a draft behind it, and says what it would write at each place.

    Args:
        draft: the proposed tokens, maybe none; the list stays as it is, as does `choices`.
        choices: one more than the draft has tokens. `choices[0]` is the model's token after the
            text, `choices[1]` its token after the text and `draft[0]`, and so on; the last one
            comes after the whole draft.
        eos: ids of the end tokens. Behind the first one nothing is added.

    Returns:
        at least one token, and as many as can be known to be the model's from this call.
    """
    added = []
    for i, choice in enumerate(choices):
        added.append(choice)
        if choice in eos or draft[i : i + 1] != [choice]:
            break
    return added


def my_proposer(seen: list[list[int]]) -> Callable[[list[int]], list[int]]:
    """A proposer of your own, which has read what the model wrote before.

    The goal: few calls of the model. On 16 stories of `exercises.kit.draft_work`, none of which is
    among the seen, `propose` with n=1 comes to 1.17 tokens a call; at least 2.5 are asked for.

    Args:
        seen: token ids of 32 other texts, prompts and answers; they stay as they are.

    Returns:
        a function of a text, prompt and answer so far, as a list of ids that stays as it is. It
        gives the tokens that may come next, a list: at most 4 of it count, and it may be empty. It
        is called before each call of the model, so it has to be quick: 10 ms on average at most.
    """
    followed: dict[tuple[int, ...], list[int]] = {}
    for text in seen:
        for n in range(1, 7):
            for end in range(n, len(text)):
                followed[tuple(text[end - n : end])] = text[end : end + 4]

    def propose(token_ids: list[int]) -> list[int]:
        for n in range(6, 0, -1):
            if draft := followed.get(tuple(token_ids[-n:])):
                return draft
        return []

    return propose
