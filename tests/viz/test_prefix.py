"""The prefix explorer and its simulations agree with the engine."""

import itertools
import random

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.engine.block_manager import BlockManager
from nanovllm.viz.prefix import (
    describe_prompts,
    describe_simulation,
    draw_prompts,
    explain,
    first_difference,
    measure_waste,
    simulate,
    simulation_table,
)


def random_prompts(rng):
    common = [rng.randrange(3) for _ in range(40)]
    prompts = []
    for _ in range(rng.randint(2, 5)):
        shared = rng.randint(0, 40)
        prompts.append(common[:shared] + [rng.randrange(3) for _ in range(rng.randint(1, 12))])
    return prompts


def test_explained_hits_are_those_of_the_engine():
    rng = random.Random(0)
    for block_size in (1, 3, 16):
        options = {"kvcache_block_size": block_size, "num_kvcache_blocks": 800, "max_model_len": 64}
        prompts = random_prompts(rng) + random_prompts(rng)
        with LLM("qwen3-tiny", device="cpu", **options) as llm:
            params = SamplingParams(max_tokens=1, ignore_eos=True)
            real = [llm.generate(prompt, params, use_tqdm=False)[0]["num_cached_tokens"] for prompt in prompts]
        explained = explain(prompts, block_size)
        assert [prompt.num_cached_tokens for prompt in explained] == real
        assert any(real)
        for prompt in explained:
            hits = sum(block.state == "hit" for block in prompt.blocks)
            assert hits * block_size == prompt.num_cached_tokens


def test_states_of_blocks():
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 0, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8]]
    first, second, third = explain(prompts, 4)
    assert [block.state for block in first.blocks] == ["miss", "miss", "partial"]
    assert [block.state for block in second.blocks] == ["hit", "miss", "partial"]
    # The whole third prompt is known, but its last token has to be computed.
    assert [block.state for block in third.blocks] == ["hit", "last"]
    assert (first.first_difference, second.first_difference, third.first_difference) == (None, 6, None)
    chain = BlockManager.compute_hash([5, 6, 7, 8], BlockManager.compute_hash([1, 2, 3, 4]))
    assert first.blocks[1].hash == f"{chain:016x}"
    assert second.blocks[0].block_id == first.blocks[0].block_id


def test_without_chaining_blocks_of_other_prefixes_are_taken():
    prompts = [[1, 2, 3, 4, 5, 6], [9, 9, 3, 4, 7]]
    chained = explain(prompts, 2)[1]
    assert [block.state for block in chained.blocks] == ["miss", "miss", "partial"]
    unchained = explain(prompts, 2, chained=False)[1]
    assert [block.state for block in unchained.blocks] == ["miss", "false hit", "partial"]
    assert unchained.num_cached_tokens == 2
    text = describe_prompts(explain(prompts, 2, chained=False))
    assert "B would read keys and values of another prefix" in text
    assert explain(prompts, 2, chained=False)[0].num_cached_tokens == 0


def test_without_chaining_true_hits_stay():
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 4]]
    assert [b.state for b in explain(prompts, 2, chained=False)[1].blocks] == ["hit", "hit", "partial"]
    assert [b.state for b in explain(prompts, 2, chained=False)[2].blocks] == ["hit", "last"]


def test_a_learners_hash_function_is_used():
    calls = []

    def forgets_the_tokens(token_ids, prefix=-1):
        calls.append((list(token_ids), prefix))
        return 7 if prefix == -1 else 8

    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]]
    explained = explain(prompts, 2, forgets_the_tokens)
    assert {block.hash for prompt in explained for block in prompt.blocks} == {f"{7:016x}", f"{8:016x}", None}
    assert ([3, 4], 7) in calls
    # The block manager compares tokens, too: a bad hash finds less, never the wrong thing.
    assert explain([[1, 2, 3], [4, 5, 6]], 2, forgets_the_tokens)[1].num_cached_tokens == 0


