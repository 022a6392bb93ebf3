"""From examples to training rows: documents, tokens, loss masks, deduplication and packing.

Everything is a function of the seed and the shard number, so any number of processes makes the same data.
"""

from __future__ import annotations

import hashlib
import multiprocessing as mp
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from . import facts, tasks
from . import words as w
from .phrases import expand
from .stories import Telling, asked_story, draw_cast, free_story

END, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
DOCUMENT_KINDS = {"raw story": 11, "story": 17, "task": 57, "conversation": 9, "raw line": 8}


@dataclass
class Document:
    """One training text with the stories in it (for deduplication and the memorization count)."""

    text: str
    stories: tuple[str, ...] = ()


def render(messages: list[tasks.Message]) -> str:
    """The messages in the chat format; the same text as the tokenizer's chat template gives."""
    return "".join(f"{IM_START}{m['role']}\n{m['content']}{IM_END}\n" for m in messages)


# The wording is part of the data: a line break in a template would be a second alternative.
SELF = (
    "{|Hello, |Hi, |Good morning, |Hello. }{my name is|I am} [Hero]{. I am| and I am} {[a_kind]|[a_trait_kind]}. "
    "I {have|own|love} [a_look]. My best friend is [a_fkind] named [Friend]. "
    "{We often play at [place].|Together we go to [place].|I met [Friend] at [place].|}"
)
AHEAD = (
    "The future of {AI|artificial intelligence|language models|computing} is "
    "{open, and it will be made by people who learn how things work|in the hands of those who understand it"
    "|hard to know, but small models will be a part of it}."
)


def raw_line(rng: random.Random) -> str:
    """A short plain text without roles: a fact, a sum, a list, an explanation, a question with its answer."""
    kind = rng.randrange(8)
    if kind == 6:
        if rng.random() < 0.01:
            return expand(rng, AHEAD)
        return expand(rng, SELF, Telling(rng, draw_cast(rng)).slots).strip()
    if kind == 7:
        question, answer = (m["content"] for m in tasks.any_task(rng).messages)
        return f"{question}\n{answer}"
    if kind == 0:
        country = rng.choice(list(w.CAPITALS))
        return f"The capital of {country} is {w.CAPITALS[country]}".rstrip(".") + "."
    if kind == 1:
        return rng.choice([*facts.TERMS.values(), *facts.FACTS.values()])
    if kind == 2:
        start, step = rng.randrange(100), rng.choice((1, 1, 1, 2, 5, 10))
        return tasks.join([start + i * step for i in range(rng.randint(5, 40))])
    make = {3: tasks.arithmetic, 4: tasks.word_facts}.get(kind, tasks.spelling)
    example = make(rng, False)
    question, answer = (m["content"] for m in example.messages)
    return answer if kind == 3 else f"Question: {question}\nAnswer: {answer}"


def document(rng: random.Random) -> Document:
    """One random training document."""
    kind = rng.choices(list(DOCUMENT_KINDS), list(DOCUMENT_KINDS.values()))[0]
    if kind == "raw story":
        if rng.random() < 0.1:
            request, text, _ = asked_story(rng)
            return Document(f"{tasks.style(rng, request)}\n{text}", (text,))
        text = free_story(rng)
        return Document(text, (text,))
    if kind == "raw line":
        return Document(raw_line(rng))
    if kind == "story":
        examples = [tasks.story(rng)]
    elif kind == "task":
        examples = [tasks.any_task(rng)]
    else:
        examples = list(tasks.conversation(rng))
    messages = examples[-1].messages
    answers = messages[1::2]
    stories = tuple(m["content"] for m, e in zip(answers, examples, strict=True) if e.task == "stories")
    if rng.random() < 0.2:
        messages = [tasks.system_message(rng), *messages]
    return Document(render(messages), stories)


