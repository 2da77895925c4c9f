"""Tables and the figure of the `Grid` studies: horizons, fine-tuning, fresh tasks. They show the complete settings."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from autowarm.lab.analysis.figures import COLOURS
from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.config import LabError
from autowarm.plotting import INK, styled

from ..cells import DEFAULT, PAPER, RAMP_ALONE, title
from ..plans import horizon, transfer
from ..plans.grid import Grid
from ..plans.transfer import ADVISED, CHANCE
from ..rows import Rows
from ..statistics import percent, plus_minus
from ..verdicts import Verdict, judge
from . import write_files
from .fair import fresh_rules_table
from .peak import horizon_rates_table

_FORMS = {RAMP_ALONE: "the ramp alone", ADVISED: "max_warmup=0.1", CHANCE: "chance_loss"}
_TITLES = {"llama-long": "tokens of a small vocabulary", "llama-bytes": "bytes"}
GRIDS = {
    "horizon": (horizon.SHORT, horizon.LONG, horizon.LONGEST),
    "fine-tuning": (transfer.FINE_TUNING,),
    "fresh": (transfer.FRESH,),
}


Forms: TypeAlias = Mapping[str, Sequence[Verdict]]
"""Verdicts on other forms of the default, by the form's name in the study."""


def judged(rows: Rows, grids: Iterable[Grid], schedule: str = DEFAULT) -> list[Verdict]:
    """Compare the default, or a form of it, with the best hand-set warm-up in every setting whose runs are complete."""
    found = []
    for setting in (setting for grid in grids for setting in grid.settings()):
        with suppress(LabError):  # its rate is not tuned yet, or runs are missing
            [cell] = setting.cells(rows)
            found.append(judge(rows, cell, setting.seeds, setting.hand_set, schedule))
    return found


def grid_table(rows: Rows, verdicts: Sequence[Verdict], beside: Forms) -> str:
    """CSV, with one line per setting: the default's verdicts, and those of other forms beside it."""
    others = [{v.cell: plus_minus(v.difference) for v in some} for some in beside.values()]

    def line(v: Verdict) -> list[object]:
        found: list[object] = [
            v.cell.task, v.cell.optimizer, f"{v.cell.steps:,}", f"{v.cell.lr:g}", title(v.best),
            plus_minus(v.difference), f"{100 * v.warmup:.0f} %", _counted(v.ended),
        ]  # fmt: skip
        if PAPER in v.regret:
            ended = Counter(row["ended_by"] or "" for row in rows.runs("cells", v.cell, PAPER).values())
            found += [percent(v.regret[PAPER] - v.regret[v.best]), _counted(ended)]
        return [*found, *(by_cell.get(v.cell, "") for by_cell in others)]

    headings = [
        "task", "optimizer", "steps", "peak rate", "best hand-set", "default − best, %", "its warm-up", "ended by",
        *(["Algorithm 1 − best, %", "its warm-up ended by"] if any(PAPER in v.regret for v in verdicts) else []),
        *(f"{_FORMS[form]} − best, %" for form in beside),
    ]  # fmt: skip
    return comma_separated(headings, map(line, verdicts))


def grid_summary(verdicts: Sequence[Verdict], beside: Forms, of_progress: bool = False) -> str:
    """CSV, with one line per task and horizon; means over the optimizers.

    `of_progress` shows the difference as a part of the progress from the first loss too, where that can be compared.
    """
    others = {form: _kinds(some) for form, some in beside.items()}
    has_paper = any(PAPER in v.regret for v in verdicts)

    def line(task: str, steps: int, some: Sequence[Verdict]) -> list[object]:
        ended = {why: sum(v.ended.get(why, 0) for v in some) for why in ("loss", "clock", "")}
        costs = [v.regret[PAPER] - v.regret[v.best] for v in some if PAPER in v.regret]
        lengths = sorted({f"{100 * v.warmup:.0f}" for v in some}, key=int)
        return [
            task, f"{steps:,}", *_passed(some), *([_lost(some)] if of_progress else []),
            f"{'–'.join(dict.fromkeys((lengths[0], lengths[-1])))} %",
            ended["loss"], ended["clock"],
            *(text for kinds in others.values() for text in _passed(kinds.get((task, steps), []))),
            *([percent(statistics.fmean(costs))] if costs else []),
        ]  # fmt: skip

    headings = [
        "task", "updates", "default passes", "default − best, %", *(["of the progress, %"] if of_progress else []),
        "its warm-up", "ended by the loss", "by the clock",
        *(text for form in beside for text in (f"{_FORMS[form]} passes", f"{_FORMS[form]} − best, %")),
        *(["Algorithm 1 − best, %"] if has_paper else []),
    ]  # fmt: skip
    return comma_separated(headings, [line(*kind, some) for kind, some in _kinds(verdicts).items()])


