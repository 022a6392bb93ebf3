"""What an instructor relies on: whatever is handed in is read safely and graded, and nothing of it stays behind."""

import contextlib
import csv
import os
import re
import stat
import subprocess
import sys
import textwrap
import tomllib
import warnings
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from exercises.classroom import demo, grades, release, reports, submissions
from exercises.kit import checks, grading, manifest, source, stubs
from exercises.kit.manifest import ROOT
from exercises.kit.workspace import FOLDER_VARIABLE, Workspace, join

IDS = ["ch04.block", "ch05.compute_hash", "ch05.can_allocate", "ch05.deallocate"]
EXERCISES = manifest.load()


@pytest.fixture
def solved(tmp_path):
    """A function that makes a folder with stubs, in which some answers are written."""

    def make(name, answers):
        folder = tmp_path / name
        stubs.write_stubs(folder)
        for id_, code in answers.items():
            path = folder / EXERCISES[id_].file_name
            path.write_text(join(path.read_text(), id_, code))
        return folder

    return make


def right(*ids):
    return {id_: EXERCISES[id_].reference() for id_ in ids}


def with_body(id_, body):
    """An answer with the right signature that does something else."""
    head = EXERCISES[id_].stub().split("    raise NotImplementedError")[0]
    return head + "".join(f"    {line}\n" for line in body.splitlines())


def statuses(grade):
    return {result["id"]: result["status"] for result in grade.results}


def zipped(path, members):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # two members of one name
        for name, content in members:
            archive.writestr(name, content)
    return path


# Reading.


def test_what_is_packed_is_what_is_read(solved, tmp_path):
    folder = solved("ada", right(*IDS))
    names = submissions.pack(tmp_path / "ada.zip", Workspace(folder))
    loaded = submissions.load(tmp_path / "ada.zip")
    assert loaded.student == "ada" and not loaded.remarks and list(loaded.files) == names == submissions.file_names()
    assert loaded.files == {name: (folder / name).read_bytes() for name in names} == submissions.load(folder).files


def test_nothing_to_pack_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file of answers"):
        submissions.pack(tmp_path / "none.zip", Workspace(tmp_path))


@pytest.mark.parametrize(
    "path", ["../../ch05_block_manager.py", "/etc/ch05_block_manager.py", "a\\..\\ch05_block_manager.py"]
)
def test_a_zip_writes_nowhere_else(path, tmp_path):
    loaded = submissions.load(zipped(tmp_path / "slip.zip", [(path, "x = 1"), ("../../../evil.py", "x")]))
    inside = tmp_path / "submission" / "b"
    loaded.write(inside)
    assert [file.relative_to(inside.parent) for file in inside.parent.rglob("*.py")] == [
        Path("b/ch05_block_manager.py")
    ]
    assert not list(tmp_path.glob("**/evil.py"))


def test_links_are_not_followed(tmp_path):
    secret = tmp_path / "secret.py"
    secret.write_text("the instructor's")
    link = zipfile.ZipInfo("ch05_block_manager.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    loaded = submissions.load(zipped(tmp_path / "link.zip", [(link, str(secret))]))
    assert not loaded.files and "link" in loaded.remarks[0]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "ch05_block_manager.py").symlink_to(secret)
    (folder / "inner").symlink_to(ROOT / "solutions")
    (tmp_path / "all").symlink_to(ROOT)
    for path in (folder, tmp_path / "all"):
        loaded = submissions.load(path)
        assert not loaded.files and "link" in loaded.remarks[0]


def test_a_bomb_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ch05_block_manager.py", b"#" * 100_000_000)
        archive.writestr("ch06_scheduler.py", "x = 1")
    loaded = submissions.load(tmp_path / "bomb.zip")
    assert list(loaded.files) == ["ch06_scheduler.py"] and "more than 500,000 bytes" in loaded.remarks[0]


def test_the_outermost_of_two_files_counts(tmp_path):
    members = [("old/ch04_sequence.py", "old"), ("ch04_sequence.py", "new"), ("ch04_sequence.py", "again")]
    loaded = submissions.load(zipped(tmp_path / "twice.zip", members))
    assert loaded.files == {"ch04_sequence.py": b"new"} or loaded.files == {"ch04_sequence.py": b"again"}
    assert len(loaded.remarks) == 2


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut off"])
def test_what_cannot_be_read_is_a_remark(content, tmp_path):
    path = tmp_path / "class" / "bad.zip"
    path.parent.mkdir()
    path.write_bytes(content)
    (found,) = submissions.find(path.parent)
    assert not found.files and "cannot be read" in found.remarks[0]


