"""The tables of docs/evidence.md that are kept as CSV files: every setting, kinds of settings, studies of the rule."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.analysis.statistics import Estimate

from ..cells import (
    DEFAULT,
    FAMILIES,
    HAND_SET,
    OPTIMIZERS,
    PAPER,
    SEEDS,
    cells,
    form_cells,
    peer_cells,
    quick_cells,
    scheduled_cells,
    share_of,
    title,
)
from ..plans.warm_up import FORMS, ORDERS, PARTS, PEER_SCHEDULES, STUDY_SEEDS, TARGETS, adaptive_form, hand_set_forms
from ..rows import Cell, PlannedRow, Rows
from ..statistics import by_family, by_task, exceeds, excess, leave_one_out, mean_loss, percent, plus_minus, ratios
from ..tasks import TASKS
from ..verdicts import TOLERANCE, Verdict
from .fair import sensitivity_table

_EIGHTFOLD = {"llama-x8": "llama", "swin-x8": "swin"}
_INSTEAD = {"schedule-free": "Schedule-Free AdamW, tuned rate", "radam": "RAdam, tuned rate", "prodigy": "Prodigy"}
_ABOUT = {
    "max_warmup=None": "no `max_warmup`: the loss alone",
    "fstar=-1e6": "no loss: the ramp alone",
    "smoothing=0": "no smoothing",
}


def tables(rows: Rows, judged: Sequence[Verdict]) -> dict[str, str]:
    """The tables as CSV, by name."""
    learnt, quick = [v for v in judged if v.learnt], quick_cells(rows)
    return {
        "settings": _settings(judged),
        "regrets": _one_row(mean_regrets([v.regret for v in learnt])),
        "peers": _peers(rows, learnt),
        "families": _families(learnt),
        "kinds": _kinds(learnt),
        "worse": _worse(learnt),
        "targets": _targets(rows, quick),
        "parts": _parts(rows, quick),
        "forms": _forms(rows),
        "orders": _orders(rows),
        "sensitivity": sensitivity_table(rows),
        "tasks": _tasks(judged),
    }


def changes(rows: Rows, changed: str, some: Sequence[Cell]) -> list[float]:
    """For each cell, the relative increase of the loss if one part of the default is changed."""
    return [
        excess(
            rows.losses("parts", cell, f"{DEFAULT} {changed}").values(),
            mean_loss(rows.losses("parts", cell, DEFAULT), STUDY_SEEDS),
        )
        for cell in some
    ]


def form_cost(rows: Rows, cell: Cell, form: tuple[str, str]) -> Estimate:
    """Compare the default in a form with the best hand-set length of that form."""
    options = {name: rows.losses("forms", cell, name) for name in hand_set_forms(*form)}
    return leave_one_out(rows.losses("forms", cell, adaptive_form(*form)), options)


def target_cost(rows: Rows, cell: Cell) -> Estimate:
    """Compare the default with the best f*: on each seed, with the f* that is best on the other seeds."""
    options = {share: rows.losses("parts", cell, f"{DEFAULT} fstar={share:g}") for share in TARGETS}
    return leave_one_out(rows.losses("parts", cell, DEFAULT), options)


def family_means(learnt: Sequence[Verdict], value: Callable[[Verdict], float]) -> dict[str, Estimate]:
    """Means over the tasks of each family, and over all tasks; each task counts once."""
    known = {v.cell: value(v) for v in learnt}
    families = by_family(known, lambda cell: FAMILIES[cell.task], lambda cell: cell.task)
    return {**families, "*all tasks*": by_task(known, lambda cell: cell.task)}


def batch_pairs(learnt: Sequence[Verdict]) -> Iterator[tuple[float, float]]:
    """The regrets of the worst length, with a small batch and with one eight times as large."""
    worst = {
        (v.cell.task, v.cell.optimizer): max(v.regret[schedule] for schedule in HAND_SET)
        for v in learnt
        if v.cell.steps == 200
    }
    for big, small in _EIGHTFOLD.items():
        for optimizer in OPTIMIZERS:
            if (big, optimizer) in worst and (small, optimizer) in worst:
                yield worst[small, optimizer], worst[big, optimizer]


def mean_difference(some: Iterable[Verdict]) -> str:
    """The mean difference, in percent."""
    return percent(statistics.fmean(v.mean for v in some))


def mean_regrets(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean regret of each schedule over the cells."""
    return {schedule: statistics.fmean(regret[schedule] for regret in found) for schedule in found[0]}


