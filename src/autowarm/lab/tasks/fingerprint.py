"""A hash of a Python object and of the user's code that it reaches, the same in every process; and the user's files.

Hashing a pickle would not work, because a pickle depends on the order of sets, on object identities and on line
numbers. Instead the hash covers a function's bytecode, defaults, closure and the globals that it names, a class's bases
and attributes, and an object's class and state. A library's definitions count by name only. Which modules the code
imports is not read from it but seen while it runs: `files_in_use`.
"""

import dis
import hashlib
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from ..files import sha256

_PACKAGE = Path(__file__).parents[2]  # autowarm itself, which a run's id covers already
_PATHS = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {_PACKAGE}
_SCRIPTS = "__main__", "__mp_main__"  # two names of the same module
# The attributes that Python itself adds to a class.
_NOTES = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__slotnames__",
          "__static_attributes__", "__annotate__", "__annotations_cache__"}  # fmt: skip


def fingerprint(value: Any, without: frozenset[str] = frozenset()) -> str:
    """Return a hex digest of an object and of the user's code that it reaches.

    Args:
        without: attributes of the object, or of its classes, to leave out.
    """
    return Walk(value, without).digest(value).hex()


def is_users(module: str) -> bool:
    """Whether definitions of this module are the user's own: it is no library's, or it cannot be imported again."""
    found = sys.modules.get(module)
    return found is None or module in _SCRIPTS or bool((file := _file(found)) and not _is_installed(Path(file)))


_executed: dict[str, None] = {}  # the files of what was executed as a module since `watch_imports`


def watch_imports() -> None:
    """Note from now on, to this process's end, which files are imported, by whatever way."""
    sys.addaudithook(
        lambda event, given: event == "exec" and _executed.setdefault(getattr(given[0], "co_filename", ""))
    )


def files_in_use() -> dict[str, str]:
    """The files of the user's modules that are or were in use in this process, and their checksums."""
    files = {*_executed, *(_file(module) for name, module in list(sys.modules.items()) if name not in _SCRIPTS)}
    places = sorted(Path(file).absolute() for file in files if file)
    return {str(place): sha256(place) for place in places if place.is_file() and not _is_installed(place)}


def _file(module: Any) -> str:
    """A module's file, asked in a way that makes a lazy one import nothing."""
    return getattr(module, "__dict__", {}).get("__file__") or ""


def _is_installed(file: Path) -> bool:
    return bool({"site-packages", "dist-packages"} & {*file.parts}) or any(path in file.parents for path in _PATHS)


class Walk:
    """Digests of values that may refer to each other; without ``code``, the user's definitions count by name only."""

    def __init__(self, root: Any = None, without: frozenset[str] = frozenset(), *, code: bool = True) -> None:
        self.root, self.without, self.by_code = root, without, code
        self.known: dict[int, tuple[bytes, Any]] = {}  # by id; holding the object keeps its id from being reused

    def digest(self, value: Any) -> bytes:
        if isinstance(value, (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))):
            return _hash(type(value).__name__.encode(), repr(value).encode())
        if id(value) not in self.known:
            self.known[id(value)] = _hash(b"cycle", type(value).__name__.encode()), value  # a reference back finds this
            self.known[id(value)] = _hash(type(value).__name__.encode(), *self.parts(value)), value
        return self.known[id(value)][0]

    def parts(self, value: Any) -> Iterator[bytes]:
        match value:
            case torch.Tensor() if value.layout is torch.strided:
                yield f"{value.dtype}{tuple(value.shape)}".encode()
                whole = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
                yield whole.reshape(-1).view(torch.uint8).numpy().tobytes()
            case np.ndarray() if not value.dtype.hasobject:
                yield f"{value.dtype}{value.shape}".encode()
                yield np.ascontiguousarray(value).tobytes()
            case set() | frozenset():
                yield from sorted(map(self.digest, value))
            case list() | tuple() | deque():
                yield from map(self.digest, value)
            case BuiltinFunctionType() | FunctionType() | type() if not (self.by_code and is_users(value.__module__)):
                yield f"{value.__module__}.{value.__qualname__}".encode()
            case CodeType():
                yield value.co_code
                yield from map(self.digest, (value.co_names, value.co_varnames, value.co_freevars, value.co_consts))
            case FunctionType():
                yield from self.function(value)
            case MethodType():
                yield from map(self.digest, (value.__func__, value.__self__))
            case staticmethod() | classmethod():
                yield self.digest(value.__func__)
            case property():
                yield from map(self.digest, (value.fget, value.fset, value.fdel))
            case ModuleType():
                yield value.__name__.encode()
                if sys.modules.get(value.__name__) is not value:  # imported by its path alone, so it is sent by value
                    yield self.digest({key: item for key, item in vars(value).items() if not key.startswith("__")})
            case ModuleSpec():  # it names folders, and a project may move
                yield value.name.encode()
            case type():
                yield from self.klass(value)
            case dict():
                for key, item in value.items():
                    yield self.digest(key)
                    yield self.digest(item)
            case _:
                yield from self.instance(value)

    def function(self, function: FunctionType) -> Iterator[bytes]:
        yield from map(self.digest, (function.__code__, function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            yield self.digest(cell.cell_contents) if cell != type(cell)() else b"empty"
        if isinstance(registry := getattr(function, "registry", None), Mapping):  # of `functools.singledispatch`
            yield self.digest(dict(registry))
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                yield name.encode()
                yield self.digest(function.__globals__[name])

    def klass(self, kind: type) -> Iterator[bytes]:
        yield from map(self.digest, kind.__bases__)
        left_out = _NOTES | (self.without if isinstance(self.root, kind) else frozenset())
        for name in sorted(vars(kind).keys() - left_out):
            yield name.encode()
            yield self.digest(vars(kind)[name])

    def instance(self, value: Any) -> Iterator[bytes]:
        yield self.digest(type(value))
        if value is self.root and hasattr(value, "__dict__"):
            yield self.digest({key: item for key, item in vars(value).items() if key not in self.without})
            return
        if isinstance(value, Mapping):
            yield self.digest(dict(value))
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # a lock, a file: it could not be sent to a worker either
            return
        if isinstance(reduced, str):  # pickled by name, as a function with a cache is
            yield reduced.encode()
            yield self.digest(getattr(value, "__wrapped__", None))
            return
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        yield from map(self.digest, (make, arguments, state, list(items or ()), list(pairs or ())))


def _hash(*parts: bytes) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def _names(code: CodeType) -> set[str]:
    """Return the global names that the code and its nested functions look up."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found.union(*(_names(const) for const in code.co_consts if isinstance(const, CodeType)))
