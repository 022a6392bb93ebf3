"""Grader of chapter 14. What is kept is said token by token with plain numbers, and draws are counted."""

import math

import torch

from exercises.kit import story_work
from exercises.kit.grading import case
from exercises.kit.probes import check_tensor

NONE = -math.inf
AXES = ("sequence", "token")
SAYS_CHANGED = "The tensor that came in was changed. Somebody else may still read it: work on a new one."


def softmax(row):
    """Probabilities of a row of logits, by the definition."""
    largest = max(row, default=0.0)
    weights = [math.exp(value - largest) for value in row]
    return [weight / sum(weights) for weight in weights]


def tensor_of(rows):
    return torch.tensor(rows, dtype=torch.float32)


def masked(rows, kept):
    """The logits where a row keeps the token, -inf elsewhere."""
    return tensor_of([[v if k else NONE for v, k in zip(*pair, strict=True)] for pair in zip(rows, kept, strict=True)])


def random_rows(seed, num_rows, vocab_size, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return [
        [round(v, 3) for v in row] for row in (scale * torch.randn(num_rows, vocab_size, generator=generator)).tolist()
    ]


def different(expected, mistakes, sure=()):
    """Of the mistakes by their sentences, those that show; of two that look alike neither, but for the sure ones."""
    same = torch.equal
    others = {text: rows for text, rows in mistakes.items() if not same(rows, expected)}
    first = {text: others[text] for text in sure if text in others}
    return first | {
        text: rows
        for text, rows in others.items()
        if not any(same(rows, other) for name, other in others.items() if name != text)
    }


NOTHING = "Nothing is dropped at all."
SAYS_KEPT = "What came back first was changed by a later call: a result is kept between calls, and written again."
SAYS_VIEW = {
    "RuntimeError": "The logits are a transposed tensor here, so a row does not lie in one piece. A view refuses that; "
    "reshape does not, and most functions need neither.",
}


def observe_filter(check, name, function, rows, more, expected, mistakes, is_transposed=False):
    """Call a filter, look at what it keeps and at what it was given, and call it again.

    Args:
        more: the other arguments by name, None or numbers with their dtype.
        mistakes: gives tensors by sentences, and the sentences that are said first if they fit.
    """

    def given():
        logits = tensor_of(list(zip(*rows, strict=True))).T if is_transposed else tensor_of(rows)
        return logits, {key: None if v is None else torch.tensor(v[0], dtype=v[1]) for key, v in more.items()}

    logits, others = given()
    got = function(logits, *others.values())
    is_right = isinstance(got, torch.Tensor) and torch.equal(got, expected)
    known = {} if is_right else different(expected, *mistakes())
    check_tensor(check, f"what {name} returns", got, expected, AXES, known)
    before, others_before = given()
    check.true("the logits that came in are as they were", torch.equal(logits, before), SAYS_CHANGED)
    for key, value in others.items():
        if value is not None:
            says = f"{key} was changed in the tensor that came in. It is asked for again at the next token."
            check.true(f"{key} is as it was", torch.equal(value, others_before[key]), says)
    if is_right:
        kept = got.clone()
        function(before + 1, *others_before.values())
        check.true("another call leaves it as it is", torch.equal(got, kept), SAYS_KEPT)


# apply_min_p


def min_p_rows(rows, min_p, rule):
    """Keeps what a rule says of a token's probability, the largest one of its row, min_p, and all of the row's."""
    kept = []
    for row, limit in zip(rows, min_p, strict=True):
        p = softmax(row)
        kept.append([rule(value, max(p), limit, p, logit, row) for value, logit in zip(p, row, strict=True)])
    return masked(rows, kept)


MIN_P_RULES = {
    "min_p is compared with the probability itself. It is a share of the largest probability of the row.": (
        lambda p, top, limit, every, x, row: p >= limit
    ),
    "A token exactly as likely as the limit is dropped; only what is less likely goes.": (
        lambda p, top, limit, every, x, row: p > limit * top
    ),
    "Logits are compared as if they were probabilities: min_p times the largest logit is no limit.": (
        lambda p, top, limit, every, x, row: x >= limit * max(row)
    ),
    "The wrong ones are dropped: unlikely tokens are left, and the likely ones are gone.": (
        lambda p, top, limit, every, x, row: not p >= limit * top
    ),
    "min_p is subtracted from the largest logit. A share of a probability is its logarithm added to a logit.": (
        lambda p, top, limit, every, x, row: x >= max(row) - limit
    ),
    "min_p is subtracted from the largest probability. It is a share of it: a product.": (
        lambda p, top, limit, every, x, row: p >= top - limit
    ),
    "The limit is one minus min_p of the largest probability; it is min_p of it.": (
        lambda p, top, limit, every, x, row: p >= (1 - limit) * top
    ),
    "Each token is compared with the mean probability of the row, not with the largest.": (
        lambda p, top, limit, every, x, row: p >= limit / len(row)
    ),
    "The likely tokens that together have min_p are kept: that is top-p. Min-p looks at each token alone.": (
        lambda p, top, limit, every, x, row: sum(q for q in every if q > p) < limit
    ),
    "The limit is a difference of logits with the sign turned: log(min_p) is negative, and is added.": (
        lambda p, top, limit, every, x, row: limit > 0 and x >= max(row) - math.log(limit)
    ),
    "The limit is the logarithm of min_p alone, without the largest logit.": (
        lambda p, top, limit, every, x, row: limit == 0 or x >= math.log(limit)
    ),
    "The limit has the decimal logarithm of min_p. Probabilities are powers of e: it is the natural one.": (
        lambda p, top, limit, every, x, row: limit == 0 or x >= max(row) + math.log10(limit)
    ),
    "In a row whose logits are all negative the limit counts from 0, and not from its largest logit.": (
        lambda p, top, limit, every, x, row: limit == 0 or x >= max(0.0, max(row)) + math.log(limit)
    ),
    "The least likely tokens that together have min_p are dropped: that is top-p. Min-p looks at each token alone.": (
        lambda p, top, limit, every, x, row: p == top or sum(q for q in every if q <= p) >= limit
    ),
    "A row of min_p 0 loses tokens: a very small limit takes its place. Nothing is less than 0 times as likely.": (
        lambda p, top, limit, every, x, row: p >= max(limit, 1e-9) * top
    ),
}
SAYS_COLUMNS = {
    "RuntimeError": "Refused by torch. For each row there is one min_p and one largest probability or logit; they meet "
    "the tokens of their own row as columns, [num_seqs, 1]: min_p.unsqueeze(-1), and amax(dim=-1, keepdim=True)."
}
SAYS_HALF = "Tokens close to the limit are judged wrongly: they are compared in half precision."
SAYS_EXP = (
    "In float32 the exponential of a logit above 88 is inf, and of one below -104 it is 0: such tokens look all alike. "
    "softmax subtracts the largest logit first."
)


def in_half_precision(rows, min_p):
    """What is kept if probabilities or logits are compared in a dtype of 16 bits."""
    x, share = tensor_of(rows), tensor_of(min_p).unsqueeze(-1)
    p, found = x.softmax(-1), {}
    for n, dtype in enumerate((torch.bfloat16, torch.float16)):
        low = p.to(dtype)
        kept = [low >= share.to(dtype) * low.amax(-1, keepdim=True)]
        low, limit = x.to(dtype), share.to(dtype)
        kept += [low.softmax(-1) >= limit * low.softmax(-1).amax(-1, keepdim=True)]
        kept += [low >= low.amax(-1, keepdim=True) + limit.log()]
        found |= {SAYS_HALF + " " * (3 * n + i): x.masked_fill(~k, NONE) for i, k in enumerate(kept)}
    return found


def min_p_mistakes(rows, min_p):
    """What the mistakes keep, and what comes back if the kept ones are right and their numbers are not."""
    found = {text: min_p_rows(rows, min_p, rule) for text, rule in MIN_P_RULES.items()}
    right = min_p_rows(rows, min_p, lambda p, top, limit, *_: p >= limit * top)
    of_first = min_p_rows(rows, [min_p[0]] * len(rows), lambda p, top, limit, *_: p >= limit * top)
    flat = [value for row in rows for value in row]
    chances = tensor_of([softmax(row) for row in rows])
    kept = right > NONE
    over_all = [
        [value - max(flat) >= (math.log(limit) if limit else NONE) for value in row]
        for row, limit in zip(rows, min_p, strict=True)
    ]
    columns = [softmax(list(column)) for column in zip(*rows, strict=True)]
    by_column = [[columns[j][i] >= min_p[i] * max(columns[j]) for j in range(len(row))] for i, row in enumerate(rows)]
    if len(rows) > 1:
        found["The softmax was taken down the batch: probabilities of one row add up to 1."] = masked(rows, by_column)
        columns = chances >= tensor_of(min_p).unsqueeze(-1) * chances.amax(0)
        text = (
            "A token is compared with the same token of the other rows; the limit is a share of its own row's largest."
        )
        found[text] = tensor_of(rows).masked_fill(~columns, NONE)
    for name, bound in (("largest", max), ("smallest", min)) if len(set(min_p)) > 1 else ():
        one = min_p_rows(rows, [bound(min_p)] * len(rows), lambda p, top, limit, *_: p >= limit * top)
        found[f"Every row is filtered with the {name} min_p of the batch. Each has its own."] = one
    if any(NONE in row for row in rows):
        text = "A row in which some token is dropped already stays as it is. It is filtered like the others."
        found[text] = tensor_of([row if NONE in row else got for row, got in zip(rows, right.tolist(), strict=True)])
    if any(len(set(row)) < len(row) for row in rows):
        again = [[v not in row[:i] for i, v in enumerate(row)] for row in right.tolist()]
        text = "Of tokens that are equally likely only one is kept. None of them is less likely than the others."
        found[text] = right.masked_fill(~torch.tensor(again), NONE)
    sorted_back = "What comes back is sorted. Each logit belongs to its token's place."
    return found | {
        sorted_back: right.sort(-1, descending=True).values,
        sorted_back + " ": right.sort(-1).values,
        NOTHING: tensor_of(rows),
        "Every row is filtered with the min_p of the first one.": of_first,
        "Rows are compared with the most likely token of the whole batch; each row has its own.": masked(
            rows, over_all
        ),
        "The limit is a share of the largest probability of the whole batch; each row has its own.": masked(
            rows, (chances >= tensor_of(min_p).unsqueeze(-1) * chances.max()).tolist()
        ),
        "Probabilities came back in place of logits.": chances * kept,
        "Probabilities came back in place of logits.  ": chances.masked_fill(~kept, NONE),
        "Dropped tokens have the logit 0: that is no low one, they can still be drawn. It has to be -inf.": tensor_of(
            rows
        )
        * kept,
        "The logits of kept tokens were changed to log-probabilities; they should stay as they are.": (
            chances.log().masked_fill(~kept, NONE)
        ),
        "Dropped tokens have a very low logit, but not -inf.": tensor_of(rows).masked_fill(~kept, -1e9),
        "Dropped tokens have a very low logit, but not -inf. ": tensor_of(rows).masked_fill(~kept, -1e4),
        "Dropped tokens have a very low logit, but not -inf.  ": (
            tensor_of(rows).masked_fill(~kept, torch.finfo(torch.float32).min)
        ),
        "Kept tokens are 1 and the others 0: that is the mask, and the logits are wanted.": kept.float(),
    }


def observe_min_p(engine, check, rows, min_p, extra=None, is_transposed=False):
    """`extra` are mistakes of this case."""
    function = engine.get("layers.sampler:apply_min_p")
    is_short = len(rows) * len(rows[0]) < 30
    says = SAYS_VIEW if is_transposed else SAYS_COLUMNS
    check.step(f"logits {rows}, min_p {min_p}" if is_short else f"{len(rows)} rows, min_p {min_p}", says=says)
    expected = min_p_rows(rows, min_p, lambda p, top, limit, *_: p >= limit * top)

    def mistakes():
        special = extra or {}
        return min_p_mistakes(rows, min_p) | special, [*special, NOTHING]

    more = {"min_p": (min_p, torch.float32)}
    observe_filter(check, "apply_min_p", function, rows, more, expected, mistakes, is_transposed)


@case("ch14.apply_min_p")
def a_share_of_the_best(engine, check):
    """Two rows of ten tokens. The most likely one has 30 %; min_p is 0.22, so what has less than 6.6 % goes."""
    chances = (0.2, 0.15, 0.12, 0.05, 0.03, 0.01, 0.02, 0.08, 0.04, 0.3)
    check.step(f"probabilities {chances}, and in the second row the last five first")
    row = [round(math.log(p) + 2.5, 4) for p in chances]
    other = [round(value + 1, 4) for value in row[5:] + row[:5]]
    observe_min_p(engine, check, [row, other], [0.22, 0.22])


@case("ch14.apply_min_p")
def rows_have_their_own(engine, check):
    """Three rows, each with a min_p of its own. One has a strong favorite, one is almost even."""
    rows = [[4.0, 1.0, 3.5, -2.0, 0.5, 1.7], [0.1, 0.3, -0.2, 0.05, 0.4, -0.6], [-5.0, -9.0, -4.5, -7.0, -6.2, -5.4]]
    observe_min_p(engine, check, rows, [0.25, 0.7, 0.1])


@case("ch14.apply_min_p")
def nothing_and_all(engine, check):
    """A row with min_p 0 among others keeps everything; one with min_p 1 keeps the best, and those equal to it."""
    rows = [[1.5, -30.0, 0.25, 2.5, -0.5], [2.0, 0.5, 2.0, 1.75, -1.0], [0.75, 3.0, -1.25, 2.0, 1.0]]
    says = "One row asks for min_p 0, and all rows keep everything. Only that one should."
    observe_min_p(engine, check, rows, [0.0, 1.0, 0.2], {says: tensor_of(rows)})


@case("ch14.apply_min_p")
def dropped_before(engine, check):
    """Some tokens have the logit -inf already: somebody has forbidden them. Everything else goes on as usual."""
    rows = [
        [0.5, NONE, 1.5, -2.5, NONE, 0.75],
        [NONE, 2.25, 0.25, NONE, 1.75, -0.5],
        [NONE, 0.5, NONE, NONE, NONE, 0.25],
        [1.0, -1.5, 0.5, 0.25, -0.25, -2.0],
    ]
    observe_min_p(engine, check, rows, [0.3, 0.0, 0.9, 0.2])


@case("ch14.apply_min_p")
def many_rows(engine, check):
    """Twelve rows of 200 tokens."""
    observe_min_p(engine, check, random_rows(1, 12, 200), [0.02 + 0.07 * i for i in range(12)])


@case("ch14.apply_min_p")
def large_and_small_logits(engine, check):
    """The logits of the first row are about 100, those of the last about -120; the one between is as usual."""
    rows = [[100.0, 95.5, 98.5, 99.75], [1.0, -3.5, -0.5, 0.75], [-120.0, -124.5, -121.5, -120.25]]
    between = min_p_rows(rows[1:2], [0.4], lambda p, top, limit, *_: p >= limit * top).tolist()
    observe_min_p(engine, check, rows, [0.4] * 3, {SAYS_EXP: tensor_of([rows[0], *between, rows[2]])})


@case("ch14.apply_min_p")
def close_to_the_limit(engine, check):
    """Tokens that are a little more and a little less likely than the limit: by one part in a thousand."""
    rows, min_p = [[2.0, 0.5, 1.0, -1.0, -4.0, 0.25, 1.75, -2.0]] * 3, [0.1, 0.3, 0.52]
    rows = [[*row, *(row[0] + math.log(p) + x for x in (1e-3, -1e-3))] for row, p in zip(rows, min_p, strict=True)]
    observe_min_p(engine, check, rows, min_p, in_half_precision(rows, min_p))


@case("ch14.apply_min_p")
def a_transposed_tensor(engine, check):
    """The logits were made as [tokens, sequences], and transposed: the numbers of a row do not lie side by side."""
    observe_min_p(engine, check, random_rows(2, 3, 5), [0.3, 0.1, 0.6], is_transposed=True)


# apply_top_k_top_p


def keep(row, k, p, **wrong):
    """Which tokens of a row stay, going from the most likely one on; `wrong` builds a mistake in."""
    order = sorted((i for i in range(len(row)) if row[i] > NONE), key=lambda i: row[i], reverse=not wrong.get("least"))
    if not wrong.get("p_first"):
        order = first_k(row, order, k, wrong)
    chances = dict(zip(order, softmax([row[i] for i in order]), strict=True))
    found, total = [], 0.0
    for i in order if p is not None else ():
        total += chances[i]
        if wrong.get("before", 0) and total > p and found:
            break
        if wrong.get("before", 0) == 2 and total > p:
            break
        if wrong.get("each"):
            if chances[i] >= p:
                found.append(i)
            continue
        if wrong.get("rest") and total - chances[i] >= 1 - p:
            break
        found.append(i)
        if wrong.get("one_more"):
            if total - chances[i] >= p:
                break
        elif not wrong.get("rest") and total >= p:
            break
    order = found if p is not None else order
    if wrong.get("p_first"):
        order = first_k(row, order, k, wrong)
    kept = set(order)
    return [i in kept for i in range(len(row))]


def first_k(row, order, k, wrong):
    if k is None or not order:
        return order
    if wrong.get("alive"):
        limit = sorted(row)[max(len(order) - k, 0)]
        return [i for i in order if row[i] >= limit]
    if wrong.get("above_next"):
        limit = sorted(row, reverse=True)[min(k, len(row) - 1)]
        return [i for i in order if row[i] > limit]
    k += wrong.get("shift", 0)
    if k <= 0:
        return []
    if wrong.get("cut_ties") or wrong.get("least") or k >= len(order):
        return order[:k]
    limit = row[order[k - 1]]
    if wrong.get("strict"):
        return [i for i in order if row[i] > limit]
    if wrong.get("last_ties"):
        above = [i for i in order if row[i] > limit]
        return above + [i for i in order if row[i] == limit][::-1][: k - len(above)]
    if wrong.get("distinct"):
        limit = sorted({row[i] for i in order}, reverse=True)[:k][-1]
    return [i for i in order if row[i] >= limit]


K_P_MISTAKES = {
    "Top-p adds up probabilities of all tokens, of those that top-k drops, too: it came first, or no new softmax.": {
        "p_first": True
    },
    "The token that reaches top_p is dropped. Without it the others have less than top_p.": {"before": 1},
    "The token that reaches top_p is dropped, and a row may keep none at all.": {"before": 2},
    "One token too many stays: top_p has been reached without it.": {"one_more": True},
    "The least likely tokens are kept: the order is turned around.": {"least": True},
    "Of several tokens as likely as the k-th not all are kept.": {"cut_ties": True},
    "Of several tokens as likely as the k-th not all are kept. ": {"last_ties": True},
    "k counts different logits. It counts tokens, and where some are equally likely, they count as several.": {
        "distinct": True
    },
    "The k-th token itself is dropped.": {"strict": True},
    "One token too few is kept by top-k.": {"shift": -1},
    "One token too many is kept by top-k.": {"shift": 1},
    "Each token is compared with top_p by itself. The probabilities add up.": {"each": True},
    "The k-th is looked for by a count of tokens that are left, in an order where dropped ones stand, too.": {
        "alive": True
    },
    "Kept is what is above the (k+1)-th token: lost is what is as likely as that, and the last one of a vocabulary.": {
        "above_next": True
    },
    "The kept tokens have 1 - top_p: the sum stops too early, or too late.": {"rest": True},
}


LEFT_OUT = "top_p is not looked at."


def observe_k_p(engine, check, rows, top_k, top_p, extra=None, is_transposed=False):
    """top_k and top_p are lists, or None; `extra` are mistakes of this case."""
    function = engine.get("layers.sampler:apply_top_k_top_p")
    what = f"{rows}" if len(rows) * len(rows[0]) < 30 else f"of {len(rows)} rows"
    is_none = "" if top_k and top_p else "One of the two is None here: no row of the batch asks for it."
    errors = dict.fromkeys(("AttributeError", "TypeError"), is_none)
    check.step(f"logits {what}; top_k {top_k}, top_p {top_p}", says=SAYS_VIEW if is_transposed else errors)
    pairs = [(top_k[i] if top_k else None, top_p[i] if top_p else None) for i in range(len(rows))]

    def kept(rule):
        return masked(rows, [keep(row, k, p, **rule) for row, (k, p) in zip(rows, pairs, strict=True)])

    expected, right = kept({}), kept({}) > NONE

    def mistakes():
        first = masked(rows, [keep(row, *pairs[0]) for row in rows])
        ignored = {"All rows are filtered with the numbers of the first one.": first}
        if not top_p:
            ignored["top_k is not looked at."] = tensor_of(rows)
        if top_p:
            ignored[LEFT_OUT] = masked(rows, [keep(row, k, None) for row, (k, _) in zip(rows, pairs, strict=True)])
            last = [keep(row, k, p) for row, (k, p) in zip(rows[:-1], pairs[:-1], strict=True)]
            last.append(keep(rows[-1], pairs[-1][0], None))
            ignored["In the last row of the batch top-p drops nothing."] = masked(rows, last)
        if top_k:
            for name, bound in (("largest", max), ("smallest", min)):
                one = [keep(row, bound(top_k), p) for row, (_, p) in zip(rows, pairs, strict=True)]
                ignored[f"All rows are filtered with the {name} top_k of the batch. Each has its own."] = masked(
                    rows, one
                )
            for most in (50, 64, 100):
                one = [keep(row, min(k, most), p) for row, (k, p) in zip(rows, pairs, strict=True)]
                ignored[f"A top_k above {most} is cut to {most}."] = masked(rows, one)
        order = [sorted(range(len(row)), key=lambda i, row=row: row[i]) for row in rows]
        ascending = tensor_of([[expected[r, i] for i in order[r]] for r in range(len(rows))])
        back = tensor_of([[ascending[r, i] for i in order[r]] for r in range(len(rows))])
        forms = {
            "What comes back is sorted, from the least likely on. Each logit belongs to its token's place.": ascending,
            "What comes back is still sorted, from the most likely on. Each logit belongs to its token's place.": (
                ascending.flip(-1)
            ),
            "The sorted logits were put back by the wrong rule: order says which token stands where, "
            "so position i goes to place order[i].": back,
            "Dropped tokens have the logit 0: that is no low one, they can still be drawn. It has to be -inf.": (
                tensor_of(rows).masked_fill(~right, 0.0)
            ),
            "Probabilities came back in place of logits.": tensor_of([softmax(row) for row in rows]) * right,
            "Renormalized probabilities came back in place of logits.": expected.softmax(-1),
            "Logarithms of renormalized probabilities came back. Kept logits stay as they are.": expected.log_softmax(
                -1
            ),
            "Dropped tokens have a very low logit, but not -inf.": tensor_of(rows).masked_fill(~right, -1e9),
            "Dropped tokens have a very low logit, but not -inf. ": (
                tensor_of(rows).masked_fill(~right, torch.finfo(torch.float32).min)
            ),
        }
        special = extra or {}
        found = {text: kept(rule) for text, rule in K_P_MISTAKES.items()} | ignored | forms | special
        return found, [*special, LEFT_OUT]

    more = {"top_k": (top_k, torch.int64) if top_k else None, "top_p": (top_p, torch.float32) if top_p else None}
    observe_filter(check, "apply_top_k_top_p", function, rows, more, expected, mistakes, is_transposed)


def logs(*chances):
    return [round(math.log(p) + 2.0, 4) for p in chances]


@case("ch14.apply_top_k_top_p")
def the_k_most_likely(engine, check):
    """Only top-k: the three most likely of six tokens, in the second row four, and in the third two."""
    rows = [[0.5, 3.0, -1.0, 2.0, 1.5, -2.0], [-1.0, -3.0, -2.0, -6.0, -5.0, -0.5], [0.25, 0.0, 2.5, 1.25, -4.0, 0.5]]
    observe_k_p(engine, check, rows, [3, 4, 2], None)


@case("ch14.apply_top_k_top_p")
def as_few_as_reach_p(engine, check):
    """Only top-p. Probabilities 0.4, 0.3, 0.15, 0.1 and 0.05, in another order, and top_p of 0.8, 0.6 and 0.3."""
    row = logs(0.15, 0.4, 0.05, 0.3, 0.1)
    observe_k_p(engine, check, [row, row[::-1], row], None, [0.8, 0.6, 0.3])


@case("ch14.apply_top_k_top_p")
def first_k_then_p(engine, check):
    """Both. Of sixteen tokens, about equally likely, top-k keeps eight; of what these have 0.45 is to be reached."""
    row = logs(*[0.08 - 0.0022 * ((7 * i) % 16) for i in range(16)])
    observe_k_p(engine, check, [row, row[::-1]], [8, 9], [0.45, 0.4])


@case("ch14.apply_top_k_top_p")
def equally_likely(engine, check):
    """Only top-k. Several tokens are as likely as the k-th; then none, but two before it are equal."""
    rows = [[1.0, 2.0, 2.0, 3.0, 2.0, 0.0], [3.0, 3.0, 1.0, 2.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]]
    observe_k_p(engine, check, rows, [2, 3, 1], None)


@case("ch14.apply_top_k_top_p")
def rows_that_keep_all(engine, check):
    """A row without a filter among others: its top_k is the size of the vocabulary, its top_p is 1."""
    rows = [logs(0.2, 0.1, 0.3, 0.15, 0.25), logs(0.42, 0.28, 0.12, 0.08, 0.1), logs(0.3, 0.1, 0.17, 0.2, 0.23)]
    says = "Two rows ask for top_p 1, and top-p drops nothing in the third one either. Each row has its own."
    filtered = masked(rows, [keep(row, k, None) for row, k in zip(rows, (5, 2, 5), strict=True)])
    observe_k_p(engine, check, rows, [5, 2, 5], [1.0, 1.0, 0.6], {says: filtered})
    observe_k_p(engine, check, rows, [5, 5, 5], [0.7, 0.6, 0.4])


@case("ch14.apply_top_k_top_p")
def a_sure_row(engine, check):
    """3,000 tokens, one of them nearly certain. The first row asks for top_p 1, the second for 0.9."""
    function = engine.get("layers.sampler:apply_top_k_top_p")
    row = torch.randn(3000, generator=torch.Generator().manual_seed(4))
    row[1234] = 19.0
    check.step("two equal rows, top_p 1 and 0.9")
    got = function(torch.stack([row, row]), None, torch.tensor([1.0, 0.9]))
    if kind_is(check, "what apply_top_k_top_p returns", got, 2, 3000):
        dropped = int((got[0] == NONE).sum())
        says = (
            f"top_p 1 keeps all tokens, and here {dropped} are dropped. Adding up from the most likely one, float32 is "
            "at 1 long before the tail: add up from the other end, or leave such a row alone."
        )
        if check.true("the row of top_p 1 keeps all tokens", not dropped, says):
            check.true("with the logits that they had", torch.equal(got[0], row), "Their logits were changed.")
        one = got[1] > NONE
        check.equal("tokens that the row of top_p 0.9 keeps", one.nonzero().flatten().tolist()[:5], [1234])


@case("ch14.apply_top_k_top_p")
def reached_exactly(engine, check):
    """Four tokens of 0.25 each, and top_p 0.5, 0.75, 0.25 and 1. Which ones stay is left to you, but not how many."""
    function = engine.get("layers.sampler:apply_top_k_top_p")
    check.step("logits 1.5 for all four tokens; top_p 0.5, 0.75, 0.25 and 1")
    got = function(torch.full((4, 4), 1.5), None, torch.tensor([0.5, 0.75, 0.25, 1.0]))
    if kind_is(check, "what apply_top_k_top_p returns", got, 4, 4):
        says = {
            (
                4,
                4,
                4,
                4,
            ): "All tokens as likely as the last one needed are kept. That is the rule of top-k; top-p keeps "
            "the fewest that reach it.",
            (3, 4, 2, 4): "A sum that is exactly top_p has reached it; one token more is kept than needed.",
        }
        numbers = (got > NONE).sum(-1).tolist()
        if check.equal("how many tokens the rows keep", numbers, [2, 3, 1, 4], lambda value: says.get(tuple(value))):
            same = set(got.flatten().tolist()) <= {1.5, NONE}
            check.true("with the logits that they had", same, "Their logits were changed, or others are no -inf.")


@case("ch14.apply_top_k_top_p")
def large_and_small_logits_too(engine, check):
    """The logits of the first row are about 100, those of the last about -120; the one between is as usual."""
    row = logs(0.15, 0.4, 0.05, 0.3, 0.1)
    rows = [[round(value + shift, 4) for value in row] for shift in (100.0, 0.0, -120.0)]
    kept = [keep(rows[0], 4, None), keep(rows[1], 4, 0.6), keep(rows[2], 4, None)]
    observe_k_p(engine, check, rows, [4] * 3, [0.6] * 3, {SAYS_EXP: masked(rows, kept)})


@case("ch14.apply_top_k_top_p")
def a_transposed_tensor_too(engine, check):
    """The logits were made as [tokens, sequences], and transposed: the numbers of a row do not lie side by side."""
    observe_k_p(engine, check, random_rows(5, 3, 7), [3, 5, 7], [0.9, 0.5, 0.7], is_transposed=True)


def ends_of(rows):
    """What is kept if no token is, in all rows or in some of them."""
    best = [[value == max(row) for value in row] for row in rows]
    none = [[False] * len(row) for row in rows]
    return [none, [*none[:1], *best[1:]], [*best[:1], *none[1:]]]


@case("ch14.apply_top_k_top_p")
def one_is_always_left(engine, check):
    """A top_p that is smaller than any probability, and a favorite that is likelier than top_p by itself.

    Then a top_p so small that float32 has no number between 1 - top_p and 1.
    """
    rows = [logs(0.2, 0.1, 0.3, 0.15, 0.25), logs(0.01, 0.93, 0.02, 0.03, 0.01)]
    observe_k_p(engine, check, rows, None, [0.001, 0.5])
    observe_k_p(engine, check, rows, [5, 1], [0.05, 0.9])
    says = (
        "With a very small top_p nothing is left of a row: in float32 1 - top_p is 1, and all tokens together have no "
    )
    says += "more. The most likely one is always kept."
    left = {f"{says}{' ' * i}": masked(rows, kept) for i, kept in enumerate(ends_of(rows))}
    observe_k_p(engine, check, rows, None, [1e-9, 1e-12], left)


@case("ch14.apply_top_k_top_p")
def k_larger_than_what_is_left(engine, check):
    """Min-p has dropped some tokens already. They stay dropped, also where top_k is larger than what is left."""
    rows = [[1.5, NONE, 0.5, 2.0, NONE, -0.5, 0.75], [NONE, NONE, 1.0, NONE, 0.25, NONE, NONE]]
    observe_k_p(engine, check, rows, [2, 5], None)
    observe_k_p(engine, check, rows, [5, 4], [0.8, 0.9])


@case("ch14.apply_top_k_top_p")
def a_vocabulary(engine, check):
    """Ten rows of 300 tokens, with numbers of their own."""
    rows = random_rows(3, 10, 300)
    observe_k_p(engine, check, rows, [1, 4, 9, 20, 40, 80, 120, 200, 299, 300], None)
    observe_k_p(engine, check, rows, None, [0.053 + 0.1 * i for i in range(10)])
    observe_k_p(engine, check, rows, [1, 4, 9, 20, 40, 80, 120, 200, 299, 300], [0.953 - 0.1 * i for i in range(10)])


# gumbel_noise

MANY = 4096


def noise_of(engine, seeds, positions, vocab_size=MANY):
    function = engine.get("layers.sampler:gumbel_noise")
    return function(torch.tensor(seeds), torch.tensor(positions), vocab_size)


def kind_is(check, what, got, num_rows, vocab_size):
    """Kind, shape and dtype; True if it can be looked at further."""
    if not isinstance(got, torch.Tensor):
        says = "Nothing came back: a return is missing." if got is None else "A tensor is asked for."
        return check.equal(f"type of {what}", type(got).__name__, "Tensor", says)
    says = {
        (vocab_size,): "There is one row for all sequences; each has its own.",
        (vocab_size, num_rows): "Rows and columns have changed places: a row for each sequence.",
        (num_rows,): "There is one number a sequence; every token of the vocabulary has its own.",
        (num_rows, 1): "There is one number a sequence; every token of the vocabulary has its own.",
        (1, vocab_size): "There is one row for all sequences; each has its own.",
    }
    if not check.equal(f"shape of {what}, [sequences, tokens]", list(got.shape), [num_rows, vocab_size], says):
        return False
    kind = str(got.dtype).removeprefix("torch.")
    return check.equal(f"dtype of {what}", kind, "float32", f"It should be float32, and is {kind}.")


def in_common(one, other):
    """Which share of one row's numbers the other has, too, at whatever token."""
    return float(torch.isin(one, other).float().mean())


def chi_square(counts, expected):
    """Far above the degrees of freedom if counts are not what is expected."""
    return sum((count - wanted) ** 2 / wanted for count, wanted in zip(counts, expected, strict=True))


def limit_of(freedom):
    """So large is a chi-square of right draws by chance less than once in 10^9 times."""
    return freedom + 9 * math.sqrt(2 * freedom) + 25


SAYS_KIND = {
    "even": "The numbers are spread evenly between 0 and 1: that is u itself, not yet Gumbel noise.",
    "exponential": "All numbers are above 0, and spread as -log(u) is: one logarithm is missing.",
    "negative": "The sign is turned: the noise has few large and many small numbers, and it should be the other way.",
    "log": "All numbers are below 0, spread as log(u) is.",
    "normal": "The numbers are spread as normal noise is: as many far below as far above the middle.",
    "zero": "All numbers of a row are the same, or nearly: that is no noise.",
    "half": "Numbers are missing: they are spread as if u came from a part of 0 to 1 only.",
    "squeezed": "The numbers are Gumbel noise times a factor, or plus a number.",
}


def spread_of(values):
    """Which known kind of noise numbers are, None if they are Gumbel noise or of no kind known."""
    values = values.double()
    mean, std = float(values.mean()), float(values.std())
    if std < 1e-6:
        return "zero"
    skew = float(((values - mean) ** 3).mean()) / std**3
    if values.min() >= 0 and values.max() <= 1 and abs(mean - 0.5) < 0.03:
        return "even"
    if values.min() >= 0 and abs(mean - 1) < 0.1 and abs(std - 1) < 0.1:
        return "exponential"
    if values.max() <= 0 and abs(mean + 1) < 0.1:
        return "log"
    if abs(mean + 0.577) < 0.05 and skew < -0.8:
        return "negative"
    if abs(skew) < 0.1 and values.min() < 0:
        return "normal"
    return None


@case("ch14.gumbel_noise")
def how_it_is_spread(engine, check):
    """Three sequences, 4,096 tokens each. How are the numbers spread?"""
    got = noise_of(engine, [11, 12, 907], [5, 5, 31])
    if not kind_is(check, "the noise", got, 3, MANY):
        return
    finite = bool(got.isfinite().all())
    if not check.true(
        "all numbers are finite", finite, "There is inf or nan: a logarithm of 0, or of a negative number."
    ):
        return
    for row in range(3):
        kind = spread_of(got[row])
        what = f"another kind of noise that row {row} looks like"
        if not check.equal(what, kind or "none", "none", SAYS_KIND.get(kind)):
            return
    u = torch.exp(-torch.exp(-got.double())).flatten()
    counts = torch.histc(u.float(), 16, 0, 1).tolist()
    says = "exp(-exp(-noise)) should be spread evenly between 0 and 1, and it is not: this is no Gumbel noise."
    value = chi_square(counts, [got.numel() / 16] * 16)
    check.true("exp(-exp(-noise)) is spread evenly", value < limit_of(15), says)


UPPER, HALF = "Not all of the upper bits of the seed play a part.", "Only the lower 32 bits of the seed play a part."
OTHERS = [
    ("the next position", (11, 5), (11, 6), "The position plays no part: a sequence has the same noise at each step."),
    ("another seed", (11, 5), (12, 5), "The seed plays no part: all requests have the same noise."),
    (
        "the same sum",
        (20, 9),
        (22, 7),
        "Seed and position are added up before they are mixed: other pairs with the same sum have the same noise.",
    ),
    (
        "the same exclusive or",
        (5, 6),
        (1, 2),
        "Seed and position are combined by exclusive or before they are mixed: other pairs give the same number.",
    ),
    (
        "seed and position swapped",
        (21, 64),
        (64, 21),
        "Seed and position can be swapped: they have to be mixed in different ways.",
    ),
    (
        "seed and position equal",
        (21, 21),
        (64, 64),
        "Where the seed is equal to the position the two cancel out: they have to be mixed in different ways.",
    ),
    ("equal products", (6, 20), (12, 10), "Seed and position are multiplied: other pairs have the same product."),
    ("seed 0, two positions", (0, 3), (0, 8), "With seed 0 the position plays no part: a product with 0 is 0."),
    ("position 0, two seeds", (5, 0), (9, 0), "At position 0 the seed plays no part."),
    ("a seed that is 2^32 larger", (11, 5), (11 + 2**32, 5), HALF),
    ("a seed with other upper bits", (11 + (5 << 40), 5), (11 + (9 << 40), 5), UPPER),
    ("a seed with another topmost bit", (11, 5), (11 + 2**62, 5), UPPER),
    (
        "upper and lower half of the seed swapped",
        (4 + (3 << 32), 5),
        (3 + (4 << 32), 5),
        "Upper and lower half of the seed can be swapped: they have to be mixed in different ways.",
    ),
    (
        "halves of the seed that are equal",
        (3 + (3 << 32), 5),
        (4 + (4 << 32), 5),
        "Where both halves of the seed are equal they cancel out: they have to be mixed in different ways.",
    ),
    (
        "a large seed, and the next one",
        (2**62 + 2**40 + 11, 5),
        (2**62 + 2**40 + 12, 5),
        "Large seeds that differ by 1 have the same noise: they are floating-point numbers somewhere, and rounded.",
    ),
    ("a far position", (11, 5), (11, 5 + 4096), "Positions 4,096 apart have the same noise."),
]


@case("ch14.gumbel_noise")
def another_seed_another_position(engine, check):
    """Pairs of seed and position that differ. Is the noise another one, and not the same at other tokens?"""
    for what, one, other, says in OTHERS:
        check.step(f"seed {one[0]}, position {one[1]}; then seed {other[0]}, position {other[1]}")
        got = noise_of(engine, [one[0], other[0]], [one[1], other[1]])
        if not kind_is(check, "the noise", got, 2, MANY):
            return
        if not check.true(f"{what}: other numbers", not torch.equal(got[0], got[1]), says):
            return
    check.step("and the numbers of one at any token of the other?")
    for what, one, other, _ in OTHERS:
        got = noise_of(engine, [one[0], other[0]], [one[1], other[1]])
        has_own = min(len(row.unique()) for row in got) > 0.9 * MANY  # if not, that is the next case's
        share = in_common(got[0], got[1]) if has_own else 0.0
        if not check.true(f"{what}: not the same at other tokens", share < 0.05, SAYS_SHIFTED):
            return
        both = got.double() - got.double().mean(1, keepdim=True)
        close = float((both[0] * both[1]).mean()) / float(both[0].std() * both[1].std() + 1e-12)
        says = "Where one row has a large number, so has the other: the two are not independent."
        if not check.true(f"{what}: independent", abs(close) < 0.12, says):
            return


SAYS_SHIFTED = (
    "Both rows have the same numbers, only at other tokens. Adding the token id to a mixed number, or combining it by "
    "exclusive or, only moves them: mix once more after the token id is in."
)


@case("ch14.gumbel_noise")
def inside_a_row(engine, check):
    """One sequence. Do its tokens have numbers of their own?"""
    got = noise_of(engine, [77], [12])
    if not kind_is(check, "the noise", got, 1, MANY):
        return
    num = len(got[0].unique())
    says = {1: "All tokens of a row have the same noise: the argmax stays what it was."}
    says = says.get(num, f"Of {MANY} tokens only {num} have numbers of their own.")
    if not check.true("tokens have numbers of their own", num > 0.97 * MANY, says):
        return
    row = got[0].double() - got[0].double().mean()
    for shift in (1, 2, 3, 4, 8, 16, 256):
        close = float((row[shift:] * row[:-shift]).mean() / row.var())
        says = f"The noise of a token says something about that of the token {shift} further: it is not mixed enough."
        if not check.true(f"token i and i + {shift} are independent", abs(close) < 0.12, says):
            return
    check.step("a vocabulary of 140,000 tokens")
    row = noise_of(engine, [77], [12], 140_000)[0].double()
    row = row - row.mean()
    for shift in (4096, 8192, 16384, 32768, 65536, 131_072):
        close = float((row[shift : shift + MANY] * row[:MANY]).mean() / row.var())
        says = (
            f"The noise of a token says something about that of the token {shift:,} further: not all of an id counts."
        )
        if not check.true(f"token i and i + {shift} are independent", abs(close) < 0.12, says):
            return


@case("ch14.gumbel_noise")
def alone_and_in_a_crowd(engine, check):
    """A request alone, and then as one of five, at every place. Twice the same call."""
    seeds, positions = [5, 9, 9, 2**40 + 3, 0], [7, 3, 4, 7, 0]
    got = noise_of(engine, seeds, positions, 500)
    if not kind_is(check, "the noise", got, 5, 500):
        return
    again = noise_of(engine, seeds, positions, 500)
    says = "The same call twice gives other numbers: there is randomness in it beside that of seed, position and token."
    if not check.true("the same call gives the same", torch.equal(got, again), says):
        return
    other = noise_of(engine, [seed + 100 for seed in seeds], [position + 50 for position in positions], 500)
    says = "Other seeds at other positions have the same noise: what was computed for an earlier call is given back."
    if not check.true("other seeds, other numbers", not torch.equal(got, other), says):
        return
    turned = noise_of(engine, seeds[::-1], positions[::-1], 500)
    if not kind_is(check, "the noise", turned, 5, 500):
        return
    says = "The noise goes with the place in the batch: the same requests in another order have other noise."
    if not check.true("the same in another order", torch.equal(turned.flip(0), got), says):
        return
    for row in range(5):
        alone = noise_of(engine, [seeds[row]], [positions[row]], 500)
        says = "A request alone has other noise than the same request in a batch."
        if not check.true(f"row {row} alone", torch.equal(alone[0], got[row]), says):
            return
    larger = noise_of(engine, seeds, positions, 700)
    says = "In a larger vocabulary the same tokens have other noise: the size plays a part. Only the token id should."
    if not check.true("the same in a larger vocabulary", torch.equal(larger[:, :500], got), says):
        return
    given = torch.tensor(seeds), torch.tensor(positions)
    engine.get("layers.sampler:gumbel_noise")(*given, 50)
    same = given[0].tolist() == seeds and given[1].tolist() == positions
    check.true("seeds and positions are as they were", same, "Seeds or positions were changed.")


@case("ch14.gumbel_noise")
def the_ends(engine, check):
    """`hash32` gives the smallest and the largest number that it can. Is the noise finite?"""
    sampler = engine.get("layers.sampler:")
    mix = sampler.hash32
    for name, value, end in (("smallest", 0, 0), ("largest", 2**32 - 1, 1)):
        check.step(f"hash32 gives {value} for everything")
        try:
            sampler.hash32 = lambda x, value=value: torch.full_like(x, value)
            got = noise_of(engine, [3, 4], [1, 2], 64)
        finally:
            sampler.hash32 = mix
        if kind_is(check, "the noise", got, 2, 64):
            says = (
                f"With the {name} number u becomes {end}, and -log(-log({end})) is not finite. Float32 has 24 bits, so "
                "32 are rounded: take fewer, and half a step more."
            )
            check.true(f"finite with the {name} number", bool(got.isfinite().all()), says)
            says = (
                "hash32 gave the same number for everything, and tokens of a row still differ: there is other "
                "randomness than that of hash32, or the token id comes in after the last mixing."
            )
            check.true("the same for all tokens of a row", all(len(row.unique()) == 1 for row in got), says)


@case("ch14.gumbel_noise")
def draws_are_counted(engine, check):
    """Five tokens of 40, 30, 15, 10 and 5 %. Draws with 10,000 seeds, at 10,000 positions, and pairs of neighbors."""
    chances = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
    count = 10_000
    zeros = [0] * count
    plans = {
        "seeds": (list(range(count)), [x + 8 for x in zeros]),
        "positions": ([x + 3 for x in zeros], list(range(count))),
    }
    for name, (seeds, positions) in plans.items():
        check.step(f"one draw for each of 10,000 {name}")
        got = noise_of(engine, seeds, positions, 5)
        if not kind_is(check, "the noise", got, count, 5):
            return
        least, most = float(got.min()), float(got.max())
        says = f"Of 50,000 numbers the largest is {most:.1f}; about 28 should be above 7.5. u stays away from 1."
        if not check.true("some are above 7.5", most > 7.5, says):
            return
        says = f"Of 50,000 numbers the smallest is {least:.1f}; about 30 should be below -2. u stays away from 0."
        if not check.true("some are below -2", least < -2, says):
            return
        drawn = (chances.log() + got).argmax(-1)
        counts = torch.bincount(drawn, minlength=5).tolist()
        value = chi_square(counts, [count * p for p in chances.tolist()])
        says = (
            f"Drawn {counts} times, expected 4000, 3000, 1500, 1000 and 500: argmax(logits + noise) is no draw from "
            "softmax(logits)."
        )
        if not check.true(f"as often as expected, over {name}", value < limit_of(4), says):
            return
        pairs = torch.bincount(5 * drawn[::2] + drawn[1::2], minlength=25).tolist()
        expected = [count / 2 * float(a * b) for a in chances for b in chances]
        says = f"What is drawn depends on what was drawn for the neighboring {name[:-1]}."
        if not check.true(f"neighboring {name} are independent", chi_square(pairs, expected) < limit_of(24), says):
            return


# forward


class Batch:
    """Rows of logits and what they ask for; `token` says what a row has to get, with mistakes on request."""

    def __init__(self, logits, temperatures, seeds, positions, min_p=None, top_k=None, top_p=None):
        self.logits, self.temperatures, self.seeds, self.positions = logits, temperatures, seeds, positions
        self.min_p, self.top_k, self.top_p = min_p, top_k, top_p

    def metadata(self, engine):
        make = engine.get("layers.sampler:SamplingMetadata")
        kinds = {"temperatures": torch.float32, "seeds": torch.int64, "positions": torch.int64, "min_p": torch.float32}
        kinds |= {"top_k": torch.int64, "top_p": torch.float32}
        given = {name: getattr(self, name) for name in kinds}
        return make(**{n: None if v is None else torch.tensor(v, dtype=kinds[n]) for n, v in given.items()})

    def token(self, row, noise, **wrong):
        """The token of a row; `noise` is that of all rows."""
        logits = self.logits[row].float().tolist()
        temperatures = wrong["temperatures"](self.temperatures) if "temperatures" in wrong else self.temperatures
        temperature = temperatures[row]
        if wrong.get("by_zero") and temperature == 0:
            return 0
        if wrong.get("any_greedy") and 0 in self.temperatures:
            return logits.index(max(logits))
        if temperature == 0 and not wrong.get("never_greedy"):
            if wrong.get("noisy_greedy"):
                logits = [x + n for x, n in zip(logits, noise[row].tolist(), strict=True)]
            return logits.index(max(logits))
        asked = 0 if wrong.get("first_filters") else row
        temperature = temperature or 1.0
        n = noise[0 if wrong.get("one_noise") else row].tolist()
        if wrong.get("noise_first"):
            logits, n = [x + g for x, g in zip(logits, n, strict=True)], [0.0] * len(n)
        steps = wrong.get("order", ("min_p", "k_p"))
        if not wrong.get("no_temperature") and "temperature" not in steps:
            logits = [x * temperature if wrong.get("times") else x / temperature for x in logits]
        if wrong.get("rounded"):
            logits = torch.tensor(logits).to(torch.bfloat16).tolist()
        for name in steps:
            if name == "temperature":
                logits = [x / temperature for x in logits]
            if name == "min_p" and self.min_p is not None:
                p = softmax(logits)
                logits = [x if q >= self.min_p[asked] * max(p) else NONE for x, q in zip(logits, p, strict=True)]
            if name in ("k_p", "k", "p"):
                k = self.top_k[asked] if self.top_k is not None and name != "p" else None
                p = self.top_p[asked] if self.top_p is not None and name != "k" else None
                if k is not None or p is not None:
                    logits = [x if kept else NONE for x, kept in zip(logits, keep(logits, k, p), strict=True)]
        if wrong.get("chances"):
            logits = softmax(logits)
        if wrong.get("no_noise"):
            n = [0.0] * len(n)
        if wrong.get("scaled_noise"):
            n = [g / temperature for g in n]
        scores = [x + g * wrong.get("sign", 1) for x, g in zip(logits, n, strict=True)]
        return scores.index(max(scores))


SAYS_EARLY = "Min-p comes before the temperature. It looks at what the temperature has made of the logits."
SAYS_ROUNDED = "The filters get rounded logits: in half precision tokens look equally likely that are not."
FORWARD_MISTAKES = {
    "Rows of temperature 0 are drawn, too. They are greedy.": {"never_greedy": True},
    "Rows of temperature 0 are drawn, without their filters. They are greedy.": {"noisy_greedy": True},
    "Rows of temperature 0 were divided by 0: all their logits are infinite or no numbers.": {"by_zero": True},
    "One row of temperature 0 makes the whole batch greedy.": {"any_greedy": True},
    "The temperature plays no part.": {"no_temperature": True},
    "The logits are multiplied by the temperature; they are divided by it.": {"times": True},
    "The temperature comes after the filters. They look at what it has made of the logits.": {
        "order": ("min_p", "k_p", "temperature")
    },
    SAYS_EARLY: {"order": ("min_p", "temperature", "k_p")},
    "Top-k and top-p come before min-p; it is the other way round.": {"order": ("k_p", "min_p")},
    "Top-p comes before top-k.": {"order": ("min_p", "p", "k")},
    "Min-p is left out here.": {"order": ("k_p",)},
    "Top-k and top-p are left out here.": {"order": ("min_p",)},
    "Top-p is left out here.": {"order": ("min_p", "k")},
    "Top-k is left out here.": {"order": ("min_p", "p")},
    "All filters are left out here.": {"order": ()},
    "The noise is added before the filters: then they look at noise, too.": {"noise_first": True},
    "The most likely token always wins, as at temperature 0: no noise is added, or all rows are taken for greedy.": {
        "no_noise": True
    },
    "The noise is divided by the temperature as well: then the temperature changes nothing but the filters.": {
        "scaled_noise": True
    },
    "All rows get the filters of the first one.": {"first_filters": True},
    SAYS_ROUNDED: {"rounded": True},
    "The first row decides for all of them whether they are greedy.": {
        "temperatures": lambda given: [t or 1.0 for t in given] if given[0] else [0.0] * len(given)
    },
    "All rows have the temperature of the first one.": {"temperatures": lambda given: [given[0]] * len(given)},
    "All drawn rows have the same temperature, the mean of theirs.": {
        "temperatures": lambda given: [t and sum(given) / sum(t > 0 for t in given) for t in given]
    },
    "The noise is subtracted.": {"sign": -1},
    "The noise is added to probabilities; it belongs to logits.": {"chances": True},
    "All rows get the noise of the first one.": {"one_noise": True},
}


SAYS_SWAPPED = "Seeds and positions are swapped in the call of gumbel_noise."
SAYS_LOW = "Rows of a low temperature are taken for greedy. Only those of 0 are."
SAYS_FILTERED = (
    "The temperature plays no part here, where filters are asked for: they have to be given what it has made of the "
    "logits."
)
SAYS_AS_ONE = "All temperatures act as 1: they are left out, or the noise is divided by them as well."
SAYS_NO_FILTER = "A filter that is asked for has no effect: it is left out, or it comes after the noise."
SAYS_METADATA = "The metadata was changed: {}. Its tensors are asked for again in the next step, by the same rows."
SAYS_TINY = (
    "Rows of temperature 0 are drawn at a very low temperature: tokens that are nearly as likely win, too. Such rows "
)
SAYS_TINY += "are greedy."
SAYS_UNMOVED = (
    "At other positions the same tokens are drawn: the noise is not that of gumbel_noise, by seeds and positions."
)
SAYS_AGAIN = "The same call gives other tokens when it is made again. The noise has to come from gumbel_noise alone."


def low_is_greedy(bound):
    return {"temperatures": lambda given: [0.0 if t < bound else t for t in given]}


def zero_is(low):
    return {"temperatures": lambda given: [t or low for t in given]}


def text_of(texts, batch):
    """Which of the mistakes that all fit is said; None if it cannot be told."""
    has_filters = any(given is not None for given in (batch.min_p, batch.top_k, batch.top_p))
    texts = list(dict.fromkeys(texts))
    texts = [text for text in texts if text != SAYS_EARLY] or texts  # with min-p alone, all filters come before
    if any("are drawn" in text for text in texts):  # an earlier case would have shown that it is the first row's doing
        texts = [text for text in texts if not text.startswith(("The first row decides", "All rows have the temp"))]
    if "The temperature plays no part." in texts:
        if not has_filters:
            return SAYS_AS_ONE
        others = [text for text in texts if not text.startswith(("The noise is divided", "The noise is added before"))]
        return SAYS_FILTERED if len(others) == 1 else None
    if len(texts) > 1 and all(" left out here." in text or "noise is added before" in text for text in texts):
        return SAYS_NO_FILTER
    pairs = ("makes the whole batch greedy", "are drawn")
    if len(texts) == 2 and (pairs[0] in texts[0] or all(pairs[1] in text for text in texts)):
        return texts[0]
    return texts[0] if len(texts) == 1 else None


def observe_forward(engine, check, batch, what, earlier=None, sure=None):
    """One call, and the same again; `earlier` is the noise of the call before, `sure` is said if it fits at all."""
    sampler = engine.get("layers.sampler:Sampler")()
    logits = batch.logits.clone()
    asked = [f"temperatures {batch.temperatures}"]
    asked += [
        f"{name} {getattr(batch, name)}" for name in ("min_p", "top_k", "top_p") if getattr(batch, name) is not None
    ]
    missing = [name for name in ("min_p", "top_k", "top_p") if getattr(batch, name) is None]
    text = f"No row of this batch asks for {' or '.join(missing)}: that is None." if missing else ""
    errors = dict.fromkeys(("AttributeError", "TypeError"), text)
    check.step(f"{what}: {', '.join(asked)}" if len(logits) < 9 else f"{what}: {len(logits)} rows", says=errors)
    make_noise = engine.get("layers.sampler:gumbel_noise")
    seeds, positions = torch.tensor(batch.seeds), torch.tensor(batch.positions)
    noise = make_noise(seeds, positions, logits.shape[1])
    metadata = batch.metadata(engine)
    got = sampler.forward(logits, metadata)
    rows = range(len(logits))

    expected = [batch.token(row, noise) for row in rows]

    def says(value):
        def fits(noise=noise, **wrong):
            return all(batch.token(row, noise, **wrong) == value[row] for row in rows)

        texts = [text for text, wrong in FORWARD_MISTAKES.items() if fits(**wrong)]
        texts += [SAYS_LOW for bound in (0.005, 0.02, 0.05, 0.15, 0.5, 1.0) if fits(**low_is_greedy(bound))]
        texts += [SAYS_TINY for low in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7) if fits(**zero_is(low))]
        for text, *given in (
            (SAYS_SWAPPED, positions, seeds),
            ("All rows get noise by the seed of the first one.", seeds[:1].expand_as(seeds), positions),
            ("The noise is that of the next position.", seeds, positions + 1),
            ("The noise is that of the position before.", seeds, (positions - 1).clamp(min=0)),
        ):
            if fits(make_noise(*given, logits.shape[1])):
                texts.append(text)
        if earlier is not None and fits(earlier):
            texts.append("The noise is that of the call before: something is kept between calls.")
        text = sure if sure in texts else text_of(texts, batch)
        if text is None and batch.logits.dtype != torch.float32:
            wide = sampler.forward(batch.logits.float(), batch.metadata(engine))
            if isinstance(wide, torch.Tensor) and wide.tolist() == expected:
                return "With the same logits as float32 the tokens are right: something is computed in half precision."
        if text is None and not texts and len(rows) >= 20:
            far = Batch(batch.logits, batch.temperatures, batch.seeds, [p + 1000 for p in batch.positions])
            for name in ("min_p", "top_k", "top_p"):
                setattr(far, name, getattr(batch, name))
            moved = sampler.forward(batch.logits.clone(), far.metadata(engine))
            if isinstance(moved, torch.Tensor) and moved.tolist() == value:
                return SAYS_UNMOVED
        return text

    if not isinstance(got, torch.Tensor):
        observe_tokens(check, got, expected)
        return noise
    if not check.true("the logits that came in are as they were", torch.equal(logits, batch.logits), SAYS_CHANGED):
        return noise
    given = {key: value for key, value in vars(batch.metadata(engine)).items() if value is not None}
    changed = [key for key, value in given.items() if not torch.equal(getattr(metadata, key), value)]
    if not check.true("so is the metadata", not changed, SAYS_METADATA.format(" and ".join(changed))):
        return noise
    again = sampler.forward(logits, metadata)
    if check.true("the same call gives the same tokens again", torch.equal(got, again), SAYS_AGAIN):
        observe_tokens(check, got, expected, says)
    return noise


