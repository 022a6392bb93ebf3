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
# * run out of memory on purpose, and lose nothing but time.
#
# Plan an hour. Everything runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# Requests are `Sequence`s, and the block manager hands out blocks. Nobody decides yet who gets them, and when.
# That is the scheduler's work: before every step it chooses the sequences that take part.
#
# This is the map of your engine. What you have not written is ours, so that it always runs.

# %%
# %load_ext exercises
mine()

# %%
import logging
import random
from collections import Counter, deque

import matplotlib.pyplot as plt

from nanovllm import LLM, SamplingParams
from nanovllm.config import Config
from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.viz import BlockTable, Timeline
from nanovllm.viz.record import record, record_scheduler
from nanovllm.viz.timeline import totals

# White behind every picture, so that it stays legible in a dark theme.
plt.rcParams.update(dict.fromkeys(["figure.facecolor", "axes.facecolor", "savefig.facecolor"], "white"))
plt.rcParams.update({"figure.figsize": (8, 3), "figure.dpi": 110, "axes.ymargin": 0.12})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, GRAY = "#56B4E9", "#E69F00", "#009E73", "#BBBBBB"

# Blocks of four tokens, so that a picture has room for all of them. A real engine has 16 to 256. And the plain engine,
# without the faster paths of chapter 17.
SMALL = {"kvcache_block_size": 4, "num_kvcache_blocks": 80, "max_model_len": 256, "device": "cpu"}
SMALL["disabled_optimizations"] = "all"
logging.disable(logging.WARNING)  # the engine warns of very small pools; here they are wanted

# %% [markdown]
# ## Why: the empty seats
#
# Four sequences can run at once (`max_num_seqs=4`): there are four seats. Twelve requests want answers of very
# different lengths. The plain way is **static batching**: fill the seats, wait until all four sequences are done, and
# fill them again.
#
# Our engine does not work that way. To see what it would cost we build it. `schedule_prefill` is what lets requests
# in; below, it lets nobody in while anybody runs.


# %%
class StaticScheduler(Scheduler):
    """Fills all seats, then closes the door until the last one is empty."""

    def schedule_prefill(self):
        return [] if self.running else super().schedule_prefill()


beginnings = ["Once upon a time", "One day, a small fox", "There was an old boat", "Tom had a new ball"]
lengths = [4, 24, 6, 9, 22, 3, 12, 5, 18, 4, 7, 10]
prompts = [beginnings[i % 4] for i in range(12)]
params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]


def run_with(scheduler_class):
    with LLM("qwen3-tiny", max_num_seqs=4, **SMALL) as llm:
        llm.llm_engine.scheduler = scheduler_class(llm.config)
        return record(llm, prompts, params)


static = run_with(StaticScheduler)

# %% [markdown]
# ### Predict
#
# In each decode step every seat could give one token. Which share of the seats stayed empty?

# %%
my_guess = 10  # percent; change me


def seats(trace):
    """Seats in all decode steps, and how many of them were empty."""
    taken = [len(step["scheduled"]) for step in trace["steps"] if step["kind"] == "decode"]
    return 4 * len(taken), 4 * len(taken) - sum(taken)


total, empty = seats(static)
print(f"You expect {my_guess} %. Static batching: {empty} of {total} seats were empty, {100 * empty / total:.0f} %.")

# %% [markdown]
# More than half. An empty seat is not free: the weights are read from memory for every step, whether one
# sequence uses them or four.
#
# **Continuous batching** (Orca, 2022) decides again before *every* step. A seat that becomes free is taken by the
# next in the queue. Here are both, as pictures of real runs. A lane is a request, and time goes from left to right.

# %%
continuous = run_with(Scheduler)
total, empty = seats(continuous)
print(f"continuous batching: {empty} of {total} seats were empty, {100 * empty / total:.0f} %")
Timeline(continuous, compare={"static": static}, name="continuous")

# %% [markdown]
# Look at the upper run again. Where a request comes in, a number stands in its lane: its prompt is read. In the same
# step the others have a dashed box: they are running, but this step does nothing for them. That is the rule of this
# engine: **a step is either a prefill or a decode**, and a prefill goes first.
#
# ## Two queues
#
# A scheduler has two queues, and every live request is in exactly one of them.