def _settings(judged: Sequence[Verdict]) -> str:
    def row(v: Verdict) -> list[str]:
        hand = {name: f"{loss:.4g}" if math.isfinite(loss) else "—" for name, loss in v.hand.items()}
        hand[v.best] = f"**{hand[v.best]}**"
        mark = ("pass" if v.passed else "FAIL") if v.counted else "not counted" if v.learnt else "nothing learnt"
        paper = percent(v.regret[PAPER]) if PAPER in v.regret else ""
        difference = f"{plus_minus(v.difference)} ({v.difference.count})"
        return [f"`{v.cell.name}`", *hand.values(), difference, mark, f"{100 * v.warmup:.0f} %", paper]

    headings = ["setting", *map(title, HAND_SET), "default − best, %", "", "warm-up", "Algorithm 1, %"]
    return comma_separated(headings, map(row, judged))


def _peers(rows: Rows, learnt: Sequence[Verdict]) -> str:
    """What people use instead, compared with the default on the same seeds."""
    known = {v.cell for v in learnt}

    def against(part: str, theirs: Cell, schedule: str, ours: Cell) -> Estimate:
        return ratios(rows.losses(part, theirs, schedule, SEEDS.test), rows.losses("cells", ours, DEFAULT))

    scheduled = [cell for cell in scheduled_cells(rows) if cell in known]
    instead = [pair for pair in peer_cells(rows) if pair[1] in known]
    compared = {"the best of six hand-set lengths": [against("cells", v.cell, v.best, v.cell) for v in learnt]}
    for about, name in zip(("WSD, 10 % warm-up", "GreedyLR"), PEER_SCHEDULES, strict=True):
        compared[about] = [against("cells", cell, name, cell) for cell in scheduled]
    adamw = dict.fromkeys(ours for _, ours in instead)
    compared["untuned linear warm-up, AdamW"] = [against("cells", cell, "untuned", cell) for cell in adamw]
    for name, about in _INSTEAD.items():
        compared[about] = [against("peers", cell, "own", ours) for cell, ours in instead if cell.optimizer == name]

    def row(about: str, found: Sequence[Estimate]) -> list[object]:
        means = [each.mean for each in found]
        worse = sum(bool(exceeds(each)) for each in found)
        better = sum(bool(exceeds(Estimate(tuple(-x for x in each.values)))) for each in found)
        return [about, len(found), percent(statistics.fmean(means)), percent(statistics.median(means)), better, worse]

    headings = ["instead of the default", "settings", "mean, %", "median, %", "better by 2 s.e.", "worse by 2 s.e."]
    return comma_separated(headings, [row(about, found) for about, found in compared.items()])


def _one_row(values: Mapping[str, float]) -> str:
    return comma_separated([title(schedule) for schedule in values], [[f"{100 * x:.2f} %" for x in values.values()]])


def _families(learnt: Sequence[Verdict]) -> str:
    def regret(schedule: str) -> dict[str, Estimate]:
        return family_means(learnt, lambda v: v.regret[schedule])

    found = {title(schedule): regret(schedule) for schedule in (*HAND_SET, DEFAULT)}
    families = list(found[title(DEFAULT)])
    lines = [[family, *(percent(of[family].mean) for of in found.values())] for family in families]
    return comma_separated(["family, %", *found], lines)


