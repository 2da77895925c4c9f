"""Figures by name, for `autowarm figure NAME`. Each decorated function draws one figure.

A figure that needs measurements reads them from `Sources.data`, and makes them there if they are missing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from autowarm import theory
from autowarm._torch.plotting import BLUE, GREEN, GREY, ORANGE, styled
from autowarm.schedule import Profile, calibrate, core
from autowarm.schedule.planning import plan_of

from ..analysis import figures
from ..analysis.figures import axes_of
from ..analysis.results import Results, read_results
from ..config import LabError
from ..files import write_atomically
from .smoothness import TRIMMED, Measured, measured, studies
from .study import plot_study

_ALGORITHM_1: dict[str, Any] = {"div": 100.0, "max_warmup": None, "smoothing": 0.0, "trained": False}


@dataclass(frozen=True)
class Sources:
    data: Path  # folder of the sweeps' results
    scale: str = "tiny"  # of the sweeps: "tiny", "horizon" or "paper"

    def results(self, sweep: str) -> Results:
        return read_results(self.data / sweep)

    def measured(self, cell: str) -> Measured:
        """Read the curvature along the run of a cell."""
        curves = measured(self.results("smoothness"))
        if cell not in curves:
            raise LabError(f"no curvature of {cell} at scale {self.scale}, which has {', '.join(curves)}")
        return curves[cell]


@dataclass(frozen=True)
class Picture:
    """A figure or a table of the gallery."""

    make: Callable[[Sources], Figure | str]  # draws the figure, or returns the table as CSV
    about: str  # what it shows
    paper: str = ""  # its place in the paper
    sweeps: tuple[str, ...] = ()  # preset names of the sweeps that it needs
    cells: tuple[str, ...] = ()  # those of the sweeps that it needs; all if there are none
    hours: float = 0.0  # of one core, for what it computes beside its sweeps


GALLERY: dict[str, Picture] = {}


def picture(name: str, about: str, **needs: Any) -> Callable[[Callable[[Sources], Any]], Callable[[Sources], Any]]:
    """Register a function in the gallery. `needs` are the other attributes of `Picture`."""

    def enter(make: Callable[[Sources], Any]) -> Callable[[Sources], Any]:
        GALLERY[name] = Picture(styled(make), about, **needs)
        return make

    return enter


@picture("eta-behaviour", "Theorem 1's rate along Δ = 1/t (D = 1, ρ = 2, K0 = 1e-4, K1 = 0, Kρ = 1e3)",
         paper="Figure eta_behavior")  # fmt: skip
def eta_behaviour(sources: Sources) -> Figure:
    """Plot the rate of Theorem 1 over t, with its peak at Δ' = √(K0/Kρ)."""
    K = theory.Smoothness(rho=2.0, K0=1e-4, K1=0.0, K_rho=1e3)
    t = np.arange(1, 20_001)
    peak = K.peak_gap
    figure, (axes,) = axes_of()
    axes.plot(t, theory.theorem_1_rate(1.0 / t, K, D=1.0), color=BLUE)
    axes.axvline(1 / peak, color=GREY, linestyle="--", linewidth=1)
    axes.annotate(f"Δ' = √(K0/Kρ) = {peak:.2e}\nt = {1 / peak:.0f}", (1 / peak, 0.25), xytext=(8, 0),
                  textcoords="offset points", color=GREY, fontsize="small")  # fmt: skip
    axes.set(xlabel="update t", ylabel="rate η = Δ / (D·K(Δ))", xlim=(0, t[-1]), ylim=(0, None))
    axes.set_title("The rate of Theorem 1 where the gap is Δ = 1/t")
    return figure


@picture("theorem-bounds", "gap and rate of Theorems 1 and 2, of decay only and of a constant rate, with their bounds",
         paper="Theorems 1 and 2", hours=0.03)  # fmt: skip
