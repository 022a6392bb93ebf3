"""Grader of chapter 04. What is right is said by dealing tokens into boxes and playing engine and worker by hand."""

import numbers
import pickle
import random

from exercises.kit.grading import Check, Engine, case


def make(engine: Engine, token_ids, block_size: int = 4, **attributes):
    """A sequence whose prompt is `token_ids`, and some of its attributes set."""
    seq = engine.get("engine.sequence:Sequence")(list(token_ids), block_size=block_size, seq_id=7)
    for name, value in attributes.items():
        setattr(seq, name, value)
    return seq


def boxes(token_ids, block_size: int) -> list[list[int]]:
    """Tokens dealt into boxes, one after the other; a new box only for a token that has no place."""
    dealt: list[list[int]] = []
    for token_id in token_ids:
        if not dealt or len(dealt[-1]) == block_size:
            dealt.append([])
        dealt[-1].append(token_id)
    return dealt


def generate(seq, token_ids) -> None:
    """What it means that a sequence gets longer, without `append_token`."""
    seq.token_ids = [*seq.token_ids, *token_ids]
    seq.num_tokens = len(seq.token_ids)
    seq.last_token = seq.token_ids[-1]


def status(engine: Engine, name: str):
    return getattr(engine.get("engine.sequence:SequenceStatus"), name)


# num_blocks


class Number:
    """A count as it came back: equal to an integer of the same value, of any library, and to nothing else."""

    def __init__(self, value):
        self.value = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value

    def __eq__(self, other):
        return isinstance(other, Number) and type(self.value) is type(other.value) and self.value == other.value

    __hash__ = None

    def __repr__(self):
        return repr(self.value) if isinstance(self.value, int | float | None) else f"a {type(self.value).__name__}"


def observe_num_blocks(check: Check, seq, expected: int, what: str = "num_blocks") -> None:
    """Ask for the property, and say what a wrong answer means."""
    count, size = seq.num_tokens, seq.block_size

    def says(got):
        value = got.value
        if callable(value):
            return "seq.num_blocks is a method here. It has to be a property: @property stands above def."
        if value is None:
            return "None came back: the number has to be returned."
        if isinstance(value, float):
            return (
                f"A float came back, {value}. Blocks are whole, and an int is promised: / and float() make a float of "
                "any number, // of two integers is an integer."
            )
        if not isinstance(value, int) or isinstance(value, bool):
            return f"A {type(value).__name__} came back; an int is promised."
        return wrong_count(seq, value, expected)

    errors = {
        "RecursionError": "The property asks for something that asks for num_blocks again, and so on without end.",
        "IndexError": "It asks for a block that is not there; a sequence that waits has none. Its tokens say how many.",
    }
    check.step(f"{count} tokens in blocks of {size}", says=errors)
    check.equal(what, Number(seq.num_blocks), Number(expected), says=says)


def other_num_blocks(seq, count: int, table=()):
    """What the property says of another sequence, with so many tokens and this block table."""
    other = type(seq)(list(range(count)), block_size=seq.block_size, seq_id=8)
    other.block_table = list(table)
    return other.num_blocks


def no_block(seq) -> str:
    """What it means that 0 came out for fewer tokens than a block holds: other sequences tell."""
    count, size = seq.num_tokens, seq.block_size
    fact = f"0 came out, but {count} {'token needs' if count == 1 else 'tokens need'} a place, and so a block."
    if not seq.block_table and [other_num_blocks(seq, count, table) for table in ([5], [5, 6])] == [1, 2]:
        return f"{fact} 0 is how many physical blocks its table has; the question is how many its tokens need."
    if size > 2 and other_num_blocks(seq, size - 1) == 1:
        return f"{fact} For {size - 1} tokens you say 1. A block that is begun counts, however little is in it."
    if size > 2 and (other_num_blocks(seq, size - 1), other_num_blocks(seq, size + 1)) == (0, 1):
        return (
            f"{fact} For {size - 1} tokens you say 0 as well, and for {size + 1} 1: as many as are full. The last one, "
            "which is not, counts, too."
        )
    return fact


def _blocks(count: int) -> str:
    return "one block" if count == 1 else f"{count} blocks"


def wrong_count(seq, got: int, expected: int) -> str | None:
    count, size = seq.num_tokens, seq.block_size
    reasons = {}
    if count % size == 0 and got == expected + 1:
        return (
            f"{count} tokens fill {_blocks(expected)} of {size} to the last slot. The next block comes "
            "with the next token."
        )
    if got == len(seq.block_table) and seq.block_table:
        reasons["physical blocks in its table"] = got
    if seq.num_prompt_tokens < count and got == len(boxes(range(seq.num_prompt_tokens), size)):
        return (
            f"That is as many as the {seq.num_prompt_tokens} tokens of the prompt need. Generated "
            "tokens need a place, too."
        )
    if not seq.token_ids and got == 0:
        return "The list token_ids is empty in a worker; num_tokens still says how many tokens there are."
    if got == 0 and count < size:
        return no_block(seq)
    if not seq.block_table and got == 0:
        return "0 came out. The question is how many blocks the tokens need, also while it has none and waits."
    if reasons:
        return f"{got} is how many physical blocks its table has. The question is how many its tokens need."
    if got == count // size and count % size:
        left = "1 is left over. It needs" if count % size == 1 else f"{count % size} are left over. They need"
        return f"{count} tokens fill {_blocks(got)} of {size}, and {left} a place, too."
    if got == count:
        return f"That is the number of tokens. A block holds {size} of them."
    if got < expected:
        return f"{got} blocks of {size} have {got * size} slots, too few for {count} tokens."
    return f"{got} blocks of {size}: the last one would have no token in it."


