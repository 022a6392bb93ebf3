"""The machinery behind the exercises: files are never lost, checks never harm, the assembled engine is complete."""

import argparse
import dataclasses
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import nbformat
import numpy as np
import pytest
from rich.console import Console

import nanovllm
from exercises.__main__ import main
from exercises.kit import actions, assemble, checks, grading, manifest, notebooks, runner, source, stubs, terminal
from exercises.kit.manifest import Exercise
from exercises.kit.workspace import join, parse, split

ROOT = manifest.ROOT
EXERCISES = manifest.load()
SPLICED = [exercise for exercise in EXERCISES.values() if exercise.splice]
DEALLOCATE = EXERCISES["ch05.deallocate"]
HEAD_FIRST = """\
def deallocate(self, seq):
    for block_id in seq.block_table:
        block = self.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            self.used_block_ids.remove(block_id)
            self.free_block_ids[block_id] = None
    seq.block_table = []
    seq.num_cached_tokens = 0
"""


def ours(exercise_id):
    return parse(EXERCISES[exercise_id], EXERCISES[exercise_id].reference())


def grade(code, exercise=DEALLOCATE):
    return checks.grade(parse(exercise, code, "exercises/ch05_block_manager.py", 50), engine=False)


# Cutting and splicing.


def test_splicing_our_own_code_gives_our_own_files_byte_for_byte():
    answers = [ours(exercise.id) for exercise in SPLICED]
    texts, pieces, _ = assemble.combine(answers)
    plain, _, _ = assemble.combine([])
    assert texts == plain
    assert len(pieces) == len(answers)


def test_helpers_decorators_and_multi_line_strings_survive_the_splice():
    module = "import os\n\n\nclass Box:\n    @property\n    def size(self):\n        return 1\n\n    x = 2\n"
    exercise = Exercise(id="ch05.size", symbol="m:Box.size", title="", minutes=5, difficulty=1, hints=(), why="")
    code = 'import math\n\nTEXT = """a\n  b"""\n\n\n'
    code += 'def size(self):\n    text = """one\ntwo"""\n    return math.pi, TEXT, text\n'
    lines = code.splitlines()
    answer = dataclasses.replace(
        parse(DEALLOCATE, "def deallocate(self, seq):\n    pass\n"),
        exercise=exercise,
        function=("\n".join(lines[6:]), 7),
        extras=(("import math", 1), ('TEXT = """a\n  b"""', 3)),
    )
    text, pieces = assemble.splice(module, [answer], "m.py")
    names = {}
    exec(compile(text, "m", "exec"), names)
    assert names["Box"]().size == (3.141592653589793, "a\n  b", "one\ntwo")
    assert names["Box"].x == 2
    for piece in pieces:
        for offset in range(piece.last - piece.first + 1):
            assert text.splitlines()[piece.first + offset - 1].strip() in ("", lines[piece.line + offset - 1].strip())


def test_a_helper_must_not_take_a_name_of_the_engine():
    result = grade("class Block:\n    pass\n\n\n" + HEAD_FIRST)
    assert result.status == "failed" and "Your helper Block has the name" in result.summary


def in_file(workspace, text, exercise=DEALLOCATE):
    """The answer in a file of this text."""
    workspace.path(exercise).write_text(text)
    return workspace.answer(exercise)


def assembled(*answers):
    return assemble.assemble(answers).module("engine.block_manager")


TOP = """\
from __future__ import annotations

import math, sys as system
from collections import OrderedDict, deque
import numpy as np
from nanovllm.engine.sequence import Sequence, SequenceStatus
from nanovllm.engine.block_manager import (
    Block,
    BlockManager,
)
import nanovllm.engine.sequence as sequences
import nanovllm.utils.memory

EXTRA = math.pi
UNUSED = nowhere


def size(seq: Sequence) -> Later | None:
    return len(seq.block_table) + EXTRA


print("a test of mine")
assert False

# --- ch05.can_allocate
def can_allocate(self, seq: Sequence, other: BlockManager = None) -> "bool":
    from nanovllm.engine.sequence import (
        SequenceStatus as Status,
    )
    import nanovllm
    return (size(seq), SequenceStatus is Status is sequences.SequenceStatus, nanovllm, math.floor(2.5))


# --- ch05.deallocate
def deallocate(self, seq: Sequence) -> Block | Thing:
    return deque([size(seq)])
"""


def test_what_stands_at_the_top_of_the_file_counts_for_every_answer_in_it(workspace):
    deallocate = in_file(workspace, TOP)
    can_allocate = workspace.answer(EXERCISES["ch05.can_allocate"])
    assert deallocate.problem is None and can_allocate.problem is None
    module = assembled(deallocate, can_allocate)
    text = Path(module.__file__).read_text()
    assert text.count("def size(seq") == 1 and "UNUSED" not in text and "a test of mine" not in text
    seq = module.Sequence([1, 2, 3])
    length, is_same, package, floor = module.BlockManager.can_allocate(None, seq)
    assert (round(length, 2), is_same, floor) == (3.14, True, 2)
    assert package.__name__ == module.__name__.split(".")[0]  # the engine that it is a part of, not another copy
    assert module.BlockManager.deallocate(None, seq) == module.deque([length])
    alone = Path(assembled(deallocate).__file__).read_text()
    assert "deque" in alone and "sequences" not in alone  # what this one does not use
    for piece in assemble.assemble([deallocate, can_allocate]).pieces:  # lines are still found
        word = r"deque|math|nanovllm|Sequence|EXTRA|size|(de|can_)allocate"
        line, own = text.splitlines()[piece.first - 1], TOP.splitlines()[piece.line - 1]
        assert set(re.findall(word, line)) & set(re.findall(word, own)) or "nanovllm" in own, (line, own)


def test_an_answer_may_import_what_it_needs_in_its_own_cell_and_annotate_with_any_name():
    code = "from __future__ import annotations\nimport math\nfrom nanovllm.validation import check_int\n\n\n"
    code += "def deallocate(self, seq: BlockManager) -> Nobody:\n    return math.ceil(check_int('x', 3, 0))\n"
    answer = parse(DEALLOCATE, code)
    assert answer.problem is None
    assert assembled(answer).BlockManager.deallocate(None, None) == 3


def test_an_answer_may_call_the_parent_of_its_class():
    exercise = next(e for e in EXERCISES.values() if e.id == "ch04.__getstate__")
    assert parse(exercise, "def __getstate__(self):\n    return super().__getstate__()\n").is_usable


@pytest.mark.parametrize(
    ("helper", "name"), [("NO_HASH = 0", "NO_HASH"), ("import math as np", "np"), ("count: int = 3", "count")]
)
def test_no_helper_constant_or_import_takes_a_name_of_the_engine(helper, name, workspace):
    says = f"your helper {name} has the name of something in the engine"
    code = HEAD_FIRST + f"    return {name}\n"
    assert says in parse(DEALLOCATE, f"{helper}\n\n\n{code}").problem
    problem = in_file(workspace, f"{helper}\n\n# --- ch05.deallocate\n{code}").problem
    # Imports at the top of the file are derived for several modules: there the engine's own counts.
    assert problem is None if "import" in helper else says in problem


def test_two_answers_cannot_have_different_helpers_of_one_name(workspace):
    for value, says in ((1, None), (2, "your helper size is another one than in ch05.can_allocate")):
        text = "# --- ch05.can_allocate\ndef size(): return 1\ndef can_allocate(self, seq):\n    return size()\n"
        text += f"# --- ch05.deallocate\ndef size(): return {value}\n{HEAD_FIRST}"
        problem = in_file(workspace, text).problem
        assert says in problem if says else problem is None
        assert workspace.answer(EXERCISES["ch05.can_allocate"]).is_usable