def test_names_of_a_zip_and_a_folder_do_not_meet(solved, tmp_path):
    folder = solved("class/ada", {})
    submissions.pack(folder.parent / "ada.zip", Workspace(folder))
    assert sorted(found.student for found in submissions.find(folder.parent)) == ["ada", "ada.zip"]


# Grading.


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_exercise_is_judged_whatever_the_others_do(solved, tmp_path):
    """An answer that brings its grader down, or does not end, costs the learner this answer and no other."""
    away = tmp_path / "away.py"
    away.write_text("import time\ntime.sleep(600)\n")
    start = f"subprocess.Popen([sys.executable, {str(away)!r}], start_new_session=True)"
    bodies = {
        "ch04.block": f"import subprocess, sys\n{start}",
        "ch05.compute_hash": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
        "ch05.can_allocate": "import os, signal\nos.killpg(os.getpgid(os.getppid()), signal.SIGKILL)",
        "ch05.allocate": "hog = []\nwhile True:\n    hog.append(bytearray(2**28))",
        "ch05.may_append": "while True:\n    pass",
        "ch06.finish_reason": "import os\nos._exit(0)",
        "ch06.preempt": "raise SystemExit",
        "ch06.postprocess": "def broken(:",
    }
    good = right("ch04.append_token", "ch05.deallocate", "ch06.make_room")
    broken = {id_: with_body(id_, body) for id_, body in bodies.items()}
    ids = [id_ for id_ in EXERCISES if id_ in good | broken]
    grade = grades.grade_one(submissions.load(solved("eve", good | broken)), ids)
    assert statuses(grade) == {id_: "passed" if id_ in good else "failed" for id_ in ids}
    assert "together" in grade.together
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            assert str(away) not in " ".join(process.cmdline())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_class_gets_a_table_pages_and_what_most_got_wrong(solved, tmp_path):
    wrong = with_body("ch05.compute_hash", "return 7")
    texts = [right(*IDS), right(*IDS[:2]), right(IDS[0]) | {"ch05.compute_hash": wrong}, {"ch05.compute_hash": wrong}]
    folders = [solved(f"class/student{i}", answers) for i, answers in enumerate(texts)]
    (folders[1] / "ch05_block_manager.py").unlink()  # as somebody may do who has only chapter 4
    zipped(tmp_path / "class" / "empty.zip", [])
    seen = []
    graded = grades.grade_class(submissions.find(tmp_path / "class"), IDS, on_grade=seen.append)
    assert [grade.num_passed for grade in graded] == [0, 4, 1, 1, 0] and len(seen) == 5
    reports.write(graded, IDS, tmp_path / "grades")
    with (tmp_path / "grades" / "grades.csv").open(encoding="utf-8-sig") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert rows["student0"]["passed"] == "4" and rows["student2"]["ch05.compute_hash"] == "not right"
    assert rows["empty"]["ch04.block"] == "not written" and "no file of answers" in rows["empty"]["remarks"]
    page = (tmp_path / "grades" / "feedback" / "student2.md").read_text()
    assert "1 of 4 exercises are right" in page and "ch05.compute_hash" in page
    summary = (tmp_path / "grades" / "class.md").read_text()
    assert re.search(r"\*\*ch05\.compute_hash\*\*, 2 times", summary) and "* empty:" in summary
    suites = ElementTree.parse(tmp_path / "grades" / "junit.xml").getroot()
    assert {suite.get("name"): suite.get("failures") for suite in suites}["student3"] == "1"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_an_answer_writes_among_the_results_does_not_count(solved):
    """Neither a forged line, nor a copy of one that was written, changes what is found out."""
    forge = """
        from pathlib import Path
        for path in Path(os.environ["NANOVLLM_EXERCISES"]).parent.glob("*.jsonl"):
            lines = path.read_text()
            with path.open("a") as file:
                file.write(lines + '{"id": "ch06.preempt", "status": "passed", "feedback": ""}\\nno end')
        raise SystemExit
    """
    body = "import os\n" + textwrap.dedent(forge)
    ids = ["ch04.append_token", "ch06.preempt", "ch06.make_room"]
    answers = right("ch04.append_token", "ch06.make_room") | {"ch06.preempt": with_body("ch06.preempt", body)}
    grade = grades.grade_one(submissions.load(solved("mallory", answers)), ids)
    assert [(r["id"], r["status"]) for r in grade.results] == [
        (ids[0], "passed"),
        (ids[1], "failed"),
        (ids[2], "passed"),
    ]


