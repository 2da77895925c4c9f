"""Presents a results folder: a table for the terminal, figures, and a self-contained HTML page."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import yaml
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..files import write_atomically
from . import figures
from .results import Results
from .summary import Point, Row, Summary, headline, margin_of, verdict

__all__ = ["HEADINGS", "Files", "cells", "fragment", "html", "make", "show", "shown", "table"]

_TEMPLATES = Path(__file__).parent / "templates"
HEADINGS = ("optimizer, rate", "best hand-set", "steps", "adaptive", "steps", "difference", "Algorithm 1", "steps")


@dataclass(frozen=True)
class Files:
    """The files that `make` wrote."""

    report: Path
    figures: list[Path]


def make(results: Results) -> Files:
    """Write the figures and `report.html` next to `results.json`. Only runs with existing folders have curves."""
    folder = results.folder
    store = Path(results.document["config"].get("store") or folder / "runs")
    curves = [figures.curves_of(summary, results.rows, store) for summary in results.summaries]
    paths = []
    if swept := [summary for summary in results.summaries if summary.manual]:
        paths += figures.save(figures.sweep_figure(swept), folder / "sweep")
    if drawn := [(summary, some) for summary, some in zip(results.summaries, curves, strict=True) if some]:
        paths += figures.save(figures.curves_figure(*map(list, zip(*drawn, strict=True))), folder / "curves")
    page = folder / "report.html"
    write_atomically(page, html(results, curves))
    return Files(page, paths)


def html(results: Results, curves: Sequence[list[figures.Curve]]) -> str:
    """Return the whole page with embedded pictures. Each cell has its own, so that they stack on a narrow screen."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    summaries, document = results.summaries, results.document
    return environment.get_template("report.html.j2").render(
        results=document,
        headline=document["config"].get("about") or headline(summaries),
        verdicts=[(summary.title, verdict(summary)) for summary in summaries],
        headings=HEADINGS,
        rows=[cells(summary) for summary in summaries],
        sweeps=[(summary.title, _data_uri(figures.sweep_figure([summary]))) for summary in summaries if summary.manual],
        curves=[
            (summary.title, _data_uri(figures.curves_figure([summary], [some])))
            for summary, some in zip(summaries, curves, strict=True)
            if some
        ],
        runs=sorted(results.rows, key=_order),
        failed=results.failed,
        warnings=warnings(results.rows),
        config=yaml.safe_dump(document["config"], sort_keys=False, allow_unicode=True),
        margin=margin_of(summaries),
    )


def _order(run: Row) -> tuple[Any, ...]:
    return run["optimizer"], run["cell"]["lr"], run["schedule"], run["warmup_steps"], run["seed"]


def warnings(rows: Sequence[Row]) -> list[str]:
    """Return the schedules' warnings, the first one for each optimizer, rate and schedule."""
    found: dict[str, list[str]] = {}
    for row in rows:
        where = f"{row['optimizer']}, peak rate {row['cell']['lr']:g}, {row['schedule']}"
        found.setdefault(where, []).extend(row.get("warnings", []))
    return [f"{where}: {texts[0]}" for where, texts in found.items() if texts]


def table(summaries: Sequence[Summary]) -> Table:
    """Return the table for the terminal, at most 80 columns wide. Each warm-up's length is below its loss."""
    shown = Table(
        box=None, pad_edge=False, padding=(0, 1, 1, 0), title_justify="left",
        title="Final validation loss, mean ± standard error; below it the steps of warm-up",
    )  # fmt: skip
    for index, heading in enumerate(("optimizer, rate", "best hand-set", "adaptive", "difference", "Algorithm 1")):
        shown.add_column(heading, justify="left" if index == 0 else "right")
    for summary in summaries:
        label, best, best_steps, adaptive, steps, difference, paper, paper_steps = map(Text, cells(summary))
        pairs = [Text("\n").join(pair) for pair in ((best, best_steps), (adaptive, steps), (paper, paper_steps))]
        shown.add_row(label, pairs[0], pairs[1], difference, pairs[2])
    return shown


def show(results: Results, console: Console) -> None:
    """Print the table and a verdict for each row."""
    console.print(table(results.summaries))
    for summary in results.summaries:
        console.print(f"{summary.title}: {verdict(summary)}", markup=False)
    if results.failed:
        console.print(f"{len(results.failed)} runs failed: {next(iter(results.failed.values()))}", markup=False)


def shown(results: Results) -> str:
    """Return the text that `print` shows for results."""
    console = Console(file=io.StringIO(), width=100, highlight=False)
    show(results, console)
    return f"{console.file.getvalue()}{results.folder / 'report.html'}"  # type: ignore[attr-defined]


def fragment(results: Results) -> str:
    """Return the same as an HTML fragment, for notebooks."""
    rows = [list(HEADINGS), *map(cells, results.summaries)]
    lines = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    verdicts = "".join(f"<li>{escape(f'{summary.title}: {verdict(summary)}')}</li>" for summary in results.summaries)
    return f"<table>{lines}</table><ul>{verdicts}</ul><p>{escape(str(results.folder / 'report.html'))}</p>"


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


def _loss_and_length(point: Point | None, total: int) -> tuple[str, str]:
    if point is None:
        return "–", "–"
    length = "all" if point.warmup_steps >= total else f"{point.warmup_steps:.0f}"
    if point.diverged:
        return f"{point.diverged} of {len(point.losses)} diverged", length
    return f"{point.val_loss:.3f}{_plus_minus(point.stderr, 3)}", length


def _plus_minus(error: float | None, digits: int) -> str:
    return "" if error is None else f" ± {error:.{digits}f}"


def _data_uri(figure: Figure) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(figures.encoded(figure, "svg")).decode()
