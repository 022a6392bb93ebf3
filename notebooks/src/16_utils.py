# %% [markdown]
# # 16 · Utils: weights and context
#
# *How a file of numbers becomes a model, who notices when it is the wrong file, and what travels beside the
# arguments.*
#
# You will
#
# * read a checkpoint by hand, byte by byte, and see why it cannot run code,
# * send every tensor of a real model to its place, also when two ranks share it,
# * keep the books that tell a wrong checkpoint from a right one,
# * see what a step's context is, and what comes of forgetting it.
#
# Plan 85 minutes; three exercises are 34 minutes of it. A fourth, a checkpoint of another family, waits at the end.
# Everything runs on a laptop's CPU.

# %% [markdown]
# ## Where we are
#
# The parts of the model are chapters 9 (linear layers) to 15 (the Qwen3 model). Of them you need one fact here: a
# layer multiplies its input by queries, keys and values in **one** product, with a weight called `qkv_proj`, and by
# the two halves of its MLP in another one, `gate_up_proj`. Such a weight is *packed*: one product in place of two or
# three.
#
# What is missing is how numbers get into these weights.

# %%
# %load_ext exercises
mine()

# %%
import pickle
from functools import partial
from itertools import count
from unittest.mock import patch

import figures

import nanovllm
from exercises.kit import checkpoint_work
from nanovllm import LLM, SamplingParams
from nanovllm.engine import model_runner
from nanovllm.model_files import BUNDLED_MODELS
from nanovllm.utils.context import reset_context, set_context
from nanovllm.viz import Boxes, WeightMap

PLAIN = {"device": "cpu", "disabled_optimizations": "all"}  # without the levers of chapter 17
PLAIN |= {"kvcache_block_size": 16, "num_kvcache_blocks": 32, "max_model_len": 512}
GREEDY = SamplingParams(temperature=0, max_tokens=24)
FILE = BUNDLED_MODELS / "qwen3-tiny" / "model.safetensors"


def write(llm, prompt="Once upon a time"):
    return prompt + llm.generate(prompt, GREEDY, use_tqdm=False)[0]["text"]


# %% [markdown]
# ## Why: two tensors change places
#
# Suppose somebody who converts a checkpoint mixes up two tensors, in one layer of eight: the weights that make the
# keys, and those that make the values.
#
# ### Predict

# %%
choices = ["an error", "nonsense", "a text that reads well, and is another one"]
predict("exchanged", "k_proj and v_proj of layer 3 have changed places. What comes out?", choices=choices)

# %%
right = LLM("qwen3-tiny", **PLAIN)
story = right.tokenizer.encode(write(right))
loss, exchanged, texts = checkpoint_work.loss(right, story), [], []
for layer in range(8):
    change = partial(checkpoint_work.exchanged, layer=layer, one="self_attn.k_proj", other="self_attn.v_proj")
    with checkpoint_work.model_folder(change) as folder, LLM(folder, **PLAIN) as llm:
        exchanged.append(checkpoint_work.loss(llm, story))
        texts.append(write(llm))
print("as it is:", write(right))
print("layer 3: ", texts[3])
print("layer 0: ", texts[0])
reveal("exchanged", choices[1] if exchanged[3] > 3 else choices[2])

# %%
figures.guesses(loss, exchanged)

# %% [markdown]
# The loss says how badly each token of the story is guessed from those before it. In layer 0 the exchange ruins the
# model, and everybody sees it. Elsewhere it is a little worse, or not even that, and nobody knows why its stories have
# changed. Not one of the eight raised an error: both tensors have the same shape, and no name is missing.
#
# So a loader has to be exact where it can be.
#
# ## The file, byte by byte
#
# Most models come as **safetensors**. This is the bundled one, drawn from its own header.

# %%
figures.file_of_tensors(FILE)
with FILE.open("rb") as file:
    beginning = file.read(320)
print(" ".join(str(byte) for byte in beginning[:8]))
print(beginning[8:].decode())

# %% [markdown]
# Three parts: a length, a table, numbers. The table names each tensor, its dtype, its shape, and where its bytes
# begin and end. That is all there is to know.
#
# ### Predict
#
# Before that, weights came in pickles: Python's own format for objects, `pytorch_model.bin`. The class below tells
# pickle how it wants to be put together again.


# %%
class Weights:
    """It claims to be some weights."""

    def __reduce__(self):
        return print, ("good morning",)


data = pickle.dumps(Weights())
print(data)
choices = ["an object of the class Weights comes back", "something is printed", "pickle refuses it"]
predict("pickle", "Somebody else opens these bytes with pickle.loads. What happens?", choices=choices)

