"""`autowarm calibrate`: shows the numbers, then two plots over the loss, which falls to the right as in a run.

The first plot shows η(Δ), the customary schedule to which it is fitted and the weight of the fit; the second shows the
objective that the switch minimises.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from rich.table import Table
from torch import nn

from autowarm.geometry import total_kappa
from autowarm.plotting import BLUE, GREEN, GREY, ORANGE, styled
from autowarm.schedule import Profile, objective

from .config import CalibrateConfig, UsageError
from .config.plans import read_shapes
from .errors import as_usage_error
from .registry import OPTIMIZERS
from .training.schedules import share_at_gap

# The guess of f*/f(x0) if f* is not given. For the paper's set-up it gives 3.3, the authors' value.
_GUESSED_SHARE = 0.3
_CURVE = 400  # points of a plotted curve
_ALSO = 2.0  # report another local minimum if it is at most this many times as high as the lowest


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration."""

    config: CalibrateConfig
    kappa: float  # κ of all matrices
    matrices: tuple[int, int] | None  # the number of tensors that κ counts, and of their entries; None if κ was given
    first_loss: float  # f(x0)
    target_loss: float  # f*
    profile: Profile  # η(Δ)
    candidates: np.ndarray  # the values of Δ' that were tried, in units of the loss
    values: np.ndarray  # the objective divided by lr² at each candidate
    minima: tuple[float, ...]  # Δ' of each local minimum of the objective, lowest minimum first

    @property
    def switch_loss(self) -> float:
        """The loss f* + Δ' below which warm-up ends."""
        return self.target_loss + self.profile.peak_gap

    @property
    def width(self) -> float:
        """σ_F/√κ, the standard deviation of the weight, in units of the loss."""
        return math.sqrt(self.config.sigma_f2 / self.kappa)

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        of_profile = {name: getattr(self.profile, name) for name in ("gap0", "peak_gap", "K0", "K1", "K_rho")}
        ours = ("kappa", "first_loss", "target_loss", "switch_loss", "minima")
        return {"config": asdict(self.config), **{name: getattr(self, name) for name in ours}, **of_profile}


def calibration(config: CalibrateConfig) -> Calibration:
    """Calibrate as `AdaptiveWarmup` would at its first loss."""
    matrices = None
    if (kappa := config.kappa) is None:
        bare = [nn.Parameter(torch.empty(shape, device="meta")) for shape in read_shapes(config.shapes)]  # no memory
        kappa = total_kappa(bare, config.geometry or OPTIMIZERS[config.optimizer].norm)
        matrices = len(bare), sum(p.numel() for p in bare)
    first = float(config.first_loss or 0.0)
    fstar = _GUESSED_SHARE * first if config.target_loss is None else config.target_loss
    gap0 = first - fstar
    if not gap0 > 0:
        raise UsageError(f"first_loss must be above target_loss, which losses approach; got {first:g} and {fstar:g}")
    candidates = gap0 * np.arange(1, 1001) / 1001  # the same as in `autowarm.schedule.calibrate`
    with as_usage_error():
        values = objective(
            candidates, gap0, div=config.div, kappa=kappa, sigma_f2=config.sigma_f2, target=config.target
        )
        peak_gap = float(candidates[values.argmin()]) if config.peak_gap is None else config.peak_gap
        profile = Profile(config.lr, config.div, gap0, peak_gap)
    inner = values[1:-1]
    valleys = 1 + np.flatnonzero((inner < values[:-2]) & (inner <= values[2:]))
    minima = tuple(float(candidates[i]) for i in sorted(valleys, key=lambda i: values[i]))
    return Calibration(config, kappa, matrices, first, fstar, profile, candidates, values, minima)