def test_a_decorator_that_the_stub_shows_has_to_stay():
    exercise = EXERCISES["ch04.num_blocks"]
    code = exercise.reference().replace("@property\n", "")
    assert 'the line "@property" above it is gone' in parse(exercise, code).problem
    static = EXERCISES["ch05.compute_hash"]
    answer = parse(static, static.reference().replace("@staticmethod\n", ""))
    assert answer.is_usable and assembled(answer).BlockManager.compute_hash([1], -1) >= 0


@pytest.mark.parametrize(
    ("marker", "says"),
    [
        ("", 'write it above your "def deallocate", line 9 in exercises/ch05_block_manager.py'),
        ("# --- ch05.dealocate", 'write it in place of "# --- ch05.dealocate", line 9'),
        ("#--- ch05.deallocate", 'write it in place of "#--- ch05.deallocate", line 9'),
    ],
)
def test_a_marker_that_is_gone_is_told(workspace, marker, says):
    first = "# --- ch05.can_allocate\ndef can_allocate(self, seq):\n    return True\n\n\n\n\n\n"
    answer = in_file(workspace, f"{first}{marker}\n{HEAD_FIRST}".replace("\n\n\n\n\n\n\ndef", "\n\n\n\n\n\ndef"))
    assert answer.problem.startswith('the line "# --- ch05.deallocate" is missing') and says in answer.problem
    assert workspace.answer(EXERCISES["ch05.may_append"]).is_stub  # nothing of it is there: new to this file
    assert workspace.answer(EXERCISES["ch05.can_allocate"]).is_usable
    assert "is missing" in actions.check("ch05.deallocate").rows[0][1]


def test_constants_are_replaced_and_must_exist():
    assert assemble.set_constant("A = (\n    1,\n)\nB = A\n", "A", "2") == "A = 2\n\n\nB = A\n"
    with pytest.raises(source.SourceError, match="no constant C"):
        assemble.set_constant("A = 1\n", "C", "2")


def test_sections_are_found_replaced_and_appended():
    text = '"""x"""\n\n\n# --- ch05.a\ndef a():\n    pass\n\n\n# --- ch05.b\ndef b(): pass\n'
    assert split(text) == {"ch05.a": (5, "def a():\n    pass\n"), "ch05.b": (10, "def b(): pass\n")}
    changed = join(join(text, "ch05.a", "def a(): return 1\n"), "ch05.c", "def c(): pass")
    assert [section for _, section in split(changed).values()] == [
        "def a(): return 1\n",
        "def b(): pass\n",
        "def c(): pass\n",
    ]
    assert join(text, "ch05.a", "def a():\n    pass") == text


# What a check says.


def test_an_error_is_shown_with_the_learners_own_lines():
    result = grade(
        "def helper(block):\n    return block.nothing\n\n\ndef deallocate(self, seq):\n    helper(self.blocks[0])\n"
    )
    assert result.finding.error == (
        "exercises/ch05_block_manager.py, line 55, in deallocate",
        "    helper(self.blocks[0])",
        "exercises/ch05_block_manager.py, line 51, in helper",
        "    return block.nothing",
        "AttributeError: 'Block' object has no attribute 'nothing'",
    )


def test_a_recursion_without_end_is_told_in_a_few_lines():
    result = grade("def deallocate(self, seq):\n    return self.deallocate(seq)\n")
    assert result.finding.error[-1].startswith("RecursionError")
    assert len(result.finding.error) < 12 and "more calls" in "".join(result.finding.error)


def test_an_error_with_a_long_text_is_cut():
    finding = grade("def deallocate(self, seq):\n    raise ValueError('x' * 5000)\n").finding
    assert len(finding.error[-1]) < 400 and "(5000 characters)" in finding.error[-1]


def test_an_array_where_a_list_is_expected_is_shown_not_raised():
    array = grading.Check()
    assert not array.equal("the tokens", np.array([1, 2, 3]), [1, 2, 3])
    assert array.first == ("the tokens", "[1, 2, 3]", "array([1, 2, 3])", ())


def test_what_a_wrong_observation_means_is_said_once_by_the_first_that_is_wrong():
    says = {0: "freed too early", (1, 2): "a tuple", "KeyError": "looked up too late"}
    found = []
    for got, meaning in (
        (0, says),
        ([], says),
        ([1, 2], says),
        (False, says),
        (3, lambda got: f"{got} blocks"),
        (3, lambda got: got.x),
        (2, "why"),
    ):
        check = grading.Check()
        check.equal("blocks", 1, 1, says="never said")
        check.equal("blocks", got, 1, says=meaning)
        check.true("more", False, says="a consequence")
        found.append(check.likely)
    assert found == ["freed too early", "", "a tuple", "", "3 blocks", "", "why"]
    check = grading.Check()
    check.step("one", says=says)
    check.raised("KeyError")
    assert check.likely == "looked up too late"


def test_errors_at_different_steps_are_different_mistakes():
    findings = [grading.Finding("c", "s", (step,), "an error", error=("ValueError: no",)) for step in ("one", "two")]
    assert findings[0].key != findings[1].key


def test_prints_of_the_failing_case_are_shown():
    result = grade(HEAD_FIRST.replace(":\n    for", ":\n    print('freeing', seq.block_table)\n    for"))
    assert result.finding.case == "the_order_of_the_free_blocks"
    assert result.prints == "freeing [0, 1, 2, 3]\nfreeing [4]\n"


def test_an_endless_loop_is_stopped_and_located():
    exercise = dataclasses.replace(DEALLOCATE, time_limit=0.5)
    start = time.perf_counter()
    result = grade("def deallocate(self, seq):\n    while True:\n        seq.x = 1\n", exercise)
    assert time.perf_counter() - start < 60
    assert "it had not come to an end" in result.summary
    assert "exercises/ch05_block_manager.py, line 5" in result.details[1] and "in deallocate" in result.details[1]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import os\n    os._exit(0)", "It ended the process that it ran in"),
        ("import os\n    os._exit(7)", "It ended the process that it ran in"),
        ("import os, signal\n    os.kill(os.getpid(), signal.SIGSEGV)", "Python itself broke down"),
        ("raise SystemExit(1)", "It ended the check"),
    ],
)
def test_leaving_python_is_a_failure(body, says):
    result = grade(f"def deallocate(self, seq):\n    {body}\n")
    assert result.status == "failed" and says in result.summary


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def deallocate(self, seq):\n    retrun 1\n", "invalid syntax, in exercises/ch05_block_manager.py, line 51"),
        (
            "return 1\ndef deallocate(self, seq):\n    pass\n",
            "'return' outside function, in exercises/ch05_block_manager.py",
        ),
        ("def dealocate(self, seq):\n    pass\n", "The function deallocate is not there"),
        ("deallocate = lambda self, seq: None\n", "define it once, with def"),
        ("async def deallocate(self, seq):\n    pass\n", "a plain function"),
        ("class deallocate:\n    pass\n", "a plain function"),
        ("def deallocate(self, s):\n    pass\n", "the engine calls it with (self, seq)"),
        ("import solutions\ndef deallocate(self, seq):\n    pass\n", "it imports 'solutions'".capitalize()),
        ("def deallocate(self, seq):\n    super().deallocate(seq)\n", "calls the function that it replaces"),
        (
            "from nanovllm.engine import block_manager\n"
            "def deallocate(self, seq):\n    block_manager.BlockManager.deallocate(self, seq)\n",
            "calls the function that it replaces",
        ),
        (
            "def deallocate(self, seq):\n    from nanovllm.engine.block_manager import BlockManager as B\n"
            "    return B.deallocate(self, seq)\n",
            "calls the function that it replaces",
        ),
    ],
)
def test_what_is_no_answer_is_said_before_anything_runs(code, says):
    result = grade(code)
    assert result.status == "failed" and says in result.summary


