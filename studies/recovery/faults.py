"""What faults and hot rates cost a run, with and without `recover=True`: a plain loop, as a user's.

    python -m studies.recovery.faults [--workers 1]    make what is left, line by line of the table
    python -m studies.recovery.faults --list           say what is left

A row is stored as each run finishes, so the command can be interrupted and started again. About 2.5 CPU-hours.

A run has 1,000 or 16,000 updates of the default on a task of the warm-up study (an MLP, a LLaMA, a ViT) under Muon,
Lion, normSGD or AdamW, at the rate tuned for 1,000. Some have the 10% linear warm-up instead, with `SpikeGuard` for
recovery. Others have five seeds: a Swin, which AdamW at three times its rate ruins on some of them, and the two
settings whose healthy runs raise false alarms. Faults come in the middle of the run:

- "bad batch": the targets of one batch are shuffled and its loss is multiplied by 100; "ten bad batches": ten in a row.
- "NaN batch": the loss of one batch is NaN.
- "corrupted data": from there on, the targets of one batch in ten are shuffled.
- "rate × 3", "× 10", "× 30": the peak rate is that much too high; there is no other fault.

The plan, and what it must show, were written before the runs: with recovery, a bad or NaN batch loses at most 3% of the
progress in the mean and 6% at worst, and no run at 10 or 30 times the rate loses more than half of it.
"""

import argparse
import math
import multiprocessing
import statistics
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from autowarm import AdaptiveWarmup, SpikeGuard
from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.tasks import Batch
from autowarm.lab.tasks.recipes import Recipe
from autowarm.lab.training.optimizers import make_optimizer
from autowarm.lab.training.schedules import make_scheduler

from ..cells import DEFAULT
from ..rows import Cell, PlannedRow, Rows, append, tidy
from ..runs import run_of
from ..statistics import regret
from ..tasks import TASKS

PART, STEPS, SEEDS = "faults", 1_000, (10,)
NONE = "none"
FAULTS = ("bad batch", "ten bad batches", "NaN batch", "corrupted data")
HOT = ("rate × 3", "rate × 10", "rate × 30")
RUINED = 50.0  # percent of the progress
# The tuned rates of the warm-up study at 1,000 updates or, where it has none, at the nearest length.
CELLS = tuple(
    Cell(task, optimizer, STEPS, lr)
    for task, rates in {
        "mlp": {"muon": 0.01, "lion": 0.003, "normsgd": 0.1, "adamw": 0.03},
        "llama": {"muon": 0.01, "lion": 0.003, "normsgd": 0.1, "adamw": 0.01},
        "vit": {"muon": 0.003, "lion": 0.001, "normsgd": 0.01, "adamw": 0.01},
    }.items()
    for optimizer, lr in rates.items()
)
_FEW = tuple(cell for cell in CELLS if cell.task != "vit")
LONG = tuple(replace(cell, steps=16_000) for cell in _FEW)
SWIN, FIVE = Cell("swin", "adamw", STEPS, 0.003), (10, 11, 12, 13, 14)
ALARMED = (Cell("autoencoder", "normsgd", STEPS, 0.3), Cell("copier", "muon", STEPS, 0.01))
LINEAR = "linear 0.1"


class Fault(NamedTuple):
    """A run: a cell with what goes wrong in it, and whether the schedule recovers."""

    cell: Cell
    what: str
    recovers: bool
    seed: int
    schedule: str = DEFAULT

    @property
    def planned(self) -> PlannedRow:
        """The run in a file of rows."""
        words = {self.schedule: self.schedule != DEFAULT, self.what: True, "recovered": self.recovers}
        return PlannedRow(PART, self.cell, _said(words), self.seed)

    @property
    def healthy(self) -> "Fault":
        """The run without fault."""
        return self._replace(what=NONE, recovers=False)

    @property
    def label(self) -> str:
        """What the table calls this run and the same of other tasks and optimizers."""
        return _said({
            self.what: True,
            f"{self.cell.steps:,} updates": self.cell.steps != STEPS,
            "Swin, AdamW": self.cell == SWIN,
            "settings with false alarms": self.cell in ALARMED,
            "10% linear": self.schedule == LINEAR,
        })  # fmt: skip


def _said(words: dict[str, bool]) -> str:
    return ", ".join(word for word, holds in words.items() if holds)


SPIKE = tuple(Fault(Cell("llama", "muon", STEPS, 0.01), "bad batch", recovers, 10) for recovers in (False, True))
"""The page's picture: a LLaMA under Muon, which loses about as much to a bad batch as the mean of all settings."""


def plan() -> list[Fault]:
    """All runs; those of one line of the table together. In long runs, a bad batch is the only fault."""
    kinds: tuple[tuple[Sequence[Cell], Sequence[str], str, Sequence[int]], ...] = (
        (CELLS, (NONE, *FAULTS, *HOT), DEFAULT, SEEDS),
        (LONG, (NONE, "bad batch"), DEFAULT, SEEDS),
        (_FEW, (NONE, "bad batch", "NaN batch", *HOT), LINEAR, SEEDS),
        ((SWIN,), (NONE, "rate × 3"), DEFAULT, FIVE),
        (ALARMED, (NONE,), DEFAULT, FIVE),
    )
    return [Fault(cell, what, recovers, seed, schedule) for cells, some, schedule, seeds in kinds
            for what in some for seed in seeds for cell in cells for recovers in (False, True)]  # fmt: skip


