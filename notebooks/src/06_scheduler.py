# %% [markdown]
# # 6 · The scheduler
#
# *Who takes part in the next step, who waits, and who has to go.*
#
# You will
#
# * count what it costs when a batch waits for its slowest member,
# * write the five functions by which requests come in, go on, step aside and leave,
# * cut a long prompt into chunks, and see what that does to everybody else,
# * run out of memory on purpose, and lose nothing but time,
# * find a better rule than ours for who has to go.
#
# Plan an hour and a half; the exercises are an hour of it. Everything runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# Requests are `Sequence`s, and the block manager hands out blocks. Nobody decides yet who gets them, and when.
# That is the scheduler's work: before every step it chooses the sequences that take part.
#
# This is the map of your engine, `mine()`. What you have not written is ours, so that it always runs. Until this
# chapter's functions are yours, it serves one request at a time. Where a cell says `LLM`, it is our whole engine that
# runs, so that you can see what is to come.

# %%
# %load_ext exercises
import logging
from collections import deque

import figures

import nanovllm
from exercises.kit import mixed_work
from nanovllm import LLM, SamplingParams
from nanovllm.config import Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.viz import Bars, BlockTable, Timeline
from nanovllm.viz.record import record, record_scheduler
from nanovllm.viz.timeline import totals

# Blocks of four tokens, so that pictures have room; a real engine has 16 to 256. Without the levers of chapter 17.
SMALL = {"kvcache_block_size": 4, "num_kvcache_blocks": 80, "max_model_len": 256, "device": "cpu"}
SMALL["disabled_optimizations"] = "all"
logging.disable(logging.WARNING)  # the engine warns of very small pools; here they are wanted
mine()

# %% [markdown]
# ## Why: the empty seats
#
# Chapter 1 counted the seats of **static batching** on paper: fill them, wait until all are done, fill them again. Here
# it is in the engine. Four sequences can run at once (`max_num_seqs=4`), and twelve requests want answers of very
# different lengths.
#
# Our engine does not work that way, so we have to build it. `schedule_prefill` is what lets requests in; below, it lets
# nobody in while anybody runs.


# %%
class StaticScheduler(Scheduler):
    """Fills all seats, then closes the door until the last one is empty."""

    def schedule_prefill(self):
        return [] if self.running else super().schedule_prefill()


beginnings = ["Once upon a time", "One day, a small fox", "There was an old boat", "Tom had a new ball"]
lengths = [4, 24, 6, 9, 22, 3, 12, 5, 18, 4, 7, 10]
prompts = [beginnings[i % 4] for i in range(12)]
params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]


def run_with(scheduler_class, num_seats=4):
    with LLM("qwen3-tiny", max_num_seqs=num_seats, **SMALL) as llm:
        llm.llm_engine.scheduler = scheduler_class(llm.config)
        return record(llm, prompts, params)


static = run_with(StaticScheduler)
picture = Bars("empty", 100, {"all seats": 100}, "%")
question = "Static batching: which share of the seats stays empty, over all decode steps?"
predict("empty seats", question, unit="%", picture=picture)


# %%
def seats(trace, num_seats=4):
    """Seats in all decode steps, and how many of them were empty."""
    taken = [len(step["scheduled"]) for step in trace["steps"] if step["kind"] == "decode"]
    return num_seats * len(taken), num_seats * len(taken) - sum(taken)


total, empty = seats(static)
reveal("empty seats", round(100 * empty / total))

# %% [markdown]
# More than half. An empty seat is not free: the weights are read from memory for every step, whether one
# sequence uses them or four.
#
# **Continuous batching** (Orca, 2022) decides again before *every* step, and the next in the queue takes a free seat.
# Here are both, as pictures of real runs. A lane is a request, and time goes from left to right.

# %%
continuous = run_with(Scheduler)
for name, trace in [("static", static), ("continuous", continuous)]:
    total, empty = seats(trace)
    print(f"{name:10} batching: {empty:3} of {total} seats were empty, {100 * empty / total:.0f} %")
