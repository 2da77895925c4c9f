"""The table of a comparison, one row per cell."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .summary import Point, Summary, verdict, with_error

_HEADINGS = ("optimizer, rate", "best hand-set", "updates", "default", "ended after, by", "difference",
             "Algorithm 1", "ended after, by")  # fmt: skip


def cells(summary: Summary) -> list[str]:
    difference = "–" if (one := summary.difference) is None else with_error(one.mean, one.stderr, 4, "+")
    points = (point and summary.compared(point) for point in (summary.best, summary.adaptive, summary.paper))
    best, adaptive, paper = (_loss_and_length(point, summary.cell["steps"]) for point in points)
    return [summary.label, *best, *adaptive, difference, *paper]


def lines(summaries: Sequence[Summary]) -> list[list[str]]:
    """Return the headings and every row; Algorithm 1 has columns if it was run."""
    width = len(_HEADINGS) if any(summary.paper for summary in summaries) else -2
    return [line[:width] for line in ([*_HEADINGS], *map(cells, summaries))]


def table(summaries: Sequence[Summary]) -> Table:
    """Return the table for the terminal, at most 80 columns wide. Each warm-up's length is below its loss."""
    drawn = Table(
        box=None, pad_edge=False, padding=(0, 1, 1, 0), title_justify="left",
        title="Final validation loss ± standard error; below it the warm-up in updates, and what ended it",
    )  # fmt: skip
    headings, *rows = lines(summaries)
    for index, heading in enumerate(heading for heading in headings if heading not in (_HEADINGS[2], _HEADINGS[4])):
        drawn.add_column(heading, justify="left" if index == 0 else "right")
    for label, best, best_steps, adaptive, steps, difference, *paper in rows:
        row = (label, f"{best}\n{best_steps}", f"{adaptive}\n{steps}", difference, *["\n".join(paper)] * bool(paper))
        drawn.add_row(*map(Text, row))
    return drawn


def show(summaries: Sequence[Summary], failed: Mapping[str, str], console: Console) -> None:
    """Print the table, a verdict for each row, and how many runs failed."""
    console.print(table(summaries))
    for summary in summaries:
        console.print(Text(f"{summary.title}: {verdict(summary)}"))
    if failed:
        console.print(Text(f"failed runs: {len(failed)}. {next(iter(failed.values()))}"))


def _loss_and_length(point: Point | None, total: int) -> tuple[str, str]:
    if point is None:
        return "–", "–"
    length = "all" if point.warmup_steps >= total else f"{point.warmup_steps:.0f}"
    if point.ended_by:
        length += ", " + " and ".join(point.ended_by)
    if point.diverged:
        return f"{point.diverged} of {len(point.losses)} diverged", length
    return with_error(point.val_loss, point.stderr, 3), length