def test_other_imports_and_strings_are_fine():
    code = "from collections import deque\nfrom .sequence import Sequence\nfrom nanovllm.engine import block_manager\n"
    for text in ("'. '", "'nanovllm.engine'", "'solutions'"):
        assert parse(DEALLOCATE, f"{code}\n\ndef deallocate(self, seq):\n    x = {text}\n").is_usable


def test_extra_parameters_with_defaults_are_fine():
    assert parse(DEALLOCATE, "def deallocate(self, seq, verbose=False):\n    pass\n").is_usable


def test_the_name_that_was_meant_is_suggested():
    body = HEAD_FIRST.replace("ref_count == 0", "ref_cout == 0")
    assert grade(body).finding.error[-1].endswith("no attribute 'ref_cout'; did you mean ref_count?")
    body = HEAD_FIRST.replace("in seq.block_table", "in sec.block_table")
    assert grade(body).finding.error[-1].endswith("name 'sec' is not defined; did you mean seq?")
    body = HEAD_FIRST.replace("seq.num_cached_tokens = 0", "seq.num_cached_tokens = math.floor(0)")
    assert 'put "import math" into the same cell' in grade(body).finding.error[-1]


@pytest.mark.slow
def test_a_flood_of_prints_is_cut_by_lines_and_told():
    prints = "    for i in range(5000):\n        print('line', i)\n    print('x' * 10**5)\n"
    lines = grade(HEAD_FIRST.replace("    for", prints + "    for", 1)).prints.splitlines()
    assert lines[:2] == ["line 0", "line 1"] and len(lines) == runner.MOST_LINES + 1
    assert lines[-1] == "... 9,972 more lines"  # of both calls in this case
    exercise = dataclasses.replace(DEALLOCATE, time_limit=0.3)
    lines = grade(
        "def deallocate(self, seq):\n    while True:\n        print('y' * 999)\n", exercise
    ).prints.splitlines()
    assert len(lines) < 10 and re.fullmatch(r"\.\.\. [\d,]+ more lines", lines[-1])
    (line,) = grade("def deallocate(self, seq):\n    print('x' * 10**5)\n    1 / 0\n").prints.splitlines()
    assert runner.MOST_PRINTS - 9 < len(line) <= runner.MOST_PRINTS + 4


def test_what_waits_for_ever_is_stopped_too(monkeypatch):
    exercise = dataclasses.replace(DEALLOCATE, time_limit=0.3)
    result = grade("import time\n\n\ndef deallocate(self, seq):\n    time.sleep(100)\n", exercise)
    assert "it had not come to an end" in result.summary and "line 54, in deallocate" in result.details[1]


STARTS = """\
import os
import subprocess

started = []


def deallocate(self, seq):
    if not started:
        started.append(1)
        {}
    return 1
"""


@pytest.mark.parametrize("how", ["subprocess.Popen(['sleep', '{}'])", "os.fork() or os.execvp('sleep', ['', '{}'])"])
def test_a_check_ends_all_that_an_answer_has_started(how):
    seconds = f"77.{os.getpid()}"
    grade(STARTS.format(how.format(seconds)))
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not [command for command in commands if seconds.encode() in command]


def test_a_copy_of_the_process_says_nothing():
    """Both come to the end; only one was asked."""
    code = STARTS.format("os.fork()").partition("    return")[0] + HEAD_FIRST.partition("\n")[2]
    assert grade(code).mistake == "head_first"


