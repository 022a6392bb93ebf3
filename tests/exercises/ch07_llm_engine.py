"""Grader of chapter 07. What is right is said by a model that can be computed by hand, and by Ctrl-C at every line."""

import contextlib
import io
import itertools
import random
import sys
import zlib
from collections import deque
from types import SimpleNamespace

from exercises.kit import talk_work
from exercises.kit.grading import Check, Engine, case

VOCAB_SIZE = 200
MOST_STEPS = 200


class EndlessLoopError(Exception):
    """Far more steps were made than the work can take."""


def next_token(token_ids):
    """The model: the token that follows from all tokens before; never an end token."""
    return 20 + zlib.crc32(repr(list(token_ids)).encode()) % 170


def answer_to(prompt, max_tokens):
    """What the engine has to write, one token after the other."""
    token_ids = list(prompt)
    for _ in range(max_tokens):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


def name_of(seq):
    return chr(ord("A") + seq.seq_id) if seq.seq_id < 26 else f"R{seq.seq_id}"


def names_of(seqs):
    return "".join(name_of(seq) for seq in seqs)


class Runner:
    """Stands in for the model runner, and takes down what it is asked for.

    `before` and `after` are called with the number of the call; what they raise goes to the engine.
    """

    def __init__(self, config):
        self.calls, self.before, self.after, self.engine = [], None, None, None

    def run(self, seqs, is_prefill):
        noted = {name_of(seq): self.engine.requests[seq.seq_id].first_scheduled_time is not None for seq in seqs}
        shares = [f"{name_of(seq)} {seq.num_scheduled_tokens}" for seq in seqs]
        kind = {True: "prefill", False: "decode"}.get(is_prefill, repr(is_prefill))
        self.calls.append(SimpleNamespace(kind=kind, shares=shares, noted=noted))
        if self.before:
            self.before(len(self.calls))
        tokens = [None if seq.is_cut else next_token(seq.token_ids) for seq in seqs]
        if self.after:
            self.after(len(self.calls))
        return tokens, [None if token is None else {token: -1.0} for token in tokens]

    def exit(self):
        """There is nothing to free."""


class Letters:
    """A tokenizer: every token is a letter, and every letter a token."""

    eos_token_id = 0

    def encode(self, text, **kwargs):
        return [ord(letter) for letter in text]

    def decode(self, token_ids, **kwargs):
        return "".join(chr(97 + token_id % 26) for token_id in token_ids)


def make_config(num_blocks=60, block_size=4, budget=64, max_num_seqs=8, longest=None):
    return SimpleNamespace(
        model="letters",
        num_kvcache_blocks=num_blocks,
        kvcache_block_size=block_size,
        num_kvcache_tokens=num_blocks * block_size,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        max_model_len=longest or min(64, num_blocks * block_size),
        enable_prefix_caching=True,
        tensor_parallel_size=1,
        hf_config=SimpleNamespace(vocab_size=VOCAB_SIZE),
        eos=(0,),
    )


class Desk:
    """An engine around a model that can be computed by hand, with its requests A, B, C, ..."""

    def __init__(self, engine: Engine, check: Check, **options):
        self.config, self.check, self.package = make_config(**options), check, engine
        self.engine = engine.get("engine.llm_engine:LLMEngine")(self.config, make_runner=Runner)
        self.runner, self.scheduler = self.engine.model_runner, self.engine.scheduler
        self.runner.engine = self.engine
        self.params_class = engine.get("sampling_params:SamplingParams")
        self.sequence_class = engine.get("engine.sequence:Sequence")
        self.request_class = engine.get("engine.request:Request")
        self.made, self.steps = [], 0
        limit_steps(self.engine)

    def make(self, prompt, max_tokens=4, stops=None):
        """A request that nobody has asked for yet.

        Args:
            prompt: token ids, or a number of tokens that no other prompt begins with.
            stops: by the number of a generated token, the stop string that it completes.
        """
        number = len(self.made)
        token_ids = [number + 1] * prompt if isinstance(prompt, int) else list(prompt)
        params = self.params_class(max_tokens=max_tokens, ignore_eos=True)
        seq = self.sequence_class(token_ids, params, self.config.kvcache_block_size, number)
        request = spying(self.request_class)(seq)
        request.stops, request.told, request.seen = stops or {}, [], []
        self.made.append(request)
        return request

    def add(self, prompt, max_tokens=4, stops=None):
        request = self.make(prompt, max_tokens, stops)
        self.check.step(f"{name_of(request.seq)} arrives: {request.seq.num_tokens} tokens, wants {max_tokens}")
        self.engine.add_request(request)
        return request

    def run_to_the_end(self, most=MOST_STEPS):
        """Steps until nothing is left to do; a step that is interrupted is made anew."""
        for _ in range(most):
            if not self.engine.has_unfinished_requests():
                break
            self.engine.step()

    # What is seen.

    def live(self):
        return names_of(request.seq for request in self.engine.requests.values())

    def queued(self):
        return "".join(sorted(names_of([*self.scheduler.waiting, *self.scheduler.running])))

    def answers(self):
        return {name_of(request.seq): list(request.seq.completion_token_ids) for request in self.made}

    def expected(self):
        return {
            name_of(request.seq): answer_to(
                request.seq.prompt_token_ids, min([request.seq.sampling_params.max_tokens, *request.stops])
            )
            for request in self.made
        }

    def check_answers(self):
        """All have ended with the tokens that the model says, each of them told once."""
        check = self.check
        check.equal("requests that the engine still has", self.live(), "", says_live)
        check.equal("requests that the scheduler still has", self.queued(), "", says_queued)
        check.equal("the answers", self.answers(), self.expected(), lambda got: says_answers(got, self.expected()))
        finished = {name_of(request.seq): request.is_finished for request in self.made}
        check.equal(
            "is_finished of the requests",
            finished,
            dict.fromkeys(finished, True),
            "A request has ended, and its reader is not told: not all that it has written is final (num_final).",
        )
        rows = {name_of(request.seq): [next(iter(row), None) for row in request.logprobs] for request in self.made}
        check.equal(
            "the log-probabilities that the requests were given",
            rows,
            self.expected(),
            "The log-probabilities of a request are not one for each of its tokens.",
        )


def limit_steps(engine):
    """Stop whoever makes steps without end."""
    step, numbers = engine.step, itertools.count(1)

    def limited():
        if next(numbers) > MOST_STEPS:
            raise EndlessLoopError(f"{MOST_STEPS} steps were made, and far fewer would do")
        return step()

    engine.step = limited


SPYING = {}


def spying(request_class):
    """A request that takes down what it is told, and what is true of it whenever more of it becomes final."""
    if request_class not in SPYING:

        class SpyingRequest(request_class):
            stops, told, seen = {}, [], []

            def __setattr__(self, name, value):
                if name == "num_final" and "seq" in vars(self):
                    seq = self.seq
                    self.seen.append((value, len(self.told), seq.finish_reason, seq.stop_reason))
                super().__setattr__(name, value)

            def take_in(self, token_id, logprobs):
                self.told.append(token_id)
                super().take_in(token_id, logprobs)
                return self.stops.get(self.seq.num_completion_tokens)

        SPYING[request_class] = SpyingRequest
    return SPYING[request_class]


def says_live(got):
    return f"{got[0]} has ended, or nobody goes on with it, and it is still one of the engine's requests."


def says_queued(got):
    return f"{got[0]} is over, and the scheduler still has it."


def says_answers(got, expected):
    for name, tokens in got.items():
        wanted = expected[name]
        if len(tokens) > len(wanted):
            return f"{name} has {len(tokens)} tokens, and should have {len(wanted)}: it did not end where it should."
        if tokens == wanted[: len(tokens)] and len(tokens) < len(wanted):
            return f"{name} has only {len(tokens)} of its {len(wanted)} tokens."
        if tokens != wanted:
            return f"{name} has other tokens than the model says for its text."
    return ""


# Ctrl-C at every line.


class CtrlC:
    """Raises KeyboardInterrupt before the n-th line that is run, of functions in the package."""

    def __init__(self, package, n, only=()):
        self.folder, self.left, self.only, self.struck = str(package.package.folder), n, only, False
        self.last = ()  # frame and line; a comprehension on one line has many events, of which 3.12 finds no `finally`

    def __enter__(self):
        sys.settrace(self.call)

    def __exit__(self, *exc_info):
        sys.settrace(None)

    def call(self, frame, event, argument):
        code = frame.f_code
        is_ours = code.co_filename.startswith(self.folder) and (not self.only or code.co_name in self.only)
        return self.line if is_ours and not self.struck else None

    def line(self, frame, event, argument):
        if event == "line" and not self.struck and self.last != (frame, frame.f_lineno):
            self.last = (frame, frame.f_lineno)
            self.left -= 1
            if self.left < 0:
                self.struck = True
                raise KeyboardInterrupt
        return self.line


def at_every_line(package, scene, only=(), most=400):
    """Play a scene again and again, with Ctrl-C at another line each time; returns what was wrong then, each once.

    Args:
        scene: a function that gets a `CtrlC`, not yet entered; returns a set of sentences.
        only: names of the functions in which it strikes; everywhere in the package without.
    """
    wrong = set()
    for n in range(most):
        ctrl_c = CtrlC(package, n, only)
        wrong |= scene(ctrl_c)
        if not ctrl_c.struck:
            break
    return sorted(wrong)


