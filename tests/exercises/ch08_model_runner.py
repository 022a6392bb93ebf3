"""Grader of chapter 08. What is right is said by looking up each token by itself, and by counting rows."""

import pickle
import random
from types import SimpleNamespace

import torch

from exercises.kit import graph_work
from exercises.kit.grading import Check, Engine, case

MISSING = "is missing"
STATE = ("seq_id", "token_ids", "last_token", "num_tokens", "num_prompt_tokens", "num_cached_tokens", "block_table",
         "num_scheduled_tokens", "status")  # fmt: skip


class Bench:
    """A model runner without a model: it prepares steps, and nobody computes them."""

    def __init__(self, engine: Engine, check: Check, block_size: int = 4):
        self.check, self.size = check, block_size
        self.asked = {}  # by a range of tokens: tables, and the slots that were right for them
        self.runner_class = engine.get("engine.model_runner:ModelRunner")
        self.sequence_class = engine.get("engine.sequence:Sequence")
        context = engine.package.module("utils.context")
        self.get_context, self.reset_context = context.get_context, context.reset_context
        self.runner = object.__new__(self.runner_class)
        self.runner.block_size, self.runner.device = block_size, torch.device("cpu")
        self.runner.config = SimpleNamespace(
            device="cpu", kvcache_block_size=block_size, dtype=torch.float32, num_kvcache_blocks=100
        )
        check.step(f"a runner with blocks of {block_size}")

    def seq(self, num_tokens, table, cached=0, scheduled=None, prompt=None, name="A"):
        """A sequence in the middle of its life.

        Args:
            num_tokens: of which the first `prompt` came with the request, by default all.
            table: ids of its blocks.
            cached, scheduled: how many of its tokens; by default all that are not cached are scheduled.
            name: one letter, which says what its tokens are: A has 101, 102, ..., B 201, 202, ...
        """
        first = 100 * (ord(name) - 64) + 1
        ids = list(range(first, first + num_tokens))
        seq = self.sequence_class(ids[: prompt or num_tokens], None, self.size, ord(name) - 65)
        for token_id in ids[prompt or num_tokens :]:
            seq.append_token(token_id)
        seq.num_cached_tokens, seq.block_table = cached, list(table)
        seq.num_scheduled_tokens = num_tokens - cached if scheduled is None else scheduled
        return seq


def state_of(seq):
    return {name: repr(getattr(seq, name, MISSING)) for name in STATE}


def in_worker(seq):
    """What a worker process gets."""
    return pickle.loads(pickle.dumps(seq))


# slots


