"""Summarises the rows of finished runs per cell, in numbers and words. Pure functions, no files.

Runs of one *cell* (task, model, optimizer, batch size, steps, peak rate) differ only in schedule and seed. Runs with
the same seed share initial weights and batches, so differences are taken seed by seed.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from ..config import printable
from ..registry import title
from .statistics import Estimate, Outcome, against_best

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """Runs of one schedule in one cell, over seeds."""

    warmup_steps: float  # mean number of updates in warm-up
    losses: Mapping[int, float]  # final validation loss by seed; infinite if the run diverged
    ended_by: Mapping[str, int] = field(default_factory=dict)  # in how many runs what ended the warm-up by itself

    @property
    def val_loss(self) -> float:
        """Mean over seeds; infinite if a run diverged."""
        return math.fsum(self.losses.values()) / len(self.losses)

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean; None for one seed or a diverged run."""
        return None if self.diverged else Estimate(tuple(self.losses.values())).stderr

    @property
    def length(self) -> str:
        """Its length in words."""
        return f"{self.warmup_steps:.0f} update{'s' * (round(self.warmup_steps) != 1)}"

    @property
    def diverged(self) -> int:
        """The number of runs that diverged."""
        return sum(math.isinf(loss) for loss in self.losses.values())


@dataclass(frozen=True)
class Summary:
    """One cell: the hand-set grid, its best point, adaptive, Algorithm 1, and all other schedules by kind."""

    cell: Mapping[str, Any]
    manual: tuple[Point, ...]
    adaptive: Point | None
    paper: Point | None
    others: Mapping[str, Point] = field(default_factory=dict)
    own: bool = False  # whether the task is the user's own, whose loss may have any unit

    @property
    def unit(self) -> str:
        """The loss's unit, with a space before it."""
        return "" if self.own else " nats"

    @property
    def name(self) -> str:
        """The optimizer as its authors spell it."""
        return title(self.cell["optimizer"])

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
        return min(self.manual, key=self.on_common_seeds, default=None)

    def on_common_seeds(self, point: Point) -> float:
        """A hand-set point's mean loss over the seeds that all have, for runs may fail; infinite if one diverged."""
        seeds = set.intersection(*(set(one.losses) for one in self.manual)) or point.losses.keys()
        return math.inf if point.diverged else math.fsum(point.losses[seed] for seed in seeds) / len(seeds)

    @property
    def edge(self) -> str:
        """ "longest" or "shortest" if the best hand-set length is that of the grid, beyond which a better one may lie.

        Nothing lies beyond no warm-up and a warm-up of the whole run.
        """
        if (best := self.best) is None or best.diverged:
            return ""
        if best is self.manual[-1] and best.warmup_steps < self.cell["steps"] - 1:
            return "longest"
        return "shortest" if best is self.manual[0] and best.warmup_steps > 0 else ""

    @property
    def lowest(self) -> Point | None:
        """Among all schedules, the point with the lowest mean validation loss."""
        points = [*self.manual, self.adaptive, self.paper, *self.others.values()]
        return min((point for point in points if point), key=lambda point: point.val_loss, default=None)

    @property
    def seeds(self) -> list[int]:
        """The seeds that the default and the best hand-set warm-up have in common, on which they are compared."""
        ours, best = self.adaptive, self.best
        return sorted(ours.losses.keys() & best.losses.keys()) if ours and best else []

    def compared(self, point: Point) -> Point:
        """A point over `seeds`, so that the means that are shown fit the difference; itself if a run diverged."""
        if point.diverged or not self.seeds or not set(self.seeds) <= point.losses.keys():
            return point
        return replace(point, losses={seed: point.losses[seed] for seed in self.seeds})

    @property
    def difference(self) -> Estimate | None:
        """The default minus the best hand-set warm-up, paired over seeds; negative is better. See `statistics`.

        None if a run diverged, or if they have no common seed.
        """
        ours, best = self.adaptive, self.best
        if ours is None or best is None or ours.diverged or best.diverged or not self.seeds:
            return None
        points = (ours, best, *(point for point in self.manual if point is not best))
        first, second, *others = ([point.losses.get(seed, math.inf) for seed in self.seeds] for point in points)
        return against_best(first, second, others)

    @property
    def outcome(self) -> Outcome | None:
        """How the default does against the best hand-set warm-up; None if they have no common seed.

        A schedule that diverged with some seed is worse than one that did not, but one common seed decides nothing.
        """
        best, ours = self.best, self.adaptive
        if best is None or ours is None or not self.seeds:
            return None
        if self.difference is not None:
            return self.difference.outcome
        if len(self.seeds) == 1 or (best.diverged and ours.diverged):
            return "undecided"
        return "worse" if ours.diverged else "better"

    @property
    def worst(self) -> float | None:
        """How far the worst hand-set length is behind the best, over the seeds that all have; None if it diverged."""
        losses = [self.on_common_seeds(point) for point in self.manual]
        return max(losses) - min(losses) if losses and math.isfinite(max(losses)) else None


