"""The step loop: choose sequences, compute, take in what came out; until all are done.

Compare `EngineCore` of vLLM (vllm/v1/engine/core.py), which reads its requests from an inbox, too.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import torch

from ..config import Config
from .model_runner import ModelRunner
from .request import Request
from .scheduler import Scheduler
from .sequence import Sequence
from .worker import start_runner


class LLMEngine:
    """Runs requests of token ids.

    Only the loop in `_run` touches scheduler and runner, and it is a generator. So Python itself
    knows whether a step is under way (`gi_running`), and an exception or Ctrl-C, wherever it
    strikes, ends the loop for good (`gi_frame` is None). Then the next call begins a new loop,
    which computes again what was not final. New requests and aborts are left in the inbox, at any
    moment and from any thread. Threads that step take turns; what all of them ask for is one batch.

    Args:
        config: `num_kvcache_blocks` is filled in if it is -1.
        scheduler_class: decides what a step computes.
        make_runner: makes one rank's runner of the config and the rank's group; for several ranks
            it must be picklable.
    """

    is_closed = False

    def __init__(
        self,
        config: Config,
        scheduler_class: type[Scheduler] = Scheduler,
        make_runner: Callable[..., ModelRunner] = ModelRunner,
    ) -> None:
        self.config = config
        self.model_runner = start_runner(config, make_runner)
        self.scheduler = scheduler_class(config)
        self.inbox: deque[Request | int] = deque()  # new requests, and the ids of those to abort
        self.requests: dict[int, Request] = {}  # the live ones, by seq_id, oldest first
        self.lock = threading.RLock()  # other threads wait for the end of a step
        self.waiting_threads: set[int] = set()
        self.loop: Any = self._run()
        self._enter_loop(computes=False)

    def add_request(self, request: Request) -> None:
        """Queue a request; its tokens come with the steps.

        Raises:
            ValueError: it can never be run (`Scheduler.check`).
        """
        self.scheduler.check(request.seq)
        self._post(request)

    def abort_request(self, *seq_ids: int) -> None:
        """End requests, now or with the step that is under way; unknown ones are ignored."""
        self._post(*seq_ids)

    def step(self) -> int:
        """Run one step of whatever the scheduler chooses.

        Returns:
            the number of tokens computed: positive for a prefill, negative for a decode.

        Raises:
            RuntimeError: called in the middle of a step, by what that step calls.
        """
        return self._enter_loop(computes=True)

    def has_unfinished_requests(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.requests or self.inbox)

    # One step.

    def run_step(self) -> int:
        """One step: what the scheduler chooses is computed, and all who wait for it are told.

        * The scheduler is asked once: `schedule()` returns the chosen sequences, and whether this
          is a prefill. Nothing is computed before each of their requests has a note of that time:
          `note_start(seqs)` makes it, and returns how many tokens the step computes.
        * The runner computes what was chosen, all of it at once, and returns two lists, with a
          token and log-probabilities for each sequence: `model_runner.run(seqs, is_prefill)`.
        * The scheduler hears of the tokens first, `postprocess(seqs, token_ids)`, because it knows
          what ends an answer; then all requests do: `take_in(seqs, token_ids, logprobs)`, of the
          engine. Each of the two is told once in a step that has computed something.
        * If nobody was chosen, the runner is left alone.
        * An error in any of this goes on to the caller: the loop around it knows what to do.

        Returns:
            the number of computed tokens: positive for a prefill, negative for a decode, 0 if
            nobody was chosen.
        """
        seqs, is_prefill = self.scheduler.schedule()
        num_tokens = self.note_start(seqs)
        if seqs:
            token_ids, logprobs = self.model_runner.run(seqs, is_prefill)
            self.scheduler.postprocess(seqs, token_ids)
            self.take_in(seqs, token_ids, logprobs)
        return num_tokens if is_prefill else -num_tokens

    def note_start(self, seqs: list[Sequence]) -> int:
        """Note when each request was first scheduled; returns the number of tokens of the step."""
        now = time.perf_counter()
        for seq in seqs:
            request = self.requests[seq.seq_id]
            request.first_scheduled_time = request.first_scheduled_time or now
        return sum(seq.num_scheduled_tokens for seq in seqs)

    def take_in(
        self, seqs: list[Sequence], token_ids: list[int | None], logprobs: list[Any]
    ) -> None:
        """Hand each sampled token to its request, and let go of the requests that are done.

        The scheduler has had its turn (`postprocess`): the token is the last one of its sequence,
        and a sequence that ends with it by the scheduler's rules has ended. What holds then:

        * Each request that has a token has taken it in, once, with its log-probabilities
          (`Request.take_in`). Of one whose prompt was cut (None), nothing has changed.
        * `Request.take_in` returns the stop string that the token has completed, or None. With a
          stop string the answer is over: the finish reason of the sequence is "stop", whatever it
          was before, and its `stop_reason` is the string. If the sequence was still live, the
          scheduler lets go of it, too (`Scheduler.finish`, which knows only live ones).
        * All that it has generated is final: `request.num_final` is `seq.num_completion_tokens`.
          Only then: what is interrupted before this moves (Ctrl-C) is computed again.
        * A request whose sequence has ended is none of `self.requests` any more. It is not let go
          before it is final: what is live and not final can be computed again, and nothing else.

        Args:
            seqs: those of the step; no two are of the same request.
            token_ids, logprobs: one for each sequence; None for a prompt that was cut.
        """
        for seq, token_id, token_logprobs in zip(seqs, token_ids, logprobs, strict=True):
            if token_id is None:
                continue
            request = self.requests[seq.seq_id]
            stop = request.take_in(token_id, token_logprobs)
            if stop is not None:
                if not seq.is_finished:
                    self.scheduler.finish(seq, "stop")
                seq.finish_reason, seq.stop_reason = "stop", stop
            request.num_final = seq.num_completion_tokens
            if seq.is_finished:
                del self.requests[seq.seq_id]

    # The loop around it.

    def _post(self, *messages: Request | int) -> None:
        """Into the inbox, which is read now or, in the middle of a step, with it."""
        self.inbox.extend(messages)
        if not self.loop.gi_running and not self.is_closed:
            self._enter_loop(computes=False)

    def _enter_loop(self, computes: bool) -> int:
        # Let others in: by itself, a lock goes to the thread that has just had it.
        if self.waiting_threads:
            time.sleep(0)
        self.waiting_threads.add(threading.get_ident())
        with self.lock:
            self.waiting_threads.discard(threading.get_ident())
            if self.loop.gi_running:  # in this thread: others wait for the lock
                raise RuntimeError("the engine is in the middle of a step; call it after that")
            if self.is_closed and computes:  # while this thread waited
                raise RuntimeError("this engine has been closed by exit()")
            if self.loop.gi_frame is None:  # ended by an exception
                self.loop = self._run()
            self.computes = computes
            num_tokens = next(self.loop)
            while self.inbox:  # what came meanwhile
                self.computes = False
                next(self.loop)
            return num_tokens

    def _run(self) -> Generator[int, None, None]:
        """The loop. What is not final when it begins is made anew."""
        self._begin_anew()
        while True:
            self._read_inbox()
            yield self._step_within_memory() if self.computes else 0

    def _begin_anew(self) -> None:
        """Rebuild all but the final tokens: an interrupted step may have left anything."""
        for seq_id in self.requests.keys() & set(self.inbox):
            self.requests[seq_id].end("abort")
        live = {i: request for i, request in self.requests.items() if not request.is_finished}
        self.requests = live
        for request in live.values():
            request.rewind()
        self.scheduler.reset([request.seq for request in live.values()])

    def _read_inbox(self) -> None:
        """Obey the messages in the inbox, oldest first, until none is left.

        A message is a new `Request`, or the `seq_id` of one to abort. Others may add messages
        meanwhile, at the right end; they are obeyed, too.

        * A new request is one of `self.requests`, by its `seq_id`, and the scheduler has queued its
          sequence (`Scheduler.add`). Nothing happens if it is one of them already, or finished.
        * A request of `self.requests` that is to be aborted has been ended by the scheduler
          (`Scheduler.finish`) with the reason "abort", and is none of them any more. An id that
          nobody there has is ignored.
        * Ctrl-C may strike at any moment. Then the loop begins anew with the `self.requests` that
          have not ended, and reads the inbox again. So a message leaves the inbox only when it has
          been obeyed, and obeying it twice does no harm; and a request that has not ended is one of
          `self.requests`, or there is still a message about it.
        """
        while self.inbox:
            message = self.inbox[0]
            if isinstance(message, Request):
                if message.seq.seq_id not in self.requests and not message.is_finished:
                    self.requests[message.seq.seq_id] = message
                    self.scheduler.add(message.seq)
            elif message in self.requests:
                self.scheduler.finish(self.requests[message].seq, "abort")
                del self.requests[message]
            self.inbox.popleft()

    def _step_within_memory(self) -> int:
        """A step. If the GPU has no memory for it: half as large; then without its requests."""
        for is_last_try in (False, True):
            try:
                return self.run_step()
            except torch.OutOfMemoryError as error:
                failed = {i: r for i, r in self.requests.items() if r.seq.num_scheduled_tokens}
                self.scheduler.shrink_steps([request.seq for request in failed.values()])
                why = f"out of GPU memory, also in a step of half as many tokens: {error}"
                for request in failed.values() if is_last_try else ():
                    request.end("error", why)
                self.requests = failed | self.requests  # they are first: no others are to blame
                self._begin_anew()
        return 0

    def exit(self) -> bool:
        """Forget all requests, and free the model and the cache.

        Returns:
            whether that is done; it is not in the middle of a step: call it again after that.
        """
        with self.lock:
            if self.loop.gi_running:
                return False
            self.is_closed = True
            self.loop.close()
            self.requests.clear()
            self.inbox.clear()
            self.model_runner.exit()
            return True
