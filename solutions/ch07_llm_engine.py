"""Our answers to chapter 07, llm engine, cut out of nanovllm/, each with its reason."""

# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any
import torch
from nanovllm.config import Config
from nanovllm.engine.model_runner import ModelRunner
from nanovllm.engine.request import Request
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.engine.worker import start_runner
from nanovllm.engine.llm_engine import LLMEngine
from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any, NoReturn
from nanovllm.engine.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from nanovllm.model_files import load_tokenizer
from nanovllm.models import get_model_class
from nanovllm.outputs import Detokenizer, RequestOutput, TextRequest
from nanovllm.progress import ProgressBar
from nanovllm.prompts import InputProcessor, Params, Prompt, as_params_list, as_prompt, as_prompt_list
from nanovllm.sampling_params import SamplingParams
from nanovllm.llm import LLM
from collections.abc import Callable


# --- ch07.run_step
# Schedule, compute, take in: each part knows nothing of the others, and this is the only place where they meet. That is why
# a scheduler can be driven without a model, a model without a queue, and a lever can put another step here (one that looks
# at its tokens a step later) without touching either. The scheduler hears of the tokens first, because it appends them and
# knows what ends an answer; the requests then read what it has decided. Nothing is caught here: a step that fails has left
# anything half done, and only the loop around it, which can begin anew, knows a cure.
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


# --- ch07.take_in
# A stop string is text, and the scheduler knows only tokens: so the request, which reads them as text, has the last word. An
# answer whose last allowed token completes its stop string is complete, as with an end token, and "length" would be wrong.
# num_final is the line between what has been promised and what can be computed again, so it moves last. If it moved first,
# an interrupt in between would leave a token that nobody has taken in; if the request left the engine before, nobody would
# ever finish it, and whoever waits for it would wait for ever. A step that was interrupted can then be made again from
# there, and no reader sees a token twice.
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


# --- ch07.generate
# Making the requests is the checking: when the last one is made, nothing can be refused any more, and nothing has started. The
# loop asks only for its own requests, so it neither waits for those of others nor takes their results away, though each
# step it makes serves everybody. A call that is interrupted has lost its reader: what it asked for must not go on, or the
# next call would be slower for no reason that anybody sees. KeyboardInterrupt is no Exception, hence BaseException. And it
# is raised again, because Ctrl-C means the whole script, not this loop.
def generate(
    self, prompts: Prompt | list[Prompt], sampling_params: Params = None, use_tqdm: bool = True
) -> list[RequestOutput]:
    """Answer all prompts, batched as the scheduler sees fit.

    The requests are queued in the order of the prompts, once all prompts and parameters are
    known to be good. Steps are made until all of these are finished, and no longer. Requests of
    others go on beside them: they are not waited for, and `step` still reports them. Whatever
    ends the call early, an error or Ctrl-C, is passed on, and none of its requests goes on.

    Args:
        prompts: a string, a list of strings, a list of token ids, or a list of such lists.
        sampling_params: one for all, or one a prompt; None for the defaults.
        use_tqdm: show a progress bar.

    Returns:
        one `RequestOutput` a prompt, in order; an empty list for none. A request that fails on
        its way has the finish reason "error".

    Raises:
        TypeError, ValueError: a prompt or parameter is bad; nothing is started then.
        RuntimeError: the engine has been closed.
    """
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    pairs = zip(prompt_list, params_list, strict=True)
    requests = [self._make_request(prompt, params) for prompt, params in pairs]
    try:
        for request in requests:
            self.llm_engine.add_request(request)
        with ProgressBar(requests, disable=not use_tqdm) as bar:
            while not all(request.is_finished for request in requests):
                self._step()
                bar.show()
    except BaseException:  # Ctrl-C, too: what was asked for here must not go on in later calls
        self.llm_engine.abort_request(*[request.seq.seq_id for request in requests])
        raise
    return [RequestOutput(request, request.text(self.tokenizer)) for request in requests]


# --- ch07.choose_messages
# After a cut, the prompt behind the system message is another one, and every block of it has another name. A sliding window
# cuts with almost every long answer, so most of the talk is computed again and again: 14,560 tokens. Ours leaves out
# more than half at once, and then nothing for several questions: 2,831 tokens, a fifth, and 69 % of what fits is sent.
# The share can be chosen: half of the budget gives 3,280 tokens and 73 %, four fifths 7,888 and 90 %. What is forgotten is
# forgotten, so services often have the model write a summary of it before they cut. That costs an answer, and changes the
# prompt, too: one more reason to do it rarely.
def choose_messages(
    messages: list[dict[str, str]], left_out: int, budget: int, count_tokens: Callable[..., int]
) -> list[dict[str, str]]:
    """Which messages of a long chat are sent to the model, when all of them are too many.

    The goal: of the talk in `exercises.kit.talk_work`, at most 5,000 prompt tokens shall be
    computed (14,560 if as much is sent as fits), and at least two thirds sent of what fits.

    The system message, if there is one, comes first, and the newest question last. Between them
    are the newest exchanges before it, as many as you choose, none left out on the way; of an
    exchange both question and answer. All is sent as long as it fits and nothing was left out.

    Args:
        messages: the talk: perhaps a "system" message, then "user" and "assistant" in turn; the
            last is a question. Each is {"role": ..., "content": ...}.
        left_out: how many after the system message were left out the time before; 0 at first.
        budget: the most tokens of the prompt.
        count_tokens: a function: takes a list of messages, returns the tokens of their prompt.

    Raises:
        ValueError: not even system message and newest question fit.
    """
    start = int(messages[0]["role"] == "system")

    def from_(first: int) -> list[dict[str, str]]:
        return [*messages[:start], *messages[start + first :]]

    last, first = len(messages) - start - 1, left_out
    least = count_tokens(from_(last))
    if least > budget:
        raise ValueError(f"system message and question have {least} tokens, and the budget is {budget}")
    if count_tokens(from_(first)) > budget:  # then much is left out at once, and nothing for a long time
        room = budget * 0.4
        first = next((i for i in range(first, last, 2) if count_tokens(from_(i)) <= room), last)
    return from_(first)


# --- ch07._read_inbox
# Ctrl-C can strike between any two instructions, and no lock helps against that. What helps is an order in which nothing is
# lost: obey, then throw away. Interrupted between the two, a message is obeyed twice, so obeying has to do no harm the
# second time: a request that is there is not added again, an id that is gone is ignored. For the same reason a request is
# entered in self.requests first and queued after, and taken out only when it has ended: the loop begins anew with what is
# in self.requests. Databases call such operations idempotent and use them in the same way, to read a log again after a
# crash.
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
