"""`autowarm calibrate`: the schedule before any training, from shapes and a guess at two losses.

Numbers first, then two pictures that share the axis of losses, which falls to the right as a run goes: η(Δ) with the
customary schedule it is fitted to and the weight of the fit, and the objective that the switch minimises.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import LabError, OptimizerConfig
from . import CalibrateConfig

if TYPE_CHECKING:  # parsing imports none of these, so that help is quick
    import numpy as np
    from matplotlib.figure import Figure
    from rich.console import Console, RenderableType
    from torch import Tensor, nn

    from autowarm.schedule import Profile

# AdamW is outside the theory; its nearest geometry is known by name alone, for it has no oracle.
_GEOMETRY = {"muon": "spectral", "lion": "sign", "signsgd": "sign", "normsgd": "frobenius", "adamw": "sign"}
# Where no f* is given. On the paper's set-up it comes to 3.3, what its authors took.
GUESSED_SHARE = 0.3
_CURVE = 400  # points of a drawn curve
_ALSO = 2.0  # another minimum is told of when the objective there is at most so many times the least


@dataclass(frozen=True)
class Calibration:
    """What came out.

    Attributes:
        config: what went in.
        kappa: κ of all matrices.
        matrices: how many tensors κ counts, and their entries; None where κ was given.
        first_loss, target_loss: f(x0) and f*.
        guessed: which of the two were not given.
        profile: η(Δ).
        candidates, values: the Δ' tried, in units of the loss, and the objective over lr² at each.
        minima: Δ' of each local minimum of the objective, the lowest first.
    """

    config: CalibrateConfig
    kappa: float
    matrices: tuple[int, int] | None
    first_loss: float
    target_loss: float
    guessed: tuple[str, ...]
    profile: "Profile"
    candidates: "np.ndarray"
    values: "np.ndarray"
    minima: tuple[float, ...]

    @property
    def switch_loss(self) -> float:
        """The loss f* + Δ' below which warm-up ends."""
        return self.target_loss + self.profile.peak_gap

    @property
    def width(self) -> float:
        """σ_F/√κ, the standard deviation of the weight, in units of the loss."""
        return math.sqrt(self.config.sigma_f2 / self.kappa)

    def to_json(self) -> dict[str, Any]:
        """The numbers, as plain values."""
        p = self.profile
        return {
            "config": asdict(self.config),
            "kappa": self.kappa,
            "first_loss": self.first_loss,
            "target_loss": self.target_loss,
            "guessed": list(self.guessed),
            "gap0": p.gap0,
            "peak_gap": p.peak_gap,
            "K0": p.K0,
            "K1": p.K1,
            "K2": p.K2,
            "switch_loss": self.switch_loss,
            "minima": list(self.minima),
        }


def calibration(config: CalibrateConfig) -> Calibration:
    """Calibrate as `AdaptiveWarmup` would at its first loss.

    Raises:
        LabError: the model is not to be had here, a shape cannot be read, or a number is out of range.
    """
    import numpy as np

    from autowarm.schedule import Profile, calibrate, objective

    kappa, matrices, outputs = _measure(config)
    first = config.first_loss
    if first is None:
        if outputs is None:
            raise LabError("the first loss cannot be guessed without a model's output layer: give --first_loss")
        first = math.log(outputs)
    fstar = GUESSED_SHARE * first if config.target_loss is None else config.target_loss
    gap0 = first - fstar
    if not gap0 > 0:
        raise LabError(f"first_loss must be above target_loss, which training approaches; got {first:g} and {fstar:g}")
    knobs: dict[str, Any] = {
        "div": config.div, "kappa": kappa, "sigma_f2": config.sigma_f2, "target": config.target,
    }  # fmt: skip
    try:
        if config.peak_gap is None:
            profile = calibrate(gap0, lr=config.lr, **knobs)
        else:
            profile = Profile(config.lr, config.div, gap0, config.peak_gap)
        candidates = gap0 * np.arange(1, 1001) / 1001  # those of `calibrate`
        values = objective(candidates, gap0, **knobs)
    except ValueError as error:
        raise LabError(str(error)) from None
    inner = values[1:-1]
    valleys = 1 + np.flatnonzero((inner < values[:-2]) & (inner <= values[2:]))
    minima = tuple(float(candidates[i]) for i in sorted(valleys, key=lambda i: values[i]))
    guessed = tuple(name for name in ("first_loss", "target_loss") if getattr(config, name) is None)
    return Calibration(config, kappa, matrices, first, fstar, guessed, profile, candidates, values, minima)


