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
# This is the map of your engine. What you have not written is ours, so it runs whatever is done.

# %%
# %load_ext exercises
mine()

# %%
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
BLUE, ORANGE, GREEN, PINK, GRAY = "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#BBBBBB"

# Blocks of four tokens, so that a picture has room for all of them. A real engine has 16 to 256.
SMALL = {"kvcache_block_size": 4, "num_kvcache_blocks": 80, "max_model_len": 256, "device": "cpu"}

# %% [markdown]
# ## Why: the empty seats
#
# Four sequences can run at once, and twelve requests want answers of very different lengths. The plain way is
# **static batching**: fill the four seats, wait until all four are done, and fill them again.
#
# Our engine does not work that way. To see what it would cost we make it: this scheduler lets nobody in while
# anybody runs.


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
        llm.scheduler = scheduler_class(llm.config)
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
# **Continuous batching** (Orca, 2022) decides again before *every* step. A seat that gets free is taken by the
# next in the queue. Here are both, as pictures of real runs. A lane is a request, time goes from left to right.

# %%
continuous = run_with(Scheduler)
Timeline(continuous, compare={"static": static}, name="continuous")

# %%
total, empty = seats(continuous)
print(f"continuous batching: {empty} of {total} seats were empty, {100 * empty / total:.0f} %")
print(f"steps: {len(static['steps']) - 1} static, {len(continuous['steps']) - 1} continuous")

# %% [markdown]
# Look at the continuous run again. Where a request comes in, a number stands in its lane: its prompt is read. In
# the same step the others have a dashed box. They run, but not in this step.
#
# That is the rule of this engine: **a step is either a prefill or a decode**, and a prefill goes first.

# %% [markdown]
# ## Two queues
#
# A scheduler has two queues, and every live request is in exactly one of them.

# %%
figure, axis = plt.subplots(figsize=(8, 2))
for x, name, color in [(0.2, "waiting", GRAY), (3.2, "running", BLUE), (6.4, "finished", GREEN)]:
    axis.add_patch(plt.Rectangle((x, 0.5), 1.6, 0.8, facecolor=color, edgecolor="black"))
    axis.text(x + 0.8, 0.9, name, ha="center", va="center", fontsize=12, color="black")
moves = [((-0.6, 0.9), (0.2, 0.9), "add", (-0.55, 1.05)), ((1.8, 1.1), (3.2, 1.1), "schedule_prefill", (1.87, 1.2))]
moves += [((3.2, 0.7), (1.8, 0.7), "preempt", (2.15, 0.45)), ((4.8, 0.9), (6.4, 0.9), "postprocess", (4.95, 1.05))]
for start, end, name, place in moves:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "black"})
    axis.text(*place, name, fontsize=9, color="black")
axis.set(xlim=(-0.7, 8.1), ylim=(0.2, 1.6), title="the life of a request, and who moves it")
axis.axis("off")
plt.show()

# %% [markdown]
# A step of the engine asks the scheduler twice: `schedule` before the model runs, `postprocess` after it. This is
# the first of the two. You will write what it calls.

# %%
# {{source nanovllm/engine/scheduler.py:Scheduler.schedule}}

# %% [markdown]
# The scheduler never sees the model. It works with lengths and block numbers alone, so we can drive it by hand and
# make up the tokens. `step` below is all that an engine does, but for the model.


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
    scheduler.postprocess(seqs, [None if seq.is_cut else token_id for seq in seqs], is_prefill)
    queues = [[seq.seq_id for seq in queue] for queue in (scheduler.waiting, scheduler.running)]
    print(f"{'prefill' if is_prefill else 'decode':7}  {work:38}  waiting {queues[0]}, running {queues[1]}")


scheduler = make_scheduler(max_num_seqs=2)
for name, num_tokens in enumerate([5, 9, 3]):
    add(scheduler, name, num_tokens, max_tokens=3 if name == 0 else 5)
