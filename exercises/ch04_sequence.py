"""Your answers to chapter 04, sequence.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: e3565ae707da
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from enum import Enum, auto
from typing import Any
from nanovllm.sampling_params import SamplingParams
from nanovllm.engine.sequence import SequenceStatus, Sequence
from collections.abc import Callable


# --- ch04.num_blocks
@property
def num_blocks(self) -> int:
    """Blocks that `num_tokens` tokens need (an `int`); the last one may be partly filled.

    It is right in a worker process, too, where `token_ids` may be empty.
    """
    raise NotImplementedError("ch04.num_blocks")


# --- ch04.block
def block(self, i: int) -> list[int]:
    """Token ids of the i-th logical block: `block_size`, in the last block perhaps fewer.

    Raises:
        IndexError: there is no such block; they are numbered from 0, and never from the end.
    """
    raise NotImplementedError("ch04.block")


# --- ch04.append_token
def append_token(self, token_id: int) -> None:
    """Add a generated token: now it is the last one, and there is one token more.

    Its keys and values are computed in the step after.
    """
    raise NotImplementedError("ch04.append_token")


# --- ch04.__getstate__
def __getstate__(self) -> dict[str, Any]:
    """What pickle sends to a worker: all attributes, with empty lists for what is not needed.

    A worker never looks at `block_hashes`. It reads the tokens that it computes from
    `token_ids`, unless only one is left that has no keys and values yet: that is `last_token`.
    The sequence itself stays as it is.

    Returns:
        the attributes by name; pickle makes them the attributes of the worker's copy.
    """
    raise NotImplementedError("ch04.__getstate__")


# --- ch04.codec
def codec() -> tuple[Callable[[Any], bytes], Callable[[bytes], dict[str, Any]]]:
    """Two functions: `pack` makes bytes of what a worker needs of a sequence, `unpack` reads them.

    The goal: few bytes. Over the steps that the check plays (prompts in one piece and in several,
    decode, preemption, short and long texts, large and small ids) at most a tenth of what
    `pickle.dumps(vars(seq))` takes.

    `pack(seq)` gives bytes and leaves the sequence as it is. `unpack(data)` runs in another process
    and has nothing but these bytes. It gives a dict:

    - "seq_id": its number;
    - "tokens": ids of the tokens that the step computes (`seq.scheduled_token_ids`), a list;
    - "start": the position of the first of them, `seq.num_cached_tokens`;
    - "is_cut": whether tokens are left for a later step, `True` or `False`;
    - "block_table": as it is, a list.

    Ids of sequences are below 2**63, positions and ids of tokens and blocks below 2**31.

    Returns:
        `pack` and `unpack`.
    """
    raise NotImplementedError("ch04.codec")