# %%
came_back = pickle.loads(data)
print("what came back:", came_back)
reveal("pickle", choices[0] if isinstance(came_back, Weights) else choices[1])

# %% [markdown]
# A pickle is a small program, and `loads` runs it. This one called `print`; it could have called anything. torch has
# learned to refuse such files (`weights_only=True`, the default today). In a safetensors file there is nothing to
# refuse: a table and numbers, no calls.
#
# There is a second gain. The table says where each tensor is, so a reader can take one and leave the rest on the
# disk: two processes can read half of a model each.
#
# The tools: `int.from_bytes`, `json.loads`, and `torch.frombuffer`, which makes a flat tensor of bytes. Give it a
# `bytearray`: `bytes` cannot be written to, and it warns of that at length.

# %%
# {{exercise ch16.read_safetensors}}

# %%
# Plugged in: an engine with random weights, then with those that your function reads.
me = mine("ch16.read_safetensors")
print(me.whose("ch16.read_safetensors"))
read_safetensors = me.function("ch16.read_safetensors")
with LLM("qwen3-tiny", load_format="dummy", **PLAIN) as llm:
    print("before:", repr(write(llm)))
    with FILE.open("rb") as file:
        missing, unknown = checkpoint_work.fill(llm, read_safetensors(file), nanovllm)
    print("after: ", repr(write(llm)))
print(f"missing {len(missing)}, unknown {len(unknown)}")

# %% [markdown]
# ## Other names than ours
#
# Compare what the file has for a layer with what our model has.

# %%
params = dict(right.llm_engine.model_runner.model.named_parameters())
in_file = [name for name in checkpoint_work.bundled() if ".layers.0." in name]
in_model = [name for name in params if ".layers.0." in name]
print("only in the file: ", *sorted(set(in_file) - set(in_model)), sep="\n    ")
print("only in the model:", *sorted(set(in_model) - set(in_file)), sep="\n    ")

# %% [markdown]
# The file says what a training program had: three projections, q, k and v. All three multiply the *same* input, so
# their weights can be put below each other and multiplied at once. What comes out is the three results side by side.
#
# ### Predict
#
# No multiplication is saved: every number of every weight is used as often as before.

# %%
choices = ["one product takes longer", "both take about the same time", "three products take longer"]
predict("products", "One token, in a model as small as ours: one packed product, or three?", choices=choices)

# %%
sizes = {"qwen3-tiny": (256, (256, 128, 128)), "Qwen3-0.6B": (1024, (2048, 1024, 1024))}
found = {name: checkpoint_work.seconds_of_products(*size, (1, 16, 128)) for name, size in sizes.items()}
for name, times in found.items():
    one, three = times[1]
    print(f"{name}, one token: one product {1e6 * one:.0f} µs, three {1e6 * three:.0f} µs")
one, three = found["qwen3-tiny"][1]
reveal("products", choices[2] if three > 1.08 * one else choices[0] if one > 1.08 * three else choices[1])

# %%
figures.products(found)

# %% [markdown]
# Medians, measured in turn on this machine, so they move a little from run to run. What is saved is everything around
# the multiplications: a call, the start of threads or of a kernel, one reading of the input.
#
# ## Where each tensor goes
#
# So loading has two questions for each tensor: which parameter, and which part of it? Step through the first layer.
# Sizes and shapes are true.

# %%
WeightMap()

# %% [markdown]
# What belongs together, the *model* says, in a table of its own. `"q"` and `0` are **shard ids**: which part of the
# packed parameter. In signatures, `PackedModules` is such a table, and a `Target` is a pair: the name of a parameter,
# and a shard id, or None for a whole parameter.

# %%
packed = right.llm_engine.model_runner.model.packed_modules_mapping
for part, target in packed.items():
    print(f"{part:10} -> {target}")

# %% [markdown]
# ### What happens without it
#
# An engine that knows no packed modules, and takes every name as it stands:

# %%
try:
    without("ch16.resolve_packed").LLM("qwen3-tiny", **PLAIN)
except ValueError as error:
    text = str(error).replace(str(FILE.parent), "qwen3-tiny")
    print(text[:310], "...", text[text.index("unknown") :][:120], "...", sep="\n")

# %%
# {{exercise ch16.resolve_packed}}

# %%
# Plugged in: your function in the loader of a whole engine, and the map drawn by it.
me = mine()
print(me.whose("ch16.resolve_packed"))
with me.LLM("qwen3-tiny", **PLAIN) as llm:
    print(write(llm))
