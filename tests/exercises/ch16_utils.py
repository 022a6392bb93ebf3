"""Grader of chapter 16. Files are written by hand, byte by byte, and parameters take down what is given to them."""

import io
import itertools
import json
import random
import re
import struct
import weakref
from collections.abc import Set

import torch

from exercises.kit import checkpoint_work
from exercises.kit.checkpoint_work import StackedCheckpoint
from exercises.kit.grading import Check, Engine, case

# read_safetensors

CODES = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "U8": "B"}


def write(entries, order=None, metadata=None, padding=0, metadata_last=False):
    """A safetensors file, byte by byte.

    Args:
        entries: name, dtype, shape and numbers of each tensor, in the order of the header.
        order: of the numbers; names.
    """
    parts, offsets, at = [], {}, 0
    by_name = {name: (dtype, numbers) for name, dtype, _, numbers in entries}
    for name in order or by_name:
        dtype, numbers = by_name[name]
        if dtype == "BF16":  # the upper half of a float32
            data = b"".join(struct.pack("<f", number)[2:] for number in numbers)
        else:
            data = struct.pack(f"<{len(numbers)}{CODES[dtype]}", *numbers)
        offsets[name] = [at, at + len(data)]
        at += len(data)
        parts.append(data)
    header = {"__metadata__": metadata} if metadata is not None else {}
    for name, dtype, shape, _ in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets[name]}
    if metadata_last:
        header["__metadata__"] = header.pop("__metadata__")
    text = json.dumps(header, ensure_ascii=False).encode() + b" " * padding
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


class SpiedFile:
    """Takes down which bytes are read. It has what is promised of the file, and nothing else."""

    def __init__(self, data):
        self.file, self.taken, self.most = io.BytesIO(data), set(), 0

    def read(self, count=-1):
        start = self.file.tell()
        data = self.file.read(count)
        self.taken |= set(range(start, start + len(data)))
        self.most = max(self.most, len(data))
        return data

    def seek(self, position, whence=0):
        return self.file.seek(position, whence)


def as_lists(pairs):
    """Name, dtype, shape and numbers of each tensor that came, by name; a name that comes twice is told."""
    found = {}
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            found["what came"] = "no pair of a name and a tensor"
            continue
        name, tensor = pair
        if not isinstance(tensor, torch.Tensor):
            found[name] = f"no tensor: {type(tensor).__name__}"
            continue
        told = (str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.double().flatten().tolist())
        found[name] = told if name not in found else "came twice"
    return dict(sorted(found.items()))


NAMES_OF_DTYPES = {key: str(value).removeprefix("torch.") for key, value in checkpoint_work.DTYPES.items()}


def expected_of(entries):
    return {
        name: (NAMES_OF_DTYPES[dtype], shape, [float(number) for number in numbers])
        for name, dtype, shape, numbers in sorted(entries)
    }


ERRORS_OF_READ = {
    "JSONDecodeError": "What was read as the header is no JSON: its length is in the first 8 bytes, it begins right "
    "behind them, and it is exactly so long.",
    "UnicodeDecodeError": "What was read as the header is no text in that encoding: it is UTF-8, begins behind the "
    "first 8 bytes, and is exactly as long as they say.",
    "OverflowError": "The length of the header is far too large: of its 8 bytes the lowest comes first.",
    "MemoryError": "The length of the header is far too large: of its 8 bytes the lowest comes first.",
    "KeyError": 'A key was looked up that is not there. The entry "__metadata__" may be anywhere in the header, or not '
    "in it at all, and has neither dtype nor offsets; all others have a dtype of DTYPES.",
    "ValueError": "The bytes that were read are too few, too many or none: those of a tensor are the ones from "
    "data_offsets[0] to data_offsets[1], counted from the end of the header.",
    "RuntimeError": "The numbers do not fill the shape. How many there are is decided by the dtype of the entry, and "
    "by how many bytes were read.",
    "TypeError": "Something was given another kind of value than it takes: a dtype is one of DTYPES, a shape is a "
    "list, and may be empty.",
    "AttributeError": "Something was asked for that is not there. Of the file read(count) and seek(position) are "
    "promised, and where the numbers begin can be computed; what torch calls a dtype of the header, DTYPES says.",
}


def says_read(expected):
    """What a wrong tensor says, the first in the order of their names."""

    def says(got):
        if "what came" in got:
            return "What comes is no pair of a name and a tensor."
        if "__metadata__" in got:
            return 'The entry "__metadata__" is no tensor, and should not come.'
        for name, (dtype, shape, numbers) in expected.items():
            if name not in got and name.encode().decode("latin-1") in got:
                return "The header is UTF-8, and was read as another encoding: json.loads takes bytes as they are."
            if name not in got and {name.encode("ascii", how).decode() for how in ("ignore", "replace")} & got.keys():
                return f"Letters of the name {name} got lost: the header is UTF-8; json.loads takes bytes as they are."
            if name not in got and name.startswith("_"):
                return f'{name} never came. It is a tensor: only the entry "__metadata__" is none.'
            if name not in got:
                return f"The tensor {name} never came."
            if not isinstance(got[name], tuple):
                return f"{name}: {got[name]}."
            if got[name][0] != dtype:
                return f"The dtype of {name} is {dtype}, as its entry says, and {got[name][0]} came."
            if got[name][2] == numbers and got[name][1] != shape:
                return (
                    f"The numbers of {name} are right, its shape is not: {shape} in its entry, and {got[name][1]} came."
                )
            if got[name][2] != numbers:
                return wrong_numbers(name, got[name][2], expected)
        return ""

    return says