def _kinds(learnt: Sequence[Verdict]) -> str:
    """The difference and the best length for each optimizer, task, horizon and size of batch."""
    large = {(_EIGHTFOLD.get(v.cell.task), v.cell.optimizer) for v in learnt}

    def batch(cell: Cell) -> str | None:
        if cell.steps != 200 or cell.task in _EIGHTFOLD:
            return "eightfold" if cell.steps == 200 else None
        return "small" if (cell.task, cell.optimizer) in large else None

    kinds: dict[str, Callable[[Cell], object]] = {
        "optimizer": lambda cell: cell.optimizer,
        "task": lambda cell: cell.task,
        "steps": lambda cell: cell.steps,
        "batch, LLaMA and Swin of 200 steps": batch,
    }
    lines: list[Sequence[object]] = []
    for name, kind in kinds.items():
        lines.append([f"*{name}*", *[""] * 5])
        for value in dict.fromkeys(kind(v.cell) for v in learnt):
            if value is not None:
                some = [v for v in learnt if kind(v.cell) == value]
                counted = [v for v in some if v.counted]
                regret = mean_regrets([v.regret for v in some])
                share = min(HAND_SET, key=lambda schedule: regret[schedule])
                best = f"{title(share)}: {percent(regret[share])} %"
                passed = sum(v.passed for v in counted)
                lines.append([value, len(some), mean_difference(some), len(counted), passed, best])
    headings = [
        "", "settings", "mean difference, %", "counted", "pass", "regret of the best length for all of the kind"
    ]  # fmt: skip
    return comma_separated(headings, lines)


def _worse(learnt: Sequence[Verdict]) -> str:
    def row(v: Verdict) -> list[str]:
        near = min(HAND_SET, key=lambda name: abs(share_of(name) - v.warmup))
        cost = f"{title(near)}: {percent(v.regret[near])}"
        return [f"`{v.cell.name}`", plus_minus(v.difference), f"{100 * v.warmup:.0f} %", cost]

    headings = ["setting", "default − best, %", "its warm-up", "the nearest hand-set length, % worse"]
    return comma_separated(headings, [row(v) for v in learnt if v.mean > 0.01])


def _targets(rows: Rows, quick: Sequence[Cell]) -> str:
    def row(cell: Cell) -> list[str]:
        each = [percent(*changes(rows, f"fstar={share:g}", [cell])) for share in TARGETS]
        cost = target_cost(rows, cell)
        return [f"`{cell.name}`", *each, plus_minus(cost), "worse" if exceeds(cost, TOLERANCE) else ""]

    headings = ["setting", *(f"{share:g}" for share in TARGETS), "default − best, %", "verdict"]
    return comma_separated(headings, map(row, quick))


def _parts(rows: Rows, quick: Sequence[Cell]) -> str:
    def row(part: str) -> list[object]:
        each = changes(rows, part, quick)
        runs = [run for cell in quick for run in rows.runs("parts", cell, f"{DEFAULT} {part}").values()]
        return [
            _ABOUT.get(part, f"`{part}`"),
            *map(percent, (statistics.fmean(each), max(each), min(each))),
            sum(x > 0.01 for x in each),
            sum(x < -0.01 for x in each),
            sum(run["ended_by"] is None for run in runs),
        ]

    headings = [
        "changed", "mean, %", "worst, %", "best, %", "worse by 1 %", "better by 1 %", "runs that ended in warm-up"
    ]  # fmt: skip
    return comma_separated(headings, map(row, PARTS))


def _forms(rows: Rows) -> str:
    headings = ["setting", *(f"{warmup}, {decay}" for warmup, decay in FORMS)]
    return comma_separated(
        headings,
        [[f"`{cell.name}`", *(plus_minus(form_cost(rows, cell, form)) for form in FORMS)] for cell in form_cells(rows)],
    )


def _orders(rows: Rows) -> str:
    lines = []
    for cell in cells(rows):
        planned = [PlannedRow("orders", cell, DEFAULT, 0, order=order) for order in ORDERS]
        if planned[0] in rows:
            runs = [rows[run] for run in planned]
            steps = [run["warmup_steps"] for run in runs]
            mean = statistics.fmean(steps)
            ended = " and ".join(sorted({run["ended_by"] for run in runs}))
            lines.append([f"`{cell.name}`", f"{mean:.0f}", f"{100 * statistics.stdev(steps) / mean:.1f}", ended])
    return comma_separated(["setting", "switch at, mean", "standard deviation, % of it", "ended by"], lines)


def _tasks(judged: Sequence[Verdict]) -> str:
    known = {v.cell.task for v in judged}
    return comma_separated(
        ["task", "what it is"], [[f"`{name}`", task.about] for name, task in TASKS.items() if name in known]
    )
