"""Results on disk, and the processes that make them: one row a run, one file a cell, nothing made twice."""

import json
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from run import Cell, run

from autowarm.lab.files import write_json

__all__ = ["Job", "make", "rows", "workers"]

# (cell, schedule, seed, f* for Algorithm 1); of initial weights and data alike
Job = tuple[Cell, str, int, float | None]


def rows(folder: Path, cell: Cell) -> dict[tuple[str, int], dict[str, Any]]:
    """A cell's finished runs by (schedule, seed)."""
    path = folder / f"{cell.name}.json"
    found = json.loads(path.read_text())["runs"] if path.exists() else []
    return {(row["schedule"], row["seed"]): row for row in found}


def make(jobs: Iterable[Job], folder: Path, count: int = 2) -> None:
    """Make the runs that are not there yet, side by side, one thread each."""
    todo = [job for job in jobs if (job[1], job[2]) not in rows(folder, job[0])]
    with workers(count) as pool:
        waiting = {pool.submit(run, *job): job for job in todo}
        for done, future in enumerate(as_completed(waiting), 1):
            try:
                cell, row = waiting[future][0], future.result()
            except Exception:
                pool.shutdown(cancel_futures=True)  # or all the others would be made, and lost
                raise
            known = rows(folder, cell) | {(row["schedule"], row["seed"]): row}
            about = {"task": cell.task, "optimizer": cell.optimizer, "steps": cell.steps, "lr": cell.lr}
            write_json(folder / f"{cell.name}.json", {**about, "runs": [known[key] for key in sorted(known)]})
            loss = "diverged" if row["val_loss"] is None else f"{row['val_loss']:.4f}"
            what = f"{cell.name} {row['schedule']} seed {row['seed']}: {loss} ({row['seconds']} s)"
            print(f"{done}/{len(todo)} {what}", flush=True)


def workers(count: int) -> ProcessPoolExecutor:
    """Processes of one thread each: two of two threads on two cores were seen to be 50 times slower."""
    os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_start)


def _start() -> None:
    import torch

    torch.set_num_threads(1)