# run_step


ERRORS_OF_RUN_STEP = {
    "TypeError": "Something was called with other arguments than it takes: run(seqs, is_prefill), postprocess(seqs, "
    "token_ids), take_in(seqs, token_ids, logprobs).",
    "ValueError": "postprocess and take_in want a token for each sequence of the step, and None for one that is cut: "
    "two lists of the same length.",
    "EndlessLoopError": "Steps are made without end, and nobody gets on.",
}


def says_number(kind, expected):
    """What a wrong return value of a step says."""

    def says(got):
        if got is None:
            return "It returns None: the number of tokens is missing."
        if got == -expected:
            return f"The number is right, its sign is not: this step is a {kind}."
        if got == 0:
            return (
                "It returns 0 for a step that computed tokens. After postprocess, num_scheduled_tokens is 0 "
                "everywhere: count before."
            )
        return f"The step computes {abs(expected)} tokens: those that were scheduled, and not cached before."

    return says


def one_step(desk, kind, shares, number):
    """A step; the runner has to be asked for exactly this."""
    check, calls = desk.check, len(desk.runner.calls)
    check.step(f"a step: {kind} of {', '.join(shares)}", ERRORS_OF_RUN_STEP)
    log = watch(desk)
    got = desk.engine.step()
    new = desk.runner.calls[calls:]
    check.equal("how often the runner was asked", len(new), 1, says_calls)
    for call in new[:1]:
        check.equal("what it was asked to compute", call.shares, shares, "The runner gets the sequences of the step.")
        check.equal("which kind of step it was told", call.kind, kind, "schedule says whether it is a prefill.")
        early = [name for name, is_noted in call.noted.items() if not is_noted]
        check.equal("requests without a note when they are computed", early, [], SAYS_NOTE)
    check.equal("what was done, in order", log, ["schedule", "run", "postprocess", "take_in"], says_log)
    check.equal("what the step returns", got, number, says_number(kind, number))


SAYS_NOTE = (
    "first_scheduled_time of a request is still empty when it is computed: note_start(seqs) writes it, and comes "
    "before run."
)


def says_calls(got):
    if got == 0:
        return "The scheduler chose sequences, and the runner was not asked to compute them."
    return f"The runner was called {got} times in one step: it computes all sequences of a step at once."


def says_log(got):
    for name in ("schedule", "run", "postprocess", "take_in"):
        if name not in got:
            return f"{name} of the engine was not called." if name == "take_in" else f"{name} was not called."
        if got.count(name) > 1:
            return f"{name} was called {got.count(name)} times in one step."
    if got.index("take_in") < got.index("postprocess"):
        return (
            "The requests were told before the scheduler was: it appends the tokens and knows what ends an answer, so "
            "it comes first."
        )
    return "The parts are in another order: choose, compute, tell the scheduler, tell the requests."


def watch(desk):
    """Take down the order in which the parts of a step are called."""
    log = []
    parts = [(desk.scheduler, "schedule"), (desk.runner, "run"), (desk.scheduler, "postprocess")]
    for owner, name in [*parts, (desk.engine, "take_in")]:
        vars(owner).pop(name, None)
        method = getattr(owner, name)

        def call(*args, name=name, method=method, **kwargs):
            log.append(name)
            return method(*args, **kwargs)

        setattr(owner, name, call)
    return log


@case("ch07.run_step")
def a_prefill_and_two_decodes(engine, check):
    """A request of five tokens arrives, and wants three."""
    desk = Desk(engine, check)
    desk.add(5, max_tokens=3)
    one_step(desk, "prefill", ["A 5"], 5)
    one_step(desk, "decode", ["A 1"], -1)
    one_step(desk, "decode", ["A 1"], -1)
    desk.check_answers()


@case("ch07.run_step")
def nobody_is_there(engine, check):
    """No request has come. A step is made all the same."""
    desk = Desk(engine, check)
    for text in ("a step of an engine that has nothing to do", "and another"):
        check.step(text, ERRORS_OF_RUN_STEP)
        got = desk.engine.step()
        check.equal("what the step returns", got, 0, "Nobody was chosen: no tokens, 0.")
        says = "Nobody was chosen, and the runner was asked to compute a step of nobody."
        check.equal("how often the runner was asked", len(desk.runner.calls), 0, says)


@case("ch07.run_step")
def nobody_is_chosen(engine, check):
    """A waits, and the scheduler chooses nobody this time: it alone knows why."""
    desk = Desk(engine, check)
    desk.add(4)
    schedule, desk.scheduler.schedule = desk.scheduler.schedule, lambda: ([], False)
    check.step("a step in which schedule() returns no sequences", ERRORS_OF_RUN_STEP)
    got = desk.engine.step()
    check.equal("how often the runner was asked", len(desk.runner.calls), 0, SAYS_NOBODY)
    check.equal("what the step returns", got, 0, "Nobody was chosen: no tokens, 0.")
    desk.scheduler.schedule = schedule
    check.step("steps until all is done", ERRORS_OF_RUN_STEP)
    desk.run_to_the_end()
    desk.check_answers()


SAYS_NOBODY = (
    "Somebody waits and nobody was chosen: whether there is something to compute is said by what schedule() returns."
)


@case("ch07.run_step")
def three_at_once(engine, check):
    """Three requests of different lengths. They are read in one step, and written in the same ones."""
    desk = Desk(engine, check)
    for length, max_tokens in ((4, 2), (7, 4), (2, 3)):
        desk.add(length, max_tokens)
    one_step(desk, "prefill", ["A 4", "B 7", "C 2"], 13)
    one_step(desk, "decode", ["A 1", "B 1", "C 1"], -3)
    check.equal("requests that are still live", desk.live(), "BC")
    one_step(desk, "decode", ["B 1", "C 1"], -2)
    one_step(desk, "decode", ["B 1"], -1)
    desk.check_answers()


@case("ch07.run_step")
def a_prompt_in_chunks(engine, check):
    """A step computes at most eight tokens. A has eleven, B five: A is read in two steps, B in two as well."""
    desk = Desk(engine, check, budget=8)
    desk.add(11, max_tokens=2)
    desk.add(5, max_tokens=1)
    one_step(desk, "prefill", ["A 8"], 8)
    check.equal("what A has written", desk.answers()["A"], [], "A's prompt was cut: it has no token yet.")
    one_step(desk, "prefill", ["A 3", "B 5"], 8)
    one_step(desk, "decode", ["A 1"], -1)
    desk.check_answers()


@case("ch07.run_step")
def what_the_cache_has_is_not_computed(engine, check):
    """A and B have the same nine tokens, in blocks of four. B comes when A has been read."""
    desk = Desk(engine, check)
    desk.add(range(1, 10), max_tokens=4)
    one_step(desk, "prefill", ["A 9"], 9)
    desk.add(range(1, 10), max_tokens=2)
    one_step(desk, "prefill", ["B 1"], 1)
    one_step(desk, "decode", ["A 1", "B 1"], -2)
    desk.run_to_the_end()
    desk.check_answers()


@case("ch07.run_step")
def one_that_was_preempted_comes_back(engine, check):
    """Four blocks of four tokens, for A and B with seven tokens each: one has to step aside, and is read again."""
    desk = Desk(engine, check, num_blocks=4, longest=16)
    desk.add(7, max_tokens=4)
    desk.add(7, max_tokens=4)
    check.step("steps until both are done", ERRORS_OF_RUN_STEP)
    desk.run_to_the_end()
    kinds = [call.kind for call in desk.runner.calls]
    says = "The runner was told another kind of step. One that comes back is read: that is a prefill, too."
    check.equal("kinds of the steps", kinds, ["prefill", *["decode"] * 3, "prefill", "decode"], says)
    desk.check_answers()


@case("ch07.run_step")
def the_note_stays(engine, check):
    """When a request is first scheduled is noted once: how long it has waited does not change with every step."""
    desk = Desk(engine, check)
    request = desk.add(3, max_tokens=4)
    desk.engine.step()
    first = request.first_scheduled_time
    check.true("there is a note", first is not None, SAYS_NOTE)
    desk.run_to_the_end()
    check.true("it is still the same", request.first_scheduled_time == first, "The note was changed by a later step.")
    times = [request.arrival_time, request.first_scheduled_time, request.first_token_time, request.last_token_time]
    is_ordered = None not in times and times == sorted(times)
    check.true("arrival, first scheduled, first token, last token: in this order", is_ordered, SAYS_NOTE)


@case("ch07.run_step")
def the_model_fails(engine, check):
    """The model raises an error in the second step. The caller hears of it; after that all goes on as it should."""
    desk = Desk(engine, check)
    desk.add(5, max_tokens=4)
    desk.add(3, max_tokens=3)

    def fail(number):
        if number == 2:
            raise ArithmeticError("the model has a bad day")

    for moment in ("before", "after"):
        setattr(desk.runner, moment, fail)
        desk.runner.calls.clear()
        raised = "nothing"
        for _ in range(2):
            try:
                desk.engine.step()
            except ArithmeticError as error:
                raised = type(error).__name__
        setattr(desk.runner, moment, None)
        check.step("the second step fails")
        check.equal("what the caller hears", raised, "ArithmeticError", SAYS_SWALLOWED)
    check.step("and then steps until all is done", ERRORS_OF_RUN_STEP)
    desk.run_to_the_end()
    desk.check_answers()


