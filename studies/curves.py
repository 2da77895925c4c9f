"""Judges the rule on many recorded loss curves: where it ends each warm-up, and what ends it.

    python -m studies.curves CURVES.jsonl.gz OUT.csv [--option NAME=VALUE ...]

A curve is an object on its own line, with `losses`, `steps`, `total_steps`, `warmup_used`, `optimizer_norm`,
`model_shapes` and `share_of_peak_every_50`. Where the rates are not recorded but the warm-up is,
we assume a linear warm-up, then the decay of the curve's family.
"""

import argparse
import csv
import gzip
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autowarm.geometry import total_kappa
from autowarm.logs import Replay, replay
from autowarm.logs.log import Log, make_log
from autowarm.schedule import Calibration

COLUMNS = ("name", "kind", "optimizer", "T", "people", "recorded", "recorded ended by", "closed loop",
           "closed loop ended by", "rates")  # fmt: skip
LONG = 10_000  # updates

Row = dict[str, Any]


def main() -> None:
    """Replay every curve under the rule, as recorded and in the closed loop; write the rows, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the schedule, in JSON")
    parser.add_argument("--calibrated", action="store_true", help="tell the rule the norm and κ of each curve's model")
    given = parser.parse_args()
    options = {name: json.loads(value) for name, _, value in (text.partition("=") for text in given.option)}
    rows = []
    for curve in read_curves(given.curves):
        log, rates = log_of(curve)
        norm = curve["optimizer_norm"]
        told: dict[str, Any] = {"geometry": norm}
        if given.calibrated:
            told["calibration"] = Calibration(norm, kappa=kappa(curve["model_shapes"], norm))
        rows.append(row_of(curve, replay(log, whole=False, **options | told), rates))
    with open(given.out, "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *(row.values() for row in rows)])
    print(summary(rows))


def read_curves(path: Path) -> Iterator[dict[str, Any]]:
    """The curves in a file of JSON lines, compressed by gzip."""
    with gzip.open(path, "rt") as lines:
        yield from map(json.loads, lines)


def log_of(curve: Mapping[str, Any]) -> tuple[Log, str]:
    """The curve as a log, and where its rates are from."""
    steps, losses, total = curve["steps"], curve["losses"], curve["total_steps"]
    updates = np.arange(1, total + 1)
    shares, used = curve.get("share_of_peak_every_50"), curve["warmup_used"]
    at, rates, source = None, None, "unknown"
    if shares is not None:
        at, rates, source = 1 + 50 * np.arange(len(shares)), np.array(shares), "recorded"
    elif used is not None:
        progress = np.clip((updates - used) / max(1, total - used), 0.0, 1.0)
        decay = np.ones(total) if "constant" in curve["family"] else 0.5 * (1.0 + np.cos(np.pi * progress))
        at, rates, source = updates, np.minimum(updates / max(1, used), 1.0) * decay, "assumed"
    first = 1 if steps is None else 1 - min(steps[0], 1)  # a whole curve starts at update 1, a sparse one at step 0
    places = np.arange(1, len(losses) + 1) if steps is None else np.array(steps) + first
    return make_log(curve["name"], places, losses, at, rates, total_steps=total, used_warmup=used), source


def kappa(model: str, norm: str) -> float:
    """κ of a model's matrices; only their shapes count."""
    layers, width, vocabulary, context, ff = {
        "gpt2": (12, 768, 50_257, 1024, 3072),
        "gpt2xl": (48, 1600, 50_257, 1024, 6400),
        "llama33": (8, 384, 50_304, 0, 1024),
    }[model]
    block = [(3 * width, width), (width, width), (ff, width), (width, ff)]
    shapes = block * layers + [(vocabulary, width)]
    # Without learned positions, the model has a gated layer and an untied output.
    shapes += [(context, width)] if context else [(ff, width)] * layers + [(vocabulary, width)]
    return total_kappa([torch.empty(shape, device="meta") for shape in shapes], norm)


def row_of(curve: Mapping[str, Any], found: Replay, rates: str) -> Row:
    """A row of the table; shares of the run are rounded to a tenth of a percent."""
    used = found.used_warmup
    ends: list[object] = []
    for reading in (found.recorded, found.closed_loop):
        share = None if reading is None else reading.warmup_share
        ends += [None if share is None else round(share, 4), None if reading is None else reading.ended_by]
    values = (
        curve["name"], curve["family"], curve["optimizer_norm"], found.log.total_steps,
        None if used is None else round(used / found.log.total_steps, 4), *ends, rates,
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def summary(rows: Sequence[Row]) -> str:
    """A line per kind and reading: median share, the part ended by the clock, the largest share of long runs."""
    form = "{:<26}{:>5}{:>8}  {:<12}{:>8}{:>10}{:>18}"
    lines = [form.format("kind", "runs", "people", "reading", "median", "by clock", "longest, T ≥ 10⁴")]
    for kind in [*dict.fromkeys(row["kind"] for row in rows), "all"]:
        chosen = [row for row in rows if kind in (row["kind"], "all")]
        people = _percent(statistics.median, [row["people"] for row in chosen])
        for reading in ("recorded", "closed loop"):
            read = [row for row in chosen if row[f"{reading} ended by"] is not None]
            clock = sum(row[f"{reading} ended by"] == "clock" for row in read)
            by_clock = f"{100 * clock / len(read):.0f}%" if read else "–"
            median = _percent(statistics.median, [row[reading] for row in read])
            long = _percent(max, [row[reading] for row in read if row["T"] >= LONG])
            lines.append(form.format(kind, len(read), people, reading, median, by_clock, long))
    return "\n".join(lines)


def _percent(what: Callable[[list[float]], float], shares: Sequence[float | None]) -> str:
    known = [share for share in shares if share is not None]
    return f"{100 * what(known):.1f}%" if known else "–"


if __name__ == "__main__":
    main()
