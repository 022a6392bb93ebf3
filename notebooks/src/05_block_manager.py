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
# Plan an hour and a half; the exercises are nearly an hour of it. Everything runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# A request is a `Sequence` now: tokens, and a block table that is still empty. The block manager fills it.
# Below is the map of your engine. What you have written is yours; everything else is ours, so that it always
# runs. Until `compute_hash` and `allocate` are yours, your engine has no prefix cache.

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
from nanovllm.viz import BlockTable, PrefixExplorer, record

PLAIN = {"device": "cpu", "disabled_optimizations": "all"}  # the faster paths of chapter 17 are off
SMALL = PLAIN | {"kvcache_block_size": 4, "num_kvcache_blocks": 40, "max_model_len": 64}

# %% [markdown]
# ## Why: memory that is free, and cannot be used
#
# Every token leaves a key and a value in the KV cache. Chapter 4 counted the slots that stay empty if every request
# reserves room for the longest text. Suppose we knew each length, and reserved exactly that. Would all be well?
#
# We take the lengths of ten real requests. Then 300 requests with such lengths pass through a memory of 1,024 slots,
# each in one piece. A newcomer takes the first hole that is long enough. If there is none, somebody has to end first.

# %%
llm = LLM("qwen3-tiny", **PLAIN, max_model_len=256)
questions = ["introduce yourself", "list all prime numbers within 100", "What is 12 + 7?"]
questions += ["Spell the word garden.", "Count from 1 to 20.", "What is the capital of France?"]
questions += ["Tell me a story about a cat.", "explain machine learning", "explain deep learning"]
questions += ["explain neural networks"]
chats = [[{"role": "user", "content": question}] for question in questions]
greedy = SamplingParams(temperature=0, max_tokens=200)

print("ten requests, some seconds")
answers = llm.chat(chats, greedy, use_tqdm=False)
lengths = [answer["num_prompt_tokens"] + len(answer["token_ids"]) for answer in answers]
print("tokens of each request, question and answer:", lengths)

# %% [markdown]
# ### Predict
#
# We keep the worst moment: slots are free, more than the newcomer needs, and still it does not fit.

# %%
predict("free slots", "In that moment, how many of the 1,024 slots are free?", unit="slots")

# %%
memory, length = figures.worst_moment(lengths)
reveal("free slots", memory.count(0))
figures.pieces_and_blocks(memory, length)

# %% [markdown]
# This is **fragmentation**: memory is there, and it cannot be used. On the right is the same moment in **blocks** of 16
# slots. Blocks of one request need not be neighbors, so any free block will do. What is lost is gray: less than one
# block a request, whatever the lengths.
#
# The idea is older than language models. An operating system gives each process pages, and a page table says where
# they are. A **block table** is our page table: entry `i` names the block that holds tokens `i * block_size` to
# `(i + 1) * block_size - 1`. Two processes can share a page (a library, say), and two requests a block: the common
# start of their prompts.

# %%
figures.page_tables()

# %% [markdown]
# ## A picture
#
# A real run of the engine. A block holds 4 tokens here, so that you can read each one.
#
# Step through it with the buttons, or the slider and the arrow keys. Watch the pool, and the free list at the bottom.
# `ref` counts the tables that a block is in. The buttons jump to four things:
#
# * *sharing*: B begins like A. Two of its blocks are A's, with `ref 2`.
# * *first finish*: A's own blocks are free. One is hatched: it still holds what it held.
# * *eviction*: C takes a block from the left end of the free list. What it held is lost.
# * *revival*: D begins like A, too. A and B have ended, and still D finds two blocks.

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
# gets a **hash**: a number of 64 bits, computed from its content. One look into a dictionary finds it.
#
# But what is its content? Here are three prompts with the same system message. The widget shows their blocks, and
# what the cache says about each.
#
# ### Predict
#
# The prompts have 24 or 25 tokens. The first 17 of them, up to `explain`, are the same.

# %%
predict("hits", "In blocks of 4, how many blocks of the second prompt are hits?", unit="blocks")


# %%
def ask(question):
    """A question with the system message before it, as the model reads it."""
    system = {"role": "system", "content": "You are a friendly helper."}
    chat = [system, {"role": "user", "content": question}]
    return llm.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