SAYS_SWALLOWED = (
    "The model failed, and nobody hears of it. run_step does not know what to do about an error; the loop around it "
    "does, and the caller wants to know."
)


@case("ch07.run_step")
def out_of_memory(engine, check):
    """There is no memory for a step of more than eight tokens. The loop around run_step makes it half as large."""
    import torch

    desk = Desk(engine, check)

    def fail(number):
        tokens = sum(int(share.split()[1]) for share in desk.runner.calls[-1].shares)
        if tokens > 8:
            raise torch.OutOfMemoryError("no memory")

    desk.runner.before = fail
    for length in (6, 5, 3):
        desk.add(length, max_tokens=3)
    says = "torch.OutOfMemoryError has to reach the loop around run_step, which then tries a smaller step."
    check.step("the first call of step: 14 tokens are too many, and half as many are computed", ERRORS_OF_RUN_STEP)
    check.equal("tokens that the first call of step has computed", desk.engine.step(), 7, says)
    check.step("steps until all is done", ERRORS_OF_RUN_STEP)
    desk.run_to_the_end()
    reasons = [request.seq.finish_reason for request in desk.made]
    check.equal("finish reasons", reasons, ["length"] * 3, says)
    desk.check_answers()


@case("ch07.run_step")
def out_of_memory_once(engine, check):
    """There is no memory for the first run of the model, and later there would be."""
    import torch

    desk = Desk(engine, check)

    def fail(number):
        if number == 1:
            raise torch.OutOfMemoryError("no memory")

    desk.runner.before = fail
    desk.add(10, max_tokens=2)
    check.step("a step of 10 tokens, for which there is no memory the first time", ERRORS_OF_RUN_STEP)
    got = desk.engine.step()
    says = (
        "The model was run again within the step, with as many tokens. The error goes on to the loop around run_step, "
        "which begins anew with a step half as large."
    )
    check.equal("tokens of the step that is made then", got, 5, says)
    desk.run_to_the_end()
    desk.check_answers()


@case("ch07.run_step")
def ctrl_c_in_the_model(engine, check):
    """Ctrl-C while the model computes. It reaches the caller, and the next steps write the same text."""
    desk = Desk(engine, check)
    desk.add(5, max_tokens=4)

    def interrupt(number):
        if number == 3:
            raise KeyboardInterrupt

    desk.runner.before = interrupt
    raised = False
    for _ in range(3):
        try:
            desk.engine.step()
        except KeyboardInterrupt:
            raised = True
    check.true("the caller is interrupted", raised, SAYS_SWALLOWED)
    desk.run_to_the_end()
    desk.check_answers()


@case("ch07.run_step")
def everything_ends(engine, check):
    """Random requests, budgets and pools that are too small. All answers are computed by hand and compared."""
    for seed in range(6):
        rng = random.Random(seed)
        options = {"num_blocks": rng.randrange(8, 14), "budget": rng.randrange(4, 20), "longest": 24}
        desk = Desk(engine, check, block_size=rng.choice([2, 4]), max_num_seqs=rng.randrange(1, 5), **options)
        for _ in range(rng.randrange(3, 8)):
            desk.add([rng.randrange(1, 4) for _ in range(rng.randrange(1, 9))], rng.randrange(1, 7))
            if rng.random() < 0.5:
                desk.engine.step()
        check.step("steps until all is done", ERRORS_OF_RUN_STEP)
        desk.run_to_the_end()
        desk.check_answers()


# take_in


def says_error_of_take_in(error):
    return {
        "ValueError": "A sequence is taken out of a queue in which it is not. Scheduler.finish is only for a sequence "
        "that is still live: one that has ended with this token is in no queue any more.",
        "KeyError": "A request was looked for that is not in self.requests: its key is the seq_id of the sequence.",
        "TypeError": "Something was called with other arguments than it takes: Request.take_in(token_id, logprobs) is "
        "about one token, Scheduler.finish(seq, reason) about one sequence.",
    }.get(error, "")


def tokens_come(desk, token_ids):
    """A step up to take_in: the scheduler has been told of the tokens, the requests have not; then they are."""
    check = desk.check
    seqs, _ = desk.scheduler.schedule()
    desk.scheduler.postprocess(seqs, token_ids)
    rows = [None if token_id is None else {token_id: -0.5 - i} for i, token_id in enumerate(token_ids)]
    told = ", ".join(f"{name_of(seq)} {'nothing' if t is None else t}" for seq, t in zip(seqs, token_ids, strict=True))
    ended = [f"{name_of(seq)} by {seq.finish_reason}" for seq in seqs if seq.is_finished]
    check.step(
        f"take_in: {told}" + (f"; the scheduler has ended {', '.join(ended)}" if ended else ""), says_error_of_take_in
    )
    before = {name_of(seq): len(desk.made[seq.seq_id].told) for seq in seqs}
    written = {name_of(seq): list(seq.completion_token_ids) for seq in seqs}
    desk.engine.take_in(seqs, token_ids, rows)
    after = {name_of(seq): list(seq.completion_token_ids) for seq in seqs}
    says = "The tokens of a sequence were changed: the scheduler has appended them already, and nothing is to be added."
    check.equal("what the sequences have written", after, written, says)
    now = {name: desk.made[i].told[before[name] :] for name, i in ((name_of(seq), seq.seq_id) for seq in seqs)}
    wanted = {
        name_of(seq): [] if token_id is None else [token_id] for seq, token_id in zip(seqs, token_ids, strict=True)
    }
    check.equal("the tokens that each request has taken in", now, wanted, lambda got: says_told(got, wanted))
    got = {
        name_of(seq): desk.made[seq.seq_id].logprobs[-1:]
        for seq, row in zip(seqs, rows, strict=True)
        if row is not None
    }
    given = {name_of(seq): [row] for seq, row in zip(seqs, rows, strict=True) if row is not None}
    says = "A request was given other log-probabilities than those of its token."
    check.equal("the log-probabilities that came with them", got, given, says)
    observe_requests(desk)
    return seqs


def says_told(got, wanted):
    for name, tokens in wanted.items():
        if got[name] != tokens:
            if not tokens:
                return f"{name} has no token in this step, because its prompt was cut, and was told of one."
            if not got[name]:
                return f"The request {name} was not told of its token {tokens[0]}: Request.take_in does that."
            if len(got[name]) > 1:
                return f"The request {name} was told {len(got[name])} times of one token."
            return f"The request {name} was told {got[name][0]}, and its token is {tokens[0]}."
    return ""


def observe_requests(desk):
    """What holds after every call."""
    check = desk.check
    for request in desk.made:
        name, seq = name_of(request.seq), request.seq
        final = request.num_final
        wanted = seq.num_completion_tokens
        check.equal(f"num_final of {name}", final, wanted, says_final(name, final, seq))
    live = [request for request in desk.made if not request.seq.is_finished]
    expected = names_of(request.seq for request in live)
    check.equal("requests that the engine has", desk.live(), expected, lambda got: says_kept(got, expected))
    check.equal("requests that the scheduler has", desk.queued(), expected, lambda got: says_scheduled(got, expected))
    early = [name_of(request.seq) for request in desk.made if any(value > told for value, told, *_ in request.seen)]
    check.equal(
        "requests with tokens that were final before the request had taken them in",
        early,
        [],
        "num_final moved before the request had taken the token in. An interrupt in between, and the token counts as "
        "told, and was not.",
    )


def says_final(name, got, seq):
    if got == seq.num_tokens:
        return f"num_final counts generated tokens, not those of the prompt: {name} has {seq.num_completion_tokens}."
    if got < seq.num_completion_tokens:
        return f"{name} has written {seq.num_completion_tokens} tokens, and only {got} of them count as final."
    return f"{got} tokens of {name} count as final, and it has written {seq.num_completion_tokens}."


def says_kept(got, expected):
    for name in got:
        if name not in expected:
            return f"{name} has ended, and is still one of self.requests."
    gone = [name for name in expected if name not in got]
    return f"{gone[0]} has not ended, and is none of self.requests any more." if gone else ""


def says_scheduled(got, expected):
    for name in got:
        if name not in expected:
            return f"{name} is over, and the scheduler still has it: it would go on. Scheduler.finish takes it out."
    return "A live request is not in the scheduler's queues any more."


def reasons(desk):
    return {name_of(request.seq): (request.seq.finish_reason, request.seq.stop_reason) for request in desk.made}


def says_reasons(wanted):
    def says(got):
        for name, (reason, stop) in wanted.items():
            if got[name] == (reason, stop):
                continue
            if reason == "stop" and got[name][0] is None:
                return f"{name} has completed its stop string, and its answer is not over."
            if reason == "stop" and got[name][0] == "length":
                return (
                    f"The last allowed token of {name} has completed its stop string: the answer is complete, and its "
                    'reader is told "length".'
                )
            if got[name][0] == stop:
                return f'The finish reason of {name} is "stop"; the string itself is its stop_reason.'
            if got[name][0] == reason:
                return f"stop_reason of {name} is {got[name][1]!r}, and should be {stop!r}."
            return f"{name} has ended for the reason {got[name][0]!r}, and it should be {reason!r}."
        return ""

    return says


