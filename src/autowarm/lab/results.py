"""From the rows of finished runs to statistics. Pure functions, no files but `results.json` itself.

Runs of one *cell* (optimizer, peak rate, model, batch size, steps) differ in schedule and seed alone. Those of one
seed share initial weights and batches, so differences are taken seed by seed: what they have in common cancels. A
diverged run counts as an infinite loss.
"""

import json
import math
import os
import platform
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autowarm import __version__

from .config import LabError
from .files import read_object, write_json

SCHEMA = 1
_ROW = {"id", "cell", "optimizer", "schedule", "warmup_steps", "seed", "val_loss", "diverged"}
MARGIN = 0.02  # nats: the difference from the best hand-set warm-up that still counts as none

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """Runs of one schedule in one cell, over seeds.

    Attributes:
        warmup_steps: mean number of updates in warm-up.
        losses: final validation loss by seed; infinite where the run diverged.
        ended_by_floor: in how many of the runs the time floor, not the loss, ended the warm-up.
    """

    warmup_steps: float
    losses: Mapping[int, float]
    ended_by_floor: int = 0

    @property
    def val_loss(self) -> float:
        """Mean over seeds."""
        return sum(self.losses.values()) / len(self.losses)

    @property
    def stderr(self) -> float:
        """Standard error of the mean; NaN for fewer than two seeds or a diverged run."""
        return _stderr(list(self.losses.values()))

    @property
    def diverged(self) -> int:
        """How many of the runs diverged."""
        return sum(math.isinf(loss) for loss in self.losses.values())


@dataclass(frozen=True)
class Summary:
    """One cell: the hand-set grid, its best point, the schedules that set themselves, and all others by their kind."""

    cell: Mapping[str, Any]
    manual: tuple[Point, ...]
    adaptive: Point | None
    paper: Point | None
    others: Mapping[str, Point] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The optimizer as its authors spell it."""
        names = {"muon": "Muon", "lion": "Lion", "signsgd": "signSGD", "normsgd": "normSGD", "adamw": "AdamW",
                 "schedule-free": "Schedule-Free", "prodigy": "Prodigy", "d-adaptation": "D-Adaptation"}  # fmt: skip
        return names.get(self.cell["optimizer"], self.cell["optimizer"])

    @property
    def title(self) -> str:
        """The cell in a few words."""
        words = f"{self.name}, peak rate {self.cell['lr']:g}"
        return f"{self.label}: {words}" if "name" in self.cell else words

    @property
    def label(self) -> str:
        """The cell in fewer words: a sweep's own name for it, or optimizer and rate."""
        if "name" not in self.cell:
            return f"{self.name} {self.cell['lr']:g}"
        settings = [f"{key.split('.')[-1]} {value}" for key, value in self.cell.items() if "." in key]
        return ", ".join([self.cell["name"], *settings])

    @property
    def best(self) -> Point | None:
        """The hand-set warm-up of lowest mean validation loss; the shortest of equals."""
        return min(self.manual, key=lambda point: point.val_loss, default=None)

    @property
    def lowest(self) -> Point | None:
        """The point of lowest mean validation loss, whatever its schedule."""
        points = [*self.manual, self.adaptive, self.paper, *self.others.values()]
        return min((point for point in points if point), key=lambda point: point.val_loss, default=None)

    @property
    def difference(self) -> tuple[float, float] | None:
        """Adaptive minus best hand-set and its standard error, paired over seeds; negative is better."""
        return paired(self.adaptive, self.best)

    @property
    def spread(self) -> tuple[float, float] | None:
        """Worst hand-set minus best hand-set and its standard error: what choosing the length well is worth."""
        return paired(max(self.manual, key=lambda point: point.val_loss, default=None), self.best)


def paired(a: Point | None, b: Point | None) -> tuple[float, float] | None:
    """Mean difference a − b over the seeds both have, and its standard error (NaN for one seed)."""
    if a is None or b is None:
        return None
    seeds = sorted(set(a.losses) & set(b.losses))
    if not seeds or any(math.isinf(b.losses[seed]) for seed in seeds):
        return None
    gaps = [a.losses[seed] - b.losses[seed] for seed in seeds]
    return sum(gaps) / len(gaps), _stderr(gaps)


def _stderr(values: Sequence[float]) -> float:
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return statistics.stdev(values) / math.sqrt(len(values))


def summarise(rows: Iterable[Row]) -> list[Summary]:
    """One summary for each cell, in the order of the rows."""
    cells: dict[str, list[Row]] = {}
    for row in rows:
        cells.setdefault(json.dumps(row["cell"], sort_keys=True), []).append(row)
    return [_summary(group) for group in cells.values()]


def _summary(rows: Sequence[Row]) -> Summary:
    def point(some: Sequence[Row]) -> Point | None:
        if not some:
            return None
        warmup = sum(row["warmup_steps"] for row in some) / len(some)
        floor = sum(row.get("ended_by") == "floor" for row in some)
        return Point(warmup, {row["seed"]: loss(row) for row in some}, floor)

    def of(kind: str, warmup: int | None = None) -> Point | None:
        return point([r for r in rows if r["schedule"] == kind and warmup in (None, r["warmup_steps"])])

    lengths = sorted({row["warmup_steps"] for row in rows if row["schedule"] == "linear"})
    manual = tuple(found for length in lengths if (found := of("linear", length)) is not None)
    kinds = dict.fromkeys(row["schedule"] for row in rows if row["schedule"] not in ("linear", "adaptive", "paper"))
    others = {kind: found for kind in kinds if (found := of(kind)) is not None}
    return Summary(rows[0]["cell"], manual, of("adaptive"), of("paper"), others)


