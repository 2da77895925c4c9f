"""What a warm-up costs, by two measures; pure functions of stored rows.

**Regret**, its cost at one rate: 100·(loss − best)/(first − best), in percent of the progress that the best hand-set
warm-up makes. The best of several looks better than it is on the seeds that chose it, so every regret is a little too
high. No default was chosen on these seeds.

**Learning-rate sensitivity**, its cost at a rate that is not the best (Wortsman et al., arXiv 2309.14322): over a log
grid of peak rates, the mean of min(loss, first loss), less the method's best loss. The **excess** is the same less the
best loss of all methods: a method that is bad everywhere has a small sensitivity and a large excess.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from autowarm.lab.analysis.statistics import Losses

from .entries import DEFAULT, PAPER
from .rows import Cell, PlannedRow, Row, Rows

TUNING_SCHEDULE, TUNING_SEED = "linear 0.1", 100
CHOICES = (DEFAULT, *(f"linear {share:g}" for share in (0, 0.02, 0.05, 0.1, 0.2, 0.4)), "tenth 0.4", "tenth 0.5", PAPER)
"""What one may choose for every setting."""
_LEARNT = 0.03  # less progress than this share of the first loss says nothing


STUDIES: Mapping[str, tuple[int, ...]] = {
    "warm-up": (0, 1),
    "horizon": (0, 1),  # from 16,000 updates on, 0 alone
    "fresh": (0, 1),
    "unseen": (20, 21, 22),
}
"""The finished studies whose hand-set warm-ups were run at one rate, each with the seeds that choose the best one."""


def stored(data: Path, study: str) -> Rows:
    """The rows of a finished study, with the default's, which the judgement by geometry made."""
    rows, judgement = (Rows.load(data / "studies" / f"{name}.jsonl") for name in (study, "geometry"))
    beds = {(row["part"], row["cell"]["task"], row["cell"]["steps"]) for row in rows}
    ours = (row for row in judgement if row["schedule"] == DEFAULT)
    return Rows([*rows, *(row for row in ours if (row["part"], row["cell"]["task"], row["cell"]["steps"]) in beds)])


def mean_loss(losses: Losses, seeds: Sequence[int]) -> float:
    """The mean over the seeds, which must be there; infinite if one of the runs diverged."""
    if missing := [seed for seed in seeds if seed not in losses]:
        raise ValueError(f"no loss for the seeds {missing}, only for {sorted(losses)}")
    return math.fsum(losses[seed] for seed in seeds) / len(seeds)


def regret(loss: float, best: float, first: float) -> float:
    """What a choice costs as a share of the progress, in percent. A run that diverged, at ∞, has made no progress.

    Example:
        >>> from studies.measures import regret
        >>> regret(2.1, best=2.0, first=4.0), regret(float("inf"), best=2.0, first=4.0)
        (5.0, 100.0)
    """
    return round(100 * ((first if math.isinf(loss) else loss) - best) / (first - best), 12)


def updates_to(row: Row, target: float) -> int | None:
    """After how many updates a run's training loss is at the target, if the row has a curve, and it ever is."""
    length, curve = math.ceil(row["cell"]["steps"] / 50), row.get("curve", ())
    return next((length * at for at, loss in enumerate(curve, 1) if loss is not None and loss <= target), None)


def tuned_rates(rows: Iterable[Row]) -> Mapping[tuple[str, str, int], float]:
    """The rate of lowest loss under the tuning's warm-up for each (task, optimizer, updates); the lower of two."""
    best: dict[tuple[str, str, int], tuple[float, float]] = {}
    for row in rows:
        run = PlannedRow.of(row)
        if (run.part, run.schedule) == ("tuning", TUNING_SCHEDULE):
            key, loss = (run.cell.task, run.cell.optimizer, run.cell.steps), row["val_loss"]
            tried = math.inf if row["diverged"] or loss is None else loss, run.cell.lr
            best[key] = min(best.get(key, tried), tried)
    return {key: lr for key, (_, lr) in best.items()}


# At one rate


@dataclass(frozen=True)
class Setting:
    """A cell whose hand-set warm-ups have been run, and the seeds that choose the best of them."""

    cell: Cell
    hand_set: Sequence[str]
    seeds: tuple[int, ...]

    def best(self, rows: Rows) -> str:
        """The best hand-set warm-up on the seeds that choose."""
        return min(self.hand_set, key=lambda name: mean_loss(rows.losses("cells", self.cell, name), self.seeds))


def settings(rows: Rows, seeds: Sequence[int]) -> list[Setting]:
    """The settings of a study in which the default has been run, with the hand-set warm-ups that were run there."""
    found = []
    for cell, schedules in rows.cells("cells").items():
        choice = tuple(seed for seed in seeds if seed in rows.runs("cells", cell, "linear 0"))
        hand_set = [
            name for name in schedules
            if name.startswith(("linear ", "tenth ")) and {*choice} <= rows.runs("cells", cell, name).keys()
        ]  # fmt: skip
        if choice and {*choice} <= rows.runs("cells", cell, DEFAULT).keys():
            found.append(Setting(cell, hand_set, choice))
    return found