def table(found: Calibration) -> Table:
    """Return a table of the numbers with their symbols."""
    config, p = found.config, found.profile
    rows = Table(box=None, show_header=False, pad_edge=False)
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(style="dim")

    geometry = config.geometry or f"{config.optimizer} ({OPTIMIZERS[config.optimizer].norm})"
    count = "given" if found.matrices is None else f"{found.matrices[0]} matrices, {found.matrices[1]:,} weights"
    rows.add_row("κ", f"{found.kappa:,.6g}" if found.kappa < 1e6 else f"{found.kappa:,.0f}", f"{geometry}: {count}")
    rows.add_row("f(x0)", f"{found.first_loss:.4g}", "given")
    guess = f"a guess: {_GUESSED_SHARE}·f(x0); --target_loss sets it"
    rows.add_row("f*", f"{found.target_loss:.4g}", guess if config.target_loss is None else "given")
    rows.add_row("Δ0", f"{p.gap0:.4g}", "f(x0) − f*, the first gap")
    rows.add_row("σ", f"{found.width:.3g}", f"σ_F/√κ, the width of the weight; σ_F² = {config.sigma_f2:g}")
    how = "given" if config.peak_gap is not None else "minimises the objective"
    rows.add_row("Δ'", f"{p.peak_gap:.4g}", f"{p.peak_gap / p.gap0:.1%} of Δ0; {how}")
    rows.add_row("K0", f"{p.K0:.4g}", "K0 = K2·Δ'²")
    rows.add_row("K1", f"{p.K1:.4g}", "" if p.K1 >= 0 else "negative, outside the theorems; η(Δ) > 0 all the same")
    rows.add_row("K2", f"{p.K_rho:.4g}")
    rows.add_row("rate", f"{config.lr / config.div:.3g} → {config.lr:.3g}", "at the first update, and at the peak")
    rows.add_row("switch", f"loss {found.switch_loss:.4g}", "f* + Δ': warm-up ends when the loss is below")
    for gap in found.minima:
        times = float(found.values[abs(found.candidates - gap).argmin()] / found.values.min())
        if abs(gap - p.peak_gap) > p.gap0 / 500 and times <= _ALSO:
            note = f"a second minimum, Δ' = {gap:.4g}, {times:.3g} times as high: a small change may flip the choice"
            rows.add_row("also", f"loss {found.target_loss + gap:.4g}", note)
    return rows


@styled
def figure(found: Calibration) -> Figure:
    """Draw both plots as a figure."""
    losses, curves = _curves(found)
    drawn = Figure(figsize=(6.4, 5.6), layout="constrained")
    top, bottom = drawn.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    top.fill_between(losses, curves["weight"], color=GREY, alpha=0.25, lw=0, label="weight of the fit")
    top.plot(losses, curves["target"], color=ORANGE, linestyle="--", label=f"{found.config.target} schedule")
    top.plot(losses, curves["η(Δ)"], color=BLUE, label="η(Δ)")
    top.set(ylabel="rate / lr", ylim=(0, 1.05), xlim=(found.first_loss, found.target_loss))
    bottom.plot(found.target_loss + found.candidates, found.values, color=GREEN)
    bottom.set(yscale="log", xlabel="loss, falling →", ylabel="objective / lr²")
    bottom.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    bottom.yaxis.set_major_formatter("{x:g}")
    bottom.yaxis.set_minor_formatter("")
    for axes in (top, bottom):
        axes.axvline(found.switch_loss, color=GREY, linestyle=":", linewidth=1)
    title = f"κ = {found.kappa:,.0f}: warm-up ends at loss {found.switch_loss:.3g}, Δ' = {found.profile.peak_gap:.3g}"
    top.set_title(title)
    top.legend(loc="upper left")
    return drawn


def _curves(found: Calibration) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return losses from f* to f(x0), and at each of them rate, target and weight as shares of their peaks."""
    p = found.profile
    # All curves meet at the peak. Put many points around it, because the weight may be a spike.
    near = p.peak_gap + found.width * np.linspace(-4, 4, 81)
    gaps = np.unique(np.concatenate([np.linspace(0, p.gap0, _CURVE)[1:], near[(near > 0) & (near < p.gap0)]]))
    warmup, decay = found.config.target.split("-", 1)
    target = np.array([share_at_gap(gap, p.gap0, p.peak_gap, p.div, warmup, decay) for gap in gaps.tolist()])
    weight = np.exp(-0.5 * ((gaps - p.peak_gap) / found.width) ** 2)
    return found.target_loss + gaps, {"η(Δ)": p(gaps) / p.lr, "target": target, "weight": weight}
