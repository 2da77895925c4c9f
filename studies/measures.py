"""What a warm-up costs, by two measures; pure functions of stored rows.

**Regret**, its cost at one rate: 100·(loss − best)/(first − best), in percent of the progress that the best hand-set
warm-up makes. Seeds that choose do not judge: the best of several options looks better than it is on the seeds that
chose it. So the seeds that chose the best hand-set warm-up give the regret of every choice, which is then a little too
high for all, and other seeds say how far the default is behind the chosen one.

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

from autowarm.lab.analysis.statistics import Estimate, Losses
from autowarm.lab.config import LabError

from .entries import DEFAULT, PAPER, title
from .rows import Cell, PlannedRow, Row, Rows

TUNING_SCHEDULE, TUNING_SEED = "linear 0.1", 100
CHOICES = (DEFAULT, *(f"linear {share:g}" for share in (0, 0.02, 0.05, 0.1, 0.2, 0.4)), "tenth 0.4", "tenth 0.5", PAPER)
"""What one may choose for every setting."""
_LEARNT = 0.03  # less progress than this share of the first loss says nothing


@dataclass(frozen=True)
class Seeds:
    """The seeds that choose an option, and the seeds that judge the choice. The two sets are disjoint."""

    choice: tuple[int, ...]
    test: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.choice or not self.test:
            raise ValueError(f"both choice and test need at least one seed, got {self}")
        if both := sorted(set(self.choice) & set(self.test)):
            raise ValueError(f"seeds that chose must not judge: {both} are in both choice and test")


STUDIES: Mapping[str, Seeds] = {
    "warm-up": Seeds((0, 1), (10, 11, 12, 13, 14)),
    "horizon": Seeds((0, 1), (10, 11, 12)),  # from 16,000 updates on, 0 alone chooses
    "fresh": Seeds((0, 1), (10, 11, 12, 13, 14)),
    "unseen": Seeds((20, 21, 22), (30, 31, 32)),
}
"""The finished studies whose hand-set warm-ups were run at one rate."""


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
    """A cell whose hand-set warm-ups have been run: some seeds choose the best of them, others test the choice."""

    cell: Cell
    hand_set: Sequence[str]
    seeds: Seeds

    def best(self, rows: Rows) -> str:
        """The best hand-set warm-up on the seeds that choose."""
        choice = self.seeds.choice
        return min(self.hand_set, key=lambda name: mean_loss(rows.losses("cells", self.cell, name), choice))


def settings(rows: Rows, seeds: Seeds) -> list[Setting]:
    """The settings of a study in which the default has been run, with the hand-set warm-ups that were run there."""
    found = []
    for cell, schedules in rows.cells("cells").items():
        choice = tuple(seed for seed in seeds.choice if seed in rows.runs("cells", cell, "linear 0"))
        hand_set = [
            name for name in schedules
            if name.startswith(("linear ", "tenth ")) and {*choice} <= rows.runs("cells", cell, name).keys()
        ]  # fmt: skip
        if choice and {*choice} <= rows.runs("cells", cell, DEFAULT).keys():
            found.append(Setting(cell, hand_set, Seeds(choice, seeds.test)))
    return found


@dataclass(frozen=True)
class Judged:
    """What each choice costs in a setting, in percent of the progress."""

    setting: Setting
    best: str  # the best hand-set warm-up, by the seeds that choose
    regrets: Mapping[str, float]  # of every choice that was run, on the seeds that choose
    behind: Estimate | None  # the default's loss less that of `best` on the seeds of the test, once they are run
    warmup: float  # the mean share of the run that the default's warm-up takes, over all seeds
    ended: Counter[str]  # what ended the default's warm-ups


def judged(data: Path, study: str) -> list[Judged]:
    """Judge every setting of a stored study, a name of `STUDIES`, in which something is learnt."""
    rows = Rows.load(data / "studies" / f"{study}.jsonl")
    found = (judge(rows, setting) for setting in settings(rows, STUDIES[study]))
    return [one for one in found if one is not None]


def judge(rows: Rows, setting: Setting) -> Judged | None:
    """Judge one setting; None if nothing is learnt in it. LabError if a run is missing."""
    cell, choice = setting.cell, setting.seeds.choice
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
        setting, best, regrets, _behind(rows, setting, best),
        statistics.fmean(row["warmup_steps"] for row in ours.values()) / cell.steps,
        Counter(row["ended_by"] for row in ours.values()),
    )  # fmt: skip


def _behind(rows: Rows, setting: Setting, best: str) -> Estimate | None:
    cell, seeds = setting.cell, setting.seeds.test
    if not {*seeds} <= rows.runs("cells", cell, DEFAULT).keys():
        return None
    theirs, ours = (rows.losses("cells", cell, name, seeds) for name in (best, DEFAULT))
    first = rows.first_loss("cells", cell, DEFAULT, seeds)
    finite = [loss for loss in theirs.values() if math.isfinite(loss)]
    least = statistics.fmean(finite) if finite else -math.inf
    if not first > least > -math.inf:
        raise LabError(f"{cell.name}: {title(best)} makes no progress on the seeds of the test")
    return Estimate(tuple(regret(ours[seed], least, first) - regret(theirs[seed], least, first) for seed in seeds))


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