# %%
figure, axis = plt.subplots(figsize=(8, 2))
for x, name, color in [(0.2, "waiting", GRAY), (3.6, "running", BLUE), (6.9, "finished", GREEN)]:
    axis.add_patch(plt.Rectangle((x, 0.5), 1.6, 0.8, facecolor=color, edgecolor="black"))
    axis.text(x + 0.8, 0.9, name, ha="center", va="center", fontsize=12, color="black")
moves = [((-0.6, 0.9), (0.2, 0.9), "add", (-0.5, 1.0)), ((1.8, 1.1), (3.6, 1.1), "schedule_prefill", (1.95, 1.2))]
moves += [((3.6, 0.7), (1.8, 0.7), "preempt", (2.25, 0.48)), ((5.2, 0.9), (6.9, 0.9), "postprocess", (5.4, 1.0))]
for start, end, name, place in moves:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "black"})
    axis.text(*place, name, fontsize=9, color="black")
axis.set(xlim=(-0.7, 8.6), ylim=(0.2, 1.6), title="the life of a request, and what moves it")
axis.axis("off")
plt.show()

# %% [markdown]
# A step of the engine asks the scheduler twice: `schedule` before the model runs, `postprocess` after it. This is
# the first of the two. You will write what it calls.
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

# %% [markdown]
# Request 0 leaves, and request 2 comes in with the very next step. Leaving at once is half of continuous
# batching. It is where we begin.
#
# ## Leaving
#
# After each step the new token of a sequence decides: is the answer over? There are four rules, and their order
# matters. The exercise lists them. The last one is for a rare end: a sequence that needs more blocks than the whole
# pool has can never go on, whoever steps aside for it.
#
# ### Predict
#
# A request asks for `max_tokens=3`. Its third token is the model's end token. What should its reader be told, "stop"
# or "length"? Which of the two would mislead?

# %%
# {{exercise ch06.finish_reason}}

# %%
# Plugged in: your rules in a whole engine. The same question three times, with three ways to end.
ends = {
    "as the model likes": SamplingParams(temperature=0, max_tokens=60),
    "at most 5 tokens": SamplingParams(temperature=0, max_tokens=5),
    "end tokens ignored": SamplingParams(temperature=0, max_tokens=60, ignore_eos=True),
}
with mine().LLM("qwen3-tiny", **SMALL) as llm:
    question = [{"role": "user", "content": "What is 12 + 7?"}]
    for name, wish in ends.items():
        (answer,) = llm.chat(question, wish, use_tqdm=False)
        print(f"{name:19} {len(answer['token_ids']):3} tokens, {answer['finish_reason']:6}  {answer['text'][:44]!r}")

# %% [markdown]
# ### What a step leaves behind
#
# `finish_reason` is one question. `postprocess` does everything that comes after the model: it writes down what
# is stored now, takes in the new tokens, and ends what is over. Three numbers of a sequence matter, all known from
# chapter 4: `num_cached_tokens`, `num_scheduled_tokens` and `num_tokens`.
#
# ### Predict
#
# Without looking back at chapter 4: a prompt of ten tokens has been computed in one step, and a token was sampled.
# What is `num_cached_tokens` now?

# %%
my_guess = 11  # change me

scheduler = make_scheduler()
add(scheduler, 0, 10)
step(scheduler)
seq = scheduler.running[0]
print(f"You expect {my_guess}. It is {seq.num_cached_tokens}, and num_tokens is {seq.num_tokens}.")

# %% [markdown]
# The new token has not been through the model; its keys and values are computed in the next step. Between two steps,
# a running sequence is always one token ahead of its cache.

# %%
# {{exercise ch06.postprocess}}

# %% [markdown]
# ### Plug in
#
# Three answers of different lengths, and the number of free blocks after every step. The moment an answer is over, its
# blocks are free: the line jumps up. `my_run` runs your engine and records what it does, up to the first error
# or the 200th step.


# %%
def my_run(prompts, params, arrive=None, **options):
    """A trace of your engine."""
    with mine().LLM("qwen3-tiny", **(SMALL | options)) as llm:
        return record(llm, prompts, params, arrive, max_steps=200, keep_error=True)


