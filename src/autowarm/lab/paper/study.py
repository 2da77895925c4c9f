"""Fits to measured points, a verdict in words, and a plot of K over the gap: Figures 1 and 7 of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from autowarm._torch.plotting import INK, ORANGE, axes_or_new
from autowarm.smoothness.fits import Array, Fit, Interval, bootstrap, fit
from autowarm.smoothness.measure import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE = 30  # a range of K that a linear axis cannot show


@dataclass(frozen=True)
class Study:
    """All fits to a selection of points."""

    target_loss: float  # f*; the gap is Δ = f(x^t) − f*
    steps: Array = field(repr=False)  # of the points used, in order
    gaps: Array = field(repr=False)
    smoothness: Array = field(repr=False)
    dropped: int  # points not used: outside the window or the percentiles, or not finite
    quadratic: Fit  # K0 + K1Δ + K2Δ²
    nonnegative: Fit  # the same with K0, K1, K2 ≥ 0, as the theorems require
    linear: Fit  # this and the constant are what the quadratic must beat
    constant: Fit
    power: Fit | None  # K0 + KρΔ^ρ with ρ free; None if a gap is not positive
    intervals: list[Interval]  # 95 % intervals of K0, K1, K2 of the quadratic, by a wild block bootstrap

    @property
    def aic_gain(self) -> float:
        """AIC of the line minus AIC of the quadratic: positive if the third coefficient is worthwhile."""
        return self.linear.aic - self.quadratic.aic

    @property
    def verdict(self) -> str:
        if np.ptp(self.smoothness) == 0:
            return "K is the same at every point: there is nothing for the gap to explain."
        quadratic, linear, bend = self.quadratic, self.linear, self.intervals[2]
        interval = f"95 % interval [{bend.low:.3g}, {bend.high:.3g}]"
        gain = f"R² {linear.r2:.3f} → {quadratic.r2:.3f}, AIC {-self.aic_gain:+.0f}"
        sentences = []
        if quadratic.r2 < 0.1:
            sentences.append(f"The gap explains little of K here (R² {quadratic.r2:.3f} at best).")
        if bend.low > 0 and self.aic_gain > 0:
            small = ", though by little" if quadratic.r2 - linear.r2 < 0.02 else ""
            sentences.append(f"The data favour a quadratic over a line{small}: K2 > 0, {interval}; {gain}.")
        elif bend.high < 0 and self.aic_gain > 0:
            sentences.append(
                f"The curve bends the other way: K2 < 0, {interval}; {gain}. This speaks against Kρ > 0 at ρ = 2."
            )
        else:
            sentences.append(f"A quadratic term is not established: K2 has the {interval}; {gain}.")
        low, high = np.percentile(self.gaps, [5, 95])
        _, K1, K2 = quadratic.coefficients
        slopes = [K1 + 2 * K2 * low, K1 + 2 * K2 * high]
        if max(slopes) <= 0:
            sentences.append("K rises as the gap falls, the opposite of the assumption.")
        elif min(slopes) < 0:
            side = "above" if slopes[0] < 0 else "below"
            sentences.append(f"K falls with the gap only {side} Δ ≈ {-K1 / (2 * K2):.3g}.")
        else:
            sentences.append("K falls as the gap falls, as assumed.")
        return " ".join(sentences)

    def __str__(self) -> str:
        fits = [self.quadratic, self.nonnegative, self.linear, self.constant, *([self.power] if self.power else [])]
        names = ["quadratic", "quadratic, ≥ 0", "linear", "constant", "power, ≥ 0"]
        lines = [f"{len(self.gaps)} points, {self.dropped} left out, Δ from {self.gaps.min():.3g} to "
                 f"{self.gaps.max():.3g} (f* = {self.target_loss:.4g})"]  # fmt: skip
        for name, one in zip(names, fits, strict=False):
            terms = "  ".join(f"{c:+.3g}·Δ^{e:.3g}" for c, e in zip(one.coefficients, one.exponents, strict=True))
            quality = f"R² {one.r2:6.3f}  AIC {one.aic - self.quadratic.aic:+8.1f}  {one.above:4.0%} above"
            lines.append(f"  {name:<15} {quality}   {terms}")
        return "\n".join([*lines, self.verdict])


def study(
    points: Sequence[Point],
    target_loss: float,
    *,
    trim: tuple[float, float] | None = (1.0, 99.0),
    window: tuple[int, int] | None = None,
) -> Study:
    """Fit every model to the points of a run.

    The result depends strongly on which points are used: report them with every number. The paper drops the first and
    the last percentile and chooses a window for each optimizer.

    Args:
        points: from a `Probe`, in the order of steps.
        target_loss: f*. The unconstrained fits do not depend on it.
        trim: drop points outside these percentiles of K, within the window; None keeps all.
        window: steps [first, last) to keep.

    Raises:
        ValueError: fewer than 4 points are left.
    """
    steps = np.array([p.step for p in points], dtype=np.float64)
    gaps = np.array([p.loss for p in points], dtype=np.float64) - target_loss
    values = np.array([p.smoothness for p in points], dtype=np.float64)
    keep = np.isfinite(gaps) & np.isfinite(values)
    if window is not None:
        keep &= (steps >= window[0]) & (steps < window[1])
    if trim is not None and keep.any():
        low, high = np.percentile(values[keep], trim)
        keep &= (values >= low) & (values <= high)
    if keep.sum() < 4:
        raise ValueError(f"{keep.sum()} of {len(points)} points are left, and a fit needs 4: widen the window")
    x, y = gaps[keep], values[keep]
    quadratic = fit(x, y)
    power = fit(x, y, "power") if np.all(x > 0) else None
    return Study(
        target_loss, steps[keep], x, y, int(len(points) - keep.sum()), quadratic, fit(x, y, nonnegative=True),
        fit(x, y, "linear"), fit(x, y, "constant"), power, bootstrap(x, quadratic, at=())[0],
    )  # fmt: skip


def plot_study(study: Study, *, ax: "Axes | None" = None) -> "Axes":
    """Plot the points (Δ, K) coloured by step, the quadratic fit with its 95 % band, and the linear fit.

    If the largest K is more than 30 times the smallest, its axis is logarithmic. The legend says which fit leaves it.
    Without `ax` it makes new axes.
    """
    ax = axes_or_new(ax, 5.6, 3.8)
    dots = ax.scatter(study.gaps, study.smoothness, c=study.steps, s=9, alpha=0.7, linewidths=0, cmap="viridis")
    grid = np.linspace(study.gaps.min(), study.gaps.max(), 200)
    ax.fill_between(grid, *bootstrap(study.gaps, study.quadratic, at=grid)[1], color=ORANGE, alpha=0.2, linewidth=0)
    # A fit may be far from the data where there are few points, so the points set the scale.
    top, bottom = study.smoothness.max(), study.smoothness.min()
    if 0 < bottom < top / _WIDE:
        ax.set(yscale="log", ylim=(bottom / 1.3, top * 1.3))
    else:
        ax.set_ylim(max(0.0, bottom - 0.15 * (top - bottom)), top + 0.08 * (top - bottom))
        ax.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    for name, color, width, style in (("quadratic", ORANGE, 2.0, "-"), ("linear", INK, 1.3, "--")):
        one = getattr(study, name)
        left = ", leaves the axis" if one(grid).min() < ax.get_ylim()[0] else ""
        ax.plot(grid, one(grid), color=color, linewidth=width, linestyle=style, label=f"{name}, R² {one.r2:.3f}{left}")
    ax.set(xlabel=f"gap Δ = f(x) − {study.target_loss:.3g}", ylabel="curvature K = ‖Δ∇f‖⋆ / ‖Δx‖")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small")
    bar = ax.figure.colorbar(dots, ax=ax, label="update")
    if bar.solids is not None:
        bar.solids.set_alpha(1.0)
    return ax
