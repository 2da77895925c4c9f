"""The figures of the benchmark and of a recovery."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from autowarm._torch.plotting import BLUE, GREEN, GREY, INK, ORANGE, styled

from ..bench import FACTORS
from ..entries import OURS, title
from ..measures import Sweep

CURVES = {OURS: ORANGE, "linear 0": GREY, "linear 0.1": BLUE, "linear 0.4": GREEN}
"""The entries that the figure of the sensitivity shows, by colour."""


@styled
def sensitivity_figure(found: Mapping[str, Mapping[str, Sweep]]) -> Figure:
    """The final loss against the peak rate over the tuned one: a panel for each bed, means over the optimizers."""
    rows = math.ceil(len(found) / 3)
    figure = Figure(figsize=(9.2, 0.6 + 2.5 * rows), layout="constrained")
    every = iter(figure.subplots(rows, 3, squeeze=False).flat)
    for (bed, some), axes in zip(found.items(), every, strict=False):
        for name, colour in CURVES.items():
            means = [statistics.fmean(at) for at in zip(*(sweep.curves[name] for sweep in some.values()), strict=True)]
            width = 2.4 if name == OURS else 1.3
            axes.plot(FACTORS, means, "o-", color=colour, lw=width, ms=4, label=title(name))
        axes.set(xscale="log", xlabel="peak rate / tuned rate", ylabel="final loss")
        network, *_, steps, _ = bed.replace(" model", "").split(", ")
        axes.set_title(f"{network}, {steps}", fontsize=10)
    for axes in every:  # without a bed
        axes.set_axis_off()
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=10)
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
