"""The table of a comparison, one row per cell: for the terminal, for `print`, and for notebooks."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .summary import Point, Summary, verdict

HEADINGS = ("optimizer, rate", "best hand-set", "steps", "adaptive", "steps", "difference", "Algorithm 1", "steps")


def cells(summary: Summary) -> list[str]:
    """Return one row of the table, as text."""
    estimate, difference = summary.difference, "–"
    if estimate is not None:
        difference = "diverged" if estimate.diverged else f"{estimate.mean:+.4f}{_plus_minus(estimate.stderr, 4)}"
    total = summary.cell["steps"]
    best, adaptive, paper = (
        _loss_and_length(point, total) for point in (summary.best, summary.adaptive, summary.paper)
    )
    return [summary.label, *best, *adaptive, difference, *paper]


def table(summaries: Sequence[Summary]) -> Table:
    """Return the table for the terminal, at most 80 columns wide. Each warm-up's length is below its loss."""
    found = Table(
        box=None, pad_edge=False, padding=(0, 1, 1, 0), title_justify="left",
        title="Final validation loss, mean ± standard error; below it the steps of warm-up",
    )  # fmt: skip
    for index, heading in enumerate(("optimizer, rate", "best hand-set", "adaptive", "difference", "Algorithm 1")):
        found.add_column(heading, justify="left" if index == 0 else "right")
    for summary in summaries:
        label, best, best_steps, adaptive, steps, difference, paper, paper_steps = map(Text, cells(summary))
        pairs = [Text("\n").join(pair) for pair in ((best, best_steps), (adaptive, steps), (paper, paper_steps))]
        found.add_row(label, pairs[0], pairs[1], difference, pairs[2])
    return found


def show(summaries: Sequence[Summary], failed: Mapping[str, str], console: Console) -> None:
    """Print the table, a verdict for each row, and how many runs failed."""
    console.print(table(summaries))
    for summary in summaries:
        console.print(f"{summary.title}: {verdict(summary)}", markup=False)
    if failed:
        console.print(f"failed runs: {len(failed)}. {next(iter(failed.values()))}", markup=False)


def as_text(summaries: Sequence[Summary], failed: Mapping[str, str], report: Path) -> str:
    """Return what `show` prints, and the path of the report."""
    console = Console(width=100, highlight=False)
    with console.capture() as captured:
        show(summaries, failed, console)
    return f"{captured.get()}{report}"


def as_html(summaries: Sequence[Summary], report: Path) -> str:
    """Return the table, the verdicts and the path of the report as a fragment of a page."""
    rows = [list(HEADINGS), *map(cells, summaries)]
    lines = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    verdicts = "".join(f"<li>{escape(f'{summary.title}: {verdict(summary)}')}</li>" for summary in summaries)
    return f"<table>{lines}</table><ul>{verdicts}</ul><p>{escape(str(report))}</p>"


def _loss_and_length(point: Point | None, total: int) -> tuple[str, str]:
    if point is None:
        return "–", "–"
    length = "all" if point.warmup_steps >= total else f"{point.warmup_steps:.0f}"
    if point.diverged:
        return f"{point.diverged} of {len(point.losses)} diverged", length
    return f"{point.val_loss:.3f}{_plus_minus(point.stderr, 3)}", length


def _plus_minus(error: float | None, digits: int) -> str:
    return "" if error is None else f" ± {error:.{digits}f}"
