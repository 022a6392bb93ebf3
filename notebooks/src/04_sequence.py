# %% [markdown]
# # 4 · Sequence
#
# *What the engine knows about one request.*
#
# You will
#
# * see a request wait, run, lose its memory, start over, and finish,
# * cut its tokens into blocks, and count them without ever storing the count,
# * let it grow by one token a step,
# * decide what of it travels to a worker process, and count the bytes.
#
# You write four short functions. Each one runs in the engine as soon as it is written.
# Plan an hour. Everything runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# A request that has passed the checks of chapter 3 becomes a **sequence**: the engine's own record of it. This
# chapter is about one small file, `engine/sequence.py`. The scheduler, the block manager, and the model runner
# all ask a sequence things. It decides nothing itself.
#
# Below is the map of your engine. Where it says *ours*, our function stands in for one that is not yours yet.

# %%
# %load_ext exercises
mine()

# %%
import pickle
import time

import matplotlib.pyplot as plt

from nanovllm import SamplingParams
from nanovllm.viz import SequenceView
from nanovllm.viz.record import record
from nanovllm.viz.sequence_view import moment

# White behind every picture, so that it stays legible in a dark theme.
plt.rcParams.update(dict.fromkeys(["figure.facecolor", "axes.facecolor", "savefig.facecolor"], "white"))
plt.rcParams.update({"figure.figsize": (8, 3.2), "figure.dpi": 110, "axes.ymargin": 0.12})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, PINK, GRAY = "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#BBBBBB"


def greedy(max_tokens):
    return SamplingParams(temperature=0, max_tokens=max_tokens)


# %% [markdown]
# ## Why
#
# The KV cache has a **slot** for each token of each request. How many slots should a request get when it
# arrives? Nobody knows yet how long its answer will be. The simplest solution is to give it as many as the
# longest text that is allowed. Let us see what that costs, with twelve real requests.

# %%
beginnings = ["Once upon a time", "One day, a small fox", "There was an old boat", "Tom had a new ball"]
longest = 256

with mine().LLM("qwen3-tiny", device="cpu", max_model_len=longest) as llm:
    # Twelve requests, whose answers may have 10, 22, 34, ... tokens.
    limits = [greedy(10 + 12 * i) for i in range(12)]
    answers = llm.generate([beginnings[i % 4] for i in range(12)], limits, use_tqdm=False)

lengths = [answer["num_prompt_tokens"] + len(answer["token_ids"]) for answer in answers]
used, reserved = sum(lengths), longest * len(lengths)
print(f"reserved {reserved} slots, used {used}: {1 - used / reserved:.0%} of the memory is never touched")

# %% [markdown]
# A cache that is mostly empty serves fewer requests at once, and the speed comes from serving many. So
# memory is handed out in small pieces of equal size, one after the other, as the text grows. The pieces are
# called **blocks**.

# %%
block_size = 16
Sequence = mine().engine.sequence.Sequence
in_blocks = [Sequence([0] * length, block_size=block_size).num_blocks * block_size for length in lengths]

figure, axis = plt.subplots()
places = range(len(lengths))
axis.bar(places, [longest] * len(lengths), color="white", edgecolor=GRAY, label="the longest text allowed")
axis.bar(places, in_blocks, color=ORANGE, label=f"blocks of {block_size}")
axis.bar(places, lengths, color=BLUE, label="tokens")
axis.set(xlabel="request", ylabel="slots", xticks=places, title="slots for each of twelve requests")
axis.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
plt.show()
print(f"in blocks of {block_size}: {sum(in_blocks)} slots, {1 - used / sum(in_blocks):.0%} of them empty")

# %% [markdown]
# Only the last block of a request has empty slots. That is the thin orange edge.
#
# ## What a sequence is
#
# This is all that the engine keeps about a request. Read it once; you will need it for the exercises.
#
# {{source nanovllm/engine/sequence.py:Sequence.__init__}}

# %% [markdown]
# The list `token_ids` holds the prompt first and the answer behind it. Two numbers cut the list into three
# **ranges**, in this order:
#
# | range | how many | what it means |
# |---|---|---|
# | cached | `num_cached_tokens` | keys and values are in the cache |
# | scheduled | `num_scheduled_tokens` | the current step computes them |
# | waiting | the rest | a later step computes them |
#
# And a sequence is always in one of three states:
#
# {{source nanovllm/engine/sequence.py:SequenceStatus}}

