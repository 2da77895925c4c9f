"""One benchmark of warm-ups: beds × optimizers × peak rates × seeds × entries, as rows.

    python -m studies bench --list                      the plan, what is left of it, and its CPU-hours
    python -m studies bench --cpu-hours 2               make what is left, for so long; the same command goes on
    python -m studies bench --entry mine.py:name        an entry of your own on the whole grid, or on a part of it:
        --bed mlp --steps 1000 --optimizer adamw

**The plan, written before its first run.** Five beds (`BEDS`), four optimizers, and seven peak rates, a factor √10
apart, around the rate that was best under a warm-up of 10 % on another seed (`TUNED`). Runs of 1,000 updates have three
seeds and six entries; runs of 4,000 have two seeds and five entries, without the ViT, which would take a third of the
time. It was cut to eight CPU-hours by the seconds of stored runs. Changed once, before any other entry was run on a
whole bed but the MLP: the limit of the peak became part of the default, so the entry "peak limit 2.5" stands for ours,
and seed 60 at 1,000 updates, which chose between two limits, judges no more.

**What judges it.** The learning-rate sensitivity of a bed, a length and an optimizer (`measures.sensitivity`, after
Wortsman et al., arXiv 2309.14322), and beside it the excess, because a method that is bad everywhere has a small
sensitivity. Losses are means over the seeds, none of which chose anything. The default leads in a measure if its mean
over all these settings is below that of every other entry, by two standard errors of the paired differences; it is
level with an entry within two standard errors, and behind otherwise. The page says which, and shows the mean and the
worst setting of each entry. No entry is added or left out after that, but for entries that others add.
"""

import argparse
import math
import multiprocessing
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from autowarm import AdaptiveWarmup
from autowarm.lab.config import UsageError
from autowarm.lab.training.optimizers import evaluating
from autowarm.optim.step.nonfinite import Diverged

from . import beds, entries
from .beds import PEOPLE
from .rows import Cell, PlannedRow, Row, Rows, append, tidy

DATA = Path("docs/data/studies")
ROWS = DATA / "bench.jsonl"
BEDS: Mapping[str, tuple[str, str]] = {  # the part and the task of each
    "bytes": (PEOPLE, "llama-bytes"), "mlp": ("cells", "mlp"), "cnn": ("cells", "cnn"), "vit": ("cells", "vit"),
    "state-space": ("cells", "recurrent"),
}  # fmt: skip
TITLES = {"bytes": "LLaMA on bytes, as people train", "mlp": "MLP on digits", "cnn": "CNN on digits",
          "vit": "ViT on digits", "state-space": "state-space model on bytes"}  # fmt: skip
OPTIMIZERS = ("adamw", "muon", "lion", "normsgd")
TUNED = {
    "bytes": (0.003, 0.01, 0.001, 0.01), "mlp": (0.03, 0.01, 0.003, 0.1), "cnn": (0.03, 0.1, 0.01, 0.1),
    "vit": (0.01, 0.003, 0.001, 0.01), "state-space": (0.01, 0.01, 0.003, 0.1),
}  # fmt: skip
"""The rates of `OPTIMIZERS` that were best under 10 % at 1,000 updates, or at the nearest length that was tuned."""
FACTORS = [10 ** (place / 2) for place in range(-3, 4)]


class Part(NamedTuple):
    """A part of the plan: every run of these beds at one length."""

    beds: Sequence[str]
    steps: int
    seeds: Sequence[int]
    entries: Sequence[str]


PLAN = (
    Part([*BEDS], 1_000, (61, 62, 63),
         (entries.OURS, "linear 0", "linear 0.02", "linear 0.1", "linear 0.4", "tenth 0.5")),
    Part(["bytes", "mlp", "cnn", "state-space"], 4_000, (60, 61),
         (entries.OURS, "linear 0", "linear 0.1", "linear 0.4", "tenth 0.5")),
)  # fmt: skip


def rates(bed: str, optimizer: str) -> list[float]:
    """The peak rates at which an optimizer is run."""
    tuned = TUNED[bed][OPTIMIZERS.index(optimizer)]
    return [float(f"{factor * tuned:.3g}") for factor in FACTORS]


def cells(bed: str, optimizer: str, steps: int) -> list[Cell]:
    """A bed under an optimizer at each of its rates."""
    return [Cell(BEDS[bed][1], optimizer, steps, lr) for lr in rates(bed, optimizer)]


def planned(parts: Iterable[Part] = PLAN, optimizers: Sequence[str] = OPTIMIZERS) -> list[PlannedRow]:
    """All runs, seed by seed, so that a part of them is a complete design."""
    return [
        PlannedRow(BEDS[bed][0], cell, entry, seed)
        for part in parts
        for seed in part.seeds
        for bed in part.beds
        for optimizer in optimizers
        for cell in cells(bed, optimizer, part.steps)
        for entry in part.entries
    ]


