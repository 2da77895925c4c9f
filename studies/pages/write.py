"""Writes the study's page and the README's headline: fills the templates with the rows' numbers."""

import csv
import textwrap
from collections.abc import Mapping
from pathlib import Path

from autowarm.lab.analysis.figures import encoded
from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.config import LabError
from autowarm.lab.files import write_atomically

from ..plans.warm_up import missing
from ..rows import Rows
from ..runs import curve_of
from ..verdicts import verdicts
from .evidence import evidence, summary
from .figures import curves_figure, curves_wanted, differences_figure, evidence_figure, first_figure
from .tables import tables

__all__ = ["texts", "write_pages"]

_TEMPLATES = Path(__file__).parent / "templates"
_MARKS = "<!-- by python -m studies warm-up -->\n", "\n<!-- end -->"


def texts(rows: Rows) -> tuple[dict[str, str], str]:
    """The files below docs/ by path (evidence.md and its tables), and the headline of the README.

    Raises:
        LabError: planned runs are missing.
    """
    if left := missing(rows):
        first = f"{left[0].cell.name} under {left[0].schedule!r}, seed {left[0].seed}"
        raise LabError(f"the pages need every planned run; at least {len(left)} are missing, first {first}: make them")
    judged = verdicts(rows)
    headline = " ".join(_filled("headline", summary(rows, judged)).split())
    values = evidence(rows, judged)
    files = {"evidence.md": _filled("evidence", values), "data/tables/claims.csv": _filled_table("claims", values)}
    files |= {f"data/tables/{name}.csv": text for name, text in tables(rows, judged).items()}
    return files, textwrap.fill(headline, 120)


def write_pages(rows: Rows, root: Path) -> list[Path]:
    """Write the page, its tables and figures into docs/, and the headline between its marks into README.md.

    The runs whose curves are shown are made again, which takes seconds.

    Args:
        rows: rows of the whole study.
        root: root of the repository.

    Returns:
        The paths of the files written.

    Raises:
        LabError: planned runs are missing, or the README lacks the marks.
    """
    files, headline = texts(rows)
    readme = (root / "README.md").read_text(encoding="utf-8")
    start, end = _MARKS
    before, found, rest = readme.partition(start)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise LabError(
            f"{root / 'README.md'} has no {start.strip()} with {end.strip()} after it: these marks hold the headline"
        )
    judged = verdicts(rows)
    docs = root / "docs"
    curves = {run: curve_of(run) for run in curves_wanted(rows)}
    drawn = {
        "schedules": differences_figure(judged),
        "evidence": evidence_figure(judged),
        "warming-up": curves_figure(rows, curves),
        "first": first_figure(rows, curves),
    }
    paths = [docs / "figures" / f"{name}.png" for name in drawn]
    for figure, path in zip(drawn.values(), paths, strict=True):
        write_atomically(path, encoded(figure, "png"))
    text = {docs / path: content for path, content in files.items()}
    text[root / "README.md"] = f"{before}{start}{headline}{end}{after}"
    for page, content in text.items():
        page.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(page, content)
    return [*paths, *text]


def _filled(name: str, values: Mapping[str, object]) -> str:
    return (_TEMPLATES / f"{name}.md").read_text(encoding="utf-8").format(**values)


def _filled_table(name: str, values: Mapping[str, object]) -> str:
    with (_TEMPLATES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        headings, *rows = ([cell.format(**values) for cell in row] for row in csv.reader(file))
    return comma_separated(headings, rows)
