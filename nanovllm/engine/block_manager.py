"""The KV cache as blocks: who owns which, which can be shared, which can be taken back.

Paging follows PagedAttention (Kwon et al., 2023, section 4); prefix caching by chained hashes of
full blocks follows vLLM (vllm/v1/core/block_pool.py, kv_cache_utils.py).
"""

from collections import OrderedDict
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import xxhash

from .sequence import Sequence

NO_HASH = -1


@dataclass(slots=True)
class Block:
    """A fixed number of slots in the KV cache, for that many tokens of one sequence, or of several.

    A full block has a `hash`: of its tokens and all before them. `content_id` numbers what is in
    it, `parent_id` is the content id of the block before; comparing these and the tokens makes a
    cache hit exact even if two different prefixes have the same hash.
    """

    block_id: int
    ref_count: int = 0
    hash: int = NO_HASH
    token_ids: list[int] = field(default_factory=list)
    content_id: int = -1
    parent_id: int = -1

    def forget(self) -> None:
        """Drop what the block says about its content; it is about to be overwritten."""
        self.hash, self.token_ids, self.content_id, self.parent_id = NO_HASH, [], -1, -1


class BlockManager:
    """Hands out KV-cache blocks, counts who uses them, and finds those that can be reused.

    After every call: free and used blocks are all blocks and disjoint, and a block's `ref_count` is
    the number of block tables that name it (0 exactly if it is free). A freed block keeps its hash
    until it is handed out again, so an equal prefix can revive it: free blocks are the cache.

    Args:
        num_blocks: size of the pool.
        block_size: tokens a block holds.
        enable_prefix_caching: whether full blocks are hashed and shared.
    """

    def __init__(
        self, num_blocks: int, block_size: int, enable_prefix_caching: bool = True
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.reset()

    def reset(self) -> None:
        """Begin with an empty cache: all blocks are free, and nothing is known of their content."""
        self.blocks = [Block(block_id) for block_id in range(self.num_blocks)]
        self.hash_to_block_id: dict[int, int] = {}
        # Keys only, in order of release: the left end was freed longest ago.
        # An ordered dict, because a hit takes a block out of the middle.
        self.free_block_ids = OrderedDict.fromkeys(range(self.num_blocks))
        self.used_block_ids: set[int] = set()
        self._content_ids = count()

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

    def can_allocate(self, seq: Sequence) -> bool:
        """Whether there are enough free blocks for `allocate(seq)`, which shares what it can.

        True or False. If the last free block is just used up, the answer is yes. Asking changes
        nothing.
        """
        return self.num_free_blocks_needed(seq) <= len(self.free_block_ids)

    def num_free_blocks_needed(self, seq: Sequence) -> int:
        """How many free blocks `allocate(seq)` uses up: the new ones, and hits that are free.

        Not how many blocks are new: a free block that is a hit leaves the free ones, too.
        """
        cached = self.find_cached_blocks(seq)
        return seq.num_blocks - sum(self.blocks[block_id].ref_count > 0 for block_id in cached)

    def find_cached_blocks(self, seq: Sequence) -> list[int]:
        """Ids of the cached blocks that hold the longest prefix of `seq`.

        At least one token is left out, because the last token's output is what the next one is
        sampled from.
        """
        found: list[int] = []
        if not self.enable_prefix_caching:
            return found
        parent_id = -1
        for i in range((seq.num_tokens - 1) // self.block_size):
            block_id = self.hash_to_block_id.get(self._block_hash(seq, i), -1)
            if block_id == -1:
                break
            block = self.blocks[block_id]
            if block.parent_id != parent_id or block.token_ids != seq.block(i):
                break
            found.append(block_id)
            parent_id = block.content_id
        return found

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

    def can_append(self, seq: Sequence) -> bool:
        """Whether there is a slot for the last token of `seq`, in its last block or a free one."""
        return len(seq.block_table) >= seq.num_blocks or len(self.free_block_ids) > 0

    def may_append(self, seq: Sequence) -> None:
        """Give `seq` one more block if its last token is the first of a new block.

        Else nothing happens, also when no block is free. Asked twice for the same token, it gives
        one block. It holds for blocks of every size, 1 included.

        Raises:
            RuntimeError: a block is needed and none is free. (`can_append` tells before.)
        """
        if len(seq.block_table) < seq.num_blocks:
            self._append_new_block(seq)

    def hash_blocks(self, seq: Sequence) -> None:
        """Make the blocks that the current step fills findable.

        This runs when the step is scheduled, before the keys and values exist, so that requests of
        the same step can share: every layer stores the whole batch's keys and values before any row
        attends.
        """
        if not self.enable_prefix_caching:
            return
        first = seq.num_cached_tokens // self.block_size
        for i in range(first, seq.num_computed_after_step // self.block_size):
            self._register(seq, i)

    def _block_hash(self, seq: Sequence, i: int) -> int:
        """Hash of the i-th (full) block of `seq`, computed once and kept on the sequence."""
        while len(seq.block_hashes) <= i:
            prefix = seq.block_hashes[-1] if seq.block_hashes else NO_HASH
            seq.block_hashes.append(self.compute_hash(seq.block(len(seq.block_hashes)), prefix))
        return seq.block_hashes[i]

    def _register(self, seq: Sequence, i: int) -> None:
        """Write down what the i-th block of `seq` holds; the first of equal ones stays findable."""
        block = self.blocks[seq.block_table[i]]
        block.hash, block.token_ids = self._block_hash(seq, i), seq.block(i)
        block.parent_id = self.blocks[seq.block_table[i - 1]].content_id if i else -1
        known = self.blocks[self.hash_to_block_id.get(block.hash, block.block_id)]
        is_equal = known.parent_id == block.parent_id and known.token_ids == block.token_ids
        if is_equal and known is not block:
            block.content_id = known.content_id
        else:
            # A block known by the same hash cannot be reached if its parent was evicted; it must
            # not stand in the way.
            block.content_id = next(self._content_ids)
            self.hash_to_block_id[block.hash] = block.block_id

    def _share(self, block_id: int) -> None:
        """Count one more owner of a cached block, reviving it if it was free.

        No block table changes: whoever calls this puts the block into it.
        """
        block = self.blocks[block_id]
        if block.ref_count == 0:
            del self.free_block_ids[block_id]
            self.used_block_ids.add(block_id)
        block.ref_count += 1

    def choose_block_to_evict(self) -> int:
        """Id of the free block that is taken next: the one that was freed longest ago (LRU)."""
        return next(iter(self.free_block_ids))

    def _append_new_block(self, seq: Sequence) -> None:
        """Put a free block at the end of the table of `seq`, forgetting what it had cached."""
        if not self.free_block_ids:
            raise RuntimeError(f"no free block for sequence {seq.seq_id}")
        block_id = self.choose_block_to_evict()
        del self.free_block_ids[block_id]
        block = self.blocks[block_id]
        if self.hash_to_block_id.get(block.hash) == block_id:
            del self.hash_to_block_id[block.hash]
        block.forget()
        block.ref_count = 1
        self.used_block_ids.add(block_id)
        seq.block_table.append(block_id)