def theorem_bounds(sources: Sources) -> Figure:
    """Plot runs on the barrier problem, with curvature that grows as Δ², in three norms, and check every claim."""
    steps, gap0 = 3_000, 50.0
    t = np.arange(1, steps + 1)
    norms = {"l2": "ℓ2 (normSGD)", "linf": "ℓ∞ (signSGD)", "spectral": "spectral (Muon)"}
    figure, panels = axes_of(columns=3, rows=2, width=3.2, height=2.9)
    for column, (norm, title) in enumerate(norms.items()):
        f = theory.catalogue()[f"{norm}-barrier"]
        x0 = f.point(gap0, torch.Generator().manual_seed(0))
        D, start = f.radius(x0), f.gap(x0)
        wd = theory.weight_decay_limit(float(f.geometry.norm(x0)), float(f.geometry.norm(f.x_star)))
        adaptive = theory.descend(f, x0, partial(theory.theorem_1_rate, K=f.K, D=D), steps)
        decay = theory.descend(f, x0, partial(theory.decay_only_rate, K=f.K, D=D, gap0=start), steps)
        rate = partial(theory.theorem_2_rate, K=f.K, weight_decay=wd)
        decayed = theory.descend(f, x0, rate, steps, weight_decay=wd)
        constant = theory.descend(f, x0, lambda gap, rate=float(adaptive.rates[0]): rate, steps)
        theory.check_theorem_1(adaptive)
        theory.check_decay_only(decay)
        theory.check_theorem_2(decayed)
        top, bottom = panels[column], panels[3 + column]
        for run, colour, label, bound in (
            (adaptive, BLUE, "Theorem 1", theory.theorem_1_bound(adaptive.curvatures[:-1], D)),
            (decayed, GREEN, "Theorem 2", theory.theorem_2_bound(decayed.curvatures[:-1], wd)),
            (decay, ORANGE, "decay only", theory.theorem_1_bound(np.full(steps, f.K(start)), D)),
            (constant, GREY, "constant", None),
        ):
            gaps = run.gaps[1:]
            below = np.flatnonzero(gaps < 1e-6)  # smaller gaps are rounding errors
            above = slice(int(below[0]) if below.size else None)
            top.plot(t[above], gaps[above], color=colour, label=label)
            bottom.plot(t, run.rates, color=colour, label=label)
            if bound is not None:
                top.plot(t, bound, color=colour, linestyle="--", linewidth=1)
        top.set(xscale="log", yscale="log", title=title)
        bottom.set(xscale="log", yscale="log", xlabel="update")
    panels[0].set_ylabel("gap Δ (bounds dashed)")
    panels[3].set_ylabel("rate η")
    panels[0].legend(loc="lower left")
    return figure


@picture("theorem-3-bounds", "mean gaps of Theorem 3 along five stochastic paths, with its bounds", paper="Theorem 3",
         hours=0.01)  # fmt: skip
def theorem_3_bounds(sources: Sources) -> Figure:
    """Plot the mean gap until then of normSGD on a regression with a barrier, path by path, and check every claim."""
    steps, generator = 3_000, torch.Generator().manual_seed(0)
    rows = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    family = theory.regression_family(rows, torch.ones(4, dtype=torch.float64), theory.barrier(), scale=10.0)
    x0 = family.point(0.95 * (2 / max(f.L for f in family.components)) ** 0.5, generator)  # inside of every barrier
    D, t = family.radius(x0), np.arange(1, steps + 1)
    rate = partial(theory.theorem_1_rate, K=family.K, D=D)
    runs = [theory.descend(family, x0, rate, steps, generator=generator) for _ in range(5)]
    theory.check_theorem_3(*runs)
    figure, (axes,) = axes_of()
    axes.plot(t, theory.theorem_3_uniform_bound(family.K, D, family.largest_gap(D), steps), color=GREY, linestyle="--",
              label="bound by the largest gap")  # fmt: skip
    axes.plot(t, theory.theorem_3_bound(np.stack([run.curvatures[:-1] for run in runs]), D), color=ORANGE,
              linestyle="--", label="bound by the curvatures")  # fmt: skip
    axes.plot(t, np.cumsum([run.gaps[:-1] for run in runs], axis=1).T / t[:, None], color=BLUE, linewidth=1)
    axes.lines[-1].set_label("five paths")
    axes.set(xscale="log", yscale="log", xlabel="update", ylabel="mean gap until then", title="Theorem 3")
    axes.legend()
    return figure


@picture("schedule-lion", "profile and schedule of Algorithm 1 for Lion on the paper's numbers, along a made-up loss",
         paper="Figure scheduler-lion")  # fmt: skip
