"""A results folder in words and pictures: the terminal's table, the figures, and one self-contained HTML page."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import yaml
from matplotlib.figure import Figure
from rich.table import Table

from . import figures
from .files import write_atomically
from .results import MARGIN, Point, Row, Summary, summarise, verdict

_TEMPLATES = Path(__file__).parent / "templates"
HEADINGS = ("optimizer, rate", "best hand-set", "steps", "adaptive", "steps", "difference", "Algorithm 1", "steps")


@dataclass(frozen=True)
class Files:
    """What `make` wrote."""

    report: Path
    figures: list[Path]


def make(folder: Path, results: Mapping[str, Any]) -> Files:
    """Writes the figures and `report.html` beside `results.json`; curves are of the runs that are still there."""
    summaries = summarise(results["runs"])
    store = Path(results["config"].get("store") or folder / "runs")
    curves = [figures.curves_of(summary, results["runs"], store) for summary in summaries]
    paths = []
    if swept := [summary for summary in summaries if summary.manual]:
        paths += figures.save(figures.sweep_figure(swept), folder / "sweep")
    if drawn := [(summary, some) for summary, some in zip(summaries, curves, strict=True) if some]:
        paths += figures.save(figures.curves_figure(*map(list, zip(*drawn, strict=True))), folder / "curves")
    page = folder / "report.html"
    write_atomically(page, html(results, summaries, curves))
    return Files(page, paths)


def html(results: Mapping[str, Any], summaries: list[Summary], curves: list[list[figures.Curve]]) -> str:
    """The whole page; pictures are part of it, one a cell, so that they stack on a narrow screen."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        results=results,
        headline=results["config"].get("about") or headline(summaries),
        verdicts=[(summary.title, verdict(summary)) for summary in summaries],
        headings=HEADINGS,
        rows=[cells(summary) for summary in summaries],
        sweeps=[(summary.title, _data_uri(figures.sweep_figure([summary]))) for summary in summaries if summary.manual],
        curves=[
            (summary.title, _data_uri(figures.curves_figure([summary], [some])))
            for summary, some in zip(summaries, curves, strict=True)
            if some
        ],
        runs=sorted(results["runs"], key=_order),
        warnings=warnings(results["runs"]),
        config=yaml.safe_dump(results["config"], sort_keys=False, allow_unicode=True),
        margin=MARGIN,
    )


def _order(run: Row) -> tuple[Any, ...]:
    return run["optimizer"], run["cell"]["lr"], run["schedule"], run["warmup_steps"], run["seed"]


def warnings(rows: Sequence[Row]) -> list[str]:
    """What the schedules warned of: one line for each optimizer, rate and schedule, in the words of its first run."""
    found: dict[str, list[str]] = {}
    for row in rows:
        where = f"{row['optimizer']}, peak rate {row['cell']['lr']:g}, {row['schedule']}"
        found.setdefault(where, []).extend(row.get("warnings", []))
    return [f"{where}: {texts[0]}" for where, texts in found.items() if texts]


def headline(summaries: list[Summary]) -> str:
    """The outcome in one sentence."""
    gaps = [summary.difference[0] for summary in summaries if summary.difference is not None]
    if not gaps:
        return "Hand-set warm-ups side by side"
    level = sum(gap <= MARGIN for gap in gaps)
    of = "its one setting" if len(gaps) == 1 else "both settings" if len(gaps) == 2 else f"all {len(gaps)} settings"
    adaptive = [summary.adaptive for summary in summaries if summary.adaptive is not None]
    if all(point.ended_by_floor == len(point.losses) for point in adaptive):
        of += "; its time floor ended every warm-up, so that here it is a ramp of fixed length"
    if level == len(gaps):
        return f"Adaptive warm-up holds the best hand-set one within {MARGIN} nats, or beats it, in {of}"
    behind = f"{len(gaps) - level} of {len(gaps)} settings"
    return f"Adaptive warm-up is more than {MARGIN} nats behind the best hand-set one in {behind}"


def table(summaries: list[Summary]) -> Table:
    """The same rows for the terminal."""
    shown = Table(
        box=None, pad_edge=False, padding=(0, 1), title_justify="left",
        title="Final validation loss (nats per token, mean ± standard error) and steps of warm-up",
    )  # fmt: skip
    for index, heading in enumerate(HEADINGS):
        shown.add_column(heading, justify="left" if index == 0 else "right")
    for summary in summaries:
        shown.add_row(*cells(summary))
    return shown


def cells(summary: Summary) -> list[str]:
    """One row of the table, as text."""
    difference = "–"
    if summary.difference is not None:
        gap, error = summary.difference
        difference = "diverged" if math.isinf(gap) else f"{gap:+.4f}{_plus_minus(error, 4)}"
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


def _plus_minus(error: float, digits: int) -> str:
    return f" ± {error:.{digits}f}" if math.isfinite(error) else ""


def _data_uri(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight")
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()
