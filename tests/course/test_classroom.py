"""What an instructor relies on: whatever is handed in is read safely and graded, and nothing of it stays behind."""

import argparse
import contextlib
import csv
import inspect
import json
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import tomllib
import uuid
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import psutil
import pytest

from exercises.__main__ import main
from exercises.classroom import demo, grades, hand_in, release, reports, submissions
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
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # two members of one name
        for name, content in members:
            archive.writestr(name, content)
    return path


# Reading.


def test_what_is_packed_is_what_is_read(solved, tmp_path):
    folder = solved("ada", right(*IDS))
    names = hand_in.pack(tmp_path / "ada.zip", Workspace(folder))
    loaded = submissions.load(tmp_path / "ada.zip")
    assert loaded.student == "ada" and not loaded.remarks and list(loaded.files) == names == list(stubs.chapters())
    assert loaded.files == {name: (folder / name).read_bytes() for name in names} == submissions.load(folder).files


def test_what_is_missing_is_said(solved, tmp_path, capsys, monkeypatch):
    folder = solved("ada", {})
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    assert hand_in.submit(argparse.Namespace(zip=tmp_path / "ada.zip")) == 0
    assert "Not there" not in capsys.readouterr().out
    (folder / "ch06_scheduler.py").rename(folder / "my_scheduler.py")
    assert hand_in.submit(argparse.Namespace(zip=tmp_path / "ada.zip")) == 0
    assert "Not there, and not graded under another name: ch06_scheduler.py.\n" in capsys.readouterr().out


def test_a_folder_may_hold_zips(solved, tmp_path):
    """As learning platforms hand them out: for each learner a folder, in which is what was uploaded."""
    names = hand_in.pack(tmp_path / "upload.zip", Workspace(solved("ada", right(*IDS))))
    folder = tmp_path / "class" / "Ada L_12_file"
    folder.mkdir(parents=True)
    (tmp_path / "upload.zip").rename(folder / "upload.zip")
    (folder / "damaged.zip").write_bytes(b"PK, and nothing else")
    loaded = submissions.load(folder)
    assert list(loaded.files) == names and loaded.student == "Ada L_12_file"
    assert loaded.remarks == [f"{submissions.UNKNOWN}: damaged.zip"]


def test_nothing_to_pack_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file of answers"):
        hand_in.pack(tmp_path / "none.zip", Workspace(tmp_path))


@pytest.mark.parametrize(
    "path", ["../../ch05_block_manager.py", "/etc/ch05_block_manager.py", "a\\..\\ch05_block_manager.py"]
)
def test_what_would_leave_a_zip_is_left_out_and_said(path, tmp_path):
    members = [(path, "x = 1"), ("../../../evil.py", "x"), ("ch04_sequence.py", "y = 1")]
    loaded = submissions.load(zipped(tmp_path / "slip.zip", members))
    inside = tmp_path / "submission" / "b"
    loaded.write(inside)
    assert [file.relative_to(inside.parent) for file in inside.parent.rglob("*")][1:] == [Path("b/ch04_sequence.py")]
    assert not list(tmp_path.glob("**/evil.py"))
    assert loaded.remarks == [f"not read, because its path leads out of the submission: {path}, ../../../evil.py"]


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


def test_the_newest_of_several_versions_counts_and_the_remark_says_which(tmp_path):
    days = {"a_old": 1, "z_new": 9, "m_old": 2}
    members = [
        (zipfile.ZipInfo(f"{name}/ch04_sequence.py", (2026, 11, day, 8, 0, 0)), name) for name, day in days.items()
    ]
    folder = tmp_path / "folder"
    for info, text in members:
        path = folder / info.filename
        path.parent.mkdir(parents=True)
        path.write_text(text)
        os.utime(path, (1e9 + days[text], 1e9 + days[text]))
    for loaded in (submissions.load(zipped(tmp_path / "some.zip", members)), submissions.load(folder)):
        assert loaded.files == {"ch04_sequence.py": b"z_new"}
        (remark,) = loaded.remarks
        assert re.search(r"there 3 times: z_new/\S+ \(.*\) was graded, not m_old/\S+ \(.*\), a_old/", remark)
    same = (2026, 11, 1, 8, 0, 0)
    members = [(zipfile.ZipInfo(f"{name}ch04_sequence.py", same), name) for name in ("in/", "", "also/in/")]
    assert submissions.load(zipped(tmp_path / "same.zip", members)).files == {"ch04_sequence.py": b""}  # the outermost


