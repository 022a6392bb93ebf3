"""Grader of chapter 05. What is right is said by counting owners and by remembering what was put into blocks."""

import json
import os
import random
import subprocess
import sys

from exercises.kit import workloads
from exercises.kit.grading import Check, Engine, case, scene_of

OTHERS = ("seq_id", "status", "token_ids", "last_token", "num_tokens", "num_prompt_tokens", "num_prefix_hit_tokens",
          "block_size", "sampling_params", "finish_reason")  # fmt: skip
APPEND_ASSERTS = (
    "An assertion failed, though a block is needed here and one is free. What the other blocks hold does not matter: "
    "a block has no hash before it is computed, and without prefix caching never."
)

COUNTS_CHANGED = (
    "may_append has changed num_cached_tokens or num_scheduled_tokens. It only gives a block: the new token has no "
    "keys and values yet, and the scheduler says what a step computes."
)


def others_of(seq):
    """What a block manager leaves alone of a sequence, as texts."""
    return {name: repr(getattr(seq, name, "is missing")) for name in OTHERS}


class Pool:
    """A block manager with its users, driven as the scheduler drives it, and a memory of what lies in each block."""

    def __init__(self, engine: Engine, check: Check, num_blocks: int, block_size: int = 4, caching: bool = True):
        self.manager = engine.get("engine.block_manager:BlockManager")(num_blocks, block_size, caching)
        self.sequence_class = engine.get("engine.sequence:Sequence")
        self.check, self.block_size, self.caching = check, block_size, caching
        self.seqs: dict[str, object] = {}
        check.look = lambda: scene_of(self.manager, self.seqs, {})
        self.contents: dict[int, tuple[int, ...]] = {}  # block id -> all tokens up to the block's end
        self.hit = 0  # what the last sequence found in the cache
        self.expected_hit = 0  # what it should have found
        self.revived = 0  # free blocks among that
        self.last = "nothing has happened"
        off = "" if caching else "; prefix caching is off"
        check.step(f"a pool of {num_blocks} free blocks for {block_size} tokens each{off}")

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

    def add(self, name, token_ids, compute=True):
        """Allocate a sequence, and compute it unless the step is still to come."""
        seq = self.make(token_ids)
        self.check.step(f"{name} arrives: {_tokens(token_ids)}")
        self.last = f"{name} was given blocks"
        self.admit(name, seq)
        if compute:
            self.compute(seq)
        return seq

    def untouched(self, name, seq, before):
        """What is none of the block manager's business is as it was; `before` is what `others_of` gave."""
        now = others_of(seq)
        wrong = [f"{key}: {value}, now {now.get(key)}" for key, value in before.items() if now.get(key) != value]
        says = f"The block manager gives blocks and takes them. These are other attributes of {name}."
        self.check.equal(f"attributes of {name} that have changed", wrong, [], says=says)

    def admit(self, name, seq):
        """Give blocks to a sequence, which may have come back after it was preempted."""
        self.expected_hit = self.num_cached(seq.token_ids)
        self.revived = self.needed(seq.token_ids) - (seq.num_blocks - self.expected_hit // self.block_size)
        needed, free = self.needed(seq.token_ids), len(self.manager.free_block_ids)
        self.check.step(
            (f"    {name} is given blocks: {needed} of the {free} free ones"), says=self.refused(name, needed)
        )
        before = others_of(seq)
        self.manager.allocate(seq)
        self.untouched(name, seq, before)
        if seq.num_prefix_hit_tokens is None:  # the scheduler writes it down when a sequence is first admitted
            seq.num_prefix_hit_tokens = seq.num_cached_tokens
        self.seqs[name] = seq
        self.hit = seq.num_cached_tokens
        for block_id in seq.block_table[self.expected_hit // self.block_size :]:
            self.contents.pop(block_id, None)
        self.check.step(f"    {name} has blocks {list(seq.block_table)}, {seq.num_cached_tokens} tokens from the cache")

    def refused(self, name, needed):
        """What an error of allocate means where there are enough blocks."""

        def say(error):
            if error != "RuntimeError":
                return None
            if not self.manager.free_block_ids:
                hits = f"; {self.revived} of them are hits, and not new" if self.revived else ""
                return (
                    f"{name} needs {needed} of the free blocks{hits}. All were taken, and then one more was asked for."
                )
            return f"{name} needs {needed} of the free blocks, and there are enough: there is nothing to refuse."

        return say

    def compute(self, seq):
        """One step computes all tokens that are left, and the blocks that it fills can be found."""
        seq.num_scheduled_tokens = max(seq.num_tokens - seq.num_cached_tokens, 0)
        self.manager.hash_blocks(seq)
        seq.num_cached_tokens, seq.num_scheduled_tokens = seq.num_tokens, 0
        for i, block_id in enumerate(seq.block_table[: seq.num_tokens // self.block_size] if self.caching else ()):
            self.contents[block_id] = tuple(seq.token_ids[: (i + 1) * self.block_size])

    def append(self, name, token_id):
        """One token is generated; there is a place for it, and the next step computes it."""
        seq = self.seqs[name]
        seq.append_token(token_id)
        before, others = list(seq.block_table), others_of(seq)
        stored = (seq.num_cached_tokens, seq.num_scheduled_tokens)
        self.last = f"may_append was called for {name}"
        self.check.step(f"{name} generates its token number {seq.num_tokens}", says=self.appending_raised(seq))
        self.manager.may_append(seq)
        self.untouched(name, seq, others)
        now = (seq.num_cached_tokens, seq.num_scheduled_tokens)
        self.check.equal(f"num_cached_tokens and num_scheduled_tokens of {name}", now, stored, says=COUNTS_CHANGED)
        needed = -(-seq.num_tokens // self.block_size)
        what = f"blocks for {seq.num_tokens} tokens, {self.block_size} in a block"
        self.check.equal(what, len(seq.block_table), needed, says=_appended(seq, len(before), needed))
        for block_id in seq.block_table[(seq.num_tokens - 1) // self.block_size :]:
            self.contents.pop(block_id, None)
        self.check.step(f"    {name} has blocks {list(seq.block_table)}")
        self.compute(seq)
        return seq

    def appending_raised(self, seq):
        """What an error in may_append means here, where there is a place for the token."""
        if len(seq.block_table) >= -(-seq.num_tokens // self.block_size):
            text = "The token has a slot in the last block, so nothing is to be done, and there is nothing to refuse."
            return dict.fromkeys(("RuntimeError", "AssertionError"), text)
        return {"AssertionError": APPEND_ASSERTS}

    def free(self, name):
        """A sequence ends."""
        seq = self.seqs.pop(name)
        table = list(seq.block_table)
        self.check.step(f"{name} ends and gives blocks {table} back", says=_freeing_raised(seq))
        self.last = f"{name} gave its blocks {table} back"
        before = others_of(seq)
        self.manager.deallocate(seq)
        self.untouched(name, seq, before)
        return seq

    def owners(self):
        """For each block, in how many block tables it is."""
        tables = [seq.block_table for seq in self.seqs.values()]
        return [sum(block_id in table for table in tables) for block_id in range(len(self.manager.blocks))]

    def observe(self):
        """What holds after every call."""
        manager, owners = self.manager, self.owners()
        counts = [block.ref_count for block in manager.blocks]
        free, used = sorted(manager.free_block_ids), sorted(manager.used_block_ids)
        expected_free = [i for i, count in enumerate(owners) if not count]
        expected_used = [i for i, count in enumerate(owners) if count]
        self.check.equal("reference counts of all blocks", counts, owners, says=self.miscounted(owners))
        self.check.equal("the free blocks", free, expected_free, says=self.misplaced(owners, "free"))
        self.check.equal("the used blocks", used, expected_used, says=self.misplaced(owners, "used"))

    def miscounted(self, owners):
        """Words for reference counts that are not the number of owners."""

        def say(counts):
            block_id = next(i for i, (got, count) in enumerate(zip(counts, owners, strict=True)) if got != count)
            got, count = counts[block_id], owners[block_id]
            tables = {0: "no block table names it", 1: "one block table names it"}.get(
                count, f"{count} block tables name it"
            )
            free = " It is still among the free ones, too." if count and block_id in self.manager.free_block_ids else ""
            return (
                f"After {self.last}, block {block_id} has ref_count {got}, "
                f"but {tables}. The count goes up by one for each "
                f"sequence that gets the block, and down by one for each that lets go.{free}"
            )

        return say

    def misplaced(self, owners, side):
        """Words for a block that is on the wrong side, or on both, or on none."""

        def say(got):
            inside = [
                block_id
                for block_id in got
                if not 0 <= block_id < len(owners) or (side == "free") == (owners[block_id] > 0)
            ]
            if inside:
                block_id = inside[0]
                holder = "a sequence still has it" if side == "free" else "no sequence has it any more"
                other = "used_block_ids" if side == "free" else "free_block_ids"
                place = "free_block_ids" if side == "free" else "used_block_ids"
                both = " It is in both dicts." if block_id in getattr(self.manager, other) else ""
                return f"After {self.last}, block {block_id} is in {place}, but {holder}.{both}"
            expected = [i for i, count in enumerate(owners) if (count == 0) == (side == "free")]
            block_id = next(i for i in expected if i not in got)
            other = "used_block_ids" if side == "free" else "free_block_ids"
            if block_id in getattr(self.manager, other):
                where = f"it is still in {other}"
            else:
                where = "it is in neither of the two, so it is lost"
            should = "nobody has it, so it belongs to the free ones" if side == "free" else "a sequence has it"
            return f"After {self.last}, block {block_id} is missing among the {side} blocks: {should}, but {where}."

        return say


def _appended(seq, before, needed):
    """Words for a table that is not as long as the tokens need."""

    def say(got):
        if None in seq.block_table:
            return "There is a None in the block table. _append_new_block puts the block into it, and returns nothing."
        if got > needed and before == needed:
            return (
                f"{seq.num_tokens} tokens fit into {needed} blocks of {seq.block_size}, and the sequence has that many "
                "already. You give it one more."
            )
        if got < needed:
            return (
                f"The last of {seq.num_tokens} tokens is the first of a new block: {needed} blocks of {seq.block_size} "
                f"are needed, and the table has {got}."
            )
        return "More than one block was added for one token."

    return say


def _freeing_raised(seq):
    """What an error in deallocate means, where it can only mean one thing."""
    if not seq.block_table:
        text = "The sequence has no blocks: it was aborted while it waited. Then there is nothing to give back"
        says = dict.fromkeys(("RuntimeError", "AssertionError", "ValueError"), f"{text}, and nothing to refuse.")
        return says | {"IndexError": f"{text}. num_blocks says what the tokens need, not what the table names."}
    if len(seq.block_table) < seq.num_blocks:
        text = (
            "The last token has no block yet, so the table is shorter than num_blocks. What is to be given back is what"
        )
        return {"IndexError": f"{text} the table names."}
    return None


def _tokens(token_ids):
    token_ids = list(token_ids)
    return str(token_ids) if len(token_ids) <= 12 else f"{len(token_ids)} tokens, {str(token_ids[:8])[:-1]}, ...]"


def _raised_by(call, *args):
    """The name of what a call raises."""
    try:
        call(*args)
    except Exception as error:
        return type(error).__name__
    return "nothing"


def _fits(needed, free, shared=0, revived=0):
    """Words for a wrong answer of can_allocate.

    Args:
        shared: blocks that it has besides those needed, together with somebody who runs.
        revived: how many of those needed are cached blocks, which are free.
    """
    blocks = {0: "no block has", 1: "one block has"}.get(needed, f"{needed} blocks have")
    fact = f"Here {blocks} to come from the free ones, and {free or 'none'} {'is' if free == 1 else 'are'} free"

    def say(got):
        if got is None:
            return (
                "can_allocate returns None, which is what a function "
                "returns that has no return statement for this case."
            )
        if not isinstance(got, bool) and type(got).__name__ not in ("bool_", "bool"):
            return f"can_allocate returns {got!r}; it should answer with True or False."
        why = ""
        if needed <= free < needed + shared:
            why = f" It has {needed + shared} blocks in all, but sharing with somebody who runs takes no free one."
        elif needed == free:
            why = " Using up the last free block is fine."
        elif needed - revived <= free < needed:
            why = " A cached block that nobody uses is one of the free ones: reviving it takes it away from them."
        elif needed > free:
            why = " How many blocks the pool has in all does not matter."
        return f"{fact}: the answer is {'yes' if needed <= free else 'no'}.{why}"

    return say


def _hit_says(pool, name, seq):
    """Words for a wrong num_cached_tokens right after allocate."""
    expected, size = pool.expected_hit, pool.block_size

    def say(got):
        if got == 0:
            return f"The cache holds the first {expected} tokens of {name}, but its num_cached_tokens is 0."
        if got == expected // size and size > 1:
            return "num_cached_tokens is the number of shared blocks; it should be the number of tokens in them."
        if got == seq.num_tokens:
            return f"num_cached_tokens says that all tokens of {name} are cached; only those in shared blocks are."
        if expected == 0:
            return f"Nothing in the cache begins like {name}, so num_cached_tokens should be 0, and it is {got}."
        return f"{expected} tokens of {name} lie in cached blocks, and num_cached_tokens is {got}."

    return say


def _table_says(pool, name, seq, shared, counts_before=None):
    """Words for a block table that does not begin with the blocks that should be shared."""

    def say(got):
        table, num = list(seq.block_table), seq.num_blocks
        counts = [pool.manager.blocks[block_id].ref_count for block_id in shared]
        if not all(pool.manager.blocks[block_id].token_ids for block_id in shared):  # they have forgotten
            return (
                "The cached blocks were free, and stood next in line: a new block was taken before the cached ones "
                "were shared, and it was one of them. Share first."
            )
        if None in table:
            return "There is a None in the block table. _append_new_block puts the block into it, and returns nothing."
        if table[len(table) - len(shared) :] == shared and len(table) > len(shared):
            return (
                f"The shared blocks {shared} hold the first tokens of {name}, but they stand at the end of its table."
            )
        if len(set(table)) < len(table):
            return f"A block stands in the table of {name} twice: {table}."
        if sorted(table[: len(shared)]) == sorted(shared):
            return (
                f"The table has the order of the tokens: {shared} come "
                f"first, in this order, and not {table[: len(shared)]}."
            )
        if (
            counts_before is not None
            and counts == [count + 1 for count in counts_before]
            and not set(shared) & set(table)
        ):
            return (
                f"{name} counts as an owner of the blocks {shared} now, but its table does not name them. _share only "
                "counts; it does not put a block into seq.block_table, as _append_new_block does."
            )
        if not set(shared) & set(table):
            return f"The blocks {shared} hold what {name} begins with, but its table {table} has none of them."
        return (
            f"The table of {name} should begin with {shared}, which hold "
            f"its first tokens; it is {table}, for {num} blocks."
        )

    return say


def random_walk(engine, check, seed, num_steps=40):
    """Sequences come, grow and go at random. Generated tokens are all different, so that no block exists twice."""
    rng = random.Random(seed)
    pool = Pool(engine, check, rng.randrange(6, 16), rng.choice([1, 2, 3, 4]), caching=seed != 1)
    fresh = iter(range(1000, 10**6))
    for i in range(num_steps):
        kind = rng.random()
        if kind < 0.45 or not pool.seqs:
            shared = [rng.choice([[1, 2, 3, 4], [1, 2, 8, 9]]), [5, 6, 7]][: rng.randrange(3)]
            token_ids = [token for part in shared for token in part] + [next(fresh) for _ in range(rng.randrange(1, 5))]
            needed, free = pool.needed(token_ids), pool.owners().count(0)
            found = pool.num_cached(token_ids) // pool.block_size
            shared = -(-len(token_ids) // pool.block_size) - needed
            answer = pool.manager.can_allocate(pool.make(token_ids))
            says = _fits(needed, free, shared, found - shared)
            check.equal(f"can_allocate of {_tokens(token_ids)}", answer, needed <= free, says=says)
            if needed <= free:
                before = dict(pool.contents)
                seq = pool.add(f"R{i}", token_ids, compute=False)
                what = "num_cached_tokens right after allocate"
                check.equal(what, pool.hit, pool.expected_hit, says=_hit_says(pool, f"R{i}", seq))
                what = f"how many blocks R{i} has, for {len(token_ids)} tokens"
                check.equal(
                    what, len(seq.block_table), -(-len(token_ids) // pool.block_size), says=_too_few(pool, f"R{i}", seq)
                )
                shared = seq.block_table[: pool.expected_hit // pool.block_size]
                held = [before.get(block_id) for block_id in shared]
                ends = [(i + 1) * pool.block_size for i in range(len(held))]
                wanted = [tuple(token_ids[:end]) for end in ends]
                says = f"R{i} begins with the blocks {shared}, which do not hold its first tokens, in this order."
                check.true("the shared blocks hold its tokens, in their order", held == wanted, says=says)
                pool.compute(seq)
        elif kind < 0.75:
            name = rng.choice(sorted(pool.seqs))
            seq = pool.seqs[name]
            if 0 in pool.owners() or seq.num_tokens % pool.block_size:
                pool.append(name, next(fresh))
        else:
            pool.free(rng.choice(sorted(pool.seqs)))
        pool.observe()


def _too_few(pool, name, seq):
    """Words for a table that is too short or too long after allocate."""

    def say(got):
        if None in seq.block_table:
            return "There is a None in the block table. _append_new_block puts the block into it, and returns nothing."
        text = (
            f"{seq.num_tokens} tokens need {seq.num_blocks} blocks of {seq.block_size}; the table of {name} has {got}."
        )
        if 0 < pool.revived == got - seq.num_blocks:
            text += f" {pool.revived} hits were free: they leave the free blocks, but they are no new ones."
        return text

    return say


def _churn(pool):
    """Use and free blocks, so that new ones do not come in ascending order any more: what is normal after a while."""
    pool.add("X", range(900, 911))
    pool.free("X")


# compute_hash


TYPES = {
    "NoneType": "Nothing is returned: a return is missing.",
    "str": "The hash is a text. intdigest() gives the number; hexdigest() gives it as text.",
    "bytes": "The hash is a string of bytes. intdigest() gives the number; digest() gives its bytes.",
    "float": "The hash is a float, which has 53 bits that count, not 64.",
    "tuple": "The hash is a tuple, not a number.",
    "xxh64": "The hasher itself is returned. Its intdigest() is the number.",
}


def _hash_type(name):
    default = f"The hash is a {name}; it should be an int of Python."
    return TYPES.get(name, f"{default} int(...) makes one of it." if "int" in name else default)


HASHES_BYTES = (
    "Something was given to a function that cannot take it; the last line of its error says what. xxhash takes bytes, "
    "no text and no list: text.encode() makes bytes of a text, np.asarray(token_ids, np.int64).tobytes() of numbers."
)


def _hash_raised(token_ids, prefix):
    """What an error of compute_hash means here."""
    wrong_type = {"TypeError": HASHES_BYTES}
    if prefix == -1 and max(token_ids) < 256:
        text = (
            "The first block has prefix -1, which means that there is "
            "none. A negative number cannot be written as bytes "
            "without a sign, and need not be: there is nothing before the first block."
        )
        return wrong_type | {"OverflowError": text}
    if prefix >= 2**32 and max(token_ids) < 256:
        text = (
            "The prefix does not fit into the place that you give it. It "
            "is a number of 64 bits without a sign: it takes "
            "eight bytes, and may be too large for an np.int64, or for to_bytes with signed=True."
        )
        return wrong_type | dict.fromkeys(("OverflowError", "error"), text)
    if prefix < 2**32 and max(token_ids) > 255:
        text = f"The token {max(token_ids)} does not fit into the bytes that you give a token. One byte holds 0 to 255."
        return wrong_type | dict.fromkeys(("OverflowError", "ValueError", "error"), text)
    return wrong_type


@case("ch05.compute_hash")
def is_a_number_of_64_bits(engine, check):
    """The hash of a few blocks, first ones and later ones."""
    compute_hash = engine.get("engine.block_manager:BlockManager").compute_hash
    blocks = [([1, 2, 3, 4], -1), ([1, 2, 3, 4], 7), ([151_935] * 4, -1), ([0], 0), ([7] * 256, 2**64 - 1)]
    for token_ids, prefix in blocks:
        check.step(f"compute_hash({_tokens(token_ids)}, prefix={prefix})", says=_hash_raised(token_ids, prefix))
        given = list(token_ids)
        value = compute_hash(given, prefix)
        kind = "int" if isinstance(value, int) else type(value).__name__
        if not check.equal("the type of the result", kind, "int", says=_hash_type):
            return
        too_small = (
            "The hash is negative. Python's hash() and signed numbers "
            "can be; a hash here is 0 or more, and -1 means none."
        )
        check.true("it is not negative", value >= 0, says=too_small)
        check.true("it is below 2**64", value < 2**64, says="The hash has more than 64 bits.")
        again = "The same tokens and prefix give another hash the second time, so no block would ever be found again."
        check.true("it is the same a second time", compute_hash(list(token_ids), prefix) == value, says=again)
        kept = "The list of tokens that you were given has changed; it belongs to the caller."
        check.equal("the tokens afterwards", _tokens(given), _tokens(token_ids), says=kept)


@case("ch05.compute_hash")
def different_tokens_differ(engine, check):
    """Pairs of blocks that are easily taken for the same."""
    compute_hash = engine.get("engine.block_manager:BlockManager").compute_hash
    pairs = [
        ([1, 2, 3, 4], [1, 2, 3, 5], "The last token makes no difference to your hash."),
        ([1, 2, 3, 4], [0, 2, 3, 4], "The first token makes no difference to your hash."),
        ([1, 2, 3, 4], [1, 9, 8, 4], "The tokens in the middle make no difference to your hash."),
        ([1, 2, 3, 4], [4, 3, 2, 1], "The order of the tokens makes no difference to your hash."),
        ([1, 2, 3, 4], [2, 1, 4, 3], "The order of the tokens is lost in your hash."),
        ([1, 1, 2], [1, 2, 2], "How often a token occurs makes no difference to your hash."),
        ([1, 23], [12, 3], "The digits of the tokens run together: 1, 23 and 12, 3 become the same text."),
        (
            [0, 256],
            [1, 0],
            "The bytes of one token run into those of the next: give each token the same number of bytes.",
        ),
        ([5, 5], [5 + 256, 5], "Only the lowest byte of a token counts. Token ids are larger than 255."),
        (
            [70_000, 7],
            [70_000 - 65_536, 7],
            "Only the lowest two bytes of a token count. Token ids are larger than 65535.",
        ),
        ([2**24 + 1, 7], [2**24, 7], "Large token ids are rounded, as floats round large whole numbers."),
        (
            [7] * 16,
            [*[7] * 15, 8],
            "The last of sixteen tokens makes no difference: only a part of the block is hashed.",
        ),
        ([7] * 16, [*[7] * 7, 8, *[7] * 8], "The eighth of sixteen tokens makes no difference to your hash."),
        (
            [7] * 2048,
            [*[7] * 999, 8, *[7] * 1048],
            "A token in the middle of 2048 makes no difference. NumPy writes long arrays with ... in the middle.",
        ),
        ([7] * 256, [*[7] * 255, 8], "The last of 256 tokens makes no difference: only a part of the block is hashed."),
    ]
    for one, other, says in pairs:
        check.step(f"the blocks {_tokens(one)} and {_tokens(other)}", says=_hash_raised(max(one, other, key=max), -1))
        what = f"{_tokens(one)} and {_tokens(other)} have different hashes"
        if len(one) >= 16:
            where = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
            what = f"blocks of {len(one)} tokens that differ in token number {where} have different hashes"
        check.true(what, compute_hash(one) != compute_hash(other), says=says)
    check.step("blocks of two tokens, which differ in a single bit of the first")
    got = len({compute_hash([5 ^ 1 << bit, 6]) for bit in range(31)})
    says = "Some tokens that differ in one bit give the same hash, so a part of it gets lost. It has up to 31."
    check.equal("how many different hashes 31 of them have", got, 31, says=says)


@case("ch05.compute_hash")
def the_prefix_counts(engine, check):
    """The same four tokens, once at the start of a prompt and once after other tokens."""
    compute_hash = engine.get("engine.block_manager:BlockManager").compute_hash
    hello, other = compute_hash([1, 2, 3, 4], -1), compute_hash([9, 9, 9, 9], -1)
    check.step("the blocks [5, 6, 7, 8], first in a prompt; after [1, 2, 3, 4]; and after [9, 9, 9, 9]")
    hashes = [compute_hash([5, 6, 7, 8], -1), compute_hash([5, 6, 7, 8], hello), compute_hash([5, 6, 7, 8], other)]
    alike = {
        1: "The prefix makes no difference: a block in the middle of one prompt is taken for the start of another.",
        2: "That there is a prefix makes a difference, but not which. "
        "Two blocks get one name, though what comes before "
        "them is different."
        if hashes[1] == hashes[2]
        else "A block has the same hash with a prefix and without one.",
    }
    check.equal("how many different hashes these three blocks have", len(set(hashes)), 3, says=alike)
    check.step("the block [23, 5] after prefix 1, and [3, 5] after prefix 12")
    says = "The digits of the prefix run into those of the first token: 1 and 23 become the same text as 12 and 3."
    check.true("they have different hashes", compute_hash([23, 5], 1) != compute_hash([3, 5], 12), says=says)
    check.step("prefixes that differ in a single bit, and prefixes that are nearly 2**63",
               says=_hash_raised([5, 6, 7, 8], 1 << 63))  # fmt: skip
    prefixes = {1 << bit for bit in range(64)} | {(1 << 63) + (1 << bit) for bit in range(63)}
    got = len({compute_hash([5, 6, 7, 8], prefix) for prefix in prefixes})
    says = (
        "Some prefixes that differ in one bit give the same hash, so a "
        "part of the prefix gets lost. Is it cut to fewer "
        "bits, rounded as a float, or does it go through Python's hash(), which counts modulo 2**61 - 1?"
    )
    check.equal(f"how many different hashes {len(prefixes)} prefixes give", got, len(prefixes), says=says)


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
    says = "The order of the blocks is lost, as it is when hashes are combined by adding, multiplying or ^."
    check.true("the two in another order have a different hash", last_hash(one, other) != last_hash(other, one), says)
    says = "A block that comes twice before another is as good as none: combined by ^, the two take each other away."
    check.true("a block that comes twice before it is not as good as none",
               last_hash(one, one, other) != last_hash(other), says)  # fmt: skip


@case("ch05.compute_hash")
def the_first_block(engine, check):
    """The first block of a prompt has nothing before it. Left out, prefix is -1; and 0 is a hash like any other."""
    compute_hash = engine.get("engine.block_manager:BlockManager").compute_hash
    first = compute_hash([5, 6, 7, 8], -1)
    says = "Left out, prefix has its default, NO_HASH: that should be the same as saying prefix=-1."
    check.true("left out, prefix means: the first block", compute_hash([5, 6, 7, 8]) == first, says=says)
    says = "Prefix 0 gives the same hash as no prefix. 0 is a hash like any other; only -1 means that there is none."
    check.true("prefix 0 is a hash like any other", compute_hash([5, 6, 7, 8], 0) != first, says=says)


def _num_bits(values):
    """How many bits of these numbers vary independently: the rank of their differences."""
    first, *others = values
    rows: dict[int, int] = {}  # by the highest bit
    for value in others:
        value = (value ^ first) & (2**64 - 1)
        while value and value.bit_length() in rows:
            value ^= rows[value.bit_length()]
        if value:
            rows[value.bit_length()] = value
    return len(rows)


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
    says = (
        "Different blocks have the same hash far more often than by "
        "accident. xxhash mixes all bits; simple sums do not."
    )
    check.equal("how many different hashes", len(seen), 4000, says=says)
    says = (
        "64 bits are asked for, and here are fewer: the others are always the same, or copies of these. Is this a "
        "hash of 32 bits?"
    )
    check.true("nearly all of the 64 bits say something of their own", _num_bits(seen) >= 60, says=says)
    small = {compute_hash([first, second]) for first in range(3) for second in range(2000)}
    says = "Blocks of small numbers have the same hash far more often than by accident. xxhash mixes all bits."
    check.equal("how many different hashes the blocks [0, 0] to [2, 1999] have", len(small), 6000, says=says)


# Prints hashes. The package around the module is not run: it would load all of the engine.
ELSEWHERE = """
import importlib, json, sys, types
name, folder = sys.argv[1:]
for package, path in ((name, folder), (name + ".engine", folder + "/engine")):
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [path]
compute_hash = importlib.import_module(name + ".engine.block_manager").BlockManager.compute_hash
print(json.dumps([compute_hash(tokens, prefix) for tokens, prefix in json.load(sys.stdin)]))
"""


@case("ch05.compute_hash")
def in_another_process(engine, check):
    """Another process of the same engine hashes the same blocks, in a Python that was started anew."""
    package, blocks = engine.package, [([1, 2, 3, 4], -1), ([5, 6, 7, 8], 77), ([0], 0), ([151_935] * 16, 2**64 - 1)]
    compute_hash = engine.get("engine.block_manager:BlockManager").compute_hash
    here = [compute_hash(token_ids, prefix) for token_ids, prefix in blocks]
    check.step("a new Python is started, and asked for the hashes of four blocks")
    # Texts have another hash in each process of Python, unless it is told with which number to begin.
    salt = {"PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"}
    command = [sys.executable, "-c", ELSEWHERE, package.name, str(package.folder)]
    run = subprocess.run(command, input=json.dumps(blocks), capture_output=True, text=True, env=os.environ | salt)
    try:
        there = json.loads(run.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        error = run.stderr.strip().rpartition("\n")[2]
        check.equal("what it says", error, "four hashes", says=f"There it ends with an error: {error}")
        return
    says = (
        "It gives another hash there, so what one process has cached another one does not find. Does it depend on "
        "hash() of a text or of bytes, which begins with another number in each process, on id(), or on chance?"
    )
    check.true("it gives the same hashes", there == here, says=says)


# can_allocate


def _count_questions(manager):
    """A list that grows whenever can_allocate is asked."""
    ask, asked = type(manager).can_allocate, []

    def can_allocate(seq):
        asked.append(seq)
        return ask(manager, seq)

    manager.can_allocate = can_allocate
    return asked


@case("ch05.can_allocate")
def an_empty_pool(engine, check):
    """Nobody is there yet. A sequence fits if its last block, perhaps partly filled, is still there for it."""
    pool = Pool(engine, check, num_blocks=3)
    for num_tokens, expected in [(1, True), (8, True), (40, False), (16, False), (13, False), (11, True), (12, True)]:
        check.step(f"would a sequence of {num_tokens} tokens fit?", says=CALLS_ALLOCATE)
        asked = _count_questions(pool.manager)
        answer = pool.manager.can_allocate(pool.make(range(num_tokens)))
        says = ASKS_ITSELF if answer is False and len(asked) > 100 else _fits(-(-num_tokens // 4), 3)
        check.equal(f"can_allocate for {num_tokens} tokens", answer, expected, says=says)


ANSWERS = dict.fromkeys(
    ("RuntimeError", "ValueError", "AssertionError"),
    "can_allocate raises an error. It only says whether there are enough blocks: True or False.",
)
ANSWERS["KeyError"] = (
    "A block was looked for among some in which it is not. Asking takes no block out and puts none in."
)
CALLS_ALLOCATE = ANSWERS | {
    "RecursionError": (
        "can_allocate ends up calling itself: allocate asks can_allocate before it does anything. Count instead."
    )
}
ASKS_ITSELF = (
    "can_allocate ends up calling itself, perhaps by allocate, which asks can_allocate before it does anything. Python "
    "gives up with a RecursionError, which is a RuntimeError, and yours takes that for a no. Count instead."
)


@case("ch05.can_allocate")
def some_blocks_are_taken(engine, check):
    """A is running and has two of the three blocks. B has nothing in common with it."""
    pool = Pool(engine, check, num_blocks=3)
    pool.add("A", range(7))
    for num_tokens, expected in [(8, False), (4, True)]:
        check.step(f"would a sequence of {num_tokens} other tokens fit?", says=CALLS_ALLOCATE)
        answer = pool.manager.can_allocate(pool.make(range(100, 100 + num_tokens)))
        check.equal(f"can_allocate for {num_tokens} tokens", answer, expected, says=_fits(num_tokens // 4, 1))
    pool.add("C", [50])
    check.step("C has taken the last block. Would a single token fit?", says=CALLS_ALLOCATE)
    check.equal("can_allocate for 1 token", pool.manager.can_allocate(pool.make([60])), False, says=_fits(1, 0))


@case("ch05.can_allocate")
def shared_with_somebody_running(engine, check):
    """A is running. B starts with the same eight tokens, so that it can share two blocks."""
    pool = Pool(engine, check, num_blocks=4)
    pool.add("A", range(10))
    for extra, expected in [(2, True), (4, True), (5, False)]:
        token_ids = [*range(8), *range(100, 100 + extra)]
        story = f"B would be {_tokens(token_ids)}; its first two blocks are A's, and sharing them takes no free block"
        check.step(story, says=ANSWERS)
        answer = pool.manager.can_allocate(pool.make(token_ids))
        check.equal(f"can_allocate for B with {8 + extra} tokens", answer, expected, says=_fits(1 + (extra > 4), 1, 2))


@case("ch05.can_allocate")
def many_blocks_are_shared(engine, check):
    """A is running with seventeen tokens. B begins with sixteen of them, and shares four blocks."""
    for num_blocks, free in [(6, 1), (7, 2)]:
        pool = Pool(engine, check, num_blocks)
        pool.add("A", range(17))
        for extra in (4, 5):
            check.step(f"B would have 16 tokens of A and {extra} of its own", says=ANSWERS)
            answer, needed = (
                pool.manager.can_allocate(pool.make([*range(16), *range(100, 100 + extra)])),
                1 + extra // 5,
            )
            what = f"can_allocate for B with {extra} tokens of its own and {free} free blocks"
            check.equal(what, answer, needed <= free, says=_fits(needed, free, 4))


@case("ch05.can_allocate")
def the_same_question_later(engine, check):
    """B asks twice, and each time one block is free. But what B begins with has meanwhile become the free one."""
    pool = Pool(engine, check, num_blocks=3)
    pool.add("A", range(5))
    seq = pool.make([*range(4), 50])
    check.step("B would share A's first block, and needs one more")
    check.equal("can_allocate, while A runs", pool.manager.can_allocate(seq), True, says=_fits(1, 1, 1))
    pool.free("A")
    pool.add("C", range(60, 65))
    check.step("the first block of A is free now, and the only one: B would revive it, and needs one more")
    check.equal("can_allocate, when A has ended", pool.manager.can_allocate(seq), False, says=_fits(2, 1, 0, 1))


@case("ch05.can_allocate")
def a_free_block_and_then_a_used_one(engine, check):
    """A and B have begun alike, each with a block of its own, and B went on. A's block is free."""
    pool = Pool(engine, check, num_blocks=5)
    pool.add("A", range(4))
    pool.add("B", range(4))
    for token_id in range(100, 105):
        pool.append("B", token_id)
    pool.free("A")
    check.step("C would have eight tokens as B, and one more: the first block is A's, the second one B's")
    answer = pool.manager.can_allocate(pool.make([*range(4), *range(100, 104), 200]))
    check.equal("can_allocate for C", answer, True, says=_fits(2, 2, 1, 1))
    pool.add("D", [70])
    answer = pool.manager.can_allocate(pool.make([*range(4), *range(100, 104), 200]))
    check.equal("can_allocate for C, when one block less is free", answer, False, says=_fits(2, 1, 1, 1))


@case("ch05.can_allocate")
def a_hit_on_a_free_block(engine, check):
    """A has ended, its blocks are free, and cached. C takes one. Then A's prompt comes again."""
    pool = Pool(engine, check, num_blocks=3)
    pool.add("A", range(9))
    pool.free("A")
    pool.add("C", [50])
    check.step(
        "the same nine tokens as A's come again; two of its blocks are cached, and free: reviving takes them away",
        says=CALLS_ALLOCATE,
    )
    check.equal("can_allocate", pool.manager.can_allocate(pool.make(range(9))), False, says=_fits(3, 2, 0, 2))
    pool.free("C")
    answer = pool.manager.can_allocate(pool.make(range(9)))
    check.equal("can_allocate, once C has ended", answer, True, says=_fits(3, 3, 0, 2))


@case("ch05.can_allocate")
def all_of_it_is_cached(engine, check):
    """A runs with eight tokens, in two full blocks. The same eight come again: all of them are cached, and in use."""
    for num_blocks, free in [(2, 0), (3, 1)]:
        pool = Pool(engine, check, num_blocks)
        pool.add("A", range(8))
        check.step("the same eight tokens as A's come again; the last one is always computed, in a block of its own")
        answer = pool.manager.can_allocate(pool.make(range(8)))
        check.equal(f"can_allocate with {free} free blocks", answer, free >= 1, says=_fits(1, free, 1))


@case("ch05.can_allocate")
def a_gap_in_the_prefix(engine, check):
    """The second block of a prompt was evicted. A third one, which comes after it, is still in use."""
    pool = Pool(engine, check, num_blocks=9)
    pool.add("A", range(8))
    pool.free("A")
    pool.add("B", range(8))  # shares the first block; the second, with the last token, is computed anew
    for token_id in range(100, 105):
        pool.append("B", token_id)
    pool.add("C", range(50, 62))
    pool.add("D", range(70, 78))  # takes the block in which the second part of A's prompt could be found
    pool.free("D")
    story = "a prompt comes that goes on as B did; its second block is not found, and so nothing behind it is"
    check.step(story, says=CALLS_ALLOCATE)
    answer = pool.manager.can_allocate(pool.make([*range(8), *range(100, 104), *range(200, 204)]))
    check.equal("can_allocate", answer, False, says=_fits(3, 2))


@case("ch05.can_allocate")
def one_that_was_preempted(engine, check):
    """P has four prompt tokens and six of its answer. It was preempted, and its blocks have gone to others."""
    pool = Pool(engine, check, num_blocks=4)
    pool.add("P", range(4))
    for token_id in range(100, 106):
        pool.append("P", token_id)
    seq = pool.free("P")
    pool.add("Q", range(50, 60))
    check.step("P asks for blocks again, for its prompt and the six tokens of its answer")
    check.equal("can_allocate for P", pool.manager.can_allocate(seq), False, says=_fits(3, 1))
    pool.free("Q")
    check.equal("can_allocate for P, once Q has ended", pool.manager.can_allocate(seq), True, says=_fits(3, 4))


@case("ch05.can_allocate")
def only_asks(engine, check):
    """Asking changes nothing: not when blocks are shared with A, which runs, nor when A has ended."""
    pool = Pool(engine, check, num_blocks=6)
    pool.add("A", range(10))
    for often in ("while A runs", "after A and then C have ended"):
        seq = pool.make(range(12))
        free, others = list(pool.manager.free_block_ids), others_of(seq)
        pool.last = "can_allocate was asked"
        check.step(f"can_allocate is asked for a sequence of 12 tokens, {often}")
        pool.manager.can_allocate(seq)
        pool.observe()
        says = "can_allocate gave the sequence blocks. It should only say whether there are enough."
        check.equal("the blocks of the sequence", list(seq.block_table), [], says=says)
        says = "can_allocate has changed num_cached_tokens; it only says whether there are enough blocks."
        check.equal("num_cached_tokens of the sequence", seq.num_cached_tokens, 0, says=says)
        pool.untouched("the sequence", seq, others)
        says = "Asking has changed the order of the free blocks: some were taken and given back, or moved."
        check.equal("the free blocks in their order", list(pool.manager.free_block_ids), free, says=says)
        if "A" in pool.seqs:
            pool.add("C", [50])
            pool.free("A")
            pool.free("C")


@case("ch05.can_allocate")
def without_prefix_caching(engine, check):
    """Prefix caching is off: nothing is shared, also where two sequences begin alike."""
    pool = Pool(engine, check, num_blocks=4, caching=False)
    pool.add("A", range(10))
    check.step("the same ten tokens as A's come again")
    check.equal("can_allocate", pool.manager.can_allocate(pool.make(range(10))), False, says=_fits(3, 1))


@case("ch05.can_allocate")
def agrees_with_counting(engine, check):
    """Sequences come, grow and go at random; every answer is compared with a count by hand."""
    for seed in range(6):
        random_walk(engine, check, seed)


# allocate


def _own_table(name, seq, expected):
    """Words for the table of a sequence that shares nothing."""

    def say(got):
        if None in got:
            return "There is a None in the block table. _append_new_block puts the block into it, and returns nothing."
        if len(got) != len(expected):
            return (
                f"{seq.num_tokens} tokens need {len(expected)} blocks of "
                f"{seq.block_size}; the table of {name} has {len(got)}."
            )
        if len(set(got)) < len(got):
            return f"A block stands in the table of {name} twice."
        if sorted(got) == sorted(expected):
            return "These are the right blocks in another order. The first that is taken holds the first tokens."
        return f"New blocks are those that choose_block_to_evict names, one after the other: {expected} here."

    return say


@case("ch05.allocate")
def one_alone(engine, check):
    """One sequence of ten tokens in an empty pool."""
    pool = Pool(engine, check, num_blocks=5)
    check.step("A arrives: ten tokens")
    seq = pool.make(range(10))
    pool.last = "A was given blocks"
    pool.manager.allocate(seq)
    pool.seqs["A"] = seq
    check.equal("the block table", list(seq.block_table), [0, 1, 2], says=_own_table("A", seq, [0, 1, 2]))
    check.equal("num_cached_tokens", seq.num_cached_tokens, 0, says=_hit_says(pool, "A", seq))
    pool.observe()


def _share_with(pool, name, token_ids, shared, story):
    """Allocate a sequence that begins with cached blocks, and look at what it got."""
    pool.check.step(story)
    seq, counts = pool.make(token_ids), [pool.manager.blocks[block_id].ref_count for block_id in shared]
    pool.last = f"{name} was given blocks"
    pool.admit(name, seq)
    says = _table_says(pool, name, seq, shared, counts)
    pool.check.equal(f"the blocks that {name} begins with", list(seq.block_table[: len(shared)]), shared, says=says)
    pool.check.equal(
        f"the number of {name}'s blocks", len(seq.block_table), seq.num_blocks, says=_too_few(pool, name, seq)
    )
    expected = len(shared) * pool.block_size
    pool.check.equal(f"num_cached_tokens of {name}", seq.num_cached_tokens, expected, says=_hit_says(pool, name, seq))
    pool.observe()
    return seq


@case("ch05.allocate")
def a_shared_prefix(engine, check):
    """A is running. B starts with the same eight tokens."""
    pool = Pool(engine, check, num_blocks=6)
    pool.add("A", range(10))
    _share_with(pool, "B", [*range(8), 90, 91, 92], [0, 1], "B arrives: 0 to 7 as in A, then three others")


@case("ch05.allocate")
def a_prompt_that_is_cached_whole(engine, check):
    """A's prompt comes again, all eight tokens of it. The last one has to be computed, so its block is not shared."""
    pool = Pool(engine, check, num_blocks=6)
    pool.add("A", range(8))
    seq = _share_with(pool, "B", range(8), [0], "B arrives with the same eight tokens")
    says = (
        "A's second block is shared as well, so none of B's tokens "
        "would be computed, and the next could not be sampled."
    )
    check.true("the second block is not A's", seq.block_table[1:] != [1], says=says)


@case("ch05.allocate")
def a_prefix_that_is_free(engine, check):
    """A has ended. Its blocks are free, and still say what they hold. B begins like A."""
    pool = Pool(engine, check, num_blocks=4)
    pool.add("A", range(10))
    pool.free("A")
    pool.add("C", [70])
    _share_with(pool, "B", [*range(8), 99], [0, 1], "B arrives: 0 to 7 as in A, then one other")


@case("ch05.allocate")
def the_cached_blocks_are_next_in_line(engine, check):
    """A has ended, and its blocks are all that is free. B begins like A, and needs new blocks besides."""
    pool = Pool(engine, check, num_blocks=4)
    pool.add("A", range(13))
    pool.free("A")
    for name in ("C", "D"):
        pool.add(name, [60])  # each takes one of the four: the tail of A goes first
    pool.free("C")
    pool.free("D")
    story = f"B begins like A; the free blocks, in the order they will be taken: {list(pool.manager.free_block_ids)}"
    counts, seq = [0, 0], pool.make([*range(8), 90, 91, 92, 93, 94])
    check.step(story)
    pool.last = "B was given blocks"
    pool.admit("B", seq)

    check.equal(
        "the blocks that B begins with",
        list(seq.block_table[:2]),
        [0, 1],
        says=_table_says(pool, "B", seq, [0, 1], counts),
    )
    says = "A new block was taken before the cached ones were shared, and it was one of them: it is in the table twice."
    check.equal("how many different blocks B has", len(set(seq.block_table)), 4, says=says)
    pool.observe()


@case("ch05.allocate")
def blocks_have_come_and_gone(engine, check):
    """Blocks have come and gone: the next free one is not the one with the lowest number. B begins like A."""
    pool = Pool(engine, check, num_blocks=5)
    _churn(pool)
    check.step(f"the free blocks, in the order they will be taken: {list(pool.manager.free_block_ids)}")
    seq = pool.add("A", range(12), compute=False)
    check.equal("the block table of A", list(seq.block_table), [3, 4, 2], says=_own_table("A", seq, [3, 4, 2]))
    pool.compute(seq)
    pool.free("A")
    seq = pool.add("A", [*range(200, 212), 5])
    table = list(seq.block_table)
    _share_with(
        pool,
        "B",
        [*range(200, 212), 6],
        table[:3],
        f"A has blocks {table}. B arrives: twelve tokens as in A, and one other",
    )


@case("ch05.allocate")
def one_that_comes_back(engine, check):
    """P is preempted with four prompt tokens and six of its answer. It comes back, and two blocks are still cached."""
    pool = Pool(engine, check, num_blocks=5)
    pool.add("P", range(4))
    for token_id in range(100, 106):
        pool.append("P", token_id)
    seq = pool.free("P")
    check.step("P comes back, with its prompt and the six tokens of its answer")
    pool.last = "P was given blocks"
    pool.admit("P", seq)
    check.equal("the number of P's blocks", len(seq.block_table), 3, says=_too_few(pool, "P", seq))
    check.equal("num_cached_tokens of P", seq.num_cached_tokens, 8, says=_hit_says(pool, "P", seq))
    pool.observe()


def _refusal_says(name, why):
    def say(got):
        if got == "nothing":
            return f"{why}, and allocate did not raise anything."
        return f"{why}. That is a RuntimeError; allocate raised {got}."

    return say


def _is_refused(pool, name, seq, why):
    """Allocate what cannot be allocated; a refusal leaves everything as it was."""
    manager, check = pool.manager, pool.check
    table, free, cached = list(seq.block_table), list(manager.free_block_ids), seq.num_cached_tokens
    findable, counts = dict(manager.hash_to_block_id), [block.ref_count for block in manager.blocks]
    check.step(f"allocate is called for {name}. {why}")
    pool.last = f"allocate had refused {name}"
    raised = _raised_by(manager.allocate, seq)
    check.equal(f"what allocate raises for {name}", raised, "RuntimeError", says=_refusal_says(name, why))
    says = (
        f"allocate refuses {name} only after it has given it some "
        "blocks, and it keeps them. Ask before anything is changed."
    )
    check.equal(f"the blocks of {name} afterwards", list(seq.block_table), table, says=says)
    says = f"allocate refuses {name}, but has changed reference counts before. Ask before anything is changed."
    check.equal("the reference counts", [block.ref_count for block in manager.blocks], counts, says=says)
    pool.observe()
    says = (
        "After a refusal the free blocks have another order: some were "
        "taken and given back. Ask before anything is changed."
    )
    check.equal("the free blocks, in the order they will be taken", list(manager.free_block_ids), free, says=says)
    says = "After a refusal the cache holds less: a block that is handed out forgets, also if it is given back at once."
    check.true("the cache can still find what it could", manager.hash_to_block_id == findable, says=says)
    says = f"allocate refuses {name}, but its num_cached_tokens has changed."
    check.equal(f"num_cached_tokens of {name}", seq.num_cached_tokens, cached, says=says)


@case("ch05.allocate")
def refuses_before_it_changes_anything(engine, check):
    """C has ended; its first block is free, and cached. B needs more blocks than there are. A asks a second time."""
    pool = Pool(engine, check, num_blocks=6)
    pool.add("C", range(70, 75))
    first = pool.add("A", range(10))
    pool.free("C")
    _is_refused(pool, "B", pool.make([*range(8), *range(50, 64)]), "B needs four new blocks, and three are free")
    _is_refused(pool, "A", first, "A has its blocks already")
    pool = Pool(engine, check, num_blocks=6)
    first = pool.add("A", range(10), compute=False)
    _is_refused(pool, "A", first, "A has its blocks already, and nothing of it is computed")


@case("ch05.allocate")
def refuses_though_hits_are_free(engine, check):
    """A has ended: its blocks are free, and cached. B begins like A, but what it needs besides is not there."""
    pool = Pool(engine, check, num_blocks=4)
    pool.add("A", range(9))
    pool.add("C", [70])
    pool.free("A")
    why = "B needs four blocks: two cached ones, which are among the free ones, and two more; three are free"
    _is_refused(pool, "B", pool.make([*range(8), *range(50, 57)]), why)


@case("ch05.allocate")
def uses_the_last_one(engine, check):
    """There are exactly as many free blocks as are needed."""
    pool = Pool(engine, check, num_blocks=4)
    pool.add("A", range(9))
    text = "B needs one new block besides the two that it shares with A, and one is free: there is nothing to refuse."
    check.step("B begins with eight tokens of A, and has one more", says={"RuntimeError": text})
    seq = pool.make([*range(8), 99])
    pool.last = "B was given blocks"
    pool.manager.allocate(seq)
    pool.seqs["B"] = seq
    check.equal("the block table of B", list(seq.block_table), [0, 1, 3], says=_table_says(pool, "B", seq, [0, 1]))
    pool.observe()


@case("ch05.allocate")
def caching_is_off(engine, check):
    """Prefix caching is off: B begins like A, and gets blocks of its own."""
    pool = Pool(engine, check, num_blocks=6, caching=False)
    pool.add("A", range(10))
    check.step("B arrives with the same ten tokens")
    seq = pool.make(range(10))
    pool.last = "B was given blocks"
    pool.manager.allocate(seq)
    pool.seqs["B"] = seq
    check.equal("the block table of B", list(seq.block_table), [3, 4, 5], says=_own_table("B", seq, [3, 4, 5]))
    says = "Nothing is shared when prefix caching is off, so nothing is cached."
    check.equal("num_cached_tokens of B", seq.num_cached_tokens, 0, says=says)
    pool.observe()


@case("ch05.allocate")
def a_new_block_was_cached(engine, check):
    """The free blocks still hold A's prompt. B, which is another one, takes them. Then A's prompt comes again."""
    pool = Pool(engine, check, num_blocks=2)
    pool.add("A", range(8))
    pool.free("A")
    pool.add("B", range(50, 58), compute=False)
    check.step("A's tokens come again, and one more; B has the blocks that held them")
    found = list(pool.manager.find_cached_blocks(pool.make(range(9))))
    says = (
        "Blocks that B took are still found as the start of A's "
        "prompt. A block that is handed out forgets what it held."
    )
    check.equal("blocks found for it in the cache", found, [], says=says)


@case("ch05.allocate")
def the_content_is_in_two_blocks(engine, check):
    """B computed what A has in its second block once more. B has ended, and C is given B's copy. A still runs."""
    pool = Pool(engine, check, num_blocks=4)
    pool.add("A", range(8))
    pool.add("B", range(8))
    pool.free("B")
    pool.add("C", range(50, 56))
    check.step("A's prompt comes again, and one token more")
    found = list(pool.manager.find_cached_blocks(pool.make(range(9))))
    says = "C was given a copy of A's second block, and A's own cannot be found any more, although it is untouched."
    check.equal("blocks found for it in the cache", found, [0, 1], says=says)


@case("ch05.allocate")
def four_blocks_are_shared(engine, check):
    """A is running with eighteen tokens, and C with others that begin alike. B shares four blocks."""
    pool = Pool(engine, check, num_blocks=9)
    pool.add("C", range(5))
    pool.add("A", range(18))
    _share_with(pool, "B", [*range(16), 90], [0, 2, 3, 4], "B arrives: sixteen tokens as in A, then one other")
    _share_with(pool, "D", [*range(16), 91], [0, 2, 3, 4], "D arrives, with the same sixteen tokens")


@case("ch05.allocate")
def blocks_hold_what_they_should(engine, check):
    """Sequences come, grow and go at random. Owners are counted; what is shared has the same content."""
    for seed in range(6):
        random_walk(engine, check, seed)


# deallocate


def _left_in_table(got):
    if got is None:
        return "The block table is None now; it should be an empty list."
    return f"The block table still names {list(got)}: the sequence looks as if it had blocks." if len(got) else None


def _is_empty_handed(pool, name, seq, tokens):
    """What holds of a sequence whose blocks were taken back."""
    check = pool.check
    check.equal(f"the block table of {name}", seq.block_table, [], says=_left_in_table)
    says = f"num_cached_tokens still says that keys and values of {name} are there, but it has no blocks any more."
    check.equal(f"num_cached_tokens of {name}", seq.num_cached_tokens, 0, says=says)
    says = f"The tokens of {name} have changed. They stay: one that was preempted comes back with them."
    check.equal(f"the tokens of {name}", (list(seq.token_ids), seq.num_tokens), (tokens, len(tokens)), says=says)


@case("ch05.deallocate")
def the_only_owner(engine, check):
    """One sequence of ten tokens ends."""
    pool = Pool(engine, check, num_blocks=5)
    pool.add("A", range(10))
    seq = pool.free("A")
    _is_empty_handed(pool, "A", seq, list(range(10)))
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
def nothing_to_give_back(engine, check):
    """W is still waiting when it is aborted: it has no blocks yet. V has blocks, but nothing of it was computed."""
    pool = Pool(engine, check, num_blocks=5)
    pool.add("A", range(6))
    seq = pool.make(range(50, 60))
    check.step("W ends before it was given any blocks", says=_freeing_raised(seq))
    pool.last = "W ended, which had no blocks"
    pool.manager.deallocate(seq)
    _is_empty_handed(pool, "W", seq, list(range(50, 60)))
    pool.observe()
    pool.add("V", range(70, 79), compute=False)
    seq = pool.free("V")
    _is_empty_handed(pool, "V", seq, list(range(70, 79)))
    pool.observe()


@case("ch05.deallocate")
def preempted_while_it_grows(engine, check):
    """P has a token for which there was no block, and goes: its table is one block shorter than its tokens need."""
    pool = Pool(engine, check, num_blocks=4)
    pool.add("P", range(7))
    pool.append("P", 100)
    pool.seqs["P"].append_token(101)
    seq = pool.free("P")
    _is_empty_handed(pool, "P", seq, [*range(7), 100, 101])
    pool.observe()


def _order_says(table, before):
    """Words for an order of the free blocks that is not the one promised."""

    def say(got):
        if sorted(got) != sorted([*before, *table]):
            return None
        if got == [*before, *table]:
            return (
                f"The table was {table}, and its first block stands left of "
                "the others now: it is handed out first. Without "
                "the first block of a prompt the others cannot be found. The last of the table comes first."
            )
        if got[: len(table)] == table[::-1] or got[: len(table)] == table:
            return (
                "The freed blocks stand at the left end, where the next block is taken. They belong to the right end."
            )
        if got == [*before, *sorted(table, reverse=True)] or got == [*before, *sorted(table)]:
            return (
                f"The freed blocks are sorted by their numbers. The table was {table}: what counts is the place in it, "
                "the last one first; the numbers say nothing."
            )
        return (
            f"The table was {table}: its blocks belong to the right end "
            "of the free ones, the last of the table leftmost."
        )

    return say


@case("ch05.deallocate")
def the_order_of_the_free_blocks(engine, check):
    """A ends, then Z. In which order will their blocks be handed out again?"""
    pool = Pool(engine, check, num_blocks=6)
    table = list(pool.add("A", range(14)).block_table)
    pool.add("Z", [60])
    pool.free("A")
    free, expected = list(pool.manager.free_block_ids), [5, *table[::-1]]
    what = "the free blocks, in the order they will be taken"
    check.equal(what, free, expected, says=_order_says(table, [5]))
    pool.free("Z")
    free = list(pool.manager.free_block_ids)
    check.equal("the free blocks once Z has ended, too", free, [*expected, 4], says=_order_says([4], expected))


@case("ch05.deallocate")
def after_some_time(engine, check):
    """Blocks have come and gone, so a block table is not in the order of the blocks' numbers any more. A ends."""
    pool = Pool(engine, check, num_blocks=5)
    _churn(pool)
    table = list(pool.add("A", range(14)).block_table)
    before = list(pool.manager.free_block_ids)
    pool.free("A")
    free = list(pool.manager.free_block_ids)
    says = _order_says(table, before)
    check.equal("the free blocks, in the order they will be taken", free, [*before, *table[::-1]], says=says)
    pool.observe()


@case("ch05.deallocate")
def freed_blocks_are_the_cache(engine, check):
    """A ends, and its prompt comes again."""
    pool = Pool(engine, check, num_blocks=5)
    table = list(pool.add("A", range(10)).block_table)
    hashes = [pool.manager.blocks[block_id].hash for block_id in table]
    pool.free("A")
    forgotten = (
        "The freed blocks cannot be found any more. A free block keeps its hash, and hash_to_block_id keeps the block."
    )
    found = list(pool.manager.find_cached_blocks(pool.make(range(10))))
    check.equal("what the cache finds of A's prompt", found, table[:2], says=forgotten)
    says = "A freed block has another hash than before. It keeps its hash; who takes the block later wipes it."
    check.equal("their hashes", [pool.manager.blocks[block_id].hash for block_id in table], hashes, says=says)
    seq = pool.add("B", range(10))
    check.equal("the first two blocks of B", list(seq.block_table[:2]), table[:2], says=forgotten)
    pool.observe()


@case("ch05.deallocate")
def a_copy_keeps_its_hash_too(engine, check):
    """B computed what A has in its second block once more. B ends, then A."""
    pool = Pool(engine, check, num_blocks=4)
    pool.add("A", range(8))
    pool.add("B", range(8))
    before = [(block.hash, list(block.token_ids)) for block in pool.manager.blocks]
    says = (
        "A freed block has forgotten what it holds. It keeps its hash and its tokens; who takes the block wipes them."
    )
    for name in ("B", "A"):
        pool.free(name)
        after = [(block.hash, list(block.token_ids)) for block in pool.manager.blocks]
        check.true(f"all blocks hold what they held before {name} ended", after == before, says=says)
        pool.observe()
    found = list(pool.manager.find_cached_blocks(pool.make(range(9))))
    check.equal("what the cache finds of A's prompt", found, [0, 1], says=says)


@case("ch05.deallocate")
def shared_and_own(engine, check):
    """A and B share their first block, then each has its own. B goes first, then A; C comes with A's prompt."""
    pool = Pool(engine, check, num_blocks=7)
    _churn(pool)
    first = list(pool.add("A", range(14)).block_table)
    second = list(pool.add("B", [*range(4), *range(50, 56)]).block_table)
    before = list(pool.manager.free_block_ids)
    pool.free("B")
    pool.observe()
    free, own = list(pool.manager.free_block_ids), second[1:]
    what = "the free blocks, in the order they will be taken"
    check.equal(what, free, [*before, *own[::-1]], says=_order_says(own, before))
    pool.free("A")
    pool.observe()
    pool.add("C", range(14))
    expected = 12
    says = f"C has the same 14 tokens as A; the blocks {first[:3]} held them, and only {pool.hit} tokens are found."
    check.equal("tokens that C finds in the cache", pool.hit, expected, says=says)


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
    for often in ("once", "twice"):
        check.step(f"may_append is called for the ninth token, {often}", says=pool.appending_raised(seq))
        pool.manager.may_append(seq)
        says = {
            4: "Asked a second time for the same token, you give a second "
            "block. The sequence has a block for its ninth "
            "token already: what counts is whether one is missing.",
            2: "The ninth token is the first of a third block, and no block was given.",
        }
        check.equal("blocks for 9 tokens", len(seq.block_table), 3, says=says)


@case("ch05.may_append")
def blocks_of_one_token(engine, check):
    """A block holds a single token: every token needs a new one."""
    pool = Pool(engine, check, num_blocks=6, block_size=1)
    pool.add("A", [1, 2])
    for token_id in (100, 101):
        pool.append("A", token_id)
        pool.observe()


@case("ch05.may_append")
def one_that_came_back(engine, check):
    """P was preempted with part of its answer, and was given blocks again for all its tokens. Then it goes on."""
    pool = Pool(engine, check, num_blocks=6)
    pool.add("P", range(3))
    for token_id in range(100, 104):
        pool.append("P", token_id)
    seq = pool.free("P")
    check.step("P comes back")
    pool.admit("P", seq)
    pool.compute(seq)
    for token_id in range(104, 108):
        pool.append("P", token_id)
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
    found = list(pool.manager.find_cached_blocks(seq))
    says = (
        "The block that B took is still found as the start of A's "
        "prompt, although B writes over it. A block that is handed "
        "out forgets what it held."
    )
    check.equal("blocks found for it in the cache", found, [], says=says)
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
    taken = f"Free blocks are taken from the left end, as choose_block_to_evict says: {expected[1:]}, in this order."
    order = "The blocks are the right ones. In the table they have the order of the tokens: a new one comes last."

    def says(got):
        return order if sorted(got) == sorted(expected) else taken

    check.equal("the blocks of C", list(seq.block_table), expected, says=says)


@case("ch05.may_append")
def the_content_is_there_twice(engine, check):
    """B computed what A has in its second block once more. B has ended, and C takes B's copy. A still runs."""
    pool = Pool(engine, check, num_blocks=4)
    pool.add("A", range(8))
    pool.add("B", range(8))
    pool.free("B")
    pool.add("C", [50, 51, 52, 53])
    pool.append("C", 54)
    check.step("A's prompt comes again, and one token more")
    found = list(pool.manager.find_cached_blocks(pool.make(range(9))))
    says = "C took a copy of A's second block, and A's own cannot be found any more, although it is untouched."
    check.equal("blocks found for it in the cache", found, [0, 1], says=says)


@case("ch05.may_append")
def no_block_is_left(engine, check):
    """The fourth token has a slot; the fifth needs a second block, and there is only one."""
    pool = Pool(engine, check, num_blocks=1)
    pool.add("A", range(3))
    seq = pool.append("A", 100)
    seq.append_token(101)
    check.step("A generates its token number 5")
    raised = _raised_by(pool.manager.may_append, seq)

    def say(got):
        if got == "nothing":
            return "The fifth token needs a block, none is free, and nothing was raised: it would have no place."
        return f"The fifth token needs a block, and none is free. That is a RuntimeError; may_append raised {got}."

    check.equal("what may_append raises", raised, "RuntimeError", says=say)


@case("ch05.may_append")
def no_block_has_a_hash(engine, check):
    """Prefix caching is off, so no block has a hash, also when it is full. A has six tokens and grows to fourteen."""
    pool = Pool(engine, check, num_blocks=6, caching=False)
    pool.add("A", range(6))
    for token_id in range(100, 108):
        pool.append("A", token_id)
        pool.observe()


@case("ch05.may_append")
def always_as_many_as_needed(engine, check):
    """Sequences come, grow and go at random, with blocks of one to four tokens."""
    for seed in range(6):
        random_walk(engine, check, seed)


# choose_block_to_evict


@case("ch05.choose_block_to_evict")
def a_free_block(engine, check):
    """Sequences come, grow and go at random; before each step, somebody asks which block would go next."""
    for seed in range(4):
        _evictions(engine, check, seed)


def _evictions(engine, check, seed, num_steps=60):
    """A random walk that looks only at what every policy has to keep: blocks in order, and tokens never wrong."""
    rng, fresh = random.Random(seed), iter(range(1000, 10**6))
    pool = Pool(engine, check, num_blocks=rng.randrange(6, 12), block_size=rng.choice([1, 2, 4]))
    for i in range(num_steps):
        free, used = list(pool.manager.free_block_ids), set(pool.manager.used_block_ids)
        if free:
            check.step(f"which block goes next? Free are {free}")
            chosen = pool.manager.choose_block_to_evict()
            says = f"It chose {chosen!r}, which is not the id of a free block. Free are {free}."
            check.true("what it returns is the id of a free block", chosen in free, says=says)
            says = "Asking has changed the pool. It is only asked here; who asked takes the block."
            same = list(pool.manager.free_block_ids) == free and set(pool.manager.used_block_ids) == used
            check.true("asking changes nothing", same, says=says)
        if rng.random() < 0.55 or not pool.seqs:
            shared = [rng.choice([[1, 2, 3, 4], [1, 2, 8, 9]]), [5, 6, 7]][: rng.randrange(3)]
            token_ids = [token for part in shared for token in part] + [next(fresh) for _ in range(rng.randrange(1, 9))]
            if pool.manager.can_allocate(pool.make(token_ids)):
                _holds_its_tokens(pool, f"R{i}", token_ids)
        else:
            pool.free(rng.choice(sorted(pool.seqs)))
        pool.observe()


def _holds_its_tokens(pool, name, token_ids):
    """Admit a sequence, and look into the blocks that it was told to share."""
    before = dict(pool.contents)
    seq = pool.add(name, token_ids, compute=False)
    num_shared = seq.num_cached_tokens // pool.block_size
    for i, block_id in enumerate(seq.block_table[:num_shared]):
        held, wanted = before.get(block_id), tuple(token_ids[: (i + 1) * pool.block_size])
        says = f"Block {block_id} is shared with {name}, but it holds other tokens."
        pool.check.true("a shared block holds the tokens of who shares it", held == wanted, says=says)
    for block_id in seq.block_table[num_shared:]:
        pool.contents.pop(block_id, None)
    pool.compute(seq)


@case("ch05.choose_block_to_evict")
def a_pool_that_begins_anew(engine, check):
    """After an error the engine calls reset: all blocks are free, nothing is cached, content ids begin at 0."""
    pool = Pool(engine, check, num_blocks=6)
    pool.add("A", range(10))
    pool.free("A")
    pool.add("B", range(50, 72))
    check.step("the manager is reset")
    pool.manager.reset()
    pool.seqs.clear()
    pool.contents.clear()
    for name in "CDEF":
        pool.add(name, range(9))
        pool.observe()
        pool.free(name)


@case("ch05.choose_block_to_evict")
def one_block_in_all(engine, check):
    """The smallest pool there is: one block, for one short request after the other."""
    pool = Pool(engine, check, num_blocks=1)
    for i in range(4):
        pool.add(f"R{i}", [i])
        pool.free(f"R{i}")
        pool.observe()


@case("ch05.choose_block_to_evict")
def better_than_chance(engine, check):
    """400 requests of a small chat service, in 48 blocks of 16 tokens. LRU is to be beaten."""
    check.step("the requests arrive one after the other, through the real scheduler")
    found = workloads.tokens_found(engine.package.load())
    bar = workloads.BAR
    check.measured(f"your rule finds {found:,} prompt tokens in the cache; {bar:,} are asked for")
    says = (
        f"It finds {found:,} prompt tokens in the cache, and {bar:,} are asked for. LRU, which takes the block that "
        f"was freed longest ago, finds {workloads.LRU_FINDS:,}; a random choice {workloads.RANDOM_FINDS:,}."
    )
    check.true(f"at least {bar:,} prompt tokens come from the cache", found >= bar, says=says)