def summarise(rows: Iterable[Row], own: bool = False) -> list[Summary]:
    """Summarise each cell, in the order of the rows. `own` says that the task is the user's own."""
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(json.dumps(row["cell"], sort_keys=True), []).append(row)
    summaries = []
    for group in cells.values():
        by_curve: dict[tuple[str, int], list[Row]] = {}  # a hand-set schedule has one for each length
        for row in group:
            kind, length = row["schedule"], row["warmup_steps"]
            by_curve.setdefault((kind, length if kind == "linear" else 0), []).append(row)
        points = {}
        for curve, some in by_curve.items():
            losses = {row["seed"]: loss(row) for row in some}
            ended_by = Counter(row["ended_by"] for row in some if row.get("ended_by"))
            points[curve] = Point(sum(row["warmup_steps"] for row in some) / len(some), losses, ended_by)
        manual = tuple(points[curve] for curve in sorted(points) if curve[0] == "linear")
        others = {kind: point for (kind, _), point in points.items() if kind != "linear"}
        adaptive, paper = others.pop("adaptive", None), others.pop("paper", None)
        summaries.append(Summary(group[0]["cell"], manual, adaptive, paper, others, own))
    return summaries


def loss(row: Row) -> float:
    """Return the row's final validation loss; infinite if the run diverged."""
    return math.inf if row["diverged"] or row["val_loss"] is None else float(row["val_loss"])


def headline(summaries: Sequence[Summary]) -> str:
    """Describe the outcome in a few sentences."""
    compared = [summary for summary in summaries if summary.outcome is not None]
    if not compared:
        return "Warm-ups side by side"
    if all(len(summary.seeds) == 1 for summary in compared):
        return "One seed decides nothing: run four, as with --seeds [0,1,2,3], to compare the default with others"
    if len(compared) == 1 and compared[0].difference:
        sentences = [_distance(compared[0], compared[0].difference)]
    else:
        counts = Counter(summary.outcome for summary in compared)
        verdicts = ", ".join(f"{word} in {counts[word]}" for word in get_args(Outcome) if counts[word])
        sentences = [f"The default against the best length: {verdicts.replace('undecided', 'no clear difference')}"]
    if costs := [number(one.worst) for one in sorted(compared, key=lambda one: one.worst or 0) if one.worst]:
        range_ = costs[0] if costs[0] == costs[-1] else f"{costs[0]} to {costs[-1]}"
        sentences.append(f"The worst length was {range_} higher")
    if edges := sum(bool(summary.edge) for summary in compared):
        sentences.append(f"The best hand-set length is at the edge of those tried in {edges}")
    if all(point.ended_by.get("clock") == len(point.losses) for point in (one.adaptive for one in compared) if point):
        sentences.append(
            "The time limit (max_warmup) ended every warm-up of the default, which here is a ramp of fixed length"
        )
    return ". ".join(sentences)


