"""The course as a class gets it that is graded: without solutions and their reasons, other answers, and third hints.

Nor does it have what derives these: the tools for authors and instructors. The engine itself stays as readable as it
is: it is what the course is about, and a learner's engine needs it for the functions that are not theirs yet.
`kit/labs.py` stays as well, since notebooks run on it. Who wants to copy from them can; the guide for instructors says
what to make of that.
"""

import io
import re
import subprocess
import zipfile
from pathlib import Path

import nbformat

from ..kit import notebooks, stubs
from ..kit.manifest import MANIFEST, ROOT

# Solutions; the mistakes that are recognized; what is tested with right answers; the guides for instructors and
# authors; what notebooks are built from, and what grades and shows solutions.
LEFT_OUT = re.compile(
    r"(solutions|tests/wrong_answers|tests/course|\.ci|notebooks/src)/|(INSTRUCTORS|CONTRIBUTING)\.md"
)
TOOLS = re.compile(r"exercises/classroom/(?!__init__|hand_in)")
LAST_HINT = re.compile(r"(^hints = \[\n(?:    .*\n){2})    .*\n", re.MULTILINE)
KEPT = '    "This hint is with your instructor.",\n'
WHY = re.compile(r'^why = """\n.*?"""$', re.MULTILINE | re.DOTALL)
# Pages lose the lines that lead to what is left out, and sections that are for authors; and say that they do.
LEADS_THERE = re.compile(rf"^.*(?:{LEFT_OUT.pattern}|solution\().*\n", re.MULTILINE)
FOR_AUTHORS = re.compile(r"^## (?:Extend it|For authors)\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
NOTE = "\n*A copy for a class: solutions, their reasons, the third hints and the guides are with your instructor.*\n"


def release(folder: Path, root: Path = ROOT) -> tuple[int, list[str]]:
    """Copy the course, as it is committed, into a new folder, without what helps to copy answers.

    Returns:
        The number of files; and what is not in it because it is not committed, or should be looked at.

    Raises:
        FileExistsError: the folder is there.
        RuntimeError: the course is no checkout of git, which knows what belongs to it.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} is there already: name a folder that is to be made")
    status = _git(root, "-c", "core.quotePath=off", "status", "--short", "--untracked-files=normal", ".")
    changed = [line[3:] for line in status.decode(errors="replace").splitlines()]
    remarks = [f"not committed, so not as it is here: {name}" for name in changed if not LEFT_OUT.match(name)]
    with zipfile.ZipFile(io.BytesIO(_git(root, "archive", "--format=zip", "HEAD"))) as archive:
        names = [name for name in archive.namelist() if not (LEFT_OUT.match(name) or TOOLS.match(name))]
        archive.extractall(folder, names)
    for page in folder.rglob("*.md"):
        page.write_text(for_learners(page.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / MANIFEST).write_text(without_answers((folder / MANIFEST).read_text(encoding="utf-8")), encoding="utf-8")
    stubs.write_stubs(folder / "exercises", folder)  # whatever answers are committed
    books = sorted(folder.glob("notebooks/*.ipynb"))
    edited = [path.name for path in books if notebooks.edited_by_hand(nbformat.read(path, as_version=4))]
    remarks += [f"committed with somebody's edits, so look at it: notebooks/{name}" for name in edited]
    return sum(path.is_file() for path in folder.rglob("*")), remarks


def _git(root: Path, *arguments: str) -> bytes:
    result = subprocess.run(["git", *arguments], cwd=root, capture_output=True)
    if result.returncode:
        raise RuntimeError(f"git, which knows what belongs to the course: {result.stderr.decode(errors='replace')}")
    return result.stdout


def for_learners(text: str) -> str:
    """A page, without what leads to what a release lacks."""
    found = FOR_AUTHORS.sub("", LEADS_THERE.sub("", text))
    return found if found == text else found.replace("\n", f"\n{NOTE}", 1)


def without_answers(text: str) -> str:
    """The manifest, with the last of three hints and the reasons of solutions replaced everywhere."""
    return WHY.sub('why = "The reason is with your instructor."', LAST_HINT.sub(rf"\g<1>{KEPT}", text))
