# %% [markdown]
# # 5 · Block manager
#
# *Memory in pages: who owns which block, who may share it, and which one goes first.*
#
# You will
#
# * see how much memory is lost when every request gets one piece,
# * write the five functions that name, count, hand out and take back blocks,
# * get the first prefix hit of your own engine: tokens that nobody has to compute again,
# * choose a block size, and know what it costs.
#
# Plan an hour. Everything runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# A request is a `Sequence` now: tokens, and a block table that is still empty. The block manager fills it.
# Below is the map of your engine. What you have written is yours; everything else is ours, so that it always
# runs.

# %%
# %load_ext exercises
mine()

# %%
import random
from itertools import groupby

import matplotlib.pyplot as plt

from nanovllm import LLM, SamplingParams
from nanovllm.viz import BlockSizeExplorer, BlockTable, PrefixExplorer, PrefixSimulation, record

# White behind every picture, so that it stays legible in a dark theme.
white = dict.fromkeys(["figure.facecolor", "axes.facecolor", "savefig.facecolor"], "white")
plain = dict.fromkeys(["axes.spines.top", "axes.spines.right"], False)
plt.rcParams.update({"figure.figsize": (8, 3), "figure.dpi": 110, **white, **plain})
BLUE, ORANGE, GREEN, PINK, GRAY = "#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#BBBBBB"

PLAIN = {"device": "cpu", "disabled_optimizations": "all"}  # the faster paths of chapter 17 are off

# %% [markdown]
# ## Why: memory that nobody uses
#
# Every token leaves a key and a value in the KV cache, in each layer and for each KV head. Chapter 3 counted the
# bytes, and chapter 4 the slots that stay empty when every request gets the room for the longest text. Here are both
# again, for the ten requests of this chapter. (A token of Qwen3-0.6B takes 112 KiB.)

# %%
llm = LLM("qwen3-tiny", **PLAIN, max_model_len=256)
shape = llm.config.hf_config
numbers = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim
print(f"one token: {numbers:,} numbers, {numbers * llm.config.dtype.itemsize:,} bytes")

questions = ["introduce yourself", "list all prime numbers within 100", "What is 12 + 7?"]
questions += ["Spell the word garden.", "Count from 1 to 20.", "What is the capital of France?"]
questions += ["Tell me a story about a cat.", "explain machine learning", "explain deep learning"]
questions += ["explain neural networks"]
chats = [[{"role": "user", "content": question}] for question in questions]
greedy = SamplingParams(temperature=0, max_tokens=200)

answers = llm.chat(chats, greedy, use_tqdm=False)
lengths = [answer["num_prompt_tokens"] + len(answer["token_ids"]) for answer in answers]
print("tokens of each request, question and answer:", lengths)

# %% [markdown]
# Nobody knows these lengths beforehand. Again each request gets one piece of memory that is long enough for the
# longest allowed: 256 tokens here.
#
# ### Predict
#
# Which share of that memory holds a token in the end?

# %%
my_guess = 50  # percent; change me

reserved, used = 256 * len(lengths), sum(lengths)
share = 100 * used / reserved
print(f"You expect {my_guess} %. It is {share:.0f} %: {used:,} of {reserved:,} slots.")

figure, axis = plt.subplots()
axis.barh(questions, 256, color="white", edgecolor=GRAY, hatch="///")
axis.barh(questions, lengths, color=BLUE)
axis.invert_yaxis()
axis.set(title="hatched: reserved, and never used", xlabel="slots, one token each")
plt.show()

# %% [markdown]
# ### Exact pieces do not help
#
# Suppose we knew each length, and reserved exactly that. Requests come and go, and leave holes of all sizes.
# Below, 300 requests with the lengths from above pass through a memory of 1,024 slots. A newcomer takes the
# first hole that is long enough. If there is none, somebody has to end first.
#
# We keep the worst moment: enough slots are free, and still the newcomer does not fit.


# %%
def holes(memory):
    """Runs of free slots, as (start, length)."""
    runs, start = [], 0
    for owner, slots in groupby(memory):
        size = len(list(slots))
        runs += [] if owner else [(start, size)]
        start += size
    return runs


