"""Grader of chapter 04. What is right is said by dealing tokens into boxes and playing engine and worker by hand."""

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


# num_blocks


@case("ch04.num_blocks")
def around_a_full_block(engine, check):
    """Prompts of 1 to 13 tokens, in blocks of four."""
    for num_tokens in range(1, 14):
        seq = make(engine, range(num_tokens))
        check.equal(f"num_blocks of {num_tokens} tokens", seq.num_blocks, len(boxes(range(num_tokens), 4)))
    types = {type(make(engine, range(num_tokens)).num_blocks).__name__ for num_tokens in range(1, 14)}
    check.equal("the types of all these numbers", sorted(types), ["int"])


@case("ch04.num_blocks")
def other_block_sizes(engine, check):
    """Blocks of one token, of three, of 256."""
    for block_size, lengths in [(1, (1, 2, 9)), (3, (2, 3, 4, 30, 31)), (256, (1, 255, 256, 257, 2560, 2561))]:
        for num_tokens in lengths:
            seq = make(engine, range(num_tokens), block_size)
            expected = len(boxes(range(num_tokens), block_size))
            check.equal(f"num_blocks of {num_tokens} tokens in blocks of {block_size}", seq.num_blocks, expected)


@case("ch04.num_blocks")
def it_grows_with_the_answer(engine, check):
    """A prompt of six tokens, and then one generated token after the other. They need a place, too."""
    seq = make(engine, range(6))
    generate(seq, [97, 98])
    for token_id in range(99, 112):
        generate(seq, [token_id])
        check.equal(
            f"num_blocks with 6 prompt tokens and {seq.num_tokens - 6} generated ones",
            seq.num_blocks,
            len(boxes(seq.token_ids, 4)),
        )


@case("ch04.num_blocks")
def whatever_blocks_it_has(engine, check):
    """Ten tokens in blocks of four. The sequence waits and has no blocks; later it has them."""
    seq = make(engine, range(10))
    for table in ([], [5, 0], [5, 0, 9], [5, 0, 9, 7]):
        check.step(f"its block table is {table}")
        seq.block_table = list(table)
        check.equal("num_blocks", seq.num_blocks, 3)
        check.equal("its block table afterwards", seq.block_table, table)


@case("ch04.num_blocks")
def in_a_worker(engine, check):
    """A worker process gets the sequence without its list of tokens. num_tokens still says how many there are."""
    seq = make(engine, range(10))
    seq.token_ids = []
    check.step("num_tokens is 10, token_ids is []")
    check.equal("num_blocks", seq.num_blocks, 3)


# block


def outcome(seq, i: int) -> str:
    """What block(i) gives: its tokens, or the error that it raises."""
    try:
        return f"returned {seq.block(i)!r}"
    except Exception as error:
        return f"raised {'IndexError' if isinstance(error, IndexError) else type(error).__name__}"


@case("ch04.block")
def ten_tokens(engine, check):
    """Ten tokens in blocks of four: two full blocks, and one with two tokens."""
    seq = make(engine, range(20, 30))
    check.step("the tokens are 20 to 29, block_size is 4")
    for i, box in enumerate([[20, 21, 22, 23], [24, 25, 26, 27], [28, 29]]):
        check.equal(f"block({i})", seq.block(i), box)


@case("ch04.block")
def there_is_no_such_block(engine, check):
    """Somebody asks for a block before the first one, or after the last one."""
    for num_tokens in (8, 10):
        seq = make(engine, range(20, 20 + num_tokens))
        count = len(boxes(seq.token_ids, 4))
        check.step(f"the tokens are 20 to {19 + num_tokens}, block_size is 4: blocks 0 to {count - 1}")
        for i in (-1, -2, -count, count, count + 1, count + 50):
            check.equal(f"what block({i}) does", outcome(seq, i), "raised IndexError")


@case("ch04.block")
def it_waits_and_has_no_blocks_yet(engine, check):
    """The block manager looks at the tokens of a block before the sequence has any physical one."""
    seq = make(engine, range(20, 30))
    for table in ([], [9], [9, 3, 5]):
        check.step(f"its block table is {table}")
        seq.block_table = table
        for i, box in enumerate([[20, 21, 22, 23], [24, 25, 26, 27], [28, 29]]):
            check.equal(f"what block({i}) does", outcome(seq, i), f"returned {box!r}")