def test_the_summary_of_an_error_says_which():
    error = ("in deallocate", "AttributeError: 'OrderedDict' object has no attribute 'append'")
    finding = grading.Finding("case", "story", ("step",), "an error", error=error)
    report = grades.report_of(checks.Result(EXERCISES["ch05.deallocate"], "failed", "not right", finding))
    assert report["about"] == error[-1]


# What a class that is graded gets.


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release") / "course"
    release.release(folder)
    return folder


def test_a_release_has_no_answers(released):
    for name in ("solutions", "tests/wrong_answers", "tests/course", "INSTRUCTORS.md"):
        assert not (released / name).exists()
    assert "[CONTRIBUTING.md]" in (released / "README.md").read_text()
    assert [path for path in released.rglob("*.md") if "INSTRUCTORS.md" in path.read_text()] == []
    for entry in tomllib.loads((released / "exercises/exercises.toml").read_text())["exercise"]:
        assert entry["hints"][2] == "This hint is with your instructor."
        assert entry["hints"][:2] == list(EXERCISES[entry["id"]].hints[:2])
        assert entry["why"] == "The reason is with your instructor."


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_release_can_be_worked_with(released):
    (released / "exercises" / "ch04_sequence.py").write_text(
        join((released / "exercises/ch04_sequence.py").read_text(), "ch04.block", EXERCISES["ch04.block"].reference())
    )
    code = (
        "from exercises import check, hint, solution; print(check('ch04.block')); print(solution('ch04.block'));"
        "[hint('ch04.block') for _ in range(2)]; print(hint('ch04.block'))"
    )
    variables = {name: value for name, value in os.environ.items() if name != FOLDER_VARIABLE}
    variables["PYTHONPATH"] = str(released)
    result = subprocess.run([sys.executable, "-c", code], cwd=released, env=variables, capture_output=True, text=True)
    assert "ch04.block" in result.stdout and ": passed" in result.stdout, result.stderr
    assert "The solution is closed" in result.stdout and "shows our answer" not in result.stdout
    assert "This hint is with your instructor" in result.stdout


# In front of a class.


def test_a_demonstration_begins_where_the_chapter_does(workspace, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(workspace.folder))
    mine = {path.name: path.read_text() for path in workspace.folder.glob("ch*.py")}
    message = demo.at("ch05")
    demonstrated = Workspace()
    assert message.kind == "passed" and demonstrated.folder != workspace.folder
    assert "✓ Sequence.block<" in message.picture and "✓ BlockManager" not in message.picture
    states = {id_: checks.state(exercise, demonstrated) for id_, exercise in EXERCISES.items()}
    assert states == {id_: "passed" if id_ < "ch05" else "to do" for id_ in EXERCISES}
    assert mine == {path.name: path.read_text() for path in workspace.folder.glob("ch*.py")}
    assert "ch99" in demo.at("ch99").title


def test_a_solution_is_typed_line_by_line_and_is_the_answer_then(workspace, monkeypatch, capsys):
    monkeypatch.setenv(FOLDER_VARIABLE, str(workspace.folder))
    demo.type("ch05.deallocate", seconds=0)
    assert workspace.answer(EXERCISES["ch05.deallocate"]).function[0] == EXERCISES["ch05.deallocate"].reference()
    assert capsys.readouterr().out == source.without_docstring(EXERCISES["ch05.deallocate"].reference()).rstrip() + "\n"


def test_a_known_mistake_is_put_in_and_told(workspace, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(workspace.folder))
    names = [label.split()[-1] for label, _ in demo.break_("ch05.deallocate").rows]
    assert names == [wrong.name for wrong in checks.wrong_answers(EXERCISES["ch05.deallocate"])]
    by_number = demo.break_("ch05.deallocate", 1)  # which tells the class nothing
    assert "no mistake 'sleepy'" in demo.break_("ch05.deallocate", "sleepy").title
    workspace.write(EXERCISES["ch05.deallocate"], EXERCISES["ch05.deallocate"].reference())
    message = demo.break_("ch05.deallocate", names[0])
    diagnosis = checks.wrong_answers(EXERCISES["ch05.deallocate"])[0].diagnosis
    assert message.kind == "failed" and ("likely", diagnosis) in message.rows and by_number.rows == message.rows
    assert list((workspace.folder / ".attempts").glob("ch05.deallocate-*"))