rng, memory, live, worst = random.Random(0), [0] * 1024, [], (0, 0, [])
for number in range(1, 301):
    length = rng.choice(lengths)
    while not (fitting := [start for start, size in holes(memory) if size >= length]):
        if memory.count(0) >= length:
            worst = max(worst, (memory.count(0), length, list(memory)))
        ended = live.pop(rng.randrange(len(live)))
        memory = [0 if owner == ended else owner for owner in memory]
    memory[fitting[0] : fitting[0] + length] = [number] * length
    live.append(number)

num_free, length, memory = worst
largest = max(size for _, size in holes(memory))
print(f"{num_free} of 1,024 slots are free.")
print(f"A request of {length} does not fit: the largest hole has {largest}.")

# %% [markdown]
# This is **fragmentation**, and it is the number that hurts: memory is there, and it cannot be used. The same
# moment once more, on the right in **blocks** of 16 slots. Blocks of one request need not be neighbors, so any
# free block will do.


# %%
def draw_memory(axis, memory, title):
    colors = {owner: (BLUE, GREEN, PINK)[k % 3] for k, owner in enumerate(dict.fromkeys(memory))}
    colors |= {0: "white", "new": ORANGE, "empty": GRAY}
    for slot, owner in enumerate(memory):
        place = (slot % 64, slot // 64)
        axis.add_patch(plt.Rectangle(place, 1, 1, facecolor=colors[owner], edgecolor="none"))
    axis.vlines(range(0, 65, 16), 0, 16, color="black", linewidth=0.4)
    axis.hlines(range(17), 0, 64, color="black", linewidth=0.4)
    axis.set(xlim=(0, 64), ylim=(16, 0))
    axis.set_title(title, fontsize=10)
    axis.axis("off")


blocks, free_ids = [[0] * 16 for _ in range(64)], random.Random(1).sample(range(64), 64)
for owner in [*dict.fromkeys(owner for owner in memory if owner), "new"]:
    tokens = [owner] * (length if owner == "new" else memory.count(owner))
    for start in range(0, len(tokens), 16):
        tail = tokens[start : start + 16]
        blocks[free_ids.pop()] = tail + ["empty"] * (16 - len(tail))

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.4))
draw_memory(left, memory, f"one piece each: {length} slots do not fit")
slots = [owner for block in blocks for owner in block]
draw_memory(right, slots, f"in blocks: they do, with {len(free_ids)} blocks left")
plt.show()

# %% [markdown]
# White is free, orange is the newcomer. What paging loses is gray: the empty end of each request's last block.
# That is less than one block a request, whatever the lengths.
#
# The idea is that of virtual memory in an operating system. A **block table** is the page table: entry `i`
# names the block that holds tokens `i * block_size` to `(i + 1) * block_size - 1`.

# %% [markdown]
# ## A picture
#
# A real run of the engine. A block holds 4 tokens here, so that you can read each one. In practice a block has 16
# to 256: large blocks mean short tables and long runs of memory for the kernel to read.
#
# Step through it with the buttons, or put the focus on the slider and use the arrow keys. Watch the pool, and the
# free list at the bottom. `ref` counts the tables that a block is in.

# %%
tiny = LLM("qwen3-tiny", **PLAIN, kvcache_block_size=4, num_kvcache_blocks=8, max_model_len=32)
cat, dog = "Once upon a time there was a little cat", "Once upon a time there was a little dog"
params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (5, 8, 12, 3)]
BlockTable(record(tiny, [cat, dog, "The sun was warm", cat], params, arrive=[0, 2, 8, 18]))

# %% [markdown]
# Four things to find in it; the buttons jump there:
#
# * *sharing*: B begins like A. Two of its blocks are not new: they are A's, with `ref 2`.
# * *first finish*: A's blocks are free, all but the shared ones. One is hatched: it still holds what it held.
# * *eviction*: C takes a block from the left end of the free list. What it held is lost.
# * *revival*: D begins like A, too. A and B have ended long ago, and still D finds two blocks.
#
# ## The code we give
#
# A block knows how many tables name it, and what lies in it.
#
# {{source nanovllm/engine/block_manager.py:Block}}
#
# The manager keeps every block on one of two sides, free or used. `hash_to_block_id` finds a block by what it
# holds.
#
# {{source nanovllm/engine/block_manager.py:BlockManager.__init__}}
#
# {{source nanovllm/engine/block_manager.py:BlockManager.reset}}