def observe_tokens(check, got, expected, says=None):
    if not isinstance(got, torch.Tensor):
        text = "Nothing came back: a return is missing." if got is None else "A tensor of token ids is asked for."
        return check.equal("type of what comes back", type(got).__name__, "Tensor", text)
    text = "One token id for each row, in a tensor with a single dimension."
    if not check.equal("its shape", list(got.shape), [len(expected)], text):
        return False
    kind = str(got.dtype).removeprefix("torch.")
    if not check.equal("its dtype", kind, "int64", f"Token ids are int64, and these are {kind}."):
        return False
    return check.equal("the tokens", got.tolist(), expected, says)


def logits_of(seed, num_rows, vocab_size=24, scale=1.5, dtype=torch.float32):
    return tensor_of(random_rows(seed, num_rows, vocab_size, scale)).to(dtype)


@case("ch14.forward")
def all_greedy(engine, check):
    """No metadata: every row is greedy. The second batch has three rows of the bfloat16 that a model computes in."""
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.tensor([[0.5, 2.0, -1.0, 1.0], [-3.0, -2.0, -9.0, -0.5], [4.0, 1.0, 2.0, 3.0]], dtype=dtype)
        check.step(f"three rows of {str(dtype).removeprefix('torch.')}, no metadata", says=SAYS_NO_METADATA)
        got = engine.get("layers.sampler:Sampler")().forward(logits, None)
        says = "The largest logits are those of tokens 1, 3 and 0."
        if not observe_tokens(check, got, [1, 3, 0], says):
            return


