"""The stored runs with the paper's numbers of steps have its settings, but where a table says so."""

import csv
import json
from pathlib import Path

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


def table(name: str) -> list[dict[str, str]]:
    """A table of the page."""
    with (FIGURES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("name", "sweeps"), [("table-main", ["warmup-sweep-124M", "warmup-sweep-210M"]),
                                              ("table-swin", ["swin"])])  # fmt: skip
def test_a_table_marks_the_rows_with_other_settings(name: str, sweeps: list[str]) -> None:
    marked = [row for row in table(name) if row["not the paper's"] != "–"]
    cells = {(sweep, cell) for sweep in sweeps for cell, _ in OUTDATED[sweep]}
    assert len(marked) == len(cells)
    wanted = {"table-main": "momentum 0.95 instead of 0.9", "table-swin": "clip 0.5 instead of 0.0"}[name]
    assert all(wanted in row["not the paper's"] for row in marked)
