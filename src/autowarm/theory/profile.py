"""The practical rate for any exponent ρ > 1: η(Δ) = Δ/(K0 + K1Δ + KρΔ^ρ) with a given peak and a given first value."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .constants import Array


@dataclass(frozen=True)
class PowerProfile:
    """η(Δ) = Δ/(K0 + K1Δ + KρΔ^ρ) with η(Δ') = lr, η'(Δ') = 0 and η(Δ0) = lr/div, for any ρ > 1.

    `autowarm.schedule.Profile` is the case ρ = 2, the paper's appendix "K_012". In general, put φ(Δ) = K(Δ)/Δ = 1/η(Δ).
    φ'(Δ') = 0 gives K0 = (ρ−1)·Kρ·Δ'^ρ, then φ(Δ') = 1/lr gives K1 = 1/lr − ρ·Kρ·Δ'^{ρ−1}, and with these

        φ(Δ) = 1/lr + Kρ·Δ'^{ρ−1}·h(Δ/Δ'),    h(r) = r^{ρ−1} + (ρ−1)/r − ρ,

    so φ(Δ0) = div/lr gives Kρ, and η(Δ) = lr/(1 + (div − 1)·h(Δ/Δ')/h(Δ0/Δ')). By Bernoulli's inequality h(r) = (r^ρ −
    1 − ρ(r−1))/r ≥ 0, with equality at r = 1 alone, so 0 < η ≤ lr on (0, ∞). For ρ = 2 it is (r−1)²/r. With a larger ρ
    the peak is broader: η is larger on (0, Δ0). For ρ ≤ 1, Δ/K(Δ) rises with Δ everywhere: there is no warm-up.

    Args:
        rho: ρ > 1.
        lr, div, gap0, peak_gap: see `autowarm.schedule.Profile`.

    Call it with a gap, or an array of gaps; it returns η, and 0 where Δ ≤ 0.

    Raises:
        ValueError: a number is outside its range, or h(Δ0/Δ') overflows or rounds to 0.

    Example:
        >>> from autowarm.theory import PowerProfile
        >>> profile = PowerProfile(rho=3.0, lr=1e-3, div=100.0, gap0=8.0, peak_gap=2.0)
        >>> profile(2.0), round(profile(8.0), 9)
        (0.001, 1e-05)
    """

    rho: float
    lr: float
    div: float
    gap0: float
    peak_gap: float

    def __post_init__(self) -> None:
        if not (self.rho > 1 and math.isfinite(self.rho)):
            raise ValueError(
                f"rho must be above 1 and finite, got {self.rho}: otherwise Δ/K(Δ) has no peak, so there is no warm-up"
            )
        for name, value, least in (("lr", self.lr, 0), ("div", self.div, 1), ("gap0", self.gap0, 0)):
            if not (value > least and math.isfinite(value)):
                raise ValueError(f"{name} must be above {least} and finite, got {value}")
        if not 0 < self.peak_gap < self.gap0:
            raise ValueError(f"peak_gap must lie between 0 and gap0 = {self.gap0}, got {self.peak_gap}")
        if not 0 < self._first < math.inf:
            raise ValueError(
                f"gap0 is {self.gap0 / self.peak_gap!r} times peak_gap, which to the power rho = {self.rho} is beyond "
                "floating point: move peak_gap, or lower rho"
            )

    @property
    def K0(self) -> float:
        """K0 = (ρ−1)·Kρ·Δ'^ρ = (ρ−1)·Δ'·(div−1)/(lr·h(Δ0/Δ')), in units of loss/rate."""
        return (self.rho - 1) * self._curvature * self.peak_gap

    @property
    def K1(self) -> float:
        """K1 = 1/lr − ρ·Kρ·Δ'^{ρ−1}, in units of 1/rate. It may be negative, though the theorems need K1 ≥ 0."""
        return 1 / self.lr - self.rho * self._curvature

    @property
    def K_rho(self) -> float:
        """Kρ = (div−1)/(lr·Δ'^{ρ−1}·h(Δ0/Δ')), in units of 1/(rate·loss^{ρ−1})."""
        return self._curvature / self.peak_gap ** (self.rho - 1)

    def __call__(self, gap: float | Array) -> float | Array:
        with np.errstate(divide="ignore", over="ignore"):  # h is infinite at 0
            excess = self._h(np.maximum(gap, 0.0)) / self._first
            rate = self.lr / (1 + (self.div - 1) * np.maximum(excess, 0.0))  # h may round to just below 0
        return float(rate) if np.ndim(rate) == 0 else rate

    def _h(self, gap: float | Array) -> Array:
        s = np.log(np.asarray(gap, dtype=np.float64) / self.peak_gap)
        return np.expm1((self.rho - 1) * s) + (self.rho - 1) * np.expm1(-s)

    @cached_property
    def _first(self) -> float:
        with np.errstate(over="ignore"):
            return float(self._h(self.gap0))

    @property
    def _curvature(self) -> float:
        # Kρ·Δ'^{ρ−1}.
        return (self.div - 1) / (self.lr * self._first)