Timeline(continuous, compare={"static": static}, name="continuous")

# %% [markdown]
# Look at the upper run again. Where a request comes in, its lane begins with a tall box: its prompt is read. In the
# same step the others have a dashed box: they are running, but this step does nothing for them. That is the rule of
# this engine: **a step is either a prefill or a decode**, and a prefill goes first. (*width by ms* draws each step as
# long as it took here, with all that this computer did besides.)
#
# ## Two queues
#
# A scheduler has two queues, and every live request is in exactly one of them. A step of the engine asks the scheduler
# twice: `schedule` before the model runs, `postprocess` after it. This is the first of the two. You will write what it
# calls. The picture below shows what moves a request.
#
# {{source nanovllm/engine/scheduler.py:Scheduler.schedule}}
#
# The scheduler never sees the model. It works with lengths and block numbers alone, so we can drive it by hand
# and make up the tokens. The function `step` below is all that an engine does, except for the model.


# %%
def make_scheduler(**options):
    return Scheduler(Config("qwen3-tiny", **(SMALL | options)))


def add(scheduler, name, num_tokens, **params):
    """Queue a request; its prompt is nobody else's, so that nothing is shared."""
    token_ids = range(100 * (name + 1), 100 * (name + 1) + num_tokens)
    scheduler.add(Sequence(token_ids, SamplingParams(**params), block_size=4, seq_id=name))


def step(scheduler, token_id=7):
    seqs, is_prefill = scheduler.schedule()
    work = ", ".join(f"{seq.seq_id} computes {seq.num_scheduled_tokens}" for seq in seqs)
    scheduler.postprocess(seqs, [None if seq.is_cut else token_id for seq in seqs])
    queues = [[seq.seq_id for seq in queue] for queue in (scheduler.waiting, scheduler.running)]
    print(f"{'prefill' if is_prefill else 'decode':7}  {work:38}  waiting {queues[0]}, running {queues[1]}")


scheduler = make_scheduler(max_num_seqs=2)
for name, num_tokens in enumerate([5, 9, 3]):
    add(scheduler, name, num_tokens, max_tokens=3 if name == 0 else 5)
while not scheduler.is_finished():
    step(scheduler)
figures.life_of_a_request()

# %% [markdown]
# Request 0 leaves, and request 2 comes in with the very next step. Leaving at once is half of continuous
# batching. It is where we begin.
#
# ## Leaving
#
# After each step the new token of a sequence decides: is the answer over, and why? Its reader is told: "stop", or
# "length". There is a function for that; an engine without it only knows how long a sequence of this model may get.

# %%
predict(
    "stop or length",
    "The last token that max_tokens allows is the model's end token. What is the reader told?",
    choices=["stop", "length"],
)

# %%
question = [{"role": "user", "content": "What is 12 + 7?"}]
with LLM("qwen3-tiny", **SMALL) as llm:
    (answer,) = llm.chat(question, SamplingParams(temperature=0, max_tokens=60), use_tqdm=False)
    allowed = len(answer["token_ids"])  # the end token among them
    (answer,) = llm.chat(question, SamplingParams(temperature=0, max_tokens=allowed), use_tqdm=False)
print(f"{answer['text']!r}, {allowed} tokens, and {allowed} were allowed")
reveal("stop or length", answer["finish_reason"])

with without("ch06.finish_reason").LLM("qwen3-tiny", **SMALL) as llm:
    (answer,) = llm.chat(question, SamplingParams(temperature=0, max_tokens=5), use_tqdm=False)
print(f"without finish_reason: {len(answer['token_ids'])} tokens, {answer['text']!r:.90} ...")

# %% [markdown]
# The answer is complete, and "length" would tell its reader that something is missing: the rules have an order.
# Without them the engine knew the answer, and nobody told it to stop.
#
# Write the rules. The last one is for a rare end: a sequence that needs more blocks than the whole pool has can never
# go on, whoever steps aside for it.

# %%
# {{exercise ch06.finish_reason}}

