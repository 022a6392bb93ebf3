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
# * decide what of it travels to a worker process, and pack it into as few bytes as you can.
#
# You write four short functions, each of which runs in the engine as soon as it is written, and at the end a format of
# your own. Plan an hour and a half. Everything runs on a laptop's CPU.

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

import figures
from nanovllm import SamplingParams
from nanovllm.viz import Bars, SequenceView
from nanovllm.viz.record import record
from nanovllm.viz.sequence_view import moment


def greedy(max_tokens):
    return SamplingParams(temperature=0, max_tokens=max_tokens)


# %% [markdown]
# ## Why
#
# The KV cache has a **slot** for each token of each request. How many slots should a request get when it
# arrives? Nobody knows yet how long its answer will be. The simplest solution is to give it as many as the
# longest text that is allowed.
#
# ### Predict
#
# Twelve requests of a few words each want answers of 10, 22, 34, ... up to 142 tokens. The longest text allowed has
# 256. Each gets 256 slots.

# %%
picture = Bars("never used", 100, {"reserved": 100}, "%")
predict("reserved", "How much of the reserved memory is never used?", unit="%", picture=picture)

# %%
beginnings = ["Once upon a time", "One day, a small fox", "There was an old boat", "Tom had a new ball"]
longest = 256

with mine().LLM("qwen3-tiny", device="cpu", max_model_len=longest, max_num_seqs=12) as llm:
    limits = [greedy(10 + 12 * i) for i in range(12)]
    answers = llm.generate([beginnings[i % 4] for i in range(12)], limits, use_tqdm=False)

lengths = [answer["num_prompt_tokens"] + len(answer["token_ids"]) for answer in answers]
used, reserved = sum(lengths), longest * len(lengths)
print(f"reserved {reserved} slots, used {used}")
reveal("reserved", round(100 * (1 - used / reserved)))

# %% [markdown]
# Answers may end early, too. A cache that is mostly empty serves fewer requests at once, and the speed comes from
# serving many. So memory is handed out in small pieces of equal size, one after the other, as the text grows. The
# pieces are called **blocks**.

# %%
block_size = 16
Sequence = mine().engine.sequence.Sequence
in_blocks = [Sequence([0] * length, block_size=block_size).num_blocks * block_size for length in lengths]

figures.slots_of_requests(lengths, in_blocks, longest)
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
# | later | the rest | a later step computes them |
#
# These are about tokens. A sequence as a whole is in one of three **states**, its `status`:

# %%
figures.states()

# %% [markdown]
# ## A life
#
# Time to watch one. The engine below is made small on purpose. Its blocks hold **4 tokens**, so that you can
# read what is in them; real ones hold 16 to 256. The cache has 10 blocks. One step computes at most 6 tokens. And it
# is the plain engine, without the levers of chapter 17.
#
# There are two requests. A comes first and B one step later. B's prompt has 14 tokens.
#
# ### Predict

# %%
predict("a prompt in parts", "In how many steps is B's prompt read?")

# %%
SMALL = {"device": "cpu", "kvcache_block_size": 4, "num_kvcache_blocks": 10, "max_model_len": 40}
SMALL |= {"disabled_optimizations": "all", "enable_prefix_caching": True, "max_num_seqs": 4}
PROMPTS = ["The sun was warm and", "Once upon a time, there was a little girl named Mia."]


def life_of_two():
    """A trace of your engine: A arrives before the first step, B before the second."""
    with mine().LLM("qwen3-tiny", max_num_batched_tokens=6, **SMALL) as llm:
        return record(llm, PROMPTS, greedy(16), arrive=[0, 1])


trace = life_of_two()
_, b = [int(key) for key in trace["seqs"]]  # A and B
life = [moment(trace, b, i) for i in range(len(trace["steps"]))]
first_token = next(i for i, now in enumerate(life) if now.chosen)
reveal("a prompt in parts", sum(now.scheduled > 0 for now in life[: first_token + 1]))
SequenceView(trace, "B", predict=True)

# %% [markdown]
# Step through it with ▶, or jump with the buttons. (The widget calls the third range *waiting*. That is about tokens;
# WAITING, in capitals, is the state.)
#
# * *cut*: a step has room for 6 tokens, so 14 take three steps. Meanwhile B is still WAITING.
# * *first token*: the rest of the prompt is scheduled. B is RUNNING, and the model chooses a token.
# * *a block more*: the token in the thick frame is the first of a new block.
# * *preemption*: no block is left. B came last, so it gives its blocks back. It keeps its tokens.
# * *starts over*: there is room again. Were all of its blocks overwritten in the meantime?
#
# Below is the same life at a glance; a column is a step.

