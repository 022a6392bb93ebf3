"""Grader of chapter 13. Ranks are simulated one after the other; rows are taken and products summed up by hand."""

import random
from itertools import pairwise

import torch
from torch import Tensor, nn

from exercises.kit import head_work
from exercises.kit.grading import case
from exercises.kit.parallel_work import SimulatedGroup, together
from exercises.kit.probes import check_tensor


def marked(rows, columns):
    """A table whose numbers say where they stand: token 12, column 3 is 123.5."""
    return torch.tensor([[10 * row + column + 0.5 for column in range(columns)] for row in range(rows)])


def fits(got, wrong, tolerance=1e-4):
    """Whether a tensor is that wrong one, shape and all."""
    if not isinstance(got, Tensor) or got.shape != wrong.shape:
        return False
    near = tolerance * max(1e-6, float(wrong.double().abs().max()) if wrong.numel() else 1.0)
    return bool(((got.double() - wrong.double()).abs() <= near).all())


def known(got, right, mistakes, tolerance=1e-4):
    """The mistakes that can be told from what is right and from each other; those of another shape only if they fit."""
    found = {}
    for text, wrong in mistakes.items():
        alike = any(fits(wrong, other, tolerance) for other in (right, *found.values()))
        if not alike and (wrong.shape == right.shape or fits(got, wrong, tolerance)):
            found[text] = wrong
    return found


def build(engine, name, vocab_size, width, size, table, dtype=torch.float32):
    """The layer of each rank, with its part of the table; rows beyond the vocabulary are zero."""
    group_of, layers = engine.package.module("utils.parallel_state").tensor_parallel_group, []
    for rank in range(size):
        with group_of(SimulatedGroup(rank, size)):
            layer = engine.get(f"layers.embed_head:{name}")(vocab_size, width).to(dtype)
        layer.weight.data.copy_(part_of(table, rank, size))
        layers.append(layer)
    return layers


