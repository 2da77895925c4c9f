"""A user's own task: any object with the four methods of `OwnTask`, from a file or from Python, packed for workers.

cloudpickle sends the object to worker processes by value, so a class defined in a notebook works as well as one in a
file. A mistake in the task is reported as one line that names the place in the user's code.
"""

import dataclasses
import importlib.util
import inspect
import io
import json
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from autowarm._torch.undisturbed import generators, set_generators

from ..config import CompareConfig, LabError, RunConfig, UsageError, nearest
from ..config.build import converted, leaves, merged, nested, plain, read_yaml
from ..errors import as_usage_error
from ..files import claim, locked, sha256
from ..registry import OPTIMIZERS, check
from . import PREPARING, Task, seed_all
from .fingerprint import Pickler, files_of, fingerprint, is_installed, is_users

_METHODS = ("model", "batches", "loss", "validation")
_APART = frozenset({"defaults", "folder"})  # attributes on which no run's numbers depend
_PREPARED = ".prepared"  # marks a finished `prepare`


@dataclass(frozen=True)
class PackedTask:
    """A user's task, ready to be sent to other processes."""

    name: str
    sha256: str  # of all that it is made of
    file: str  # the file of its code
    optimizers: tuple[str, ...]  # names of the task's own optimizers
    prepares: bool  # whether it has a `prepare`
    content: bytes  # the pickled object
    attributes: Mapping[str, str]  # a checksum of each of its attributes, and of each file and folder beside its code
    beside: Mapping[str, str]  # the Python files there, which workers import, and their checksums
    folder: Path | None = None  # the folder that its `prepare` filled

    @property
    def source(self) -> dict[str, Any]:
        """What `results.json` says of its data."""
        return {"name": self.name, "sha256": self.sha256, "own": True}

    @property
    def key(self) -> str:
        """The value of `RunConfig.task` for this task."""
        return f"{self.name}@{self.sha256[:12]}"

    def make(self, config: RunConfig) -> Task:
        """Make the task in a run; LabError if a file beside it is not as it was when the command started."""
        for file, before in self.beside.items():
            if Path(file).is_file() and sha256(Path(file)) != before:
                raise LabError(f"{file} has changed since this command started: start it again")
        with blamed(self.file):
            task = cloudpickle.loads(self.content)
        if self.folder is not None:
            object.__setattr__(task, "folder", self.folder)  # works on a frozen dataclass, too
        return Task(task, config, self.name, self.sha256, self.file)

    def prepared(self, folder: Path) -> "PackedTask":
        """Let the task prepare itself in a subfolder, unless it has done so; LabError if `prepare` fails."""
        if not self.prepares:
            return self
        place = folder.resolve() / self.sha256[:12]
        with locked(folder):
            if not (place / _PREPARED).exists():
                shutil.rmtree(place, ignore_errors=True)  # what an interrupted `prepare` left
                place.mkdir(parents=True)
                with blamed(self.file), _seeded():
                    cloudpickle.loads(self.content).prepare(place)
                (place / _PREPARED).touch()
        return dataclasses.replace(self, folder=place)

    def check_optimizers(self, chosen: Mapping[str, Mapping[str, Any]], key: str) -> None:
        """Check that each optimizer under this key is the task's or the lab's; only the lab makes one with options."""
        for name, options in chosen.items():
            with as_usage_error():
                check(key, name, [*self.optimizers, *OPTIMIZERS], "optimizer")
            if options and name in self.optimizers:
                raise UsageError(f"the task makes the optimizer {name!r} itself: set {', '.join(options)} there")


@contextmanager
def blamed(file: str, *passing: type[Exception]) -> Iterator[None]:
    """Turn an exception of the user's code into one line that names the last place there.

    The user's code is that in the task's file, and in its folder and below. An exception that passed through none of it
    is ours or the system's, and goes on unchanged, as those in `passing` do.
    """
    try:
        yield
    except (LabError, *passing):  # type: ignore[misc]
        raise
    except (Exception, SystemExit) as error:
        lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            lines.append((error.filename, error.lineno))
        paths, folder = [(Path(name), line) for name, line in lines], Path(file).parent
        places = [
            f"{path.name}:{line}" for path, line in paths
            if path == Path(file) or (path.is_absolute() and folder in path.parents and not is_installed(path))
        ]  # fmt: skip
        if not places:
            raise
        raise LabError(f"{places[-1]}: {type(error).__name__}: {_one_line(error)}") from error


def _one_line(value: object) -> str:
    return " ".join(str(value).split())[:500]


@contextmanager
def _seeded() -> Iterator[None]:
    """What the user's code draws here is the same in every call, and the global generators go on as if it drew none."""
    before = generators()
    try:
        seed_all(PREPARING)
        yield
    finally:
        set_generators(before)


