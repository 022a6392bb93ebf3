"""Your answers to chapter 05, block manager.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line. "python -m exercises check" says how it is going; "python -m exercises" what there is to do.
"""

# derived: 2f8bf97db561
# ruff: noqa
# mypy: ignore-errors
# fmt: off

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import count
import numpy as np
import xxhash
from nanovllm.engine.sequence import Sequence
from nanovllm.engine.block_manager import NO_HASH, Block, BlockManager


# --- ch05.compute_hash
@staticmethod
def compute_hash(token_ids: SequenceOf[int], prefix: int = NO_HASH) -> int:
    """64-bit hash of a full block: of its tokens and, through `prefix`, of everything before.

    Args:
        token_ids: the tokens of the block.
        prefix: hash of the block before it; -1 for the first block.
    """
    raise NotImplementedError("ch05.compute_hash")


# --- ch05.can_allocate
def can_allocate(self, seq: Sequence) -> bool:
    """Whether there are enough free blocks for `allocate(seq)`, which shares what it can."""
    raise NotImplementedError("ch05.can_allocate")


# --- ch05.allocate
def allocate(self, seq: Sequence) -> None:
    """Give `seq` blocks for all its tokens in `block_table`: first shared ones, then new ones.

    `num_cached_tokens` becomes the number of tokens in shared blocks: nobody computes them
    again.

    Raises:
        RuntimeError: the sequence has blocks already, or there are not enough (ask
            `can_allocate` first). Nothing is changed then.
    """
    raise NotImplementedError("ch05.allocate")


# --- ch05.deallocate
def deallocate(self, seq: Sequence) -> None:
    """Take all blocks of `seq` back.

    Afterwards its block table is empty, and none of its tokens is cached. A block that nobody
    else uses moves from the used ones to the right end of the free ones, and keeps its hash.
    The tail goes first, so that it is evicted first: a block whose predecessor is gone cannot
    be hit.
    """
    raise NotImplementedError("ch05.deallocate")


# --- ch05.may_append
def may_append(self, seq: Sequence) -> None:
    """Give `seq` one more block if its last token is the first of a new block.

    Raises:
        RuntimeError: a block is needed and none is free (ask `can_append` first).
    """
    raise NotImplementedError("ch05.may_append")