# %%
# Plugged in: your rules in a whole engine. The same question three times, with three ways to end.
ends = {
    "as the model likes": SamplingParams(temperature=0, max_tokens=60),
    "at most 5 tokens": SamplingParams(temperature=0, max_tokens=5),
    "end tokens ignored": SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
}
me = mine()
print(me.whose("ch06.finish_reason"))
with me.LLM("qwen3-tiny", **SMALL) as llm:
    for name, wish in ends.items():
        (answer,) = llm.chat(question, wish, use_tqdm=False)
        print(f"{name:19} {len(answer['token_ids']):3} tokens, {answer['finish_reason']:6}  {answer['text'][:44]!r}")

# %% [markdown]
# ### What a step leaves behind
#
# `finish_reason` is one question. `postprocess` does everything that comes after the model: it writes down what is
# stored now, takes in the new tokens, and ends what is over (`self.finish(seq, reason)`). Three numbers of a sequence
# matter, all known from chapter 4: `num_cached_tokens`, `num_scheduled_tokens` and `num_tokens`. Without looking back:

# %%
predict(
    "stored",
    "A prompt of ten tokens has been computed in one step, and a token was sampled. What is num_cached_tokens now?",
)

# %%
scheduler = make_scheduler()
add(scheduler, 0, 10)
step(scheduler)
reveal("stored", scheduler.running[0].num_cached_tokens)
print(f"num_tokens is {scheduler.running[0].num_tokens}")

# %% [markdown]
# The new token has not been through the model; its keys and values are computed in the next step. Once its prompt is
# read, a running sequence is always one token ahead of its cache.

# %%
# {{exercise ch06.postprocess}}

# %% [markdown]
# ### Plug in
#
# Three answers of different lengths, and the number of free blocks after every step. The moment an answer is over, its
# blocks are free: the line jumps up. `run_of` runs an engine, yours for example, and records what it does, up to the
# first error or the 200th step.


# %%
def run_of(engine, prompts, params, arrive=None, max_steps=200, **options):
    """A trace of an engine at work; several requests at once, unless told otherwise."""
    with engine.LLM("qwen3-tiny", **(SMALL | {"max_num_seqs": 8} | options)) as llm:
        return record(llm, prompts, params, arrive, max_steps=max_steps, keep_error=True)


openings = ["Once upon a time, there was a little girl named Mia. She had a red kite."]
openings += [
    "One day, Tom and Mia went to the park. The sun was warm.",
    "A small frog sat in the pond and was very sad.",
]
wishes = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (6, 24, 15)]
me = mine()
print(me.whose("ch06.finish_reason", "ch06.postprocess"))
trace = run_of(me, openings, wishes, num_kvcache_blocks=40)
print("tokens of the answers:", [len(seq["output_ids"]) for seq in trace["seqs"].values()], "of 6, 24 and 15")
figures.free_blocks(trace)

# %% [markdown]
# ## Coming in
#
# The other half: who may come in? `schedule_prefill` looks at the head of the queue, again and again, until
# somebody may not join. Here is how that is decided. This code is given.
#
# {{source nanovllm/engine/scheduler.py:Scheduler.may_join}}
#
# {{source nanovllm/engine/scheduler.py:Scheduler.refusal}}
#
# Three reasons to stay out: the budget, the seats, the blocks. All are about this moment. That those who run will grow,
# and that the pool may not hold them all to their end, is not among them. More of that later.
#
# ### The token budget
#
# `max_num_batched_tokens` bounds the tokens of one step, and so its time and its memory. What if a prompt is
# longer? It is **cut**: the step computes a first chunk, and the next step goes on. That is *chunked prefill*. Any
# prompt can be cut, wherever the budget ends.
#
# While it is cut it stays at the head of the queue. All its blocks are its own already. No token is sampled for
# it: half of a question has no answer.

# %%
predict("chunks", "Prompts of 30, 9 and 12 tokens, and a step computes at most 16. How many steps until all are read?")

# %%
chunked = make_scheduler(max_num_batched_tokens=16)
for name, num_tokens in enumerate([30, 9, 12]):
    add(chunked, name, num_tokens)
