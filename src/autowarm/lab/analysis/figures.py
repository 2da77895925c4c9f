"""Figures of a comparison. Each function takes summaries or metrics and returns a matplotlib `Figure`."""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autowarm._torch.plotting import BLUE, GREY, ORANGE, STYLE, styled

from ..files import write_atomically
from ..training.metrics import read_metrics
from .results import Results
from .summary import Point, Summary

COLOURS = {"adaptive": ORANGE, "linear": BLUE, "best": BLUE, "paper": GREY}
STYLES = {"adaptive": "--", "linear": "-", "paper": ":"}
_LABELS = {"adaptive": "default", "linear": "best hand-set", "paper": "Algorithm 1"}
PANEL = (3.9, 3.1)  # inches
_COLUMNS = 3


Curve = tuple[str, str, Sequence[Mapping[str, Any]]]
"""A run's schedule, its label, and its metrics."""


@styled
def sweep_figure(summaries: Sequence[Summary], quantity: str = "final validation loss", unit: float = 1.0) -> Figure:
    """Plot validation loss times `unit` over hand-set length, a panel per cell; default dashed, Algorithm 1 dotted."""
    figure, panels = grid_of(len(summaries), 1, PANEL)
    for (axes,), summary in zip(panels, summaries, strict=True):
        _draw_sweep(axes, summary, quantity, unit)
    return figure


@styled
def curves_figure(pairs: Sequence[tuple[Summary, Sequence[Curve]]]) -> Figure:
    """Plot training loss and rate over updates, one column per cell: default, best hand-set and Algorithm 1."""
    figure, panels = grid_of(len(pairs), 2, (PANEL[0], 0.8 * PANEL[1]))
    for (top, bottom), (summary, curves) in zip(panels, pairs, strict=True):
        for kind, label, rows in curves:
            style: Any = {"color": COLOURS[kind], "linestyle": STYLES[kind], "label": label}
            steps = [row["step"] for row in rows]
            top.plot(steps, smoothed([math.nan if row["loss"] is None else row["loss"] for row in rows]), **style)
            bottom.plot(steps, [row["lr"] for row in rows], **style)
        top.set_title(_heading(summary), parse_math=False)
        top.set_ylabel("loss, smoothed")
        bottom.set_ylabel("learning rate")
        bottom.set_xlabel("update")
        bottom.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
        bottom.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25))  # the curves leave no room above
    return figure


def curves_of(summary: Summary, results: Results) -> list[Curve]:
    """Read the curves of a cell's first seed from the runs' folders."""
    curves: list[Curve] = []
    points = {"linear": summary.best, "paper": summary.paper, "adaptive": summary.adaptive}
    for kind, point in points.items():
        if point is None:
            continue
        for row in results.rows:
            same = row["cell"] == summary.cell and row["schedule"] == kind and row["seed"] == min(point.losses)
            if not same or (kind == "linear" and row["warmup_steps"] != point.warmup_steps):
                continue
            folder = results.folder_of(row)
            if folder and (metrics := read_metrics(folder)):
                stuck = kind != "linear" and row["switched_at"] is None
                note = "never left warm-up" if stuck else f"{row['warmup_steps']} updates"
                curves.append((kind, f"{_LABELS[kind]} ({note})", metrics))
    return curves


def _heading(summary: Summary) -> str:
    """Return the cell's title, on two lines if a sweep names its cells, because panels are narrow."""
    return summary.title.replace(": ", "\n", 1)


