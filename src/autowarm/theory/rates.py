"""Learning rates of Theorems 1, 2 and 3, and what each theorem promises for them.

A rate is in units of the geometry's norm: a step of rate η moves x by η·LMO. Rates take one gap Δ or an array
of them. Bounds take the curvatures K(x⁰), K(x¹), … of a run and answer for every horizon at once: entry T−1
bounds Δ^T.

=============  =====================  ====================================  =======================
               rate η^t               promise                               update
=============  =====================  ====================================  =======================
Theorem 1      Δ/(D·K(Δ))             Δ^T ≤ 2D²·ΣK/T²                       x + η·LMO(∇f)
decay-only     Δ/(D·K(Δ⁰))            Δ^T ≤ 2D²·K(Δ⁰)/T                     x + η·LMO(∇f)
constant       η                      Δ^T ≤ (1 − η/D)^T·Δ⁰ + D·K(Δ⁰)·η/2    x + η·LMO(∇f)
Theorem 2      λΔ/(8·K(Δ))            Δ^T ≤ 16·ΣK/(λ²T²)                    (1 − λη)x + η·LMO(∇f)
 … sharp       λΔ/(4·K(Δ))            Δ^T ≤ 8·ΣK/(λ²T²)                     (1 − λη)x + η·LMO(∇f)
Theorem 3      Δ_ξ/(D·K(Δ_ξ))         mean Δ_ξ ≤ D²·√(ΣK²)/T                x − η·∇f_ξ/‖∇f_ξ‖₂
=============  =====================  ====================================  =======================

D bounds ‖x^t − x*‖. "Sharp" is ours: the paper's proof of Theorem 2 bounds ⟨∇f(x^t), x* − x^t⟩ ≤ −Δ by
smoothness and star-convexity together, paying 2K·η²; its own Corollary "star_convex_gradient" gives it for
free.
"""

import math

import numpy as np

from .constants import Array, Smoothness

__all__ = [
    "constant_bound",
    "decay_only_bound",
    "decay_only_rate",
    "theorem_1_bound",
    "theorem_1_rate",
    "theorem_2_bound",
    "theorem_2_rate",
    "theorem_3_bound",
    "theorem_3_rate",
    "theorem_3_uniform_bound",
    "weight_decay_limit",
]


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive and finite, got {value}")


def _per_curvature(gap: float | Array, K: Smoothness) -> float | Array:
    # Δ/K(Δ), and 0 at Δ = 0 even where K(0) = 0: at the minimum there is nothing left to do.
    gap = np.asarray(gap, dtype=np.float64)
    quotient = np.divide(gap, K(gap), out=np.zeros_like(gap), where=gap > 0)
    return float(quotient) if quotient.ndim == 0 else quotient


def _horizons(curvatures: Array) -> Array:
    return np.arange(1, len(curvatures) + 1, dtype=np.float64)


def theorem_1_rate(gap: float | Array, K: Smoothness, D: float) -> float | Array:
    """η = Δ/(D·K(Δ)) of Theorem 1: for ρ > 1 it warms up until Δ falls to `K.peak_gap`, then decays.

    Args:
        gap: Δ = f(x) − f*.
        K: the smoothness constants.
        D: bound on ‖x^t − x*‖ in the geometry's norm. For the Euclidean norm ‖x⁰ − x*‖ will do (Lemma
            "boundedness"); otherwise take the radius of {f ≤ f(x⁰)}, which no iterate leaves.

    Raises:
        ValueError: D is not positive and finite, or a gap is negative.

    Example:
        >>> import numpy as np
        >>> from autowarm.theory import Smoothness, theorem_1_rate
        >>> K = Smoothness(rho=2, K0=1e-4, K1=0, K_rho=1e3)  # the paper's Figure "eta_behavior": Δ = 1/t
        >>> rates = theorem_1_rate(1 / np.array([1.0, 1e3, 10**3.5, 1e4, 1e5]), K, D=1.0)
        >>> [float(f"{rate:.3g}") for rate in rates]
        [0.001, 0.909, 1.58, 0.909, 0.0999]
    """
    _require_positive(D=D)
    return _per_curvature(gap, K) / D


def theorem_1_bound(curvatures: Array, D: float) -> Array:
    """Δ^T ≤ 2D²·(K(x⁰) + … + K(x^{T−1}))/T², Theorem 1, for T = 1, …, len(curvatures).

    Example:
        >>> import numpy as np
        >>> from autowarm.theory import theorem_1_bound
        >>> theorem_1_bound(np.array([4.0, 2.0, 1.5]), D=1.0).tolist()
        [8.0, 3.0, 1.6666666666666667]
    """
    return 2 * D**2 * np.cumsum(curvatures) / _horizons(curvatures) ** 2