WeightMap(resolve=me.function("ch16.resolve_packed"))

# %% [markdown]
# ## Two ranks
#
# A large model is shared by several GPUs, the **ranks** (chapter 9). Each reads the same file, and keeps its piece.
# They could read less, as said above; this engine does not, for cutting whole tensors is simpler.
# A layer notes at its construction which rank it is built for, and so each parameter knows its piece by itself: it
# has a `weight_loader`, and the loader only asks for it.
#
# {{source nanovllm/utils/loader.py:load_weight}}
#
# {{source nanovllm/layers/linear.py:QKVParallelLinear.weight_loader}}

# %% [markdown]
# ### Predict
#
# Queries, keys and values are split by rows: each rank has half of the heads, and computes their attention. `o_proj`
# is multiplied by what comes out of all heads.

# %%
choices = ["the second half of the rows", "the second half of the columns", "all of it"]
picture = Boxes(dict(zip(choices, ([(0, 0.5, 1, 0.5)], [(0.5, 0, 0.5, 1)], [(0, 0, 1, 1)]), strict=True)))
predict("o_proj", "Two ranks. Which piece of o_proj does the second one keep?", picture=picture)

# %%
two = WeightMap(tensor_parallel_size=2)
two.step, tensor = next((i, tensor) for i, tensor in enumerate(two.stored, 1) if "o_proj" in tensor.name)
two.bookmarks = {"o_proj arrives": two.step, "all have arrived": len(two.stored)}
first_row, first_column, _, _ = tensor.parts[1].source
reveal("o_proj", choices[0] if first_row else choices[1] if first_column else choices[2])
two

# %% [markdown]
# `o_proj` has a column for each number that comes out of the heads. Each rank multiplies the columns that belong to
# its own, and the results are added up: one exchange between ranks in place of two. Norms are small, and every rank has
# them whole.
#
# All of this is drawn from the real loaders. Each tensor went through them with its numbers replaced by their places,
# so what arrived told where it came from.
#
# ## When file and model differ
#
# ### Predict
#
# A model's `config.json` says how many layers to build. Somebody edits it: four layers instead of eight. The file of
# weights still has all eight.

# %%
choices = ["it runs with the first four layers", "it is refused", "it builds eight layers all the same"]
predict("four layers", "What does the engine do?", choices=choices)


# %%
def told(title, change=lambda weights: None, spoil=lambda folder: None):
    """Start an engine on a changed copy of qwen3-tiny; returns what it said, "" if nothing."""
    with checkpoint_work.model_folder(change) as folder:
        spoil(folder)
        try:
            LLM(folder, **PLAIN).exit()
            text = ""
        except ValueError as error:
            text = str(error).replace(str(folder), "qwen3-tiny")
    print(f"{title}:\n    {text[:250]}{' ...' * (len(text) > 250)}")
    return text


def four_layers(folder):
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 8', '"num_hidden_layers": 4'))


said = told("four layers", spoil=four_layers)
reveal("four layers", choices[1] if "unknown" in said else choices[0])

# %% [markdown]
# It would have run: the first four layers make a model of their own, a bad one. A loader that is generous with what is
# *too much* hides exactly this.
#
# ## What a wrong checkpoint is told
#
# Five more. Each is told the name that somebody has to look for.

# %%
KEYS, DOWN = "model.layers.3.self_attn.k_proj.weight", "model.layers.5.mlp.down_proj.weight"


def two_files(folder):
    file = folder / "model.safetensors"
    (folder / "copy.safetensors").write_bytes(file.read_bytes())
    file.rename(folder / "original.safetensors")


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


wrong = {"missing": lambda weights: weights.pop(KEYS)}
wrong["unknown"] = lambda weights: weights.update({KEYS.replace("k_proj", "key"): weights.pop(KEYS)})
wrong["another shape"] = lambda weights: weights.update({DOWN: weights[DOWN].T})
said = [told(title, change) for title, change in wrong.items()]
said += [told("twice", spoil=two_files), told("cut off", spoil=cut)]

# %% [markdown]
# ### What happens without it
#
# Suppose nobody keeps books. The keys of layer 3 are not in the file, and the parameter holds whatever was in its
# memory; here, small random numbers.

# %%
weights = checkpoint_work.bundled()
del weights[KEYS]
with LLM("qwen3-tiny", load_format="dummy", **PLAIN) as llm:
    missing, unknown = checkpoint_work.fill(llm, weights.items(), nanovllm)
    print(f"{write(llm)}\nloss {checkpoint_work.loss(llm, story):.2f}, and with all weights {loss:.2f}")
