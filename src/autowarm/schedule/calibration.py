"""Chooses Δ' once, from the first loss, so that the profile is close to a standard schedule around its peak.

For each candidate Δ' the paper's objective, eq. 10 (constr_3), is

    J(Δ') = ∫₀^Δ0 exp(−(Δ − Δ')²κ/(2σ_F²)) · ((η(Δ) − η_trgt(Δ))/lr)² dΔ.

As printed, eq. 10 has no 2 in the exponent. The paper's appendix (app:K_012) has a normal density of variance σ_F²/κ,
and so has the authors' code; that is the form here, and half of σ_F² gives the printed one. For the paper's LLaMA-124M
the two agree under Muon (Δ' = 2.47 and 2.52) and differ under Lion (0.772 and 0.409).

J is tiny if the weight is a narrow spike (Lion's is 0.003 wide, on an interval of 7.6). The integrand has three length
scales: the weight's width σ = σ_F/√κ, the width of the profile's peak, and the interval. All three meet at Δ', so the
integral is split there, and each side has a quadrature rule whose nodes crowd towards both of its ends (tanh-sinh).
Everything is computed as a distance from Δ' and from the peak's height, so that nothing cancels. Dividing by lr makes
the choice of Δ' independent of lr, as it must be.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .profile import Profile, bend
from .shapes import WSD_FALL, Shape, cosine, decay_shape, linear, one_minus_sqrt, power, warmup_shape, wsd, wso

Array = NDArray[np.float64]

# 1 − shape(p) on arrays, without cancellation near p = 0.
FALLS: Mapping[Shape, Callable[[Array], Array]] = {
    linear: lambda p: p,
    cosine: lambda p: np.sin(0.5 * np.pi * p) ** 2,
    one_minus_sqrt: np.sqrt,
    power: lambda p: p * (2.0 - p),
    wsd: lambda p: 1.0 - np.minimum(1.0, (1.0 - p) / WSD_FALL),
    wso: np.zeros_like,
}
# The p at which a shape is not smooth, so that quadrature must split there.
KINKS: Mapping[Shape, float] = {wsd: 1.0 - WSD_FALL}

# The weight is cut off this many σ from its peak, where it is below exp(−9²/2) ≈ 3e-18 of the peak.
_TAIL = 9.0
# σ_F² of the paper (Sec. 6 and its table of hyper-parameters).
SIGMA_F2 = 1e3


def calibrate(
    gap0: float,
    *,
    lr: float,
    div: float,
    kappa: float,
    sigma_f2: float = SIGMA_F2,
    target: str | tuple[str | Shape, str | Shape] = "linear-cosine",
    candidates: int = 1000,
    rho: float = 2.0,
) -> Profile:
    """Return the profile whose Δ' minimises `objective` over equally spaced candidates (paper, Algorithm 1, line 7).

    Args:
        gap0: Δ0 = f(x0) − f*, in units of the loss.
        lr: peak rate; Δ' does not depend on it.
        div: ratio of the peak rate to the first rate.
        kappa: κ of the model in the optimizer's geometry, see `autowarm.geometry.total_kappa`.
        sigma_f2: σ_F², the variance of a step's Frobenius norm. The paper's experiments use 10³; 500 gives its eq. 10
            as printed, without the ½ in the exponent.
        target: the standard schedule, "warmup-decay" with names from `autowarm.schedule.shapes`, or a pair of shapes.
        candidates: n, how many Δ' to try: i·Δ0/(n + 1) for i = 1…n.
        rho: ρ > 1, the exponent of K(Δ) = K0 + K1Δ + KρΔ^ρ; the paper has 2. See `Profile`.

    Raises:
        ValueError: a number is outside its range or a name is unknown.

    Example:
        The authors' LLaMA-124M under Muon, f(x0) = 10.98 and f* = 3.3:

        >>> from autowarm.schedule import calibrate
        >>> profile = calibrate(10.98 - 3.3, lr=1e-3, div=100.0, kappa=46848)
        >>> round(profile.peak_gap, 2)
        2.47
    """
    if candidates < 1:
        raise ValueError(f"candidates must be at least 1, got {candidates}")
    Profile(lr, div, gap0, gap0 / 2, rho)  # raises if lr is out of range
    peak_gaps = gap0 * np.arange(1, candidates + 1) / (candidates + 1)
    values = objective(peak_gaps, gap0, div=div, kappa=kappa, sigma_f2=sigma_f2, target=target, rho=rho)
    return Profile(lr, div, gap0, float(peak_gaps[np.argmin(values)]), rho)


def objective(
    peak_gaps: ArrayLike,
    gap0: float,
    *,
    div: float,
    kappa: float,
    sigma_f2: float = SIGMA_F2,
    target: str | tuple[str | Shape, str | Shape] = "linear-cosine",
    rho: float = 2.0,
) -> Array:
    """Evaluate the paper's objective, eq. 10 (constr_3), divided by lr², at each Δ'. The relative error is about 1e-9.

    The objective may have two minima, and the minimiser jumps between them as κ or Δ0 changes: plot it before you trust
    it.

    Args:
        peak_gaps: candidates Δ', each within (0, Δ0).
        gap0, div, kappa, sigma_f2, target, rho: see `calibrate`.

    Returns:
        An array of the candidates' shape, in units of the loss.

    Raises:
        ValueError: a number is outside its range or a name is unknown.
    """
    Profile(1.0, div, gap0, gap0 / 2, rho)  # raises if div, gap0 or rho is out of range
    peaks = np.asarray(peak_gaps, dtype=np.float64)
    if not (kappa > 0 and sigma_f2 > 0 and np.isfinite(kappa) and np.isfinite(sigma_f2)):
        raise ValueError(f"kappa and sigma_f2 must be positive and finite, got {kappa} and {sigma_f2}")
    if not np.all((peaks > 0) & (peaks < gap0)):
        raise ValueError(f"every candidate must lie between 0 and the first gap {gap0}")
    parts: Sequence[str | Shape] = target.split("-", 1) if isinstance(target, str) else target
    if len(parts) != 2:
        raise ValueError(f'target must be "warmup-decay", such as "linear-cosine", or a pair, got {target!r}')
    warmup, decay = warmup_shape(parts[0]), decay_shape(parts[1])
    sigma = np.sqrt(sigma_f2 / kappa)
    column = peaks.reshape(-1, 1)
    curvature = (div - 1.0) / bend(gap0, gap0 - column, column, rho)

    def panel(near: float, far: float, span: Array, side: int, fall: Callable[[Array], Array]) -> Array:
        """Integrate over distances [near·span, far·span] from Δ', above it (side = 1) or below it (side = −1)."""
        nodes, opposite, weights = _rule()
        start, end = near * span, np.minimum(far * span, np.maximum(near * span, _TAIL * sigma))
        away = start + (end - start) * nodes
        # Below Δ', compute Δ = Δ' − away from the panel's other end: near Δ = 0 the difference would cancel.
        gap = column + away if side > 0 else (column - end) + (end - start) * opposite
        # Each curve is taken as its drop below the peak, 1 − η/lr: near Δ' this subtracts two small numbers.
        excess = curvature * bend(gap, side * away, column, rho)
        lost = excess / (excess + 1.0) - fall(away / span)
        return (end - start)[:, 0] * (lost**2 * np.exp(-0.5 * (away / sigma) ** 2) @ weights)

    total = panel(0.0, 1.0, gap0 - column, 1, lambda p: (1.0 - 1.0 / div) * _fall(warmup, p))
    # Split the integral at a kink in the decay.
    edges = [0.0, *([KINKS[decay]] if decay in KINKS else []), 1.0]
    for near, far in pairwise(edges):
        total += panel(near, far, column, -1, lambda p: _fall(decay, p))
    return total.reshape(peaks.shape)


def _fall(shape: Shape, p: Array) -> Array:
    """1 − shape(p); of a user's function, which takes floats, one by one."""
    return FALLS[shape](p) if shape in FALLS else 1.0 - np.vectorize(shape, otypes=[float])(p)


@cache
def _rule() -> tuple[Array, Array, Array]:
    """Tanh-sinh quadrature on [0, 1] (Takahasi and Mori, 1974): nodes, 1 − nodes, weights.

    The end at 0 needs fewer nodes: it lies at Δ', where the integrand vanishes like the square of the distance.
    """
    t = np.arange(-48, 61) * (3.2 / 60)
    u = 0.5 * np.pi * np.sinh(t)
    nodes, rest = 1.0 / (1.0 + np.exp(-2.0 * u)), 1.0 / (1.0 + np.exp(2.0 * u))
    return nodes, rest, (3.2 / 60) * np.pi * np.cosh(t) * nodes * rest
