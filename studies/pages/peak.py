"""The tables and the figures of docs/which-rate.md: what it costs not to tune the peak rate."""

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from matplotlib.figure import Figure

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.commands.find_rate import search
from autowarm.lab.config import EngineConfig, FindRateConfig, LabError, OptimizerConfig, RunConfig
from autowarm.plotting import BLUE, GREY, ORANGE, styled

from ..cells import AUTO, DEFAULT, EARLIER, GUESS, TUNING_SEED
from ..plans.grid import Grid
from ..plans.horizon import GRIDS, TASKS
from ..plans.peak import COMMON, DEVELOPED_ON, JUDGED, LARGER, PART, RATES, WITHOUT_RATE
from ..rows import Cell, Rows
from ..statistics import mean_loss
from ..tasks import StudyTask

_MEASURES = ("settings", "within 3 times", "progress lost: mean (worst)", "higher loss, median", "diverged")
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

    def mean(cell: Cell, schedule: str) -> float:
        return mean_loss(rows.losses(part, cell, schedule, seeds), seeds)

    for cell in grid.cells(rows):
        if math.isinf(tuned := mean(cell, default)):
            continue  # nothing to compare with
        rate: float | None = None
        if way == "search":
            here, schedule = replace(cell, lr=GUESS), AUTO
            found = [run["peak"] for run in rows.runs(part, here, schedule, seeds).values()]
            rate = statistics.geometric_mean(found) / cell.lr
        elif way == "common":
            here, schedule = replace(cell, lr=COMMON[cell.optimizer]), DEFAULT
            rate = here.lr / cell.lr
        else:
            here, schedule = replace(cell, optimizer=way, lr=WITHOUT_RATE[way]), "own"
        loss, first = mean(here, schedule), rows.first_loss(part, cell, default, seeds)
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

    def line(grids: Sequence[Grid], way: str, optimizers: Sequence[str]) -> list[str]:
        some = (replace(grid, optimizers=[name for name in grid.optimizers if name in optimizers]) for grid in grids)
        return _summary([one for grid in some for one in outcomes(rows, grid, way)])

    lines = []
    for group, grids in (("judged", (JUDGED,)), ("developed on", (DEVELOPED_ON, *LARGER))):
        for steps in grids[0].horizons:
            here = [replace(grid, horizons=(steps,)) for grid in grids if steps in grid.horizons]
            with suppress(LabError):  # its runs are not all made
                lines += [[f"{group}, {steps}", name, *line(here, *way)] for name, way in ways.items()]
    return comma_separated(["tasks, updates", "rate by", *_MEASURES], lines)


def sensitivity(rows: Rows, grid: Grid, cell: Cell) -> list[tuple[float, float]]:
    """For each rate of the tuning, rate / tuned rate and the part of the progress lost; infinite if it diverged."""
    tried = (one.lr for one in grid.tuning_cells(rows) if replace(one, lr=cell.lr) == cell)
    losses = {
        lr: rows.losses("tuning", replace(cell, lr=lr), grid.tuned_under, [TUNING_SEED])[TUNING_SEED] for lr in tried
    }
    least = losses[cell.lr]
    progress = rows.first_loss("tuning", cell, grid.tuned_under, [TUNING_SEED]) - least
    return [(lr / cell.lr, (loss - least) / progress) for lr, loss in losses.items()]


@styled
def peak_figure(rows: Rows, steps: int = 1000) -> Figure:
    """For each optimizer, the progress lost over rate / tuned rate: a line per task, a dot for what the search found.

    Tasks whose runs are not all made are left out, and so are those whose loss cannot be compared with the first one.
    """
    figure = Figure(figsize=(7.6, 5.2), layout="constrained")
    *panels, spare = figure.subplots(2, 3, sharex=True, sharey=True).flat
    for axes, optimizer in zip(panels, RATES, strict=True):
        for group, colour, label in (
            (JUDGED, ORANGE, "tasks it was judged on"), (DEVELOPED_ON, BLUE, "tasks it was developed on"),
        ):  # fmt: skip
            for task in group.tasks:
                setting = replace(group, tasks=(task,), horizons=(steps,), optimizers=(optimizer,))
                with suppress(LabError):  # its runs are not all made
                    for found in outcomes(rows, setting, "search"):
                        if found.lost is None or found.rate is None:
                            continue
                        curve = [(rate, 100 * lost) for rate, lost in sensitivity(rows, setting, found.cell)]
                        axes.plot(*zip(*curve, strict=True), color=GREY, lw=0.8)
                        axes.plot(found.rate, 100 * found.lost, "o", color=colour, markersize=4, label=label)
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


def horizon_rates_table(rows: Rows) -> str:
    """CSV: the cost of ``peak="auto"`` in the horizon study, whose rates are tuned under a hand-set warm-up of 10 %.

    A horizon is left out until its runs are made.
    """
    lines = []
    for task in TASKS:
        for grid, steps in ((one, steps) for one in GRIDS if task in one.tasks for steps in one.horizons):
            with suppress(LabError):  # its runs are not all made
                one = replace(grid, tasks=(task,), horizons=(steps,))
                lines.append([task, f"{steps:,}", *_summary(list(outcomes(rows, one, "search", "cells")))])
    return comma_separated(["task", "updates", *_MEASURES], lines)


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
