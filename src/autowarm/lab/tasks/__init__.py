"""Tasks: a network, its batches and its loss. The lab's own and a user's are objects with the same four methods.

With its config a task is a run, whose `identity` and id are here, too.

- `corpora`: a run's `model` on its `data`, text or images.      - `small`: small tasks, a file each.
- `recipes`: what the small ones are made of.      - `models`: networks.
- `own`: a user's task, from `FILE.py:NAME` or from Python.      - `fingerprint`: what its code is.
"""

import dataclasses
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from ..config import LabError, RunConfig
from ..files import sha256
from ..registry import SMALL_TASKS

if TYPE_CHECKING:
    from .own import PackedTask

Batch = Any  # a tuple of tensors, except in a user's own task


class OwnTask(Protocol):
    """What `autowarm compare --task` and `autowarm.lab.compare` train.

    Optional attributes:

    - ``prepare(folder)``: writes what all runs share, such as pretrained weights, into an empty folder, whose path is
      ``self.folder`` afterwards. It is called once, on a copy of the task, unless the task or its folder has changed.
    - ``optimizers``: a mapping from names to functions (model, peak rate) → optimizer, in addition to the lab's names.
    - ``defaults``: values for keys of `autowarm.lab.config.CompareConfig`, such as ``{"rates": {"adamw": [1e-3]}}``.
    - ``scores(model, batch)``: returns a mapping from names to numbers, whose means over the validation batches are
      reported along with the loss.
    - ``first_bounds``: whether a run counts as diverged if its loss ends above its first loss. False, the default,
      suits a loss that may be negative or starts low; then only a loss that is not finite counts as diverged.

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
        """Return the mean loss of a batch, a one-element tensor.

        It may depend on the model and the batch only, because a resumed run computes no earlier loss again: keep a
        counter as a buffer of the model.
        """

    def validation(self) -> Iterable[Any]:
        """Yield a finite number of validation batches. A run's result is the mean of their losses.

        The losses are computed without gradients. The global generators are seeded before each batch, in the same way
        in every evaluation.
        """


@dataclass(frozen=True)
class Drawn:
    """Batches as a function of the step: a resumed run draws no earlier one, and a rank no rows but its own."""

    after: Callable[[int, slice], Iterator[Batch]]  # (first step, rows of each global batch) → those from there on

    def __iter__(self) -> Iterator[Batch]:
        return self.after(0, slice(None))


def make_task(config: RunConfig, own: "PackedTask | None" = None) -> "Task":
    """Make the task of a run, a user's if there is one, and prepare its data; LabError if these are missing."""
    if own is not None:
        return own.make(config)
    if config.task is not None:
        return Task(resolve_name(SMALL_TASKS[config.task]), config, config.task)
    from .corpora import Classification, Language

    built = (Classification if config.model.sees_images else Language)(config)
    return Task(built, config, built.data.name, built.data.sha256)


@cache
def code_fingerprint() -> str:
    """Hash of the code that determines a run's numbers, so that results of edited code are never reused.

    It covers the library and the parts of the lab that compute a run: training, tasks and data.
    """
    lab = Path(__file__).parents[1]
    sources = [path for path in lab.parent.rglob("*.py") if lab not in path.parents]
    rooms = [lab / name for name in ("training", "data", "tasks")]
    sources += [lab / "registry.py", *(path for room in rooms for path in room.rglob("*.py"))]
    return sha256(b"\0".join(path.read_bytes() for path in sorted(sources)))[:12]


def identity(run: RunConfig, task_sha256: str) -> dict[str, Any]:
    """Everything that determines a run's numbers. Runs with the same identity are the same run."""
    versions = {package: version(package) for package in ("torch", "transformers")}
    return {"config": dataclasses.asdict(run), "corpus": task_sha256, "code": code_fingerprint(), **versions}


def run_id(who: Mapping[str, Any]) -> str:
    return sha256(json.dumps(who, sort_keys=True, separators=(",", ":")).encode())[:12]


