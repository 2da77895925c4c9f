"""Writes what docs/evidence.md, docs/which-rate.md and README show of the rows in a checkout."""

import re
from pathlib import Path

from matplotlib.figure import Figure

from autowarm.lab.config import LabError
from autowarm.lab.files import write_atomically

from ..recovery.alarms import watched_table
from ..recovery.faults import SPIKE, faults_table, losses_of
from ..regret import judged
from ..rows import Rows
from ..runs import curve_of
from . import write_files
from .figures import EXAMPLE, first_figure, recovery_figure, regret_figure
from .peak import horizon_rates_table, peak_figure, peak_table, searches_figure
from .tables import readme_table, tables

DATA = Path("docs") / "data"


_MARKS = re.compile(r"(<!-- by python -m studies pages -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)


def texts(data: Path) -> dict[str, str]:
    """The tables as CSV, by name, from the rows below the folder docs/data.

    Raises:
        LabError: a planned run is missing.
    """
    studies = data / "studies"
    return {
        **tables(data),
        "false-alarms": watched_table(
            {name: Rows.load(studies / f"{name}.jsonl") for name in ("warm-up", "horizon", "fresh", "realistic")}
        ),
        "faults-recovered": faults_table(Rows.load(studies / "faults.jsonl")),
        "peak-rates": peak_table(Rows.load(studies / "peak.jsonl")),
        "peak-horizons": horizon_rates_table(Rows.load(studies / "horizon.jsonl")),
    }


def write_pages(root: Path) -> list[Path]:
    """Write tables and figures into docs/ and README's table; return their paths.

    The runs of the figures `first`, `recovery` and `which-rate` are made again, which takes minutes.

    Raises:
        LabError: a planned run is missing, or README has no place for the table.
    """
    text = with_table((root / "README.md").read_text(encoding="utf-8"), root / DATA)
    # A table and a figure may share a name.
    paths = [*write_files(root, texts(root / DATA)), *write_files(root, figures(root / DATA))]
    write_atomically(root / "README.md", text)
    return [*paths, root / "README.md"]


def with_table(readme: str, data: Path) -> str:
    """README with what one choice costs between its marks.

    Raises:
        LabError: a planned run is missing, or the marks are.
    """
    found = readme_table([*judged(data, "warm-up"), *judged(data, "horizon")])
    text, count = _MARKS.subn(lambda marks: marks[1] + found.strip() + marks[2], readme)
    if count != 1:
        raise LabError(f"README.md has {count} places for the table, not one: between {_MARKS.pattern!r}")
    return text


def figures(data: Path) -> dict[str, Figure]:
    """The figures by name."""
    long = [one for study in ("warm-up", "horizon") for one in judged(data, study) if one.setting.cell.steps >= 1_000]
    rows, faults = (Rows.load(data / "studies" / f"{name}.jsonl") for name in ("horizon", "faults"))
    bare, recovered = map(losses_of, SPIKE)
    return {
        "regret": regret_figure(long),
        "first": first_figure(rows, {run: curve_of(run) for run in EXAMPLE}),
        "peak-rates": peak_figure(Rows.load(data / "studies" / "peak.jsonl")),
        "which-rate": searches_figure(),
        "recovery": recovery_figure(bare, recovered, faults[SPIKE[1].planned]["recoveries"][0]),
    }