@case("ch04.num_blocks")
def around_a_full_block(engine, check):
    """Prompts of 1 to 13 tokens, in blocks of four."""
    for num_tokens in range(1, 14):
        seq = make(engine, range(num_tokens))
        observe_num_blocks(check, seq, len(boxes(range(num_tokens), 4)), f"num_blocks of {num_tokens} tokens")


@case("ch04.num_blocks")
def asked_without_parentheses(engine, check):
    """Whoever wants the number writes seq.num_blocks, without parentheses, as for an attribute."""
    seq = make(engine, range(10))
    check.step("seq.num_blocks is read")
    observe_num_blocks(check, seq, 3)


SIZES = [(1, (1, 2, 9)), (3, (2, 3, 4, 30, 31)), (256, (1, 255, 256, 257, 2560, 2561)), (4096, (1, 4096, 4097, 40961))]


@case("ch04.num_blocks")
def other_block_sizes(engine, check):
    """Blocks of one token, of three, of 256, of 4096."""
    for block_size, lengths in SIZES:
        for num_tokens in lengths:
            seq = make(engine, range(num_tokens), block_size)
            expected = len(boxes(range(num_tokens), block_size))
            observe_num_blocks(check, seq, expected, f"num_blocks of {num_tokens} tokens in blocks of {block_size}")


@case("ch04.num_blocks")
def it_grows_with_the_answer(engine, check):
    """A prompt of six tokens, and then one generated token after the other. They need a place, too."""
    seq = make(engine, range(6))
    generate(seq, [97, 98])
    for token_id in range(99, 112):
        generate(seq, [token_id])
        what = f"num_blocks with 6 prompt tokens and {seq.num_tokens - 6} generated ones"
        observe_num_blocks(check, seq, len(boxes(seq.token_ids, 4)), what)


@case("ch04.num_blocks")
def whatever_blocks_it_has(engine, check):
    """Ten tokens in blocks of four. The sequence waits and has no blocks; later it has them, then loses them again."""
    seq = make(engine, range(10))
    for table in ([], [5, 0], [5, 0, 9], [5, 0, 9, 7], []):
        check.step(f"its block table is {table}")
        seq.block_table = list(table)
        observe_num_blocks(check, seq, 3)
        check.equal("its block table afterwards", seq.block_table, table, says="Asking for a number changed the table.")


@case("ch04.num_blocks")
def after_a_preemption_with_an_answer(engine, check):
    """Six prompt tokens and five generated ones; it has lost its blocks, and nothing is cached."""
    seq = make(engine, range(6), status=status(engine, "WAITING"))
    generate(seq, [90, 91, 92, 93, 94])
    for cached, scheduled in ((0, 0), (0, 7), (4, 3), (7, 4)):
        seq.num_cached_tokens, seq.num_scheduled_tokens = cached, scheduled
        check.step(f"{cached} tokens are cached, {scheduled} scheduled")
        observe_num_blocks(check, seq, 3, f"num_blocks with {cached} cached and {scheduled} scheduled")


@case("ch04.num_blocks")
def in_a_worker(engine, check):
    """A worker process gets the sequence without its list of tokens. num_tokens still says how many there are."""
    seq = make(engine, range(10))
    seq.token_ids = []
    check.step("num_tokens is 10, token_ids is []")
    observe_num_blocks(check, seq, 3)


# block


def outcome(seq, i: int) -> str:
    """What block(i) gives: its tokens, or the error that it raises."""
    try:
        return f"returned {seq.block(i)!r}"
    except (LookupError, ValueError, TypeError, ArithmeticError, AssertionError) as error:
        return f"raised {'IndexError' if isinstance(error, IndexError) else type(error).__name__}"


