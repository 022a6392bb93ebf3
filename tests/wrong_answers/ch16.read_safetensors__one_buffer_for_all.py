# ruff: noqa
DIAGNOSIS = """
All tensors share one piece of memory, which the next one overwrites. torch.frombuffer copies nothing: each tensor
needs bytes of its own.
"""


# --- first
import json


def read_safetensors(file):
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    buffer = bytearray(1 << 16)
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            file.seek(8 + length + start)
            buffer[: end - start] = file.read(end - start)
            yield (
                name,
                torch.frombuffer(buffer, dtype=torch.uint8)[: end - start]
                .view(DTYPES[entry["dtype"]])
                .reshape(entry["shape"]),
            )


# --- second
import json
import struct


def read_safetensors(file):
    head = file.read(8)
    size = struct.unpack("<Q", head)[0]
    table = json.loads(file.read(size).decode("utf-8"))
    store = torch.zeros(1 << 16, dtype=torch.uint8)
    for key in table:
        if key == "__metadata__":
            continue
        info = table[key]
        a, b = info["data_offsets"]
        file.seek(size + 8 + a)
        data = file.read(b - a)
        store[: b - a] = torch.tensor(list(data), dtype=torch.uint8)
        flat = store[: b - a].view(DTYPES[info["dtype"]])
        yield key, flat.reshape(info["shape"])
