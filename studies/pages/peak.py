"""The tables and the figures of docs/which-rate.md: what it costs not to tune the peak rate."""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.commands.find_rate import search
from autowarm.lab.config import EngineConfig, FindRateConfig, LabError, OptimizerConfig, RunConfig
from autowarm.plotting import BLUE, GREY, ORANGE, styled

from ..cells import AUTO, DEFAULT, EARLIER, GUESS, TUNING_SEED
from ..plans.grid import Grid
from ..plans.horizon import LONG, LONGEST, SHORT, TASKS
from ..plans.peak import COMMON, DEVELOPED_ON, JUDGED, LARGER, PART, RATES, WITHOUT_RATE
from ..rows import Cell, Rows
from ..statistics import mean_loss
from ..tasks import StudyTask

_MEASURES = ("settings", "within 3 times", "progress lost: mean (worst)", "higher loss, median", "diverged")
_SEEN = ("tasks it was developed on", "tasks it was judged on")
_SEARCHES = (("llama", "muon", "Small LLaMA, Muon"), ("swin", "lion", "Small Swin, Lion: cannot tell"))
_INSTEAD = {"Prodigy": "prodigy", "D-Adaptation": "d-adaptation", "Schedule-Free": "schedule-free", "DoG": "dog"}


class Outcome(NamedTuple):
    """What one way to choose the rate costs in one setting. The cell is at the tuned rate; losses are means over seeds.

    `cost` is loss / loss at the tuned rate − 1, and `lost` the part of the tuned rate's progress from the first loss
    that is not made; both are infinite if a run diverged. `lost` is None if the held-out loss is above the first loss
    even at the tuned rate, as a policy gradient's is. `rate` is relative to the tuned one; None for an optimizer that
    needs no rate.
    """

    cell: Cell
    cost: float
    lost: float | None
    rate: float | None


def outcomes(rows: Rows, grid: Grid, way: str, part: str = PART) -> Iterator[Outcome]:
    """The outcome in every setting in which the tuned rate does not diverge on other seeds.

    The way is "search", "common", or the name of an optimizer that needs no rate, whose grid has AdamW alone.
    """
    seeds = grid.seeds.test
    default = DEFAULT if part == PART else EARLIER  # the searches of the horizon study ended in the earlier default
    for cell in grid.cells(rows):

        def mean(lr: float, schedule: str, name: str = cell.optimizer, cell: Cell = cell) -> float:
            return mean_loss(rows.losses(part, Cell(cell.task, name, cell.steps, lr), schedule, seeds), seeds)

        if math.isinf(tuned := mean(cell.lr, default)):
            continue  # nothing to compare with
        if way == "search":
            here = Cell(cell.task, cell.optimizer, cell.steps, GUESS)
            found = [run["peak"] for run in rows.runs(part, here, AUTO, seeds).values()]
            rate, loss = statistics.geometric_mean(found) / cell.lr, mean(GUESS, AUTO)
        elif way == "common":
            rate, loss = COMMON[cell.optimizer] / cell.lr, mean(COMMON[cell.optimizer], DEFAULT)
        else:
            rate, loss = None, mean(WITHOUT_RATE[way], "own", way)
        first = statistics.fmean(run["first_loss"] for run in rows.runs(part, cell, default, seeds).values())
        lost = (loss - tuned) / (first - tuned) if first > tuned else None
        yield Outcome(cell, loss / tuned - 1, lost, rate)


def peak_table(rows: Rows) -> str:
    """CSV: the cost of each way to choose the rate, on the tasks that judge the search and on those that shaped it.

    A horizon is left out until all its runs are made.
    """
    auto, every = '`peak="auto"`', JUDGED.optimizers
    ways = {auto: ("search", every), f"{auto}, for AdamW": ("search", ("adamw",)),
            "one rate for all tasks": ("common", every),
            **{f"{name}, for AdamW": (way, ("adamw",)) for name, way in _INSTEAD.items()}}  # fmt: skip
    lines = []
    for group, grids in (("judged", (JUDGED,)), ("developed on", (DEVELOPED_ON, *LARGER))):
        for steps in grids[0].horizons:
            with suppress(LabError):  # its runs are not all made
                here = [replace(grid, horizons=(steps,)) for grid in grids if steps in grid.horizons]
                found = {
                    name: [one for grid in here for one in outcomes(rows, _only(grid, some), way)]
                    for name, (way, some) in ways.items()
                }
                lines += [[f"{group}, {steps}", name, *_summary(some)] for name, some in found.items()]
    return comma_separated(["tasks, updates", "rate by", *_MEASURES], lines)


def _only(grid: Grid, optimizers: Sequence[str]) -> Grid:
    return replace(grid, optimizers=tuple(name for name in grid.optimizers if name in optimizers))