@case("ch07.take_in")
def tokens_for_three(engine, check):
    """Three requests, and a token for each of them, twice. Nobody has got to an end."""
    desk = Desk(engine, check)
    for length in (4, 2, 6):
        desk.add(length, max_tokens=5)
    tokens_come(desk, [31, 32, 33])
    tokens_come(desk, [41, 42, 43])
    check.equal("reasons", reasons(desk), dict.fromkeys("ABC", (None, None)), "Nobody has got to an end.")


@case("ch07.take_in")
def the_token_zero(engine, check):
    """A token may have the id 0, and is a token like any other."""
    desk = Desk(engine, check)
    desk.add(3, max_tokens=5)
    desk.add(3, max_tokens=5)
    tokens_come(desk, [0, 5])
    tokens_come(desk, [7, 0])


@case("ch07.take_in")
def some_are_over(engine, check):
    """A may write one token, B three, C two."""
    desk = Desk(engine, check)
    for max_tokens in (1, 3, 2):
        desk.add(4, max_tokens)
    tokens_come(desk, [31, 32, 33])
    tokens_come(desk, [42, 43])
    tokens_come(desk, [52])
    wanted = dict.fromkeys("ABC", ("length", None))
    check.equal("reasons", reasons(desk), wanted, says_reasons(wanted))


@case("ch07.take_in")
def a_cut_prompt(engine, check):
    """Eight tokens a step. A is read in the first step, B is cut there: it has no token."""
    desk = Desk(engine, check, budget=8)
    desk.add(5, max_tokens=3)
    desk.add(7, max_tokens=3)
    tokens_come(desk, [31, None])
    tokens_come(desk, [32])
    tokens_come(desk, [41, 42])


@case("ch07.take_in")
def one_without_a_token_between_two(engine, check):
    """Three requests; take_in is called with tokens for A and C, and none for B."""
    desk = Desk(engine, check)
    for length in (4, 2, 6):
        desk.add(length, max_tokens=3)
    seqs, _ = desk.scheduler.schedule()
    desk.scheduler.postprocess(seqs, [31, None, 33])
    check.step("take_in: A 31, B nothing, C 33", says_error_of_take_in)
    desk.engine.take_in(seqs, [31, None, 33], [{31: -1.0}, None, {33: -3.0}])
    told = {name_of(request.seq): request.told for request in desk.made}
    wanted = {"A": [31], "B": [], "C": [33]}
    says = "C has a token, and was not told: after one without a token, others may follow."
    check.equal(
        "the tokens that each request has taken in",
        told,
        wanted,
        lambda got: says if got == wanted | {"C": []} else says_told(got, wanted),
    )
    observe_requests(desk)


@case("ch07.take_in")
def a_stop_string(engine, check):
    """B's second token completes its stop string, "END". A and C go on."""
    desk = Desk(engine, check)
    desk.add(4, max_tokens=4)
    desk.add(4, max_tokens=9, stops={2: "END"})
    desk.add(4, max_tokens=4)
    tokens_come(desk, [31, 32, 33])
    tokens_come(desk, [41, 42, 43])
    wanted = {"A": (None, None), "B": ("stop", "END"), "C": (None, None)}
    check.equal("finish reason and stop reason", reasons(desk), wanted, says_reasons(wanted))
    check.equal("blocks of B", list(desk.made[1].seq.block_table), [], "B is over, and still has its blocks.")
    tokens_come(desk, [51, 53])


@case("ch07.take_in")
def nobody_wants_logprobs(engine, check):
    """Log-probabilities were not asked for: there is None in the place of each. The tokens come all the same."""
    desk = Desk(engine, check)
    for length in (4, 2):
        desk.add(length, max_tokens=3)
    seqs, _ = desk.scheduler.schedule()
    desk.scheduler.postprocess(seqs, [31, 32])
    check.step("take_in: A 31, B 32, logprobs [None, None]", says_error_of_take_in)
    desk.engine.take_in(seqs, [31, 32], [None, None])
    told = {name_of(request.seq): request.told for request in desk.made}
    says = "A request was not told of its token: whether there are log-probabilities does not matter for that."
    check.equal("the tokens that each request has taken in", told, {"A": [31], "B": [32]}, says)
    observe_requests(desk)


@case("ch07.take_in")
def ended_by_others(engine, check):
    """A has ended with a stop token, which the scheduler has noted as stop_reason. B was aborted, C has failed."""
    desk = Desk(engine, check)
    for _ in range(3):
        desk.add(4, max_tokens=9)
    postprocess = desk.scheduler.postprocess

    def and_end_them(seqs, token_ids):
        postprocess(seqs, token_ids)
        for seq, reason in zip(seqs, ("stop", "abort", "error"), strict=True):
            desk.scheduler.finish(seq, reason)
        seqs[0].stop_reason = token_ids[0]

    desk.scheduler.postprocess = and_end_them
    tokens_come(desk, [31, 32, 33])
    wanted = {"A": ("stop", 31), "B": ("abort", None), "C": ("error", None)}
    says = "A sequence that had ended has another reason now. Without a stop string both reasons stay as they are."
    check.equal("finish reason and stop reason", reasons(desk), wanted, says)


@case("ch07.take_in")
def a_stop_string_with_the_last_token(engine, check):
    """A's third token completes its stop string, and is the last that it may write. B's third is only the last one."""
    desk = Desk(engine, check)
    desk.add(4, max_tokens=3, stops={3: "###"})
    desk.add(4, max_tokens=3)
    for token_ids in ([31, 32], [41, 42], [51, 52]):
        tokens_come(desk, token_ids)
    wanted = {"A": ("stop", "###"), "B": ("length", None)}
    check.equal("finish reason and stop reason", reasons(desk), wanted, says_reasons(wanted))
    seen = desk.made[0].seen[-1:]
    says = (
        "num_final of A moved before its reasons were right. From that moment on it counts as finished, and another "
        "thread may read them."
    )
    check.equal(
        "when the last token of A became final: finish reason, stop reason", [s[2:] for s in seen], [wanted["A"]], says
    )


@case("ch07.take_in")
def not_in_the_order_of_arrival(engine, check):
    """A has ended when C comes: the sequences of a step are not the first of all requests."""
    desk = Desk(engine, check)
    desk.add(4, max_tokens=1)
    desk.add(4, max_tokens=9)
    tokens_come(desk, [31, 32])
    desk.add(4, max_tokens=1)
    tokens_come(desk, [43])
    tokens_come(desk, [52])
    check.step("another request that B's step does not see is live meanwhile", says_error_of_take_in)
    desk.add(4, max_tokens=2)
    tokens_come(desk, [64])
    tokens_come(desk, [72, 74])


@case("ch07.take_in")
def whoever_leaves_is_finished(engine, check):
    """A ends by its length, B by a stop string. At the moment when each leaves self.requests, is it finished?"""
    desk = Desk(engine, check)
    desk.add(4, max_tokens=2)
    desk.add(4, max_tokens=9, stops={2: "END"})
    left = []

    class Watched(dict):
        def __delitem__(self, key):
            left.append((name_of(self[key].seq), self[key].is_finished))
            super().__delitem__(key)

        def pop(self, key, *default):
            if key in self:
                left.append((name_of(self[key].seq), self[key].is_finished))
            return super().pop(key, *default)

    desk.engine.requests = Watched(desk.engine.requests)
    tokens_come(desk, [31, 32])
    tokens_come(desk, [41, 42])
    early = sorted(name for name, is_finished in left if not is_finished)
    check.equal("who left before it was finished", early, [], SAYS_LEFT)


SAYS_LEFT = (
    "A request was taken out of self.requests when it was not finished yet. If Ctrl-C strikes then, nobody has it any "
    "more, and whoever waits for it waits for ever."
)


def interrupted_step(engine, ctrl_c):
    """Three requests; in the second step Ctrl-C strikes in take_in. Returns what is wrong in the end."""
    desk = Desk(engine, Check())
    desk.add(3, max_tokens=2)
    desk.add(3, max_tokens=4, stops={2: "END"})
    desk.add(3, max_tokens=3)
    desk.engine.step()
    with contextlib.suppress(KeyboardInterrupt), ctrl_c:
        desk.engine.step()
    desk.run_to_the_end(20)
    wrong = set()
    if any(not request.is_finished for request in desk.made):
        wrong.add("a request never ends")
    if desk.answers() != desk.expected():
        wrong.add("tokens are missing or wrong")
    if any([next(iter(row), None) for row in r.logprobs] != r.seq.completion_token_ids for r in desk.made):
        wrong.add("log-probabilities are missing or too many")
    return wrong


@case("ch07.take_in")
def ctrl_c_at_every_line(engine, check):
    """Ctrl-C strikes in the middle of take_in, at every line in turn. The steps after that make all good."""
    wrong = at_every_line(engine, lambda ctrl_c: interrupted_step(engine, ctrl_c), only=("take_in",))
    check.equal("what is wrong in the end, in some of the runs", wrong, [], says_interrupted)


