"""The geometry whose oracle looks at one entry at a time."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Geometry, Total
from .rate import Rate, negated


@dataclass(frozen=True, eq=False, repr=False)
class Sign(Geometry):
    """Largest absolute entry; dual: sum of absolute entries; LMO: −sign(g). The geometry of signSGD and Lion.

    Example:
        >>> from autowarm.geometry import Sign
        >>> Sign().kappa((4, 8)), Sign(radius=0.5).kappa((4, 8))
        (32.0, 8.0)
    """

    locality = "entry"

    def _norm(self, x: Tensor) -> Tensor:
        return x.abs().amax() if x.numel() else x.new_zeros(())

    def _dual(self, g: Tensor) -> Tensor:
        return g.abs().sum()

    def _lmo(self, g: Tensor) -> Tensor:
        return -g.sign()

    def _kappa(self, shape: tuple[int, ...]) -> float:
        return float(math.prod(shape))

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