# %%
figures.ranges_of_a_life(life)

# %% [markdown]
# Look at the decode steps. In each, exactly one token is scheduled: the newest one. It has been chosen, but the model
# has not read it yet. You will meet this token again. In the steps that read the prompt it is different: there many are
# scheduled, and in the last of them B is RUNNING already.
#
# And look at the step after the gap. After the preemption nothing was cached. Yet most tokens are cached at
# once when B comes back: their blocks were free, but nobody had overwritten them. How the engine finds them
# again is the subject of chapter 5.

# %% [markdown]
# ## How many blocks?
#
# A sequence knows how many blocks its tokens need. We write `seq.num_blocks`, without parentheses, and still it is a
# function. This is what `@property` does: it looks like an attribute and is computed whenever somebody asks.
#
# Why not store the number? Here are two boxes of words; one stores a length, the other derives it.
#
# ### Predict
#
# Both boxes get `["a", "cat"]`. Then somebody appends `"sat"` to the words of each.


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


predict("stored", "The length that the first box says")
predict("derived", "The length that the second box says")

# %%
stored, derived = Stored(["a", "cat"]), Derived(["a", "cat"])
for box in (stored, derived):
    box.words.append("sat")

reveal("stored", stored.length)
reveal("derived", derived.length)

# %% [markdown]
# A number that is derived is never wrong. A number that is stored can be: everybody who changes the one thing
# has to think of the other.
#
# Our sequence stores `num_tokens` all the same, although it could ask its list. There is a reason for that. It
# comes at the end of this chapter. The number of blocks is derived; write it, with its `@property`.

# %%
# {{exercise ch04.num_blocks}}

# %% [markdown]
# ### Plug in
#
# Now it runs in the engine. The scheduler and the block manager ask for `num_blocks` many times in each step.
# With it we can also say what a block size costs.
#
# ### Predict
#
# All texts of 1 to 300 tokens, once each.

# %%
picture = Bars("empty slots", 100, {"all slots": 100}, "%")
predict("blocks of 64", "In blocks of 64 tokens, how many of all slots stay empty?", unit="%", picture=picture)

# %%
me = mine()
Sequence, texts = me.engine.sequence.Sequence, range(1, 301)


def slots(length, size):
    return Sequence([0] * length, block_size=size).num_blocks * size


print(me.whose("ch04.num_blocks"))
empty = {size: [slots(n, size) - n for n in texts] for size in (4, 16, 64)}
waste = {size: 1 - sum(texts) / sum(slots(n, size) for n in texts) for size in (1, 4, 16, 64, 256)}
reveal("blocks of 64", round(100 * waste[64]))
figures.empty_slots(texts, empty, waste)

# %% [markdown]
# Each drop to zero is a full block. Small blocks waste less. So why not blocks of one token? Because each block costs,
# too: an entry in the block table, and a jump to another place in memory.
#
# ## Which tokens are in it?
#
# Two kinds of numbers are easily mixed up.
#
# * **Logical** blocks are numbered from 0 within each sequence. They are there as soon as the tokens are.
# * **Physical** blocks are places in the cache. A sequence gets them when it is admitted.
#
# The block table leads from one to the other. `block_table[2] == 7` means: logical block 2 lies in physical
# block 7. The function `block(i)` is about logical ones. The block manager calls it to find out whether it
# has seen them before.

# %% [markdown]
# ### Predict
#
# Ten tokens, 20 to 29, in blocks of 4. Somebody asks for block −1, by mistake: from token −4 up to token 0. Somebody
# else asks for block −2, which is from token −8 up to token −4. What do the slices `tokens[-4:0]` and `tokens[-8:-4]`
# give?

# %%
tokens = list(range(20, 30))
WAYS = ["an error", "an empty list", "four tokens of one block", "four tokens of two blocks"]
predict("block -1", "tokens[-4:0] gives", choices=WAYS)
predict("block -2", "tokens[-8:-4] gives", choices=WAYS)

# %%
print(tokens[-4:0], tokens[-8:-4])
reveal("block -1", WAYS[1])
reveal("block -2", WAYS[3])

# %% [markdown]
# No error, and no block either. An engine that goes on with such an answer takes one text for another. That is why
# `block` has to raise an `IndexError`.

# %%
# {{exercise ch04.block}}

