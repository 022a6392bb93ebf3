"""What chapter 18 shows of a learner's engine as a whole: its lines, tests and speed; and a review of all chapters."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import nanovllm

from . import lever_work, manifest, predictions
from .assemble import Mine, with_options
from .manifest import ROOT

# The parts of the core, and what is in them; levers, pictures, server, ranks and kernels are no part of it.
PARTS = {
    "engine": "blocks, scheduler, step loop, model runner",
    "layers": "linear, attention, norms, sampler",
    "models": "the model",
    "utils": "context, loader",
    "around": "LLM, config, prompts, outputs",
}
BESIDE = (
    *(
        "levers/",
        "layers/kernels/",
        "layers/triton_attention.py",
        "models/llama.py",
        "layers/flash_attention.py",
        "tiles.py",
        "measure.py",
    ),
    *("engine/worker.py", "engine/trace.py", "engine/beam_search.py", "utils/parallel_state.py"),
    *("viz", "serve/", "labs.py"),
)

# Quick tests of the engine, of blocks, sequences, layers and sampling up to whole texts beside Hugging Face's.
TESTS = ("test_sequence.py", "test_block_manager.py", "test_scheduler.py", "test_layers.py", "test_hf_parity.py")
NO_LEVERS = ("--disabled-optimizations", "all")
PAIRS = 9


class Lines(NamedTuple):
    """Code lines of a part of the engine: in functions that the learner wrote, and others."""

    yours: int
    ours: int


def lines(me: Mine) -> dict[str, Lines]:
    """Whose the code of the core is, part by part. No blank line counts, no comment, no docstring."""
    theirs: dict[str, set[int]] = {}
    for piece in me.package.pieces:
        theirs.setdefault(piece.path, set()).update(range(piece.first, piece.last + 1))
    code_lines = me.package.module("levers.table").code_lines
    counts = dict.fromkeys(PARTS, Lines(0, 0))
    for path in sorted(me.package.folder.rglob("*.py")):
        name = path.relative_to(me.package.folder).as_posix()
        if name.startswith(BESIDE):
            continue
        part = name.split("/")[0] if "/" in name else "around"
        code = code_lines(path.read_text(encoding="utf-8"))
        yours = len(code & theirs.get(name, set()))
        counts[part] = Lines(counts[part].yours + yours, counts[part].ours + len(code) - yours)
    return counts


def lines_to_write(me: Mine) -> int:
    """Code lines of the functions of the engine that are exercises, as we have them."""
    code_lines = me.package.module("levers.table").code_lines
    references = [exercise.reference() for exercise in manifest.load().values() if exercise.splice]
    return sum(len(code_lines(reference)) for reference in references)


# A package of its own.


def project(me: Mine, folder: Path) -> Path:
    """The learner's engine as a project: the package `nanovllm`, and beside it the engine's tests."""
    package = me.export(folder / "nanovllm")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tests" / "engine", folder / "tests" / "engine", ignore=ignored)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    (folder / "exercises").mkdir()
    for name in ("pyproject.toml", "example.py", "exercises/exercises.toml"):  # which some tests look at
        shutil.copy(ROOT / name, folder / name)
    return package


def run_tests(folder: Path, names: Sequence[str] = TESTS, *options: str) -> tuple[bool, str]:
    """Run tests of a project's engine, all levers off; whether all passed, and what pytest said at the end."""
    files = [f"tests/engine/{name}" for name in names]
    how = ["-q", "--color=no", "-p", "no:cacheprovider", "-m", "not slow and not gpu and not lever", *NO_LEVERS]
    command = [sys.executable, "-m", "pytest", *how, *options, *files]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    failed = [line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return result.returncode == 0, "\n".join([*failed, result.stdout.strip().splitlines()[-1]])


def side_by_side(me: Mine, pairs: int = PAIRS) -> tuple[list[float], list[float]]:
    """Seconds of computing of our engine and of the learner's at the same work, in turn, on one core.

    Both have the same levers: those are off that would go around the learner's functions.
    """
    options = with_options({**lever_work.OPTIONS, "disabled_optimizations": ()}, me.package.options)
    num_threads = torch.get_num_threads()
    seconds: tuple[list[float], list[float]] = ([], [])
    torch.set_num_threads(1)
    try:
        with nanovllm.LLM("qwen3-tiny", **options) as ours, me.LLM("qwen3-tiny", **options) as own:
            for run in range(pairs + 1):
                order: list[Any] = [(nanovllm, ours, seconds[0]), (me, own, seconds[1])]
                for package, llm, noted in order if run % 2 else order[::-1]:
                    start = time.process_time()
                    lever_work.answers(package, llm, lever_work.prompts())
                    noted.append(time.process_time() - start)
    finally:
        torch.set_num_threads(num_threads)
    return seconds[0][1:], seconds[1][1:]  # the first run warms up


def kept_speed(ours: Sequence[float], own: Sequence[float]) -> float:
    """Which share of our speed the learner's engine has: the fastest runs of both, which were disturbed least."""
    return min(ours) / min(own)


# The review.


class Question(NamedTuple):
    """A question about a chapter: what is asked, the answers to choose from, and why the right one is right."""

    asks: str
    choices: tuple[str, ...]
    right: int
    because: str


QUESTIONS = {
    "01": Question(
        "A naive loop, without a cache, writes 100 tokens after a prompt of 100. How many does the model read in all?",
        ("199", "about 15,000", "about 1,000,000"), 1,
        "Each new token reads the whole text again: 100 + 101 + ... + 199. With a cache it is 199.",
    ),
    "02": Question(
        "A decode step for a single reader, on a GPU, every launch for free. What does it wait for?",
        ("the arithmetic", "the weights, which come from memory", "the keys and values of its text"), 1,
        "A token needs every weight once and does two operations with each: the bytes are what takes the time.",
    ),
    "03": Question(
        "gpu_memory_utilization is 0.9. Who gets what weights and activations leave of it?",
        ("the KV cache", "nobody, it is a reserve", "whichever request asks first"), 0,
        "All of it becomes blocks of the KV cache, at the start: there is no allocation later that could fail.",
    ),
    "04": Question(
        "Blocks of 16 tokens, a text of 33. How many blocks does it have, and how many slots in them are empty?",
        ("2 blocks, none", "3 blocks, 1 slot", "3 blocks, 15 slots"), 2,
        "33 tokens need three blocks of 16, which is 48 slots. Only the last block of a text has empty ones.",
    ),
    "05": Question(
        "Two requests share a block, and one of them ends. What becomes of the block?",
        ("it is free", "its reference count falls to 1", "the other gets a copy"), 1,
        "A block is free when nobody's table names it. Even then its content can still be found, until it is reused.",
    ),
    "06": Question(
        "A running request needs a block, and none is free. Who gives way?",
        ("the newest of the running", "the oldest of the running", "nobody: it waits, with its blocks"), 0,
        "The newest is preempted: it has the least to lose. It goes back to waiting, and is computed anew later.",
    ),
    "07": Question(
        "Somebody stops `generate` with Ctrl-C. What becomes of its requests?",
        ("the next call goes on with them", "they are aborted, their blocks free", "the engine is built anew"), 1,
        "They leave the queues and give back their blocks at once, so that the next call meets a clean engine.",
    ),
    "08": Question(
        "A prefill step has 5, 1 and 7 new tokens of three sequences. What shape does input_ids have?",
        ("[3, 7]", "[3]", "[13]"), 2,
        "All tokens lie in one row, without padding. cu_seqlens_q says where each sequence begins: 0, 5, 6, 13.",
    ),
    "09": Question(
        "An MLP on two ranks: gate and up are cut by rows of their weights, down by columns. How many exchanges?",
        ("one", "two", "three"), 0,
        "Each rank goes through all three with its own half; only the sums behind down have to be added up.",
    ),
    "10": Question(
        "Online softmax reads the keys tile by tile. What does it take along from one tile to the next?",
        ("all scores so far", "a largest score, a sum, and weighted values", "nothing"), 1,
        "If a larger score comes, sum and values are scaled down once. So no row of scores is ever in memory.",
    ),
    "11": Question(
        "A query and a key are both moved by 100 positions. What becomes of their score?",
        ("it stays as it is", "it falls", "it changes its sign"), 0,
        "Both are turned by the same angle more, and a dot product only sees the angle between them.",
    ),
    "12": Question(
        "All numbers of a token's vector are doubled. What comes out of RMSNorm?",
        ("twice as much", "half as much", "the same as before"), 2,
        "It divides by the size of the vector, and that has doubled, too (as long as eps is small beside it).",
    ),
    "13": Question(
        "A prompt of 1,000 tokens in one step. For how many of them does the head compute logits?",
        ("1", "1,000", "as many as the vocabulary has"), 0,
        "Only what follows the last token is sampled. All others are there to fill the cache.",
    ),
    "14": Question(
        "Temperature 0.5 in place of 1. What becomes of the distribution?",
        ("it is flatter", "it is more peaked", "it is the same, with less noise"), 1,
        "Logits are divided by 0.5, so distances between them double, and what was likely becomes likelier.",
    ),
    "15": Question(
        "What does a decoder layer do to the residual stream?",
        ("it normalizes it", "it adds to it, twice", "it replaces it"), 1,
        "Attention and MLP read a normalized copy, and what each of them makes is added.",
    ),
    "16": Question(
        "A tensor is missing from a checkpoint, and nobody keeps books. What happens?",
        ("the first step raises an error", "a text comes out, of a worse model", "only NaN comes out"), 1,
        "The parameter holds whatever was in its memory, and multiplies as well as any other.",
    ),
    "17": Question(
        "Many short kernels, no CUDA graph. Every kernel becomes twice as fast. And the step?",
        ("twice as fast", "hardly faster", "slower"), 1,
        "The GPU waits for calls: what a kernel takes does not show. First the calls have to become few.",
    ),
    "18": Question(
        "A draft has four tokens, and the third is wrong. How many tokens does the call add to the text?",
        ("2", "3", "4"), 1,
        "Two that agree, and the model's own choice in place of the third.",
    ),
}  # fmt: skip


def quiz(chapter: str) -> tuple[str, list[str]]:
    """What is asked about a chapter, and the choices."""
    question = QUESTIONS[chapter]
    return question.asks, list(question.choices)


def answer(chapter: str) -> str:
    """The right choice; before it, the question and the reason are printed."""
    question = QUESTIONS[chapter]
    print(f"\n{chapter}  {question.asks}\n    {question.because}")
    return question.choices[question.right]


def score() -> str:
    """How many guesses were right, and the chapters to go back to."""
    asked = {chapter: predictions._asked.get(f"quiz {chapter}") for chapter in QUESTIONS}
    guesses = {chapter: prediction.guess for chapter, prediction in asked.items() if prediction}
    guessed = {chapter: guess for chapter, guess in guesses.items() if guess is not None}
    again = [
        chapter for chapter, guess in guessed.items() if guess != QUESTIONS[chapter].choices[QUESTIONS[chapter].right]
    ]
    said = f"{len(guessed) - len(again)} of {len(QUESTIONS)} are right"
    left = f", {len(QUESTIONS) - len(guessed)} were not answered" if len(guessed) < len(QUESTIONS) else ""
    return f"{said}{left}." + (f" To read again: {', '.join(again)}." if again else "")
