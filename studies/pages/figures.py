"""The figures of the studies: runs of the default, the forms of its warm-up, and a recovery."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from autowarm.lab.analysis.figures import smoothed
from autowarm.plotting import BLUE, GREEN, GREY, INK, ORANGE, styled
from autowarm.schedule import core

from .. import shapes
from ..cells import DEFAULT
from ..rows import Cell, PlannedRow, Rows
from ..runs import Curve

EXAMPLE: Mapping[PlannedRow, tuple[str, str]] = {
    PlannedRow("cells", Cell(task, optimizer, 4_000, lr), DEFAULT, 0): (name, colour)
    for task, optimizer, lr, name, colour in (
        ("llama-bytes", "muon", 0.003, "bytes, Muon", ORANGE),
        ("llama-long", "muon", 0.01, "tokens, Muon", BLUE),
        ("llama-long", "normsgd", 0.03, "tokens, normSGD", GREEN),
    )
}
"""The runs of `first_figure`, on the first seed, with their names and colours."""


@styled
def first_figure(rows: Rows, curves: Mapping[PlannedRow, Curve]) -> Figure:
    """Rates of `EXAMPLE` and its losses as the rule averages them, and where they or the clock end the warm-ups."""
    figure = Figure(figsize=(7.6, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.2))
    for run, (name, colour) in EXAMPLE.items():
        rates, losses = zip(*curves[run], strict=True)
        end, first = rows[run]["warmup_steps"], rows[run]["first_loss"]
        above.plot(rates, color=colour)
        above.plot(end, rates[min(end, len(rates) - 1)], "o", color=colour, ms=7)
        by_clock = rows[run]["ended_by"] == "clock"
        words = f"{name}\n{100 * end / run.cell.steps:.0f}%{' (time limit)' if by_clock else ''}"
        above.annotate(words, (end, 1), xytext=(-16 if by_clock else 0, 8), textcoords="offset points", color=colour,
                       ha="left" if by_clock else "center", fontsize=10, fontweight="bold")  # fmt: skip
        below.plot([loss / first for loss in smoothed(losses)][: len(losses) - len(losses) // 60], color=colour, lw=0.8,
                   alpha=0.5)  # fmt: skip
        seen = averaged(losses, run.cell.steps)[:end]
        below.plot([loss / first for loss in seen], color=colour, lw=2.2)
        below.plot(len(seen) - 1, seen[-1] / first, "o", color=colour, ms=7)
    below.axhline(0.65, color=GREY, lw=0.9, ls="--")
    below.annotate("the warm-up ends when the averaged loss is at 65%", (1, 0.65), xytext=(-4, 5), color=GREY,
                   ha="right", xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=10)  # fmt: skip
    below.annotate("thick: averaged loss; thin: smoothed loss", (1, 0.93), xytext=(-4, 5), color=GREY, ha="right",
                   xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=10)  # fmt: skip
    above.set(ylabel="rate / peak rate", ylim=(0, 1.55), yticks=(0, 0.5, 1))
    below.set(ylabel="loss / first loss", xlabel="update", ylim=(0.2, 1.05))
    return figure


@styled
def recovery_figure(bare: Sequence[float], recovered: Sequence[float], recovery: Sequence[Any]) -> Figure:
    """The losses of a run about a bad batch, as it is and with `recover=True`, which goes back to an earlier update."""
    alarm, restored = recovery[:2]
    spike = max(range(len(bare)), key=lambda t: bare[t])
    shown = range(spike - 60, spike + 240)
    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for losses, colour, name in ((bare, ORANGE, "as it is"), (recovered, BLUE, "with recover=True")):
        axes.plot(shown, [losses[t] if t != spike else math.nan for t in shown], color=colour, lw=1.6, label=name)
    axes.plot(shown[: alarm - shown.start], [*recovered[shown.start : spike], math.nan, *recovered[spike + 1 : alarm]],
              color=INK, lw=1.6, label="before the alarm")  # fmt: skip
    top = max(bare[t] for t in shown if t != spike)
    axes.plot(spike, 1.06 * top, "^", color=INK, ms=7)
    axes.annotate(f"a bad batch: loss {bare[spike]:.0f}", (spike, 1.06 * top), xytext=(10, 0), color=INK, fontsize=10,
                  textcoords="offset points", va="center")  # fmt: skip
    axes.annotate(f"update {alarm}: back to the copy of update {restored}", (alarm, recovered[alarm]), xytext=(8, -64),
                  textcoords="offset points", color=BLUE, fontsize=10,
                  arrowprops={"arrowstyle": "->", "color": BLUE, "relpos": (0, 1)})  # fmt: skip
    low = min(recovered[t] for t in shown)
    axes.set(xlabel="update", ylabel="training loss", xlim=(shown.start, shown.stop), ylim=(0.92 * low, 1.12 * top))
    axes.legend(loc="upper right", fontsize=10)
    return figure


@styled
def shapes_figure(rows: Rows) -> Figure:
    """A point per setting and form of the warm-up, by the peak rate; a bar at the mean."""
    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    axes = figure.subplots()
    seeds = shapes.finished(rows)
    colours = dict(zip(shapes.ARMS, (BLUE, GREEN, GREY), strict=True))
    for x, factor in enumerate(shapes.RATES.values()):
        found = [shapes.costs(rows, cell, seeds) for cell in shapes.cells(factor)]
        for place, (arm, colour) in zip((-0.25, 0.0, 0.25), colours.items(), strict=True):
            each = [one[arm].mean for one in found]
            axes.plot([x + place] * len(each), each, "o", color=colour, ms=5, alpha=0.75)
            mean = statistics.fmean(each)
            axes.plot([x + place - 0.09, x + place + 0.09], [mean, mean], color=colour, lw=2.4,
                      label=None if x else shapes.ARMS[arm])  # fmt: skip
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_yticks([-10, -1, 0, 1, 10], ["−10", "−1", "0", "1", "10"])
    axes.set_xticks(range(len(shapes.RATES)), [*shapes.RATES])
    axes.set(ylabel="cost against η(Δ), % of the progress")
    figure.legend(loc="outside upper center", ncols=3, fontsize=10)
    return figure


def averaged(losses: Sequence[float], steps: int) -> list[float]:
    """The loss as the default averages it, after each update of the warm-up."""
    plan = core.Plan(steps)
    state, found = core.begin(plan), []
    for update, loss in enumerate(losses, 1):
        state = core.advance(plan, state, update, loss)
        if state.ended_by is not None or state.average is None:
            break
        found.append(state.average)
    return found