def slots_of(table, size, start, end):
    """One token after the other; what no table has is nowhere."""
    return [table[p // size] * size + p % size for p in range(start, end)] if table else []


def says_slots(table, size, start, end, cached=0, before=()):
    """Words for wrong slots, each of them true of what came back.

    Args:
        cached: how many tokens of the sequence are.
        before: tables that were asked about before, and the slots that were right for them.
    """
    wanted = slots_of(table, size, start, end)

    def says(got):
        if got is None:
            return "None came back. A list is promised, without a table an empty one."
        if not isinstance(got, list):
            return f"A {type(got).__name__} came back, and a list was promised."
        if any(isinstance(slot, list | tuple | range) for slot in got):
            return "A list in a list: each token has one number. += or extend adds numbers, append adds one thing."
        if not table:
            return "The table is empty, because there is no pool yet: then no token has a slot, and the list is empty."
        if any(type(slot) is not int for slot in got):
            return "A slot is an int; // gives one, / does not."
        if not wanted:
            return f"slots(seq, {start}, {end}) asks for no token: an empty list was to come, and {got} came."
        if not got and not any(table):
            return "No slot came back. Block 0 is a block like any other: only a table without entries is empty."
        if len(got) != len(wanted):
            return says_count(got, wanted)
        if got == list(range(start, end)):
            return (
                "These are the positions. They are the slots only if the blocks are 0, 1, 2, ...; the table says "
                "where they really lie."
            )
        if got == wanted[::-1] and len(wanted) > 1:
            return "The slots are right, and in the opposite order."
        for other, slots in before:
            if got == slots:
                return f"They were right for the table {other}, which was asked about before. The table is another now."
        for other in {16, 256} - {size}:
            if end <= len(table) * other and got == slots_of(table, other, start, end):
                return f"These are the slots in blocks of {other}. The runner's have {size}: self.block_size says it."
        k = next(k for k, (one, other) in enumerate(zip(got, wanted, strict=True)) if one != other)
        return says_one(start + k, got[k])

    def says_count(got, wanted):
        for word, low, high in (
            ("It has the slots from position 0 on.", 0, end),
            ("It goes on to the end of the last block.", start, -(-end // size) * size),
            ("It begins with the first slot of a block.", start // size * size, end),
            ("It gives whole blocks.", start // size * size, -(-end // size) * size),
            ("It goes on to the end of the table.", start, len(table) * size),
            ("The token `end` does not count any more.", start, end + 1),
            ("The last token, end - 1, is missing.", start, end - 1),
            ("Of the last block, which is not full, nothing is there.", start, end // size * size),
            ("Of the last block, which is full, nothing is there.", start, (end - 1) // size * size),
            ("It begins with the first token that is not cached, and not with `start`.", cached, end),
        ):
            covered = low <= high and high <= len(table) * size
            if covered and got == slots_of(table, size, low, high):
                return f"{word} Asked for was slots(seq, {start}, {end})."
        return f"slots(seq, {start}, {end}) asks for {end - start} tokens, and {len(got)} slots came back."

    def says_one(position, slot):
        index, rest = position // size, position % size
        block_id = table[index]
        right = (
            f"Token {position} is in block {index} of its sequence, at place {rest}. The table names block {block_id} "
            f"there, and its first slot is {block_id} * {size}"
        )
        if slot // size == block_id:
            return f"{right}. The block is right in what came back ({slot}), the place in it is not."
        if slot == block_id + rest:
            return f"{right}: a block id has to be multiplied by the block size."
        if slot % size == rest and slot // size in table:
            return f"{right}. What came back ({slot}) is a slot of block {slot // size}: another entry of the table."
        return f"{right}."

    return says


SLOTS_RAISED = {
    "IndexError": "An entry of the table was asked for that it does not have. Its index is the number of the block in "
    "the sequence; an empty table has no entries at all.",
    "TypeError": "Something of another type than it takes: an index or a range wants whole numbers, and // gives them.",
}


def ask_slots(bench, table, start, end, seq=None, text=""):
    """Ask for slots, and compare them with those looked up one by one."""
    check, size = bench.check, bench.size
    # Room for all tokens that the table has blocks for; in the warm-up there is no table.
    seq = seq or bench.seq(max(end, 1, len(table) * size - (size > 1)), table, start, end - start)
    check.step(f"{text}the table {table}: slots(seq, {start}, {end})", SLOTS_RAISED)
    before = state_of(seq)
    got = bench.runner.slots(seq, start, end)
    wanted, asked = slots_of(table, size, start, end), bench.asked.setdefault((start, end), [])
    is_right = check.equal(f"slots(seq, {start}, {end})", got, wanted,
                           says_slots(table, size, start, end, seq.num_cached_tokens, asked))  # fmt: skip
    asked.append((table, wanted))
    if is_right:
        kinds = sorted({type(slot).__name__ for slot in got} - {"int"})
        check.equal("what is in the list besides ints", kinds, [], "The numbers are right, but no plain ints.")
    changed = [name for name, value in state_of(seq).items() if value != before[name]]
    check.equal("what has changed of the sequence", changed, [], "The sequence is only read, and it has changed.")


@case("ch08.slots")
def within_one_block(engine, check):
    """A sequence of three tokens, in one block of four."""
    bench = Bench(engine, check)
    for table in ([7], [0]):
        ask_slots(bench, table, 0, 2)
        ask_slots(bench, table, 0, 3)
        ask_slots(bench, table, 2, 3)
        ask_slots(bench, table, 1, 3)


@case("ch08.slots")
def across_borders(engine, check):
    """Ten tokens in blocks of four that lie anywhere in the pool."""
    bench = Bench(engine, check)
    for table in ([5, 2, 7], [2, 1, 0], [0, 1, 2], [3, 4, 5]):
        for start, end in ((0, 10), (0, 8), (3, 5), (2, 9), (4, 8), (5, 10), (9, 10), (0, 4), (8, 10)):
            ask_slots(bench, table, start, end)


@case("ch08.slots")
def a_prompt_in_chunks(engine, check):
    """A prompt of eleven tokens. All its blocks are there, and the step computes a part of it."""
    bench = Bench(engine, check)
    for cached, scheduled in ((0, 5), (5, 5), (10, 1), (4, 3), (8, 3)):
        seq = bench.seq(11, [6, 3, 9], cached, scheduled)
        ask_slots(bench, [6, 3, 9], cached, cached + scheduled, seq)


@case("ch08.slots")
def no_pool_yet(engine, check):
    """The warm-up: a sequence without blocks."""
    bench = Bench(engine, check)
    for num_tokens in (1, 4, 9):
        ask_slots(bench, [], 0, num_tokens)


@case("ch08.slots")
def no_tokens(engine, check):
    """From a position to the same position there is no token."""
    bench = Bench(engine, check)
    for start in (0, 2, 4):
        ask_slots(bench, [5, 2, 7], start, start)


@case("ch08.slots")
def other_tokens_than_those_of_the_step(engine, check):
    """Whoever asks says which tokens; what the step computes, and what is cached, does not matter."""
    bench = Bench(engine, check)
    for start, end in ((0, 9), (1, 6), (7, 8)):
        ask_slots(bench, [5, 2, 7], start, end, bench.seq(9, [5, 2, 7], cached=4, scheduled=5))


@case("ch08.slots")
def other_block_sizes(engine, check):
    """Blocks of one token, of three, and of 256."""
    for size in (1, 3, 256):
        bench = Bench(engine, check, size)
        table = [9, 2, 5, 7][: 4 if size < 4 else 2]
        for start, end in ((0, 4), (1, 3), (3, 4)):
            ask_slots(bench, table, start, end)
    ask_slots(bench, [9, 2], 250, 260)


@case("ch08.slots")
def another_table(engine, check):
    """A sequence gets a third block; then it is preempted, and comes back with other blocks."""
    bench = Bench(engine, check)
    seq = bench.seq(8, [5, 2], cached=7)
    ask_slots(bench, [5, 2], 7, 8, seq)
    seq.append_token(109)
    for table in ([5, 2, 7], [1, 9, 4]):
        seq.block_table = list(table)
        ask_slots(bench, table, 0, 9, seq, "the same sequence; ")
        ask_slots(bench, table, 8, 9, seq, "the same sequence; ")


@case("ch08.slots")
def in_a_worker_process(engine, check):
    """A worker's copy of a sequence has no tokens, only their number."""
    bench = Bench(engine, check)
    seq = in_worker(bench.seq(10, [5, 2, 7], cached=9))
    check.equal("tokens of the copy", seq.token_ids, [])
    ask_slots(bench, [5, 2, 7], 9, 10, seq, "a copy without tokens; ")


@case("ch08.slots")
def any_table(engine, check):
    """Random tables, and any part of the sequence."""
    rng = random.Random(8)
    for _ in range(20):
        bench = Bench(engine, check, rng.choice([1, 2, 4, 5, 16]))
        table = rng.sample(range(50), rng.randrange(1, 7))
        start = rng.randrange(len(table) * bench.size)
        end = rng.randrange(start, len(table) * bench.size + 1)
        seq = bench.seq(max(1, end), table[: -(-max(1, end) // bench.size)], 0, None)
        ask_slots(bench, seq.block_table, start, end, seq)


# prepare_prefill and prepare_decode


def plain(tensor):
    """A tensor as a list, so that it can be compared and shown."""
    return tensor.tolist() if isinstance(tensor, torch.Tensor) else tensor


def kind_of(value):
    """Data type of a tensor; what else it is, if it is none."""
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__


PREPARE_RAISED = {
    "IndexError": "An entry was asked for that a list does not have. A table has blocks for the tokens of its own "
    "sequence only; and a worker's copy may have no token_ids, but has scheduled_token_ids and last_token.",
    "UnboundLocalError": "A variable is used before it has a value.",
    "ValueError": "A tensor has rows of one length: prepare_block_tables(seqs) fills shorter tables up with -1. "
    "zip with strict=True wants equal lengths, too.",
    "TypeError": "Something was called with other arguments, or does not have the type that it should have: "
    "to_device(list, dtype), slots(seq, start, end), set_prefill_context(seqs, cu_q, cu_k, slots).",
}


NO_TABLE_RAISED = {
    "IndexError": "In the warm-up there is no pool: a sequence has no blocks, and its table no entry to look up. "
    "self.slots(seq, start, end) gives an empty list then.",
}


def prepare(bench, method, seqs, text):
    """Call it; returns input_ids, positions and context, all as lists, or None if that is not what came back."""
    check = bench.check
    check.step(text, PREPARE_RAISED if all(seq.block_table for seq in seqs) else PREPARE_RAISED | NO_TABLE_RAISED)
    bench.reset_context()
    before = [state_of(seq) for seq in seqs]
    result = getattr(bench.runner, method)(seqs)
    context = bench.get_context()
    bench.reset_context()
    changed = [name for seq, old in zip(seqs, before, strict=True)
               for name, value in state_of(seq).items() if value != old[name]]  # fmt: skip
    check.equal("what has changed of the sequences", changed, [], "The sequences are only read, and one has changed.")
    pair = isinstance(result, tuple | list) and len(result) == 2
    if not check.true("two things come back, input_ids and positions", pair,
                      "Nothing came back: a return is missing." if result is None else
                      "What comes back is not input_ids and positions, two tensors."):  # fmt: skip
        return None
    kinds = [kind_of(value) for value in result]
    check.equal("their data types", kinds, ["int64", "int64"], says_kinds)
    return [plain(value) for value in result], context


def says_kinds(got):
    if "list" in got:
        return "A list came back: self.to_device(list, torch.int64) makes a tensor of it, on the right device."
    return "Token ids and positions are int64: self.to_device(list, torch.int64)."


def context_of(context, names):
    return {name: plain(getattr(context, name, MISSING)) for name in names}


NESTED = "The right numbers, but as a list of lists. {} is flat, [num_tokens]: the slots of all sequences in one list."


def is_nested(got, wanted):
    """Whether these are the right numbers, with a list around those of each sequence."""
    if not isinstance(got, list) or not all(isinstance(row, list) for row in got):
        return False
    return got != wanted and [number for row in got for number in row] == wanted


def check_context(bench, context, wanted, says):
    """The fields of the context, one after the other, and their types."""
    check = bench.check
    for name, value in wanted.items():
        got = plain(getattr(context, name, MISSING))
        said = NESTED.format(name) if is_nested(got, value) else says.get(name)
        check.equal(f"{name} of the context", got, value, said)
    dtypes = {"slot_mapping": "int64", "cu_seqlens_q": "int32", "cu_seqlens_k": "int32", "context_lens": "int32"}
    for name, dtype in dtypes.items():
        if name in wanted and wanted[name] is not None:
            check.equal(f"data type of {name}", kind_of(getattr(context, name, MISSING)), dtype,
                        f"{name} is a tensor of {dtype}, as Context says.")  # fmt: skip


def padded(tables):
    width = max(len(table) for table in tables)
    return [[*table, *[-1] * (width - len(table))] for table in tables]


def sums(lengths):
    """From 0 on: where each one begins, and where the last one ends."""
    return [sum(lengths[:i]) for i in range(len(lengths) + 1)]


def story(seqs):
    names = [chr(65 + seq.seq_id) for seq in seqs]
    parts = [
        f"{name} {seq.num_scheduled_tokens} of {seq.num_tokens} tokens, {seq.num_cached_tokens} cached"
        for name, seq in zip(names, seqs, strict=True)
    ]
    return "; ".join(parts)


def check_prefill(bench, seqs, all_ids=None):
    """A prefill of these; `all_ids` are their tokens if they are copies that have none."""
    tokens = all_ids or [list(seq.token_ids) for seq in seqs]
    spans = [(seq.num_cached_tokens, seq.num_cached_tokens + seq.num_scheduled_tokens) for seq in seqs]
    tables = [list(seq.block_table) for seq in seqs]
    ids = [token for all_, span in zip(tokens, spans, strict=True) for token in all_[slice(*span)]]
    positions = [position for span in spans for position in range(*span)]
    slots = [s for table, span in zip(tables, spans, strict=True) for s in slots_of(table, bench.size, *span)]
    check = bench.check
    found = prepare(bench, "prepare_prefill", seqs, f"a prefill of {story(seqs)}")
    if found is None:
        return
    (got_ids, got_positions), context = found
    facts = SimpleNamespace(ids=ids, positions=positions, tokens=tokens, spans=spans, seqs=seqs, slots=slots)
    check.equal("input_ids", got_ids, ids, lambda got: says_ids(got, facts))
    check.equal("positions", got_positions, positions, lambda got: says_positions(got, facts))
    lengths = [end - start for start, end in spans]
    ends = [end for _, end in spans]
    wanted = {
        "is_prefill": True,
        "cu_seqlens_q": sums(lengths),
        "cu_seqlens_k": sums(ends),
        "slot_mapping": slots,
        "max_seqlen_q": max(lengths),
        "max_seqlen_k": max(ends),
        "block_tables": padded(tables) if any(start for start, _ in spans) else None,
    }
    says = {
        "is_prefill": SAYS_NO_CONTEXT,
        "cu_seqlens_q": lambda got: says_sums("q", got, lengths, ends, seqs),
        "cu_seqlens_k": lambda got: says_sums("k", got, ends, lengths, seqs),
        "slot_mapping": lambda got: says_slot_mapping(got, facts, bench.size),
        "max_seqlen_q": lambda got: says_longest("q", got, lengths, ends),
        "max_seqlen_k": lambda got: says_longest("k", got, lengths, ends),
        "block_tables": "Only if something is cached already does attention read the pages, and then it needs the "
        "tables of all sequences; else it is None. set_prefill_context decides that by the last sums.",
    }
    check_context(bench, context, wanted, says)


def says_longest(letter, got, lengths, ends):
    """What a wrong longest length is: of the other kind, or not of all sequences."""
    if letter == "k" and got == max(lengths):
        return "max_seqlen_k is here the most tokens that are computed now. It is the most keys, cached ones included."
    if letter == "q" and got == max(ends):
        return "max_seqlen_q is here the most keys of a sequence. It is the most tokens that are computed now."
    return SAYS_LONGEST


SAYS_LONGEST = (
    "The longest of all sequences of the step is meant. set_prefill_context finds it in those that it is given: "
    "all of them, in one call."
)
SAYS_NO_CONTEXT = (
    "The context does not say that this is a prefill. set_prefill_context(seqs, cu_seqlens_q, cu_seqlens_k, slots) "
    "sets it."
)


def says_ids(got, facts):
    everything = [token for tokens in facts.tokens for token in tokens]
    if not isinstance(got, list):
        return ""
    if got == facts.positions and got != facts.ids:
        return "These are the positions: input_ids come first, then positions."
    if got and isinstance(got[0], list):
        return "A row for each sequence: the batch is flat, one long row of tokens without padding."
    if got == everything and got != facts.ids:
        return "These are all tokens of the sequences. The step computes only those that are scheduled."
    rest = [t for tokens, (start, _) in zip(facts.tokens, facts.spans, strict=True) for t in tokens[start:]]
    parts = [t[slice(*span)] for t, span in zip(facts.tokens, facts.spans, strict=True)]
    if only := says_one_of_them("tokens", got, parts):
        return only
    if got == rest:
        return "A prompt that is cut is computed only in part: num_scheduled_tokens says how many of its tokens."
    if len(got) < len(facts.ids):
        return f"The step computes {len(facts.ids)} tokens, and only {len(got)} are here."
    if len(got) > len(facts.ids):
        return f"The step computes {len(facts.ids)} tokens, and {len(got)} are here."
    if sorted(got) == sorted(facts.ids):
        return (
            "The right tokens in another order: sequence after sequence as `seqs` has them, each from its first "
            "scheduled token on."
        )
    return "Some of these tokens are not scheduled in this step."


def says_positions(got, facts):
    if not isinstance(got, list):
        return ""
    if got == facts.ids:
        return "These are the token ids: input_ids come first, then positions."
    if got == list(range(len(facts.ids))) and len(facts.seqs) > 1:
        return "The positions run on from one sequence to the next. Each counts in its own text."
    if got == [p for start, end in facts.spans for p in range(end - start)] and got != facts.positions:
        return "The positions begin at 0, though tokens before these are cached: the text has begun earlier."
    if got == [p + 1 for p in facts.positions]:
        return "All positions are one too large: the first token of a text has position 0."
    if only := says_one_of_them("positions", got, [list(range(*span)) for span in facts.spans]):
        return only
    if got == [p for seq in facts.seqs for p in range(seq.num_cached_tokens, seq.num_scheduled_tokens)]:
        return (
            "These come if the positions end at num_scheduled_tokens. That is how many tokens are computed, and the "
            "cached ones come before them: the end is num_computed_after_step."
        )
    if len(got) != len(facts.positions):
        return f"There are {len(facts.positions)} tokens in the step and {len(got)} positions: one for each token."
    return "The position of a token says where it is in its own text, counted from 0."


def says_one_of_them(what, got, parts):
    """Whether only those of one sequence came, because each is put in the place of the one before, or a loop ends."""
    if len(parts) < 2 or got not in (parts[0], parts[-1]):
        return ""
    which = "one" if parts[0] == parts[-1] else "the first" if got == parts[0] else "the last"
    return f"Only the {what} of {which} sequence are here."


def says_slot_mapping(got, facts, size):
    tables = [list(seq.block_table) for seq in facts.seqs]
    if not isinstance(got, list) or got == facts.slots:
        return ""
    if len(got) != len(facts.slots):
        whole = [s for t, (_, end) in zip(tables, facts.spans, strict=True) for s in slots_of(t, size, 0, end)]
        if got == whole:
            return "The slots begin with those of the cached tokens, which are not computed, and must not be written."
        parts = [slots_of(table, size, *span) for table, span in zip(tables, facts.spans, strict=True)]
        if only := says_one_of_them("slots", got, parts):
            return only
        return f"The step computes {len(facts.ids)} tokens, and {len(got)} slots are here: one for each token."
    return "These are not the slots of the tokens that are computed: self.slots(seq, start, end) gives them."


def says_sums(letter, got, wanted, other, seqs):
    """What a wrong list of sums is, if it is something that can be named."""
    is_q = letter == "q"
    what = "the tokens that are computed now" if is_q else "all tokens that have keys now, cached ones too"
    right = f"cu_seqlens_{letter} sums up {what}: {sums(wanted)}."
    if not isinstance(got, list):
        return f"The context has no cu_seqlens_{letter}: set_prefill_context sets it."
    if got == sums(other) and wanted != other:
        swapped = "cu_seqlens_k" if is_q else "cu_seqlens_q"
        return f"{right} What is here would be {swapped}."
    if got == sums(wanted)[1:]:
        return f"{right} It begins with 0: one entry more than there are sequences."
    if got == sums(wanted)[:-1]:
        return f"{right} The last entry, where the last sequence ends, is missing."
    if got in ([0, *wanted], list(wanted)):
        return f"{right} Here are the lengths themselves; the sums say where each sequence begins."
    if not is_q and got == sums([seq.num_tokens for seq in seqs]):
        return f"{right} A prompt that is cut has no keys yet for the tokens that come in a later step."
    if len(got) != len(wanted) + 1:
        return f"{right} It has one entry more than there are sequences: {len(wanted) + 1}, not {len(got)}."
    return right


@case("ch08.prepare_prefill")
def one_prompt(engine, check):
    """One prompt of six tokens, nothing cached."""
    bench = Bench(engine, check)
    check_prefill(bench, [bench.seq(6, [3, 1])])
    check_prefill(bench, [bench.seq(1, [5])])


@case("ch08.prepare_prefill")
def three_prompts(engine, check):
    """Three prompts of different lengths, in blocks that lie anywhere."""
    bench = Bench(engine, check)
    seqs = [bench.seq(5, [3, 1]), bench.seq(2, [7], name="B"), bench.seq(9, [0, 8, 2], name="C")]
    check_prefill(bench, seqs)
    check_prefill(bench, seqs[::-1])


@case("ch08.prepare_prefill")
def a_prefix_from_the_cache(engine, check):
    """A has 40 tokens, of which the first 32 are cached."""
    bench = Bench(engine, check, 16)
    check_prefill(bench, [bench.seq(40, [4, 9, 6], cached=32)])


@case("ch08.prepare_prefill")
def a_prefix_for_one_of_them(engine, check):
    """A's first eight tokens are cached. B has none in the cache."""
    bench = Bench(engine, check)
    check_prefill(bench, [bench.seq(11, [4, 9, 6], cached=8), bench.seq(6, [2, 5], name="B")])
    check_prefill(bench, [bench.seq(6, [2, 5], name="B"), bench.seq(9, [4, 9, 6], cached=8)])


@case("ch08.prepare_prefill")
def a_prompt_that_is_cut(engine, check):
    """A prompt of eleven tokens, read in three steps of five, four and two; B comes before it in the first."""
    bench = Bench(engine, check)
    check_prefill(bench, [bench.seq(3, [8], name="B"), bench.seq(11, [6, 3, 9], 0, 5)])
    check_prefill(bench, [bench.seq(11, [6, 3, 9], 5, 4)])
    check_prefill(bench, [bench.seq(11, [6, 3, 9], 9, 2)])


@case("ch08.prepare_prefill")
def one_that_was_preempted(engine, check):
    """A had a prompt of four tokens and has written three when it lost its blocks. Now all seven are read again."""
    bench = Bench(engine, check)
    check_prefill(bench, [bench.seq(7, [2, 6], prompt=4)])
    check_prefill(bench, [bench.seq(7, [2, 6], prompt=4, cached=4), bench.seq(5, [1, 3], name="B")])


@case("ch08.prepare_prefill")
def the_warm_up(engine, check):
    """Before there is a pool: two sequences without blocks."""
    bench = Bench(engine, check)
    check_prefill(bench, [bench.seq(6, []), bench.seq(6, [], name="B")])


@case("ch08.prepare_prefill")
def a_prefill_in_a_worker(engine, check):
    """Of A only the last token is left to compute, so a worker's copy has no token_ids. B's copy has them."""
    bench = Bench(engine, check)
    seqs = [bench.seq(9, [4, 9, 6], cached=8), bench.seq(6, [2, 5], name="B")]
    copies = [in_worker(seq) for seq in seqs]
    check.equal("token_ids of A's copy", copies[0].token_ids, [])
    check_prefill(bench, copies, [list(seq.token_ids) for seq in seqs])


@case("ch08.prepare_prefill")
def any_prefill(engine, check):
    """Random steps: some prompts have a part in the cache, and the last one may be cut."""
    rng = random.Random(8)
    for _ in range(12):
        size, pool = rng.choice([1, 2, 4, 16]), iter(rng.sample(range(300), 300))
        bench, seqs = Bench(engine, check, size), []
        count = rng.randrange(1, 5)
        for i in range(count):
            length = rng.randrange(1, 20)
            cached = rng.randrange((length - 1) // size + 1) * size if rng.random() < 0.5 else 0
            left = length - cached
            scheduled = rng.randrange(1, left + 1) if i == count - 1 else left
            table = [next(pool) for _ in range(-(-length // size))]
            prompt = rng.randrange(1, length + 1)
            seqs.append(bench.seq(length, table, cached, scheduled, prompt, "ABCD"[i]))
        check_prefill(bench, seqs)


def check_decode(bench, seqs, all_ids=None):
    """A decode of these."""
    tokens = all_ids or [list(seq.token_ids) for seq in seqs]
    tables = [list(seq.block_table) for seq in seqs]
    lengths = [len(some) for some in tokens]
    check = bench.check
    lines = [
        f"{chr(65 + seq.seq_id)} has {n} tokens in {seq.block_table}" for seq, n in zip(seqs, lengths, strict=True)
    ]
    found = prepare(bench, "prepare_decode", seqs, f"a decode: {'; '.join(lines)}")
    if found is None:
        return
    (got_ids, got_positions), context = found
    ids, positions = [some[-1] for some in tokens], [n - 1 for n in lengths]
    slots = [slots_of(table, bench.size, n - 1, n)[0] for table, n in zip(tables, lengths, strict=True)]
    facts = SimpleNamespace(ids=ids, positions=positions, slots=slots, lengths=lengths, tables=tables, size=bench.size)
    check.equal("input_ids", got_ids, ids, lambda got: says_decode_ids(got, facts))
    check.equal("positions", got_positions, positions, lambda got: says_decode_positions(got, facts, seqs))
    wanted = {"is_prefill": False, "slot_mapping": slots, "context_lens": lengths, "block_tables": padded(tables)}
    says = {
        "is_prefill": "The context says that this is a prefill.",
        "slot_mapping": lambda got: says_decode_slots(got, facts),
        "context_lens": lambda got: says_lens(got, facts),
        "block_tables": lambda got: says_tables(got, facts),
    }
    check_context(bench, context, wanted, says)


SAYS_NO_ROW = "A tensor without a dimension came back, a single number. The shape is [num_seqs]: [1] for one sequence."


def says_decode_ids(got, facts):
    if isinstance(got, int):
        return SAYS_NO_ROW
    if got == facts.positions and got != facts.ids:
        return "These are the positions: input_ids come first, then positions."
    if isinstance(got, list) and got and isinstance(got[0], list):
        return "Each sequence has one token in a decode: the shape is [num_seqs], one number for each."
    if isinstance(got, list) and len(got) != len(facts.ids):
        return f"There are {len(facts.ids)} sequences, and each has one token to compute; {len(got)} are here."
    if isinstance(got, list) and sorted(got) == sorted(facts.ids):
        return "The right tokens in another order: a row for each sequence, in the order of `seqs`."
    return "The token to compute is the last one of each sequence, which has no keys and values yet."


def says_decode_positions(got, facts, seqs):
    if isinstance(got, int):
        return SAYS_NO_ROW
    if got == [len(seq.token_ids) - 1 for seq in seqs]:
        return "This is the length of token_ids less 1, and a worker's copy has no token_ids. It has num_tokens."
    if got == facts.ids:
        return "These are the token ids: input_ids come first, then positions."
    if got == facts.lengths:
        return "Positions count from 0: the last of n tokens has the position n - 1."
    if got == [0] * len(facts.ids):
        return "Every position is 0. The token is the last of its text, not the first."
    if got == list(range(len(facts.ids))):
        return "The positions run through the batch. Each is that of the token in its own text."
    if got in ([seq.num_completion_tokens for seq in seqs], [seq.num_completion_tokens - 1 for seq in seqs]):
        return "The positions count only what was generated; the prompt is part of the text."
    return "The position of the last token is the number of tokens before it."


def says_decode_slots(got, facts):
    if got is None:
        return "The context has no slot_mapping: nobody knows where the new keys and values go."
    pairs = list(zip(facts.tables, facts.lengths, strict=True))
    if not isinstance(got, list) or len(got) != len(pairs):
        return "A slot for each sequence: that of its last token."
    if got == facts.positions:
        return "These are the positions; the block table says where they lie."
    for word, slots in (
        ("These are slots one place further: the last of n tokens is at place (n - 1) % block_size of its block.",
         [table[-1] * facts.size + n % facts.size for table, n in pairs]),
        ("num_tokens % block_size - 1 is -1 where the last block is full, and that slot lies before the block.",
         [table[-1] * facts.size + n % facts.size - 1 for table, n in pairs]),
        ("A place behind the last token: the last of k tokens in a block has place k - 1.",
         [slot + 1 for slot in facts.slots]),
        ("These lie in the first block of each sequence; the last token is in the last one.",
         [table[0] * facts.size + (n - 1) % facts.size for table, n in pairs]),
        ("A block id has to be multiplied by the block size: block b begins with slot b * block_size.",
         [table[-1] + (n - 1) % facts.size for table, n in pairs]),
        ("The place in the block is missing: these are the first slots of the last blocks.",
         [table[-1] * facts.size for table, _ in pairs]),
        ("The whole position is added to the first slot of the last block. Of the position only the place in its "
         "block counts there: position % block_size.",
         [table[-1] * facts.size + n - 1 for table, n in pairs]),
        ("These are the places in the blocks; which block it is, is missing.",
         [(n - 1) % facts.size for _, n in pairs]),
    ):  # fmt: skip
        if got == slots:
            return word
    return "The last token lies in the last block of the table, at place (num_tokens - 1) % block_size."


def says_lens(got, facts):
    if got is None:
        return "The context has no context_lens: attention does not know how many keys belong to each sequence."
    if got == facts.positions:
        return "A token attends to itself, too: the new one is included."
    if got == [1] * len(facts.ids):
        return "That is how many tokens are computed. context_lens says how many each of them attends to."
    if got == [len(table) * facts.size for table in facts.tables]:
        return "These are the slots of whole blocks; behind the last token there is nothing to attend to."
    if got == [max(facts.lengths)] * len(facts.lengths):
        return "Every row has the length of the longest sequence. Each attends to the tokens of its own text."
    return "context_lens has the number of tokens of each sequence, the new one included."


def says_tables(got, facts):
    if got is None:
        return "The context has no block_tables: in a decode, all keys but the new one are in the pages."
    if got == [[table[-1]] for table in facts.tables]:
        return "Attention reads all blocks of a sequence, not only the last one."
    if got == [[max(block, 0) for block in row] for row in padded(facts.tables)]:
        return "Shorter tables are filled up with 0, which is a block like any other: -1 says that there is none."
    return (
        "block_tables has a row for each sequence: its table as it is in this step, padded with -1. "
        "prepare_block_tables(seqs) makes it."
    )


@case("ch08.prepare_prefill")
def on_another_device(engine, check):
    """The engine's device is not the CPU. (It is "meta" here, where tensors have no numbers.)"""
    ask_device(engine, check, "prepare_prefill")


@case("ch08.prepare_decode")
def on_a_device(engine, check):
    """The engine's device is not the CPU. (It is "meta" here, where tensors have no numbers.)"""
    ask_device(engine, check, "prepare_decode")


def ask_device(engine, check, method):
    bench = Bench(engine, check)
    seq = bench.seq(5, [3, 1], cached=4 if method == "prepare_decode" else 0)
    bench.runner.device = torch.device("meta")
    check.step("one sequence, the device is meta")
    try:
        result = getattr(bench.runner, method)([seq])
    except RuntimeError as error:
        if "meta" not in str(error):
            raise
        return  # it looks at a tensor's numbers, which is slow on a GPU, and not wrong
    finally:
        bench.reset_context()
    got = [str(getattr(value, "device", "none")) for value in result]
    check.equal("devices of input_ids and positions", got, ["meta", "meta"], SAYS_DEVICE)


SAYS_DEVICE = "A tensor is not on the engine's device: self.to_device(list, dtype) makes one there."


@case("ch08.prepare_decode")
def three_sequences(engine, check):
    """Three sequences of different lengths, in blocks of four."""
    bench = Bench(engine, check)
    seqs = [bench.seq(6, [3, 1], 5, prompt=4), bench.seq(3, [7], 2, prompt=2, name="B"),
            bench.seq(11, [0, 8, 2], 10, prompt=9, name="C")]  # fmt: skip
    check_decode(bench, seqs)
    check_decode(bench, seqs[::-1])


@case("ch08.prepare_decode")
def one_sequence(engine, check):
    """One alone, which has written its first token."""
    bench = Bench(engine, check)
    check_decode(bench, [bench.seq(2, [9], 1, prompt=1)])


@case("ch08.prepare_decode")
def at_a_border(engine, check):
    """A's token is the last one of its block, B's the first of a new one."""
    bench = Bench(engine, check)
    check_decode(bench, [bench.seq(8, [3, 1], 7, prompt=5), bench.seq(9, [7, 4, 6], 8, prompt=5, name="B")])
    check_decode(bench, [bench.seq(5, [7, 2], 4, prompt=4)])


@case("ch08.prepare_decode")
def block_by_block(engine, check):
    """One sequence writes, from five tokens to thirteen."""
    bench = Bench(engine, check)
    for num_tokens in range(5, 14):
        check_decode(bench, [bench.seq(num_tokens, [6, 2, 8, 4][: -(-num_tokens // 4)], num_tokens - 1, prompt=4)])


@case("ch08.prepare_decode")
def decode_with_other_block_sizes(engine, check):
    """Blocks of one token, of three, and of 256."""
    for size in (1, 3, 256):
        bench = Bench(engine, check, size)
        seqs = [bench.seq(n, list(range(9 + 20 * i, 9 + 20 * i - -(-n // size), -1)), n - 1, prompt=2, name="ABC"[i])
                for i, n in enumerate((4, 6, 3))]  # fmt: skip
        check_decode(bench, seqs)


@case("ch08.prepare_decode")
def a_decode_in_a_worker(engine, check):
    """Copies in a worker have no token_ids, only last_token and num_tokens."""
    bench = Bench(engine, check)
    seqs = [bench.seq(6, [3, 1], 5, prompt=4), bench.seq(9, [7, 4, 2], 8, prompt=5, name="B")]
    copies = [in_worker(seq) for seq in seqs]
    check.equal("token_ids of the copies", [seq.token_ids for seq in copies], [[], []])
    check_decode(bench, copies, [list(seq.token_ids) for seq in seqs])


@case("ch08.prepare_decode")
def with_other_blocks(engine, check):
    """Two decodes of one runner. Between them both sequences were preempted, and came back with other blocks."""
    bench = Bench(engine, check)
    seqs = [bench.seq(6, [3, 1], 5, prompt=4), bench.seq(9, [7, 4, 2], 8, prompt=5, name="B")]
    check_decode(bench, seqs)
    for seq, table in zip(seqs, ([8, 2], [1, 9, 5]), strict=True):
        seq.block_table = table
    check_decode(bench, seqs)


@case("ch08.prepare_decode")
def any_decode(engine, check):
    """Random decodes."""
    rng = random.Random(8)
    for _ in range(12):
        size, pool = rng.choice([1, 2, 4, 16]), iter(rng.sample(range(300), 300))
        bench, seqs = Bench(engine, check, size), []
        for name in "ABCDE"[: rng.randrange(1, 6)]:
            length = rng.randrange(2, 25)
            table = [next(pool) for _ in range(-(-length // size))]
            seqs.append(bench.seq(length, table, length - 1, prompt=rng.randrange(1, length), name=name))
        check_decode(bench, seqs)


# choose_graph_sizes


def ask_sizes(engine, check, counts, largest, most, text):
    """Choose, and see whether the promises are kept; returns the sizes, or None if they are not."""
    check.step(f"{text}: largest {largest}, at most {most}", SIZES_RAISED)
    given = dict(counts)
    sizes = engine.get("labs:choose_graph_sizes")(given, largest, most)
    check.true("counts is as it was", given == counts, "counts belongs to the caller, and has changed.")
    if not check.true("a list comes back", isinstance(sizes, list),
                      "Nothing came back: a return is missing." if sizes is None else
                      f"A {type(sizes).__name__} came back, and a list was promised."):  # fmt: skip
        return None
    are_ints = all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    ok = check.true("all sizes are ints", are_ints, "A batch size is a whole number, an int.")
    ok = ok and check.true("there is one", len(sizes) > 0, "No size at all: then no batch finds a graph.")
    ok = ok and check.equal("sizes below 1 or above the largest", [s for s in sizes if not 1 <= s <= largest], [],
                            f"No step has fewer than 1 or more than {largest} sequences.")  # fmt: skip
    ok = ok and check.true("no size is there twice", len(set(sizes)) == len(sizes), "A size is there twice.")
    ok = ok and check.true(f"at most {most}", len(sizes) <= most, f"{len(sizes)} sizes, and {most} are allowed.")
    ok = ok and check.true("every batch finds a graph", largest in sizes,
                           f"A batch of {largest} may come, and no graph is large enough for it.")  # fmt: skip
    return sizes if ok else None


SIZES_RAISED = {
    "ZeroDivisionError": "Something is divided by the number of steps or of sizes, and it can be 0 or 1: `counts` may "
    "be empty, and `most` may be 1.",
    "ValueError": "max or min of nothing: `counts` may be empty.",
    "IndexError": "An entry was asked for that a list does not have: `counts` may be empty or short.",
    "KeyError": "counts has only the numbers of sequences that have come; counts.get(n, 0) is 0 for others.",
}


@case("ch08.choose_graph_sizes")
def the_day(engine, check):
    """The day of exercises.kit.graph_work, with nine graphs."""
    counts = graph_work.batch_sizes()
    sizes = ask_sizes(engine, check, counts, graph_work.LARGEST, graph_work.MOST, "the day")
    if sizes is None:
        return
    rows = graph_work.padding(sizes, counts)
    check.measured(f"{rows:,} rows of padding with {sorted(sizes)}; powers of two have {graph_work.POWERS_PAD:,}")
    says = f"Padding is {rows:,} rows, and at most {graph_work.BAR:,} are asked for."
    check.true(f"at most {graph_work.BAR:,} rows of padding", rows <= graph_work.BAR, says)


@case("ch08.choose_graph_sizes")
def other_days(engine, check):
    """Two other days, and fewer or more graphs: whatever is chosen, every batch has to find one."""
    for day in (1, 2):
        for most in (4, 16):
            ask_sizes(engine, check, graph_work.batch_sizes(day), graph_work.LARGEST, most, f"day {day}")


@case("ch08.choose_graph_sizes")
def small_numbers(engine, check):
    """One graph; one sequence; nothing known; only one size known."""
    for counts, largest, most in (
        ({}, 1, 1), ({}, 16, 1), ({}, 16, 4), ({1: 9}, 1, 3), ({3: 5}, 8, 1), ({3: 5}, 8, 2), ({8: 5}, 8, 3),
        ({1: 1, 2: 1, 3: 1}, 3, 9), ({5: 2}, 300, 2), ({1: 7, 64: 1}, 64, 9),
    ):  # fmt: skip
        ask_sizes(engine, check, counts, largest, most, f"counts {counts}")


@case("ch08.choose_graph_sizes")
def any_counts(engine, check):
    """Random counts, limits and numbers of graphs."""
    rng = random.Random(8)
    for i in range(12):
        largest, most = rng.randrange(1, 100), rng.randrange(1, 12)
        counts = {rng.randrange(1, largest + 1): rng.randrange(1, 50) for _ in range(rng.randrange(0, 30))}
        ask_sizes(engine, check, counts, largest, most, f"random counts {i}")