def fine_tuning_summary(rows: Rows, verdicts: Sequence[Verdict], told: Sequence[Verdict]) -> str:
    """CSV, with one line per task and horizon; means over the optimizers. `told` is of `CHANCE`."""

    def old(some: Sequence[Verdict], schedule: str) -> str:
        return percent(statistics.fmean(_on_old_text(rows, v, schedule) for v in some))

    also = _kinds(told)
    headings = ["task", "updates", "default passes", "− best, %", "old text, %", "told passes", "told − best, %",
                "told, old text, %"]  # fmt: skip
    return comma_separated(
        headings,
        [
            [kind[0], kind[1], *_passed(some), old(some, DEFAULT), *_passed(also[kind]), old(also[kind], CHANCE)]
            for kind, some in _kinds(verdicts).items()
            if kind in also  # the study may be under way
        ],
    )


def _kinds(verdicts: Sequence[Verdict]) -> dict[tuple[str, int], list[Verdict]]:
    """The verdicts by task and horizon, the horizons of a task together."""
    found: dict[tuple[str, int], list[Verdict]] = {}
    for task in dict.fromkeys(v.cell.task for v in verdicts):
        for v in verdicts:
            if v.cell.task == task:
                found.setdefault((task, v.cell.steps), []).append(v)
    return found


def _passed(some: Sequence[Verdict]) -> list[str]:
    if not some:
        return ["", ""]
    return [f"{sum(v.passed for v in some)} of {len(some)}", percent(statistics.fmean(v.mean for v in some))]


def _lost(some: Sequence[Verdict]) -> str:
    compared = [v.progress for v in some if v.unit < v.first_loss]
    return percent(statistics.fmean(compared)) if compared else ""


def _on_old_text(rows: Rows, v: Verdict, schedule: str) -> float:
    """The loss on the text that the model was trained on before, over that after the best hand-set warm-up, minus 1."""
    best, ours = (rows.runs("cells", v.cell, name) for name in (v.best, schedule))
    return statistics.fmean(
        ours[s]["metric"]["old_loss"] / best[s]["metric"]["old_loss"] - 1 for s in best.keys() & ours
    )


def _counted(ended: Mapping[str, int]) -> str:
    return ", ".join(f"{why or 'never'} {count}" for why, count in Counter(ended).most_common())


def share_left(verdicts: Iterable[Verdict]) -> str:
    """The range, over the settings, of the share of the first loss that the best hand-set warm-up leaves."""
    shares = [100 * v.unit / v.first_loss for v in verdicts]
    return f"{min(shares):.0f} to {max(shares):.0f} %"


