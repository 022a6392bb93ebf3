"""Our answers to chapter 05, block manager, cut out of nanovllm/, each with its reason."""

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
# The same sixteen tokens at the start of a prompt and in its middle have different keys and values: attention has
# mixed in what came before. A chained hash makes such blocks different by name, in constant time for each block,
# because the hash before stands for the whole prefix. Tokens have a fixed width (8 bytes), so that [1, 23] and
# [12, 3] cannot become the same bytes.
@staticmethod
def compute_hash(token_ids: SequenceOf[int], prefix: int = NO_HASH) -> int:
    """64-bit hash of a full block: of its tokens and, through `prefix`, of everything before.

    Args:
        token_ids: the tokens of the block.
        prefix: hash of the block before it; -1 for the first block.
    """
    hasher = xxhash.xxh64()
    if prefix != NO_HASH:
        hasher.update(prefix.to_bytes(8, "little"))
    hasher.update(np.asarray(token_ids, dtype=np.int64).tobytes())
    return hasher.intdigest()


# --- ch05.can_allocate
# The scheduler asks before it admits a sequence, so a yes must be kept: allocate may not fail afterwards. Counting
# all blocks would refuse sequences that share most of theirs; counting every hit as free of cost would promise
# blocks twice, because reviving a free block takes it out of the free ones.
def can_allocate(self, seq: Sequence) -> bool:
    """Whether there are enough free blocks for `allocate(seq)`, which shares what it can."""
    return self.num_new_blocks(seq) <= len(self.free_block_ids)


# --- ch05.allocate
# Shared blocks come first, before any new block is taken: a cached block may be free, and taking a new one could
# evict the very block we are about to share. num_cached_tokens tells the runner which tokens need no computing;
# that is all that a prefix hit saves, and it is a lot. Refusing happens before anything is changed, so a refusal
# leaves no half-made state behind.
def allocate(self, seq: Sequence) -> None:
    """Give `seq` blocks for all its tokens in `block_table`: first shared ones, then new ones.

    `num_cached_tokens` becomes the number of tokens in shared blocks: nobody computes them
    again.

    Raises:
        RuntimeError: the sequence has blocks already, or there are not enough (ask
            `can_allocate` first). Nothing is changed then.
    """
    if seq.block_table:
        raise RuntimeError(f"sequence {seq.seq_id} already has blocks")
    if not self.can_allocate(seq):
        raise RuntimeError(f"sequence {seq.seq_id} needs more blocks than are free")
    cached = self.find_cached_blocks(seq)
    for block_id in cached:
        self._share(block_id, seq)
    seq.block_table = cached
    seq.num_cached_tokens = len(cached) * self.block_size
    while len(seq.block_table) < seq.num_blocks:
        self._append_new_block(seq)


# --- ch05.deallocate
# Freed blocks keep their hash: they are the prefix cache, until somebody needs the space. Blocks are taken from
# the left, so those of a sequence go in tail first: the tail is evicted first, and a prefix survives longest. The
# other way around, the first block would go first, and all the rest, though still there, could not be hit any more.
def deallocate(self, seq: Sequence) -> None:
    """Take all blocks of `seq` back.

    Afterwards its block table is empty, and none of its tokens is cached. A block that nobody
    else uses moves from the used ones to the right end of the free ones, and keeps its hash.
    The tail goes first, so that it is evicted first: a block whose predecessor is gone cannot
    be hit.
    """
    for block_id in reversed(seq.block_table):
        block = self.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            self.used_block_ids.remove(block_id)
            self.free_block_ids[block_id] = None
    seq.block_table = []
    seq.num_cached_tokens = 0


# --- ch05.may_append
# This runs once for each running sequence in each decode step, and does nothing in most of them: with blocks of
# 256 tokens, once in 256 steps. Comparing the two counts needs no arithmetic about remainders, so it is right for
# every block size, 1 included, and calling it twice does no harm.
def may_append(self, seq: Sequence) -> None:
    """Give `seq` one more block if its last token is the first of a new block.

    Raises:
        RuntimeError: a block is needed and none is free (ask `can_append` first).
    """
    if len(seq.block_table) < seq.num_blocks:
        self._append_new_block(seq)
