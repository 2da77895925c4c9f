"""The table and the figure of docs/which-rate.md: what `find_rate` suggests, against tuned rates."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from autowarm._torch.plotting import styled
from autowarm.lab.analysis.markdown import comma_separated
from autowarm.rate import RateSearch

from ..measures import tuned_rates
from ..rows import Rows

SEARCHES = {"developed on": "searches-development.jsonl", "judged on": "searches.jsonl"}
"""The files of docs/data/find-rate, by what their tasks were to the search."""
SHOWN = (("llama", "muon", "Small LLaMA, Muon"), ("swin", "lion", "Small Swin, Lion: cannot tell"))


def find_rate_table(data: Path) -> str:
    """CSV: a row for each group of tasks, with how near the suggestions are to the tuned rates."""
    paths = data / "studies" / "warm-up.jsonl", data / "find-rate" / "tuned.jsonl"
    tuned = tuned_rates(row for path in paths for row in Rows.load(path))
    lines = []
    for kind in SEARCHES:
        rows = _searches(data, kind)
        compared = [*_compared(rows, tuned)]
        shares = [statistics.fmean(1 / most <= ratio <= most for ratio, _ in compared) for most in (3.0001, 5)]
        lines.append([
            f"{len({row['task'] for row in rows})} that it was {kind}", f"{len(compared)} of {len(rows)}",
            *(f"{100 * x:.0f}%" for x in (*shares, statistics.fmean(inside for _, inside in compared))),
        ])  # fmt: skip
    return comma_separated(["tasks", "suggests a rate", "within a factor of 3", "within a factor of 5",
                            "tuned rate inside the interval"], lines)  # fmt: skip


def _compared(
    rows: Sequence[Mapping[str, Any]], tuned: Mapping[tuple[str, str, int], float]
) -> Iterator[tuple[float, bool]]:
    """Suggestion over tuned rate, and whether the interval holds the tuned one, where a search suggests a rate."""
    for row in rows:
        search = _search(row)
        if search.reason is None:
            best = tuned[row["task"], row["opt"], row["horizon"]]
            yield search.suggestion / best, search.interval[0] <= best <= search.interval[1]


@styled
def searches_figure(data: Path) -> Figure:
    """A stored search that finds a rate, and one that cannot tell."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    rows_by_task = {(row["task"], row["opt"]): row for row in _searches(data, "developed on")}
    for axes, (task, optimizer, title) in zip(figure.subplots(1, 2), SHOWN, strict=True):
        _search(rows_by_task[task, optimizer]).plot(ax=axes).set_title(title)
    return figure


def _searches(data: Path, kind: str) -> list[dict[str, Any]]:
    text = (data / "find-rate" / SEARCHES[kind]).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _search(row: Mapping[str, Any]) -> RateSearch:
    losses = np.array([np.nan if x is None else x for x in row["losses"]], dtype=float)
    return RateSearch(np.geomspace(1e-6, 100.0, 100)[: len(losses)], losses, row["broken"], row["horizon"])
