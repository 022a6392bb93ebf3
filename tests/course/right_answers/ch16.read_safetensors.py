# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
import json
import struct


def read_safetensors(file):
    (size,) = struct.unpack("<Q", file.read(8))
    entries = json.loads(file.read(size).decode())
    entries.pop("__metadata__", None)
    base = size + 8
    for name in sorted(entries, key=lambda name: entries[name]["data_offsets"]):
        begin, end = entries[name]["data_offsets"]
        file.seek(base + begin, 0)
        raw = torch.tensor(list(file.read(end - begin)), dtype=torch.uint8)
        yield name, raw.view(DTYPES[entries[name]["dtype"]]).view(entries[name]["shape"])
