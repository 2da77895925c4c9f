"""Evaluates the runs of a cell: the best hand-set warm-up, our difference from it, and the cost of each choice."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autowarm.lab.analysis.statistics import CAP, Estimate, Losses, differences

from .cells import DEFAULT, EXTRA_SEEDS, HAND_SET, PAPER, SEEDS, cells
from .rows import Cell, Rows
from .statistics import Seeds, choose, exceeds, mean_loss, percent, regrets

TOLERANCE = 0.005  # relative: the largest difference that counts as none, and standard error that counts
ALL_SEEDS = Seeds(SEEDS.choice, (*SEEDS.test, *EXTRA_SEEDS))
_LEARNT = 0.97


@dataclass(frozen=True)
class Verdict:
    """One cell's result. Losses are relative to the best hand-set warm-up's.

    Attributes:
        cell: the setting.
        hand: mean loss of each hand-set warm-up on the seeds of the choice.
        best: the hand-set warm-up with the lowest of these losses.
        difference: default − best on the seeds of the test, relative to the loss of the best.
        regret: of each hand-set warm-up, "default" and "paper", on the seeds of the choice; empty if every hand-set
            warm-up diverged, or the best loss is zero.
        diverged: how many of the default's runs diverged.
        warmup: mean share of the run that the default's warm-up took.
        ended: how many of the default's warm-ups ended by "loss", and how many by "clock"; "" counts those that did
            not end.
        unit: mean loss of the best hand-set warm-up on the seeds of the test.
        first_loss: loss before training.
    """

    cell: Cell
    hand: Mapping[str, float]
    best: str
    difference: Estimate
    regret: Mapping[str, float]
    diverged: int
    warmup: float
    ended: Mapping[str, int]
    unit: float
    first_loss: float

    @property
    def mean(self) -> float:
        """The mean difference."""
        return self.difference.mean

    @property
    def stderr(self) -> float:
        """Its standard error."""
        assert self.difference.stderr is not None, "a cell is judged by at least two seeds"
        return self.difference.stderr

    @property
    def learnt(self) -> bool:
        """Whether the best hand-set warm-up ends below 0.97 of the first loss; if not, a comparison says nothing."""
        return self.unit < _LEARNT * self.first_loss

    @property
    def nats(self) -> float:
        """The mean difference in the loss's own unit."""
        return self.mean * self.unit

    @property
    def progress(self) -> float:
        """The mean difference, relative to how far the best hand-set warm-up lowers the first loss."""
        return self.nats / (self.first_loss - self.unit)

    @property
    def counted(self) -> bool:
        """Whether the comparison is sharp enough to count."""
        return self.learnt and self.stderr <= TOLERANCE

    @property
    def passed(self) -> bool:
        """Whether the default's loss is at most the tolerance or two standard errors higher, whichever is more."""
        return not exceeds(self.difference, TOLERANCE)


def hand_set(
    rows: Rows, cell: Cell, names: Sequence[str] = HAND_SET, choice: Sequence[int] = SEEDS.choice
) -> dict[str, Losses]:
    """The losses of each hand-set warm-up on the seeds of the choice, which must be there, and on all others."""
    for schedule in names:
        rows.runs("cells", cell, schedule, choice)
    return {schedule: rows.losses("cells", cell, schedule) for schedule in names}


def judge(
    rows: Rows, cell: Cell, seeds: Seeds = ALL_SEEDS, names: Sequence[str] = HAND_SET, schedule: str = DEFAULT
) -> Verdict:
    """Compare the default, or a form of it, with the best hand-set warm-up: some seeds choose it, others test it.

    Seeds of the test beyond the first five are left out unless both have been run on them.
    """
    options = hand_set(rows, cell, names, seeds.choice)
    best = choose(options, seeds.choice)
    both = options[best].keys() & rows.losses("cells", cell, schedule).keys()
    tested = [seed for seed in seeds.test if seed in SEEDS.test or seed in both]
    reference = rows.losses("cells", cell, best, tested)
    runs = rows.runs("cells", cell, schedule, (*seeds.choice, *tested))
    ours = rows.losses("cells", cell, schedule, runs)
    first_loss = runs[tested[0]]["first_loss"]
    finite = [loss for loss in reference.values() if math.isfinite(loss)]
    unit = math.fsum(finite) / len(finite) if finite else first_loss
    hand = {name: mean_loss(losses, seeds.choice) for name, losses in options.items()}
    paper = rows.losses("cells", cell, PAPER)
    also = {schedule: ours, PAPER: paper} if paper.keys() >= set(seeds.choice) else {schedule: ours}
    return Verdict(
        cell=cell,
        hand=hand,
        best=best,
        difference=differences(ours, reference, unit=unit, ceiling=CAP * unit),
        regret=regrets(options, seeds.choice, also) if 0 < hand[best] < math.inf else {},
        diverged=sum(row["diverged"] for row in runs.values()),
        warmup=statistics.fmean(row["warmup_steps"] for row in runs.values()) / cell.steps,
        ended=Counter(row["ended_by"] or "" for row in runs.values()),
        unit=unit,
        first_loss=first_loss,
    )


def verdicts(rows: Rows) -> list[Verdict]:
    """The verdicts of all cells. Cells that are not `learnt` enter no statistic."""
    return [judge(rows, cell) for cell in cells(rows)]


def headline(rows: Rows, judged: Sequence[Verdict]) -> dict[str, object]:
    """The numbers that both pages and the README state, by their names in the templates."""
    learnt = [v for v in judged if v.learnt]
    counted = [v for v in learnt if v.counted]
    passed = sum(v.passed for v in counted)
    lost = [v for v in learnt if v.diverged and math.isfinite(v.hand["linear 0.2"])]
    return {
        "cells": len(learnt),
        "counted": len(counted),
        "passed": passed,
        "part": 100 * passed / len(counted),
        "passed_all": sum(v.passed for v in learnt),
        "mean": percent(statistics.fmean(v.mean for v in learnt)),
        "mean_counted": percent(statistics.fmean(v.mean for v in counted)),
        "median": percent(statistics.median(v.mean for v in learnt)),
        "unfinished": sum(v.ended.get("", 0) for v in learnt),
        "lost": ", ".join(f"`{v.cell.name}`" for v in lost) or "none",
        "tolerance": 100 * TOLERANCE,
        "hours": sum(row["seconds"] for row in rows if row["part"] == "cells") / 3600,
    }
