# ruff: noqa
DIAGNOSIS = """
You seek to where the numbers of the tensor would begin if the file began with the header. Before it there are the 8
bytes of its length.
"""


# --- first
import json


def read_safetensors(file):
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            file.seek(length + start)
            numbers = bytearray(file.read(end - start))
            yield name, torch.frombuffer(numbers, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])


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
        file.seek(size + a)
        data = file.read(b - a)
        flat = torch.frombuffer(bytearray(data), dtype=DTYPES[info["dtype"]])
        yield key, flat.reshape(info["shape"])