@styled
def horizon_figure(verdicts: Sequence[Verdict], ramp: Sequence[Verdict]) -> Figure:
    """By task, the costs of the default, its ramp alone, Algorithm 1 and no warm-up at each horizon; below, lengths."""
    tasks = [task for task in horizon.TASKS if any(v.cell.task == task for v in verdicts)]
    figure = Figure(figsize=(2.6 * len(horizon.OPTIMIZERS) + 0.8, 4.6 * len(tasks)), layout="constrained")
    for part, task in zip(figure.subfigures(len(tasks), 1, squeeze=False)[:, 0], tasks, strict=True):
        part.suptitle(
            f"{_TITLES[task]}: {share_left(v for v in verdicts if v.cell.task == task)} of the first loss is left"
        )
        panels = part.subplots(2, len(horizon.OPTIMIZERS), sharex=True, sharey="row", height_ratios=(1.6, 1))
        for (above, below), name in zip(panels.T, horizon.OPTIMIZERS, strict=True):
            default, alone = (
                sorted((v for v in form if (v.cell.task, v.cell.optimizer) == (task, name)), key=lambda v: v.cell.steps)
                for form in (verdicts, ramp)
            )
            _draw_horizons(above, below, default, alone)
            above.set_title(name)
        panels[0, 0].set_ylabel("loss over the best\nhand-set length, %")
        panels[1, 0].set_ylabel("warm-up,\n% of the run")
        shown = {
            label: line for axes in panels.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        part.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=4, fontsize=9)
    ticks = sorted({v.cell.steps for v in verdicts})
    for axes in figure.axes:
        axes.set_xticks(ticks, [f"{steps:,}" for steps in ticks], fontsize=8)
        axes.minorticks_off()
        axes.set_xlim(0.75 * ticks[0], 1.35 * ticks[-1])
    return figure


def _draw_horizons(above: Axes, below: Axes, some: Sequence[Verdict], ramp: Sequence[Verdict]) -> None:
    steps = [v.cell.steps for v in some]
    for schedule, label, kind in (("linear 0", "no warm-up", "linear"), (PAPER, "Algorithm 1", "paper")):
        costs = [(v.cell.steps, 100 * (v.regret[schedule] - v.regret[v.best])) for v in some if schedule in v.regret]
        if costs:
            above.plot(*zip(*costs, strict=True), "o-", color=COLOURS[kind], label=label, markersize=4)
    means, errors = [100 * v.mean for v in some], [100 * (v.difference.stderr or 0.0) for v in some]
    above.plot(steps, means, "o-", color=COLOURS["adaptive"], label="default", markersize=4)
    above.errorbar(steps, means, errors, fmt="none", color=COLOURS["adaptive"], capsize=3)
    above.plot([v.cell.steps for v in ramp], [100 * v.mean for v in ramp], "^:", color=COLOURS["adaptive"],
               label="the ramp alone", markersize=4)  # fmt: skip
    above.axhline(0, color=INK, lw=0.8)
    above.set_yscale("symlog", linthresh=1.0)
    above.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    best = [100 * float(v.best.split()[1]) for v in some]
    below.plot(steps, best, "s--", color=COLOURS["linear"], markersize=4, label="best hand-set length")
    below.plot(steps, [100 * v.warmup for v in some], "o-", color=COLOURS["adaptive"], markersize=4, label="default")
    for v in some:
        why = max(v.ended, key=v.ended.__getitem__)
        if why in ("loss", "clock"):
            below.annotate(why, (v.cell.steps, 100 * v.warmup), xytext=(0, 5), textcoords="offset points",
                           ha="center", fontsize="x-small")  # fmt: skip
    below.set(xscale="log", xlabel="updates in the run", ylim=(-5, 90))


def write_grid_pages(name: str, rows: Rows, root: Path) -> list[Path]:
    """Write the tables of a study of this form, and the figure of "horizon", into docs/; return their paths.

    The rows may be incomplete.
    """
    verdicts = judged(rows, GRIDS[name])
    beside = {form: judged(rows, GRIDS[name], form) for form in GRIDS[name][0].beside}
    files: dict[str, str | Figure] = {name: grid_table(rows, verdicts, beside)}
    if name == "fine-tuning":
        files["fine-tuning-summary"] = fine_tuning_summary(rows, verdicts, beside[CHANCE])
    else:
        files[f"{name}-summary"] = grid_summary(verdicts, beside, of_progress=name == "fresh")
    if name == "fresh":
        files["fresh-rules"] = fresh_rules_table(rows, beside[RAMP_ALONE])  # made after the default
    if name == "horizon":
        files["peak-horizons"] = horizon_rates_table(rows)
        if verdicts:
            files["horizons"] = horizon_figure(verdicts, beside[RAMP_ALONE])
    return write_files(root, files)
