"""The figures of the studies: what one choice costs in every setting, runs of the default, and a recovery."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from autowarm.lab.analysis.figures import smoothed
from autowarm.plotting import BLUE, GREEN, GREY, INK, ORANGE, styled
from autowarm.schedule import core

from ..cells import DEFAULT, title
from ..regret import Judged
from ..rows import Cell, PlannedRow, Rows
from ..runs import Curve

SHOWN = ("linear 0", "linear 0.02", "linear 0.1", "linear 0.4", DEFAULT)
"""The choices of `regret_figure`, which were run in every setting."""

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
def regret_figure(found: Sequence[Judged]) -> Figure:
    """A point per setting and choice, all of them inside the axes; a bar at the mean."""
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.subplots()
    ordered = sorted(found, key=lambda one: (one.setting.cell.steps, one.setting.cell))
    for x, name in enumerate(SHOWN):
        regrets = [one.regrets[name] for one in ordered]
        long = [one.setting.cell.steps >= 4_000 for one in ordered]
        places = [x + 0.6 * (i / max(1, len(regrets) - 1) - 0.5) for i in range(len(regrets))]
        for of_long, colour, marker in ((False, GREY, "o"), (True, BLUE, "D")):
            some = [(at, y) for at, y, is_long in zip(places, regrets, long, strict=True) if is_long == of_long]
            label = "4,000 updates and more" if of_long else "1,000 updates"
            axes.plot(*zip(*some, strict=True), marker, color=colour, ms=4, alpha=0.75, label=label if not x else None)
        mean = statistics.fmean(regrets)
        axes.plot([x - 0.38, x + 0.38], [mean, mean], color=ORANGE, lw=2.2, label=None if x else "mean")
        axes.annotate(f"{mean:.1f}", (x + 0.4, mean), color=ORANGE, fontweight="bold", va="center", fontsize=10)
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_yticks([-1, 0, 1, 10, 100], ["−1", "0", "1", "10", "100"])
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_xticks(range(len(SHOWN)), [title(name) for name in SHOWN])
    axes.set_xlim(-0.5, len(SHOWN) - 0.3)
    axes.set(xlabel="warm-up, the same in all settings", ylabel="regret, % of the progress")
    axes.legend(loc="upper right", fontsize=9)
    return figure


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
        words = f"{name}\n{100 * end / run.cell.steps:.0f}%{' (the clock)' if by_clock else ''}"
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