def present(config: CalibrateConfig, console: "Console | None" = None) -> list[Path]:
    """Print the numbers, draw in the terminal, write pictures and calibration.json; returns what was written."""
    import json

    from rich.console import Console

    from ..analysis.figures import save
    from ..files import write_atomically

    console = console or Console(highlight=False)
    found = calibration(config)
    console.print(table(found))
    console.print(terminal(found, min(console.width, 100), colour=console.is_terminal), markup=False, soft_wrap=True)
    folder = Path(config.out)
    paths = save(figure(found), folder / "calibration")
    write_atomically(folder / "calibration.json", json.dumps(found.to_json(), indent=2) + "\n")
    return [*paths, folder / "calibration.json"]


# The model.


def _measure(config: CalibrateConfig) -> tuple[float, tuple[int, int] | None, int | None]:
    """κ, (matrices, their entries), and the number of outputs where there is a model. Nothing is allocated."""
    import torch
    from torch import nn

    from autowarm.geometry import total_kappa
    from autowarm.optim import geometry_of, kappa_of

    from .shapes import on_meta, outputs, read_shapes

    if config.kappa is not None:
        return config.kappa, None, None
    if config.shapes:
        params = [nn.Parameter(torch.empty(shape, device="meta")) for shape in read_shapes(config.shapes)]
        kappa = total_kappa(params, config.geometry or _GEOMETRY[config.optimizer])
        return kappa, _size(params), None
    model = on_meta(config.model)
    if config.geometry or config.optimizer == "adamw":
        params = [p for p in model.parameters() if p.requires_grad]
        kappa = total_kappa(params, config.geometry or _GEOMETRY[config.optimizer])
    else:
        from ..training.optimizers import make_optimizer

        try:
            with torch.device("meta"):
                optimizer = make_optimizer(model, OptimizerConfig(config.optimizer, config.lr, 0.0, config.options))
        except (TypeError, ValueError) as error:
            raise LabError(str(error)) from None
        params = [p for group in optimizer.param_groups for p in group["params"]]
        kappa = kappa_of(optimizer, geometry_of(optimizer))
    return kappa, _size(params), outputs(model)


def _size(params: "list[Tensor] | list[nn.Parameter]") -> tuple[int, int]:
    matrices = [p for p in params if p.ndim >= 2]
    return len(matrices), sum(p.numel() for p in matrices)


# What is shown.


def table(found: Calibration) -> "RenderableType":
    """The numbers, with their symbols."""
    from rich.table import Table

    config, p = found.config, found.profile
    rows = Table(box=None, show_header=False, pad_edge=False)
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(style="dim")

    def add(symbol: str, value: str, note: str = "") -> None:
        rows.add_row(symbol, value, note)

    geometry = config.geometry or f"{config.optimizer} ({_GEOMETRY[config.optimizer]})"
    count = "given" if found.matrices is None else f"{found.matrices[0]} matrices, {found.matrices[1]:,} weights"
    add("κ", f"{found.kappa:,.6g}" if found.kappa < 1e6 else f"{found.kappa:,.0f}", f"{geometry}: {count}")
    for symbol, name in (("f(x0)", "first_loss"), ("f*", "target_loss")):
        guess = {"first_loss": "a guess: even odds", "target_loss": f"a guess: {GUESSED_SHARE}·f(x0)"}[name]
        add(symbol, f"{getattr(found, name):.4g}", f"{guess}; --{name} sets it" if name in found.guessed else "given")
    add("Δ0", f"{p.gap0:.4g}", "f(x0) − f*, the first gap")
    add("σ", f"{found.width:.3g}", f"σ_F/√κ, the width of the weight; σ_F² = {config.sigma_f2:g}")
    how = "given" if config.peak_gap is not None else "minimises the objective"
    add("Δ'", f"{p.peak_gap:.4g}", f"{p.peak_gap / p.gap0:.1%} of Δ0; {how}")
    add("K0", f"{p.K0:.4g}", "K0 = K2·Δ'²")
    add("K1", f"{p.K1:.4g}", "" if p.K1 >= 0 else "negative, outside the theorems; η(Δ) > 0 all the same")
    add("K2", f"{p.K2:.4g}", "")
    add("rate", f"{config.lr / config.div:.3g} → {config.lr:.3g}", "at the first update, and at the peak")
    add("switch", f"loss {found.switch_loss:.4g}", "f* + Δ': warm-up ends when the loss is below")
    others = [gap for gap in found.minima if abs(gap - p.peak_gap) > p.gap0 / 500]
    least = found.values.min()
    for gap in others:
        times = float(found.values[abs(found.candidates - gap).argmin()] / least)
        if times <= _ALSO:
            add("also", f"loss {found.target_loss + gap:.4g}",
                f"a second minimum, Δ' = {gap:.4g}, {times:.3g} times as high: little may flip the choice")  # fmt: skip
    return rows