# %% [markdown]
# ## A name for what a block holds
#
# To share a block we must find it. Comparing tokens with all blocks would take too long. So every full block
# gets a **hash**: a number of 64 bits, computed from its content. Equal content, equal number. One look into a
# dictionary finds it.
#
# But what is its content? Here are three prompts with the same system message. The widget shows their blocks, and
# what the cache says about each.
#
# ### Predict
#
# The prompts have 24 or 25 tokens. The first 17 of them, up to `explain`, are the same. In blocks of 4, how many
# blocks of the second prompt are hits?

# %%
my_guess = 3  # blocks; change me


def ask(question):
    """A question with the system message before it, as the model reads it."""
    system = {"role": "system", "content": "You are a friendly helper."}
    chat = [system, {"role": "user", "content": question}]
    return llm.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


topics = ["explain machine learning", "explain deep learning", "explain neural networks"]
prompts = [ask(topic) for topic in topics]
names = ["Tom has a red ball. Where is it?", "Mia has a red ball. Where is it?"]
explorer = PrefixExplorer(presets={"three topics": prompts, "another name": names})
second = explorer.explained(0)[1]
print(f"You expect {my_guess} hits; there are {sum(b.state == 'hit' for b in second.blocks)}.")
explorer

# %% [markdown]
# Only whole blocks are shared. After the first miss nothing can be found, even where tokens are equal again.
#
# Why? Attention has mixed into a token's keys and values all that came **before** it. So a block's name must stand for
# its tokens *and for everything before them*. A chain does that cheaply: the hash of a block is made of its own tokens
# and of the hash of the block before.
#
# Choose "another name" and uncheck "hashes are chained". The second block has the same tokens, but its keys and values
# know about Tom. The cache would hand them to Mia.
#
# The tools: `xxhash.xxh64()` makes a hasher, `update` feeds it bytes, `intdigest()` reads the number. A token
# id does not fit into one byte.

# %%
# {{exercise ch05.compute_hash}}

# %% [markdown]
# ### Plug in
#
# Your names for the blocks of the three prompts, four digits of each. How far are they the same?

# %%
me = mine()
compute_hash = me.engine.block_manager.BlockManager.compute_hash

for topic, prompt in zip(topics, prompts, strict=True):
    token_ids, names = llm.tokenizer.encode(prompt), [-1]
    for start in range(0, len(token_ids) - 3, 4):
        names.append(compute_hash(token_ids[start : start + 4], names[-1]))
    print(f"{topic:26}", *[f"{name:016x}"[:4] for name in names[1:]])

# %% [markdown]
# ## Finding a prefix
#
# With names, finding the longest cached prefix is a walk along the chain until something is missing.
#
# {{source nanovllm/engine/block_manager.py:BlockManager.find_cached_blocks}}
#
# Two hashes can be equal by accident, so the tokens are compared as well. And look at the bounds of the loop:
# `num_tokens - 1`.
#
# ### Predict
#
# The same prompt of 24 tokens comes twice, in blocks of 4. All of it is in the cache. How many tokens are taken
# from there?

# %%
my_guess = 24  # tokens; change me

params = SamplingParams(temperature=0, max_tokens=2)
for _ in range(2):
    (answer,) = tiny.generate(prompts[0], params, use_tqdm=False)
    print(f"{answer['num_cached_tokens']} of {answer['num_prompt_tokens']} tokens from the cache")
print(f"You expected {my_guess} for the second.")

# %% [markdown]
# One block less. The next token is sampled from the output of the last one, and outputs are not kept, only keys
# and values. So **at least one prompt token is always computed**. A shared block must never be written, so its
# whole block is computed anew.
#
# ## Would it fit?
#
# Before the scheduler admits a sequence, it asks. The counting is given.
#
# {{source nanovllm/engine/block_manager.py:BlockManager.num_new_blocks}}
#
# ### Predict
#
# Requests with the same 16 tokens at the start and 8 of their own: 6 blocks each. The pool has 20. How many fit at
# the same time, without sharing and with it? Guess now; the answer comes after the exercise.

# %%
# {{exercise ch05.can_allocate}}

