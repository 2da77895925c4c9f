"""Files that are whole or absent: atomic writes, checksums, and one writer per folder."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .config import LabError

__all__ = ["Busy", "locked", "read_object", "sha256", "within", "write_atomically", "write_json"]


class Busy(LabError):
    """Another process is at work in the folder."""


def sha256(data: bytes | Path) -> str:
    """Hex digest of some bytes, or of a file read in pieces."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()
    with open(data, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, data: bytes | str) -> None:
    """Writes a file so that a reader, or a crash at any moment, sees the old content or the new, never a part."""
    if isinstance(data, str):
        data = data.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would hide results from colleagues
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_object(path: Path, remedy: str, *keys: str) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
        path: the file.
        remedy: what to do about one that is damaged.
        keys: that it must have.

    Raises:
        LabError: it holds something else, or cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(f"{path} is damaged ({error}): {remedy}") from None
    if not isinstance(found, dict):
        raise LabError(f"{path} is damaged (it holds no object): {remedy}")
    if missing := [key for key in keys if key not in found]:
        raise LabError(f"{path} is damaged (it has no {', '.join(missing)}): {remedy}")
    return found


def within(folder: Path, name: Any) -> Path:
    """The file of a folder that a manifest names, which may name none outside.

    Raises:
        LabError: the name is more than that of a file.
    """
    if not isinstance(name, str) or name in ("", "..") or Path(name).name != name or {"\\", "\0"} & set(name):
        raise LabError(f"{folder}: a manifest may name files in its own folder alone, got {name!r}")
    return folder / name


def write_json(path: Path, value: Any) -> None:
    """Strict JSON: NaN and infinity are refused, since half of all readers would choke on them later."""
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this process alone; the lock goes with the process, however that ends.

    Raises:
        Busy: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Busy(f"another process is working in {folder}: wait for it, or choose another folder") from None
    try:
        yield
    finally:
        lock.release()