def _distance(summary: Summary, difference: Estimate) -> str:
    """Say how far the default is from the best hand-set length of one setting."""
    count = len(summary.manual)
    best = f"the best of {count} hand-set lengths" if count > 1 else "the hand-set length"
    if difference.outcome == "undecided":
        amount = with_error(difference.mean, difference.stderr, 3, "+") + summary.unit
        return f"No clear difference from {best} ({amount})"
    amount = with_error(abs(difference.mean), difference.stderr, 3) + summary.unit
    return f"The default is {amount} {difference.outcome} than {best}"


def verdict(summary: Summary) -> str:
    """Describe one cell's outcome in a few sentences."""
    best, ours = summary.best, summary.adaptive
    if best is None:
        alone = {"the default": ours, "Algorithm 1": summary.paper, **summary.others}
        losses = [f"{kind}: " + ("diverged" if point.diverged else f"loss {number(point.val_loss)}")
                  for kind, point in alone.items() if point is not None]  # fmt: skip
        return "; ".join(["No hand-set warm-up was run", *losses]) + "."
    words = [_compared(summary)] if summary.outcome is not None else []
    if best.diverged:
        words.append("Every hand-set warm-up diverged with some seed.")
    else:
        words.append(f"Best hand-set warm-up: {best.length}, loss {number(summary.compared(best).val_loss)}.")
    if edge := summary.edge:
        words.append(f"It is the {edge} that was tried: the best may be {edge.replace('est', 'er')}.")
        length, steps = int(best.warmup_steps), summary.cell["steps"]
        new = min(max(2 * length, steps // 20, 1), steps - 1) if edge == "longest" else length // 2
        tried = sorted({new, *(int(point.warmup_steps) for point in summary.manual)})
        swept = "name" in summary.cell
        how = "add it to the sweep's schedule.warmup_steps" if swept else f"repeat the command with --warmups '{tried}'"
        words.append(f"To try {new} too, {how}.")
    if ours is not None and (by_time := ours.ended_by.get("clock")):
        words.append(f"In {by_time} of {len(ours.losses)} runs of the default the time limit (max_warmup), not the "
                     "loss, ended the warm-up.")  # fmt: skip
    if summary.worst:
        worst = max(summary.manual, key=summary.on_common_seeds)
        words.append(f"The worst, {worst.length}, is {number(summary.worst)}{summary.unit} higher.")
    return " ".join(words)


def number(value: float, digits: int = 3, sign: str = "") -> str:
    """Write a number with so many decimals or, where these would hide it, with three significant digits."""
    kind = "3g" if 0 < abs(value) < 10 ** (1 - digits) else f"{digits}f"
    return f"{value + 0.0:{sign}.{kind}}"  # + 0.0 makes -0.0 positive


def with_error(value: float, error: float | None, digits: int, sign: str = "") -> str:
    """Write a mean and its standard error, if there is one, with as many decimals."""
    shown = number(value, digits, sign)
    plain = shown == f"{value:{sign}.{digits}f}"
    return shown if error is None else f"{shown} ± {f'{error:.{digits}f}' if plain else f'{error:.2g}'}"


def _compared(summary: Summary) -> str:
    """Describe the outcome and the numbers that it follows from."""
    ours, difference, undecided = summary.adaptive, summary.difference, summary.outcome == "undecided"
    start = "Undecided: the default against" if undecided else f"The default is {summary.outcome} than"
    words = f"{start} the best hand-set warm-up"
    if difference is None:
        assert ours is not None
        single = "; one seed decides nothing" if len(summary.seeds) == 1 else ""
        return f"{words} ({ours.diverged} of {len(ours.losses)} runs of the default diverged{single})."
    amount = f"difference {number(difference.mean, 4, '+')}{summary.unit}"
    if (interval := difference.interval()) is None:
        return f"{words} ({amount}; one seed gives no interval)."
    low, high = (number(end, 4, "+") for end in interval)
    many = len(summary.manual)
    why = f", longer below: the best of {many} lengths was chosen on the same seeds" if many > 1 else ""
    text = f"{words} ({amount}, 95% interval {low} to {high}{why})."
    seeds = f"About {enough}" if (enough := difference.seeds_to_decide) else "More than 100"
    return f"{text} {seeds} seeds would decide." if undecided else text
