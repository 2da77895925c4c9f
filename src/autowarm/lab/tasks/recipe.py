"""The parts of a small task."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from . import Batch

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """A small task in four functions."""

    about: str  # a description in a few words
    build: Callable[[], nn.Module]  # draws the weights from the global generator
    draw: Callable[[int, int], Batch]  # (seed, step) → a tuple of tensors
    loss: Callable[..., Tensor]  # (model, *batch) → mean loss
    held_out: Callable[[], Iterator[Batch]]  # validation batches
    scores: Callable[..., dict[str, Tensor]] | None = None  # (model, *batch) → validation's numbers, if not the loss
    first_bounds: bool = True  # see `Task`