# %%
my_guesses = {"without sharing": 6, "with sharing": 6}  # requests; change me

me = mine()


def start(manager, token_ids):
    """A request arrives, and a step computes its tokens."""
    seq = me.engine.sequence.Sequence(token_ids, block_size=4)
    manager.allocate(seq)
    seq.num_scheduled_tokens = len(seq) - seq.num_cached_tokens
    manager.hash_blocks(seq)
    return seq


for caching, (name, my_guess) in enumerate(my_guesses.items()):
    manager = me.engine.block_manager.BlockManager(20, 4, enable_prefix_caching=bool(caching))
    requests = [[*range(16), *[100 + n] * 8] for n in range(20)]
    fitting = 0
    while manager.can_allocate(me.engine.sequence.Sequence(requests[fitting], block_size=4)):
        start(manager, requests[fitting])
        fitting += 1
    print(f"{name}: {fitting} requests fit, you said {my_guess}")

# %% [markdown]
# ## Handing out
#
# Two functions do the bookkeeping for one block each. `_share` adds an owner to a cached block; if it had none, it
# leaves the free ones. `_append_new_block` takes a free block, and forgets what it held. Which one, a third function
# says.
#
# {{source nanovllm/engine/block_manager.py:BlockManager._share}}
#
# {{source nanovllm/engine/block_manager.py:BlockManager._append_new_block}}
#
# {{source nanovllm/engine/block_manager.py:BlockManager.choose_block_to_evict}}

# %%
# {{exercise ch05.allocate}}

# %% [markdown]
# ## Milestone: the first prefix hit
#
# Your engine serves the three prompts, two steps apart. The picture is drawn from its run; jump to "sharing".
#
# ### Predict
#
# Together they have 73 tokens. How many does your engine compute?

# %%
my_guess = 73  # tokens; change me

me = mine()
small = me.LLM("qwen3-tiny", **PLAIN, kvcache_block_size=4, num_kvcache_blocks=20, max_model_len=64)
params = SamplingParams(temperature=0, max_tokens=4)
trace = record(small, prompts, params, arrive=[0, 2, 4], keep_error=True)

events = [event for step in trace["steps"] for event in step["events"]]
admitted = [event for event in events if event["event"] == "admit"]
for topic, event in zip(topics, admitted, strict=False):
    print(f"{topic:26} {event['cached']:3} tokens from the cache, {event['new']:3} computed")
computed = sum(event["new"] for event in admitted)
print(f"You expected {my_guess}; {computed} prompt tokens were computed.")
BlockTable(trace)

# %% [markdown]
# ## What a hit saves
#
# The time until the first token is the time that a user waits. Here a system message of more than 400 tokens comes
# with four questions, to your engine with and without prefix caching. Measured on this run.

# %%
rules = "You are a friendly helper. Keep the sentences short. Never be rude. " * 25
pool = PLAIN | {"kvcache_block_size": 16, "num_kvcache_blocks": 64, "max_model_len": 512}
figure, axis = plt.subplots(figsize=(8, 2.4))

for k, (name, color) in enumerate([("without", ORANGE), ("with cache", BLUE)]):
    with me.LLM("qwen3-tiny", enable_prefix_caching=name == "with cache", **pool) as engine:
        engine.generate([list(range(400))], params, use_tqdm=False)  # the first run is slow
        waits, computed = [], 0
        for topic in ["explain a cat", *topics]:
            (answer,) = engine.generate(rules + topic, params, use_tqdm=False)
            waits.append(1000 * answer["metrics"]["time_to_first_token"])
            computed += answer["num_prompt_tokens"] - answer["num_cached_tokens"]
        print(f"{name:10}: {computed:5} prompt tokens computed")
    bars = axis.bar([n + 0.4 * k for n in range(4)], waits, 0.38, color=color, label=name)
    axis.bar_label(bars, fmt="%.0f")

axis.set(ylabel="ms to the first token", xlabel="question", xticks=[0.2, 1.2, 2.2, 3.2])
axis.set_xticklabels(["first", "second", "third", "fourth"])
axis.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
plt.show()

