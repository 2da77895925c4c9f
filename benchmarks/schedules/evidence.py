"""What the bed says of the product's claim: by kind, with corrected tests, beside fixed shares, peers and the sweep."""

import math
import statistics
from collections.abc import Callable
from pathlib import Path

from cells import HAND_SET, MORE_SHARES, RESULTS, SELECTION_SEEDS, TEST_SEEDS, cells, tuned
from peers import SCHEDULES, peer_cells, scheduled
from run import Cell
from scipy.stats import binomtest, false_discovery_control, ttest_1samp, wilcoxon
from store import rows
from verdict import DEFAULT, TOLERANCE, Verdict, compared, judge, loss_of

__all__ = [
    "CELLS", "batch_pairs", "batch_spread", "by_kind", "headline", "hours", "judged", "more_shares", "peers", "percent",
    "regrets", "share_name", "significant",
]  # fmt: skip

CELLS = RESULTS / "cells"
_FALSE_DISCOVERIES = 0.05
_DIVERGED = 2.0  # a diverged run's loss over the other's, lest one decide a mean
_EIGHTFOLD = {"llama-x8": "llama", "swin-x8": "swin"}


def percent(x: float) -> str:
    return f"{100 * x:+.2f}"


def share_name(share: float) -> str:
    return f"{100 * share:g} %" if share else "none"


def judged() -> list[Verdict]:
    """Of the cells whose runs are all there. Those that are not `learnt` go into no number."""
    return [judge(CELLS, c) for c in cells() if compared(CELLS, c)]


def hours(found: list[Verdict]) -> float:
    """What the cells' runs took in all."""
    return sum(row["seconds"] for v in found for row in rows(CELLS, v.cell).values()) / 3600


def headline(found: list[Verdict]) -> dict[str, float]:
    """The numbers of the claim."""
    counted = [v for v in found if v.counted]
    return {
        "cells": len(found),
        "counted": len(counted),
        "passed": sum(v.passed for v in counted),
        "mean": statistics.fmean(v.difference for v in found),
        "mean_counted": statistics.fmean(v.difference for v in counted),
        "median": statistics.median(v.difference for v in found),
        "passed_all": sum(v.difference <= max(2 * v.stderr, TOLERANCE) for v in found),
        "part": 100 * sum(v.passed for v in counted) / len(counted),
        "unfinished": sum(v.unfinished for v in found),
        "lost": sum(bool(v.diverged) and math.isfinite(v.hand[0.2]) for v in found),
    }


def by_kind(found: list[Verdict]) -> list[str]:
    """Lines of a table: the same numbers for each optimizer, task, horizon and size of batch."""
    kinds: list[tuple[str, Callable[[Cell], object]]] = [
        ("optimizer", lambda c: c.optimizer),
        ("task", lambda c: c.task),
        ("steps", lambda c: c.steps),
        ("batch, LLaMA and Swin of 200 steps", _batch),
    ]
    lines = [
        "| | cells | mean difference, % | counted | pass | regret of the best share for all of the kind |",
        "|---|---|---|---|---|---|",
    ]
    for name, kind in kinds:
        lines.append(f"| *{name}* | | | | | |")
        for value in dict.fromkeys(kind(v.cell) for v in found):
            if value is None:
                continue
            some = [v for v in found if kind(v.cell) == value]
            counted = [v for v in some if v.counted]
            mean = statistics.fmean(v.difference for v in some)
            share, least = min(
                ((share, statistics.fmean(v.regret[share] for v in some)) for share in HAND_SET), key=lambda p: p[1]
            )
            lines.append(
                f"| {value} | {len(some)} | {percent(mean)} | {len(counted)} | {sum(v.passed for v in counted)} "
                f"| {share_name(share)}: {percent(least)} % |"
            )
    return lines


def _batch(c: Cell) -> str | None:
    if c.steps != 200:
        return None
    if c.task in _EIGHTFOLD:
        return "eightfold"
    twins = {(other.task, other.optimizer) for other in cells() if other.task in _EIGHTFOLD}
    return "small" if any((big, c.optimizer) in twins for big, small in _EIGHTFOLD.items() if small == c.task) else None


def significant(found: list[Verdict]) -> dict[str, float]:
    """Paired t tests of the cells, corrected for their number (Benjamini–Hochberg), and tests over the cells."""
    p = [1.0 if len(set(v.differences)) == 1 else ttest_1samp(v.differences, 0.0).pvalue for v in found]
    certain = [v for v, q in zip(found, false_discovery_control(p), strict=True) if q <= _FALSE_DISCOVERIES]
    means = [v.difference for v in found]
    below = sum(x < 0 for x in means)
    return {
        "better": sum(v.difference < 0 for v in certain),
        "worse": sum(v.difference > 0 for v in certain),
        "much_worse": sum(v.difference > TOLERANCE for v in certain),
        "below": below,
        "sign": float(binomtest(below, sum(x != 0 for x in means)).pvalue),
        "wilcoxon": float(wilcoxon(means).pvalue),
    }


