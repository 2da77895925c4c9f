"""Files that are whole or absent: atomic writes, checksums, and one writer per folder."""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .config import LabError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, everything else works
    fcntl = None  # type: ignore[assignment]


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


def write_json(path: Path, value: Any) -> None:
    """Strict JSON: NaN and infinity are refused, since half of all readers would choke on them later."""
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds `folder` for this process alone; the lock goes with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"another process is working in {folder}: wait for it, or choose another folder"
                raise Busy(message) from None
        yield
