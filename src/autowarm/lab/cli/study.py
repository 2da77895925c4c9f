"""`autowarm study`: a study of the product, from its plan to its pages."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import EngineName, LabError, UsageError, nearest, require
from ..config.build import parse
from ..training.stopping import Stop

if TYPE_CHECKING:
    from ..study.plan import Stage
    from ..study.rows import Cell, PlannedRow, Rows

__all__ = ["study"]

_NAMES = ("warm-up", "fair", "horizon", "fine-tuning", "fresh", "peak")


@dataclass(frozen=True)
class StudyConfig:
    """A study: stages of runs, each planned from the results of the stages before, and pages computed from all results.

    Args:
        name: which one. "warm-up" compares the default with hand-set warm-ups, fixed shares and peers; "fair" adds a
            wider grid to its rows; "horizon" compares for one small LLaMA from 1,000 to 64,000 steps,
            "fine-tuning" from trained weights, "fresh" on six tasks that the rule has not seen; "peak" compares
            peak="auto" with tuned rates.
        cell: repeat every run of this setting, store the results separately, and compare them with the stored ones.
        rows: file of finished runs, one per line, which are not repeated. Null is the study's file in
            docs/data/studies.
        root: repository into whose docs/ and README.md the pages are written; null writes none.
        out: folder of unfinished runs, from which interrupted ones continue.
        engine: "processes" on this machine, or "ray" on a cluster.
        workers: processes side by side; null is one per GPU, or per core.
        address: the Ray cluster's, HOST:PORT or auto; null starts Ray here.
    """

    name: str = ""
    cell: str | None = None
    rows: str | None = None
    root: str | None = None
    out: str = "runs/studies"
    engine: EngineName = "processes"
    workers: int | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        require(self.name != "", f"study needs a name: {', '.join(_NAMES)}")
        require(self.name in _NAMES, f"unknown study {self.name!r}; {nearest(self.name, _NAMES)}")
        require(self.workers is None or self.workers > 0, f"workers must be at least 1, got {self.workers}")
        require(self.name == "warm-up" or self.cell is None, "--cell belongs to the study warm-up")

    @property
    def path(self) -> Path:
        """The file of the rows."""
        name = "warm-up" if self.name == "fair" else self.name
        return Path(self.rows or f"docs/data/studies/{name}.jsonl")

    @property
    def stages(self) -> "Mapping[str, Stage]":
        """The study's stages, in their order."""
        from ..study import horizon, peak, plan, transfer

        return {
            "warm-up": plan.STAGES, "fair": plan.STAGES | plan.FAIR_STAGES, "horizon": horizon.STAGES,
            "fine-tuning": transfer.FINE_TUNING_STAGES, "fresh": transfer.FRESH_STAGES, "peak": peak.STAGES,
        }[self.name]  # fmt: skip


def study(argv: list[str]) -> int:
    """Make the runs that are missing, stage by stage, then the pages."""
    about = "Make a study's missing runs, stage by stage, then its pages (--root .). Run it again to continue."
    planning = "--plan" in argv
    argv = [word for word in argv if word != "--plan"]
    also = {"--plan": "only list the stages and how many of their runs are made"}
    config = parse(argv, StudyConfig, "study", about, positional="name", also=also)

    from ..study.rows import Rows

    rows = Rows.load(config.path)
    if planning:
        return _list_stages(config, rows)
    return _again(config, rows, config.cell) if config.cell else _go_on(config, rows)


def _list_stages(config: StudyConfig, rows: "Rows") -> int:
    for name, stage in config.stages.items():
        try:
            planned = stage(rows)
        except LabError as error:  # it is planned by rows that are not there yet
            print(f"{name:<16} {error}")
            continue
        made = [run for run in planned if run in rows]
        hours = sum(rows[run].get("seconds", 0.0) for run in made) / 3600
        print(f"{name:<16} {len(made):>5} of {len(planned):>5} runs made, {hours:.1f} CPU-hours")
    return 0


def _go_on(config: StudyConfig, rows: "Rows") -> int:
    from ..study.pages.fair import write_fair_tables
    from ..study.pages.grids import write_grid_pages
    from ..study.pages.peak import write_peak_pages
    from ..study.pages.write import write_pages
    from ..study.plan import missing
    from ..study.rows import Rows, tidy

    path = config.path
    while left := missing(rows, config.stages):
        _make(config, left, path)
        rows = Rows.load(path)
    if path.exists():
        tidy(path)
    print(f"all {len(rows)} runs are in {path}")
    if config.root is not None:
        write = {"warm-up": write_pages, "fair": write_fair_tables, "peak": write_peak_pages}.get(
            config.name, partial(write_grid_pages, config.name)
        )
        for page in write(rows, Path(config.root)):
            print(page)
    return 0


def _again(config: StudyConfig, rows: "Rows", name: str) -> int:
    from ..study.cells import cells
    from ..study.plan import CELL_STAGES
    from ..study.rows import Rows

    by_name = {cell.name: cell for cell in cells(rows)}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, 3) or sorted(by_name)[:3]
        raise UsageError(f"the study has no setting {name!r}; docs/evidence.md lists them, such as {', '.join(near)}")
    cell, path = by_name[name], Path(config.out) / "again.jsonl"
    again = Rows.load(path)
    for stage in CELL_STAGES:
        _make(config, [run for run in stage(again, [cell]) if run not in again], path)
        again = Rows.load(path)
    _compare(rows, again, cell)
    return 0


def _make(config: StudyConfig, planned: "list[PlannedRow]", path: Path) -> None:
    from ..execution.display import Display
    from ..study.runs import make

    if planned:
        display = Display()
        with Stop(), display:
            make(planned, path, Path(config.out) / "runs", display, config.engine, config.workers, config.address)


def _compare(kept: "Rows", again: "Rows", cell: "Cell") -> None:
    from ..study.cells import SEEDS
    from ..study.rows import PlannedRow
    from ..study.verdicts import judge

    for where, rows in (("kept", kept), ("made again", again)):
        v = judge(rows, cell, SEEDS)
        print(f"{where}: best {v.best}, default − best {100 * v.mean:+.2f} ± {100 * v.stderr:.2f} %")
    both = [(row, kept[run]) for row in again if (run := PlannedRow.of(row)) in kept and run.cell == cell]
    equal = sum(a["val_loss"] == b["val_loss"] for a, b in both)
    apart = [abs(a["val_loss"] / b["val_loss"] - 1) for a, b in both if a["val_loss"] and b["val_loss"]]
    print(f"{equal} of {len(both)} runs are equal to the bit, as only the machine that made them promises; the largest "
          f"relative difference of a loss is {max(apart, default=0.0):.2g}")  # fmt: skip