def test_an_older_version_counts_if_the_newest_is_too_long(tmp_path):
    members = [
        (zipfile.ZipInfo("a/ch04_sequence.py", (2026, 11, 1, 8, 0, 0)), "x = 1"),
        (zipfile.ZipInfo("b/ch04_sequence.py", (2026, 11, 2, 8, 0, 0)), "#" * 600_000),
    ]
    loaded = submissions.load(zipped(tmp_path / "long.zip", members))
    assert loaded.files == {"ch04_sequence.py": b"x = 1"} and "b/ch04_sequence.py has more" in loaded.remarks[0]


def test_nothing_is_passed_over_without_a_word(tmp_path):
    folder = tmp_path / "class"
    folder.mkdir()
    for name in ("eve.py", "fay.tar.gz", ".DS_Store"):
        (folder / name).write_text("x")
    zipped(folder / "GUS.ZIP", [("ch04_sequence.py", "x = 1")])
    (folder / "zoe" / "__pycache__").mkdir(parents=True)
    for name in ("ch05_block_manager (Kopie ü).py", "ch04_sequence.py", "__pycache__/x.py", "__init__.py", "note.txt"):
        (folder / "zoe" / name).write_text("")
    (gus, zoe), others = submissions.find(folder)
    assert gus.student == "GUS" and gus.files and not gus.remarks and others == ["eve.py", "fay.tar.gz"]
    unknown = f"{submissions.UNKNOWN}: ch05_block_manager (Kopie ü).py"
    assert zoe.remarks == [unknown, "ch04_sequence.py is empty"]
    with pytest.raises(FileNotFoundError, match="neither zips nor folders"):
        submissions.find(folder / "nowhere")


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04 cut off"])
def test_what_cannot_be_read_is_a_remark(content, tmp_path):
    path = tmp_path / "class" / "bad.zip"
    path.parent.mkdir()
    path.write_bytes(content)
    ((found,), _) = submissions.find(path.parent)
    assert not found.files and "cannot be read" in found.remarks[0]


def test_names_of_a_zip_and_a_folder_do_not_meet(solved, tmp_path):
    folder = solved("class/ada", {})
    hand_in.pack(folder.parent / "ada.zip", Workspace(folder))
    assert sorted(found.student for found in submissions.find(folder.parent)[0]) == ["ada", "ada.zip"]


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
    mark = uuid.uuid4().hex
    wrong = with_body("ch05.compute_hash", f"return 7  # {mark}")
    texts = [right(*IDS), right(*IDS[:2]), right(IDS[0]) | {"ch05.compute_hash": wrong}, {"ch05.compute_hash": wrong}]
    folders = [solved(f"class/student{i}", answers) for i, answers in enumerate(texts)]
    (folders[1] / "ch05_block_manager.py").unlink()  # as somebody may do who has only chapter 4
    zipped(tmp_path / "class" / "empty.zip", [])
    seen = []
    found, _ = submissions.find(tmp_path / "class")
    graded = grades.grade_class(found, IDS, on_grade=seen.append)
    assert [grade.num_passed for grade in graded] == [0, 4, 1, 1, 0] and len(seen) == 5
    reports.write(graded, IDS, tmp_path / "grades")
    with (tmp_path / "grades" / "grades.csv").open(encoding="utf-8-sig") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert rows["student0"]["passed"] == "4" and rows["student2"]["ch05.compute_hash"] == "not right"
    assert rows["empty"]["ch04.block"] == "not written" and "no file of answers" in rows["empty"]["remarks"]
    page = (tmp_path / "grades" / "feedback" / "student2.md").read_text()
    assert "1 of 4 exercises are right" in page and "ch05.compute_hash" in page
    summary = (tmp_path / "grades" / "class.md").read_text()
    assert "`ch05.compute_hash`, 2 times (student2, student3): " in summary and "* empty:" in summary
    built = [path.read_text() for path in (ROOT / "build").glob("nanovllm_*/engine/block_manager.py")]
    assert not any(mark in text for text in built)  # the engines of a class are gone with it
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