@dataclass(frozen=True)
class Judged:
    """What each choice costs in a setting, in percent of the progress."""

    setting: Setting
    best: str  # the best hand-set warm-up, by the seeds that choose
    regrets: Mapping[str, float]  # of every choice that was run, on the seeds that choose
    warmup: float  # the mean share of the run that the default's warm-up takes, over all seeds
    ended: Counter[str]  # what ended the default's warm-ups


def judged(data: Path, study: str) -> list[Judged]:
    """Judge every setting of a stored study, a name of `STUDIES`, in which something is learnt."""
    rows = stored(data, study)
    found = (judge(rows, setting) for setting in settings(rows, STUDIES[study]))
    return [one for one in found if one is not None]


def judge(rows: Rows, setting: Setting) -> Judged | None:
    """Judge one setting; None if nothing is learnt in it. LabError if a run is missing."""
    cell, choice = setting.cell, setting.seeds
    best = setting.best(rows)
    least = mean_loss(rows.losses("cells", cell, best), choice)
    first = rows.first_loss("cells", cell, best, choice)
    if not first - least > _LEARNT * abs(first):
        return None
    ours = {**rows.runs("cells", cell, DEFAULT, choice), **rows.runs("cells", cell, DEFAULT)}
    regrets = {}
    for name in {*setting.hand_set, *CHOICES}:
        losses = rows.losses("cells", cell, name)
        if all(seed in losses for seed in choice):
            regrets[name] = statistics.fmean(regret(losses[seed], least, first) for seed in choice)
    return Judged(
        setting, best, regrets,
        statistics.fmean(row["warmup_steps"] for row in ours.values()) / cell.steps,
        Counter(row["ended_by"] for row in ours.values()),
    )  # fmt: skip


# At each warm-up's own rate


def at_own_rates(rows: Rows, part: str, steps: int, seeds: Sequence[int]) -> dict[str, Mapping[str, float]]:
    """The regrets after so many updates by optimizer and choice, each at its own rate, on these seeds.

    An optimizer is left out until every choice that has been run under another one has been run under it.
    """
    found: dict[str, dict[str, tuple[float, Cell, Losses]]] = {}
    for cell, schedules in rows.cells(part).items():
        for name in schedules:
            losses = rows.losses(part, cell, name)
            if cell.steps == steps and {*seeds} <= losses.keys():
                tried, tested = (mean_loss(losses, seeds), cell, losses), found.setdefault(cell.optimizer, {})
                tested[name] = min(tested.get(name, tried), tried, key=lambda one: one[0])
    every = {name for tested in found.values() for name in tested}
    regrets: dict[str, Mapping[str, float]] = {}
    for optimizer, tested in found.items():
        if tested.keys() == every:
            best = min(mean for name, (mean, _, _) in tested.items() if name.startswith(("linear ", "tenth ")))
            first = rows.first_loss(part, tested["linear 0"][1], "linear 0", seeds)  # the same at every rate
            regrets[optimizer] = {
                name: statistics.fmean(regret(losses[seed], best, first) for seed in seeds)
                for name, (_, _, losses) in tested.items()
            }
    return regrets


# At all rates


class Sweep(NamedTuple):
    """A bed at one length under an optimizer, at all rates."""

    rates: Sequence[float]
    curves: Mapping[str, Sequence[float]]  # by entry, the losses at the rates, means over the seeds
    first: float  # the loss before the first update

    def sensitivity(self, name: str) -> float:
        """The learning-rate sensitivity of an entry.

        Example:
            >>> from studies.measures import Sweep
            >>> Sweep([0.1, 0.3, 1.0], {"none": [3.0, 2.0, float("inf")]}, first=4.0).sensitivity("none")
            1.0
        """
        return self.excess(name, min(self.curves[name]))

    def excess(self, name: str, best: float | None = None) -> float:
        """Its mean loss, the first at most, less the best loss of all entries."""
        best = min(map(min, self.curves.values())) if best is None else best
        return statistics.fmean(min(loss, self.first) for loss in self.curves[name]) - min(best, self.first)


def sweep(rows: Rows, part: str, cells: Sequence[Cell], names: Iterable[str], seeds: Sequence[int]) -> Sweep | None:
    """The losses of these entries in cells that differ by their rates alone; None until all runs are made."""
    runs = {name: [rows.runs(part, cell, name) for cell in cells] for name in names}
    if not runs or not all({*seeds} <= one.keys() for some in runs.values() for one in some):
        return None
    first = statistics.fmean(one[seed]["first_loss"] for some in runs.values() for one in some for seed in seeds)
    curves = {}
    for name in runs:
        each = [rows.losses(part, cell, name) for cell in cells]
        curves[name] = [statistics.fmean(min(first, losses[seed]) for seed in seeds) for losses in each]
    return Sweep([cell.lr for cell in cells], curves, first)
