"""BlockManager: ownership, the prefix cache, and the order of eviction, against a plain model of all three."""

import random
from collections import Counter

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nanovllm.engine.block_manager import BlockManager
from nanovllm.engine.sequence import Sequence
from tests.engine.conftest import a_tenth
from tests.engine.oracles import CHOICES, KVMemory, ReferenceBlockManager, check_block_manager, with_choice

# Hashes that collide more or less; a cache hit must be exact with any of them.
HASHES = {
    "real": BlockManager.compute_hash,
    "constant": staticmethod(lambda token_ids, prefix=-1: 7),
    "one bit": staticmethod(lambda token_ids, prefix=-1: (sum(token_ids) + prefix) % 2),
    "unchained": staticmethod(lambda token_ids, prefix=-1: BlockManager.compute_hash(token_ids)),
    "last token": staticmethod(lambda token_ids, prefix=-1: token_ids[-1]),
}


def make_manager(num_blocks, block_size, enable_prefix_caching=True, hash_name="real", choice="longest freed"):
    class Manager(with_choice(BlockManager, choice)):
        if hash_name != "real":
            compute_hash = HASHES[hash_name]

    return Manager(num_blocks, block_size, enable_prefix_caching)


class Pool:
    """A manager with its users, as the scheduler would drive it."""

    def __init__(self, num_blocks, block_size=4, **kwargs):
        self.manager = make_manager(num_blocks, block_size, **kwargs)
        self.block_size = block_size
        self.seqs = []

    def add(self, token_ids, computed=True):
        """Allocate a sequence, and compute all its tokens."""
        seq = Sequence(token_ids, block_size=self.block_size, seq_id=len(self.seqs))
        assert self.manager.can_allocate(seq)
        self.manager.allocate(seq)
        self.seqs.append(seq)
        if computed:
            self.compute(seq)
        self.check()
        return seq

    def compute(self, seq, num_tokens=None):
        left = seq.num_tokens - seq.num_cached_tokens
        seq.num_scheduled_tokens = left if num_tokens is None else min(num_tokens, left)
        self.manager.hash_blocks(seq)
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.num_scheduled_tokens = 0

    def append(self, seq, token_id):
        """Generate a token, and compute it."""
        seq.append_token(token_id)
        assert self.manager.can_append(seq)
        self.manager.may_append(seq)
        self.compute(seq)
        self.check()

    def free(self, seq):
        self.manager.deallocate(seq)
        self.seqs.remove(seq)
        self.check()

    def check(self):
        check_block_manager(self.manager, self.seqs)

    def free_ids(self):
        return list(self.manager.free_block_ids)


A, B, C, D = ([n] * 4 for n in (1, 2, 3, 4))  # the contents of blocks


# Hashes.


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=40), st.one_of(st.just(-1), st.integers(0, 2**64 - 1)))
def test_the_hash_is_xxh64_of_the_tokens_after_the_prefix(token_ids, prefix):
    data = b"" if prefix == -1 else prefix.to_bytes(8, "little")
    data += b"".join(token_id.to_bytes(8, "little") for token_id in token_ids)
    assert BlockManager.compute_hash(token_ids, prefix) == xxhash.xxh64(data).intdigest()


def test_the_hash_depends_on_every_token_their_order_and_the_prefix():
    hashes = {
        BlockManager.compute_hash(token_ids, prefix)
        for token_ids in ([1, 2, 3], [3, 2, 1], [1, 2], [1, 2, 4], [12, 3], [0, 2, 3])
        for prefix in (-1, 0, 1, BlockManager.compute_hash([1, 2, 3]))
    }
    assert len(hashes) == 24


def test_blocks_carry_the_chained_hash():
    pool = Pool(8)
    seq = pool.add([*A, *B, *C, 9])
    expected = -1
    for i, block_id in enumerate(seq.block_table[:3]):
        expected = BlockManager.compute_hash(seq.block(i), expected)
        block = pool.manager.blocks[block_id]
        assert block.hash == expected and block.token_ids == seq.block(i)
        assert pool.manager.hash_to_block_id[expected] == block_id
    assert pool.manager.blocks[seq.block_table[3]].hash == -1, "a partial block has no hash"


# Hits.


