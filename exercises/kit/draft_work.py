"""Speculative decoding on top of the engine, and the texts that proposers are judged on: chapter 18.

A call of the model reads a text and a draft of what may come next, and says for every place what it would have
written there. Text that was read before is in the engine's prefix cache, so what a call computes is the draft.
"""

import importlib
import json
import random
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

# Prompts and greedy answers of qwen3-tiny, token ids: 48 stories about different things.
TEXTS = Path(__file__).parent / "greedy_texts.json"
NUM_SEEN = 32  # the first of them may be looked at; the others are what counts
MOST = 4  # tokens of a draft
PLAIN, BAR = 1.17, 2.5  # tokens a call of `propose` with n=1, and what is asked for

# Where nothing but a text's own tokens is computed: blocks of a single token, all of which can be found again.
OPTIONS: dict[str, Any] = {"device": "cpu", "disabled_optimizations": "all", "kvcache_block_size": 1}
OPTIONS |= {"num_kvcache_blocks": 2048, "max_model_len": 512, "enable_prefix_caching": True}
# Questions in which a text comes back, lists that go on as they began, and stories.
QUESTIONS = {
    "repeat": "Repeat: the small boat is on the river and the river is cold",
    "primes": "list all prime numbers within 100",
    "count": "Count from 1 to 30.",
    "alphabet": "Say the alphabet.",
    "story": "Tell me a story about a cat.",
}

Propose = Callable[[list[int]], list[int]]
Accept = Callable[[list[int], list[int], Collection[int]], list[int]]


class Call(NamedTuple):
    """One call of the model: the tokens that were proposed to it, and those that it added to the text."""

    draft: list[int]
    added: list[int]


def greedy_choices(llm: Any, token_ids: list[int], count: int) -> list[int]:
    """What the model would write after the text, and after each of its beginnings: the last `count` of these."""
    seen: list[torch.Tensor] = []
    package = importlib.import_module(type(llm.config).__module__.split(".")[0])
    model = llm.llm_engine.model_runner.model
    compute_logits = model.compute_logits

    def look(hidden_states: torch.Tensor) -> Any:
        seen.append(hidden_states)
        return compute_logits(hidden_states)

    model.compute_logits = look
    try:
        one = package.SamplingParams(temperature=0, max_tokens=1)
        (answer,) = llm.generate([token_ids], one, use_tqdm=False)
    finally:
        model.compute_logits = compute_logits
    if answer["finish_reason"] == "error":
        raise RuntimeError(answer["error"])
    rows = torch.cat(seen)[-count:]
    return [int(i) for i in F.linear(rows, model.lm_head.weight).argmax(-1)]


def speculate(
    llm: Any,
    prompt: list[int],
    propose: Propose,
    accept: Accept,
    max_tokens: int = 400,
) -> list[Call]:
    """Answer a prompt greedily; the calls that it took. All that they added is the answer."""
    llm.llm_engine.scheduler.reset([])  # nothing is cached from the run before
    eos, calls, answer = llm.config.eos, list[Call](), list[int]()
    for _ in range(max_tokens):
        text = [*prompt, *answer]
        draft = propose(text)[: max_tokens - len(answer) - 1]
        choices = greedy_choices(llm, [*text, *draft], len(draft) + 1)
        added = accept(draft, choices, eos)
        calls.append(Call(draft, added))
        answer += added
        if len(answer) >= max_tokens or any(token_id in eos for token_id in added):
            break
    return calls


def answer_of(calls: list[Call]) -> list[int]:
    """All that some calls added."""
    return [token_id for call in calls for token_id in call.added]


def tokens_per_call(calls: list[Call]) -> float:
    """How many tokens a call of the model added, on average."""
    return len(answer_of(calls)) / max(1, len(calls))


# Seconds of computing, on one thread.


def seconds_of_calls(llm: Any, counts: Sequence[int], times: int = 15) -> list[float]:
    """Seconds of a call that computes so many tokens behind a text of 100, the median of some; in turn."""
    rng, text = random.Random(0), list(range(300, 400))
    greedy_choices(llm, text, 1)  # from now on the text is cached
    seconds: list[list[float]] = [[] for _ in counts]
    for _ in range(times):
        for noted, count in zip(seconds, counts, strict=True):
            draft = [rng.randrange(5, 2000) for _ in range(count)]
            start = time.process_time()
            greedy_choices(llm, [*text, *draft], count)
            noted.append(time.process_time() - start)
    return [statistics.median(noted) for noted in seconds]


def seconds_of_answers(
    plain_llm: Any, llm: Any, question: str, propose: Propose, accept: Accept, max_tokens: int = 160, times: int = 3
) -> tuple[float, float]:
    """Seconds of an answer by an engine's decode steps, and by another with drafts; the fastest of some, in turn."""
    package = importlib.import_module(type(plain_llm.config).__module__.split(".")[0])
    prompt = llm.apply_chat_template([{"role": "user", "content": question}])
    greedy = package.SamplingParams(temperature=0, max_tokens=max_tokens)

    def plain() -> None:
        plain_llm.llm_engine.scheduler.reset([])
        plain_llm.generate([prompt], greedy, use_tqdm=False)

    def drafted() -> None:
        speculate(llm, prompt, propose, accept, max_tokens)

    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(times):
        for run, noted in zip((plain, drafted), seconds, strict=True):
            start = time.process_time()
            run()
            noted.append(time.process_time() - start)
    return min(seconds[0]), min(seconds[1])


# Without a model: where the greedy answer is known, so is what it would have said of any draft.


@lru_cache(maxsize=1)
def _texts() -> list[tuple[list[int], list[int]]]:
    return [(prompt, answer) for prompt, answer in json.loads(TEXTS.read_text(encoding="utf-8"))]


def seen() -> list[list[int]]:
    """The texts that a proposer may have read before: prompts with their answers."""
    return [[*prompt, *answer] for prompt, answer in _texts()[:NUM_SEEN]]


def held_out() -> list[tuple[list[int], list[int]]]:
    """Prompts and answers that nobody has seen."""
    return [(list(prompt), list(answer)) for prompt, answer in _texts()[NUM_SEEN:]]


def replay(prompt: list[int], answer: list[int], propose: Propose, most: int = MOST) -> list[Call]:
    """The calls in which a known greedy answer would have been written."""
    calls, position = list[Call](), 0
    while position < len(answer):
        draft = list(propose([*prompt, *answer[:position]]))[: min(most, len(answer) - position - 1)]
        count = 0
        while count < len(draft) and draft[count] == answer[position + count]:
            count += 1
        calls.append(Call(draft, answer[position : position + count + 1]))
        position += count + 1
    return calls


def judge(propose: Propose) -> float:
    """Tokens a call on the texts that nobody has seen."""
    return tokens_per_call([call for prompt, answer in held_out() for call in replay(prompt, answer, propose)])