def wrong_numbers(name, numbers, expected):
    others = [other for other, (_, _, theirs) in expected.items() if theirs == numbers and other != name]
    if others:
        return (
            f"{name} has the numbers of {others[0]}. Its own are where its data_offsets say, whatever order the header "
            "has; and no two tensors share one piece of memory."
        )
    if len(numbers) != len(expected[name][2]):
        return f"{name} has {len(expected[name][2])} numbers, and {len(numbers)} came: data_offsets are begin and end."
    return (
        f"The numbers of {name} are others: its bytes begin data_offsets[0] bytes behind the end of the header, and as "
        "many as its dtype has make one number."
    )


def read_all(engine, check, entries, text, **options):
    check.step(text, ERRORS_OF_READ)
    data = write(entries, **options)
    file = SpiedFile(data)
    result = engine.get("labs:read_safetensors")(file)
    if not check.true("what it returns can be iterated", hasattr(result, "__iter__"), "It returns nothing to iterate."):
        return
    is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], str)
    says = "One pair came back, and an iterator over all pairs was promised: return ends the function, yield does not."
    if not check.true("pairs come back, and not one pair", not is_pair, says):
        return
    expected = expected_of(entries)
    got = as_lists(itertools.islice(result, 50))
    check.equal("the tensors: dtype, shape, numbers", got, expected, says_read(expected))


SMALL = [("a", "F32", [2, 3], [1, 2, 3, 4, 5, 6]), ("b", "F32", [4], [7, 8, 9, 10])]


@case("ch16.read_safetensors")
def two_tensors(engine, check):
    """A file with two tensors of float32: a with two rows of three, b with four numbers."""
    read_all(engine, check, SMALL, "read the file")


@case("ch16.read_safetensors")
def one_number(engine, check):
    """A file with a single tensor, of one number. Its shape is [1]."""
    read_all(engine, check, [("x", "F32", [1], [0.5])], "read the file")


@case("ch16.read_safetensors")
def with_metadata(engine, check):
    """The header has an entry "__metadata__", as the library writes it: {"format": "pt"}."""
    read_all(engine, check, SMALL, "read the file", metadata={"format": "pt"})


@case("ch16.read_safetensors")
def metadata_at_the_end(engine, check):
    """The entry "__metadata__" is the last of the header, and tensors have names that look like it."""
    entries = [(name, "F32", [2], [i, i + 0.5]) for i, name in enumerate(("a.metadata", "metadata", "__scale__"))]
    read_all(engine, check, entries, "read the file", metadata={"format": "pt"}, metadata_last=True)


@case("ch16.read_safetensors")
def a_padded_header(engine, check):
    """The header ends with spaces, so that the numbers begin at a multiple of eight. Its length counts them."""
    read_all(engine, check, SMALL, "read the file", padding=5)
    read_all(engine, check, SMALL, "a long header: 700 spaces more", padding=700)
    read_all(engine, check, SMALL, "a header of 70,000 bytes", padding=70_000)


@case("ch16.read_safetensors")
def names_of_any_letters(engine, check):
    """The header is UTF-8, and some letters in it take more than one byte: a tensor is called größe, one 重み."""
    read_all(engine, check, [("größe", "F32", [2], [1, 2]), ("重み", "F32", [1, 2], [3, 4])], "read the file")


@case("ch16.read_safetensors")
def many_dtypes(engine, check):
    """Tensors of several dtypes in one file, bfloat16 among them, which qwen3-tiny has."""
    numbers = {"F64": [0.1, -2.0], "F32": [1.5, 2.25], "F16": [0.5, -4.0], "BF16": [1.5, -0.25]}
    numbers |= {"I64": [2**40, -1], "I32": [-7, 70000], "U8": [0, 255]}
    entries = [(f"of_{dtype}", dtype, [1, 2], values) for dtype, values in numbers.items()]
    read_all(engine, check, entries, "read the file")


@case("ch16.read_safetensors")
def the_header_has_another_order(engine, check):
    """The header names a, b and c; the numbers lie in the order c, a, b. All have the same size."""
    entries = [(name, "F32", [2], [10 * i + 1, 10 * i + 2]) for i, name in enumerate("abc")]
    read_all(engine, check, entries, "read the file", order="cab")


@case("ch16.read_safetensors")
def a_scalar_and_three_dimensions(engine, check):
    """One tensor is a single number, with the shape []; another has three dimensions."""
    entries = [("scale", "F32", [], [2.5]), ("cube", "I32", [2, 2, 3], range(12))]
    read_all(engine, check, entries, "read the file")


@case("ch16.read_safetensors")
def all_of_them_are_kept(engine, check):
    """Three tensors, all taken into a list before anybody looks at their numbers."""
    check.step("take all, then look", ERRORS_OF_READ)
    entries = [(name, "F32", [3], [i, i + 0.5, i - 2]) for i, name in enumerate("xyz")]
    pairs = list(itertools.islice(engine.get("labs:read_safetensors")(SpiedFile(write(entries))), 50))
    expected = expected_of(entries)
    check.equal("the tensors: dtype, shape, numbers", as_lists(pairs), expected, says_read(expected))


