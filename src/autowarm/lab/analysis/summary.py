"""Summarises the rows of finished runs per cell, in numbers and words. Pure functions, no files.

Runs of one *cell* (task, model, optimizer, batch size, steps, peak rate) differ only in schedule and seed. Runs with
the same seed share initial weights and batches, so differences are taken seed by seed. A diverged run has an infinite
loss.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..config import printable
from ..registry import OPTIMIZERS
from .statistics import Estimate, capped, differences

MARGIN = 0.02  # in nats, the largest difference from the best hand-set warm-up that counts as none
SHARE = 0.005  # the same for a user's own task with any unit of loss, as a share of the best hand-set loss

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """Runs of one schedule in one cell, over seeds.

    Attributes:
        warmup_steps: mean number of updates in warm-up.
        losses: final validation loss by seed; infinite if the run diverged.
        ended_by_time: number of runs in which the clock, not the loss, ended the warm-up.
    """

    warmup_steps: float
    losses: Mapping[int, float]
    ended_by_time: int = 0

    @property
    def val_loss(self) -> float:
        """Mean over seeds; infinite if a run diverged."""
        return math.fsum(self.losses.values()) / len(self.losses)

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean; None for one seed or a diverged run."""
        return None if self.diverged else Estimate(tuple(self.losses.values())).stderr

    @property
    def diverged(self) -> int:
        """The number of runs that diverged."""
        return sum(math.isinf(loss) for loss in self.losses.values())


@dataclass(frozen=True)
class Summary:
    """One cell: the hand-set grid, its best point, adaptive, Algorithm 1, and all other schedules by kind.

    Attributes:
        own: whether the task is the user's own, whose loss may have any unit.
    """

    cell: Mapping[str, Any]
    manual: tuple[Point, ...]
    adaptive: Point | None
    paper: Point | None
    others: Mapping[str, Point] = field(default_factory=dict)
    own: bool = False

    @property
    def margin(self) -> float:
        """The largest difference from the best hand-set warm-up that counts as none, in the loss's unit."""
        best = self.best
        return SHARE * abs(best.val_loss) if self.own and best is not None and not best.diverged else MARGIN

    @property
    def unit(self) -> str:
        """The loss's unit, with a space before it."""
        return "" if self.own else " nats"

    @property
    def name(self) -> str:
        """The optimizer as its authors spell it."""
        name: str = self.cell["optimizer"]
        return OPTIMIZERS[name].title if name in OPTIMIZERS else name

    @property
    def title(self) -> str:
        """The cell in a few words."""
        words = f"{self.name}, peak rate {self.cell['lr']:g}"
        return f"{self.label}: {words}" if "name" in self.cell else words

    @property
    def label(self) -> str:
        """The cell's short name: the sweep's own, or optimizer and rate."""
        if "name" not in self.cell:
            return f"{self.name} {self.cell['lr']:g}"
        settings = [f"{key.split('.')[-1]} {value}" for key, value in self.cell.items() if "." in key]
        return printable(", ".join([str(self.cell["name"]), *settings]))

    @property
    def best(self) -> Point | None:
        """The hand-set warm-up with the lowest mean validation loss; the shortest if several are equal."""
        return min(self.manual, key=lambda point: point.val_loss, default=None)

    @property
    def lowest(self) -> Point | None:
        """Among all schedules, the point with the lowest mean validation loss."""
        points = [*self.manual, self.adaptive, self.paper, *self.others.values()]
        return min((point for point in points if point), key=lambda point: point.val_loss, default=None)

    @property
    def difference(self) -> Estimate | None:
        """Adaptive minus best hand-set, paired over seeds; negative is better.

        The best length is chosen on the same seeds on which it is compared, which favours it.
        """
        return _paired(self.adaptive, self.best)

    @property
    def spread(self) -> Estimate | None:
        """Worst hand-set minus best hand-set, which shows how much the choice of length matters."""
        return _paired(max(self.manual, key=lambda point: point.val_loss, default=None), self.best)


def summarise(rows: Iterable[Row], own: bool = False) -> list[Summary]:
    """Summarise each cell, in the order of the rows. `own` says that the task is the user's own."""
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(json.dumps(row["cell"], sort_keys=True), []).append(row)
    return [_summary(group, own) for group in cells.values()]


def _summary(rows: Sequence[Row], own: bool) -> Summary:
    def point(some: Sequence[Row]) -> Point | None:
        if not some:
            return None
        warmup = sum(row["warmup_steps"] for row in some) / len(some)
        by_time = sum(row.get("ended_by") == "clock" for row in some)
        return Point(warmup, {row["seed"]: loss(row) for row in some}, by_time)

    def of(kind: str, warmup: int | None = None) -> Point | None:
        return point([r for r in rows if r["schedule"] == kind and warmup in (None, r["warmup_steps"])])

    lengths = sorted({row["warmup_steps"] for row in rows if row["schedule"] == "linear"})
    manual = tuple(found for length in lengths if (found := of("linear", length)) is not None)
    kinds = dict.fromkeys(row["schedule"] for row in rows if row["schedule"] not in ("linear", "adaptive", "paper"))
    others = {kind: found for kind in kinds if (found := of(kind)) is not None}
    return Summary(rows[0]["cell"], manual, of("adaptive"), of("paper"), others, own)


