"""The geometry whose oracle looks at one entry at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Total
from .euclidean import Euclidean
from .rate import Rate, negated


@dataclass(frozen=True, eq=False, repr=False)
class Sign(Euclidean):
    """Largest absolute entry; dual: sum of absolute entries; LMO: −sign(g). The geometry of signSGD and Lion.

    Example:
        >>> from autowarm.geometry import Sign
        >>> Sign().kappa((4, 8)), Sign(radius=0.5).kappa((4, 8))
        (32.0, 8.0)
    """

    locality = _group = "entry"

    def _lmo(self, g: Tensor) -> Tensor:
        return -g.sign()

    def step_(
        self,
        xs: list[Tensor],
        directions: list[Tensor],
        rate: Rate,
        radii: float | list[float],
        *,
        owned: bool = False,
        total: Total | None = None,
    ) -> None:
        if owned:
            torch._foreach_sign_(directions)
        else:
            directions = list(torch._foreach_sign(directions))
        rate.step_(xs, directions, negated(radii))