def says_interrupted(got):
    if "a request never ends" in got:
        return SAYS_LEFT
    return "There is a line at which Ctrl-C loses something. What is final is not computed again: num_final comes last."


@case("ch07.take_in")
def whole_answers(engine, check):
    """Random requests through whole steps, some with stop strings. All answers are computed by hand and compared."""
    for seed in range(6):
        rng = random.Random(seed)
        desk = Desk(engine, check, num_blocks=12, longest=24, budget=rng.randrange(4, 20), max_num_seqs=4)
        for _ in range(6):
            max_tokens = rng.randrange(1, 7)
            stops = {rng.randrange(1, 7): "END"} if rng.random() < 0.5 else {}
            desk.add([rng.randrange(1, 4) for _ in range(rng.randrange(1, 9))], max_tokens, stops)
        check.step("steps until all is done", says_error_of_take_in)
        desk.run_to_the_end()
        desk.check_answers()
        wanted = {
            name_of(r.seq): ("stop", "END")
            if min([*r.stops, 99]) <= r.seq.sampling_params.max_tokens
            else ("length", None)
            for r in desk.made
        }
        check.equal("finish reason and stop reason", reasons(desk), wanted, says_reasons(wanted))


# _read_inbox


def says_error_of_inbox(error):
    return {
        "KeyError": "An id was looked up that nobody in self.requests has. That is no error: that request has ended.",
        "ValueError": "The scheduler was told of a sequence that it does not have (finish), or has already.",
        "RuntimeError": "The inbox was changed while you went through it: others may add messages at any time.",
        "IndexError": "A message was looked for in an inbox that is empty.",
        "AttributeError": "A message is a Request, which has .seq, or the seq_id itself: an int.",
        "TypeError": "A message is a Request, which has .seq, or the seq_id itself: an int.",
    }.get(error, "")


def read(desk, messages, live, ended=""):
    """Put messages into the inbox and have it read.

    Args:
        live: names of the requests that the engine has then.
        ended: names of all that have been aborted by then.
    """
    check = desk.check
    words = [f"abort {name_of(SimpleNamespace(seq_id=m))}" if isinstance(m, int) else name_of(m.seq) for m in messages]
    check.step(f"in the inbox: {', '.join(words) or 'nothing'}; _read_inbox", says_error_of_inbox)
    desk.engine.inbox.extend(messages)
    desk.engine._read_inbox()
    check.equal("messages left in the inbox", len(desk.engine.inbox), 0, says_messages_left)
    observe_inbox(desk, live, ended)


def says_messages_left(got):
    return f"{got} messages are still in the inbox. Each of them has been obeyed or can be ignored: throw it away."


def observe_inbox(desk, live, ended=""):
    check = desk.check
    check.equal(
        "requests that the engine has", "".join(sorted(desk.live())), live, lambda got: says_has(got, live, ended)
    )
    queues = [*desk.scheduler.waiting, *desk.scheduler.running]
    got = "".join(sorted(names_of(queues)))
    check.equal("requests in the scheduler's queues", got, live, lambda got: says_queues(got, live, ended))
    was = {name_of(r.seq): r.seq.finish_reason for r in desk.made if r.seq.finish_reason in ("abort", "stop")}
    was |= {name_of(r.seq): r.seq.finish_reason for r in desk.made if name_of(r.seq) in ended}
    wanted = dict.fromkeys(sorted(ended), "abort")
    check.equal("finish reasons of those that were aborted", was, wanted, lambda got: says_ends(got, wanted))
    keys = {key: request.seq.seq_id for key, request in desk.engine.requests.items()}
    check.equal("the keys of self.requests", list(keys), list(keys.values()), "The key of a request is its seq_id.")


def says_ends(got, wanted):
    for name, reason in got.items():
        if name not in wanted:
            return f"{name} was not to be aborted, and has ended."
        if reason is None:
            return f"{name} was asked for and called off, and has not ended: a message was lost, or not obeyed."
        if reason != "abort":
            return f'{name} was aborted, and its finish reason is {reason!r}: it should be "abort".'
    return ""


def says_has(got, live, ended):
    for name in got:
        if name not in live:
            return (
                f"{name} was aborted, and is still one of self.requests."
                if name in ended
                else f"{name} is one of self.requests, and should not be."
            )
    gone = [name for name in live if name not in got]
    return f"{gone[0]} was asked for, and is none of self.requests." if gone else ""


def says_queues(got, live, ended):
    for name in got:
        if got.count(name) > 1:
            return f"{name} is in the scheduler's queues {got.count(name)} times: it was added once more."
        if name in ended:
            return (
                f"{name} was aborted, and the scheduler still has it. Scheduler.finish takes it out, with its blocks."
            )
        if name not in live:
            return f"{name} is over, and was given to the scheduler again."
    gone = [name for name in live if name not in got]
    return f"{gone[0]} was asked for, and the scheduler does not know of it." if gone else ""


@case("ch07._read_inbox")
def new_requests(engine, check):
    """Nothing is there, then one request, then two more."""
    desk = Desk(engine, check)
    read(desk, [], "")
    read(desk, [desk.make(4)], "A")
    read(desk, [desk.make(4), desk.make(4)], "ABC")
    waiting = names_of(desk.scheduler.waiting)
    check.equal("those that wait, in order", waiting, "ABC", "First come, first served: the oldest message first.")
    statuses = [request.seq.status.name for request in desk.made]
    check.equal(
        "their statuses", statuses, ["WAITING"] * 3, "Scheduler.add queues a sequence, and changes nothing of it."
    )


@case("ch07._read_inbox")
def one_that_waits_is_aborted(engine, check):
    """A, B and C wait. B is aborted; then A and C, together."""
    desk = Desk(engine, check)
    read(desk, [desk.make(4) for _ in range(3)], "ABC")
    read(desk, [1], "AC", "B")
    read(desk, [0, 2], "", "ABC")


@case("ch07._read_inbox")
def one_that_runs_is_aborted(engine, check):
    """A and B have begun to write. A is aborted: its blocks are free at once, and what it has written stays."""
    desk = Desk(engine, check)
    for _ in range(2):
        desk.engine.inbox.append(desk.make(4, max_tokens=6))
    desk.engine._read_inbox()
    for _ in range(2):
        desk.engine.step()
    read(desk, [0], "B", "A")
    check.equal("blocks of A", list(desk.made[0].seq.block_table), [], "A was aborted, and still has its blocks.")
    wanted = answer_to(desk.made[0].seq.prompt_token_ids, 2)
    check.equal("what A has written", desk.answers()["A"], wanted, "Who aborts still gets what there is of the answer.")
    desk.run_to_the_end()
    check.equal("what B has written", desk.answers()["B"], answer_to(desk.made[1].seq.prompt_token_ids, 6))


@case("ch07._read_inbox")
def nobody_of_that_name(engine, check):
    """Ids that nobody has, or nobody any more."""
    desk = Desk(engine, check)
    read(desk, [7], "")
    read(desk, [desk.make(4), 5], "A")
    read(desk, [0, 0], "", "A")
    read(desk, [0, desk.make(4)], "B", "A")


@case("ch07._read_inbox")
def asked_for_and_called_off(engine, check):
    """All in one reading: A is asked for, and called off. B is called off before anybody has asked for it."""
    desk = Desk(engine, check)
    read(desk, [desk.make(4), 0], "", "A")
    read(desk, [1, desk.make(4)], "B", "A")


@case("ch07._read_inbox")
def the_same_message_again(engine, check):
    """A message is there twice, because Ctrl-C came when it had been obeyed and not thrown away."""
    desk = Desk(engine, check)
    first = desk.make(4)
    read(desk, [first, first], "A")
    read(desk, [first], "A")
    read(desk, [0], "", "A")
    read(desk, [0], "", "A")
    read(desk, [first], "", "A")
    second = desk.make(4)
    read(desk, [second, 1, second, 1], "", "AB")
    third = desk.make(4)
    read(desk, [third], "C", "AB")
    check.step("a step, in which C is read: it runs now", says_error_of_inbox)
    desk.engine.step()
    read(desk, [third], "C", "AB")


@case("ch07._read_inbox")
def the_scheduler_is_told_in_its_own_way(engine, check):
    """After an out-of-memory error steps are small, until the scheduler has nothing to do. Then a request comes."""
    desk = Desk(engine, check)
    desk.scheduler.limit_steps(3)
    read(desk, [desk.make(4)], "A")
    limit = desk.scheduler.max_num_batched_tokens
    check.equal("tokens of a step", limit, 64, "Scheduler.add does more than to queue a sequence. Have it do that.")


@case("ch07._read_inbox")
def more_comes_meanwhile(engine, check):
    """While A is being queued, another thread asks for B; while B is, it calls A off."""
    desk = Desk(engine, check)
    first, second = desk.make(4), desk.make(4)
    later = deque([[second], [1]])
    add = desk.scheduler.add

    def adding(seq):
        add(seq)
        if later:
            desk.engine.inbox.extend(later.popleft())

    desk.scheduler.add = adding
    check.step("meanwhile A is asked for, and then B called off")
    read(desk, [first], "A", "B")
    check.true("both came from the other thread", not later and second.seq.is_finished)


