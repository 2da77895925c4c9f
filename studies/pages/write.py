"""Writes docs/evidence.md and the README's headline: fills the templates beside this file with the rows' numbers.

The prose is in the pages. A template holds only the paragraphs with numbers, and the pages mark their places.
"""

import csv
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.config import LabError

from ..plans.warm_up import missing
from ..rows import Rows
from ..runs import curve_of
from ..verdicts import verdicts
from . import write_files
from .evidence import evidence, summary
from .figures import curves_figure, curves_wanted, differences_figure, evidence_figure, first_figure
from .tables import tables

_TEMPLATES, _ROOT = Path(__file__).parent / "templates", Path(__file__).parents[2]
_MARK = "<!-- by python -m studies warm-up -->"
_PLACE = re.compile(rf"({_MARK}\n).*?(\n<!-- end -->)", re.DOTALL)


def texts(rows: Rows) -> tuple[dict[str, str], str]:
    """The files below docs/ by path (evidence.md and its tables), and the headline of the README.

    Raises:
        LabError: planned runs are missing.
    """
    if left := missing(rows):
        first = f"{left[0].cell.name} under {left[0].schedule!r}, seed {left[0].seed}"
        raise LabError(f"the pages need every planned run; at least {len(left)} are missing, first {first}: make them")
    judged = verdicts(rows)
    headline = " ".join(_template("headline.md").format(**summary(rows, judged)).split())
    values = evidence(rows, judged)
    paragraphs = [text.strip("\n").format(**values) for text in _template("evidence.md").split("\n---\n")]
    files = {"evidence.md": _with(_ROOT / "docs" / "evidence.md", paragraphs)}
    made = {"claims": _claims(values), **tables(rows, judged)}
    return files | {f"data/tables/{name}.csv": text for name, text in made.items()}, textwrap.fill(headline, 120)


def write_pages(rows: Rows, root: Path) -> list[Path]:
    """Write the page, its tables and figures into docs/, and the headline into README.md; return their paths.

    The runs whose curves are shown are made again, which takes seconds.

    Raises:
        LabError: planned runs are missing, or a page lacks its marks.
    """
    files, headline = texts(rows)
    readme = _with(root / "README.md", [headline])
    judged = verdicts(rows)
    curves = {run: curve_of(run) for run in curves_wanted(rows)}
    figures = {
        "schedules": differences_figure(judged), "evidence": evidence_figure(judged),
        "warming-up": curves_figure(rows, curves), "first": first_figure(rows, curves),
    }  # fmt: skip
    made = {f"docs/{name}" if name.endswith(".md") else Path(name).stem: text for name, text in files.items()}
    return write_files(root, {**figures, **made, "README.md": readme})


def _with(page: Path, paragraphs: list[str]) -> str:
    """A page's text with these paragraphs in its marked places."""
    text, left = page.read_text(encoding="utf-8"), iter(paragraphs)
    if (places := len(_PLACE.findall(text))) != len(paragraphs):
        raise LabError(f"{page} has no {_MARK} with <!-- end --> after it for each of {len(paragraphs)} paragraphs, "
                       f"but {places}: these marks hold what the rows say")  # fmt: skip
    return _PLACE.sub(lambda marks: marks[1] + next(left) + marks[2], text)


def _template(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _claims(values: Mapping[str, object]) -> str:
    cells = [[cell.format(**values) for cell in row] for row in csv.reader(_template("claims.csv").splitlines())]
    return comma_separated(cells[0], cells[1:])
