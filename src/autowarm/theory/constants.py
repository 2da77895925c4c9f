"""The smoothness that the theorems assume: K(Δ) = K0 + K1·Δ + Kρ·Δ^ρ, with Δ = f(x) − f*.

Assumption 2 of the paper requires ‖∇f(x) − ∇f(y)‖⋆ ≤ K(f(x) − f*)·‖x − y‖ for all pairs. As printed, it is too strong:
x = x* turns it into ‖∇f(y)‖⋆ ≤ K0·‖y − x*‖ for every y, which few functions satisfy beyond the classically smooth ones.
This package requires it only for

    **pairs (x, y) with f(y) ≤ f(x)**                                   ("the pair form")

The proofs need no other pairs; `autowarm.theory.verify` says why.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Smoothness:
    """(ρ, K0, K1, Kρ)-smoothness, Assumption 2. Calling an instance with a gap Δ, or an array of gaps, returns K(Δ).

    K is a change of gradient per length of step, both in the geometry's norms. Non-negative constants make K
    non-decreasing in the gap, which every theorem needs. (The practical schedule usually has K1 < 0: it keeps the
    shape of the theorems' rate but not their assumptions.)

    Args:
        rho: ρ > 0, the exponent; warm-up exists for ρ > 1.
        K0: ≥ 0, curvature at the minimum.
        K1: ≥ 0, curvature per unit of gap.
        K_rho: ≥ 0, curvature per unit of gap to the power ρ.

    Raises:
        ValueError: a constant is negative or not finite, ρ ≤ 0, or all three K are zero; in a call, a negative gap.

    Example:
        >>> from autowarm.theory import Smoothness
        >>> K = Smoothness(rho=2, K0=4, K1=18, K_rho=24)
        >>> K(0.0), K(1.0), round(K.peak_gap, 4), round(K.lambda_max, 3)
        (4.0, 46.0, 0.4082, 17.343)
    """

    rho: float
    K0: float
    K1: float
    K_rho: float

    def __post_init__(self) -> None:
        # Each constant ≥ 0, so that K never falls as the gap grows; NaN fails the comparison, too.
        for name in ("K0", "K1", "K_rho"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be finite and at least 0, as the theorems assume; got {value}")
        if not (self.rho > 0 and math.isfinite(self.rho)):
            raise ValueError(f"rho must be positive and finite, got {self.rho}")
        # A K of zero everywhere would make every rate infinite.
        if self.K0 == self.K1 == self.K_rho == 0:
            raise ValueError("K0, K1 and K_rho are all zero: at least one must be positive")

    def __call__(self, gap: float | Array) -> Any:  # as the gap is
        if np.any(np.asarray(gap) < 0):
            raise ValueError(f"a gap f(x) − f* is never negative, got {np.min(gap)}: is f* a lower bound?")
        # If Kρ = 0, skip the power: a huge gap would give 0·∞. Otherwise let K overflow to infinity without a warning.
        with np.errstate(over="ignore"):
            power = self.K_rho * np.asarray(gap, dtype=np.float64) ** self.rho if self.K_rho else 0.0
            curvature = self.K0 + self.K1 * np.asarray(gap, dtype=np.float64) + power
        return float(curvature) if np.ndim(curvature) == 0 else curvature

    @property
    def peak_gap(self) -> float:
        """Δ′ = (K0/((ρ−1)·Kρ))^{1/ρ}, the gap at which Δ/K(Δ) peaks (paper, discussion of Theorem 1).

        As the gap falls, the rate rises above Δ′ (warm-up) and falls below it (decay). Δ′ is infinite if the rate only
        decays (ρ ≤ 1 or Kρ = 0), and 0 if it only warms up (K0 = 0 < Kρ and ρ > 1). It does not depend on K1.
        """
        if self.rho <= 1 or self.K_rho == 0:
            return math.inf
        # A quotient of roots, because the root's argument may overflow.
        # Δ/K(Δ) is stationary where K = Δ·K′, that is K0 = (ρ−1)·Kρ·Δ^ρ.
        root = 1 / self.rho
        return float(self.K0**root / ((self.rho - 1) ** root * self.K_rho**root))

    @property
    def peak_rate(self) -> float:
        """The least upper bound of Δ/K(Δ): 1/(K1 + ρ·(K0/(ρ−1))^{(ρ−1)/ρ}·Kρ^{1/ρ}) for ρ > 1, attained at `peak_gap`.

        Theorem 1's rates are at most 1/D times this, Theorem 2's λ/8 times. Proof: K(Δ)/Δ = K0/Δ + K1 + KρΔ^{ρ−1} has
        the derivative ((ρ−1)KρΔ^ρ − K0)/Δ², which changes sign once, at Δ′; insert Kρ·Δ′^ρ = K0/(ρ−1). For ρ ≤ 1 it is
        never positive: K(Δ)/Δ falls to K1 (to K1 + Kρ if ρ = 1), so the rate only decays as the gap falls. The bound
        is infinite if that limit is 0.
        """
        # sup Δ/K(Δ) = 1/inf K(Δ)/Δ
        least = self._least_per_gap
        return 1 / least if least > 0 else math.inf

    @property
    def _least_per_gap(self) -> float:
        # inf K(Δ)/Δ. For ρ ≤ 1 it is the limit as Δ → ∞, where K0/Δ and, below 1, Kρ·Δ^{ρ−1} vanish.
        if self.rho <= 1:
            return self.K1 + (self.K_rho if self.rho == 1 else 0.0)
        # Otherwise its value at Δ′. A product of roots, because a quotient may overflow.
        root = 1 / self.rho
        return self.rho * (self.K0 / (self.rho - 1)) ** (1 - root) * self.K_rho**root + self.K1

    @property
    def lambda_max(self) -> float:
        """λ_max = [8·(ρ·(K0/(ρ−1))^{(ρ−1)/ρ}·Kρ^{1/ρ} + K1)]^{1/2} of Theorem 2, which equals √(8·min K(Δ)/Δ).

        The paper uses it to ensure λη ≤ 1, which holds without it: see `autowarm.theory.rates.weight_decay_limit`.

        Raises:
            ValueError: ρ ≤ 1; Theorem 2 assumes ρ > 1.
        """
        if self.rho <= 1:
            raise ValueError(f"λ_max is defined for rho > 1, got {self.rho}")
        # λ² ≤ 8·K(Δ)/Δ at every gap if it holds where K(Δ)/Δ is least.
        return math.sqrt(8 * self._least_per_gap)

    @classmethod
    def from_gradient_norm(cls, rho: float, L0: float, L_rho: float) -> "Smoothness":
        """Return the constants of a (ρ, L0, Lρ)-smooth function: (ρ/(2−ρ), 2·L0, 0, Lρ·(4·Lρ)^{ρ/(2−ρ)}).

        This is Lemma "smoothness_equivalence" of the paper. Its Assumption "smoothness1" defines (ρ, L0, Lρ)-smoothness
        as ‖∇f(x) − ∇f(y)‖⋆ ≤ (L0 + Lρ·‖∇f(x)‖⋆^ρ)·‖x − y‖, required here again only for pairs with f(y) ≤ f(x); ρ = 1
        is (L0, L1)-smoothness. The lemma's proof takes a step away from x, so f must be defined on the whole space or
        tend to infinity at the edge of its domain.

        Raises:
            ValueError: ρ is outside (0, 2), or `Smoothness` refuses the constants.

        Example:
            >>> from autowarm.theory import Smoothness
            >>> Smoothness.from_gradient_norm(1.0, 1.0, 1.0)  # cosh(x) − 1
            Smoothness(rho=1.0, K0=2.0, K1=0.0, K_rho=4.0)
        """
        # For ρ ≥ 2 the gap bounds no power of the gradient.
        if not 0 < rho < 2:
            raise ValueError(f"the lemma needs 0 < rho < 2, got {rho}")
        if not L_rho >= 0:
            raise ValueError(f"L_rho must be at least 0, got {L_rho}")
        # Let L = L0 + Lρ·G^ρ at a gradient of norm G. If L0 is the larger term, L ≤ 2·L0; otherwise the gap is at least
        # G²/(2L) ≥ G^{2−ρ}/(4Lρ), which bounds G^ρ by a power of the gap.
        # G² ≤ 4Lρ·G^ρ·Δ gives G^{2−ρ} ≤ 4Lρ·Δ, hence Lρ·G^ρ ≤ Lρ·(4Lρ·Δ)^{ρ/(2−ρ)}.
        exponent = rho / (2 - rho)
        return cls(exponent, 2 * L0, 0.0, L_rho * (4 * L_rho) ** exponent)