# %% [markdown]
# ### Plug in
#
# Two requests that begin alike. The second one finds the blocks of the first, because your `block` says that
# they hold the same tokens.

# %%
me = mine()
print(me.whose("ch04.num_blocks", "ch04.block"))
with me.LLM("qwen3-tiny", **SMALL) as llm:
    for ending in ("Mia.", "Lily."):
        (answer,) = llm.generate("Once upon a time, there was a little girl named " + ending, greedy(8), use_tqdm=False)
        print(f"{answer['num_prompt_tokens']} prompt tokens, {answer['num_cached_tokens']} of them found in the cache")

# %% [markdown]
# ## One token more
#
# At the end of a step the model has chosen a token. Let us stop the engine there and look.
#
# ### Predict
#
# The prompt of B has 14 tokens. One step reads all of it.

# %%
predict("cached now", "What is num_cached_tokens now?")

# %%
with mine().LLM("qwen3-tiny", **SMALL) as llm:
    llm.add_request(PROMPTS[1], greedy(6))
    llm.step()
    (seq,) = llm.scheduler.running
    reveal("cached now", seq.num_cached_tokens)
    print("num_tokens is", seq.num_tokens)

# %% [markdown]
# The new token is in the list, but it has no keys and values: the model has *chosen* it and not *read* it. The next
# step reads it, and chooses the one after it. So between two steps, a running sequence has exactly one token that is
# not cached.
#
# ### What happens without it
#
# Remember the warning about stored numbers. Here is our engine with an `append_token` that forgets one of them: the
# list grows, and `num_tokens` stays.

# %%
for engine in (mine(), without("ch04.append_token")):
    with engine.LLM("qwen3-tiny", **SMALL) as llm:
        llm.add_request(PROMPTS[1], greedy(10))
        (seq,) = llm.scheduler.waiting
        try:
            while not llm.is_finished():
                llm.step()
        except IndexError as error:
            print(f"step failed: {error}")
        print(f"num_tokens is {seq.num_tokens}, and it wrote{llm.tokenizer.decode(seq.token_ids[14:])!r}")

# %% [markdown]
# It stammers, because every new token is put at the same position. Its answer never has 10 tokens, so it would never
# end; and it never gets another block, until there is no slot for what it computes.

# %%
# {{exercise ch04.append_token}}

# %% [markdown]
# ### Plug in
#
# Every token of this text goes through `append_token`.

# %%
me = mine()
print(me.whose("ch04.append_token"))
with me.LLM("qwen3-tiny", **SMALL) as llm:
    llm.add_request(PROMPTS[1], greedy(12))
    (seq,) = llm.scheduler.waiting
    for _ in range(12):
        llm.step()
        last = repr(llm.tokenizer.decode([seq.last_token]))
        print(f"{seq.num_tokens} tokens, {seq.num_cached_tokens:2} cached, {seq.num_blocks} blocks, last: {last}")

# %% [markdown]
# Nobody had to think of `num_blocks`: it followed by itself. The last row has nothing cached: the request is finished,
# and its blocks are gone.
#
# ## What travels
#
# A model that is too large for one GPU is split over several. Each of them has a **worker**, a process of its
# own (chapter 9). Processes share no memory: what a worker should know about a step is turned into bytes, sent
# through a pipe, and built up again. In Python, `pickle` does that. The sequences of a step are sent *in every step*.
# By default, pickle takes all attributes of an object; `token_ids` is one of them.
#
# ### Predict
#
# A sequence of 4,000 tokens decodes. A worker computes one token of it.

# %%
predict("bytes", "How many bytes are all attributes of that sequence, pickled?")


# %%
def in_decode(num_tokens):
    """A sequence as it is in a decode step: all tokens but the last one are cached."""
    seq = mine().engine.sequence.Sequence([1000] * num_tokens, block_size=16)
    seq.num_cached_tokens, seq.num_scheduled_tokens = num_tokens - 1, 1
    seq.block_table = list(range(seq.num_blocks))
    return seq


seq = in_decode(4000)
all_of_one = len(pickle.dumps(vars(seq)))
reveal("bytes", all_of_one)
print(f"A step of 256 such, sent to 8 workers: {8 * 256 * all_of_one / 1e6:.0f} MB, to compute 256 tokens.")

# %% [markdown]
# So a class may say for itself what is sent. If it has a method `__getstate__`, pickle takes what that returns. On the
# other side, Python makes an object *without* calling `__init__`, and what was sent becomes its attributes. A class
# that wants something else there writes `__setstate__`, which gets the state and fills the object. Ours does not need
# one. Here are both.