def loss(row: Row) -> float:
    """The row's final validation loss; infinite where the run diverged."""
    return math.inf if row["diverged"] or row["val_loss"] is None else float(row["val_loss"])


def to_json(summary: Summary) -> dict[str, Any]:
    """A summary as it stands in `results.json`: what is infinite or unknown is null."""

    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    def entry(point: Point | None) -> dict[str, Any] | None:
        if point is None:
            return None
        return {"warmup_steps": point.warmup_steps, "val_loss": number(point.val_loss), "stderr": number(point.stderr)}

    difference, stderr = summary.difference or (math.nan, math.nan)
    return {
        "cell": dict(summary.cell),
        "optimizer": summary.cell["optimizer"],
        "best_manual": entry(summary.best),
        "adaptive": entry(summary.adaptive),
        "difference": number(difference),
        "stderr": number(stderr),
    }


def environment() -> dict[str, Any]:
    """Versions and machine, without anything that names the user."""
    return {
        "python": platform.python_version(),
        "autowarm": __version__,
        **{package: version(package) for package in ("torch", "transformers", "tokenizers", "numpy")},
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def document(config: Mapping[str, Any], corpus: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """The whole of `results.json`."""
    return {
        "schema": SCHEMA,
        "environment": environment(),
        "corpus": dict(corpus),
        "config": dict(config),
        "runs": [dict(row) for row in rows],
        "summary": [to_json(summary) for summary in summarise(rows)],
    }


def write_results(folder: Path, results: Mapping[str, Any]) -> Path:
    """Writes `results.json`."""
    path = folder / "results.json"
    write_json(path, results)
    return path


def read_results(folder: Path) -> dict[str, Any]:
    """Reads `results.json` of a results folder."""
    path = folder / "results.json"
    if not path.is_file():
        raise LabError(f"{folder} holds no results.json: give the folder of a finished `autowarm compare`")
    results = read_object(path, "the command that made it makes it again", "schema")
    if results["schema"] != SCHEMA:
        raise LabError(f"{path} has schema {results['schema']!r}, this version reads {SCHEMA}")
    for key, kind in (("environment", dict), ("corpus", dict), ("config", dict), ("runs", list), ("summary", list)):
        if not isinstance(results.get(key), kind):
            raise LabError(f"{path} is damaged (its {key} is {type(results.get(key)).__name__}): make it again")
    for row in results["runs"]:
        if not isinstance(row, dict) or not row.keys() >= _ROW or not re.fullmatch(r"[\w-]+", str(row["id"])):
            raise LabError(f"{path} is damaged (it lists a run as {str(row)[:80]}): make it again")
    return results


def verdict(summary: Summary) -> str:
    """One cell's outcome in a sentence or two."""
    best, adaptive = summary.best, summary.adaptive
    if best is None:
        alone = {"adaptive": adaptive, "Algorithm 1": summary.paper, **summary.others}
        losses = [f"{kind}: loss {point.val_loss:.3f}" for kind, point in alone.items() if point is not None]
        return "; ".join(["No hand-set warm-up was run", *losses]) + "."
    if math.isinf(best.val_loss):
        return "Every hand-set warm-up diverged with some seed."
    words = f"best hand-set warm-up {best.warmup_steps:.0f} steps, loss {best.val_loss:.3f}"
    if adaptive is not None and summary.difference is not None:
        gap, error = summary.difference
        words = f"adaptive {_words_of(gap, error)}; {words}"
    words = words[0].upper() + words[1:] + "."
    if adaptive is not None and adaptive.ended_by_floor:
        count, total = adaptive.ended_by_floor, len(adaptive.losses)
        words += f" In {count} of {total} adaptive runs the time floor, not the loss, ended the warm-up."
    if summary.spread is not None and len(summary.manual) > 1:
        gap, error = summary.spread
        if gap <= _noise(error):
            words += f" All hand-set lengths lie within {gap:.3f} nats, no more than the noise: nothing is shown here."
        elif gap <= MARGIN:
            words += f" All hand-set lengths lie within {gap:.3f} nats: there is little to choose here."
    return words


def _words_of(gap: float, error: float) -> str:
    if math.isinf(gap):
        return "diverged"
    amount = f"{abs(gap):.3f}" + (f" ± {error:.3f}" if math.isfinite(error) else "") + " nats"
    if abs(gap) <= MARGIN:
        relation = f"is level with the best hand-set one ({'−' if gap < 0 else '+'}{amount})"
    else:
        relation = f"is {'better' if gap < 0 else 'worse'} than the best hand-set one by {amount}"
    if _noise(error) > MARGIN:
        relation += f", with noise (two standard errors) above the margin of {MARGIN}"
    return relation


def _noise(error: float) -> float:
    """Two standard errors; none is known from a single seed."""
    return 2 * error if math.isfinite(error) else 0.0
