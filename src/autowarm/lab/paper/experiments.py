"""The paper's experiments: makes the runs behind a figure or table, and draws it from their results.

A figure names its sweeps, in `presets/*/scaled/`. `produce` makes everything that is missing for several figures at
once, and makes what they share only once.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from autowarm._torch.plotting import INK

from ..analysis import markdown, report
from ..analysis.figures import COLOURS, axes_of, errorbars, sweep_figure
from ..analysis.summary import Point, Summary, summarise
from ..analysis.table import cells
from ..config import FigureConfig, RunConfig, SweepConfig
from ..config.build import SCALES, build, read_yaml
from ..execution.display import Display
from ..execution.engine import make
from ..tasks.models import parameters
from .costs import hours
from .gallery import GALLERY, Sources, picture
from .published import Published, by_target_loss
from .published import points as published_points
from .settings import MAIN, SWIN, Setting, deviations
from .smoothness import FIT_HEADINGS, fit_rows, measured, studies

_OUTCOME = ("best hand-set", "steps", "adaptive", "steps", "adaptive − best", "Algorithm 1", "steps")
_ORDER = ("muon", "lion", "normsgd")


def sweep_config(name: str, scale: str, data: Path, override: dict[str, Any], seeds: list[int] | None) -> SweepConfig:
    """Read the preset of a sweep. Its results go to `data`/name, its runs to a store that all sweeps share."""
    values, _ = read_yaml(f"{scale}/{name}")
    values |= {"out": str(data / name), "store": str(data / "runs")}
    config = build(SweepConfig, values, f"{scale}/{name}")
    return dataclasses.replace(config, override={**config.override, **override}, seeds=seeds or config.seeds)


def produce(names: Sequence[str], sources: Sources, display: Display, config: FigureConfig) -> dict[str, str]:
    """Make the missing runs that these figures need, sweep by sweep, and return those that failed.

    `config` gives the sweeps' overrides and seeds, and the engine that makes the runs.
    """
    sweeps: dict[str, list[str]] = {}
    for entry in (GALLERY[name] for name in names):
        for sweep in entry.sweeps:
            sweeps.setdefault(sweep, []).extend(entry.cells)
    failed: dict[str, str] = {}
    for name, cells_of in sweeps.items():
        display.note(f"the runs of {name}")
        plan = sweep_config(name, sources.scale, sources.data, config.override, config.seeds)
        plan = dataclasses.replace(plan, only=list(dict.fromkeys(cells_of)), engine=config.engine,
                                   workers=config.workers, address=config.address)  # fmt: skip
        results = make(plan, plan.points(), display)
        report.make(results)
        failed |= {f"{name} {run}": message for run, message in results.failed.items()}
    return failed


def listing() -> list[tuple[str, ...]]:
    """List each entry's name, place in the paper, hours at each of `SCALES`, and subject."""
    rows = []
    for name, entry in GALLERY.items():
        sums = (sum((_hours_of(sweep, scale, entry.cells) for sweep in entry.sweeps), entry.hours) for scale in SCALES)
        costs = (f"{float(f'{cost:.2g}'):g} h" if cost else "–" for cost in sums)
        rows.append((name, entry.paper, *costs, entry.about))
    return rows


@cache
def _hours_of(sweep: str, scale: str, cells: Sequence[str]) -> float:
    points = sweep_config(sweep, scale, Path("."), {}, None).points()
    return sum(hours(point.run, scale) for point in points if not cells or point.cell in cells)


def made_at(name: str, scale: str) -> bool:
    """Whether the sweeps at this scale have all the cells that a figure needs."""
    entry = GALLERY[name]
    return all({*entry.cells} <= sweep_config(sweep, scale, Path("."), {}, None).cells.keys() for sweep in entry.sweeps)


def _grid(sources: Sources, size: str) -> list[Summary]:
    """The cells of a main sweep, in the paper's order."""
    summaries = sources.results(f"warmup-sweep-{size}").summaries
    return sorted(summaries, key=lambda s: (s.cell["batch_size"], s.cell["steps"], _ORDER.index(s.cell["optimizer"])))