def terminal(found: Calibration, width: int, *, colour: bool) -> str:
    """Both pictures in characters, `width` columns wide."""
    import numpy as np
    import plotille

    losses, curves = _curves(found)

    def canvas(height: int, ylabel: str, low: float, high: float) -> Any:
        picture = plotille.Figure()
        picture.width, picture.height = max(30, width - 16), height
        # plotille's axes rise to the right, so that a falling one is drawn as −loss.
        picture.set_x_limits(-found.first_loss, -found.target_loss)
        picture.set_y_limits(low, high)
        picture.x_label, picture.y_label = "loss", ylabel
        picture.x_ticks_fkt = lambda tick, _: f"{-tick:.2f}"
        picture.y_ticks_fkt = lambda tick, _: f"{tick:8.2f}"
        picture.color_mode, picture.with_colors = "names", colour
        return picture

    top = canvas(10, "share of lr", 0.0, 1.0)
    marks = {"weight": (None, None, "magenta"), "target": (None, "o", "yellow"), "η(Δ)": ("linear", None, "cyan")}
    for label, (interp, marker, tint) in marks.items():
        shown = np.ones_like(losses, bool) if interp else (np.arange(losses.size) % 8 == 0) & (curves[label] > 0.03)
        shares = curves[label][shown].clip(0, 0.999)  # at the very top nothing is drawn
        top.plot(-losses[shown], shares, interp=interp, marker=marker or (None if interp else "·"),
                 lc=tint, label=label)  # fmt: skip
    logs = np.log10(np.maximum(found.values, np.finfo(float).tiny))
    low, high = float(logs.min()), float(logs.max())
    room = 0.05 * max(high - low, 0.1)
    bottom = canvas(7, "log10 J/lr²", low - room, high + room)
    bottom.plot(-(found.target_loss + found.candidates), logs, lc="green")
    bottom.plot([-found.switch_loss] * 2, [low - room, high + room], interp=None, marker="|", lc="red")
    legend = "— η(Δ)    o  the schedule it is fitted to    ·  weight of the fit"
    return "\n".join([top.show(), f"{'':14}{legend}", "", bottom.show(),
                      f"{'':14}the objective, over the loss at the switch; | the switch"])  # fmt: skip


def figure(found: Calibration) -> "Figure":
    """Both pictures, for paper and screen."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    losses, curves = _curves(found)
    drawn = Figure(figsize=(6.4, 5.6), layout="constrained")
    top, bottom = drawn.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    top.fill_between(losses, curves["weight"], color="#999999", alpha=0.25, lw=0, label="weight of the fit")
    top.plot(losses, curves["target"], color="#D55E00", linestyle="--", label=f"{found.config.target} schedule")
    top.plot(losses, curves["η(Δ)"], color="#0072B2", label="η(Δ)")
    top.set(ylabel="rate / lr", ylim=(0, 1.05), xlim=(found.first_loss, found.target_loss))
    bottom.plot(found.target_loss + found.candidates, found.values, color="#009E73")
    bottom.set(yscale="log", xlabel="loss, falling →", ylabel="objective / lr²")
    bottom.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    bottom.yaxis.set_major_formatter("{x:g}")
    bottom.yaxis.set_minor_formatter("")
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25, linewidth=0.6)
        axes.axvline(found.switch_loss, color="0.4", linestyle=":", linewidth=1)
    title = f"κ = {found.kappa:,.0f}: warm-up ends at loss {found.switch_loss:.3g}, Δ' = {found.profile.peak_gap:.3g}"
    top.set_title(title, fontsize="medium")
    top.legend(frameon=False, fontsize="small", loc="upper left")
    return drawn


def _curves(found: Calibration) -> "tuple[np.ndarray, dict[str, np.ndarray]]":
    """Losses from f* to f(x0), and at each of them rate, target and weight, as shares of their peaks."""
    import numpy as np

    from autowarm.schedule.shapes import decay_shape, warmup_shape

    p = found.profile
    # The peak, where all curves meet, is a point of its own; some crowd around it, for the weight may be a spike.
    near = p.peak_gap + found.width * np.linspace(-4, 4, 81)
    gaps = np.unique(np.concatenate([np.linspace(0, p.gap0, _CURVE)[1:], near[(near > 0) & (near < p.gap0)]]))
    first, second = found.config.target.split("-", 1)
    warmup, decay = warmup_shape(first), decay_shape(second)
    rising, floor = gaps >= p.peak_gap, 1.0 / p.div
    target = np.empty_like(gaps)
    target[rising] = floor + (1 - floor) * warmup((gaps[rising] - p.peak_gap) / (p.gap0 - p.peak_gap))
    target[~rising] = decay(1 - gaps[~rising] / p.peak_gap)
    weight = np.exp(-0.5 * ((gaps - p.peak_gap) / found.width) ** 2)
    return found.target_loss + gaps, {"η(Δ)": p(gaps) / p.lr, "target": target, "weight": weight}
