"""The rate as a function of the gap, η(Δ)."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

Gap = TypeVar("Gap", float, np.ndarray)


@np.errstate(divide="ignore", over="ignore")  # h is infinite at 0
def bend(gap: Any, away: Any, peak_gap: Any, rho: float) -> Any:
    """h(Δ/Δ') of `Profile`, from Δ and Δ − Δ', so that nothing cancels near Δ'."""
    if rho == 2.0:
        return away / peak_gap * (away / gap)
    log = np.where(abs(away) < 0.5 * peak_gap, np.log1p(away / peak_gap), np.log(gap / peak_gap))
    return np.clip(np.expm1((rho - 1.0) * log) + (rho - 1.0) * np.expm1(-log), 0.0, None)


@dataclass(frozen=True)
class Profile:
    """η(Δ) = Δ/(K0 + K1Δ + KρΔ^ρ), the rate that rises as the gap falls to Δ', then falls: eq. 7 (practical_eta).

    Its peak at Δ' and two values fix the constants: η(Δ') = lr, eq. 8 (constr_1), and η(Δ0) = lr/div, eq. 9 (constr_2).
    The paper has ρ = 2. In general, put φ(Δ) = 1/η(Δ) = K0/Δ + K1 + KρΔ^{ρ−1}. Then φ'(Δ') = 0 gives K0, φ(Δ') = 1/lr
    gives K1, and with these

        φ(Δ) = 1/lr + Kρ·Δ'^{ρ−1}·h(Δ/Δ'),    h(r) = r^{ρ−1} + (ρ−1)/r − ρ,

    so φ(Δ0) = div/lr gives Kρ, and η(Δ) = lr/(1 + (div − 1)·h(Δ/Δ')/h(Δ0/Δ')), which is what a call evaluates. By
    Bernoulli's inequality h(r) = (r^ρ − 1 − ρ(r−1))/r ≥ 0, with equality at r = 1 alone, so 0 < η ≤ lr on (0, ∞). For
    ρ = 2 it is (r−1)²/r. With a larger ρ the peak is broader: η is larger on (0, Δ0).

    Args:
        lr: peak rate, > 0.
        div: ratio of the peak rate to the first rate, > 1.
        gap0: Δ0 = f(x0) − f*, in units of the loss, > 0.
        peak_gap: Δ', in (0, Δ0).
        rho: ρ > 1. Up to ρ = 1, Δ/K(Δ) rises with Δ everywhere: there is no warm-up.

    Call the profile with a finite gap Δ (float or array); it returns η in the same type, and 0 where Δ ≤ 0.

    Raises:
        ValueError: a number is outside its range, or h(Δ0/Δ') is beyond floating point.

    Example:
        >>> from autowarm.schedule import Profile
        >>> profile = Profile(lr=1e-3, div=100.0, gap0=8.0, peak_gap=2.0, rho=3.0)
        >>> profile(2.0), round(profile(8.0), 9)
        (0.001, 1e-05)
        >>> gap = 5.0
        >>> round(gap / (profile.K0 + profile.K1 * gap + profile.K_rho * gap**3) / profile(gap), 9)
        1.0
    """

    lr: float
    div: float
    gap0: float
    peak_gap: float
    rho: float = 2.0

    def __post_init__(self) -> None:
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not (self.div > 1 and math.isfinite(self.div)):
            raise ValueError(f"div must be greater than 1 and finite, got {self.div}")
        if not (self.gap0 > 0 and math.isfinite(self.gap0)):
            raise ValueError(f"the first gap f(x0) − f* must be positive and finite, got {self.gap0}")
        if not 0 < self.peak_gap < self.gap0:
            raise ValueError(f"peak_gap must lie between 0 and the first gap {self.gap0}, got {self.peak_gap}")
        if not (self.rho > 1 and math.isfinite(self.rho)):
            raise ValueError(f"rho must be above 1 and finite, got {self.rho}: otherwise Δ/K(Δ) has no peak")
        if not 0 < self._first < math.inf:
            raise ValueError(
                f"gap0 is {self.gap0 / self.peak_gap!r} times peak_gap, which to the power rho = {self.rho} is beyond "
                "floating point: move peak_gap, or lower rho"
            )

    @property
    def K0(self) -> float:
        """K0 = (ρ−1)·Kρ·Δ'^ρ, in units of loss/rate; for ρ = 2, eq. 15 (K0_final)."""
        return (self.rho - 1.0) * self._curvature * self.peak_gap

    @property
    def K1(self) -> float:
        """K1 = 1/lr − ρ·Kρ·Δ'^{ρ−1}, in units of 1/rate; for ρ = 2, eq. 12 (K1).

        At div = 100 it is negative for nearly every Δ', though the theorems require K1 ≥ 0; K(Δ) is positive anyway.
        """
        return 1.0 / self.lr - self.rho * self._curvature

    @property
    def K_rho(self) -> float:
        """Kρ = (div−1)/(lr·Δ'^{ρ−1}·h(Δ0/Δ')), in units of 1/(rate·loss^{ρ−1}); for ρ = 2, eq. 14 (K2)."""
        return self._curvature / self.peak_gap ** (self.rho - 1.0)

    def __call__(self, gap: Gap) -> Gap:
        if isinstance(gap, np.ndarray):
            return self._rate(np.maximum(gap, 0.0))
        return float(self._rate(gap)) if gap > 0 else 0.0

    def _rate(self, gap: Any) -> Any:
        excess = bend(gap, gap - self.peak_gap, self.peak_gap, self.rho) / self._first
        return self.lr / (1.0 + (self.div - 1.0) * excess)

    @cached_property
    def _first(self) -> float:
        return float(bend(self.gap0, self.gap0 - self.peak_gap, self.peak_gap, self.rho))

    @property
    def _curvature(self) -> float:
        """Kρ·Δ'^{ρ−1}."""
        return (self.div - 1.0) / (self.lr * self._first)