while not scheduler.is_finished():
    step(scheduler)

# %% [markdown]
# Request 0 leaves, and request 2 comes in with the very next step. Leaving at once is half of continuous batching.
# It is where we begin.

# %% [markdown]
# ## Leaving
#
# After each step the new token of a sequence decides: is the answer over? Three rules, in this order, as in vLLM.
#
# ### Predict
#
# A request asks for `max_tokens=3`. Its third token is the model's end token. Which reason does its reader get to see, "stop"
# or "length"? And which would be misleading?

# %%
# {{exercise ch06.finish_reason}}

# %% [markdown]
# Your rules at work, in a whole engine: the same question three times, with three ways to end.

# %%
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
# is stored now, takes in the new tokens, and ends what is over.
#
# Three numbers of a sequence matter. `num_cached_tokens` have their keys and values in the cache.
# `num_scheduled_tokens` are being computed in this step. `num_tokens` is everything there is.
#
# ### Predict
#
# A prompt of ten tokens has been computed in one step, and a token was sampled. Is `num_cached_tokens` ten or eleven?

# %%
my_guess = 11  # change me

scheduler = make_scheduler()
add(scheduler, 0, 10)
step(scheduler)
seq = scheduler.running[0]
print(f"You expect {my_guess}. It is {seq.num_cached_tokens}, and num_tokens is {seq.num_tokens}.")

# %% [markdown]
# The new token has not been through the model. Its keys and values come into being in the next step. A running
# sequence is always one ahead of its cache.

# %%
# {{exercise ch06.postprocess}}

# %% [markdown]
# Plugged in: the engine below uses your functions. We count the free blocks after every step, while four answers
# of different lengths come to their ends. The moment one is over, its blocks are free.


# %%
def my_run(prompts, params, arrive=None, expects=None, **options):
    """A trace of your engine at work. If a step raises, or there is no end, it is drawn up to there.

    `expects` makes the engine believe that all answers so far had so many tokens.
    """
    with mine().LLM("qwen3-tiny", **(SMALL | options)) as llm:
        if expects:
            llm.scheduler.sorted_lengths = [expects] * 100
        return record(llm, prompts, params, arrive, max_steps=200, keep_error=True)


wishes = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (4, 16, 9, 25)]
trace = my_run(beginnings, wishes, num_kvcache_blocks=40)
free = [len(step["after"]["free"]) for step in trace["steps"]]
figure, axis = plt.subplots()
axis.step(range(len(free)), free, where="post", color=GREEN, linewidth=2)
for i, step_ in enumerate(trace["steps"]):
    for event in step_["events"]:
        if event["event"] == "finish":
            axis.annotate(
                f"{event['seq']} ends", (i, free[i]), xytext=(-6, 6), textcoords="offset points", color="black"
            )
axis.set(xlabel="step", ylabel="free blocks", title="free blocks of 40", ylim=(0, 46))
plt.show()

# %% [markdown]
# ## Coming in
#
# The other half: who may come in? `schedule_prefill` looks at the head of the queue, again and again, until
# somebody may not join. Here is how it is decided. This code is given.

# %%
# {{source nanovllm/engine/scheduler.py:Scheduler.may_join}}

# %%
# {{source nanovllm/engine/scheduler.py:Scheduler.refusal}}

# %% [markdown]
# Four reasons to stay out. Here is one scene for each: request 0 runs with a prompt of ten tokens, and request 1
# with six wants to come in.

# %%
scenes = {
    "nothing is left of the budget": ({}, 0),
    "one seat, and it is taken": ({"max_num_seqs": 1}, 64),
    "four blocks, three are taken": ({"num_kvcache_blocks": 4}, 64),
    "room now, but request 0 will grow": ({"num_kvcache_blocks": 8}, 64),
    "plenty of everything": ({}, 64),
}
for name, (options, budget) in scenes.items():
    scheduler = make_scheduler(**options)
    add(scheduler, 0, 10, max_tokens=20, ignore_eos=True)
    scheduler.postprocess(scheduler.schedule()[0], [7], is_prefill=True)
    add(scheduler, 1, 6, max_tokens=4, ignore_eos=True)
    print(f"{name:34} {scheduler.refusal(scheduler.waiting[0], budget)}")