@case("ch16.read_safetensors")
def only_the_first_is_wanted(engine, check):
    """Ten tensors of 100 numbers. Somebody takes the first one, and never asks for another."""
    entries = [(f"layer{i}", "F32", [100], [i] * 100) for i in range(10)]
    for text, first in (("lie first", 0), ("lie in the middle of the file", 5)):
        order = [f"layer{(i - first) % 10}" for i in range(10)]
        data = write(entries, order=order)
        file = SpiedFile(data)
        check.step(f"take one tensor, whose numbers {text}", ERRORS_OF_READ)
        next(iter(engine.get("labs:read_safetensors")(file)))
        start = len(data) - 4000
        numbers = sum(place >= start for place in file.taken)
        says = (
            "One read took all numbers of the file, and one tensor was asked for: read(end - start) takes its own."
            if file.most >= 4000
            else "All numbers were read, and one tensor was asked for: read its bytes when it is its turn, then yield."
        )
        check.true("not all of the 4,000 bytes of numbers were read", numbers < 4000, says)
        says = "More of the numbers was read than one tensor has: read its bytes alone, and when it is its turn."
        check.true("of the 4,000 bytes of numbers at most 400 were read", numbers <= 400, says)


@case("ch16.read_safetensors")
def random_files(engine, check):
    """Random files: dtypes, shapes, orders, with and without metadata."""
    for seed in range(12):
        rng = random.Random(seed)
        entries = []
        for i in range(rng.randrange(1, 6)):
            dtype = rng.choice(["F64", "F32", "F16", "BF16", "I64", "I32", "U8"])
            shape = [rng.randrange(1, 4) for _ in range(rng.randrange(1, 4))]
            count = torch.Size(shape).numel()
            numbers = [rng.randrange(0, 100) for _ in range(count)]
            entries.append((f"t{rng.randrange(1000)}_{i}", dtype, shape, numbers))
        order = [name for name, *_ in entries]
        rng.shuffle(order)
        metadata = {"seed": str(seed)} if seed % 2 else None
        read_all(engine, check, entries, f"file {seed}", order=order, metadata=metadata, padding=rng.randrange(8))


# resolve_packed

