"""What the page on the paper says of runs with the paper's numbers of steps is what the stored results say."""

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from autowarm.lab.config import SweepConfig
from autowarm.lab.paper.settings import MAIN, SWIN, deviations

from .test_settings import VARIED

METHOD, MOMENTUM = "optimizer.options.method", "optimizer.options.momentum"
DOCS = Path(__file__).parents[3] / "docs"
FIGURES = DOCS / "figures"

# Cells whose stored runs were made with other settings than the paper's. A column of their tables says so.
OUTDATED = {
    "swin": {("rate-0.001", "clip"), ("rate-0.003", "clip"), ("rate-0.01", "clip"),
             ("rate-0.001", METHOD), ("rate-0.003", METHOD), ("rate-0.01", METHOD)},
    "warmup-sweep-124M": {("muon-32-1B", MOMENTUM), ("muon-32-2.1B", MOMENTUM)},
    "warmup-sweep-210M": {("muon-32-1B", MOMENTUM), ("muon-32-2.1B", MOMENTUM), ("muon-4-1B", MOMENTUM)},
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(DOCS.glob("data/horizon/*.json")), ids=lambda path: path.stem)
def test_the_stored_runs_have_the_papers_settings(path: Path) -> None:
    config = SweepConfig(**json.loads(path.read_text(encoding="utf-8"))["config"])
    settings = SWIN if path.stem == "swin" else MAIN
    found = {
        (point.cell, key)
        for point in config.points()
        for key, _ in deviations(point.run, settings, "horizon")
        if key not in VARIED.get(path.stem, set())
    }
    assert found == OUTDATED.get(path.stem, set())


def runs(sweep: str) -> list[dict[str, Any]]:
    """The stored runs of a sweep."""
    found: list[dict[str, Any]] = json.loads((DOCS / "data" / "horizon" / f"{sweep}.json").read_text())["runs"]
    return found


def table(name: str) -> list[dict[str, str]]:
    """A table of the page."""
    with (FIGURES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def behind(sweep: str, kind: str = "paper", value: str = "val_loss") -> dict[str, float]:
    """By run, how far it is above the best hand-set warm-up of its cell (an ablation has one cell), in percent."""
    whole = sweep in ("ablation-target-loss", "ablation-variance")

    def of(run: dict[str, Any]) -> float:
        return float(run["val_loss"] if value == "val_loss" else -run["metric"][value])

    costs = {}
    for run in runs(sweep):
        if run["schedule"] == kind:
            name = run["cell"]["name"]
            hand = [of(other) for other in runs(sweep) if other["schedule"] == "linear"
                    and (whole or other["cell"]["name"] == name)]  # fmt: skip
            costs[json.dumps(run["cell"])] = 100 * (of(run) / min(hand) - 1) * (1 if min(hand) > 0 else -1)
    return costs


@pytest.mark.parametrize(
    ("row", "sweeps", "count", "value"),
    [
        (2, ["warmup-sweep-124M", "warmup-sweep-210M"], 21, "val_loss"),
        (4, ["ablation-target-loss"], 9, "val_loss"),
        (5, ["ablation-variance"], 6, "val_loss"),
        (6, ["ablation-schedule"], 6, "val_loss"),
        (7, ["swin"], 3, "accuracy"),
    ],
)
def test_a_claim_is_judged_by_all_cells(row: int, sweeps: list[str], count: int, value: str) -> None:
    costs = [cost for sweep in sweeps for cost in behind(sweep, value=value).values()]
    assert len(costs) == count
    beats = sum(cost < 0 for cost in costs)
    found = table("claims")[row]
    assert found["beats the best hand-set"] == f"{beats} of {count}"
    assert found["holds"] == ("yes" if beats == count else "no") == "no"
    if value == "val_loss":
        assert f"{min(costs):+.1f} to {max(costs):+.1f}%, median {statistics.median(costs):+.1f}" in found[SHOWN]


SHOWN = "what all of them show"


@pytest.mark.parametrize(("name", "sweeps"), [("table-main", ["warmup-sweep-124M", "warmup-sweep-210M"]),
                                              ("table-swin", ["swin"])])  # fmt: skip
def test_a_table_marks_the_rows_with_other_settings(name: str, sweeps: list[str]) -> None:
    marked = [row for row in table(name) if row["not the paper's"] != "–"]
    cells = {(sweep, cell) for sweep in sweeps for cell, _ in OUTDATED[sweep]}
    assert len(marked) == len(cells)
    wanted = {"table-main": "momentum 0.95 instead of 0.9", "table-swin": "clip 0.5 instead of 0.0"}[name]
    assert all(wanted in row["not the paper's"] for row in marked)
