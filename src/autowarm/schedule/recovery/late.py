"""Reads the losses of a device on the host without making it wait, at the same updates on every rank."""

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from ...devices import HostCopy


def lag(device: torch.device) -> int:
    """How many updates after its own a loss is read. By then it has been computed, so reading it does not wait."""
    return 0 if device.type == "cpu" else 4


class LateLosses:
    """Losses on their way to the host. What is read depends on the number of updates alone, and never on timing."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int, float | tuple[Tensor, HostCopy]]] = deque()
        self._read: list[tuple[Tensor, HostCopy]] = []  # to use again: pinned memory and events are slow to make

    def put(self, updates: int, loss: Any) -> list[tuple[int, float]]:
        """Put in the loss of an update, as a phase's `reduce` returns it; return the updates and losses read now."""
        late = 0
        if loss is None or isinstance(loss, float):
            self._queue.append((updates, math.inf if loss is None else loss))
        else:
            # As on the host, a loss that is not finite is NaN; ∞ stands for none.
            none_or_nan = torch.where(loss.good, math.inf, math.nan)
            value, late = torch.where(loss.finite, loss.mean, none_or_nan), lag(loss.mean.device)
            self._queue.append((updates, self._send(value) if late else float(value)))
        arrived = []
        while len(self._queue) > late:
            at, entry = self._queue.popleft()
            if (number := self._number(entry)) != math.inf:
                arrived.append((at, number))
        return arrived

    def waiting(self) -> list[list[float]]:
        """The updates and losses that were not read yet, as a list to save. Waits for the device."""
        self._queue = deque((at, self._number(entry)) for at, entry in self._queue)
        return [[at, number] for at, number in self._queue if isinstance(number, float)]

    def load(self, waiting: list[list[float]]) -> None:
        """Continue from `waiting`."""
        self._queue = deque((int(at), number) for at, number in waiting)

    def _send(self, value: Tensor) -> tuple[Tensor, HostCopy]:
        if not self._read or self._read[-1][0].device != value.device:
            content = torch.empty(1, dtype=value.dtype, device=value.device)
            self._read.append((content, HostCopy(content)))
        content, copy = self._read.pop()
        content.copy_(value)
        copy.send()
        return content, copy

    def _number(self, entry: float | tuple[Tensor, HostCopy]) -> float:
        if isinstance(entry, float):
            return entry
        self._read.append(entry)
        return float(entry[1].wait()[0])