# %% [markdown]
# ## A life
#
# Time to watch one. The engine below is made small on purpose. Its blocks hold **4 tokens**, so that you can
# read what is in them; real ones hold 16 to 256. The cache has 10 blocks. One step computes at most 6 tokens. And it
# is the plain engine, without the faster paths of chapter 17.
#
# There are two requests. A comes first and B one step later. B's prompt has 14 tokens.
#
# ### Predict
#
# In how many steps is B's prompt read?

# %%
my_guess = 1  # change me

print(f"You expect that the prompt of B is read in {my_guess} step(s).")

# %%
SMALL = {"device": "cpu", "kvcache_block_size": 4, "num_kvcache_blocks": 10, "max_model_len": 40}
SMALL["disabled_optimizations"] = "all"
PROMPTS = ["The sun was warm and", "Once upon a time, there was a little girl named Mia."]


def life_of_two():
    """A trace of your engine: A arrives before the first step, B before the second."""
    with mine().LLM("qwen3-tiny", max_num_batched_tokens=6, **SMALL) as llm:
        return record(llm, PROMPTS, greedy(16), arrive=[0, 1])


trace = life_of_two()
SequenceView(trace, "B", predict=True)

# %% [markdown]
# Step through it with ▶, or jump with the buttons. Two steps ask you something before they show.
#
# * *cut*: a step has room for 6 tokens, so 14 take three steps. Meanwhile B is still WAITING.
# * *first token*: the rest of the prompt is scheduled. B is RUNNING, and the model chooses a token.
# * *a block more*: the token in the thick frame is the first of a new block.
# * *preemption*: no block is left. B came last, so it gives its blocks back. It keeps its tokens.
# * *starts over*: there is room again. Were all of its blocks overwritten in the meantime?
#
# Below is the same life at a glance. A column is a step; its height is the length of the text.

# %%
steps = range(len(trace["steps"]))
_, seq_id = [int(key) for key in trace["seqs"]]  # A and B
life = [moment(trace, seq_id, i) for i in steps]

figure, axis = plt.subplots()
bottom = [0] * len(life)
for name, color, hatch in [("cached", BLUE, ""), ("scheduled", ORANGE, "xx"), ("waiting", "white", "//")]:
    heights = [getattr(now, name) for now in life]
    axis.bar(steps, heights, 0.9, bottom, color=color, hatch=hatch, edgecolor="gray", linewidth=0.5, label=name)
    bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
for i in steps:
    axis.text(i, bottom[i] + 0.6, life[i].status[:1], ha="center", fontsize=8)
axis.set(xlabel="step", ylabel="tokens of B", ylim=(0, 36))
axis.set_title("the three ranges of B (W: waiting, R: running, F: finished)")
axis.legend(ncols=3, loc="upper left", frameon=False)
plt.show()

# %% [markdown]
# Look at the running part. In each decode step, exactly one token is scheduled: the newest one. It has been
# chosen, but the model has not read it yet. You will meet this token again.
#
# And look at the step after the gap. After the preemption nothing was cached. Yet most tokens are cached at
# once when B comes back: their blocks were free, but nobody had overwritten them. How the engine finds them
# again is the subject of chapter 5.
#
# ## How many blocks?
#
# ### Predict
#
# Blocks of 4 tokens. How many does a sequence of 1 token need? Of 4, 5, 8 and 9?

# %%
my_guess = {1: 0, 4: 1, 5: 1, 8: 2, 9: 2}  # change the numbers after the colons

for length, guess in my_guess.items():
    seq = Sequence([0] * length, block_size=4)
    print(f"{length} tokens: you said {guess}, the engine says {seq.num_blocks}")

# %% [markdown]
# Note that we wrote `seq.num_blocks`, without parentheses, and still it is a function. This is what `@property`
# does: it looks like an attribute and is computed whenever somebody asks.
#
# Why not store the number? See what happens to a stored one.


# %%
class Stored:
    def __init__(self, words):
        self.words = words
        self.length = len(words)


class Derived:
    def __init__(self, words):
        self.words = words

    @property
    def length(self):
        return len(self.words)


for box in (Stored(["a", "cat"]), Derived(["a", "cat"])):
    box.words.append("sat")
    print(f"{type(box).__name__:8} has {len(box.words)} words and says {box.length}")

# %% [markdown]
# A number that is derived is never wrong. A number that is stored can be: everybody who changes the one thing
# has to think of the other.
#
# Our sequence stores `num_tokens` all the same, although it could ask its list. There is a reason for that. It
# comes at the end of this chapter.

# %%
# {{exercise ch04.num_blocks}}