openings = ["Once upon a time, there was a little girl named Mia. She had a red kite."]
openings += [
    "One day, Tom and Mia went to the park. The sun was warm.",
    "A small frog sat in the pond and was very sad.",
]
wishes = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (6, 24, 15)]
trace = my_run(openings, wishes, num_kvcache_blocks=40)
free = [len(moment["after"]["free"]) for moment in trace["steps"]]
figure, axis = plt.subplots()
axis.step(range(len(free)), free, where="post", color=GREEN, linewidth=2)
for i, moment in enumerate(trace["steps"]):
    for event in moment["events"]:
        if event["event"] == "finish":
            axis.annotate(f"{event['seq']} ends", (i, free[i]), xytext=(2, 4), textcoords="offset points")
axis.set(xlabel="step", ylabel="free blocks", title="free blocks of 40", ylim=(0, 46), xlim=(0, len(free) + 1))
plt.show()

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
# There are three reasons to stay out. Below is one scene for each, and two without any: request 0 has a prompt of ten
# tokens and runs, and request 1, with six, wants to come in.

# %%
scenes = {
    "nothing is left of the budget": ({}, 0),
    "one seat, and it is taken": ({"max_num_seqs": 1}, 64),
    "four blocks, three are taken": ({"num_kvcache_blocks": 4}, 64),
    "room now, but both will grow": ({"num_kvcache_blocks": 8}, 64),
    "plenty of everything": ({}, 64),
}
for name, (options, budget) in scenes.items():
    scheduler = make_scheduler(**options)
    for name_, num_tokens in enumerate([10, 6]):
        add(scheduler, name_, num_tokens, max_tokens=20, ignore_eos=True)
        if name_ == 0:
            scheduler.postprocess(scheduler.schedule()[0], [7])
    print(f"{name:30} {scheduler.refusal(scheduler.waiting[0], budget)}")

# %% [markdown]
# In the fourth scene nothing is in the way now, yet the pool cannot hold both to their end. More later.
#
# ### The token budget
#
# `max_num_batched_tokens` bounds the tokens of one step, and so its time and its memory. What if a prompt is
# longer? It is **cut**: the step computes a first chunk, and the next step goes on. That is *chunked prefill*. Any
# prompt can be cut, wherever the budget ends.
#
# While it is cut it stays at the head of the queue. All its blocks are its own already. No token is sampled for
# it: half of a question has no answer.
#
# ### Predict
#
# The prompts below have 30, 9 and 12 tokens, and a step computes at most 16. How many steps until all are read?

# %%
my_guess = 6  # change me

chunked = make_scheduler(max_num_batched_tokens=16)
for name, num_tokens in enumerate([30, 9, 12]):
    add(chunked, name, num_tokens)
steps = 0
while chunked.waiting:
    step(chunked)
    steps += 1
print(f"You expect {my_guess} steps. It took {steps}.")

# %% [markdown]
# Every step but the last is full, to the last token. Where one prompt ends, the next begins, in the same step. And
# no decode comes in between: request 0 is complete after the second step, and has to wait for the others.

# %%
# {{exercise ch06.schedule_prefill}}

# %% [markdown]
# ### Plug in
#
# A real run: your engine, a budget of 16, and prompts of different lengths. Two of them begin with
# the same words. A `+` in a lane counts tokens that came from the prefix cache and cost nothing.

# %%
texts = ["One day, Tom and Mia went to the park. The sun was warm and the birds were singing in the trees."]
texts += ["Once upon a time there was a little cat", "Once upon a time there was a little dog"]
texts += ["Tom had a ball", "The rain fell all night.", "A frog sat in the pond"]
wish = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
trace = my_run(texts, wish, arrive=[0, 0, 0, 1, 1, 1], max_num_batched_tokens=16)

prompt_lengths = [len(seq["prompt_ids"]) for seq in trace["seqs"].values()]
prefills = [sum(part["n"] for part in moment["scheduled"]) for moment in trace["steps"] if moment["kind"] == "prefill"]
print(f"prompts of {prompt_lengths} tokens; the prefill steps computed {prefills}")
print(f"{len(prefills)} steps; each prompt alone would have taken {sum(-(-n // 16) for n in prompt_lengths)}")
Timeline(trace)

# %% [markdown]
# ### What the budget does to others
#
# Four answers are being written when a prompt of 400 tokens arrives. How long do their readers see nothing? We try
# several budgets, and take the time on this computer, just now.