def decay_only_rate(gap: float | Array, K: Smoothness, D: float, gap0: float) -> float | Array:
    """η = Δ/(D·K(Δ⁰)), the schedule without warm-up in the discussion of Theorem 1; never above `theorem_1_rate`.

    Args:
        gap, K, D: as there.
        gap0: Δ⁰ > 0, the gap at the start.

    Raises:
        ValueError: D or gap0 is not positive and finite.

    Example:
        >>> from autowarm.theory import Smoothness, decay_only_rate, theorem_1_rate
        >>> K = Smoothness(rho=2, K0=1, K1=0, K_rho=1)
        >>> decay_only_rate(1.0, K, D=1.0, gap0=3.0), theorem_1_rate(1.0, K, D=1.0)
        (0.1, 0.5)
    """
    _require_positive(D=D, gap0=gap0)
    return gap / (D * K(gap0))


def decay_only_bound(K: Smoothness, D: float, gap0: float, steps: int) -> Array:
    """Δ^T ≤ 2D²·K(Δ⁰)/T for T = 1, …, steps (discussion of Theorem 1).

    Example:
        >>> from autowarm.theory import Smoothness, decay_only_bound
        >>> decay_only_bound(Smoothness(rho=2, K0=1, K1=0, K_rho=1), D=1.0, gap0=3.0, steps=4).tolist()
        [20.0, 10.0, 6.666666666666667, 5.0]
    """
    return theorem_1_bound(np.full(steps, K(gap0)), D)


def constant_bound(rate: float, K: Smoothness, D: float, gap0: float, steps: int) -> Array:
    """Δ^T ≤ (1 − η/D)^T·Δ⁰ + D·K(Δ⁰)·η/2 for a constant rate η, T = 1, …, steps.

    From the first inequalities of the proof of Theorem 1, Δ^{t+1} ≤ (1 − η/D)Δ^t + K(Δ⁰)η²/2, which hold as long as
    the iterates stay in {f ≤ f(x⁰)}, and they do for η < 2Δ⁰/(D·K(Δ⁰)). (That is at most D, so the factor is in [0,
    1).) The second term is a floor that the gap need not sink below: a constant rate has no limit.

    Args:
        D: the radius of {f ≤ f(x⁰)} around x* in the geometry's norm, in ℓ2 too: Lemma "boundedness" is about
            other rates.

    Raises:
        ValueError: the rate is not in (0, 2Δ⁰/(D·K(Δ⁰))).

    Example:
        >>> from autowarm.theory import Smoothness, constant_bound
        >>> constant_bound(0.5, Smoothness(2, 1, 0, 1), D=1.0, gap0=0.5, steps=2).tolist()
        [0.5625, 0.4375]
    """
    _require_positive(D=D, gap0=gap0)
    limit = 2 * gap0 / (D * K(gap0))
    if not 0 < rate < limit:
        raise ValueError(f"the bound needs a constant rate in (0, 2Δ⁰/(D·K(Δ⁰))) = (0, {limit}), got {rate}")
    return (1 - rate / D) ** _horizons(np.empty(steps)) * gap0 + D * K(gap0) * rate / 2


def weight_decay_limit(norm_x0: float, norm_x_star: float, K: Smoothness | None = None) -> float:
    """The largest λ of Theorem 2: 1/max(‖x⁰‖, ‖x*‖), or with `K` the paper's 1/max(‖x⁰‖, ‖x*‖, 1/λ_max).

    λ_max is there to make λη ≤ 1, but that always holds. Proof: let z_s = x* + s(x − x*). Star-convexity
    gives f(z_s) ≤ f(x), so K(z_s) ≤ K(x), and the pair (z_s, x*) gives ‖∇f(z_s)‖⋆ ≤ K(x)·s·‖x − x*‖.
    Integrating ⟨∇f(z_s), x − x*⟩ over s, **Δ ≤ K(x)·‖x − x*‖²/2**. If ‖x^t‖, ‖x*‖ ≤ 1/λ then Δ/K ≤ 2/λ², so
    λη = λ²Δ/(8K) ≤ 1/4 (sharp rate: ≤ 1/2), hence ‖x^{t+1}‖ ≤ 1/λ, and so on by induction. This matters: for
    constant K (K1 = Kρ = 0) λ_max is 0, and the theorem as printed allows no λ at all.

    Returns:
        λ in units of one over the norm; infinite if both norms are zero.

    Raises:
        ValueError: a negative norm, or K with ρ ≤ 1.

    Example:
        >>> from autowarm.theory import Smoothness, weight_decay_limit
        >>> weight_decay_limit(2.0, 4.0), weight_decay_limit(2.0, 4.0, Smoothness(2, 1, 0, 0))
        (0.25, 0.0)
    """
    if not (norm_x0 >= 0 and norm_x_star >= 0):
        raise ValueError(f"norms are never negative, got {norm_x0} and {norm_x_star}")
    largest = max(norm_x0, norm_x_star)
    limit = 1 / largest if largest > 0 else math.inf
    return limit if K is None else min(limit, K.lambda_max)