QWEN3 = {
    "q_proj": ("qkv_proj", "q"),
    "k_proj": ("qkv_proj", "k"),
    "v_proj": ("qkv_proj", "v"),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
LAYER = "model.layers.0"
ERRORS_OF_RESOLVE = {
    "KeyError": "A name that is no part of anything was looked up in packed. Most names are those of whole parameters.",
    "TypeError": "Something was used as what it is not: packed has for each part a pair, the name of the packed module "
    "and the shard id.",
    "IndexError": "The name has fewer pieces between dots than was expected: it may have any number of them.",
    "ValueError": "Something was taken apart into another number of pieces than it has: packed.items() gives a part "
    "and a pair, and a name may have any number of dots.",
    "RuntimeError": "packed was changed while it was read; it stays as it is.",
}


def says_resolved(name, packed, expected):
    """What a wrong pair says."""
    wanted, shard = expected
    told = {part for part in packed if f".{part}." in name}

    def says(got):
        if got is None:
            return f"Nothing came back for {name}."
        if isinstance(got, str):
            return "Only a name came back. It is a pair: the name, and the shard id or None."
        if not isinstance(got, tuple | list) or len(got) != 2:
            return "What came back is no pair of a name and a shard id."
        found, found_shard = got
        if (found_shard, found) == (wanted, shard) and wanted != shard:
            return "The two are in the wrong order: the name first, then the shard id."
        if not packed:
            return f"packed is empty here, so {name} is a whole parameter. {found!r} and {found_shard!r} came back."
        if not told and got == by_expression(name, packed):
            return (
                f"{found!r} comes out if the name is searched with a regular expression in which a dot stands for any "
                "character: re.escape makes it a dot."
            )
        if not told:
            return (
                f"No part stands between two dots in {name}, so it is a whole parameter: its own name, and None. "
                f"{found!r} and {found_shard!r} came back."
            )
        if (found, found_shard) == looked_up_on(name, packed):
            return "The name was looked up once more after it had changed: a packed module may be called like a part."
        if found == name and found_shard is None:
            zero = " Mind that its shard id is 0, which is false in an `if`." if shard == 0 else ""
            return f"{name} came back as it is, as a whole parameter, and a part stands in it between two dots.{zero}"
        if found == name:
            return f"The shard id of {name} is right, and the name is still that of the part."
        if isinstance(found, str) and found != wanted and found.replace(".", "") == wanted.replace(".", ""):
            return f"{found!r} came back for {name}: only the dots are wrong. Those around the part stay in the name."
        if (found, found_shard) == (name.replace(f".{next(iter(told))}.", f".{shard}."), packed[next(iter(told))][0]):
            return "The pair in packed is taken the wrong way round: it is (name of the packed module, shard id)."
        if found != wanted:
            return f"{name} is for the parameter {wanted}, and {found!r} came back: only the part changes its name."
        return f"The parameter is right, the shard id is not: packed says {shard!r}, and {found_shard!r} came back."

    return says


def by_expression(name, packed):
    """What comes of a search in which the dots stand for any character."""
    for part, (module, shard) in packed.items():
        if re.search(f".{part}.", name):
            return re.sub(f".{part}.", f".{module}.", name), shard
    return name, None


def looked_up_on(name, packed):
    """What comes of a search that goes on, in the new name, after a part has been found."""
    shard = None
    for part, (module, its_shard) in packed.items():
        if f".{part}." in name:
            name, shard = name.replace(f".{part}.", f".{module}."), its_shard
    return name, shard


def resolve(engine, check, name, packed, expected, story=""):
    check.step(f"resolve {name}{story}", ERRORS_OF_RESOLVE)
    before = dict(packed)
    got = engine.get("utils.loader:resolve_packed")(name, packed)
    got = tuple(got) if isinstance(got, list) else got
    check.equal(f"where {name} goes", got, expected, says_resolved(name, packed, expected))
    check.equal("packed, afterwards", packed, before, "packed was changed: it is the model's, and stays as it is.")


@case("ch16.resolve_packed")
def queries_keys_values(engine, check):
    """The three projections of a layer of Qwen3."""
    for letter in "qkv":
        name = f"{LAYER}.self_attn.{letter}_proj.weight"
        resolve(engine, check, name, QWEN3, (f"{LAYER}.self_attn.qkv_proj.weight", letter))


@case("ch16.resolve_packed")
def gate_and_up(engine, check):
    """The two projections of the MLP. Their shard ids are numbers."""
    for part, shard in (("gate_proj", 0), ("up_proj", 1)):
        resolve(engine, check, f"{LAYER}.mlp.{part}.weight", QWEN3, (f"{LAYER}.mlp.gate_up_proj.weight", shard))


@case("ch16.resolve_packed")
def whole_parameters(engine, check):
    """Tensors that are whole parameters, under the same name."""
    for name in (f"{LAYER}.self_attn.o_proj.weight", f"{LAYER}.mlp.down_proj.weight", "model.embed_tokens.weight"):
        resolve(engine, check, name, QWEN3, (name, None))
    for name in (f"{LAYER}.self_attn.q_norm.weight", "model.norm.weight"):
        resolve(engine, check, name, QWEN3, (name, None))


@case("ch16.resolve_packed")
def a_bias(engine, check):
    """Some models have a bias beside each weight."""
    resolve(engine, check, f"{LAYER}.self_attn.k_proj.bias", QWEN3, (f"{LAYER}.self_attn.qkv_proj.bias", "k"))
    resolve(engine, check, f"{LAYER}.self_attn.o_proj.bias", QWEN3, (f"{LAYER}.self_attn.o_proj.bias", None))


@case("ch16.resolve_packed")
def packed_already(engine, check):
    """A name that is packed already: the end of gate_up_proj is spelled like the part up_proj."""
    for part in ("gate_up_proj", "qkv_proj"):
        name = f"{LAYER}.some.{part}.weight"
        resolve(engine, check, name, QWEN3, (name, None))


@case("ch16.resolve_packed")
def names_that_only_look_alike(engine, check):
    """Modules whose names begin or end like a part, and are others: block_proj, up_projector, my_q_proj."""
    for other in ("block_proj", "up_projector", "my_q_proj", "v_proj_norm"):
        name = f"model.{other}.weight"
        resolve(engine, check, name, QWEN3, (name, None))


@case("ch16.resolve_packed")
def a_part_below_one_that_looks_alike(engine, check):
    """The module above has a name that begins like the part itself; only the part changes its name."""
    resolve(engine, check, "model.k_projs.0.k_proj.weight", QWEN3, ("model.k_projs.0.qkv_proj.weight", "k"))
    name = "model.my_up_proj.up_proj.weight"
    resolve(engine, check, name, QWEN3, ("model.my_up_proj.gate_up_proj.weight", 1))


@case("ch16.resolve_packed")
def at_the_edges_of_a_name(engine, check):
    """A name that begins or ends with a part: there is a dot on one side of it only."""
    for name in ("up_proj.weight", "model.k_proj"):
        resolve(engine, check, name, QWEN3, (name, None))


@case("ch16.resolve_packed")
def more_below_the_part(engine, check):
    """The part may stand anywhere between two dots, not only before the last one."""
    name = f"{LAYER}.self_attn.v_proj.base.weight"
    resolve(engine, check, name, QWEN3, (f"{LAYER}.self_attn.qkv_proj.base.weight", "v"))


@case("ch16.resolve_packed")
def another_model(engine, check):
    """A model with other names: w1 and w3 are packed as w13, experts have numbers."""
    packed = {"w3": ("w13", "right"), "w1": ("w13", "left")}
    resolve(engine, check, "layers.7.w1.weight", packed, ("layers.7.w13.weight", "left"))
    resolve(engine, check, "layers.7.w3.weight", packed, ("layers.7.w13.weight", "right"))
    resolve(engine, check, "layers.7.w2.weight", packed, ("layers.7.w2.weight", None))
    resolve(engine, check, "layers.7.q_proj.weight", packed, ("layers.7.q_proj.weight", None))


@case("ch16.resolve_packed")
def called_like_a_part(engine, check):
    """A model whose packed module is called gate, like one of its two parts; packed has them in either order."""
    parts = [("up", ("gate", 1)), ("gate", ("gate", 0))]
    for some in (parts, parts[::-1]):
        for part, (_, shard) in some:
            resolve(engine, check, f"layers.2.{part}.weight", dict(some), ("layers.2.gate.weight", shard))


@case("ch16.resolve_packed")
def large_letters(engine, check):
    """A model whose names have large letters. A large letter is another one than the small one."""
    packed = {"Wq": ("Wqkv", "Q"), "Wk": ("Wqkv", "K")}
    resolve(engine, check, "Decoder.H.3.Wk.weight", packed, ("Decoder.H.3.Wqkv.weight", "K"))
    for name in ("Decoder.H.3.wq.weight", "Decoder.LN_f.weight"):
        resolve(engine, check, name, packed, (name, None))


@case("ch16.resolve_packed")
def nothing_is_packed(engine, check):
    """A model that packs nothing, and a name without any dot."""
    for name in (f"{LAYER}.self_attn.q_proj.weight", "scale"):
        resolve(engine, check, name, {}, (name, None), ", with packed = {}")
    resolve(engine, check, "scale", QWEN3, ("scale", None))


# load_weights


class Model:
    """Parameters that take down what they are given, under names like those of Qwen3."""

    def __init__(self, num_layers=1, packed=True):
        self.log, self.params = [], {}
        self.packed = dict(QWEN3) if packed else {}
        for layer in range(num_layers):
            path = f"model.layers.{layer}"
            if packed:
                self.add(f"{path}.qkv_proj.weight", 4, {"q": (0, 2), "k": (2, 1), "v": (3, 1)})
                self.add(f"{path}.gate_up_proj.weight", 4, {0: (0, 2), 1: (2, 2)})
            self.add(f"{path}.down_proj.weight", 2)
        self.add("model.norm.weight", 3)

    def add(self, name, rows, shards=None):
        param = torch.nn.Parameter(torch.full((rows, 2), -1.0), requires_grad=False)
        param.weight_loader = self.loader(name, shards)
        self.params[name] = param

    def loader(self, name, shards):
        def load(param, tensor, *shard_ids):
            self.log.append((name, *shard_ids))
            if shards and shard_ids[0] not in shards:
                raise ValueError(f"there is no shard {shard_ids[0]!r}")
            start, rows = shards[shard_ids[0]] if shards else (0, len(param))
            if list(tensor.shape) != [rows, 2]:
                raise ValueError(f"expected shape {[rows, 2]}, got {list(tensor.shape)}")
            param.data[start : start + rows] = tensor

        return load

    def checkpoint(self):
        """Name and tensor of all that the model needs; each tensor has a number of its own in it."""
        parts = {"q_proj": 2, "k_proj": 1, "v_proj": 1, "gate_proj": 2, "up_proj": 2}
        found = {}
        for name, param in self.params.items():
            inside = [part for part, (packed_part, _) in self.packed.items() if f".{packed_part}." in name]
            for part in inside or [None]:
                own = name.replace(self.packed[part][0], part) if part else name
                rows = parts[part] if part else len(param)
                found[own] = torch.full((rows, 2), float(len(found)))
        return found

    def numbers(self):
        return {name: param[:, 0].tolist() for name, param in self.params.items()}

    def wanted(self):
        """What the parameters hold when all is loaded: the parts one after the other."""
        numbers = {name: [] for name in self.params}
        for name, tensor in self.checkpoint().items():
            pieces = name.split(".")
            pieces[-2] = self.packed.get(pieces[-2], (pieces[-2],))[0]
            numbers[".".join(pieces)] += tensor[:, 0].tolist()
        return numbers

    def target(self, name):
        """(parameter, shard id) of a tensor of the checkpoint."""
        pieces = name.split(".")
        pieces[-2], shard_id = self.packed.get(pieces[-2], (pieces[-2], None))
        return ".".join(pieces), shard_id


ERRORS_OF_LOAD = {
    "KeyError": "Something was looked up, or struck out, that is not there. Mind that a tensor may be for no parameter "
    "of the model, and that targets are pairs.",
    "TypeError": "Something was called or used in another way than it can be: load_weight takes (param, tensor, "
    "shard_id, name), and weights gives pairs, one after the other.",
    "AttributeError": "Something was used as what it is not: weights gives pairs of a name and a tensor, one after the "
    "other, and packed and params are dicts.",
    "ValueError": "An error was raised although every name comes once and every tensor fits.",
    "RuntimeError": "A tensor was put where it does not fit. Many are for a part of a parameter only; load_weight has "
    "each one put into its place.",
    "UnboundLocalError": "A name was used that has no value if weights is empty, or if the first tensor is unknown.",
}


def as_sorted(values):
    return sorted(values, key=repr) if isinstance(values, set | frozenset | list | tuple | dict) else repr(values)


class Once:
    """Pairs that can be read once; takes down how often their end was reached."""

    def __init__(self, pairs):
        self.pairs, self.ends = iter(pairs), 0

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self.pairs)
        except StopIteration:
            self.ends += 1
            raise