def lines(rows: Rows) -> dict[str, list[Fault]]:
    """The runs of each line of the table whose runs are all made."""
    found: dict[str, list[Fault]] = {}
    for run in plan():
        found.setdefault(run.label, []).append(run)
    return {
        label: runs for label, runs in found.items()
        if all(one.planned in rows for run in runs for one in (run, run.healthy))
    }  # fmt: skip


def made(run: Fault) -> dict[str, Any]:
    """Make a run; return its row."""
    recipe = TASKS[run.cell.task]
    model, losses, recoveries = _trained(run)
    model.eval()
    with torch.no_grad():
        last = statistics.fmean(recipe.scores(model, batch)["loss"].item() for batch in recipe.validation())
    return {
        "part": PART, "cell": vars(run.cell), "schedule": run.planned.schedule, "seed": run.seed,
        "val_loss": last if math.isfinite(last) else None, "first_loss": losses[0], "diverged": not math.isfinite(last),
        "recoveries": [list(one) for one in recoveries],
    }  # fmt: skip


def losses_of(run: Fault) -> tuple[list[float], list[Any]]:
    """Make a run again; return the loss of every update, and the recoveries."""
    return _trained(run)[1:]


def _trained(run: Fault) -> tuple[torch.nn.Module, list[float], list[Any]]:
    """The model, the loss of every update, and the recoveries."""
    cell, losses, recipe = run.cell, [], TASKS[run.cell.task]
    torch.manual_seed(run.seed)
    model = recipe.model().train()
    factor = float(run.what.split()[-1]) if run.what.startswith("rate") else 1.0
    config = run_of(PlannedRow("cells", cell, run.schedule, run.seed))
    optimizer = make_optimizer(model, config.optimizer)
    for group in optimizer.param_groups:
        group["lr"] *= factor
    scheduler = None
    if run.schedule == LINEAR:
        scheduler = make_scheduler(optimizer, config.schedule, cell.steps)
        watch: AdaptiveWarmup | SpikeGuard = SpikeGuard(optimizer, cell.steps, recover=model)
    else:
        watch = AdaptiveWarmup(
            optimizer, cell.steps, recover=model if run.recovers else False, max_nonfinite=cell.steps
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch, scale in batches(recipe, run):
            loss = scale * recipe.loss(model, batch)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            if scheduler is None or run.recovers:
                watch.step(loss)
            optimizer.zero_grad()
    return model, losses, watch.recoveries


def batches(recipe: Recipe, run: Fault) -> Iterator[tuple[Batch, float]]:
    """Each batch, and what its loss is multiplied by."""
    half = run.cell.steps // 2
    for step in range(run.cell.steps):
        batch: Batch = recipe.draw(run.seed, step)
        torch.manual_seed(10_000 * run.seed + step)  # dropout, and the shuffling
        match run.what:
            case "bad batch" if step == half:
                yield _shuffled(batch), 100.0
            case "ten bad batches" if half <= step < half + 10:
                yield _shuffled(batch), 100.0
            case "NaN batch" if step == half:
                yield batch, math.nan
            case "corrupted data" if step >= half and step % 10 == 0:
                yield _shuffled(batch), 1.0
            case _:
                yield batch, 1.0


def _shuffled(batch: Batch) -> Batch:
    """The batch with its targets, or the tokens that are both input and target, in random order."""
    *rest, targets = batch
    return (*rest, targets.flatten()[torch.randperm(targets.numel())].view_as(targets))


def lost(rows: Rows, run: Fault) -> float:
    """The share of the progress of the run without fault that this one does not make, in percent."""
    loss, healthy = (
        rows.losses(PART, run.cell, one.planned.schedule, [run.seed])[run.seed] for one in (run, run.healthy)
    )
    return min(100.0, regret(loss, healthy, rows[run.planned]["first_loss"]))


def faults_table(rows: Rows) -> str:
    """CSV: for each fault whose runs are all made, the progress lost without recovery and with it."""
    table = []
    for label, runs in lines(rows).items():
        cells: list[str] = []
        for recovers in (False, True):
            some = [run for run in runs if run.recovers == recovers]
            costs = [lost(rows, run) for run in some]
            ruined = sum(cost > RUINED for cost in costs)
            cells += [f"{statistics.fmean(costs):.1f}", f"{max(costs):.0f}", f"{ruined} of {len(costs)}"]
        alarms = sum(bool(rows[run.planned]["recoveries"]) for run in some)
        table.append([label, *cells, f"{alarms} of {len(some)}"])
    measures = ("mean %", "worst %", "ruined")
    headings = ["fault", *(f"{how}: {what}" for how in ("as it is", "recovered") for what in measures)]
    return comma_separated([*headings, "alarms"], table)


def main(argv: Sequence[str] | None = None) -> None:
    """Make the missing runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="?", default=Path("docs/data/studies/faults.jsonl"))
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    parser.add_argument("--list", action="store_true", help="say what is left")
    given = parser.parse_args(argv)
    stored = Rows.load(given.rows)
    left = [run for run in plan() if run.planned not in stored]
    if given.list:
        print(*(f"{count:>3} {label}" for label, count in Counter(run.label for run in left).items()), sep="\n")
        return
    with multiprocessing.get_context("spawn").Pool(given.workers, torch.set_num_threads, (1,)) as pool:
        for count, row in enumerate(pool.imap_unordered(made, left), 1):
            append(given.rows, row)
            print(f"{count}/{len(left)} {row['cell']['task']} {row['cell']['optimizer']} {row['schedule']}: "
                  f"{row['val_loss']}, {len(row['recoveries'])} recoveries", flush=True)  # fmt: skip
    tidy(given.rows)
    print(faults_table(Rows.load(given.rows)))


if __name__ == "__main__":
    main()
