"""What faults and hot rates cost a run, with and without `recover=True`: a plain loop, as a user's.

    python -m studies.recovery.faults [ROWS.jsonl] [--workers 2]

It makes the runs that are missing in the file. A run has 1,000 or 16,000 updates of the default on a task of the
warm-up study (an MLP, a LLaMA, a ViT) under Muon, Lion, normSGD or AdamW, at the rate tuned for 1,000. Some have the
10% linear warm-up instead, with `SpikeGuard` for recovery. Others have five seeds: a Swin, which AdamW at three times
its rate ruins on some of them, and the two settings whose healthy runs raise false alarms. Faults come in the middle of
the run:

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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autowarm import AdaptiveWarmup, SpikeGuard
from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.tasks import Batch
from autowarm.lab.tasks.recipes import Recipe
from autowarm.lab.training.optimizers import make_optimizer
from autowarm.lab.training.schedules import make_scheduler

from ..rows import Cell, PlannedRow, Rows, append, tidy
from ..runs import run_of
from ..statistics import regret
from ..tasks import TASKS

PART, STEPS, SEEDS = "faults", 1_000, (10,)
NONE = "none"
FAULTS = ("bad batch", "ten bad batches", "NaN batch", "corrupted data")
HOT = (3, 10, 30)
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


LONG = tuple(Cell(cell.task, cell.optimizer, 16_000, cell.lr) for cell in CELLS if cell.task != "vit")
SWIN, FIVE = Cell("swin", "adamw", STEPS, 0.003), (10, 11, 12, 13, 14)
ALARMED = (Cell("autoencoder", "normsgd", STEPS, 0.3), Cell("copier", "muon", STEPS, 0.01))
LINEAR = "linear 0.1"


class Fault(NamedTuple):
    """A run: a cell with what goes wrong in it, and whether the schedule recovers."""

    cell: Cell
    what: str
    recovers: bool
    seed: int
    schedule: str = "default"

    @property
    def planned(self) -> PlannedRow:
        """The run in a file of rows."""
        words = [*[self.schedule] * (self.schedule != "default"), self.what, *["recovered"] * self.recovers]
        return PlannedRow(PART, self.cell, ", ".join(words), self.seed)

    @property
    def label(self) -> str:
        """What the table calls this run and the same of other tasks and optimizers."""
        words = [self.what]
        if self.cell.steps != STEPS:
            words.append(f"{self.cell.steps:,} updates")
        if self.cell == SWIN:
            words.append("Swin, AdamW")
        if self.cell in ALARMED:
            words.append("settings with false alarms")
        if self.schedule == LINEAR:
            words.append("10% linear")
        return ", ".join(words)


SPIKE = tuple(Fault(Cell("llama", "muon", STEPS, 0.01), "bad batch", recovers, 10) for recovers in (False, True))
"""The page's picture: a LLaMA under Muon, which loses about as much to a bad batch as the mean of all settings."""


def plan() -> list[Fault]:
    """All runs; those of one setting together. In long runs, a bad batch is the only fault."""
    hot = tuple(f"rate × {factor}" for factor in HOT)
    few = tuple(cell for cell in CELLS if cell.task != "vit")
    kinds: tuple[tuple[Sequence[Cell], Sequence[str], str, Sequence[int]], ...] = (
        (CELLS, (NONE, *FAULTS, *hot), "default", SEEDS),
        (LONG, (NONE, "bad batch"), "default", SEEDS),
        (few, (NONE, "bad batch", "NaN batch", *hot), LINEAR, SEEDS),
        ((SWIN,), (NONE, "rate × 3"), "default", FIVE),
        (ALARMED, (NONE,), "default", FIVE),
    )
    return [Fault(cell, what, recovers, seed, schedule) for cells, some, schedule, seeds in kinds
            for seed in seeds for cell in cells for what in some for recovers in (False, True)]  # fmt: skip


def made(run: Fault) -> dict[str, Any]:
    """Make a run; return its row."""
    recipe, cell = TASKS[run.cell.task], run.cell
    model = _new(recipe, run)
    losses, recoveries = _trained(model, recipe, run)
    model.eval()
    with torch.no_grad():
        last = statistics.fmean(recipe.scores(model, batch)["loss"].item() for batch in recipe.validation())
    planned = run.planned
    return {
        "part": PART, "cell": vars(cell), "schedule": planned.schedule, "seed": run.seed,
        "val_loss": last if math.isfinite(last) else None, "first_loss": losses[0], "diverged": not math.isfinite(last),
        "recoveries": [list(one) for one in recoveries],
    }  # fmt: skip


