# %% [markdown]
# # 5 · Block manager
#
# *Memory in pages: who owns which block, who may share it, and which one goes first.*
#
# You will
#
# * see memory that is free and cannot be used, and how pages mend that,
# * write the five functions that name, count, hand out and take back blocks,
# * get the first prefix hit of your own engine: tokens that nobody has to compute again,
# * decide which block is forgotten first, and try to beat the usual rule.
#
# Plan an hour and a half; the exercises are an hour of it. Everything runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# A request is a `Sequence` now: tokens, and a block table that is still empty. The block manager fills it.
#
# Below is the map of your engine. What is not yours yet is ours, so that it always runs.

# %%
# %load_ext exercises
mine()

# %%
import figures

import nanovllm
from exercises.kit import workloads
from nanovllm import LLM, SamplingParams
from nanovllm.engine.block_manager import BlockManager
from nanovllm.engine.sequence import Sequence
from nanovllm.viz import Bars, BlockSizeExplorer, BlockTable, Boxes, PrefixExplorer, PrefixSimulation, record

PLAIN = {"device": "cpu", "disabled_optimizations": "all"}  # without the levers of chapter 17
SMALL = PLAIN | {"kvcache_block_size": 4, "num_kvcache_blocks": 40, "max_model_len": 64}

# %% [markdown]
# ## Why: memory that is free, and cannot be used
#
# Chapter 4 counted what is lost if every request reserves room for the longest text. Suppose we knew each length, and
# reserved exactly that. Would all be well?
#
# 300 requests pass through a memory of 1,024 slots. Each needs one piece, as long as one of ten real requests was, and
# takes the first hole that is long enough.
#
# ### Predict
#
# We keep the worst moment: more slots are free than the newcomer needs, and still it does not fit.

# %%
lengths = [83, 126, 27, 27, 88, 29, 177, 76, 63, 75]
picture = Bars("free slots", 1024, {"all slots": 1024}, step=4)
predict("free slots", "In that moment, how many of the 1,024 slots are free?", unit="slots", picture=picture)

# %%
memory, length = figures.worst_moment(lengths)
reveal("free slots", memory.count(0))
figures.pieces_and_blocks(memory, length)

# %% [markdown]
# This is **fragmentation**. On the right is the same moment in **blocks** of 16 slots. The blocks of a request need not
# be neighbors, so any free block will do. What is lost is gray: less than one block a request.
#
# The idea is older than language models: an operating system gives each process pages, and a page table says where
# they are. A **block table** is our page table. Two processes can share a page, a library say; two requests can share
# a block, the common start of their prompts.

# %%
figures.page_tables()

# %% [markdown]
# ## A picture
#
# A real run of the engine, in blocks of 4 tokens. Jump to these four moments with the buttons, and watch the pool and
# the free list at the bottom. `ref` counts the tables that a block is in.
#
# * *sharing*: B begins like A. Two of its blocks are A's, with `ref 2`.
# * *first finish*: A's own blocks are free. One is hatched: it still holds what it held.
# * *eviction*: C takes a block from the left end of the free list. What it held is lost.
# * *revival*: A and B have ended. D begins like A, and still finds two blocks.

# %%
tiny = LLM("qwen3-tiny", **PLAIN, kvcache_block_size=4, num_kvcache_blocks=8, max_model_len=32)
cat, dog = "Once upon a time there was a little cat", "Once upon a time there was a little dog"
params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (5, 8, 12, 3)]
BlockTable(record(tiny, [cat, dog, "The sun was warm", cat], params, arrive=[0, 2, 8, 18]))

# %% [markdown]
# So a block is in one of four states. The picture names the functions that move it; they are what you write.

# %%
figures.block_states()

# %% [markdown]
# This is what the manager knows.
#
# {{source nanovllm/engine/block_manager.py:Block}}
#
# {{source nanovllm/engine/block_manager.py:BlockManager.reset}}

# %% [markdown]
# ## A name for what a block holds
#
# To share a block we must find it. So every full block gets a **hash**, a number of 64 bits that is computed from its
# content. One look into `hash_to_block_id` finds it.
#
# ### Predict
#
# Three prompts with the same system message have 24 or 25 tokens each. The first 17 tokens are the same.

# %%
picture = Boxes({f"block {i}": 4 for i in range(6)}, owner=1)
predict("hits", "In blocks of 4, which block of the second prompt is the last one that is a hit?", picture=picture)