def schedule_lion(sources: Sources) -> Figure:
    """Plot the schedule on LLaMA-124M's numbers, f(x0) = 10.98, f* = 3.4, lr 1e-3.

    It compares the calibrated Δ' with 0.37, the value from the authors' quadrature.
    """
    first, target, steps, lr, div, kappa = 10.98, 3.4, 64_000, 1e-3, 100.0, 123_568_128.0
    ours = calibrate(first - target, lr=lr, div=div, kappa=kappa)
    # A power law that falls to 3.77 at step 12 000, where the authors' run switches to decay.
    t = np.arange(steps)
    losses = 3.3 + (first - 3.3) * (1 + t / 297) ** -0.75
    figure, (left, right) = axes_of(columns=2, width=4.2, height=3.4)
    for profile, colour, style, whose in [(ours, BLUE, "-", "calibrated"), (Profile(lr, div, ours.gap0, 0.37), ORANGE,
                                           "--", "the authors'")]:  # fmt: skip
        label = f"{whose}, Δ' = {profile.peak_gap:.2f}"
        gaps = np.linspace(ours.gap0, 0, 1000, endpoint=False)
        left.plot(gaps, profile(gaps), color=colour, linestyle=style, label=label)
        plan = plan_of(steps, target_loss=target, peak_gap=profile.peak_gap, **_ALGORITHM_1)
        state, rates = core.begin(plan), []
        for step, loss in enumerate(losses.tolist()):
            state = core.advance(plan, state, step, loss)
            rates.append(lr * state.share)
        right.plot(t, rates, color=colour, linestyle=style, label=f"switch at {state.warmup_steps:,}")
    left.set(xlabel="gap Δ, falling →", ylabel="rate", title="Profile η(Δ)", xlim=(ours.gap0, 0), ylim=(0, None))
    right.set(xlabel="update", ylabel="rate", title="Schedule along a power law", ylim=(0, None))
    for axes in (left, right):
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
        axes.legend(loc="upper left" if axes is left else "upper right")
    return figure


def curvature(run: Measured) -> Figure:
    """Plot K over the gap along a run, trimmed, and in its warm-up."""
    shown = [(label, fits) for label, fits in studies(run).items() if label.startswith((TRIMMED, "warm-up"))]
    figure, panels = axes_of(columns=len(shown), width=4.6, height=3.6)
    for axes, (label, fits) in zip(panels, shown, strict=True):
        plot_study(fits, ax=axes)
        axes.set_title(f"{run.name}, {label}", fontsize="small")
    return figure


for _name, _paper in (("lion", "Figure smoothness-lion"), ("signsgd", "the same, by its table"),
                      ("muon", "Figure lips-muon-norm (a)"), ("normsgd", "Figure lips-muon-norm (b)")):  # fmt: skip
    picture(f"smoothness-{_name}", f"K over the gap along a run of {_name}, with the fits", paper=_paper,
            sweeps=("smoothness",), cells=(_name,))(
        partial(lambda cell, sources: curvature(sources.measured(cell)), _name))  # fmt: skip


@picture("edge-of-stability", "the Hessian's largest eigenvalue beside K along one run of Muon",
         paper="Appendix, edge of stability", sweeps=("smoothness",), cells=("muon",))  # fmt: skip
def edge_of_stability(sources: Sources) -> Figure:
    """Plot three curvatures over steps: in the worst direction, in the step's direction, and K in Muon's norms."""
    run = sources.measured("muon")
    figure, (left, right) = axes_of(columns=2, width=4.2, height=3.4)
    left.plot(*zip(*run.sharpness, strict=True), color=ORANGE, marker="o", markersize=3, label="λ_max of the Hessian")
    left.plot(*zip(*run.along, strict=True), ".", color=BLUE, markersize=2, label="⟨δ, Hδ⟩/‖δ‖² along the step δ")
    left.set(yscale="log", xlabel="update", ylabel="curvature in ℓ2", title="Of the Hessian")
    right.plot([p.step for p in run.points], [p.smoothness for p in run.points], ".", color=GREEN, markersize=2)
    right.set(yscale="log", xlabel="update", ylabel="K = ‖Δ∇f‖⋆ / ‖Δx‖", title="In the norms of Muon")
    left.legend()
    return figure


def save(name: str, drawn: Figure | str, folder: Path) -> list[Path]:
    """Write a figure as PNG and SVG, a table as CSV, and return the paths."""
    if not isinstance(drawn, str):
        return figures.save(drawn, folder / name)
    write_atomically(folder / f"{name}.csv", drawn)
    return [folder / f"{name}.csv"]