# %% [markdown]
# The first question pays for all. After it, a question costs its own few tokens.
#
# ## Taking back
#
# A sequence ends, or has to make room. Its blocks become free, except those that somebody else still uses. Freed
# blocks **keep their names**: free blocks are the cache, at no cost. `free_block_ids` is a dict of which only the keys
# and their order matter. A new key goes to the right end.
#
# ### Predict
#
# Five blocks of A are freed. A newcomer needs one block. Which of A's blocks should it get: the first of the
# prompt, or the last? Think of A's prompt coming again.

# %%
my_guess = "first or last?"  # change me, then solve the exercise; the answer comes below

# %%
# {{exercise ch05.deallocate}}

# %% [markdown]
# ### Plug in
#
# Your manager, with A's 20 tokens in 5 of 6 blocks. A ends, N passes through and takes two blocks, one of them A's.
# Then A's prompt comes again. Beside it, the same with the blocks given back in the other order.

# %%
me = mine()
Manager = me.engine.block_manager.BlockManager


class OtherOrder(Manager):
    def deallocate(self, seq):
        seq.block_table.reverse()
        super().deallocate(seq)


def serve(manager, token_ids):
    """One request, from its arrival to its end; returns the tokens it found in the cache."""
    seq = start(manager, token_ids)
    num_hits = seq.num_cached_tokens
    manager.deallocate(seq)
    return num_hits


for manager in (Manager(6, 4), OtherOrder(6, 4)):
    hits = [serve(manager, token_ids) for token_ids in (range(20), range(90, 97), range(20))]
    print(f"{manager.__class__.__name__:13} A finds {hits[2]} of its 20 tokens again")

# %% [markdown]
# One block was lost in both runs. In one of them it was the head of the chain, and without it the other blocks
# cannot be reached, although they are still there. So the **tail goes first**: what is left is always a prefix.
#
# Between requests, the one that ended longest ago loses its blocks first: least recently used, **LRU**. A block
# that is hit again goes back to the right end when its new owner ends.

# %% [markdown]
# ## One block more
#
# In decode each sequence gets one token a step. Most of them land in a block that is there already.
#
# ### Predict
#
# A prompt of 24 tokens, and 40 new ones. How often does the sequence take a new block while it writes, with blocks
# of 4? Of 16?

# %%
my_guesses = {4: 40, 16: 40}  # blocks taken in decode; change me

# %%
# {{exercise ch05.may_append}}

# %%
me = mine()
params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
figure, axes = plt.subplots(1, 2, sharey=True)

for axis, (block_size, my_guess) in zip(axes, my_guesses.items(), strict=True):
    pool = PLAIN | {"kvcache_block_size": block_size, "num_kvcache_blocks": 32, "max_model_len": 80}
    trace = record(me.LLM("qwen3-tiny", **pool), prompts[:1], params, keep_error=True)
    states = [step["after"]["seqs"].get("0") for step in trace["steps"]]
    states = [state for state in states if state]
    slots = [block_size * len(state["table"]) for state in states]
    stored, steps = [state["kv"] for state in states], range(len(states))
    axis.fill_between(steps, stored, slots, step="mid", color=GRAY, label="reserved, empty")
    axis.fill_between(steps, 0, stored, step="mid", color=BLUE, label="keys and values")
    taken = len(states[-1]["table"]) - len(states[0]["table"])
    axis.set(title=f"blocks of {block_size}: {taken} taken", xlabel=f"step (you said {my_guess})")
axes[0].legend(loc="lower right")
axes[0].set(ylabel="slots of the sequence")
plt.show()

# %% [markdown]
# The stairs are the block table of *your* engine. The gray part is all that paging wastes.
#
# ## How large is a block?
#
# Small blocks leave few slots empty, as in chapter 4, and share more of a prefix. But tables get long, and every block
# costs a name, a lookup and a jump in memory. Move the slider. The table below says the same in numbers, for six
# requests of this chapter, as if they had their first 16 tokens in common.

# %%
BlockSizeExplorer(lengths=lengths[:2] + lengths[6:], shared_prefix=16)

# %% [markdown]
# The engine's default is 256, for requests of thousands of tokens on a GPU; vLLM's is 16. With the short requests
# here, 256 would mean one block a request: nothing is shared, and most of it is empty.
#
# ## A hundred requests
#
# 100 requests arrive one after the other. Each starts with 64 tokens and has 16 to 48 more. In 70 of them, the first 64
# are the same; everything else is different. The real scheduler and block manager serve them; random numbers stand for
# the tokens.
#
# ### Predict
#
# Which share of all prompt tokens comes from the cache?