# %%
def ask(question):
    """A question with the system message before it, as the model reads it."""
    system = {"role": "system", "content": "You are a friendly helper."}
    chat = [system, {"role": "user", "content": question}]
    return tiny.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


topics = ["explain machine learning", "explain deep learning", "explain neural networks"]
prompts = [ask(topic) for topic in topics]
names = ["Tom has a red ball. Where is it?", "Mia has a red ball. Where is it?"]
explorer = PrefixExplorer(presets={"three topics": prompts, "another name": names})
states = [block.state for block in explorer.explained(0)[1].blocks]
reveal("hits", f"block {states.count('hit') - 1}")
explorer

# %% [markdown]
# Only full blocks are shared, and only up to the first miss, even where tokens are equal again.
#
# Why? Attention has mixed into a token's keys and values all that came **before** it. Choose "another name", and
# uncheck "hashes are chained": the second block has the same tokens in both, but its keys and values know about Tom.
# So the hashes form a **chain**: each is made of the block's own tokens and the hash of the block before.
#
# ### What happens without it
#
# Below, a name is made of the block's own tokens only, and the engine trusts names. You ask for a short text; and once
# more, after somebody else has asked for a longer one that contains it.


# %%
def two_requests(engine):
    """A short text by itself; and after a longer one, in the middle of which it lies."""
    tale = "Once upon a time there was a little girl named Mia. She had a"
    longer = "Here is a story about a dog named Max.\n" + tale
    params = SamplingParams(temperature=0, max_tokens=16)
    for when, prompts in {"alone": [tale], "after the longer one": [longer, tale]}.items():
        with engine.LLM("qwen3-tiny", **SMALL, enable_prefix_caching=True) as llm:
            workloads.trust_hashes(llm)
            for prompt in prompts:
                (answer,) = llm.generate(prompt, params, use_tqdm=False)
        print(f"{when:21}{answer['num_cached_tokens']:3} cached  ...{tale[-9:]}{answer['text']}")


two_requests(without("ch05.compute_hash"))

# %% [markdown]
# The same prompt should give the same text. But twelve tokens came from the cache, and none should: their keys and
# values know of somebody else's dog.
#
# The tools: `xxhash.xxh64()` makes a hasher, `update` feeds it bytes, `intdigest()` reads the number. A token id does
# not fit into one byte.

# %%
# {{exercise ch05.compute_hash}}

# %%
# Plugged in: the same two requests, with your names for the blocks.
me = mine()
print(me.whose("ch05.compute_hash"))
two_requests(me)

# %% [markdown]
# ## Finding a prefix
#
# The longest cached prefix is found by a walk along the chain, until something is missing. Two hashes can be equal by
# accident, so the tokens and the block before are compared, too.
#
# {{source nanovllm/engine/block_manager.py:BlockManager.find_cached_blocks}}
#
# `_block_hash` calls your `compute_hash` once for each full block, and remembers the answers.
#
# {{source nanovllm/engine/block_manager.py:BlockManager._block_hash}}

# %% [markdown]
# Look at the bounds of the first loop: `num_tokens - 1`. **At least one prompt token is always computed**, because the
# next token is sampled from its output, and outputs are not kept. A shared block must never be written, so the
# whole block of that token is computed anew.
#
# Blocks get their names when a step is *scheduled*, before the keys and values exist. So two requests of the same
# step can share. That is safe: each layer stores the keys and values of the whole step before any token attends. If a
# step fails, nobody knows what was stored, and `reset` empties the cache.
#
# <details><summary>The code that writes the names (not needed for the exercises)</summary>
#
# {{source nanovllm/engine/block_manager.py:BlockManager.hash_blocks}}
#
# {{source nanovllm/engine/block_manager.py:BlockManager._register}}
#
# </details>

# %% [markdown]
# ## Would it fit?
#
# Before the scheduler admits a sequence, it asks. The counting is given. Mind what is counted: not new blocks, but
# those that leave the free ones. A hit on a free block is not new, and leaves them all the same.
#
# {{source nanovllm/engine/block_manager.py:BlockManager.num_free_blocks_needed}}

# %%
# {{exercise ch05.can_allocate}}