@pytest.mark.slow
def test_ctrl_c_in_a_check_leaves_one_line_and_no_process(tmp_path, workspace):
    workspace.write(DEALLOCATE, "def deallocate(self, seq):\n    while True:\n        pass\n")
    command = [sys.executable, "-m", "exercises", "check", "ch05.deallocate"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    started = time.monotonic()
    while len(children.read_text().split()) < 2 and time.monotonic() < started + 60:  # the server and its tracker
        time.sleep(0.05)
    time.sleep(2)  # somewhere between loading the libraries and running the answer
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("Stopped.\n", 130)
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.killpg(process.pid, 0)
            time.sleep(0.1)


def test_each_check_starts_from_a_clean_slate():
    code = HEAD_FIRST.replace("seq.block_table:", "reversed(seq.block_table):", 1)
    spoiler = "import builtins\n\n\n" + code.replace("    for", "    builtins.print = None\n    for", 1)
    assert grade(spoiler).status == "failed"  # the next case cannot print its mark
    assert grade(code).passed


def test_a_message_reads_the_same_everywhere():
    message = actions.describe(grade(HEAD_FIRST))
    text, html = repr(message), message._repr_html_()
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(message)
    for words in ("not right yet", "A ends, then Z", "[5, 3, 2, 1, 0]", "[5, 0, 1, 2, 3]"):
        assert words in text and words in html and words in console.export_text(clear=False)
    assert "<script" not in actions.Message("<script>", [("<b>", "<i>")])._repr_html_()


@pytest.mark.slow
def test_checks_work_where_processes_cannot_be_forked(monkeypatch):
    monkeypatch.setattr(runner, "CAN_FORK", False)
    assert grade(HEAD_FIRST).mistake == "head_first"


@pytest.mark.slow
def test_a_script_that_asks_for_a_check_is_run_once(tmp_path, workspace):
    (tmp_path / "script.py").write_text(
        "print('begin')\nfrom exercises import check\nprint(check('ch05.deallocate'))\n"
    )
    workspace.write(DEALLOCATE, HEAD_FIRST)
    result = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout.count("begin") == 1 and "Go through the table backwards" in result.stdout, result.stderr


def test_a_helper_that_fails_on_import_is_located():
    result = grade("LIMIT = missing\n\n\n" + HEAD_FIRST)
    assert result.status == "failed"
    assert result.details[0].startswith("exercises/ch05_block_manager.py, line 50")
    assert result.details[-1] == "NameError: name 'missing' is not defined"


# Unit and whole.


@pytest.mark.slow
def test_the_function_that_breaks_the_whole_is_named():
    wrong = next(w for w in checks.wrong_answers(EXERCISES["ch05.may_append"]) if w.name == "when_the_block_is_full")
    answers = [ours("ch05.compute_hash"), ours("ch05.allocate"), ours("ch05.deallocate"), wrong.first]
    result = checks.grade(answers[2], [answers[0], answers[1], answers[3]])
    assert result.passed
    assert result.blamed == "ch05.may_append" and 'check("ch05.may_append")' in result.whole


@pytest.mark.slow
def test_an_answer_that_is_known_to_be_wrong_does_not_spoil_the_whole(workspace):
    workspace.write(DEALLOCATE, HEAD_FIRST)
    workspace.write(EXERCISES["ch05.can_allocate"], ours("ch05.can_allocate").text)
    workspace.write(EXERCISES["ch05.may_append"], ours("ch05.may_append").text)
    assert checks.check("ch05.deallocate", workspace).status == "failed"
    result = checks.check("ch05.may_append", workspace)
    assert result.passed and not result.blamed
    assert "All 2 functions of yours together" in result.whole
    assert "Left out, because not right yet: ch05.deallocate." in result.whole
    workspace.write(DEALLOCATE, ours("ch05.deallocate").text)
    assert "All 3 functions of yours together" in checks.check("ch05.may_append", workspace).whole


def test_a_check_is_reported_once_its_cases_are_through(workspace):
    workspace.write(DEALLOCATE, DEALLOCATE.reference())
    early = []
    result = checks.check("ch05.deallocate", workspace, on_cases=early.append)
    (cases,) = early
    assert cases.passed and cases.summary.startswith("Right in all") and "is running" in cases.whole
    assert "the text is the same as ours" in result.summary and result.whole == ""
    workspace.write(DEALLOCATE, HEAD_FIRST)
    assert not checks.check("ch05.deallocate", workspace, on_cases=early.append).passed and len(early) == 1


def test_after_a_pass_the_first_that_is_not_done_comes_next(workspace):
    first, *_ = EXERCISES.values()
    first_here = next(exercise for exercise in EXERCISES.values() if exercise.chapter == "ch05")
    workspace.write(DEALLOCATE, DEALLOCATE.reference())
    assert checks.check("ch05.deallocate", workspace).next_step.startswith(f"{first_here.id}: {first_here.title}")
    assert checks.what_is_next(workspace).startswith(f"{first.id}: {first.title}, about")
    for exercise in EXERCISES.values():
        workspace.write(exercise, exercise.reference())
        answer = workspace.answer(exercise)
        workspace.note(exercise, status="passed", checked=checks.fingerprint(answer))
    assert checks.what_is_next(workspace) == "All exercises are done."


def test_the_number_that_an_open_exercise_is_about_is_told_after_a_pass():
    exercise = EXERCISES["ch06.choose_victim"]
    result = checks.grade(parse(exercise, exercise.reference()), engine=False)
    assert result.passed and re.search(
        r"By your rule \d+ tokens are computed again; when the newest goes", result.summary
    )


LOOPS = "def may_append(self, seq):\n    while True:\n        pass\n"


@pytest.mark.slow
def test_an_answer_that_loops_beside_the_one_that_is_checked_costs_seconds_once(workspace, monkeypatch):
    for entry in EXERCISES.values():
        monkeypatch.setitem(EXERCISES, entry.id, dataclasses.replace(entry, time_limit=0.5))
    monkeypatch.setattr(manifest, "load", lambda *_: EXERCISES)
    workspace.write(DEALLOCATE, DEALLOCATE.reference())
    workspace.write(EXERCISES["ch05.may_append"], LOOPS)
    checks.reference()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        result = checks.check("ch05.deallocate", workspace)
        seconds.append(time.perf_counter() - start)
        assert result.passed and "Left out, because not right yet: ch05.may_append." in result.whole
    assert max(seconds) < 30  # two minutes, once
    assert workspace.known(EXERCISES["ch05.may_append"])["works"] is False
    assert checks.state(EXERCISES["ch05.may_append"], workspace) == "written"


def test_an_engine_that_goes_on_and_on_is_stopped_by_its_steps(monkeypatch):
    monkeypatch.setattr(grading, "MOST_STEPS", 5)
    with pytest.raises(RuntimeError, match="has made 5 steps") as raised:
        grading.generate(assemble.assemble())
    assert raised.value.__notes__[0].startswith("it was in step 6 of the run; the one before it: ")


@pytest.mark.parametrize("body", ["pass", "...", "return", "return None", '"""Done."""'])
def test_an_empty_body_gets_no_diagnosis(body):
    result = grade(f"def deallocate(self, seq):\n    {body}\n")
    assert result.summary.startswith("It does nothing yet.") and (result.diagnosis, result.mistake) == ("", "")
    assert not source.is_empty(source.ast.parse("def f():\n    x = 1\n").body[0])


@pytest.mark.parametrize(
    ("expected", "got", "says"),
    [
        ("[1, 2, 3]", "[3, 2, 1]", "the right values in the opposite order"),
        ("[1, 2, 3]", "[2, 1, 3]", "the right values in another order"),
        ("[1, 2, 3]", "[1, 3]", "missing: 2"),
        ("[1, 2]", "[1, 2, 2, 4]", "not expected here: 4"),
        ("[1, 1]", "[1]", ""),
        ("4", "5", "one too many"),
        ("4", "None", "None: perhaps something was not returned, or not set."),
        ("True", "False", ""),
        ("[True, True]", "[True, False]", ""),
        ("4", "<object at 0>", ""),
    ],
)
def test_a_difference_is_named_where_words_are_clearer(expected, got, says):
    assert checks.difference(expected, got) == says


@pytest.mark.parametrize(("exercise_id", "is_told"), [("ch06.finish_reason", False), ("ch05.can_allocate", True)])
def test_none_is_not_taken_for_something_forgotten_where_it_is_an_answer(exercise_id, is_told):
    exercise = EXERCISES[exercise_id]
    finding = grading.Finding("c", "s", (), "what it says", "'stop'", "None")
    rows = checks.Result(exercise, "failed", "", finding).rows()
    assert ("difference" in dict(rows)) == is_told


@pytest.mark.slow
def test_a_function_that_the_engine_never_calls_is_a_failure():
    symbol = "nanovllm.engine.scheduler:Scheduler.shrink_steps"
    exercise = dataclasses.replace(DEALLOCATE, id="ch06.shrink_steps", symbol=symbol)
    problem, _ = checks._problem([parse(exercise, exercise.reference())])
    assert problem == "the engine never called your ch06.shrink_steps"


@pytest.mark.parametrize("name", ["drops_tokens_in_prefill", "changes_the_sequence"])
def test_sequences_travel_in_the_plugged_in_engine(name):
    """On one process, nothing else would ever call __getstate__."""
    wrong = next(w for w in checks.wrong_answers(EXERCISES["ch04.__getstate__"]) if w.name == name)
    problem, _ = checks._problem([wrong.first])
    assert problem and "never called" not in problem


LEAKS = """\
def deallocate(self, seq):
    is_done = seq.num_completion_tokens == seq.sampling_params.max_tokens
    table = seq.block_table[1:] if is_done and seq.seq_id == 1 else seq.block_table
    for block_id in reversed(table):
        block = self.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            self.used_block_ids.remove(block_id)
            self.free_block_ids[block_id] = None
    seq.block_table = []
    seq.num_cached_tokens = 0
"""


def test_a_leak_that_the_text_does_not_show_is_told_with_its_step():
    result = checks.grade(parse(DEALLOCATE, LEAKS))
    assert result.status == "failed" and result.finding is None
    assert "the same text as ours, but its blocks or queues are not in order" in result.summary
    step, after, first, *_ = result.details
    assert re.match(r"step \d+ of the run: .*B is finished", step) and after == "after it:"
    assert re.fullmatch(r"block \d+ has reference count \d, but is in \d tables .*", first)


def test_asking_once_more_about_a_cut_prompt_breaks_no_rule():
    exercise = EXERCISES["ch06.schedule_prefill"]
    code = source.without_docstring(exercise.reference())
    assert "        if seq.is_cut:\n            break\n" in code
    code = code.replace("        if seq.is_cut:\n            break\n", "        if seq.is_cut:\n            continue\n")
    result = checks.grade(parse(exercise, code))
    assert result.passed, result


@pytest.mark.slow
def test_the_function_that_leaks_is_named_among_all():
    result = checks.grade(ours("ch05.may_append"), [ours("ch05.allocate"), parse(DEALLOCATE, LEAKS)])
    assert result.passed and result.blamed == "ch05.deallocate"
    assert "its blocks or queues are not in order" in result.whole and "B is finished" in result.details[0]


def test_our_own_engine_keeps_the_rules_and_where_they_are_missing_nothing_is_said(monkeypatch):
    package = assemble.assemble()
    assert runner.run(grading.generate, package=package, limit=60).value.broken_rule == ()
    config = {"block_size": 4, "num_blocks": 1, "max_num_seqs": 1}
    lost = {"format": "nanovllm-trace", "version": 1, "config": config, "seqs": {}}
    after = {"waiting": [], "running": [], "free": [], "ref": {}, "hash": {}, "seqs": {}}
    lost["steps"] = [{"i": 0, "kind": "init", "scheduled": [], "events": [], "after": after, "ms": None}]
    assert "block 0 is lost" in grading.first_broken_rule(lost, package)[2]
    monkeypatch.setitem(sys.modules, "nanovllm.viz.trace", None)
    assert grading.first_broken_rule(lost, package) == ()


def test_faster_paths_are_turned_off_only_for_code_that_is_not_ours():
    exercise = dataclasses.replace(DEALLOCATE, bypassed_by={"attention_backend": "sdpa"})
    assert assemble.combine([parse(exercise, HEAD_FIRST)])[2] == {"attention_backend": "sdpa"}
    same = exercise.reference().replace("seq.block_table = []", "seq.block_table = []  # a comment is no difference")
    assert same != exercise.reference()
    assert assemble.combine([parse(exercise, same)])[2] == {}


def test_each_exercise_turns_off_what_goes_around_it():
    names = {"ch05.deallocate": "cuda_graph", "ch05.may_append": "step_ahead"}
    answers = [
        parse(
            dataclasses.replace(EXERCISES[id_], bypassed_by={"disabled_optimizations": [name]}),
            EXERCISES[id_].reference() + "\n    x = 1\n",
        )
        for id_, name in names.items()
    ]
    assert assemble.combine(answers)[2] == {"disabled_optimizations": ["cuda_graph", "step_ahead"]}


def test_what_goes_around_a_function_is_known_by_its_symbol(tmp_path):
    """Not every exercise has to think of it."""
    entry = {"title": "", "minutes": 5, "difficulty": 1, "hints": ["", "", ""], "why": ""}
    lines = [f"{key} = {value!r}" for key, value in entry.items()]
    text = ["[chapters]", 'ch12 = "normalization"']
    text += ["[bypassed_by]", '"m:Norm.a" = { disabled_optimizations = ["fused_norm"] }']
    for name in "ab":
        text += ["[[exercise]]", f'id = "ch12.{name}"', f'symbol = "m:Norm.{name}"', *lines]
    (tmp_path / "exercises").mkdir()
    (tmp_path / manifest.MANIFEST).write_text("\n".join(text))
    found = {id_: dict(exercise.bypassed_by) for id_, exercise in manifest.load(tmp_path).items()}
    assert found == {"ch12.a": {"disabled_optimizations": ["fused_norm"]}, "ch12.b": {}}


def test_a_caller_can_turn_off_more_and_cannot_turn_on_what_goes_around_an_answer(workspace):
    exercise = dataclasses.replace(DEALLOCATE, bypassed_by={"disabled_optimizations": ["expected_length"]})
    answer = parse(exercise, HEAD_FIRST)
    package = assemble.assemble([answer])
    small = {"device": "cpu", "num_kvcache_blocks": 4, "load_format": "dummy"}
    for asked, off in (
        ({}, ["expected_length"]),
        ({"disabled_optimizations": ("packed_weights",)}, ["expected_length", "packed_weights"]),
        ({"disabled_optimizations": "all"}, "all"),
    ):
        with assemble._accepting(package.load(), package.options, {}, "")("qwen3-tiny", **small, **asked) as llm:
            assert llm.config.disabled_optimizations == off


# The assembled engine.


def test_a_package_is_named_after_its_content_and_written_once():
    one, again, other = (
        assemble.assemble([parse(DEALLOCATE, HEAD_FIRST + extra)]) for extra in ("", "", "    x = 1\n")
    )
    assert one.name == again.name != other.name
    path = one.folder / "engine" / "block_manager.py"
    before = path.stat().st_mtime_ns
    assemble.assemble([parse(DEALLOCATE, HEAD_FIRST)])
    assert path.stat().st_mtime_ns == before
    assert not list(one.folder.rglob("*.safetensors")) and not (one.folder / "viz").exists()


def test_old_packages_are_cleared_away(tmp_path, monkeypatch):
    monkeypatch.setattr(assemble, "KEPT_PACKAGES", 2)
    build = tmp_path / "build"
    for i in range(4):
        (build / f"nanovllm_{i}").mkdir(parents=True)
        os.utime(build / f"nanovllm_{i}", (i, i))
    (build / "nanovllm_dropped_by_another_process").symlink_to(tmp_path / "nowhere")
    (build / "nanovllm_in_use").mkdir()
    assemble._prune(build)
    assert {"nanovllm_3", "nanovllm_in_use"} <= {path.name for path in build.iterdir()}
    assert not {"nanovllm_0", "nanovllm_1"} & {path.name for path in build.iterdir()}
    monkeypatch.setattr(assemble, "KEPT_PACKAGES", 1)
    (build / "nanovllm_new").mkdir()
    assemble._prune(build)
    assert (build / "nanovllm_in_use").is_dir()


def test_an_exercise_outside_the_engine_is_put_into_labs(tmp_path, monkeypatch):
    labs = "from nanovllm import SamplingParams\n\n\ndef twice(x):\n    return SamplingParams and 2 * x\n"
    (tmp_path / "exercises" / "kit").mkdir(parents=True)
    (tmp_path / "exercises" / "kit" / "labs.py").write_text(labs)
    (tmp_path / "nanovllm").symlink_to(ROOT / "nanovllm")
    monkeypatch.setattr(Exercise, "module_text", lambda self, root=None: labs)
    monkeypatch.setattr(Exercise, "reference", lambda self, root=None: source.cut(labs, "twice")[0])
    exercise = Exercise(
        id="ch01.twice",
        symbol=f"{manifest.LABS}:twice",
        title="",
        minutes=5,
        difficulty=1,
        hints=(),
        why="",
        splice=False,
    )
    answer = parse(exercise, "def helper(x):\n    return x\n\n\ndef twice(x):\n    return helper(x) + x + 1\n")
    assert answer.problem is None
    assert assemble.assemble([answer], tmp_path).module("labs").twice(3) == 7
    assert assemble.assemble([], tmp_path).module("labs").twice(3) == 6


@pytest.fixture
def me(workspace):
    workspace.write(DEALLOCATE, ours("ch05.deallocate").text + "    self.mine = True\n")
    return actions.mine()


def test_mine_generates_and_takes_parameters_of_the_other_package(me):
    params = nanovllm.SamplingParams(temperature=0.0, max_tokens=6)
    prompts = ["Once upon a time", "One day, a fox"]
    options = {"device": "cpu", "kvcache_block_size": 4, "num_kvcache_blocks": 30}
    with me.LLM("qwen3-tiny", **options) as llm, nanovllm.LLM("qwen3-tiny", **options) as reference:
        expected = reference.generate(prompts, params, use_tqdm=False)
        found = llm.generate(prompts, [params, params], use_tqdm=False)
        assert [out["token_ids"] for out in found] == [out["token_ids"] for out in expected]
        assert llm.scheduler.block_manager.mine
        beams = llm.beam_search("Once", nanovllm.BeamSearchParams(2, 3))
        assert len(beams[0].sequences) == 2
        assert "".join(llm.stream(prompts[0], sampling_params=params)) == expected[0]["text"]
        llm.add_request(prompts[0], params)
        with pytest.raises(TypeError):
            llm.generate(prompts, {"temperature": 0})


def test_the_map_says_what_is_whose(me, workspace):
    text = repr(me)
    assert f"1 of {len(SPLICED)} functions are yours; 0 of all {len(EXERCISES)} exercises passed" in text
    assert re.search(r"BlockManager\.deallocate +yours, not passed yet", text)
    workspace.note(DEALLOCATE, status="passed")
    boxes = re.findall(r"<span title='(.*?)'.*?>(.*?)</span>", me._repr_html_())
    assert ("ch05.deallocate: yours", "✓ BlockManager.deallocate") in boxes
    assert sum(title.endswith(": ours") for title, _ in boxes) == len(SPLICED) - 1 == len(boxes) - 1


def test_an_answer_that_cannot_be_used_is_replaced_by_ours(workspace):
    workspace.write(DEALLOCATE, "def deallocate(self, seq):\n    retrun 1\n")
    assert "ours (yours cannot be used)" in repr(actions.mine())


def test_objects_of_the_assembled_engine_pickle(me):
    seq = me.package.module("engine.sequence").Sequence([1, 2, 3])
    copy = pickle.loads(pickle.dumps(seq))
    assert type(copy) is type(seq) and copy.token_ids == [1, 2, 3]


@pytest.mark.slow
def test_the_assembled_engine_starts_its_own_workers(me, tmp_path):
    script = f"""
    import sys
    sys.path.append({str(me.package.folder.parent)!r})
    import {me.package.name} as engine

    if __name__ == "__main__":
        with engine.LLM("qwen3-tiny", device="cpu", tensor_parallel_size=2, num_kvcache_blocks=8) as llm:
            params = engine.SamplingParams(temperature=0.0, max_tokens=6)
            print(llm.generate("Once upon a time", params, use_tqdm=False)[0]["token_ids"])
        print("nanovllm" in sys.modules)
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    result = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    with nanovllm.LLM("qwen3-tiny", device="cpu") as llm:
        params = nanovllm.SamplingParams(temperature=0.0, max_tokens=6)
        expected = llm.generate("Once upon a time", params, use_tqdm=False)[0]["token_ids"]
    assert result.stdout.splitlines() == [str(expected), "False"], result.stderr


@pytest.mark.slow
def test_an_exported_engine_stands_alone(me, tmp_path):
    me.export(tmp_path / "myengine")
    assert "self.mine = True" in (tmp_path / "myengine" / "engine" / "block_manager.py").read_text()
    script = (
        "import sys, myengine; llm = myengine.LLM('qwen3-tiny', device='cpu');"
        "print(llm.generate('Once upon', myengine.SamplingParams(max_tokens=3), use_tqdm=False)[0]['finish_reason']);"
        "print([m for m in sys.modules if m.startswith('nanovllm')], llm.config.model_path)"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert result.stdout.splitlines() == ["length", f"[] {tmp_path / 'myengine' / 'assets' / 'qwen3-tiny'}"], (
        result.stderr
    )
    with pytest.raises(FileExistsError):
        me.export(tmp_path / "myengine")


# Files.


def test_a_cell_is_written_checked_and_kept_in_step(workspace):
    assert "passed" in actions.exercise("ch05.deallocate", DEALLOCATE.reference()).title
    assert workspace.answer(DEALLOCATE).text == DEALLOCATE.reference() + "\n"
    assert workspace.known(DEALLOCATE)["status"] == "passed"
    assert "not right yet" in actions.exercise("ch05.deallocate", HEAD_FIRST).title
    assert workspace.answer(DEALLOCATE).text == HEAD_FIRST
    assert [path.read_text() for path in (workspace.folder / ".attempts").iterdir()] == [DEALLOCATE.reference() + "\n"]


def test_a_cell_does_not_overwrite_what_was_edited_in_the_file(workspace):
    actions.exercise("ch05.deallocate", HEAD_FIRST)
    path = workspace.path(DEALLOCATE)
    path.write_text(path.read_text().replace("for block_id in seq", "for block_id in  seq"))
    message = actions.exercise("ch05.deallocate", HEAD_FIRST + "    return\n")
    assert "was changed since this cell wrote to it" in message.title and "\n+    return" in repr(message).replace(
        " " * 9, ""
    )
    assert "for block_id in  seq" in path.read_text()
    actions.exercise("ch05.deallocate --force", HEAD_FIRST + "    return\n")
    assert workspace.answer(DEALLOCATE).text == HEAD_FIRST + "    return\n"


def test_a_cell_with_the_stub_never_replaces_an_answer(workspace):
    workspace.write(DEALLOCATE, DEALLOCATE.reference())
    message = actions.exercise("ch05.deallocate", DEALLOCATE.stub())
    assert "passed" in message.title and "--pull" in message.rows[-1][1]
    assert workspace.answer(DEALLOCATE).text == DEALLOCATE.reference() + "\n"


def test_a_cell_that_python_cannot_read_changes_nothing(workspace):
    before = workspace.path(DEALLOCATE).read_bytes()
    message = actions.exercise("ch05.deallocate", "def deallocate(self, seq):\n    retrun 1\n")
    assert "the cell, line 3" in repr(message)
    assert workspace.path(DEALLOCATE).read_bytes() == before


def test_a_cell_with_a_line_that_divides_the_file_changes_nothing(workspace):
    before = workspace.path(DEALLOCATE).read_bytes()
    for cell in (f"# --- ch05.deallocate\n{HEAD_FIRST}", f"{HEAD_FIRST}\n# --- ch05.allocate\n"):
        message = actions.exercise("ch05.deallocate", cell)
        assert message.kind == "failed" and "divides the file" in repr(message)
    assert workspace.path(DEALLOCATE).read_bytes() == before


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_a_file_may_come_from_another_editor(workspace, encoding):
    workspace.write(DEALLOCATE, f"# für später\n{HEAD_FIRST}")
    path = workspace.path(DEALLOCATE)
    path.write_bytes(path.read_text(encoding="utf-8").replace("\n", "\r\n").encode(encoding))
    assert workspace.answer(DEALLOCATE).text == f"# für später\n{HEAD_FIRST}"
    workspace.write(EXERCISES["ch05.may_append"], "def may_append(self, seq):\n    pass\n")
    assert workspace.answer(DEALLOCATE).text == f"# für später\n{HEAD_FIRST}"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1"])
def test_an_answer_in_a_file_from_another_editor_passes(workspace, encoding):
    workspace.write(DEALLOCATE, f"# für später\n{DEALLOCATE.reference()}")
    path = workspace.path(DEALLOCATE)
    path.write_bytes(path.read_text(encoding="utf-8").encode(encoding))
    assert checks.check("ch05.deallocate", workspace, engine=False).passed


def test_a_file_in_utf_16_is_told_as_such_and_its_stubs_are_not_wrong(workspace):
    workspace.write(DEALLOCATE, f"# für später\n{HEAD_FIRST}")
    path = workspace.path(DEALLOCATE)
    path.write_bytes(path.read_text(encoding="utf-8").encode("utf-16"))
    result = checks.check("ch05.deallocate", workspace)
    assert result.status == "failed"
    assert result.summary == f"Python cannot read {path.parent.name}/{path.name}: it is not UTF-8; save it as UTF-8"
    assert checks.check("ch05.allocate", workspace).status == "todo"
    workspace.write(EXERCISES["ch05.may_append"], "def may_append(self, seq):\n    pass\n")
    assert workspace.answer(DEALLOCATE).text == f"# für später\n{HEAD_FIRST}"
    assert workspace.answer(DEALLOCATE).is_usable  # what is written from here is UTF-8


def test_what_python_cannot_read_at_the_top_of_a_file_does_not_make_stubs_wrong(workspace):
    workspace.write(DEALLOCATE, HEAD_FIRST)
    path = workspace.path(DEALLOCATE)
    path.write_text("imprt math\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert "Python cannot read it" in workspace.answer(DEALLOCATE).problem
    assert checks.check("ch05.allocate", workspace).status == "todo"


def test_a_folder_that_is_read_only_is_told_not_raised(workspace, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied", "exercises")

    workspace.write(DEALLOCATE, HEAD_FIRST)
    monkeypatch.setattr(Path, "write_text", refuse)
    for message in (
        actions.exercise("ch05.allocate", "def allocate(self, seq):\n    pass\n"),
        actions.reset("ch05.allocate"),
    ):
        assert message.kind == "failed" and "NANOVLLM_EXERCISES" in repr(message)
    workspace.note(DEALLOCATE, hints=1)  # a cache; nothing is said


@pytest.mark.parametrize("exercise_id", [None, 5, ["ch05.deallocate"], "", "ch99"])
def test_what_is_no_id_is_explained_not_raised(exercise_id):
    assert actions.check(exercise_id).kind == actions.hint(exercise_id).kind == "failed"
    assert "Which exercise" in actions.check().title


@pytest.mark.parametrize("line", ["", "ch05.nothing", "ch05.deallocate --forse"])
def test_a_wrong_line_of_a_cell_is_explained_not_raised(line):
    assert actions.exercise(line, HEAD_FIRST).kind == "failed"


def test_reset_keeps_the_answer(workspace):
    workspace.write(DEALLOCATE, HEAD_FIRST)
    actions.reset("ch05.deallocate")
    assert workspace.answer(DEALLOCATE).is_stub
    (backup,) = (workspace.folder / ".attempts").iterdir()
    assert backup.read_text() == HEAD_FIRST


def test_hints_are_counted_and_open_the_solution(workspace):
    assert "still closed" in actions.solution("ch05.deallocate").title
    assert [len(actions.hint("ch05.deallocate").rows) for _ in range(3)] == [1, 2, 4]
    assert "reversed(seq.block_table)" in repr(actions.solution("ch05.deallocate"))
    assert "find_cached_blocks" in repr(actions.solution("ch05.allocate", now=True))


def test_a_pass_opens_the_solution_until_the_answer_changes(workspace):
    actions.exercise("ch05.deallocate", DEALLOCATE.reference())
    assert "why" in dict(actions.solution("ch05.deallocate").rows)
    workspace.write(DEALLOCATE, HEAD_FIRST)
    assert "still closed" in actions.solution("ch05.deallocate").title


class Notebook:
    """What a notebook's IPython is for the kit, and what was displayed in it."""

    kernel = None

    def __init__(self, monkeypatch):
        self.shown = []
        monkeypatch.setattr(actions, "_shell", lambda: self)
        monkeypatch.setattr("IPython.display.display", self.display)

    def display(self, *parts, display_id=False):
        self.shown.append(list(parts))
        return self if display_id else None

    def update(self, part):
        self.shown[-1] = [self.shown[-1][0], part]


@pytest.mark.slow
def test_show_puts_the_runs_side_by_side(workspace, monkeypatch):
    import ipykernel  # noqa: F401 - being installed and imported is not being in a notebook

    workspace.write(DEALLOCATE, HEAD_FIRST)
    message = actions.show("ch05.deallocate")
    wrong = [entry for entry in message.beside if entry[1] != entry[2]]
    assert wrong[0][1:] == ("[5, 3, 2, 1, 0]", "[5, 0, 1, 2, 3]") and len(message.beside) <= 6
    assert [label for label, _ in message.rows] == ["the case", "when"]
    text, html = repr(message), message._repr_html_()
    assert "ours   [5, 3, 2, 1, 0]\n      yours  [5, 0, 1, 2, 3]" in text
    assert "<th" in html and html.count("✗") == 1 + len(wrong) and "[5, 0, 1, 2, 3]</td>" in html
    notebook = Notebook(monkeypatch)
    assert actions.show("ch05.deallocate") is None
    ((again, _, theirs, _, ours),) = notebook.shown
    assert repr(again) == text and theirs.step == ours.step > 0
    assert "Not as in the other run (≠): #8, " in theirs.caption(theirs.step)
    assert "≠" not in ours.caption(ours.step) and "≠" not in theirs.caption(theirs.step - 1)


def test_show_marks_the_blocks_that_went_wrong(workspace, monkeypatch):
    workspace.write(DEALLOCATE, HEAD_FIRST.replace("seq.block_table:", "seq.block_table[1:]:", 1))
    notebook = Notebook(monkeypatch)
    actions.show("ch05.deallocate")
    ((_, _, theirs, _, ours),) = notebook.shown
    mine, reference = (table.trace["steps"][theirs.step]["after"] for table in (theirs, ours))
    leaked = set(reference["free"]) - set(mine["free"])
    marked = re.search(r"\(≠\): (.*)\.", theirs.caption(theirs.step))[1]
    assert leaked and {f"#{block_id}" for block_id in leaked} <= set(marked.split(", "))
    pool = theirs.draw(theirs.step).drawings[1].svg()
    assert all(f"≠ #{block_id} " in pool for block_id in leaked) and "≠" not in ours.draw(ours.step).html()


@pytest.mark.slow
def test_show_says_when_only_the_case_goes_wrong(workspace, monkeypatch):
    few = "reversed(seq.block_table) if len(self.blocks) >= 8 else seq.block_table:"
    workspace.write(DEALLOCATE, HEAD_FIRST.replace("seq.block_table:", few, 1))
    notebook = Notebook(monkeypatch)
    actions.show("ch05.deallocate")
    ((_, message),) = notebook.shown
    assert "only the case above differs" in repr(message)


def test_show_after_a_pass_tells_what_the_function_did(workspace, monkeypatch):
    workspace.write(DEALLOCATE, DEALLOCATE.reference())
    ((_, text),) = actions.show("ch05.deallocate").rows
    assert re.match(r"It was called in \d+ of \d+ steps\. Step \d+: ", text)
    assert "is preempted" in text and re.search(r"#\d+ of [A-D] came back to the pool\.", text)
    notebook = Notebook(monkeypatch)
    actions.show("ch05.deallocate")
    ((message, _, table),) = notebook.shown
    assert f"Step {table.step}: " in repr(message)


def test_a_trace_tells_the_step_that_raised():
    code = LEAKS.replace("    table = seq", "    if is_done:\n        raise KeyError(7)\n    table = seq")
    package = assemble.assemble([parse(DEALLOCATE, code)])
    trace = runner.run(grading.record, package=package, limit=60).value
    assert trace["steps"][-1]["kind"] == "error" and "KeyError" in trace["error"] and trace["called"]
    result = checks.grade(parse(DEALLOCATE, code))
    assert result.status == "failed"


def test_in_a_notebook_the_cases_are_shown_first_and_completed_by_the_engine(workspace, monkeypatch):
    notebook = Notebook(monkeypatch)
    assert actions.exercise("ch05.deallocate", DEALLOCATE.reference()) is None
    ((first, last),) = notebook.shown
    assert dict(first.rows)["together"] == "The engine is running with it."
    assert "same as ours" in repr(last) and "next" in dict(last.rows)
    assert "not right yet" in actions.exercise("ch05.deallocate", HEAD_FIRST).title  # nothing was to come


def test_a_chapter_is_checked_as_a_whole(workspace):
    workspace.write(DEALLOCATE, DEALLOCATE.reference())
    workspace.write(EXERCISES["ch05.can_allocate"], "def can_allocate(self, seq):\n    return True\n")
    message = actions.check("ch05", engine=False)
    rows = dict(message.rows)
    assert message.title.startswith("ch05: 1 of ") and message.kind == "failed"
    assert rows["ch05.deallocate"].startswith("✓ Right in all") and rows["ch05.can_allocate"].startswith("✗ ")
    assert rows["ch05.allocate"] == "· not written yet" and rows["next"].startswith("ch05.compute_hash")


# Derivation.


@pytest.fixture
def course(tmp_path):
    """A copy of what stubs and solutions are derived from."""
    ignored = shutil.ignore_patterns("assets", "viz", "__pycache__")
    shutil.copytree(ROOT / "nanovllm", tmp_path / "nanovllm", ignore=ignored)
    (tmp_path / "exercises").mkdir()
    (tmp_path / "exercises" / "kit").mkdir()
    for name in (manifest.MANIFEST, manifest.LABS.replace(".", "/") + ".py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_sync_writes_once_and_then_has_nothing_to_do(course, capsys):
    assert any("exercises/ch05_block_manager.py is out of step" in p for p in stubs.sync(course, write=False))
    assert stubs.sync(course) == []
    assert "ch05_block_manager.py: written" in capsys.readouterr().out
    assert stubs.sync(course) == stubs.sync(course, write=False) == []
    assert capsys.readouterr().out == ""


def test_sync_leaves_an_edited_file_alone(course):
    stubs.sync(course)
    path = course / "exercises" / "ch05_block_manager.py"
    path.write_text(path.read_text().replace("raise NotImplementedError", "return 1  #", 1))
    edited = path.read_bytes()
    (problem,) = stubs.sync(course)
    assert "was edited and is left alone" in problem and path.read_bytes() == edited


def test_sync_notices_an_engine_that_moved_on_and_files_of_nobody(course):
    stubs.sync(course)
    engine = course / "nanovllm" / "engine" / "block_manager.py"
    engine.write_text(engine.read_text().replace("Take all blocks of `seq` back.", "Take every block back."))
    (course / "solutions" / "ch77_stray.py").write_text("")
    problems = stubs.sync(course, write=False)
    assert "\n+    " + '"""Take every block back.' in problems[0] and len(problems) == 3
    assert "solutions/ch77_stray.py belongs to no chapter" in problems[2]
    assert len(stubs.sync(course)) == 1


def test_update_carries_answers_over(course, workspace):
    workspace.write(DEALLOCATE, HEAD_FIRST)
    path = workspace.path(DEALLOCATE)
    path.write_text(path.read_text() + "\n\n# --- ch05.gone\ndef gone():\n    pass\n")
    engine = course / "nanovllm" / "engine" / "block_manager.py"
    text = engine.read_text()
    engine.write_text(text.replace("Whether there are enough free blocks", "Is there room"))
    assert engine.read_text() != text
    assert stubs.update(workspace, course) == ["ch05_block_manager.py: brought up to date"]
    sections = split(path.read_text())
    assert sections["ch05.deallocate"][1] == HEAD_FIRST and "def gone()" in sections["ch05.gone"][1]
    assert "Is there room" in sections["ch05.can_allocate"][1]
    assert stubs.update(workspace, course) == []


def test_update_knows_what_was_checked_even_without_the_file(course, workspace):
    actions.exercise("ch05.deallocate", HEAD_FIRST)
    stubs.write_stubs(workspace.folder)  # as `git checkout` leaves it
    stubs.update(workspace, course)
    assert workspace.answer(DEALLOCATE).text == HEAD_FIRST


CHAPTER = """\
# %%
# %load_ext exercises

# %%
# {{exercise ch05.deallocate}}

# %%
me = mine()
me

# %%
with me.LLM("qwen3-tiny", device="cpu", num_kvcache_blocks=4) as llm:
    print(llm.generate("One day", me.SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)[0]["finish_reason"])

# %%
show("ch05.deallocate")
"""


@pytest.fixture
def chapter(course):
    path = course / "notebooks" / "src" / "05_toy.py"
    path.parent.mkdir(parents=True)
    path.write_text(CHAPTER)
    return path


def test_the_exercise_directive_becomes_a_box_and_a_cell(chapter, course):
    notebook = notebooks.derive(chapter, course)
    box, cell = notebook.cells[1:3]
    assert box.cell_type == "markdown" and "Difficulty 2 of 3, about 12 minutes" in box.source
    assert cell.source == "%%exercise ch05.deallocate\n" + DEALLOCATE.stub()
    assert nbformat.writes(notebook) == nbformat.writes(notebooks.derive(chapter, course))
    chapter.write_text("# %%\n# {{exercise ch05.nothing}}\n")
    with pytest.raises(notebooks.NotebookError, match=r"05_toy.py: .*no exercise ch05.nothing"):
        notebooks.derive(chapter, course)


@pytest.mark.slow
@pytest.mark.parametrize("solved", [False, True])
def test_a_notebook_runs_as_a_new_learner_and_as_solved(chapter, course, solved):
    notebook = notebooks.derive(chapter, course)
    notebooks.execute(notebook, chapter.parent, answers={"ch05.deallocate": DEALLOCATE.reference()} if solved else None)
    texts = [str(cell.get("outputs", "")) for cell in notebook.cells]
    assert ("passed" if solved else "not written yet") in texts[2]
    assert f"{int(solved)} of {len(SPLICED)} functions are yours" in texts[3]
    assert "length" in texts[4]
    assert "image/png" in texts[5] if solved else "not written yet" in texts[5]


def test_update_puts_the_learners_cells_into_the_new_notebook(chapter, course, workspace):
    target = course / "notebooks" / "05_toy.ipynb"
    notebook = notebooks.derive(chapter, course)
    notebook.cells[2].source = "%%exercise ch05.deallocate\n" + HEAD_FIRST
    nbformat.write(notebook, target)
    assert notebooks.update(workspace, course) == []
    chapter.write_text("# %% [markdown]\n# New words.\n\n" + CHAPTER)
    (line,) = notebooks.update(workspace, course)
    cells = nbformat.read(target, 4).cells
    assert "rebuilt with your answers" in line and cells[0].source == "New words."
    assert cells[3].source == "%%exercise ch05.deallocate\n" + HEAD_FIRST
    assert len(list((workspace.folder / ".attempts").glob("05_toy-*.ipynb"))) == 1


# The command line.


def run_command(*arguments):
    return terminal.run(argparse.Namespace(**arguments[0]), arguments[1])


@pytest.fixture
def console():
    return Console(width=160, record=True, file=open(os.devnull, "w"))


def test_the_overview_tells_how_far_one_is(workspace, console):
    actions.exercise("ch05.deallocate", DEALLOCATE.reference())
    workspace.write(EXERCISES["ch05.allocate"], "def allocate(self, seq):\n    pass\n")
    assert run_command({"command": None}, console) == 0
    text = console.export_text(clear=False)
    assert f"Next: {next(iter(EXERCISES))}" in text and "written, not checked" in text
    workspace.write(DEALLOCATE, HEAD_FIRST)
    console.print(terminal.overview(workspace))
    assert "changed, check again" in console.export_text()


def test_the_check_command_returns_whether_all_passed(workspace, console):
    assert run_command({"command": "check", "id": []}, console) == 1
    workspace.write(DEALLOCATE, DEALLOCATE.reference())
    assert run_command({"command": "check", "id": []}, console) == 0
    assert run_command({"command": "check", "id": ["ch05"]}, console) == 1
    assert run_command({"command": "check", "id": ["ch05.dealocate"]}, console) == 1
    assert "did you mean ch05.deallocate" in console.export_text()


def test_watch_checks_what_was_saved(workspace, console, monkeypatch):
    def save(seconds):
        workspace.path(DEALLOCATE).write_text(
            join(workspace.path(DEALLOCATE).read_text(), "ch05.deallocate", HEAD_FIRST), encoding="utf-8"
        )

    monkeypatch.setattr(terminal.time, "sleep", save)
    terminal.watch(workspace, console, rounds=2)
    assert console.export_text().count("Take the blocks back: not right yet") == 1


def test_doctor_looks_at_everything(workspace, console):
    assert run_command({"command": "doctor"}, console) == 0
    text = console.export_text()
    assert "an engine run" in text and "works (" in text and "MISSING" not in text


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for command in ("check", "hint", "show", "solution", "reset", "watch", "mine", "doctor", "update", "sync"):
        assert f"\n    {command} " in text


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_answers_are_graded_by_pytest_only_when_asked_for(workspace):
    workspace.write(DEALLOCATE, DEALLOCATE.reference())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    asked = subprocess.run([*command, "tests/exercises", "-k", "ch05"], cwd=ROOT, capture_output=True, text=True)
    num_asked = sum(exercise.chapter == "ch05" for exercise in EXERCISES.values())
    assert f"{num_asked - 1} failed, 1 passed" in asked.stdout
    command += ["--collect-only", "--ignore=tests/engine", "--ignore=tests/viz"]  # which take long to be read
    everything = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert everything.returncode == 0 and "tests/exercises" not in everything.stdout
    assert "tests/course/test_kit.py" in everything.stdout


def test_checks_leave_no_process_behind():
    children = {process.pid for process in runner.multiprocessing.active_children()}
    grade("def deallocate(self, seq):\n    pass\n")
    assert {process.pid for process in runner.multiprocessing.active_children()} == children
    assert grading.prints_of(f"{grading.CASE_MARK}a|A.\none\n{grading.CASE_MARK}b|B.\ntwo\n", "a") == "one\n"
