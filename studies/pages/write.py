"""Writes what docs/evidence.md, docs/which-rate.md and README show of the rows in a checkout."""

import re
from pathlib import Path

from matplotlib.figure import Figure

from autowarm.lab.analysis.figures import encoded
from autowarm.lab.config import LabError
from autowarm.lab.files import write_atomically

from ..recovery.faults import SPIKE, losses_of
from ..rows import Rows
from ..runs import curve_of
from .figures import EXAMPLE, first_figure, recovery_figure, shapes_figure
from .insurance import groups, insurance_figure, readme_table
from .tables import texts
from .which_rate import searches_figure

_MARKS = re.compile(r"(<!-- by python -m studies pages -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)


def write_pages(root: Path) -> list[Path]:
    """Write tables and figures into docs/ and README's table; return their paths.

    The runs of the figures `first`, `recovery` and `which-rate` are made again, which takes minutes.

    Raises:
        LabError: a planned run is missing, or README has no place for the table.
    """
    docs, readme = root / "docs", root / "README.md"
    text = with_table(readme.read_text(encoding="utf-8"), docs / "data")
    files: dict[Path, str | bytes] = {
        docs / "data" / "tables" / f"{name}.csv": table for name, table in texts(docs / "data").items()
    }
    files |= {docs / "figures" / f"{name}.png": encoded(one, "png") for name, one in figures(docs / "data").items()}
    files[readme] = text
    for path, content in files.items():
        write_atomically(path, content)
    return list(files)


def with_table(readme: str, data: Path) -> str:
    """README with what one choice costs between its marks.

    Raises:
        LabError: a planned run is missing, or the marks are.
    """
    found = readme_table(groups(data))
    text, count = _MARKS.subn(lambda marks: marks[1] + found + marks[2], readme)
    if count != 1:
        raise LabError(f"README.md has {count} places for the table, not one: between {_MARKS.pattern!r}")
    return text


def figures(data: Path) -> dict[str, Figure]:
    """The figures by name."""
    rows, faults, forms = (Rows.load(data / "studies" / f"{name}.jsonl") for name in ("horizon", "faults", "shapes"))
    bare, recovered = map(losses_of, SPIKE)
    return {
        "insurance": insurance_figure(groups(data)),
        "shapes": shapes_figure(forms),
        "first": first_figure(rows, {run: curve_of(run) for run in EXAMPLE}),
        "which-rate": searches_figure(),
        "recovery": recovery_figure(bare, recovered, faults[SPIKE[1].planned]["recoveries"][0]),
    }
