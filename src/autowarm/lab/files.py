"""Files that are complete or absent, and whose folder is this: a command writes only to folders that are ours.

A command writes to folders that it made or found empty, one process at a time. Such a folder holds a marker, which is
written before anything else. A folder that holds anything and no marker is someone else's, and nothing in it is
touched. Checkpoints are such folders, too.
"""

import hashlib
import io
import itertools
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import LabError, require

MARKER = ".autowarm"
_ABOUT = "autowarm made this folder. It replaces and deletes its own files here, and leaves all others alone.\n"
_NAMED = 5  # files of someone else's that an error lists


def sha256(data: bytes | Path) -> str:
    """Hex digest of some bytes, or of a file read in pieces."""
    with io.BytesIO(data) if isinstance(data, bytes) else open(data, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file atomically: a reader, or a crash at any moment, leaves the old content or the new, never a part."""
    if isinstance(data, str):
        data = data.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:  # the umask decides who may read it, as for any other file
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_object(path: Path, remedy: str, *keys: str, schema: int | None = None) -> dict[str, Any]:
    """Read the object in a JSON file of this schema, with these keys; if it is another, LabError tells the remedy."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        require(isinstance(values, dict), "it holds no object")
        require(schema is None or "schema" in values, "it has no schema")
        if values.get("schema") == schema or schema is None:
            missing = [key for key in keys if key not in values]
            require(not missing, f"it has no {', '.join(missing)}")
            return values
    except (OSError, ValueError) as error:
        raise LabError(f"{path} is damaged ({error}): {remedy}") from None
    raise LabError(f"{path} has schema {values['schema']!r}, this version reads {schema}: {remedy}")


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON, without NaN and infinity, which many readers reject."""
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


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
        raise LabError(f"{folder} is no folder: choose another, such as {free(folder)}") from None
    files = sorted(path.name for path in folder.iterdir())
    if MARKER in files:
        return
    if files:
        names = ", ".join(files[:_NAMED]) + (f" and {more} more" if (more := len(files) - _NAMED) > 0 else "")
        how = f"another folder, such as {free(folder)}; if autowarm made these files, create an empty {folder / MARKER}"
        raise LabError(f"{folder} is not autowarm's, so nothing in it was touched: it holds {names}, and no {MARKER}. "
                       f"Choose {how}")  # fmt: skip
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
        lock = FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout:
        raise Busy(f"another process is working in {folder}: wait for it, or choose another folder") from None
    with lock:
        yield
