"""The engine: makes each run of a plan once, on this machine or on a cluster, and gathers them in `results.json`.

    config.points()  →  plan: ids and folders  →  execute: runs  →  gather: rows, summaries, results.json

A results folder::

    manifest.json   every run of the plan: its name, cell, settings, id, folder and resolved config
    results.json    the results, see `autowarm.lab.analysis.results`
    report.html     the same as a page, with the figures next to it
    runs/           the runs' own folders, unless `store` names another place

A run's folder is named after its id, a hash of everything that determines its numbers. So no finished run is made
again: the same command continues where it stopped, and another grid makes only the new runs.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..analysis import report
from ..analysis.results import Results, write_results
from ..config import LabError, Plan, Point, RunConfig, Where
from ..files import locked, write_json
from ..processes import Stop
from ..tasks import identity, make_task, run_id
from ..tasks.own import PackedTask
from ..training.metrics import read_result
from .display import Display
from .pool import Job, called, run_jobs

SCHEMA = 1


@dataclass(frozen=True)
class Planned:
    point: Point
    id: str  # a hash of everything that determines its numbers
    folder: Path  # named after the id
    own: PackedTask | None = None  # the user's task, if the config names none of the lab's
    source: Mapping[str, Any] = field(default_factory=dict)  # name and checksum of its data

    @property
    def finished(self) -> bool:
        """Whether the run has a result, which must be whole and its own."""
        return (self.folder / "result.json").exists() and bool(read_result(self.folder, self.id))

    def row(self) -> dict[str, Any]:
        """Read the run's result and put it in the plan's cell."""
        row = {key: value for key, value in read_result(self.folder, self.id).items() if key != "files"}
        if self.point.cell:
            # With a dot, so that a summary's label tells the grid's axes from the cell's other entries.
            axes = {key if "." in key else f"run.{key}": value for key, value in self.point.varied.items()}
            row["cell"] = {"name": self.point.cell, **row["cell"], **axes}
        return row

    def job(self) -> Job:
        """Return the job that makes the run."""
        call = partial(called, "autowarm.lab.training.loop:train", self.point.run, self.folder, own=self.own)
        return Job(self.point.name, self.point.run.steps, call, self.folder)


def plan(points: Iterable[Point], store: Path, own: PackedTask | None = None) -> list[Planned]:
    """Return the runs with their ids and folders. This also prepares the text or images that they need."""
    planned = []
    for point in points:
        source = own.source if own else _source(point.run)
        key = run_id(identity(point.run, source["sha256"]))
        planned.append(Planned(point, key, store / f"{point.run.label}-{key}", own, source))
    return planned


def make(config: Plan, points: Sequence[Point], display: Display, own: PackedTask | None = None) -> Results:
    """Make every unfinished run of a plan, ``config.points()``, and write its manifest and `results.json`."""
    out = Path(config.out)
    with locked(out):
        display.note("preparing the data")
        planned = plan(points, Path(config.store or out / "runs"), own)
        write_manifest(out, config.about, planned)
        failed = execute(planned, display, config)
        return gather(out, dataclasses.asdict(config), planned, failed)


def make_report(config: Plan, points: Sequence[Point], own: PackedTask | None = None) -> tuple[Results, list[Path]]:
    """Make a plan's runs and, of their results, figures and the page, whose paths are returned."""
    display = Display()
    with Stop(), display.progress:
        results = make(config, points, display, own)
        display.note("drawing figures")
        return results, report.make(results)


def execute(planned: Sequence[Planned], display: Display, where: Where) -> dict[str, str]:
    """Make the unfinished runs, each folder once; return the messages of those that failed."""
    unfinished = {run.folder: run for run in planned if not run.finished}
    jobs = [run.job() for run in unfinished.values()]
    done = len({run.folder for run in planned}) - len(jobs)
    if not jobs:
        display.begin([], done=done, workers=0)
        return {}
    if where.engine == "ray":
        from . import cluster

        failed = cluster.run_jobs(jobs, where.address, display, done)
    else:
        failed = run_jobs(jobs, where.workers, display, done)
    first = {run.folder: run.point.name for run in unfinished.values()}
    return {run.point.name: failed[name] for run in planned if (name := first.get(run.folder)) in failed}


def gather(out: Path, config: Mapping[str, Any], planned: Sequence[Planned], failed: Mapping[str, str]) -> Results:
    """Write `results.json` from the finished runs; raise LabError if every run failed."""
    rows = [run.row() for run in planned if run.point.name not in failed]
    if not rows:
        reasons = list(dict.fromkeys(failed.values()))
        raise LabError(f"every run failed{'' if len(reasons) == 1 else ', the first'}: {reasons[0]}")
    if config.get("store"):  # from the results, so that a report finds it from any folder
        config = {**config, "store": os.path.relpath(config["store"], out)}
    return write_results(out, config, planned[0].source, rows, failed)


def write_manifest(out: Path, about: str, planned: Sequence[Planned]) -> None:
    """Write `manifest.json`, which describes the plan run by run, before any run is made.

    It also has a checksum of each attribute of a user's task: one that is new at every start makes every run new.
    """
    attributes = dict(planned[0].own.attributes) if planned[0].own else {}
    runs = [{"name": run.point.name, "cell": run.point.cell, "settings": dict(run.point.varied), "id": run.id,
             "folder": str(run.folder), "config": dataclasses.asdict(run.point.run)} for run in planned]  # fmt: skip
    write_json(out / "manifest.json", {"schema": SCHEMA, "about": about, "task": attributes, "runs": runs})


def _source(run: RunConfig) -> dict[str, Any]:
    """Return name, checksum and, of text, tokens of the run's data, which are prepared."""
    task = make_task(run)
    tokens = getattr(getattr(task.inner, "data", None), "tokens", None)
    return {"name": task.name, "sha256": task.sha256, **({} if tokens is None else {"tokens": tokens})}
