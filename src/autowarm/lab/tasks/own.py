"""A user's own task: any object with the four methods of `OwnTask`, from a file or from Python.

The object travels to worker processes by value (cloudpickle), so that a class written in a notebook works as well as
one in a file. A mistake in it comes back as one line that names the file and the line.
"""

import hashlib
import importlib.util
import inspect
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..config import OPTIMIZERS, LabError, RunConfig, nearest

__all__ = ["AdaptedTask", "OwnTask", "PackedTask", "load", "pack"]


class OwnTask(Protocol):
    """What `autowarm compare --task` and `autowarm.lab.compare` train.

    Optional attributes:

    - ``prepare(folder)``: called once before any run, with a folder that stays; for what all runs share, such as
      pretrained weights.
    - ``optimizers``: name → function (model, peak rate) → optimizer, beside the lab's own names.
    - ``scores(model, batch)``: name → one-element tensor, further means to report of the validation batches.

    Example:
        >>> import torch
        >>> class Line:
        ...     def model(self):
        ...         return torch.nn.Linear(8, 1)
        ...     def batches(self, seed):
        ...         draw = torch.Generator().manual_seed(seed)
        ...         while True:
        ...             yield torch.randn(32, 8, generator=draw)
        ...     def loss(self, model, batch):
        ...         return (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        ...     def validation(self):
        ...         return [torch.randn(256, 8, generator=torch.Generator().manual_seed(7))]
    """

    def model(self) -> nn.Module:
        """The network. PyTorch's generator is seeded with the run's seed before the call."""

    def batches(self, seed: int) -> Iterable[Any]:
        """Training batches, at least as many as the run has steps, and the same for the same seed.

        PyTorch's, NumPy's and Python's global generators are seeded before each batch, so drawing from them is fine.
        """

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss of a batch, a one-element tensor."""

    def validation(self) -> Iterable[Any]:
        """Validation batches, the same at every call. The result of a run is their mean loss, without gradients."""


@dataclass(frozen=True)
class PackedTask:
    """A user's task, ready to travel.

    Attributes:
        name: what the user calls it.
        sha256: of its source and its attributes.
        file: where its class is written.
        optimizers: names of its own optimizers.
        content: the object, pickled.
    """

    name: str
    sha256: str
    file: str
    optimizers: tuple[str, ...]
    content: bytes

    @property
    def key(self) -> str:
        """What stands in `RunConfig.task`."""
        return f"{self.name}@{self.sha256[:12]}"

    def check_optimizers(self, names: Iterable[str]) -> None:
        """Refuse an optimizer that is neither the task's nor the lab's.

        Raises:
            LabError: the message names the nearest.
        """
        known = [*self.optimizers, *OPTIMIZERS]
        for name in names:
            if name not in known:
                raise LabError(f"rates: unknown optimizer {name!r}; {nearest(name, known)}")

    def unpacked(self, config: RunConfig) -> "AdaptedTask":
        """The task as the training loop takes it."""
        return AdaptedTask(self, config)


def load(place: str) -> Any:
    """The object ``NAME`` of ``FILE.py:NAME``; a class is called without arguments.

    Raises:
        LabError: there is no such file or name, or the file fails; the message names the line.
    """
    path, _, name = place.rpartition(":")
    file = Path(path)
    if not name.isidentifier() or file.suffix != ".py" or not file.is_file():
        raise LabError(f"--task {place}: give FILE.py:NAME, a Python file and the name of a task in it")
    spec = importlib.util.spec_from_file_location(f"autowarm_task_{file.stem}", file.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if str(file.resolve().parent) not in sys.path:
        sys.path.append(str(file.resolve().parent))  # for what the file imports from beside it
    cloudpickle.register_pickle_by_value(module)
    with _blamed(str(file.resolve()), "as it is loaded"):
        spec.loader.exec_module(module)
        if not hasattr(module, name):
            found = [key for key, value in vars(module).items() if hasattr(value, "batches")]
            raise LabError(f"{file} has no {name!r}; {nearest(name, found or vars(module))}")
        task = getattr(module, name)
        return task() if isinstance(task, type) else task


def pack(task: Any, folder: Path, name: str | None = None) -> PackedTask:
    """Check a task, let it prepare itself in a folder, and pickle it.

    Raises:
        LabError: a method is missing, `prepare` fails, or the object cannot be pickled.
    """
    kind = type(task)
    if isinstance(task, type):
        raise LabError(f"a task is an object and {task.__name__} is a class: give {task.__name__}()")
    if missing := [key for key in ("model", "batches", "loss", "validation") if not callable(getattr(task, key, None))]:
        raise LabError(f"the task {kind.__name__} has no {missing[0]}(): see autowarm.lab.tasks.own.OwnTask")
    try:
        file = inspect.getsourcefile(kind) or ""
        source = inspect.getsource(inspect.getmodule(kind) or kind) if Path(file).is_file() else inspect.getsource(kind)
    except (OSError, TypeError):  # written at a prompt
        file, source = "", ""
    with _blamed(file, "as it is packed"):
        state = cloudpickle.dumps(vars(task) if hasattr(task, "__dict__") else task)
    content = state if not source else b""
    sha256 = hashlib.sha256(source.encode() + state + (cloudpickle.dumps(task) if content else b"")).hexdigest()
    if hasattr(task, "prepare"):
        folder.mkdir(parents=True, exist_ok=True)
        with _blamed(file, "in prepare"):
            task.prepare(folder)
    with _blamed(file, "as it is packed"):
        content = cloudpickle.dumps(task)
    return PackedTask(name or kind.__name__, sha256, file, tuple(getattr(task, "optimizers", {})), content)


class AdaptedTask:
    """A user's task in one run: `autowarm.lab.tasks.Task` around an `OwnTask`."""

    per_example = 1

    def __init__(self, packed: PackedTask, config: RunConfig) -> None:
        self.name, self.sha256 = packed.name, packed.sha256
        self._file, self._config, self._step = packed.file, config, 0
        with self._blamed("as it is unpacked"):
            self._task = cloudpickle.loads(packed.content)
        self.optimizers: Mapping[str, Callable[[nn.Module, float], Optimizer]] = getattr(self._task, "optimizers", {})

    def model(self) -> nn.Module:
        _seed_others(self._config.seed, -1)
        with self._blamed("in model"):
            model = self._task.model()
        if not isinstance(model, nn.Module):
            raise self._objection("model", f"must return a torch.nn.Module, got {type(model).__name__}")
        return model

    def batches(self, first: int, rows: slice) -> Iterator[Any]:
        config = self._config
        with self._blamed("in batches"):
            stream = iter(self._task.batches(config.seed))
        for self._step in range(config.steps):
            _seed_others(config.seed, self._step)
            with self._blamed("in batches"):
                try:
                    batch = next(stream)
                except StopIteration:
                    what = f"ended after {self._step} batches and the run has {config.steps} steps"
                    raise self._objection("batches", what) from None
            if self._step >= first:
                yield batch

    def validation(self, rows: slice) -> Iterator[Any]:
        with self._blamed("in validation"):
            batches = list(self._task.validation())
        if not batches:
            raise self._objection("validation", "gave no batch")
        return iter(batches)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        with self._blamed(f"in loss at step {self._step + 1}"):
            loss = self._task.loss(model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise self._objection("loss", f"must return a one-element tensor, got {got}")
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise self._objection("loss", "returned a tensor without a gradient: was it detached?")
        return loss.reshape(())

    def scores(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        further = {}
        if hasattr(self._task, "scores"):
            with self._blamed("in scores"):
                further = {key: torch.as_tensor(value) for key, value in self._task.scores(model, batch).items()}
        return {**further, "loss": self.loss(model, batch)}

    def pieces(self, batch: Any, device: torch.device, count: int) -> list[Any]:
        return [_moved(batch, device)]

    def make_optimizer(self, name: str, model: nn.Module, lr: float) -> Optimizer:
        """The task's own optimizer of this name."""
        with self._blamed(f"in optimizers[{name!r}]"):
            return self.optimizers[name](model, lr)

    def _blamed(self, where: str) -> Any:
        return _blamed(self._file, where)

    def _objection(self, method: str, what: str) -> LabError:
        code = getattr(getattr(self._task, method), "__code__", None)
        line = f"{Path(code.co_filename).name}:{code.co_firstlineno}: " if code else ""
        return LabError(f"{line}{method}() {what}")


@contextmanager
def _blamed(file: str, where: str) -> Iterator[None]:
    """Turn an exception of the user's code into a line that names the place in that code."""
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if frame.filename == file] or frames
        said = " ".join(str(error).split())
        place = f"{Path(theirs[-1].filename).name}:{theirs[-1].lineno}"
        raise LabError(f"{place}: {where}: {type(error).__name__}: {said}") from error


def _seed_others(seed: int, step: int) -> None:
    """Seed NumPy's and Python's global generators; the loop seeds PyTorch's."""
    key = int(np.random.SeedSequence([seed, step + 1]).generate_state(1)[0])
    np.random.seed(key)  # noqa: NPY002, the generator that users draw from unawares
    random.seed(key)


def _moved(batch: Any, device: torch.device) -> Any:
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: _moved(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)([_moved(value, device) for value in batch])
    return batch