print("what the books would have said:", missing)

# %% [markdown]
# One of 90 tensors is missing, and again no crash: a text, and a worse model.
#
# The books are yours to write. Given are `load_weight`, which you have seen, and the two functions below: `load_model`,
# which calls yours, and `targets_of`, which says what has to be filled. `iterate_weights` goes through the files of a
# folder, and yields name and tensor, one by one, as your `read_safetensors` does.
#
# {{source nanovllm/utils/loader.py:load_model}}
#
# {{source nanovllm/utils/loader.py:targets_of}}

# %%
# {{exercise ch16.load_weights}}

# %%
# Plugged in: an engine that loads through your functions, and what it says of two wrong files.
me = mine()
print(me.whose("ch16.resolve_packed", "ch16.load_weights"))
with me.LLM("qwen3-tiny", **PLAIN) as llm:
    print(write(llm))
with patch.dict(globals(), LLM=me.LLM):
    said = [told("missing", wrong["missing"]), told("four layers", spoil=four_layers)]

# %% [markdown]
# ## What travels beside the arguments
#
# The second half of `utils` is small. A step has a layout: where each sequence begins in the batch, how long it is,
# which blocks are its own (chapter 8 fills it in). Two layers need it: attention at the bottom, and the head at the
# end, which the picture leaves out. The four modules between runner and attention would only pass it on.

# %%
figures.beside_the_arguments()

# %% [markdown]
# {{source nanovllm/utils/context.py:get_context}}
#
# {{source nanovllm/utils/context.py:set_context}}
#
# {{source nanovllm/utils/context.py:reset_context}}
#
# The model's code then reads like the paper's: tokens in, tokens out. vLLM does the same. The price is what every
# global variable costs: nothing in a signature says that it is needed, and somebody may forget to set it.
#
# ### Predict
#
# A runner forgets to set the context in one decode step. In one engine, every step resets the context at its end, as
# ours does. In another one nobody resets it.

# %%
choices = ["both", "only the one that resets", "only the one that does not", "neither"]
predict("stale", "Which of the two engines raises an error?", choices=choices)


# %%
def forgetful(resets, forgets=8):
    """The text of an engine that does not set the context in one step; its error, if there is one."""
    numbers = count(1)

    def set_mostly(*args, **fields):
        if next(numbers) != forgets:
            set_context(*args, **fields)

    reset = reset_context if resets else lambda: None
    with patch.multiple(model_runner, set_context=set_mostly, reset_context=reset), LLM("qwen3-tiny", **PLAIN) as llm:
        try:
            return write(llm)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            reset_context()


found = {resets: forgetful(resets) for resets in (True, False)}
print("resets:     ", found[True])
print("never resets:", found[False])
print("as it should:", write(right))
raised = ["Error:" in text for text in found.values()]
reveal("stale", choices[1] if raised == [True, False] else choices[0] if all(raised) else choices[3])

# %% [markdown]
# Who never resets finds the context of the step before. It looks right: a slot, a length, a table. The step writes its
# keys over those of the token before and attends to one token too few; the text goes on, and is another one. That is
# why `reset_context` stands in a `finally`: an empty context is loud, an old one of the same kind is silent. Loud, not
# helpful: the error says that something is None, and not that nobody has set the context.

# %% [markdown]
# A context belongs to one **thread**: two engines in two threads do not see each other's.
#
# The other files are short. `parallel_state.py` holds in the same way which rank layers are being built for,
# `memory.py` you know from chapter 3, and `swap.py` gives modules of a loaded model another class, and with it
# another `forward`, while their weights stay. The levers of chapter 17 come in through it.

# %% [markdown]
# ## Your engine
#
# Loading does not make an engine faster. But it is your loader now that fills it.

# %%
me = mine()
print(me.whose("ch16"))
staircase("16")

# %% [markdown]
# ## One more: a checkpoint of another family
#
# This section is for those who have a quarter of an hour left. Nothing later needs it.
#
# Training programs differ. Some keep all layers of a kind in one tensor, for they compute them in a loop; some pack
# queries, keys and values themselves; some store matrices the other way round. Here is qwen3-tiny as such a program
# might have written it:

# %%
checkpoint = checkpoint_work.stacked_checkpoint()
for name, shape in checkpoint.shapes().items():
    print(f"{name:15} {shape!s:17}", checkpoint.whole.get(name) or checkpoint.stacked[name])

