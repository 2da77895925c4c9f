"""The report of a results folder: figures and a self-contained HTML page."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml
from matplotlib.figure import Figure

from ..files import write_atomically
from . import figures
from .results import Results
from .summary import Row, Summary, headline, verdict
from .table import lines

_TEMPLATES = Path(__file__).parent / "templates"


def make(results: Results) -> list[Path]:
    """Write the figures and `report.html` next to `results.json`, and return their paths, the page's last.

    Only runs with existing folders have curves.
    """
    folder = results.folder
    curves = [(one, some) for one in results.summaries if (some := figures.curves_of(one, results))]
    paths = []
    if swept := [summary for summary in results.summaries if summary.manual]:
        paths += figures.save(figures.paired_figure(swept), folder / "sweep")
    if curves:
        paths += figures.save(figures.curves_figure(curves), folder / "curves")
    page = folder / "report.html"
    write_atomically(page, html(results, curves))
    return [*paths, page]


def rendered(template: str, **values: Any) -> str:
    """Return a page made from one of the templates."""
    loader = jinja2.FileSystemLoader(_TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(**values)


def html(results: Results, curves: Sequence[tuple[Summary, Sequence[figures.Curve]]]) -> str:
    """Return the whole page with embedded pictures. Each cell has its own, so that they stack on a narrow screen."""
    summaries, document = results.summaries, results.document
    headings, *rows = lines(summaries)
    return rendered(
        "report.html.j2",
        results=document,
        headline=document["config"].get("about") or headline(summaries),
        verdicts=[(summary.title, verdict(summary)) for summary in summaries],
        headings=headings,
        rows=rows,
        sweeps=[(summary.title, data_uri(figures.paired_figure([summary]))) for summary in summaries if summary.manual],
        curves=[(one[0].title, data_uri(figures.curves_figure([one]))) for one in curves],
        runs=sorted(results.rows, key=_order),
        failed=results.failed,
        warnings=warnings(results.rows),
        config=yaml.safe_dump(document["config"], sort_keys=False, allow_unicode=True),
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


def data_uri(figure: Figure) -> str:
    """The figure as an SVG that a page holds itself."""
    return "data:image/svg+xml;base64," + base64.b64encode(figures.encoded(figure, "svg")).decode()
