"""Closures as searches and probes take them."""

from collections.abc import Callable

from torch import Tensor

__all__ = ["backward_of"]


def backward_of(loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The loss after its backward pass."""

    def closure() -> Tensor:
        found = loss()
        found.backward()
        return found

    return closure