def load(engine, check, model, pairs, text, missing=(), unknown=()):
    """Load, and look at the books and at what the parameters hold."""
    pairs = Once(pairs)
    check.step(text, ERRORS_OF_LOAD)
    before = dict(model.params)
    result = engine.get("utils.loader:load_weights")(model.params, model.packed, pairs)
    check.true("the mapping params is as it was", model.params == before, "params was changed; it is the model's own.")
    if not check.true("two things come back", isinstance(result, tuple | list) and len(result) == 2, says_two(result)):
        return
    says = says_missing(list(missing), list(unknown), as_sorted(result[1]))
    if pairs.ends > 1 and not model.log:
        says = "`weights` is read a second time, and nothing is loaded: it can be read once, and is empty then."
    check.equal("missing", as_sorted(result[0]), as_sorted(list(missing)), says)
    check.equal("unknown", as_sorted(result[1]), as_sorted(list(unknown)), says_unknown(list(unknown)))
    for what, value, kind in (("missing", result[0], Set), ("unknown", result[1], list)):
        says = f"What is {what} is right, and comes as a {type(value).__name__}: a {kind.__name__.lower()} is promised."
        check.true(f"what is {what} comes as a {kind.__name__.lower()}", isinstance(value, kind), says)


def says_two(result):
    if result is None:
        return "Nothing came back: missing and unknown are asked for."
    return "Two things are asked for, missing and unknown, and one came back."


SAYS_MEMBERS = "What is missing, and what is unknown, are collections: all of its members are asked for."


