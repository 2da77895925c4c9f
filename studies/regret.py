"""Judges warm-ups by one measure: regret as a share of the progress that the best hand-set warm-up makes.

The seeds that chose the best hand-set warm-up give the regret of every choice; as the best is then a little too good,
every regret is a little too high. The seeds of the test took no part in any choice, and say how far the default is
behind the chosen one.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autowarm.lab.analysis.statistics import Estimate
from autowarm.lab.config import LabError

from .cells import DEFAULT, EARLIER, HAND_SET, PAPER, Setting, settings, title
from .plans import horizon, realistic, transfer, unseen
from .rows import Cell, Rows
from .statistics import choose, mean_loss, regret

CHOICES: Mapping[str, str] = {
    DEFAULT: "the default",
    **{name: title(name) for name in (*HAND_SET, "tenth 0.4", "tenth 0.5", PAPER)},
}
"""One choice for every setting, by the study's names of schedules."""

CONSTANTS: Mapping[str, str] = {
    DEFAULT: "the default: Δ' = 0.5·Δ0, averaged over 5% of T",
    "share 0.31": "Δ' = 0.31·Δ0",
    "share 0.5 average 0.03": "averaged over 3% of T",
    EARLIER: "Δ' calibrated from κ",
}
"""The rule with other constants, as it was when they were chosen: f(x0) was the lowest of five losses."""

_LEARNT = 0.03  # less progress than this share of the first loss says nothing

SETTINGS: Mapping[str, Callable[[Rows], Iterable[Setting]]] = {
    "warm-up": settings,
    "horizon": lambda rows: (found for grid in horizon.GRIDS for found in grid.judged(rows)),
    "fresh": transfer.FRESH.judged,
    "unseen": unseen.UNSEEN.judged,
}
"""The settings of each study whose hand-set warm-ups were run at one rate."""


@dataclass(frozen=True)
class Judged:
    """What each choice costs in a setting.

    Args:
        setting: it.
        best: the best hand-set warm-up, by the seeds that choose.
        regrets: the regret of every choice that was run, on the seeds that choose, in percent of the progress.
        behind: the default's loss less that of `best` on the seeds of the test, in the same unit; None until they are
            run.
        warmup: the mean share of the run that the default's warm-up takes, over all seeds.
        ended: what ended the default's warm-ups, with their numbers.
    """

    setting: Setting
    best: str
    regrets: Mapping[str, float]
    behind: Estimate | None
    warmup: float
    ended: Counter[str]


def judged(data: Path, study: str) -> list[Judged]:
    """Judge every setting of a stored study in which the default has been run and something is learnt.

    Args:
        data: the folder docs/data of a checkout.
        study: a name of `SETTINGS`.

    Raises:
        LabError: the run of a hand-set warm-up is missing.
    """
    rows = Rows.load(data / "studies" / f"{study}.jsonl")
    others = Rows.load(data / "studies" / "rule.jsonl")
    run = [setting for setting in SETTINGS[study](rows) if setting.default_is_run(rows, setting.seeds.choice)]
    return [found for setting in run if (found := judge(rows, setting, others)) is not None]


def judge(rows: Rows, setting: Setting, others: Rows | None = None) -> Judged | None:
    """Judge one setting; None if nothing is learnt in it. `others` holds the rule with other constants.

    Raises:
        LabError: a run is missing.
    """
    cell, seeds = setting.cell, setting.seeds
    best = setting.best(rows)
    least = mean_loss(rows.losses("cells", cell, best), seeds.choice)
    first = rows.first_loss("cells", cell, best, seeds.choice)
    if not first - least > _LEARNT * abs(first):
        return None
    regrets = {}
    for name in {*setting.hand_set, *CHOICES, *CONSTANTS}:
        losses = rows.losses("cells", cell, name) or (others or Rows()).losses("cells", cell, name)
        if all(seed in losses for seed in seeds.choice):
            regrets[name] = statistics.fmean(regret(losses[seed], least, first) for seed in seeds.choice)
    ours = {**rows.runs("cells", cell, DEFAULT, seeds.choice), **rows.runs("cells", cell, DEFAULT)}
    return Judged(
        setting, best, regrets, _behind(rows, setting, best),
        statistics.fmean(row["warmup_steps"] for row in ours.values()) / cell.steps,
        Counter(row["ended_by"] for row in ours.values()),
    )  # fmt: skip


