"""A long talk with the bundled model, as it was recorded, and what it costs to send it again and again.

The open exercise of chapter 7: every question is sent with what was said before, as far as `choose_messages` chooses.
The real scheduler and block manager run, with a prefix cache, and without weights: the answers are known.
"""

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from nanovllm.model_files import load_tokenizer

from .manifest import BUNDLED_MODEL
from .workloads import step

Message = dict[str, str]

BUDGET = 800  # tokens that a prompt may have
BLOCK_SIZE, NUM_BLOCKS = 16, 128
WINDOW = 14_560  # prompt tokens that are computed if the oldest are left out each time, as few as possible
BAR, SHARE = 5_000, 2 / 3  # the most that may be computed, and the least that has to be sent of what fits
# A child's questions and the greedy answers of qwen3-tiny, which was sent the system message and the four exchanges
# before.
TALK: list[tuple[str, str]] = json.loads((Path(__file__).parent / "talk.json").read_text(encoding="utf-8"))
SYSTEM = "You are a friendly helper for children. Keep the sentences short and the words simple. Never be rude."


class Sent(NamedTuple):
    """What was sent with one question.

    Args:
        tokens: of the prompt.
        computed: those of them that were not found in the prefix cache.
        could: tokens of the most that the budget had allowed.
        left_out: messages after the system message that were not sent.
        could_leave: the fewest that the budget had allowed to leave out.
    """

    tokens: int
    computed: int
    could: int
    left_out: int
    could_leave: int


Choose = Callable[[list[Message], int, int, Callable[[list[Message]], int]], list[Message]]


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    return load_tokenizer(BUNDLED_MODEL)


@lru_cache(maxsize=2000)
def _tokens(role: str, content: str) -> tuple[int, ...]:
    """As the chat template of the bundled model writes a message; none runs into the next one."""
    return tuple(_tokenizer().encode(f"<|im_start|>{role}\n{content}<|im_end|>\n", add_special_tokens=False))


def prompt_of(messages: list[Message]) -> list[int]:
    """Token ids of a prompt, up to where the model's answer begins; what `LLM.apply_chat_template` gives."""
    start = _tokenizer().encode("<|im_start|>assistant\n", add_special_tokens=False)
    return [*(i for message in messages for i in _tokens(message["role"], message["content"])), *start]


def count_tokens(messages: list[Message]) -> int:
    """Tokens of a prompt."""
    return len(prompt_of(messages))


def conversation(num_answers: int, with_system: bool = True) -> list[Message]:
    """The talk up to the question that has so many answers before it."""
    messages = [{"role": "system", "content": SYSTEM}] if with_system else []
    for question, answer in TALK[: num_answers + 1]:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages[:-1]


def sliding_window(
    messages: list[Message], left_out: int, budget: int, count_tokens: Callable[[list[Message]], int]
) -> list[Message]:
    """The plain answer: each time, the oldest are left out, as few as possible."""
    start = int(messages[0]["role"] == "system")
    first = start
    while count_tokens([*messages[:start], *messages[first:]]) > budget:
        first += 2
    return [*messages[:start], *messages[first:]]


def send_all(choose: Choose, engine: Any, budget: int = BUDGET) -> list[Sent]:
    """Have the whole talk, question by question, and note what was sent.

    Args:
        choose: as `choose_messages`.
        engine: `nanovllm`, or a learner's, as `mine()` returns it.
        budget: the most tokens of a prompt.
    """
    config = engine.config.Config(
        "qwen3-tiny",
        max_model_len=2048,
        kvcache_block_size=BLOCK_SIZE,
        num_kvcache_blocks=NUM_BLOCKS,
        max_num_batched_tokens=2048,
        device="cpu",
    )
    scheduler = engine.engine.scheduler.Scheduler(config)
    sent: list[Sent] = []
    for number, (_, answer) in enumerate(TALK):
        messages = conversation(number)
        chosen = choose(list(messages), sent[-1].left_out if sent else 0, budget, count_tokens)
        most = sliding_window(messages, 0, budget, count_tokens)
        prompt, tokens = prompt_of(chosen), list(_tokenizer().encode(answer + "<|im_end|>", add_special_tokens=False))
        params = engine.SamplingParams(max_tokens=len(tokens), ignore_eos=True)
        seq = engine.engine.sequence.Sequence(prompt, params, BLOCK_SIZE, number)
        scheduler.add(seq)
        while not scheduler.is_finished():
            step(scheduler, lambda seq, tokens=tokens: tokens[seq.num_completion_tokens])  # type: ignore[misc]
        computed = len(prompt) - seq.num_prefix_hit_tokens
        left_out, could_leave = (len(messages) - len(some) for some in (chosen, most))
        sent.append(Sent(len(prompt), computed, count_tokens(most), left_out, could_leave))
    return sent


def kept(sent: list[Sent]) -> float:
    """Which share was sent of what the budget had allowed, 0 to 1: the mean of the questions where not all fits."""
    shares = [turn.tokens / turn.could for turn in sent if turn.could_leave]
    return sum(shares) / max(1, len(shares))


def computed(sent: list[Sent]) -> int:
    """Prompt tokens that were computed, of all questions."""
    return sum(turn.computed for turn in sent)
