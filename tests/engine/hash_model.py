"""An engine around a model made of hashes, whose every token depends on all the keys and values it can see.

A wrong block table, slot, hit, chunk or order changes the tokens, and the right ones are known from plain Python.
"""

from dataclasses import dataclass, field

import numpy as np
import torch

from nanovllm import SamplingParams
from nanovllm.layers.sampler import Sampler, SamplingMetadata
from nanovllm.utils.context import get_context
from tests.engine.ahead import make_llm
from tests.engine.conftest import EOS
from tests.engine.oracles import check_block_manager

VOCAB_SIZE = 320
SAMPLER = Sampler()
POOL_HOLDS = 60  # most tokens of a sequence in these tests; pools may hold less


def logits_for(state):
    """A row of logits that is a function of the hash `state`; ends come often."""
    row = np.random.default_rng(state & (2**63 - 1)).standard_normal(VOCAB_SIZE).astype(np.float32)
    row[EOS] = 5.0 if state % 15 == 0 else -5.0
    return torch.from_numpy(row)


def first_layer(token_id, position):
    return hash((token_id, position, 1))


class HashModel:
    """Two layers of attention by hashing, on a paged cache.

    Layer 1 keeps a token and its position in its slot; layer 2 a hash of all entries of layer 1 up to there. The
    next token is a hash of all entries of layer 2. Each layer writes the whole batch before any row reads.
    """

    def __init__(self, num_slots, block_size):
        self.block_size = block_size
        self.layers = [["never written"] * num_slots for _ in range(2)]
        self.num_calls = 0

    def __call__(self, input_ids, positions):
        self.num_calls += 1
        context = get_context()
        input_ids, positions = input_ids.tolist(), positions.tolist()
        assert len(input_ids) == len(positions) and min(input_ids) >= 0
        entries = [first_layer(token_id, position) for token_id, position in zip(input_ids, positions, strict=True)]
        entries = self.attend(0, entries, positions, context)
        rows = self.attend(1, entries, positions, context)
        last_rows = [row - 1 for row in context.cu_seqlens_q.tolist()[1:]] if context.is_prefill else range(len(rows))
        return torch.stack([logits_for(rows[row]) for row in last_rows])

    def slot(self, table, position):
        return table[position // self.block_size] * self.block_size + position % self.block_size

    def attend(self, layer, entries, positions, context):
        """Store the entries, then hash, for each row, all that it can see."""
        cache, slots = self.layers[layer], context.slot_mapping.tolist()
        assert len(set(slots)) == len(slots) == len(entries), "two tokens in one slot"
        for slot, entry in zip(slots, entries, strict=True):
            cache[slot] = entry
        if context.is_prefill:
            starts = context.cu_seqlens_q.tolist()
            kv_lens = context.cu_seqlens_k.diff().tolist()
            assert context.max_seqlen_k == max(kv_lens)
        else:
            starts, kv_lens = range(len(entries) + 1), context.context_lens.tolist()
        tables = None if context.block_tables is None else context.block_tables.tolist()
        output = []
        for i, kv_len in enumerate(kv_lens):
            rows = range(starts[i], starts[i + 1])
            if tables is None:
                assert kv_len == len(rows)
                visible = entries[starts[i] : starts[i + 1]]
            else:
                visible = [
                    cache[tables[i][p // self.block_size] * self.block_size + p % self.block_size]
                    for p in range(kv_len)
                ]
            for row in rows:
                position = kv_len - (starts[i + 1] - row)
                assert positions[row] == position
                output.append(hash((layer, *visible[: position + 1])))
        return output


def next_token(token_ids, params):
    """What the model says after `token_ids`, without any cache."""
    layer = [first_layer(token_id, position) for position, token_id in enumerate(token_ids)]
    layer = [hash((0, *layer[: position + 1])) for position in range(len(layer))]
    logits = logits_for(hash((1, *layer)))
    if params.temperature == 0:
        return int(logits.argmax())
    metadata = SamplingMetadata(
        torch.tensor([params.temperature]), torch.tensor([params.seed]), torch.tensor([len(token_ids)])
    )
    return int(SAMPLER(logits.unsqueeze(0), metadata))


@dataclass
class Expected:
    """What a request must give, alone or in any company."""

    prompt: list
    params: SamplingParams
    token_ids: list = field(default_factory=list)
    reason: str = ""


def expected(prompt, params, max_model_len=POOL_HOLDS, pool=10**6):
    """One by one: the plain loop of generation."""
    result = Expected(list(prompt), params)
    while not result.reason:
        if len(prompt) + len(result.token_ids) > pool:
            result.reason = "error"
            break
        token_id = next_token(list(prompt) + result.token_ids, params)
        result.token_ids.append(token_id)
        if token_id == EOS and not params.ignore_eos:
            result.reason = "stop"
        elif len(result.token_ids) == params.max_tokens or len(prompt) + len(result.token_ids) >= max_model_len:
            result.reason = "length"
    return result


def make_engine(path, optimistic=False, runs_ahead=False, **options):
    """An engine around the model in the directory `path`, with its forward pass replaced by `HashModel`.

    `optimistic` admits whatever fits now, so that sequences are preempted often; `runs_ahead` is one step ahead.
    """
    defaults = {
        "kvcache_block_size": 4,
        "num_kvcache_blocks": 30,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 24,
        "max_model_len": POOL_HOLDS,
        "device": "cpu",
        "attention_backend": "sdpa",
        "load_format": "dummy",
    }
    if optimistic:
        defaults["disabled_optimizations"] = ["expected_length"]
    llm = make_llm(str(path), runs_ahead, **(defaults | options))
    config = llm.config
    llm.fake = HashModel(config.num_kvcache_blocks * config.kvcache_block_size, config.kvcache_block_size)
    llm.llm_engine.model_runner.run_model = llm.fake
    return llm


def check_clean(llm):
    """Nothing is left of any request, and no block is held."""
    assert llm.is_finished() and not llm.llm_engine.requests
    assert llm.scheduler.is_finished()
    check_block_manager(llm.scheduler.block_manager, [])
    assert llm.step() == ([], 0)