steps = 0
while chunked.waiting:
    step(chunked)
    steps += 1
reveal("chunks", steps)

texts = ["One day, Tom and Mia went to the park. The sun was warm and the birds were singing in the trees."]
texts += ["Once upon a time there was a little cat", "Once upon a time there was a little dog"]
texts += ["Tom had a ball", "The rain fell all night.", "A frog sat in the pond"]
wish = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def prefills(trace):
    """Tokens that each prefill step computed."""
    return [sum(part["n"] for part in step["scheduled"]) for step in trace["steps"] if step["kind"] == "prefill"]


simple = run_of(without("ch06.schedule_prefill"), texts, wish, max_num_batched_tokens=16)
print("without schedule_prefill, six texts, 16 tokens a step allowed; computed were", prefills(simple))

# %% [markdown]
# Every step but the last is full, to the last token. Where one prompt ends, the next begins, in the same step. And
# no decode comes in between: request 0 is complete after the second step, and has to wait for the others.
#
# The last line is an engine without that: one prompt a step, whole, however long it is. Six texts take six steps, the
# first of them far too large, and nothing is found in the cache, though two begin alike.

# %%
# {{exercise ch06.schedule_prefill}}

# %% [markdown]
# ### Plug in
#
# The same texts on your engine. Point at a tall box: it says how many tokens came from the prefix cache, and cost
# nothing.

# %%
me = mine(enable_prefix_caching=True)
print(me.whose("ch06.schedule_prefill"))
trace = run_of(me, texts, wish, arrive=[0, 0, 0, 1, 1, 1], max_num_batched_tokens=16)
print("prompts of", [len(seq["prompt_ids"]) for seq in trace["seqs"].values()], "tokens")
print("the prefill steps computed", prefills(trace), "and", totals(trace)["cached"], "tokens came from the cache")
Timeline(trace)

# %% [markdown]
# ### What the budget does to others
#
# Four answers are being written when a prompt of 400 tokens arrives. A budget of 512 reads it in one step, a budget of
# 32 in many small ones.

# %%
predict(
    "smaller chunks",
    "With the smaller budget, the longest pause that a reader of one of the four answers sees becomes ...",
    choices=["shorter", "longer"],
)


# %%
def pause_and_longest_step(budget):
    """Milliseconds: the longest gap between two tokens of request 0, and the longest step; on this computer, now."""
    options = {"num_kvcache_blocks": 300, "max_model_len": 512, "max_num_batched_tokens": budget}
    work = [[7 + i, 8, 9] for i in range(4)] + [list(range(100, 500))]
    wish = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    trace = run_of(nanovllm, work, wish, [0, 0, 0, 0, 6], **options)
    gaps = [0.0]
    for moment in trace["steps"][2:]:
        gaps[-1] += moment["ms"]
        if any(part["seq"] == 0 for part in moment["scheduled"]):
            gaps.append(0.0)
    return max(gaps), max(moment["ms"] for moment in trace["steps"][2:])


print("six runs: seconds, or a minute where other programs are busy")
budgets = [32, 128, 512]
# The better of two runs: something else may keep the computer busy during one of them.
pairs = [zip(pause_and_longest_step(budget), pause_and_longest_step(budget), strict=True) for budget in budgets]
pauses, longest_steps = zip(*[map(min, pair) for pair in pairs], strict=True)
reveal("smaller chunks", "longer" if pauses[0] > pauses[-1] else "shorter")

# %%
figures.pauses(budgets, pauses, longest_steps)

# %% [markdown]
# A small budget makes every step short. It does not make the pause short: decode waits for *all* chunks, and many
# small steps cost more than one large one. The pause is also how long the newcomer waits for its first token.
# Prefill first is kind to newcomers, and unkind to readers.
#
# What would help is a **mixed step**: the running sequences decode, and a chunk of the prompt takes what is left of
# the budget. vLLM does that; we keep the two apart, so that each step has one shape. Below, with a budget of 64 and
# four readers: seven steps either way, but with mixed ones the readers get 28 tokens meanwhile, and no pause is longer
# than one step, about the blue line above.