def interrupted_reading(engine, messages_of, ctrl_c):
    """A runs, B waits; messages come, and Ctrl-C strikes while they are read. Returns what is wrong after the next."""
    desk = Desk(engine, Check(), max_num_seqs=1)
    desk.engine.inbox.extend([desk.make(4, max_tokens=5), desk.make(4, max_tokens=5)])
    desk.engine._read_inbox()
    desk.engine.step()
    messages, live, ended = messages_of(desk)
    desk.engine.inbox.extend(messages)
    with contextlib.suppress(KeyboardInterrupt), ctrl_c:
        desk.engine._read_inbox()
    desk.engine._begin_anew()
    desk.engine._read_inbox()
    wrong = set()
    for request in desk.made:
        name = name_of(request.seq)
        if name in live and name not in desk.live():
            wrong.add("a request that was asked for is lost")
        if name in ended and (request.seq.finish_reason != "abort" or not request.is_finished):
            wrong.add("a request that was to be aborted has not ended")
        if name in ended and name in desk.live() + desk.queued():
            wrong.add("a request that was aborted goes on")
    if sorted(desk.queued()) != sorted(live) and not wrong:
        wrong.add("the scheduler has others than the engine")
    return wrong


@case("ch07._read_inbox")
def ctrl_c_at_every_line_of_an_abort(engine, check):
    """A runs, B waits. Both are to be aborted; Ctrl-C strikes at every line in turn. Then the loop begins anew."""
    for messages, live, ended in (([0], "B", "A"), ([1], "A", "B"), ([1, 0], "", "AB")):
        wrong = at_every_line(
            engine, lambda ctrl_c, m=(messages, live, ended): interrupted_reading(engine, lambda desk: m, ctrl_c)
        )
        check.equal(f"aborts of {messages}: what is wrong after that, in some of the runs", wrong, [], says_lost)


@case("ch07._read_inbox")
def ctrl_c_at_every_line_of_a_request(engine, check):
    """A runs, B waits, C and D are asked for, C is called off. Ctrl-C strikes at every line in turn."""

    def messages_of(desk):
        return [desk.make(4), desk.make(4), 2], "ABD", "C"

    wrong = at_every_line(engine, lambda ctrl_c: interrupted_reading(engine, messages_of, ctrl_c))
    check.equal("what is wrong after that, in some of the runs", wrong, [], says_lost)


def says_lost(got):
    return {
        "a request that was asked for is lost": "There is a line at which Ctrl-C loses a request: its message is "
        "thrown away, and it is not one of self.requests yet.",
        "a request that was to be aborted has not ended": "There is a line at which Ctrl-C loses an abort: its message "
        'is thrown away, or the request is none of self.requests any more, and it has not ended with "abort".',
        "a request that was aborted goes on": "There is a line at which Ctrl-C loses an abort: the message is thrown "
        "away, and the request goes on.",
    }.get(got[0], "")


# generate


class Shop:
    """An `LLM` around a model that can be computed by hand."""

    def __init__(self, engine: Engine, check: Check, **options):
        self.check, self.config = check, make_config(**options)
        llm_class = engine.get("llm:LLM")
        self.llm = llm = llm_class.__new__(llm_class)
        llm.config, llm.tokenizer = self.config, Letters()
        llm.processor = engine.get("prompts:InputProcessor")(self.config, llm.tokenizer)
        llm.llm_engine = self.engine = engine.get("engine.llm_engine:LLMEngine")(self.config, make_runner=Runner)
        llm.seq_ids, llm.added, llm.is_closed, llm.is_freed = itertools.count(), {}, False, False
        self.runner, self.params_class = self.engine.model_runner, engine.get("sampling_params:SamplingParams")
        self.runner.engine = self.engine
        self.queued = []
        add_request = self.engine.add_request
        self.engine.add_request = lambda request: (self.queued.append(request), add_request(request))[1]
        limit_steps(self.engine)

    def params(self, max_tokens=4, **more):
        return self.params_class(max_tokens=max_tokens, ignore_eos=True, **more)

    def generate(self, prompts, params=None, told="", **options):
        self.check.step(f"generate({prompts!r}){told}", says_error_of_generate)
        options.setdefault("use_tqdm", False)
        return self.llm.generate(prompts, params, **options)

    def refuse(self, prompts, params, error, told=""):
        """Something is wrong with what is asked for."""
        check = self.check
        check.step(f"generate({prompts!r}){told}")
        raised = "nothing"
        try:
            self.llm.generate(prompts, params, use_tqdm=False)
        except Exception as caught:
            raised = type(caught).__name__
        says = (
            f"Something is wrong with what was asked for, and it should raise {error}. _make_request checks a prompt."
        )
        check.equal("what is raised", raised, error, says)
        says = "A request was queued before the last prompt had been looked at. Nothing starts if something is wrong."
        check.equal("requests that were queued", len(self.queued), 0, says)
        check.equal("steps that were made", len(self.runner.calls), 0, says)

    def left_behind(self, others=""):
        """Requests that the engine still has; `others` are those that should be there."""
        messages = [message for message in self.engine.inbox if not isinstance(message, int)]
        live = [*self.engine.requests.values(), *messages]
        names = "".join(sorted(names_of(request.seq for request in live)))
        self.check.equal("requests that the engine still has", names, others, lambda got: says_left(got, others))


def says_left(got, others):
    more = [name for name in got if name not in others]
    if more:
        return f"{more[0]} is still live, and nobody waits for it: the call that asked for it has ended."
    gone = [name for name in others if name not in got]
    return f"{gone[0]} was somebody else's request, and the engine does not have it any more." if gone else ""


def says_error_of_generate(error):
    return {
        "EndlessLoopError": "Steps are made without end. Which requests does the loop wait for, and does it ask anew?",
        "AttributeError": "Something was used that is not there. The requests are made by self._make_request.",
    }.get(error, "")