def test_equal_content_after_another_prefix_is_no_hit():
    pool = Pool(12)
    pool.add([*A, *B, *C, 9])
    assert pool.add([*D, *B, *C, 9]).num_prefix_hit_tokens is None
    assert pool.seqs[1].block_table[:3] != pool.seqs[0].block_table[:3]
    assert set(pool.seqs[0].block_table).isdisjoint(pool.seqs[1].block_table)


@pytest.mark.parametrize(
    ("num_tokens", "num_hits"), [(1, 0), (3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (12, 8), (13, 12)]
)
def test_at_least_one_token_is_computed_and_only_full_blocks_are_hit(num_tokens, num_hits):
    pool = Pool(12)
    tokens = list(range(num_tokens))
    pool.add([*tokens, 77])
    again = pool.add(tokens, computed=False)
    assert again.num_cached_tokens == num_hits
    assert again.block_table[: num_hits // 4] == pool.seqs[0].block_table[: num_hits // 4]


def test_a_shared_block_counts_its_owners_and_is_freed_by_the_last():
    pool = Pool(8)
    first, second, third = (pool.add([*A, *B, n]) for n in (10, 11, 12))
    head = first.block_table[:2]
    assert second.block_table[:2] == head == third.block_table[:2]
    assert [pool.manager.blocks[block_id].ref_count for block_id in head] == [3, 3]
    assert len(pool.manager.used_block_ids) == 5
    pool.free(first)
    pool.free(third)
    assert all(block_id in pool.manager.used_block_ids for block_id in head)
    pool.free(second)
    assert len(pool.free_ids()) == 8


def test_a_freed_block_is_revived_with_its_content():
    pool = Pool(8)
    seq = pool.add([*A, *B, 9])
    table = seq.block_table
    pool.free(seq)
    assert seq.block_table == [] and seq.num_cached_tokens == 0
    again = pool.add([*A, *B, 10], computed=False)
    assert again.block_table[:2] == table[:2] and again.num_cached_tokens == 8
    assert pool.manager.blocks[table[0]].ref_count == 1


def test_generated_tokens_are_hit_by_the_next_turn():
    pool = Pool(8)
    seq = pool.add([*A, 5, 6])
    for token_id in (7, 8, 9, 10, 11, 12, 13):
        pool.append(seq, token_id)
    history, table = list(seq.token_ids), seq.block_table
    pool.free(seq)
    turn = pool.add([*history, 20, 21], computed=False)
    assert turn.num_cached_tokens == 12 and turn.block_table[:3] == table[:3]


def test_a_block_is_found_from_the_step_that_fills_it_and_not_before():
    pool = Pool(12)
    cut = pool.add([*A, *B, *C, 9], computed=False)
    probe = Sequence([*A, *B, *C, 10], block_size=4)
    for num_tokens, num_found in ((3, 0), (1, 1), (6, 2), (1, 2), (1, 3)):
        pool.compute(cut, num_tokens)
        assert pool.manager.num_free_blocks_needed(probe) == 4 - num_found


def test_requests_of_the_same_step_share():
    """Allocation and hashing of the first come before the second is allocated, and before anything is computed."""
    pool = Pool(8)
    first = pool.add([*A, *B, 9], computed=False)
    first.num_scheduled_tokens = 9
    pool.manager.hash_blocks(first)
    second = pool.add([*A, *B, 9], computed=False)
    assert second.num_cached_tokens == 8 and second.block_table[:2] == first.block_table[:2]


@pytest.mark.parametrize("block_size", [1, 4])
def test_nothing_is_shared_when_caching_is_off(block_size):
    pool = Pool(20, block_size, enable_prefix_caching=False)
    first = pool.add([*A, 9])
    second = pool.add([*A, 9], computed=False)
    assert second.num_cached_tokens == 0 and set(first.block_table).isdisjoint(second.block_table)
    pool.free(first)
    assert pool.add([*A, 9], computed=False).num_cached_tokens == 0
    assert all(block.hash == -1 for block in pool.manager.blocks)


# Eviction.


def test_free_blocks_are_taken_longest_freed_first_and_tails_before_heads():
    pool = Pool(8)
    first, second = pool.add([*A, *B, 9]), pool.add([*C, *D, 9])
    assert (first.block_table, second.block_table, pool.free_ids()) == ([0, 1, 2], [3, 4, 5], [6, 7])
    pool.free(second)
    pool.free(first)
    assert pool.free_ids() == [6, 7, 5, 4, 3, 2, 1, 0]
    assert pool.add([50] * 14).block_table == [6, 7, 5, 4]
    # The tail of the second sequence is gone, its head is still there.
    again = pool.add([*C, *D, 9], computed=False)
    assert again.num_cached_tokens == 4 and again.block_table == [3, 2, 1] and pool.free_ids() == [0]


@pytest.mark.parametrize("choice", CHOICES)
def test_a_subclass_chooses_which_free_block_is_taken(choice):
    pool = Pool(8, choice=choice)
    pool.free(pool.add([*A, *B, 9]))
    pool.free(pool.add([*C, *D, 9]))
    for num_tokens in (3, 9):
        free, table = pool.free_ids(), []
        while len(table) < -(-num_tokens // 4):
            table.append(CHOICES[choice](free))
            free.remove(table[-1])
        assert pool.add([50 + num_tokens] * num_tokens).block_table == table and pool.free_ids() == free


def test_a_hit_makes_a_block_young_again():
    pool = Pool(6)
    pool.free(pool.add([*A, *B, 9]))
    pool.free(pool.add([*C, *D, 9]))
    assert pool.free_ids() == [2, 1, 0, 5, 4, 3]
    seq = pool.add([*A, 9])
    assert seq.block_table == [0, 2]
    pool.free(seq)
    assert pool.free_ids() == [1, 5, 4, 3, 2, 0]
    pool.add([50] * 12)
    assert pool.add([*C, 9], computed=False).num_cached_tokens == 4
    assert pool.manager.num_free_blocks_needed(Sequence([*A, 9], block_size=4)) == 2
    assert pool.manager.find_cached_blocks(Sequence([*A, 9], block_size=4)) == [0]


def test_a_reused_block_forgets_what_it_held():
    pool = Pool(2)
    pool.free(pool.add([*A, 9]))
    key = BlockManager.compute_hash(A)
    assert key in pool.manager.hash_to_block_id
    seq = pool.add([*B, 9], computed=False)
    assert key not in pool.manager.hash_to_block_id
    assert all(pool.manager.blocks[i].hash == -1 and pool.manager.blocks[i].token_ids == [] for i in seq.block_table)
    pool.free(seq)
    assert pool.add([*A, 9], computed=False).num_cached_tokens == 0
    assert pool.seqs[0].num_cached_tokens == 0


def test_blocks_that_are_hit_are_not_handed_out_as_new():
    """Two free blocks hold a cached prefix; the request that hits one must take the other for its tail."""
    pool = Pool(2)
    pool.free(pool.add([*A, 9]))
    head = pool.manager.hash_to_block_id[BlockManager.compute_hash(A)]
    for _ in range(3):
        seq = pool.add([*A, 10])
        assert seq.block_table == [head, 1 - head]
        pool.free(seq)


def test_a_hit_on_a_free_block_uses_up_a_free_block():
    """Counting a revived block as a gift would promise more than there is."""
    pool = Pool(4)
    seq = pool.add([*A, *B, 9])
    pool.free(seq)
    other = pool.add([*C, 9])  # two blocks left, both or one of them cached
    assert len(pool.free_ids()) == 2
    assert not pool.manager.can_allocate(Sequence([*A, *B, 9], block_size=4))
    before = (pool.free_ids(), dict(pool.manager.hash_to_block_id))
    with pytest.raises(RuntimeError):
        pool.manager.allocate(Sequence([*A, *B, 9], block_size=4))
    assert (pool.free_ids(), dict(pool.manager.hash_to_block_id)) == before
    pool.check()
    pool.free(other)
    assert pool.manager.can_allocate(Sequence([*A, *B, 9], block_size=4))


def test_shared_blocks_in_use_cost_nothing():
    pool = Pool(4)
    pool.add([*A, *B, 9])
    assert pool.manager.can_allocate(Sequence([*A, *B, 10], block_size=4))
    assert not pool.manager.can_allocate(Sequence([*B, *A, 10], block_size=4))


def test_evicting_one_of_two_equal_blocks_leaves_the_other_findable():
    pool = Pool(6)
    first = pool.add([*A])  # the last block of a prompt is always computed, so there are two with content A
    second = pool.add([*A])
    assert first.block_table != second.block_table
    probe = Sequence([*A, 9], block_size=4)
    (found,) = pool.manager.find_cached_blocks(probe)
    pool.free(second if first.block_table == [found] else first)
    pool.add([60] * 20)  # takes all free blocks
    assert pool.free_ids() == [] and pool.manager.find_cached_blocks(probe) == [found]


def test_a_chain_can_be_cached_again_after_its_head_was_evicted():
    """An orphan, a block whose predecessor is gone, must not stand in the way of a new copy of the chain."""
    pool = Pool(9)
    first = pool.add([*A])
    second = pool.add([*A])  # a second copy of the head, and a child of it
    for token_id in [*B, 9]:
        pool.append(second, token_id)
    pool.free(first)
    pool.free(pool.add([50] * 24))  # evicts the findable head
    assert pool.manager.find_cached_blocks(Sequence([*A, 9], block_size=4)) == []
    third = pool.add([*A, *B, *C, 9])
    probe = Sequence([*A, *B, *C, 10], block_size=4)
    assert pool.manager.find_cached_blocks(probe) == third.block_table[:3]


# Growth.


@pytest.mark.parametrize("block_size", [1, 2, 4, 7])
def test_a_block_is_appended_exactly_when_the_last_one_is_full(block_size):
    pool = Pool(30, block_size)
    seq = pool.add([1, 2, 3])
    for n in range(20):
        full = seq.num_tokens % block_size == 0
        before = len(seq.block_table)
        pool.append(seq, n)
        assert len(seq.block_table) == before + full == -(-seq.num_tokens // block_size)
        assert pool.manager.blocks[seq.block_table[-1]].ref_count == 1


def test_appending_needs_a_free_block_only_at_a_block_boundary():
    pool = Pool(2)
    seq = pool.add([1, 2, 3, 4, 5, 6, 7])
    assert pool.free_ids() == []
    pool.append(seq, 8)
    seq.append_token(9)
    assert not pool.manager.can_append(seq)
    with pytest.raises(RuntimeError, match="no free block"):
        pool.manager.may_append(seq)


def test_allocating_twice_is_refused():
    pool = Pool(4)
    seq = pool.add([1, 2, 3])
    with pytest.raises(RuntimeError, match="already"):
        pool.manager.allocate(seq)


def test_a_block_filled_by_generation_is_hashed_and_the_next_is_not():
    pool = Pool(4)
    seq = pool.add([1, 2, 3])
    pool.append(seq, 4)
    pool.append(seq, 5)
    assert pool.manager.blocks[seq.block_table[0]].token_ids == [1, 2, 3, 4]
    assert pool.manager.blocks[seq.block_table[1]].hash == -1


# Everything in any order.

picks = st.integers(0, 2**16)
contents = st.lists(st.integers(0, 1), min_size=1, max_size=16)


class BlockManagerMachine(RuleBasedStateMachine):
    """Random users of a small pool. The model predicts tables, hits and the free list; the memory, every key.

    `pick` chooses among what there is when the rule runs, so a plain random walk can call the rules as well.
    """

    hash_names = ("real",)
    choices = ("longest freed",)

    @initialize(
        block_size=st.integers(1, 4),
        num_blocks=st.integers(1, 16),
        enabled=st.sampled_from([True] * 4 + [False]),
        pick=picks,
    )
    def start(self, block_size, num_blocks, enabled, pick):
        name = self.hash_names[pick % len(self.hash_names)]
        self.exact = name == "real"
        self.block_size, self.enabled = block_size, enabled
        choice = self.choices[pick % len(self.choices)]
        self.manager = make_manager(num_blocks, block_size, enabled, name, choice)
        self.model = ReferenceBlockManager(num_blocks, block_size, enabled, CHOICES[choice])
        self.memory = KVMemory(block_size)
        self.seqs = []  # with blocks
        self.parked = []  # without: preempted, to come back with all their tokens
        self.num_seqs = 0
        self.seen = Counter()

    def allocate(self, seq):
        if self.exact:
            num_new = self.model.num_new_blocks(seq.token_ids)
            assert self.manager.num_free_blocks_needed(seq) == num_new
            assert self.manager.can_allocate(seq) == (num_new <= len(self.model.free))
        if not self.manager.can_allocate(seq):
            self.seen["refused"] += 1
            free, index = list(self.manager.free_block_ids), dict(self.manager.hash_to_block_id)
            with pytest.raises(RuntimeError):
                self.manager.allocate(seq)
            assert (free, index) == (list(self.manager.free_block_ids), dict(self.manager.hash_to_block_id))
            assert seq.block_table == [] and seq.num_cached_tokens == 0
            return False
        num_cached_free = sum(self.manager.blocks[i].hash != -1 for i in self.manager.free_block_ids)
        self.manager.allocate(seq)
        assert seq.num_cached_tokens % self.block_size == 0 and seq.num_cached_tokens < seq.num_tokens
        assert len(seq.block_table) == seq.num_blocks
        if self.exact:
            assert seq.num_cached_tokens == self.model.allocate(seq.seq_id, seq.token_ids)
            assert seq.block_table == self.model.tables[seq.seq_id]
        if not self.enabled:
            assert seq.num_cached_tokens == 0
        self.memory.check_computed(seq, seq.num_cached_tokens)
        self.seqs.append(seq)
        self.seen["hit"] += seq.num_cached_tokens > 0
        self.seen["revived or evicted"] += num_cached_free > 0
        return True

    def compute(self, seq, num_tokens):
        start, end = seq.num_cached_tokens, seq.num_cached_tokens + num_tokens
        seq.num_scheduled_tokens = num_tokens
        self.manager.hash_blocks(seq)
        self.memory.run([seq], self.seqs)
        seq.num_cached_tokens, seq.num_scheduled_tokens = end, 0
        if self.exact:
            self.model.fill(seq.seq_id, seq.token_ids, start, end)

    @rule(token_ids=contents)
    def add(self, token_ids):
        self.num_seqs += 1
        self.allocate(Sequence(token_ids, block_size=self.block_size, seq_id=self.num_seqs))

    @precondition(lambda self: self.seqs or self.parked)
    @rule(pick=picks, token_ids=contents)
    def add_a_continuation(self, pick, token_ids):
        """A prompt that begins as another sequence did: the next turn of a chat, or the same system prompt."""
        candidates = [*self.seqs, *self.parked]
        source = candidates[pick % len(candidates)]
        start = source.token_ids[: 1 + pick // 64 % source.num_tokens]
        self.add((start + token_ids)[:24] if pick % 4 else start)

    @precondition(lambda self: self.seqs)
    @rule(pick=picks)
    def compute_a_chunk(self, pick):
        seq = self.seqs[pick % len(self.seqs)]
        if seq.num_cached_tokens < seq.num_tokens:
            self.compute(seq, 1 + pick // 64 % (seq.num_tokens - seq.num_cached_tokens))

    @precondition(lambda self: self.seqs)
    @rule(pick=picks, token_ids=contents)
    def generate(self, pick, token_ids):
        seq = self.seqs[pick % len(self.seqs)]
        if seq.num_cached_tokens < seq.num_tokens:
            self.compute(seq, seq.num_tokens - seq.num_cached_tokens)
        for token_id in token_ids[: 1 + pick // 64 % 6]:
            seq.append_token(token_id)
            needs_block = seq.num_tokens > len(seq.block_table) * self.block_size
            assert self.manager.can_append(seq) == (not needs_block or len(self.manager.free_block_ids) > 0)
            if not self.manager.can_append(seq):
                self.seen["outgrew"] += 1
                self.park(seq)
                return
            self.manager.may_append(seq)
            assert len(seq.block_table) == seq.num_blocks
            if self.exact:
                self.model.append(seq.seq_id, seq.token_ids)
                assert seq.block_table == self.model.tables[seq.seq_id]
            self.compute(seq, 1)

    def park(self, seq):
        self.release(seq)
        self.parked.append(seq)

    def release(self, seq):
        self.manager.deallocate(seq)
        assert seq.block_table == [] and seq.num_cached_tokens == 0
        self.seqs.remove(seq)
        if self.exact:
            self.model.release(seq.seq_id)

    @precondition(lambda self: self.seqs)
    @rule(pick=picks)
    def preempt(self, pick):
        self.park(self.seqs[pick % len(self.seqs)])

    @precondition(lambda self: self.parked)
    @rule(pick=picks)
    def resume(self, pick):
        seq = self.parked[pick % len(self.parked)]
        if self.allocate(seq):
            self.parked.remove(seq)

    @precondition(lambda self: self.seqs)
    @rule(pick=picks)
    def finish(self, pick):
        self.release(self.seqs[pick % len(self.seqs)])

    @precondition(lambda self: self.parked)
    @rule(pick=picks)
    def forget(self, pick):
        del self.parked[pick % len(self.parked)]

    @invariant()
    def holds(self):
        check_block_manager(self.manager, self.seqs)
        for seq in self.seqs:
            self.memory.check_computed(seq, seq.num_cached_tokens)
        if self.exact:
            assert list(self.manager.free_block_ids) == self.model.free

    def teardown(self):
        for seq in list(self.seqs):
            self.release(seq)
        assert not self.manager.used_block_ids
        assert len(self.manager.free_block_ids) == len(self.manager.blocks)


class WeakHashMachine(BlockManagerMachine):
    """The same with hashes that collide: fewer hits perhaps, but never a wrong one."""

    hash_names = tuple(name for name in HASHES if name != "real")


class OtherEvictionMachine(BlockManagerMachine):
    """The same with another choice of the block that is taken: other hits, and all else as it was."""

    choices = tuple(choice for choice in CHOICES if choice != "longest freed")


class AnyhowMachine(WeakHashMachine):
    """Any choice with any hash."""

    hash_names, choices = tuple(HASHES), tuple(reversed(CHOICES))


TestBlockManagerMachine = BlockManagerMachine.TestCase
TestBlockManagerMachine.settings = settings(max_examples=50, stateful_step_count=30)
TestWeakHashMachine = WeakHashMachine.TestCase
TestWeakHashMachine.settings = settings(max_examples=50, stateful_step_count=30)
TestOtherEvictionMachine = OtherEvictionMachine.TestCase
TestOtherEvictionMachine.settings = settings(max_examples=30, stateful_step_count=30)
MACHINES = [BlockManagerMachine, WeakHashMachine, OtherEvictionMachine, AnyhowMachine]


# Rules of the random walk: how often they are drawn, and when they can be.
WALK = {
    "add": (3, lambda machine: True),
    "add_a_continuation": (4, lambda machine: machine.seqs or machine.parked),
    "compute_a_chunk": (3, lambda machine: machine.seqs),
    "generate": (5, lambda machine: machine.seqs),
    "preempt": (1, lambda machine: machine.seqs),
    "resume": (2, lambda machine: machine.parked),
    "finish": (2, lambda machine: machine.seqs),
    "forget": (1, lambda machine: machine.parked),
}


def random_walk(machine_class, seed, num_steps):
    """The same rules, drawn without hypothesis: far more steps in the time, to reach states that need a history."""
    rng = random.Random(seed)
    machine = machine_class()
    machine.start(rng.randrange(1, 5), rng.randrange(4, 25), rng.random() < 0.9, seed)
    for _ in range(num_steps):
        possible = [name for name, (_, condition) in WALK.items() if condition(machine)]
        (name,) = rng.choices(possible, [WALK[name][0] for name in possible])
        pick, token_ids = rng.randrange(2**16), [rng.randrange(2) for _ in range(rng.randrange(1, 17))]
        if name == "add":
            machine.add(token_ids=token_ids)
        elif name in ("add_a_continuation", "generate"):
            getattr(machine, name)(pick=pick, token_ids=token_ids)
        else:
            getattr(machine, name)(pick=pick)
        machine.holds()
    machine.teardown()
    return machine.seen


@pytest.mark.parametrize("machine_class", MACHINES)
def test_long_random_walks(machine_class):
    seen = sum((random_walk(machine_class, seed, 300) for seed in range(12)), Counter())
    assert min(seen[name] for name in ("hit", "refused", "outgrew", "revived or evicted")) > 30, seen


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("machine_class", MACHINES)
def test_many_more_walks(machine_class):
    for seed in range(1000, 1000 + a_tenth(200)):
        random_walk(machine_class, seed, 400)


@pytest.mark.parametrize("seed", range(3))
def test_weak_hashes_still_hit_something(seed):
    """The weak hashes above would prove nothing if they never led to a hit."""
    rng = random.Random(seed)
    for name in HASHES:
        pool = Pool(40, 2, hash_name=name)
        hits = 0
        for _ in range(30):
            seq = pool.add([rng.randrange(2) for _ in range(rng.randrange(1, 10))])
            hits += len(pool.manager.find_cached_blocks(Sequence([*seq.token_ids, 0], block_size=2)))
            pool.free(seq)
        assert hits > 0, name