# %%
my_guess = 70  # percent; change me

simulation = PrefixSimulation()
print(f"You expect {my_guess} %; it is {100 * simulation.simulation.hit_rate():.0f} %.")
simulation

# %% [markdown]
# Less than 70 %, because each prompt has a part of its own, and somebody has to be first. Now let only 10 % share, and
# give the pool 24 blocks: often the prefix is evicted between two visits.
#
# ## When a block gets its name
#
# `hash_blocks` runs when a step is **scheduled**, before the keys and values exist.
#
# {{source nanovllm/engine/block_manager.py:BlockManager.hash_blocks}}
#
# That looks too early. But it lets two requests share that arrive in the **same** step. It is safe because each layer
# first stores the keys and values of all tokens of the step, and only then lets any of them attend. If the step
# raises an error, nobody knows what was stored: the engine begins anew with an empty cache (`reset`).

# %%
me = mine()
small = me.LLM("qwen3-tiny", **PLAIN, kvcache_block_size=4, num_kvcache_blocks=20, max_model_len=64)
params = SamplingParams(temperature=0, max_tokens=4)
trace = record(small, prompts, params, keep_error=True)  # all at once
for event in trace["steps"][1]["events"]:
    if event["event"] == "admit":
        print(f"in step 1: {event['cached']:3} tokens from the cache, {event['new']:3} computed")

# %% [markdown]
# ## Your engine
#
# Everything at once: the questions from the beginning, in a pool so small that blocks change hands all the time. Does
# your engine write the same text as ours?

# %%
pool = PLAIN | {"kvcache_block_size": 16, "num_kvcache_blocks": 20, "max_model_len": 256}
with me.LLM("qwen3-tiny", **pool) as engine:
    my_answers = engine.chat(chats, greedy, use_tqdm=False)

pairs = zip(answers, my_answers, strict=True)
same = sum(ours["text"] == theirs["text"] for ours, theirs in pairs)
print(f"{same} of {len(answers)} answers are the same")
me

# %% [markdown]
# ## Change it
#
# * In the first picture, let C write 20, 24 and 28 tokens instead of 12, and D arrive at step 40. What is left for D?
# * Put a letter before the system message of one prompt. What is left of the hits? Where in a system message would
#   you put today's date?
# * In `OtherOrder`, free the blocks in random order. How many tokens does A find?
# * Break something on purpose: let `allocate` take new blocks first, and read what the check says.
#   `show("ch05.allocate")` puts your run beside ours.

# %% [markdown]
# ## Recap
#
# 1. Blocks of equal size make all free memory usable; what is lost is less than one block a request.
# 2. A chained hash names a block by its tokens and all before them, so an equal prefix is found with one lookup a
#    block.
# 3. Reference counts say who shares a block; it is free when the last owner lets go.
# 4. Freed blocks are the cache. The longest unused goes first, and of one request the tail.
# 5. A hit saves computing and memory, never the last token of a prompt.

# %% [markdown]
# ## Explain it aloud
#
# * Why may a shared block never be written? Who guarantees it?
# * A hash is a hit, but the tokens differ. What would happen without comparing them?
# * Why is a cached block that is free not free of cost for `can_allocate`?

# %% [markdown]
# ## Read further
#
# * The PagedAttention paper: Kwon et al., *Efficient Memory Management for Large Language Model Serving with
#   PagedAttention*, SOSP 2023, section 3.1 (what is wasted) and 4.2 to 4.4 (block tables, sharing).
# * vLLM: `vllm/v1/core/block_pool.py` (`BlockPool.get_new_blocks`, `free_blocks`) and `vllm/v1/core/kv_cache_utils.py`
#   (`hash_block_tokens`, `FreeKVCacheBlockQueue`).
# * Another way to find prefixes, by a tree: Zheng et al., *SGLang: Efficient Execution of Structured Language Model
#   Programs*, 2024, section 3 (RadixAttention).
#
# Next, the scheduler: who gets blocks, who waits, and who has to give them back.