topics = ["explain machine learning", "explain deep learning", "explain neural networks"]
prompts = [ask(topic) for topic in topics]
names = ["Tom has a red ball. Where is it?", "Mia has a red ball. Where is it?"]
explorer = PrefixExplorer(presets={"three topics": prompts, "another name": names})
reveal("hits", sum(block.state == "hit" for block in explorer.explained(0)[1].blocks))
explorer

# %% [markdown]
# Only whole blocks are shared. After the first miss nothing is found, even where tokens are equal again.
#
# Why? Attention has mixed into a token's keys and values all that came **before** it. Choose "another name" and uncheck
# "hashes are chained": the second block has the same tokens, but its keys and values know about Tom. So a block's name
# must stand for its tokens *and for everything before them*. A chain does that cheaply: the hash of a block is made of
# its own tokens and of the hash of the block before.
#
# ### What happens without it
#
# Below, the name of a block is made of its own tokens only, and the engine trusts names. Somebody asks for the longer
# text; then you ask for the shorter one.


# %%
def two_requests(engine):
    """The longer text first, then the shorter one, which lies in the middle of the longer one."""
    tale = "Once upon a time there was a little girl named Mia. She had a"
    params = SamplingParams(temperature=0, max_tokens=16)
    with engine.LLM("qwen3-tiny", **SMALL, enable_prefix_caching=True) as llm:
        workloads.trust_hashes(llm)
        for prompt in ["Here is a story about a dog named Max.\n" + tale, tale]:
            (answer,) = llm.generate(prompt, params, use_tqdm=False)
            print(f"{answer['num_cached_tokens']:3} cached  ...{prompt[-9:]}{answer['text']}")


two_requests(without("ch05.compute_hash"))

# %% [markdown]
# Twelve tokens came from the cache, and none should: nobody has begun with them. The second text goes on about the
# friend from somebody else's story. That is how one user's data gets into another's answer.
#
# The tools: `xxhash.xxh64()` makes a hasher, `update` feeds it bytes, `intdigest()` reads the number. A token
# id does not fit into one byte.

# %%
# {{exercise ch05.compute_hash}}

# %%
# Plug in: the same two requests, with your names for the blocks.
me = mine()
print(me.whose("ch05.compute_hash"))
two_requests(me)

# %% [markdown]
# ## Finding a prefix
#
# With names, finding the longest cached prefix is a walk along the chain until something is missing.
#
# {{source nanovllm/engine/block_manager.py:BlockManager.find_cached_blocks}}
#
# Two hashes can be equal by accident, so the tokens and the block before are compared as well. And look at the bounds
# of the loop: `num_tokens - 1`.
#
# ### Predict
#
# The same prompt of 24 tokens comes twice, in blocks of 4. All of it is in the cache.

# %%
predict("second time", "How many of its 24 tokens are taken from the cache the second time?", unit="tokens")

# %%
params = SamplingParams(temperature=0, max_tokens=2)
for _ in range(2):
    (answer,) = tiny.generate(prompts[0], params, use_tqdm=False)
    print(f"{answer['num_cached_tokens']} of {answer['num_prompt_tokens']} tokens from the cache")
reveal("second time", answer["num_cached_tokens"])

# %% [markdown]
# One block less. The next token is sampled from the output of the last one, and outputs are not kept, only keys
# and values. So **at least one prompt token is always computed**. A shared block must never be written, so its
# whole block is computed anew.
#
# ### When a block gets its name
#
# {{source nanovllm/engine/block_manager.py:BlockManager.hash_blocks}}
#
# This runs when a step is **scheduled**, before the keys and values exist. It looks too early, but it lets two requests
# share that arrive in the same step. It is safe because each layer first stores the keys and values of all tokens of
# the step, and only then lets any of them attend. If the step raises an error, nobody knows what was stored: the
# engine begins anew with an empty cache (`reset`).
#
# ## Would it fit?
#
# Before the scheduler admits a sequence, it asks. The counting is given.
#
# {{source nanovllm/engine/block_manager.py:BlockManager.num_new_blocks}}
#
# ### Predict
#
# Requests have the same 16 tokens at the start and 8 of their own: 6 blocks of 4 each. The pool has 20.

# %%
predict("apart", "How many of them fit at the same time without sharing?", unit="requests")
predict("together", "And how many with sharing?", unit="requests")

# %%
# {{exercise ch05.can_allocate}}

# %%
me = mine()
print(me.whose("ch05.can_allocate"))