@case("ch04.block")
def generated_tokens_are_in_it(engine, check):
    """A prompt of six tokens; an answer follows."""
    seq = make(engine, range(6))
    for token_id in range(100, 108):
        generate(seq, [token_id])
        check.step(f"token {token_id} is generated; there are {seq.num_tokens}")
        box = boxes(seq.token_ids, 4)
        check.equal("the last block", seq.block(len(box) - 1), box[-1])


@case("ch04.block")
def together_they_are_the_tokens(engine, check):
    """All blocks in order, for many lengths and block sizes. And asking changes nothing."""
    for block_size in (1, 2, 3, 16):
        for num_tokens in (1, 2, 3, 15, 16, 17, 48):
            seq = make(engine, range(num_tokens), block_size)
            dealt = boxes(range(num_tokens), block_size)
            check.step(f"{num_tokens} tokens in blocks of {block_size}")
            blocks = [seq.block(i) for i in range(len(dealt))]
            check.equal("all its blocks", blocks, dealt)
            blocks[0].append(-5)
            check.equal("its tokens afterwards", seq.token_ids, list(range(num_tokens)))


# append_token

REST = ("num_prompt_tokens", "num_cached_tokens", "num_scheduled_tokens", "block_table", "finish_reason", "stop_reason")


@case("ch04.append_token")
def the_first_token(engine, check):
    """A prompt of three tokens has been computed. The model's first token is 50."""
    seq = make(engine, [10, 11, 12], num_cached_tokens=3, block_table=[2])
    check.step("append_token(50)")
    seq.append_token(50)
    check.equal("token_ids", seq.token_ids, [10, 11, 12, 50])
    check.equal("last_token", seq.last_token, 50)
    check.equal("num_tokens", seq.num_tokens, 4)
    check.equal("len(seq)", len(seq), 4)


@case("ch04.append_token")
def an_answer_of_nine(engine, check):
    """One token after the other; some are equal, one is 0."""
    seq, answer = make(engine, range(5)), []
    for token_id in (50, 51, 51, 0, 7, 50, 3, 3, 3):
        answer.append(token_id)
        check.step(f"append_token({token_id})")
        seq.append_token(token_id)
        check.equal("last_token", seq.last_token, token_id)
        check.equal("num_tokens", seq.num_tokens, 5 + len(answer))
        check.equal("num_blocks", seq.num_blocks, len(boxes([*range(5), *answer], 4)))
        check.equal("the tokens of the answer", seq.completion_token_ids, answer)
    check.equal("the tokens of the prompt", seq.prompt_token_ids, list(range(5)))


@case("ch04.append_token")
def the_rest_stays(engine, check):
    """Nothing is computed, scheduled, allocated or ended by appending; other parts of the engine do that."""
    params = engine.get("sampling_params:SamplingParams")(max_tokens=1, stop_token_ids=[50])
    seq = make(engine, range(8), num_cached_tokens=6, num_scheduled_tokens=2, block_table=[4, 1])
    seq.sampling_params = params
    before = {name: repr(getattr(seq, name)) for name in REST} | {"status": seq.status.name}
    check.step("6 tokens are computed, 2 are scheduled; the request stops at token 50. append_token(50)")
    seq.append_token(50)
    after = {name: repr(getattr(seq, name)) for name in REST} | {"status": seq.status.name}
    for name, value in before.items():
        check.equal(name, after[name], value)


@case("ch04.append_token")
def the_next_step_computes_it(engine, check):
    """As the engine does it: a step computes what is there, and its token is appended for the next step."""
    seq = make(engine, range(6), num_scheduled_tokens=6)
    for token_id in (90, 91, 92, 93):
        check.step(f"a step computes {seq.num_scheduled_tokens} tokens; the model chooses {token_id}")
        seq.num_cached_tokens += seq.num_scheduled_tokens
        seq.append_token(token_id)
        check.equal("tokens that wait", seq.num_tokens - seq.num_cached_tokens, 1)
        seq.num_scheduled_tokens = 1
        check.equal("the tokens that the next step computes", seq.scheduled_token_ids, [token_id])
        check.equal("whether it would be cut", seq.is_cut, False)


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


