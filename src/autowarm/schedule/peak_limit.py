"""The walk limit: at a run's first update, how high a peak rate its weights bear.

A step at rate η moves the weights by η·‖d‖, T steps in random directions by √T times that: at most c times their norm,
if peak ≤ c·‖W0‖/(‖d‖·√min(T, 4000)). Norms are over all trained tensors, of groups with other peaks √Σ(peakᵢ·‖dᵢ‖)².
Weights that begin small have to grow: they count as large as PyTorch starts them, with ‖W‖² = m/3 for a matrix of
m rows. One factor multiplies the schedule: under a cap, the rate would stay high for too long.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .._torch.devices import collective_device
from .._torch.modes import in_normal_mode
from ..optim.ranks.dtensors import local, shards
from ..others.known import step_norm
from ..others.wrapped import inside
from .core import OPEN_HORIZON
from .groups import Rate


class PeakLimit:
    """Lowers the peak rates by ``factor`` where they exceed the limit of c = ``most``; None limits nothing.

    ``moves`` is the share of their norm by which an update at the peaks moves the weights: None before the first
    update, 0 where it cannot be told.
    """

    def __init__(self, most: float | None) -> None:
        self.most, self.factor, self.length = most, 1.0, OPEN_HORIZON
        self.moves: float | None = None
        self._sums: list[float] | None = None  # from before the first update

    def look(self, optimizer: Optimizer, rates: Iterable[Rate]) -> None:
        """Measure the weights now. The last look before `settle` counts."""
        self._sums = None if self.most is None else _sums(optimizer, rates)

    def settle(self, optimizer: Optimizer, rates: Iterable[Rate], length: int | None, ranks: Any) -> None:
        """Compute the limit, the same on all ranks: each of them must call this."""
        if self.most is None:
            return
        sums = self._sums or _sums(optimizer, rates)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size(ranks) > 1:
            total = torch.tensor(sums, dtype=torch.float32, device=collective_device(ranks))
            dist.all_reduce(total, group=ranks)
            sums = total.tolist()
        weights, usual, step = sums
        self.moves = math.sqrt(step / max(weights, usual)) if weights and weights + step < math.inf else 0.0
        self.resize(length)

    def resize(self, length: int | None) -> bool:
        """Compute the factor for a run of this length; return whether it has changed."""
        before, self.length = self.factor, length or OPEN_HORIZON
        if self.most is not None and self.moves:
            self.factor = min(1.0, self.most / math.sqrt(min(self.length, OPEN_HORIZON)) / self.moves)
        return self.factor != before

    def words(self, lr: float) -> dict[str, Any]:
        """What the warning says of a peak rate."""
        moves, bears = (float(f"{100 * share * (self.moves or 0.0):.2g}") for share in (1.0, self.factor))
        return {"lr": lr, "updates": self.length, "moves": moves, "bears": bears, "peak": lr * self.factor}


@in_normal_mode
@torch.no_grad()
def _sums(optimizer: Optimizer, rates: Iterable[Rate]) -> list[float]:
    """A rank's ‖W0‖², that of PyTorch's initialisation, and (peak·‖d‖)²; NaN without values or for unknown steps."""
    peaks = {id(group): rate.peak * rate.scale for group, rate in zip(optimizer.param_groups, rates, strict=False)}
    weights, usual, step = list[torch.Tensor](), 0.0, 0.0
    for one in inside(optimizer):
        for group in one.param_groups:
            for p in (p for p in group["params"] if p.requires_grad and peaks.get(id(group))):
                if is_lazy(p) or p.is_meta or p.layout is not torch.strided:
                    return [math.nan] * 3
                x = local(p.detach())
                norm = torch.linalg.vector_norm(x, dtype=torch.float32 if x.itemsize < 4 else x.dtype)
                weights.append(norm.to(weights[0] if weights else norm) * math.sqrt(shards(p)))
                usual += p.shape[0] / 3 * (p.ndim > 1)
                step += (peaks[id(group)] * step_norm(one, group, p.shape)) ** 2
    return [sum(norm**2 for norm in torch.stack(weights).tolist()) if weights else 0.0, usual, step]