def wrong_block(seq, i: int, box):
    """What a wrong outcome of block(i) means; `box` is None where there is no such block."""
    tokens, size = list(seq.token_ids), seq.block_size

    def says(got):
        if got == "returned None":
            return (
                "None came back: the tokens have to be returned."
                if box
                else (f"None came back for block {i}, and no IndexError was raised.")
            )
        if got.startswith("raised") and box is None:
            return f"There is no block {i}, and it is refused, but with {got[7:]}; IndexError is promised."
        if got.startswith("raised"):
            table = (
                (f" Its table has {len(seq.block_table)} physical blocks, which does not matter here.")
                if len(seq.block_table) <= i
                else ""
            )
            part = f" It has {len(box)} tokens of {size} that would fit." if len(box) < size else ""
            return f"Block {i} exists, and is refused.{part}{table}"
        if box is None and i < 0:
            return f"There is no block {i}; a slice with negative numbers counts from the end, and says nothing."
        if box is None:
            return (
                f"There is no block {i}: the last one is {len(boxes(tokens, size)) - 1}. A slice "
                "beyond the end of a list is empty, and says nothing."
            )
        if got.startswith("returned (") or not got.startswith("returned ["):
            return "The tokens came back as something else than a list; a list is promised."
        if got == f"returned {tokens[i : i + size]!r}":
            return f"These are the tokens from {i} on. Block {i} begins after {i} whole blocks."
        if seq.num_completion_tokens and got == f"returned {seq.prompt_token_ids[i * size : (i + 1) * size]!r}":
            return "Only tokens of the prompt came back. Generated ones have their places in blocks, too."
        if got == f"returned {box[:-1]!r}":
            return "The last token is missing. The end of a slice is not part of it."
        if got == f"returned {tokens[i * size :]!r}":
            return f"All tokens from the beginning of block {i} on came back; a block holds {size}."
        if i and got == f"returned {tokens[(i - 1) * size : i * size]!r}":
            return "That is the block before. Blocks are numbered from 0."
        return (
            f"Block {i} holds the tokens at places {i * size} to {i * size + len(box) - 1} of the list, and no others."
        )

    return says


def observe_block(check: Check, seq, i: int, box) -> None:
    """Ask for a block that exists, or, with `box` None, for one that does not."""
    expected = "raised IndexError" if box is None else f"returned {box!r}"
    check.equal(f"what block({i}) does", outcome(seq, i), expected, says=wrong_block(seq, i, box))


@case("ch04.block")
def ten_tokens(engine, check):
    """Ten tokens in blocks of four: two full blocks, and one with two tokens."""
    seq = make(engine, range(20, 30), block_table=[9, 3, 5])
    check.step("the tokens are 20 to 29, block_size is 4")
    for i, box in enumerate([[20, 21, 22, 23], [24, 25, 26, 27], [28, 29]]):
        observe_block(check, seq, i, box)


