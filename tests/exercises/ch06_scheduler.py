"""Grader of chapter 06. What is right is said by counting tokens, blocks and requests, and by who came first."""

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

from exercises.kit import mixed_work
from exercises.kit.grading import Check, Engine, case, scene_of

EOS, OTHER_EOS = 0, 1  # the tokens that end an answer; all other tokens in here are larger
MOST_QUESTIONS = 300


class EndlessLoopError(Exception):
    """The same question was asked over and over."""


class Desk:
    """A scheduler with its requests A, B, C, ..., driven as the engine drives it; tokens are made up."""

    def __init__(
        self,
        engine: Engine,
        check: Check,
        num_blocks=40,
        block_size=4,
        budget=64,
        max_num_seqs=8,
        longest=64,
        caching=True,
    ):
        longest = min(longest, num_blocks * block_size)
        config = SimpleNamespace(
            num_kvcache_blocks=num_blocks,
            kvcache_block_size=block_size,
            num_kvcache_tokens=num_blocks * block_size,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=longest,
            enable_prefix_caching=caching,
            eos=(EOS, OTHER_EOS),
        )
        self.scheduler = engine.get("engine.scheduler:Scheduler")(config)
        self.manager = self.scheduler.block_manager
        self.params_class = engine.get("sampling_params:SamplingParams")
        self.sequence_class = engine.get("engine.sequence:Sequence")
        self.check, self.block_size, self.budget, self.max_num_seqs = check, block_size, budget, max_num_seqs
        self.caching = caching
        self.seqs: list[object] = []
        self.fresh = iter(range(1000, 10**6))
        check.look = self.look
        check.step(
            f"a pool of {num_blocks} blocks for {block_size} tokens each; at most {budget} tokens a step, "
            f"{max_num_seqs} running sequences, which have at most {longest} tokens"
            + ("" if caching else ", no prefix cache")
        )

    # Requests.

    def add(self, prompt, max_tokens=8, **params):
        """Queue a request; a number stands for a prompt of so many tokens that nobody else has."""
        token_ids = [next(self.fresh) for _ in range(prompt)] if isinstance(prompt, int) else list(prompt)
        seq = self.sequence_class(
            token_ids, self.params_class(max_tokens=max_tokens, **params), self.block_size, len(self.seqs)
        )
        self.scheduler.add(seq)
        self.seqs.append(seq)
        self.check.step(f"{self.name(seq)} arrives: {len(token_ids)} tokens, wants {max_tokens}")
        return seq

    def name(self, seq):
        return chr(ord("A") + seq.seq_id) if seq.seq_id < 26 else f"R{seq.seq_id}"

    def names(self, seqs):
        return "".join(self.name(seq) for seq in seqs)

    @property
    def live(self):
        return [seq for seq in self.seqs if not seq.is_finished]

    def bound(self):
        """A loop that asks the block manager without end is stopped."""
        ask, count = self.manager.can_append, Counter()

        def can_append(seq):
            count[seq.seq_id, seq.num_tokens] += 1
            if count[seq.seq_id, seq.num_tokens] > MOST_QUESTIONS:
                raise EndlessLoopError(f"can_append was asked {MOST_QUESTIONS} times about the same token")
            return ask(seq)

        self.manager.can_append = can_append

    def look(self):
        """The pool and the queues, for the picture of a case that fails."""
        scheduler = self.scheduler
        queues = {"waiting": scheduler.waiting, "running": scheduler.running}
        named = {name: [self.name(seq) for seq in queue] for name, queue in queues.items()}
        return scene_of(self.manager, {self.name(seq): seq for seq in self.live}, named)

    # Steps.

    def plan(self, seqs):
        return [f"{self.name(seq)} {seq.num_scheduled_tokens}" for seq in seqs]

    def prefill(self):
        """One call of schedule_prefill; what it chose is checked, and computed."""
        before = self.before()
        self.check.step(
            "schedule_prefill",
            says=lambda error: ADMITTED_WRONGLY if error == "RuntimeError" else says_error(self, error),
        )
        counted = self.scheduler.num_prefill_tokens
        seqs = self.scheduler.schedule_prefill()
        kind = type(seqs).__name__
        says = "schedule, which calls schedule_prefill, counts num_prefill_tokens: here they would count twice."
        self.check.equal("num_prefill_tokens is left alone", self.scheduler.num_prefill_tokens, counted, says)
        if not self.check.equal("what schedule_prefill returns is a", kind, "list", says_no_list):
            seqs = []
        self.check.step(f"schedule_prefill chose {', '.join(self.plan(seqs)) or 'nobody'}")
        plan = self.plan(seqs)
        self.check_choice(seqs, before)
        self.compute(seqs)
        return plan

    def before(self):
        """What check_choice has to know of the time before the call."""
        known = {seq.seq_id: (seq.num_cached_tokens if seq.block_table else None) for seq in self.seqs}
        return list(self.scheduler.waiting), list(self.scheduler.running), known

    def compute(self, seqs, token_id=7):
        """What the model does: all scheduled tokens are stored; whoever is complete gets a token."""
        for seq in seqs:
            is_cut = seq.num_cached_tokens + seq.num_scheduled_tokens < seq.num_tokens
            seq.num_cached_tokens += seq.num_scheduled_tokens
            seq.num_scheduled_tokens = 0
            if not is_cut:
                seq.append_token(token_id)

    def decode(self, token_id=7):
        """One call of schedule_decode; returns whom it chose."""
        seqs = self.scheduler.schedule_decode()
        self.check.step(f"schedule_decode: {self.names(seqs) or 'nobody'}; {self.queues()}")
        names = self.names(seqs)
        self.compute(seqs, token_id)
        return names

    def step(self, token_id=7):
        """A whole step as the engine makes it."""
        seqs, is_prefill = self.scheduler.schedule()
        plan = ("prefill " if is_prefill else "decode ") + ", ".join(self.plan(seqs))
        self.check.step(plan)
        cut = [seq.num_cached_tokens + seq.num_scheduled_tokens < seq.num_tokens for seq in seqs]
        tokens = [None if is_cut else token_id for is_cut in cut]
        self.scheduler.postprocess(seqs, tokens)
        return plan

    # What holds.

    def queues(self):
        return f"waiting {self.names(self.scheduler.waiting)}, running {self.names(self.scheduler.running)}"

    def observe(self):
        """What holds after every call."""
        check, waiting, running = self.check, list(self.scheduler.waiting), list(self.scheduler.running)
        queued = sorted(self.name(seq) for seq in [*waiting, *running])
        live = sorted(self.name(seq) for seq in self.live)
        check.equal("all live requests, each once in a queue", queued, live, lambda got: misplaced(got, live))
        statuses = {self.name(seq): getattr(seq.status, "name", repr(seq.status)) for seq in [*waiting, *running]}
        expected = dict.fromkeys(self.names(waiting), "WAITING") | dict.fromkeys(self.names(running), "RUNNING")
        check.equal("the status of those in the queues", statuses, expected, lambda got: misnamed(got, expected))
        check.true(
            "at most max_num_seqs run",
            len(running) <= self.max_num_seqs,
            f"{len(running)} sequences run, and max_num_seqs is {self.max_num_seqs}. may_join knows that limit.",
        )
        used = {block_id for seq in self.live for block_id in seq.block_table}
        now = sorted(self.manager.used_block_ids)
        check.equal("blocks in use", now, sorted(used), lambda got: blocks_say(got, used))
        num_free = len(self.manager.blocks) - len(used)
        check.equal(
            "free blocks", len(self.manager.free_block_ids), num_free, "A block is in use and free, or neither."
        )

    def check_choice(self, seqs, before):
        """What is true of every right choice of a prefill, whatever the code looks like."""
        waiting, running, known = before
        check, size, scheduler = self.check, self.block_size, self.scheduler
        shares = [seq for seq in waiting if seq.num_scheduled_tokens > 0]
        check.equal(
            "those who were given tokens to compute, and are not in the list",
            self.plan(seq for seq in shares if not any(seq is other for other in seqs)),
            [],
            lambda got: says_left_out(self, got, shares, seqs),
        )
        check.true(
            "nobody is in the list twice",
            len({seq.seq_id for seq in seqs}) == len(seqs),
            "The list names a sequence twice: the model would compute its tokens twice.",
        )
        check.equal(
            "who takes part: the first of the queue",
            self.names(seqs),
            self.names(waiting[: len(seqs)]),
            lambda got: (
                f"The list names {got}; the queue began with {self.names(waiting[: len(seqs)])}. First come, "
                "first served: whoever may not join ends the step, and nobody behind it takes part."
            ),
        )
        for seq in seqs:  # one that was cut has its blocks already
            expected, got = -(-seq.num_tokens // size), len(seq.block_table)
            check.equal(f"blocks of {self.name(seq)}", got, expected, lambda got, seq=seq: says_blocks(self, seq, got))
            stored, found = known[seq.seq_id], seq.num_prefix_hit_tokens
            if stored is None and found is not None and seq.num_completion_tokens == 0:
                says = (
                    f"admit found {found} tokens of {self.name(seq)} in the cache, and they do not count as stored now."
                )
                check.true(f"what the cache has of {self.name(seq)} is stored", seq.num_cached_tokens >= found, says)
            if stored is not None:
                what = f"tokens of {self.name(seq)} stored so far, which was cut before"
                check.equal(what, seq.num_cached_tokens, stored, "What is stored already was changed by the prefill.")
        total = sum(seq.num_scheduled_tokens for seq in seqs)
        check.true(
            "everybody computes at least one token",
            all(seq.num_scheduled_tokens > 0 for seq in seqs),
            lambda _: says_no_share(self, seqs),
        )
        left = [seq.num_tokens - seq.num_cached_tokens - seq.num_scheduled_tokens for seq in seqs]
        check.true(
            "nobody computes more tokens than it lacks",
            all(missing >= 0 for missing in left),
            lambda _: says_too_much(self, seqs, left),
        )
        check.true(
            "the step is within the token budget",
            total <= self.budget,
            f"The step computes {total} tokens, and the budget is {self.budget}. Each one may take what those before "
            "it have left, and no more.",
        )
        check.equal(
            "tokens that all but the last leave for later",
            left[:-1],
            [0] * len(left[:-1]),
            "A prompt that is cut is not the last of the step: others come behind it. A cut prompt ends the step.",
        )
        check.true(
            "only a full budget cuts a prompt",
            not left or left[-1] == 0 or total == self.budget,
            lambda _: says_cut(self, seqs, left, total),
        )
        complete = [seq for seq, missing in zip(seqs, left, strict=True) if missing == 0]
        expected = self.names(running + complete)
        check.equal(
            "running afterwards",
            self.names(scheduler.running),
            expected,
            lambda got: says_running(self, got, expected, seqs, complete),
        )
        remaining = self.names(waiting[len(complete) :])
        check.equal(
            "waiting afterwards",
            self.names(scheduler.waiting),
            remaining,
            lambda got: says_waiting(self, got, remaining, seqs, complete),
        )
        if len(complete) == len(seqs) < len(waiting):
            head, rest = waiting[len(seqs)], self.budget - total
            check.equal(
                "whether the first that was left out might have joined",
                scheduler.may_join(head, rest),
                False,
                f"{self.name(head)} was left out, although {rest} tokens of the budget are left and may_join says yes.",
            )
        for seq in seqs:
            full = (seq.num_cached_tokens + seq.num_scheduled_tokens) // size
            found = [self.manager.blocks[block_id].hash != -1 for block_id in seq.block_table]
            filled = [i < full and self.caching for i in range(len(seq.block_table))]
            check.equal(f"which blocks of {self.name(seq)} can be found", found, filled, SAYS_HASHES)
        self.observe()


def misplaced(queued, live):
    """What a wrong set of queued requests says."""
    for name in live:
        if name not in queued:
            return f"{name} is lost: it is in none of the two queues, and nobody will ever go on with it."
        if queued.count(name) > 1:
            return f"{name} is in the queues {queued.count(name)} times. A live request is in exactly one, once."
    gone = [name for name in queued if name not in live]
    return f"{gone[0]} is finished, and is still in a queue." if gone else ""


def misnamed(got, expected):
    name = next((name for name in expected if got.get(name) != expected[name]), None)
    queue = "running" if name and expected[name] == "RUNNING" else "waiting"
    return f"{name} is in the queue {queue}, but its status is {got[name]}{of_a_kind(got[name])}." if name else ""


def of_a_kind(status):
    """Words for a status that is text, "" for one that is a status."""
    is_text = status[0] in "'\""
    return f", a string: the status to set is SequenceStatus.{status[1:-1].upper()}" if is_text else ""


def blocks_say(got, used):
    if set(got) - used:
        return "Blocks are in use that are in nobody's block_table: they are lost for everybody. deallocate frees them."
    return "A live sequence has a block in its block_table that counts as free."


def says_no_list(got):
    if got == "NoneType":
        return "It returns None: the list of those that take part is missing at its end."
    return f"It returns something of the type {got}, and not a list of sequences."


def says_error(desk, error):
    """What an error in schedule_prefill says, from the state that it left behind."""
    for seq in desk.live:
        name, last = desk.name(seq), seq.num_cached_tokens + seq.num_scheduled_tokens
        if error == "IndexError" and seq.num_scheduled_tokens > 0 and not seq.block_table:
            return f"{name} has no blocks, and its blocks were asked for: a sequence that has none has to be admitted."
        if error == "IndexError" and last > seq.num_tokens:
            lacks, share = seq.num_tokens - seq.num_cached_tokens, seq.num_scheduled_tokens
            return f"{name} lacks {lacks} tokens that are not in the cache, and is to compute {share}."
    if error == "IndexError" and not desk.scheduler.waiting:
        return "The head of waiting was asked for when nobody waits any more."
    return ""


ADMITTED_WRONGLY = (
    "Two things raise a RuntimeError here: admit, for a sequence that has blocks already or for which there are not "
    "enough, and a loop over a queue that gets shorter meanwhile."
)
SAYS_HASHES = (
    "The blocks that can be found are not those that this step fills. hash_blocks goes by num_scheduled_tokens: it is "
    "to be called for every sequence of the step, once its share is set."
)


def says_left_out(desk, plan, shares, seqs):
    seq = next((seq for seq in shares if desk.plan([seq])[0] in plan), None)
    if seq is None:
        return ""
    if seq.num_computed_after_step < seq.num_tokens:
        return f"{desk.name(seq)}, which is cut, is not in the list that you return. It takes part in the step, too."
    left = desk.budget - sum(other.num_scheduled_tokens for other in seqs)
    if 0 < left < seq.num_scheduled_tokens:
        return (
            f"{desk.name(seq)} was given {seq.num_scheduled_tokens} tokens to compute, and is not in the list that you "
            f"return. {left} of the budget are left: it is to be cut, and takes part with these."
        )
    return f"{desk.name(seq)} was given tokens to compute, but it is not in the list that you return."


def says_blocks(desk, seq, got):
    if got == 0:
        return f"{desk.name(seq)} takes part without blocks: a sequence that has none has to be admitted first."
    return f"{desk.name(seq)} has {got} blocks, not one for each {desk.block_size} of its {seq.num_tokens} tokens."


def says_no_share(desk, seqs):
    seq = next(seq for seq in seqs if seq.num_scheduled_tokens <= 0)
    if all(other.num_scheduled_tokens <= 0 for other in seqs):
        return f"{desk.name(seq)} is in the step, but its num_scheduled_tokens is {seq.num_scheduled_tokens}."
    fact, share = f"{desk.name(seq)} came into the step, and its share is", seq.num_scheduled_tokens
    before = seqs[: [other is seq for other in seqs].index(True)]
    tokens, computed = (sum(getattr(o, name) for o in before) for name in ("num_tokens", "num_scheduled_tokens"))
    if share == desk.budget - tokens < desk.budget - computed:
        return (
            f"{fact} {share} tokens: the budget of {desk.budget} less all {tokens} tokens of those before it. They "
            f"compute {computed} in this step, and only these cost budget."
        )
    if share < 0:
        return f"{fact} {share} tokens. What is left of a budget is never less than 0."
    return f"{fact} {share} tokens. may_join is to be asked with what is left of the budget; with 0 it says no."


def says_too_much(desk, seqs, left):
    seq = next(seq for seq, missing in zip(seqs, left, strict=True) if missing < 0)
    stored, share = seq.num_cached_tokens, seq.num_scheduled_tokens
    return (
        f"{desk.name(seq)} has {seq.num_tokens} tokens, and {stored} of them are in the cache already: it lacks "
        f"{seq.num_tokens - stored}, and is to compute {share}."
    )


def says_cut(desk, seqs, left, total):
    seq, missing = seqs[-1], left[-1]
    return (
        f"{desk.name(seq)} lacks {missing} tokens more, although {desk.budget - total} of the budget of {desk.budget} "
        "are left. What costs budget is what is computed: of this sequence, all its tokens that are not cached."
    )


def says_running(desk, got, expected, seqs, complete):
    for seq in seqs:
        name, is_complete = desk.name(seq), any(seq is other for other in complete)
        if name in got and not is_complete:
            return (
                f"{name} is cut by the budget, and runs: it has no token to go on with. It stays the head of waiting."
            )
        if name not in got and is_complete:
            return f"{name} computes all it lacks in this step, so it runs from now on: it belongs into running."
    if sorted(got) == sorted(expected):
        return "New ones go to the end of running: the order there is that of their coming."
    return "running has lost or gained somebody who is not in this step."


def says_waiting(desk, got, expected, seqs, complete):
    for seq in complete:
        if desk.name(seq) in got:
            return f"{desk.name(seq)} runs from now on, and is still in waiting."
    if seqs and desk.name(seqs[-1]) in expected and not got.startswith(desk.name(seqs[-1])):
        return f"{desk.name(seqs[-1])}, which is cut, has to stay the head of waiting: it goes on in the next step."
    if sorted(got) == sorted(expected):
        return "The order of those that wait was changed."
    return "Somebody is missing in waiting, or there who should not be: only those that run now are taken out of it."


# schedule_prefill


@case("ch06.schedule_prefill")
def three_prompts_in_one_step(engine, check):
    """Three short prompts wait. All of them fit into one step."""
    desk = Desk(engine, check, budget=32)
    for length in (5, 9, 3):
        desk.add(length)
    hashed, hash_blocks = set(), desk.manager.hash_blocks
    desk.manager.hash_blocks = lambda seq: hashed.add(desk.name(seq)) or hash_blocks(seq)
    check.equal("who computes how many tokens", desk.prefill(), ["A 5", "B 9", "C 3"])
    check.equal("for whom hash_blocks was called; need not be C", sorted(hashed), sorted(hashed))  # only written down
    check.equal("the queues", desk.queues(), "waiting , running ABC")
    check.equal("the next call finds nobody", desk.prefill(), [])


@case("ch06.schedule_prefill")
def a_long_prompt_in_chunks(engine, check):
    """A has 25 tokens, and a step computes ten at most. B waits behind."""
    desk = Desk(engine, check, budget=10)
    desk.add(25)
    desk.add(4)
    check.equal("the first step", desk.prefill(), ["A 10"])
    check.equal("the queues after it", desk.queues(), "waiting AB, running ")
    check.equal("the second step", desk.prefill(), ["A 10"])
    check.equal("the third step", desk.prefill(), ["A 5", "B 4"])
    check.equal("the queues after it", desk.queues(), "waiting , running AB")


@case("ch06.schedule_prefill")
def the_last_of_a_step_is_cut(engine, check):
    """Three prompts of eight tokens, and ten tokens a step: B is cut in the first step, C in the second."""
    desk = Desk(engine, check, budget=10)
    for _ in range(3):
        desk.add(8)
    check.equal("three steps", [desk.prefill() for _ in range(3)], [["A 8", "B 2"], ["B 6", "C 4"], ["C 4"]])


@case("ch06.schedule_prefill")
def what_the_cache_has_costs_nothing(engine, check):
    """All prompts begin with the same eight tokens, which A has computed. Twelve tokens a step."""
    desk = Desk(engine, check, budget=12)
    common = list(range(100, 108))
    desk.add([*common, 50])
    check.equal("A computes all of its tokens", desk.prefill(), ["A 9"])
    for i in range(4):
        desk.add([*common, 60 + i, 70 + i, 80 + i])
    check.equal("the others compute what is their own", desk.prefill(), ["B 3", "C 3", "D 3", "E 3"])
    check.equal(
        "num_prefix_hit_tokens, which admit writes down",
        [seq.num_prefix_hit_tokens for seq in desk.seqs],
        [0, 8, 8, 8, 8],
        "Nobody noted how many tokens of the prompts were found in the cache. admit does, and gives the blocks.",
    )


@case("ch06.schedule_prefill")
def equal_prompts_share_in_the_same_step(engine, check):
    """Three equal prompts of ten tokens arrive together. The first one's full blocks serve the others at once."""
    desk = Desk(engine, check)
    for _ in range(3):
        desk.add(range(100, 110))
    check.equal(
        "who computes how many tokens",
        desk.prefill(),
        ["A 10", "B 2", "C 2"],
        {
            ("A 10", "B 10", "C 10"): "B and C find nothing of what A fills in this very step: when they are admitted, "
            "hash_blocks has not been called for A yet, or A had no share then."
        },
    )


@case("ch06.schedule_prefill")
def a_cut_prompt_and_the_next_step(engine, check):
    """Blocks of four, ten tokens a step. A's 14 tokens are cut; B begins with the same twelve and comes meanwhile."""
    desk = Desk(engine, check, budget=10)
    desk.add(range(100, 114))
    check.equal("the first step", desk.prefill(), ["A 10"])
    desk.add([*range(100, 112), 50, 51, 52])
    check.equal("the second step", desk.prefill(), ["A 4", "B 3"])


@case("ch06.schedule_prefill")
def one_that_was_preempted(engine, check):
    """A has a prompt of two tokens and has written two when it is preempted. None of them is cached."""
    desk = Desk(engine, check)
    seq = desk.add(2)
    desk.prefill()
    desk.decode()
    desk.scheduler.preempt(seq)
    check.step("A is preempted, and comes back: prompt and answer so far have to be computed")
    check.equal("who computes how many tokens", desk.prefill(), ["A 4"])
    check.equal("the queues", desk.queues(), "waiting , running A")


@case("ch06.schedule_prefill")
def one_that_was_preempted_is_cut(engine, check):
    """A has a prompt of six tokens and an answer of five when it is preempted; then only seven tokens fit a step."""
    desk = Desk(engine, check, budget=7)
    seq = desk.add(6)
    desk.prefill()
    for _ in range(4):
        desk.decode()
    desk.scheduler.preempt(seq)
    desk.manager.reset()
    check.step("A is preempted, and all that was cached is lost. It has 11 tokens now")
    check.equal("two steps", [desk.prefill(), desk.prefill()], [["A 7"], ["A 4"]])
    check.equal("the queues", desk.queues(), "waiting , running A")


@case("ch06.schedule_prefill")
def no_more_than_max_num_seqs(engine, check):
    """Five prompts, and at most three sequences run."""
    desk = Desk(engine, check, max_num_seqs=3)
    for _ in range(5):
        desk.add(3)
    check.equal("who computes how many tokens", desk.prefill(), ["A 3", "B 3", "C 3"])
    check.equal("nobody else may join", desk.prefill(), [])


@case("ch06.schedule_prefill")
def nobody_overtakes(engine, check):
    """A fills most of the pool. B does not fit beside it. C would fit, but came after B."""
    desk = Desk(engine, check, num_blocks=6, longest=24)
    desk.add(14)
    desk.add(12)
    desk.add(1)
    check.equal("who computes how many tokens", desk.prefill(), ["A 14"])
    check.equal("the queues", desk.queues(), "waiting BC, running A")


@case("ch06.schedule_prefill")
def another_rule_says_who_may_join(engine, check):
    """Here may_join has another rule: two sequences may run, and what is left of the budget has to be four or more."""
    desk = Desk(engine, check, budget=20)
    for length in (5, 6, 5):
        desk.add(length)
    asked = []

    def may_join(seq, budget):
        asked.append((desk.name(seq), budget))
        return len(desk.scheduler.running) < 2 and budget >= 4

    desk.scheduler.may_join = may_join
    check.equal("who computes how many tokens", desk.prefill(), ["A 5", "B 6"], "may_join is to be heard for each one.")
    wrong = [(name, budget) for name, budget in asked if budget != {"A": 20, "B": 15, "C": 9}[name]]
    check.equal(
        "questions about a budget that is not what was left",
        wrong,
        [],
        "may_join was asked with another budget than is left: of 20 tokens A takes 5, then B takes 6.",
    )


@case("ch06.schedule_prefill")
def without_prefix_caching(engine, check):
    """Prefix caching is off: equal prompts share nothing. Twelve tokens a step."""
    desk = Desk(engine, check, budget=12, caching=False)
    for _ in range(2):
        desk.add(range(100, 110))
    check.equal("two steps", [desk.prefill(), desk.prefill()], [["A 10", "B 2"], ["B 8"]])


@case("ch06.schedule_prefill")
def what_a_step_was_stays(engine, check):
    """Two steps. Whoever keeps what the first call returned still finds the sequences of the first step in it."""
    desk = Desk(engine, check)
    desk.add(5)
    first = desk.scheduler.schedule_prefill()
    desk.compute(first)
    check.step("schedule_prefill chose A")
    desk.add(6)
    desk.compute(desk.scheduler.schedule_prefill())
    says = "The list that came back first has changed since: each call is to return a list of its own."
    check.equal("those of the first step", desk.names(first), "A", says)


@case("ch06.schedule_prefill")
def the_limit_that_holds_now(engine, check):
    """After an out-of-memory error the engine made steps smaller: max_num_batched_tokens is 4, and config says 64."""
    desk = Desk(engine, check)
    desk.add(6)
    desk.scheduler.limit_steps(4)
    desk.budget = 4
    check.step("limit_steps(4): the scheduler's max_num_batched_tokens is 4 now")
    check.equal("two steps", [desk.prefill(), desk.prefill()], [["A 4"], ["A 2"]])


@case("ch06.schedule_prefill")
def everything_finishes(engine, check):
    """Random prompts, pools and budgets. Every choice is checked by counting; in the end all requests are done."""
    for seed in range(8):
        rng = random.Random(seed)
        desk = Desk(
            engine,
            check,
            num_blocks=rng.randrange(8, 20),
            block_size=rng.choice([1, 2, 4]),
            budget=rng.randrange(3, 20),
            max_num_seqs=rng.randrange(1, 5),
            longest=rng.randrange(16, 30),
            caching=seed != 3,
        )
        common, most = [rng.randrange(5, 9) for _ in range(20)], desk.block_size * len(desk.manager.blocks)
        for _ in range(60):
            if rng.random() < 0.4 and len(desk.seqs) < 12:
                prompt = common[: rng.randrange(12)] + [rng.randrange(5, 9) for _ in range(rng.randrange(1, 9))]
                desk.add(prompt[: min(most, 16)], max_tokens=rng.randrange(1, 6))
            desk_step(desk, check)
        for _ in range(200):
            if desk.live:
                desk_step(desk, check)
        check.equal("requests that never finished", desk.names(desk.live), "", NEVER_FINISHED)


NEVER_FINISHED = "Requests are still in the queues after 150 steps, where far fewer would do: nobody goes on with them."


def desk_step(desk, check):
    """As the scheduler's own schedule and postprocess, with every prefill looked at."""
    scheduler, before = desk.scheduler, desk.before()
    check.step("a step", says=lambda error: says_error(desk, error))
    seqs, is_prefill = scheduler.schedule()
    check.step(("prefill: " if is_prefill else "decode: ") + ", ".join(desk.plan(seqs)))
    if is_prefill:
        desk.check_choice(seqs, before)
    cut = [seq.num_cached_tokens + seq.num_scheduled_tokens < seq.num_tokens for seq in seqs]
    scheduler.postprocess(seqs, [None if is_cut else 7 for is_cut in cut])
    desk.observe()


# make_room


def full_pool(engine, check, num_seqs=3, num_tokens=7):
    """So many sequences run, each has two full blocks once its next token is there, and no block is free then."""
    desk = Desk(engine, check, num_blocks=2 * num_seqs)
    desk.bound()
    for _ in range(num_seqs):
        desk.add(num_tokens, max_tokens=20)
    desk.prefill()
    return desk


def says_room_error(desk, error):
    if error in ("IndexError", "ValueError") and not desk.scheduler.running:
        return (
            "Nobody runs any more, and still somebody is to go. Once the one that asks has gone, nobody needs the room."
        )
    return ERRORS_OF_MAKE_ROOM.get(error, "")


ERRORS_OF_MAKE_ROOM = {
    "EndlessLoopError": "can_append was asked about the same token hundreds of times: nothing happens between two "
    "questions that could change the answer, or everybody has gone and you still ask.",
    "ValueError": "Something was taken out of a queue in which it is not: preempt does that itself, once, and only a "
    "running sequence can be preempted.",
    "RuntimeError": "Two things raise a RuntimeError here: a loop over a queue that gets shorter meanwhile, and, in a "
    "whole step, a slot that was promised (the answer was True) and is not there.",
}


def room(desk, i, gone, told=""):
    """Have make_room make room for the i-th sequence; `gone` are the names of those that have to go, first to last."""
    check, seq, scheduler = desk.check, desk.seqs[i], desk.scheduler
    name, has = desk.name(seq), len(seq.block_table)
    waited, ran = desk.names(scheduler.waiting), desk.names(scheduler.running)
    check.step(
        f"make_room for {name}, which has {seq.num_tokens} tokens and {has} blocks{told}",
        says=lambda error: says_room_error(desk, error),
    )
    result = scheduler.make_room(seq)
    now = desk.names(scheduler.running)
    went = "".join(other for other in ran if other not in now)
    check.equal("who was preempted", went, "".join(sorted(gone)), lambda got: says_who(desk, name, got, gone))
    check.equal("the result", result, name not in gone, lambda got: says_result(name, got, gone))
    waiting = "".join(reversed(gone)) + waited
    check.equal(
        "the queues",
        desk.queues(),
        f"waiting {waiting}, running {''.join(other for other in ran if other not in gone)}",
        "preempt(victim) puts it where it belongs: at the head of waiting. The order of all others stays.",
    )
    check.equal(
        "num_preemptions",
        scheduler.num_preemptions,
        len(gone),
        "num_preemptions does not count those who went. preempt does; what belongs to a preemption is done there.",
    )
    desk.observe()


def says_who(desk, name, got, gone):
    """What a wrong set of preempted sequences says."""
    more, fewer = [who for who in got if who not in gone], [who for who in gone if who not in got]
    if not gone:
        return f"{name} has a slot already, or a free block, and {got[0]} was preempted for nothing."
    if name in got and name not in gone:
        return f"{name} was preempted itself, but choose_victim names {gone[0]}."
    if name in gone and name not in got:
        if more:
            return f"choose_victim names {name}, the one that asks, so {name} has to go. Instead {more[0]} went."
        return f"choose_victim names {name}, the one that asks, so {name} has to go, with its blocks. It still runs."
    if more and name in gone:
        return f"When {name} itself has gone, nobody needs the room any more; but {more[0]} was preempted, too."
    if more and fewer:
        return f"choose_victim names {fewer[0]}, and {more[0]} was preempted."
    if more:
        return f"Once {' and '.join(gone)} had gone there was a slot, and {more[0]} was preempted for nothing."
    if got:
        return (
            f"{' and '.join(got)} went, but there is still no slot for {name}: what goes may share its blocks. Go on."
        )
    return f"There is no slot for {name}, and nobody was preempted."


def says_result(name, got, gone):
    if got is None:
        return f"It returns None; it should say whether {name} has a slot."
    if name in gone:
        return f"{name} was preempted itself: it waits and has no blocks, so it has no slot in this step."
    return f"There is a slot for {name} now, and {name} runs: the answer is True."


@case("ch06.make_room")
def there_is_a_slot_already(engine, check):
    """The last token of A falls into a block that A has. Nobody has to go."""
    room(full_pool(engine, check), 0, "")


@case("ch06.make_room")
def the_newest_makes_room(engine, check):
    """A, B and C hold all blocks. B needs one more."""
    desk = full_pool(engine, check)
    desk.decode()
    room(desk, 1, "C")
    check.equal("free blocks", len(desk.manager.free_block_ids), 2, "make_room only makes room: may_append takes it.")


@case("ch06.make_room")
def the_newest_goes_itself(engine, check):
    """A, B and C hold all blocks. C, the newest, needs one more."""
    desk = full_pool(engine, check)
    desk.decode()
    room(desk, 2, "C")
    check.equal(
        "the blocks of C", list(desk.seqs[2].block_table), [], "C went, and still has blocks in its block_table."
    )


def pool_with_a_sharer(engine, check):
    """A, B and C run, with two full blocks each. D, whose prompt was cut, shares those of C. No block is free."""
    desk = Desk(engine, check, num_blocks=8, budget=7)
    desk.bound()
    for _ in range(3):
        desk.add(7, max_tokens=20)
        desk.prefill()
    desk.decode()
    desk.add([*desk.seqs[2].token_ids[:8], *range(100, 108)])
    desk.prefill()
    return desk


@case("ch06.make_room")
def one_is_not_enough(engine, check):
    """A, B and C run. D, whose prompt was cut, shares all blocks of C, so C's going frees none. A needs one more."""
    room(pool_with_a_sharer(engine, check), 0, "CB")


@case("ch06.make_room")
def the_last_to_ask_frees_nothing(engine, check):
    """A, B and C run. D, whose prompt was cut, shares all blocks of C. C itself needs one more, and is the newest."""
    room(pool_with_a_sharer(engine, check), 2, "C", "; D shares them, so C's going frees none")


def ruled_by(desk, choose):
    """Have another rule say who goes; returns a list of those for whom it is asked."""
    asked = []

    def choose_victim(seq):
        asked.append(desk.name(seq))
        return choose(seq)

    desk.scheduler.choose_victim = choose_victim
    return asked


ASKED = "choose_victim is asked about another sequence than the one that needs the room."


@case("ch06.make_room")
def another_rule_says_who_goes(engine, check):
    """A, B and C hold all blocks. Here choose_victim has another rule: the one in the middle goes."""
    desk = full_pool(engine, check)
    desk.decode()
    asked = ruled_by(desk, lambda seq: desk.seqs[1])
    room(desk, 0, "B", "; choose_victim says B")
    check.equal("for whom choose_victim was asked", sorted(set(asked)), ["A"], ASKED)


@case("ch06.make_room")
def the_rule_says_the_asker(engine, check):
    """A, B and C hold all blocks. By the rule in this scene, whoever asks for a block goes, also if newer ones run."""
    desk = full_pool(engine, check)
    desk.decode()
    asked = ruled_by(desk, lambda seq: seq)
    room(desk, 0, "A", "; choose_victim says A")
    check.equal("for whom choose_victim was asked", sorted(set(asked)), ["A"], ASKED)


@case("ch06.make_room")
def the_rule_is_asked_again(engine, check):
    """A, B and C run. D, whose prompt was cut, shares all blocks of C. B needs one more; by the rule C goes, then A."""
    desk = pool_with_a_sharer(engine, check)
    asked = ruled_by(desk, lambda seq: desk.seqs[2] if desk.seqs[2] in desk.scheduler.running else desk.seqs[0])
    room(desk, 1, "CA", "; choose_victim says C, and when C is gone, A")
    check.equal("for whom choose_victim was asked", sorted(set(asked)), ["B"], ASKED)


@case("ch06.make_room")
def another_rule_says_when_there_is_a_slot(engine, check):
    """A, B, C and D hold all blocks, two each. Here can_append has another rule: six blocks have to be free."""
    desk = full_pool(engine, check, num_seqs=4)
    desk.decode()
    desk.manager.can_append = lambda seq: len(desk.manager.free_block_ids) >= 6
    room(desk, 0, "DCB", "; can_append wants six free blocks")


@case("ch06.make_room")
def two_of_the_same_words(engine, check):
    """A and B have asked the same, and written the same. They hold all blocks, and A needs one more."""
    desk = Desk(engine, check, num_blocks=3)
    desk.bound()
    for _ in range(2):
        desk.add(range(100, 107), max_tokens=20)
    desk.prefill()
    desk.decode()
    room(desk, 0, "B", "; B has the same tokens, and is another sequence")


@case("ch06.make_room")
def the_rule_says_the_asker_at_last(engine, check):
    """A, B and C run. D, whose prompt was cut, shares all blocks of C. A needs one more; by the rule C goes, then A."""
    desk = pool_with_a_sharer(engine, check)
    ruled_by(desk, lambda seq: desk.seqs[2] if desk.seqs[2] in desk.scheduler.running else desk.seqs[0])
    room(desk, 0, "CA", "; choose_victim says C, and when C is gone, A")


@case("ch06.make_room")
def a_block_is_free(engine, check):
    """A and B run. A needs one more block, and one is free."""
    desk = Desk(engine, check, num_blocks=5)
    desk.bound()
    for _ in range(2):
        desk.add(8, max_tokens=20)
    desk.prefill()
    room(desk, 0, "")
    check.equal("free blocks", len(desk.manager.free_block_ids), 1, "make_room only makes room: may_append takes it.")


@case("ch06.make_room")
def nobody_else_runs(engine, check):
    """A runs alone. B, whose prompt was cut, holds all other blocks. A needs one more."""
    desk = Desk(engine, check, num_blocks=4, budget=7)
    desk.bound()
    desk.add(3, max_tokens=20)
    desk.prefill()
    desk.add(12)
    desk.prefill()
    desk.decode()
    room(desk, 0, "A")


@case("ch06.make_room")
def a_whole_decode_step(engine, check):
    """Four sequences hold all blocks, and each of them needs one more. One step of decode."""
    desk = full_pool(engine, check, num_seqs=4)
    check.equal("everybody decodes a token", desk.decode(), "ABCD")
    check.equal("who decodes in the next step", desk.decode(), "AB", "The newest two make room for the oldest two.")
    check.equal("the queues", desk.queues(), "waiting CD, running AB")
    check.equal("generated tokens", [seq.num_completion_tokens for seq in desk.seqs], [3, 3, 2, 2])
    desk.observe()


@case("ch06.make_room")
def it_always_goes_on(engine, check):
    """Random requests on pools that are too small. Blocks are counted after every step; all requests finish."""
    for seed in range(6):
        run_to_the_end(engine, check, seed, ERRORS_OF_MAKE_ROOM)


def run_to_the_end(engine, check, seed, says=None):
    """Whole steps on a small pool; returns the desk."""
    rng = random.Random(seed)
    num_blocks, budget = rng.randrange(7, 12), rng.randrange(6, 20)
    desk = Desk(engine, check, num_blocks, block_size=2, budget=budget, max_num_seqs=4)
    desk.bound()
    for _ in range(7):
        desk.add(rng.randrange(1, 8), max_tokens=rng.randrange(2, 7))
    for _ in range(150):
        if not desk.live:
            break
        check.step("a step", says)
        desk.step()
        desk.observe()
    check.equal("requests that never finished", desk.names(desk.live), "", NEVER_FINISHED)
    check.equal(
        "tokens of the answers",
        [s.num_completion_tokens for s in desk.seqs],
        [s.sampling_params.max_tokens for s in desk.seqs],
        "Answers have fewer or more tokens than they asked for.",
    )
    return desk


# preempt


ERRORS_OF_PREEMPT = {
    "ValueError": "Something is taken out of a queue in which it is not, or taken out twice. seq is in running, once.",
    "KeyError": "A block is taken back that is free already: deallocate does all of it, once.",
    "AttributeError": "Something is asked of an object that does not have it. num_preemptions belongs to the "
    "scheduler, and a queue holds sequences: appendleft puts one in, extendleft goes through what it gets.",
}


def preempt(desk, i):
    """Preempt the i-th sequence, and look at all that it had and has."""
    check, seq, scheduler, manager = desk.check, desk.seqs[i], desk.scheduler, desk.manager
    name, tokens, table = desk.name(seq), list(seq.token_ids), list(seq.block_table)
    waited, ran, count = list(scheduler.waiting), list(scheduler.running), scheduler.num_preemptions
    answer, hashes = list(seq.completion_token_ids), [block.hash for block in manager.blocks]
    found = seq.num_prefix_hit_tokens
    owners = {block_id: manager.blocks[block_id].ref_count for block_id in table}
    free = [*manager.free_block_ids, *[block_id for block_id in reversed(table) if owners[block_id] == 1]]
    check.step(f"preempt({name})", says=ERRORS_OF_PREEMPT)
    scheduler.preempt(seq)
    left = [other for other in ran if other is not seq]
    check.equal(
        "running", desk.names(scheduler.running), desk.names(left), lambda got: says_ran(name, got, desk.names(left))
    )
    expected = name + desk.names(waited)
    check.equal("waiting", desk.names(scheduler.waiting), expected, lambda got: says_waits(name, got, expected))
    check.equal(f"all tokens of {name}", list(seq.token_ids), tokens, says_tokens(name, seq, tokens))
    check.equal(f"num_tokens of {name}", seq.num_tokens, len(tokens), f"{name} still has {len(tokens)} tokens.")
    check.equal(f"the answer of {name} so far", list(seq.completion_token_ids), answer, ANSWER_STAYS)
    check.equal(f"the last token of {name}", seq.last_token, tokens[-1], "Its tokens stay, and so does its last token.")
    status = getattr(seq.status, "name", repr(seq.status))
    check.equal(
        f"the status of {name}",
        status,
        "WAITING",
        lambda got: f"It waits now, but its status is {got}{of_a_kind(got)}.",
    )
    check.equal(f"finished: {name}", seq.finish_reason, None, "It is not over: it only waits. It has no finish_reason.")
    share = seq.num_scheduled_tokens
    check.equal(
        f"num_scheduled_tokens of {name}", share, 0, f"{share} tokens are still scheduled of {name}, which only waits."
    )
    check.equal(f"the blocks of {name}", list(seq.block_table), [], says_table(name, manager, table, owners))
    now = {block_id: manager.blocks[block_id].ref_count for block_id in table}
    fewer = {block_id: owners[block_id] - 1 for block_id in table}
    check.equal(f"how many own the blocks that {name} had", now, fewer, lambda got: says_owners(name, got, fewer))
    check.equal(
        f"num_cached_tokens of {name}",
        seq.num_cached_tokens,
        0,
        f"{name} has no blocks, so none of its tokens is in the cache for it; num_cached_tokens has to be 0.",
    )
    check.equal(
        "the hashes of all blocks",
        [block.hash for block in manager.blocks],
        hashes,
        "What the freed blocks hold was forgotten. A freed block keeps its hash, so that it can be found again.",
    )
    check.equal(
        "the free blocks, in order",
        list(manager.free_block_ids),
        free,
        "The blocks are free in another order than deallocate leaves them in: the tail of the table goes first.",
    )
    check.equal(
        "num_preemptions",
        scheduler.num_preemptions,
        count + 1,
        lambda got: (
            "num_preemptions does not count it." if got == count else f"It was {count} before: one more is to count."
        ),
    )
    says = "What was found in the cache when it was first admitted is for its answer to tell, and stays written down."
    check.equal(f"num_prefix_hit_tokens of {name}", seq.num_prefix_hit_tokens, found, says)
    queues = [type(queue).__name__ for queue in (scheduler.waiting, scheduler.running)]
    check.equal("what the two queues are", queues, ["deque", "deque"], "A queue is not a deque any more.")
    desk.observe()


ANSWER_STAYS = "Prompt and answer cannot be told apart any more: what it has written is to stay its answer."


def says_ran(name, got, left):
    gone = [who for who in left if who not in got]
    if name in got and gone:
        return f"{name} still runs, and {gone[0]} was taken out of running in its place."
    if name in got:
        return f"{name} still runs: it is in running."
    return f"{gone[0]} does not run any more, too." if gone else "The order of those that run was changed."


def says_waits(name, got, expected):
    if name not in got:
        return f"{name} is lost: it is in none of the two queues."
    if got.count(name) > 1:
        return f"{name} is in waiting {got.count(name)} times."
    if sorted(got) != sorted(expected):
        return "Others than those that waited before are in waiting."
    if not got.startswith(name):
        return f"{name} stands behind {got[0]}, and came before it: it is to be the very next."
    return "The order of those that waited was changed."


def says_tokens(name, seq, tokens):
    if len(seq.token_ids) < len(tokens):
        return f"{name} has lost tokens. It keeps all of them, its answer too: only the blocks go."
    return f"The tokens of {name} were changed."


def says_table(name, manager, table, owners):
    if all(manager.blocks[block_id].ref_count == owners[block_id] for block_id in table):
        return f"{name} still has all its blocks, and nobody has gained any room."
    return f"The blocks are counted as given back, but they are still in the block_table of {name}."


def says_owners(name, got, fewer):
    if all(got[i] == fewer[i] + 1 for i in got):
        return f"The block manager was not told: for it {name} still owns its blocks. Its deallocate takes them back."
    if any(got[i] < fewer[i] for i in got):
        return f"Blocks that others share were taken from them, too: only {name} gives them up."
    return ""


@case("ch06.preempt")
def back_to_the_head(engine, check):
    """A, B and C run, D waits. C is preempted, then B."""
    desk = Desk(engine, check, max_num_seqs=3)
    for _ in range(4):
        desk.add(6)
    desk.prefill()
    preempt(desk, 2)
    preempt(desk, 1)


@case("ch06.preempt")
def not_always_the_newest(engine, check):
    """A, B and C run. B is preempted, though C came after it."""
    desk = Desk(engine, check)
    for _ in range(3):
        desk.add(6)
    desk.prefill()
    preempt(desk, 1)


@case("ch06.preempt")
def the_oldest_and_then_a_newer_one(engine, check):
    """A, B and C run, D waits. A is preempted first, then B: the one that was preempted last is the very next."""
    desk = Desk(engine, check, max_num_seqs=3)
    for _ in range(4):
        desk.add(6)
    desk.prefill()
    preempt(desk, 0)
    preempt(desk, 1)


@case("ch06.preempt")
def one_of_two_with_the_same_words(engine, check):
    """A and B have asked the same, and written the same. B is preempted."""
    desk = Desk(engine, check)
    for _ in range(2):
        desk.add(range(100, 107))
    desk.prefill()
    preempt(desk, 1)
    check.true("it is B itself that waits", desk.scheduler.waiting[0] is desk.seqs[1], "The other one was taken out.")


@case("ch06.preempt")
def its_tokens_stay(engine, check):
    """A has a prompt of six tokens and has generated three. It was chosen for the step that is being made."""
    desk = Desk(engine, check)
    seq = desk.add(6)
    desk.prefill()
    desk.decode(8)
    desk.decode(9)
    seq.num_scheduled_tokens = 1
    check.step("A is chosen for one more token")
    preempt(desk, 0)


@case("ch06.preempt")
def blocks_that_others_share(engine, check):
    """A and B share two blocks. B is preempted, and admitted again."""
    desk = Desk(engine, check, num_blocks=8)
    for i in range(2):
        desk.add([*range(100, 108), 50 + i])
    desk.prefill()
    preempt(desk, 1)
    check.equal(
        "B computes only what the cache has lost",
        desk.prefill(),
        ["B 2"],
        {("B 10",): "Nothing of B is found in the cache any more, though A still has the blocks that they shared."},
    )


@case("ch06.preempt")
def all_its_blocks_are_shared(engine, check):
    """A, B and C run. D, whose prompt was cut, shares all blocks of C. C is preempted, and none of them is free."""
    preempt(pool_with_a_sharer(engine, check), 2)


@case("ch06.preempt")
def a_table_in_no_order(engine, check):
    """The blocks of C lie anywhere: it got them after A and B had ended. C has written six tokens when it has to go."""
    desk = Desk(engine, check, num_blocks=12)
    for length in (9, 6):
        desk.add(length, max_tokens=2)
    desk.prefill()
    for seq in (desk.seqs[1], desk.seqs[0]):
        desk.scheduler.finish(seq, "length")
    check.step("A and B end; C gets blocks that they had")
    desk.manager.free_block_ids = type(desk.manager.free_block_ids).fromkeys([7, 2, 9, 0, 4, 11, 1, 3, 5, 6, 8, 10])
    desk.add(10, max_tokens=20)
    desk.prefill()
    for token_id in (8, 9, 10, 11, 12):
        desk.decode(token_id)
    preempt(desk, 2)
    check.equal(
        "what C computes when it comes back",
        desk.prefill(),
        ["C 4"],
        {("C 16",): "Nothing of C is found in the cache any more, though nobody took its blocks meanwhile."},
    )


@case("ch06.preempt")
def nothing_is_lost(engine, check):
    """Random requests on pools that are too small. Blocks are counted after every step; all requests finish."""
    for seed in range(6):
        run_to_the_end(engine, check, seed, ERRORS_OF_PREEMPT)


# postprocess


ERRORS_OF_POSTPROCESS = {
    "ValueError": "Something is taken out of a queue in which it is not, or taken out twice: finish takes a sequence "
    "out of its queue, once.",
}


def step(desk, token_id=7):
    """A whole step; what postprocess makes of every sequence is looked at."""
    check, scheduler = desk.check, desk.scheduler
    seqs, is_prefill = scheduler.schedule()
    cut = [seq.num_cached_tokens + seq.num_scheduled_tokens < seq.num_tokens for seq in seqs]
    token_ids = [None if is_cut else token_id for is_cut in cut]
    plan = ", ".join(desk.plan(seqs))
    check.step(f"{'prefill' if is_prefill else 'decode'} {plan}; postprocess with {token_ids}", ERRORS_OF_POSTPROCESS)
    take_in(desk, seqs, token_ids)


def take_in(desk, seqs, token_ids):
    """One call of postprocess; all that it makes of the sequences is looked at."""
    before = [(seq.num_cached_tokens, seq.num_scheduled_tokens, list(seq.token_ids)) for seq in seqs]
    tables, sampled, chosen = [list(seq.block_table) for seq in seqs], list(token_ids), list(seqs)
    desk.scheduler.postprocess(seqs, token_ids)
    for seq, token, (stored, share, tokens), table in zip(chosen, sampled, before, tables, strict=True):
        look_at(desk, seq, token, stored, share, tokens)
        if not seq.is_finished:
            says = "Blocks are given when a step is scheduled. postprocess only takes in what was computed."
            desk.check.equal(f"the blocks of {desk.name(seq)}", list(seq.block_table), table, says)
    is_kept = [id(seq) for seq in seqs] == [id(seq) for seq in chosen] and token_ids == sampled
    says = "The two lists belong to the engine, which goes through them once more; here they have changed."
    desk.check.true("the lists of sequences and tokens are as they were", is_kept, says)
    desk.observe()


def look_at(desk, seq, token, stored, share, tokens):
    """What has to hold of a sequence after a step that computed `share` of its tokens; `stored` were stored before."""
    check, name = desk.check, desk.name(seq)
    expected = tokens if token is None else [*tokens, token]
    check.equal(
        f"all tokens of {name}", list(seq.token_ids), expected, lambda got: says_appended(name, got, tokens, token)
    )
    check.equal(
        f"num_tokens of {name}",
        seq.num_tokens,
        len(expected),
        f"{name} has {len(expected)} tokens. append_token counts them, and keeps last_token.",
    )
    check.equal(
        f"last_token of {name}", seq.last_token, expected[-1], "last_token is not the last token; append_token sets it."
    )
    reason = finish_rule(desk, seq) if token is not None else None
    ended = (seq.finish_reason, getattr(seq.status, "name", repr(seq.status)))
    live = "WAITING" if token is None else "RUNNING"
    right = (None, live) if reason is None else (reason, "FINISHED")
    check.equal(f"finish_reason and status of {name}", ended, right, lambda got: says_ended(name, got, right, token))
    if reason is None:
        what = f"num_cached_tokens of {name}"
        check.equal(
            what, seq.num_cached_tokens, stored + share, lambda got: says_stored(seq, got, stored, share, token)
        )
    else:
        says = f"{name} is over and has no blocks, so nothing of it is cached. Was it counted after finish?"
        if seq.block_table:
            says = (
                f"{name} is marked as finished, but finish was not called: it has its blocks. finish(seq, reason) "
                "gives them back, takes it out of its queue, and sets reason and status."
            )
        check.equal(f"num_cached_tokens of {name}", seq.num_cached_tokens, 0, says)
    left = seq.num_scheduled_tokens
    check.equal(
        f"num_scheduled_tokens of {name}",
        left,
        0,
        f"The step is over, and num_scheduled_tokens is {left}: nothing is scheduled now.",
    )


def finish_rule(desk, seq):
    """By counting: why a sequence in these scenes is over, None if it is not."""
    if "finish_reason" in vars(desk.scheduler):
        return desk.scheduler.finish_reason(seq)
    params = seq.sampling_params
    if seq.token_ids[-1] in (EOS, OTHER_EOS) and not params.ignore_eos:
        return "stop"
    return "length" if len(seq.token_ids) - seq.num_prompt_tokens >= params.max_tokens else None


def says_appended(name, got, tokens, token):
    if token is None:
        return f"The prompt of {name} was cut, so no token was sampled: None is no token, and nothing is appended."
    if got == tokens and token == 0:
        return f"Token 0 was sampled for {name}, and it was left out: 0 is a token like any other; only None is none."
    if got == tokens:
        return f"Token {token} was sampled for {name}, and nobody appended it."
    if got == [*tokens, token, token]:
        return f"Token {token} was appended twice."
    return f"The tokens of {name} should be as before, with {token} at the end."


def says_ended(name, got, right, token):
    reason, status = got
    if token is None:
        return f"{name}'s prompt was cut, so nothing was sampled: it cannot be over, and it still waits."
    if right[0] is None:
        if reason is not None or status == "FINISHED":
            return f"{name} was ended, though finish_reason(seq) is None once token {token} is appended."
        return f"{name} runs, but its status is {status}."
    if reason is None and status != "FINISHED":
        return f"finish_reason({name}) is {right[0]!r} once token {token} is appended, but {name} was not ended."
    if reason is None:
        return (
            f"{name} is marked as finished, but nobody says why. finish(seq, reason) does all that belongs to an end."
        )
    if status != "FINISHED":
        return f"{name} has a reason, but its status is {status}: finish(seq, reason) does all that belongs to an end."
    return f"{name} ended for another reason than finish_reason(seq) gives: {right[0]!r}."


def says_stored(seq, got, stored, share, token):
    if got == stored == share:
        return f"num_cached_tokens is {got}: the {stored} stored before and the {share} of this step count together."
    if got == stored:
        what = " (also of a prompt that is cut)" if token is None else ""
        return (
            f"{share} tokens were computed and are stored now{what}, but num_cached_tokens is still {got}: "
            "num_scheduled_tokens is to be added to it, before that becomes 0."
        )
    if got == share:
        return f"num_cached_tokens is what this step computed, {share}; the {stored} stored before are to count, too."
    if token is None and got == seq.num_tokens:
        return f"All {got} tokens count as stored, but the prompt was cut: only {stored + share} of them are."
    if got == stored + share + 1:
        return "One token too many counts as stored: the new one goes through the model in the next step."
    if got == stored + 1:
        return f"num_cached_tokens grew by one, but the step computed {share}: num_scheduled_tokens says how many."
    return f"{stored} tokens were stored, and the step computed {share} more."


@case("ch06.postprocess")
def after_a_prefill(engine, check):
    """Two prompts have been computed, and each gets its first token."""
    desk = Desk(engine, check)
    desk.add(5)
    desk.add(9)
    step(desk)
    check.equal("the queues", desk.queues(), "waiting , running AB")


@case("ch06.postprocess")
def a_cut_prompt_gets_no_token(engine, check):
    """A has 25 tokens, and a step computes ten."""
    desk = Desk(engine, check, budget=10)
    desk.add(25)
    for queues in ("waiting A, running ", "waiting A, running ", "waiting , running A"):
        step(desk)
        check.equal("the queues", desk.queues(), queues)


@case("ch06.postprocess")
def token_0_is_a_token(engine, check):
    """The model samples token 0, and then token 3. A ignores end tokens, so neither of them ends it."""
    desk = Desk(engine, check)
    desk.add(5, ignore_eos=True)
    for token_id in (EOS, 3, EOS):
        step(desk, token_id)
    check.equal("the answer of A", list(desk.seqs[0].completion_token_ids), [EOS, 3, EOS])


@case("ch06.postprocess")
def one_whole_and_one_cut(engine, check):
    """A has six tokens, B has twelve, and a step computes ten: A gets a token, B is cut and gets none."""
    desk = Desk(engine, check, budget=10)
    desk.add(6)
    desk.add(12)
    for _ in range(3):
        step(desk)
    check.equal("tokens of the answers", [seq.num_completion_tokens for seq in desk.seqs], [2, 2])


@case("ch06.postprocess")
def a_cut_one_before_a_whole_one(engine, check):
    """Here another rule has chosen the step: A, the first in the list, is cut, and B behind it is whole."""
    desk = Desk(engine, check)
    one, other = desk.add(12), desk.add(6, max_tokens=1)
    for seq, share in ((one, 5), (other, 6)):
        desk.scheduler.admit(seq)
        seq.num_scheduled_tokens = share
    desk.scheduler.running.append(desk.scheduler.waiting.pop())
    other.status = type(other.status).RUNNING
    check.step("A computes 5 of 12 tokens, B all 6, and wants one more; postprocess with [None, 7]")
    take_in(desk, [one, other], [None, 7])
    check.equal("the queues", desk.queues(), "waiting A, running ")


@case("ch06.postprocess")
def a_cut_prompt_that_ends_with_an_end_token(engine, check):
    """A's prompt of twelve tokens ends with the model's end token, as a conversation may. A step computes eight."""
    desk = Desk(engine, check, budget=8)
    desk.add([*range(100, 111), EOS])
    step(desk)
    check.equal("the queues", desk.queues(), "waiting A, running ")
    step(desk)
    check.equal("the queues after the second", desk.queues(), "waiting , running A")


@case("ch06.postprocess")
def a_prompt_from_the_cache(engine, check):
    """B begins like A, so that eight of its ten tokens come from the cache. Then both decode."""
    desk = Desk(engine, check)
    desk.add([*range(100, 108), 50])
    step(desk)
    desk.add([*range(100, 108), 60, 61])
    step(desk)
    for _ in range(2):
        step(desk, 8)
    check.equal("generated tokens of B", list(desk.seqs[1].completion_token_ids), [7, 8, 8])


@case("ch06.postprocess")
def one_that_comes_back_in_chunks(engine, check):
    """A has written three tokens when it is preempted. It comes back, in two chunks, and goes on."""
    desk = Desk(engine, check, budget=7)
    desk.add(6)
    for token_id in (7, 8, 9):
        step(desk, token_id)
    desk.scheduler.preempt(desk.seqs[0])
    desk.manager.reset()
    check.step("A is preempted, and all that was cached is lost")
    for token_id in (10, 11, 12):
        step(desk, token_id)
    check.equal("generated tokens of A", list(desk.seqs[0].completion_token_ids), [7, 8, 9, 11, 12])


@case("ch06.postprocess")
def the_last_token(engine, check):
    """A wants two tokens, B wants four. The moment that A has two, its place and its blocks are free."""
    desk = Desk(engine, check)
    desk.add(5, max_tokens=2)
    desk.add(5, max_tokens=4)
    step(desk)
    check.equal("the queues after one token", desk.queues(), "waiting , running AB")
    step(desk)
    check.equal("the queues after two", desk.queues(), "waiting , running B")
    check.equal("how A ended", (desk.seqs[0].is_finished, desk.seqs[0].finish_reason), (True, "length"))
    step(desk, EOS)
    check.equal("how B ended, by an end token", (desk.seqs[1].is_finished, desk.seqs[1].finish_reason), (True, "stop"))
    check.equal("the queues", desk.queues(), "waiting , running ")


@case("ch06.postprocess")
def all_end_in_one_step(engine, check):
    """A, B and C each want one token: all of them are over with the very step that reads their prompts."""
    desk = Desk(engine, check)
    for length in (5, 9, 3):
        desk.add(length, max_tokens=1)
    step(desk)
    check.equal("the queues", desk.queues(), "waiting , running ")


@case("ch06.postprocess")
def another_rule_says_when_it_is_over(engine, check):
    """Here finish_reason has another rule: token 9 ends an answer with "error", and nothing else does. A wants two."""
    desk = Desk(engine, check)
    desk.add(5, max_tokens=2)
    desk.scheduler.finish_reason = lambda seq: "error" if seq.last_token == 9 else None
    for token_id, queues in ((7, "running A"), (EOS, "running A"), (8, "running A"), (9, "running ")):
        step(desk, token_id)
        check.equal(f"the queues after token {token_id}", desk.queues(), f"waiting , {queues}")
    check.equal("how A ended", (desk.seqs[0].is_finished, desk.seqs[0].finish_reason), (True, "error"))
    check.equal("generated tokens of A", list(desk.seqs[0].completion_token_ids), [7, EOS, 8, 9])


@case("ch06.postprocess")
def all_requests_finish(engine, check):
    """Random requests, with chunks and preemptions. Every answer gets exactly the tokens it asked for."""
    for seed in range(4):
        run_to_the_end(engine, check, seed, ERRORS_OF_POSTPROCESS)


# finish_reason


def ask(desk, prompt, tokens, reasons, stop_reason=None, **params):
    """Give a sequence these tokens one after the other, and ask finish_reason after each."""
    check = desk.check
    seq = desk.add(prompt, **params)
    check.steps[-1] += f", {params}"
    for token_id, reason in zip(tokens, reasons, strict=True):
        seq.append_token(token_id)
        length, status = seq.num_tokens, seq.status
        check.step(f"finish_reason after a token with the id {token_id}")
        got = desk.scheduler.finish_reason(seq)
        if not check.equal(
            f"the reason after token {token_id}",
            got,
            reason,
            lambda got, reason=reason: says_reason(desk, seq, got, reason),
        ):
            return seq
        check.step(f"it says {got!r}")
        is_as_before = (seq.finish_reason, seq.status, seq.num_tokens) == (None, status, length)
        check.true("the sequence is as it was, but for stop_reason and error", is_as_before, ONLY_SAYS)
        if reason != "error":
            says = f"{reason!r} is no error, and seq.error says that there was one."
            check.true("nothing is in its error", seq.error is None, says)
    check.equal("stop_reason", seq.stop_reason, stop_reason, lambda got: says_stop_reason(got, stop_reason))
    return seq


ONLY_SAYS = "finish_reason only says why. Ending the sequence is done by finish, which whoever asked calls."
REASONS = (None, "stop", "length", "error")


IGNORE_EOS_INVERTED = " With ignore_eos you say 'stop' here: that condition is the wrong way round."


def if_ignored(desk, seq):
    """What finish_reason says of a sequence, were its request to ignore end tokens; it stays as it is."""
    params, known = seq.sampling_params, (seq.stop_reason, seq.error)
    try:
        seq.sampling_params = replace(params, ignore_eos=True)
        return desk.scheduler.finish_reason(seq)
    except Exception:
        return None
    finally:
        seq.sampling_params, (seq.stop_reason, seq.error) = params, known


def says_reason(desk, seq, got, right):
    """What a wrong reason says, from the state of the sequence alone."""
    params, token, pool = seq.sampling_params, seq.last_token, len(desk.manager.blocks)
    if not any(got is reason or (isinstance(got, str) and got == reason) for reason in REASONS):
        return f'A reason is one of the words "stop", "length" and "error", or None; {got!r} is none of them.'
    is_end = token in (EOS, OTHER_EOS)
    counts = (
        f"{seq.num_completion_tokens} tokens are generated, max_tokens is {params.max_tokens}; with the prompt there "
        f"are {seq.num_tokens}, max_model_len is {desk.scheduler.max_model_len}"
    )
    blocks = f"it needs {seq.num_blocks} blocks, and the whole pool has {pool}"
    if right == "stop":
        rule = f"Token {token} is an end token of the model" if is_end else f"Token {token} is one of stop_token_ids"
        if got is None and is_end and not params.ignore_eos:
            text = f"{rule}, one of the set self.eos, and the request does not ignore them: rule 1 holds."
            return text + (IGNORE_EOS_INVERTED if if_ignored(desk, seq) == "stop" else "")
        if got is None:
            quiet = ", and ignore_eos is only about the model's own" if params.ignore_eos else ""
            return f"Token {token} is one of stop_token_ids{quiet}: rule 2 holds."
        return f"{rule}, so the answer is complete. {got!r} may hold as well, but the first rule that holds decides."
    if got == "stop":
        if is_end and params.ignore_eos:
            return f"Token {token} is an end token, but this request ignores them (ignore_eos)."
        return f"The last token, {token}, is no end token and none of stop_token_ids. Only the last token counts."
    if right == "length":
        return f"Rule 3 holds: {counts}." + (" It comes before rule 4." if got == "error" else "")
    if got == "length":
        return f"Rule 3 does not hold: {counts}."
    if right == "error":
        return f"Rule 4 holds: {blocks}. It can never go on."
    return f"Rule 4 does not hold: {blocks}. How many of them are free just now does not matter."


def says_stop_reason(got, right):
    if right is None:
        return "stop_reason names a stop token of the request. Here rule 2 did not decide, so it stays None."
    return f"Rule 2 decided, and stop_reason is to say which token it was: {right}."


@case("ch06.finish_reason")
def an_end_token(engine, check):
    """The model's end tokens are 0 and 1. One request ends with each of them."""
    for eos in (OTHER_EOS, EOS):
        ask(Desk(engine, check, longest=20), 5, [5, 6, eos], [None, None, "stop"])


@case("ch06.finish_reason")
def the_first_token_ends_it(engine, check):
    """The very first token is an end token of the model, or a stop token of the request."""
    ask(Desk(engine, check, longest=20), 5, [EOS], ["stop"])
    ask(Desk(engine, check, longest=20), 1, [OTHER_EOS], ["stop"])
    ask(Desk(engine, check, longest=20), 5, [9], ["stop"], 9, stop_token_ids=[9])


@case("ch06.finish_reason")
def several_stop_tokens(engine, check):
    """The request stops at each of three tokens; 0 is one of them, and with ignore_eos no end token."""
    for token_id in (12, 0, 9):
        desk = Desk(engine, check, longest=20)
        ask(desk, 5, [5, 7, token_id], [None, None, "stop"], token_id, stop_token_ids=[9, 12, 0], ignore_eos=True)


@case("ch06.finish_reason")
def end_tokens_are_ignored(engine, check):
    """ignore_eos: end tokens are tokens like any other, and max_tokens ends the answer."""
    desk = Desk(engine, check, longest=20)
    ask(desk, 5, [5, EOS, OTHER_EOS, 7], [None, None, None, "length"], max_tokens=4, ignore_eos=True)


@case("ch06.finish_reason")
def a_stop_token_of_the_request(engine, check):
    """The request stops at token 9, too; once with ignore_eos."""
    for ignore_eos in (False, True):
        desk = Desk(engine, check, longest=20)
        ask(desk, 5, [5, 9], [None, "stop"], 9, stop_token_ids=[9], ignore_eos=ignore_eos)


@case("ch06.finish_reason")
def an_end_token_of_both(engine, check):
    """The request names the model's end token as a stop token, too. The first rule that holds decides."""
    for ignore_eos, stop_reason in ((False, None), (True, EOS)):
        desk = Desk(engine, check, longest=20)
        ask(desk, 5, [5, EOS], [None, "stop"], stop_reason, stop_token_ids=[9, EOS], ignore_eos=ignore_eos)


@case("ch06.finish_reason")
def an_end_token_in_the_prompt(engine, check):
    """The prompt is a conversation: end tokens and stop tokens are in the middle of it, and end nothing."""
    desk = Desk(engine, check, longest=20)
    ask(desk, [50, EOS, 51, 9, 52], [5, 6, EOS], [None, None, "stop"], stop_token_ids=[9])


@case("ch06.finish_reason")
def enough_tokens(engine, check):
    """Requests for one, two and five tokens; the prompt has five."""
    for max_tokens in (1, 2, 5):
        desk = Desk(engine, check, longest=20)
        ask(desk, 5, [7] * max_tokens, [None] * (max_tokens - 1) + ["length"], max_tokens=max_tokens)


@case("ch06.finish_reason")
def as_long_as_the_model_allows(engine, check):
    """max_model_len is 8, the prompt has five tokens, and the request wants thirty."""
    ask(Desk(engine, check, longest=8), 5, [7] * 3, [None, None, "length"], max_tokens=30)
    check.step("max_model_len is 60 now; a step computes four tokens at most")
    ask(Desk(engine, check, longest=60, budget=4), 40, [7] * 20, [None] * 19 + ["length"], max_tokens=30)


@case("ch06.finish_reason")
def a_prompt_that_is_as_long_as_the_model_allows(engine, check):
    """max_model_len is 8, and so long is the prompt: with its first token there are nine."""
    ask(Desk(engine, check, longest=8), 8, [7], ["length"], max_tokens=30)


@case("ch06.finish_reason")
def an_end_at_the_limit(engine, check):
    """The third and last token that was asked for is an end token. The first rule that holds decides."""
    ask(Desk(engine, check, longest=20), 5, [5, 5, EOS], [None, None, "stop"], max_tokens=3)
    ask(Desk(engine, check, longest=20), 5, [5, 5, 9], [None, None, "stop"], 9, max_tokens=3, stop_token_ids=[9])


def small_pool(engine, check, num_blocks=3, block_size=4):
    """The model would allow far longer sequences than these few blocks hold."""
    desk = Desk(engine, check, num_blocks, block_size)
    desk.scheduler.max_model_len = 1000
    check.step("the model itself allows 1000 tokens")
    return desk


@case("ch06.finish_reason")
def longer_than_the_pool(engine, check):
    """The pool has three blocks of four tokens, the prompt five tokens. The thirteenth token has no place anywhere."""
    desk = small_pool(engine, check)
    seq = ask(desk, 5, [7] * 8, [None] * 7 + ["error"], max_tokens=30)
    is_sentence = isinstance(seq.error, str) and len(seq.error) > 0
    check.true("its error is a sentence", is_sentence, 'The reason is "error", but seq.error does not say what it was.')


@case("ch06.finish_reason")
def longer_than_pools_of_other_blocks(engine, check):
    """Seven blocks of one token, then three blocks of two tokens; the prompt has five tokens."""
    for num_blocks, block_size in ((7, 1), (3, 2)):
        places = num_blocks * block_size - 5
        desk = small_pool(engine, check, num_blocks, block_size)
        ask(desk, 5, [7] * (places + 1), [None] * places + ["error"], max_tokens=30)


@case("ch06.finish_reason")
def done_just_before_it_is_too_long(engine, check):
    """The thirteenth token would need a fourth block, but it is the last. The first rule that holds decides."""
    for last, params, reason in (
        (7, {"max_tokens": 8}, "length"),
        (EOS, {"max_tokens": 30}, "stop"),
        (9, {"max_tokens": 30, "stop_token_ids": [9]}, "stop"),
    ):
        stop_reason = 9 if last == 9 else None
        ask(small_pool(engine, check), 5, [7] * 7 + [last], [None] * 7 + [reason], stop_reason, **params)


@case("ch06.finish_reason")
def no_block_is_free_just_now(engine, check):
    """Four blocks: A has three, and B has one, which is full. B can go on as soon as A makes room."""
    desk = small_pool(engine, check, num_blocks=4)
    desk.add(12, max_tokens=30)
    seq = desk.add(4, max_tokens=30)
    desk.prefill()
    check.step(f"free blocks: {len(desk.manager.free_block_ids)}")
    got = desk.scheduler.finish_reason(seq)
    what = "finish_reason of B, which has five tokens and one block"
    check.equal(what, got, None, lambda got: says_reason(desk, seq, got, None))
    check.true("B has no error", seq.error is None, "Nothing is wrong with B, and its error says that something is.")


@case("ch06.finish_reason")
def its_answer_counts_after_a_preemption(engine, check):
    """A wants six tokens, and has four of them when it is preempted and computed again. Its prompt is the same."""
    desk = Desk(engine, check, longest=20)
    seq = desk.add(5, max_tokens=6)
    desk.prefill()
    for _ in range(3):
        desk.decode()
    desk.scheduler.preempt(seq)
    check.step("A is preempted; it comes back, and its prefill gives it a fifth token")
    desk.prefill()
    got = desk.scheduler.finish_reason(seq)
    check.equal("finish_reason of A after five tokens", got, None, lambda got: says_reason(desk, seq, got, None))
    desk.decode()
    got = desk.scheduler.finish_reason(seq)
    check.equal("finish_reason of A after six tokens", got, "length", lambda got: says_reason(desk, seq, got, "length"))


@case("ch06.finish_reason")
def the_others_go_on(engine, check):
    """Whole steps. A outgrows the pool of three blocks and ends with an error. B, which had to wait for it, goes on."""
    desk = small_pool(engine, check)
    desk.bound()
    desk.add(5, max_tokens=30)
    desk.add(4, max_tokens=3)
    for _ in range(40):
        if desk.live:
            desk.step(7)
    ends = [(seq.finish_reason, seq.num_completion_tokens) for seq in desk.seqs]
    check.equal("how A and B ended, and with how many tokens", ends, [("error", 8), ("length", 3)])
    check.equal("blocks in use", len(desk.manager.used_block_ids), 0)


# choose_victim, which is open: any rule that keeps the invariants, and has fewer tokens computed again than ours


def watched(desk, check):
    """Have every answer of choose_victim looked at."""
    ask = desk.scheduler.choose_victim

    def choose_victim(seq):
        before = state_of(desk)
        victim = ask(seq)
        look_at_victim(desk, check, victim, before)
        return victim

    desk.scheduler.choose_victim = choose_victim


def serve(desk, check, seed):
    """The mixed work, to its end; nothing may be lost. Returns how many tokens were computed again."""
    watched(desk, check)
    desk.seqs = []
    add = desk.scheduler.add
    desk.scheduler.add = lambda seq: desk.seqs.append(seq) or add(seq)
    seqs = mixed_work.serve(desk.scheduler, desk.sequence_class, desk.params_class, seed)
    check.equal(
        "requests that never finished",
        [seq.seq_id for seq in desk.live],
        [],
        f"After {mixed_work.MAX_STEPS} steps, where 400 are plenty, these still take the blocks from each other.",
    )
    wrong = [seq.seq_id for seq in seqs if not is_whole(seq)]
    check.equal("requests whose answer is not the same as without preemption", wrong, [])
    check.equal("blocks in use at the end", len(desk.manager.used_block_ids), 0)
    return desk.scheduler.num_prefill_tokens - sum(seq.num_prompt_tokens for seq in seqs)


def is_whole(seq):
    right = [mixed_work.token_at(seq, place) for place in range(seq.num_prompt_tokens, seq.num_tokens)]
    return list(seq.completion_token_ids) == right and len(right) == seq.sampling_params.max_tokens


def state_of(desk):
    """All that a rule could change, to be compared."""
    scheduler, manager = desk.scheduler, desk.manager
    queues = [[seq.seq_id for seq in queue] for queue in (scheduler.waiting, scheduler.running)]
    seqs = [(s.status, s.num_tokens, s.num_cached_tokens, s.num_scheduled_tokens, s.block_table[:]) for s in desk.seqs]
    return queues, seqs, list(manager.free_block_ids), scheduler.num_preemptions


def look_at_victim(desk, check, victim, before):
    """Whether it is one of those that run, and whether all is as it was before choose_victim said so."""
    is_running = any(victim is seq for seq in desk.scheduler.running)
    what = "a running sequence" if is_running else "None" if victim is None else f"of the type {type(victim).__name__}"
    if any(victim is seq for seq in desk.seqs) and not is_running:
        what = "a sequence that does not run"
    check.equal("what choose_victim returns is", what, "a running sequence", says_victim)
    check.true(
        "all is as it was before the question",
        state_of(desk) == before,
        "choose_victim only says who goes. It changed something itself: a queue, a sequence or the blocks.",
    )


def says_victim(got):
    if got == "None":
        return (
            "It returns None, at least here. Somebody has to go, and the sequence that asks is one of the candidates."
        )
    return f"What it returns is {got}. Only one of self.running can give up its blocks, and it is returned itself."


@case("ch06.choose_victim")
def somebody_has_to_go(engine, check):
    """A, B and C run and hold all blocks but those of D, a prompt that was cut. Each of the three asks once."""
    desk = pool_with_a_sharer(engine, check)
    watched(desk, check)
    for seq in desk.seqs[:3]:
        check.step(f"choose_victim for {desk.name(seq)}")
        desk.scheduler.choose_victim(seq)


@case("ch06.choose_victim")
def only_one_is_left(engine, check):
    """A runs alone, and needs a block. B, a prompt that was cut, holds all others."""
    desk = Desk(engine, check, num_blocks=4, budget=7)
    desk.add(3, max_tokens=20)
    desk.prefill()
    desk.add(12)
    desk.prefill()
    desk.decode()
    watched(desk, check)
    check.step("choose_victim for A")
    desk.scheduler.choose_victim(desk.seqs[0])


@case("ch06.choose_victim")
def everybody_gets_to_the_end(engine, check):
    """24 requests, long texts and short questions, on pools of 24 and 40 blocks. Nothing is lost, and all finish."""
    for num_blocks in (24, 40):
        desk = Desk(engine, check, num_blocks, budget=128, max_num_seqs=16, longest=160)
        serve(desk, check, 7)


@case("ch06.choose_victim")
def fewer_tokens_are_computed_again(engine, check):
    """Nine runs of 24 requests, long texts and short questions. The tokens that are computed again are counted."""
    yours = 0
    for seed, num_blocks in mixed_work.RUNS:
        desk = Desk(engine, Check(), num_blocks, budget=128, max_num_seqs=16, longest=160)
        yours += serve(desk, check, seed)
    newest, bar = mixed_work.NEWEST, mixed_work.BAR
    check.measured(f"by your rule {yours} tokens are computed again; when the newest goes it is {newest}")
    check.true(
        f"at most {bar} tokens are computed again",
        yours <= bar,
        f"Your rule keeps every promise. It has {yours} tokens computed again; when the newest goes it is {newest}, "
        f"and at most {bar} are asked for.",
    )


@case("ch06.choose_victim")
def the_newest_goes(engine, check):
    """For comparison: the same nine runs by the engine's own rule, counted here and now."""
    newest = 0
    for seed, num_blocks in mixed_work.RUNS:
        desk = Desk(engine, Check(), num_blocks, budget=128, max_num_seqs=16, longest=160)
        desk.scheduler.choose_victim = lambda seq, desk=desk: desk.scheduler.running[-1]
        newest += serve(desk, check, seed)
    check.equal("tokens computed again when the newest goes", newest, mixed_work.NEWEST)
