# ruff: noqa
DIAGNOSIS = """
A single number has the shape [], and yours comes with another one: take the shape of the entry as it is, also when it
is empty.
"""


# --- first
import json


def read_safetensors(file):
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            file.seek(8 + length + start)
            numbers = bytearray(file.read(end - start))
            yield name, torch.frombuffer(numbers, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"] or [1])


# --- second
import json
import struct


def read_safetensors(file):
    head = file.read(8)
    size = struct.unpack("<Q", head)[0]
    table = json.loads(file.read(size).decode("utf-8"))
    for key in table:
        if key == "__metadata__":
            continue
        info = table[key]
        a, b = info["data_offsets"]
        file.seek(size + 8 + a)
        data = file.read(b - a)
        flat = torch.frombuffer(bytearray(data), dtype=DTYPES[info["dtype"]])
        yield key, flat.reshape(info["shape"]) if info["shape"] else flat
