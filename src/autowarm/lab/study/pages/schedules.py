"""What docs/schedules.md shows: every cell, and the studies of the rule itself."""

import math
import statistics
from collections.abc import Sequence

from ...analysis.markdown import percent, plus_minus, table
from ...analysis.statistics import Estimate, excess, leave_one_out, mean_loss
from ...tasks.small import TASKS
from ..cells import DEFAULT, HAND_SET, PAPER, SEEDS, cells, form_cells, quick_cells, share_of, title
from ..plan import FORM_SHARES, FORMS, ORDERS, PARTS, STUDY_SEEDS, TARGETS, adaptive_form, hand_set_forms
from ..rows import Cell, PlannedRow, Rows
from ..verdicts import TOLERANCE, Verdict, headline

__all__ = ["changes", "form_cost", "schedules"]

_ABOUT = {
    "max_warmup=None": "no `max_warmup`: the loss alone",
    "fstar=-1e6": "no loss: the ramp alone",
    "smoothing=0": "no smoothing",
}


def schedules(rows: Rows, judged: Sequence[Verdict]) -> dict[str, object]:
    """What the page's template asks for, by name."""
    learnt = [v for v in judged if v.learnt]
    quick, known = quick_cells(rows), {v.cell.task for v in judged}
    return {
        **headline(rows, judged),
        "planned": len(judged),
        "untaught": len(judged) - len(learnt),
        "selection": SEEDS.choice,
        "quick": len(quick),
        "study_seeds": len(STUDY_SEEDS),
        "form_lengths": len(FORM_SHARES),
        "by_cell": _by_cell(judged),
        "worse": _worse(learnt),
        **_targets(rows, quick),
        "parts": _parts(rows, quick),
        "forms": _forms(rows),
        "orders": _orders(rows),
        "tasks": "\n".join(f"- `{name}`: {task.about}" for name, task in TASKS.items() if name in known),
    }


def changes(rows: Rows, part: str, changed: str, some: Sequence[Cell]) -> list[float]:
    """What the default loses in each cell if something is changed in it, relative."""
    return [
        excess(
            rows.losses(part, cell, f"{DEFAULT} {changed}").values(),
            mean_loss(rows.losses(part, cell, DEFAULT), STUDY_SEEDS),
        )
        for cell in some
    ]


def form_cost(rows: Rows, cell: Cell, form: tuple[str, str]) -> Estimate:
    """The default in a form against the best hand-set length of that form."""
    options = {name: rows.losses("forms", cell, name) for name in hand_set_forms(*form)}
    return leave_one_out(rows.losses("forms", cell, adaptive_form(*form)), options)


def _by_cell(judged: Sequence[Verdict]) -> str:
    def row(v: Verdict) -> list[str]:
        hand = {name: f"{loss:.4g}" if math.isfinite(loss) else "—" for name, loss in v.hand.items()}
        hand[v.best] = f"**{hand[v.best]}**"
        mark = ("pass" if v.passed else "FAIL") if v.counted else "not counted" if v.learnt else "nothing learnt"
        paper = percent(v.regret[PAPER]) if PAPER in v.regret else ""
        difference = f"{plus_minus(v.difference)} ({v.difference.count})"
        return [f"`{v.cell.name}`", *hand.values(), difference, mark, f"{100 * v.warmup:.0f} %", paper]

    headings = ["setting", *map(title, HAND_SET), "default − best, %", "", "warm-up", "Algorithm 1, %"]
    return table(headings, map(row, judged))


def _worse(learnt: Sequence[Verdict]) -> str:
    def row(v: Verdict) -> list[str]:
        near = min(HAND_SET, key=lambda name: abs(share_of(name) - v.warmup))
        cost = f"{title(near)}: {percent(v.regret[near])}"
        return [f"`{v.cell.name}`", plus_minus(v.difference), f"{100 * v.warmup:.0f} %", cost]

    headings = ["setting", "default − best, %", "its warm-up", "the nearest hand-set length, % worse"]
    return table(headings, [row(v) for v in learnt if v.mean > 0.01])


def _targets(rows: Rows, quick: Sequence[Cell]) -> dict[str, object]:
    lines, costs = [], []
    for cell in quick:
        options = {share: rows.losses("targets", cell, f"{DEFAULT} fstar={share:g}") for share in TARGETS}
        cost = leave_one_out(rows.losses("targets", cell, DEFAULT), options)
        each = [percent(*changes(rows, "targets", f"fstar={share:g}", [cell])) for share in TARGETS]
        lines.append([f"`{cell.name}`", *each, plus_minus(cost), "worse" if cost.exceeds(TOLERANCE) else ""])
        costs.append(cost)
    headings = ["setting", *(f"{share:g}" for share in TARGETS), "default − best, %", ""]
    return {
        "targets": table(headings, lines),
        "targets_mean": percent(statistics.fmean(cost.mean for cost in costs)),
        "targets_within": sum(not cost.exceeds(TOLERANCE) for cost in costs),
    }


def _parts(rows: Rows, quick: Sequence[Cell]) -> str:
    def row(part: str) -> list[object]:
        each = changes(rows, "parts", part, quick)
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
    return table(headings, map(row, PARTS))


def _forms(rows: Rows) -> str:
    headings = ["setting", *(f"{warmup}, {decay}" for warmup, decay in FORMS)]
    return table(
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
    return table(["setting", "switch at, mean", "standard deviation, % of it", "ended by"], lines)
