"""Tables for the Markdown pages."""

import csv
import io
from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table.

    Example:
        >>> from autowarm.lab.analysis.markdown import table
        >>> print(table(["task", "loss"], [["mlp", 0.7]]))
        | task | loss |
        |---|---|
        | mlp | 0.7 |
    """
    first, *others = (f"| {' | '.join(map(str, line))} |" for line in (headings, *rows))
    return "\n".join([first, "|---" * len(headings) + "|", *others])


def comma_separated(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return the same table as CSV, for a page's ``csv-table``.

    Example:
        >>> from autowarm.lab.analysis.markdown import comma_separated
        >>> print(comma_separated(["task", "loss"], [["mlp, small", 0.7]]), end="")
        task,loss
        "mlp, small",0.7
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *rows])
    return text.getvalue()