def regrets(found: list[Verdict]) -> dict[str, float]:
    """Mean regret of one share used everywhere, of the default and of Algorithm 1, on the selection seeds."""
    table = {share_name(share): statistics.fmean(v.regret[share] for v in found) for share in HAND_SET}
    table["default"] = statistics.fmean(v.regret["default"] for v in found)
    if all(v.paper is not None for v in found):
        table["Algorithm 1"] = statistics.fmean(v.paper for v in found if v.paper is not None)
    return table


def more_shares(found: list[Verdict]) -> tuple[int, dict[str, float]]:
    """In the cells that have them, and how many those are: mean regret of more fixed shares beside the others."""
    some, extra = [], {share: [] for share in MORE_SHARES}
    for v in found:
        known = rows(CELLS, v.cell)
        names = {share: f"linear {share:g}" for share in MORE_SHARES}
        if all((name, seed) in known for name in names.values() for seed in SELECTION_SEEDS):
            some.append(v)
            for share, name in names.items():
                losses = [min(loss_of(known[name, seed]), _DIVERGED * v.hand[v.best]) for seed in SELECTION_SEEDS]
                extra[share].append(statistics.fmean(losses) / v.hand[v.best] - 1)
    table = {share: statistics.fmean(v.regret[share] for v in some) for share in HAND_SET} if some else {}
    table |= {share: statistics.fmean(values) for share, values in extra.items() if values}
    named = {share_name(share): table[share] for share in sorted(table)}
    return len(some), named | ({"default": statistics.fmean(v.regret["default"] for v in some)} if some else {})


def peers(found: list[Verdict]) -> list[str]:
    """Lines of a table: what people use instead, against the default on the same seeds."""
    table: list[tuple[str, list[tuple[float, float]]]] = [
        ("the best of six hand-set lengths", [_against(CELLS, v.cell, HAND_SET[v.best], v.cell) for v in found])
    ]
    learnt = {v.cell for v in found}
    for name, about in zip(SCHEDULES, ("WSD, 10 % warm-up", "GreedyLR"), strict=True):
        made = [c for c in scheduled() if c in learnt and _made(CELLS, c, name)]
        table.append((about, [_against(CELLS, c, name, c) for c in made]))
    rates = tuned()
    for optimizer, about in (("schedule-free", "Schedule-Free AdamW, tuned rate"), ("prodigy", "Prodigy")):
        pairs = []
        for c in peer_cells():
            ours = Cell(c.task, "adamw", c.steps, rates[c.task, "adamw", c.steps])
            if c.optimizer == optimizer and ours in learnt and _made(RESULTS / "peers", c, "own"):
                pairs.append(_against(RESULTS / "peers", c, "own", ours))
        table.append((about, pairs))
    lines = [
        "| instead of the default | cells | mean, % | median, % | better by 2 s.e. | worse by 2 s.e. |",
        "|---|---|---|---|---|---|",
    ]
    for about, pairs in table:
        if pairs:
            means = [mean for mean, _ in pairs]
            better = sum(mean < -2 * error for mean, error in pairs)
            worse = sum(mean > 2 * error for mean, error in pairs)
            lines.append(
                f"| {about} | {len(pairs)} | {percent(statistics.fmean(means))} | {percent(statistics.median(means))} "
                f"| {better} | {worse} |"
            )
    return lines


def _made(folder: Path, c: Cell, name: str) -> bool:
    known = rows(folder, c)
    return all((name, seed) in known for seed in TEST_SEEDS)


def _against(folder: Path, c: Cell, name: str, ours: Cell) -> tuple[float, float]:
    """A schedule's loss over the default's, less one, on the seeds of the comparison: mean and standard error."""
    theirs, default = rows(folder, c), rows(CELLS, ours)
    ratios = []
    for seed in TEST_SEEDS:
        loss, base = loss_of(theirs[name, seed]), loss_of(default[DEFAULT, seed])
        # Where the default alone diverged, its loss counts as so many times the other's; where both did, as level.
        ratio = min(loss / base, _DIVERGED) if math.isfinite(base) else 1 / _DIVERGED if math.isfinite(loss) else 1.0
        ratios.append(ratio - 1)
    return statistics.fmean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))


def batch_pairs(found: list[Verdict]) -> list[tuple[str, str, float, float]]:
    """Task, optimizer, and how much the worst length loses: with a small batch, with one eight times as large."""
    worst = {
        (v.cell.task, v.cell.optimizer): max(v.regret[share] for share in HAND_SET)
        for v in found
        if v.cell.steps == 200
    }
    return [
        (small, optimizer, worst[small, optimizer], worst[big, optimizer])
        for big, small in _EIGHTFOLD.items()
        for task, optimizer in worst
        if task == small and (big, optimizer) in worst
    ]


def batch_spread(found: list[Verdict]) -> list[str]:
    """Lines of a table of `batch_pairs`."""
    lines = ["| | optimizer | small batch | eight times as large |", "|---|---|---|---|"]
    for task, optimizer, small, big in batch_pairs(found):
        lines.append(f"| {task} | {optimizer} | {100 * small:.1f} % | {100 * big:.1f} % |")
    return lines
