"""The study's figures: the differences of all settings, what one choice everywhere costs, and a few runs."""

from collections.abc import Mapping, Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..cells import DEFAULT, HAND_SET, OPTIMIZERS, PAPER, cells, title
from ..plan import algorithm_1_target
from ..rows import Cell, PlannedRow, Rows
from ..runs import Curve
from ..verdicts import TOLERANCE, Verdict
from .evidence import fixed_regrets

__all__ = ["curves_figure", "curves_wanted", "differences_figure", "evidence_figure"]

_COLOURS = {name: colormaps["tab10"](index) for index, name in enumerate(OPTIMIZERS)}


def differences_figure(judged: Sequence[Verdict]) -> Figure:
    """Every setting's difference, one a line, cut off at ±20 %."""
    figure = Figure(figsize=(7.5, 11), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(judged, key=lambda v: v.mean)
    for y, v in enumerate(ordered):
        shown, error, style = _point(v, 20.0)
        axes.errorbar(shown, y, xerr=error, lw=1, **style)
    axes.axvline(0, color="black", lw=0.8)
    axes.axvspan(-100 * TOLERANCE, 100 * TOLERANCE, color="black", alpha=0.08)
    axes.set_yticks(range(len(ordered)), [v.cell.name for v in ordered], fontsize=6)
    axes.set_xlim(-21, 21)
    axes.set_ylim(-1, len(ordered))
    axes.set_xlabel("held-out loss: default − best hand-set warm-up, %\n(± 2 standard errors)")
    _legend(axes, "standard error > 0.5 %: not counted")
    return figure


def evidence_figure(judged: Sequence[Verdict]) -> Figure:
    """Left, what one choice for all settings costs; right, the settings' differences, sorted."""
    learnt = [v for v in judged if v.learnt]
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.4))
    regret = {title(name): 100 * x for name, x in fixed_regrets(learnt).items() if name != PAPER}
    bars = left.bar(list(regret), list(regret.values()), color="tab:gray")
    bars[-1].set_color("tab:blue")
    left.bar_label(bars, fmt="%.1f", fontsize=8)
    left.set_ylabel("mean regret, %")
    left.set_title("one warm-up for all settings, against the best of six in each", fontsize=9)
    left.tick_params(labelsize=8)

    limit = 8.0
    for x, v in enumerate(sorted(learnt, key=lambda v: v.mean)):
        shown, error, style = _point(v, limit)
        right.errorbar(x, shown, yerr=error, lw=0.8, **style)
    right.axhline(0, color="black", lw=0.8)
    right.axhspan(-100 * TOLERANCE, 100 * TOLERANCE, color="black", alpha=0.08)
    right.set_ylim(-1.1 * limit, 1.1 * limit)
    right.set_xticks([])
    right.set_xlabel(f"{len(learnt)} settings, sorted")
    right.set_ylabel("held-out loss: default − best hand-set, %")
    _legend(right, "standard error > 0.5 %")
    right.set_title("below zero the default is better (± 2 standard errors)", fontsize=9)
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


def curves_figure(rows: Rows, curves: Mapping[PlannedRow, Curve]) -> Figure:
    """Rates and losses of the runs of `curves_wanted`."""
    chosen: dict[Cell, list[PlannedRow]] = {}
    for run in curves:
        chosen.setdefault(run.cell, []).append(run)
    figure = Figure(figsize=(10, 5), layout="constrained")
    panels = figure.subplots(2, len(chosen), sharex="col", squeeze=False)
    for (above, below), (cell, runs) in zip(panels.T, chosen.items(), strict=True):
        for run in runs:
            rates, losses = zip(*curves[run], strict=True)
            label = f"hand-set, {title(run.schedule)}" if run.schedule in HAND_SET else title(run.schedule)
            (line,) = above.plot(rates, label=label, lw=1.3)
            below.plot(losses, color=line.get_color(), lw=0.8)
            if run.schedule == DEFAULT:
                above.axvline(rows[run]["warmup_steps"], color=line.get_color(), lw=0.8, ls=":")
                above.set_title(f"{cell.name}\nended by the {_CAUSES[rows[run]['ended_by']]}", fontsize=9)
        below.set_yscale("log")
        below.set_xlabel("update")
    panels[0, 0].set_ylabel("rate / peak rate")
    panels[1, 0].set_ylabel("training loss")
    panels[0, 0].legend(fontsize=8)
    return figure


_CAUSES = {"gap": "loss", "max_warmup": "ramp"}


def _point(v: Verdict, limit: float) -> tuple[float, float, dict]:
    """A difference in percent within the limits, two standard errors of it, and how it is drawn."""
    shown = max(-limit, min(limit, 100 * v.mean))
    style = {"fmt": "o" if v.counted else "x", "color": _COLOURS[v.cell.optimizer], "ms": 4}
    return shown, min(200 * v.stderr, limit), style


def _legend(axes: Axes, uncertain: str) -> None:
    for name, colour in _COLOURS.items():
        axes.plot([], [], "o", color=colour, label=name)
    axes.plot([], [], "x", color="grey", label=uncertain)
    axes.legend(loc="lower right", fontsize=8)
