"""K over the gap, coloured by step, with the fits: Figures 1 and 6 of the paper."""

from typing import TYPE_CHECKING

import numpy as np

from ..plotting import INK, ORANGE, PINK, axes_or_new
from .fits import bootstrap
from .study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE = 30  # a range of K that a linear axis cannot show


def plot_study(found: Study, *, ax: "Axes | None" = None, early: Study | None = None) -> "Axes":
    """Plot the points (Δ, K) coloured by step, the quadratic fit with its 95 % band, and the linear fit.

    If the largest K is more than 30 times the smallest, its axis is logarithmic.

    Args:
        found: the study to plot.
        ax: matplotlib axes to draw on; None makes new ones.
        early: a study of the early part only, whose line is drawn over its own range.

    Raises:
        ImportError: matplotlib is not installed.
    """
    ax = axes_or_new(ax, 5.6, 3.8)
    dots = ax.scatter(found.gaps, found.smoothness, c=found.steps, s=9, alpha=0.7, linewidths=0, cmap="viridis")
    grid = np.linspace(found.gaps.min(), found.gaps.max(), 200)
    low, high = bootstrap(found.gaps, found.quadratic, at=grid)[1]
    ax.fill_between(grid, low, high, color=ORANGE, alpha=0.2, linewidth=0)
    label = f"quadratic, R² {found.quadratic.r2:.3f}"
    ax.plot(grid, found.quadratic(grid), color=ORANGE, linewidth=2, label=label)
    label = f"linear, R² {found.linear.r2:.3f}"
    ax.plot(grid, found.linear(grid), color=INK, linewidth=1.3, linestyle="--", label=label)
    if early is not None:
        grid = np.linspace(early.gaps.min(), early.gaps.max(), 2)
        label = f"linear, early part, R² {early.linear.r2:.3f}"
        ax.plot(grid, early.linear(grid), color=PINK, linewidth=2, linestyle=":", label=label)
    # A fit may be far from the data where there are few points, so the points set the scale.
    top, bottom = found.smoothness.max(), found.smoothness.min()
    if 0 < bottom < top / _WIDE:
        ax.set_yscale("log")
        ax.set_ylim(bottom / 1.3, top * 1.3)
    else:
        ax.set_ylim(max(0.0, bottom - 0.15 * (top - bottom)), top + 0.08 * (top - bottom))
        ax.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    ax.set(xlabel=f"gap Δ = f(x) − {found.target_loss:.3g}", ylabel="curvature K = ‖Δ∇f‖⋆ / ‖Δx‖")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small")
    figure = ax.figure
    bar = figure.colorbar(dots, ax=ax, label="update")
    if bar.solids is not None:
        bar.solids.set_alpha(1.0)
    return ax