def made(student, *results, remarks=()):
    """A grade of which each result is None for a pass, or what is about a mistake."""
    found = [
        {"id": id_, "status": "failed" if about else "passed", "about": about, "feedback": "", "is_strange": strange}
        for id_, about in zip(IDS, results, strict=False)
        for strange in [bool(about and about.startswith("Stopped"))]
    ]
    return grades.Grade(submissions.Submission(student, remarks=list(remarks)), found)


def test_the_summary_names_the_worst_exercise_first_and_leaves_out_nothing_silently():
    singles = [made(f"s{i}", None, f"Mistake {i}.") for i in range(8)]
    several = [made(name, "Early.", "Often.") for name in ("ada", "bob")]
    strange = made("eve", "Stopped\nafter 5 s.", "Stopped\nafter 5 s.", remarks=["x.py is empty"])
    summary = reports.summary([*singles, *several, strange], IDS[:2], ["fay.tar.gz: not graded"])
    assert summary.index("### `ch05.compute_hash`: 11 not right") < summary.index("### `ch04.block`: 3 not right")
    lines = summary.splitlines()
    first = lines[lines.index("### `ch05.compute_hash`: 11 not right") + 2 :]
    assert first[0] == "* `ch05.compute_hash`, 2 times (ada, bob): Often."
    assert first[1] == "* `ch05.compute_hash`, once (s0): Mistake 0." and first[5].startswith("* ... and 5 more, once")
    assert "s4, s5, s6, s7, eve" in first[5]
    needs, look = summary.split("## Who may need you")[1].split("## Submissions to look at")
    assert re.findall(r"\* (\w+): 0 passed", needs) == ["ada", "bob", "eve"] and "more who" not in needs
    for line in ("fay.tar.gz: not graded", "eve: x.py is empty", "eve, `ch04.block`, `ch05.compute_hash`: Stopped"):
        assert f"* {line}" in look
    alike = reports.summary(several + singles, IDS[:2])
    assert "* s0: 1 passed, 1 not right, 0 not written\n* ... and 7 more who passed 1" in alike


@pytest.mark.parametrize(
    ("finding", "summary", "is_strange"),
    [
        (None, "It was stopped after 5 seconds.", True),
        (None, "It passes its cases, but plugged in, the engine stopped with an error.", False),
        (grading.Finding("case", "story", (), "an error", error=("line 1", "MemoryError: too much")), "not", True),
        (grading.Finding("case", "story", (), "blocks", "1", "2"), "not right", False),
    ],
)
def test_what_is_more_than_a_wrong_answer_is_marked(finding, summary, is_strange):
    result = checks.Result(EXERCISES["ch05.deallocate"], "failed", summary, finding)
    report = grades.report_of(result)
    assert report["is_strange"] is is_strange and report["case"] == ("story" if finding else "")


def test_a_problem_of_the_engine_is_named_as_the_summary_of_a_class_expects():
    assert "plugged in" in inspect.getsource(checks)


def test_after_an_interruption_what_is_finished_is_written(tmp_path, monkeypatch, capfd):
    """And nothing of those that were interrupted."""
    for name in "abc":
        zipped(tmp_path / "class" / f"{name}.zip", [("ch04_sequence.py", "x = 1")])

    def grade_one(submission, ids, stopped):
        if submission.student == "a":
            return made("a", None)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert stopped.wait(30)
        return made(submission.student, "Half.")

    monkeypatch.setattr(grades, "grade_one", grade_one)
    out = tmp_path / "out"
    assert main(["grade", str(tmp_path / "class"), "--only", "ch04.block", "--jobs", "1", "--out", str(out)]) == 130
    said = capfd.readouterr().out
    assert "a: 1 of 1" in said and "1 of 3 submissions are graded" in said and "b: 0 of 1" not in said
    assert [path.name for path in (out / "feedback").iterdir()] == ["a.md"]
    assert "* c: not graded, because grading was stopped" in (out / "class.md").read_text()
    assert main(["grade", str(tmp_path / "class"), "--out", str(out)]) == 1  # pages of two classes would be mixed
    assert "not empty: name a new folder with --out" in capfd.readouterr().out


