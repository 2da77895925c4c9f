"""What is learnt: a network, its batches, its loss. All that the training loop needs to know.

- `language`: next-token prediction by a LLaMA.      - `images`: classification of pictures.
- `small`: tasks of a second or two for the study of warm-ups.
- `own`: a user's own task, from `FILE.py:NAME` or from Python.
- `models`: the networks of the first three.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..config import RunConfig

__all__ = ["Batch", "Task", "chunks", "make_task"]

Batch = Any  # a tuple of tensors, but for a user's own task


class Task(Protocol):
    """What is learnt, from what data.

    Attributes:
        name: of the data.
        sha256: of the data, and of the code where that is the user's.
        per_example: tokens in a sequence, or 1: what a rate of work counts.
    """

    name: str
    sha256: str
    per_example: int

    def model(self) -> nn.Module:
        """The network, with weights that the seed decides."""

    def batches(self, first: int, rows: slice) -> Iterator[Batch]:
        """Some rows of the global batches of all steps from ``first`` on."""

    def validation(self, rows: slice) -> Iterator[Batch]:
        """The same rows of the fixed validation batches."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean over the examples."""

    def scores(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Means over the examples of what validation reports; "loss" is among them."""

    def pieces(self, batch: Batch, device: torch.device, count: int) -> list[Batch]:
        """The batch on a device, in ``count`` micro-batches of one size."""


def chunks(batch: tuple[Tensor, ...], device: torch.device, count: int) -> list[tuple[Tensor, ...]]:
    """`Task.pieces` of a tuple of tensors with the examples along their first dimension."""
    return list(zip(*(part.to(device).chunk(count) for part in batch), strict=True))


def make_task(config: RunConfig) -> Task:
    """The task of a run, its data prepared.

    Raises:
        LabError: the data is not there.
    """
    if config.task is not None:
        from .small import make_small

        return make_small(config)
    if config.model.sees_images:
        from .images import Classification

        return Classification(config)
    from .language import Language

    return Language(config)