class Task:
    """A task in one run, as the training loop asks for it; `inner` has the methods of `OwnTask`.

    Its `sha256` covers the data, and the code if that is outside the lab, whose code a run's id covers. For the methods
    of a user's task, which has a `file`, the global generators are seeded.
    """

    def __init__(self, inner: Any, config: RunConfig, name: str, sha256: str = "", file: str | None = None) -> None:
        self.inner, self.config, self.name, self.sha256, self.file = inner, config, name, sha256, file
        # The tokens, or images, of a step. A small task and a user's have batches of any size.
        self.examples = None if config.task else config.batch_size * getattr(inner, "per_example", 1)
        # Whether the loss is in nats per token, so that its exponential is the perplexity.
        self.predicts_tokens: bool = getattr(inner, "predicts_tokens", False)
        self.first_bounds: bool = getattr(inner, "first_bounds", False)
        self.optimizers: Mapping[str, Callable[[nn.Module, float], Optimizer]] = getattr(inner, "optimizers", {})

    def model(self) -> nn.Module:
        """Build the network, in training mode, with weights that depend on the seed alone."""
        self._seed(_MODEL, self.config.seed)
        model = self.inner.model()
        if not isinstance(model, nn.Module):
            raise self._objection(f"model() must return a torch.nn.Module, got {_kind(model)}")
        if extra := [name for name in model.state_dict() if name.endswith("_extra_state")]:  # by `get_extra_state`
            raise self._objection(f"model() has {extra[0]}, and a checkpoint holds only tensors: keep it as a buffer")
        return model.train()

    def batches(self, first: int, rows: slice) -> Iterator[Batch]:
        """Yield some rows of the global batch of each step, starting at step ``first``."""
        steps, seed = self.config.steps, self.config.seed if self.config.order is None else self.config.order
        self._seed(_TRAINING, seed, 0)
        source = self.inner.batches(seed)
        # A stream may keep state from one batch to the next, so that those before `first` are drawn, too.
        begin, stream = (first, source.after(first, rows)) if isinstance(source, Drawn) else (0, iter(source))
        for step in range(begin, steps):
            self._seed(_TRAINING, seed, step)
            batch = next(stream, _END)
            if batch is _END:
                ended = f"ended after {step} batches and the run has {steps} updates"
                raise self._objection(f"batches() {ended}: repeat them, or make fewer updates")
            if step >= first:
                yield batch

    def validation(self, rows: slice, whole: bool = False) -> Iterator[Batch]:
        """Yield the same rows of the fixed validation batches, or of all that there are."""
        self._seed(_VALIDATION, 0)
        source = self.inner.validation(whole=True) if whole else self.inner.validation()
        stream = source.after(0, rows) if isinstance(source, Drawn) else iter(source)
        for index in range(sys.maxsize):
            self._seed(_VALIDATION, index)
            batch = next(stream, _END)
            if batch is _END:
                if not index:
                    raise self._objection("validation() gave no batch: it needs one or more")
                return
            yield batch

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss over the examples."""
        training = torch.is_grad_enabled()
        loss = self.inner.loss(model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise self._objection(f"loss() must return a one-element tensor, got {_kind(loss)}")
        if training and not loss.requires_grad:
            why = "is it detached, or all of the model frozen?"
            raise self._objection(f"loss() returned a tensor without a gradient: {why}")
        return loss.reshape(())

    def scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the numbers that validation reports, means over the examples; one of them is "loss"."""
        numbers: dict[str, Tensor] = {}
        if hasattr(self.inner, "scores"):
            numbers = {str(key): torch.as_tensor(value) for key, value in self.inner.scores(model, batch).items()}
            if wrong := [f"{key!r}: {_kind(value)}" for key, value in numbers.items() if value.numel() != 1]:
                raise self._objection(f"scores() must return a number for each name, got {wrong[0]}")
        # A task of the lab's may score by another loss than it trains on; a user's is judged by its own.
        return numbers if "loss" in numbers and self.file is None else {**numbers, "loss": self.loss(model, batch)}

    def pieces(self, batch: Batch, device: torch.device, count: int, dtype: torch.dtype | None = None) -> list[Batch]:
        """Move the batch to a device, its real numbers to ``dtype``, and split it into equal pieces."""

        def moved(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                # Batches in pinned memory are copied while the device computes; others are copied as ever.
                wide = dtype if leaf.is_floating_point() else None
                return leaf.to(device, wide, non_blocking=device.type != "cpu")
            return leaf.to(device) if hasattr(leaf, "to") else leaf

        whole = tree_map(moved, batch)
        return [whole] if count == 1 else list(zip(*(part.chunk(count) for part in whole), strict=True))

    def make_optimizer(self, name: str, model: nn.Module, lr: float) -> Optimizer:
        optimizer = self.optimizers[name](model, lr)
        if not isinstance(optimizer, Optimizer):
            raise self._objection(f"optimizers[{name!r}] must return a torch.optim.Optimizer, got {_kind(optimizer)}")
        return optimizer

    def _seed(self, *words: int) -> None:
        if self.file is not None:
            seed_all(*words)

    def _objection(self, what: str) -> LabError:
        return LabError(f"{f'{Path(self.file).name}: ' if self.file else ''}{what}")


def _kind(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


_END = object()
PREPARING, _MODEL, _TRAINING, _VALIDATION = range(4)  # the purposes of a seed


def seed_all(*words: int) -> None:
    """Seed every global generator that a user's code may draw from."""
    key = int(np.random.SeedSequence(words).generate_state(1)[0])
    np.random.seed(key)  # noqa: NPY002
    random.seed(key)
    torch.default_generator.manual_seed(key)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(key)