# %%
def pause_and_longest_step(budget):
    """Milliseconds: the longest gap between two tokens of request 0, and the longest step."""
    options = SMALL | {"num_kvcache_blocks": 300, "max_model_len": 512, "max_num_batched_tokens": budget}
    work = [[7 + i, 8, 9] for i in range(4)] + [list(range(100, 500))]
    with LLM("qwen3-tiny", **options) as llm:
        trace = record(llm, work, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True), [0, 0, 0, 0, 6])
    gaps = [0.0]
    for moment in trace["steps"][2:]:
        gaps[-1] += moment["ms"]
        if any(part["seq"] == 0 for part in moment["scheduled"]):
            gaps.append(0.0)
    return max(gaps), max(moment["ms"] for moment in trace["steps"][2:])


budgets = [32, 64, 128, 256, 512]
# The better of two runs: something else may keep the computer busy during one of them.
pairs = [zip(pause_and_longest_step(budget), pause_and_longest_step(budget), strict=True) for budget in budgets]
pauses, longest_steps = zip(*[map(min, pair) for pair in pairs], strict=True)

# %%
figure, axis = plt.subplots()
labels = [str(budget) for budget in budgets]
axis.plot(labels, pauses, color=ORANGE, marker="o", label="longest pause of a reader")
axis.plot(labels, longest_steps, color=BLUE, marker="s", label="longest step")
axis.set(xlabel="max_num_batched_tokens", ylabel="milliseconds", ylim=0)
axis.set_title("while a prompt of 400 tokens is read, measured on this run")
axis.legend(frameon=False)
plt.show()

# %% [markdown]
# A small budget makes every step short. It does not make the pause short: decode waits for *all* chunks, and many
# small steps cost more than one large one. The pause is also how long the newcomer waits for its first token.
# Prefill first is kind to newcomers, and unkind to readers.
#
# What would help is a **mixed step**: the running sequences decode, and a chunk of the prompt takes what is left of
# the budget. With a budget of 64 and four readers it takes seven steps either way, but the readers get 28 tokens
# meanwhile, not none, and no pause is longer than one step, about the blue line. vLLM does that. We keep the two
# apart, so that each step has one shape.

# %% [markdown]
# ## When the blocks run out
#
# Answers grow. Sooner or later a running sequence needs a block, and none is free. Somebody must go. In this engine
# it is the **newest** of the running ones.
#
# {{source nanovllm/engine/scheduler.py:Scheduler.choose_victim}}
#
# Whoever goes loses its blocks and waits again, as the head of the queue. Its tokens are kept: when it comes back,
# prompt and answer so far are read as if they were one long prompt. That is **preemption by recomputation**.
#
# ### Predict
#
# Request 2 has a prompt of 4 tokens and has written 5 when it is preempted. How many tokens does it compute when
# it comes back, if nothing of it is cached? What does its reader notice? Write it down; the cell after the exercise
# asks for it.

# %%
# {{exercise ch06.preempt}}

# %%
my_guess = 4  # change me

scheduler = make_scheduler(enable_prefix_caching=False)
add(scheduler, 2, 4, max_tokens=20)
for _ in range(5):
    step(scheduler)
scheduler.preempt(scheduler.running[0])
print(f"\npreempted; you expect that it computes {my_guess} tokens\n")
step(scheduler)

# %% [markdown]
# Its reader notices a pause, and nothing else. Now for the moment when somebody has to go. It comes in the middle of a
# decode step, for one sequence after the other, the oldest first.
#
# {{source nanovllm/engine/scheduler.py:Scheduler.schedule_decode}}

# %%
# {{exercise ch06.make_room}}

# %% [markdown]
# ### Plug in
#
# Four stories on a pool of twelve blocks. The engine lets in whoever fits right now, and these answers grow. The two
# pictures share one cursor: move one, and the other follows.

# %%
stories = ["Once upon a time there was a little cat", "Once upon a time there was a little dog"]
stories += ["The sun was warm", "One day, Tom and Mia went to the park"]
wish = SamplingParams(temperature=0, max_tokens=16)
tight = my_run(stories, wish, num_kvcache_blocks=12, max_num_seqs=4, max_num_batched_tokens=32)

timeline, table = Timeline(tight), BlockTable(tight)
table.follow(timeline)
timeline.step = timeline.bookmarks.get("preemption", 0)
display(timeline, table)