# %% [markdown]
# (A warning that the pool is smaller than `max_model_len` is right: we want it small.)
#
# The fourth reason is the subtle one: there is room, and still the answer is no. We come back to it.

# %% [markdown]
# ### The token budget
#
# `max_num_batched_tokens` bounds the tokens of one step, and so its time and its memory. What if a prompt is
# longer? It is **cut**: the step computes a first chunk, and the next step goes on. That is *chunked prefill*. Any
# prompt can be cut, wherever the budget ends.
#
# While it is cut it stays at the head of the queue. All its blocks are its own already. No token is sampled for
# it, because nobody knows how to go on from half a question.
#
# ### Predict
#
# The prompts below have 30, 9 and 12 tokens, and a step computes at most 16. How many steps until all are read?

# %%
my_guess = 4  # change me

chunked = make_scheduler(max_num_batched_tokens=16)
for name, num_tokens in enumerate([30, 9, 12]):
    add(chunked, name, num_tokens)
steps = 0
while chunked.waiting:
    step(chunked)
    steps += 1
print(f"You expect {my_guess} steps. It took {steps}.")

# %% [markdown]
# Every step but the last is full to the last token. No budget is wasted at the end of a prompt: the next one begins
# in the same step. And no decode comes in between: request 0 is running after the second step, and waits for
# the others.

# %%
# {{exercise ch06.schedule_prefill}}

# %% [markdown]
# Plugged in, on a real run: your engine, a budget of 16, and prompts of different lengths. Two of them begin with
# the same words. Where a prefill shows `+`, tokens came from the prefix cache and cost nothing.

# %%
texts = [
    "One day, Tom and Mia went to the park. The sun was warm and the birds were singing in the trees.",
    "Once upon a time there was a little cat",
    "Once upon a time there was a little dog",
    "Tom had a ball",
]
wish = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
trace = my_run(texts, wish, arrive=[0, 0, 1, 4], max_num_batched_tokens=16, max_num_seqs=3)
Timeline(trace)

