"""A user's own task: any object with the four methods of `OwnTask`, from a file or from Python, packed for workers.

cloudpickle sends the object to worker processes by value, so a class defined in a notebook works as well as one in a
file. A mistake in the task is reported as one line that names the place in the user's code.
"""

import dataclasses
import functools
import importlib.util
import inspect
import io
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import torch

from autowarm.undisturbed import generators, set_generators

from ..config import CompareConfig, FindRateConfig, LabError, RunConfig, UsageError, nearest
from ..config.build import converted, leaves, merged, nested, plain, read_yaml
from ..errors import as_usage_error
from ..files import claim, locked, sha256, write_json
from ..processes import in_new_process
from ..registry import OPTIMIZERS, check
from . import PREPARING, Task, seed_all
from .blame import blamed, place_of, said
from .fingerprint import files_in_use, fingerprint, is_users, watch_imports

_Config = TypeVar("_Config", CompareConfig, FindRateConfig)

_METHODS = ("model", "batches", "loss", "validation")
_APART = frozenset({"defaults", "folder"})  # attributes on which no run's numbers depend
_PREPARED = ".prepared"  # marks a finished `prepare`, and lists the files of the user's modules that it imported


@dataclass(frozen=True)
class PackedTask:
    """A user's task, ready to be sent to other processes; a `Source`."""

    name: str
    sha256: str  # of its code and its attributes; once it is `prepared`, of the user's modules that it imports, too
    file: str  # the file of its code
    optimizers: tuple[str, ...]  # names of the task's own optimizers
    prepares: bool  # whether it has a `prepare`
    content: bytes  # the pickled object
    attributes: Mapping[str, str]  # a checksum of each
    beside: Mapping[str, str] = field(default_factory=dict)  # files of the user's modules that it imports: checksums
    folder: Path | None = None  # the folder that its `prepare` filled

    @property
    def key(self) -> str:
        """The value of `RunConfig.task` for this task."""
        return f"{self.name}@{self.sha256[:12]}"

    def make(self, config: RunConfig) -> Task:
        """Make the task in a run; LabError if a module beside it is not as it was when the command started."""
        for file, found in self.beside.items():
            if Path(file).is_file() and sha256(Path(file)) != found:
                raise LabError(f"{file} has changed since this command started: start it again")
        with blamed(self.file, "while unpickling"):
            made = cloudpickle.loads(self.content)
        if self.folder is not None:
            object.__setattr__(made, "folder", self.folder)  # works on a frozen dataclass, too
        return Task(made, config, self.name, self.sha256, self.file)

    def prepared(self, folder: Path) -> "PackedTask":
        """Let the task prepare itself in a subfolder, unless it has done so, and find which modules it imports.

        A new process does both, so that nothing of this one's counts. LabError if `prepare` fails.
        """
        place = folder / self.sha256[:12] if self.prepares else None
        beside = in_new_process(_rehearse, self, place)
        root = os.path.commonpath(beside) if beside else ""  # a project may move
        seen = "".join(f"{os.path.relpath(file, root)} {found}\n" for file, found in beside.items())
        code = sha256(f"{self.sha256}\n{seen}".encode())
        return dataclasses.replace(self, sha256=code, beside=beside, folder=place and place.resolve())

    def check_optimizers(self, chosen: Mapping[str, Mapping[str, Any]], key: str) -> None:
        """Check that each optimizer under this key is the task's or the lab's; only the lab makes one with options.

        The task makes its own of a model and a rate alone. UsageError suggests the nearest name.
        """
        for name, options in chosen.items():
            with as_usage_error():
                check(key, name, [*self.optimizers, *OPTIMIZERS], "optimizer")
            if options and name in self.optimizers:
                raise UsageError(f"the task makes the optimizer {name!r} itself: set {', '.join(options)} there")


def _rehearse(own: PackedTask, place: Path | None) -> dict[str, str]:
    """Prepare the task if it wants to, make a loss of each kind, and return the files that it has imported by then."""
    watch_imports()
    files: dict[str, str] = {}
    if place is not None:
        with locked(place.parent):
            files = _prepare(own, place)
        own = dataclasses.replace(own, folder=place.resolve())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # What goes wrong here goes wrong in each run, which tells of it, or only here: then fewer imports are seen.
    with suppress(Exception), warnings.catch_warnings(action="ignore"), _seeded():
        task = own.make(RunConfig(task=own.key))
        model = task.model().to(device)
        for name in task.optimizers:
            with suppress(LabError):
                task.make_optimizer(name, model, 1e-3)
        for training, batches in ((True, task.batches(0, slice(None))), (False, task.validation(slice(None)))):
            mixed = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
            with torch.set_grad_enabled(training), mixed:
                (batch,) = task.pieces(next(batches), device, 1)
                scores = task.scores(model.train(training), batch)
            if training:
                scores["loss"].backward()
    return dict(sorted((files | files_in_use()).items()))


