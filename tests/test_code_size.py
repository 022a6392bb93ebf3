"""The aim of the code: a core that is read in a few sittings, and that names no lever."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from nanovllm.levers import LEVERS, QUANTIZATIONS
from nanovllm.levers.table import code_lines, lever_files

from . import code_size

FILES = code_size.find_files()
CORE = [file for file in FILES if file.room == "core"]
# Larger than agreed, and by how much they may be until they are cut. Nothing may be added.
TOO_LARGE = {"kit": 2864, "server": 493}

# Words of levers, in code, comments and docstrings; and the lines of the core that may have them.
QUANTIZING = [lever.name for lever in QUANTIZATIONS.values()]
WORDS = [*LEVERS, *QUANTIZING, "lever", "pending", "graph", "fused", "folded", "overlap", "overlapped", "packed weight"]
MAY_NAME = {
    "nanovllm/config.py": ("enforce_eager", "disabled_optimizations"),
    "nanovllm/llm.py": ("from .levers import make_engine",),
}


def lines_with_levers(source):
    """The lines that name a lever, however it is spelled: cuda_graph, CUDA graphs, CUDAGraph."""
    spelled = "|".join(re.escape(word).replace("_", "[ _-]").replace(r"\ ", "[ _-]") for word in WORDS)
    pattern = re.compile(rf"(?<![a-z])(?:{spelled})s?(?![a-z])")
    apart = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
    return [line.strip() for line in source.splitlines() if pattern.search(apart.sub("_", line).lower())]


def test_code_lines_are_those_with_code():
    source = '''"""A module.

Of two paragraphs.
"""

import os  # a comment beside code

# a comment
X = """text that is
no docstring"""


class A:
    """A docstring."""

    def f(
        self,
    ):
        \'\'\'Another.\'\'\'
        return (
            1

            + 2
        )
'''
    found = [source.splitlines()[number - 1].strip() for number in sorted(code_lines(source))]
    assert found == [
        "import os  # a comment beside code",
        'X = """text that is',
        'no docstring"""',
        "class A:",
        "def f(",
        "self,",
        "):",
        "return (",
        "1",
        "+ 2",
        ")",
    ]


def test_functions_are_counted_with_their_signature_and_without_their_docstring():
    source = "@cache\ndef f(\n    x,\n):\n    '''Doc.'''\n    # why\n\n    def g():\n        return x\n\n    return g\n"
    file = code_size.File(Path("nanovllm/utils/x.py"), "core", source)
    assert dict(file.functions()) == {"f": 6, "g": 2} and file.num_lines == 7
    assert file.is_taught and not code_size.File(Path("nanovllm/llm.py"), "core", source).is_taught


def test_every_file_belongs_to_the_room_that_a_reader_expects():
    rooms = {file.path.as_posix(): file.room for file in FILES}
    expected = {
        "nanovllm/llm.py": "core",
        "nanovllm/engine/scheduler.py": "core",
        "nanovllm/layers/attention.py": "core",
        "nanovllm/models/qwen3.py": "core",
        "nanovllm/models/llama.py": "more models",
        "nanovllm/layers/kernels/paged_attention.py": "kernels",
        "nanovllm/layers/triton_attention.py": "kernels",
        "nanovllm/layers/flash_attention.py": "kernels",
        "nanovllm/engine/worker.py": "ranks",
        "nanovllm/engine/trace.py": "beside the engine",
        "nanovllm/levers/cuda_graph.py": "levers",
        "nanovllm/viz/widgets.py": "viz",
        "nanovllm/viz/trace.py": "recorder",
        "nanovllm/viz/race.py": "chapter widgets",
        "nanovllm/viz/hands.py": "hands",
        "nanovllm/viz/pools.py": "hands",
        "nanovllm/serve/server.py": "server",
        "exercises/kit/checks.py": "kit",
        "exercises/__main__.py": "kit",
    }
    assert {path: rooms[path] for path in expected} == expected
    assert not any(path.startswith("exercises/ch") for path in rooms)
    everything = {path.relative_to(code_size.ROOT).as_posix() for path in (code_size.ROOT / "nanovllm").rglob("*.py")}
    assert everything <= set(rooms)


@pytest.mark.parametrize("room", code_size.MAX_LINES)
def test_rooms_are_as_small_as_agreed(room):
    total, limit = sum(file.num_lines for file in FILES if file.room == room), code_size.MAX_LINES[room]
    assert total <= TOO_LARGE.get(room, limit)
    assert (total > limit) == (room in TOO_LARGE), f"{room} has {total} lines now: take it out of TOO_LARGE"


def test_no_file_of_the_core_is_too_long():
    too_long = {file.path.as_posix(): file.num_lines for file in CORE if file.num_lines > code_size.MAX_FILE_LINES}
    assert too_long == {}


def test_no_widget_of_a_chapter_is_too_long():
    own = {file.path.stem: file.num_lines for file in FILES if file.room == "chapter widgets"}
    assert {name: lines for name, lines in own.items() if lines > code_size.MAX_WIDGET_LINES} == {}


def test_no_function_that_is_taught_is_too_long():
    too_long = {
        f"{file.path.as_posix()} {name}": num_lines
        for file in CORE
        if file.is_taught
        for name, num_lines in file.functions()
        if num_lines > code_size.MAX_FUNCTION_LINES
    }
    assert too_long == {}


def test_lines_that_name_a_lever_are_found_and_others_are_not():
    found = (
        "cuda_graph = 1\n# CUDA graphs\nCUDAGraph()\nclass StepAhead: ...\n'''one step ahead'''\nfused_norm\nPENDING\n"
    )
    assert len(lines_with_levers(found)) == 7
    others = "refused\nparagraphs\npacked_modules_mapping\ngraphical\nahead of time\nclever\nsuspending\n"
    assert lines_with_levers(others) == []


@pytest.mark.parametrize("file", CORE, ids=lambda file: file.path.as_posix())
def test_the_core_names_no_lever(file):
    allowed = MAY_NAME.get(file.path.as_posix(), ())
    assert [line for line in lines_with_levers(file.source) if not any(part in line for part in allowed)] == []


def test_every_file_of_the_levers_is_counted_for_one_lever():
    counted = [path.relative_to(code_size.ROOT) for name in [*LEVERS, *QUANTIZING] for path in lever_files(name)]
    assert len(counted) == len(set(counted))
    levers = {file.path for file in FILES if file.room == "levers"}
    assert levers - set(counted) == {Path("nanovllm/levers/__init__.py"), Path("nanovllm/levers/table.py")}


@pytest.mark.slow
def test_the_script_prints_the_tree(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["code_size.py"])
    runpy.run_path(str(code_size.ROOT / "tests/code_size.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for file in FILES:
        assert f"{file.num_lines:10}  {file.path.as_posix()}\n" in printed
