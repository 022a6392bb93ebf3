"""Thousands of requests through a pool that is much too small for them, looked at after every step."""

import gc
import random
import time

import psutil
import pytest
import torch

from nanovllm import LLM, SamplingParams
from nanovllm.utils.context import get_context

from .conftest import a_tenth, make_tiny_model
from .oracles import check_block_manager
from .reference import assert_clean

VOCAB_SIZE, BLOCK_SIZE, NUM_BLOCKS, MAX_MODEL_LEN, EOS = 64, 4, 24, 72, 0
MASK = 2**64 - 1


def mix(value):
    """The finalizer of SplitMix64: every bit of the result depends on every bit of the value."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


class FakeModel:
    """Predicts the next token from a hash of everything that attention would see in the KV cache.

    What it writes for a token depends on what is stored for all before it, as keys and values do. So a
    wrong, shared too early or overwritten block shows as a wrong token.
    """

    def __init__(self):
        self.slots = {}

    def run_model(self, input_ids, positions):
        context = get_context()
        token_ids, slots = input_ids.tolist(), context.slot_mapping.tolist()
        starts = context.query_starts
        num_seqs = len(starts) - 1
        positions = positions.tolist()
        for i in range(num_seqs):
            for j in range(starts[i], starts[i + 1]):
                before = self.slots[self.slot(context, slots, starts, i, positions[j] - 1)] if positions[j] else 0
                self.slots[slots[j]] = mix(before + token_ids[j] + 1)
        logits = torch.zeros(num_seqs, VOCAB_SIZE)
        for i in range(num_seqs):
            length = positions[starts[i + 1] - 1] + 1
            seen = [self.slots[self.slot(context, slots, starts, i, position)] for position in range(length)]
            logits[i, predict(seen)] = 1.0
        return logits

    @staticmethod
    def slot(context, slots, starts, i, position):
        if context.block_tables is None:  # a prefill without cached tokens
            return slots[starts[i] + position]
        return context.kv_blocks[i][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


def predict(seen):
    return mix(sum((2 * i + 1) * value for i, value in enumerate(seen)) & MASK) % VOCAB_SIZE


def expected_tokens(prompt, params):
    """The same model with the whole sequence before it."""
    seen, token_ids = [], list(prompt)
    for token_id in token_ids:
        seen.append(mix((seen[-1] if seen else 0) + token_id + 1))
    while True:
        token_ids.append(predict(seen))
        seen.append(mix(seen[-1] + token_ids[-1] + 1))
        is_end = token_ids[-1] in params.stop_token_ids or (token_ids[-1] == EOS and not params.ignore_eos)
        if is_end or len(token_ids) - len(prompt) == params.max_tokens or len(token_ids) == MAX_MODEL_LEN:
            return token_ids[len(prompt) :]


class Planted(Exception):
    pass


class Soak:
    """Random arrivals, aborts and failing steps; every result is compared, every state is checked."""

    def __init__(self, llm, num_requests, expect, seed=0):
        self.llm, self.num_requests, self.expect = llm, num_requests, expect
        self.rng = random.Random(seed)
        self.stems = [[self.rng.randrange(VOCAB_SIZE) for _ in range(40)] for _ in range(6)]
        self.live, self.steps, self.added, self.aborted, self.failed_steps = {}, 0, 0, 0, 0
        self.prompt_tokens, self.hit_tokens = 0, 0

    def draw_request(self):
        rng = self.rng
        stem = rng.choice(self.stems)[: rng.randrange(40)] if rng.random() < 0.7 else []
        # With two tokens to choose from, blocks are often equal where what stands before them is not.
        alphabet = rng.choice([2, VOCAB_SIZE])
        prompt = stem + [rng.randrange(alphabet) for _ in range(rng.randrange(0 if stem else 1, 16))]
        if self.live and rng.random() < 0.2:  # exactly what another one has, to the end of a block
            other = rng.choice(list(self.live.values()))[2].token_ids
            prompt = other[: max(1, len(other) // BLOCK_SIZE) * BLOCK_SIZE][:50]
        return prompt, SamplingParams(
            temperature=0.0,
            max_tokens=rng.choice([1, 2, 5, 9, 20, 60]),
            ignore_eos=rng.random() < 0.3,
            stop_token_ids=[rng.randrange(VOCAB_SIZE)] if rng.random() < 0.3 else None,
        )

    def run(self):
        while self.added < self.num_requests or not self.llm.is_finished():
            self.arrive()
            if self.live and self.rng.random() < 0.03:
                self.abort(self.rng.choice(list(self.live)))
            self.step()
            self.check_state()
        assert not self.live
        assert_clean(self.llm)

    def arrive(self):
        for _ in range(self.rng.choice([0, 0, 1, 2, 3, 6])):
            if self.added < self.num_requests and len(self.live) < 40:
                prompt, params = self.draw_request()
                seq_id = self.llm.add_request(prompt, params)
                self.live[seq_id] = (prompt, params, self.llm.llm_engine.requests[seq_id].seq)
                self.added += 1

    def abort(self, seq_id):
        prompt, params, _ = self.live.pop(seq_id)
        output = self.llm.abort(seq_id)
        assert output["finish_reason"] == "abort" and self.llm.abort(seq_id) is None
        token_ids = output["token_ids"]
        assert token_ids == self.expect(prompt, params)[: len(token_ids)]
        self.aborted += 1

    def step(self):
        self.steps += 1
        try:
            finished, _ = self.llm.step()
        except Planted:
            self.failed_steps += 1
            return
        for seq_id, token_ids in finished:
            prompt, params, seq = self.live.pop(seq_id)
            assert token_ids == self.expect(prompt, params), (prompt, params)
            self.prompt_tokens += len(prompt)
            self.hit_tokens += seq.num_prefix_hit_tokens

    def check_state(self):
        scheduler = self.llm.scheduler
        queued = [*scheduler.waiting, *scheduler.running]
        assert sorted(seq.seq_id for seq in queued) == sorted(self.live) == sorted(self.llm.llm_engine.requests)
        assert len(scheduler.running) <= self.llm.config.max_num_seqs
        check_block_manager(scheduler.block_manager, queued)


def soak(llm, num_requests, expect, label):
    warm_up = Soak(llm, num_requests // 10, expect, seed=1)
    warm_up.run()
    gc.collect()
    memory, start = psutil.Process().memory_info().rss, time.perf_counter()
    soak = Soak(llm, num_requests, expect)
    soak.run()
    gc.collect()
    growth = psutil.Process().memory_info().rss - memory
    print(
        f"\n{label}: {num_requests} requests, {soak.steps} steps ({soak.failed_steps} failed), {soak.aborted} aborted, "
        f"{llm.scheduler.num_preemptions} preemptions, prefix hit rate {soak.hit_tokens / soak.prompt_tokens:.2f}, "
        f"{time.perf_counter() - start:.1f} s, {growth / 1e6:+.1f} MB memory"
    )
    assert soak.aborted > num_requests // 100
    assert soak.hit_tokens > 0.1 * soak.prompt_tokens
    return growth


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("soak") / "model", vocab_size=VOCAB_SIZE, num_hidden_layers=1)


OPTIONS = {
    "kvcache_block_size": BLOCK_SIZE,
    "num_kvcache_blocks": NUM_BLOCKS,
    "max_model_len": MAX_MODEL_LEN,
    "max_num_batched_tokens": 24,
    "max_num_seqs": 12,
}


def soak_fake_model(path, num_requests, failure_rate):
    with LLM(path, device="cpu", **OPTIONS) as llm:  # where no CUDA graph stands in for the fake model
        model, rng = FakeModel(), random.Random(2)

        def run_model(*args):
            if rng.random() < failure_rate:
                raise Planted
            return model.run_model(*args)

        llm.llm_engine.model_runner.run_model = run_model
        growth = soak(llm, num_requests, expected_tokens, "fake model")
        assert llm.scheduler.num_preemptions > num_requests // 200
        assert len(llm.llm_engine.requests) == len(llm.added) == 0
        return growth


def test_soak(path):
    soak_fake_model(path, 600, failure_rate=0.01)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_soak_20000_requests_or_a_tenth(path):
    growth = soak_fake_model(path, a_tenth(20_000), failure_rate=0.002)
    assert growth < 8e6


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_soak_a_real_model(path):
    """Tokens of a crowded engine are those of one that runs a request at a time without a cache."""
    roomy = OPTIONS | {"num_kvcache_blocks": 100, "max_num_batched_tokens": 1000, "max_num_seqs": 1}
    with LLM(path, enable_prefix_caching=False, **roomy) as one_by_one, LLM(path, **OPTIONS) as llm:
        soak(
            llm,
            400,
            lambda prompt, params: one_by_one.generate(prompt, params, use_tqdm=False)[0]["token_ids"],
            "real model",
        )