# %%
ours = [(0, 64)] * 6 + [(0, 16), (5, 0), (5, 0)]
mixed = [(4, 60)] * 6 + [(4, 40), (5, 0), (5, 0)]
figures.budget_bars(64, {"our engine: prefill, then decode": ours, "mixed steps, as vLLM makes them": mixed})

# %% [markdown]
# ## When the blocks run out
#
# Answers grow. Sooner or later a running sequence needs a block, and none is free. Somebody must go. In this engine
# it is the **newest** of the running ones.
#
# {{source nanovllm/engine/scheduler.py:Scheduler.choose_victim}}
#
# Whoever goes loses its blocks and waits again, as the head of the queue. That is **preemption by recomputation**.

# %%
predict(
    "computed again",
    "Request 2 has a prompt of 4 tokens and has written 5 when it is preempted. How many tokens does it compute when "
    "it comes back, if nothing of it is cached?",
)

# %%
scheduler = make_scheduler(enable_prefix_caching=False)
add(scheduler, 2, 4, max_tokens=20)
for _ in range(5):
    step(scheduler)
(seq,) = scheduler.running
scheduler.preempt(seq)
scheduler.schedule()
reveal("computed again", seq.num_scheduled_tokens)

stories = ["Once upon a time there was a little cat", "Once upon a time there was a little dog"]
stories += ["The sun was warm", "One day, Tom and Mia went to the park"]
wish = SamplingParams(temperature=0, max_tokens=16)
TIGHT = {"num_kvcache_blocks": 12, "max_num_batched_tokens": 32}


def written(trace):
    return ", ".join(f"{seq['name']} {len(seq['output_ids'])}" for seq in trace["seqs"].values())


print("without preempt, four stories:", written(run_of(without("ch06.preempt"), stories, wish, **TIGHT)))

# %% [markdown]
# Prompt and answer so far are read as if they were one long prompt. Its reader notices a pause, and nothing else.
#
# The last line is an engine without `preempt`, with four stories of 16 tokens on a pool of twelve blocks. There a
# sequence that has to go loses its place and its blocks, and that is all. It is in no queue, and nobody will ever go on
# with it.

# %%
# {{exercise ch06.preempt}}

# %% [markdown]
# Now for the moment when somebody has to go. It comes in the middle of a decode step, for one sequence after the other,
# the oldest first.
#
# {{source nanovllm/engine/scheduler.py:Scheduler.schedule_decode}}
#
# Without `make_room`, whoever finds no block just waits until there is one: below first two of them, then all.
# Nobody gives up anything, so nothing will ever happen again.

# %%
stuck = run_of(without("ch06.make_room"), stories, wish, max_steps=40, **TIGHT)
print("tokens of the stories:", written(stuck))
print("steps in which somebody got on:", len(stuck["steps"]) - 1, "of 40")
Timeline(stuck)

# %%
# {{exercise ch06.make_room}}

# %% [markdown]
# ### Plug in
#
# The same four stories on your engine. The two pictures share one cursor: move one, and the other follows.

# %%
me = mine(enable_prefix_caching=True)
print(me.whose("ch06.preempt", "ch06.make_room"))
tight = run_of(me, stories, wish, **TIGHT)

timeline, table = Timeline(tight), BlockTable(tight)
table.follow(timeline)
timeline.step = timeline.bookmarks.get("preemption", 0)
display(timeline, table)

roomy = run_of(me, stories, wish, **(TIGHT | {"num_kvcache_blocks": 64}))

for name, trace in [("12 blocks", tight), ("64 blocks", roomy)]:
    run = totals(trace)
    print(f"{name}: {run['steps']} steps, {run['preemptions']} preemptions, {run['recomputed']} tokens computed again")
same = [[seq["output_ids"] for seq in trace["seqs"].values()] for trace in (tight, roomy)]
print("the same text:", same[0] == same[1])

