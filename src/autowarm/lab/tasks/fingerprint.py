"""A hash of a Python object and of the user's code that it can reach, the same in every process.

Hashing a pickle would not work, because a pickle depends on the order of sets, on object identities and on line
numbers. Instead the hash covers a function's bytecode, defaults, closure and the globals that it names, a class's bases
and attributes, and an object's class and state. A library's definitions count by name only, a user's module by its
source.
"""

import dis
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from modulefinder import ModuleFinder
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_PACKAGE = Path(__file__).parents[2]  # autowarm itself, which a run's id covers already
_PATHS = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {_PACKAGE}
# The attributes that Python itself adds to a class.
_NOTES = {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__slotnames__",
          "__static_attributes__", "__annotate__", "__annotations_cache__"}  # fmt: skip


def fingerprint(value: Any, without: frozenset[str] = frozenset()) -> str:
    """Return a hex digest of an object and of the user's code that it reaches.

    Args:
        without: attributes of the object, or of its classes, to leave out.
    """
    walk = _Walk(value, without)
    found = walk.digest(value)
    files = [module.__file__ for _, module in sorted(walk.finder.modules.items()) if module.__file__]
    return _hash(found, *(Path(file).read_bytes() for file in files)).hex()


def is_users(module: str) -> bool:
    """Whether a module is the user's own: neither built in nor part of an installed package."""
    if module == "__main__":
        return True
    try:  # without importing it
        spec = getattr(sys.modules.get(module), "__spec__", None) or importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return False
    origin = getattr(spec, "origin", None) or ""
    return origin.endswith(".py") and not _is_installed(Path(origin))


def _is_installed(file: Path) -> bool:
    return any(path in file.parents for path in _PATHS)


class _Walk:
    def __init__(self, root: Any, without: frozenset[str]) -> None:
        self.root, self.without = root, without
        self.known: dict[int, tuple[bytes, Any]] = {}  # by id; holding the object keeps its id from being reused
        theirs = [path for path in sys.path if not _is_installed(Path(path).absolute() / "module.py")]
        self.finder: Any = ModuleFinder(path=theirs, excludes=[_PACKAGE.name])

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
            case list() | tuple():
                yield from map(self.digest, value)
            case BuiltinFunctionType() | FunctionType() | type() if not is_users(value.__module__):
                yield f"{value.__module__}.{value.__qualname__}".encode()
            case CodeType():
                yield from self.code(value)
            case FunctionType():
                yield from self.function(value)
            case MethodType():
                yield from map(self.digest, (value.__func__, value.__self__))
            case staticmethod() | classmethod():
                yield self.digest(value.__func__)
            case property():
                yield from map(self.digest, (value.fget, value.fset, value.fdel))
            case ModuleType():
                yield self.module(value.__name__)
            case type():
                yield from self.klass(value)
            case dict():
                for key, item in value.items():
                    yield self.digest(key)
                    yield self.digest(item)
            case _:
                yield from self.instance(value)

    def code(self, code: CodeType) -> Iterator[bytes]:
        yield code.co_code
        yield from map(self.digest, (code.co_names, code.co_varnames, code.co_freevars, code.co_consts))
        for instruction in dis.get_instructions(code):
            if instruction.opname == "IMPORT_NAME":  # an import inside a function, which no global holds
                yield self.module(instruction.argval)

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

    def module(self, name: str) -> bytes:
        """Return a module's name. If it is the user's, also note its source and those of its imports."""
        with suppress(ImportError, SyntaxError):
            self.finder.import_hook(name)
        return name.encode()


def _hash(*parts: bytes) -> bytes:
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.digest()


def _names(code: CodeType) -> set[str]:
    """Return the global names that the code and its nested functions look up."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found.union(*(_names(const) for const in code.co_consts if isinstance(const, CodeType)))
