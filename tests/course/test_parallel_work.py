"""Simulated ranks do what real ones do, and the numbers of chapter 9 that learners read."""

import itertools
import sys

import pytest
import torch

from exercises.kit import parallel_work
from exercises.kit.labs import choose_cuts
from exercises.kit.parallel_work import Linear, NobodyThere, compute, numbers_sent, together, weights_held


def test_collectives_are_answered_as_by_real_ranks():
    def run(group):
        x = torch.tensor([1.0 + group.rank, 10.0])
        total = group.all_reduce(x)
        assert total is x
        first = group.broadcast(torch.tensor([float(group.rank)]))
        both = group.all_gather(torch.tensor([float(group.rank)]))
        gathered = group.gather(x[:1] + group.rank)
        return total.tolist(), first.tolist(), both.tolist(), gathered if gathered is None else gathered.tolist()

    done = together(2, run)
    assert done.results == [([3.0, 20.0], [0.0], [0.0, 1.0], [3.0, 4.0]), ([3.0, 20.0], [0.0], [0.0, 1.0], None)]
    assert [[kind for kind, _ in calls] for calls in done.calls] == [
        ["all_reduce", "broadcast", "all_gather", "gather"]
    ] * 2


@pytest.mark.parametrize(
    "run, says",
    [
        (lambda group: group.rank or group.all_reduce(torch.ones(1)), "that have ended"),
        (lambda group: (group.gather if group.rank else group.all_reduce)(torch.ones(1)), "different collectives"),
        (lambda group: group.all_reduce(torch.ones(1 + group.rank)), "different collectives"),
        (lambda group: [group.all_reduce(torch.ones(1)) for _ in range(9)], "more than 8"),
    ],
)
def test_who_waits_for_nobody_is_told(run, says):
    with pytest.raises(NobodyThere, match=says):
        together(2, run, most=8)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_simulated_ranks_compute_what_one_does(size):
    tokens = [5, 9, 700, 31]
    one, several = parallel_work.model_together(tokens, 1), parallel_work.model_together(tokens, size)
    torch.testing.assert_close(several.results[0], one.results[0], atol=1e-3, rtol=1e-3)
    assert several.results[1:] == [None] * (size - 1)
    kinds = [kind for kind, _ in several.calls[0]]
    assert kinds == ["all_reduce"] * 17 + ["gather"]


def test_the_numbers_that_learners_read():
    assert parallel_work.total_sent(parallel_work.row_everywhere) == 5_112
    assert parallel_work.total_sent(parallel_work.in_turn) == 2_616
    assert parallel_work.total_sent(choose_cuts) == 1_040 <= parallel_work.BAR
    for task in parallel_work.tasks():
        everywhere = ["replicated"] * len(task.linears)
        assert weights_held(task.linears, everywhere, task.num_ranks) > task.memory


def test_what_is_counted_is_what_is_sent():
    linears = [Linear("a", 4, 8, "each"), Linear("b", 8, 12, "norm"), Linear("c", 12, 4, "each")]
    for cuts in itertools.product(parallel_work.CUTS, repeat=3):
        assert compute(linears, cuts, 4) == (True, numbers_sent(linears, cuts, 4))
    assert numbers_sent(linears, ["row"] * 3, 1) == 0


@pytest.mark.parametrize("memory", [60, 70, 90, 120, 10_000])
def test_ours_is_the_best_there_is(memory):
    linears = [
        Linear("a", 4, 8, "each"),
        Linear("b", 8, 2, "norm"),
        Linear("c", 2, 10, "each"),
        Linear("d", 10, 4, "each"),
    ]
    fitting = [c for c in itertools.product(parallel_work.CUTS, repeat=4) if weights_held(linears, c, 2) <= memory]
    if fitting:
        cuts = choose_cuts(linears, 2, memory)
        best = min(numbers_sent(linears, c, 2) for c in fitting)
        assert tuple(cuts) in fitting and numbers_sent(linears, cuts, 2) == best


def test_the_recorded_speeds_say_where_they_are_from():
    recorded = parallel_work.load_recorded()
    for name in ("gpu", "driver", "torch", "triton", "commit", "date", "command", "environment"):
        assert recorded[name], name
    assert {row["ranks"] for row in recorded["rows"]} == {1, 2}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what is left of threads after a fork is the system's affair")
def test_a_forked_child_has_no_threads_and_no_key():
    told = parallel_work.forked()
    assert "child:  threads of Python 1" in told and "child:  gets the lock within 2 s: False" in told
    assert "parent: gets the lock within 2 s: True" in told
