"""The report of a results folder: figures and a self-contained HTML page."""

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml
from matplotlib.figure import Figure

from autowarm._torch.plotting import INK, STYLE

from ..config.plans import read_by
from ..files import write_atomically
from . import figures
from .results import Results
from .summary import Row, headline, verdict
from .table import lines

_CURVES = {"adaptive": "the default", "best": "the best hand-set warm-up", "paper": "Algorithm 1 to the letter"}
_ORDER = ("schedule", "warmup_steps", "seed")  # of the runs of an optimizer and a rate
_TEMPLATES = Path(__file__).parent / "templates"
# What a picture changes on a dark page: no white paper, ink as light as the page's, and a faint grid.
_DARK = "".join(
    f"[style*='{kind}: {colour.lower()}'] {{{kind}: {dark} !important}}"
    for kind, colour, dark in (
        ("fill", "#ffffff", "none"), ("fill", INK, "#e7eaee"), ("stroke", INK, "#e7eaee"),
        ("stroke", STYLE["grid.color"], "#3a424c"),
    )
)  # fmt: skip


def make(results: Results) -> list[Path]:
    """Write the figures and `report.html` next to `results.json`, and return their paths, the page's last.

    Only runs with existing folders have curves.
    """
    folder = results.folder
    curves = [(one, some) for one in results.summaries if (some := figures.curves_of(one, results))]
    swept = [(one.title, one) for one in results.summaries if one.manual]
    files, sweeps = _drawn(figures.sweep_figure, swept, folder / "sweep")
    more, losses = _drawn(figures.curves_figure, [(one.title, (one, some)) for one, some in curves], folder / "curves")
    page = folder / "report.html"
    write_atomically(page, html(results, sweeps, losses))
    return [*files, *more, page]


def _drawn(
    draw: Callable[[Any], Figure], cells: Sequence[tuple[str, Any]], path: Path
) -> tuple[list[Path], list[tuple[str, str]]]:
    """Write one figure of all cells, and return its files and, for the page, each cell's title and own picture."""
    if not cells:
        return [], []
    files = figures.save(draw([one for _, one in cells]), path)
    if len(cells) == 1:
        return files, [(cells[0][0], data_uri(files[1].read_bytes()))]
    return files, [(title, data_uri(figures.encoded(draw([one]), "svg"))) for title, one in cells]


def rendered(template: str, **values: Any) -> str:
    """Return a page made from one of the templates."""
    loader = jinja2.FileSystemLoader(_TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(**values)


def html(results: Results, sweeps: Sequence[tuple[str, str]], curves: Sequence[tuple[str, str]]) -> str:
    """Return the whole page with pictures, by title. Each cell has its own, so that they stack on a narrow screen."""
    summaries, document = results.summaries, results.document
    headings, *rows = lines(summaries)
    return rendered(
        "report.html.j2",
        results=document,
        headline=document["config"].get("about") or headline(summaries),
        verdicts=[(summary.title, verdict(summary)) for summary in summaries],
        headings=headings,
        rows=rows,
        sweeps=sweeps,
        curves=curves,
        runs=sorted(results.rows, key=lambda run: (run["optimizer"], run["cell"]["lr"], *map(run.get, _ORDER))),
        failed=results.failed,
        ran=" and ".join(words for kind, words in _CURVES.items() if any(getattr(one, kind) for one in summaries)),
        compared=any(one.outcome for one in summaries),
        warnings=warnings(results.rows),
        config=yaml.safe_dump(read_by(document["config"]), sort_keys=False, allow_unicode=True),
    )


def warnings(rows: Sequence[Row]) -> list[str]:
    """Return the schedules' warnings, the first one for each optimizer, rate and schedule."""
    first: dict[str, str] = {}
    for row in rows:
        for text in row.get("warnings", [])[:1]:
            first.setdefault(f"{row['optimizer']}, peak rate {row['cell']['lr']:g}, {row['schedule']}", text)
    return [f"{where}: {text}" for where, text in first.items()]


def data_uri(svg: bytes) -> str:
    """The picture as a page holds it itself, in the colours of the page."""
    style = f"@media screen and (prefers-color-scheme: dark) {{{_DARK}}}</style>".encode()
    return "data:image/svg+xml;base64," + base64.b64encode(svg.replace(b"</style>", style, 1)).decode()
