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
from collections import Counter
from typing import Any


# --- ch05.compute_hash
# The same sixteen tokens at the start of a prompt and in its middle have different keys and values: attention has
# mixed in what came before. A chained hash makes such blocks different by name, in constant time for each block,
# because the hash before stands for the whole prefix. Tokens have a fixed width (8 bytes), so that [1, 23] and
# [12, 3] cannot become the same bytes.
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
    """Whether there are enough free blocks for `allocate(seq)`, which shares what it can.

    True or False. If the last free block is just used up, the answer is yes. Asking changes
    nothing.
    """
    return self.num_free_blocks_needed(seq) <= len(self.free_block_ids)


# --- ch05.allocate
# Shared blocks come first, before any new block is taken: a cached block may be free, and taking a new one could
# evict the very block we are about to share. num_cached_tokens tells the runner which tokens need no computing;
# that is all that a prefix hit saves, and it is a lot. Refusing happens before anything is changed, so a refusal
# leaves no half-made state behind.
def allocate(self, seq: Sequence) -> None:
    """Give `seq` blocks for all its tokens, prompt and answer, in the order of the tokens.

    Afterwards `block_table` begins with the cached blocks that hold the longest prefix of
    `seq`, which is one more owner of each; the rest are new ones. `num_cached_tokens` is the
    number of tokens in the shared blocks: nobody computes them again.

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
        self._share(block_id)
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

    Afterwards its block table is an empty list, and `num_cached_tokens` is 0; its tokens stay.
    A block that somebody else uses too has one owner less. The others are free now: they stand
    at the right end of `free_block_ids`, the last of the table leftmost, and keep their hash.
    The table may have no blocks, or one fewer than the tokens need.
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

    Else nothing happens, also when no block is free. Asked twice for the same token, it gives
    one block. It holds for blocks of every size, 1 included.

    Raises:
        RuntimeError: a block is needed and none is free. (`can_append` tells before.)
    """
    if len(seq.block_table) < seq.num_blocks:
        self._append_new_block(seq)


# --- ch05.choose_block_to_evict
# LRU forgets a system prompt that is used all the time as soon as a few long documents pass through, though nobody will
# ask for these documents again. Counting visits tells the two apart: this policy (least frequently used, ties by LRU)
# finds 25,216 prompt tokens of the workload where LRU finds 20,832 and a random choice 17,356. It costs a look at all
# used and free blocks for each eviction, where LRU needs one look, and what was popular once stays for long: a service
# whose load changes lets the counts fade. vLLM stays with LRU, which is right within a few percent in most loads.
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
    if not hasattr(self, "visits"):
        self.visits, self.in_use = Counter(), set()
    # A content that is in use now and was not when we looked last has been computed or found: a visit.
    in_use = {self.blocks[block_id].content_id for block_id in self.used_block_ids}
    self.visits.update(in_use - self.in_use)
    self.in_use = in_use

    def worth(block_id: int) -> int:
        block = self.blocks[block_id]
        is_findable = self.hash_to_block_id.get(block.hash) == block_id
        return self.visits[block.content_id] if is_findable else -1

    return min(self.free_block_ids, key=worth)  # of equal ones the first, which was freed longest ago