def _sweep(sources: Sources, size: str) -> Figure:
    """Draw a panel per cell; at scale "paper" also the authors' points."""
    summaries, runs = _grid(sources, size), _paper_runs(sources, f"warmup-sweep-{size}")
    figure, (hand, adaptive) = sweep_figure(summaries), published_points()
    for axes, summary in zip(figure.axes, summaries, strict=False):  # a grid may have empty panels at its end
        cell = summary.cell
        batch, steps, run = cell["batch_size"], cell["steps"], runs[cell["name"]]
        length = f"{steps:,} updates, {batch * steps * run.model.seq_len / 1e6:,.0f}M tokens"
        axes.set_title(f"{summary.name}, rate {cell['lr']:g}, batch {batch}\n{length}")
        if sources.scale == "paper":
            published = Published(size, batch, steps, cell["optimizer"])
            lengths, losses = zip(*hand[published], strict=True)
            axes.plot(lengths, losses, "s", color=INK, fillstyle="none", label="the authors' hand-set")
            axes.axhline(adaptive[published], color=INK, linestyle="-.", linewidth=1, label="the authors' Algorithm 1")
            low, high = min(axes.get_ylim()[0], adaptive[published]), max(axes.get_ylim()[1], *losses)
            axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
            axes.legend(fontsize="x-small")
    return figure


for _size in ("124M", "210M"):
    picture(
        f"warmup-sweep-{_size}",
        f"validation loss over warm-up length, LLaMA {_size}: three optimizers, by batch size and number of steps",
        paper=f"Figure warmup-sweep-{_size}",
        sweeps=(f"warmup-sweep-{_size}",),
    )(partial(_sweep, size=_size))


def _ablation(sources: Sources, sweep: str, key: str, label: str) -> Figure:
    """Plot Algorithm 1 and the default over one setting, with the best hand-set warm-up for comparison.

    At scale "paper" also what the authors published of f*.
    """
    summaries = sources.results(sweep).summaries
    figure, (axes,) = axes_of()
    values: list[float] = []
    for kind, name in (("paper", "Algorithm 1"), ("adaptive", "adaptive (default)")):
        points = {float(s.cell[key]): point for s in summaries if key in s.cell and (point := getattr(s, kind))}
        values = values or sorted(points)
        errorbars(axes, [(values.index(value), points[value]) for value in sorted(points)], kind, name)
    if reference := next((s.best for s in summaries if s.best is not None), None):
        axes.axhline(reference.val_loss, color=COLOURS["linear"], linestyle="--",
                     label=f"best hand-set ({reference.warmup_steps:.0f} updates)")  # fmt: skip
    if sources.scale == "paper" and key == "schedule.target_loss":
        hand, published = published_points()[0][Published("124M", 32, 64_000, "muon")], by_target_loss()
        axes.plot([values.index(value) for value in published], [*published.values()], "s", color=INK, fillstyle="none",
                  label="the authors' Algorithm 1")  # fmt: skip
        axes.axhline(min(loss for _, loss in hand), color=INK, linestyle="-.", linewidth=1,
                     label="the authors' best hand-set")  # fmt: skip
    axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    axes.set(xlabel=label, ylabel="final validation loss")
    axes.legend()
    return figure


for _name, _panel, _key, _label in (("target-loss", "a", "schedule.target_loss", "target loss f*"),
                                    ("variance", "b", "schedule.sigma_f2", "σ_F²")):  # fmt: skip
    picture(
        f"ablation-{_name}",
        f"validation loss over {_label.split()[-1]}, Muon at the small batch",
        paper=f"Figure ablations ({_panel})",
        sweeps=(f"ablation-{_name}",),
    )(partial(_ablation, sweep=f"ablation-{_name}", key=_key, label=_label))


@picture("ablation-schedule", "six forms of warm-up and decay: best hand-set, adaptive, Algorithm 1",
         paper="Figure ablations (c)", sweeps=("ablation-schedule",))  # fmt: skip
def ablation_schedule(sources: Sources) -> Figure:
    """Plot three points for each form. Bars would mislead, because the axis does not start at 0."""
    summaries = sources.results("ablation-schedule").summaries
    figure, (axes,) = axes_of(width=6.4)
    kinds = {"best": "best hand-set", "adaptive": "adaptive (default)", "paper": "Algorithm 1"}
    for shift, (kind, name) in enumerate(kinds.items(), -1):
        placed = [(x + 0.18 * shift, point) for x, s in enumerate(summaries) if (point := getattr(s, kind))]
        errorbars(axes, placed, kind, name, linestyle="none")
    axes.set_xticks(range(len(summaries)), [s.cell["name"] for s in summaries], parse_math=False)
    axes.set(xlabel="warm-up–decay", ylabel="final validation loss")
    axes.legend()
    return figure


