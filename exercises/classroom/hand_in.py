"""What a learner hands in: the files of answers, in a zip."""

import argparse
import zipfile
from pathlib import Path

from ..kit import stubs
from ..kit.workspace import Workspace


def submit(options: argparse.Namespace) -> int:
    """The command: write the zip, and say what it has."""
    names = pack(options.zip)
    print(f"{options.zip} has your {len(names)} files of answers, {names[0]} to {names[-1]}.")
    if missing := ", ".join(name for name in stubs.chapters() if name not in names):
        print(f"Not there, and not graded under another name: {missing}.")
    return 0


def pack(path: Path, workspace: Workspace | None = None) -> list[str]:
    """Zip the files of answers of a workspace; returns their names.

    Raises:
        FileNotFoundError: there is none.
    """
    folder = (workspace or Workspace()).folder
    names = [name for name in stubs.chapters() if (folder / name).is_file()]
    if not names:
        raise FileNotFoundError(f"{folder} has no file of answers, such as {next(iter(stubs.chapters()))}")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.write(folder / name, name)
    return names
