"""Makes the missing runs of a study in this process, one at a time, and stores a row as each finishes."""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from autowarm.lab.config import RunConfig
from autowarm.lab.training.loop import train

from .rows import PlannedRow, Row, Rows, append, tidy
from .runs import row_of
from .tasks import StudyTask


def go_on(
    about: str | None,
    argv: Sequence[str] | None,
    stored: Path,
    plan: Callable[[Rows], Iterable[PlannedRow]],
    make: Callable[[PlannedRow], Row],
) -> Rows:
    """Make what is left of a plan, which may grow with the rows, or list it; return all rows.

    Args:
        about: the module's docstring.
        argv: the words after the command.
        stored: the file of the rows, unless the command names another.
        plan: all runs that rows allow to plan, in their order.
        make: makes a run.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="?", default=stored)
    parser.add_argument("--list", action="store_true", help="say what is left")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = Rows.load(given.rows)
    print(f"{len(rows)} runs made, {sum(row.get('seconds', 0) for row in rows) / 3600:.1f} CPU-hours")
    while left := [run for run in plan(rows) if run not in rows]:
        if given.list:
            print(*(f"{run.part} {run.cell.name} {run.schedule} seed{run.seed}" for run in left), sep="\n")
            return rows
        append(given.rows, make(left[0]))
        rows = Rows.load(given.rows)
    if not given.list:
        tidy(given.rows)
    return rows


def trained(planned: PlannedRow, config: RunConfig) -> Row:
    """Make a planned run as this config says; its row says how many seconds of a CPU it took."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, Path(folder), own=StudyTask(planned.cell.task))
    return row_of(planned, {**result, "seconds": time.process_time() - began})
