"""The course as a class gets it that is graded: without solutions and their reasons, other answers, and third hints.

The engine itself stays as readable as it is: it is what the course is about, and a learner's engine needs it for the
functions that are not theirs yet. `kit/labs.py` stays as well, since notebooks run on it. Who wants to copy from them
can; the guide for instructors says what to make of that.
"""

import re
import shutil
import subprocess
from pathlib import Path

from ..kit.manifest import MANIFEST, ROOT

# Solutions; the mistakes that are recognized; what is tested with right answers; the guide, which names mistakes;
# lines that lead there go with it.
LEFT_OUT = ("solutions/", "tests/wrong_answers/", "tests/course/", ".ci/", "INSTRUCTORS.md")
LAST_HINT = re.compile(r"(^hints = \[\n(?:    .*\n){2})    .*\n", re.MULTILINE)
KEPT = '    "This hint is with your instructor.",\n'
WHY = re.compile(r'^why = """\n.*?"""$', re.MULTILINE | re.DOTALL)


def release(folder: Path, root: Path = ROOT) -> int:
    """Copy the course into a new folder, without what helps to copy answers; returns the number of files.

    Raises:
        FileExistsError: the folder is there.
        RuntimeError: the course is no checkout of git, which knows what belongs to it.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True)
    if listed.returncode:
        raise RuntimeError(f"{root} is no checkout of git, which knows what belongs to the course: {listed.stderr}")
    names = [name for name in listed.stdout.split("\0") if name and not name.startswith(LEFT_OUT)]
    folder.mkdir(parents=True)
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target)
    for page in (folder / name for name in names if name.endswith(".md")):
        lines = page.read_text(encoding="utf-8").splitlines(keepends=True)
        page.write_text("".join(line for line in lines if "INSTRUCTORS.md" not in line), encoding="utf-8")
    manifest = folder / MANIFEST
    manifest.write_text(without_answers(manifest.read_text(encoding="utf-8")), encoding="utf-8")
    return len(names)


def without_answers(text: str) -> str:
    """The manifest, with the last of three hints and the reasons of solutions replaced everywhere."""
    return WHY.sub('why = "The reason is with your instructor."', LAST_HINT.sub(rf"\g<1>{KEPT}", text))
