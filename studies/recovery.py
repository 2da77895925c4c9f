"""What `recover=` is worth: what faults and hot rates cost a run, with it and without it.

    python -m studies recovery [--list]         make what is left, or say what that is; about 2.5 CPU-hours in all

1,000 or 16,000 updates of the default on an MLP, a LLaMA or a ViT under Muon, Lion, normSGD or AdamW, at the rate tuned
for 1,000. Some have the 10% linear warm-up instead, with `SpikeGuard` for recovery. Others have five seeds: a Swin,
which AdamW at three times its rate ruins on some of them, and two settings whose healthy runs raise false alarms. In
the middle of the run come

- "bad batch": the targets of one batch are shuffled and its loss is multiplied by 100; "ten bad batches": ten in a row;
- "NaN batch": the loss of one batch is NaN;
- "corrupted data": from there on, the targets of one batch in ten are shuffled;
- "rate × 3", "× 10", "× 30": the peak rate is that much too high; there is no other fault.

Written before the runs: with recovery, a bad or NaN batch loses at most 3% of the progress in the mean and 6% at worst,
and no run at 10 or 30 times the rate loses more than half of it.
"""

import math
import statistics
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from autowarm import AdaptiveWarmup, SpikeGuard
from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.tasks import Batch

from . import beds
from .bench import DATA, go_on, parser_of, updates
from .entries import DEFAULT, Training, by_hand
from .measures import regret
from .rows import Cell, PlannedRow, Row, Rows

FAULTS, STEPS = "faults", 1_000
LINEAR, NONE, RUINED = "linear 0.1", "none", 50.0  # the last in percent of the progress
FIVE = (10, 11, 12, 13, 14)
CELLS = tuple(
    Cell(task, optimizer, STEPS, lr)
    for task, rates in {
        "mlp": {"muon": 0.01, "lion": 0.003, "normsgd": 0.1, "adamw": 0.03},
        "llama": {"muon": 0.01, "lion": 0.003, "normsgd": 0.1, "adamw": 0.01},
        "vit": {"muon": 0.003, "lion": 0.001, "normsgd": 0.01, "adamw": 0.01},
    }.items()
    for optimizer, lr in rates.items()
)
LONG = tuple(replace(cell, steps=16_000) for cell in CELLS[:8])
SWIN = Cell("swin", "adamw", STEPS, 0.003)
ALARMED = (Cell("autoencoder", "normsgd", STEPS, 0.3), Cell("copier", "muon", STEPS, 0.01))


class Run(NamedTuple):
    """A cell with what goes wrong in it, and whether the schedule recovers."""

    cell: Cell
    what: str
    recovers: bool
    seed: int
    schedule: str = DEFAULT

    @property
    def planned(self) -> PlannedRow:
        """The run in a file of rows."""
        words = {self.schedule: self.schedule != DEFAULT, self.what: True, "recovered": self.recovers}
        return PlannedRow(FAULTS, self.cell, _joined(words), self.seed)

    @property
    def label(self) -> str:
        """What the table calls this run and the same of other tasks and optimizers."""
        return _joined({
            self.what: True, f"{self.cell.steps:,} updates": self.cell.steps != STEPS,
            "Swin, AdamW": self.cell == SWIN, "settings with false alarms": self.cell in ALARMED,
            "10% linear": self.schedule == LINEAR,
        })  # fmt: skip


def _joined(words: Mapping[str, bool]) -> str:
    return ", ".join(word for word, holds in words.items() if holds)


SPIKE = tuple(Run(Cell("llama", "muon", STEPS, 0.01), "bad batch", recovers, 10) for recovers in (False, True))
"""The page's picture: a LLaMA under Muon, which loses about as much to a bad batch as the mean of all settings."""


def plan() -> list[Run]:
    """All runs; those of one line of a table together."""
    bad, hot = ("bad batch", "ten bad batches", "NaN batch", "corrupted data"), ("rate × 3", "rate × 10", "rate × 30")
    kinds: tuple[tuple[Sequence[Cell], Sequence[str], str, Sequence[int]], ...] = (
        (CELLS, (NONE, *bad, *hot), DEFAULT, FIVE[:1]),
        (LONG, (NONE, "bad batch"), DEFAULT, FIVE[:1]),
        (CELLS[:8], (NONE, "bad batch", "NaN batch", *hot), LINEAR, FIVE[:1]),
        ((SWIN,), (NONE, "rate × 3"), DEFAULT, FIVE),
        (ALARMED, (NONE,), DEFAULT, FIVE),
    )
    return [Run(cell, what, recovers, seed, schedule) for cells, some, schedule, seeds in kinds
            for what in some for seed in seeds for cell in cells for recovers in (False, True)]  # fmt: skip