def observe_outputs(shop, outputs, prompts, lengths):
    """They are what the model says, in order."""
    check = shop.check
    kind = type(outputs).__name__
    if not check.equal("what comes back is a", kind, "list", "Return a list of results, one for each prompt."):
        return
    if not check.equal("how many results", len(outputs), len(prompts), "One result for each prompt, in their order."):
        return
    kinds = [type(output).__name__ for output in outputs]
    says = "A result is a RequestOutput: RequestOutput(request, request.text(self.tokenizer))."
    if not check.equal("what they are", kinds, ["RequestOutput"] * len(prompts), says):
        return
    wanted = [answer_to(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    tokens = [list(output["token_ids"]) for output in outputs]
    says = (
        "Equal prompts are requests of their own, each with its parameters: they have nothing but the prompt in common."
    )
    are_twins = len(prompts) > 1 and all(prompt == prompts[0] for prompt in prompts)
    check.equal(
        "the tokens of the answers", tokens, wanted, lambda got: says if are_twins else says_tokens(got, wanted)
    )
    texts = [output["text"] for output in outputs]
    says = "The text of a result is that of its tokens: request.text(self.tokenizer)."
    check.equal("their texts", texts, [Letters().decode(token_ids) for token_ids in wanted], says)
    kinds = [output["finish_reason"] for output in outputs]
    check.equal(
        "their finish reasons", kinds, ["length"] * len(prompts), "A result was made before its answer was over."
    )


def says_tokens(got, wanted):
    if sorted(got) == sorted(wanted):
        return "The right answers, in another order than the prompts."
    for i, (tokens, right) in enumerate(zip(got, wanted, strict=True)):
        if tokens == right[: len(tokens)] and len(tokens) < len(right):
            return f"Answer {i} has {len(tokens)} of its {len(right)} tokens: it was not waited for."
        if right == tokens[: len(right)] and len(tokens) > len(right):
            return f"Answer {i} has {len(tokens)} tokens, and should have {len(right)}: its parameters are its own."
    return "An answer is not what the model says about its prompt."


PROMPTS = [[5, 6, 7], [8, 9], [5, 6, 7, 8, 9, 10]]


@case("ch07.generate")
def three_prompts(engine, check):
    """Three lists of token ids, the same parameters for all."""
    shop = Shop(engine, check)
    outputs = shop.generate(PROMPTS, shop.params(4))
    observe_outputs(shop, outputs, PROMPTS, [4, 4, 4])
    shop.left_behind()
    first = [share.split()[1] for share in shop.runner.calls[0].shares] if shop.runner.calls else []
    says = (
        "There is room for all three in one step, and they were not there together: one was done before the next began."
    )
    check.equal("how many tokens of each the first step computes", first, ["3", "2", "6"], says)
    check.equal("steps", len(shop.runner.calls), 4, says_steps)


def says_steps(got):
    if got > 4:
        return "Four steps are enough for all three: they are one batch."
    return "Four tokens take four steps."


@case("ch07.generate")
def the_first_is_the_last_to_end(engine, check):
    """Three prompts, each with its own parameters: the first writes longest. The results have the prompts' order."""
    shop = Shop(engine, check)
    outputs = shop.generate(PROMPTS, [shop.params(n) for n in (7, 2, 4)], " for 7, 2 and 4 tokens")
    observe_outputs(shop, outputs, PROMPTS, [7, 2, 4])
    outputs = shop.generate(PROMPTS, [shop.params(n) for n in (1, 5, 3)], " for 1, 5 and 3 tokens")
    observe_outputs(shop, outputs, PROMPTS, [1, 5, 3])
    shop.left_behind()


@case("ch07.generate")
def twins(engine, check):
    """The same prompt twice, with parameters of its own each time."""
    shop = Shop(engine, check)
    outputs = shop.generate([[5, 6, 7]] * 2, [shop.params(n) for n in (2, 5)], " for 2 and 5 tokens")
    observe_outputs(shop, outputs, [[5, 6, 7]] * 2, [2, 5])
    shop.left_behind()


@case("ch07.generate")
def what_a_prompt_may_be(engine, check):
    """A string, a list of strings, one list of token ids, and nothing at all."""
    shop = Shop(engine, check)
    for prompts, wanted in (("hello", ["hello"]), (["hello", "you"], ["hello", "you"])):
        outputs = shop.generate(prompts, shop.params(3))
        observe_outputs(shop, outputs, [Letters().encode(text) for text in wanted], [3] * len(wanted))
        asked = [getattr(output, "prompt", None) for output in outputs]
        says = "A result knows the string that was asked: _make_request(prompt, params) gets the prompt as it came."
        check.equal("the prompts that the results name", asked, wanted, says)
    outputs = shop.generate([5, 6, 7], shop.params(3))
    observe_outputs(shop, outputs, [[5, 6, 7]], [3])
    observe_outputs(shop, shop.generate([], shop.params(3)), [], [])
    shop.left_behind()


@case("ch07.generate")
def the_defaults(engine, check):
    """Without sampling parameters, those of the engine's defaults are used."""
    shop = Shop(engine, check, longest=12)
    outputs = shop.generate([[5, 6, 7]], None, " without parameters; a sequence has at most 12 tokens here")
    check.equal("how many results", len(outputs), 1)
    check.equal("tokens of the answer", len(outputs[0]["token_ids"]), 9, "None stands for the defaults.")


@case("ch07.generate")
def one_of_them_is_bad(engine, check):
    """The last prompt is empty, or has a token that does not exist, or is too long; or there are too few parameters."""
    for bad, error in (([], "ValueError"), ([5, 4000], "ValueError"), ([5] * 200, "ValueError"), (None, "TypeError")):
        shop = Shop(engine, check)
        shop.refuse([[5, 6], [7], bad], shop.params(3), error)
        shop.left_behind()
    shop = Shop(engine, check)
    shop.refuse([[5, 6], [7], [8]], [shop.params(3)] * 2, "ValueError", " with parameters for two")
    shop = Shop(engine, check)
    shop.refuse([[5, 6]], [], "ValueError", " with an empty list of parameters")
    shop = Shop(engine, check)
    shop.refuse([[5, 6], [7]], "greedy", "TypeError", " with parameters that are none")
    outputs = shop.generate(PROMPTS, shop.params(2))
    observe_outputs(shop, outputs, PROMPTS, [2, 2, 2])


@case("ch07.generate")
def somebody_else_is_done_first(engine, check):
    """A was added by add_request, and wants two tokens. generate makes steps, and A ends in one of them."""
    shop = Shop(engine, check)
    seq_id = shop.llm.add_request([9, 9], shop.params(2))
    outputs = shop.generate(PROMPTS, shop.params(5), "; A came before")
    observe_outputs(shop, outputs, PROMPTS, [5, 5, 5])
    check.step("then step")
    finished = shop.llm.step()[0]
    says = (
        "What step has to report of somebody else's request was lost: generate took it. self._step makes a step and "
        "reports nothing."
    )
    wanted = [(seq_id, answer_to([9, 9], 2))]
    check.equal("what step reports", finished, wanted, lambda got: says if not got else SAYS_REPORTED)


SAYS_REPORTED = "step reports requests of generate: they were queued as those of add_request are, which step reports."


@case("ch07.generate")
def somebody_else_takes_longer(engine, check):
    """A was added by add_request, and wants twenty tokens. generate does not wait for it, and does not end it."""
    shop = Shop(engine, check)
    seq_id = shop.llm.add_request([9, 9], shop.params(20))
    outputs = shop.generate([[5, 6, 7]], shop.params(3), "; A came before")
    observe_outputs(shop, outputs, [[5, 6, 7]], [3])
    num_steps = len(shop.runner.calls)
    says = "Steps were made that none of these requests needed: the loop ends when its own are finished."
    check.equal("steps", num_steps, 3, lambda got: says if got > 3 else "")
    shop.left_behind("A")
    shop.generate([], shop.params(3), "; A is still there")
    says_nothing = "A step was made for an empty list. There was nothing to wait for."
    check.equal("steps for no prompts at all", len(shop.runner.calls) - num_steps, 0, says_nothing)
    finished = []
    for _ in range(30):
        finished += shop.llm.step()[0]
    check.equal("what step reports later", finished, [(seq_id, answer_to([9, 9], 20))], SAYS_REPORTED)


@case("ch07.generate")
def one_outgrows_the_pool(engine, check):
    """There is room for 16 tokens in all. The first prompt wants more, so it fails on its way; the second does not."""
    shop = Shop(engine, check, num_blocks=4, longest=64)
    check.step("generate([[5, 6, 7], [8]]) for 20 and 2 tokens", {"RuntimeError": SAYS_ONE_FAILS} | SAYS_NO_ERRORS)
    outputs = shop.llm.generate([[5, 6, 7], [8]], [shop.params(20), shop.params(2)], use_tqdm=False)
    reasons = [output["finish_reason"] for output in outputs]
    check.equal("the finish reasons", reasons, ["error", "length"], SAYS_ONE_FAILS)
    check.equal("the second answer", outputs[-1]["token_ids"], answer_to([8], 2), SAYS_ONE_FAILS)
    shop.left_behind()


SAYS_ONE_FAILS = (
    'A request that fails on its way is a result like any other, with the finish reason "error": the others should not '
    "lose their answers because of it."
)
SAYS_NO_ERRORS = dict.fromkeys(["ValueError", "MemoryError"], SAYS_ONE_FAILS)


def interrupt_at(shop, number, error=KeyboardInterrupt):
    def interrupt(count):
        if count == number:
            raise error

    shop.runner.before = interrupt


def generate_and_catch(shop, prompts, params):
    """What generate raises, by name; "nothing" if it returns."""
    try:
        shop.llm.generate(prompts, params, use_tqdm=False)
    except EndlessLoopError:
        raise
    except BaseException as error:
        return type(error).__name__
    return "nothing"


@case("ch07.generate")
def ctrl_c_in_the_third_step(engine, check):
    """A was added by add_request. generate works on three prompts when Ctrl-C comes. Then it is called again."""
    shop = Shop(engine, check)
    shop.llm.add_request([9, 9], shop.params(12))
    interrupt_at(shop, 3)
    check.step("generate for three prompts; Ctrl-C in the third step")
    raised = generate_and_catch(shop, PROMPTS, shop.params(6))
    check.equal("what is raised", raised, "KeyboardInterrupt", says_raised)
    shop.left_behind("A")
    outputs = shop.generate([[7, 7]], shop.params(3), ", after that")
    observe_outputs(shop, outputs, [[7, 7]], [3])
    others = sorted({share[0] for call in shop.runner.calls[3:] for share in call.shares} - {"A", "E"})
    says = "After the interrupt, steps still computed tokens of its requests."
    check.equal("whose tokens are computed after that, besides those of A and the new one", others, [], says)


def says_raised(got):
    if got == "nothing":
        return "Ctrl-C is for the whole script: whoever catches it to clean up has to raise it again."
    return f"While Ctrl-C was being handled, another error was raised: {got}. Look at what is called there, and how."


@case("ch07.generate")
def an_error_in_a_step(engine, check):
    """The model fails in the second step of generate."""
    shop = Shop(engine, check)
    interrupt_at(shop, 2, ArithmeticError)
    check.step("generate for three prompts; the second step fails")
    raised = generate_and_catch(shop, PROMPTS, shop.params(6))
    says = "The error of a step is passed on to the caller."
    check.equal("what is raised", raised, "ArithmeticError", says)
    shop.left_behind()
    outputs = shop.generate(PROMPTS, shop.params(3), ", after that")
    observe_outputs(shop, outputs, PROMPTS, [3, 3, 3])


def interrupted_call(engine, ctrl_c):
    """generate for three prompts beside a request of somebody else; Ctrl-C strikes. What is wrong after that?"""
    shop = Shop(engine, Check())
    shop.llm.add_request([9, 9], shop.params(9))
    wrong, raised = set(), False
    try:
        with ctrl_c:
            shop.llm.generate(PROMPTS, [shop.params(n) for n in (3, 1, 2)], use_tqdm=False)
    except KeyboardInterrupt:
        raised = True
    if ctrl_c.struck and not raised:
        wrong.add("Ctrl-C is not passed on")
    messages = [message for message in shop.engine.inbox if not isinstance(message, int)]
    live = names_of(request.seq for request in [*shop.engine.requests.values(), *messages])
    if set(live) - {"A"}:
        wrong.add("requests of generate are still live")
    if "A" not in live:
        wrong.add("somebody else's request is gone")
    return wrong


@case("ch07.generate")
def ctrl_c_at_every_line_of_generate(engine, check):
    """Ctrl-C strikes at every line of generate in turn, while somebody else's request runs. What is left behind?"""
    wrong = at_every_line(engine, lambda ctrl_c: interrupted_call(engine, ctrl_c), only=("generate",))
    check.equal("what is wrong after that, in some of the runs", wrong, [], says_interrupted_call)


def says_interrupted_call(got):
    return {
        "Ctrl-C is not passed on": says_raised("nothing"),
        "requests of generate are still live": "There is a line at which Ctrl-C leaves requests behind: from the first "
        "that is queued on, whatever happens ends them all.",
        "somebody else's request is gone": "Ctrl-C has ended a request of somebody else, too.",
    }.get(got[0], "")


@case("ch07.generate")
def closed_meanwhile(engine, check):
    """Another thread closes the engine between two steps of generate."""
    shop = Shop(engine, check)
    step, numbers = shop.llm._step, itertools.count(1)

    def step_and_close():
        made = step()
        if next(numbers) == 2:
            shop.llm.exit()
        return made

    shop.llm._step = step_and_close
    check.step("generate for three prompts; after the second step the engine is closed", says_error_of_generate)
    raised = generate_and_catch(shop, PROMPTS, shop.params(6))
    says = (
        "Answers came back that are not over: exit() leaves no request in the engine. A request is done when it is "
        "finished; whoever makes the next step hears that the engine is closed."
    )
    check.equal("what is raised", raised, "RuntimeError", says if raised == "nothing" else "")


@case("ch07.generate")
def the_bar(engine, check):
    """A progress bar is shown on request, and only then."""
    shown = {}
    for use_tqdm in (True, False):
        shop, there = Shop(engine, check), io.StringIO()
        check.step(f"generate with use_tqdm={use_tqdm}")
        with contextlib.redirect_stderr(there), contextlib.redirect_stdout(there):
            shop.llm.generate(PROMPTS, shop.params(2), use_tqdm=use_tqdm)
        shown[use_tqdm] = bool(there.getvalue().strip())
    check.equal("whether something is shown", shown, {True: True, False: False}, says_bar)


def says_bar(got):
    if not got[True]:
        return "A progress bar was asked for, and none is shown: ProgressBar(requests, disable=not use_tqdm)."
    return "Nobody asked for a progress bar, and there is one."


@case("ch07.generate")
def a_small_engine(engine, check):
    """Eight prompts, two seats, a small pool: the scheduler has its own ideas about who is next."""
    for seed in range(4):
        rng = random.Random(seed)
        shop = Shop(
            engine, check, num_blocks=10, budget=rng.randrange(4, 12), max_num_seqs=rng.randrange(1, 4), longest=24
        )
        prompts = [[rng.randrange(1, 99) for _ in range(rng.randrange(1, 9))] for _ in range(8)]
        lengths = [rng.randrange(1, 8) for _ in prompts]
        outputs = shop.generate(prompts, [shop.params(n) for n in lengths])
        observe_outputs(shop, outputs, prompts, lengths)
        shop.left_behind()


# choose_messages: an open exercise


def talk(num_exchanges, words, with_system=True):
    """A talk whose messages have so many words, from the oldest on, and one question more."""
    messages = [{"role": "system", "content": "s " * words[0]}] if with_system else []
    for i in range(num_exchanges):
        messages.append({"role": "user", "content": f"q{i} " * words[(2 * i + 1) % len(words)]})
        messages.append({"role": "assistant", "content": f"a{i} " * words[(2 * i + 2) % len(words)]})
    return [*messages, {"role": "user", "content": "the newest question"}]


def count_words(messages):
    return sum(2 + len(message["content"].split()) for message in messages) + 1


def chosen(engine, check, messages, left_out, budget, count=count_words):
    """What is chosen, after a look at what holds for every answer; None if something does not."""
    choose, before = engine.get("labs:choose_messages"), [dict(message) for message in messages]
    check.step(f"{len(messages)} messages, {count(messages)} tokens; {left_out} were left out before; budget {budget}")
    got = choose(messages, left_out, budget, count)
    if not check.true("the messages are as they were", messages == before, "The talk itself was changed."):
        return None
    if not check.equal("what comes back is a", type(got).__name__, "list", "It returns a list of messages."):
        return None
    roles = {"system": "s", "user": "q", "assistant": "a"}
    shape = "".join(roles.get(message.get("role"), "?") if isinstance(message, dict) else "?" for message in got)
    start = int(messages[0]["role"] == "system")
    head = messages[:start]
    if not check.true("the system message comes first", got[:start] == head, "The system message is not sent first."):
        return None
    rest = got[start:]
    says = "The newest question is not the last of what is sent."
    if not check.true("the newest question is last", rest[-1:] == messages[-1:], says):
        return None
    says = "What is sent is not the end of the talk: something in between is left out, or in another order."
    if not check.true("the rest is the end of the talk", rest == messages[len(messages) - len(rest) :], says):
        return None
    says = f"A question without its answer, or an answer without its question, is sent: {shape} (q and a, in order)."
    if not check.true("question and answer stay together", len(rest) % 2 == 1, says):
        return None
    size = count(got)
    says = f"The prompt has {size} tokens, and the budget is {budget}."
    if not check.true("the budget is kept", size <= budget, says):
        return None
    if left_out == 0 and count(messages) <= budget:
        says = "All of it fits, nothing has been left out before, and still something is."
        if not check.true("all is sent, as it fits", len(got) == len(messages), says):
            return None
    return got


@case("ch07.choose_messages")
def few_tokens_are_computed(engine, check):
    """The recorded talk, question by question, through the real scheduler and block manager."""
    seen = []

    def choose(messages, left_out, budget, count):
        got = chosen(engine, check, messages, left_out, budget, count)
        seen.append(got)
        return messages[-1:] if got is None else got

    package = SimpleNamespace(
        config=engine.get("config:"),
        engine=SimpleNamespace(),
        SamplingParams=engine.get("sampling_params:SamplingParams"),
    )
    package.engine.scheduler, package.engine.sequence = engine.get("engine.scheduler:"), engine.get("engine.sequence:")
    sent = talk_work.send_all(choose, package)
    if None in seen:
        return
    computed, kept = talk_work.computed(sent), talk_work.kept(sent)
    check.measured(
        f"{computed:,} prompt tokens were computed ({talk_work.WINDOW:,} with as much as fits, every time), and "
        f"{100 * kept:.0f} % were sent of what the budget allowed"
    )
    forgets = SAYS_FORGETS_IN_VAIN if computed > talk_work.BAR else SAYS_FORGETS
    check.true("at least two thirds are sent of what fits", kept >= talk_work.SHARE, forgets)
    check.true(f"at most {talk_work.BAR:,} tokens are computed", computed <= talk_work.BAR, SAYS_COMPUTES)


SAYS_FORGETS = "On average less than two thirds is sent of what fits: the model forgets more than it has to."
SAYS_FORGETS_IN_VAIN = (
    "Less than two thirds is sent of what fits, and still too much is computed: what is left out changes too often. "
    "`left_out` says how many messages were left out last time; as long as no more have to go, all of them stay in the "
    "cache."
)
SAYS_COMPUTES = (
    "Too much is computed. Whenever more is left out than before, all behind the system message is computed anew. How "
    "often is that?"
)


@case("ch07.choose_messages")
def other_talks(engine, check):
    """Talks of all kinds, with and without a system message, from the first question on."""
    rng = random.Random(5)
    for _ in range(40):
        words, with_system = [rng.randrange(1, 60) for _ in range(rng.randrange(3, 9))], rng.random() < 0.7
        budget, left_out = rng.randrange(150, 400), 0
        for num_exchanges in range(12):
            messages = talk(num_exchanges, words, with_system)
            got = chosen(engine, check, messages, left_out, budget)
            if got is None:
                return
            left_out = len(messages) - len(got)


@case("ch07.choose_messages")
def the_very_last_token(engine, check):
    """A talk that has exactly as many tokens as the budget allows, and one more."""
    messages = talk(3, [5, 9, 7])
    size = count_words(messages)
    chosen(engine, check, messages, 0, size)
    chosen(engine, check, messages, 0, size - 1)
    chosen(engine, check, talk(0, [5]), 0, count_words(talk(0, [5])))


@case("ch07.choose_messages")
def only_the_question_fits(engine, check):
    """System message and newest question just fit, and nothing else. Then not even these do."""
    choose = engine.get("labs:choose_messages")
    for with_system in (True, False):
        messages = talk(4, [5, 9, 7], with_system)
        least = count_words([*messages[: int(with_system)], messages[-1]])
        for left_out in (0, 4):
            chosen(engine, check, messages, left_out, least)
        raised = "nothing"
        check.step(f"budget {least - 1}, and system message and question have {least} tokens")
        try:
            choose(messages, 0, least - 1, count_words)
        except Exception as error:
            raised = type(error).__name__
        check.equal("what is raised", raised, "ValueError", "Not even the question fits: that has to be said.")