def says_missing(missing, unknown, second):
    def says(got):
        if got == as_sorted(unknown) and second == as_sorted(missing) and missing != unknown:
            return "The two are in the wrong order: missing first, then unknown."
        if not isinstance(got, list):
            return SAYS_MEMBERS
        names = [value for value in got if isinstance(value, str)]
        if names:
            return (
                "What is missing is told as targets: pairs of a parameter's name and a shard id, None for a whole one."
            )
        extra = [target for target in got if target not in missing]
        if extra:
            return f"{extra[0]} is called missing, and a tensor was there for it, or no parameter of the model has it."
        lost = [target for target in missing if target not in got]
        return f"Nothing was loaded into {lost[0]}, and it is not called missing." if lost else ""

    return says


def says_unknown(unknown):
    def says(got):
        if not isinstance(got, list):
            return SAYS_MEMBERS
        lost = [name for name in unknown if name not in got]
        extra = [name for name in got if name not in unknown]
        if lost and extra:
            return f"An unknown tensor is told by its name in the checkpoint, {lost[0]!r}; {extra[0]!r} came back."
        if lost:
            return f"The tensor {lost[0]!r} is for no parameter, and nobody is told."
        return f"{extra[0]!r} is called unknown, and it is for a parameter of the model." if extra else ""

    return says


def check_numbers(check, model, expected):
    check.equal("what the parameters hold", model.numbers(), expected, says_numbers(expected))


def says_numbers(expected):
    def says(got):
        for name, numbers in expected.items():
            if -1.0 in got[name] and -1.0 not in numbers:
                return f"Into {name} nothing was loaded, or not into all of it, although all its tensors were there."
            if got[name] != numbers:
                return f"{name} holds other numbers than those of its tensors, shard for shard."
        return ""

    return says


@case("ch16.load_weights")
def all_is_there(engine, check):
    """A model with one layer, and a checkpoint with everything that it needs."""
    model = Model()
    load(engine, check, model, iter(model.checkpoint().items()), "load the checkpoint: eight tensors")
    check_numbers(check, model, model.wanted())
    by_hand = model.numbers() == model.wanted() and len(model.log) < len(model.checkpoint())
    says = (
        "Tensors came to their places without load_weight. Parameters may have a loader of their own, and it asks them."
    )
    check.true("each tensor was handed to load_weight", not by_hand, says)


@case("ch16.load_weights")
def in_any_order(engine, check):
    """Two layers. The tensors come in random orders, five times."""
    for seed in range(5):
        model = Model(num_layers=2)
        pairs = list(model.checkpoint().items())
        random.Random(seed).shuffle(pairs)
        load(engine, check, model, iter(pairs), f"load, order {seed}")
        check_numbers(check, model, model.wanted())


@case("ch16.load_weights")
def one_shard_is_missing(engine, check):
    """The keys are not in the checkpoint: one of the three shards of qkv_proj."""
    model = Model()
    for part in ("k_proj", "up_proj", "gate_proj"):
        model = Model()
        weights = model.checkpoint()
        name = f"model.layers.0.{part}.weight"
        del weights[name]
        load(engine, check, model, iter(weights.items()), f"load, without {name}", missing=[model.target(name)])


@case("ch16.load_weights")
def a_whole_parameter_is_missing(engine, check):
    """The norm is not in the checkpoint; and then nothing at all is."""
    model = Model()
    weights = model.checkpoint()
    del weights["model.norm.weight"]
    load(engine, check, model, iter(weights.items()), "load, without the norm", missing=[("model.norm.weight", None)])
    model = Model()
    everything = {model.target(name) for name in model.checkpoint()}
    load(engine, check, model, iter([]), "load an empty checkpoint", missing=everything)


@case("ch16.load_weights")
def unknown_tensors(engine, check):
    """The checkpoint has a layer more than the model, and it comes first. What is known is loaded all the same."""
    model, larger = Model(num_layers=1), Model(num_layers=2)
    known = model.checkpoint()
    more = [name for name in larger.checkpoint() if name not in known]
    pairs = [(name, torch.zeros(1, 2)) for name in more] + list(known.items())
    load(engine, check, model, iter(pairs), "load", unknown=more)
    check_numbers(check, model, model.wanted())
    model, name = Model(), "lm_head.weight"
    pairs = [*model.checkpoint().items(), (name, torch.zeros(1, 2))]
    load(engine, check, model, iter(pairs), "load; the checkpoint has a head, the model has none", unknown=[name])


@case("ch16.load_weights")
def missing_and_unknown(engine, check):
    """A tensor has the wrong name: what it should be is missing, what it is called is unknown."""
    model = Model()
    weights = model.checkpoint()
    weights["model.layers.0.value.weight"] = weights.pop("model.layers.0.v_proj.weight")
    missing, unknown = [("model.layers.0.qkv_proj.weight", "v")], ["model.layers.0.value.weight"]
    load(engine, check, model, iter(weights.items()), "load", missing=missing, unknown=unknown)


@case("ch16.load_weights")
def another_mapping(engine, check):
    """A model that packs nothing, and one that packs other names: left and right, in the other order."""
    model = Model(packed=False)
    load(engine, check, model, iter(model.checkpoint().items()), "load a model that packs nothing")
    check_numbers(check, model, model.wanted())
    for parts in ("left", "right"), ("left",):
        model = Model(packed=False)
        model.packed = {"right": ("both", "r"), "left": ("both", "l")}
        model.add("model.both.weight", 2, {"l": (0, 1), "r": (1, 1)})
        weights = {name: torch.zeros(len(param), 2) for name, param in model.params.items() if "both" not in name}
        weights |= {f"model.{part}.weight": torch.full((1, 2), float(len(part))) for part in parts}
        missing = [] if "right" in parts else [("model.both.weight", "r")]
        text = f"load one that packs left and right as both; there is {' and '.join(parts)}"
        load(engine, check, model, iter(weights.items()), text, missing)
        expected = [4.0, 5.0 if "right" in parts else -1.0]
        check.equal("model.both.weight", model.numbers()["model.both.weight"], expected, says_both)


