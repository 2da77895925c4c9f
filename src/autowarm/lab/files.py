"""Files that are complete or absent: atomic writes and checksums."""

import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from .errors import LabError, require


def sha256(data: bytes | Path) -> str:
    """Hex digest of some bytes, or of a file read in pieces."""
    if isinstance(data, bytes):
        return hashlib.sha256(data).hexdigest()
    with open(data, "rb") as file:
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


def follow_umask(path: Path) -> None:
    """Let those read a file that another library wrote whom the umask lets read any other."""
    beside = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        beside.touch(exist_ok=False)  # the umask itself can be read only by changing it, for all threads
        shutil.copymode(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_object(path: Path, remedy: str, *keys: str, schema: int | None = None) -> dict[str, Any]:
    """Read the object in a JSON file of this schema, with these keys; if it is another, LabError tells the remedy."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        require(isinstance(found, dict), "it holds no object")
        require(schema is None or "schema" in found, "it has no schema")
        if found.get("schema") == schema or schema is None:
            missing = [key for key in keys if key not in found]
            require(not missing, f"it has no {', '.join(missing)}")
            return found
    except (OSError, ValueError) as error:
        raise LabError(f"{path} is damaged ({error}): {remedy}") from None
    raise LabError(f"{path} has schema {found['schema']!r}, this version reads {schema}: {remedy}")


def within(folder: Path, name: Any) -> Path:
    """Return the file that a folder's manifest names; LabError if the name is not a plain file name in the folder."""
    if not isinstance(name, str) or name in ("", "..") or Path(name).name != name or {"\\", "\0"} & set(name):
        raise LabError(f"{folder}: a manifest may name files in its own folder alone, got {name!r}")
    return folder / name


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON, without NaN and infinity, which many readers reject."""
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")