# %% [markdown]
# ## Handing out
#
# Two functions do the bookkeeping for one block each. Mind that they differ: only one of them writes into the block
# table. Which free block is taken, a third one says.
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
# Together the prompts have 73 tokens. You know how many blocks the second one shares.

# %%
predict("computed", "How many of the 73 prompt tokens does your engine compute?", unit="tokens")

# %%
me = mine(enable_prefix_caching=True, max_num_seqs=4)
print(me.whose("ch05.compute_hash", "ch05.can_allocate", "ch05.allocate"))
small = me.LLM("qwen3-tiny", **SMALL | {"num_kvcache_blocks": 20})
params = SamplingParams(temperature=0, max_tokens=4)
trace = record(small, prompts, params, arrive=[0, 2, 4], keep_error=True)

events = [event for step in trace["steps"] for event in step["events"]]
admitted = [event for event in events if event["event"] == "admit"]
for topic, event in zip(topics, admitted, strict=False):
    print(f"{topic:26} {event['cached']:3} tokens from the cache, {event['new']:3} computed")
reveal("computed", sum(event["new"] for event in admitted))
BlockTable(trace)

# %% [markdown]
# ### A hundred requests
#
# The prompts of 100 requests have 97 tokens on average. 70 of them begin with the same 64, a system prompt. The
# pool has 64 blocks of 16 tokens.

# %%
predict("hit rate", "Which share of all prompt tokens comes from the cache?", unit="%")

# %%
simulation = PrefixSimulation()
reveal("hit rate", round(100 * simulation.simulation.hit_rate()))
simulation

# %% [markdown]
# All but the first of the 70 find the 64 tokens. Look at the table, too: shared blocks are memory saved, so fewer
# requests have to step aside. (Who steps aside reads its prompt again, so the table counts more tokens than the prompts
# have.)
#
# ## Taking back
#
# A sequence ends, or steps aside. Its blocks become free, except those that somebody else still uses. Freed blocks
# **keep their names**: the cache is made of free blocks, and needs no memory of its own.
#
# ### What happens without it
#
# Requests of 7 tokens, one after the other, in a pool of 8 blocks of 4.


# %%
def free_after_each(engine):
    """Free blocks after each of eight requests, up to the first that does not fit."""
    manager, free = engine.engine.block_manager.BlockManager(8, 4), [8]
    for n in range(8):
        if not manager.can_allocate(Sequence([n] * 7, block_size=4)):
            break
        manager.deallocate(workloads.start(manager, [n] * 7))
        free.append(len(manager.free_block_ids))
    return free


levels = {"our engine": free_after_each(nanovllm), "without deallocate": free_after_each(without("ch05.deallocate"))}
figures.pool_level(levels, 8)

# %% [markdown]
# (A whole engine like that would wait for ever; the stop button ends it.)
#
# ### Predict
#
# A has 20 tokens, and fills all five blocks of a pool. It ends. N needs one block, and takes one of A's. Then A's
# prompt comes again.

# %%
picture = Boxes({f"block {i}": 4 for i in range(5)}, in_order=True, owner=0)
predict(
    "victim", "Which block should N take, so that A finds most? Click all five, the best choice first.", picture=picture
)

# %%
found = {f"block {i}": workloads.found_again(BlockManager(5, 4), takes=i) for i in range(5)}
print("tokens that A finds, if N takes", found)
reveal("victim", sorted(found, key=found.get, reverse=True))

# %% [markdown]
# Without the first block the others cannot be reached, although they are still there. So the **tail goes first**: what
# is left is always a prefix.
#
# The next block is taken from the left end of `free_block_ids`, a dict of which only the keys and their order matter.
# New keys go to its right end. So, between requests, the one that ended longest ago loses its blocks first: least
# recently used, **LRU**.

# %%
# {{exercise ch05.deallocate}}

# %%
# Plugged in: A and N once more, in your manager, and then the eight that come and go.
me = mine()
print(me.whose("ch05.allocate", "ch05.deallocate"))
found = workloads.found_again(me.engine.block_manager.BlockManager(5, 4))
print(f"A finds {found} of its 20 tokens again")
print("free blocks after each of eight requests:", free_after_each(me))

# %% [markdown]
# ## One block more
#
# In decode each sequence gets one token a step. Most of them land in a block that is there already.
#
# ### Predict
#
# A prompt of 24 tokens, and 40 new ones, in blocks of 4.