def theorem_2_rate(gap: float | Array, K: Smoothness, weight_decay: float, *, sharp: bool = False) -> float | Array:
    """η = λΔ/(8·K(Δ)) of Theorem 2, for the update with weight decay λ; twice that if `sharp`.

    Args:
        weight_decay: λ, positive and at most `weight_decay_limit`.
        sharp: λΔ/(4·K(Δ)) instead. Sharper proof: ⟨∇f(x^t), x^{t+1} − x^t⟩ ≤ −ληΔ by Corollary
            "star_convex_gradient", so Δ^{t+1} ≤ Δ − ληΔ + 2Kη², least at this rate: Δ − λ²Δ²/(8K).

    Raises:
        ValueError: λ is not positive and finite, or a gap is negative.

    Example:
        >>> from autowarm.theory import Smoothness, theorem_2_rate
        >>> theorem_2_rate(1.0, Smoothness(2, 1, 0, 1), weight_decay=0.5)
        0.03125
    """
    _require_positive(weight_decay=weight_decay)
    return weight_decay * _per_curvature(gap, K) / (4 if sharp else 8)


def theorem_2_bound(curvatures: Array, weight_decay: float, *, sharp: bool = False) -> Array:
    """Δ^T ≤ 16·(K(x⁰) + … + K(x^{T−1}))/(λ²T²), Theorem 2, for T = 1, …, len(curvatures); half that if `sharp`.

    Example:
        >>> import numpy as np
        >>> from autowarm.theory import theorem_2_bound
        >>> theorem_2_bound(np.array([4.0, 2.0]), weight_decay=0.5).tolist()
        [256.0, 96.0]
    """
    return (8 if sharp else 16) * np.cumsum(curvatures) / (weight_decay * _horizons(curvatures)) ** 2


def theorem_3_rate(gap: float | Array, K: Smoothness, D: float) -> float | Array:
    """η = Δ_ξ/(D·K(Δ_ξ)) of Theorem 3: Theorem 1's, with the gap of the drawn f_ξ and D = ‖x⁰ − x*‖₂.

    Example:
        >>> from autowarm.theory import Smoothness, theorem_3_rate
        >>> theorem_3_rate(1.0, Smoothness(rho=2, K0=1, K1=0, K_rho=1), D=2.0)
        0.25
    """
    return theorem_1_rate(gap, K, D)


def theorem_3_bound(curvatures: Array, D: float) -> Array:
    """(1/T)·ΣΔ_ξ ≤ (D²/T)·√(ΣK_ξ²), Theorem 3, for T = 1, …; of one path, or the mean of (paths × steps).

    The paper proves it in expectation. It holds on every path: the proof's last step before expectations says
    ‖x^{t+1} − x*‖² ≤ ‖x^t − x*‖² − (Δ_ξ/(D·K_ξ))², so Σ(Δ_ξ/K_ξ)² ≤ D⁴, and Cauchy–Schwarz does the rest.
    Averaging over paths, with Jensen's inequality for the root, gives the printed form; for any finite set of
    paths, not only in the limit.

    Example:
        >>> import numpy as np
        >>> from autowarm.theory import theorem_3_bound
        >>> theorem_3_bound(np.array([3.0, 4.0]), D=1.0).tolist()
        [3.0, 2.5]
    """
    squares = np.atleast_2d(np.asarray(curvatures, dtype=np.float64) ** 2).mean(axis=0)
    return D**2 * np.sqrt(np.cumsum(squares)) / _horizons(squares)


def theorem_3_uniform_bound(K: Smoothness, D: float, largest_gap: float, steps: int) -> Array:
    """(1/T)·ΣΔ_ξ ≤ D²·K(M)/√T, the second bound of Theorem 3, where M bounds every Δ_ξ; T = 1, …, steps.

    Example:
        >>> from autowarm.theory import Smoothness, theorem_3_uniform_bound
        >>> theorem_3_uniform_bound(Smoothness(rho=2, K0=1, K1=0, K_rho=1), D=1.0, largest_gap=2.0, steps=4)[-1].item()
        2.5
    """
    return theorem_3_bound(np.full(steps, K(largest_gap)), D)