# %% [markdown]
# ### Plug in
#
# Now it runs in the engine. The scheduler and the block manager ask for `num_blocks` many times in each step.
# With it we can also say what a block size costs: for texts of 1 to 300 tokens, how many slots stay empty?

# %%
Sequence = mine().engine.sequence.Sequence
sizes = [1, 4, 16, 64, 256]
texts = range(1, 301)


def num_blocks(length, size):
    return Sequence([0] * length, block_size=size).num_blocks


figure, (left, right) = plt.subplots(1, 2)
for size, color in zip(sizes[1:4], (BLUE, GREEN, ORANGE), strict=True):
    left.plot(texts, [num_blocks(n, size) * size - n for n in texts], color=color, label=f"blocks of {size}")
left.set(xlabel="tokens of the text", ylabel="slots", ylim=(0, 95), title="empty slots in the last block")
left.legend(frameon=False, loc="upper right", fontsize=8)
waste = [1 - sum(texts) / sum(num_blocks(n, size) * size for n in texts) for size in sizes]
bars = right.bar([str(size) for size in sizes], waste, color=PINK)
right.bar_label(bars, [f"{share:.1%}" for share in waste])
right.set(xlabel="block size", ylabel="share of all slots", title="empty slots, all 300 texts")
figure.tight_layout()
plt.show()

# %% [markdown]
# Each drop to zero is a block that is exactly full. Small blocks waste less. So why not blocks of one token?
# Because each block costs, too: an entry in the block table, and a jump to another place in memory.

# %% [markdown]
# ## Which tokens are in it?
#
# Two kinds of numbers are easily mixed up.
#
# * **Logical** blocks are numbered from 0 within each sequence. They are there as soon as the tokens are.
# * **Physical** blocks are places in the cache. A sequence gets them when it is admitted.
#
# The block table leads from one to the other. `block_table[2] == 7` means: logical block 2 lies in physical
# block 7. The function `block(i)` is about logical ones. The block manager calls it to find out whether it has
# seen the same tokens before.
#
# ### Predict
#
# Ten tokens in blocks of 4. Somebody asks for block −1, by mistake. It would start at token −4 and end before
# token 0. What does a slice say to that?

# %%
my_guess = "an error"  # change me

tokens = list(range(20, 30))
print(f"You expect {my_guess}; Python gives {tokens[-4:0]}")
print(f"Block -2 would be from -8 to -4, and Python gives {tokens[-8:-4]}")

# %% [markdown]
# No error, and no block either: first nothing, then four tokens out of two different blocks. An engine that
# goes on with such an answer takes one text for another. That is why `block` has to raise an `IndexError`.

# %%
# {{exercise ch04.block}}

# %% [markdown]
# ### Plug in
#
# Two requests that begin alike. The second one finds the blocks of the first, because your `block` says that
# they hold the same tokens.

# %%
with mine().LLM("qwen3-tiny", **SMALL) as llm:
    for ending in ("Mia.", "Lily."):
        (answer,) = llm.generate("Once upon a time, there was a little girl named " + ending, greedy(8), use_tqdm=False)
        print(f"{answer['num_prompt_tokens']} prompt tokens, {answer['num_cached_tokens']} of them not computed again")

# %% [markdown]
# ## One token more
#
# At the end of a step the model has chosen a token, and the sequence gets longer. Let us stop the engine
# there and look.
#
# ### Predict
#
# The prompt of B has 14 tokens. One step reads all of it, and its first token is appended. What are
# `num_tokens` and `num_cached_tokens` now?

# %%
my_guess = {"num_tokens": 14, "num_cached_tokens": 15}  # change the numbers

with mine().LLM("qwen3-tiny", **SMALL) as llm:
    llm.add_request(PROMPTS[1], greedy(6))
    llm.step()
    (seq,) = llm.scheduler.running
    for name, guess in my_guess.items():
        print(f"{name}: you said {guess}, it is {getattr(seq, name)}")

# %% [markdown]
# The new token is in the list, but it has no keys and values: the model has *chosen* it and not *read* it. The
# next step reads it, and chooses the one after it. So a running sequence always has exactly one token to
# compute.
#
# Remember the warning about stored numbers when you write the next function.

# %%
# {{exercise ch04.append_token}}

# %% [markdown]
# ### Plug in
#
# Every token of this text went through `append_token`.

# %%
with mine().LLM("qwen3-tiny", **SMALL) as llm:
    llm.add_request(PROMPTS[1], greedy(12))
    (seq,) = llm.scheduler.waiting
    for _ in range(12):
        llm.step()
        last = repr(llm.tokenizer.decode([seq.last_token]))
        counts = f"{seq.num_tokens} tokens, {seq.num_cached_tokens:2} cached, {seq.num_blocks} blocks"
        print(f"{counts}, the last one is {last}")

