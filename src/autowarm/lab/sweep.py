"""Sweeps: the runs of a grid, made once each, on this machine or on a cluster, and gathered into `results.json`.

A results folder::

    manifest.json   every run of the sweep: its name, cell, settings, id, folder and resolved config
    results.json    what came out, see `autowarm.lab.results`
    report.html     the same as a page, with the figures beside it
    runs/           the runs' own folders, or wherever `store` says

A run's folder is named by its id, a hash of all that decides its numbers, so a finished run is never made again: the
same command goes on where it stopped, and another grid makes only the new runs.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from .config import CompareConfig, DataConfig, LabError, ModelConfig, RunConfig, identity, run_id
from .display import Display
from .files import locked, read_result, write_json
from .grid import EngineName, SweepConfig
from .pool import Job, OnStep, run_jobs
from .results import document, write_results

SCHEMA = 1


@dataclass(frozen=True)
class Planned:
    """A run, its id and its folder.

    Attributes:
        name: its own within the sweep.
        run: the resolved config.
        id: the hash of all that decides its numbers.
        folder: where it is made, by the id.
        cell: the sweep's cell, or "".
        settings: its place on the grid's axes, but for the kind of schedule and the length of the warm-up.
    """

    name: str
    run: RunConfig
    id: str
    folder: Path
    cell: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether its result is there.

        Raises:
            LabError: it is damaged, or another run's.
        """
        return (self.folder / "result.json").exists() and bool(read_result(self.folder, self.id))

    def row(self) -> dict[str, Any]:
        """Its result, in the sweep's cell."""
        row = read_result(self.folder, self.id)
        if self.cell:
            row["cell"] = {"name": self.cell, **row["cell"], **self.settings}
        return row

    def job(self) -> Job:
        """What makes it."""
        return Job(self.name, self.run.steps, partial(_train, self.run, self.folder), self.folder)


def _train(run: RunConfig, folder: Path, on_step: OnStep) -> dict[str, Any]:
    from .train import train

    return train(run, folder, on_step)


def plan(config: SweepConfig) -> list[Planned]:
    """The sweep's runs with their ids; prepares the text or images they need."""
    store = Path(config.store or Path(config.out) / "runs")
    planned = []
    for point in config.points():
        key = _id(point.run)
        folder = store / f"{point.run.label}-{key}"
        planned.append(Planned(point.name, point.run, key, folder, point.cell, point.varied))
    return planned


def sweep(config: SweepConfig, display: Display) -> tuple[dict[str, Any], dict[str, str]]:
    """Makes every run that is not yet finished, and writes the manifest and `results.json`.

    Returns:
        The content of `results.json`, and the messages of the runs that failed, by name; they are not in it.

    Raises:
        LabError: a worker died, or every run failed; what is finished is kept.
        Interrupted: after the workers have stopped at a step boundary with a checkpoint.
    """
    out = Path(config.out)
    with locked(out):
        display.note("preparing the corpus")
        planned = plan(config)
        write_manifest(out, config.about, planned)
        failed = execute(planned, display, config.engine, config.workers, config.address)
        results = gather(out, dataclasses.asdict(config), planned, failed)
    return results, failed


def compare(config: CompareConfig, display: Display) -> tuple[dict[str, Any], dict[str, str]]:
    """The same for a comparison, whose cells are its optimizers and rates."""
    out = Path(config.out)
    with locked(out):
        display.note("preparing the corpus")
        planned = []
        for run in config.runs():
            key = _id(run)
            planned.append(Planned(run.label, run, key, out / "runs" / f"{run.label}-{key}"))
        failed = execute(planned, display, "processes", config.workers)
        results = gather(out, dataclasses.asdict(config), planned, failed)
    return results, failed


def execute(
    planned: Sequence[Planned],
    display: Display,
    engine: EngineName = "processes",
    workers: int | None = None,
    address: str | None = None,
    others: Sequence[Job] = (),
) -> dict[str, str]:
    """Makes the runs that are not finished, each folder once, and any other jobs; the messages of those that failed."""
    todo = {run.folder: run for run in planned if not run.finished}
    jobs = [*others, *(run.job() for run in todo.values())]
    done = len({run.folder for run in planned}) - len(todo)
    if engine == "ray":
        from . import cluster

        failed = cluster.run_jobs(jobs, address, display, done) if jobs else {}
    else:
        failed = run_jobs(jobs, workers, display, done) if jobs else {}
    if not jobs:
        display.begin([], done=done, workers=0)
    # A run that several places name fails in all of them.
    by_folder = {run.folder: failed[run.name] for run in todo.values() if run.name in failed}
    return failed | {run.name: by_folder[run.folder] for run in planned if run.folder in by_folder}


def gather(
    out: Path, config: Mapping[str, Any], planned: Sequence[Planned], failed: Mapping[str, str]
) -> dict[str, Any]:
    """Writes `results.json` from the finished runs."""
    rows = [run.row() for run in planned if run.name not in failed]
    if not rows:
        raise LabError(f"every run failed, the first with {next(iter(failed.values()))}")
    results = document(config, _source(planned[0].run), rows)
    write_results(out, results)
    return results


def write_manifest(out: Path, about: str, planned: Iterable[Planned]) -> Path:
    """Writes `manifest.json`: what the sweep is, run by run, before any is made."""
    runs = [
        {"name": run.name, "cell": run.cell, "settings": dict(run.settings), "id": run.id, "folder": str(run.folder),
         "config": dataclasses.asdict(run.run)}
        for run in planned
    ]  # fmt: skip
    path = out / "manifest.json"
    write_json(path, {"schema": SCHEMA, "about": about, "runs": runs})
    return path


def _source(run: RunConfig) -> dict[str, Any]:
    """What the run's data is: name and checksum, and tokens if it is text. The data is prepared if need be."""
    return _source_of(run.data, run.model.name, run.model.vocab_size)


@cache
def _source_of(data: DataConfig, model: str, vocab_size: int) -> dict[str, Any]:
    from .tasks import Language, make_task  # they import torch

    task = make_task(RunConfig(data=data, model=ModelConfig(name=model, vocab_size=vocab_size)))
    found = {"name": task.name, "sha256": task.sha256}
    return {**found, "tokens": task.corpus.tokens} if isinstance(task, Language) else found


def _id(run: RunConfig) -> str:
    return run_id(identity(run, _source(run)["sha256"]))
