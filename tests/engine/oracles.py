"""Plain second implementations of what the scheduler and the block manager keep, to compare the real ones with.

Nothing here hashes: a prefix is the tuple of its tokens. Slow and simple on purpose.
"""

from dataclasses import dataclass


def check_block_manager(manager, live_seqs):
    """What holds after every call: who owns which block, and what is free."""
    num_blocks = len(manager.blocks)
    free, used = list(manager.free_block_ids), set(manager.used_block_ids)
    assert [block.block_id for block in manager.blocks] == list(range(num_blocks))
    assert len(set(free)) == len(free), "a block is twice in the free list"
    assert set(free).isdisjoint(used) and set(free) | used == set(range(num_blocks))
    owners = [0] * num_blocks
    for seq in live_seqs:
        assert len(set(seq.block_table)) == len(seq.block_table), "a table names a block twice"
        for block_id in seq.block_table:
            owners[block_id] += 1
    for block in manager.blocks:
        assert block.ref_count == owners[block.block_id], block
        assert (block.ref_count == 0) == (block.block_id in manager.free_block_ids)
        if block.ref_count > 1:
            assert len(block.token_ids) == manager.block_size, "a shared block is not full"
    for key, block_id in manager.hash_to_block_id.items():
        assert manager.blocks[block_id].hash == key, "the index names a block that says it holds something else"
        assert len(manager.blocks[block_id].token_ids) == manager.block_size
    if not manager.enable_prefix_caching:
        assert not manager.hash_to_block_id and all(block.ref_count <= 1 for block in manager.blocks)