@picture("swin", "validation accuracy over warm-up length: a Swin under Muon", paper="Figure swin", sweeps=("swin",))
def swin(sources: Sources) -> Figure:
    """Draw one panel per peak rate: the hand-set lengths, with the default and Algorithm 1 as horizontal lines."""
    return sweep_figure(_accuracies(sources), "validation accuracy (%)", unit=100.0)


@picture("table-swin", "Table swin: the settings of the Swin runs and what came out", paper="Table swin_hyperparams",
         sweeps=("swin",))  # fmt: skip
def table_swin(sources: Sources) -> str:
    """Return CSV with one row per peak rate: losses, and accuracies in per cent."""
    runs, lines = _paper_runs(sources, "swin"), []
    for loss, accuracy in zip(sources.results("swin").summaries, _accuracies(sources), strict=True):
        cell, run = loss.cell, runs[loss.cell["name"]]
        highest = max(accuracy.manual, key=lambda point: -math.inf if point.diverged else point.val_loss)
        percent = ["–" if point is None or point.diverged else f"{100 * point.val_loss:.1f}"
                   for point in (highest, accuracy.adaptive, accuracy.paper)]  # fmt: skip
        lines.append([cell["model"], cell["task"], f"{cell['lr']:g}", cell["batch_size"], cell["steps"],
                      run.optimizer.weight_decay, run.schedule.target_loss, run.schedule.sigma_f2, *cells(loss)[1:],
                      *percent, _otherwise(run, SWIN, sources.scale)])  # fmt: skip
    return markdown.comma_separated(
        ["model", "data", "rate", "batch", "steps", "weight decay", "f*", "σ_F²", *_OUTCOME, "accuracy: best hand-set",
         "adaptive", "Algorithm 1", "not the paper's"], lines
    )  # fmt: skip


def _accuracies(sources: Sources) -> list[Summary]:
    """Summarise the cells of the Swin sweep by accuracy instead of loss."""
    rows = sources.results("swin").rows
    return summarise({**row, "val_loss": row["metric"].get("accuracy")} for row in rows)


@picture("baselines", "adaptive Muon beside AdamW, GreedyLR, Schedule-Free, Prodigy and D-Adaptation",
         paper="the peers of Section 2", sweeps=("baselines",))  # fmt: skip
def baselines(sources: Sources) -> Figure:
    """Draw one row per method, each at the best of the rates that were tried."""
    best: dict[str, tuple[Summary, Point]] = {}
    for summary in sources.results("baselines").summaries:
        name, point = summary.cell["name"], summary.lowest
        if point is not None and (name not in best or point.val_loss < best[name][1].val_loss):
            best[name] = summary, point
    shown = sorted(((name, s, point) for name, (s, point) in best.items()), key=lambda item: -item[2].val_loss)
    figure, (axes,) = axes_of(width=6.4, height=0.4 * len(best) + 1)
    for y, (name, _, point) in enumerate(shown):
        colour = COLOURS["adaptive" if name == "muon-adaptive" else "linear"]
        if point.diverged:
            axes.annotate("diverged", (0.02, y), xycoords=("axes fraction", "data"), va="center", color=colour)
            continue
        axes.errorbar([point.val_loss], [y], xerr=[point.stderr or 0.0], fmt="o", capsize=3, color=colour)
        axes.annotate(f"{point.val_loss:.3f}", (point.val_loss, y), xytext=(0, 5), textcoords="offset points",
                      ha="center", fontsize="x-small")  # fmt: skip
    axes.set_yticks(range(len(shown)), [f"{name} ({s.cell['lr']:g})" for name, s, _ in shown])
    axes.set(xlabel="final validation loss", ylim=(-0.6, len(shown) - 0.2))
    axes.grid(axis="x")
    return figure


@picture("table-main", "Table main: the settings of every cell and what came out", paper="Table main_hyperparams",
         sweeps=("warmup-sweep-124M", "warmup-sweep-210M"))  # fmt: skip
