"""The learning rates of Theorems 1, 2 and 3, and the bounds that the theorems promise for them.

A rate is in units of the geometry's norm: a step with rate η moves x by η·LMO. The rate functions take one gap Δ or an
array of gaps. The bound functions take the curvatures K(x⁰), K(x¹), … of a run and return a bound for every horizon:
entry T−1 bounds Δ^T.

=============  =====================  ====================================  =======================
               rate η^t               promise                               update
=============  =====================  ====================================  =======================
Theorem 1      Δ/(D·K(Δ))             Δ^T ≤ 2D²·ΣK/T²                       x + η·LMO(∇f)
decay-only     Δ/(D·K(Δ⁰))            Δ^T ≤ 2D²·K(Δ⁰)/T                     x + η·LMO(∇f)
Theorem 2      λΔ/(8·K(Δ))            Δ^T ≤ 16·ΣK/(λ²T²)                    (1 − λη)x + η·LMO(∇f)
Theorem 3      Δ_ξ/(D·K(Δ_ξ))         mean Δ_ξ ≤ D²·√(ΣK²)/T                x − η·∇f_ξ/‖∇f_ξ‖₂
=============  =====================  ====================================  =======================

D bounds ‖x^t − x*‖. The formulas hold for every ρ > 0 of Assumption 2. For ρ > 1 the theorems' rates warm up, and Δ/K
peaks at `Smoothness.peak_gap` with `Smoothness.peak_rate`.
"""

import math

import numpy as np

from .constants import Array, Smoothness


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive and finite, got {value}")


def _per_curvature(gap: float | Array, K: Smoothness) -> float | Array:
    # Δ/K(Δ), but 0 at Δ = 0 even if K(0) = 0: at the minimum there is nothing left to do.
    # A scalar or an array of gaps, and a result of the same kind.
    gap = np.asarray(gap, dtype=np.float64)
    quotient = np.divide(gap, K(gap), out=np.zeros_like(gap), where=gap > 0)
    return float(quotient) if quotient.ndim == 0 else quotient


def _horizons(curvatures: Array) -> Array:
    # T = 1, …, n
    return np.arange(1, len(curvatures) + 1, dtype=np.float64)


