"""What is learnt: a network, its batches, its loss. All that the training loop needs to know.

- `language`: next-token prediction by a LLaMA.      - `images`: classification of pictures.
- `small`: tasks of a second or two for the study of warm-ups.
- `own`: a user's own task, from `FILE.py:NAME` or from Python.
- `models`: the networks of the first three.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..config import RunConfig

__all__ = ["Batch", "Task", "make_task"]

Batch = Any  # a tuple of tensors, but for a user's own task


class Task(ABC):
    """What is learnt, from what data.

    Attributes:
        name: of the data.
        sha256: of the data, and of the code where that is the user's.
        per_example: tokens in a sequence, or 1: what a rate of work counts.
    """

    name: str
    sha256: str
    per_example = 1

    @abstractmethod
    def model(self) -> nn.Module:
        """The network, with weights that the seed decides."""

    @abstractmethod
    def batches(self, first: int, rows: slice) -> Iterator[Batch]:
        """Some rows of the global batches of all steps from ``first`` on."""

    @abstractmethod
    def validation(self, rows: slice) -> Iterator[Batch]:
        """The same rows of the fixed validation batches."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean over the examples."""

    def scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Means over the examples of what validation reports; "loss" is among them."""
        return {"loss": self.loss(model, batch)}

    def pieces(self, batch: Batch, device: torch.device, count: int) -> list[Batch]:
        """The batch on a device, in ``count`` micro-batches of one size."""
        return list(zip(*(part.to(device).chunk(count) for part in batch), strict=True))


def make_task(config: RunConfig) -> Task:
    """The task of a run, its data prepared.

    Raises:
        LabError: the data is not there.
    """
    if config.task is not None:
        from .small import SmallTask

        return SmallTask(config)
    if config.model.sees_images:
        from .images import Classification

        return Classification(config)
    from .language import Language

    return Language(config)
