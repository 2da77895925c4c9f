"""The rate as a function of the gap, η(Δ)."""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

from .core import eta_share

Gap = TypeVar("Gap", float, np.ndarray, Tensor)


@dataclass(frozen=True)
class Profile:
    """η(Δ) = Δ/(K0 + K1Δ + K2Δ²), the rate that rises as the gap falls to Δ', then falls: eq. 7 (practical_eta).

    Its peak at Δ' and two values fix the constants: η(Δ') = lr, eq. 8 (constr_1), and η(Δ0) = lr/div, eq. 9 (constr_2).
    Calling the profile evaluates the same function in the form

        lr / (1 + (div − 1)·(Δ0/Δ)·((Δ − Δ')/(Δ0 − Δ'))²).

    The denominator is a sum of positive terms, so nothing cancels, and 0 < η ≤ lr on (0, ∞) is plain to see.

    Args:
        lr: peak rate, > 0.
        div: ratio of the peak rate to the first rate, > 1.
        gap0: Δ0 = f(x0) − f*, in units of the loss, > 0.
        peak_gap: Δ', in (0, Δ0).

    Call the profile with a finite gap Δ (float, array or tensor); it returns η in the same type, and 0 where Δ ≤ 0.

    Raises:
        ValueError: a number is outside its range.

    Example:
        >>> from autowarm.schedule import Profile
        >>> profile = Profile(lr=1e-3, div=100.0, gap0=8.0, peak_gap=2.0)
        >>> profile(2.0), round(profile(8.0), 9)
        (0.001, 1e-05)
        >>> gap = 5.0
        >>> round(gap / (profile.K0 + profile.K1 * gap + profile.K2 * gap**2) / profile(gap), 9)
        1.0
    """

    lr: float
    div: float
    gap0: float
    peak_gap: float

    def __post_init__(self) -> None:
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not (self.div > 1 and math.isfinite(self.div)):
            raise ValueError(f"div must be greater than 1 and finite, got {self.div}")
        if not (self.gap0 > 0 and math.isfinite(self.gap0)):
            raise ValueError(f"the first gap f(x0) − f* must be positive and finite, got {self.gap0}")
        if not 0 < self.peak_gap < self.gap0:
            raise ValueError(f"peak_gap must lie between 0 and the first gap {self.gap0}, got {self.peak_gap}")

    @property
    def K0(self) -> float:
        """K0 = K2·Δ'², in units of loss/rate: eq. 15 (K0_final)."""
        return self.K2 * self.peak_gap**2

    @property
    def K1(self) -> float:
        """K1 = 1/lr − 2·K2·Δ', in units of 1/rate: eq. 12 (K1).

        At div = 100 it is negative for nearly every Δ', though the theorems require K1 ≥ 0; K(Δ) is positive anyway.
        """
        return 1.0 / self.lr - 2.0 * self.K2 * self.peak_gap

    @property
    def K2(self) -> float:
        """K2 = Δ0·(div − 1)/(lr·(Δ0 − Δ')²), in units of 1/(loss·rate): eq. 14 (K2)."""
        return self.gap0 * (self.div - 1.0) / (self.lr * (self.gap0 - self.peak_gap) ** 2)

    def __call__(self, gap: Gap) -> Gap:
        if isinstance(gap, Tensor):
            gap = gap if gap.is_floating_point() else gap.float()
            return self.lr * self._share(gap.clamp(min=0.0))
        if isinstance(gap, np.ndarray):
            with np.errstate(divide="ignore"):
                return self.lr * self._share(np.maximum(gap, 0.0))
        return self.lr * self._share(gap) if gap > 0 else 0.0

    def _share(self, gap: Gap) -> Gap:
        share: Gap = eta_share(gap, self.gap0, self.peak_gap, self.div)
        return share
