"""Non-finite gradients: detected without waiting for a device, skipped, and counted.

A tensor whose gradient contains a NaN or an infinity is not updated: its weights, momentum and decay stay as they were,
and other tensors are not affected. On the host, checking one norm per gradient is enough. On an accelerator nothing
waits for the check: the flags stay on the device, where masks apply them, and the count is copied to the host and read
when it arrives, some steps late.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...devices import HostCopy, is_capturing
from ...frames import frames_of_ours


def finite_each(gs: list[Tensor]) -> Tensor | None:
    """A flag for each tensor on a device, shape (len(gs),); None if the host knows that all entries are finite."""
    if read_on_host(gs[0].device):
        # Twelve times as fast as finding the largest entries, but squares may overflow where entries do not.
        if math.isfinite(torch.stack(torch._foreach_norm(gs)).sum().item()):
            return None
        finite = torch.stack([g.isfinite().all() for g in gs])
        return None if bool(finite.all()) else finite
    # The maximum of no entries is undefined.
    largest = torch.stack(torch._foreach_norm([g if g.numel() else g.new_zeros(1) for g in gs], math.inf))
    return (largest - largest) == 0  # `isfinite` is four operators


def read_on_host(device: torch.device) -> bool:
    """Whether to read flags at once: on the host, where this needs no waiting, and outside tracing."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def masked(gs: list[Tensor], ms: list[Tensor], finite: Sequence[Tensor] | Tensor | None) -> list[Tensor]:
    """Replace non-finite gradients by the tensor's momentum, which averaging then leaves unchanged, or by 0."""
    if finite is None:
        return gs
    stay: Sequence[Tensor | float] = ms or [0.0] * len(gs)
    return [torch.where(flag, g, m) for flag, g, m in zip(finite, gs, stay, strict=True)]


class Diverged(RuntimeError):
    """``max_nonfinite`` updates in a row had gradients, or losses, that are not finite."""


class SkippedUpdates:
    """Counts the updates that skip a tensor; warns once, and raises after ``most`` in a row, if there is a limit."""

    def __init__(self, most: int | None) -> None:
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ValueError(f"max_nonfinite must be a whole number of at least 1, or None for never, got {most!r}")
        self.most = most
        self._in_a_row = self._total = 0  # counts of updates whose flags were read on the host
        self._flags: list[Tensor] = []
        self._warned = False
        self._counts: _DeviceCounts | None = None  # counts of all other updates

    def __getstate__(self) -> dict[str, Any]:
        in_a_row = self._in_a_row + (0 if self._counts is None else self._counts.on_host()[0])
        return {"most": self.most, "_in_a_row": in_a_row, "_total": self.total(), "_warned": self._warned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _flags=[], _counts=None)

    @property
    def ready(self) -> bool:
        """Whether an update can be counted on a device without allocating anything."""
        return self._counts is not None

    def prepare(self, device: torch.device) -> None:
        """Allocate what counting on a device needs."""
        self._counts = self._counts or _DeviceCounts(device)

    def total(self) -> int:
        """The number of updates so far that skipped a tensor; waits for the device."""
        return self._total + (0 if self._counts is None else self._counts.on_host()[1])

    def check(self, gs: list[Tensor]) -> Tensor | None:
        """Return `finite_each` of some of an update's gradients, and note it."""
        finite = finite_each(gs)
        if finite is not None:
            self._flags.append(finite)
        return finite

    def noted(self, finite: Tensor) -> Tensor | None:
        """Note the known flags of some gradients; return them, or None if the host reads that all are set."""
        if read_on_host(finite.device) and bool(finite.all()):
            return None
        self._flags.append(finite)
        return finite

    def end_update(self, who: str) -> None:
        """Count the update whose flags were noted, for this optimizer; RuntimeError after too many in a row."""
        flags, self._flags = self._flags, []
        if all(read_on_host(flag.device) for flag in flags):
            bad = not all(bool(flag.all()) for flag in flags)
            self._in_a_row = self._in_a_row + 1 if bad else 0
            self._total += bad
            self._judge(who, self._in_a_row, self._total)
            return
        assert self._counts is not None
        told = self._counts.add(flags)
        if told is not None:
            self._judge(who, *told)

    def _judge(self, who: str, in_a_row: int, total: int) -> None:
        if total and not self._warned:
            self._warned = True
            warnings.warn(
                f"{who}: a gradient is not finite. The tensors that it reaches are not updated: their weights and "
                "momenta do not change. This warning appears once; optimizer.skipped_updates counts such updates",
                stacklevel=frames_of_ours(),
            )
        if self.most is not None and in_a_row >= self.most:
            raise Diverged(
                f"{who}: gradients were not finite in {in_a_row} updates in a row: the run has diverged, or a "
                "layer returns NaN. Lower the rate, clip gradients or look for the layer with "
                "torch.autograd.set_detect_anomaly(True); max_nonfinite=None turns this error off"
            )


class _DeviceCounts:
    """Counts skipped updates on a device, in a row and in total, and copies the counts to the host without waiting."""

    def __init__(self, device: torch.device) -> None:
        self.tensor = torch.zeros(2, dtype=torch.int64, device=device)
        self._copy = HostCopy(self.tensor)
        self._latest = (0, 0)

    def on_host(self) -> tuple[int, int]:
        """The present counts; waits for the device. Tensors without memory have none."""
        return (0, 0) if self.tensor.is_meta else (int(self.tensor[0]), int(self.tensor[1]))

    def add(self, flags: Sequence[Tensor]) -> tuple[int, int] | None:
        """Count an update with these flags; return the latest counts that have arrived, or None if none can."""
        device = self.tensor.device
        bad = ~torch.stack([flag.all().to(device, non_blocking=device.type != "cpu") for flag in flags]).all()
        # In place, so that each replay of a captured graph continues the count.
        self.tensor.add_(bad)
        self.tensor[0].mul_(bad)
        if torch.compiler.is_compiling() or device.type == "meta" or is_capturing(device):
            return None
        if (arrived := self._copy.read()) is not None:
            self._latest = tuple(arrived[1])
        self._copy.send()
        return self._latest
