"""What README, docs/evidence.md and docs/how-it-works.md say first: the default is an insurance, and its length.

A hand-set length that is too short costs little in most settings and ruins some. The settings are split by whether
they need a warm-up at all: whether none costs at least `NEEDED` percent of the progress.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.analysis.statistics import Estimate
from autowarm.plotting import GREY, INK, ORANGE, styled
from autowarm.schedule.core import EXPECTED_FALL, PEAK_GAP

from .. import shapes
from ..cells import DEFAULT, TUNING, TUNING_SCHEDULE, title, tuned_rates
from ..plans import lag, realistic, transfer
from ..regret import Judged, bed, excess, judged
from ..rows import Rows

SHOWN = (DEFAULT, "linear 0", "linear 0.02", "linear 0.1", "linear 0.4")
NEEDED = 2.0  # percent of the progress
_SHORTEST = 1_000  # updates; shorter runs decide nothing
NEED, NEED_NOT, HOT, UNSEEN = "need a warm-up", "hardly need one", "three times the tuned rate", "unseen tasks"
LAST = "the last unseen tasks"
Regrets = Mapping[str, float]


class Group(NamedTuple):
    """Settings that are shown together: their name in the table, and the regrets of each by choice of warm-up."""

    name: str
    regrets: Sequence[Regrets]

    def costs(self, choice: str) -> list[float]:
        """What one choice costs in each setting, in percent of the progress."""
        return [one[choice] for one in self.regrets]

    def difference(self, choice: str) -> Estimate:
        """What a choice costs more than the default, over the settings."""
        return Estimate(tuple(one[choice] - one[DEFAULT] for one in self.regrets))


def groups(data: Path) -> dict[str, Group]:
    """The groups by a short name, from the rows in the folder docs/data.

    Raises:
        LabError: a planned run is missing.
    """
    main = long_settings(data)
    rates = tuned_rates(Rows.load(data / "studies" / "warm-up.jsonl"), TUNING, TUNING_SCHEDULE)
    bedded = Rows.load(data / "studies" / "realistic.jsonl")
    last = judged(data, "unseen")

    def hot(one: Judged) -> bool:
        cell = one.setting.cell
        return cell.steps == _SHORTEST and cell.lr > 2 * rates.get((cell.task, cell.optimizer, cell.steps), math.inf)

    def some(name: str, which: Callable[[Judged], bool], found: Iterable[Judged] = main) -> Group:
        return Group(name, [one.regrets for one in found if which(one)])

    def tuned(steps: int, seeds: Sequence[int]) -> Group:
        name = f"{steps:,} updates, each at its tuned rate"
        return Group(name + (", one seed" if len(seeds) == 1 else ""), [*bed(bedded, steps, seeds).values()])

    return {
        NEED: some(f"no warm-up costs {NEEDED:g}% or more", lambda one: one.regrets["linear 0"] >= NEEDED),
        NEED_NOT: some("it costs less", lambda one: one.regrets["linear 0"] < NEEDED),
        HOT: some("1,000 updates at three times the tuned rate", hot),
        "4,000": tuned(4_000, realistic.TEST_SEEDS),
        "16,000": tuned(16_000, realistic.TEST_SEEDS),
        "64,000": tuned(64_000, [realistic.TUNING_SEED]),
        UNSEEN: some("eleven unseen tasks, 1,000 updates", _decides, [*judged(data, "fresh"), *last]),
        LAST: some("the last six of these", _decides, last),
    }  # fmt: skip


def long_settings(data: Path) -> list[Judged]:
    """The settings that single choices are judged by, without the shortest runs."""
    found = [*judged(data, "warm-up"), *judged(data, "horizon")]
    return [*filter(_decides, found)]


def _decides(one: Judged) -> bool:
    return one.setting.cell.steps >= _SHORTEST


def insurance_table(found: Mapping[str, Group]) -> str:
    """CSV: a row for each group, with the mean and the worst regret of each choice."""
    lines = [
        [group.name, len(group.regrets), *(_mean_and_worst(group.costs(choice)) for choice in SHOWN)]
        for group in found.values()
    ]
    return comma_separated(["settings", "n", *map(title, SHOWN)], lines)


def _mean_and_worst(costs: Sequence[float]) -> str:
    return f"{statistics.fmean(costs):.2f} ({max(costs):.1f})"


def cost_table(found: Mapping[str, Group]) -> str:
    """CSV: a row for each choice, where a warm-up is needed, where it hardly is, and on unseen tasks."""
    need, hardly, unseen = (found[name].regrets for name in (NEED, NEED_NOT, UNSEEN))
    shown = {
        f"{len(need)} settings that {NEED}": found[NEED],
        f"{len(hardly)} that {NEED_NOT}": found[NEED_NOT],
        f"{len(unseen)} on {UNSEEN}": found[UNSEEN],
    }
    lines = [
        [f"**{title(choice)}**" if choice == DEFAULT else title(choice),
         *(_mean_and_worst(group.costs(choice)) for group in shown.values())]
        for choice in SHOWN
    ]  # fmt: skip
    return comma_separated(["warm-up", *shown], lines)


@styled
def insurance_figure(found: Mapping[str, Group]) -> Figure:
    """Mean regrets as bars, on one axis for settings that need a warm-up and those that do not; the worst in words."""
    figure = Figure(figsize=(7.6, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    places = range(len(SHOWN))[::-1]
    for axes, name in ((left, NEED), (right, NEED_NOT)):
        group = found[name]
        means = [statistics.fmean(group.costs(choice)) for choice in SHOWN]
        colours = [ORANGE if choice == DEFAULT else GREY for choice in SHOWN]
        axes.barh(places, means, color=colours, height=0.62)
        for place, choice, mean in zip(places, SHOWN, means, strict=True):
            text = f"{mean:.1f}  (worst {max(group.costs(choice)):.0f})"
            axes.annotate(text, (mean, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=10,
                          color=INK, fontweight="bold" if choice == DEFAULT else "normal")  # fmt: skip
        axes.grid(visible=False)
        axes.set_title(f"{len(group.regrets)} settings that {name}", fontsize=11)
    longest = max(statistics.fmean(found[NEED].costs(choice)) for choice in SHOWN)
    left.set_xlim(0, 1.55 * longest)
    left.set_yticks(places, [title(choice) for choice in SHOWN])
    figure.supxlabel("what the same warm-up everywhere costs, % of the progress", fontsize=11)
    return figure


def scale_table(data: Path) -> str:
    """CSV: how long the default's warm-up is by length of run, and what part of it is the average's lag."""
    by_length: dict[int, list[tuple[float, float]]] = {}
    for name in ("warm-up", "horizon"):
        rows = Rows.load(data / "studies" / f"{name}.jsonl")
        for one in judged(data, name):
            cell = one.setting.cell
            if cell.steps >= _SHORTEST:
                runs = rows.runs("cells", cell, DEFAULT).values()
                lagged = statistics.fmean(lag_share(row["train_loss"] / row["first_loss"]) for row in runs)
                by_length.setdefault(cell.steps, []).append((one.warmup, lagged))
    lines = []
    for steps, some in sorted(by_length.items()):
        lengths = [length for length, _ in some]
        low, median, high = np.quantile(lengths, (0.25, 0.5, 0.75))
        of_it = f"{100 * statistics.median(lagged / length for length, lagged in some):.0f}"
        lines.append([f"{steps:,}", len(some), f"{100 * median:.1f} ({100 * low:.1f}–{100 * high:.1f})",
                      f"{median * steps:,.0f}", of_it if steps >= 10 * _SHORTEST else "–"])  # fmt: skip
    headings = ["T", "settings", "% of T (quartiles)", "updates", "of it the average's lag, %"]
    return comma_separated(headings, lines)


def lag_share(last: float, smoothing: float = 0.05) -> float:
    """The share of a run after which the average ends a warm-up whose loss falls to its last value in one update.

    Args:
        last: the last loss as a share of the first; losses below f* count as f*.
    """
    last = max(last, 1.0 - EXPECTED_FALL)
    end = 1.0 - EXPECTED_FALL * (1.0 - PEAK_GAP)  # the average's share of f(x0) at Δ'
    return smoothing * math.log((1.0 - last) / (end - last)) if last < end else math.nan


def verdicts_table(data: Path, found: Mapping[str, Group]) -> str:
    """CSV: each claim with its n, what the runs show with its standard error, and what would refute it."""
    tenth = {name: group.difference("linear 0.1") for name, group in found.items()}
    more = {name: f"{_said(one)} more (in {sum(x > 0 for x in one.values)})" for name, one in tenth.items()}
    hardly = Estimate(tuple(found[NEED_NOT].costs(DEFAULT)))
    worst = {choice: max(found[LAST].costs(choice)) for choice in SHOWN}
    averages = Rows.load(data / "studies" / "lag.jsonl")
    shorter = [lag.costs(averages, cell)[lag.SHORT] for steps in lag.LENGTHS for cell in lag.settings(steps)]
    forms = Rows.load(data / "studies" / "shapes.jsonl")
    seeds = shapes.finished(forms)
    tuned = transfer.with_default(Rows.load(data / "studies" / "fine-tuning.jsonl"))
    both = [excess(tuned, setting, (DEFAULT, transfer.EARLIER)) for setting in transfer.FINE_TUNING.judged(tuned)]
    behind = [one[DEFAULT].mean for one in both]
    sooner = Estimate(tuple(one[DEFAULT].mean - one[transfer.EARLIER].mean for one in both))
    settings = f"{len(shapes.TUNED) * len(shapes.RATES)} settings, {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    error = "a difference of less than two standard errors"
    lines = [
        ["Where a run needs a warm-up, 10% of it costs more", _n(found[NEED]), more[NEED], error],
        ["Where it hardly needs one, the default costs little", _n(found[NEED_NOT]), _said(hardly),
         "0.5% in the mean"],
        ["At three times the tuned rate, 10% costs more", _n(found[HOT]), more[HOT], error],
        ["With tuned rates, 10% costs no less", "4 optimizers, 3 seeds, T = 4,000; 16,000",
         f"{more['4,000']}; {more['16,000']}", "10% ahead by two standard errors"],
        ["On six unseen tasks, by a rule written before, 10% costs at most 0.25% less, and more in its worst setting",
         _n(found[LAST]), f"{more[LAST]}; worst {worst['linear 0.1']:.1f}%, the default {worst[DEFAULT]:.1f}%",
         "more than that, or a worse setting"],
        ["From 16,000 updates on, with clipping, an average over 250 updates is as good as one over 5% of the run",
         f"{len(shorter)} settings, 1 or 2 seeds", f"{_said(Estimate(tuple(shorter)))} more, worst {max(shorter):.2f}%",
         "0.1% in the mean, or 0.5% in a setting"],
        ["A rate linear in the gap is no better than η(Δ)", settings,
         f"{_said(shapes.over_settings(forms, shapes.LINEAR, seeds))} more", "it is ahead by two standard errors"],
        ["A ramp as long as the default's warm-up, which nobody knows before the run, is better than η(Δ)", settings,
         f"{_said(shapes.over_settings(forms, shapes.RAMP, seeds))} more", error],
        ["From trained weights, the default stays near the best length", f"{len(behind)} settings",
         f"{_said(Estimate(tuple(behind)))} of the loss, worst {max(behind):.1f}%", "a setting 1% behind"],
        ["There, a longest warm-up of 10% of the run is no better than 3%", f"{len(both)} settings",
         f"3% costs {_said(sooner)} of the loss more", "10% ahead by two standard errors"],
    ]  # fmt: skip
    return comma_separated(["claim", "n", "what the runs show, % of the progress", "what would refute it"], lines)


def _n(group: Group) -> str:
    return f"{len(group.regrets)} settings"


def _said(estimate: Estimate) -> str:
    return f"{estimate.mean:.2f} ± {estimate.stderr:.2f}%"
