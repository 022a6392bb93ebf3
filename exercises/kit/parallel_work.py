"""Ranks for chapter 9: several in one process, taking turns; two real ones at work; the chain of the open exercise.

A simulated rank runs until it needs the others, and waits there; when all wait, what they exchange is computed, and
each begins anew, with one more answer known. So nothing runs at the same time and nothing can hang, and what a rank
does is the very code that a real one runs.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanovllm.model_files import load_hf_config, resolve_model
from nanovllm.models import get_model_class
from nanovllm.utils.context import reset_context, set_context
from nanovllm.utils.loader import load_model
from nanovllm.utils.parallel_state import tensor_parallel_group

# Simulated ranks.


class NobodyThere(RuntimeError):
    """A rank waits in a collective, and another one never comes."""


class _Waits(BaseException):
    """A rank has come to a collective whose result is not known yet."""


class SimulatedGroup:
    """Stands in for a `TensorParallelGroup`; its collectives are answered by `together`.

    Args:
        rank, size: as there.
        answers: of the collectives that all ranks have come to already.
    """

    process_group = None

    def __init__(self, rank: int, size: int, answers: Sequence[Mapping[int, Tensor | None]] = ()) -> None:
        self.rank, self.size, self.answers = rank, size, answers
        self.calls = list[tuple[str, Tensor]]()

    def _meet(self, kind: str, x: Tensor) -> Tensor | None:
        self.calls.append((kind, x.detach().clone()))
        if len(self.calls) > len(self.answers):
            raise _Waits
        return self.answers[len(self.calls) - 1][self.rank]

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum over the ranks, in place, on every rank."""
        total = self._meet("all_reduce", x)
        assert total is not None
        return x.copy_(total)

    def broadcast(self, x: Tensor) -> Tensor:
        """Rank 0's, in place, on every rank."""
        first = self._meet("broadcast", x)
        assert first is not None
        return x.copy_(first)

    def gather(self, x: Tensor) -> Tensor | None:
        """All parts side by side on rank 0, None elsewhere."""
        return self._meet("gather", x)

    def all_gather(self, x: Tensor) -> Tensor:
        """All parts side by side, on every rank."""
        whole = self._meet("all_gather", x)
        assert whole is not None
        return whole.clone()


class Together(NamedTuple):
    """What ranks have done together.

    Args:
        results: what each rank returned.
        calls: kind and contribution of every collective, by rank.
    """

    results: list[Any]
    calls: list[list[tuple[str, Tensor]]]


def together(size: int, run: Callable[[Any], Any], most: int = 200) -> Together:
    """Call `run(group)` for each of `size` ranks that work together.

    Args:
        run: does the same each time it is called with the same rank.
        most: collectives.

    Raises:
        NobodyThere: not all ranks take part in a collective, or not in the same one.
    """
    answers = list[dict[int, Tensor | None]]()
    while len(answers) <= most:
        groups, results = [SimulatedGroup(rank, size, answers) for rank in range(size)], list[Any]()
        for group in groups:
            try:
                results.append(run(group))
            except _Waits:
                continue
        if len(results) == size:
            return Together(results, [group.calls for group in groups])
        if results:
            raise NobodyThere("some ranks wait in a collective for others that have ended")
        kinds = {(group.calls[-1][0], group.calls[-1][1].shape) for group in groups}
        if len(kinds) > 1:
            raise NobodyThere(f"ranks wait for each other in different collectives: {sorted(map(str, kinds))}")
        answers.append(_answer(groups[0].calls[-1][0], [group.calls[-1][1] for group in groups]))
    raise NobodyThere(f"there are more than {most} collectives")


def _answer(kind: str, parts: list[Tensor]) -> dict[int, Tensor | None]:
    if kind == "gather":
        return {rank: torch.cat(parts, -1) if rank == 0 else None for rank in range(len(parts))}
    whole = {"all_reduce": sum, "broadcast": lambda parts: parts[0], "all_gather": lambda parts: torch.cat(parts, -1)}
    return dict.fromkeys(range(len(parts)), whole[kind](parts))


def model_together(token_ids: list[int], size: int, model: str = "qwen3-tiny") -> Together:
    """Read a text with a model that is split over simulated ranks; rank 0 returns the logits of the next token."""
    path, models = resolve_model(model), list[nn.Module]()
    config = load_hf_config(path)
    for rank in range(size):
        with tensor_parallel_group(SimulatedGroup(rank, size)):  # type: ignore[arg-type]
            models.append(get_model_class(config)(config))
        load_model(models[rank], path)

    def run(group: SimulatedGroup) -> Any:
        for module in models[group.rank].modules():
            if hasattr(module, "group"):
                module.group = group  # type: ignore[assignment]
        ends = torch.tensor([0, len(token_ids)], dtype=torch.int32)
        set_context(is_prefill=True, cu_seqlens_q=ends, cu_seqlens_k=ends)
        try:
            hidden_states = models[group.rank](torch.tensor(token_ids), torch.arange(len(token_ids)))
            return models[group.rank].compute_logits(hidden_states)  # type: ignore[operator]
        finally:
            reset_context()

    with torch.inference_mode():
        return together(size, run)