def loss(row: Row) -> float:
    """Return the row's final validation loss; infinite if the run diverged."""
    return math.inf if row["diverged"] or row["val_loss"] is None else float(row["val_loss"])


def _paired(a: Point | None, b: Point | None) -> Estimate | None:
    """Return the paired difference a − b; None if they have no common seed or b diverged.

    Only a run that diverged is capped: the difference of two finite losses is what the table's losses say.
    """
    if a is None or b is None or b.diverged or not set(a.losses) & set(b.losses):
        return None
    finite = [loss for loss in (*a.losses.values(), *b.losses.values()) if math.isfinite(loss)]
    return differences(a.losses, b.losses, ceiling=max(capped(b.val_loss), *finite))


def headline(summaries: Sequence[Summary]) -> str:
    """Describe the outcome in one sentence."""
    found = [(summary.difference, summary.margin) for summary in summaries]
    compared = [(estimate, margin) for estimate, margin in found if estimate is not None]
    estimates = [estimate for estimate, _ in compared]
    if not estimates:
        return "Warm-ups side by side"
    count = len(estimates)
    if all(estimate.count == 1 for estimate in estimates):
        return "One seed gives no verdict: run more seeds to compare adaptive with hand-set warm-ups"
    outcomes = ["worse" if estimate.diverged else estimate.outcome(margin) for estimate, margin in compared]
    level, worse = sum(o in ("better", "no worse") for o in outcomes), outcomes.count("worse")
    unclear = count - level - worse
    settings = f"{count} setting{'s' if count > 1 else ''}"
    words = [f"no worse in {level}", f"worse in {worse}", f"undecided in {unclear}"]
    shown = ", ".join(word for word, some in zip(words, (level, worse, unclear), strict=True) if some)
    text = f"Adaptive against the best hand-set warm-up, by a margin of {margin_of(summaries)}, {settings}: {shown}"
    adaptive = [summary.adaptive for summary in summaries if summary.adaptive is not None]
    if all(point.ended_by_time == len(point.losses) for point in adaptive):
        text += "; max_warmup ended every adaptive warm-up, so that here it is a ramp of fixed length"
    return text


def margin_of(summaries: Sequence[Summary]) -> str:
    """Describe the margin in words."""
    return f"{SHARE:.1%} of its loss" if any(summary.own for summary in summaries) else f"{MARGIN} nats"


def verdict(summary: Summary) -> str:
    """Describe one cell's outcome in a sentence or two."""
    best, adaptive = summary.best, summary.adaptive
    if best is None:
        alone = {"adaptive": adaptive, "Algorithm 1": summary.paper, **summary.others}
        losses = [
            f"{kind}: " + ("diverged" if point.diverged else f"loss {point.val_loss:.3f}")
            for kind, point in alone.items()
            if point is not None
        ]
        return "; ".join(["No hand-set warm-up was run", *losses]) + "."
    if best.diverged:
        return "Every hand-set warm-up diverged with some seed."
    words = f"best hand-set warm-up {best.warmup_steps:.0f} steps, loss {best.val_loss:.3f}"
    if summary.difference is not None:
        words = f"adaptive {_outcome(summary.difference, summary)}; {words}"
    words = words[0].upper() + words[1:] + "."
    if adaptive is not None and adaptive.ended_by_time:
        words += f" In {adaptive.ended_by_time} of {len(adaptive.losses)} adaptive runs the clock, not the loss, "
        words += "ended the warm-up."
    spread = summary.spread
    if spread is not None and len(summary.manual) > 1 and not spread.diverged:
        interval = spread.interval()
        if interval is not None and interval[0] <= 0:
            words += f" All hand-set lengths lie within {spread.mean:.3f}{summary.unit}, no more than the noise"
            words += "." if _is_decided(summary) else ": this setting shows nothing."
        elif spread.mean <= summary.margin:
            words += (
                f" All hand-set lengths lie within {spread.mean:.3f}{summary.unit}: there is little to choose here."
            )
    return words


def _is_decided(summary: Summary) -> bool:
    return summary.difference is not None and summary.difference.outcome(summary.margin) in ("better", "worse")


def _outcome(difference: Estimate, summary: Summary) -> str:
    if difference.diverged:
        return f"diverged with {difference.diverged} of {difference.count} seeds"
    interval = difference.interval()
    if interval is None:
        return f"against the best hand-set one is {difference.mean:+.3f}{summary.unit}; one seed gives no verdict"
    low, high = interval
    amount = f"{difference.mean:+.3f}{summary.unit}, 95 % interval {low:+.3f} to {high:+.3f}"
    match difference.outcome(summary.margin):
        case "better":
            return f"is better than the best hand-set one ({amount})"
        case "no worse":
            return f"is no worse than the best hand-set one ({amount})"
        case "worse":
            return f"is worse than the best hand-set one by more than {summary.margin:.2g} ({amount})"
        case _:
            return f"against the best hand-set one is undecided at a margin of {summary.margin:.2g} ({amount})"
