"""Whose folder is this: a command writes only to folders that it made or found empty, one process at a time.

A folder of ours holds a marker, which is written before anything else. A folder that holds anything and no marker is
someone else's, and nothing in it is touched. Checkpoints are such folders, too.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from .errors import LabError

MARKER = ".autowarm"
_ABOUT = "autowarm made this folder. It replaces and deletes its own files here, and leaves all others alone.\n"
_NAMED = 5  # files of someone else's that an error lists


class Busy(LabError):
    """Another process is using the folder."""


def is_ours(folder: Path) -> bool:
    """Whether a folder carries the marker."""
    return (folder / MARKER).is_file()


def claim(folder: Path) -> None:
    """Make a folder and mark it as ours, unless it is; LabError if it is someone else's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        what = "a link to nothing" if folder.is_symlink() else "a file"
        raise LabError(f"{folder} is {what}, and a folder is needed: choose another, such as {free(folder)}") from None
    there = sorted(path.name for path in folder.iterdir())
    if MARKER in there:
        return
    if there:
        names = ", ".join(there[:_NAMED]) + (f" and {more} more" if (more := len(there) - _NAMED) > 0 else "")
        raise LabError(
            f"{folder} is not autowarm's, so nothing in it was touched: it holds {names}, and no {MARKER}. Choose "
            f"another folder, such as {free(folder)}; if autowarm made these files, create an empty {folder / MARKER}"
        )
    (folder / MARKER).write_text(_ABOUT)


def free(folder: Path) -> Path:
    """Return a folder of a similar name that does not exist yet."""
    base = folder if folder.name not in ("", "..") else folder / "autowarm"
    names = itertools.chain([base], (base.with_name(f"{base.name}-{count}") for count in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Claim a folder for this process: `Busy` if another holds it. The lock ends with the process, in any way."""
    claim(folder)
    try:
        held = FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout:
        raise Busy(f"another process is working in {folder}: wait for it, or choose another folder") from None
    with held:
        yield