# %% [markdown]
# Read the columns from top to bottom. Tokens grow by one in each step, blocks in every fourth. Nobody had to
# think of `num_blocks`: it followed by itself. That is what a property is good for. The last row has nothing
# cached: the request is finished, and its blocks are gone.

# %% [markdown]
# ## What travels
#
# A model that is too large for one GPU is split over several. Each of them has a **worker**, a process of its
# own. This is **tensor parallelism**, and chapter 9 is about it. Processes share no memory: what a worker should
# know about a step has to be turned into bytes, sent through a pipe, and built up again. In Python, `pickle`
# does that.
#
# Scheduler and block manager are not sent. The sequences of the step are, *in every step*. By default, pickle
# takes all attributes of an object; `token_ids` is one of them.
#
# ### Predict
#
# A sequence of 4,000 tokens decodes. A worker needs one token id of it. How many bytes are all its attributes?


# %%
def in_decode(num_tokens):
    """A sequence as it is in a decode step: all tokens but the last one are cached."""
    seq = Sequence([1000] * num_tokens, block_size=16)
    seq.num_cached_tokens, seq.num_scheduled_tokens = num_tokens - 1, 1
    seq.block_table = list(range(seq.num_blocks))
    return seq


my_guess = 100  # change me

all_of_one = len(pickle.dumps(vars(in_decode(4000))))
sequences = [vars(in_decode(4000)) for _ in range(256)]
start = time.perf_counter()
all_of_many = len(pickle.dumps(sequences))
milliseconds = 1000 * (time.perf_counter() - start)

print(f"One sequence: you expect {my_guess:,} bytes; all its attributes are {all_of_one:,} bytes.")
print(f"A step of 256 such, sent to 8 workers: {8 * all_of_many / 1e6:.0f} MB, to compute 256 tokens.")
print(f"To pickle them once takes {milliseconds:.1f} ms, measured on this run.")

# %% [markdown]
# So a class may say for itself what is sent. If it has a method `__getstate__`, pickle takes what that returns.
# On the other side, the attributes of the new object are just that, and `__init__` is not called. Here it is
# with a class of two attributes.


# %%
class Story:
    def __init__(self):
        self.title, self.pages = "The red kite", ["page"] * 1000

    def __getstate__(self):
        return {"title": self.title, "pages": []}


story = Story()
received = pickle.loads(pickle.dumps(story))
print(f"sent: {len(story.pages)} pages; received: {received.title!r} with {len(received.pages)} pages")

# %% [markdown]
# ### When are the tokens needed?
#
# A worker asks a sequence two things: which tokens are to be computed, and where their keys and values go. The
# second is in `block_table`. This is how it gets the first:
#
# {{source nanovllm/engine/sequence.py:Sequence.scheduled_token_ids}}
#
# {{source nanovllm/engine/sequence.py:Sequence.is_cut}}
#
# Sometimes `last_token` is enough, and sometimes the list is needed. Think of three moments in the life of B:
# the parts of its prompt, an ordinary decode step, and the step in which it started over.
#
# `block_hashes` are the block manager's notes. No worker reads them. And note that `vars(seq)`, or
# `seq.__dict__`, is no copy: it is the dictionary in which the sequence keeps its attributes.

# %%
# {{exercise ch04.__getstate__}}

# %% [markdown]
# ### Plug in
#
# First the bytes. We listen between engine and model runner: before each step, we pickle its sequences twice,
# once with all attributes, and once as your `__getstate__` says.

# %%
everything, sent = [], []


def listen(llm):
    """Before every step, count the bytes of each of its sequences."""
    runner = llm.llm_engine.model_runner
    run = runner.run

    def counting(seqs, is_prefill):
        everything.extend(len(pickle.dumps(vars(seq))) for seq in seqs)
        sent.extend(len(pickle.dumps(seq)) for seq in seqs)
        return run(seqs, is_prefill)

    runner.run = counting


with mine().LLM("qwen3-tiny", device="cpu", kvcache_block_size=4, max_num_batched_tokens=6) as llm:
    listen(llm)
    llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=300, ignore_eos=True), use_tqdm=False)

# %%
figure, axis = plt.subplots()
for label, sizes, color in [("all attributes", everything, ORANGE), ("as sent", sent, BLUE)]:
    axis.plot(sizes, color=color)
    axis.annotate(label, (len(sizes), sizes[-1]), xytext=(4, -3), textcoords="offset points")
