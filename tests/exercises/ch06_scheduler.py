"""Grader of chapter 06. What is right is said by counting tokens, blocks and requests, and by who came first."""

import random
from collections import Counter
from types import SimpleNamespace

from exercises.kit.grading import Check, Engine, case

EOS, OTHER_EOS = 0, 1  # the tokens that end an answer; all other tokens in here are larger
MOST_QUESTIONS = 300


class EndlessLoopError(Exception):
    """The same question was asked over and over."""


class Desk:
    """A scheduler with its requests A, B, C, ..., driven as the engine drives it; tokens are made up."""

    def __init__(
        self, engine: Engine, check: Check, num_blocks=40, block_size=4, budget=64, max_num_seqs=8, longest=64
    ):
        longest = min(longest, num_blocks * block_size)
        config = SimpleNamespace(
            num_kvcache_blocks=num_blocks,
            kvcache_block_size=block_size,
            num_kvcache_tokens=num_blocks * block_size,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=longest,
            enable_prefix_caching=True,
            eos=(EOS, OTHER_EOS),
        )
        self.scheduler = engine.get("engine.scheduler:Scheduler")(config)
        self.manager = self.scheduler.block_manager
        self.params_class = engine.get("sampling_params:SamplingParams")
        self.sequence_class = engine.get("engine.sequence:Sequence")
        self.check, self.block_size, self.budget, self.max_num_seqs = check, block_size, budget, max_num_seqs
        self.seqs: list[object] = []
        self.fresh = iter(range(1000, 10**6))
        check.step(
            f"a pool of {num_blocks} blocks for {block_size} tokens each; at most {budget} tokens a step, "
            f"{max_num_seqs} running sequences, {longest} tokens of a sequence"
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

    # Steps.

    def plan(self, seqs):
        return [f"{self.name(seq)} {seq.num_scheduled_tokens}" for seq in seqs]

    def prefill(self):
        """One call of schedule_prefill; what it chose is checked, and computed."""
        waiting, running = list(self.scheduler.waiting), list(self.scheduler.running)
        known = {seq.seq_id: (seq.num_cached_tokens if seq.block_table else None) for seq in self.seqs}
        seqs = self.scheduler.schedule_prefill()
        if not self.check.equal("what schedule_prefill returns is a", type(seqs).__name__, "list"):
            seqs = []
        self.check.step(f"schedule_prefill: {', '.join(self.plan(seqs)) or 'nobody'}")
        plan = self.plan(seqs)
        self.check_choice(seqs, waiting, running, known)
        self.compute(seqs)
        return plan

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
        check.equal("all live requests, each once in a queue", queued, sorted(self.name(seq) for seq in self.live))
        statuses = {self.name(seq): getattr(seq.status, "name", repr(seq.status)) for seq in [*waiting, *running]}
        expected = dict.fromkeys(self.names(waiting), "WAITING") | dict.fromkeys(self.names(running), "RUNNING")
        check.equal("the status of those in the queues", statuses, expected)
        check.true("at most max_num_seqs run", len(running) <= self.max_num_seqs)
        used = {block_id for seq in self.live for block_id in seq.block_table}
        check.equal("blocks in use", sorted(self.manager.used_block_ids), sorted(used))
        check.equal("free blocks", len(self.manager.free_block_ids), len(self.manager.blocks) - len(used))

    def check_choice(self, seqs, waiting, running, known):
        """What is true of every right choice of a prefill, whatever the code looks like."""
        check, size = self.check, self.block_size
        check.equal("who takes part: the first of the queue", self.names(seqs), self.names(waiting[: len(seqs)]))
        total = sum(seq.num_scheduled_tokens for seq in seqs)
        check.true("the step is within the token budget", total <= self.budget)
        left = [seq.num_tokens - seq.num_cached_tokens - seq.num_scheduled_tokens for seq in seqs]
        complete = [seq for seq, missing in zip(seqs, left, strict=True) if missing == 0]
        check.true("everybody computes at least one token", all(seq.num_scheduled_tokens > 0 for seq in seqs))
        check.equal("tokens that all but the last leave for later", left[:-1], [0] * len(left[:-1]))
        check.true("only a full budget cuts a prompt", not left or left[-1] == 0 or total == self.budget)
        kept = [known[seq.seq_id] for seq in seqs if known[seq.seq_id] is not None]
        now = [seq.num_cached_tokens for seq in seqs if known[seq.seq_id] is not None]
        check.equal("tokens stored so far of those that were cut before", now, kept)
        check.equal("running afterwards", self.names(self.scheduler.running), self.names(running + complete))
        check.equal("waiting afterwards", self.names(self.scheduler.waiting), self.names(waiting[len(complete) :]))
        check.equal(
            "blocks of those that take part",
            [len(seq.block_table) for seq in seqs],
            [-(-seq.num_tokens // size) for seq in seqs],
        )
        for seq in seqs:
            full = (seq.num_cached_tokens + seq.num_scheduled_tokens) // size
            found = [self.manager.blocks[block_id].hash != -1 for block_id in seq.block_table]
            check.equal(
                f"which blocks of {self.name(seq)} can be found", found, [i < full for i in range(len(seq.block_table))]
            )
        if len(complete) == len(seqs) < len(waiting):
            may = self.scheduler.may_join(waiting[len(seqs)], self.budget - total)
            check.equal("whether the first that was left out might have joined", may, False)
        self.observe()


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
    check.equal("for whom hash_blocks was called", sorted(hashed), ["A", "B", "C"])
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
    hits = [seq.num_prefix_hit_tokens for seq in desk.seqs]
    check.equal("num_prefix_hit_tokens, which admit writes down", hits, [0, 8, 8, 8, 8])


@case("ch06.schedule_prefill")
def equal_prompts_share_in_the_same_step(engine, check):
    """Three equal prompts of ten tokens arrive together. The first one's full blocks serve the others at once."""
    desk = Desk(engine, check)
    for _ in range(3):
        desk.add(range(100, 110))
    check.equal("who computes how many tokens", desk.prefill(), ["A 10", "B 2", "C 2"])


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
        check.equal("requests that never finished", desk.names(desk.live), "")


def desk_step(desk, check):
    """As the scheduler's own schedule and postprocess, with every prefill looked at."""
    scheduler = desk.scheduler
    waiting, running = list(scheduler.waiting), list(scheduler.running)
    known = {seq.seq_id: (seq.num_cached_tokens if seq.block_table else None) for seq in desk.seqs}
    seqs, is_prefill = scheduler.schedule()
    check.step(("prefill: " if is_prefill else "decode: ") + ", ".join(desk.plan(seqs)))
    if is_prefill:
        desk.check_choice(seqs, [seq for seq in waiting if not seq.is_finished], running, known)
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


@case("ch06.make_room")
def there_is_a_slot_already(engine, check):
    """The last token of A falls into a block that A has. Nobody has to go."""
    desk = full_pool(engine, check)
    check.step("make_room for A, which has eight tokens and two blocks")
    check.equal("the result", desk.scheduler.make_room(desk.seqs[0]), True)
    check.equal("the queues", desk.queues(), "waiting , running ABC")
    desk.observe()


@case("ch06.make_room")
def the_newest_makes_room(engine, check):
    """A, B and C hold all blocks. B needs one more."""
    desk = full_pool(engine, check)
    desk.decode()
    check.step("make_room for B, which has nine tokens and two blocks")
    check.equal("the result", desk.scheduler.make_room(desk.seqs[1]), True)
    check.equal("the queues", desk.queues(), "waiting C, running AB")
    check.equal("num_preemptions", desk.scheduler.num_preemptions, 1)
    check.equal("free blocks", len(desk.manager.free_block_ids), 2)
    desk.observe()


@case("ch06.make_room")
def the_newest_goes_itself(engine, check):
    """A, B and C hold all blocks. C, the newest, needs one more."""
    desk = full_pool(engine, check)
    desk.decode()
    check.step("make_room for C, which has nine tokens and two blocks")
    check.equal("the result", desk.scheduler.make_room(desk.seqs[2]), False)
    check.equal("the queues", desk.queues(), "waiting C, running AB")
    check.equal("the blocks of C", list(desk.seqs[2].block_table), [])
    desk.observe()


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
    desk = pool_with_a_sharer(engine, check)
    check.step("make_room for A, which has nine tokens and two blocks")
    check.equal("the result", desk.scheduler.make_room(desk.seqs[0]), True)
    check.equal("the queues", desk.queues(), "waiting BCD, running A")
    desk.observe()


def ruled_by(desk, choose):
    """Have another rule say who goes; returns a list of those for whom it is asked."""
    asked = []

    def choose_victim(seq):
        asked.append(desk.name(seq))
        return choose(seq)

    desk.scheduler.choose_victim = choose_victim
    return asked


@case("ch06.make_room")
def another_rule_says_who_goes(engine, check):
    """A, B and C hold all blocks. Here choose_victim has another rule: the one in the middle goes."""
    desk = full_pool(engine, check)
    desk.decode()
    asked = ruled_by(desk, lambda seq: desk.seqs[1])
    check.step("make_room for A, which has nine tokens and two blocks; choose_victim says B")
    check.equal("the result", desk.scheduler.make_room(desk.seqs[0]), True)
    check.equal("for whom choose_victim was asked", sorted(set(asked)), ["A"])
    check.equal("the queues", desk.queues(), "waiting B, running AC")
    desk.observe()


@case("ch06.make_room")
def the_rule_says_the_asker(engine, check):
    """A, B and C hold all blocks. By the rule in this scene, whoever asks for a block goes, also if newer ones run."""
    desk = full_pool(engine, check)
    desk.decode()
    asked = ruled_by(desk, lambda seq: seq)
    check.step("make_room for A, which has nine tokens and two blocks; choose_victim says A")
    check.equal("the result", desk.scheduler.make_room(desk.seqs[0]), False)
    check.equal("for whom choose_victim was asked", sorted(set(asked)), ["A"])
    check.equal("the queues", desk.queues(), "waiting A, running BC")
    desk.observe()


@case("ch06.make_room")
def the_rule_is_asked_again(engine, check):
    """A, B and C run. D, whose prompt was cut, shares all blocks of C. B needs one more; by the rule C goes, then A."""
    desk = pool_with_a_sharer(engine, check)
    asked = ruled_by(desk, lambda seq: desk.seqs[2] if desk.seqs[2] in desk.scheduler.running else desk.seqs[0])
    check.step("make_room for B, which has nine tokens and two blocks; choose_victim says C, and when C is gone, A")
    check.equal("the result", desk.scheduler.make_room(desk.seqs[1]), True)
    check.equal("for whom choose_victim was asked", sorted(set(asked)), ["B"])
    check.equal("the queues", desk.queues(), "waiting ACD, running B")
    desk.observe()


@case("ch06.make_room")
def a_block_is_free(engine, check):
    """A and B run. A needs one more block, and one is free."""
    desk = Desk(engine, check, num_blocks=5)
    desk.bound()
    for _ in range(2):
        desk.add(8, max_tokens=20)
    desk.prefill()
    check.step("make_room for A, which has nine tokens and two blocks")
    check.equal("the result", desk.scheduler.make_room(desk.seqs[0]), True)
    check.equal("the queues", desk.queues(), "waiting , running AB")
    check.equal("free blocks", len(desk.manager.free_block_ids), 1)


@case("ch06.make_room")
def a_whole_decode_step(engine, check):
    """Four sequences hold all blocks, and each of them needs one more. One step of decode."""
    desk = full_pool(engine, check, num_seqs=4)
    check.equal("everybody decodes a token", desk.decode(), "ABCD")
    check.equal("who decodes in the next step", desk.decode(), "AB")
    check.equal("the queues", desk.queues(), "waiting CD, running AB")
    check.equal("generated tokens", [seq.num_completion_tokens for seq in desk.seqs], [3, 3, 2, 2])
    desk.observe()


@case("ch06.make_room")
def it_always_goes_on(engine, check):
    """Random requests on pools that are too small. Blocks are counted after every step; all requests finish."""
    for seed in range(6):
        run_to_the_end(engine, check, seed)


def run_to_the_end(engine, check, seed):
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
        desk.step()
        desk.observe()
    check.equal("requests that never finished", desk.names(desk.live), "")
    check.equal(
        "tokens of the answers",
        [s.num_completion_tokens for s in desk.seqs],
        [s.sampling_params.max_tokens for s in desk.seqs],
    )
    return desk


# preempt


@case("ch06.preempt")
def back_to_the_head(engine, check):
    """A, B and C run, D waits. C is preempted, then B."""
    desk = Desk(engine, check, max_num_seqs=3)
    for _ in range(4):
        desk.add(6)
    desk.prefill()
    for i, queues in ((2, "waiting CD, running AB"), (1, "waiting BCD, running A")):
        check.step(f"preempt({desk.name(desk.seqs[i])})")
        desk.scheduler.preempt(desk.seqs[i])
        check.equal("the queues", desk.queues(), queues)
        desk.observe()
    check.equal("num_preemptions", desk.scheduler.num_preemptions, 2)
    queues = [type(queue).__name__ for queue in (desk.scheduler.waiting, desk.scheduler.running)]
    check.equal("what the two queues are", queues, ["deque", "deque"])


@case("ch06.preempt")
def not_always_the_newest(engine, check):
    """A, B and C run. B is preempted, though C came after it."""
    desk = Desk(engine, check)
    for _ in range(3):
        desk.add(6)
    desk.prefill()
    check.step("preempt(B)")
    desk.scheduler.preempt(desk.seqs[1])
    check.equal("the queues", desk.queues(), "waiting B, running AC")
    desk.observe()


@case("ch06.preempt")
def its_tokens_stay(engine, check):
    """A has a prompt of six tokens and has generated three. It was chosen for the step that is being made."""
    desk = Desk(engine, check)
    seq = desk.add(6)
    prompt = list(seq.token_ids)
    desk.prefill()
    desk.decode(8)
    desk.decode(9)
    seq.num_scheduled_tokens = 1
    check.step("A is chosen for one more token, and then preempted")
    desk.scheduler.preempt(seq)
    check.equal("all tokens of A", list(seq.token_ids), [*prompt, 7, 8, 9])
    check.equal("num_tokens of A", seq.num_tokens, 9)
    check.equal("the last token of A", seq.last_token, 9)
    check.equal("num_scheduled_tokens of A", seq.num_scheduled_tokens, 0)
    check.equal("num_cached_tokens of A", seq.num_cached_tokens, 0)
    check.equal("the blocks of A", list(seq.block_table), [])
    check.equal("finished", seq.is_finished, False)
    desk.observe()


@case("ch06.preempt")
def blocks_that_others_share(engine, check):
    """A and B share two blocks. B is preempted, and admitted again."""
    desk = Desk(engine, check, num_blocks=8)
    for i in range(2):
        desk.add([*range(100, 108), 50 + i])
    desk.prefill()
    check.step("preempt(B)")
    desk.scheduler.preempt(desk.seqs[1])
    desk.observe()
    check.equal(
        "reference counts of A's blocks", [desk.manager.blocks[i].ref_count for i in desk.seqs[0].block_table], [1] * 3
    )
    check.equal("B computes only what the cache has lost", desk.prefill(), ["B 2"])


@case("ch06.preempt")
def nothing_is_lost(engine, check):
    """Random requests on pools that are too small. Blocks are counted after every step; all requests finish."""
    for seed in range(6):
        run_to_the_end(engine, check, seed)


# postprocess


@case("ch06.postprocess")
def after_a_prefill(engine, check):
    """Two prompts have been computed, and each gets its first token."""
    desk = Desk(engine, check)
    desk.add(5)
    desk.add(9)
    desk.step(7)
    check.equal("num_cached_tokens", [seq.num_cached_tokens for seq in desk.seqs], [5, 9])
    check.equal("num_scheduled_tokens", [seq.num_scheduled_tokens for seq in desk.seqs], [0, 0])
    check.equal("generated tokens", [list(seq.completion_token_ids) for seq in desk.seqs], [[7], [7]])
    check.equal("the queues", desk.queues(), "waiting , running AB")


@case("ch06.postprocess")
def a_cut_prompt_gets_no_token(engine, check):
    """A has 25 tokens, and a step computes ten."""
    desk = Desk(engine, check, budget=10)
    seq = desk.add(25)
    for stored, length, queues in (
        (10, 25, "waiting A, running "),
        (20, 25, "waiting A, running "),
        (25, 26, "waiting , running A"),
    ):
        desk.step(7)
        check.equal("num_cached_tokens and num_tokens", (seq.num_cached_tokens, seq.num_tokens), (stored, length))
        check.equal("num_scheduled_tokens", seq.num_scheduled_tokens, 0)
        check.equal("the queues", desk.queues(), queues)


@case("ch06.postprocess")
def a_cut_prompt_that_ends_with_an_end_token(engine, check):
    """A's prompt of twelve tokens ends with the model's end token, as a conversation may. A step computes eight."""
    desk = Desk(engine, check, budget=8)
    seq = desk.add([*range(100, 111), EOS])
    desk.step(7)
    check.equal("finished after the first chunk", seq.is_finished, False)
    check.equal("the queues", desk.queues(), "waiting A, running ")
    desk.step(7)
    check.equal("the queues after the second", desk.queues(), "waiting , running A")
    check.equal("generated tokens", list(seq.completion_token_ids), [7])
    desk.observe()


@case("ch06.postprocess")
def a_prompt_from_the_cache(engine, check):
    """B begins like A, so that eight of its ten tokens come from the cache. Then both decode."""
    desk = Desk(engine, check)
    desk.add([*range(100, 108), 50])
    desk.step(7)
    seq = desk.add([*range(100, 108), 60, 61])
    desk.step(7)
    check.equal("num_cached_tokens of B", seq.num_cached_tokens, 10)
    for stored in (11, 12):
        desk.step(8)
        check.equal("num_cached_tokens of B after a decode", seq.num_cached_tokens, stored)
    check.equal("generated tokens of B", list(seq.completion_token_ids), [7, 8, 8])


@case("ch06.postprocess")
def the_last_token(engine, check):
    """A wants two tokens, B wants four. The moment that A has two, its place and its blocks are free."""
    desk = Desk(engine, check)
    desk.add(5, max_tokens=2)
    desk.add(5, max_tokens=4)
    desk.step(7)
    check.equal("the queues after one token", desk.queues(), "waiting , running AB")
    desk.step(7)
    check.equal("the queues after two", desk.queues(), "waiting , running B")
    check.equal("how A ended", (desk.seqs[0].is_finished, desk.seqs[0].finish_reason), (True, "length"))
    check.equal("num_cached_tokens of B", desk.seqs[1].num_cached_tokens, 6)
    check.equal("generated tokens of A", list(desk.seqs[0].completion_token_ids), [7, 7])
    desk.observe()
    desk.step(EOS)
    check.equal("how B ended, by an end token", (desk.seqs[1].is_finished, desk.seqs[1].finish_reason), (True, "stop"))
    check.equal("the queues", desk.queues(), "waiting , running ")
    desk.observe()


@case("ch06.postprocess")
def another_rule_says_when_it_is_over(engine, check):
    """Here finish_reason has another rule: token 9 ends an answer, and nothing else does. A wants two tokens."""
    desk = Desk(engine, check)
    desk.add(5, max_tokens=2)
    desk.scheduler.finish_reason = lambda seq: "by token 9" if seq.last_token == 9 else None
    for token_id, queues in ((7, "running A"), (EOS, "running A"), (8, "running A"), (9, "running ")):
        desk.step(token_id)
        check.equal(f"the queues after token {token_id}", desk.queues(), f"waiting , {queues}")
    check.equal("how A ended", (desk.seqs[0].is_finished, desk.seqs[0].finish_reason), (True, "by token 9"))
    check.equal("generated tokens of A", list(desk.seqs[0].completion_token_ids), [7, EOS, 8, 9])


@case("ch06.postprocess")
def all_requests_finish(engine, check):
    """Random requests, with chunks and preemptions. Every answer gets exactly the tokens it asked for."""
    for seed in range(4):
        run_to_the_end(engine, check, seed)


# finish_reason


def reason_of(engine, check, tokens, prompt=5, longest=20, **params):
    """What finish_reason says after each of these tokens, up to the first that ends the sequence; and stop_reason."""
    reasons, seq = reasons_for(Desk(engine, check, longest=longest), check, tokens, prompt, params)
    check.true("the sequence has no error", seq.error is None)
    return reasons, seq.stop_reason


def reasons_for(desk, check, tokens, prompt, params):
    """The same for any desk, with the sequence."""
    seq = desk.add(prompt, **params)
    check.steps[-1] += f", {params}"
    reasons = []
    for token_id in tokens:
        seq.append_token(token_id)
        reasons.append(desk.scheduler.finish_reason(seq))
        check.step(f"finish_reason after token {token_id}: {reasons[-1]!r}")
        check.equal("what finish_reason writes into finish_reason of the sequence", seq.finish_reason, None)
        if reasons[-1]:
            break
    return reasons, seq


@case("ch06.finish_reason")
def an_end_token(engine, check):
    """The model's end tokens are 0 and 1. One request ends with each of them."""
    for eos in (EOS, OTHER_EOS):
        got = reason_of(engine, check, [5, 6, eos])
        check.equal("the reasons, and stop_reason", got, ([None, None, "stop"], None))


@case("ch06.finish_reason")
def end_tokens_are_ignored(engine, check):
    """ignore_eos: end tokens are tokens like any other, and max_tokens ends the answer."""
    got = reason_of(engine, check, [5, EOS, 6, 7, 8, 9], max_tokens=4, ignore_eos=True)
    check.equal("the reasons, and stop_reason", got, ([None, None, None, "length"], None))


@case("ch06.finish_reason")
def a_stop_token_of_the_request(engine, check):
    """The request stops at token 9, too; once with ignore_eos."""
    for ignore_eos in (False, True):
        got = reason_of(engine, check, [5, 9], stop_token_ids=[9], ignore_eos=ignore_eos)
        check.equal("the reasons, and stop_reason", got, ([None, "stop"], 9))


@case("ch06.finish_reason")
def an_end_token_of_both(engine, check):
    """The request names the model's end token as a stop token, too. The first rule that holds decides."""
    got = reason_of(engine, check, [5, EOS], stop_token_ids=[9, EOS])
    check.equal("the reasons, and stop_reason", got, ([None, "stop"], None))
    got = reason_of(engine, check, [5, EOS], stop_token_ids=[9, EOS], ignore_eos=True)
    check.equal("the reasons, and stop_reason, with ignore_eos", got, ([None, "stop"], EOS))


@case("ch06.finish_reason")
def an_end_token_in_the_prompt(engine, check):
    """The prompt is a conversation: end tokens and stop tokens are in the middle of it, and end nothing."""
    got = reason_of(engine, check, [5, 6, EOS], prompt=[50, EOS, 51, 9, 52], stop_token_ids=[9])
    check.equal("the reasons, and stop_reason", got, ([None, None, "stop"], None))


@case("ch06.finish_reason")
def enough_tokens(engine, check):
    """Requests for one, two and five tokens; the prompt has five."""
    for max_tokens in (1, 2, 5):
        reasons, _ = reason_of(engine, check, [7] * 8, max_tokens=max_tokens)
        check.equal(f"the reasons for max_tokens={max_tokens}", reasons, [None] * (max_tokens - 1) + ["length"])


@case("ch06.finish_reason")
def as_long_as_the_model_allows(engine, check):
    """max_model_len is 8, the prompt has five tokens, and the request wants thirty."""
    reasons, _ = reason_of(engine, check, [7] * 8, longest=8, max_tokens=30)
    check.equal("the reasons", reasons, [None, None, "length"])


@case("ch06.finish_reason")
def an_end_at_the_limit(engine, check):
    """The third and last token that was asked for is an end token. The first rule that holds decides."""
    got = reason_of(engine, check, [5, 5, EOS], max_tokens=3)
    check.equal("an end token at the limit", got, ([None, None, "stop"], None))
    got = reason_of(engine, check, [5, 5, 9], max_tokens=3, stop_token_ids=[9])
    check.equal("a stop token at the limit", got, ([None, None, "stop"], 9))


def small_pool(engine, check, num_blocks=3):
    """The model would allow far longer sequences than these few blocks hold."""
    desk = Desk(engine, check, num_blocks=num_blocks)
    desk.scheduler.max_model_len = 1000
    check.step("the model itself allows 1000 tokens")
    return desk


@case("ch06.finish_reason")
def longer_than_the_pool(engine, check):
    """The pool has three blocks of four tokens, the prompt five tokens. The thirteenth token has no place anywhere."""
    reasons, seq = reasons_for(small_pool(engine, check), check, [7] * 10, 5, {"max_tokens": 30})
    check.equal("the reasons", reasons, [None] * 7 + ["error"])
    check.true("its error is a sentence", isinstance(seq.error, str) and len(seq.error) > 0)
    check.equal("stop_reason", seq.stop_reason, None)


@case("ch06.finish_reason")
def done_just_before_it_is_too_long(engine, check):
    """The thirteenth token would need a fourth block, but it is the last. The first rule that holds decides."""
    for last, params, reason in (
        (7, {"max_tokens": 8}, "length"),
        (EOS, {"max_tokens": 30}, "stop"),
        (9, {"max_tokens": 30, "stop_token_ids": [9]}, "stop"),
    ):
        reasons, seq = reasons_for(small_pool(engine, check), check, [7] * 7 + [last], 5, params)
        check.equal("the reasons", reasons, [None] * 7 + [reason])
        check.true("the sequence has no error", seq.error is None)


@case("ch06.finish_reason")
def no_block_is_free_just_now(engine, check):
    """Four blocks: A has three, and B has one, which is full. B can go on as soon as A makes room."""
    desk = small_pool(engine, check, num_blocks=4)
    desk.add(12, max_tokens=30)
    seq = desk.add(4, max_tokens=30)
    desk.prefill()
    check.step(f"free blocks: {len(desk.manager.free_block_ids)}")
    check.equal("finish_reason of B, which has five tokens and one block", desk.scheduler.finish_reason(seq), None)
    check.true("B has no error", seq.error is None)


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