def send(seq):
    """The sequence as a worker process gets it."""
    return pickle.loads(pickle.dumps(seq))


def observe_worker(check: Check, seq, what: str = "") -> None:
    """What a worker needs of a step: which tokens, at which positions, and where their keys and values go."""
    tokens, start, count = list(seq.token_ids), seq.num_cached_tokens, seq.num_scheduled_tokens
    expected = {name: getattr(seq, name) for name in NEEDED}
    copy = send(seq)
    for name in NEEDED:
        check.equal(f"{name} in the worker{what}", getattr(copy, name, "is missing"), expected[name])
    check.equal(f"attributes that the worker's copy lacks{what}", sorted(set(vars(seq)) - set(vars(copy))), [])
    for name in ("token_ids", "block_hashes"):
        check.true(f"{name} is a list in the worker{what}", isinstance(getattr(copy, name, None), list))
    rest = [name for name in ("sampling_params", "status") if repr(getattr(copy, name, "")) != repr(getattr(seq, name))]
    check.equal(f"other attributes that are not the same in the worker{what}", rest, [])
    try:
        found = copy.scheduled_token_ids
    except AttributeError as error:
        found = f"an error: {error}"
    check.equal(f"the tokens that the worker computes{what}", found, tokens[start : start + count])


def status(engine: Engine, name: str):
    return getattr(engine.get("engine.sequence:SequenceStatus"), name)


@case("ch04.__getstate__")
def a_decode_step(engine, check):
    """Twenty prompt tokens are computed, and one token is generated. This step computes it."""
    seq = make(engine, range(20), block_table=[3, 1, 4, 0, 5, 9], status=status(engine, "RUNNING"))
    generate(seq, [500])
    seq.num_cached_tokens, seq.num_scheduled_tokens = 20, 1
    check.step("20 tokens are cached, 1 is scheduled, status RUNNING")
    observe_worker(check, seq)


@case("ch04.__getstate__")
def a_whole_prompt(engine, check):
    """The first step of a prompt of nine tokens. The scheduler sets its status to RUNNING before the step."""
    seq = make(engine, range(9), block_table=[3, 1, 4], status=status(engine, "RUNNING"), num_scheduled_tokens=9)
    check.step("0 tokens are cached, 9 are scheduled, status RUNNING")
    observe_worker(check, seq)


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
def the_sequence_stays(engine, check):
    """The engine sends a sequence, and goes on working with its own."""
    seq = make(engine, range(9), block_hashes=[111, 222], block_table=[3, 1, 4])
    generate(seq, [500])
    for cached, count in ((4, 6), (9, 1)):
        seq.num_cached_tokens, seq.num_scheduled_tokens = cached, count
        check.step(f"it is sent with {cached} tokens cached and {count} scheduled")
        send(seq)
        check.equal("its tokens afterwards", seq.token_ids, [*range(9), 500])
        check.equal("its block_hashes afterwards", seq.block_hashes, [111, 222])


@case("ch04.__getstate__")
def a_long_one_is_no_longer(engine, check):
    """In decode, a sequence of 4000 tokens with the same block table takes as many bytes as one of 40, or nearly so."""

    def size(num_tokens):
        seq = make(engine, [300] * num_tokens, status=status(engine, "RUNNING"), num_cached_tokens=num_tokens)
        seq.num_scheduled_tokens, seq.block_table = 1, [3, 1, 4]
        generate(seq, [500])
        return len(pickle.dumps(seq))

    check.step("both are pickled, and the bytes are counted")
    check.true("the long one takes at most 40 bytes more", size(4000) - size(40) <= 40)


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
        check.true(f"for {kind}, 99 hashes more take no bytes more", more == 0)


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
            seq.block_table = list(range(len(boxes(seq.token_ids, 4))))
            observe_worker(check, seq, f" (life {seed}, step {step})")
            seq.num_cached_tokens += seq.num_scheduled_tokens
            seq.num_scheduled_tokens = 0
            if not is_cut:
                generate(seq, [rng.randrange(100)])
            if rng.random() < 0.2:
                seq.num_cached_tokens = 0