def _prepare(own: PackedTask, place: Path) -> dict[str, str]:
    """Call the task's `prepare`, unless its folder is as it and its modules left it; return these modules' files."""
    marker = place / _PREPARED
    with suppress(OSError, ValueError):
        files: dict[str, str] = json.loads(marker.read_text())
        if all(sha256(Path(file)) == found for file, found in files.items()):
            return files
    shutil.rmtree(place, ignore_errors=True)  # what an interrupted or another `prepare` left
    place.mkdir(parents=True)
    with blamed(own.file, "in prepare"), _seeded():
        cloudpickle.loads(own.content).prepare(place)
    write_json(marker, files := files_in_use())
    return files


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
    """Load the object ``NAME`` of ``FILE.py:NAME``; a class is called without arguments. All generators are seeded.

    Raises:
        UsageError: there is no such file or name.
        LabError: the file fails; the message names the line.
    """
    path, _, name = place.rpartition(":")
    file = Path(path).resolve()
    if not name.isidentifier() or file.suffix != ".py":
        raise UsageError(f"--task {place}: give FILE.py:NAME, a Python file and the name of a task in it")
    if not file.is_file():
        raise UsageError(f"--task {place}: no such file: {path}; give FILE.py:NAME")
    spec: Any = importlib.util.spec_from_file_location(f"autowarm_task_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent))  # as `python FILE.py` does, so that the file can import its neighbours
    with blamed(str(file), "while loading"), _seeded():
        spec.loader.exec_module(module)
    if not hasattr(module, name):
        found = [key for key, value in vars(module).items() if hasattr(value, "batches")]
        raise UsageError(f"--task {place}: {file.name} has no {name!r}; {nearest(name, found or vars(module))}")
    task = getattr(module, name)
    if not isinstance(task, type):
        return task
    with blamed(str(file), f"in {name}()"), _seeded():
        return task()


def defaults(task: Any) -> dict[str, Any]:
    """Return the defaults of `CompareConfig`'s keys: the task's own, otherwise those of the preset `own`.

    Raises:
        UsageError: the task's `defaults` contain an unknown key.
    """
    theirs, name = getattr(task, "defaults", {}), getattr(task, "__name__", type(task).__name__)
    if not isinstance(theirs, Mapping):
        raise UsageError(f"defaults of the task {name} must be keys and values, got {theirs!r}")
    theirs = nested(plain(theirs))
    with as_usage_error():
        source = f"defaults of the task {name}"
        converted(leaves(theirs, CompareConfig, source), CompareConfig, source)
    usual: dict[str, list[float]] = {} if getattr(task, "optimizers", None) else {"adamw": [1e-3]}
    return {"rates": usual, **merged(read_yaml("own")[0], theirs)}


def bring(
    task: Any, config: _Config, folder: Path, optimizers: Iterable[str], key: str = "rates"
) -> tuple[_Config, PackedTask]:
    """Put the task into a config's `run`, and pack it for other processes; it prepares itself in the folder.

    Raises:
        LabError: the task is broken, an optimizer under this key is unknown, or the run sets what the task brings.
    """
    own, options = pack(task), getattr(config, "options", {})
    own.check_optimizers({name: config.run.optimizer.options | options.get(name, {}) for name in optimizers}, key)
    own.check_optimizers({name: {} for name in options}, "options")
    with as_usage_error("run: "):  # before the task is prepared, which may take long
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, task=own.key))
    claim(folder)
    own = own.prepared(folder / "task")
    return dataclasses.replace(config, run=dataclasses.replace(config.run, task=own.key)), own


def pack(task: Any) -> PackedTask:
    """Check a task and pickle it; LabError says which of these failed."""
    if isinstance(task, type):
        raise LabError(f"a task is an object and {task.__name__} is a class: give {task.__name__}()")
    name = type(task).__name__
    if missing := [f"{method}()" for method in _METHODS if not callable(getattr(task, method, None))]:
        raise LabError(f"{place_of(type(task))}the task {name} has no {', '.join(missing)}: a task needs model(), "
                       "batches(seed), loss(model, batch) and validation()")  # fmt: skip
    optimizers = getattr(task, "optimizers", {})
    if not isinstance(optimizers, Mapping) or not all(map(callable, optimizers.values())):
        raise LabError(f"{place_of(type(task))}optimizers of the task {name} must map names to functions (model, peak "
                       f"rate) → optimizer, got {said(optimizers)}")  # fmt: skip
    # The file of its code, under the name that tracebacks use.
    codes = (getattr(inspect.unwrap(getattr(task, method)), "__code__", None) for method in _METHODS)
    file = next((code.co_filename for code in codes if code), "")
    held = {key: value for key, value in getattr(task, "__dict__", {}).items() if key not in _APART}
    attributes = {key: fingerprint(value)[:12] for key, value in held.items()}
    code = fingerprint(task, without=_APART)
    return PackedTask(name, code, file, tuple(optimizers), hasattr(task, "prepare"), _pickled(task), attributes)


class _Pickler(cloudpickle.Pickler):
    """Takes functions with a cache along, too, which are otherwise pickled as the name of one in a module."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, functools._lru_cache_wrapper) and is_users(value.__module__):
            return _cached, (value.__wrapped__, value.cache_parameters())
        return super().reducer_override(value)


def _cached(function: Callable[..., Any], parameters: Any) -> Any:
    return functools.lru_cache(**parameters)(function)


def _pickled(task: Any) -> bytes:
    """Pickle the task with the code of its module, so that a worker does not need the file."""
    module = sys.modules.get(type(task).__module__)
    by_value = module is not None and module.__name__ != "__main__" and is_users(module.__name__)
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        _Pickler(packed := io.BytesIO()).dump(task)
        return packed.getvalue()
    except Exception as error:  # an object's own pickling may raise anything
        raise LabError(f"{place_of(type(task))}the task {type(task).__name__} cannot be sent to other processes "
                       f"({said(error)}): make locks, open files and generators in its methods, not as attributes or "
                       "globals") from error  # fmt: skip
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