def test_a_learners_block_manager_is_used():
    class NeverShares(BlockManager):
        def find_cached_blocks(self, seq):
            return []

    assert explain([[1, 2, 3], [1, 2, 3]], 2, manager_class=NeverShares)[1].num_cached_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "earlier", "expected"),
    [([1, 2], [], None), ([1, 2], [[1, 3]], 1), ([1, 2], [[1, 2, 3]], None), ([1, 2, 3], [[1, 2], [9]], 2)],
)
def test_first_difference(prompt, earlier, expected):
    assert first_difference(prompt, earlier) == expected


def test_typed_markup_is_only_text():
    svg = draw_prompts(explain([[1, 2, 3]], 2), [["<script>", "&", '"']], 2).svg()
    assert "<scri" not in svg and "&lt;scri" in svg


def test_waste_by_hand():
    small, large = measure_waste([5, 6], 4, [2, 4])
    assert (small.cached, large.cached) == ([0, 4], [0, 4])
    # Block size 2: A takes 3 blocks; B shares 2 of them and takes 1.
    assert (small.blocks, small.slots, small.wasted, small.table_entries, small.reused) == (4, 8, 1, 6, 4)
    assert (large.blocks, large.slots, large.wasted, large.table_entries, large.reused) == (3, 12, 5, 4, 4)


def test_larger_blocks_never_waste_less_nor_share_more():
    rows = measure_waste([37, 150, 90, 12], 32, [1, 2, 4, 8, 16, 32, 64, 128])
    assert rows[0].wasted == 0
    for small, large in itertools.pairwise(rows):
        assert large.wasted >= small.wasted
        assert large.reused <= small.reused
        assert large.table_entries < small.table_entries


@pytest.fixture(scope="module")
def seventy_percent():
    return simulate(num_requests=100, share=0.7)


def test_seventy_of_a_hundred_requests_share(seventy_percent):
    sharing = [request for request in seventy_percent.requests if request.shares]
    assert (len(seventy_percent.requests), len(sharing)) == (100, 70)
    # The first of them computes the prefix; all others find its 64 tokens.
    assert [request.cached_tokens for request in sharing] == [0] + [64] * 69
    assert all(request.cached_tokens == 0 for request in seventy_percent.requests if not request.shares)
    total = sum(request.prompt_tokens for request in seventy_percent.requests)
    assert seventy_percent.hit_rate() == 69 * 64 / total
    assert seventy_percent.hit_rate(0) == 0


def test_the_cache_saves_what_it_found(seventy_percent):
    assert seventy_percent.prefill_tokens < seventy_percent.prefill_tokens_without_cache
    assert seventy_percent.steps < seventy_percent.steps_without_cache
    text = describe_simulation(seventy_percent, 100)
    assert "70 start with the common prefix, 69 found something in the cache" in text
    assert f"{seventy_percent.prefill_tokens} prefill tokens" in text


def test_tokens_are_computed_again_only_where_somebody_was_preempted(seventy_percent):
    roomy, tight = simulate(num_blocks=200), seventy_percent
    prompts = sum(request.prompt_tokens for request in roomy.requests)
    assert roomy.preemptions == roomy.preemptions_without_cache == 0
    assert roomy.prefill_tokens_without_cache == prompts
    assert roomy.prefill_tokens == prompts - sum(request.cached_tokens for request in roomy.requests)
    assert tight.prefill_tokens_without_cache > prompts and tight.preemptions_without_cache > tight.preemptions > 0
    row = f"again</td><td>{tight.preemptions}</td><td>{tight.preemptions_without_cache}</td>"
    assert row in simulation_table(tight)


def test_without_a_common_prefix_nothing_is_found():
    nothing = simulate(num_requests=20, share=0.0)
    assert nothing.hit_rate() == 0
    everything = simulate(num_requests=20, share=1.0)
    assert everything.hit_rate() > 0.6


def test_the_same_seed_gives_the_same_run(seventy_percent):
    assert simulate(num_requests=100, share=0.7) == seventy_percent