# %% [markdown]
# A function that yields our names and tensors is all it takes; `load_weights` does the rest. The plain way is to read
# everything into one dict, and cut. For 70 billion parameters that dict has 140 GB.
#
# ### Predict
#
# Somebody is more careful: reads one tensor of theirs, cuts it into ours, and then reads the next.

# %%
choices = ["a half", "a seventh", "a fifteenth"]
question = "About which share of the dict's bytes does the careful one hold at the worst moment?"
predict("share", question, choices=choices)

# %%
plain, plain_course = checkpoint_work.held_while_streaming(checkpoint_work.all_at_once, checkpoint)
careful, careful_course = checkpoint_work.held_while_streaming(checkpoint_work.tensor_by_tensor, checkpoint)
print(f"at the worst moment: {careful:,} bytes; all in one dict {plain:,}")
reveal("share", choices[0] if careful > plain / 3 else choices[1] if careful > plain / 10 else choices[2])

# %% [markdown]
# All layers of `gate_up` are one tensor, and it is half of the model. But a file can be read in pieces, too.

# %%
# {{exercise ch16.stream_weights}}

# %%
me = mine("ch16.stream_weights")
print(me.whose("ch16.stream_weights"))
stream_weights = me.function("ch16.stream_weights")
peak, course = checkpoint_work.held_while_streaming(stream_weights, checkpoint)
print(f"at the worst moment: {peak:,} bytes")
courses = {"everything in one dict": plain_course, "tensor by tensor": careful_course, "one piece at a time": course}
figures.held(courses, checkpoint_work.BAR)

# %%
# Plugged in: the other family's checkpoint, through your functions, into an engine.
with me.LLM("qwen3-tiny", load_format="dummy", **PLAIN) as llm:
    missing, unknown = checkpoint_work.fill(llm, stream_weights(checkpoint), me)
    print(write(llm))
    print(f"missing {len(missing)}, unknown {len(unknown)}; loss {checkpoint_work.loss(llm, story):.2f}")

# %% [markdown]
# ## Change it
#
# * Exchange `gate_proj` and `up_proj` in one layer after the other. Which layers mind? And `q_norm` and `k_norm`? Print
#   five digits: only what the rotation mixes (chapter 11) tells these two apart.
# * `WeightMap(tensor_parallel_size=4)`: there are two heads of keys, and four ranks. Who gets which?
# * Give a checkpoint an `lm_head.weight` beside the tied embedding. Which line of `load_model` forgives it, and why?
# * Read only the final norm with your `read_safetensors`, and count how many bytes were read. Why so many? What would a
#   function have to be asked, so that it reads only those?
# * `forgetful(False, forgets=5)`, and other steps: when does the text show it?
# * Let `stream_weights` read a whole layer at a time. How much more does it hold?

# %% [markdown]
# ## Recap
#
# 1. A safetensors file is a length, a table and numbers. Nothing in it can run, and each tensor can be read alone.
# 2. Weights that multiply the same input are packed into one; the model's mapping says which, the shard id says
#    where.
# 3. Each parameter cuts its own piece out of the full tensor, so the loader knows nothing of ranks.
# 4. A wrong weight raises nothing. Books do: missing, unknown, twice, another shape.
# 5. The context spares four modules eight arguments each. It is reset after every step, so that forgetting to set it
#    is loud.

# %% [markdown]
# ## Explain it aloud
#
# * Why has a packed parameter an entry for each shard in the books?
# * A colleague wants unknown tensors to be a warning, "because it works". What do you show them?
# * Why is an empty context better than an old one?
#
# <details><summary>Answers of three grades to the first question (say yours first)</summary>
#
# *Weak:* because it is made of several tensors.
#
# *Good:* if one of them is missing, the parameter still has its full shape, and the rest of it is right. Nothing else
# would notice.
#
# *Excellent:* and the same holds across ranks: each has its own piece of every shard and keeps the same books, since a
# tensor counts by its name and not by how much of it is kept.
#
# </details>

# %% [markdown]
# ## Read further
#
# * vLLM: `vllm/model_executor/model_loader/weight_utils.py` (`safetensors_weights_iterator`), and `load_weights` with
#   its `stacked_params_mapping` in `vllm/model_executor/models/qwen3.py` and `qwen2.py`; `vllm/forward_context.py`.
# * The format: *Safetensors*, the README of `huggingface/safetensors`, sections "Format" and "Benefits".
# * Columns, rows, and one exchange per pair: Shoeybi et al., *Megatron-LM*, 2019, section 3.
#
# Next, performance: what the levers change in a model that is loaded already.
