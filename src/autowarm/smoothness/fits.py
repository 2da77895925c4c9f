"""Least-squares fits of K as a function of the gap, and the uncertainty of their coefficients.

The paper's K0 + K1Δ + K2Δ², Assumption "smoothness2" with ρ = 2, and three models to compare it with:

==============  ==========================  ==========================================
``quadratic``   K0 + K1Δ + K2Δ²             the paper's
``linear``      K0 + K1Δ                    earlier work's
``constant``    K0                          classical smoothness
``power``       K0 + KρΔ^ρ                  coefficients ≥ 0, ρ free
==============  ==========================  ==========================================

A change of f* only changes the coefficients of a quadratic, so its unconstrained curve, R² and AIC do not depend on f*.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

MODELS: dict[str, tuple[float, ...]] = {"constant": (0.0,), "linear": (0.0, 1.0), "quadratic": (0.0, 1.0, 2.0)}
_RHO = (0.1, 10.0)  # range of a free exponent
_TAILS = (2.5, 97.5)  # percentiles, of an interval that holds 95 %


@dataclass(frozen=True)
class Fit:
    """A fitted curve K(Δ) = Σ cᵢ Δ^eᵢ. Call it on gaps.

    Attributes:
        model: name of the model.
        exponents: eᵢ; (0, 1, 2) for the quadratic.
        coefficients: cᵢ in the same order: K0, K1, K2.
        r2: R² = 1 − RSS/TSS.
        aic: n·log(RSS/n) + 2·(parameters + 1), for independent normal residuals. Only differences are meaningful, and
            they are too large, because the residuals of neighbouring steps are correlated.
        count: n.
        residuals: K − K(Δ), in the order of the data.
    """

    model: str
    exponents: tuple[float, ...]
    coefficients: tuple[float, ...]
    r2: float
    aic: float
    count: int
    residuals: Array = field(repr=False, compare=False)

    def __call__(self, gaps: ArrayLike) -> Array:
        # (n, coefficients) @ (coefficients,)
        return _design(np.asarray(gaps, dtype=np.float64), self.exponents) @ np.array(self.coefficients)

    @property
    def above(self) -> float:
        """The share of points above the curve, where a bound K(Δ) that it stands for would be broken."""
        return float(np.mean(self.residuals > 0))

    @property
    def rho(self) -> float:
        """The largest exponent."""
        return self.exponents[-1]

    @property
    def rho_at_end(self) -> bool:
        """Whether ρ lies at an end of a free exponent's range: the best one may lie beyond."""
        return not 1.01 * _RHO[0] < self.rho < 0.99 * _RHO[1]


@dataclass(frozen=True)
class Interval:
    """A percentile interval [low, high]."""

    low: float
    high: float


