"""What the default would have cost the paper's authors: their 225 hand-set runs at 124M and 210M parameters.

    python -m studies published         the table and the figure, from the points digitised from their figures; no run

No run of ours is as large as theirs. So a model of the loss meets the rule in a closed loop, and the length that comes
out is priced on the authors' own curve of hand-set lengths, between two lengths in proportion to their logarithms, and
beyond the shortest and the longest at that one's price.

The model: after rates that sum to S, in units of the peak rate, the loss is E + (f(x0) − E)·(1 + S/s0)^(−α). The floor
E is 2.8, as a fit to the public run of llm.c's GPT-2 of 124M parameters gives, whose rate is known. s0 and α follow
from the final losses of the best hand-set runs at two lengths, after S = T/2 as in a cosine. One number tests it that
it has not seen: the authors logged an adaptive run under Lion, whose warm-up ended after 11,972 updates (`switch`).
"""

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import brentq

from autowarm._torch.plotting import BLUE, GREY, INK, ORANGE, styled
from autowarm.lab.analysis.figures import encoded
from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.paper.published import Published, points
from autowarm.schedule import core
from autowarm.schedule.planning import plan_of

FIRST_LOSS, FLOOR = 10.98, 2.8
GEOMETRIES = {"muon": "spectral", "lion": "sign", "normsgd": "frobenius"}
TITLES = {"muon": "Muon", "lion": "Lion", "normsgd": "normSGD"}
RUINED = 5.0
"""Nats; no run that ends above has learnt more than a tuned one in its first hundredth."""


@cache
def model(setting: Published) -> tuple[float, float]:
    """α and s0 of the loss under this optimizer, from the best final losses at its two lengths."""
    hand, _ = points()
    both = sorted(one for one in hand if one._replace(steps=setting.steps) == setting)
    sums = [one.steps / 2 for one in both]
    logs = [math.log((min(loss for _, loss in hand[one]) - FLOOR) / (FIRST_LOSS - FLOOR)) for one in both]

    def lacking(log_s0: float) -> float:  # both lengths have one α
        slopes = [log / math.log1p(s / math.exp(log_s0)) for log, s in zip(logs, sums, strict=True)]
        return slopes[0] - slopes[1]

    s0 = math.exp(brentq(lacking, -12.0, 8.0))
    return -logs[0] / math.log1p(sums[0] / s0), s0


def length(setting: Published, plan: core.Plan) -> tuple[int, str]:
    """The updates that a plan warms up for in the closed loop, and what ends the warm-up."""
    alpha, s0 = model(setting)
    state, summed = core.begin(plan), 0.0
    while state.ended_by is None and state.updates < setting.steps:
        loss = FLOOR + (FIRST_LOSS - FLOOR) * (1.0 + summed / s0) ** -alpha
        summed += state.share
        state = core.advance(plan, state, state.updates + 1, loss)
    return state.warmup_steps or state.updates, state.ended_by or "the run"


def switch() -> int:
    """Where the model ends the warm-up of the authors' adaptive run under Lion, with their f* and their Δ'."""
    plan = plan_of(64_000, div=100.0, target_loss=3.4, max_warmup=None, smoothing=0.0, peak_gap=0.37)
    return length(Published("124M", 32, 64_000, "lion"), plan)[0]


def cost(setting: Published, updates: int) -> float:
    """What a length costs on the authors' curve, in nats more than their best hand-set run; 0 at best."""
    lengths, losses = zip(*points()[0][setting], strict=True)
    return float(np.interp(math.log(updates), np.log(lengths), losses)) - min(losses)


def needed(setting: Published) -> tuple[int, int]:
    """The hand-set lengths whose loss is within 0.01 nats of the best: the shortest and the longest."""
    some = points()[0][setting]
    near = [at for at, loss in some if loss <= min(loss for _, loss in some) + 0.01]
    return near[0], near[-1]


def rule(setting: Published) -> core.Plan:
    """The default, for the optimizer's geometry."""
    return plan_of(setting.steps, geometry=GEOMETRIES[setting.optimizer])


def earlier(setting: Published) -> core.Plan:
    """The default until the geometry decided: half of the gap, the loss averaged over 5 % of the run."""
    longest, half = min(0.5, max(0.2, 2_000 / setting.steps)), 0.5 * core.EXPECTED_FALL * FIRST_LOSS
    return plan_of(setting.steps, max_warmup=longest, smoothing=0.05, peak_gap=half)


