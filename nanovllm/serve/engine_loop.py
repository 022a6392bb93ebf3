"""The loop that steps the engine for all connections.

Only steps run in a thread of their own; all else happens in the event loop, which also has the
connections. Between two steps the engine is told who has come and who has gone, and what the last
step has brought is handed on; connections send it while the next one runs. Compare `AsyncLLM` of
vLLM (vllm/v1/engine/async_llm.py).
"""

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..llm import LLM
from ..outputs import RequestOutput
from .answers import Job
from .bodies import ApiError

MAX_UNSENT = 256  # tokens of one answer that its reader has not taken yet
TRIES = 3  # steps that may fail in a row: the engine computes again what an error has undone


class EngineLoop:
    """Runs jobs on an engine, which others may use as well.

    Args:
        llm: the engine; it is not closed here.
        max_jobs: most that are accepted at once, running and waiting.
        on_end: called with the output of each job that has one.
    """

    def __init__(self, llm: LLM, max_jobs: int, on_end: Any) -> None:
        self.llm, self.max_jobs, self.on_end = llm, max_jobs, on_end
        self.jobs: list[Job] = []
        self.dead: ApiError | None = None
        self.deadline = math.inf  # then all jobs end
        self.wake = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, "nanovllm-engine")

    def submit(self, jobs: list[Job]) -> None:
        """Queue all of the jobs. Raises `ApiError` if none is taken."""
        if self.dead:
            raise self.dead.with_traceback(None)
        if len(self.jobs) + len(jobs) > self.max_jobs:
            raise ApiError(429, f"{len(self.jobs)} requests run or wait", code="queue_full")
        self.jobs += jobs
        self.wake.set()

    def abort(self, jobs: list[Job]) -> None:
        """End those that still go on; their blocks are free before the next step."""
        for job in jobs:
            job.is_aborted = True
        self.wake.set()

    async def run(self) -> None:
        """Step while there are jobs."""
        num_failed = 0
        while True:
            self.attend()
            if not self.jobs:
                await self.wake.wait()
                self.wake.clear()
                continue
            try:
                await asyncio.get_running_loop().run_in_executor(self.thread, self.llm.step)
                num_failed = 0
            except Exception as error:
                num_failed += 1
                if num_failed == TRIES:
                    self.dead = ApiError(503, f"the engine has died: {error}", code="engine_dead")

    def attend(self) -> None:
        """Between two steps, to all jobs."""
        for job in self.jobs:
            try:
                self._attend(job)
            except Exception as error:
                is_bad = isinstance(error, TypeError | ValueError)  # the request, not the engine
                job.end = job.end or ApiError(400 if is_bad else 503, str(error))
            if job.end or job.unsent:
                job.answer.changed.set()
            if isinstance(job.end, RequestOutput) and job.answer.connection:  # it is no probe
                self.on_end(job.end)
            if job.answer.streams and not job.end and len(job.unsent) > MAX_UNSENT:
                job.answer.connection.drop()
        self.jobs = [job for job in self.jobs if not job.end]

    def _attend(self, job: Job) -> None:
        if self.dead or job.is_aborted or time.monotonic() > self.deadline:
            job.end = self.dead or ApiError(503, "the answer was cut off")
            if job.request:
                self.llm.abort(job.request.seq.seq_id)
        elif job.request is None:
            seq_id = self.llm.add_request(job.token_ids, job.params)
            job.request = self.llm.added[seq_id]
        else:
            job.read()

    def close(self) -> None:
        """Free the thread, and what the jobs have."""
        self.thread.shutdown()
        self.abort(self.jobs)
        self.attend()