axis.set(xlabel="step", ylabel="bytes", ylim=0, title="one sequence, pickled before each step")
axis.margins(x=0.02)
figure.subplots_adjust(right=0.86)
plt.show()

Sequence = mine().engine.sequence.Sequence
print(f"all {len(sent)} steps: {sum(everything):,} bytes, or {sum(sent):,}")
print(f"a sequence of 4,000 tokens: {all_of_one:,} bytes, or {len(pickle.dumps(in_decode(4000))):,}")

# %% [markdown]
# The lower curve still rises a little. What is it that grows? Blocks of 4 tokens make it easy to see: a new
# entry in `block_table` in every fourth step.
#
# Now for real: two worker processes, each with half of every layer, and a pipe to each. The same text has to
# come out. (Starting two processes takes a few seconds.)

# %%
texts = []
for num_workers in (1, 2):
    start = time.perf_counter()
    with mine().LLM("qwen3-tiny", tensor_parallel_size=num_workers, max_num_batched_tokens=6, **SMALL) as llm:
        texts += [llm.generate(PROMPTS, greedy(16), use_tqdm=False)]
    seconds = time.perf_counter() - start
    print(f"{num_workers} worker(s), {seconds:.1f} s on this run: {texts[-1][1]['text']}")

print("the same:", [a["token_ids"] for a in texts[0]] == [a["token_ids"] for a in texts[1]])
arrived = pickle.loads(pickle.dumps(in_decode(4000)))
print("what arrives in a worker:", len(arrived.token_ids), "tokens in the list, and num_tokens is", arrived.num_tokens)

# %% [markdown]
# On a small model and a CPU, two processes are slower than one. What counts is that a model too large for one
# GPU can run at all.
#
# And the last line is the reason for `num_tokens`. In a worker, the list of a decoding sequence is empty. Its
# length is 0, and the model runner still has to know at which position the token stands. `num_tokens` and
# `last_token` are stored because the list they could be derived from stays at home.

# %% [markdown]
# ## Your engine
#
# Here is the map again, and B's life once more, with all that you have written. If something is wrong, the
# widget opens at the step where it first shows.

# %%
display(mine(), SequenceView(life_of_two(), "B"))

# %% [markdown]
# ## Change it
#
# * In `SMALL`, set `num_kvcache_blocks` to 20. Is B still preempted? What is the smallest number with which it
#   is not?
# * In `life_of_two`, set `max_num_batched_tokens` to 1. What does B's life look like? What would a
#   `__getstate__` do there that looks at `num_scheduled_tokens`?
# * When a prompt is cut, all of it is sent with each part. Count the bytes for a prompt of 500 tokens in parts
#   of 50, with `listen`. What else would a worker have to know if only the part were sent?
# * Draw A instead of B. Then make a third request, and find out who is preempted first.

# %% [markdown]
# ## Recap
#
# 1. A sequence is what the engine knows about one request. It is WAITING, RUNNING or FINISHED, and a preempted
#    one waits again.
# 2. Its tokens are cached, scheduled or waiting, in this order. A running sequence has exactly one to compute.
# 3. Only the last block of a sequence has empty slots. Logical blocks are numbered by the text, physical ones by
#    the cache, and the block table leads from one to the other.
# 4. Derive what can be derived. What is stored must be changed together, in one place.
# 5. A worker gets what the step needs and no more: in decode, one token and the block table.

# %% [markdown]
# ## Explain it aloud
#
# * Why does a preempted sequence keep its tokens but not its keys and values? What would it cost to keep both?
# * A colleague suggests that `__getstate__` should look at the status. Which steps would go wrong?
# * `num_blocks` is computed many thousand times a second. Is it worth storing after all? How would you decide?
# * Why is it the *newest* running sequence that is preempted?

# %% [markdown]
# ## Read further
#
# * vLLM: the class `Request` and its `RequestStatus` in `vllm/v1/request.py`; it has more states than ours, one of
#   them for preempted requests. What vLLM sends to its workers is in `vllm/v1/core/sched/output.py`: a
#   `NewRequestData` once, and then only what is new, as `CachedRequestData`.
# * The PagedAttention paper: Kwon et al., *Efficient Memory Management for Large Language Model Serving with
#   PagedAttention*, SOSP 2023. Section 3.1 explains the waste of reserving; section 4.2 has logical and physical
#   blocks; section 4.6 says what is sent to workers.
# * Python's own documentation of pickle, under *Handling Stateful Objects*.
#
# A block table names physical blocks. Next comes the part that owns them: the block manager.