def smoothed(values: Sequence[float]) -> list[float]:
    """Average over a centred window of about 3 % of the run, narrower at the ends, so that the curve does not lag."""
    half, last = max(1, len(values) // 60), len(values) - 1
    reach = [min(half, i, last - i) for i in range(len(values))]
    return [sum(values[i - r : i + r + 1]) / (2 * r + 1) for i, r in enumerate(reach)]


def save(figure: Figure, path: Path) -> list[Path]:
    """Save the figure as PNG and SVG, with these endings after `path`."""
    paths = [path.with_name(path.name + ending) for ending in (".png", ".svg")]
    for one in paths:
        write_atomically(one, encoded(figure, one.suffix[1:]))
        figure.set_layout_engine("none")  # do not compute the layout again: it takes as long as the drawing
    return paths


def encoded(figure: Figure, ending: str) -> bytes:
    """Encode the figure as PNG or SVG. The same figure always gives the same bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(buffer, format=ending, dpi=160, metadata={"Date": None} if ending == "svg" else None)
    return buffer.getvalue()


def errorbars(
    axes: Axes, placed: Iterable[tuple[float, Point]], kind: str, label: str, unit: float = 1.0, **style: Any
) -> None:
    """Plot points over x with their standard errors. Points that diverged are named at their x."""
    placed = list(placed)
    for x, point in placed:
        if point.diverged:
            height = 0.4 if kind == "adaptive" else 0.02  # for the default may stand at the x of another
            axes.annotate(_diverged(point), (x, height), xycoords=("data", "axes fraction"), rotation=90, ha="center",
                          va="bottom", fontsize="x-small", color=COLOURS[kind])  # fmt: skip
    shown = [(x, point) for x, point in placed if not point.diverged]
    if shown:
        losses, errors = zip(*((unit * point.val_loss, unit * (point.stderr or 0)) for _, point in shown), strict=True)
        look: Any = {"color": COLOURS[kind], "marker": "o", "markersize": 4, "capsize": 3, "label": label} | style
        axes.errorbar([x for x, _ in shown], losses, errors, **look)


def axes_of(columns: int = 1, rows: int = 1, width: float = 5.6, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """Make a figure of equal panels of this size in inches, row by row. Call it inside `styled`."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    return figure, panels


def grid_of(count: int, rows: int, size: tuple[float, float]) -> tuple[Figure, np.ndarray]:
    """Make `count` panels of `rows` axes of this size each, at most three in a row."""
    columns = min(count, _COLUMNS)
    lines = math.ceil(count / columns)
    figure, every = axes_of(columns, lines * rows, *size)
    figure.get_layout_engine().set(w_pad=0.12)  # type: ignore[union-attr, call-arg]
    panels = np.array(every, dtype=object).reshape(lines, rows, columns).swapaxes(1, 2).reshape(-1, rows)
    for axes in panels[count:].flat:
        axes.set_visible(False)
    return figure, panels[:count]


def _diverged(point: Point) -> str:
    return f"{point.diverged} of {len(point.losses)} diverged"


def _draw_sweep(axes: Axes, summary: Summary, quantity: str, unit: float) -> None:
    errorbars(axes, [(point.warmup_steps, point) for point in summary.manual], "linear", "hand-set", unit, zorder=3)
    for kind, point in (("adaptive", summary.adaptive), ("paper", summary.paper)):
        if point is None:
            continue
        words = _diverged(point) if point.diverged else f"{point.warmup_steps:.0f} updates"
        style: Any = {"color": COLOURS[kind], "linestyle": STYLES[kind], "label": f"{_LABELS[kind]}: {words}"}
        if point.diverged:
            axes.plot([], [], **style)
        else:
            loss, error = unit * point.val_loss, unit * (point.stderr or 0.0)
            axes.axhline(loss, **style)
            axes.axhspan(loss - error, loss + error, color=COLOURS[kind], alpha=0.15, lw=0)
    # The axis covers only hand-set lengths and adaptive. A run that stalled far above would squeeze them into one line.
    compete = [point for point in (*summary.manual, summary.adaptive) if point is not None and not point.diverged]
    edges = [unit * (point.val_loss + side * (point.stderr or 0.0)) for point in compete for side in (-1, 1)]
    low, high = (min(edges), max(edges)) if edges else (0.0, 1.0)
    room = max(high - low, 0.003 * max(abs(low), abs(high)) or 1e-9)  # smaller differences are not blown up
    axes.set_ylim(low - 0.08 * room, high + 0.75 * room)  # room for the legend
    longest = max((point.warmup_steps for point in summary.manual), default=1) or 1
    axes.set_xlim(-0.05 * longest, 1.05 * longest)  # room for diverged runs too, which have no point
    axes.set_title(_heading(summary), parse_math=False)
    axes.set(xlabel="warm-up length (updates)", ylabel=quantity)
    axes.ticklabel_format(axis="y", useOffset=False)
    if axes.get_legend_handles_labels()[0]:  # none where every run diverged
        axes.legend(loc="upper right")
