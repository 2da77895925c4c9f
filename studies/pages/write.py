"""Writes the tables and figures of docs/evidence.md and docs/which-rate.md from the rows in a checkout."""

from pathlib import Path

from matplotlib.figure import Figure

from ..regret import judged
from ..rows import Rows
from ..runs import curve_of
from . import write_files
from .figures import EXAMPLE, first_figure, regret_figure
from .peak import horizon_rates_table, peak_figure, peak_table
from .tables import tables

DATA = Path("docs") / "data"


def texts(data: Path) -> dict[str, str]:
    """The tables as CSV, by name, from the rows below the folder docs/data.

    Raises:
        LabError: a planned run is missing.
    """
    studies = data / "studies"
    return {
        **tables(data),
        "peak-rates": peak_table(Rows.load(studies / "peak.jsonl")),
        "peak-horizons": horizon_rates_table(Rows.load(studies / "horizon.jsonl")),
    }


def write_pages(root: Path) -> list[Path]:
    """Write tables and figures into docs/ and return their paths. The two runs of the first figure are made again.

    Raises:
        LabError: a planned run is missing.
    """
    return write_files(root, {**texts(root / DATA), **figures(root / DATA)})


def figures(data: Path) -> dict[str, Figure]:
    """The figures by name."""
    long = [one for study in ("warm-up", "horizon") for one in judged(data, study) if one.setting.cell.steps >= 1_000]
    rows = Rows.load(data / "studies" / "horizon.jsonl")
    return {
        "regret": regret_figure(long),
        "first": first_figure(rows, {run: curve_of(run) for run in EXAMPLE}),
        "peak-rates": peak_figure(Rows.load(data / "studies" / "peak.jsonl")),
    }