def fit(gaps: ArrayLike, smoothness: ArrayLike, model: str = "quadratic", *, nonnegative: bool = False) -> Fit:
    """Fit a model by least squares.

    Args:
        gaps: Δ^t, shape (n,).
        smoothness: K^t, shape (n,).
        model: "quadratic", "linear", "constant", or "power", which finds the ρ from 0.1 to 10 that fits best.
        nonnegative: require coefficients ≥ 0, as the theorems do; "power" always does.

    Raises:
        ValueError: the model is unknown, the arrays differ in length or are not finite, there are too few different
            gaps, or a gap for a free ρ is not positive.

    Example:
        >>> import numpy as np
        >>> from autowarm.smoothness import fit
        >>> Δ = np.linspace(0.1, 7, 50)
        >>> found = fit(Δ, 1 + 2 * Δ + 3 * Δ**2)
        >>> [round(c, 6) for c in found.coefficients], round(found.r2, 6)
        ([1.0, 2.0, 3.0], 1.0)
        >>> round(fit(Δ, 1 + Δ**3, "power").rho, 4)
        3.0
    """
    # The data: two finite sequences of one length.
    x, y = np.asarray(gaps, dtype=np.float64), np.asarray(smoothness, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"gaps and smoothness must be two sequences of one length, got shapes {x.shape} and {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("gaps and smoothness must be finite: leave out the steps that diverged")
    # The exponents: those of the model, or for one of them the best ρ.
    free = model == "power"
    if free and not np.all(x > 0):
        raise ValueError("the exponent ρ needs gaps above 0: lower f* or leave out the points at or below it")
    if not free and model not in MODELS:
        raise ValueError(f"unknown model {model!r}: use one of {sorted([*MODELS, 'power'])}")
    exponents = (0.0, _best_rho(x, y)) if free else MODELS[model]
    if len(np.unique(x)) < len(exponents) + free:
        raise ValueError(f"{model} needs more than {len(np.unique(x))} different gaps")
    # The coefficients, and how well the curve describes the data.
    coefficients = _solve(_design(x, exponents), y, nonnegative or free)
    residuals = y - _design(x, exponents) @ coefficients
    # Sums of squares: about the curve, and about the mean.
    rss, tss = float(residuals @ residuals), float(np.sum((y - y.mean()) ** 2))
    # A free ρ is one parameter more.
    parameters = len(exponents) + free
    floor = max(np.finfo(float).eps ** 2 * float(y @ y), np.finfo(float).tiny)  # keeps the AIC of an exact fit finite
    return Fit(
        model=model,
        exponents=exponents,
        coefficients=tuple(map(float, coefficients)),
        r2=1.0 - rss / tss if tss > 0 else math.nan,
        aic=len(y) * math.log(max(rss, floor) / len(y)) + 2 * (parameters + 1),
        count=len(y),
        residuals=residuals,
    )


def bootstrap(
    gaps: ArrayLike, curve: Fit, *, at: ArrayLike | None = None, samples: int = 2000
) -> tuple[list[Interval], tuple[Array, Array]]:
    """95% intervals of an unconstrained fit's coefficients, and the edges of a band around its curve ``at`` these gaps.

    Residuals of neighbouring steps are correlated, and are larger where Δ is large. This wild block bootstrap therefore
    keeps the gaps, in the order of steps, and multiplies the residuals of each block of √n consecutive points by one
    random sign. A plain bootstrap would treat the points as independent and give intervals that are too narrow.
    """
    x = np.asarray(gaps, dtype=np.float64)
    # Long enough to hold the correlation of neighbours, short enough to leave about √n signs to draw
    size = max(1, round(math.sqrt(len(x))))
    # One sign for each block of neighbouring points: (samples, blocks).
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(samples, -(-len(x) // size)))
    # Least squares is linear: a sample's coefficients are the fit's plus those of the residuals with random signs.
    X = _design(x, curve.exponents)
    scale = _scale(X)
    by_point = np.linalg.pinv(X / scale).T / scale * curve.residuals[:, None]
    # by_point (n, coefficients): what each residual adds to the coefficients; the points of a block share a sign.
    by_block = np.add.reduceat(by_point, np.arange(0, len(x), size))
    coefficients = np.array(curve.coefficients) + signs @ by_block
    # Percentile intervals of the coefficients, and of the curves that they draw.
    intervals = [Interval(*map(float, pair)) for pair in np.percentile(coefficients, _TAILS, axis=0).T]
    # (samples, coefficients) @ (coefficients, gaps): one curve for each sample
    curves = coefficients @ _design(x if at is None else np.asarray(at, dtype=np.float64), curve.exponents).T
    # Edges of the band, each (gaps,)
    low, high = np.percentile(curves, _TAILS, axis=0)
    return intervals, (low, high)


def _design(x: Array, exponents: Sequence[float]) -> Array:
    # x (n,) → (n, exponents): one column for each power
    return np.stack([x**e for e in exponents], axis=-1)


def _scale(X: Array) -> Array:
    """The columns' norms. Columns divided by them have equal size, so that Δ and Δ² do not spoil the conditioning."""
    scale = np.linalg.norm(X, axis=0)
    # A column of zeros, as of gaps that are all 0, stays as it is.
    scale[scale == 0] = 1.0
    return scale


def _solve(X: Array, y: Array, nonnegative: bool) -> Array:
    scale = _scale(X)

    def least_squares(columns: tuple[int, ...]) -> Array:
        coefficients = np.zeros(X.shape[1])
        if columns:
            picked = list(columns)
            coefficients[picked] = np.linalg.lstsq(X[:, picked] / scale[picked], y, rcond=None)[0] / scale[picked]
        return coefficients

    everything = tuple(range(X.shape[1]))
    unconstrained = least_squares(everything)
    if not nonnegative or np.all(unconstrained >= 0):
        return unconstrained
    # The constrained optimum is the unconstrained optimum over its own support. Three columns have eight subsets.
    subsets = itertools.chain.from_iterable(itertools.combinations(everything, k) for k in range(len(everything) + 1))
    # The empty subset, all zeros, is always feasible.
    feasible = [c for c in map(least_squares, subsets) if np.all(c >= 0)]
    return min(feasible, key=lambda c: float(np.sum((y - X @ c) ** 2)))


def _best_rho(x: Array, y: Array) -> float:
    """Find the exponent of least RSS: a grid, since there may be many minima, then golden section around the best."""

    def rss(log_rho: float) -> float:
        # For a given ρ the model is linear in its coefficients.
        X = _design(x, (0.0, math.exp(log_rho)))
        return float(np.sum((y - X @ _solve(X, y, True)) ** 2))

    # The best of 60 exponents, equally spaced in log ρ, brackets the minimum between its two neighbours.
    grid = np.linspace(math.log(_RHO[0]), math.log(_RHO[1]), 60)
    best = int(np.argmin([rss(g) for g in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    # Golden section: 40 steps narrow the bracket below single precision.
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(40):
        # Two points within the bracket; what lies beyond the worse one goes.
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if rss(a) < rss(b) else (a, high)
    return math.exp((low + high) / 2)
