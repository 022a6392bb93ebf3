"""What learners hand in: their files of answers, in a zip or a folder; reading it without trusting it.

Nothing is passed over without a word, but hidden files, and what systems and Python put beside the learner's own.
"""

import re
import stat
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..kit import stubs
from ..kit.manifest import ROOT

MAX_BYTES = 500_000  # of a file of answers; the longest of ours has less than a tenth of it
MAX_MEMBERS = 10_000  # of a zip
HIDDEN = re.compile(r"(?:.*[/\\])?(?:\.(?!\.)|__)")  # .DS_Store, __MACOSX, __pycache__
OUTSIDE = re.compile(r"[/\\]|[A-Za-z]:|(?:.*[/\\])?\.\.(?:[/\\]|$)")  # absolute, or with ".."
OUT, LINK = "not read, because its path leads out of the submission", "not read, because it is a link"
UNKNOWN = "not read, because its name is none of the course, or it is a zip that cannot be read here"
Member = tuple[str, tuple[int, ...], Any]  # a file's path in a submission, its time, how to open it; None for a link


@dataclass
class Submission:
    """What one learner has handed in.

    Args:
        student: the name of the zip or folder.
        files: the content of each file of answers, by its name.
        remarks: what was left out, and why.
    """

    student: str
    files: dict[str, bytes] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Put the files into a folder, under names of the course: none of the submission's own paths is used."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def find(folder: Path) -> tuple[list[Submission], list[str]]:
    """Every zip and every folder in `folder` is a submission; and the names of what else is there.

    Raises:
        FileNotFoundError: there is none.
    """
    found = [path for path in sorted(folder.glob("*")) if not HIDDEN.match(path.name)]
    paths = [path for path in found if path.suffix.lower() == ".zip" or path.is_dir() or path.is_symlink()]
    if not paths:
        raise FileNotFoundError(f"{folder} has neither zips nor folders: one for each learner is expected")
    submissions = [load(path) for path in paths]
    for i, path in enumerate(paths):
        if submissions[i].student in {other.student for other in submissions[:i]}:
            submissions[i].student = path.name
    return submissions, [path.name for path in found if path not in paths]


def load(path: Path) -> Submission:
    """Read a zip or a folder, with the zips in it: the files with names of the course; links are not followed."""
    submission = Submission(path.stem if path.suffix.lower() == ".zip" else path.name)
    try:
        if path.is_symlink():
            raise OSError("it is a link, which is not followed")
        _take(submission, _folder(path) if path.is_dir() else _zip(zipfile.ZipFile(path)))
    except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:  # damaged, or with a password
        submission.remarks.append(f"it cannot be read: {error}")
    if not submission.files:
        submission.remarks.append(f"it has no file of answers, such as {next(iter(stubs.chapters()))}")
    return submission


def _take(submission: Submission, members: Iterable[Member]) -> None:
    """Sort what is there into answers and remarks."""
    versions: dict[str, list[Member]] = {name: [] for name in stubs.chapters()}
    ours = {path.name for path in (ROOT / "exercises").rglob("*.py")}
    left_out: dict[str, list[str]] = {OUT: [], LINK: [], UNKNOWN: []}
    for path, written, opens in members:
        name = re.split(r"[/\\]", path)[-1]
        if name in versions and opens and not OUTSIDE.match(path):
            versions[name].append((path, written, opens))
        elif name in versions or OUTSIDE.match(path):
            left_out[OUT if OUTSIDE.match(path) else LINK].append(path)
        elif name.lower().endswith((".py", ".zip")) and name not in ours and not HIDDEN.match(path):
            left_out[UNKNOWN].append(path)
    submission.remarks += [f"{why}: {some(paths)}" for why, paths in left_out.items() if paths]
    for name, found in versions.items():
        _take_newest(submission, name, found)


def _take_newest(submission: Submission, name: str, versions: list[Member]) -> None:
    """Of several of one time the outermost, then the last, as unpacking leaves it."""
    left = sorted(versions, key=lambda member: (member[1], -member[0].count("/")))
    while left and name not in submission.files:
        newest = left.pop()
        with newest[2]() as stream:
            content = stream.read(MAX_BYTES + 1)  # no more than that, whatever size it claims to have
        if len(content) > MAX_BYTES:
            submission.remarks.append(f"{newest[0]} has more than {MAX_BYTES:,} bytes and was left out")
            continue
        submission.files[name] = content
        submission.remarks += [f"{newest[0]} is empty"] * (not content.strip())
        if left:
            dated = ["{} ({}-{:02}-{:02} {:02}:{:02}:{:02})".format(path, *when) for path, when, _ in (newest, *left)]
            text = f"{dated[0]} was graded, not {some(dated[:0:-1])}"
            submission.remarks.append(f"{name} is there {len(versions)} times: {text}")


def some(names: list[str], most: int = 5) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _folder(path: Path) -> Iterator[Member]:
    for file in sorted(path.rglob("*")):
        if file.suffix.lower() == ".zip" and not file.is_symlink() and zipfile.is_zipfile(file):
            yield from _zip(zipfile.ZipFile(file))
        elif file.is_symlink() or file.is_file():
            written = time.localtime(file.lstat().st_mtime)[:6]
            opens = None if file.is_symlink() else partial(file.open, "rb")
            yield file.relative_to(path).as_posix(), written, opens


def _zip(archive: zipfile.ZipFile) -> Iterator[Member]:
    if len(members := archive.infolist()) > MAX_MEMBERS:
        raise RuntimeError(f"it has {len(members):,} members")
    for member in members:
        is_link = stat.S_ISLNK(member.external_attr >> 16)
        yield member.filename, member.date_time, None if is_link else partial(archive.open, member)
