"""What a prompt may be, and how it becomes token ids that the model can read."""

import numbers
from collections.abc import Sequence as SequenceOf
from typing import Any

from .config import Config
from .sampling_params import SamplingParams
from .validation import check_int

Prompt = str | SequenceOf[int]
Params = SamplingParams | SequenceOf[SamplingParams] | None  # one for all, or one a prompt


class InputProcessor:
    """Turns prompts and conversations into checked token ids (vllm/v1/engine/input_processor.py).

    Args:
        config: of the engine.
        tokenizer: Hugging Face tokenizer; None if the model has none, then only token ids are read.
    """

    def __init__(self, config: Config, tokenizer: Any) -> None:
        self.config = config
        self.tokenizer = tokenizer

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt, at least one.

        Raises:
            TypeError, ValueError: it is empty, no text, or a token is not in the vocabulary.
        """
        token_ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        if not token_ids:
            raise ValueError(f"prompt {prompt!r} is empty; give at least one token")
        if set(map(type, token_ids)) != {int}:  # looking at each of thousands takes its time
            token_ids = [check_int("a token id", token_id, minimum=0) for token_id in token_ids]
        check_int("a token id", min(token_ids), minimum=0)
        largest, vocab_size = max(token_ids), self.config.hf_config.vocab_size
        if largest >= vocab_size:
            raise ValueError(f"token id {largest} is outside the vocabulary of {vocab_size}")
        return token_ids

    def tokenize(self, text: str, **kwargs: Any) -> list[int]:
        """Token ids of a text.

        Raises:
            ValueError: it holds half a surrogate pair, which no tokenizer reads.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the prompt is not valid Unicode: {error}") from error
        return self.require_tokenizer().encode(text, **kwargs)

    def require_tokenizer(self) -> Any:
        """The tokenizer. Raises `ValueError` if the model has none."""
        if self.tokenizer is None:
            model = self.config.model
            raise ValueError(f"model {model!r} has no tokenizer files; give lists of token ids")
        return self.tokenizer

    def apply_chat_template(self, messages: list[dict[str, Any]], **kwargs: Any) -> list[int]:
        """Token ids of a conversation, up to where the model's answer begins.

        Raises:
            ValueError: the messages do not fit, or the model has no chat template.
        """
        tokenizer = self.require_tokenizer()
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError(f"model {self.config.model!r} has no chat template; use generate")
        check_messages(messages)
        try:
            kwargs |= {"tokenize": False, "add_generation_prompt": True}
            text = tokenizer.apply_chat_template(messages, **kwargs)
        except Exception as error:  # a template is a program, and may raise anything
            message = f"the model's chat template does not take messages={messages!r}: {error!r}"
            raise ValueError(message) from error
        return self.tokenize(text, add_special_tokens=False)


def check_messages(messages: Any) -> None:
    """Raise `ValueError` if this is no conversation."""
    is_list = isinstance(messages, list) and len(messages) > 0
    for message in messages if is_list else [None]:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            wanted = "a list of at least one {'role': ..., 'content': ...}"
            raise ValueError(f"messages must be {wanted}, got {messages!r}")


def as_prompt_list(prompts: Any) -> list[Prompt]:
    """One prompt or several as a list. Raises `TypeError` for anything else."""
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, list | tuple):
        wanted = "a string, a list of strings or lists of token ids"
        raise TypeError(f"prompts must be {wanted}, got {prompts!r}")
    if prompts and isinstance(prompts[0], numbers.Integral):
        return [list(prompts)]
    for prompt in prompts:
        if not isinstance(prompt, str | list | tuple):
            raise TypeError(f"a prompt must be a string or a list of token ids, got {prompt!r}")
    return list(prompts)


def as_prompt(prompt: Prompt) -> Prompt:
    """One prompt. Raises `TypeError`, or `ValueError` if it is a list of none or several."""
    prompts = as_prompt_list(prompt)
    if len(prompts) != 1:
        raise ValueError(f"prompt must be one string or one list of token ids, got {prompt!r}")
    return prompts[0]


def as_params_list(sampling_params: Any, num_prompts: int) -> list[SamplingParams]:
    """Sampling parameters for every prompt.

    Raises:
        TypeError: they are none.
        ValueError: there are not as many as prompts.
    """
    if sampling_params is None:
        sampling_params = SamplingParams()
    if isinstance(sampling_params, SamplingParams):
        return [sampling_params] * num_prompts
    is_list = isinstance(sampling_params, list | tuple)
    for params in sampling_params if is_list else [sampling_params]:
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params must be SamplingParams or a list, got {params!r}")
    if len(sampling_params) != num_prompts:
        counts = f"{num_prompts} prompts but {len(sampling_params)} sampling_params"
        raise ValueError(f"got {counts}; give one for each prompt, or one for all")
    return list(sampling_params)