class KVMemory:
    """What really lies in each slot of the KV cache: keys and values depend on all tokens up to theirs.

    `run(seqs)` acts as a step does: every layer writes the whole batch, then every row reads all its slots.
    """

    def __init__(self, block_size):
        self.block_size = block_size
        self.slots = {}
        self.prefix_ids = {}

    def prefix_id(self, token_ids):
        """A number that stands for this exact list of tokens."""
        node = 0
        for token_id in token_ids:
            node = self.prefix_ids.setdefault((node, token_id), len(self.prefix_ids) + 1)
        return node

    def slot(self, seq, position):
        return seq.block_table[position // self.block_size], position % self.block_size

    def run(self, seqs, live_seqs):
        written = {}
        for seq in seqs:
            node = self.prefix_id(seq.token_ids[: seq.num_cached_tokens])
            for position in range(seq.num_cached_tokens, seq.num_cached_tokens + seq.num_scheduled_tokens):
                node = self.prefix_ids.setdefault((node, seq.token_ids[position]), len(self.prefix_ids) + 1)
                slot = self.slot(seq, position)
                assert slot not in written, "two tokens of a step are written to one slot"
                written[slot] = (seq, node)
        for (block_id, _), (seq, _) in written.items():
            owners = [other for other in live_seqs if block_id in other.block_table]
            # A block that this very step fills may be shared already; nobody else may have computed or write it.
            for other in owners:
                if other is not seq:
                    start = other.block_table.index(block_id) * self.block_size
                    assert seq.block_table[start // self.block_size] == block_id
                    assert other.num_cached_tokens >= start + self.block_size
                    assert seq.num_cached_tokens + seq.num_scheduled_tokens >= start + self.block_size
                    assert other.token_ids[: start + self.block_size] == seq.token_ids[: start + self.block_size]
                    assert other.num_cached_tokens % self.block_size == 0 and other in seqs, "a shared block is written"
        self.slots.update({slot: node for slot, (_, node) in written.items()})
        for seq in seqs:
            self.check_computed(seq, seq.num_cached_tokens + seq.num_scheduled_tokens)

    def check_computed(self, seq, num_tokens):
        """The first `num_tokens` tokens of `seq` have exactly their own keys and values in its blocks."""
        node = 0
        for position in range(num_tokens):
            node = self.prefix_ids.setdefault((node, seq.token_ids[position]), len(self.prefix_ids) + 1)
            found = self.slots.get(self.slot(seq, position))
            assert found == node, f"position {position} of sequence {seq.seq_id} reads keys and values of other tokens"


# Which free block is taken, of those in order of release: the engine's choice, and others, which cost hits at most.
CHOICES = {
    "longest freed": lambda free: free[0],
    "last freed": lambda free: free[-1],
    "anyone": lambda free: free[sum(free) * 7919 % len(free)],
    "largest id": max,
}


def with_choice(manager_class, choice):
    """A subclass that takes another free block."""
    if choice == "longest freed":
        return manager_class
    methods = {"choose_block_to_evict": lambda self: CHOICES[choice](list(self.free_block_ids))}
    return type(manager_class.__name__, (manager_class,), methods)


@dataclass(eq=False)
class Entry:
    """A full block's content: the block before it, and the whole prefix."""

    prefix: tuple
    parent: "Entry | None"
    block_id: int


class ReferenceBlockManager:
    """The pool and the prefix cache with lists and tuples; predicts every block table and the free list exactly.

    `choose(free)` says which free block is taken, of a list in order of release.
    """

    def __init__(self, num_blocks, block_size, enabled=True, choose=lambda free: free[0]):
        self.choose = choose
        self.block_size = block_size
        self.enabled = enabled
        self.free = list(range(num_blocks))
        self.tables = {}
        self.entries = {}  # block id -> what is in it
        self.index = {}  # prefix -> the entry a new request can hit

    def num_owners(self, block_id):
        return sum(block_id in table for table in self.tables.values())

    def hits(self, token_ids):
        """Blocks of the longest cached prefix that leaves at least one token to compute."""
        found = []
        while self.enabled and (len(found) + 1) * self.block_size < len(token_ids):
            entry = self.index.get(tuple(token_ids[: (len(found) + 1) * self.block_size]))
            if entry is None or entry.parent is not (found[-1] if found else None):
                break
            found.append(entry)
        return [entry.block_id for entry in found]

    def num_blocks_for(self, token_ids):
        return -(-len(token_ids) // self.block_size)

    def num_new_blocks(self, token_ids):
        return self.num_blocks_for(token_ids) - sum(self.num_owners(block) > 0 for block in self.hits(token_ids))

    def allocate(self, seq_id, token_ids):
        table = self.hits(token_ids)
        self.free = [block for block in self.free if block not in table]
        num_hits = len(table)
        while len(table) < self.num_blocks_for(token_ids):
            table.append(self.take_free_block())
        self.tables[seq_id] = table
        return num_hits * self.block_size

    def append(self, seq_id, token_ids):
        if len(self.tables[seq_id]) < self.num_blocks_for(token_ids):
            self.tables[seq_id].append(self.take_free_block())

    def take_free_block(self):
        block_id = self.choose(self.free)
        self.free.remove(block_id)
        entry = self.entries.pop(block_id, None)
        if entry is not None and self.index.get(entry.prefix) is entry and entry.block_id == block_id:
            del self.index[entry.prefix]
        return block_id

    def fill(self, seq_id, token_ids, start, end):
        """Tokens start to end - 1 are computed; blocks that become full can be found from now on."""
        for i in range(start // self.block_size, end // self.block_size):
            if not self.enabled:
                continue
            block_id = self.tables[seq_id][i]
            parent = self.entries[self.tables[seq_id][i - 1]] if i else None
            prefix = tuple(token_ids[: (i + 1) * self.block_size])
            entry = self.index.get(prefix)
            if entry is None or entry.parent is not parent:
                entry = self.index[prefix] = Entry(prefix, parent, block_id)
            self.entries[block_id] = entry

    def release(self, seq_id):
        for block_id in reversed(self.tables.pop(seq_id)):
            if self.num_owners(block_id) == 0:
                self.free.append(block_id)
