"""The numbers of chapter 8 that learners read, and the days behind them."""

from itertools import combinations, pairwise

import pytest

from exercises.kit import graph_work, start_work
from exercises.kit.labs import choose_graph_sizes
from nanovllm.levers.cuda_graph import graph_batch_sizes


def test_the_numbers_that_learners_read():
    day = graph_work.batch_sizes()
    assert graph_work.padding(graph_work.POWERS, day) == graph_work.POWERS_PAD == 28_621
    assert graph_work.padding(choose_graph_sizes(day, graph_work.LARGEST, graph_work.MOST), day) == 7_460
    assert graph_work.padding(graph_batch_sizes(graph_work.LARGEST), day) == 4_205
    assert len(graph_batch_sizes(graph_work.LARGEST)) == 35
    other = graph_work.batch_sizes(1)
    sizes = choose_graph_sizes(day, graph_work.LARGEST, graph_work.MOST)
    assert (graph_work.padding(sizes, other), graph_work.padding(graph_work.POWERS, other)) == (15_517, 19_794)


def test_ours_is_the_best_there_is():
    """By trying all, where there are few."""
    counts, largest = {1: 5, 2: 1, 4: 9, 5: 2, 9: 4}, 10
    for most in (1, 2, 3, 4):
        best = min(
            graph_work.padding([*some, largest], counts)
            for count in range(most)
            for some in combinations(range(1, largest), count)
        )
        assert graph_work.padding(choose_graph_sizes(counts, largest, most), counts) == best


def test_a_step_without_a_graph_is_an_error():
    with pytest.raises(ValueError, match="large enough for 9"):
        graph_work.padding([1, 8], {9: 1})


@pytest.mark.slow
@pytest.mark.parametrize("day", range(3))
def test_the_days_are_what_the_scheduler_does(day):
    assert graph_work.serve(day) == graph_work.batch_sizes(day)


def test_the_start_is_seen_stage_by_stage():
    llm, stages = start_work.timed_start("qwen3-tiny", device="cpu", num_kvcache_blocks=8, disabled_optimizations="all")
    llm.exit()
    names = [stage.name for stage in stages]
    assert names == ["config", "tokenizer", "ranks", "weights", "warm-up", "size of the pool", "pool", "scheduler"]
    inner = [stage for stage in stages if stage.name != "ranks"]
    for one, two in pairwise(inner):
        assert one.begin + one.seconds <= two.begin
    _, again = start_work.timed_start("qwen3-tiny", device="cpu", num_kvcache_blocks=8)
    assert [stage.name for stage in again] == names  # the first look has left nothing behind


def test_the_recorded_start_says_where_it_is_from():
    recorded = start_work.load_recorded()
    for name in ("gpu", "driver", "torch", "triton", "commit", "date", "command", "model"):
        assert recorded[name], name
    assert [name for name, *_ in recorded["stages"]][-2:] == ["graphs", "scheduler"]
    assert len(recorded["rows"]) == len(graph_batch_sizes(512))