# One run


def updates(
    model: nn.Module, optimizer: Optimizer, schedulers: Sequence[Any], loss_of: Callable[[int], Tensor], steps: int,
    clip: float = 0.0,
) -> Iterator[float]:  # fmt: skip
    """The training loop of all studies: yields the loss of each update once that is made.

    Args:
        schedulers: stepped after the update, with its loss unless they are PyTorch's and take none.
        loss_of: the loss by the update's number, from 0.
        clip: the norm to which gradients are clipped; 0 for none.
    """
    for step in range(steps):
        loss = loss_of(step)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if hasattr(optimizer, "loss"):
            optimizer.loss = loss.detach()
        optimizer.step()
        for one in schedulers:
            if isinstance(one, LRScheduler) and not isinstance(one, AdaptiveWarmup | ReduceLROnPlateau):
                one.step()
            else:
                one.step(loss.detach())
        optimizer.zero_grad()
        yield loss.item()


def make(run: PlannedRow, entry: entries.Entry | None = None) -> Row:
    """Make a run in this process, under its entry or under this one; return its row.

    It ends early, and has diverged, if a loss is not finite or ten times the first. A held-out loss above the first one
    counts as diverged, too.
    """
    began, cell = time.process_time(), run.cell
    recipe = beds.task(cell.task)
    model = beds.network(recipe, run.seed, beds.is_compiled(run))
    training, last = entries.Training(model, run), math.nan
    losses: list[float] = []

    def loss_of(step: int) -> Tensor:
        torch.manual_seed(10_000 * run.seed + step)  # what a network itself draws, such as dropout
        return recipe.loss(model, recipe.draw(run.seed, step))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scheduler = (entry or entries.find(run.schedule))(training)
        try:
            for loss in updates(model, training.optimizer, [scheduler], loss_of, cell.steps, training.clip):
                losses.append(loss)
                if not loss <= 10.0 * losses[0]:
                    break
            else:
                with evaluating(training.optimizer):
                    last = beds.held_out_loss(recipe, model)
        except Diverged:  # after many updates in a row that were not finite
            pass
    recent = statistics.fmean(losses[-max(1, cell.steps // 20) :])
    row: dict[str, Any] = {
        "part": run.part, "cell": vars(cell), "schedule": run.schedule, "seed": run.seed, "val_loss": _finite(last),
        "train_loss": _finite(recent), "first_loss": losses[0], "diverged": not last <= losses[0],
        "warmup_steps": getattr(scheduler, "warmup_steps", None), "ended_by": getattr(scheduler, "ended_by", None),
        "curve": thinned(losses, cell.steps), "seconds": round(time.process_time() - began, 2),
    }  # fmt: skip
    if isinstance(scheduler, AdaptiveWarmup) and scheduler.phase != "decay":
        row["warmup_steps"] = len(losses)
    if run.schedule == entries.DEFAULT:
        row["alarms"] = sum("recover=True would have" in str(one.message) for one in caught)
    return row


def thinned(losses: Sequence[float], steps: int, points: int = 50) -> list[float | None]:
    """The means of the losses over each fiftieth of the run, as far as it went."""
    length = math.ceil(steps / points)
    parts = [losses[at : at + length] for at in range(0, len(losses), length)]
    return [None if (mean := _finite(statistics.fmean(part))) is None else round(mean, 4) for part in parts]


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


# All runs


def go_on(
    runs: Sequence[PlannedRow], path: Path, make: Callable[[PlannedRow], Row] = make, hours: float = math.inf,
    workers: int = 1,
) -> int:  # fmt: skip
    """Make the runs that are not yet in the file, each appended as it finishes; return how many are left.

    Args:
        make: makes a run; with several workers it must be a function that they can import.
        hours: of a CPU, after which no run is begun.
    """
    rows = Rows.load(path)
    left = [run for run in dict.fromkeys(runs) if run not in rows]
    spent, count = 0.0, 0

    def keep(row: Row) -> None:
        nonlocal spent, count
        append(path, row)
        spent, count = spent + row.get("seconds", 0.0), count + 1
        print(f"{count}/{len(left)} {PlannedRow.of(row).name}: {row['val_loss']}", flush=True)

    def allowed() -> Iterator[PlannedRow]:
        for run in left:
            if spent >= 3600 * hours:
                return
            yield run

    if workers > 1:
        with multiprocessing.get_context("spawn").Pool(workers, torch.set_num_threads, (1,)) as pool:
            waiting = allowed()
            # As many at a time as there are workers, so that the hours bound what is begun.
            while some := [run for _, run in zip(range(workers), waiting, strict=False)]:
                for row in pool.imap_unordered(make, some):
                    keep(row)
    else:
        torch.set_num_threads(1)
        for run in allowed():
            if run not in Rows.load(path):  # another process may have made it
                keep(make(run))
    if path.exists():
        tidy(path)
    rows = Rows.load(path)
    return sum(run not in rows for run in left)


def seconds(stored: Iterable[Row]) -> Callable[[Cell], float]:
    """How long a run of a cell takes: the median of the stored ones of its task, in proportion to the updates."""
    known: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for row in stored:
        if row.get("seconds") and not row["diverged"]:
            known[row["cell"]["task"], row["cell"]["steps"]].append(row["seconds"])

    def estimate(cell: Cell) -> float:
        lengths = [steps for task, steps in known if task == cell.task]
        if not lengths:
            return math.nan
        nearest = min(lengths, key=lambda steps: abs(math.log(steps / cell.steps)))
        return statistics.median(known[cell.task, nearest]) * cell.steps / nearest

    return estimate


def listing(runs: Sequence[PlannedRow], rows: Rows, stored: Iterable[Row]) -> str:
    """A line for each bed and length, and for all: how many of the runs are made, and the CPU-hours of the rest."""
    estimate = seconds([*stored, *rows])
    groups: defaultdict[tuple[str, str, int], list[PlannedRow]] = defaultdict(list)
    for run in runs:
        groups[run.part, run.cell.task, run.cell.steps].append(run)
    lines, total = [], [0, 0, 0.0]
    names = {place: TITLES[bed] for bed, place in BEDS.items()}
    for (part, task, steps), some in groups.items():
        left = [run for run in some if run not in rows]
        numbers = len(some) - len(left), len(some), sum(estimate(run.cell) for run in left) / 3600
        total = [a + b for a, b in zip(total, numbers, strict=True)]
        lines.append((f"{names.get((part, task), task)}, {steps:,} updates", numbers))
    form = "{:<50} {:>5} of {:>5} runs made, {:.1f} CPU-hours left"  # not known, where no run of this task is stored
    return "\n".join(form.format(name, *numbers) for name, numbers in [*lines, ("all", total)]).replace(" nan ", " ? ")


def parser_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """A study's parser, whose help is the docstring of its module."""
    form = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(f"python -m studies {name}", description=about, formatter_class=form)


def main(argv: Sequence[str] | None = None) -> None:
    """Make what is left of the plan, or list it."""
    parser = parser_of("bench", __doc__)
    option = partial(parser.add_argument, action="append")
    option("--entry", metavar="NAME", help=f"in place of the plan's: {', '.join(entries.ENTRIES)}, 'linear 0.1', "
                                           "'tenth 0.5', 'updates 40' or FILE.py:NAME")  # fmt: skip
    option("--bed", choices=[*BEDS], help="these beds only")
    option("--optimizer", choices=OPTIMIZERS, help="these optimizers only")
    option("--steps", type=int, help="these lengths only")
    parser.add_argument("--seed", type=int, action="append", help="in place of the plan's")
    parser.add_argument("--rows", type=Path, default=ROWS, metavar="FILE", help="of the runs (default: %(default)s)")
    parser.add_argument("--cpu-hours", type=float, default=math.inf, metavar="H", help="begin no run after so many")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes side by side (default: 1)")
    parser.add_argument("--list", action="store_true", help="only say what is left")
    given = parser.parse_args(argv)
    if given.workers < 1:
        raise UsageError(f"--workers must be at least 1, got {given.workers}")
    for name in given.entry or ():
        entries.find(name)  # what is wrong is refused before the first run
    parts = [
        part._replace(
            beds=[bed for bed in part.beds if bed in (given.bed or BEDS)],
            entries=given.entry or part.entries, seeds=given.seed or part.seeds,
        )
        for part in PLAN if part.steps in (given.steps or [one.steps for one in PLAN])
    ]  # fmt: skip
    runs = planned(parts, given.optimizer or OPTIMIZERS)
    if not runs:
        lengths, known = (" or ".join(map(str, some)) for some in (given.steps, (one.steps for one in PLAN)))
        raise UsageError(f"nothing is planned at {lengths} updates: give --steps {known}")
    if given.list:
        stored = [
            row for path in DATA.glob("*.jsonl") if path.stem not in ("stand-ins", "bench") for row in Rows.load(path)
        ]
        print(listing(runs, Rows.load(given.rows), stored))
    elif left := go_on(runs, given.rows, hours=given.cpu_hours, workers=given.workers):
        print(f"{left} runs are left; the same command goes on")
