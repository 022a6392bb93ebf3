"""Count the code: `python tests/code_size.py [ROOT]` prints the tree with the code lines of every file.

A code line holds code: no blank line, no comment, no docstring.
"""

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanovllm.levers.table import code_lines

ROOT = Path(__file__).resolve().parents[1]

CHAPTER_WIDGETS = (
    "first_look",
    "race",
    "data_flow",
    "slot_mapping",
    "paged_gather",
    "graph_speedup",
    "weight_map",
    "roofline",
    "tensor_parallel",
    "rope",
    "norm_view",
    "sampler_view",
    "model_shapes",
    "vocabulary_shards",
)

# The first pattern that a path matches (a file, or a folder and all below it) says where it belongs.
ROOMS = (
    ("kernels", ("nanovllm/layers/kernels", "nanovllm/layers/*_attention.py", "nanovllm/tiles.py")),
    ("ranks", ("nanovllm/engine/worker.py", "nanovllm/utils/parallel_state.py")),
    ("beside the engine", ("nanovllm/engine/trace.py", "nanovllm/engine/beam_search.py", "nanovllm/measure.py")),
    ("levers", ("nanovllm/levers",)),
    ("more models", ("nanovllm/models/llama.py",)),
    # What was recorded, and what must hold of it: no pictures.
    ("recorder", ("nanovllm/viz/trace.py", "nanovllm/viz/replay.py", "nanovllm/viz/record.py")),
    # What a learner does with pictures: guesses that are made on them, and checks that show them.
    ("hands", ("nanovllm/viz/hands.py", "nanovllm/viz/pools.py")),
    # One picture each, of one chapter, drawn with the vocabulary of the others.
    ("chapter widgets", tuple(f"nanovllm/viz/{name}.py" for name in CHAPTER_WIDGETS)),
    ("viz", ("nanovllm/viz",)),
    ("server", ("nanovllm/serve",)),
    ("core", ("nanovllm",)),
    # Solutions, the works that they are measured on, and what graders say of tensors.
    (
        "labs",
        ("exercises/kit/labs.py", "exercises/kit/*_work.py", "exercises/kit/workloads.py", "exercises/kit/probes.py"),
    ),
    ("class", ("exercises/classroom",)),
    ("kit", ("exercises/kit", "exercises/*.py")),
)
LEARNERS_FILES = "exercises/ch*.py"
# Rooms of the core of which chapters show every function.
TAUGHT = ("engine", "layers", "models", "utils", "config.py", "sampling_params.py", "validation.py")

MAX_LINES = {"core": 2000, "viz": 2500, "kit": 1500, "class": 500, "hands": 300, "server": 400}
MAX_FILE_LINES = 170  # of a file of the core
MAX_WIDGET_LINES = 160  # of a chapter's widget
MAX_FUNCTION_LINES = 25  # of a function that is taught


@dataclass
class File:
    """One module.

    Args:
        path: from the root of the project.
        room: what it belongs to.
        source: its text.
    """

    path: Path
    room: str
    source: str

    @property
    def num_lines(self) -> int:
        return len(code_lines(self.source))

    @property
    def is_taught(self) -> bool:
        return self.room == "core" and self.path.parts[1] in TAUGHT

    def functions(self) -> Iterator[tuple[str, int]]:
        """Name and code lines of every function."""
        lines = code_lines(self.source)
        for node in ast.walk(ast.parse(self.source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield node.name, len(lines.intersection(range(node.lineno, node.end_lineno + 1)))


def room_of(path: Path) -> str | None:
    """Where a file belongs; None if it is not counted."""
    if path.match(LEARNERS_FILES):
        return None
    for room, patterns in ROOMS:
        if any(candidate.match(pattern) for pattern in patterns for candidate in (path, *path.parents)):
            return room
    return None


def find_files(root: Path = ROOT) -> list[File]:
    """All modules that belong to a room."""
    paths = [path.relative_to(root) for folder in ("nanovllm", "exercises") for path in (root / folder).rglob("*.py")]
    return [
        File(path, room, (root / path).read_text(encoding="utf-8")) for path in sorted(paths) if (room := room_of(path))
    ]


def print_tree(files: list[File]) -> None:
    """The files of each room, the core first, with their code lines."""
    for room in dict.fromkeys(("core", *(name for name, _ in ROOMS))):
        own = [file for file in files if file.room == room]
        limit = f" of at most {MAX_LINES[room]}" if room in MAX_LINES else ""
        print(f"{sum(file.num_lines for file in own):6}  {room}{limit}")
        for file in own:
            print(f"{file.num_lines:10}  {file.path.as_posix()}")
    longest = sorted(((n, f"{file.path.as_posix()} {name}") for file in files for name, n in file.functions()))
    print("\nlongest functions")
    for num_lines, name in reversed(longest[-20:]):
        print(f"{num_lines:10}  {name}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, nargs="?", default=ROOT, help="another checkout")
    print_tree(find_files(parser.parse_args().root))
