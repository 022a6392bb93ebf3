"""The notebook builder: what it derives, what it refuses, and that the committed notebooks are in step."""

import json
import shutil
import subprocess
import sys

import nbformat
import pytest

from exercises.__main__ import main
from exercises.kit import notebooks

MODULE = '''\
import functools


class Block:
    """A block."""

    @functools.cache
    def size(self) -> int:
        # why: a comment stays
        return 16

    class Inner:
        pass


def outer(
    a: int,
) -> int:
    return a
'''

CHAPTER = """\
# %% [markdown]
# # A chapter
# Some prose.

# %%
print("hello")

# %%
# {{source package/block.py:Block.size}}

# %% role="exercise" tags=["notes"]
1 + 1
"""


@pytest.fixture
def course(tmp_path):
    """A course of one chapter, in a folder of its own."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "block.py").write_text(MODULE)
    (tmp_path / "notebooks" / "src").mkdir(parents=True)
    (tmp_path / "notebooks" / "src" / "01_chapter.py").write_text(CHAPTER)
    return tmp_path


def source_path(course):
    return course / "notebooks" / "src" / "01_chapter.py"


def notebook_path(course):
    return course / "notebooks" / "01_chapter.ipynb"


def write_unexecuted(course):
    """What sync writes, without the seconds that a kernel takes."""
    notebook_path(course).write_text(nbformat.writes(notebooks.derive(source_path(course), course)) + "\n")


def edit_cell(course, index, text):
    notebook = nbformat.read(notebook_path(course), as_version=4)
    notebook.cells[index].source = text
    nbformat.write(notebook, notebook_path(course))


@pytest.mark.parametrize(
    ("symbol", "first_line", "start", "end"),
    [
        ("Block", 4, "class Block:", "        pass"),
        ("Block.size", 7, "@functools.cache", "    return 16"),
        ("Block.Inner", 12, "class Inner:", "    pass"),
        ("outer", 16, "def outer(", "    return a"),
    ],
)
def test_symbol_source_cuts_exactly_the_symbol(course, symbol, first_line, start, end):
    code, line = notebooks.symbol_source(course, "package/block.py", symbol)
    assert line == first_line
    assert code.splitlines()[0] == start
    assert code.splitlines()[-1] == end
    compile(code, "cell", "exec")


@pytest.mark.parametrize("symbol", ["Nothing", "Block.nothing", "outer.inner", "size"])
def test_symbol_source_names_what_is_missing(course, symbol):
    with pytest.raises(notebooks.NotebookError, match=rf"package/block.py defines no {symbol}"):
        notebooks.symbol_source(course, "package/block.py", symbol)


def test_directive_becomes_markdown_with_file_and_line(course):
    cell = notebooks.derive(source_path(course), course).cells[2]
    assert cell.cell_type == "markdown"
    assert cell.source.startswith("[`package/block.py:7`](../package/block.py) `Block.size`\n\n```python\n@functools")
    assert "# why: a comment stays" in cell.source
    assert cell.source.endswith("return 16\n```")


def test_directive_within_prose_keeps_the_prose(course):
    source_path(course).write_text("# %% [markdown]\n# Before.\n#\n# {{source package/block.py:outer}}\n#\n# After.\n")
    text = notebooks.derive(source_path(course), course).cells[0].source
    assert text.startswith("Before.\n\n[`package/block.py:16`]")
    assert text.endswith("```\n\nAfter.")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("# %%\n# {{source package/block.py:outer}}\nx = 1\n", "shares a code cell"),
        ("# %%\n# {{source package/none.py:outer}}\n", "no file package/none.py"),
        ("# %%\n# {{source package/block.py}}\n", "malformed source directive"),
        ("# %% [markdown]\n# see {{source package/block.py:outer}}\n", "malformed source directive"),
        ('# %% role="a"\n1\n# %% role="a"\n2\n', "role 'a'"),
    ],
)
def test_derive_refuses_with_the_name_of_the_source(course, bad, message):
    source_path(course).write_text(bad)
    with pytest.raises(notebooks.NotebookError, match=rf"01_chapter.py: .*{message}"):
        notebooks.derive(source_path(course), course)


def test_derive_is_deterministic_and_valid(course):
    first, second = (notebooks.derive(source_path(course), course) for _ in range(2))
    assert nbformat.writes(first) == nbformat.writes(second)
    nbformat.validate(first)
    assert len({cell.id for cell in first.cells}) == len(first.cells) == 4


def test_a_role_keeps_its_id_when_cells_are_inserted_before_it(course):
    before = notebooks.derive(source_path(course), course).cells[-1]
    source_path(course).write_text("# %%\nx = 0\n\n" + CHAPTER)
    after = notebooks.derive(source_path(course), course).cells[-1]
    assert before.id == after.id
    assert after.metadata["tags"] == ["notes"]


def test_outputs_are_cut_to_text_and_png(course):
    notebook = notebooks.derive(source_path(course), course)
    cell = notebook.cells[1]
    widget = "application/vnd.jupyter.widget-view+json"
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text="hel"),
        nbformat.v4.new_output("stream", name="stderr", text="a warning\n"),
        nbformat.v4.new_output("stream", name="stdout", text="lo\n"),
        nbformat.v4.new_output(
            "display_data",
            data={widget: {}, "text/html": "<b>", "text/plain": "Still()", "image/png": "aaaa"},
            metadata={"image/png": {"width": 3}},
        ),
        nbformat.v4.new_output("display_data", data={widget: {}, "text/plain": "progress:  0%"}),
    ]
    notebook.metadata["widgets"] = {widget: {}}
    cell.metadata["execution"] = {"iopub.status.busy": "2026"}
    notebooks.trim_outputs(notebook)
    assert [output.output_type for output in cell.outputs] == ["stream", "display_data"]
    assert cell.outputs[0].text == "hello\n"
    assert cell.outputs[1].data == {"text/plain": "Still()", "image/png": "aaaa"}
    assert cell.outputs[1].metadata == {"image/png": {"alt": "Still()"}}, "a widget says what it shows"
    assert cell.metadata == {}
    assert set(notebook.metadata) == {"kernelspec", "language_info", "nanovllm"}


def test_a_picture_says_what_it_shows_by_the_function_that_draws_it(course):
    (course / "notebooks" / "figures.py").write_text(
        'def measure() -> int:\n    """No picture."""\n\n\n'
        'def bars(x) -> None:\n    """Bars.\n\n    More of it."""\n\n\n'
        'def lines() -> None:\n    """Two lines: a and b."""\n'
    )
    notebook = notebooks.derive(source_path(course), course)
    cell = notebook.cells[1]
    cell.source = "figures.measure()\nfigures.bars(1)\nfigures.lines()"
    figure = {"text/plain": "<Figure size 1x1 with 1 Axes>", "image/png": "aaaa"}
    cell.outputs = [nbformat.v4.new_output("display_data", data=dict(figure)) for _ in range(2)]
    notebooks.trim_outputs(notebook, course)
    alts = [output.metadata["image/png"]["alt"] for output in cell.outputs]
    assert alts == ["Bars.", "Two lines: a and b."]


def test_check_passes_when_in_step_and_ignores_outputs(course):
    write_unexecuted(course)
    assert notebooks.check(course) == []
    notebook = nbformat.read(notebook_path(course), as_version=4)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="other\n")]
    notebook.metadata["widgets"] = {}
    nbformat.write(notebook, notebook_path(course))
    assert notebooks.check(course) == []


def test_check_shows_a_diff_when_the_source_moved_on(course):
    write_unexecuted(course)
    source_path(course).write_text(CHAPTER.replace("Some prose.", "Better prose."))
    (problem,) = notebooks.check(course, allow_edits=True)
    assert "01_chapter.ipynb is out of step" in problem
    assert "\n-Some prose." in problem and "\n+Better prose." in problem


def test_check_notices_engine_code_that_changed(course):
    write_unexecuted(course)
    (course / "package" / "block.py").write_text(MODULE.replace("return 16", "return 32"))
    (problem,) = notebooks.check(course)
    assert "\n-    return 16" in problem and "\n+    return 32" in problem


def test_check_finds_missing_and_stray_notebooks(course):
    assert notebooks.check(course) == ["01_chapter.ipynb is missing: run python -m exercises sync"]
    write_unexecuted(course)
    shutil.copy(notebook_path(course), course / "notebooks" / "02_stray.ipynb")
    assert notebooks.check(course) == ["02_stray.ipynb has no source in notebooks/src"]


def test_a_learners_edit_is_accepted_only_where_edits_are_allowed(course):
    write_unexecuted(course)
    edit_cell(course, 3, "2 + 2")
    assert notebooks.check(course, allow_edits=True) == []
    (problem,) = notebooks.check(course)
    assert "\n-2 + 2" in problem and "\n+1 + 1" in problem


def test_sync_refuses_a_notebook_that_was_edited_by_hand(course):
    write_unexecuted(course)
    edit_cell(course, 3, "2 + 2")
    before = notebook_path(course).read_bytes()
    (problem,) = notebooks.sync(course)
    assert "01_chapter.ipynb was edited by hand" in problem
    assert notebook_path(course).read_bytes() == before


def test_sync_refuses_a_notebook_that_it_never_built(course):
    nbformat.write(nbformat.v4.new_notebook(), notebook_path(course))
    before = notebook_path(course).read_bytes()
    assert "edited by hand" in notebooks.sync(course)[0]
    assert notebook_path(course).read_bytes() == before


def test_sync_runs_the_notebook_then_keeps_outputs_while_only_prose_changes(course, capsys):
    assert notebooks.sync(course) == []
    first = json.loads(notebook_path(course).read_text())
    assert first["cells"][1]["outputs"][0]["text"] == ["hello\n"]
    assert first["cells"][3]["outputs"][0]["data"]["text/plain"] == ["2"]
    source_path(course).write_text(CHAPTER.replace("Some prose.", "Better prose."))
    capsys.readouterr()
    assert notebooks.sync(course, chapters=["02"]) == []
    assert capsys.readouterr().out == ""
    assert notebooks.sync(course, chapters=["01"]) == []
    assert capsys.readouterr().out == "01_chapter.ipynb: written\n"
    second = json.loads(notebook_path(course).read_text())
    assert second["cells"][0]["source"][1] == "Better prose."
    assert [cell.get("outputs") for cell in second["cells"]] == [cell.get("outputs") for cell in first["cells"]]
    before = notebook_path(course).read_bytes()
    assert notebooks.sync(course) == []
    assert notebook_path(course).read_bytes() == before
    assert notebooks.check(course) == []


def test_sync_runs_again_when_code_changed_or_outputs_are_missing(course):
    write_unexecuted(course)
    assert notebooks.sync(course) == []
    outputs = nbformat.read(notebook_path(course), as_version=4).cells[1].outputs
    assert outputs[0].text == "hello\n"
    source_path(course).write_text(CHAPTER.replace('print("hello")', 'print("goodbye")'))
    assert notebooks.sync(course) == []
    outputs = nbformat.read(notebook_path(course), as_version=4).cells[1].outputs
    assert outputs[0].text == "goodbye\n"


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ('raise ValueError("broken chapter")', "broken chapter"),
        ("import os; print(os.getcwd())", "path of this machine"),
    ],
)
def test_sync_writes_nothing_when_a_cell_fails_or_leaks_a_path(course, cell, message):
    source_path(course).write_text(f"# %%\n{cell}\n")
    (problem,) = notebooks.sync(course)
    assert problem.startswith("01_chapter.py: ")
    assert message in problem
    assert not notebook_path(course).exists()


def test_the_committed_notebooks_are_in_step():
    # A learner's edits are theirs; .ci/run makes the strict check, in a fresh checkout.
    assert notebooks.check(allow_edits=True) == []


def test_the_command_line_explains_itself(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["sync", "--help"])
    assert stop.value.code == 0
    assert "never overwritten" in " ".join(capsys.readouterr().out.split())  # lines end where the terminal does


@pytest.mark.slow
def test_the_command_line_fails_when_out_of_step(course):
    """The real command, on a copy of the kit beside the toy course."""
    shutil.copytree(
        notebooks.ROOT / "exercises",
        course / "exercises",
        ignore=shutil.ignore_patterns("__pycache__", "exercises.toml", "ch[0-9]*.py"),
    )
    write_unexecuted(course)
    command = [sys.executable, "-m", "exercises", "sync", "--check"]
    assert subprocess.run(command, cwd=course, capture_output=True).returncode == 0
    edit_cell(course, 3, "2 + 2")
    failed = subprocess.run(command, cwd=course, capture_output=True, text=True)
    assert failed.returncode == 1
    assert "01_chapter.ipynb is out of step" in failed.stderr