@case("ch04.block")
def there_is_no_such_block(engine, check):
    """Somebody asks for a block before the first one, or after the last one."""
    for num_tokens in (8, 10):
        seq = make(engine, range(20, 20 + num_tokens), block_table=[9, 3, 5][: -(-num_tokens // 4)])
        count = len(boxes(seq.token_ids, 4))
        check.step(f"the tokens are 20 to {19 + num_tokens}, block_size is 4: blocks 0 to {count - 1}")
        for i in (-1, -2, -count, -count - 1, count, count + 1, count + 50):
            observe_block(check, seq, i, None)


@case("ch04.block")
def it_waits_and_has_no_blocks_yet(engine, check):
    """The block manager looks at the tokens of a block before the sequence has any physical one."""
    seq = make(engine, range(20, 30))
    for table in ([], [9], [9, 3, 5], [9, 3, 5, 2]):
        check.step(f"its block table is {table}")
        seq.block_table = table
        for i, box in enumerate([[20, 21, 22, 23], [24, 25, 26, 27], [28, 29]]):
            observe_block(check, seq, i, box)
        observe_block(check, seq, 3, None)


@case("ch04.block")
def generated_tokens_are_in_it(engine, check):
    """A prompt of six tokens; an answer follows. Then it is preempted, and keeps its tokens."""
    seq = make(engine, range(6))
    for token_id in range(100, 108):
        generate(seq, [token_id])
        check.step(f"token {token_id} is generated; there are {seq.num_tokens}")
        box = boxes(seq.token_ids, 4)
        observe_block(check, seq, len(box) - 1, box[-1])
    seq.num_cached_tokens, seq.block_table, seq.status = 0, [], status(engine, "WAITING")
    check.step("it is preempted")
    for i, one in enumerate(boxes(seq.token_ids, 4)):
        observe_block(check, seq, i, one)


@case("ch04.block")
def together_they_are_the_tokens(engine, check):
    """All blocks in order, for many lengths and block sizes. And asking changes nothing."""
    for block_size in (1, 2, 3, 16):
        for num_tokens in (1, 2, 3, 15, 16, 17, 48):
            seq = make(engine, range(num_tokens), block_size)
            dealt = boxes(range(num_tokens), block_size)
            check.step(f"{num_tokens} tokens in blocks of {block_size}")
            blocks = [seq.block(i) for i in range(len(dealt))]
            check.equal(
                "all its blocks",
                blocks,
                dealt,
                says=("Put together, the blocks are not the tokens, each of them once."),
            )
            if isinstance(blocks[0], list):
                blocks[0].append(-5)
            says = "What comes back is the sequence's own list: whoever changes it changes the sequence."
            check.equal("its tokens afterwards", seq.token_ids, list(range(num_tokens)), says=says)
            says = "The list that came back before was changed by its owner, and now it comes back again."
            check.equal("the first block, asked again", outcome(seq, 0), f"returned {dealt[0]!r}", says=says)


# append_token

REST_SAYS = {
    "num_prompt_tokens": "The prompt has grown. A generated token is no part of it.",
    "num_cached_tokens": (
        "The token counts as cached, but no model has read it: its keys and values come in the next step."
    ),
    "num_scheduled_tokens": (
        "What is scheduled was changed. The scheduler does that, when a step has ended and when one begins."
    ),
    "block_table": "The block table was changed. The block manager gives blocks.",
    "finish_reason": "The sequence was ended. Whether it ends is for the scheduler to say.",
    "stop_reason": "The sequence was ended. Whether it ends is for the scheduler to say.",
    "status": "The status was changed. The scheduler does that.",
    "block_hashes": "The hashes were changed. Full blocks keep them; the block manager computes those of new ones.",
    "num_prefix_hit_tokens": "What was found in the cache when it was admitted is written down, and stays so.",
}


def rest_of(seq) -> dict[str, str]:
    """All attributes but those that tell of the tokens, as texts."""
    return {
        name: repr(value) for name, value in vars(seq).items() if name not in ("token_ids", "last_token", "num_tokens")
    }


def append(check: Check, seq, token_id) -> None:
    """Append a token, and look at all that this must not change."""
    before = rest_of(seq)
    seq.append_token(token_id)
    after = rest_of(seq)
    for name, value in before.items():
        says = REST_SAYS.get(name, f"{name} was changed. Three attributes tell of the tokens, and only they change.")
        check.equal(name, after.get(name), value, says=says)
    check.equal("attributes that it had not before", sorted(set(after) - set(before)), [])


def wrong_tokens(before, token_id):
    """What a wrong list of tokens means."""

    def says(got):
        if got is None:
            return "token_ids is None now. list.append changes the list itself, and returns nothing that could be kept."
        if got == before:
            more = " 0 is a token like any other." if token_id == 0 else ""
            more = " That it is in the list already does not matter." if token_id in before else more
            return f"The list is as it was: the token was not appended.{more}"
        if got == [*before, token_id, token_id]:
            return "The token was appended twice."
        if got == [token_id]:
            return "The tokens before it are gone; the new one comes behind them."
        if got == [token_id, *before]:
            return "The token stands in front of the others; it comes last."
        if got == [*before[:-1], token_id]:
            return "The token has taken the place of the one before it."
        if isinstance(got, list) and got and isinstance(got[-1], list):
            return "A list was appended, not the token in it."
        if isinstance(got, list) and sorted(got) == sorted([*before, token_id]):
            return "The token was put in between others; it comes last, behind all that were there."
        return None

    return says


def observe_appended(check: Check, seq, before, token_id) -> None:
    """The three attributes that tell of the tokens, after one was appended."""
    count = len(before) + 1
    check.equal("token_ids", seq.token_ids, [*before, token_id], says=wrong_tokens(before, token_id))
    early = "last_token is still the one before. It was not changed, or too early."
    other = f"last_token is the token that was appended, {token_id}: the id itself, not its place, and no list."
    check.equal("last_token", seq.last_token, token_id, says=lambda got: early if got == before[-1] else other)
    fewer = {
        1: "num_tokens is 1 now. It grows by one: += 1 adds one, =+ 1 sets it to one.",
        count - 1: "num_tokens is what it was, but there is one token more. It is stored, so nobody counts for you.",
        count + 1: "num_tokens has grown by two, for one token.",
    }
    check.equal("num_tokens", seq.num_tokens, count, says=fewer)


@case("ch04.append_token")
def the_first_token(engine, check):
    """A prompt of three tokens has been computed. The model's first token is 50."""
    seq = make(engine, [10, 11, 12], num_cached_tokens=3, block_table=[2])
    errors = {
        "AttributeError": "An attribute was used that is not there or cannot be set. What follows from others, such as "
        "num_completion_tokens, is a property: nobody sets it.",
        "TypeError": "token_id is a single number, no list: + and extend take a list, append takes the number.",
    }
    check.step("append_token(50)", says=errors)
    seq.append_token(50)
    observe_appended(check, seq, [10, 11, 12], 50)
    check.equal("len(seq)", len(seq), 4)


@case("ch04.append_token")
def an_answer_of_nine(engine, check):
    """One token after the other; some are equal, one is 0."""
    seq, answer = make(engine, range(5)), []
    for token_id in (50, 51, 51, 0, 7, 50, 3, 3, 3):
        check.step(f"append_token({token_id})")
        append(check, seq, token_id)
        observe_appended(check, seq, [*range(5), *answer], token_id)
        answer.append(token_id)
        check.equal("num_blocks", seq.num_blocks, len(boxes([*range(5), *answer], 4)))
        says = "The answer is what stands behind the first num_prompt_tokens tokens, and that number has changed."
        check.equal("the tokens of the answer", seq.completion_token_ids, answer, says=says)
    check.equal("the tokens of the prompt", seq.prompt_token_ids, list(range(5)))


@case("ch04.append_token")
def the_rest_stays(engine, check):
    """Nothing is computed, scheduled, allocated or ended by appending; other parts of the engine do that."""
    params = engine.get("sampling_params:SamplingParams")(max_tokens=1, stop_token_ids=[50])
    seq = make(engine, range(8), num_cached_tokens=6, num_scheduled_tokens=2, block_table=[4, 1])
    seq.sampling_params, seq.block_hashes, seq.num_prefix_hit_tokens = params, [111, 222], 4
    check.step("6 tokens are computed, 2 are scheduled; the request stops at token 50. append_token(50)")
    append(check, seq, 50)


@case("ch04.append_token")
def the_next_step_computes_it(engine, check):
    """As the engine does it: a step computes what is there, and its token is appended for the next step."""
    seq = make(engine, range(6), num_scheduled_tokens=6)
    for token_id in (90, 91, 92, 93):
        check.step(f"a step computes {seq.num_scheduled_tokens} tokens; the model chooses {token_id}")
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.append_token(token_id)
        says = {0: "num_tokens and num_cached_tokens are the same: nothing is left for the next step to compute."}
        check.equal("tokens that are not cached", seq.num_tokens - seq.num_cached_tokens, 1, says=says)
        seq.num_scheduled_tokens = 1
        says = "With one token scheduled, the step reads last_token, and that is not the newest."
        check.equal("the tokens that the next step computes", seq.scheduled_token_ids, [token_id], says=says)
        check.equal("whether it would be cut", seq.is_cut, False)


@case("ch04.append_token")
def after_it_was_preempted(engine, check):
    """Preempted with an answer of three tokens, it has computed everything again. The next token comes."""
    seq = make(engine, range(5), status=status(engine, "RUNNING"))
    generate(seq, [90, 91, 92])
    seq.num_cached_tokens, seq.block_table = 8, [6, 2]
    check.step("8 tokens are cached again; append_token(93)")
    seq.append_token(93)
    observe_appended(check, seq, [*range(5), 90, 91, 92], 93)
    check.equal("the tokens of the answer", seq.completion_token_ids, [90, 91, 92, 93])


@case("ch04.append_token")
def the_prompt_of_somebody_else(engine, check):
    """Two requests with the same prompt. One of them gets an answer."""
    prompt = [1, 2, 3]
    one, other = make(engine, prompt), make(engine, prompt)
    one.append_token(9)
    check.equal("the tokens of the other request", other.token_ids, [1, 2, 3])
    check.equal("the last token of the other request", other.last_token, 3)


# __getstate__

NEEDED = ("seq_id", "num_tokens", "num_prompt_tokens", "num_cached_tokens", "num_scheduled_tokens", "last_token",
          "block_size", "block_table")  # fmt: skip


SPARED = ("token_ids", "block_hashes")


def send(seq):
    """The sequence as a worker process gets it."""
    return pickle.loads(pickle.dumps(seq))


def says_changed(names) -> str:
    if "token_ids" in names:
        return "Being sent, the sequence itself has lost its tokens. self.__dict__ is its own dictionary, no copy."
    return "The sequence itself was changed. It goes on living here; only what is sent may be different."


def wrong_sent(seq, copy) -> str | None:
    """What it means that a worker computes other tokens."""
    if getattr(copy, "token_ids", None):
        return "The worker cuts its tokens out of the list, from num_cached_tokens on. It needs all of it, or nothing."
    left, count = seq.num_tokens - seq.num_cached_tokens, seq.num_scheduled_tokens
    if left == 1:
        return None
    words = f"{left} tokens have no keys and values yet, so the worker needs the list"
    if count == 1:
        return f"{words}: the one that is scheduled is not the last one, so it is not last_token."
    if seq.num_completion_tokens and not seq.num_cached_tokens:
        return f"{words}. It has an answer already, but lost its blocks: everything is computed again."
    if seq.num_cached_tokens:
        return f"{words}. That some are cached does not mean that only the last one is left."
    return f"{words}. It was sent without."


def observe_worker(check: Check, seq, what: str = "") -> None:
    """What a worker needs of a step: which tokens, at which positions, and where their keys and values go."""
    tokens, start, count = list(seq.token_ids), seq.num_cached_tokens, seq.num_scheduled_tokens
    expected = {name: getattr(seq, name) for name in NEEDED}
    before = dict(vars(seq))
    texts = {name: repr(value) for name, value in before.items()}
    says = "What __getstate__ returns is no dictionary of the attributes, and pickle cannot make attributes of it."
    check.step(f"the sequence is sent{what}", says=lambda error: says if error != "AttributeError" else None)
    copy = send(seq)
    check.step("it has arrived")
    says = "Nothing arrives. What __getstate__ returns is all that is sent: a dictionary of the attributes."
    check.true(f"attributes arrive in the worker{what}", vars(copy), says=says)
    lost = [
        name for name, value in before.items() if getattr(seq, name, None) is not value or repr(value) != texts[name]
    ]
    lost += sorted(set(vars(seq)) - set(before))
    check.equal(f"attributes of the sequence itself that sending has changed{what}", lost, [], says=says_changed)
    for name in NEEDED:
        got = getattr(copy, name, "is missing")
        says = f"A worker reads {name}, and it is missing or another one there. Only two lists can be spared."
        check.equal(f"{name} in the worker{what}", got, expected[name], says=says)
    lacks = sorted(set(before) - set(vars(copy)))
    says = "Attributes are left out. All of them are promised: what is not needed arrives as an empty list."
    check.equal(f"attributes that the worker's copy lacks{what}", lacks, [], says=says)
    if len(tokens) - start == 1 and isinstance(getattr(copy, "token_ids", None), list):
        says = (
            "One token has no keys and values yet, and that is last_token: the list is not needed, and arrives empty. "
            "Whether it is one of the prompt, and how many there are, does not matter."
        )
        check.equal(f"tokens that travel beside last_token{what}", len(copy.token_ids), 0, says=says)
    for name in ("token_ids", "block_hashes"):
        says = f"{name} arrives as something else than a list. What is not needed is an empty list there."
        check.true(f"{name} is a list in the worker{what}", isinstance(getattr(copy, name, None), list), says=says)
    rest = [name for name in before if name not in SPARED and repr(getattr(copy, name, "")) != repr(getattr(seq, name))]
    says = "Only token_ids and block_hashes can be spared; everything else arrives as it is."
    check.equal(f"other attributes that are not the same in the worker{what}", rest, [], says=says)
    if len(tokens) - start > 1:
        says = (
            "What arrives as token_ids are other tokens. The list is needed as a whole here, each token at its place."
        )
        is_whole = getattr(copy, "token_ids", None) in ([], tokens)  # that it is needed at all is said below
        check.true(f"token_ids arrives as it is, or empty{what}", is_whole, says=says)
    try:
        found = copy.scheduled_token_ids
    except (AttributeError, TypeError) as error:
        found = f"an error: {error}"
    wanted, says = tokens[start : start + count], wrong_sent(seq, copy)
    check.equal(f"the tokens that the worker computes{what}", found, wanted, says=says)


@case("ch04.__getstate__")
def a_decode_step(engine, check):
    """Twenty prompt tokens are computed, and one token is generated. This step computes it."""
    seq = make(engine, range(20), block_table=[3, 1, 4, 0, 5, 9], status=status(engine, "RUNNING"))
    generate(seq, [500])
    seq.num_cached_tokens, seq.num_scheduled_tokens, seq.block_hashes = 20, 1, [7, 8, 9]
    check.step("20 tokens are cached, 1 is scheduled, status RUNNING")
    observe_worker(check, seq)
    check.step("16 of its tokens came from the cache, and somebody has put an attribute of their own on it")
    seq.num_prefix_hit_tokens, seq.stop_reason, seq.note = 16, "stop", {"priority": 3}
    observe_worker(check, seq, ", with a note")


@case("ch04.__getstate__")
def a_whole_prompt(engine, check):
    """The first step of a prompt of nine tokens. The scheduler sets its status to RUNNING before the step."""
    seq = make(engine, range(9), block_table=[3, 1, 4], status=status(engine, "RUNNING"), num_scheduled_tokens=9)
    check.step("0 tokens are cached, 9 are scheduled, status RUNNING")
    observe_worker(check, seq)


@case("ch04.__getstate__")
def one_token_is_left_of_a_prompt(engine, check):
    """A prompt of a single token; one of nine of which eight come from the cache; and the end of one that was cut."""
    for length, cached in ((1, 0), (9, 8), (2, 1)):
        seq = make(engine, range(60, 60 + length), num_cached_tokens=cached, num_scheduled_tokens=1)
        seq.status, seq.block_table = status(engine, "RUNNING"), [3, 1, 4][: len(boxes(range(length), 4))]
        check.step(f"{cached} of {length} tokens are cached, 1 is scheduled, status RUNNING")
        observe_worker(check, seq, f" ({cached} of {length} cached)")


@case("ch04.__getstate__")
def a_prompt_in_pieces(engine, check):
    """A prompt of twelve tokens is computed in four steps, because other requests take their share of each."""
    seq = make(engine, range(30, 42), block_table=[3, 1, 4])
    for count in (5, 1, 4, 2):
        seq.num_scheduled_tokens = count
        if seq.num_cached_tokens + count == 12:
            seq.status = status(engine, "RUNNING")
        words = f"{seq.num_cached_tokens} tokens are cached, {count} scheduled, status {seq.status.name}"
        check.step(words)
        observe_worker(check, seq, f" ({words})")
        seq.num_cached_tokens += count


@case("ch04.__getstate__")
def after_a_preemption(engine, check):
    """Eight prompt tokens, five generated ones. It lost its blocks and computes everything again, or nearly so."""
    seq = make(engine, range(8), block_table=[2, 7, 6, 5], status=status(engine, "RUNNING"))
    generate(seq, [90, 91, 92, 93, 94])
    for cached in (0, 4, 8):
        seq.num_cached_tokens, seq.num_scheduled_tokens = cached, 13 - cached
        check.step(f"{cached} tokens are still cached, {13 - cached} are scheduled, status RUNNING")
        observe_worker(check, seq, f" ({cached} cached)")


@case("ch04.__getstate__")
def again_in_pieces(engine, check):
    """Preempted with an answer of six tokens, it is computed again in three steps: it waits until the last of them."""
    seq = make(engine, range(5), block_table=[7, 2, 5], status=status(engine, "WAITING"), block_hashes=[111])
    generate(seq, [90, 91, 92, 93, 94, 95])
    for count in (6, 1, 4):
        seq.num_scheduled_tokens = count
        if seq.num_cached_tokens + count == 11:
            seq.status = status(engine, "RUNNING")
        words = f"{seq.num_cached_tokens} of 11 tokens are cached, {count} scheduled, status {seq.status.name}"
        check.step(words)
        observe_worker(check, seq, f" ({words})")
        seq.num_cached_tokens += count


@case("ch04.__getstate__")
def the_sequence_stays(engine, check):
    """The engine sends a sequence, and goes on working with its own."""
    seq = make(engine, range(9), block_hashes=[111, 222], block_table=[3, 1, 4])
    generate(seq, [500])
    for cached, count in ((4, 6), (9, 1)):
        seq.num_cached_tokens, seq.num_scheduled_tokens = cached, count
        check.step(f"it is sent with {cached} tokens cached and {count} scheduled")
        send(seq)
        check.equal("its tokens afterwards", seq.token_ids, [*range(9), 500], says=says_changed(["token_ids"]))
        check.equal("its block_hashes afterwards", seq.block_hashes, [111, 222], says=says_changed([]))


@case("ch04.__getstate__")
def a_long_one_is_no_longer(engine, check):
    """In decode, a sequence of 4000 tokens with the same block table takes as many bytes as one of 40, or nearly so."""

    def size(num_tokens):
        seq = make(engine, [300] * num_tokens, status=status(engine, "RUNNING"), num_cached_tokens=num_tokens)
        seq.num_scheduled_tokens, seq.block_table = 1, [3, 1, 4]
        generate(seq, [500])
        return len(pickle.dumps(seq))

    check.step("both are pickled, and the bytes are counted")
    says = "The bytes grow with the length: all tokens are sent, and in decode one is enough."
    check.true("the long one takes at most 40 bytes more", size(4000) - size(40) <= 40, says=says)


@case("ch04.__getstate__")
def hashes_stay_at_home(engine, check):
    """A sequence with the hashes of many blocks. No worker looks at them, in no step."""
    for cached, kind in ((0, "prefill"), (400, "decode")):
        few, many = (make(engine, range(400), block_hashes=[2**60] * count) for count in (1, 100))
        for seq in (few, many):
            generate(seq, [500])
            seq.num_cached_tokens, seq.num_scheduled_tokens = cached, seq.num_tokens - cached
        check.step(f"one has 1 hash, the other one 100; they are pickled for a {kind} step")
        more = len(pickle.dumps(many)) - len(pickle.dumps(few))
        says = "The hashes are sent, and no worker looks at them, in no step."
        check.true(f"for {kind}, 99 hashes more take no bytes more", more == 0, says=says)


@case("ch04.__getstate__")
def whole_lives(engine, check):
    """Requests live, in chunks of any size, with preemptions; the worker has to know the tokens of every step."""
    for seed in range(4):
        rng = random.Random(seed)
        seq = make(engine, [rng.randrange(100) for _ in range(rng.randrange(1, 12))])
        for step in range(30):
            waiting = seq.num_tokens - seq.num_cached_tokens
            seq.num_scheduled_tokens = rng.randrange(1, waiting + 1)
            is_cut = seq.num_scheduled_tokens < waiting
            seq.status = status(engine, "WAITING" if is_cut else "RUNNING")
            seq.block_table = rng.sample(range(40), len(boxes(seq.token_ids, 4)))
            observe_worker(check, seq, f" (life {seed}, step {step})")
            seq.num_cached_tokens += seq.num_scheduled_tokens
            seq.num_scheduled_tokens = 0
            if not is_cut:
                generate(seq, [rng.randrange(100)])
            if rng.random() < 0.2:
                seq.num_cached_tokens = 0


# codec: an open exercise

LIFE_IDS = 2**31 - 1
AT_MOST = 10  # times fewer bytes than pickle takes of all attributes


def lives(engine: Engine):
    """Sequences as they are in the steps of several lives: name of the moment, sequence."""
    rng = random.Random(17)
    plans = [("a short prompt", 14, 40, 16, 300), ("a long text", 1500, 30, 16, 5000)]
    plans += [("large ids", 60, 20, 4, LIFE_IDS)]
    for name, num_prompt, num_answer, size, most in plans:
        seq = make(engine, [rng.randrange(most) for _ in range(num_prompt)], size, seq_id=rng.randrange(2**40))
        preempt_at = num_prompt + num_answer // 2
        while seq.num_tokens < num_prompt + num_answer:
            left = seq.num_tokens - seq.num_cached_tokens
            seq.num_scheduled_tokens = left if left == 1 else min(left, max(9, num_prompt // 3))
            seq.block_table += rng.sample(range(most), len(boxes(seq.token_ids, size)) - len(seq.block_table))
            seq.status = status(engine, "WAITING" if seq.is_cut else "RUNNING")
            seq.block_hashes = [rng.randrange(2**64) for _ in range(seq.num_cached_tokens // size)]
            yield (
                (f"{name}: {seq.num_cached_tokens} cached, {seq.num_scheduled_tokens} of {seq.num_tokens} scheduled"),
                seq,
            )
            is_cut = seq.is_cut
            seq.num_cached_tokens, seq.num_scheduled_tokens = seq.num_cached_tokens + seq.num_scheduled_tokens, 0
            if not is_cut:
                generate(seq, [rng.randrange(most)])
            if seq.num_tokens == preempt_at and not is_cut:
                seq.num_cached_tokens, seq.block_table = 0, []


def needed(seq) -> dict:
    """What a worker needs, read off the attributes."""
    start, count = seq.num_cached_tokens, seq.num_scheduled_tokens
    tokens = list(seq.token_ids[start : start + count])
    is_cut = start + count < seq.num_tokens
    table = list(seq.block_table)
    return {"seq_id": seq.seq_id, "tokens": tokens, "start": start, "is_cut": is_cut, "block_table": table}


def carry(engine: Engine, check: Check, seq, moment: str) -> int | None:
    """Pack a sequence, unpack it with functions that are made anew, and compare: the number of bytes, or None."""
    expected, before = needed(seq), pickle.dumps(vars(seq))
    check.step(f"pack: {moment}")
    data = engine.get("labs:codec")()[0](seq)
    if not check.true(
        "pack gives bytes", isinstance(data, bytes), says=(f"A {type(data).__name__} came back from pack.")
    ):
        return None
    check.true("the sequence is as it was", pickle.dumps(vars(seq)) == before, says="pack has changed the sequence.")
    says = (
        "What unpack looks for is not there: in the other process are the bytes, and nothing that pack has put aside."
    )
    check.step("unpack, in another process", {"KeyError": says})
    state = engine.get("labs:codec")()[1](data)
    if not check.true("unpack gives a dict", isinstance(state, dict), says="Something else than a dict came out."):
        return None
    for name, value in expected.items():
        says = f"{name} is not what it was when the sequence was packed, or not of the same type."
        got = state.get(name, "is missing")
        if not check.equal(name, Typed(got), Typed(value), says=says):
            return None
    return len(data)


class Typed:
    """A value that is equal only to one of the same type, in lists, too."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        mine, theirs = self.value, other.value
        inside = [[type(item) for item in value] if isinstance(value, list) else [] for value in (mine, theirs)]
        return type(mine) is type(theirs) and mine == theirs and inside[0] == inside[1]

    __hash__ = None

    def __repr__(self):
        return repr(self.value)


@case("ch04.codec")
def every_step_arrives(engine, check):
    """Three lives, step by step: prompts in pieces, decode, a preemption, ids of all sizes."""
    for moment, seq in lives(engine):
        if carry(engine, check, seq, moment) is None:
            return


@case("ch04.codec")
def the_borders(engine, check):
    """The largest ids and positions, the smallest sequence, tokens and blocks that are 0, and no block table yet."""
    for seq_id, prompt, table in [
        (0, [0], [0]),
        (2**63 - 1, [2**31 - 1, 0, 2**31 - 1], [2**31 - 1]),
        (255, [255, 256, 65535, 65536], [65536, 0, 255, 65535]),
        (7, [1, 2, 3], []),
    ]:
        seq = make(engine, prompt, 1, seq_id=seq_id, block_table=table, num_scheduled_tokens=len(prompt))
        carry(engine, check, seq, f"sequence {seq_id}, tokens {prompt}, block table {table}")
    seq = make(engine, range(70_000), 256, block_table=[5, 3], num_cached_tokens=69_990, num_scheduled_tokens=3)
    carry(engine, check, seq, "70,000 tokens, of which 3 are computed, and it is cut")


@case("ch04.codec")
def two_on_the_way(engine, check):
    """Two sequences are packed before the first of them is unpacked, in the other order."""
    pack, _ = engine.get("labs:codec")()
    seqs = [make(engine, [5, 6, 7], num_scheduled_tokens=3, block_table=[4]),
            make(engine, [9], seq_id=3, num_scheduled_tokens=1, block_table=[1])]  # fmt: skip
    packed = [pack(seq) for seq in seqs]
    _, unpack = engine.get("labs:codec")()
    for seq, data in reversed(list(zip(seqs, packed, strict=True))):
        check.equal("the tokens that arrive", unpack(data)["tokens"], list(seq.token_ids))


@case("ch04.codec")
def few_bytes(engine, check):
    """The bytes of all steps of the three lives, against those of pickle.dumps(vars(seq))."""
    packed = pickled = 0
    for moment, seq in lives(engine):
        size = carry(engine, check, seq, moment)
        if size is None:
            return
        packed, pickled = packed + size, pickled + len(pickle.dumps(vars(seq)))
    check.measured(
        f"all steps: {packed:,} bytes; pickle takes {pickled:,}, which is {pickled / packed:.1f} times as much"
    )
    says = (
        "Everything arrives, but in too many bytes. What is sent that both sides know, or that the step does not need?"
    )
    check.true(f"at most 1/{AT_MOST} of the bytes", packed * AT_MOST <= pickled, says=says)
