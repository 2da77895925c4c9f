"""What a user's task is: the files in the folder of its code and below, and its attributes.

A result is used again only where both are known to be the same. What cannot be hashed is new at every start. Code that
lies elsewhere is not looked at. A notebook's cells lie in no file, so there the pickled code counts as well, which is
known again as long as the kernel lives.
"""

import io
import os
import secrets
import sys
import sysconfig
from collections.abc import Iterable
from functools import _lru_cache_wrapper, lru_cache
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from ..files import MARKER, sha256

_LIBRARIES = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_INSTALLED = (*_LIBRARIES, Path(__file__).parents[2])
# Files that change while the code does not.
_SKIPPED = (".pyc", ".log", ".out", ".ipynb")


def is_users(module: str) -> bool:
    """Whether definitions of this module are the user's own: it is no library's, or it cannot be imported again."""
    if module == "__main__" or (imported := sys.modules.get(module)) is None:
        return True
    file = getattr(imported, "__dict__", {}).get("__file__")  # asked so that a lazy module imports nothing
    return bool(file and not is_installed(Path(file)))


def is_installed(file: Path) -> bool:
    """Whether a file is part of Python, of an installed package, or of autowarm."""
    return "site-packages" in file.parts or "dist-packages" in file.parts or not {*file.parents}.isdisjoint(_INSTALLED)


class Pickler(cloudpickle.Pickler):
    """Pickles by value whatever cloudpickle does, and functions with a cache, too, without what they hold."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _lru_cache_wrapper) and is_users(value.__module__):
            return _cached, (value.__wrapped__, value.cache_parameters())
        return super().reducer_override(value)


def _cached(function: Any, parameters: Any) -> Any:
    return lru_cache(**parameters)(function)


class _Hasher(Pickler):
    """A pickler whose bytes are equal for equal values in every process; nothing can be loaded from them."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, type):  # its code is in the files, and cloudpickle gives it a random id
            return "class", value.__module__, value.__qualname__
        # A pickler refers back to an object that it has met, but not to an equal one.
        if type(value) is str:
            return b"text " + value.encode("utf-8", "surrogatepass")
        if type(value) is bytes:
            return b"bytes " + value
        if type(value) in (set, frozenset):  # their order depends on the process
            return "set", sorted(map(_digest, value))
        if type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided:  # PyTorch pickles an address
            whole = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
            about = f"{type(value).__name__} {value.dtype} {tuple(value.shape)} {value.requires_grad}"
            return about, whole.view(torch.uint8).numpy().tobytes()
        return None


def _digest(value: Any) -> str:
    _Hasher(packed := io.BytesIO()).dump(value)
    return sha256(packed.getvalue())


def fingerprint(value: Any) -> str:
    """Return a digest of what an object pickles to, the same in every process; a new one if it cannot be hashed."""
    try:
        return _digest(value)[:12]
    except Exception:  # an object's own pickling may raise anything
        return secrets.token_hex(6)


def files_of(files: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return a checksum of each file and folder beside a task's code, by name, and of each Python file by its path.

    Python files count by their contents, all others by size and time of change.

    Args:
        files: those of its code; a notebook's cells lie in no file, and then the working folder counts.
    """
    folders = {Path(file).resolve().parent for file in files if Path(file).is_file()} or {Path.cwd()}
    entries: dict[str, list[str]] = {}
    code: dict[str, str] = {}
    for folder in sorted(folder for folder in folders if not folders & {*folder.parents}):
        for path in _files_in(folder):
            name = path.relative_to(folder).as_posix()
            try:
                state = path.stat()
                checksum = f"{state.st_size} {state.st_mtime_ns}"
                if path.suffix == ".py":
                    checksum = code[str(path)] = sha256(path)
            except OSError:  # what cannot be read is new at every start
                checksum = secrets.token_hex(32)
            entries.setdefault(name.partition("/")[0], []).append(f"{name} {checksum}")
    return {name: sha256("\n".join(sorted(lines)).encode())[:12] for name, lines in entries.items()}, code


def _files_in(root: Path) -> Iterable[Path]:
    """Yield the files of a folder and below, without those that are hidden, installed, logs, or autowarm's."""
    for folder, inner, names in os.walk(root):
        if MARKER in names:
            inner.clear()
            continue
        inner[:] = [name for name in inner if not name.startswith(".") and name not in ("site-packages", "__pycache__")]
        yield from (Path(folder, name) for name in names if not name.startswith(".") and not name.endswith(_SKIPPED))
