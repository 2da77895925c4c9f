"""The points of the authors' figures, digitised (published.csv), and the values in their notebook (ablations.csv)."""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Published(NamedTuple):
    size: str
    batch: int
    steps: int
    optimizer: str


def _rows(name: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def points() -> tuple[Mapping[Published, Sequence[tuple[int, float]]], Mapping[Published, float]]:
    """The hand-set runs of each setting, (length of the warm-up, final loss), and the loss of Algorithm 1."""
    hand: defaultdict[Published, list[tuple[int, float]]] = defaultdict(list)
    adaptive = {}
    for row in _rows("published.csv"):
        setting = Published(row["size"], int(row["batch"]), int(row["steps"]), row["optimizer"])
        if row["kind"] == "adaptive":
            adaptive[setting] = float(row["val_loss"])
        else:
            hand[setting].append((int(row["warmup"]), float(row["val_loss"])))
    return {setting: sorted(some) for setting, some in hand.items()}, adaptive


def by_target_loss() -> dict[float, float]:
    """The final loss of Algorithm 1 by f*, under Muon at 124M; their notebook has no values of the other ablations."""
    rows = (row for row in _rows("ablations.csv") if row["subject"] == "target loss f*")
    return {float(row["setting"].removeprefix("f*=")): float(row["value"]) for row in rows}