def theorem_1_rate(gap: float | Array, K: Smoothness, D: float) -> float | Array:
    """Return Theorem 1's rate η = Δ/(D·K(Δ)). For ρ > 1 it warms up until Δ falls to `K.peak_gap`, then decays.

    Args:
        gap: Δ = f(x) − f*.
        K: the smoothness constants.
        D: a bound on ‖x^t − x*‖ in the geometry's norm. In the Euclidean norm ‖x⁰ − x*‖ is enough (Lemma
            "boundedness"); otherwise take the radius of {f ≤ f(x⁰)}, which no iterate leaves. Theorem 3's rate is the
            same with the gap of the drawn f_ξ.

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
    # With Δ ≤ D‖∇f‖⋆ a step gains at least ηΔ/D − Kη²/2, which is largest at this η: Δ²/(2D²K).
    return _per_curvature(gap, K) / D


def theorem_1_bound(curvatures: Array, D: float) -> Array:
    """Return Theorem 1's bound Δ^T ≤ 2D²·(K(x⁰) + … + K(x^{T−1}))/T² for T = 1, …, len(curvatures).

    Example:
        >>> import numpy as np
        >>> from autowarm.theory import theorem_1_bound
        >>> theorem_1_bound(np.array([4.0, 2.0, 1.5]), D=1.0).tolist()
        [8.0, 3.0, 1.6666666666666667]
    """
    # Entry T−1 sums K(x⁰), …, K(x^{T−1}); 1/Δ^{t+1} ≥ 1/Δ^t + 1/(2D²K) and Σ1/K ≥ T²/ΣK give it.
    return 2 * D**2 * np.cumsum(curvatures) / _horizons(curvatures) ** 2


def decay_only_rate(gap: float | Array, K: Smoothness, D: float, gap0: float) -> float | Array:
    """Return η = Δ/(D·K(Δ⁰)), the rate without warm-up in the discussion of Theorem 1; at most `theorem_1_rate`.

    Args:
        gap, K, D: as in `theorem_1_rate`.
        gap0: Δ⁰ > 0, the initial gap.

    Raises:
        ValueError: D or gap0 is not positive and finite.

    Example:
        >>> from autowarm.theory import Smoothness, decay_only_rate, theorem_1_rate
        >>> K = Smoothness(rho=2, K0=1, K1=0, K_rho=1)
        >>> decay_only_rate(1.0, K, D=1.0, gap0=3.0), theorem_1_rate(1.0, K, D=1.0)
        (0.1, 0.5)
    """
    _require_positive(D=D, gap0=gap0)
    # K never exceeds K(Δ⁰), because the gap never rises; so this is Theorem 1's rate with the largest curvature.
    return gap / (D * K(gap0))


def weight_decay_limit(norm_x0: float, norm_x_star: float, K: Smoothness | None = None) -> float:
    """Return the largest λ of Theorem 2: 1/max(‖x⁰‖, ‖x*‖), or with `K` the paper's 1/max(‖x⁰‖, ‖x*‖, 1/λ_max).

    The paper needs λ_max to ensure λη ≤ 1, but this always holds. Proof: let z_s = x* + s(x − x*). Star-convexity gives
    f(z_s) ≤ f(x), so K(z_s) ≤ K(x), and the pair (z_s, x*) gives ‖∇f(z_s)‖⋆ ≤ K(x)·s·‖x − x*‖. Integrating
    ⟨∇f(z_s), x − x*⟩ over s gives **Δ ≤ K(x)·‖x − x*‖²/2**. If ‖x^t‖, ‖x*‖ ≤ 1/λ, then Δ/K ≤ 2/λ², so
    λη = λ²Δ/(8K) ≤ 1/4. Hence ‖x^{t+1}‖ ≤ 1/λ, and the claim follows by induction. The
    difference matters: for constant K (K1 = Kρ = 0), λ_max is 0 and the theorem as printed allows no λ at all.

    Returns:
        λ in units of one over the norm; infinite if both norms are zero.

    Raises:
        ValueError: a norm is negative, or K has ρ ≤ 1.

    Example:
        >>> from autowarm.theory import Smoothness, weight_decay_limit
        >>> weight_decay_limit(2.0, 4.0), weight_decay_limit(2.0, 4.0, Smoothness(2, 1, 0, 0))
        (0.25, 0.0)
    """
    # NaN is refused, too.
    if not (norm_x0 >= 0 and norm_x_star >= 0):
        raise ValueError(f"norms are never negative, got {norm_x0} and {norm_x_star}")
    # The ball of radius 1/λ must hold x⁰ and x*; the steps then stay in it.
    largest = max(norm_x0, norm_x_star)
    # From x⁰ = x* = 0 every λ will do.
    limit = 1 / largest if largest > 0 else math.inf
    return limit if K is None else min(limit, K.lambda_max)


def theorem_2_rate(gap: float | Array, K: Smoothness, weight_decay: float) -> float | Array:
    """Return Theorem 2's rate η = λΔ/(8·K(Δ)) for the update with weight decay λ.

    Twice this rate is valid, too. The paper's proof derives ⟨∇f(x^t), x* − x^t⟩ ≤ −Δ from smoothness and
    star-convexity together, which costs 2K·η²; its own Corollary "star_convex_gradient" gives it at no cost, so
    Δ^{t+1} ≤ Δ − ληΔ + 2Kη², whose minimum Δ − λ²Δ²/(8K) is at η = λΔ/(4K).

    Args:
        weight_decay: λ, positive and at most `weight_decay_limit`.

    Raises:
        ValueError: λ is not positive and finite, or a gap is negative.

    Example:
        >>> from autowarm.theory import Smoothness, theorem_2_rate
        >>> theorem_2_rate(1.0, Smoothness(2, 1, 0, 1), weight_decay=0.5)
        0.03125
    """
    _require_positive(weight_decay=weight_decay)
    # At this η a step lowers Δ by at least λ²Δ²/(16K).
    return weight_decay * _per_curvature(gap, K) / 8


def theorem_2_bound(curvatures: Array, weight_decay: float) -> Array:
    """Return Theorem 2's bound Δ^T ≤ 16·(K(x⁰) + … + K(x^{T−1}))/(λ²T²) for T = 1, ….

    Example:
        >>> import numpy as np
        >>> from autowarm.theory import theorem_2_bound
        >>> theorem_2_bound(np.array([4.0, 2.0]), weight_decay=0.5).tolist()
        [256.0, 96.0]
    """
    # As Theorem 1's, with λ²/16 instead of 1/(2D²) as the share of Δ²/K that each step gains
    return 16 * np.cumsum(curvatures) / (weight_decay * _horizons(curvatures)) ** 2


def theorem_3_bound(curvatures: Array, D: float) -> Array:
    """Return Theorem 3's bound (1/T)·ΣΔ_ξ ≤ (D²/T)·√(ΣK_ξ²) for T = 1, …, on one path or the mean of several.

    The paper proves the bound in expectation, but it holds on every path. Before it takes expectations, the proof shows
    ‖x^{t+1} − x*‖² ≤ ‖x^t − x*‖² − (Δ_ξ/(D·K_ξ))². So Σ(Δ_ξ/K_ξ)² ≤ D⁴, and Cauchy–Schwarz gives the bound. The mean
    over any finite set of paths, with Jensen's inequality for the root, gives the printed form.

    Args:
        curvatures: K_ξ, of shape (steps,) for one path or (paths, steps) for several.
        D: ‖x⁰ − x*‖₂.

    Example:
        >>> import numpy as np
        >>> from autowarm.theory import theorem_3_bound
        >>> theorem_3_bound(np.array([3.0, 4.0]), D=1.0).tolist()
        [3.0, 2.5]
    """
    # E[ΣK_ξ²] of the printed form: the mean over paths, with one row for each.
    # (paths, steps) → (steps,)
    squares = np.atleast_2d(np.asarray(curvatures, dtype=np.float64) ** 2).mean(axis=0)
    # ΣΔ_ξ = Σ(Δ_ξ/K_ξ)·K_ξ ≤ √(Σ(Δ_ξ/K_ξ)²)·√(ΣK_ξ²) ≤ D²·√(ΣK_ξ²), by Cauchy–Schwarz
    return D**2 * np.sqrt(np.cumsum(squares)) / _horizons(squares)


def theorem_3_uniform_bound(K: Smoothness, D: float, largest_gap: float, steps: int) -> Array:
    """Return Theorem 3's second bound (1/T)·ΣΔ_ξ ≤ D²·K(M)/√T for T = 1, …, steps. M = `largest_gap` bounds every Δ_ξ.

    Example:
        >>> from autowarm.theory import Smoothness, theorem_3_uniform_bound
        >>> theorem_3_uniform_bound(Smoothness(rho=2, K0=1, K1=0, K_rho=1), D=1.0, largest_gap=2.0, steps=4)[-1].item()
        2.5
    """
    # K_ξ ≤ K(M) at every step turns √(ΣK_ξ²) into K(M)·√T.
    return theorem_3_bound(np.full(steps, K(largest_gap)), D)
