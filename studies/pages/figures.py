"""The figures of the studies: what one choice costs in every setting, and one run beside a hand-set warm-up."""

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from autowarm.lab.analysis.figures import COLOURS, smoothed
from autowarm.plotting import BLUE, GREY, INK, ORANGE, label_line, styled

from ..cells import DEFAULT
from ..regret import Judged
from ..rows import Cell, PlannedRow, Rows
from ..runs import Curve

SHOWN: Mapping[str, str] = {
    "linear 0": "none", **{f"linear {share:g}": f"{100 * share:g}%" for share in (0.02, 0.1, 0.4)},
    DEFAULT: "default",
}  # fmt: skip
"""The choices of `regret_figure`, which were run in every setting."""

_HAND = "linear 0.1"
EXAMPLE = tuple(
    PlannedRow("cells", Cell("llama-bytes", "muon", 4_000, 0.003), schedule, 0) for schedule in (_HAND, DEFAULT)
)
"""The runs of `first_figure`, on the first seed."""


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
    axes.set_xticks(range(len(SHOWN)), list(SHOWN.values()))
    axes.set_xlim(-0.5, len(SHOWN) - 0.3)
    axes.set(xlabel="warm-up, the same in all settings", ylabel="regret, % of the progress")
    axes.legend(loc="upper right", fontsize=9)
    return figure


@styled
def first_figure(rows: Rows, curves: Mapping[PlannedRow, Curve]) -> Figure:
    """Rate and loss of `EXAMPLE`: the loss at which the default's warm-up ends, and where."""
    figure = Figure(figsize=(7.6, 4.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.15))
    names = {_HAND: ("hand-set, 10%", "linear"), DEFAULT: ("AdaptiveWarmup", "adaptive")}
    for run in EXAMPLE:
        rates, losses = zip(*curves[run], strict=True)
        name, kind = names[run.schedule]
        (line,) = above.plot(rates, color=COLOURS[kind])
        at = 0.12 if kind == "linear" else 0.02
        label_line(line, name, at * len(rates), (4, 6) if kind == "linear" else (14, -2))
        below.plot(smoothed(losses)[: len(losses) - len(losses) // 60], lw=1.4, color=COLOURS[kind])
        if run.schedule == DEFAULT:
            row = rows[run]
            for axes in (above, below):
                axes.axvline(row["warmup_steps"], color=COLOURS[kind], lw=0.9, ls=":")
            switch = 0.65 * row["first_loss"]
            below.axhline(switch, color=GREY, lw=0.9, ls="--")
            below.annotate("65% of the first loss ends the warm-up", (1, switch), xytext=(-2, 4),
                           xycoords=("axes fraction", "data"), textcoords="offset points", color=GREY, ha="right",
                           fontsize=10)  # fmt: skip
    above.set(ylabel="rate / peak rate", ylim=(0, 1.2))
    below.set(ylabel="training loss", xlabel="update")
    return figure