def fingerprint(text: str) -> int:
    """A 64-bit hash of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@dataclass
class Shard:
    """Tokenized documents: `tokens` uint16 [n], `trained` bool [n] (is this token a target), `ends` int64 [docs]."""

    tokens: np.ndarray
    trained: np.ndarray
    ends: np.ndarray
    documents: np.ndarray
    stories: list[tuple[int, ...]]


def loss_mask(tokens: np.ndarray, im_start: int, im_end: int, roles: tuple[int, int, int]) -> np.ndarray:
    """Which tokens are targets: all of a plain text, in a chat the assistant's words and their end token.

    `roles` are the ids of "assistant", "user" and "system"; a role name is one token, as is the newline after it.
    """
    if not len(tokens) or tokens[0] != im_start:
        return np.ones(len(tokens), dtype=bool)
    mask = np.zeros(len(tokens), dtype=bool)
    ends = np.flatnonzero(tokens == im_end)
    for start in np.flatnonzero(tokens == im_start):
        if tokens[start + 1] == roles[0]:
            mask[start + 3 : ends[np.searchsorted(ends, start)] + 1] = True
    return mask


_tokenizer: Tokenizer | None = None


def _start_worker(path: str) -> None:
    global _tokenizer
    _tokenizer = Tokenizer.from_file(path)


def make_shard(job: tuple[int, int, int]) -> Shard:
    """The shard of the job (seed, number, documents); needs `_start_worker` in this process."""
    seed, number, size = job
    rng = random.Random(f"{seed}/{number}")
    docs = [document(rng) for _ in range(size)]
    assert _tokenizer is not None
    ids = {name: _tokenizer.token_to_id(name) for name in (END, IM_START, IM_END, "assistant", "user", "system")}
    roles = (ids["assistant"], ids["user"], ids["system"])
    tokens, trained, ends, total = [], [], [], 0
    for encoding in _tokenizer.encode_batch_fast([doc.text for doc in docs]):
        row = np.array([*encoding.ids, ids[END]], dtype=np.uint16)
        mask = loss_mask(row, ids[IM_START], ids[IM_END], roles)
        total += len(row)
        tokens.append(row)
        trained.append(mask)
        ends.append(total)
    return Shard(
        np.concatenate(tokens),
        np.concatenate(trained),
        np.array(ends),
        np.array([fingerprint(doc.text) for doc in docs], dtype=np.uint64),
        [tuple(fingerprint(text) for text in doc.stories) for doc in docs],
    )


class Stream:
    """Deduplicated training rows, made by worker processes while the model trains on earlier ones.

    Iterating yields pairs (inputs, targets) of int16-safe int64 arrays [rows, length]; a target that is not
    trained is -100. Every row starts with the start of a document. `story_hashes` holds every story used.
    """

    def __init__(
        self, tokenizer: Path, seed: int, length: int, rows: int, workers: int, shard_size: int = 8192
    ) -> None:
        self.tokenizer, self.seed, self.length, self.rows = tokenizer, seed, length, rows
        self.workers, self.shard_size = workers, shard_size
        self.seen: set[int] = set()
        self.story_hashes: set[int] = set()
        self.documents = self.duplicates = 0

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        room = threading.Semaphore(4 * self.workers)
        stop = threading.Event()

        def jobs() -> Iterator[tuple[int, int, int]]:
            for number in range(10**9):
                room.acquire()
                if stop.is_set():
                    return
                yield self.seed, number, self.shard_size

        pool = mp.get_context("spawn").Pool(self.workers, _start_worker, (str(self.tokenizer),))
        try:
            pending: list[tuple[np.ndarray, np.ndarray]] = []
            for shard in pool.imap(make_shard, jobs()):
                room.release()
                pending += self._pack(shard)
                while len(pending) >= self.rows:
                    batch, pending = pending[: self.rows], pending[self.rows :]
                    yield np.stack([row for row, _ in batch]), np.stack([target for _, target in batch])
        finally:
            stop.set()
            room.release(self.workers)
            pool.terminate()
            pool.join()

    def _pack(self, shard: Shard) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows of length + 1 tokens; the document that is cut at the end of a row starts the next one again."""
        starts = np.concatenate([[0], shard.ends[:-1]])
        spans = []
        for i, key in enumerate(shard.documents.tolist()):
            stories = shard.stories[i]
            if key in self.seen or any(text in self.story_hashes for text in stories):
                self.duplicates += 1
                continue
            self.seen.add(key)
            self.story_hashes.update(stories)
            spans.append((int(starts[i]), int(shard.ends[i])))
        self.documents += len(spans)
        keep = np.concatenate([np.arange(a, b) for a, b in spans])
        lengths = np.array([b - a for a, b in spans])
        tokens = shard.tokens[keep].astype(np.int64)
        targets = np.where(shard.trained[keep], tokens, -100)
        ends = np.cumsum(lengths)
        begin, rows, width = 0, [], self.length + 1
        while begin + width <= len(tokens):
            rows.append((tokens[begin : begin + width - 1], targets[begin + 1 : begin + width]))
            cut = int(np.searchsorted(ends, begin + width, side="right"))
            last = int(ends[cut - 1]) if cut else 0
            begin = last if last > begin else begin + width
        return rows