def sensitivity(rows: Rows, grid: Grid, cell: Cell) -> list[tuple[float, float]]:
    """For each rate of the tuning, rate / tuned rate and the part of the progress lost; infinite if it diverged."""
    here = [one for one in grid.tuning_cells(rows) if replace(one, lr=cell.lr) == cell]
    runs = [rows.runs("tuning", one, grid.tuned_under, [TUNING_SEED])[TUNING_SEED] for one in here]
    best = rows.runs("tuning", cell, grid.tuned_under, [TUNING_SEED])[TUNING_SEED]
    progress = best["first_loss"] - best["val_loss"]
    return [
        (one.lr / cell.lr, math.inf if run["diverged"] else (run["val_loss"] - best["val_loss"]) / progress)
        for one, run in zip(here, runs, strict=True)
    ]


@styled
def peak_figure(rows: Rows, steps: int = 1000) -> Figure:
    """For each optimizer, the progress lost over rate / tuned rate: a line per task, a dot for what the search found.

    Tasks whose runs are not all made are left out, and so are those whose loss cannot be compared with the first one.
    """
    figure = Figure(figsize=(7.6, 5.2), layout="constrained")
    *panels, spare = figure.subplots(2, 3, sharex=True, sharey=True).flat
    for axes, optimizer in zip(panels, RATES, strict=True):
        for group, colour in ((JUDGED, ORANGE), (DEVELOPED_ON, BLUE)):
            for task in group.tasks:
                setting = replace(group, tasks=(task,), horizons=(steps,), optimizers=(optimizer,))
                with suppress(LabError):  # its runs are not all made
                    for found in outcomes(rows, setting, "search"):
                        _draw_setting(
                            axes, found, sensitivity(rows, setting, found.cell), colour, _SEEN[group is JUDGED]
                        )
        axes.axvspan(1 / 3, 3, color=GREY, alpha=0.15, lw=0)
        axes.set(title=optimizer, xscale="log", xlim=(1 / 40, 40), ylim=(-5, 120))
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
        axes.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
        axes.tick_params(labelbottom=True)
    figure.supxlabel("rate / tuned rate", fontsize=10)
    figure.supylabel("progress lost, %", fontsize=10)
    shown = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    spare.set_axis_off()
    spare.legend(shown.values(), shown.keys(), loc="center", fontsize=9)
    return figure


@styled
def searches_figure() -> Figure:
    """A search that finds a rate, and one that cannot tell. Both are made here, in seconds."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    for axes, (name, optimizer, title) in zip(figure.subplots(1, 2), _SEARCHES, strict=True):
        task, engine = StudyTask(name), EngineConfig(precision="float32", device="cpu")
        run = RunConfig(task=task.key, steps=1000, clip=0.0, optimizer=OptimizerConfig(weight_decay=0.0), engine=engine)
        search(FindRateConfig(run, optimizer), task).plot(ax=axes).set_title(title)
    return figure


def _draw_setting(axes: Axes, found: Outcome, curve: Sequence[tuple[float, float]], colour: str, label: str) -> None:
    if found.lost is not None and found.rate is not None:
        axes.plot(*zip(*((rate, 100 * lost) for rate, lost in curve), strict=True), color=GREY, lw=0.8)
        axes.plot(found.rate, 100 * found.lost, "o", color=colour, markersize=4, label=label)


def horizon_rates_table(rows: Rows) -> str:
    """CSV: the cost of ``peak="auto"`` in the horizon study, whose rates are tuned under a hand-set warm-up of 10 %.

    A horizon is left out until its runs are made.
    """
    lines = []
    for grid in (SHORT, LONG, LONGEST):
        for task, steps in itertools.product(grid.tasks, grid.horizons):
            with suppress(LabError):  # its runs are not all made
                one = replace(grid, tasks=(task,), horizons=(steps,))
                lines.append([task, f"{steps:,}", *_summary(list(outcomes(rows, one, "search", "cells")))])
    return comma_separated(["task", "updates", *_MEASURES], sorted(lines, key=lambda line: TASKS.index(line[0])))


def _summary(some: Sequence[Outcome]) -> list[str]:
    finite = [one for one in some if math.isfinite(one.cost)]
    rates = [one.rate for one in some if one.rate is not None]
    near = _percent(statistics.fmean(1 / 3 <= rate <= 3 for rate in rates), 0) if rates else ""
    shown = ["", ""]
    if finite:
        lost, cost = [one.lost for one in finite if one.lost is not None], [one.cost for one in finite]
        shown = [f"{_percent(statistics.fmean(lost))} ({_percent(max(lost))})", _percent(statistics.median(cost))]
    return [str(len(some)), near, *shown, str(len(some) - len(finite))]


def _percent(x: float, digits: int = 1) -> str:
    return f"{round(100 * x, digits) + 0.0:.{digits}f} %"  # adding zero takes the sign from -0.0