# %% [markdown]
# The same text, whoever had to step aside. Less memory costs time, not answers.
#
# Could less be computed twice? The scheduler could look ahead, and let nobody in for whom there will be no room later.
# That is a **lever**, a file of its own around the plain scheduler; chapter 17 shows what it gives and what it costs.
#
# ## Who should go?
#
# The newest goes: that is our rule, and only one of many. Preempting the **longest** frees the most blocks at once, so
# that fewer have to go.
#
# ### Predict
#
# The work is mixed: a third are long texts that want a short answer, the others short questions that want a long one.

# %%
predict(
    "longest",
    "The longest goes, not the newest. Fewer are preempted. How many tokens are computed again?",
    choices=["fewer than before", "more than before"],
)


# %%
class LongestGoes(Scheduler):
    def choose_victim(self, seq):
        return max(self.running, key=len)


def again(engine, scheduler_class=None):
    """Tokens that are computed again in nine runs of the mixed work."""
    make = scheduler_class or engine.engine.scheduler.Scheduler
    return mixed_work.tokens_computed_again(
        lambda **options: make(engine.config.Config("qwen3-tiny", device="cpu", **options)),
        engine.engine.sequence.Sequence,
        engine.SamplingParams,
    )


counts = {"the newest goes": again(nanovllm), "the longest goes": again(nanovllm, LongestGoes)}
for name, count in counts.items():
    print(f"{name}: {count:,} tokens computed again")
reveal("longest", "fewer than before" if counts["the longest goes"] < counts["the newest goes"] else "more than before")

# %% [markdown]
# Each of them costs more, and whoever is nearly done is thrown out. There are better rules than either. This exercise
# is open: any rule counts that keeps the promises, lets everybody finish, and has at most 2,700 tokens computed again,
# which is less than with the newest or the shortest. How long an answer will get, nobody knows; whatever else a
# sequence says of itself, you may use. Below 2,600 it is a good rule.

# %%
# {{exercise ch06.choose_victim}}

# %%
me = mine("ch06.choose_victim")
print(me.whose("ch06.choose_victim"))
counts["your engine"] = again(me)
figures.tokens_again(counts, mixed_work.BAR)

# %% [markdown]
# ## Who should come in?
#
# The other end of the queue is a decision, too. `CachedFirst` lets those in first whose beginning is in the cache at
# that moment; a prompt that is cut stays where it is. Thirty requests of 40 tokens begin in five different ways, in
# turns, each with 32 tokens that six of them share, and the pool cannot keep all five. First come, first served, all
# prompts are computed whole, 1,200 tokens, and request 4, the fifth, waits 13 steps.


# %%
class CachedFirst(Scheduler):
    def rank(self, seq):
        return -len(self.block_manager.find_cached_blocks(seq))

    def schedule(self):
        if self.waiting and not self.waiting[0].block_table:
            self.waiting = deque(sorted(self.waiting, key=self.rank))
        return super().schedule()


predict("cached first", "Those whose beginning is cached come in first. How many of the 1,200 tokens are computed now?")
predict("request 4", "How long does request 4 wait now?", choices=["not as long", "about as long", "far longer"])

# %%
families = [[1000 * family + i for i in range(32)] for family in range(1, 6)]
thirty = [families[i % 5] + [20_000 + 10 * i + j for j in range(8)] for i in range(30)]
config = Config("qwen3-tiny", **(SMALL | {"num_kvcache_blocks": 32, "max_num_seqs": 2}))
six_tokens = SamplingParams(max_tokens=6, ignore_eos=True)
traces = [record_scheduler(make(config), config, thirty, six_tokens) for make in (Scheduler, CachedFirst)]


def waited(trace, i):
    """Steps until request i came in."""
    return next(s["i"] for s in trace["steps"] for e in s["events"] if (e["event"], e["seq"]) == ("admit", i))


before, now = (waited(trace, 4) for trace in traces)
reveal("cached first", totals(traces[1])["computed"])
reveal("request 4", "far longer" if now > 2 * before else "about as long" if now > 0.8 * before else "not as long")
print(f"request 4 waited {before} steps, first come, first served; with cached first it waits {now}")

