"""The loop that steps the engine for all connections.

Only steps run in a thread of their own. All else happens in the event loop, which has the
connections: between two steps they queue their requests, and after a step they read what is new,
and send it while the next one runs. Python runs one thread at a time, so readers take time from the
steps: many of them read less often, and more at once. Compare `AsyncLLM` of vLLM
(vllm/v1/engine/async_llm.py), where steps have a process of their own.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from ..llm import LLM
from .answers import Answer
from .bodies import ApiError
from .metrics import Metrics

MAX_UNREAD = 1024  # tokens of one stream that its reader has not taken yet
TRIES = 3  # steps that may fail in a row: the engine computes again what an error has undone


class EngineLoop:
    """Steps an engine, which others may use as well, while it has something to do.

    Args:
        llm: the engine; it is not closed here.
        metrics: what is told of tokens.
    """

    def __init__(self, llm: LLM, metrics: Metrics) -> None:
        self.llm, self.metrics = llm, metrics
        # Those that somebody waits for, each with the task that waits for the end of its client.
        self.answers: dict[Answer, asyncio.Task[None]] = {}
        self.deadline, self.rest_until = math.inf, 0.0  # when they end, and who reads may go on
        self.dead: ApiError | None = None
        self.between_steps = asyncio.Lock()
        self.wake, self.has_stepped = asyncio.Event(), asyncio.Event()

    async def next_step(self) -> None:
        """Wait until there may be something new. Raises `ApiError` if there will be nothing."""
        if not self.dead:
            self.wake.set()
            await self.has_stepped.wait()
        if self.dead:
            raise self.dead

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Step while the application serves."""
        with ThreadPoolExecutor(1, "nanovllm-engine") as thread:
            task = asyncio.create_task(self._run(thread))
            yield
            task.cancel()
        for answer in self.answers:
            answer.abort()

    async def _run(self, thread: ThreadPoolExecutor) -> None:
        num_failed = 0
        while not self.dead:
            if self.llm.is_finished():
                await self.wake.wait()
            async with self.between_steps:
                try:
                    await asyncio.get_running_loop().run_in_executor(thread, self.llm.step)
                    num_failed = 0
                except Exception as error:
                    num_failed += 1
                    if num_failed == TRIES:
                        self.dead = ApiError(503, f"the engine died: {error}", code="engine_dead")
            if self.dead or self.llm.is_finished() or time.monotonic() > self.rest_until:
                self._attend()

    def _attend(self) -> None:
        """After a step: count its tokens, and wake who reads them."""
        start = time.thread_time()
        for answer in self.answers:
            self.metrics.count_tokens(answer)
            if answer.num_unread > MAX_UNREAD or time.monotonic() > self.deadline:
                answer.abort()
        self.wake.clear()
        self.has_stepped.set()
        self.has_stepped = asyncio.Event()
        asyncio.get_running_loop().call_soon(self._rest, start)

    def _rest(self, start: float) -> None:
        """All have read: have them rest, 0.1 s at most; a turn of a millisecond or less is free."""
        seconds = time.thread_time() - start  # without waiting for other threads and programs
        self.rest_until = time.monotonic() + min(0.1, 8 * (seconds - 0.001))
