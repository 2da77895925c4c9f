"""The table and the figure of docs/which-rate.md: what `find_rate` suggests, against tuned rates."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.config import EngineConfig, OptimizerConfig, RunConfig
from autowarm.lab.training.parallel import joined
from autowarm.lab.training.setup import Setup
from autowarm.plotting import styled
from autowarm.rate import RateSearch, find_rate

from ..cells import TUNING_SCHEDULE
from ..rows import PlannedRow, Rows
from ..tasks import StudyTask

SEARCHES = {"developed on": "searches-development.jsonl", "judged on": "searches.jsonl"}
"""The files of docs/data/find-rate, by what their tasks were to the search."""

_SHOWN = (("llama", "muon", "Small LLaMA, Muon"), ("swin", "lion", "Small Swin, Lion: cannot tell"))


def find_rate_table(data: Path) -> str:
    """CSV: a row for each group of tasks, with how near the suggestions are to the tuned rates."""
    tuned, lines = tuned_rates(data), []
    for kind, file in SEARCHES.items():
        rows = [json.loads(line) for line in (data / "find-rate" / file).read_text(encoding="utf-8").splitlines()]
        ratios, held = compared(rows, tuned)
        shares = [statistics.fmean(1 / most <= ratio <= most for ratio in ratios) for most in (3.0001, 5)]
        lines.append([
            f"{len({row['task'] for row in rows})} that it was {kind}", f"{len(ratios)} of {len(rows)}",
            *(f"{100 * x:.0f}%" for x in (*shares, statistics.fmean(held))),
        ])  # fmt: skip
    headings = ["tasks", "suggests a rate", "within a factor of 3", "within a factor of 5",
                "tuned rate inside the interval"]  # fmt: skip
    return comma_separated(headings, lines)


def tuned_rates(data: Path) -> Mapping[tuple[str, str, int], float]:
    """The rate of lowest loss by task, optimizer and updates; of two equally good ones the lower."""
    best: dict[tuple[str, str, int], tuple[float, float]] = {}
    for path in (data / "studies" / "warm-up.jsonl", data / "find-rate" / "tuned.jsonl"):
        for row in Rows.load(path):
            run = PlannedRow.of(row)
            if (run.part, run.schedule) == ("tuning", TUNING_SCHEDULE):
                key = run.cell.task, run.cell.optimizer, run.cell.steps
                loss = math.inf if row["diverged"] else row["val_loss"]
                best[key] = min(best.get(key, (math.inf, math.inf)), (loss, run.cell.lr))
    return {key: lr for key, (_, lr) in best.items()}


def compared(
    rows: Sequence[Mapping[str, Any]], tuned: Mapping[tuple[str, str, int], float]
) -> tuple[list[float], list[bool]]:
    """Rate found over rate tuned, and whether the interval holds the tuned one, of the searches that found one."""
    ratios, held = [], []
    for row in rows:
        losses = np.array([math.nan if x is None else x for x in row["losses"]], dtype=float)
        rates = np.geomspace(1e-6, 100.0, 100)[: len(losses)]
        found = RateSearch(rates, losses, row["broken"], row["horizon"])
        if found.reason is None:
            best = tuned[row["task"], row["opt"], row["horizon"]]
            ratios.append(found.suggestion / best)
            held.append(found.interval[0] <= best <= found.interval[1])
    return ratios, held


@styled
def searches_figure() -> Figure:
    """A search that finds a rate, and one that cannot tell. Both are made here, in seconds."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    for axes, (name, optimizer, title) in zip(figure.subplots(1, 2), _SHOWN, strict=True):
        task, engine = StudyTask(name), EngineConfig(precision="float32", device="cpu")
        options = OptimizerConfig(optimizer, weight_decay=0.0)
        made = task.make(RunConfig(task=task.key, steps=100, clip=0.0, optimizer=options, engine=engine))
        with joined(engine) as ranks:
            setup = Setup(made, ranks)
            batches = made.batches(0, setup.rows)
            found = find_rate(setup.net, setup.optimizer,
                              lambda setup=setup, batches=batches: setup.forward_backward(setup.pieces(next(batches))),
                              total_steps=1000)  # fmt: skip
        found.plot(ax=axes).set_title(title)
    return figure