# Real ones.


@contextmanager
def one_thread() -> Any:
    """Everything in this block computes with one thread, so that a comparison of ranks is fair."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_per_token(llm: Any, prompts: str | list[str], params: Any, rounds: int = 3) -> tuple[float, list[int]]:
    """The median time of a token of the first prompt in decode, after a first run, and its token ids."""
    found = []
    for _ in range(rounds + 1):
        answer, *_ = llm.generate(prompts, params, use_tqdm=False)
        found.append(answer["metrics"]["time_per_output_token"])
    return statistics.median(found[1:]), list(answer["token_ids"])


RECORDED = Path(__file__).parents[2] / "nanovllm" / "viz" / "data" / "ranks_h200.json"


def load_recorded() -> dict[str, Any]:
    """One GPU and two, as bench.py measured them."""
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def read_and_sent(config: Any, num_ranks: int, element_size: int = 2) -> tuple[float, float]:
    """Bytes of weights that a rank reads in a decode step of one sequence, and bytes that it sends."""
    hidden, heads = config["hidden_size"], 2 * (config["num_attention_heads"] + config["num_key_value_heads"])
    layer = hidden * heads * config["head_dim"] + 3 * hidden * config["intermediate_size"]
    layers, vocabulary = config["num_hidden_layers"], config["vocab_size"]
    read = (layers * layer + vocabulary * hidden) / num_ranks
    sent = (2 * layers + 1) * 2 * _gathered(hidden, num_ranks) + vocabulary / num_ranks
    return read * element_size, sent * element_size


# What a forked child finds: a lock that a thread held, and torch's threads, which are not there any more.
FORKED = """
import os, signal, sys, threading, time, warnings
import torch
warnings.simplefilter("ignore")
torch.set_num_threads(2)
numbers = torch.ones(2000, 2000)
numbers.exp().sum()
lock, is_held = threading.Lock(), threading.Event()
def hold():
    with lock:
        is_held.set()
        time.sleep(1)
threading.Thread(target=hold).start()
is_held.wait()
print("parent: threads of Python", threading.active_count(), flush=True)
child = os.fork()
if not child:
    signal.alarm(5)
    print("child:  threads of Python", threading.active_count(), flush=True)
    print("child:  gets the lock within 2 s:", lock.acquire(timeout=2), flush=True)
    numbers.exp().sum()
    print("child:  has computed", flush=True)
    os._exit(0)