def load(place: str) -> Any:
    """Load the object ``NAME`` of ``FILE.py:NAME``; a class is called without arguments. All generators are seeded."""
    path, _, name = place.rpartition(":")
    file = Path(path).resolve()
    if not name.isidentifier() or file.suffix != ".py":
        raise UsageError(f"--task {place}: give FILE.py:NAME, a Python file and the name of a task in it")
    spec: Any = importlib.util.spec_from_file_location(f"autowarm_task_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent))  # as `python FILE.py` does, so that the file can import its neighbours
    with blamed(str(file)), _seeded():
        spec.loader.exec_module(module)
    if not hasattr(module, name):
        names = [key for key, value in vars(module).items() if hasattr(value, "batches")]
        otherwise = "" if names else "it needs an object with model(), batches(seed), loss() and validation()"
        raise UsageError(f"--task {place}: {file.name} has no {name!r}; {nearest(name, names, otherwise)}")
    task = getattr(module, name)
    if not isinstance(task, type):
        return task
    with blamed(str(file)), _seeded():
        return task()


def defaults(task: Any) -> dict[str, Any]:
    """Return the defaults of `CompareConfig`'s keys: the task's, otherwise those of the preset `own`."""
    values, name = getattr(task, "defaults", {}), getattr(task, "__name__", type(task).__name__)
    source = f"defaults of the task {name}"
    if not isinstance(values, Mapping):
        raise UsageError(f"{source} must be keys and values, got {values!r}")
    values = nested(plain(values))
    with as_usage_error():
        converted(leaves(values, CompareConfig, source), CompareConfig, source)
    rates: dict[str, list[float]] = {} if getattr(task, "optimizers", None) else {"adamw": [1e-3]}
    return {"rates": rates, **merged(read_yaml("own")[0], values)}


def bring(task: Any, config: CompareConfig) -> tuple[CompareConfig, PackedTask]:
    """Put the task into a config's `run`, and pack it for other processes; it prepares itself in the config's folder.

    Raises:
        LabError: the task is broken, an optimizer is unknown, or the run sets what the task brings.
    """
    own, options, folder = pack(task), config.options, Path(config.out)
    own.check_optimizers({name: config.run.optimizer.options | options.get(name, {}) for name in config.rates}, "rates")
    own.check_optimizers({name: {} for name in options}, "options")
    with as_usage_error("run: "):  # before the task is prepared, which may take long
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, task=own.key))
    claim(folder)
    return config, own.prepared(folder / "task")


def pack(task: Any) -> PackedTask:
    """Check a task and pickle it; LabError says which of these failed."""
    if isinstance(task, type):
        raise LabError(f"a task is an object and {task.__name__} is a class: give {task.__name__}()")
    name = type(task).__name__
    if missing := [f"{method}()" for method in _METHODS if not callable(getattr(task, method, None))]:
        raise LabError(f"the task {name} has no {', '.join(missing)}: a task needs model(), batches(seed), "
                       "loss(model, batch) and validation()")  # fmt: skip
    optimizers = getattr(task, "optimizers", {})
    if not isinstance(optimizers, Mapping) or not all(map(callable, optimizers.values())):
        raise LabError(f"optimizers of the task {name} must map names to functions (model, peak "
                       f"rate) → optimizer, got {_one_line(optimizers)}")  # fmt: skip
    # The files of its code, under the names that tracebacks use.
    codes = (getattr(inspect.unwrap(getattr(task, method)), "__code__", None) for method in _METHODS)
    module = sys.modules.get(type(task).__module__)
    files = [*(code.co_filename for code in codes if code), getattr(module, "__file__", None) or ""]
    with _by_value(module):
        packed = _pickled(task)
    state = task.__getstate__() or {}
    if not isinstance(state, dict):  # of a class with slots
        state = {"its state": state}
    attributes = {key: fingerprint(value) for key, value in state.items() if key not in _APART}
    if not any(Path(file).is_file() for file in files):  # a notebook's cells
        attributes["its code"] = fingerprint(packed)
    entries, beside = files_of(files)
    attributes |= entries
    code = sha256(json.dumps([type(task).__qualname__, sorted(attributes.items())]).encode())
    return PackedTask(name, code, files[0], tuple(optimizers), hasattr(task, "prepare"), packed, attributes, beside)


@contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    """Pickle what this module defines with its code, so that a worker does not need the file."""
    if module is None or module.__name__ == "__main__" or not is_users(module.__name__):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _pickled(task: Any) -> bytes:
    try:
        Pickler(packed := io.BytesIO()).dump(task)
        return packed.getvalue()
    except Exception as error:  # an object's own pickling may raise anything
        how = "make locks, open files and generators in its methods, not as attributes or globals"
        name = type(task).__name__
        raise LabError(f"the task {name} cannot be sent to other processes ({_one_line(error)}): {how}") from error