def start(manager, token_ids):
    """A request arrives, and a step computes its tokens: the blocks that it fills get their names."""
    seq = Sequence(token_ids, block_size=4)
    manager.allocate(seq)
    seq.num_scheduled_tokens = len(seq) - seq.num_cached_tokens
    manager.hash_blocks(seq)
    return seq


def num_fitting(caching):
    """How many requests with the same first 16 tokens get their 6 blocks, in a pool of 20."""
    manager = me.engine.block_manager.BlockManager(20, 4, enable_prefix_caching=caching)
    for n in range(20):
        request = [*range(16), *[100 + n] * 8]
        if not manager.can_allocate(Sequence(request, block_size=4)):
            return n
        start(manager, request)


reveal("apart", num_fitting(caching=False))
reveal("together", num_fitting(caching=True))

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
# ## What a hit saves
#
# The time until the first token is the time that a user waits. Here a system message of more than 400 tokens comes
# with four questions, one after the other, to your engine with and without prefix caching.
#
# ### Predict
#
# The first question pays for all. Each of the others has a few tokens of its own.

# %%
predict("wait", "The fourth question: how long is the wait with a cache, as a share of that without?", unit="%")

# %%
rules = "You are a friendly helper. Keep the sentences short. Never be rude. " * 25
pool = PLAIN | {"kvcache_block_size": 16, "num_kvcache_blocks": 64, "max_model_len": 512}
waits = {"without": [], "with cache": []}

for name in waits:
    with me.LLM("qwen3-tiny", enable_prefix_caching=name == "with cache", **pool) as engine:
        engine.generate([list(range(400))], params, use_tqdm=False)  # the first run is slow
        computed = 0
        for topic in ["explain a cat", *topics]:
            (answer,) = engine.generate(rules + topic, params, use_tqdm=False)
            waits[name].append(1000 * answer["metrics"]["time_to_first_token"])
            computed += answer["num_prompt_tokens"] - answer["num_cached_tokens"]
    print(f"{name:10}: {computed:5} prompt tokens computed")
reveal("wait", round(100 * waits["with cache"][3] / waits["without"][3]))
figures.first_tokens(waits)

# %% [markdown]
# Far fewer tokens are computed, and the wait is shorter, but not in the same proportion: every step has costs of its
# own. With a large model, the tokens are what counts.
#
# ## Taking back
#
# A sequence ends, or has to make room. Its blocks become free, except those that somebody else still uses. Freed
# blocks **keep their names**: the cache is made of free blocks, and needs no memory of its own. `free_block_ids` is a
# dict of which only the keys and their order matter. A new key goes to the right end; the next block is taken from the
# left.
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
        manager.deallocate(start(manager, [n] * 7))
        free.append(len(manager.free_block_ids))
    return free


levels = {"our engine": free_after_each(mine()), "without deallocate": free_after_each(without("ch05.deallocate"))}
figures.pool_level(levels, 8)

# %% [markdown]
# ### Predict
#
# A has 20 tokens, in 5 of 6 blocks. It ends, and its five blocks are freed, one after the other. Then N passes
# through and takes two blocks: the empty one, and one of A's. Then A's prompt comes again.

# %%
choices = ["the first of A's blocks", "the last of A's blocks", "it makes no difference"]
predict("victim", "Which block should N have got, so that A finds most of its tokens?", choices=choices)
predict("left", "And if N gets the other end: how many of its 20 tokens does A find?", unit="tokens")


# %%
class HeadFirst(BlockManager):
    """Ours, but blocks are given back in the other order."""

    def deallocate(self, seq):
        seq.block_table.reverse()
        super().deallocate(seq)


def serve(manager, token_ids):
    """One request, from its arrival to its end; returns the tokens it found in the cache."""
    seq = start(manager, token_ids)
    num_hits = seq.num_cached_tokens
    manager.deallocate(seq)
    return num_hits


hits = {}
for name, manager in (("last", BlockManager(6, 4)), ("first", HeadFirst(6, 4))):
    hits[name] = [serve(manager, token_ids) for token_ids in (range(20), range(90, 97), range(20))][2]
    print(f"N gets the {name:5} of A's blocks: A finds {hits[name]} of its 20 tokens again")
reveal("victim", choices[1])
reveal("left", hits["first"])

# %% [markdown]
# One block was lost in both runs. In one of them it was the head of the chain, and without it the other blocks
# cannot be reached, although they are still there. So the **tail goes first**: what is left is always a prefix.
#
# Between requests, the one that ended longest ago loses its blocks first: least recently used, **LRU**. A block
# that is hit again goes back to the right end when its new owner ends.

