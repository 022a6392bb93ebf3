"""What scripts use: prompts in, text out. The names are those of vLLM (vllm/entrypoints/llm.py)."""

from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from .config import Config
from .engine.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from .engine.scheduler import Scheduler
from .engine.sequence import Sequence
from .levers import make_engine
from .model_files import load_tokenizer
from .models import get_model_class
from .outputs import Detokenizer, RequestOutput, TextRequest
from .progress import ProgressBar
from .prompts import InputProcessor, Params, Prompt, as_params_list, as_prompt, as_prompt_list
from .sampling_params import SamplingParams


class LLM:
    """A language model that answers prompts. It is a context manager; `exit` frees what it holds.

    What runs it for others, such as a server, may also look at `config`, `tokenizer`, `processor`,
    `scheduler`, and `added`: the requests of `add_request` that `step` has not reported, by
    `seq_id`.

    Args:
        model: a directory, a hub id, or the name of a bundled model.
        **options: the other fields of `Config`.

    Raises:
        TypeError, ValueError: an option is unknown, has the wrong type, or does not fit the model.
        MemoryError: weights or KV cache do not fit into memory.
    """

    is_closed = is_freed = True  # until there is something to close

    def __init__(self, model: str | Path, **options: Any) -> None:
        if unknown := options.keys() - set(Config.__match_args__):
            options_known = ", ".join(Config.__match_args__[1:])
            raise TypeError(f"unknown option {min(unknown)!r}; the options are {options_known}")
        self.config = Config(model, **options)  # type: ignore[arg-type]
        get_model_class(self.config.hf_config)  # an unsupported one fails before anything is loaded
        self.tokenizer = load_tokenizer(self.config.model_path)
        if self.tokenizer is not None and self.tokenizer.eos_token_id is not None:
            self.config.eos = tuple({*self.config.eos, self.tokenizer.eos_token_id})
        self.processor = InputProcessor(self.config, self.tokenizer)
        self.llm_engine = make_engine(self.config)
        self.seq_ids = count()
        self.added: dict[int, TextRequest] = {}
        self.is_closed = self.is_freed = False

    @property
    def scheduler(self) -> Scheduler:
        """The engine's scheduler, to look at."""
        return self.llm_engine.scheduler

    # Results for whole lists of prompts.

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

    def chat(
        self,
        messages: list[dict[str, Any]] | list[list[dict[str, Any]]],
        sampling_params: Params = None,
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
        kwargs = chat_template_kwargs or {}
        prompts: list[Prompt] = [self.apply_chat_template(conv, **kwargs) for conv in conversations]
        return self.generate(prompts, sampling_params, use_tqdm)

    def apply_chat_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> list[int]:
        """Token ids of a conversation; see `InputProcessor.apply_chat_template`."""
        return self.processor.apply_chat_template(messages, **kwargs)

    def beam_search(
        self, prompts: Prompt | list[Prompt], params: BeamSearchParams, use_tqdm: bool = False
    ) -> list[BeamSearchOutput]:
        """The most likely continuations of every prompt; see `nanovllm.engine.beam_search`.

        Returns:
            for each prompt, `beam_width` beams (`.sequences[i].tokens`, `.text`, `.cum_logprob`),
            best first.
        """
        return beam_search(self, as_prompt_list(prompts), params, use_tqdm)

    # One answer, as it comes.

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Generator[str, None, RequestOutput]:
        """Text of one answer, piece by piece, as it is generated.

        The request starts at the first `next`. Several streams can be read in turn, and run as one
        batch. Closing a stream aborts its request; its return value is the `RequestOutput`.

        Raises:
            TypeError, ValueError: the prompt or a parameter is bad, or the model has no tokenizer.
        """
        tokenizer = self.processor.require_tokenizer()
        (params,) = as_params_list(sampling_params, 1)
        request = self._make_request(as_prompt(prompt), params)
        request.detokenizer = Detokenizer(tokenizer, params.stop)
        return self._stream(request)

    def _stream(self, request: TextRequest) -> Generator[str, None, RequestOutput]:
        self._check_open()
        shown = 0
        try:
            self.llm_engine.add_request(request)
            while True:
                # Looked at once, and before the text: another thread's step may change both.
                is_finished, detokenizer = request.is_finished, request.detokenizer
                assert detokenizer is not None
                visible = detokenizer.visible_length(is_finished)
                if visible > shown:
                    yield detokenizer.text[shown:visible]
                    shown = visible
                elif is_finished:
                    return RequestOutput(request, request.text(self.tokenizer))
                else:
                    self._step()
        finally:
            if not request.is_finished:
                self.llm_engine.abort_request(request.seq.seq_id)

    # One request and one step at a time.

    def add_request(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> int:
        """Queue a request and return its `seq_id`; `step` reports when it is done.

        Args:
            prompt: a string, or a list of token ids.

        Raises:
            TypeError, ValueError: the prompt or a parameter is bad.
        """
        (params,) = as_params_list(sampling_params, 1)
        request = self._make_request(as_prompt(prompt), params)
        seq_id = request.seq.seq_id
        try:
            self.added[seq_id] = request
            self.llm_engine.add_request(request)
        except BaseException:  # nobody knows its number
            self.added.pop(seq_id, None)
            self.llm_engine.abort_request(seq_id)
            raise
        return seq_id

    def step(self) -> tuple[list[tuple[int, list[int]]], int]:
        """Run one step of whatever the scheduler chooses.

        Returns:
            finished: (seq_id, generated token ids) of requests from `add_request` that are done.
            num_tokens: number of tokens computed; positive for a prefill, negative for a decode,
                0 when idle.
        """
        num_tokens = self._step()
        finished = [i for i, request in list(self.added.items()) if request.is_finished]
        # Another thread that steps may have reported some of them.
        seqs = [request.seq for i in finished if (request := self.added.pop(i, None))]
        reported = [seq for seq in seqs if seq.finish_reason != "abort"]
        return [(seq.seq_id, seq.completion_token_ids) for seq in reported], num_tokens

    def is_finished(self) -> bool:
        """Whether no request is live and `step` has reported all results."""
        return not self.added and not self.llm_engine.has_unfinished_requests()

    def abort(self, seq_id: int) -> RequestOutput | None:
        """End a request and free its blocks: now, or with the step that is under way.

        Returns:
            what it had generated, with the finish reason "abort"; None if no such request is live,
            if it ends with the step, or if the engine was closed meanwhile.
        """
        request: Any = self.llm_engine.requests.get(seq_id)
        self.llm_engine.abort_request(seq_id)
        if request is None or not request.is_finished:  # with the step, or exit() was faster
            return None
        self.added.pop(seq_id, None)
        return RequestOutput(request, request.text(self.tokenizer))

    def _make_request(self, prompt: Prompt, params: SamplingParams) -> TextRequest:
        """A request that can be run. Raises `TypeError`, `ValueError`."""
        self._check_open()
        token_ids = self.processor.encode(prompt)
        seq = Sequence(token_ids, params, self.config.kvcache_block_size, next(self.seq_ids))
        self.scheduler.check(seq)
        request = TextRequest(seq, prompt=prompt if isinstance(prompt, str) else None)
        if params.stop:
            request.detokenizer = Detokenizer(self.processor.require_tokenizer(), params.stop)
        return request

    def _step(self) -> int:
        self._check_open()
        return self.llm_engine.step()

    # The end.

    def exit(self) -> None:
        """Free the model, the cache and everything else, at once. Calling it again does nothing.

        In the middle of a step (called by a signal handler, say) they are freed after it.
        """
        if self.is_freed:
            return
        self.is_closed = True
        self.added.clear()
        self.is_freed = self.llm_engine.exit()

    def _check_open(self) -> None:
        if self.is_closed:
            self.exit()  # unless that was done
            raise RuntimeError("this engine has been closed by exit(); make a new LLM")

    def __reduce__(self) -> NoReturn:
        raise TypeError("an engine cannot be copied or pickled; share it, or make another one")

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.exit()

    def __del__(self) -> None:
        self.exit()
