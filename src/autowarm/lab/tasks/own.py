"""A user's own task: any object with the four methods of `OwnTask`, from a file or from Python.

cloudpickle sends the object to worker processes by value, so a class defined in a notebook works as well as one in a
file. A mistake in the task is reported as one line that names the place in the user's code.
"""

import copy
import importlib.util
import inspect
import random
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from ..config import LabError, RunConfig, UsageError, nearest
from ..files import locked, write_atomically
from ..registry import OPTIMIZERS, check
from . import Task
from .blame import blamed, kind, place_of, said
from .fingerprint import fingerprint, is_users

__all__ = ["AdaptedTask", "OwnTask", "PackedTask", "load", "pack"]

_METHODS = ("model", "batches", "loss", "validation")
_PREPARED = ".prepared"  # the file that marks a finished `prepare`


class OwnTask(Protocol):
    """What `autowarm compare --task` and `autowarm.lab.compare` train.

    Optional attributes:

    - ``prepare(folder)``: writes what all runs share, such as pretrained weights, into an empty folder. It is called
      once, on a copy of the task, before any run; afterwards ``self.folder`` is the folder's path. Later commands reuse
      the folder and call `prepare` again only if the task's code has changed.
    - ``optimizers``: a mapping from names to functions (model, peak rate) → optimizer, in addition to the lab's names.
    - ``defaults``: values for keys of `autowarm.lab.config.CompareConfig`, such as ``{"rates": {"adamw": [1e-3]}}``.
    - ``scores(model, batch)``: returns a mapping from names to numbers, whose means over the validation batches are
      reported along with the loss.

    Example:
        >>> import torch
        >>> class Line:
        ...     def model(self):
        ...         return torch.nn.Linear(8, 1)
        ...     def batches(self, seed):
        ...         while True:
        ...             yield torch.randn(32, 8)
        ...     def loss(self, model, batch):
        ...         return (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        ...     def validation(self):
        ...         return [torch.randn(256, 8)]
    """

    def model(self) -> nn.Module:
        """Build the network. It is trained in training mode. All global generators are seeded before the call."""

    def batches(self, seed: int) -> Iterable[Any]:
        """Yield training batches: at least one per step of the run, and the same ones for the same seed.

        A batch is a tensor, tensors in tuples, lists and dicts, or any object with ``.to(device)``. The global
        generators of PyTorch, NumPy and Python are seeded before each batch, so you may draw from them. Create
        generators of your own inside this method, because a resumed run draws all earlier batches again.
        """

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a batch, a one-element tensor."""

    def validation(self) -> Iterable[Any]:
        """Yield a finite number of validation batches. A run's result is the mean of their losses.

        The losses are computed without gradients. The global generators are seeded before each batch, in the same way
        in every evaluation.
        """


@dataclass(frozen=True)
class PackedTask:
    """A user's task, ready to be sent to other processes; a `Source`."""

    name: str
    sha256: str  # of its code and its attributes
    file: str  # the file of its code
    optimizers: tuple[str, ...]  # names of the task's own optimizers
    folder: Path | None  # the folder that its `prepare` filled
    content: bytes  # the pickled object

    @property
    def key(self) -> str:
        """The value of `RunConfig.task` for this task."""
        return f"{self.name}@{self.sha256[:12]}"

    def make(self, config: RunConfig) -> "AdaptedTask":
        """Make the task in a run."""
        return AdaptedTask(self, config)

    def check_optimizers(self, names: Iterable[str], key: str = "rates") -> None:
        """Check that each optimizer, named under this key, is the task's or the lab's.

        Raises:
            UsageError: an optimizer is unknown; the message suggests the nearest name.
        """
        for name in names:
            try:
                check(key, name, [*self.optimizers, *OPTIMIZERS], "optimizer")
            except ValueError as error:
                raise UsageError(str(error)) from None


def load(place: str) -> Any:
    """Load the object ``NAME`` of ``FILE.py:NAME``; a class is called without arguments.

    Raises:
        UsageError: there is no such file or name.
        LabError: the file fails; the message names the line.
    """
    path, _, name = place.rpartition(":")
    file = Path(path).resolve()
    if not name.isidentifier() or file.suffix != ".py" or not file.is_file():
        raise UsageError(f"--task {place}: give FILE.py:NAME, a Python file and the name of a task in it")
    spec = importlib.util.spec_from_file_location(f"autowarm_task_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.parent))  # as `python FILE.py` does, so that the file can import its neighbours
    with blamed(str(file), "while loading"):
        spec.loader.exec_module(module)
    if not hasattr(module, name):
        found = [key for key, value in vars(module).items() if hasattr(value, "batches")]
        raise UsageError(f"--task {place}: {file.name} has no {name!r}; {nearest(name, found or vars(module))}")
    task = getattr(module, name)
    if not isinstance(task, type):
        return task
    with blamed(str(file), f"in {name}()"):
        return task()


def pack(task: Any, folder: Path) -> PackedTask:
    """Check a task, let it prepare itself in a subfolder, and pickle it.

    Raises:
        LabError: a method is missing, `prepare` fails, or the object cannot be pickled.
    """
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
    file = _file_of(task)
    sha256 = fingerprint(task, without=frozenset({"defaults", "folder"}))
    content = _pickled(task)
    place = folder / sha256[:12] if hasattr(task, "prepare") else None
    if place is not None:
        with locked(folder):
            _prepare(content, place, file)
    return PackedTask(name, sha256, file, tuple(optimizers), place and place.resolve(), content)


def _pickled(task: Any) -> bytes:
    """Pickle the task with the code of its module, so that a worker does not need the file."""
    module = sys.modules.get(type(task).__module__)
    by_value = module is not None and module.__name__ != "__main__" and is_users(module.__name__)
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(task))
    except Exception as error:  # an object's own pickling may raise anything
        raise LabError(f"{place_of(type(task))}the task {type(task).__name__} cannot be sent to other processes "
                       f"({said(error)}): make locks, open files and generators in its methods, not as attributes or "
                       "globals") from error  # fmt: skip
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _prepare(content: bytes, place: Path, file: str) -> None:
    if (place / _PREPARED).exists():
        return
    shutil.rmtree(place, ignore_errors=True)  # what an interrupted `prepare` left
    place.mkdir(parents=True)
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]), blamed(file, "in prepare"):
            _seed(_PREPARING)
            cloudpickle.loads(content).prepare(place)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
    write_atomically(place / _PREPARED, "")


