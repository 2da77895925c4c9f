"""Writes what README and the pages show of the rows in a checkout: figures, and tables as CSV and as Markdown."""

import csv
import re
from pathlib import Path

from matplotlib.figure import Figure

from autowarm.lab.analysis.figures import encoded
from autowarm.lab.analysis.markdown import table
from autowarm.lab.config import LabError
from autowarm.lab.files import write_atomically

from .. import bench, geometry, peak_limit, published, recovery
from ..rows import Rows
from .figures import recovery_figure, sensitivity_figure
from .find_rate import find_rate_table, searches_figure
from .tables import sweeps, texts

_SHOWN = re.compile(r"(<!-- (\S+\.csv) -->\n\n)(?:\|.*\n)*\n*")
"""A comment that names a table, the table below it, and the blank line that ends it."""


def tables(data: Path) -> dict[str, str]:
    """All tables that are made of stored rows, as CSV by name."""
    judged_by_geometry = Rows.load(data / "studies" / geometry.ROWS.name)
    return texts(data) | {
        "geometry-short": geometry.short_table(judged_by_geometry),
        "geometry-long": geometry.long_table(judged_by_geometry),
        "peak-limit": peak_limit.judgement_table(Rows.load(data / "studies" / bench.ROWS.name)),
        "geometry-rates": geometry.rates_table(judged_by_geometry),
        "faults-recovered": recovery.faults_table(Rows.load(data / "studies" / "faults.jsonl")),
        "find-rate": find_rate_table(data), "published": published.published_table(),
        "published-costs": published.published_costs_table(),
    }  # fmt: skip


def figures(data: Path) -> dict[str, Figure]:
    """All figures by name."""
    (bare, _), (recovered, recoveries) = map(recovery.losses_of, recovery.SPIKE)
    return {
        "sensitivity": sensitivity_figure(sweeps(data)),
        "geometry": published.geometry_figure(),
        "which-rate": searches_figure(data),
        "recovery": recovery_figure(bare, recovered, recoveries[0]),
    }


def write_pages(root: Path) -> list[Path]:
    """Write tables and figures into docs/, then the tables that README and the pages show; return all paths.

    The runs of the figure `recovery` are made again, which takes a minute.

    Raises:
        LabError: a planned run is missing, or a table that a page shows.
    """
    docs = root / "docs"
    files: dict[Path, str | bytes] = {
        docs / "data" / "tables" / f"{name}.csv": text for name, text in tables(docs / "data").items()
    }
    files |= {docs / "figures" / f"{name}.png": encoded(one, "png") for name, one in figures(docs / "data").items()}
    for path, content in files.items():
        write_atomically(path, content)
    pages = [root / "README.md", *docs.glob("*.md")]
    for page in pages:
        write_atomically(page, with_tables(page))
    return [*files, *pages]


def with_tables(page: Path) -> str:
    """A page with the tables that its comments name, ``<!-- data/tables/scale.csv -->``, as they are stored.

    Raises:
        LabError: there is no such table.
    """

    def with_table(comment: re.Match[str]) -> str:
        try:
            with open(page.parent / comment[2], newline="", encoding="utf-8") as file:
                headings, *lines = csv.reader(file)
        except FileNotFoundError:
            raise LabError(f"{page.name} shows {comment[2]}, which is not there: name a CSV beside the page") from None
        return f"{comment[1]}{table(headings, lines, pad='')}\n\n"

    return _SHOWN.sub(with_table, page.read_text(encoding="utf-8")).rstrip("\n") + "\n"
