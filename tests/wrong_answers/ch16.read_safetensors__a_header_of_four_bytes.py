# ruff: noqa
DIAGNOSIS = """
You read 4 bytes as the length, and it has 8. So the header begins four bytes too early for you, with bytes that are
no text.
"""


# --- first
import json


def read_safetensors(file):
    length = int.from_bytes(file.read(4), "little")
    header = json.loads(file.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            file.seek(8 + length + start)
            numbers = bytearray(file.read(end - start))
            yield name, torch.frombuffer(numbers, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])


# --- second
import json
import struct


def read_safetensors(file):
    head = file.read(4)
    size = struct.unpack("<I", head)[0]
    table = json.loads(file.read(size))
    for key in table:
        if key == "__metadata__":
            continue
        info = table[key]
        a, b = info["data_offsets"]
        file.seek(size + 8 + a)
        data = file.read(b - a)
        flat = torch.frombuffer(bytearray(data), dtype=DTYPES[info["dtype"]])
        yield key, flat.reshape(info["shape"])
