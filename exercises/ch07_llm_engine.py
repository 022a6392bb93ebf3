"""Your answers to chapter 07, llm engine.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 4bacf327af42
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
    raise NotImplementedError("ch07.run_step")


# --- ch07.take_in
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
    raise NotImplementedError("ch07.take_in")


# --- ch07.generate
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
    raise NotImplementedError("ch07.generate")


# --- ch07.choose_messages
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
    raise NotImplementedError("ch07.choose_messages")


# --- ch07._read_inbox
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
    raise NotImplementedError("ch07._read_inbox")
