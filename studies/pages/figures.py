"""The study's figures: the differences of all settings, the cost of one choice everywhere, and a few runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from autowarm.lab.analysis.figures import COLOURS, smoothed
from autowarm.plotting import BLUE, GREEN, GREY, INK, ORANGE, PINK, SKY, label_line, styled

from ..cells import DEFAULT, HAND_SET, OPTIMIZERS, PAPER, cells, title
from ..plans.warm_up import algorithm_1_target
from ..rows import Cell, PlannedRow, Rows
from ..runs import Curve
from ..verdicts import TOLERANCE, Verdict
from .evidence import fixed_regrets

_LOOKS = dict(zip(OPTIMIZERS, zip((BLUE, ORANGE, GREEN, PINK, SKY), "os^Dv", strict=True), strict=True))


@styled
def differences_figure(judged: Sequence[Verdict]) -> Figure:
    """The difference of every setting, one per line, cut off at ±20 %."""
    figure = Figure(figsize=(7.5, 12), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(judged, key=lambda v: v.mean)
    for y, v in enumerate(ordered):
        shown, error, style = _point(v, 20.0)
        axes.errorbar(shown, y, xerr=error, lw=1, **style)
    axes.axvline(0, color=INK, lw=0.8)
    axes.axvspan(-100 * TOLERANCE, 100 * TOLERANCE, color=GREY, alpha=0.15)
    axes.set_yticks(range(len(ordered)), [v.cell.name for v in ordered], fontsize=7)
    axes.grid(axis="y", visible=False)
    axes.set_xlim(-21, 21)
    axes.set_ylim(-1, len(ordered))
    axes.set_xlabel("held-out loss: default − best hand-set warm-up, %, with two standard errors")
    _legend(axes, "hollow: standard error > 0.5 %, not counted", (0.6, 0.77))
    return figure


@styled
def evidence_figure(judged: Sequence[Verdict]) -> Figure:
    """Left, the cost of one choice for all settings; right, the differences of the settings, sorted."""
    learnt = [v for v in judged if v.learnt]
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    regret = {title(name): 100 * x for name, x in fixed_regrets(learnt).items() if name != PAPER}
    bars = left.bar(list(regret), list(regret.values()), color=GREY)
    bars[-1].set_color(COLOURS["adaptive"])
    left.bar_label(bars, fmt="%.1f", fontsize="small")
    left.set(xlabel="warm-up, the same in all settings", ylabel="mean regret, %")
    left.set_title("What one choice everywhere costs")
    left.tick_params(axis="x", labelsize=8.5)

    limit = 8.0
    for x, v in enumerate(sorted(learnt, key=lambda v: v.mean)):
        shown, error, style = _point(v, limit)
        right.errorbar(x, shown, yerr=error, lw=0.8, **style)
    right.axhline(0, color=INK, lw=0.8)
    right.axhspan(-100 * TOLERANCE, 100 * TOLERANCE, color=GREY, alpha=0.15)
    right.set_ylim(-1.1 * limit, 1.1 * limit)
    right.set_xticks([])
    right.set_xlabel(f"{len(learnt)} settings, sorted; bars: two standard errors")
    right.set_ylabel("default − best hand-set, % of the loss")
    _legend(right, "hollow: standard error > 0.5 %")
    right.set_title("Below zero the default is better")
    return figure


def curves_wanted(rows: Rows) -> list[PlannedRow]:
    """The runs whose curves `curves_figure` shows: three settings under three schedules, one seed."""
    names = ("factor.lion.200.0.003", "mlp.adamw.1000.0.01", "lm-small.signsgd.200.0.003")
    by_name = {cell.name: cell for cell in cells(rows)}
    return [
        PlannedRow(
            "cells", cell, schedule, 0, target_loss=algorithm_1_target(rows, cell) if schedule == PAPER else None
        )
        for cell in map(by_name.__getitem__, names)
        for schedule in (DEFAULT, HAND_SET[3], PAPER)
    ]


def first_figure(rows: Rows, curves: Mapping[PlannedRow, Curve]) -> Figure:
    """The README's picture: two of the settings without Algorithm 1, small enough to be legible on a phone."""
    shown = {run: curve for run, curve in curves.items() if run.cell.task != "factor" and run.schedule != PAPER}
    return curves_figure(rows, shown, size=(5.9, 4.9))


@styled
def curves_figure(rows: Rows, curves: Mapping[PlannedRow, Curve], size: tuple[float, float] = (9.5, 5.2)) -> Figure:
    """Rates and losses of the runs of `curves_wanted`."""
    chosen: dict[Cell, list[PlannedRow]] = {}
    for run in curves:
        chosen.setdefault(run.cell, []).append(run)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(2, len(chosen), sharex="col", squeeze=False)
    for (above, below), (cell, runs) in zip(panels.T, chosen.items(), strict=True):
        for run in runs:
            rates, losses = zip(*curves[run], strict=True)
            look = {"color": COLOURS[_KINDS.get(run.schedule, "linear")]}
            (line,) = above.plot(rates, label=_name(run), **look)
            # At the end the mean covers ever fewer losses and would follow the noise.
            below.plot(smoothed(losses)[: max(1, len(losses) - len(losses) // 60)], lw=1.4, **look)
            if run.schedule == DEFAULT:
                above.axvline(rows[run]["warmup_steps"], color=line.get_color(), lw=0.8, ls=":")
                above.set_title(f"{_TASKS[cell.task]}\n{_CAUSES[rows[run]['ended_by']]} ends the warm-up")
        above.set_ylim(-0.03, 1.17)
        below.set(yscale="log", xlabel="update")
        low, high = below.get_ylim()
        below.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 5 * low else (1, 2, 3, 4, 5, 6, 8)))
        below.yaxis.set_major_formatter("{x:g}")
        below.yaxis.set_minor_formatter(NullFormatter())
    panels[0, 0].set_ylabel("rate / peak rate")
    panels[1, 0].set_ylabel("training loss")
    for line in panels[0, -1].lines:
        if str(line.get_label()) in _PLACES:
            at, offset = _PLACES[str(line.get_label())]
            label_line(line, str(line.get_label()), at * (len(line.get_xdata()) - 1), offset)
    return figure


_KINDS = {DEFAULT: "adaptive", PAPER: "paper"}
_TASKS = {"factor": "matrix factorisation", "mlp": "image classifier", "lm-small": "language model"}
_CAUSES = {"loss": "the loss", "clock": "the clock"}
_PLACES = {"default": (0.62, (5, 3)), "hand-set, 10 %": (0.1, (-8, 4)), "Algorithm 1": (0.15, (0, 5))}  # at, offset


def _name(run: PlannedRow) -> str:
    return f"hand-set, {title(run.schedule)}" if run.schedule in HAND_SET else title(run.schedule)


def _point(v: Verdict, limit: float) -> tuple[float, float, dict]:
    """A difference in percent, clipped to the limits; two standard errors; and the style to draw them in."""
    shown = max(-limit, min(limit, 100 * v.mean))
    colour, marker = _LOOKS[v.cell.optimizer]
    style = {"fmt": marker, "color": colour, "ms": 4, "mfc": colour if v.counted else "white"}
    return shown, min(200 * v.stderr, limit), style


def _legend(axes: Axes, uncertain: str, place: Any = "lower right") -> None:
    for name, (colour, marker) in _LOOKS.items():
        axes.plot([], [], marker, color=colour, ms=5, label=name)
    axes.plot([], [], "o", color=GREY, mfc="white", ms=5, label=uncertain)
    axes.legend(loc=place, fontsize=9)
