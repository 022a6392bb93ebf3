"""Grader of chapter 05. What is right is said by counting owners and by remembering what was put into blocks."""

import random

from exercises.kit.grading import Check, Engine, case


class Pool:
    """A block manager with its users, driven as the scheduler drives it, and a memory of what lies in each block."""

    def __init__(self, engine: Engine, check: Check, num_blocks: int, block_size: int = 4):
        self.manager = engine.get("engine.block_manager:BlockManager")(num_blocks, block_size)
        self.sequence_class = engine.get("engine.sequence:Sequence")
        self.check, self.block_size = check, block_size
        self.seqs: dict[str, object] = {}
        self.contents: dict[int, tuple[int, ...]] = {}  # block id -> all tokens up to the block's end
        self.hit = 0  # what the last sequence found in the cache
        check.step(f"a pool of {num_blocks} free blocks for {block_size} tokens each")

    def make(self, token_ids):
        return self.sequence_class(list(token_ids), block_size=self.block_size)

    def needed(self, token_ids):
        """Blocks that have to come from the free ones, counted by content."""
        token_ids, count = tuple(token_ids), -(-len(token_ids) // self.block_size)
        for end in range(self.block_size, len(token_ids), self.block_size):
            holders = [block_id for block_id, prefix in self.contents.items() if prefix == token_ids[:end]]
            if not holders:
                break
            count -= any(self.manager.blocks[block_id].ref_count > 0 for block_id in holders)
        return count

    def num_cached(self, token_ids):
        """Tokens of the longest prefix that lies in full blocks, at least one token left out."""
        token_ids, known, end = tuple(token_ids), set(self.contents.values()), 0
        while end + self.block_size < len(token_ids) and token_ids[: end + self.block_size] in known:
            end += self.block_size
        return end

    def add(self, name, token_ids):
        """Allocate and compute a sequence."""
        self.check.step(f"{name} arrives: {_tokens(token_ids)}")
        seq = self.make(token_ids)
        self.manager.allocate(seq)
        self.seqs[name] = seq
        self.hit = seq.num_cached_tokens
        for block_id in seq.block_table[seq.num_cached_tokens // self.block_size :]:
            self.contents.pop(block_id, None)
        self.check.step(f"    {name} has blocks {list(seq.block_table)}, {seq.num_cached_tokens} tokens from the cache")
        self.compute(seq)
        return seq

    def compute(self, seq):
        """One step computes all tokens that are left, and the blocks that it fills can be found."""
        seq.num_scheduled_tokens = max(seq.num_tokens - seq.num_cached_tokens, 0)
        self.manager.hash_blocks(seq)
        seq.num_cached_tokens, seq.num_scheduled_tokens = seq.num_tokens, 0
        for i, block_id in enumerate(seq.block_table[: seq.num_tokens // self.block_size]):
            self.contents[block_id] = tuple(seq.token_ids[: (i + 1) * self.block_size])

    def append(self, name, token_id):
        """One token is generated; there is a place for it, and the next step computes it."""
        seq = self.seqs[name]
        seq.append_token(token_id)
        self.manager.may_append(seq)
        needed = -(-seq.num_tokens // self.block_size)
        self.check.equal(f"blocks for {seq.num_tokens} tokens", len(seq.block_table), needed)
        for block_id in seq.block_table[(seq.num_tokens - 1) // self.block_size :]:
            self.contents.pop(block_id, None)
        self.check.step(f"{name} generates its token number {seq.num_tokens}, has blocks {list(seq.block_table)}")
        self.compute(seq)
        return seq

    def free(self, name):
        """A sequence ends."""
        seq = self.seqs.pop(name)
        self.check.step(f"{name} ends and gives blocks {list(seq.block_table)} back")
        self.manager.deallocate(seq)
        return seq

    def owners(self):
        """For each block, in how many block tables it is."""
        tables = [seq.block_table for seq in self.seqs.values()]
        return [sum(block_id in table for table in tables) for block_id in range(len(self.manager.blocks))]

    def observe(self):
        """What holds after every call."""
        manager, owners = self.manager, self.owners()
        self.check.equal("reference counts of all blocks", [block.ref_count for block in manager.blocks], owners)
        self.check.equal(
            "the free blocks", sorted(manager.free_block_ids), [i for i, count in enumerate(owners) if not count]
        )
        self.check.equal(
            "the used blocks", sorted(manager.used_block_ids), [i for i, count in enumerate(owners) if count]
        )


def _tokens(token_ids):
    token_ids = list(token_ids)
    return str(token_ids) if len(token_ids) <= 12 else f"{len(token_ids)} tokens, {str(token_ids[:8])[:-1]}, ...]"


def random_walk(engine, check, seed, num_steps=40):
    """Sequences come, grow and go at random. Generated tokens are all different, so that no block exists twice."""
    rng = random.Random(seed)
    pool = Pool(engine, check, num_blocks=rng.randrange(6, 16), block_size=rng.choice([1, 2, 3, 4]))
    fresh = iter(range(1000, 10**6))
    for i in range(num_steps):
        kind = rng.random()
        if kind < 0.45 or not pool.seqs:
            shared = [rng.choice([[1, 2, 3, 4], [1, 2, 8, 9]]), [5, 6, 7]][: rng.randrange(3)]
            token_ids = [token for part in shared for token in part] + [next(fresh) for _ in range(rng.randrange(1, 5))]
            fits = pool.needed(token_ids) <= len(pool.owners()) - sum(count > 0 for count in pool.owners())
            check.equal(f"can_allocate of {_tokens(token_ids)}", pool.manager.can_allocate(pool.make(token_ids)), fits)
            if fits:
                expected = pool.num_cached(token_ids)
                pool.add(f"R{i}", token_ids)
                check.equal("num_cached_tokens right after allocate", pool.hit, expected)
        elif kind < 0.75:
            name = rng.choice(sorted(pool.seqs))
            seq = pool.seqs[name]
            if 0 in pool.owners() or seq.num_tokens % pool.block_size:
                pool.append(name, next(fresh))
        else:
            pool.free(rng.choice(sorted(pool.seqs)))
        pool.observe()


# compute_hash


@case("ch05.compute_hash")
def is_a_number_of_64_bits(engine, check):
    """The hash of a few blocks, first ones and later ones."""
    compute_hash = engine.get("engine.block_manager:BlockManager").compute_hash
    for token_ids, prefix in [([1, 2, 3, 4], -1), ([151_935] * 4, -1), ([0], 0), ([7] * 256, 2**64 - 1)]:
        check.step(f"compute_hash({_tokens(token_ids)}, prefix={prefix})")
        value = compute_hash(token_ids, prefix)
        check.true("the result is a whole number", isinstance(value, int))
        check.true("it is from 0 to 2**64 - 1", 0 <= value < 2**64)
        check.true("it is the same a second time", compute_hash(list(token_ids), prefix) == value)


@case("ch05.compute_hash")
def the_prefix_counts(engine, check):
    """The same four tokens, once at the start of a prompt and once after other tokens."""
    compute_hash = engine.get("engine.block_manager:BlockManager").compute_hash
    hello, other = compute_hash([1, 2, 3, 4], -1), compute_hash([9, 9, 9, 9], -1)
    check.step("the blocks [5, 6, 7, 8], first in a prompt; after [1, 2, 3, 4]; and after [9, 9, 9, 9]")
    hashes = [compute_hash([5, 6, 7, 8], -1), compute_hash([5, 6, 7, 8], hello), compute_hash([5, 6, 7, 8], other)]
    check.equal("how many different hashes these three blocks have", len(set(hashes)), 3)
    check.true("left out, prefix means: the first block", compute_hash([5, 6, 7, 8]) == hashes[0])
    check.true("prefix 0 is a hash like any other", compute_hash([5, 6, 7, 8], 0) != hashes[0])
    check.step("prefixes that differ in a single bit, and prefixes that are nearly 2**63")
    prefixes = {1 << bit for bit in range(64)} | {(1 << 63) + (1 << bit) for bit in range(63)}
    got = len({compute_hash([5, 6, 7, 8], prefix) for prefix in prefixes})
    check.equal(f"how many different hashes {len(prefixes)} prefixes give", got, len(prefixes))


@case("ch05.compute_hash")
def the_order_of_blocks_counts(engine, check):
    """A prompt is a chain of blocks. The same blocks in another order are another prompt."""
    compute_hash = engine.get("engine.block_manager:BlockManager").compute_hash

    def last_hash(*blocks):
        value = -1
        for token_ids in blocks:
            value = compute_hash(token_ids, value)
        return value

    one, other = [1, 2, 3, 4], [9, 9, 9, 9]
    check.step(f"chains of the blocks {one} and {other}")
    check.true("the two in another order have a different hash", last_hash(one, other) != last_hash(other, one))
    check.true("a block that comes twice before it is not as good as none",
               last_hash(one, one, other) != last_hash(other))  # fmt: skip


@case("ch05.compute_hash")
def different_tokens_differ(engine, check):
    """Pairs of blocks that are easily taken for the same."""
    compute_hash = engine.get("engine.block_manager:BlockManager").compute_hash
    pairs = [
        ([1, 2, 3, 4], [4, 3, 2, 1]),
        ([1, 2, 3, 4], [1, 2, 3, 5]),
        ([1, 2, 3, 4], [0, 2, 3, 4]),
        ([1, 1, 2], [1, 2, 2]),
        ([1, 23], [12, 3]),
        ([0, 256], [1, 0]),
        ([5, 5], [5 + 256, 5]),
        ([70_000, 7], [70_000 - 65_536, 7]),
        ([1, 2**31], [1, 0]),
        ([7] * 16, [*[7] * 15, 8]),
    ]
    for one, other in pairs:
        check.step(f"the blocks {one} and {other}")
        check.true(f"{one} and {other} have different hashes", compute_hash(one) != compute_hash(other))


@case("ch05.compute_hash")
def thousands_of_blocks(engine, check):
    """Four thousand random blocks in chains of eight, and six thousand of two tokens each."""
    compute_hash = engine.get("engine.block_manager:BlockManager").compute_hash
    rng, seen = random.Random(5), set()
    for _ in range(500):
        prefix = -1
        for _ in range(8):
            prefix = compute_hash([rng.randrange(1000) for _ in range(4)], prefix)
            seen.add(prefix)
    check.equal("how many different hashes", len(seen), 4000)
    check.true("the upper half of the 64 bits is used", max(seen) > 2**32)
    small = {compute_hash([first, second]) for first in range(3) for second in range(2000)}
    check.equal("how many different hashes the blocks [0, 0] to [2, 1999] have", len(small), 6000)


# can_allocate


@case("ch05.can_allocate")
def an_empty_pool(engine, check):
    """Nobody is there yet. A sequence fits if its last block, perhaps partly filled, is still there for it."""
    pool = Pool(engine, check, num_blocks=3)
    for num_tokens, expected in [(1, True), (8, True), (11, True), (12, True), (40, False), (16, False), (13, False)]:
        check.step(f"would a sequence of {num_tokens} tokens fit?")
        answer = pool.manager.can_allocate(pool.make(range(num_tokens)))
        check.equal(f"can_allocate for {num_tokens} tokens", answer, expected)


@case("ch05.can_allocate")
def shared_with_somebody_running(engine, check):
    """A is running. B starts with the same eight tokens, so that it can share two blocks."""
    pool = Pool(engine, check, num_blocks=4)
    pool.add("A", range(10))
    for extra, expected in [(2, True), (4, True), (5, False)]:
        token_ids = [*range(8), *range(100, 100 + extra)]
        check.step(f"B would be {_tokens(token_ids)}")
        check.equal(
            f"can_allocate for B with {8 + extra} tokens", pool.manager.can_allocate(pool.make(token_ids)), expected
        )


@case("ch05.can_allocate")
def a_hit_on_a_free_block(engine, check):
    """A has ended, its blocks are free, and cached. C takes one. Then A's prompt comes again."""
    pool = Pool(engine, check, num_blocks=3)
    pool.add("A", range(9))
    pool.free("A")
    pool.add("C", [50])
    check.step("the same nine tokens as A's come again")
    check.equal("can_allocate", pool.manager.can_allocate(pool.make(range(9))), False)
    pool.free("C")
    check.equal("can_allocate, once C has ended", pool.manager.can_allocate(pool.make(range(9))), True)


@case("ch05.can_allocate")
def only_asks(engine, check):
    """Asking changes nothing."""
    pool = Pool(engine, check, num_blocks=6)
    pool.add("A", range(10))
    seq = pool.make(range(12))
    pool.manager.can_allocate(seq)
    check.step("can_allocate is asked for a sequence of 12 tokens")
    pool.observe()
    check.equal("the blocks of the sequence", list(seq.block_table), [])


@case("ch05.can_allocate")
def agrees_with_counting(engine, check):
    """Sequences come, grow and go at random; every answer is compared with a count by hand."""
    for seed in range(6):
        random_walk(engine, check, seed)


# allocate


@case("ch05.allocate")
def one_alone(engine, check):
    """One sequence of ten tokens in an empty pool."""
    pool = Pool(engine, check, num_blocks=5)
    check.step("A arrives: ten tokens")
    seq = pool.make(range(10))
    pool.manager.allocate(seq)
    pool.seqs["A"] = seq
    check.equal("the block table", list(seq.block_table), [0, 1, 2])
    check.equal("num_cached_tokens", seq.num_cached_tokens, 0)
    pool.observe()


@case("ch05.allocate")
def a_shared_prefix(engine, check):
    """A is running. B starts with the same eight tokens."""
    pool = Pool(engine, check, num_blocks=6)
    first = pool.add("A", range(10))
    check.step("B arrives: 0 to 7 as in A, then three others")
    seq = pool.make([*range(8), 90, 91, 92])
    pool.manager.allocate(seq)
    pool.seqs["B"] = seq
    check.equal("the first two blocks of B", list(seq.block_table[:2]), list(first.block_table[:2]))
    check.equal("the number of B's blocks", len(seq.block_table), 3)
    check.equal("num_cached_tokens of B", seq.num_cached_tokens, 8)
    pool.observe()


@case("ch05.allocate")
def a_prompt_that_is_cached_whole(engine, check):
    """A's prompt comes again, all eight tokens of it. The last one has to be computed, so its block is not shared."""
    pool = Pool(engine, check, num_blocks=6)
    first = pool.add("A", range(8))
    check.step("B arrives with the same eight tokens")
    seq = pool.make(range(8))
    pool.manager.allocate(seq)
    pool.seqs["B"] = seq
    check.equal("num_cached_tokens of B", seq.num_cached_tokens, 4)
    check.true("the first block is A's", seq.block_table[:1] == first.block_table[:1])
    check.true("the second one is not", seq.block_table[1:] != first.block_table[1:])
    pool.observe()


@case("ch05.allocate")
def a_prefix_that_is_free(engine, check):
    """A has ended. Its blocks are free, and still say what they hold. B begins like A."""
    pool = Pool(engine, check, num_blocks=4)
    kept = list(pool.add("A", range(10)).block_table[:2])
    pool.free("A")
    pool.add("C", [70])
    check.step("B arrives: 0 to 7 as in A, then one other")
    seq = pool.make([*range(8), 99])
    pool.manager.allocate(seq)
    pool.seqs["B"] = seq
    check.equal("the first two blocks of B", list(seq.block_table[:2]), kept)
    check.equal("num_cached_tokens of B", seq.num_cached_tokens, 8)
    pool.observe()


@case("ch05.allocate")
def refuses_before_it_changes_anything(engine, check):
    """C has ended; its first block is free, and cached. B needs more blocks than there are. A asks a second time."""
    pool = Pool(engine, check, num_blocks=6)
    pool.add("C", range(70, 75))
    first = pool.add("A", range(10))
    pool.free("C")
    table, free = list(first.block_table), list(pool.manager.free_block_ids)
    for name, seq in [("B", pool.make([*range(8), *range(50, 64)])), ("A", first)]:
        check.step(f"allocate is called for {name}, which is not possible")
        raised = "nothing"
        try:
            pool.manager.allocate(seq)
        except RuntimeError:
            raised = "RuntimeError"
        except Exception as error:
            raised = type(error).__name__
        check.equal(f"what allocate raises for {name}", raised, "RuntimeError")
        check.equal(f"the blocks of {name} afterwards", list(seq.block_table), table if name == "A" else [])
        pool.observe()
        check.equal("the free blocks, in the order they will be taken", list(pool.manager.free_block_ids), free)
        found = pool.manager.find_cached_blocks(pool.make(range(70, 75)))
        check.equal("what the cache still has of C's prompt", list(found), [0])


@case("ch05.allocate")
def blocks_hold_what_they_should(engine, check):
    """Sequences come, grow and go at random. Owners are counted; what is shared has the same content."""
    for seed in range(6):
        random_walk(engine, check, seed)


# deallocate


@case("ch05.deallocate")
def the_only_owner(engine, check):
    """One sequence of ten tokens ends."""
    pool = Pool(engine, check, num_blocks=5)
    pool.add("A", range(10))
    seq = pool.free("A")
    check.equal("the block table of A", seq.block_table, [])
    check.equal("num_cached_tokens of A", seq.num_cached_tokens, 0)
    pool.observe()


@case("ch05.deallocate")
def two_owners(engine, check):
    """A and B share two blocks. A ends, B goes on, then B ends."""
    pool = Pool(engine, check, num_blocks=6)
    pool.add("A", range(10))
    pool.add("B", [*range(8), 90])
    pool.free("A")
    pool.observe()
    pool.free("B")
    pool.observe()


@case("ch05.deallocate")
def the_tail_is_handed_out_first(engine, check):
    """A ends. Of its blocks, which is the first to be handed out again?"""
    pool = Pool(engine, check, num_blocks=5)
    table = list(pool.add("A", range(14)).block_table)
    pool.add("Z", [60])
    pool.free("A")
    check.equal("the free blocks, in the order they will be taken", list(pool.manager.free_block_ids), table[::-1])
    pool.free("Z")
    check.equal("the free blocks once Z has ended, too", list(pool.manager.free_block_ids), [*table[::-1], 4])


@case("ch05.deallocate")
def freed_blocks_are_the_cache(engine, check):
    """A ends, and its prompt comes again."""
    pool = Pool(engine, check, num_blocks=5)
    table = list(pool.add("A", range(10)).block_table)
    pool.free("A")
    seq = pool.add("B", range(10))
    check.equal("the first two blocks of B", list(seq.block_table[:2]), table[:2])
    pool.observe()


@case("ch05.deallocate")
def nothing_is_lost(engine, check):
    """Sequences come, grow and go at random. After every step, each block is free or has its owners counted."""
    for seed in range(6):
        random_walk(engine, check, seed)


# may_append


@case("ch05.may_append")
def around_a_border(engine, check):
    """A sequence of six tokens grows to fourteen. A block holds four."""
    pool = Pool(engine, check, num_blocks=6)
    pool.add("A", range(6))
    for token_id in range(100, 108):
        pool.append("A", token_id)
        pool.observe()


@case("ch05.may_append")
def called_twice(engine, check):
    """The ninth token needs a new block. The question is asked twice."""
    pool = Pool(engine, check, num_blocks=6)
    seq = pool.add("A", range(8))
    seq.append_token(100)
    for _ in range(2):
        check.step("may_append is called for the ninth token")
        pool.manager.may_append(seq)
        check.equal("blocks for 9 tokens", len(seq.block_table), 3)


@case("ch05.may_append")
def blocks_of_one_token(engine, check):
    """A block holds a single token: every token needs a new one."""
    pool = Pool(engine, check, num_blocks=6, block_size=1)
    pool.add("A", [1, 2])
    for token_id in (100, 101):
        pool.append("A", token_id)
        pool.observe()


@case("ch05.may_append")
def the_block_was_cached(engine, check):
    """The only free block still holds the start of A's prompt. B takes it. Then A's prompt comes again."""
    pool = Pool(engine, check, num_blocks=2)
    pool.add("A", range(4))
    pool.free("A")
    pool.add("B", [50, 51, 52, 53])
    pool.append("B", 54)
    seq = pool.make([0, 1, 2, 3, 4])
    check.step("A's four tokens come again, and one more; what they were is overwritten")
    check.equal("blocks found for it in the cache", list(pool.manager.find_cached_blocks(seq)), [])
    pool.observe()


@case("ch05.may_append")
def the_one_that_was_freed_longest_ago(engine, check):
    """A and then B have ended. C grows by two blocks; what was freed last stays in the cache longest."""
    pool = Pool(engine, check, num_blocks=6)
    pool.add("A", range(5))
    pool.add("B", range(20, 25))
    pool.add("C", range(40, 44))
    pool.free("A")
    pool.free("B")
    expected = [4, 5, 1]
    check.step(f"the free blocks, in the order they will be taken: {list(pool.manager.free_block_ids)}")
    for token_id in range(100, 105):
        seq = pool.append("C", token_id)
    check.equal("the blocks of C", list(seq.block_table), expected)


@case("ch05.may_append")
def no_block_is_left(engine, check):
    """The fifth token needs a second block, and there is only one."""
    pool = Pool(engine, check, num_blocks=1)
    seq = pool.add("A", range(4))
    seq.append_token(100)
    raised = "nothing"
    try:
        pool.manager.may_append(seq)
    except RuntimeError:
        raised = "RuntimeError"
    except Exception as error:
        raised = type(error).__name__
    check.equal("what may_append raises", raised, "RuntimeError")


@case("ch05.may_append")
def always_as_many_as_needed(engine, check):
    """Sequences come, grow and go at random, with blocks of one to four tokens."""
    for seed in range(6):
        random_walk(engine, check, seed)