def losses_of(run: Fault) -> list[float]:
    """Make a run again; return the loss of every update."""
    recipe = TASKS[run.cell.task]
    return _trained(_new(recipe, run), recipe, run)[0]


def _new(recipe: Recipe, run: Fault) -> torch.nn.Module:
    torch.manual_seed(run.seed)
    return recipe.model().train()


def _trained(model: torch.nn.Module, recipe: Recipe, run: Fault) -> tuple[list[float], list[Any]]:
    cell, losses = run.cell, []
    factor = float(run.what.split()[-1]) if run.what.startswith("rate") else 1.0
    config = run_of(PlannedRow("cells", cell, run.schedule, run.seed))
    optimizer = make_optimizer(model, config.optimizer)
    for group in optimizer.param_groups:
        group["lr"] *= factor
    steps: list[Callable[[Tensor], Any]]
    if run.schedule == LINEAR:
        scheduler = make_scheduler(optimizer, config.schedule, cell.steps)
        watch: AdaptiveWarmup | SpikeGuard = SpikeGuard(optimizer, cell.steps, model=model)
        steps = [lambda _: scheduler.step(), *[watch.step] * run.recovers]
    else:
        watch = AdaptiveWarmup(optimizer, cell.steps, recover=run.recovers, max_nonfinite=cell.steps, model=model)
        steps = [watch.step]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch, scale in _batches(recipe, run):
            loss = scale * recipe.loss(model, batch)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
            for step in steps:
                step(loss)
            optimizer.zero_grad()
    return losses, watch.recoveries


def _batches(recipe: Recipe, run: Fault) -> Iterator[tuple[Batch, float]]:
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
    [row] = rows.runs(PART, run.cell, run.planned.schedule, [run.seed]).values()
    healthy = rows.losses(PART, run.cell, run._replace(what=NONE, recovers=False).planned.schedule)[run.seed]
    loss = math.inf if row["diverged"] else row["val_loss"]
    return min(100.0, regret(loss, healthy, row["first_loss"]))


def faults_table(rows: Rows) -> str:
    """CSV: for each fault whose runs are all made, the progress lost without recovery and with it."""
    groups: dict[str, list[Fault]] = {}
    for run in plan():
        groups.setdefault(run.label, []).append(run)
    lines = []
    for label, runs in groups.items():
        if not all(one.planned in rows for run in runs for one in (run, run._replace(what=NONE, recovers=False))):
            continue
        cells: list[str] = []
        for recovers in (False, True):
            some = [run for run in runs if run.recovers == recovers]
            costs = [lost(rows, run) for run in some]
            ruined = sum(cost > RUINED for cost in costs)
            cells += [f"{statistics.fmean(costs):.1f}", f"{max(costs):.0f}", f"{ruined} of {len(costs)}"]
        alarms = sum(bool(rows[run.planned]["recoveries"]) for run in some)
        lines.append([label, *cells, f"{alarms} of {len(some)}"])
    measures = ("mean %", "worst %", "ruined")
    headings = ["fault", *(f"{how}: {what}" for how in ("as it is", "recovered") for what in measures), "alarms"]
    return comma_separated(headings, lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Make the missing runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="?", default=Path("docs/data/studies/faults.jsonl"))
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(argv)
    stored = Rows.load(given.rows)
    left = [run for run in plan() if run.planned not in stored]
    with multiprocessing.get_context("spawn").Pool(given.workers, torch.set_num_threads, (1,)) as pool:
        for count, row in enumerate(pool.imap_unordered(made, left), 1):
            append(given.rows, row)
            print(f"{count}/{len(left)} {row['cell']['task']} {row['cell']['optimizer']} {row['schedule']}: "
                  f"{row['val_loss']}, {len(row['recoveries'])} recoveries", flush=True)  # fmt: skip
    tidy(given.rows)
    print(faults_table(Rows.load(given.rows)))


if __name__ == "__main__":
    main()