def test_any_name_and_any_words_can_be_written(tmp_path):
    grade = made('=A&B <"C">', None, "5 < 6 & \x07\ud800")
    reports.write([grade], IDS[:2], tmp_path / "out")
    (suite,) = ElementTree.parse(tmp_path / "out" / "junit.xml").getroot()
    assert suite.attrib == {"name": '=A&B <"C">', "tests": "2", "failures": "1", "skipped": "0"}
    assert suite.find("testcase/failure").get("message") == "5 < 6 & "
    with (tmp_path / "out" / "grades.csv").open(encoding="utf-8-sig") as file:
        assert next(csv.DictReader(file))["student"] == '\'=A&B <"C">'  # no formula


# What a class that is graded gets.


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release") / "course"
    release.release(folder)
    return folder


def test_a_release_has_no_answers(released):
    for name in (
        "solutions",
        "tests/wrong_answers",
        "tests/course",
        "notebooks/src",
        "INSTRUCTORS.md",
        "CONTRIBUTING.md",
    ):
        assert not (released / name).exists()
    assert {path.name for path in (released / "exercises/classroom").iterdir()} == {"__init__.py", "hand_in.py"}
    for entry in tomllib.loads((released / "exercises/exercises.toml").read_text())["exercise"]:
        assert entry["hints"][2] == "This hint is with your instructor."
        assert entry["hints"][:2] == list(EXERCISES[entry["id"]].hints[:2])
        assert entry["why"] == "The reason is with your instructor."


def test_the_pages_of_a_release_lead_nowhere_else(released):
    pages = {path: path.read_text() for path in released.rglob("*.md")}
    lacking = re.compile(
        r"INSTRUCTORS|CONTRIBUTING|`solutions/`|notebooks/src|exercises (sync|grade|release)|## For authors"
    )
    assert [path for path, text in pages.items() if lacking.search(text)] == []
    for name in ("README.md", "exercises/README.md"):
        assert pages[released / name].count("are with your instructor.*") == 1
    links = re.findall(r"\]\((?!http|#)([^)#]+)\)", pages[released / "README.md"])
    assert len(links) > 20 and all((released / link).exists() for link in links)


@pytest.mark.slow
def test_a_release_is_what_is_committed(tmp_path):
    """What an instructor has solved, shown and not committed stays with them; committed answers are stubs again."""
    course, copy = tmp_path / "mine", tmp_path / "theirs"
    subprocess.run(["git", "clone", "-q", "--shared", ROOT, course], check=True)
    answers = [course / "exercises" / EXERCISES[id_].file_name for id_ in ("ch04.block", "ch05.deallocate")]
    texts = [path.read_text() for path in answers]
    for path, id_ in zip(answers, ("ch04.block", "ch05.deallocate"), strict=True):
        path.write_text(join(path.read_text(), id_, EXERCISES[id_].reference()))
    book = course / "notebooks" / "05_block_manager.ipynb"
    shown = json.loads(book.read_text())
    shown["cells"][3]["source"] = ["demo.type('ch05.deallocate')"]
    book.write_text(json.dumps(shown))
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *identity, "commit", "-qm", "mine", "notebooks", answers[0]], cwd=course, check=True)
    (course / "notes of mine.txt").write_text("x")
    (course / "solutions" / "ch05_block_manager.py").write_text("x")
    book.write_text("{}")
    _, remarks = release.release(copy, course)
    assert [(copy / "exercises" / path.name).read_text() for path in answers] == texts
    assert not list(copy.rglob("notes*")) and "demo.type" in (copy / "notebooks" / book.name).read_text()
    for line in ("exercises/ch05_block_manager.py", "notebooks/05_block_manager.ipynb", '"notes of mine.txt"'):
        assert f"not committed, so not as it is here: {line}" in remarks
    assert "committed with somebody's edits, so look at it: notebooks/05_block_manager.ipynb" in remarks
    assert len(remarks) == 4
    with pytest.raises(FileExistsError, match="name a folder that is to be made"):
        release.release(copy, course)


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
    assert "The solution is closed" in result.stdout
    assert "shows our answer" not in result.stdout and "how ours does it" not in result.stdout
    assert "This hint is with your instructor" in result.stdout

    def exercises(*arguments):
        command = [sys.executable, "-m", "exercises", *arguments]
        return subprocess.run(command, cwd=released, env=variables, capture_output=True, text=True)

    listed = exercises("--help").stdout
    assert "submit" in listed and not re.search(r"^ +(sync|grade|release)\b", listed, re.MULTILINE)
    assert exercises("sync").returncode == 2 and "invalid choice" in exercises("sync").stderr
    assert "has your 18 files of answers" in exercises("submit").stdout and (released / "submission.zip").is_file()
    assert "up to date" in exercises("update").stdout and "works (" in exercises("doctor").stdout


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
    demo.at("ch05")
    demo.type("ch05.deallocate", seconds=0)
    assert Workspace().answer(EXERCISES["ch05.deallocate"]).function[0] == EXERCISES["ch05.deallocate"].reference()
    assert workspace.answer(EXERCISES["ch05.deallocate"]).is_stub
    assert capsys.readouterr().out == source.without_docstring(EXERCISES["ch05.deallocate"].reference()).rstrip() + "\n"