CALLED_UNKNOWN = "nothing; the name is among the unknown"


def kind_of_error(error):
    """What a caller can catch it as: an error of one's own may be a ValueError, too."""
    return "ValueError" if isinstance(error, ValueError) else type(error).__name__


def says_both(got):
    return "The left part should be in the first row; in the second the right part, or nothing if it is not there."


def says_twice(got):
    if got == CALLED_UNKNOWN:
        return "A name came twice. That is a ValueError, and here the second tensor is told among the unknown."
    if got == "nothing":
        return "A name came twice, and nobody is told: which of the two tensors is right?"
    if got.startswith("ValueError"):
        return "The error does not say which name came twice."
    return f"A name that comes twice is a ValueError, and {got.split(':')[0]} was raised."


@case("ch16.load_weights")
def a_name_comes_twice(engine, check):
    """Two files of two models lie in one folder: a tensor comes a second time, after all others."""
    for name in ("model.layers.0.down_proj.weight", "model.layers.0.q_proj.weight", "model.extra.weight"):
        model = Model()
        weights = model.checkpoint()
        weights.setdefault(name, torch.zeros(1, 2))
        pairs = [*weights.items(), (name, weights[name])]
        known = "which no parameter is for" if "extra" in name else "which is known"
        check.step(f"load, with {name} twice, {known}", {"KeyError": "A KeyError is raised, not a ValueError."})
        raised = "nothing"
        try:
            result = engine.get("utils.loader:load_weights")(model.params, model.packed, iter(pairs))
            if "extra" not in name and repr(name) in repr(result):
                raised = CALLED_UNKNOWN
        except Exception as error:
            told = "" if name in str(error) else " without the name"
            raised = f"{kind_of_error(error)}{told}"
        check.equal("what is raised", raised, "ValueError", says_twice)


@case("ch16.load_weights")
def a_tensor_that_does_not_fit(engine, check):
    """The tensor for up_proj has a row too few. The error of load_weight reaches the caller, and says its name."""
    model = Model()
    weights = model.checkpoint()
    name = "model.layers.0.up_proj.weight"
    weights[name] = weights[name][:1]
    check.step("load")
    raised = "nothing"
    try:
        engine.get("utils.loader:load_weights")(model.params, model.packed, iter(weights.items()))
    except Exception as error:
        told = "of the tensor" if name in str(error) else "of the parameter" if "gate_up" in str(error) else "missing"
        raised = f"{kind_of_error(error)}, the name {told}"
    check.equal("what is raised", raised, "ValueError, the name of the tensor", says_unfit)


@case("ch16.load_weights")
def packed_in_the_checkpoint(engine, check):
    """A checkpoint in which gate and up are packed, under our name. Without a shard id load_weight refuses them."""
    model = Model()
    name = "model.layers.0.gate_up_proj.weight"
    weights = {key: tensor for key, tensor in model.checkpoint().items() if model.target(key)[0] != name}
    weights[name] = torch.zeros(4, 2)
    check.step("load")
    raised = "nothing"
    try:
        engine.get("utils.loader:load_weights")(model.params, model.packed, iter(weights.items()))
    except Exception as error:
        raised = kind_of_error(error)
    check.equal("what is raised", raised, "ValueError", says_refused)


def says_refused(got):
    if got == "nothing":
        return "load_weight refuses such a tensor with a ValueError, and nobody is told."
    if got == "KeyError":
        return (
            "A KeyError came, before or in place of the error of load_weight. A name in the checkpoint may be for a "
            "parameter and yet for none of its targets: discard strikes out only what is there, remove insists."
        )
    return f"load_weight refuses such a tensor with a ValueError, and {got} was raised."


def says_unfit(got):
    if got == "nothing":
        return "A tensor did not fit, and nobody is told. The error of load_weight is for the caller."
    if got.endswith("missing"):
        return "The error does not say which tensor does not fit. The one that load_weight raises does."
    return "The error names the parameter. Its tensor has another name in the checkpoint, and load_weight is told that."


@case("ch16.load_weights")
def one_at_a_time(engine, check):
    """The checkpoint is too large for the memory: when a tensor is asked for, the one before is in its place."""
    model = Model()
    weights, late = model.checkpoint(), []

    def stream():
        for number, (name, tensor) in enumerate(weights.items()):
            if len(model.log) != number:
                late.append(name)
            yield name, tensor

    load(engine, check, model, stream(), "load, and look at each moment what is in its place")
    says = "A tensor is taken before the one before it is in its place: more than one is in memory."
    check.equal("tensors that were asked for too early", late[:2], [], says)


@case("ch16.load_weights")
def none_is_kept(engine, check):
    """The checkpoint is too large for the memory: what is in its place is not held any longer."""
    model, came, held = Model(num_layers=2), [], []

    def fresh(tensor):
        copy = tensor.clone()
        came.append(weakref.ref(copy))
        return copy

    def stream():
        for name, tensor in model.checkpoint().items():
            held.append(sum(one() is not None for one in came))
            yield name, fresh(tensor)

    load(engine, check, model, stream(), "load, and count the tensors that somebody still holds")
    says = (
        "Tensors are held after they are in their place, and together they may not fit: for the books names are enough."
    )
    check.true("at most two tensors are held at a time", max(held, default=0) <= 2, says)


