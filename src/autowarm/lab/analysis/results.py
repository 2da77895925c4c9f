"""Writes and reads `results.json`: rows, summaries and their origin."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from autowarm import __version__

from ..config import LabError
from ..files import read_object, write_json
from ..training.metrics import finite
from .summary import Row, Summary, summarise
from .table import show

SCHEMA = 1


@dataclass(frozen=True, repr=False)
class Results:
    folder: Path  # of `results.json`
    document: Mapping[str, Any]  # the file's content
    summaries: Sequence[Summary]  # one per cell

    @property
    def rows(self) -> Sequence[Row]:
        return self.document["runs"]

    @property
    def failed(self) -> Mapping[str, str]:
        """The error messages of failed runs, by name. Failed runs have no row."""
        return self.document.get("failed", {})

    def folder_of(self, row: Row) -> Path | None:
        """The folder of a run, if it is still there."""
        store = self.folder / (self.document["config"].get("store") or "runs")
        return next(store.glob(f"*-{row['id']}"), None)

    def __str__(self) -> str:
        console = Console(width=100, highlight=False)
        with console.capture() as captured:
            show(self.summaries, self.failed, console)
        return f"{captured.get()}{self.folder / 'report.html'}"

    __repr__ = __str__  # in a notebook


def write_results(
    folder: Path,
    config: Mapping[str, Any],
    corpus: Mapping[str, Any],
    rows: Sequence[Row],
    failed: Mapping[str, str] | None = None,
) -> Results:
    """Write `results.json`, with failed runs under "failed"."""
    summaries = summarise(rows, own=bool(corpus.get("own")))
    document = {
        "schema": SCHEMA, "environment": environment(), "corpus": dict(corpus), "config": dict(config),
        **({"failed": dict(failed)} if failed else {}), "runs": [dict(row) for row in rows],
        "summary": [_to_json(summary) for summary in summaries],
    }  # fmt: skip
    write_json(folder / "results.json", document)
    return Results(folder, document, summaries)


def read_results(folder: Path) -> Results:
    """Read the `results.json` of a results folder; LabError if it is missing, damaged, or of another schema."""
    path = folder / "results.json"
    if not path.is_file():
        if missing := unfinished(folder):
            raise LabError(missing)
        raise LabError(f"{folder} holds no results.json: give the folder of a finished `autowarm compare` or `sweep`")
    remedy = "run the command that made it again"
    document = read_object(path, remedy, "environment", "config", "corpus", "runs", schema=SCHEMA)
    return Results(folder, document, summarise(document["runs"], own=bool(document["corpus"].get("own"))))


def unfinished(folder: Path) -> str:
    """Say what is finished of a plan that was begun in a folder, and how to go on; "" if all is, or there is none."""
    if not (manifest := folder / "manifest.json").is_file():
        return ""
    runs = read_object(manifest, "run the command that made it again", "runs")["runs"]
    # The paths are as the command had them, from the folder in which it was given.
    places = {run["name"]: {Path(run["folder"]), folder / "runs" / Path(run["folder"]).name} for run in runs}
    done = [name for name, some in places.items() if any((place / "result.json").is_file() for place in some)]
    if len(done) == len(runs) and (folder / "results.json").is_file():
        return ""
    finished = f" ({'; '.join(done)})" if done else ""
    return f"{folder}: {len(done)} of {len(runs)} runs are finished{finished}. Repeat its command to go on"


def environment() -> dict[str, Any]:
    """Describe versions and machine, without anything that identifies the user."""
    return {
        "python": platform.python_version(),
        "autowarm": __version__,
        **{package: version(package) for package in ("torch", "transformers", "tokenizers", "numpy")},
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _to_json(summary: Summary) -> dict[str, Any]:
    """Convert a summary for `results.json`. Values that diverged or are unknown become null."""
    best, adaptive = (
        one and {"warmup_steps": one.warmup_steps, "val_loss": finite(one.val_loss), "stderr": one.stderr}
        for one in (summary.best, summary.adaptive)
    )
    difference = summary.difference
    return {"cell": dict(summary.cell), "optimizer": summary.cell["optimizer"], "best_manual": best,
            "adaptive": adaptive, "difference": difference and difference.mean,
            "stderr": difference and difference.stderr}  # fmt: skip
