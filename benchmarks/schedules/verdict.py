"""From runs to verdicts: per cell the best hand-set warm-up, the paired difference, the regret of each fixed share."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from cells import HAND_SET, SELECTION_SEEDS, TEST_SEEDS
from run import Cell
from store import rows

__all__ = ["DEFAULT", "TOLERANCE", "Verdict", "judge", "loss_of"]

DEFAULT = "default"
TOLERANCE = 0.005
# A diverged run counts as a loss this many times the best one, lest one cell decide every mean.
_DIVERGED = 2.0
_LEARNT = 0.97


@dataclass(frozen=True)
class Verdict:
    """One cell's result. Losses are relative to the best hand-set warm-up's.

    Attributes:
        best: the share of the run whose linear warm-up was best on the selection seeds.
        loss: its mean held-out loss on the test seeds.
        difference: default − best, in parts of ``loss``; paired over the test seeds.
        stderr: of the difference.
        differences: the same, seed by seed.
        seeds: how many were compared.
        hand: mean loss of each hand-set share on the selection seeds.
        regret: each hand-set share's, and the default's, on the selection seeds: loss / the best share's − 1.
        paper: Algorithm 1's regret, or None.
        diverged: of the default's runs, how many.
        unfinished: of the default's runs, how many ended in warm-up.
        warmup: mean share of the run that the default's warm-up took.
        learnt: whether the best hand-set warm-up ends below 0.97 of the first loss: where nothing is learnt, all are
            equal and a comparison says nothing.
    """

    cell: Cell
    best: float
    loss: float
    difference: float
    stderr: float
    differences: tuple[float, ...]
    seeds: int
    hand: dict[float, float]
    regret: dict[float | str, float]
    paper: float | None
    diverged: int
    unfinished: int
    warmup: float
    learnt: bool

    @property
    def counted(self) -> bool:
        """Whether the comparison is sharp enough to count."""
        return self.learnt and self.stderr <= TOLERANCE

    @property
    def passed(self) -> bool:
        return self.difference <= max(2 * self.stderr if self.counted else 0.0, TOLERANCE)


def loss_of(row: dict) -> float:
    """A run's held-out loss; infinite if it diverged."""
    return math.inf if row["diverged"] or row["val_loss"] is None else row["val_loss"]


def best_share(folder: Path, cell: Cell) -> tuple[float, dict[float, float]]:
    """The hand-set share with the lowest mean on the selection seeds, and all means. The shorter one wins a tie."""
    known = rows(folder, cell)
    hand = {
        share: statistics.fmean(loss_of(known[name, seed]) for seed in SELECTION_SEEDS)
        for share, name in HAND_SET.items()
    }
    return min(hand, key=lambda share: (hand[share], share)), hand


def compared(folder: Path, cell: Cell, default: str = DEFAULT) -> bool:
    """Whether all its runs are there."""
    known = rows(folder, cell)
    best, _ = best_share(folder, cell)
    return all((name, seed) in known for name in (default, HAND_SET[best]) for seed in TEST_SEEDS) and all(
        (default, seed) in known for seed in SELECTION_SEEDS
    )


def judge(folder: Path, cell: Cell, default: str = DEFAULT) -> Verdict:
    """Needs the hand-set grid, the default on all seeds, and the best share on the test seeds."""
    known = rows(folder, cell)
    best, hand = best_share(folder, cell)
    tested = sorted(seed for name, seed in known if name == HAND_SET[best] and seed not in SELECTION_SEEDS)
    tested = [seed for seed in tested if (default, seed) in known]
    reference = [loss_of(known[HAND_SET[best], seed]) for seed in tested]
    ours = [loss_of(known[default, seed]) for seed in tested]
    finite = [x for x in reference if math.isfinite(x)]
    scale = statistics.fmean(finite) if finite else known[default, tested[0]]["first_loss"]
    capped = [
        (min(a, _DIVERGED * scale) - min(b, _DIVERGED * scale)) / scale for a, b in zip(ours, reference, strict=True)
    ]

    def regret(losses: list[float]) -> float:
        if not math.isfinite(hand[best]):
            return 0.0
        return statistics.fmean(min(x, _DIVERGED * hand[best]) for x in losses) / hand[best] - 1

    by_share: dict[float | str, float] = {
        share: regret([loss_of(known[name, seed]) for seed in SELECTION_SEEDS]) for share, name in HAND_SET.items()
    }
    by_share["default"] = regret([loss_of(known[default, seed]) for seed in SELECTION_SEEDS])
    paper = [loss_of(known["paper", seed]) for seed in SELECTION_SEEDS if ("paper", seed) in known]
    of_default = [known[default, seed] for seed in (*SELECTION_SEEDS, *tested)]
    return Verdict(
        cell=cell,
        best=best,
        loss=scale,
        difference=statistics.fmean(capped),
        stderr=statistics.stdev(capped) / math.sqrt(len(capped)),
        differences=tuple(capped),
        seeds=len(tested),
        hand=hand,
        regret=by_share,
        paper=regret(paper) if paper else None,
        diverged=sum(row["diverged"] for row in of_default),
        unfinished=sum(row["ended_by"] is None for row in of_default),
        warmup=statistics.fmean(row["warmup_steps"] for row in of_default) / cell.steps,
        learnt=scale < _LEARNT * known[default, tested[0]]["first_loss"],
    )
