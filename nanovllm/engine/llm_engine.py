"""The engine: takes requests, runs steps until they are done, gives results back.

The public interface follows vLLM's `LLM` and `LLMEngine` (vllm/entrypoints/llm.py, vllm/v1/engine/llm_engine.py).
"""

import dataclasses
import difflib
import numbers
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from tqdm.auto import tqdm

from ..config import Config
from ..models import get_model_class
from ..sampling_params import BeamSearchParams, SamplingParams
from ..validation import check_int
from .beam_search import beam_search
from .model_runner import ModelRunner, StepOutput
from .outputs import BeamSearchOutput, Detokenizer, Request, RequestOutput
from .scheduler import Scheduler
from .sequence import Sequence
from .worker import RankStep, TensorParallelRunner

Prompt = str | SequenceOf[int]

# Methods of `LLMEngine` that one thread at a time may be in, and those that must not be interrupted by another of them.
CALLS = ("generate", "beam_search", "_stream", "add_request", "step")
CHANGES = ("_step", "_abort", "_rewind", "_drop")


class LLMEngine:
    """An inference engine with one model.

    One thread at a time may call it. It is a context manager; `exit` frees what it holds.

    Args:
        model: a directory, a hub id, or the name of a bundled model.
        **kwargs: the other fields of `Config`.

    Raises:
        TypeError, ValueError: an option is unknown, has the wrong type, or does not fit the model.
        MemoryError: weights or KV cache do not fit into memory.
    """

    is_closed = is_freed = True  # until there is something to close

    def __init__(self, model: str | Path, **kwargs: Any) -> None:
        self.config = make_config(model, kwargs)
        get_model_class(self.config.hf_config)  # an unsupported model fails here, before anything is loaded
        self.tokenizer = load_tokenizer(self.config.model_path)
        if self.tokenizer is not None and self.tokenizer.eos_token_id is not None:
            self.config.eos = tuple({*self.config.eos, self.tokenizer.eos_token_id})
        runner_class = ModelRunner if self.config.tensor_parallel_size == 1 else TensorParallelRunner
        self.model_runner = runner_class(self.config)
        self.scheduler = Scheduler(self.config)
        self.requests: dict[int, Request] = {}  # the live ones, by seq_id, oldest first
        self.unreported: dict[int, Request] = {}  # finished, and `step` has not returned them yet
        self.noted_aborts: deque[int] = deque()  # seq_ids, of requests aborted in the middle of a step
        self.is_settled = True  # False: in the middle of a change, or interrupted there, so that `_rewind` must follow
        self.runs_ahead = self.config.is_enabled("step_ahead")
        self.in_flight: StepOutput | RankStep | None = None  # the step whose tokens are not known yet
        self.seq_ids = count()
        self.is_closed = self.is_freed = False

    # Results for whole lists of prompts.

    def generate(
        self,
        prompts: Prompt | list[Prompt],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer all prompts, batched as the scheduler sees fit.

        Args:
            prompts: a string, a list of strings, a list of token ids, or a list of lists of token ids.
            sampling_params: one for all, or one a prompt; None for the defaults.
            use_tqdm: show a progress bar.

        Returns:
            one `RequestOutput` a prompt, in order. A request that fails on its way has the finish reason "error".

        Raises:
            TypeError, ValueError: a prompt or parameter is bad; nothing is started then.
            RuntimeError: the engine has been closed.
        """
        self._check_open()
        prompt_list = as_prompt_list(prompts)
        params_list = as_params_list(sampling_params, len(prompt_list))
        encoded = [self._encode(prompt, params) for prompt, params in zip(prompt_list, params_list, strict=True)]
        others, added = set(self.requests), None
        try:
            requests = [self._add(*args) for args in zip(prompt_list, encoded, params_list, strict=True)]
            added = self.requests.keys() - others  # a progress bar may add more
            with tqdm(total=len(requests), desc="Generating", disable=not use_tqdm, dynamic_ncols=True) as bar:
                self._run_until_finished(requests, bar)
        except BaseException:  # Ctrl-C, too: what was asked for here must not go on in the next call
            self._drop(self.requests.keys() - others if added is None else added)
            raise
        return [self._output(request) for request in requests]

    def chat(
        self,
        messages: list[dict[str, Any]] | list[list[dict[str, Any]]],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        use_tqdm: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several, through the model's chat template.

        Args:
            messages: `[{"role": "user", "content": "..."}, ...]`, or a list of such lists.
            chat_template_kwargs: passed to the template, e.g. `{"enable_thinking": False}`.

        Raises:
            ValueError: there are no messages, or the model has no chat template.
        """
        is_list = isinstance(messages, list) and messages and isinstance(messages[0], list)
        conversations: Any = messages if is_list else [messages]
        prompts: list[Prompt] = [
            self.apply_chat_template(conv, **(chat_template_kwargs or {})) for conv in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm)

    def apply_chat_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> list[int]:
        """Token ids of a conversation, up to where the model's answer begins.

        Raises:
            ValueError: the messages do not fit, or the model has no chat template.
        """
        tokenizer = self._require_tokenizer()
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(f"model {self.config.model!r} has no chat template; use generate with a plain prompt")
        if not isinstance(messages, list) or not messages:
            raise ValueError(
                f"messages must be a list of at least one {{'role': ..., 'content': ...}}, got {messages!r}"
            )
        for message in messages:
            if not isinstance(message, dict) or "role" not in message or "content" not in message:
                raise ValueError(f"a message must be a dict with 'role' and 'content', got {message!r}")
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **kwargs)
        except Exception as error:  # a template is a program, and may raise anything
            raise ValueError(f"the model's chat template does not take messages={messages!r}: {error!r}") from error
        return self._tokenize(text, add_special_tokens=False)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Generator[str, None, RequestOutput]:
        """Text of one answer, piece by piece, as it is generated.

        The request starts at the first `next`. Several streams can be read in turn, and run as one batch.
        Closing a stream aborts its request; its return value is the `RequestOutput`.

        Raises:
            TypeError, ValueError: the prompt or a parameter is bad, or the model has no tokenizer.
        """
        self._check_open()
        self._require_tokenizer()
        prompt = as_prompt(prompt)
        (params,) = as_params_list(sampling_params, 1)
        return self._stream(prompt, self._encode(prompt, params), params)

    def _stream(
        self, prompt: Prompt, token_ids: list[int], params: SamplingParams
    ) -> Generator[str, None, RequestOutput]:
        self._check_open()
        request, shown = None, 0
        try:
            request = self._add(prompt, token_ids, params, needs_text=True)
            while True:
                assert request.detokenizer is not None
                visible = request.detokenizer.visible_length(request.seq.is_finished)
                if visible > shown:
                    yield request.detokenizer.text[shown:visible]
                    shown = visible
                elif request.seq.is_finished:
                    return self._output(request)
                else:
                    self._check_open()
                    if request.seq.seq_id not in self.requests:
                        raise RuntimeError("this stream's request is gone: it was aborted, or its engine made anew")
                    self._step()
        finally:
            if request is not None:
                self.abort(request.seq.seq_id)

    def beam_search(
        self, prompts: Prompt | list[Prompt], params: BeamSearchParams, use_tqdm: bool = False
    ) -> list[BeamSearchOutput]:
        """The most likely continuations of every prompt; see `nanovllm.engine.beam_search`.

        Returns:
            for each prompt, `beam_width` beams (`.sequences[i].tokens`, `.text`, `.cum_logprob`), best first.
        """
        self._check_open()
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"params must be BeamSearchParams, got {type(params).__name__}")
        encoded = [self._encode(prompt, SamplingParams()) for prompt in as_prompt_list(prompts)]
        return beam_search(self, encoded, params, use_tqdm)

    # One request and one step at a time.

    def add_request(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> int:
        """Queue a request and return its `seq_id`; `step` reports when it is done.

        Args:
            prompt: a string, or a list of token ids.

        Raises:
            TypeError, ValueError: the prompt or a parameter is bad.
        """
        self._check_open()
        prompt = as_prompt(prompt)
        (params,) = as_params_list(sampling_params, 1)
        request = self._add(prompt, self._encode(prompt, params), params, is_external=True)
        return request.seq.seq_id

    def step(self) -> tuple[list[tuple[int, list[int]]], int]:
        """Run one step of whatever the scheduler chooses.

        Returns:
            finished: (seq_id, generated token ids) of requests from `add_request` that are done.
            num_tokens: number of tokens computed; positive for a prefill, negative for a decode, 0 when idle.
        """
        self._check_open()
        num_tokens = self._step()
        finished = [(seq_id, request.seq.completion_token_ids) for seq_id, request in self.unreported.items()]
        self.unreported.clear()
        return finished, num_tokens

    def is_finished(self) -> bool:
        """Whether no request is live and `step` has reported all results."""
        return not self.requests and not self.unreported

    def abort(self, seq_id: int) -> RequestOutput | None:
        """End a request now and free its blocks.

        In the middle of a step (called by a signal handler, or by a stream that is collected as garbage), it is only
        noted, and the request ends with the step.

        Returns:
            what it had generated, with the finish reason "abort"; None if no such request is live, or it was noted.
        """
        if not self.is_settled and self._is_within(CHANGES):
            self.noted_aborts.append(seq_id)
            return None
        self._settle()
        output = self._abort(seq_id)
        self._settle()
        return output

    def _abort(self, seq_id: int) -> RequestOutput | None:
        request = self.requests.get(seq_id)
        if request is None:
            return None
        try:
            self.is_settled = False
            del self.requests[seq_id]
            if not request.seq.is_finished:
                self.scheduler.finish(request.seq, "abort")
                self.scheduler.take_finished()
            self.is_settled = True
        except BaseException:
            self.requests.pop(seq_id, None)
            self._rewind()
            raise
        request.finish_text()
        return self._output(request)

    def _settle(self) -> None:
        """Make up for what a change that was interrupted has left undone, and end what was aborted meanwhile."""
        if not self.is_settled:
            self._rewind()
        while self.noted_aborts:
            seq_id = self.noted_aborts[0]
            self._abort(seq_id)
            with suppress(ValueError):  # another call of this method may have come in between
                self.noted_aborts.remove(seq_id)

    def _step(self) -> int:
        """Schedule, compute, take in; returns the number of tokens as `step` does."""
        recorder = self.scheduler.recorder
        start = time.perf_counter()
        self._settle()
        try:
            self.is_settled = False
            if recorder and self.in_flight:  # a trace shows each step with its tokens
                self._run_ahead([], is_prefill=False)
            seqs, is_prefill = self.scheduler.schedule()
            counts = [(seq.seq_id, seq.num_scheduled_tokens) for seq in seqs]
            self._note_start(seqs, start)
            if self.runs_ahead and not recorder:
                self._run_ahead(seqs, is_prefill)
            elif seqs:
                result = self.model_runner.run(seqs, is_prefill)
                self.scheduler.postprocess(seqs, result[0], is_prefill)
                self._take_in(seqs, *result)
            self._collect_finished()
            self.is_settled = True
            self._settle()
        except BaseException:
            self._rewind()
            raise
        if recorder and (seqs or recorder.events):
            recorder.end_step("prefill" if is_prefill else "decode", counts, (time.perf_counter() - start) * 1e3)
        num_tokens = sum(count for _, count in counts)
        return num_tokens if is_prefill else -num_tokens

    def _rewind(self) -> None:
        """Undo what was interrupted anywhere, by an error or Ctrl-C: all but the tokens of live requests is rebuilt."""
        self.is_settled = False
        self.in_flight = None
        for request in list(self.requests.values()):
            if request.is_done:
                self._retire(request)
            else:
                request.rewind()
        self.scheduler.take_finished()
        self.scheduler.reset([request.seq for request in self.requests.values()])
        self.is_settled = True

    def _drop(self, seq_ids: set[int]) -> None:
        """Forget requests at any moment, whatever has become of them."""
        self.is_settled = False
        for seq_id in seq_ids:
            self.requests.pop(seq_id, None)
        self._rewind()

    def _run_ahead(self, seqs: list[Sequence], is_prefill: bool) -> None:
        """Launch this step, and only then look at what the one before has sampled: the GPU never waits for the CPU.

        A sequence whose end shows only now has been launched once too often; that token is dropped.
        Compare vllm/v1/core/sched/async_scheduler.py.
        """
        previous = self.in_flight
        self.in_flight = self.model_runner.launch(seqs, is_prefill, previous) if seqs else None  # type: ignore[arg-type]
        if previous is not None:
            token_ids, logprobs = previous.wait()
            ended = [seq.is_finished for seq in previous.seqs]
            self.scheduler.resolve(previous.seqs, token_ids)
            self._take_in(previous.seqs, [None if e else t for e, t in zip(ended, token_ids, strict=True)], logprobs)
        self.scheduler.advance(seqs)
        if all(seq.is_finished for seq in seqs):  # nobody waits for these tokens
            self.in_flight = None

    def _note_start(self, seqs: list[Sequence], now: float) -> None:
        for seq in seqs:
            request = self.requests[seq.seq_id]
            if request.first_scheduled_time is None:
                request.first_scheduled_time = now

    def _take_in(
        self, seqs: list[Sequence], token_ids: list[int | None], logprobs: list[dict[int, float] | None]
    ) -> None:
        """Hand each sampled token to its request: times, log-probabilities, text and stop strings."""
        now = time.perf_counter()
        for seq, token_id, token_logprobs in zip(seqs, token_ids, logprobs, strict=True):
            if token_id is None:
                continue
            request = self.requests[seq.seq_id]
            request.first_token_time = request.first_token_time or now
            request.last_token_time = now
            if token_logprobs is not None:
                request.logprobs.append(token_logprobs)
            if request.detokenizer is not None:
                self._update_text(request, token_id)
            request.num_taken_in = seq.num_completion_tokens

    def _update_text(self, request: Request, token_id: int) -> None:
        seq, detokenizer = request.seq, request.detokenizer
        assert detokenizer is not None
        if not ends_with_stop_token(seq):
            detokenizer.append(token_id)
        if seq.is_finished:
            detokenizer.finish()
        if detokenizer.stopped_by is not None:
            if not seq.is_finished:
                self.scheduler.finish(seq, "stop")
            seq.finish_reason, seq.stop_reason = "stop", detokenizer.stopped_by

    def _collect_finished(self) -> None:
        """Move requests that are done out of the live ones."""
        for seq in self.scheduler.take_finished():
            self._retire(self.requests[seq.seq_id])

    def _retire(self, request: Request) -> None:
        seq_id = request.seq.seq_id
        request.finish_text()
        if request.is_external:
            self.unreported[seq_id] = request
        self.requests.pop(seq_id, None)

    def _run_until_finished(self, requests: list[Request], bar: Any) -> None:
        rates = {"prefill": 0.0, "decode": 0.0}
        while not all(request.seq.is_finished for request in requests):
            start = time.perf_counter()
            num_tokens = self._step()
            if not bar.disable:
                kind = "prefill" if num_tokens > 0 else "decode"
                rates[kind] = abs(num_tokens) / (time.perf_counter() - start)
                bar.set_postfix({name: f"{rate:.0f} tok/s" for name, rate in rates.items()}, refresh=False)
                bar.update(sum(request.seq.is_finished for request in requests) - bar.n)

    # Requests in and out.

    def _encode(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        """Token ids of a prompt, checked against the model and the cache. Raises `TypeError`, `ValueError`."""
        if params.stop:
            self._require_tokenizer()
        token_ids = self._tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        if not token_ids:
            raise ValueError(f"prompt {prompt!r} is empty; give at least one token")
        vocab_size, limit = self.config.hf_config.vocab_size, self.config.max_model_len
        if set(map(type, token_ids)) != {int}:  # looking at each of many thousand tokens takes its time
            token_ids = [check_int("a token id", token_id, minimum=0) for token_id in token_ids]
        check_int("a token id", min(token_ids), minimum=0)
        if (largest := max(token_ids)) >= vocab_size:
            raise ValueError(f"token id {largest} is outside the vocabulary (0 to {vocab_size - 1})")
        if len(token_ids) > limit:
            raise ValueError(f"the prompt has {len(token_ids)} tokens, more than max_model_len={limit}; shorten it")
        pool = self.config.num_kvcache_blocks * self.config.kvcache_block_size
        if len(token_ids) > pool:
            raise ValueError(
                f"the prompt has {len(token_ids)} tokens, more than the whole KV cache holds ({pool}); shorten it or "
                "raise num_kvcache_blocks"
            )
        return token_ids

    def _tokenize(self, text: str, **kwargs: Any) -> list[int]:
        """Token ids of a text. Raises `ValueError` if it holds half a surrogate pair, which no tokenizer reads."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the prompt is not valid Unicode: {error}") from error
        return self._require_tokenizer().encode(text, **kwargs)

    def _add(
        self,
        prompt: Prompt,
        token_ids: list[int],
        params: SamplingParams,
        is_external: bool = False,
        needs_text: bool = False,
    ) -> Request:
        seq = Sequence(token_ids, params, self.config.kvcache_block_size, next(self.seq_ids))
        detokenizer = Detokenizer(self._require_tokenizer(), params.stop) if needs_text or params.stop else None
        request = Request(seq, prompt if isinstance(prompt, str) else None, detokenizer, is_external)
        try:
            self.requests[seq.seq_id] = request
            self.scheduler.add(seq)
            return request
        except BaseException:  # known to both or to neither
            self.requests.pop(seq.seq_id, None)
            self._rewind()
            raise

    def _output(self, request: Request) -> RequestOutput:
        seq = request.seq
        if request.detokenizer is not None:
            text = request.detokenizer.text
        elif self.tokenizer is not None:
            token_ids = seq.completion_token_ids
            text_ids = token_ids[:-1] if ends_with_stop_token(seq) else token_ids
            text = self.tokenizer.decode(text_ids, skip_special_tokens=True)
        else:
            text = ""
        return RequestOutput(request, text)

    def _require_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise ValueError(f"model {self.config.model!r} has no tokenizer files; give prompts as lists of token ids")
        return self.tokenizer

    # The end.

    def exit(self) -> None:
        """Free the model, the cache and everything else, at once. Calling it again does nothing."""
        if self.is_freed:
            return
        self.is_closed = True
        self.requests.clear()
        self.in_flight = None
        self.model_runner.exit()
        self.is_freed = True

    def _check_open(self) -> None:
        if self.is_closed:
            raise RuntimeError("this engine has been closed by exit(); make a new LLM")
        if self._is_within(CALLS, in_other_threads=True):
            raise RuntimeError("another thread is using this engine; one thread at a time may")
        if not self.is_settled and self._is_within(CHANGES):
            raise RuntimeError("this engine is in the middle of a step; call it after that")

    def _is_within(self, methods: SequenceOf[str], in_other_threads: bool = False) -> bool:
        """Whether a thread, perhaps this one, is inside one of these methods of this engine.

        This is read off the stacks: an interrupt could strike right before a flag is lowered, and a lock would let a
        stream that is collected as garbage wait for the very thread that collects it.
        """
        codes = {getattr(LLMEngine, name).__code__ for name in methods}
        stacks = sys._current_frames()
        del stacks[threading.get_ident()]  # this call's own frame, which must not refer to itself
        for frame in [*stacks.values(), None if in_other_threads else sys._getframe(1)]:
            caller = frame
            while caller is not None:
                if caller.f_code in codes and caller.f_locals.get("self") is self:
                    return True
                caller = caller.f_back
        return False

    def __reduce__(self) -> NoReturn:
        raise TypeError("an engine cannot be copied or pickled; share it, or make another one with the same options")

    def __enter__(self) -> "LLMEngine":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.exit()

    def __del__(self) -> None:
        self.exit()


def make_config(model: str | Path, kwargs: dict[str, Any]) -> Config:
    """A `Config` from keyword arguments.

    Raises:
        TypeError: there is no such option; names the closest one.
    """
    known = [f.name for f in dataclasses.fields(Config) if f.init]
    for name in kwargs:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(known)}"
            raise TypeError(f"unknown option {name!r}; {hint}")
    return Config(model, **kwargs)  # type: ignore[arg-type]


def load_tokenizer(model_path: Path) -> Any:
    """The model's tokenizer, or None if its directory has none. Raises `ValueError` if it cannot be read."""
    if not any((model_path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json")):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_path)
    except Exception as error:  # each version of its libraries has exceptions of its own
        raise ValueError(f"the tokenizer files in {model_path} cannot be read: {error!r}") from error


def as_prompt_list(prompts: Prompt | list[Prompt] | Iterable[Prompt]) -> list[Prompt]:
    """One prompt or several as a list. Raises `TypeError` for anything else, `ValueError` for an empty prompt."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        raise TypeError(f"prompts must be a string, a list of strings or lists of token ids, got {prompts!r}")
    items: list[Any] = list(prompts)
    if items and isinstance(items[0], numbers.Integral):
        return [items]
    for item in items:
        if not isinstance(item, str | list | tuple):
            raise TypeError(f"a prompt must be a string or a list of token ids, got {item!r}")
    return items


def as_prompt(prompt: Prompt) -> Prompt:
    """One prompt. Raises `TypeError`, or `ValueError` if it is a list of none or several."""
    prompts = as_prompt_list(prompt)
    if len(prompts) != 1:
        raise ValueError(f"prompt must be one string or one list of token ids, got {prompt!r}")
    return prompts[0]


def as_params_list(
    sampling_params: SamplingParams | SequenceOf[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """Sampling parameters for every prompt. Raises `TypeError`, or `ValueError` if the numbers differ."""
    if sampling_params is None:
        sampling_params = SamplingParams()
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * num_prompts
    if not isinstance(sampling_params, list | tuple):
        raise TypeError(f"sampling_params must be SamplingParams or a list of them, got {sampling_params!r}")
    if len(sampling_params) != num_prompts:
        raise ValueError(
            f"got {num_prompts} prompts but {len(sampling_params)} sampling_params; the numbers must match"
        )
    for params in sampling_params:
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params must hold SamplingParams, got {params!r}")
    return list(sampling_params)


def ends_with_stop_token(seq: Sequence) -> bool:
    """Whether the last token is an end-of-sequence or stop token, which is not part of the text."""
    return seq.finish_reason == "stop" and not isinstance(seq.stop_reason, str)
