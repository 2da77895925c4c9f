"""Updates that are not made because a gradient is not finite, or so large that its square is not.

As a `GradScaler` does, one such gradient skips the whole update: no tensor, momentum or step count changes. On the host
the flag is read at once. On an accelerator nothing waits for it: it stays on the device, where it masks gradients and
rates, and the count is copied to the host and read when it arrives, some steps late.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._torch.devices import HostCopy, is_capturing
from ..._torch.frames import frames_of_ours
from ...orthogonalize import HALVES


def measured(gs: Sequence[Tensor]) -> tuple[bool | Tensor, list[Tensor]]:
    """Whether Σg² of all gradients is finite, and this sum in parts, one for each device and dtype.

    The first is a number on the host, otherwise a flag on the first gradient's device.
    """
    if not gs:
        return True, []
    alike: dict[Any, list[Tensor]] = {}  # a launch for each device and dtype
    for g in gs:
        alike.setdefault((g.device, g.dtype), []).append(g)
    squares = []
    for (_, dtype), some in alike.items():
        # Half precision is summed in single: float16 ends at 65504.
        norms = torch.stack(torch._foreach_norm(some, 2, torch.float32 if dtype in HALVES else None))
        squares.append(norms.square().sum().to(torch.float32))  # of float64, too: iterations are no finer
    if read_on_host(gs[0].device):
        return all(map(math.isfinite, map(Tensor.item, squares))), squares
    flags = [(each - each == 0).to(gs[0].device, non_blocking=not gs[0].is_cpu) for each in squares]
    return flags[0] if len(flags) == 1 else torch.stack(flags).all(), squares


class Flag(NamedTuple):
    """What is known of an update, on all ranks that share its tensors: numbers on the host, or flags on a device."""

    finite: bool | Tensor  # whether all gradients are
    applied: bool | Tensor  # whether the update is made: it may be an outlier


def read_on_host(device: torch.device) -> bool:
    """Whether to read flags at once: on the host, where this needs no waiting, and outside tracing."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


class Diverged(RuntimeError):
    """``max_nonfinite`` updates in a row had gradients, or losses, that are not finite."""


class SkippedUpdates:
    """Counts the updates that are skipped; warns once, and raises after ``most`` in a row, if there is a limit.

    Updates whose flags are on a device are counted there, in ``counts``, which are copied to the host without waiting.
    """

    def __init__(self, most: int | None) -> None:
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ValueError(f"max_nonfinite must be a whole number of at least 1, or None for never, got {most!r}")
        self.most = most
        self._in_a_row = self._total = 0  # counts of updates whose flags were read on the host
        self._warned = False
        self.counts: Tensor | None = None  # of all other updates, in the same order

    def __getstate__(self) -> dict[str, Any]:
        in_a_row, total = self.so_far()
        return {"most": self.most, "_in_a_row": in_a_row, "_total": total, "_warned": self._warned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, counts=None)

    def prepare(self, device: torch.device) -> None:
        """Allocate what counting on a device needs."""
        if self.counts is None:
            self.counts = torch.zeros(2, dtype=torch.int64, device=device)
            self._copy = HostCopy(self.counts)
            self._latest = [0, 0]

    def so_far(self) -> tuple[int, int]:
        """How many of the latest updates in a row, and of all so far, were skipped; waits for the device."""
        if self.counts is None or self.counts.is_meta:  # without memory there are no counts
            return self._in_a_row, self._total
        in_a_row, total = self.counts.tolist()
        return self._in_a_row + in_a_row, self._total + total

    def count(self, who: str, flag: Flag) -> None:
        """Count an update of this optimizer.

        Raises:
            RuntimeError: gradients were not finite too many times in a row.
        """
        if isinstance(flag.finite, Tensor) or isinstance(flag.applied, Tensor):
            in_a_row, total = self._count_on_device(flag)
        else:
            self._in_a_row = 0 if flag.finite else self._in_a_row + 1
            self._total += not flag.applied
            in_a_row, total = self._in_a_row, self._total
        if total and not self._warned:
            self._warned = True
            warnings.warn(
                f"{who}: a gradient is not finite, or far too large (its square is not finite, or skip_outliers says "
                "so). The whole update is skipped: no weight or momentum changes. This warning appears once; "
                "optimizer.skipped_updates counts such updates",
                stacklevel=frames_of_ours(),
            )
        if self.most is not None and in_a_row >= self.most:
            raise Diverged(
                f"{who}: gradients were not finite in {in_a_row} updates in a row: the run has diverged, or a "
                "layer returns NaN. Lower the rate, clip gradients or look for the layer with "
                "torch.autograd.set_detect_anomaly(True); max_nonfinite=None turns this error off"
            )

    def _count_on_device(self, flag: Flag) -> Sequence[int]:
        """Count an update; return the latest counts that have arrived, or zeros if none can."""
        counts: Any = self.counts
        device = counts.device
        bad, skipped = (~torch.as_tensor(each).to(device, non_blocking=device.type != "cpu") for each in flag)
        # In place, so that each replay of a captured graph continues the count.
        counts.add_(torch.stack([bad, skipped]))  # (2,): in a row, in total
        counts[0].mul_(bad)  # a finite gradient ends the row
        if torch.compiler.is_compiling() or device.type == "meta" or is_capturing(device):
            return 0, 0
        self._latest = self._copy.read() or self._latest
        self._copy.send()
        return self._latest