@case("ch16.load_weights")
def random_checkpoints(engine, check):
    """Random models and checkpoints: some tensors missing, some unknown, in random order."""
    for seed in range(10):
        rng = random.Random(seed)
        model = Model(num_layers=rng.randrange(1, 4), packed=rng.random() < 0.8)
        weights = model.checkpoint()
        gone = rng.sample(sorted(weights), rng.randrange(0, 4))
        more = [
            f"{rng.choice(['model', 'vision'])}.{i}.{rng.choice(['q_proj', 'conv'])}.weight" for i in range(seed % 3)
        ]
        pairs = [(name, tensor) for name, tensor in weights.items() if name not in gone]
        pairs += [(name, torch.zeros(2, 2)) for name in more]
        rng.shuffle(pairs)
        missing = [model.target(name) for name in gone]
        load(engine, check, model, iter(pairs), f"checkpoint {seed}", missing, more)


# stream_weights


def random_checkpoint(seed):
    """A small model with random sizes and numbers."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    sizes = [rng.randrange(2, 9) for _ in range(6)]
    hidden, queries, keys, middle, head, vocab = sizes
    layers = rng.randrange(1, 5)
    shapes = {"self_attn.q_proj": [queries, hidden], "self_attn.k_proj": [keys, hidden]}
    shapes |= {"self_attn.v_proj": [keys, hidden], "self_attn.o_proj": [hidden, queries]}
    shapes |= {"mlp.gate_proj": [middle, hidden], "mlp.up_proj": [middle, hidden], "mlp.down_proj": [hidden, middle]}
    shapes |= {"self_attn.q_norm": [head], "self_attn.k_norm": [head]}
    shapes |= {"input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
    weights = {f"model.layers.{i}.{part}.weight": shape for i in range(layers) for part, shape in shapes.items()}
    weights |= {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    weights |= {"lm_head.weight": [vocab, hidden]} if seed % 2 else {}
    made = {name: torch.randn(shape, generator=generator) for name, shape in weights.items()}
    return StackedCheckpoint(made, layers)


def same(one, other):
    return one.shape == other.shape and torch.equal(one, other)


def stream(engine: Engine, check: Check, checkpoint, text):
    """Take all, compare, and return the most bytes that were held."""
    check.step(text)
    expected, seen, wrong = checkpoint.expected(), [], []

    def take(name, tensor):
        seen.append(name)
        theirs = expected.get(name)
        if theirs is not None and not same(tensor, theirs):
            is_turned = same(tensor, theirs.transpose(0, -1))
            wrong.append(f"{name} {'is transposed' if is_turned else 'is wrong'}")

    most = len(expected) + 20
    peak, _ = checkpoint_work.held_while_streaming(engine.get("labs:stream_weights"), checkpoint, take, most)
    known = set(expected)
    strange = [name for name in dict.fromkeys(seen) if name not in known][:2]
    check.equal("names that our model does not have", strange, [], says_strange)
    check.equal(
        "tensors that never came", sorted(known - set(seen))[:2], [], "A tensor that our model needs is missing."
    )
    twice = [name for name in dict.fromkeys(seen) if seen.count(name) > 1][:2]
    check.equal("tensors that came twice", twice, [], "Each tensor comes once.")
    check.equal("tensors that are not what they should be", wrong[:2], [], says_wrong)
    return peak


def says_strange(got):
    return (
        f"{got[0]!r} is none of our names: whole ones are in checkpoint.whole, others are model.layers.3.PART.weight."
    )


def says_wrong(got):
    if "transposed" in got[0]:
        return "The matrix lies the other way round: there [inputs, outputs], with us [outputs, inputs]."
    return (
        "The numbers, or the shape, are others. In the last dimension the parts lie side by side, in the order of "
        "checkpoint.stacked; the first dimension are the layers."
    )


def says_held(peak, checkpoint):
    if peak >= checkpoint.nbytes:
        return "All tensors are held at one time: nothing should be read before it is asked for, and nothing kept."
    return (
        "More is held than what is being handed on. Either a piece is read that is larger than one of our tensors, or "
        "a variable still holds the piece before while the next one is read: after a yield it is bound as before."
    )


@case("ch16.stream_weights")
def qwen3_tiny(engine, check):
    """The bundled model in the other spelling. All that counts: the same weights, under our names."""
    checkpoint = checkpoint_work.stacked_checkpoint()
    peak = stream(engine, check, checkpoint, f"stream {checkpoint.nbytes:,} bytes")
    check.measured(f"held at one time: {peak:,} bytes; all at once would be {checkpoint.nbytes:,}")
    says = says_held(peak, checkpoint)
    check.true(f"at most {checkpoint_work.BAR:,} bytes at one time", peak <= checkpoint_work.BAR, says)


@case("ch16.stream_weights")
def other_models(engine, check):
    """Small models of other sizes: other numbers of layers, of heads, with and without a head of their own."""
    for seed in range(6):
        stream(engine, check, random_checkpoint(seed), f"model {seed}")


@case("ch16.stream_weights")
def the_checkpoint_stays_as_it_is(engine, check):
    """The same checkpoint is streamed twice, and gives the same both times."""
    checkpoint = random_checkpoint(7)
    layout = repr((checkpoint.whole, checkpoint.stacked, checkpoint.num_layers))
    for text in ("stream it", "stream it once more"):
        stream(engine, check, checkpoint, text)
    now = repr((checkpoint.whole, checkpoint.stacked, checkpoint.num_layers))
    check.equal("whole, stacked and num_layers", now, layout, "The checkpoint was changed; it is somebody else's.")