# %%
# {{exercise ch05.deallocate}}

# %%
# Plug in: your manager, with the requests from above. Then eight that come and go.
me = mine()
print(me.whose("ch05.allocate", "ch05.deallocate"))
manager = me.engine.block_manager.BlockManager(6, 4)
found = [serve(manager, token_ids) for token_ids in (range(20), range(90, 97), range(20))][2]
print(f"A finds {found} of its 20 tokens again")
print("free blocks after each of eight requests:", free_after_each(me))

# %% [markdown]
# ## One block more
#
# In decode each sequence gets one token a step. Most of them land in a block that is there already.
#
# ### Predict
#
# A prompt of 24 tokens, and 40 new ones.

# %%
predict("of 4", "How often does it take a new block while it writes, with blocks of 4?", unit="blocks")
predict("of 16", "And with blocks of 16?", unit="blocks")

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
reveal("of 16", taken["blocks of 16"])

# %% [markdown]
# The stairs are the block table of *your* engine. The gray part is all that paging wastes: small blocks waste less, and
# share more of a prefix, but every block costs a name, a lookup and a jump in memory. The engine's default is 256, for
# long requests on a GPU; vLLM's is 16.
#
# ### The real scale
#
# A token of Qwen3-0.6B takes 112 KiB, so a block of 256 takes 28 MiB. Of a card of 80 GB, 90 % may be filled; besides
# the weights there is room for about 2,400 blocks. Larger models take more for a token, and leave less room for it.

# %%
figures.real_scale()

# %% [markdown]
# ## Which block goes first? You decide
#
# Where a card has room for a few long requests, eviction is daily business. LRU is one policy. Here is work to try
# others on: 400 requests of a small chat service. Two of five are documents that come once. The others are talks with
# one of three assistants, each with its system prompt; a talk comes back with all that was said so far, and a bit more.
# The real scheduler and block manager run, with 48 blocks of 16 tokens. No model is needed: random numbers stand for
# the tokens.
#
# ### Predict
#
# With a pool without end, 47 % of all prompt tokens would come from the cache.

# %%
predict("lru", "Which share of all prompt tokens does LRU find in the small pool?", unit="%")

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
# Ours, in `solution("ch05.choose_block_to_evict")`, finds a fifth more than LRU, and nearly all that a pool without end
# would. Before you are proud of yours or ours: it was made for this work. With `workloads.tokens_found(me, seed=1)` the
# same service has another day.
#
# ## Your engine
#
# Everything at once: the ten questions, all with a system message, in a pool so small that blocks change hands all the
# time. Does your engine find the same in its cache as ours, and write the same?

# %%
me = mine(enable_prefix_caching=True, max_num_seqs=4)
print(me.whose("ch05"))
pool = PLAIN | {"kvcache_block_size": 4, "num_kvcache_blocks": 80, "max_model_len": 256, "max_num_seqs": 4}
runs = {}
for name, engine in (("ours", LLM), ("yours", me.LLM)):
    with engine("qwen3-tiny", **pool) as running:
        runs[name] = running.generate([ask(question) for question in questions], greedy, use_tqdm=False)
    cached, prompt = (sum(a[key] for a in runs[name]) for key in ("num_cached_tokens", "num_prompt_tokens"))
    print(f"{name:5}: {cached} of {prompt} prompt tokens from the cache")
same = sum(a["text"] == b["text"] for a, b in zip(*runs.values(), strict=True))
print(f"{same} of {len(questions)} answers are the same")
me

# %%
# And how fast is it now? Measured on one fixed work, in turn with the naive loop of chapter 1; each step is kept.
staircase("05")

# %% [markdown]
# ## Change it
#
# * In the first picture, let C write 20, 24 and 28 tokens instead of 12, and D arrive at step 40. What is left for D?
# * Put a letter before the system message of one prompt. What is left of the hits? Where in a system message would
#   you put today's date?
# * In `HeadFirst`, free the blocks in random order. How many tokens does A find?
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
# Answer first. Here are three answers to the last question:
#
# * *Weak*: because it is in the cache.
# * *Good*: a block that nobody uses is one of the free ones. Using it takes it out of them.
# * *Excellent*: and so a hit on it saves computing, but no room; a block that somebody is using saves both. If it did
#   not count, it would be promised twice, and `allocate` would fail after a yes.

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