@pytest.mark.slow
def test_a_known_mistake_is_put_in_and_told(workspace, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(workspace.folder))
    demo.at("ch05")
    workspace = Workspace()
    names = [label.split()[-1] for label, _ in demo.break_("ch05.deallocate").rows]
    assert names == [wrong.name for wrong in checks.wrong_answers(EXERCISES["ch05.deallocate"])]
    by_number = demo.break_("ch05.deallocate", 1)  # which tells the class nothing
    for unknown in ("sleepy", 99, 0):  # on the projector: nothing of what the mistakes are
        message = demo.break_("ch05.deallocate", unknown)
        assert f"no mistake {unknown!r}: numbers from 1 to {len(names)}" in message.title and not message.rows
    workspace.write(EXERCISES["ch05.deallocate"], EXERCISES["ch05.deallocate"].reference())
    message = demo.break_("ch05.deallocate", names[0])
    diagnosis = checks.wrong_answers(EXERCISES["ch05.deallocate"])[0].diagnosis
    assert message.kind == "failed" and ("likely", diagnosis) in message.rows and by_number.rows == message.rows
    assert list((workspace.folder / ".attempts").glob("ch05.deallocate-*"))


def test_nothing_is_written_over_the_instructors_own_answers(workspace, monkeypatch, capsys):
    monkeypatch.setenv(FOLDER_VARIABLE, str(workspace.folder))
    before = {path.name: path.read_text() for path in workspace.folder.glob("ch*.py")}
    for message in (demo.type("ch05.deallocate", seconds=0), demo.break_("ch05.deallocate", 1)):
        assert message.kind == "failed" and 'begin with demo.at("ch05")' in message.title
    assert before == {path.name: path.read_text() for path in workspace.folder.glob("ch*.py")}
    assert not capsys.readouterr().out and demo.break_("ch05.deallocate").rows  # to look at before the class comes


def test_a_slip_of_an_id_is_told(workspace, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(workspace.folder))
    for message in (demo.type("ch05.dealocate"), demo.break_("ch05.dealocate", 1)):
        assert message.title == "there is no exercise 'ch05.dealocate'" and message.kind == "failed"
        assert "did you mean ch05.deallocate" in message.rows[0][1]
    assert "an open exercise has none" in demo.break_("ch06.choose_victim", 1).title


def test_a_solution_that_is_shown_again_adds_no_second_check(workspace, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(workspace.folder))
    cells = []
    notebook = SimpleNamespace(kernel=True, set_next_input=cells.append)
    monkeypatch.setattr(demo, "shell", lambda: notebook)
    monkeypatch.setattr(demo, "_typed", set())
    demo.at("ch05")
    for id_ in ("ch05.deallocate", "ch05.deallocate", "ch05.allocate"):
        demo.type(id_)
    assert cells == ['check("ch05.deallocate")', 'check("ch05.allocate")']
