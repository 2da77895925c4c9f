"""Tasks: a network, its batches and its loss, which is all that the training loop needs to know.

- `language`: next-token prediction by a LLaMA.      - `images`: image classification.
- `small`: tasks of a second or two.
- `own`: a user's own task, from `FILE.py:NAME` or from Python.      - `blame`: where in the user's code a mistake is.
- `models`: the networks of `language`, `images` and `small`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..config import RunConfig
from ..registry import SMALL_TASKS, at

__all__ = ["Batch", "Source", "Task", "make_task"]

Batch = Any  # a tuple of tensors, except in a user's own task


class Task(ABC):
    """What to learn, and from which data.

    Attributes:
        name: name of the data.
        sha256: hash of the data, and of the code if that is the user's.
        per_example: the units that throughput counts in one example: the tokens of a sequence, otherwise 1.
        first_bounds: whether a run counts as diverged if its loss ends above its first loss. False if the loss may be
            negative or starts low; then only a loss that is not finite counts as diverged.
    """

    name: str
    sha256: str
    per_example = 1
    first_bounds = True

    @abstractmethod
    def model(self) -> nn.Module:
        """Build the network, with weights that depend on the seed alone."""

    @abstractmethod
    def batches(self, first: int, rows: slice) -> Iterator[Batch]:
        """Yield some rows of the global batch of each step, starting at step ``first``."""

    @abstractmethod
    def validation(self, rows: slice) -> Iterator[Batch]:
        """Yield the same rows of the fixed validation batches."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss over the examples."""

    def scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the numbers that validation reports, means over the examples; one of them is "loss"."""
        return {"loss": self.loss(model, batch)}

    def pieces(self, batch: Batch, device: torch.device, count: int, dtype: torch.dtype | None = None) -> list[Batch]:
        """Move the batch to a device, its real numbers to ``dtype``, and split it into micro-batches of equal size."""
        moved = (part.to(device, dtype if part.is_floating_point() else None) for part in batch)
        return list(zip(*(part.chunk(count) for part in moved), strict=True))


class Source(Protocol):
    """What makes the task of a run whose config names none of the lab's; it is sent to worker processes.

    Attributes:
        name: the task's name.
        sha256: hash of everything outside the lab that determines the task.
        file: the file of its code, beside which mistakes are looked for.
    """

    @property
    def name(self) -> str: ...

    @property
    def sha256(self) -> str: ...

    @property
    def file(self) -> str: ...

    def make(self, config: RunConfig) -> Task:
        """Make the task in a run; its `sha256` is the source's."""


def make_task(config: RunConfig, own: Source | None = None) -> Task:
    """Make the task of a run and prepare its data. `own` is the task's source if the config names none of the lab's.

    Raises:
        LabError: the data is missing.
    """
    if own is not None:
        return own.make(config)
    if config.task is not None:
        from .recipes import RecipeTask

        return RecipeTask(config.task, at(SMALL_TASKS[config.task]), config)
    if config.model.sees_images:
        from .images import Classification

        return Classification(config)
    from .language import Language

    return Language(config)