def part_of(table, rank, size, rest=0.0):
    """What a rank holds, taken row by row."""
    per_rank = -(-len(table) // size)
    result = torch.full((per_rank, table.shape[1]), rest, dtype=table.dtype)
    for i in range(per_rank):
        if rank * per_rank + i < len(table):
            result[i] = table[rank * per_rank + i]
    return result


# embed

NO_ROW = (
    "A row was looked up that this rank does not have: its rows have the numbers 0 to num_embeddings_per_rank - 1. Row "
    "i is that of token vocab_start + i, and tokens of other ranks have no row here."
)
ERRORS_OF_EMBED = {
    "IndexError": NO_ROW,
    "NobodyThere": "The ranks do not meet: one stays away, is in another collective, or brings a part of another "
    "shape. Each calls all_reduce once, with a row for every token: zeros, if it does not hold it.",
    "RuntimeError": "Refused by torch: shapes or dtypes do not fit, or a tensor was asked whether it is true. A mask "
    "of [num_tokens] multiplies rows after unsqueeze(-1); masks are joined with & and brackets, not with `and`.",
    "AttributeError": "An attribute was asked for that is not there: the layer has weight, vocab_start, vocab_end, "
    "num_embeddings, num_embeddings_per_rank and group.",
    "TypeError": "Something was given another kind of value than it takes.",
    "ValueError": "Either torch's own collectives were called, where there is no process group (self.group knows what "
    "to do), or a tensor was given a shape that it cannot have.",
}


def summed(table, token_ids, size, row_of):
    """What all ranks have, added up. `row_of(rank, token)` is a row of a rank's part, or None for zeros."""
    parts = [part_of(table, rank, size) for rank in range(size)]
    result = torch.zeros(len(token_ids), table.shape[1], dtype=torch.float64)
    for i, token in enumerate(token_ids):
        for rank, part in enumerate(parts):
            row = row_of(rank, token)
            if row is not None and -len(part) <= row < len(part):
                result[i] += part[row].double()
    return result


def mistakes_of_embed(table, token_ids, size, rank):
    """What classic mistakes give on a rank."""
    per_rank, last = -(-len(table) // size), len(table) - 1
    rows = torch.stack([table[token] for token in token_ids]).double()

    def own(rank, token):
        return token - rank * per_rank if token // per_rank == rank else None

    def filled(instead):
        return lambda rank, token: own(rank, token) if token // per_rank == rank else instead(rank, token)

    def without(dropped):
        return lambda rank, token: None if dropped(rank, token) else own(rank, token)

    def upper(rank, token):
        return per_rank - 1 if token == (rank + 1) * per_rank else None

    floor, front = len(table) // size, torch.zeros_like(rows)
    for other in range(size):
        found_rows = [row for token, row in zip(token_ids, rows, strict=True) if token // per_rank == other]
        for i, row in enumerate(found_rows):
            front[i] += row
    alone = summed(table, token_ids, size, lambda other, token: own(other, token) if other == rank else None)
    rank_0 = summed(table, token_ids, size, lambda other, token: own(other, token) if other == 0 else None)
    found = {}
    if size > 1:
        found |= {
            "Each rank returns its own part alone: the parts were not added up.": alone,
            "This is rank 0's part alone; the parts of all ranks have to be added up.": rank_0,
            "The first row of another rank's part has come with it: a foreign token looks up row 0, and that row was "
            "not made zero before the sum.": summed(table, token_ids, size, filled(lambda r, t: 0)),
            "The last row of another rank's part has come with it: a foreign token looks up the last row, and that row "
            "was not made zero before the sum.": summed(table, token_ids, size, filled(lambda r, t: per_rank - 1)),
            "Rows of other ranks' parts have come with it: foreign ids were pressed into the range of rows, and the "
            "rows found there were not made zero.": summed(
                table, token_ids, size, lambda r, t: min(max(t - r * per_rank, 0), per_rank - 1)
            ),
            "Every rank gives a row for every token, also for those of other ranks, and all are added up.": summed(
                table, token_ids, size, lambda r, t: t % per_rank
            ),
            "Each rank returns a row of its own part alone, and the ids were not shifted.": torch.stack(
                [part_of(table, rank, size)[t % per_rank] for t in token_ids]
            ).double(),
            "The table was taken as dealt out like cards; a rank has a range of it, from vocab_start on.": summed(
                table, token_ids, size, lambda r, t: t // size if t % size == r else None
            ),
            "A negative row number counts from the end: foreign tokens with smaller ids have got rows, too.": summed(
                table, token_ids, size, lambda r, t: t - r * per_rank if t - r * per_rank < per_rank else None
            ),
            "The first token of each rank but rank 0 is missing: vocab_start itself is the rank's own.": summed(
                table, token_ids, size, without(lambda r, t: r and t == r * per_rank)
            ),
            "The last token of each rank is missing: only vocab_end itself is the next rank's.": summed(
                table, token_ids, size, without(lambda r, t: t == (r + 1) * per_rank - 1)
            ),
            "The token at vocab_end was taken for this rank's own, too: it is the next one's, and the last row of this "
            "one has come with it.": summed(table, token_ids, size, filled(upper)),
            "The ranges were made as if the vocabulary could be divided without a rest: they are vocab_start and "
            "vocab_end, and the tokens beyond such ranges have got no row.": summed(
                table, token_ids, size, lambda r, t: t - r * floor if r * floor <= t < (r + 1) * floor else None
            ),
            "The rows that a rank has found stand at the beginning of its part, and not where their tokens are.": front,
            "The sum was divided by the number of ranks: a token has one owner, the others give zeros.": rows / size,
            "The sum was counted once for each rank.": rows * size,
            "The parts came side by side; they have to be added up.": torch.cat(
                [summed(table, token_ids, size, lambda r, t, o=o: own(r, t) if r == o else None) for o in range(size)],
                -1,
            ),
            "It is zero wherever it should not be: the mask is the wrong way round, or each rank gives its rows to "
            "foreign tokens.": torch.zeros_like(rows),
            "Foreign tokens got row 0, and the rank's own tokens zeros: the mask is the wrong way round.": summed(
                table, token_ids, size, lambda r, t: None if t // per_rank == r else 0
            ),
            "The ids were not shifted: a token of another rank than rank 0 has got no row, or a wrong one.": summed(
                table, token_ids, size, lambda r, t: t if t // per_rank == r and t < per_rank else None
            ),
            "All tokens of a rank have got its first row.": summed(
                table, token_ids, size, lambda r, t: 0 if t // per_rank == r else None
            ),
        }
    found |= {
        "The first token of each rank is missing: vocab_start itself is the rank's own.": summed(
            table, token_ids, size, without(lambda r, t: t == r * per_rank)
        ),
        "Each token has got the row after its own.": torch.stack([table[min(t + 1, last)] for t in token_ids]).double(),
        "Each token has got the row before its own.": torch.stack([table[max(t - 1, 0)] for t in token_ids]).double(),
        "Each token has got the row before its own, and the first one the last.": torch.stack(
            [table[t - 1] for t in token_ids]
        ).double(),
        "The rows were multiplied by the square root of their length. Some families do that, Qwen3 does not.": rows
        * table.shape[1] ** 0.5,
        "The rows were made as long as 1; they are taken as they are.": nn.functional.normalize(rows, dim=-1),
        "These are the first rows of the table, one for each token: the ids were not used.": table.double()[
            [min(i, last) for i in range(len(token_ids))]
        ],
        "The rows of all tokens were added up; each token has its own.": rows.sum(0, keepdim=True),
        "All is zero: the rank's own rows were made zero, as by a mask the wrong way round, or never looked up.": (
            torch.zeros_like(rows)
        ),
    }
    return found


def embed(engine, check, table, token_ids, size, dtype=torch.float32, strided=False, index_errors=(NO_ROW,)):
    """All ranks look up, and each result is compared with the rows of the full table."""
    table = table.to(dtype)
    layers = build(engine, "VocabParallelEmbedding", *table.shape, size, table, dtype)
    tokens = torch.tensor(token_ids, dtype=torch.int64)
    if strided:  # every other number of a longer tensor
        tokens = torch.stack((tokens, tokens * 0), -1)[:, 0]
    given = [tokens if strided else tokens.clone() for _ in range(size)]
    per_rank = -(-len(table) // size)
    story = f"{size} rank{'s' * (size > 1)}, {len(table)} tokens in the vocabulary, {per_rank} rows a rank"
    check.step(f"{story}: look up {token_ids}")
    asked = set()

    def run(group):
        if group.rank not in asked:
            asked.add(group.rank)
            says = {"IndexError": index_errors[min(group.rank, len(index_errors) - 1)]}
            check.step(f"rank {group.rank} looks up", ERRORS_OF_EMBED | says)
            check.true(f"rank {group.rank} is asked", True)  # so that it can be seen later which rank raised an error
        layers[group.rank].group = group
        return layers[group.rank](given[group.rank])

    with torch.no_grad():
        done = together(size, run, most=6)
    expected = torch.stack([table[token] for token in token_ids])
    for rank in range(size):
        got = done.results[rank]
        mistakes = known(got, expected, mistakes_of_embed(table, token_ids, size, rank))
        check_tensor(check, f"what rank {rank} returns", got, expected, ("token", "column"), mistakes, dtype=dtype)
    kinds = [kind for kind, _ in done.calls[0]]
    if size > 1 or kinds:
        check.equal("collectives of a rank", kinds, ["all_reduce"], says_all_reduce)
    stay = all(torch.equal(one, torch.tensor(token_ids)) for one in given)
    check.true("token_ids stay as they are", stay, "token_ids were changed; somebody else may still need them.")
    held = all(torch.equal(layers[r].weight.data, part_of(table, r, size)) for r in range(size))
    check.true("the weight stays as it is", held, "The weight was changed by looking something up.")
    own = all(memory(done.results[r]) != memory(layers[r].weight) for r in range(size))
    says = "The result lies in the weight's own memory: whoever writes into it would change the table."
    check.true("the result is a tensor of its own", own, says)


def memory(x):
    return x.untyped_storage().data_ptr() if isinstance(x, Tensor) else None


def says_all_reduce(kinds):
    if not kinds:
        return "Nothing was added up: there was no all-reduce."
    if len(kinds) > 1:
        return "There is more than one collective. One all-reduce is enough, and each costs time."
    return "The ranks meet in another collective than an all-reduce."


@case("ch13.embed")
def a_single_rank(engine, check):
    """One rank has all rows. Token 4 has the row 40.5, 41.5, 42.5."""
    embed(engine, check, marked(6, 3), [4, 0, 5, 4, 2], 1)


@case("ch13.embed")
def tokens_of_rank_0(engine, check):
    """Two ranks with four rows each. Both get the same tokens, and this time all of these are rank 0's."""
    says = (
        "On rank 1 a row was looked up for a token that rank 0 holds. It has none: something that exists has to be "
        "looked up in its place, and zeros have to come of it."
    )
    embed(engine, check, marked(8, 3), [1, 3, 1, 2], 2, index_errors=(NO_ROW, says))


@case("ch13.embed")
def tokens_of_rank_1(engine, check):
    """The same two ranks; now all tokens are rank 1's. Its first row is that of token 4."""
    says = (
        "On rank 0 a row was looked up for a token that rank 1 holds. It has none: something that exists has to be "
        "looked up in its place, and zeros have to come of it.",
        "On rank 1 a row was looked up that is not there. The row of token 5 is row 1: its id minus vocab_start.",
    )
    embed(engine, check, marked(8, 3), [5, 6, 5, 6], 2, index_errors=says)


@case("ch13.embed")
def the_borders(engine, check):
    """Four ranks with two rows each, and every token once: the first and the last of each rank."""
    says = (
        "A row was looked up that is not there. Here every token comes, also the first and the last of each of four "
        "ranks: a rank's tokens end before vocab_end."
    )
    embed(engine, check, marked(8, 3), list(range(8)), 4, index_errors=(says,))


@case("ch13.embed")
def not_divisible(engine, check):
    """7 tokens over 3 ranks: three rows each, and the last rank has only token 6. Then 5 over 4: rank 3 has none."""
    embed(engine, check, marked(7, 2), [6, 2, 3, 0, 5], 3)
    embed(engine, check, marked(5, 4), [4, 1, 0, 2, 3, 4], 4)


@case("ch13.embed")
def one_token(engine, check):
    """A single token, on each of three ranks; and as many tokens as columns and rows."""
    for token in (0, 3, 8):
        embed(engine, check, marked(9, 2), [token], 3)
    embed(engine, check, marked(6, 3), [5, 1, 3], 2)


@case("ch13.embed")
def half_precision(engine, check):
    """The table is bfloat16, and so is the result."""
    embed(engine, check, marked(6, 4), [5, 0, 3], 2, torch.bfloat16)
    embed(engine, check, marked(6, 4), [5, 0, 3], 1, torch.float16)


@case("ch13.embed")
def a_tensor_of_its_own(engine, check):
    """One rank, and tokens whose rows stand behind one another: a single one, three, and all of them."""
    for token_ids in ([4], [2, 3, 4], list(range(6))):
        embed(engine, check, marked(6, 3), token_ids, 1)


@case("ch13.embed")
def asked_again(engine, check):
    """The same two layers are asked twice, for as many tokens, but for others."""
    table, was_right = marked(6, 3), False
    layers = build(engine, "VocabParallelEmbedding", 6, 3, 2, table)
    for token_ids in ([1, 4, 0], [5, 2, 3]):
        check.step(f"2 ranks with three rows each: look up {token_ids}", ERRORS_OF_EMBED)

        def run(group, tokens=tuple(token_ids)):
            layers[group.rank].group = group
            return layers[group.rank](torch.tensor(tokens))

        with torch.no_grad():
            got = together(2, run, most=6).results[0]
        expected = torch.stack([table[token] for token in token_ids])
        text = "The first call was right and the second is not: something of the first was kept in the layer."
        mistakes = {text: got.clone()} if was_right and isinstance(got, Tensor) else {}
        was_right = isinstance(got, Tensor) and torch.equal(got, expected)
        check_tensor(check, "what rank 0 returns", got, expected, ("token", "column"), mistakes)


@case("ch13.embed")
def ids_apart_in_memory(engine, check):
    """The ids are every other number of a longer tensor, which all ranks read."""
    embed(engine, check, marked(6, 3), [1, 5, 2, 3], 2, strided=True)


@case("ch13.embed")
def random_tables(engine, check):
    """Random numbers, positive and negative; random sizes, and up to five ranks."""
    for seed in range(8):
        rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        vocab_size, size = rng.randrange(5, 20), rng.randrange(1, 6)
        table = torch.randn(vocab_size, rng.randrange(1, 6), generator=generator)
        embed(engine, check, table, [rng.randrange(vocab_size) for _ in range(rng.randrange(1, 9))], size)


# weight_loader

JUNK = 77.0
ERRORS_OF_LOADER = {
    "ValueError": "A ValueError, though the table has the right shape: [num_embeddings, the width of param].",
    "RuntimeError": "What is copied has not the shape of its place, or the tensor was viewed though it is not "
    "contiguous. The last ranks have fewer rows to copy than param has, perhaps none.",
    "IndexError": "Something was asked for that is not there. The rows of param begin at 0 on every rank: row i is "
    "that of token vocab_start + i. In the table the last ranks have fewer rows than the others, perhaps none, and "
    "torch.chunk may make fewer parts than there are ranks.",
    "AttributeError": "An attribute was asked for that is not there: the layer has vocab_start, vocab_end, "
    "num_embeddings, num_embeddings_per_rank, weight and group.",
    "TypeError": "Something was given another kind of value than it takes.",
    "AssertionError": "An assert failed, though the table has the right shape.",
}


def mistakes_of_loader(got, table, rank, size, junk):
    """What a rank's parameter holds after classic mistakes."""
    per_rank, total = -(-len(table) // size), len(table)
    start, right = rank * per_rank, part_of(table, rank, size)

    def rows(numbers, rest=0.0):
        result = torch.full((per_rank, table.shape[1]), rest, dtype=table.dtype)
        for i, number in enumerate(list(numbers)[:per_rank]):
            if 0 <= number < total:
                result[i] = table[number]
        return result

    real = min(max(total - start, 0), per_rank)
    found = {
        "This rank has no rows to copy, but its rows have to be made zero; they are as they were."
        if real == 0
        else "Nothing has arrived in param: every rank copies its own rows, into the memory of param.data.": rows(
            [], junk
        ),
        "The rows beyond the vocabulary are as they were; they have to be zero.": rows(range(start, total), junk),
        "All is zero: the rows were not copied, or made zero afterwards.": rows([]),
    }
    if rank:
        found |= {
            f"Rank {rank} has got the rows of rank 0; its own begin at vocab_start.": rows(range(per_rank)),
            "The rows begin at number `rank`; they begin at vocab_start.": rows(range(rank, rank + per_rank)),
        }
    if size > 1:
        found |= {
            "The rows were dealt out like cards; a rank has a range of them, from vocab_start on.": rows(
                range(rank, total, size)
            ),
            "The parts are counted from the end: rank 0 has the first rows.": rows(
                range((size - 1 - rank) * per_rank, (size - rank) * per_rank)
            ),
            "This is the next rank's part.": rows(range(start + per_rank, start + 2 * per_rank)),
            "The parts were made as if the vocabulary could be divided without a rest: each has "
            "num_embeddings_per_rank rows, and only the last ranks have fewer.": rows(
                range(rank * (total // size), rank * (total // size) + per_rank)
            ),
            "The ranks got as many rows as go in without a rest; num_embeddings_per_rank is rounded up.": rows(
                range(rank * (total // size), (rank + 1) * (total // size))
            ),
            "The rows were shared out as evenly as possible; all ranks but the last ones have "
            "num_embeddings_per_rank.": rows(
                list(range(total))[
                    rank * (total // size) + min(rank, total % size) : (rank + 1) * (total // size)
                    + min(rank + 1, total % size)
                ]
            ),
            "The last rows of the table fill this rank: where it ends, the rest is zero.": rows(
                range(total - per_rank, total)
            ),
        }
    short = "The last row that this rank has is missing."
    found |= {
        short: rows(range(start, start + real - 1)),
        "The last row that this rank has is missing, and rows are as they were.": rows(
            range(start, start + real - 1), junk
        ),
        "Every row is one too late: the first is that of vocab_start.": rows(range(start + 1, start + 1 + per_rank)),
        "Every row is one too early: the first is that of vocab_start.": rows(range(start - 1, start - 1 + per_rank)),
        "The rows beyond the vocabulary are filled from its beginning; they have to be zero.": rows(
            (start + i) % total for i in range(per_rank)
        ),
        "The rows beyond the vocabulary repeat the last one; they have to be zero.": rows(
            min(start + i, total - 1) for i in range(per_rank)
        ),
        "The rows stand at the end of the parameter, and the zeros before them.": torch.cat(
            (right[real:], right[:real])
        ),
        "The rows were added to what was there; they replace it.": right + junk,
    }
    ones = right.clone()
    ones[real:] = 1.0
    found["The rows beyond the vocabulary are ones; they have to be zero."] = ones
    found["The table was turned upside down."] = part_of(table.flip(0), rank, size)
    headless = right.clone()
    headless[0] = 0
    found["The first row that this rank has is missing."] = headless
    if got.shape == right.shape and torch.equal(got[:real], right[:real]):
        found["This rank's rows are right; those beyond the vocabulary have to be zero."] = got.clone()
    return found


def load(engine, check, vocab_size, width, size, ranks=None, dtype=torch.float32, loaded=torch.float32, turned=False,
         junk=JUNK):  # fmt: skip
    """Each rank loads the table into a parameter with something in it."""
    full = marked(vocab_size, width).to(loaded)
    full = full.T.contiguous().T if turned else full
    before = full.clone()
    layers = build(engine, "VocabParallelEmbedding", vocab_size, width, size, torch.full((vocab_size, width), junk))
    for rank in range(size) if ranks is None else ranks:
        layer = layers[rank].to(dtype)
        layer.weight.data.fill_(junk)
        param, memory = layer.weight, layer.weight.data_ptr()
        story = f"rank {rank} of {size} loads a table of {vocab_size} rows; {len(param)} rows fit, each {junk:g} before"
        check.step(story, ERRORS_OF_LOADER)
        layer.weight_loader(param, full)
        expected = part_of(before.to(dtype), rank, size)
        if junk != junk:
            says = (
                "Something of what lay in the memory is still there: all rows are written, and those beyond the "
                "vocabulary set to zero (0 times nan is nan)."
            )
            check.equal("numbers in the parameter that are nan", int(param.data.isnan().sum()), 0, says)
        mistakes = known(param.data, expected, mistakes_of_loader(param.data, before.to(dtype), rank, size, junk))
        check_tensor(check, f"parameter of rank {rank}", param.data, expected, ("row", "column"), mistakes)
        says = "The numbers are right, but in another memory: whoever shares the parameter does not see them."
        check.true("the parameter's memory is the same", param.data_ptr() == memory, says)
        check.true("the table stays as it is", torch.equal(full, before), "The checkpoint's tensor was changed.")


@case("ch13.weight_loader")
def two_ranks(engine, check):
    """6 rows over two ranks, three each. Token 4 has the row 40.5, 41.5."""
    load(engine, check, 6, 2, 2, [1, 0])


@case("ch13.weight_loader")
def one_rank(engine, check):
    """A single rank has all 5 rows."""
    load(engine, check, 5, 3, 1)


@case("ch13.weight_loader")
def rows_beyond_the_vocabulary(engine, check):
    """7 rows over three ranks: three each, so the last has one, and two rows of zeros."""
    load(engine, check, 7, 2, 3, [2, 1, 0])


@case("ch13.weight_loader")
def nothing_left(engine, check):
    """5 rows over four ranks: two each, so rank 2 has one, and rank 3 none. Then 9 over 8."""
    load(engine, check, 5, 3, 4, [3, 2, 1, 0])
    load(engine, check, 9, 2, 8, [7, 5, 4])


WRONG_SHAPES = (
    ((6, 3), "one row too few"),
    ((8, 3), "one row too many"),
    ((7, 2), "one column too few"),
    ((7, 4), "one column too many"),
    ((7, 1), "a single column, which torch would repeat"),
    ((1, 3), "a single row, which torch would repeat"),
    ((4, 3), "as many rows as one rank holds"),
    ((3, 7), "transposed"),
)


@case("ch13.weight_loader")
def another_shape(engine, check):
    """Two ranks, a vocabulary of 7, rows of 3 numbers. A table of any other shape is a ValueError on either rank."""
    for rank in (0, 1):
        for shape, name in WRONG_SHAPES:
            layer = build(engine, "VocabParallelEmbedding", 7, 3, 2, marked(7, 3))[rank]
            check.step(f"rank {rank} of 2: load a table of {list(shape)}: {name}")
            try:
                layer.weight_loader(layer.weight, marked(*shape))
                raised = "nothing"
            except Exception as error:
                raised = type(error).__name__
            says = f"A table of another shape ({name}) was taken as if nothing were wrong; it has to be a ValueError."
            if raised != "nothing":
                says = f"A table of another shape has to be a ValueError, and {raised} was raised."
            check.equal("what is raised", raised, "ValueError", says)


@case("ch13.weight_loader")
def tied(engine, check):
    """A head shares the embedding's parameter, as in most small models. What is loaded has to be there, too."""
    for size, rank in ((1, 0), (2, 1)):
        embedding = build(engine, "VocabParallelEmbedding", 6, 2, size, torch.full((6, 2), JUNK))[rank]
        head = build(engine, "ParallelLMHead", 6, 2, size, torch.full((6, 2), JUNK))[rank]
        head.weight = embedding.weight
        view = embedding.weight.data[:]
        check.step(f"rank {rank} of {size}: load into the embedding, and look at the head", ERRORS_OF_LOADER)
        embedding.weight_loader(embedding.weight, marked(6, 2))
        says = "The embedding has another parameter now, and the head the old one: they are not tied any more."
        check.true("they still share a parameter", head.weight is embedding.weight, says)
        check.equal("the first row, as the head has it", head.weight.data[0].tolist(), marked(6, 2)[rank * 3].tolist())
        says = "The parameter has got another memory; whoever has looked at the old one does not see the rows."
        check.equal("the first row, in the old memory", view[0].tolist(), marked(6, 2)[rank * 3].tolist(), says)


@case("ch13.weight_loader")
def another_parameter(engine, check):
    """`param` need not be self.weight: here it is another one, and self.weight stays."""
    layer = build(engine, "VocabParallelEmbedding", 7, 2, 2, torch.full((7, 2), JUNK))[1]
    layer.weight.data.fill_(JUNK)
    param = nn.Parameter(torch.full((4, 2), JUNK), requires_grad=False)
    check.step("rank 1 of 2 loads a table of 7 rows into another parameter than its own", ERRORS_OF_LOADER)
    layer.weight_loader(param, marked(7, 2))
    mistakes = {"It went into self.weight; it has to go into param.": torch.full((4, 2), JUNK)}
    check_tensor(check, "param", param.data, part_of(marked(7, 2), 1, 2), ("row", "column"), mistakes)
    stays = bool((layer.weight.data == JUNK).all())
    check.true("self.weight stays as it is", stays, "self.weight was changed, and only param should be.")


@case("ch13.weight_loader")
def other_dtypes(engine, check):
    """The parameter is bfloat16 and the checkpoint float32; then the other way round. The parameter's dtype stays."""
    load(engine, check, 5, 2, 2, dtype=torch.bfloat16)
    load(engine, check, 5, 2, 2, loaded=torch.float16)


@case("ch13.weight_loader")
def whatever_lay_there(engine, check):
    """Memory that nobody has filled may hold anything, such as nan."""
    load(engine, check, 7, 2, 3, [2, 0], junk=float("nan"))


@case("ch13.weight_loader")
def other_tables(engine, check):
    """Random sizes and numbers of ranks; some tables lie transposed in memory."""
    for seed in range(8):
        rng = random.Random(seed)
        load(engine, check, rng.randrange(4, 16), rng.randrange(1, 5), rng.randrange(1, 6), turned=rng.random() < 0.4)


# ParallelLMHead.forward

ERRORS_OF_FORWARD = {
    "IndexError": "A row or a dimension was asked for that is not there. Sequence i ends before cu_seqlens_q[i + 1], "
    "so that number is one row too far.",
    "TypeError": "None was used as if it were a tensor, or something got another kind of value than it takes. "
    "cu_seqlens_q is None in a decode step, and gather returns None on all ranks but rank 0.",
    "NobodyThere": "A rank waits in a collective for others that never come, or the parts are not equally wide. All "
    "ranks call gather, once, and each part has num_embeddings_per_rank columns.",
    "RuntimeError": "Refused by torch. Either a tensor was asked whether it is true, as in `if x:`; `is not None` asks "
    "whether there is one. Or shapes or dtypes do not fit: a hidden state and a row of self.weight are equally long, "
    "so F.linear(x, self.weight) or x @ self.weight.T.",
    "AttributeError": "An attribute was asked for that is not there, or None was used as if it were a tensor: "
    "cu_seqlens_q is None in a decode step, and gather returns None on all ranks but rank 0.",
    "ValueError": "Either torch's own collectives were called, where there is no process group (self.group knows what "
    "to do), or a tensor was given a shape that it cannot have.",
}


def products(rows, table):
    """Every dot product of two rows, one after the other, in Python's floats."""
    lists = table.double().tolist()
    numbers = [[sum(a * b for a, b in zip(row, other, strict=True)) for other in lists] for row in rows]
    return torch.tensor(numbers, dtype=torch.float64).reshape(len(rows), len(table))


def mistakes_of_forward(hidden, table, ends, ends_k, size, rank):
    """What classic mistakes give on rank 0 (or on another one, which should return None)."""
    rows, total, width = hidden.double().tolist(), len(table), -(-len(table) // size)
    padded = torch.cat([part_of(table, other, size) for other in range(size)])
    last = [end - 1 for end in ends[1:]] if ends else list(range(len(rows)))

    def taken(numbers, other=padded):
        return products([rows[n % len(rows)] for n in numbers], other)

    right = taken(last, table)
    found = {
        "These are the logits of all tokens of the step; only the last one of each sequence is asked for.": taken(
            range(len(rows)), table
        ),
        "These are the logits of all tokens, and of the padding, too.": taken(range(len(rows))),
        "Only the last token of the whole step was taken; each sequence has one.": taken([len(rows) - 1], table),
    }
    if ends:
        means = [torch.tensor(rows[a:b], dtype=torch.float64).mean(0).tolist() for a, b in pairwise(ends)]
        one_more = [min(end, len(rows) - 1) for end in ends[1:]]
        found |= {
            "This is the first token of each sequence: cu_seqlens_q[:-1] is where they begin.": taken(ends[:-1], table),
            "This is the token after the last one of each sequence, which is the next one's first.": taken(
                one_more, table
            ),
            "This is the token before the first of each sequence.": taken([n - 1 for n in ends[:-1]], table),
            "This is the last token but one of each sequence.": taken([n - 2 for n in ends[1:]], table),
            "The mean of a sequence's tokens was taken; only its last one counts.": products(means, table),
            "The first tokens of the step were taken, as many as there are sequences.": taken(
                range(len(ends) - 1), table
            ),
            "The last tokens of the step were taken, as many as there are sequences.": taken(
                range(len(rows) - len(ends) + 1, len(rows)), table
            ),
            "There is a row for the end of the step, too: one more than there are sequences.": taken(
                [n - 1 for n in ends], table
            ),
            "The length of a sequence says where its last token stands in the sequence, not in the step.": taken(
                [b - a - 1 for a, b in pairwise(ends)], table
            ),
            "All sequences were taken to be equally long; cu_seqlens_q says where each ends.": taken(
                [(i + 1) * (len(rows) // (len(ends) - 1)) - 1 for i in range(len(ends) - 1)], table
            ),
            "cu_seqlens_k was taken: it counts cached tokens, too, and those are not in this step.": taken(
                [min(n, len(rows)) - 1 for n in ends_k[1:]], table
            ),
        }
    parts = [right[:, r * width : (r + 1) * width] for r in range(size)]
    whole = taken(last)
    unit = nn.functional.normalize(table.double(), dim=-1)
    found |= {
        "The padding was not cut: there are logits of tokens that do not exist.": whole,
        "The padding was cut at the wrong end: the first num_embeddings logits are real.": whole[:, -total:],
        "The parts were added up; they belong side by side.": sum(
            taken(last, part_of(table, r, size)) for r in range(size)
        ),
        "There are only as many logits as one rank has; those of all parts are needed.": whole[:, :width],
        "These are ids of tokens, where the largest logits are; the sampler chooses.": right.argmax(-1),
        "These are probabilities; logits are asked for, and the sampler does the rest.": right.softmax(-1),
        "These are logarithms of probabilities; logits are asked for.": right.log_softmax(-1),
        "The rows of the table were made as long as 1; a logit is the plain dot product.": taken(last, unit),
        "The hidden states were made as long as 1; a logit is the plain dot product.": products(
            nn.functional.normalize(hidden.double(), dim=-1)[[n % len(rows) for n in last]].tolist(), table
        ),
        "The logits were divided by the square root of the hidden size, as scores in attention are.": right
        / table.shape[1] ** 0.5,
        "The largest logits of all tokens of a sequence were taken; only its last token counts.": torch.stack(
            [taken(range(a, b), table).amax(0) for a, b in pairwise(ends)]
        )
        if ends
        else right,
        "The parts of the ranks are in the opposite order.": torch.cat(parts[::-1], -1),
    }
    if table.shape[0] == table.shape[1] and size == 1:
        found["The table was transposed: a logit belongs to a row of it."] = taken(last, table.T)
    return found


def head(engine, check, lengths, vocab_size, width, size=1, cached=0, dtype=torch.float32, seed=0, negative=False):
    """All ranks compute logits. `lengths` are the tokens of each sequence in a prefill; a number is a decode step."""
    generator = torch.Generator().manual_seed(seed)
    is_prefill = not isinstance(lengths, int)
    num_tokens = sum(lengths) if is_prefill else lengths
    hidden = torch.randn(num_tokens, width, generator=generator).to(dtype)
    table = torch.randn(vocab_size, width, generator=generator).to(dtype)
    if negative:
        hidden, table = hidden.abs(), -table.abs()
    ends, ends_k = ([0], [0]) if is_prefill else (None, None)
    for n in lengths if is_prefill else ():
        ends.append(ends[-1] + n)
        ends_k.append(ends_k[-1] + n + cached)
    heads = build(engine, "ParallelLMHead", vocab_size, width, size, table, dtype)
    context = engine.package.module("utils.context")
    per_rank = -(-vocab_size // size)
    what = f"a prefill, cu_seqlens_q = {ends}" if is_prefill else f"a decode step, {num_tokens} sequences"
    check.step(f"{size} rank{'s' * (size > 1)}, a vocabulary of {vocab_size}, {what}", ERRORS_OF_FORWARD)
    given = [hidden.clone() for _ in range(size)]

    def run(group):
        heads[group.rank].group = group
        fields = {"is_prefill": is_prefill}
        if is_prefill:
            fields |= {"cu_seqlens_q": torch.tensor(ends, dtype=torch.int32), "max_seqlen_q": max(lengths)}
            fields |= {"cu_seqlens_k": torch.tensor(ends_k, dtype=torch.int32), "max_seqlen_k": max(lengths) + cached}
        else:
            fields["context_lens"] = torch.full((num_tokens,), 9, dtype=torch.int32)
        context.set_context(**fields)
        try:
            return heads[group.rank](given[group.rank])
        finally:
            context.reset_context()

    with torch.no_grad():
        done = together(size, run, most=6)
    last = [end - 1 for end in ends[1:]] if is_prefill else range(num_tokens)
    expected = products([hidden[n].double().tolist() for n in last], table).float()
    tolerance = 2e-2 if dtype != torch.float32 else 1e-4
    for rank in range(size):
        got, name = done.results[rank], f"what rank {rank} returns"
        if rank:
            says = "Only rank 0 has all logits; the others return None, which is what gather gives them."
            check.equal(f"type of {name}", type(got).__name__, "NoneType", says)
            continue
        mistakes = known(got, expected, mistakes_of_forward(hidden, table, ends, ends_k, size, rank), tolerance)
        inputs = {"hidden_states": hidden.float()}
        check_tensor(check, name, got, expected, ("sequence", "token"), mistakes, inputs, dtype, tolerance)
    kinds = [kind for kind, _ in done.calls[0]]
    if size > 1 or kinds:
        check.equal("collectives of a rank", kinds, ["gather"], says_gather)
    if size > 1:
        shape = list(done.calls[0][-1][1].shape) if done.calls[0] else []
        says = "Logits of tokens that nobody asked for were computed and sent: choose the rows before the product."
        check.equal("shape of the part that rank 0 gives", shape, [len(expected), per_rank],
                    says if shape == [num_tokens, per_rank] else None)  # fmt: skip
    stay = all(torch.equal(one, hidden) for one in given)
    check.true("the hidden states stay as they are", stay, "The hidden states were changed.")
    held = all(torch.equal(heads[r].weight.data, part_of(table, r, size)) for r in range(size))
    check.true("the weight stays as it is", held, "The weight was changed.")


def says_gather(kinds):
    if not kinds:
        return "The parts were not brought together: there was no gather."
    if len(kinds) > 1:
        return "There is more than one collective. One gather is enough, and each costs time."
    return "The ranks meet in another collective than a gather."


@case("ch13.forward")
def several_prompts(engine, check):
    """One rank, three prompts of 3, 1 and 5 tokens in one step; a vocabulary of 6."""
    head(engine, check, [3, 1, 5], 6, 4, seed=1)


@case("ch13.forward")
def a_prompt(engine, check):
    """One rank, one prompt of 5 tokens, read in one step; a vocabulary of 7."""
    head(engine, check, [5], 7, 3)


@case("ch13.forward")
def a_decode_step(engine, check):
    """Four sequences with one new token each, and no cu_seqlens_q."""
    head(engine, check, 4, 6, 3, seed=2)
    head(engine, check, 1, 6, 3, seed=2)


@case("ch13.forward")
def two_ranks_of_a_head(engine, check):
    """Two ranks with four tokens each: a prefill of two prompts, then a decode step."""
    head(engine, check, [4, 2], 8, 3, 2, seed=3)
    head(engine, check, 3, 8, 3, 2, seed=3)


@case("ch13.forward")
def padding(engine, check):
    """7 tokens over 3 ranks, 5 over 4. The rows beyond are zero, and all real logits negative: 0 would win."""
    head(engine, check, [2, 3], 7, 4, 3, seed=4, negative=True)
    head(engine, check, 2, 5, 2, 4, seed=4, negative=True)


@case("ch13.forward")
def behind_a_cached_prefix(engine, check):
    """Two prompts whose first six tokens are cached: cu_seqlens_k counts them, cu_seqlens_q does not."""
    head(engine, check, [2, 4], 6, 3, cached=6, seed=5)
    head(engine, check, [3, 3, 3], 6, 3, 2, cached=1, seed=5)


@case("ch13.forward")
def equal_sizes(engine, check):
    """As many tokens as features and as words, one token a prompt; so a transposed table would fit."""
    head(engine, check, [1, 1, 1, 1], 4, 4, seed=6)
    head(engine, check, [2, 2], 4, 4, seed=6)


@case("ch13.forward")
def in_half_precision(engine, check):
    """All numbers are bfloat16, and so are the logits."""
    head(engine, check, [3, 2], 5, 4, 2, dtype=torch.bfloat16, seed=7)


@case("ch13.forward")
def the_bill(engine, check):
    """Two prompts of 30 tokens, one rank: how many multiplications does it take?"""
    context = engine.package.module("utils.context")
    (layer,) = build(engine, "ParallelLMHead", 20, 8, 1, marked(20, 8))
    ends = torch.tensor([0, 30, 60], dtype=torch.int32)
    check.step("one rank, a vocabulary of 20, hidden states of 8 numbers, 60 tokens", ERRORS_OF_FORWARD)
    counts = []

    def run(group):
        layer.group = group
        context.set_context(is_prefill=True, cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=30, max_seqlen_k=30)
        with head_work.Multiplications(strict=False) as done:
            try:
                return layer(torch.ones(60, 8))
            finally:
                context.reset_context()
                counts.append(done.count)

    with torch.no_grad():
        together(1, run, most=6)
    says = "More was multiplied than two rows need (2 x 8 x 20): choose the last tokens before the product, not after."
    check.true("at most 640 multiplications", counts[-1] <= 640, says)


@case("ch13.forward")
def random_steps(engine, check):
    """Random prompts, vocabularies and numbers of ranks."""
    for seed in range(8):
        rng = random.Random(seed)
        lengths = [rng.randrange(1, 5) for _ in range(rng.randrange(1, 5))]
        if rng.random() < 0.4:
            lengths = rng.randrange(1, 6)
        head(engine, check, lengths, rng.randrange(4, 14), rng.randrange(1, 6), rng.randrange(1, 5), seed=seed)


# quick_head

ERRORS_OF_QUICK = {
    "RuntimeError": "Refused by torch: shapes or dtypes do not fit, more of the best were asked for than there are, or "
    "the multiplications of an operation cannot be counted. There may be few tokens, few examples, one hidden state.",
    "TypeError": "A function is asked for, which is given hidden states and returns ids.",
    "IndexError": "A row was asked for that is not there: the vocabulary may be small.",
    "LinAlgError": "torch.linalg could not do it: there may be fewer examples than features.",
}


def ask_quick(engine, check, table, examples, hidden, text):
    """Make a head, ask it, and see whether ids come back."""
    check.step(text, ERRORS_OF_QUICK)
    before = [one.clone() for one in (table, examples, hidden)]
    with torch.no_grad():
        got = engine.get("labs:quick_head")(table, examples)(hidden)
    kind = type(got).__name__
    ok = check.equal("type of what comes back", kind, "Tensor", "A tensor of ids is asked for.")
    ok = ok and check.equal("its shape", list(got.shape), [len(hidden)], "One id for each hidden state.")
    ok = ok and check.equal("its dtype", str(got.dtype), "torch.int64", "Ids are int64.")
    ok = ok and check.true("all are tokens", ((got >= 0) & (got < len(table))).all(), "There is no such token.")
    stay = all(torch.equal(a, b) for a, b in zip(before, (table, examples, hidden), strict=True))
    check.true("the arguments stay as they are", stay, "An argument was changed.")
    return got if ok else None


@case("ch13.quick_head")
def small_models(engine, check):
    """Models of other sizes: a small vocabulary, a single example, a single hidden state."""
    for seed, (vocab_size, width, count, asked) in enumerate(
        ((40, 8, 20, 5), (9, 16, 1, 1), (300, 4, 50, 3), (2, 2, 2, 2))
    ):
        generator = torch.Generator().manual_seed(seed)
        table, examples, hidden = (torch.randn(n, width, generator=generator) for n in (vocab_size, count, asked))
        text = f"{vocab_size} tokens, {width} numbers a row, {count} examples, {asked} hidden states"
        ask_quick(engine, check, table, examples, hidden, text)


@case("ch13.quick_head")
def stories(engine, check):
    """The table of qwen3-tiny, 14 stories as examples, 12 others to try it on: how often is it the best token?"""
    check.step("make it, and let it find the tokens of 12 stories", ERRORS_OF_QUICK)
    judged = head_work.judge(engine.get("labs:quick_head"))
    check.measured(
        f"right {100 * judged.right:.1f} times in 100, with {100 * judged.share:.1f} % of the multiplications; at "
        f"least {100 * head_work.RIGHT:.0f} and at most {100 * head_work.SHARE:.0f} % are asked for"
    )
    says = f"It is right {100 * judged.right:.1f} times in 100"
    if judged.right < head_work.judge(head_work.frequent_rows).right:
        says += "; the 500 most frequent tokens alone would be more often"
    elif judged.share < head_work.SHARE - 0.02:
        says += (
            f"; of the multiplications it takes {100 * judged.share:.1f} %, and may take {100 * head_work.SHARE:.0f}"
        )
    says += "."
    check.true("right often enough", judged.right >= head_work.RIGHT, says)
    says = f"It takes {100 * judged.share:.1f} % of the multiplications, and at most 25 % are asked for."
    check.true("few enough multiplications", judged.share <= head_work.SHARE, says)


@case("ch13.quick_head")
def one_by_one(engine, check):
    """Twenty hidden states of stories, together and one by one: the same ids."""
    here = head_work.states()
    hidden = here.others[::120][:20].clone()
    table, examples = here.table.clone(), here.examples.clone()
    got = ask_quick(engine, check, table, examples, hidden, "twenty hidden states of qwen3-tiny together")
    with torch.no_grad():
        find = engine.get("labs:quick_head")(table, examples)
        alone = [int(find(one[None])[0]) for one in hidden]
    if got is not None:
        same = sum(a == b for a, b in zip(alone, got.tolist(), strict=True))
        check.true("at least 19 of 20 are the same", same >= 19, f"{20 - same} of them depend on their neighbors.")
