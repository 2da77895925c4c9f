"""Tables for the Markdown pages."""

import csv
import io
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[object]], pad: str = " ") -> str:
    """Return a Markdown table, whose cells are padded for readers of the text."""
    lines = ([str(cell).replace("|", r"\|") for cell in line] for line in (headings, *rows))
    first, *others = (f"|{pad}{f'{pad}|{pad}'.join(line)}{pad}|" for line in lines)
    return "\n".join([first, "|---" * len(headings) + "|", *others])


def comma_separated(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return the same table as CSV, of which `python -m studies pages` makes Markdown."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *rows])
    return text.getvalue()
