# ruff: noqa
DIAGNOSIS = """
You read all numbers of the file, and then hand the tensors out. Read those of a tensor when it is asked for: a file
may be larger than the memory.
"""


# --- first
import json


def read_safetensors(file):
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    everything = file.read()
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            numbers = bytearray(everything[start:end])
            yield name, torch.frombuffer(numbers, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])


# --- second
import json
import struct


def read_safetensors(file):
    head = file.read(8)
    size = struct.unpack("<Q", head)[0]
    table = json.loads(file.read(size).decode("utf-8"))
    file.seek(0)
    whole = file.read()
    for key in table:
        if key == "__metadata__":
            continue
        info = table[key]
        a, b = info["data_offsets"]
        data = whole[8 + size + a : 8 + size + b]
        flat = torch.frombuffer(bytearray(data), dtype=DTYPES[info["dtype"]])
        yield key, flat.reshape(info["shape"])