def make(run: Run) -> Row:
    """Make a run; return its row."""
    model, losses, recoveries = _trained(run)
    last = beds.held_out_loss(beds.task(run.cell.task), model)
    return {
        "part": FAULTS, "cell": vars(run.cell), "schedule": run.planned.schedule, "seed": run.seed,
        "val_loss": last if math.isfinite(last) else None, "first_loss": losses[0], "diverged": not math.isfinite(last),
        "recoveries": [list(one) for one in recoveries],
    }  # fmt: skip


def losses_of(run: Run) -> tuple[list[float], list[Any]]:
    """Make a run; return the loss of every update, and the recoveries."""
    return _trained(run)[1:]


def _trained(run: Run) -> tuple[nn.Module, list[float], list[Any]]:
    cell, recipe = run.cell, beds.task(run.cell.task)
    model = beds.network(recipe, run.seed)
    training = Training(model, PlannedRow("cells", cell, run.schedule, run.seed))
    for group in training.optimizer.param_groups:
        group["lr"] *= float(run.what.split()[-1]) if run.what.startswith("rate") else 1.0
    watch: Any
    if run.schedule == LINEAR:
        watch = SpikeGuard(training.optimizer, cell.steps, recover=model)
    else:
        recover = model if run.recovers else False
        watch = AdaptiveWarmup(training.optimizer, cell.steps, recover=recover, max_nonfinite=None, peak_limit=None)
    ramp = [by_hand(training, cell.steps // 10)] if run.schedule == LINEAR else []
    schedulers = [*ramp, *([watch] if run.recovers or not ramp else [])]

    def loss_of(step: int) -> Tensor:
        torch.manual_seed(10_000 * run.seed + step)
        batch, scale = faulty(recipe.draw(run.seed, step), run.what, step, cell.steps)
        return scale * recipe.loss(model, batch)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses = [*updates(model, training.optimizer, schedulers, loss_of, cell.steps)]
    return model, losses, watch.recoveries


def faulty(batch: Batch, what: str, step: int, steps: int) -> tuple[Batch, float]:
    """The batch as the fault leaves it, and what its loss is multiplied by."""
    half = steps // 2
    bad = range(half, half + {"bad batch": 1, "ten bad batches": 10}.get(what, 0))
    if step in bad or (what == "corrupted data" and step >= half and step % 10 == 0):
        *rest, targets = batch  # the targets, or the tokens that are both input and target
        mixed = targets.flatten()[torch.randperm(targets.numel())].view_as(targets)
        return (*rest, mixed), 100.0 if step in bad else 1.0
    return batch, math.nan if what == "NaN batch" and step == half else 1.0


def lost(rows: Rows, run: Run) -> float:
    """The share of the progress of the run without fault that this one does not make, in percent."""
    loss, healthy = (
        rows.losses(FAULTS, run.cell, one.planned.schedule, [run.seed])[run.seed]
        for one in (run, run._replace(what=NONE, recovers=False))
    )
    return min(100.0, regret(loss, healthy, rows[run.planned]["first_loss"]))


def lines(rows: Rows) -> dict[str, list[Run]]:
    """The runs of each line of the table whose runs are all made."""
    runs_by_label: dict[str, list[Run]] = {}
    for run in plan():
        runs_by_label.setdefault(run.label, []).append(run)
    return {label: runs for label, runs in runs_by_label.items() if all(run.planned in rows for run in runs)}


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
    """Make the missing runs, or list them."""
    parser = parser_of("recovery", __doc__)
    parser.add_argument("--list", action="store_true", help="say what is left")
    given, path = parser.parse_args(argv), DATA / f"{FAULTS}.jsonl"
    runs = {run.planned: run for run in plan()}
    left = Counter(run.label for planned, run in runs.items() if planned not in Rows.load(path))
    print(f"{len(runs) - left.total()} of {len(runs)} runs made", *left, sep="\n")
    if not given.list:
        go_on([*runs], path, lambda planned: make(runs[planned]))
