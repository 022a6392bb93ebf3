"""What learners hand in: their files of answers, in a zip; and reading it without trusting it."""

import re
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..kit import manifest
from ..kit.workspace import Workspace

MAX_BYTES = 500_000  # of a file of answers; the longest of ours has less than a tenth of it
MAX_MEMBERS = 10_000  # of a zip


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


def file_names() -> list[str]:
    """The names of the files of answers, chapter by chapter."""
    return list(dict.fromkeys(exercise.file_name for exercise in manifest.load().values()))


def pack(path: Path, workspace: Workspace | None = None) -> list[str]:
    """Zip the files of answers of a workspace; returns their names.

    Raises:
        FileNotFoundError: there is none.
    """
    folder = (workspace or Workspace()).folder
    names = [name for name in file_names() if (folder / name).is_file()]
    if not names:
        raise FileNotFoundError(f"{folder} has no file of answers, such as {file_names()[0]}")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.write(folder / name, name)
    return names


def find(folder: Path) -> list[Submission]:
    """Every zip and every folder in `folder` is a submission; in the order of their names.

    Raises:
        FileNotFoundError: there is none.
    """
    paths = [path for path in sorted(folder.iterdir()) if path.suffix == ".zip" or path.is_dir() or path.is_symlink()]
    if not paths:
        raise FileNotFoundError(f"{folder} has neither zips nor folders: one for each learner is expected")
    submissions: list[Submission] = []
    for path in paths:
        submission = load(path)
        if submission.student in {other.student for other in submissions}:
            submission.student = path.name
        submissions.append(submission)
    return submissions


def load(path: Path) -> Submission:
    """Read a zip or a folder: the files with names of the course, wherever in it they are; links are not followed."""
    submission = Submission(path.stem if path.suffix == ".zip" else path.name)
    if path.is_symlink():
        submission.remarks.append("it is a link, which is not followed")
        return submission
    try:
        for name, content in _folder(path) if path.is_dir() else _zip(path):
            _take(submission, name, content)
    except (OSError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:  # damaged, or with a password
        submission.remarks.append(f"it cannot be read: {error}")
    if not submission.files:
        submission.remarks.append(f"it has no file of answers, such as {file_names()[0]}")
    return submission


def _take(submission: Submission, path: str, content: bytes | None) -> None:
    name = _name(path)
    if content is None:
        submission.remarks.append(f"{path} is a link, which is not followed")
    elif len(content) > MAX_BYTES:
        submission.remarks.append(f"{path} has more than {MAX_BYTES:,} bytes and was left out")
    elif name in submission.files:
        submission.remarks.append(f"{path} was left out: there is another {name}")
    else:
        submission.files[name] = content


def _name(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]


def _folder(path: Path) -> Iterator[tuple[str, bytes | None]]:
    """Path and content of each file with a name of the course; None for a link."""
    names = set(file_names())
    for file in sorted(path.rglob("*"), key=lambda file: (len(file.parts), file)):
        if file.name in names:
            relative = file.relative_to(path).as_posix()
            if file.is_symlink():
                yield relative, None
            elif file.is_file():
                with file.open("rb") as stream:
                    yield relative, stream.read(MAX_BYTES + 1)


def _zip(path: Path) -> Iterator[tuple[str, bytes | None]]:
    names = set(file_names())
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > MAX_MEMBERS:
            raise RuntimeError(f"it has {len(members):,} members")
        for member in sorted(members, key=lambda member: (member.filename.count("/"), member.filename)):
            if _name(member.filename) in names:
                if stat.S_ISLNK(member.external_attr >> 16):
                    yield member.filename, None
                    continue
                with archive.open(member) as stream:  # no more than that, whatever size it claims to have
                    yield member.filename, stream.read(MAX_BYTES + 1)