def table_main(sources: Sources) -> str:
    """Return CSV with one row per cell; at scale "paper" also what the authors' figures show."""
    headings = ["model", "optimizer", "batch", "steps", "rate", "options", "f*", "div", *_OUTCOME, "not the paper's"]
    lines = []
    for size in ("124M", "210M"):
        runs = _paper_runs(sources, f"warmup-sweep-{size}")
        for summary in _grid(sources, size):
            cell, run = summary.cell, runs[summary.cell["name"]]
            options = ", ".join(f"{key} {value}" for key, value in run.optimizer.options.items())
            lines.append([size if sources.scale == "paper" else cell["model"], summary.name, cell["batch_size"],
                          cell["steps"], f"{cell['lr']:g}", options or "–", f"{run.schedule.target_loss:g}",
                          f"{run.schedule.div or 100:g}", *cells(summary)[1:],
                          _otherwise(run, MAIN, sources.scale)])  # fmt: skip
            if sources.scale == "paper":
                published = Published(size, cell["batch_size"], cell["steps"], cell["optimizer"])
                hand, adaptive = published_points()
                length, loss = min(hand[published], key=lambda point: point[1])
                lines[-1] += [f"{loss:.3f}", length, f"{adaptive[published]:.3f}"]
    if sources.scale == "paper":
        headings += ["the authors' best hand-set", "steps", "their Algorithm 1"]
    return markdown.comma_separated(headings, lines)


def _paper_runs(sources: Sources, sweep: str) -> dict[str, RunConfig]:
    """Return, for each cell of a sweep, a run of Algorithm 1."""
    runs = json.loads((sources.data / sweep / "manifest.json").read_text())["runs"]
    return {run["cell"]: build(RunConfig, run["config"], sweep) for run in runs
            if run["config"]["schedule"]["kind"] == "paper"}  # fmt: skip


def _otherwise(run: RunConfig, settings: Sequence[Setting], scale: str) -> str:
    """Where a run's settings are not the paper's, but for the rate, which has a column."""
    return "; ".join(words for key, words in deviations(run, settings, scale) if key != "optimizer.lr") or "–"


@picture("table-assumption", "Table assumption: the settings of the curvature runs",
         paper="Table assumption_hyperparams")  # fmt: skip
def table_assumption(sources: Sources) -> str:
    """Return CSV with one column per optimizer."""
    points = sweep_config("smoothness", sources.scale, sources.data, {}, None).points()
    runs = [point.run for point in points]
    one = runs[0]
    common: dict[str, object] = {
        "batch size": one.batch_size, "sequence length": one.model.seq_len, "warm-up steps": one.schedule.warmup_steps,
        "decay": one.schedule.decay, "clipping": one.clip, "weight decay": one.optimizer.weight_decay,
        "div": one.schedule.div or 100, "f*": one.schedule.target_loss, "ρ": 2,
    }  # fmt: skip
    lines: list[list[object]] = [
        ["rate", *(f"{run.optimizer.lr:g}" for run in runs)],
        ["steps", *(run.steps for run in runs)],
        ["momentum", *(run.optimizer.options.get("momentum", "default") for run in runs)],
        *([key, *[f"{value:g}" if isinstance(value, float) else value] * len(runs)] for key, value in common.items()),
    ]
    return markdown.comma_separated(["", *(point.cell for point in points)], lines)


_FIT_COLUMNS = (0, 2, 3, 7, 8)  # as many as fit on a page; `autowarm smoothness` reports all


@picture("table-fits", "the fits to the curvature runs", paper="Figures smoothness-lion, "
         "lips-muon-norm", sweeps=("smoothness",), cells=("lion", "muon", "normsgd"))  # fmt: skip
def table_fits(sources: Sources) -> str:
    """Return CSV with one row per optimizer and choice of points."""
    lines = []
    for name, run in measured(sources.results("smoothness")).items():
        lines += [[name, *(row[column] for column in _FIT_COLUMNS)] for row in fit_rows(studies(run))]
    return markdown.comma_separated(["optimizer", *(FIT_HEADINGS[column] for column in _FIT_COLUMNS)], lines)


@picture("table-model", "Table model: the shapes of the networks and their parameters", paper="Table model_arch")
def table_model(sources: Sources) -> str:
    """Return CSV with one row per network."""
    lines = []
    for size in ("124M", "210M"):
        model = sweep_config(f"warmup-sweep-{size}", sources.scale, sources.data, {}, None).points()[0].run.model
        lines.append([size, model.layers, model.width, model.heads, model.ff, model.vocab_size, model.seq_len,
                      f"{parameters(model):,}"])  # fmt: skip
    headings = ["model", "layers", "width", "heads", "ff", "vocabulary", "sequence", "parameters"]
    return markdown.comma_separated(headings, lines)
