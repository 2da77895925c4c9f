"""The command: makes a study's runs, or all pages from what is stored."""

import argparse
import difflib
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from autowarm.lab.config import LabError, UsageError, Where
from autowarm.lab.errors import as_usage_error
from autowarm.lab.execution.display import Display
from autowarm.lab.processes import Interrupted, Stop

from .cells import Setting, settings, title
from .pages.write import write_pages
from .plans import STUDIES
from .plans.warm_up import CELL_STAGES, Stage, missing
from .regret import judge
from .rows import PlannedRow, Rows, tidy
from .runs import make

_ABOUT = """\
Make a study's missing runs, stage by stage, each planned from the results of the stages before. Run it again to
continue.

warm-up      compares the default with hand-set warm-ups, Algorithm 1 and peers in chosen settings
horizon      compares for one small LLaMA from 1,000 to 64,000 updates
fine-tuning  compares from trained weights
fresh        compares on six tasks that the rule has not seen
unseen       compares on six more
lag          averages the losses of long runs over fewer updates
realistic    runs hand-set warm-ups, each at its own tuned rate, as people train
pages        makes no runs, but the tables and figures of the documentation from all stored runs
"""
_PAGES = "pages"
_OF_STUDIES = ("plan", "rows", "out", "engine", "workers", "address")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status, as `autowarm.lab.commands.main` does."""
    given = _parser().parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        _refuse_others(given)
        with as_usage_error():
            given.where = Where(engine=given.engine, workers=given.workers, address=given.address)
        path = given.rows or Path(f"docs/data/studies/{given.name}.jsonl")
        rows = Rows.load(path)
        if given.name == _PAGES:
            print(*write_pages(given.root), sep="\n")
        elif given.plan:
            _list_stages(STUDIES[given.name], rows)
        elif given.cell is not None:
            _again(given, rows)
        else:
            _go_on(given, rows, path)
    except LabError as error:
        print(f"studies: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except (KeyboardInterrupt, Interrupted) as error:
        goes_on = "starts from the beginning" if given.name == _PAGES else "continues from here"
        print(f"\ninterrupted; the same command {goes_on}", file=sys.stderr)
        return 128 + getattr(error, "signal", signal.SIGINT)
    return 0


def _refuse_others(given: argparse.Namespace) -> None:
    """Raise UsageError for an option that the study, or `pages`, does not have."""
    if given.cell is not None and given.name != "warm-up":
        raise UsageError("--cell belongs to the study warm-up")
    others, whose = (_OF_STUDIES, "studies") if given.name == _PAGES else (("root",), _PAGES)
    for option in others:
        if getattr(given, option) != _parser().get_default(option):
            raise UsageError(f"--{option} belongs to {whose}; {given.name} has none")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m studies", None, _ABOUT, formatter_class=argparse.RawTextHelpFormatter)
    option = parser.add_argument
    option("name", choices=[*STUDIES, _PAGES], metavar="NAME", help=f"the study: {', '.join(STUDIES)}; or {_PAGES}")
    option("--plan", action="store_true", help="only list the stages and how many of their runs are made")
    option("--cell", metavar="CELL", help="repeat every run of this setting of warm-up, store the results separately,\n"
                                          "and compare them with the stored ones")  # fmt: skip
    option("--rows", type=Path, metavar="FILE", help="finished runs, one per line, which are not repeated\n"
                                                     "(default: the study's file in docs/data/studies)")  # fmt: skip
    option("--root", type=Path, default=Path(), help="repository of the pages (default: this folder)")
    option("--out", type=Path, default=Path("runs/studies"), help="folder of unfinished runs, which go on from there")
    option("--engine", choices=["processes", "ray"], default="processes", help="on this machine, or on a cluster")
    option("--workers", type=int, help="processes side by side (default: one per GPU, or per core)")
    option("--address", help="the Ray cluster's, HOST:PORT or auto; by default Ray is started here")
    return parser


def _list_stages(stages: Mapping[str, Stage], rows: Rows) -> None:
    for name, stage in stages.items():
        try:
            planned = stage(rows)
        except LabError as error:  # it is planned by rows that are not there yet
            print(f"{name:<16} {error}")
            continue
        made = [run for run in planned if run in rows]
        hours = sum(rows[run]["seconds"] for run in made) / 3600
        print(f"{name:<16} {len(made):>5} of {len(planned):>5} runs made, {hours:.1f} CPU-hours")


def _go_on(given: argparse.Namespace, rows: Rows, path: Path) -> None:
    while left := missing(rows, STUDIES[given.name]):
        _make(given, left, path)
        rows = Rows.load(path)
    if path.exists():
        tidy(path)
    print(f"all {len(rows)} runs are in {path}")


def _again(given: argparse.Namespace, rows: Rows) -> None:
    by_name = {setting.cell.name: setting for setting in settings(rows)}
    if given.cell not in by_name:
        near = difflib.get_close_matches(given.cell, by_name, 3) or sorted(by_name)[:3]
        raise UsageError(f"the study has no setting {given.cell!r}; the rows name them, such as {', '.join(near)}")
    setting, path = by_name[given.cell], given.out / "again.jsonl"
    again = Rows.load(path)
    for stage in CELL_STAGES:
        if left := [run for run in stage(again, [setting.cell]) if run not in again]:
            _make(given, left, path)
            again = Rows.load(path)
    _compare(rows, again, setting)


def _make(given: argparse.Namespace, planned: Sequence[PlannedRow], path: Path) -> None:
    with Stop(), Display() as display:
        make(planned, path, given.out / "runs", display, given.where)


def _compare(kept: Rows, again: Rows, setting: Setting) -> None:
    for where, rows in (("kept", kept), ("made again", again)):
        if (found := judge(rows, setting)) is None or found.behind is None:
            print(f"{where}: nothing is learnt, or not all is run")
        else:
            print(f"{where}: best {title(found.best)}, the default is behind by {found.behind.mean:+.2f} ± "
                  f"{found.behind.stderr:.2f}% of the progress")  # fmt: skip
    both = [(row, kept[run]) for row in again if (run := PlannedRow.of(row)) in kept and run.cell == setting.cell]
    equal = sum(a["val_loss"] == b["val_loss"] for a, b in both)
    apart = [abs(a["val_loss"] / b["val_loss"] - 1) for a, b in both if a["val_loss"] and b["val_loss"]]
    print(f"{equal} of {len(both)} runs are equal to the bit, as only the machine that made them promises; the largest "
          f"relative difference of a loss is {max(apart, default=0.0):.2g}")  # fmt: skip