code = os.waitpid(child, 0)[1]
print("parent: gets the lock within 2 s:", lock.acquire(timeout=2))
print("parent: the child", "was still computing after 5 s, and was ended" if code else "has ended by itself")
"""


def forked() -> str:
    """What a process and its forked child print; in a process of its own, because that child may hang."""
    if sys.platform == "win32":
        return "this system cannot fork"
    told = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=False)
    return told.stdout or told.stderr[-500:]


# The chain of the open exercise.

CUTS = ("column", "row", "replicated")
BAR = 1_300  # numbers a rank may send for a token in all tasks together; 1,040 is the least


class Linear(NamedTuple):
    """A matrix of a chain, without a bias.

    Args:
        name: for pictures.
        input_size, output_size: features; every rank number divides them.
        then: "norm" where something follows that needs the whole output, such as a norm; "each" where every number of
            the output is treated by itself.
    """

    name: str
    input_size: int
    output_size: int
    then: str

    @property
    def num_weights(self) -> int:
        """Numbers of the full matrix."""
        return self.input_size * self.output_size


class Task(NamedTuple):
    """A chain, and who is to compute it.

    Args:
        name: of the model.
        linears: one after the other; each takes what the one before has made.
        num_ranks: that share it.
        memory: weights that a rank has room for.
    """

    name: str
    linears: list[Linear]
    num_ranks: int
    memory: int


def weights_held(linears: Sequence[Linear], cuts: Sequence[str], num_ranks: int) -> int:
    """Weights that every rank holds."""
    return sum(
        linear.num_weights // (1 if cut == "replicated" else num_ranks)
        for linear, cut in zip(linears, cuts, strict=True)
    )


def numbers_sent(linears: Sequence[Linear], cuts: Sequence[str], num_ranks: int) -> int:
    """Numbers that a rank sends for one token, by counting alone; `compute` does it, and counts the same."""
    sent, is_whole = 0, True
    for n, (linear, cut) in enumerate(zip(linears, cuts, strict=True)):
        if cut != "row" and not is_whole:
            sent += _gathered(linear.input_size, num_ranks)
        is_whole = cut != "column"
        if cut == "row":
            sent += 2 * _gathered(linear.output_size, num_ranks)
        if not is_whole and (linear.then == "norm" or n == len(linears) - 1):
            sent, is_whole = sent + _gathered(linear.output_size, num_ranks), True
    return sent


def _gathered(size: int, num_ranks: int) -> int:
    """Numbers that each rank sends in an all-gather of `size`; in an all-reduce it is twice that."""
    return size * (num_ranks - 1) // num_ranks


def compute(linears: Sequence[Linear], cuts: Sequence[str], num_ranks: int, seed: int = 0) -> tuple[bool, int]:
    """Send two tokens through a chain on simulated ranks, cut like that.

    Returns:
        whether every rank has the result of the full chain, and how many numbers a rank sends for one token.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = [(linear.output_size, linear.input_size) for linear in linears]
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64) / shape[1] ** 0.5 for shape in shapes]
    x = torch.randn(2, linears[0].input_size, generator=generator, dtype=torch.float64)
    expected = x
    for linear, weight in zip(linears, weights, strict=True):
        expected = _then(linear, expected @ weight.T)

    def part(whole: Tensor, dim: int, rank: int) -> Tensor:
        return whole.tensor_split(num_ranks, dim)[rank]

    def run(group: SimulatedGroup) -> Tensor:
        now, is_whole = x, True
        for n, (linear, cut, weight) in enumerate(zip(linears, cuts, weights, strict=True)):
            if cut == "row":
                own = part(now, -1, group.rank) if is_whole else now
                now, is_whole = group.all_reduce(own @ part(weight, 1, group.rank).T), True
            else:
                now = now if is_whole else group.all_gather(now)
                is_whole = cut == "replicated"
                now = now @ (weight if is_whole else part(weight, 0, group.rank)).T
            if not is_whole and (linear.then == "norm" or n == len(linears) - 1):
                now, is_whole = group.all_gather(now), True
            now = _then(linear, now)
        return now

    done = together(num_ranks, run)
    is_right = all(torch.allclose(result, expected) for result in done.results)
    sent = 0
    for kind, tensor in done.calls[0]:
        whole = tensor.shape[-1] * (num_ranks if kind == "all_gather" else 1)
        sent += _gathered(whole, num_ranks) * (2 if kind == "all_reduce" else 1)
    return is_right, sent


def _then(linear: Linear, x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 if linear.then == "norm" else torch.tanh(x)


def tasks() -> list[Task]:
    """Three models to cut, a hundred times smaller than those that they are like."""
    plain = [
        Linear("qkv", 64, 96, "each"),
        Linear("o", 96, 64, "norm"),
        Linear("up", 64, 256, "each"),
        Linear("down", 256, 64, "norm"),
    ]
    narrow = [
        Linear("q down", 64, 16, "norm"),
        Linear("q up", 16, 128, "each"),
        Linear("o", 128, 64, "norm"),
        Linear("up", 64, 160, "each"),
        Linear("down", 160, 64, "norm"),
    ]
    towers = [
        Linear("in", 64, 192, "each"),
        Linear("squeeze", 192, 32, "each"),
        Linear("mix", 32, 32, "norm"),
        Linear("widen", 32, 256, "each"),
        Linear("out", 256, 64, "norm"),
    ]
    return [
        Task("plain", plain * 3, 2, 75_000),
        Task("narrow", narrow * 3, 4, 32_000),
        Task("towers", towers * 2, 4, 27_000),
    ]


def total_sent(choose: Callable[..., Sequence[str]]) -> int:
    """Numbers that a rank sends for one token in all tasks together."""
    total = 0
    for task in tasks():
        total += numbers_sent(task.linears, choose(task.linears, task.num_ranks, task.memory), task.num_ranks)
    return total


def row_everywhere(linears: Sequence[Linear], num_ranks: int, memory: int) -> list[str]:
    """A plain answer: each matrix by its columns, and an all-reduce after it."""
    return ["row"] * len(linears)


def in_turn(linears: Sequence[Linear], num_ranks: int, memory: int) -> list[str]:
    """Another one: column, row, column, row."""
    return [CUTS[n % 2] for n in range(len(linears))]