# %%
predict("of 4", "How often does it take a new block while it writes?", unit="blocks")

# %%
# {{exercise ch05.may_append}}

# %%
me, traces = mine(), {}
print(me.whose("ch05.may_append"))
params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
for block_size in (4, 16):
    pool = PLAIN | {"kvcache_block_size": block_size, "num_kvcache_blocks": 32, "max_model_len": 80}
    engine = me.LLM("qwen3-tiny", **pool)
    traces[f"blocks of {block_size}"] = record(engine, prompts[:1], params, keep_error=True)
taken = figures.stairs(traces)
reveal("of 4", taken["blocks of 4"])

# %% [markdown]
# The stairs are the block table of *your* engine. The gray part is all that paging wastes.
#
# How large should a block be? Move the slider. Small blocks waste less, and share more of a prefix; but every block
# costs an entry in the table, a name, and a jump in memory. vLLM's default is 16; ours is 256, for long requests on a
# GPU: 28 MiB a block with Qwen3-0.6B, of which a card of 80 GB holds about 2,400.

# %%
BlockSizeExplorer()

# %% [markdown]
# ## Which block goes first? You decide
#
# Where a card has room for a few long requests, eviction is daily business, and LRU is only one policy. Try others on
# 400 requests of a small chat service, in 48 blocks of 16 tokens. Two of five are documents that come once. The others
# are talks with one of three assistants; a talk comes back with all that was said so far, and a bit more.
# `help(workloads.chat_service)` tells more about it.
#
# ### Predict
#
# With a pool without end, 47 % of all prompt tokens would come from the cache.

# %%
picture = Bars("LRU, small pool", 100, {"a pool without end": 47}, "%")
predict("lru", "Which share of all prompt tokens does LRU find in the small pool?", unit="%", picture=picture)

# %%
# {{exercise ch05.choose_block_to_evict}}

# %%
total = sum(len(prompt) for prompt in workloads.chat_service())
found = {"a random block": workloads.RANDOM_FINDS, "LRU": workloads.tokens_found(nanovllm)}
reveal("lru", round(100 * found["LRU"] / total))

me = mine("ch05.choose_block_to_evict")
print(me.whose("ch05.choose_block_to_evict"))
found["your engine"] = workloads.tokens_found(me)
figures.hit_rates(found, total, workloads.BAR)

# %% [markdown]
# Ours finds a fifth more than LRU, nearly all that a pool without end would. But it was made for this work:
# `workloads.tokens_found(me, seed=1)` is another day of the same service.
#
# ## Your engine
#
# The map, and how fast it is now: measured on one fixed work, in turn with the naive loop of chapter 1.

# %%
me = mine()
print(me.whose("ch05"))
display(me)
staircase("05")

# %% [markdown]
# ## Change it
#
# * In the first picture, let C write 20, 24 and 28 tokens instead of 12, and D arrive at step 40. What is left for D?
# * Put a letter before the system message of one prompt. What is left of the hits? Where in a system message would
#   you put today's date?
# * In `PrefixSimulation()`, move the pool to 24 blocks, and then to 128. What does the cache save in each?
# * Break something on purpose: let `allocate` take new blocks first, and read what the check says.
#   `show("ch05.allocate")` puts your run beside ours.

# %% [markdown]
# ## Recap
#
# 1. Blocks of equal size make all free memory usable; what is lost is less than one block a request.
# 2. A chained hash names a block by its tokens and all before them, so an equal prefix is found with one lookup a
#    block.
# 3. Reference counts say who shares a block; it is free when the last owner lets go.
# 4. The cache is made of free blocks. The longest unused goes first, and of one request the tail.
# 5. A hit saves computing and memory, never the last token of a prompt.

# %% [markdown]
# ## Explain it aloud
#
# * Why may a shared block never be written? Who guarantees it?
# * A hash is found, but the tokens differ. What would happen without comparing them?
# * The cache takes no memory of its own. Why, then, does `can_allocate` count a cached block that is free?
#
# <details><summary>Three answers to the last question; say yours first</summary>
#
# *Weak:* because it is in the cache.
#
# *Good:* a block that nobody uses is one of the free ones. Using it takes it out of them.
#
# *Excellent:* and so a hit on it saves computing, but no room; a block that somebody is using saves both. If it did
# not count, it would be promised twice, and `allocate` would fail after a yes.
#
# </details>

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