class AdaptedTask(Task):
    """A user's task in one run."""

    first_bounds = False

    def __init__(self, packed: PackedTask, config: RunConfig) -> None:
        self.name, self.sha256 = packed.name, packed.sha256
        self._file, self._config, self._step = packed.file, config, 0
        with self._blamed("while unpickling"):
            self._task = cloudpickle.loads(packed.content)
        if packed.folder is not None:
            object.__setattr__(self._task, "folder", packed.folder)  # works on a frozen dataclass, too
        self.optimizers: Mapping[str, Callable[[nn.Module, float], Optimizer]] = getattr(self._task, "optimizers", {})

    def model(self) -> nn.Module:
        _seed(_MODEL, self._config.seed)
        with self._blamed("in model"):
            model = self._task.model()
        if not isinstance(model, nn.Module):
            raise self._objection("model", f"must return a torch.nn.Module, got {kind(model)}")
        return model.train()

    def batches(self, first: int, rows: slice) -> Iterator[Any]:
        seed, steps = self._config.seed, self._config.steps
        _seed(_TRAINING, seed, 0)
        with self._blamed("in batches"):
            stream = iter(self._task.batches(seed))
        for self._step in range(steps):
            # Draw the batches before `first` too, because the stream may keep state from one batch to the next.
            _seed(_TRAINING, seed, self._step)
            with self._blamed(f"in batches at step {self._step + 1}"):
                batch = next(stream, _END)
            if batch is _END:
                ended = f"ended after {self._step} batches and the run has {steps} steps"
                raise self._objection("batches", f"{ended}: repeat them, or set run.steps={self._step}")
            if self._step >= first:
                yield batch

    def validation(self, rows: slice) -> Iterator[Any]:
        _seed(_VALIDATION, 0)
        with self._blamed("in validation"):
            stream = iter(self._task.validation())
        for index in range(sys.maxsize):
            _seed(_VALIDATION, index)
            with self._blamed("in validation"):
                batch = next(stream, _END)
            if batch is _END:
                if not index:
                    raise self._objection("validation", "gave no batch: it needs one or more")
                return
            yield batch

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        training = torch.is_grad_enabled()
        with self._blamed(f"in loss at step {self._step + 1}" if training else "in loss of a validation batch"):
            loss = self._task.loss(model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise self._objection("loss", f"must return a one-element tensor, got {kind(loss)}")
        if training and not loss.requires_grad:
            raise self._objection("loss", "returned a tensor without a gradient: is it detached, or all of the model "
                                          "frozen?")  # fmt: skip
        return loss.reshape(())

    def scores(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        found = {}
        if hasattr(self._task, "scores"):
            with self._blamed("in scores"):
                found = {str(key): torch.as_tensor(value) for key, value in self._task.scores(model, batch).items()}
            if wrong := [f"{key!r}: {kind(value)}" for key, value in found.items() if value.numel() != 1]:
                raise self._objection("scores", f"must return a number for each name, got {wrong[0]}")
        return {**found, "loss": self.loss(model, batch)}

    def pieces(self, batch: Any, device: torch.device, count: int, dtype: torch.dtype | None = None) -> list[Any]:
        if count > 1:
            raise LabError("run.engine.accumulate must be 1 for a task of your own: make its batches smaller")

        def moved(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return leaf.to(device, dtype if leaf.is_floating_point() else None)
            if isinstance(leaf, MutableMapping):  # such as transformers' BatchEncoding
                clone: Any = copy.copy(leaf)
                clone.update({key: tree_map(moved, value) for key, value in leaf.items()})
                return clone
            return leaf.to(device) if hasattr(leaf, "to") else leaf

        return [tree_map(moved, batch)]

    def make_optimizer(self, name: str, model: nn.Module, lr: float) -> Optimizer:
        """Make the task's own optimizer of this name."""
        with self._blamed(f"in optimizers[{name!r}]"):
            optimizer = self.optimizers[name](model, lr)
        if not isinstance(optimizer, Optimizer):
            got = f"optimizers[{name!r}] must return a torch.optim.Optimizer, got {kind(optimizer)}"
            raise LabError(f"{place_of(self.optimizers[name])}{got}")
        return optimizer

    def _blamed(self, where: str) -> Any:
        return blamed(self._file, where)

    def _objection(self, method: str, what: str) -> LabError:
        return LabError(f"{place_of(getattr(self._task, method))}{method}() {what}")


_END = object()
_PREPARING, _MODEL, _TRAINING, _VALIDATION = range(4)  # the purposes of a seed


def _seed(*words: int) -> None:
    """Seed every global generator that the user's code may draw from."""
    key = int(np.random.SeedSequence(words).generate_state(1)[0])
    np.random.seed(key)  # noqa: NPY002
    random.seed(key)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(key)


def _file_of(task: Any) -> str:
    """Return the file of a task's code, under the name that tracebacks use."""
    for method in _METHODS:
        if code := getattr(inspect.unwrap(getattr(task, method)), "__code__", None):
            return str(code.co_filename)
    return ""