# %%
prompt_lengths = [len(seq["prompt_ids"]) for seq in trace["seqs"].values()]
prefills = [sum(part["n"] for part in step_["scheduled"]) for step_ in trace["steps"] if step_["kind"] == "prefill"]
alone = sum(-(-n // 16) for n in prompt_lengths)
print(f"prompts of {prompt_lengths} tokens; the prefill steps computed {prefills}")
print(f"{len(prefills)} steps; each prompt in steps of its own would have taken {alone}")

# %% [markdown]
# ### What the budget does to others
#
# Four answers are being written when a prompt of 400 tokens arrives. How long do their readers see nothing? We try
# several budgets, and take the time on this computer, just now.


# %%
def pause_and_longest_step(budget):
    """Milliseconds: the longest gap between two tokens of request 0, and the longest single step."""
    with LLM(
        "qwen3-tiny", **(SMALL | {"num_kvcache_blocks": 300, "max_model_len": 512}), max_num_batched_tokens=budget
    ) as llm:
        work = [[7 + i, 8, 9] for i in range(4)] + [list(range(100, 500))]
        trace = record(llm, work, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True), [0, 0, 0, 0, 6])
    gap, gaps = 0.0, []
    for step_ in trace["steps"][2:]:
        gap += step_["ms"]
        if any(part["seq"] == 0 for part in step_["scheduled"]):
            gaps.append(gap)
            gap = 0.0
    return max(gaps), max(step_["ms"] for step_ in trace["steps"][2:])


budgets = [32, 64, 128, 256, 512]
measured = [
    [min(pair) for pair in zip(pause_and_longest_step(b), pause_and_longest_step(b), strict=True)] for b in budgets
]

# %%
figure, axis = plt.subplots()
for k, (name, color, marker) in enumerate([("longest pause", ORANGE, "o"), ("longest step", BLUE, "s")]):
    axis.plot([str(b) for b in budgets], [pair[k] for pair in measured], color=color, marker=marker, label=name)
axis.set(
    xlabel="max_num_batched_tokens",
    ylabel="milliseconds",
    ylim=0,
    title="while 400 tokens are read, measured on this run",
)
axis.legend(frameon=False)
plt.show()

# %% [markdown]
# A small budget makes every step short. It does not make the pause short: prefill goes first here, so decode waits
# for *all* chunks, and many small steps cost more than one large one.
#
# What would help is a **mixed step**: the running sequences decode, and a chunk of the prompt takes what is left
# of the budget. Then the pause would come down to the blue line. That is what vLLM does. We keep the two apart,
# because then each step has one shape, and the next chapters need only one picture at a time.

# %%
budget, running, prompt = 64, 4, 400
print(f"ours:  {-(-prompt // budget)} prefill steps; the four readers get 0 tokens meanwhile")
print(
    f"mixed: {-(-prompt // (budget - running))} steps; the four readers get {4 * -(-prompt // (budget - running))} tokens meanwhile"
)

# %% [markdown]
# ## When the blocks run out
#
# Answers grow, and nobody knows how far. One day a running sequence needs a block, and none is free. Somebody must
# go. In this engine it is the **newest** of the running ones. Its blocks are taken, and it waits again, at the
# head of the queue. Its tokens are kept: when it comes back, prompt and answer so far are read as if they were one
# long prompt. That is **preemption by recomputation**.
#
# ### Predict
#
# Request C has a prompt of 4 tokens and has written 5 when it is preempted. How many tokens does it compute when it
# comes back, if nothing of it is cached? And what does its reader notice?

# %%
my_guess = 4  # change me

scheduler = make_scheduler(enable_prefix_caching=False)
add(scheduler, 2, 4, max_tokens=20)
for _ in range(5):
    step(scheduler)

# %%
# {{exercise ch06.preempt}}

# %%
scheduler = make_scheduler(enable_prefix_caching=False)
add(scheduler, 2, 4, max_tokens=20)
for _ in range(5):
    step(scheduler)
scheduler.preempt(scheduler.running[0])
print(f"\npreempted; you expect that it computes {my_guess} tokens\n")
step(scheduler)

# %% [markdown]
# Its reader notices a pause, and nothing else. Now the question who has to go. It comes up in the middle of a decode
# step, for one sequence after the other, the oldest first.

# %%
# {{source nanovllm/engine/scheduler.py:Scheduler.schedule_decode}}

# %%
# {{exercise ch06.make_room}}

# %% [markdown]
# Plugged in: four stories on a pool of twelve blocks. The engine has been made to believe that answers are very short, so it lets
# too many in. The two pictures below share one cursor: move one, and the other follows.

# %%
stories = ["Once upon a time there was a little cat", "Once upon a time there was a little dog"]
stories += ["The sun was warm", "One day, Tom and Mia went to the park"]
wish = SamplingParams(temperature=0, max_tokens=16)

tight = my_run(stories, wish, expects=2, num_kvcache_blocks=12, max_num_seqs=4, max_num_batched_tokens=32)
timeline, table = Timeline(tight), BlockTable(tight)
table.follow(timeline)
timeline

# %%
table.step = table.bookmarks.get("preempt", 0)
table

# %%
roomy = my_run(stories, wish, num_kvcache_blocks=64, max_num_seqs=4, max_num_batched_tokens=32)

for name, trace in [("12 blocks", tight), ("64 blocks", roomy)]:
    numbers = totals(trace)
    print(
        f"{name}: {numbers['steps']} steps, {numbers['preemptions']} preemptions, {numbers['recomputed']} tokens computed again"
    )
print(
    "the same text:",
    *[t["output_ids"] == r["output_ids"] for t, r in zip(tight["seqs"].values(), roomy["seqs"].values(), strict=True)],
)

# %% [markdown]
# The text is the same, whoever had to step aside. Less memory costs time, not answers.

# %% [markdown]
# ## Looking ahead
#
# How much is computed twice? 24 requests on pools of several sizes: the real scheduler, with made-up tokens. Once it
# admits whatever fits right now. Once it looks ahead, as ours does: that is the fourth reason, `no_headroom`. It
# estimates the most blocks that all will hold at any time, and lets nobody in if that is more than the pool.


# %%
def simulate(scheduler_class=Scheduler, looks_ahead=True, num_requests=24, **options):
    """A trace of the real scheduler: random prompts, answers of known lengths, no model."""
    rng = random.Random(1)
    config = Config("qwen3-tiny", **(SMALL | {"max_num_batched_tokens": 128, "max_num_seqs": 16} | options))
    scheduler = scheduler_class(config)
    if not looks_ahead:
        scheduler.expected_peak_blocks = lambda seq: 0
    prompts = [[rng.randrange(1, 900) for _ in range(rng.randrange(8, 40))] for _ in range(num_requests)]
    params = [SamplingParams(max_tokens=rng.randrange(8, 60), ignore_eos=True) for _ in prompts]
    return record_scheduler(scheduler, config, prompts, params, max_steps=5000)


pools = [32, 48, 64, 96, 128, 192]
runs = {looks: [totals(simulate(looks_ahead=looks, num_kvcache_blocks=n)) for n in pools] for looks in (False, True)}

# %%
figure, (left, right) = plt.subplots(1, 2)
for looks, name, color, marker in [(False, "what fits now", ORANGE, "o"), (True, "looks ahead", BLUE, "s")]:
    style = {"color": color, "marker": marker, "label": name}
    left.plot([str(n) for n in pools], [run["recomputed"] for run in runs[looks]], **style)
    right.plot([str(n) for n in pools], [run["steps"] for run in runs[looks]], **style)
left.set(xlabel="blocks in the pool", title="tokens computed again", ylim=0)
right.set(xlabel="blocks in the pool", title="steps", ylim=0)
left.legend(frameon=False)
plt.show()
print("tokens of all prompts:", sum(len(seq["prompt_ids"]) for seq in simulate()["seqs"].values()))

# %% [markdown]
# Without looking ahead, nearly as many tokens are computed again as all prompts have. Looking ahead avoids almost
# all of it. It has a price: careful admission leaves some blocks empty, so there are a few more steps. They are
# short ones; those that are saved read whole prompts.

# %% [markdown]
# ## Other ways
#
# Three decisions could have been made differently. A subclass and the same work show what each would bring.
#
# **Preempt the longest instead of the newest?** It frees more blocks at once. We reorder `running` before each decode
# step, so that the longest stands where the newest would.


# %%
class LongestGoes(Scheduler):
    def schedule_decode(self):
        self.running = deque(sorted(self.running, key=len))
        return super().schedule_decode()


for name, scheduler_class in [("newest", Scheduler), ("longest", LongestGoes)]:
    trace = simulate(scheduler_class, looks_ahead=False, num_kvcache_blocks=40)
    events = [event for step_ in trace["steps"] for event in step_["events"]]
    victims = Counter(event["seq"] for event in events if event["event"] == "preempt")
    numbers = totals(trace)
    print(f"{name:8} {numbers['preemptions']} preemptions, {numbers['recomputed']} tokens computed again", end="; ")
    print(f"one request was preempted {max(victims.values())} times")

# %% [markdown]
# Fewer preemptions, but each costs more, and they hit the same request again and again: whoever is nearly done is thrown
# out. The newest, on the other hand, becomes the oldest in time, so everybody finishes.
#
# **Priorities?** The last four of 24 requests are urgent. We sort `waiting` before each step, but leave a prompt that is
# cut where it is.


# %%
class UrgentFirst(Scheduler):
    def schedule(self):
        if self.waiting and not self.waiting[0].block_table:
            self.waiting = deque(sorted(self.waiting, key=lambda seq: seq.seq_id < 20))
        return super().schedule()


def steps_until_admitted(trace):
    """For each request: the step in which it came in first."""
    first = {}
    for step_ in trace["steps"]:
        for event in step_["events"]:
            if event["event"] == "admit":
                first.setdefault(event["seq"], step_["i"])
    return [first[i] for i in sorted(first)]


for name, scheduler_class in [("first come, first served", Scheduler), ("urgent first", UrgentFirst)]:
    waits = steps_until_admitted(simulate(scheduler_class, num_kvcache_blocks=64, max_num_seqs=8))
    print(f"{name:26} urgent: {sum(waits[20:]) / 4:5.1f} steps until admitted; others: {sum(waits[:20]) / 20:5.1f}")

# %% [markdown]
# What the urgent gain, the others pay. And if urgent requests never stop coming, the others wait for ever: priorities need
# an answer to that, such as a priority that grows with the time waited.
#
# **Cache-aware admission?** Let those in first whose prefix is still in the cache. Thirty requests with five different
# beginnings, in turns, on a pool that cannot keep all five.


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
# A third of the work, and request 4 pays for it: it came fifth, but nobody like it was in the cache. SGLang
# schedules this way; its paper calls it *cache-aware scheduling*.

# %% [markdown]
# ## Change it
#
# * Give the twelve requests of the beginning eight seats (`max_num_seqs=8`). How many are empty now, with each of
#   the two ways? (`seats` counts with four; change it, too.)
# * Run the four stories with `expects=None`: the engine does not know the lengths, and assumes the worst. What
#   happens to preemptions, and to the number of steps?
# * Let `UrgentFirst` also protect: sort `running` so that an urgent request is never the one that makes room.
# * Make `mine()` preempt the oldest. Which picture shows first that something is wrong?

# %% [markdown]
# ## Recap
#
# 1. Continuous batching decides before every step; whoever is done leaves at once, and the next comes in.
# 2. Prefill goes first, else everybody decodes. The token budget bounds a step, and any prompt can be cut by it.
# 3. A request stays out for one of four reasons: the budget, the seats, the blocks, or the room that others will need.
# 4. When blocks run out, the newest goes to the head of the queue. Its tokens are kept, its keys and values computed
#    again.
# 5. Looking ahead at admission costs a few steps and saves most of the recomputation.

# %% [markdown]
# ## Explain it aloud
#
# * Why does a cut prompt hold all its blocks, though it has filled only some of them? What could go wrong otherwise?
# * The newest is preempted, and goes to the head of the queue. Why is that not unfair to those who wait behind it?
# * Two sequences need a block in the same step, and none is free. Why can they not throw each other out for ever?
# * Static batching has an advantage, too. Which? (Look at the first token of the first four.)

# %% [markdown]
# ## Read further
#
# * Iteration-level scheduling: Yu et al., *Orca*, OSDI 2022, section 3.1.
# * Preemption by recomputation or by swapping: Kwon et al., *PagedAttention*, SOSP 2023, section 4.5.
# * Mixed steps: Agrawal et al., *Sarathi-Serve*, OSDI 2024, section 4.
# * Admission by the expected peak: Gong et al., *Past-Future Scheduler*, ASPLOS 2025.
# * In vLLM: `vllm/v1/core/sched/scheduler.py`, method `Scheduler.schedule`. It has no phases: every request has computed
#   some tokens and lacks some, and the budget is shared out among all.
#
# Next, we put the pieces together: one step, many steps, and an engine that answers.