# %% [markdown]
# A third of the work, and request 4 pays for it: nobody like it was in the cache. SGLang can schedule this way, by
# the longest prefix match, `lpm` (Zheng et al., *SGLang*, 2024, section 3).
#
# ## Your engine, faster
#
# The functions of this chapter let your engine serve many requests at once, as soon as all five are yours. Each step of
# the model then reads its weights for all of them.

# %%
print(mine().whose("ch06"))
staircase("06")

# %% [markdown]
# ## Change it
#
# * Give the twelve requests of the beginning eight seats: `run_with(Scheduler, 8)`, `seats(trace, 8)`, and the same for
#   `StaticScheduler`. How many are empty now, in each of the two ways?
# * `run_of(mine(), stories, wish, disabled_optimizations=[], **TIGHT)`: the engine looks ahead. What happens to the
#   preemptions, and to the number of steps?
# * Requests with `seq_id >= 20` are urgent. Give `CachedFirst` another `rank` that lets them in first, and a
#   `choose_victim` that names one of them only if nobody else runs. Who pays? What if urgent ones never stop coming?
# * Put a `choose_victim` that names the oldest in the place of `LongestGoes`: `again(nanovllm, OldestGoes)`. It comes
#   to an end only if everybody finishes. Does it, and why?

# %% [markdown]
# ## Recap
#
# 1. Continuous batching decides before every step: whoever is done leaves at once, and the next comes in.
# 2. Prefill goes first, else everybody decodes. The token budget bounds a step, and any prompt can be cut by it.
# 3. A request stays out for one of three reasons, all about this moment: the budget, the seats, or the blocks.
# 4. When blocks run out, somebody goes to the head of the queue. Its tokens are kept; its keys and values are computed
#    again.
# 5. Who goes and who comes in are policies. Each gain is paid by somebody: count both.

# %% [markdown]
# ## Explain it aloud
#
# * Why does a cut prompt hold all its blocks, though it has filled only some of them? What could go wrong otherwise?
# * The newest is preempted, and goes to the head of the queue. Why is that fair to those who wait behind it?
# * Two sequences need a block in the same step, and none is free. Why can they not throw each other out forever?
# * Static batching has an advantage, too. Which? (Look for dashed boxes in its picture.)
#
# <details><summary>Answers of three grades (open them when you have given yours)</summary>
#
# **Why does a cut prompt hold all its blocks?**
#
# * *weak*: It needs them later anyway.
# * *good*: Otherwise others could take the rest meanwhile, and it would be stuck in the middle of its prompt.
# * *excellent*: And two that are stuck, each with half of the pool, would wait for each other: only those that run can
#   be preempted. So the room for all of a prompt is taken at once, or not at all.
#
# **Why can two sequences not throw each other out forever?**
#
# * *weak*: The engine prevents that.
# * *good*: The newest goes, also if it is the one that asks. So the older one keeps its blocks.
# * *excellent*: One is always the last that would go: the oldest. It gets on in each decode step and ends, for it fits
#   into the pool alone, or rule 4 ends it. Then the next is the oldest. Any rule that spares somebody until it is done
#   can be argued for like this; for "the one that asks never goes" it takes another argument.
#
# </details>

# %% [markdown]
# ## Read further
#
# * Iteration-level scheduling: Yu et al., *Orca*, OSDI 2022, section 3.
# * Preemption, by recomputation or by swapping: Kwon et al., *PagedAttention*, SOSP 2023, section 4.5.
# * Mixed steps: Agrawal et al., *Sarathi-Serve*, OSDI 2024, section 4.
# * Admission by the expected peak: Gong et al., *Past-Future Scheduler*, ASPLOS 2025.
# * In vLLM: `vllm/v1/core/sched/scheduler.py`, method `Scheduler.schedule`. It has no phases: every request has
#   computed some of its tokens and lacks others, and the budget is shared out among all.
#
# Next, we put the pieces together: one step, many steps, and an engine that answers.