# %%
class Story:
    def __init__(self):
        print("__init__ is called")
        self.title, self.pages = "The red kite", ["page"] * 1000

    def __getstate__(self):
        return {"title": self.title, "pages": []}

    def __setstate__(self, state):
        print(f"__setstate__ gets {state}")
        self.__dict__.update(state)  # what Python does by itself where there is no __setstate__


received = pickle.loads(pickle.dumps(Story()))
print(f"received: {received.title!r} with {len(received.pages)} pages")

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
# First the bytes. We listen between engine and model runner: before each step, its sequences are made bytes of in two
# ways. Without a `__getstate__`, all attributes are sent; with yours, what it says.


# %%
def bytes_of_a_life(engine, ways):
    """Bytes of one sequence before each step of its life, for each way to make bytes of it."""
    sizes = {name: [] for name in ways}
    options = {"device": "cpu", "kvcache_block_size": 4, "max_num_batched_tokens": 6, "max_num_seqs": 4}
    with engine.LLM("qwen3-tiny", disabled_optimizations="all", **options) as llm:
        runner = llm.llm_engine.model_runner
        run = runner.run

        def counting(seqs, is_prefill):
            for name, to_bytes in ways.items():
                sizes[name] += [len(to_bytes(seq)) for seq in seqs]
            return run(seqs, is_prefill)

        runner.run = counting
        llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=300, ignore_eos=True), use_tqdm=False)
    return sizes


me, ways = mine(), {"all attributes": lambda seq: pickle.dumps(vars(seq)), "as sent": pickle.dumps}
print(me.whose("ch04.__getstate__"))
sizes = bytes_of_a_life(me, ways)
figures.bytes_per_step(sizes)
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
#
# ## Fewer bytes
#
# Hundreds of bytes for one token are still many: most of them are the names of attributes and classes, and sampling
# parameters that never change. How few can it be? Design both sides yourself.

# %%
# {{exercise ch04.codec}}

# %% [markdown]
# ### Plug in
#
# The same life as above, with your bytes beside the others.

# %%
me = mine("ch04.codec")
pack, unpack = me.function("ch04.codec")()
sizes = bytes_of_a_life(mine(), ways | {f"packed ({me.owner('ch04.codec')})": pack})
figures.bytes_per_step(sizes)
for name, numbers in sizes.items():
    print(f"{name:15} {sum(numbers):9,} bytes in {len(numbers)} steps")

# %% [markdown]
# ## Your engine
#
# Here is the map again, and B's life once more, with all that you have written. If something is wrong, the
# widget opens at the step where it first shows.
#
# Below it is the same work as in every chapter. A sequence keeps books; it makes nothing faster by itself. But without
# it nobody could serve two requests at once.

# %%
me = mine()
print(me.whose("ch04"))
display(me, SequenceView(life_of_two(), "B"))
staircase("04")

# %% [markdown]
# ## Change it
#
# * In `SMALL`, set `num_kvcache_blocks` to 20. Is B still preempted? What is the smallest number with which it
#   is not?
# * In `life_of_two`, set `max_num_batched_tokens` to 1. What does B's life look like? What would a
#   `__getstate__` do there that looks at `num_scheduled_tokens`?
# * When a prompt is cut, `__getstate__` sends all of it with each part. Count the bytes for a prompt of 500 tokens in
#   parts of 50. What would a worker have to know if only the part were sent?
# * Between two steps of decode, hardly anything of a sequence changes. Write a `pack` that sends only what is new. What
#   has the worker to remember, and what happens if one message is lost?

# %% [markdown]
# ## Recap
#
# 1. A sequence is what the engine knows about one request. It is WAITING, RUNNING or FINISHED, and a preempted
#    one waits again.
# 2. Its tokens are cached, scheduled, or left for later, in this order. Between two steps, one token of a running
#    sequence is not cached: the newest.
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

# %% [markdown]
# <details><summary>Three answers to the second question; say yours first</summary>
#
# *Weak:* the status may be wrong at that moment.
#
# *Good:* in the last part of a prompt the status is RUNNING already, and the worker needs the tokens of that part.
#
# *Excellent:* the status says what will happen to the request, not what is in the cache. RUNNING with many tokens to
# compute: the last part of a prompt, and all of it again after a preemption. What the worker needs depends on how many
# tokens have no keys and values yet, so that is what to ask.
#
# </details>

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
