"""A veto on updates whose gradients are far larger than those before, as after a bad batch.

Everything stays in one tensor, on an accelerator too, where nothing waits for it.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .nonfinite import read_on_host

_WINDOW = 128  # how many norms are remembered
_LEAST = 64  # before so many nothing is an outlier
_EVERY = 10  # at most one update in so many is skipped, so that a change for good does not starve the run
_SPREAD = 0.01  # the least standard deviation, as a share of the mean: equal gradients have none
_TIMES = 16  # norms have long tails: of 4,000 in a healthy run up to 30 exceed six deviations, and none exceeds this


class Outliers:
    """Judges gradients by their norm, against those of the last 128 updates that were not skipped.

    An outlier is ``limit`` standard deviations above their mean, and above sixteen times the largest of them.
    """

    def __init__(self, limit: float | None) -> None:
        if limit is not None and not (isinstance(limit, float | int) and 0 < limit < math.inf):
            raise ValueError(f"skip_outliers must be a positive number, or None for never, got {limit!r}")
        self.limit = limit
        # (130,): the last 128 norms, the oldest first and zeros before; how many there are; updates since the last veto
        self.history: Tensor | None = None

    def prepare(self, device: torch.device) -> None:
        """Allocate what judging needs."""
        if self.limit is not None and self.history is None:
            self.history = torch.zeros(_WINDOW + 2, dtype=torch.float32, device=device)

    def judge(self, squares: Sequence[Tensor], finite: bool | Tensor, ranks: Any = None) -> Any:
        """Whether to make an update, on all ranks, given Σg² in parts and whether it is finite; remembers its norm."""
        if finite is False or not squares:
            return finite
        history, limit = self.history, self.limit or math.inf
        assert history is not None
        squares = squares if ranks is None else ranks.total(squares)
        norm = torch.stack([part.sqrt().to(history) for part in squares]).norm().reshape(1)
        norms, number, since = history[:_WINDOW], history[_WINDOW], history[_WINDOW + 1]
        count = number.clamp(min=1)
        mean = norms.sum() / count  # zeros before the first norm add nothing
        variance = (norms.square().sum() / count - mean.square()).clamp(min=0)
        # An outlier exceeds both bounds, once there are enough norms and the last veto is long ago
        bound = mean + limit * torch.maximum(variance.sqrt(), _SPREAD * mean)
        usual = (norm <= torch.maximum(bound, _TIMES * norms.max())) | (number < _LEAST) | (since < _EVERY - 1)
        passed = usual if finite is True else usual & finite
        with_it = torch.cat([norms[1:], norm, (number + 1).clamp(max=_WINDOW)[None], since[None] + 1])
        without = torch.cat([history[:-1], torch.zeros_like(norm)])
        now = torch.where(usual, with_it, without)
        history.copy_(now if finite is True else torch.where(finite, now, history))
        passed = bool(passed) if read_on_host(history.device) else passed.reshape(())
        return passed if ranks is None else ranks.all_of(passed)