# %%
roomy = my_run(stories, wish, num_kvcache_blocks=64, max_num_seqs=4, max_num_batched_tokens=32)

for name, trace in [("12 blocks", tight), ("64 blocks", roomy)]:
    run = totals(trace)
    print(f"{name}: {run['steps']} steps, {run['preemptions']} preemptions, {run['recomputed']} tokens computed again")
written = [[seq["output_ids"] for seq in trace["seqs"].values()] for trace in (tight, roomy)]
print("the same text:", written[0] == written[1])

# %% [markdown]
# The same text, whoever had to step aside. Less memory costs time, not answers.
#
# ## Looking ahead
#
# How much is computed twice, and could it be less? The scheduler could look ahead: estimate the most blocks that all
# will hold at any time, and let nobody in if that is more than the pool. That is one more reason to stay out,
# `no_headroom`. It is the first **lever** that you meet: a file of its own around the plain scheduler, on unless it is
# turned off (chapter 17).
#
# {{source nanovllm/levers/expected_length.py:SchedulerLever.refusal}}
#
# We give 24 requests to pools of several sizes: the real scheduler, with made-up tokens, once plain and once with the
# lever around it.


# %%
from nanovllm.levers.expected_length import SchedulerLever


def simulate(scheduler_class=Scheduler, seed=1, **options):
    """A trace of the real scheduler with 24 random prompts and answers of known lengths; no model."""
    rng = random.Random(seed)
    config = Config("qwen3-tiny", **(SMALL | {"max_num_batched_tokens": 128, "max_num_seqs": 16} | options))
    scheduler = scheduler_class(config)
    prompts = [[rng.randrange(1, 900) for _ in range(rng.randrange(8, 40))] for _ in range(24)]
    params = [SamplingParams(max_tokens=rng.randrange(8, 60), ignore_eos=True) for _ in prompts]
    return record_scheduler(scheduler, config, prompts, params, max_steps=5000)


pools = [32, 48, 64, 96, 128, 192]
figure, axes = plt.subplots(1, 2)
kinds = [(Scheduler, "what fits now", ORANGE, "o"), (SchedulerLever, "looks ahead", BLUE, "s")]
for scheduler_class, name, color, marker in kinds:
    runs = [totals(simulate(scheduler_class, num_kvcache_blocks=pool)) for pool in pools]
    for axis, key, title in zip(axes, ["recomputed", "steps"], ["tokens computed again", "steps"], strict=True):
        axis.plot([str(n) for n in pools], [run[key] for run in runs], color=color, marker=marker, label=name)
        axis.set(xlabel="blocks in the pool", title=title)
        axis.set_ylim(0, max(1.08 * runs[0][key], axis.get_ylim()[1]))
axes[0].legend(frameon=False)
plt.show()
print("tokens of all prompts:", sum(len(seq["prompt_ids"]) for seq in simulate()["seqs"].values()))

# %% [markdown]
# Without looking ahead, the small pools compute nearly as many tokens again as all prompts have. Looking ahead avoids
# almost all of it. It has a price: careful admission leaves some blocks empty, so there are more steps. With prompts as
# short as these that may not pay. A prompt of thousands of tokens that is read twice stops everybody twice.
#
# ## Other ways
#
# Three decisions could have been made differently. A subclass and the same work show what each would bring.
#
# **Preempt the longest instead of the newest?** It frees more blocks at once. Ten sets of requests, on pools of 40
# blocks:


# %%
class LongestGoes(Scheduler):
    def choose_victim(self, seq):
        return max(self.running, key=len)


for name, scheduler_class in [("newest", Scheduler), ("longest", LongestGoes)]:
    runs = [simulate(scheduler_class, seed=i, num_kvcache_blocks=40) for i in range(10)]
    sums = {key: sum(totals(run)[key] for run in runs) for key in ("preemptions", "recomputed", "steps")}
    victims = [Counter(e["seq"] for s in run["steps"] for e in s["events"] if e["event"] == "preempt") for run in runs]
    print(
        f"{name:8} {sums['preemptions']} preemptions, {sums['recomputed']} tokens again, {sums['steps']} steps",
        end="; ",
    )
    print(f"one request went {max(max(count.values()) for count in victims)} times")