SAYS_NO_METADATA = {
    "AttributeError": "Where no row asks for anything, there is no metadata: it is None, and has no temperatures.",
}


@case("ch14.forward")
def temperatures_only(engine, check):
    """Forty rows with temperatures of their own, and no filter."""
    temperatures = [0.3, 0.7, 1.0, 1.3, 2.0, 4.0, 0.9, 1.6] * 5
    seeds = [[4, 8, 15, 16, 23, 42, 2**35 + 1, 7][i % 8] + 10 * i for i in range(40)]
    positions = [[3, 9, 9, 12, 1, 30, 2, 5][i % 8] + i // 3 for i in range(40)]
    observe_forward(engine, check, Batch(logits_of(5, 40), temperatures, seeds, positions), "no filters")


@case("ch14.forward")
def greedy_rows_among_others(engine, check):
    """Of eight rows every second has temperature 0, and all its logits are below 0. Filters are asked for, too."""
    logits = logits_of(6, 8) - 9
    temperatures = [1.5, 0.0] * 4
    seeds, positions = list(range(60, 68)), list(range(5, 13))
    observe_forward(engine, check, Batch(logits, temperatures, seeds, positions), "half of them greedy")
    filters = {"min_p": [0.05] * 8, "top_k": [20] * 8, "top_p": [0.9] * 8}
    observe_forward(engine, check, Batch(logits, temperatures, seeds, positions, **filters), "with filters")
    lifted = logits + 18
    observe_forward(engine, check, Batch(lifted, temperatures, seeds, positions, **filters), "logits above 0")
    temperatures = [0.0, *temperatures[:-1]]
    observe_forward(engine, check, Batch(lifted, temperatures, seeds, positions, **filters), "the first one greedy")


@case("ch14.forward")
def close_calls(engine, check):
    """Greedy rows whose best tokens are equally likely to five digits, and drawn rows of temperatures down to 0.01."""
    ranks = torch.arange(24).roll(7).float()
    near = torch.stack([ranks.roll(i) * 2e-6 for i in range(12)])
    temperatures, seeds, positions = [0.0] * 12 + [1.2] * 4, list(range(16)), list(range(3, 19))
    batch = Batch(torch.cat([near, logits_of(12, 4)]), temperatures, seeds, positions)
    observe_forward(engine, check, batch, "nearly the same")
    temperatures = [0.01, 0.03, 0.1, 0.3, 0.8, 1.4] * 6
    logits = logits_of(13, 36, scale=1.0) * torch.tensor(temperatures).unsqueeze(-1)
    observe_forward(engine, check, Batch(logits, temperatures, list(range(36)), list(range(36))), "low temperatures")


@case("ch14.forward")
def wishes_of_their_own(engine, check):
    """Twelve rows that ask for top-k only, and 48 with all kinds of wishes."""
    num = 48
    batch = Batch(logits_of(15, 12), [1.5] * 12, list(range(12)), list(range(12)), None, [24, 1, 9, 5] * 3)
    observe_forward(engine, check, batch, "top-k only, for some of them 1")
    wishes = {
        "min_p": [[0.0, 0.1, 0.3][i % 3] for i in range(num)],
        "top_k": [[24, 12, 5, 1, 8][i % 5] for i in range(num)],
        "top_p": [[0.95, 1.0, 0.7, 0.85][i % 4] for i in range(num)],
    }
    temperatures = [[1.3, 0.6, 0.0, 2.0, 1.0, 0.8, 1.7][i % 7] for i in range(num)]
    seeds, positions = [5 * i for i in range(num)], [i % 11 for i in range(num)]
    batch = Batch(logits_of(14, num), temperatures, seeds, positions, **wishes)
    observe_forward(engine, check, batch, "rows with all kinds of wishes")


@case("ch14.forward")
def one_batch_after_the_other(engine, check):
    """Two batches of the same size, with other seeds."""
    noise = None
    for first in (0, 500):
        batch = Batch(logits_of(16, 20), [1.2] * 20, list(range(first, first + 20)), list(range(20)))
        noise = observe_forward(engine, check, batch, f"seeds from {first} on", noise)


@case("ch14.forward")
def each_filter_alone(engine, check):
    """64 rows with one filter only; the others are None."""
    num = 64
    for name, value in (("min_p", 0.3), ("top_k", 3), ("top_p", 0.6)):
        batch = Batch(logits_of(7, num), [1.4] * num, list(range(num)), [6] * num, **{name: [value] * num})
        observe_forward(engine, check, batch, f"{name} {value}, temperature 1.4")


@case("ch14.forward")
def filters_in_their_order(engine, check):
    """200 rows in which all three filters drop something, at a temperature that changes what they drop."""
    num = 200
    for temperature in (0.6, 1.7):
        batch = Batch(
            logits_of(8, num, 24, 1.2),
            [temperature] * num,
            [3 * i for i in range(num)],
            [i % 17 for i in range(num)],
            min_p=[0.35] * num,
            top_k=[6] * num,
            top_p=[0.85] * num,
        )
        observe_forward(engine, check, batch, f"all filters, temperature {temperature}")
    close = 5 + torch.stack([torch.arange(24).roll(5 * i) * 8e-4 for i in range(12)])
    batch = Batch(close, [0.9] * 12, list(range(12)), list(range(12)), None, [5] * 12)
    observe_forward(engine, check, batch, "top-k 5 of tokens that are close", sure=SAYS_ROUNDED)


@case("ch14.forward")
def half_precision(engine, check):
    """Forty rows of bfloat16 logits, drawn."""
    num = 40
    logits = logits_of(9, num, 400, 1.0, torch.bfloat16)
    batch = Batch(logits, [0.37 + i / 20 for i in range(num)], list(range(num)), list(range(num)))
    observe_forward(engine, check, batch, "bfloat16")
    batch = Batch(logits, [0.85] * num, list(range(num)), list(range(num)), top_p=[0.8] * num)
    observe_forward(engine, check, batch, "bfloat16 with top-p")


@case("ch14.forward")
def the_same_request_in_a_crowd(engine, check):
    """A row alone, and the same one as the last of nine: the same token."""
    logits = logits_of(10, 9)
    seeds, positions = [7 * i for i in range(9)], [i + 2 for i in range(9)]
    crowd = Batch(logits, [1.1] * 9, seeds, positions)
    observe_forward(engine, check, crowd, "nine rows")
    alone = Batch(logits[8:], [1.1], seeds[8:], positions[8:])
    observe_forward(engine, check, alone, "the last of them alone")


# my_rule: an open exercise


def ruled(check, rule, logits, texts):
    """What the rule makes of some rows, after a look at what holds for every answer; None if something does not."""
    before, copies = logits.clone(), [list(text) for text in texts]
    got = rule(logits, copies)
    if not kind_is(check, "what my_rule returns", got, *before.shape):
        return None
    same = torch.equal(logits, before) and copies == [list(text) for text in texts]
    if not check.true("what came in is as it was", same, "The logits or the texts that came in were changed."):
        return None
    if not check.true("there is no nan", not got.isnan().any(), "There is nan among the logits."):
        return None
    highest = got.amax(dim=-1)
    says = "In some row no token is left: all of its logits are -inf. Or one of them is inf."
    return got if check.true("a token is left in each row", bool(highest.isfinite().all()), says) else None


@case("ch14.my_rule")
def choices_and_right_answers(engine, check):
    """Along the recorded stories and tasks: how many choices does the rule leave, and what comes out right?"""
    rule = engine.get("labs:my_rule")
    here = story_work.places("stories")
    if ruled(check, rule, here.logits[:40].clone(), here.texts[:40]) is None:
        return
    judged = story_work.judge(rule)
    check.measured(
        f"{judged.choices:.2f} choices in stories (temperature 0.8 and top-p 0.95: 1.68), log-probability "
        f"{judged.likelihood:.2f}, {100 * judged.right:.2f} % of the tasks right (99.24)"
    )
    says = "The stories have too few choices. Where is the model unsure because many tokens are good?"
    check.true(f"at least {story_work.CHOICES} choices", judged.choices >= story_work.CHOICES, says)
    says = "Too many tasks go wrong. In the last digit of a sum no choice is wanted: how can a rule tell?"
    check.true(f"at least {100 * story_work.RIGHT:.1f} % of the tasks right", judged.right >= story_work.RIGHT, says)
    says = "What is chosen in stories is too unlikely: a long tail of tokens that the model does not believe in."
    check.true("likely enough in stories", judged.likelihood >= story_work.LIKELIHOOD, says)


@case("ch14.my_rule")
def alone_and_among_others(engine, check):
    """Rows of stories and tasks in one batch, in another order, and alone."""
    rule = engine.get("labs:my_rule")
    stories, tasks = story_work.places("stories"), story_work.places("tasks")
    logits = torch.cat([stories.logits[100:110], tasks.logits[20:30]])
    texts = [*stories.texts[100:110], *tasks.texts[20:30]]
    got = ruled(check, rule, logits.clone(), texts)
    if got is None:
        return
    order = list(range(19, -1, -1))
    turned = ruled(check, rule, logits[order].clone(), [texts[i] for i in order])
    says = "In another order of the batch the same rows get other logits."
    if turned is None or not check.true(
        "the same in another order", torch.allclose(turned[order], got, atol=1e-4), says
    ):
        return
    for row in (0, 7, 13, 19):
        alone = ruled(check, rule, logits[row : row + 1].clone(), [texts[row]])
        says = "A row alone gets other logits than in a batch."
        if alone is None or not check.true(f"row {row} alone", torch.allclose(alone[0], got[row], atol=1e-4), says):
            return


@case("ch14.my_rule")
def odd_rows(engine, check):
    """A row in which all tokens are equally likely, one with a token that is certain, and one with huge logits."""
    rule = engine.get("labs:my_rule")
    rows = torch.zeros(4, 2048)
    rows[1, 7] = 80.0
    rows[2] = torch.linspace(-300.0, 300.0, 2048)
    rows[3] = -1000.0 + torch.linspace(0.0, 3.0, 2048)
    ruled(check, rule, rows, [[], [1], [5, 5, 5], list(range(300))])
