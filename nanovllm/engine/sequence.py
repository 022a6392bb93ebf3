"""The tokens of one request, and where their keys and values are stored.

Scheduler, block manager and runner know a request only as this; `Request` has what its caller sees.
"""

from collections.abc import Sequence as SequenceOf
from enum import Enum, auto
from typing import Any

from ..sampling_params import SamplingParams


class SequenceStatus(Enum):
    """WAITING -> RUNNING -> FINISHED, and back to WAITING when preempted."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """The tokens of one request and the state the scheduler keeps for it.

    Tokens fall into three ranges, each after the one before:
    `num_cached_tokens` have their keys and values in the cache, `num_scheduled_tokens` are computed
    in the current step, the rest in a later one. `block_table[i]` is the id of the block that holds
    tokens `i * block_size` to `(i + 1) * block_size - 1`.

    Args:
        token_ids: the prompt, at least one token.
        sampling_params: how its tokens are chosen and when it stops; None for the defaults.
        block_size: tokens a KV-cache block holds; belongs to the instance, so that engines can
            differ.
        seq_id: number of the request in its engine.

    Raises:
        ValueError: `token_ids` is empty.
    """

    def __init__(
        self,
        token_ids: SequenceOf[int],
        sampling_params: SamplingParams | None = None,
        block_size: int = 256,
        seq_id: int = 0,
    ) -> None:
        if not token_ids:
            raise ValueError("token_ids is empty: a prompt needs at least one token")
        self.seq_id = seq_id
        self.status = SequenceStatus.WAITING
        self.token_ids = list(token_ids)
        self.last_token = self.token_ids[-1]
        self.num_tokens = self.num_prompt_tokens = len(self.token_ids)
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0
        self.block_table: list[int] = []
        self.block_size = block_size
        self.block_hashes: list[int] = []  # of the full blocks, as far as anyone has asked
        self.sampling_params = SamplingParams() if sampling_params is None else sampling_params
        self.num_prefix_hit_tokens: int | None = None  # found in the cache at the first admission
        self.finish_reason: str | None = None  # "stop", "length", "abort" or "error"
        self.stop_reason: int | str | None = None  # the stop token id or stop string that matched
        self.error: str | None = None  # why the finish reason is "error"

    def __len__(self) -> int:
        return self.num_tokens

    def __getitem__(self, index: Any) -> Any:
        return self.token_ids[index]

    def __repr__(self) -> str:
        tokens = f"{self.num_prompt_tokens} prompt + {self.num_completion_tokens} completion tokens"
        state = f"{self.status.name}, {tokens}, {self.num_cached_tokens} cached"
        return f"Sequence(seq_id={self.seq_id}, {state}, block_table={self.block_table})"

    @property
    def is_finished(self) -> bool:
        """Whether no further token will come."""
        return self.status is SequenceStatus.FINISHED

    @property
    def num_completion_tokens(self) -> int:
        """Number of generated tokens."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        """The tokens that came with the request."""
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def completion_token_ids(self) -> list[int]:
        """The tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_blocks(self) -> int:
        """Blocks that `num_tokens` tokens need (an `int`); the last one may be partly filled.

        It is right in a worker process, too, where `token_ids` may be empty.
        """
        return (self.num_tokens + self.block_size - 1) // self.block_size

    @property
    def num_cached_blocks(self) -> int:
        """Blocks whose every slot holds computed keys and values."""
        return self.num_cached_tokens // self.block_size

    @property
    def last_block_num_tokens(self) -> int:
        """Tokens in the last block."""
        return self.num_tokens - (self.num_blocks - 1) * self.block_size

    @property
    def num_computed_after_step(self) -> int:
        """Tokens whose keys and values will be in the cache once the current step has run."""
        return self.num_cached_tokens + self.num_scheduled_tokens

    @property
    def is_cut(self) -> bool:
        """Whether the current step leaves tokens uncomputed, so that none can be sampled yet."""
        return self.num_computed_after_step < self.num_tokens

    @property
    def scheduled_token_ids(self) -> list[int]:
        """The tokens that the current step computes."""
        if self.num_scheduled_tokens == 1 and not self.is_cut:
            return [self.last_token]
        return self.token_ids[self.num_cached_tokens : self.num_computed_after_step]

    def block(self, i: int) -> list[int]:
        """Token ids of the i-th logical block: `block_size`, in the last block perhaps fewer.

        Raises:
            IndexError: there is no such block; they are numbered from 0, and never from the end.
        """
        if not 0 <= i < self.num_blocks:
            raise IndexError(f"block {i} does not exist: the sequence has {self.num_blocks} blocks")
        return self.token_ids[i * self.block_size : (i + 1) * self.block_size]

    def append_token(self, token_id: int) -> None:
        """Add a generated token: now it is the last one, and there is one token more.

        Its keys and values are computed in the step after.
        """
        self.token_ids.append(token_id)
        self.last_token = token_id
        self.num_tokens += 1

    def rewind(self, num_tokens: int) -> None:
        """Wait again, with the first `num_tokens` tokens and no blocks."""
        del self.token_ids[num_tokens:], self.block_hashes[num_tokens // self.block_size :]
        self.num_tokens, self.last_token = num_tokens, self.token_ids[-1]
        self.status = SequenceStatus.WAITING
        self.block_table, self.num_cached_tokens, self.num_scheduled_tokens = [], 0, 0
        self.finish_reason = self.stop_reason = self.error = None

    def __getstate__(self) -> dict[str, Any]:
        """What pickle sends to a worker: all attributes, with empty lists for what is not needed.

        A worker never looks at `block_hashes`. It reads the tokens that it computes from
        `token_ids`, unless only one is left that has no keys and values yet: that is `last_token`.
        The sequence itself stays as it is.

        Returns:
            the attributes by name; pickle makes them the attributes of the worker's copy.
        """
        state = self.__dict__.copy()
        state["block_hashes"] = []
        if self.num_cached_tokens == self.num_tokens - 1:
            state["token_ids"] = []
        return state