# %% [markdown]
# Fewer preemptions, but each costs more, and they hit the same request again and again: whoever is nearly done is
# thrown out. The newest becomes the oldest in time, so everybody finishes.
#
# **Priorities?** The last four of the 24 requests are urgent. We sort `waiting` before each step, but leave a prompt
# that is cut where it is.


# %%
class UrgentFirst(Scheduler):
    def schedule(self):
        if self.waiting and not self.waiting[0].block_table:
            self.waiting = deque(sorted(self.waiting, key=lambda seq: seq.seq_id < 20))
        return super().schedule()


def steps_until_admitted(trace):
    """For each request: the step in which it came in first."""
    first = {}
    for moment in trace["steps"]:
        for event in moment["events"]:
            if event["event"] == "admit":
                first.setdefault(event["seq"], moment["i"])
    return [first[i] for i in sorted(first)]


for name, scheduler_class in [("first come, first served", Scheduler), ("urgent first", UrgentFirst)]:
    waits = steps_until_admitted(simulate(scheduler_class, num_kvcache_blocks=64, max_num_seqs=8))
    print(f"{name:26} urgent: {sum(waits[20:]) / 4:5.1f} steps until admitted; others: {sum(waits[:20]) / 20:5.1f}")

# %% [markdown]
# The others pay for what the urgent gain. If urgent requests never stop coming, the others wait forever. Priorities
# need an answer to that, such as a priority that grows with the time waited.
#
# **Cache-aware admission?** Let those in first whose prefix is still in the cache. Thirty requests with five
# different beginnings, in turns, on a pool that cannot keep all five:


# %%
class CachedFirst(Scheduler):
    def schedule(self):
        if self.waiting and not self.waiting[0].block_table:
            hits = {seq.seq_id: len(self.block_manager.find_cached_blocks(seq)) for seq in self.waiting}
            self.waiting = deque(sorted(self.waiting, key=lambda seq: -hits[seq.seq_id]))
        return super().schedule()


families = [[1000 * family + i for i in range(32)] for family in range(1, 6)]
prompts = [families[i % 5] + [20_000 + 10 * i + j for j in range(8)] for i in range(30)]
for name, scheduler_class in [("first come, first served", Scheduler), ("cached first", CachedFirst)]:
    config = Config("qwen3-tiny", **(SMALL | {"num_kvcache_blocks": 32, "max_num_seqs": 2}))
    trace = record_scheduler(scheduler_class(config), config, prompts, SamplingParams(max_tokens=6, ignore_eos=True))
    waits = steps_until_admitted(trace)
    print(f"{name:26} {totals(trace)['computed']:5} tokens computed; request 4 waited {waits[4]} steps")

# %% [markdown]
# A third of the work, and request 4 pays for it. It came fifth, but nobody like it was in the cache. SGLang
# can schedule this way: longest prefix match, `lpm` (Zheng et al., *SGLang*, 2024, section 3).
#
# ## Change it
#
# * Give the twelve requests of the beginning eight seats (`max_num_seqs=8`; `seats` counts with four). How many are
#   empty now, in each of the two ways?
# * Run the four stories with `disabled_optimizations=[]`: then the engine looks ahead. What happens to the preemptions,
#   and to the number of steps?
# * Let `UrgentFirst` protect, too: give it a `choose_victim` that never names an urgent request while another runs.
# * Give a scheduler a `choose_victim` that names the oldest, and put it in the place of `LongestGoes`. Does everybody
#   still finish?

# %% [markdown]
# ## Recap
#
# 1. Continuous batching decides before every step: whoever is done leaves at once, and the next comes in.
# 2. Prefill goes first, else everybody decodes. The token budget bounds a step, and any prompt can be cut by it.
# 3. A request stays out for one of three reasons: the budget, the seats, or the blocks.
# 4. When blocks run out, the newest goes to the head of the queue. Its tokens are kept; its keys and values are
#    computed again.
# 5. Looking ahead at admission is a lever: a fourth reason, room that others will need. It costs some steps and saves
#    most of the recomputation.

# %% [markdown]
# ## Explain it aloud
#
# * Why does a cut prompt hold all its blocks, though it has filled only some of them? What could go wrong otherwise?
# * The newest is preempted, and goes to the head of the queue. Why is that fair to those who wait behind it?
# * Two sequences need a block in the same step, and none is free. Why can they not throw each other out forever?
# * Static batching has an advantage, too. Which? (Look for dashed boxes in its picture.)

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