def _behind(rows: Rows, setting: Setting, best: str) -> Estimate | None:
    cell, seeds = setting.cell, setting.seeds.test
    if not setting.default_is_run(rows, seeds):
        return None
    theirs, ours = (rows.losses("cells", cell, name, seeds) for name in (best, DEFAULT))
    first = rows.first_loss("cells", cell, DEFAULT, seeds)
    finite = [loss for loss in theirs.values() if math.isfinite(loss)]
    least = statistics.fmean(finite) if finite else -math.inf
    if not first > least > -math.inf:
        raise LabError(f"{cell.name}: {title(best)} makes no progress on the seeds of the test")
    return Estimate(tuple(regret(ours[seed], least, first) - regret(theirs[seed], least, first) for seed in seeds))


def excess(rows: Rows, setting: Setting, tested: Sequence[str] = (DEFAULT,)) -> Mapping[str, Estimate]:
    """What choices cost from trained weights, in percent of the loss, because the progress is small there.

    Returns:
        For the default, or what else is `tested`, its loss over that of the best hand-set warm-up, less one, on the
        seeds of the test; for each hand-set warm-up, the same on the seeds that choose.

    Raises:
        LabError: a run is missing.
    """
    best, found = setting.best(rows), {}
    for name in (*tested, *setting.hand_set):
        seeds = setting.seeds.test if name in tested else setting.seeds.choice
        losses, least = (rows.losses("cells", setting.cell, one, seeds) for one in (name, best))
        found[name] = Estimate(tuple(100 * (losses[seed] / least[seed] - 1) for seed in seeds))
    return found


def bed(rows: Rows, steps: int, seeds: Sequence[int] = realistic.TEST_SEEDS) -> dict[str, Mapping[str, float]]:
    """The regrets in the realistic bed after so many updates, by optimizer; without those whose runs are missing.

    Each warm-up is at its own rate, and these seeds judge: those of the test, or the one that tuned the rates.
    """
    found: dict[str, Mapping[str, float]] = {}
    for optimizer in realistic.OPTIMIZERS:
        cells = [Cell(realistic.TASK, optimizer, steps, lr) for lr in horizon.RATES[optimizer]]
        tested: dict[str, Cell] = {}  # at the best of its rates
        for name in {*realistic.HAND_SET, *CHOICES, *CONSTANTS}:
            tried = {cell: rows.losses(realistic.PART, cell, name) for cell in cells}
            if run := {cell: losses for cell, losses in tried.items() if {*seeds} <= losses.keys()}:
                tested[name] = choose(run, seeds)
        if not {*realistic.hand_set(steps)} <= tested.keys():
            continue
        first = rows.first_loss(realistic.PART, tested["linear 0"], "linear 0", seeds)  # the same at every rate
        losses = {name: rows.losses(realistic.PART, cell, name) for name, cell in tested.items()}
        best = min(mean_loss(losses[name], seeds) for name in realistic.hand_set(steps))
        found[optimizer] = {
            name: statistics.fmean(regret(some[seed], best, first) for seed in seeds) for name, some in losses.items()
        }
    return found


def mean_and_worst(regrets: Sequence[float | None]) -> tuple[str, str]:
    """The mean and the worst in text; dashes if a setting is missing."""
    known = _whole(regrets)
    return (f"{statistics.fmean(known):.2f}", f"{max(known):.1f}") if known else ("–", "–")


def median(regrets: Sequence[float | None]) -> str:
    """The median in text; a dash if a setting is missing."""
    known = _whole(regrets)
    return f"{statistics.median(known):.2f}" if known else "–"


def _whole(regrets: Sequence[float | None]) -> list[float]:
    known = [x for x in regrets if x is not None]
    return known if len(known) == len(regrets) else []
