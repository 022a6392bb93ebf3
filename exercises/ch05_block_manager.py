"""Your answers to chapter 05, block manager.

Write here, or in the notebook's cells, which write here. Helpers and imports may stand beside a function, under its
marker line; those at the top are for all. "python -m exercises check" says how it is going; "python -m exercises" what
there is to do.
"""

# derived: 6af029964d3a
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
from typing import Any


# --- ch05.compute_hash
@staticmethod
def compute_hash(token_ids: SequenceOf[int], prefix: int = NO_HASH) -> int:
    """64-bit hash of a full block: of its tokens and, through `prefix`, of everything before.

    Equal blocks after equal prefixes have equal hashes, in every process. If a token, the order
    of the tokens or the prefix is another, so is the hash, but for a very rare accident.

    Args:
        token_ids: the tokens of the block, each below 2**31; they stay as they are.
        prefix: hash of the block before it, 0 included; -1 (`NO_HASH`) for the first block.

    Returns:
        a Python int from 0 to 2**64 - 1.
    """
    raise NotImplementedError("ch05.compute_hash")


# --- ch05.can_allocate
def can_allocate(self, seq: Sequence) -> bool:
    """Whether there are enough free blocks for `allocate(seq)`, which shares what it can.

    True or False. If the last free block is just used up, the answer is yes. Asking changes
    nothing.
    """
    raise NotImplementedError("ch05.can_allocate")


# --- ch05.allocate
def allocate(self, seq: Sequence) -> None:
    """Give `seq` blocks for all its tokens, prompt and answer, in the order of the tokens.

    Afterwards `block_table` begins with the cached blocks that hold the longest prefix of
    `seq`, which is one more owner of each; the rest are new ones. `num_cached_tokens` is the
    number of tokens in the shared blocks: nobody computes them again.

    Raises:
        RuntimeError: the sequence has blocks already, or there are not enough (ask
            `can_allocate` first). Nothing is changed then.
    """
    raise NotImplementedError("ch05.allocate")


# --- ch05.deallocate
def deallocate(self, seq: Sequence) -> None:
    """Take all blocks of `seq` back.

    Afterwards its block table is an empty list, and `num_cached_tokens` is 0; its tokens stay.
    A block that somebody else uses too has one owner less. The others are free now: they stand
    at the right end of `free_block_ids`, the last of the table leftmost, and keep their hash.
    The table may have no blocks, or one fewer than the tokens need.
    """
    raise NotImplementedError("ch05.deallocate")


# --- ch05.may_append
def may_append(self, seq: Sequence) -> None:
    """Give `seq` one more block if its last token is the first of a new block.

    Else nothing happens, also when no block is free. Asked twice for the same token, it gives
    one block. It holds for blocks of every size, 1 included.

    Raises:
        RuntimeError: a block is needed and none is free. (`can_append` tells before.)
    """
    raise NotImplementedError("ch05.may_append")


# --- ch05.choose_block_to_evict
def choose_block_to_evict(self: Any) -> int:
    """Id of the free block that is taken next; what it holds is lost.

    The goal: of the prompt tokens of `exercises.kit.workloads.chat_service()`, the cache shall find
    as many as possible, in 48 blocks of 16 tokens. The block that was freed longest ago (LRU) finds
    20,832 of them, a random one 17,356; at least 21,600 are asked for.

    It is called only when a block is free. It takes nothing itself and changes nothing of the pool,
    but it may keep attributes of its own on the manager, which is new at the start of a run. What
    was found or computed since the last call shows in `used_block_ids`: its blocks are there. After
    an error the engine calls `reset()`: then all blocks are free, nothing is cached, and content
    ids begin at 0 again.

    Returns:
        a key of `self.free_block_ids`.
    """
    raise NotImplementedError("ch05.choose_block_to_evict")