def published_table() -> str:
    """CSV: for each setting what its runs need, and the length and cost of the default, now and earlier."""
    hand, adaptive = points()
    lines = []
    for setting in sorted(hand, key=lambda one: (list(TITLES).index(one.optimizer), one)):
        low, high = needed(setting)
        row: list[object] = [TITLES[setting.optimizer], setting.size, setting.batch, f"{setting.steps:,}"]
        row.append(f"{100 * low / setting.steps:.2g}–{100 * high / setting.steps:.2g}")
        for plan in (rule(setting), earlier(setting)):
            updates, _ = length(setting, plan)
            row += [f"{100 * updates / setting.steps:.1f}", _nats(cost(setting, updates))]
        best = min(loss for _, loss in hand[setting])
        lines.append([*row, _nats(adaptive[setting] - best)])
    return comma_separated(
        ["optimizer", "size", "batch", "T", "within 0.01 nats of the best, % of T", "default, % of T", "its cost, nats",
         "earlier default, % of T", "its cost, nats", "their Algorithm 1, nats"], lines,
    )  # fmt: skip


def published_costs_table() -> str:
    """CSV: the mean and the worst cost by optimizer, of the default now and earlier, 10 % of the run, Algorithm 1."""
    hand, adaptive = points()
    lines = []
    for optimizer, title in TITLES.items():
        some = [one for one in hand if one.optimizer == optimizer]
        costs = {
            "default": [cost(one, length(one, rule(one))[0]) for one in some],
            "earlier": [cost(one, length(one, earlier(one))[0]) for one in some],
            "10%": [cost(one, one.steps // 10) for one in some],
            "paper": [adaptive[one] - min(loss for _, loss in hand[one]) for one in some],
        }
        lines.append([title, len(some), *(f"{np.mean(each):+.3f} ({max(each):+.3f})" for each in costs.values())])
    return comma_separated(["optimizer", "settings", "default", "earlier default", "10%", "their Algorithm 1"], lines)


def _nats(loss: float) -> str:
    return f"{loss:+.3f}" if loss < 1 else "diverged"


@styled
def geometry_figure() -> Figure:
    """The authors' final losses against the length of the warm-up at 124M, and what the default would have taken."""
    figure = Figure(figsize=(7.6, 3.5), layout="constrained")
    panels: Sequence[Axes] = figure.subplots(1, 2, sharex=True)
    for axes, optimizer in zip(panels, ("muon", "lion"), strict=True):
        for steps, colour, above in ((64_000, BLUE, 1), (128_000, ORANGE, -1)):
            setting = Published("124M", 32, steps, optimizer)
            lengths, losses = zip(*points()[0][setting], strict=True)
            axes.plot([100 * at / steps for at in lengths], losses, "o-", color=colour, ms=4, lw=1.2,
                      label=f"{steps:,} updates, by hand")  # fmt: skip
            updates, _ = length(setting, rule(setting))
            share, expected = 100 * updates / steps, cost(setting, updates) + min(losses)
            axes.plot(share, expected, "*", color=colour, ms=17, mec="white", mew=0.8, zorder=3, ls="",
                      label="the default")  # fmt: skip
            axes.annotate(f"{share:.2g}%", (share, expected), xytext=(0, 13 * above - 4), textcoords="offset points",
                          color=colour, ha="center", fontweight="bold", fontsize=10)  # fmt: skip
        axes.set(xscale="log", xlabel="warm-up, % of the run", title=f"{TITLES[optimizer]}, 124M", xlim=(0.03, 60))
        axes.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
        axes.margins(y=0.12)
    panels[0].set(ylabel="final validation loss")
    panels[0].legend(loc="upper left", bbox_to_anchor=(0.0, 0.66), fontsize=9)
    panels[1].axhline(RUINED, color=GREY, lw=0.9, ls="--")
    panels[1].annotate("above: diverged", (0, RUINED), xytext=(4, 4), xycoords=("axes fraction", "data"),
                       textcoords="offset points", color=INK, fontsize=10)  # fmt: skip
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables and draw the figure."""
    print(f"Their adaptive run under Lion: 11,972 updates of warm-up; the model says {switch():,}\n")
    print(published_costs_table(), published_table(), sep="\n")
    Path("docs/figures/geometry.png").write_bytes(encoded(geometry_figure(), "png"))
