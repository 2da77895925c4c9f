"""The tables of simple rules and of other rates: what each rule costs, against the best warm-up of a wider grid."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.analysis.statistics import CAP, Estimate

from ..cells import DEFAULT, FAIR, FAMILIES, RAMP_ALONE, SEEDS, sensitivity_cells, title
from ..plans.transfer import FRESH
from ..plans.warm_up import SENSITIVITY
from ..rows import Cell, Rows
from ..statistics import by_family, by_task, mean_loss, percent, plus_minus, rate_sensitivity
from ..verdicts import Verdict, hand_set, judge, verdicts
from . import write_files

_TRANSFORMERS = ("language", "vision", "fine-tuning")

RULES: dict[str, Callable[[Cell], str]] = {
    "none": lambda cell: "linear 0",
    "5 %": lambda cell: "linear 0.05",
    "40 %": lambda cell: "linear 0.4",
    "half from lr/10": lambda cell: RAMP_ALONE,
    "half from lr/10 for transformers, 5 % else": (
        lambda cell: RAMP_ALONE if FAMILIES[cell.task] in _TRANSFORMERS else "linear 0.05"
    ),
    "default": lambda cell: DEFAULT,
}
"""Rules that choose a warm-up for every setting, by their names in the table."""


def rule_regrets(
    rows: Rows,
    verdicts: Iterable[Verdict],
    grid: Sequence[str] = FAIR,
    seeds: Sequence[int] = SEEDS.choice,
    of_progress: bool = False,
) -> dict[str, Mapping[Cell, float]]:
    """The regret of each rule in each setting of the verdicts.

    The best of the grid on the seeds is what a rule is compared with. `of_progress` divides by the best warm-up's
    progress from the first loss, instead of by its loss. Settings whose held-out loss cannot be compared with the first
    loss, because it is higher, are left out; without `of_progress`, those whose best loss is zero.
    """
    found: dict[str, dict[Cell, float]] = {name: {} for name in RULES}
    for v in verdicts:
        losses = hand_set(rows, v.cell, grid, seeds)
        best = min(mean_loss(some, seeds) for some in losses.values())
        if not math.isfinite(best) or (best >= v.first_loss if of_progress else best == 0):
            continue
        losses |= {name: rows.losses("cells", v.cell, name, seeds) for name in (RAMP_ALONE, DEFAULT)}
        # A diverged run counts as the first loss, or as twice the best one.
        ceiling, unit = (v.first_loss, v.first_loss - best) if of_progress else (CAP * best, best)
        for name, rule in RULES.items():
            run = losses[rule(v.cell)]
            found[name][v.cell] = (statistics.fmean(min(run[seed], ceiling) for seed in seeds) - best) / unit
    return {**found}


def sensitivity_table(rows: Rows) -> str:
    """CSV: for each optimizer, the mean excess loss of rates from a third to ten times the tuned one over the best."""
    found: dict[str, dict[str, list[float]]] = {}
    for tuned, at in sensitivity_cells(rows).items():
        for name in SENSITIVITY:
            losses = {
                cell.lr: mean_loss(rows.losses("sensitivity", cell, name, SEEDS.choice), SEEDS.choice) for cell in at
            }
            cost = rate_sensitivity(losses)
            for kind in (tuned.optimizer, "*all*"):
                found.setdefault(kind, {}).setdefault(name, []).append(cost)
    names = ["half from lr/10" if name == RAMP_ALONE else title(name) for name in SENSITIVITY]
    lines = [
        [kind, *(percent(statistics.fmean(costs[name])) for name in SENSITIVITY)]
        for kind, costs in sorted(found.items(), key=lambda one: one[0] == "*all*")
    ]
    return comma_separated(["optimizer, %", *names], lines)


def fair_table(rows: Rows, learnt: list[Verdict]) -> str:
    """CSV: mean regret by family; each task counts once."""
    lines = _lines(rule_regrets(rows, learnt), lambda cell: FAMILIES[cell.task])
    return comma_separated(["family, %", *RULES], lines)


def fair_tested_table(rows: Rows, learnt: list[Verdict]) -> str:
    """CSV: mean difference from the best of the wider grid on the seeds of the test, and how often it is within bounds.

    Each task counts once in a mean, ± the standard error over tasks; a passed setting is as in `Verdict.passed`.
    """
    rules = {"default": DEFAULT, "half from lr/10": RAMP_ALONE, "5 %": "linear 0.05"}
    found = {name: [judge(rows, v.cell, SEEDS, FAIR, rule) for v in learnt] for name, rule in rules.items()}
    kinds = [*dict.fromkeys(FAMILIES[v.cell.task] for v in learnt), "*all tasks*"]
    lines = []
    for kind in kinds:
        some = {
            name: [v for v in judged if kind in (FAMILIES[v.cell.task], "*all tasks*")]
            for name, judged in found.items()
        }
        means = [by_task({v.cell: v.mean for v in judged}, lambda cell: cell.task) for judged in some.values()]
        passed = [f"{sum(v.passed for v in judged)} of {len(judged)}" for judged in some.values()]
        lines.append([kind, *(plus_minus(mean) for mean in means), *passed])
    return comma_separated(["family", *(f"{name}, %" for name in rules), *(f"{name} passes" for name in rules)], lines)


def fresh_rules_table(rows: Rows, verdicts: Sequence[Verdict]) -> str:
    """CSV: mean regret on each fresh task, as a part of the progress, and over all as a part of the loss."""
    by_unit = [rule_regrets(rows, verdicts, FRESH.hand_set, FRESH.seeds.choice, unit) for unit in (True, False)]
    lost, cost = (_lines(some, lambda cell: cell.task) for some in by_unit)
    return comma_separated(
        ["task, %", *RULES], [*lost, *([line[0] + " (of the loss)", *line[1:]] for line in cost[-1:])]
    )


def _lines(costs: Mapping[str, Mapping[Cell, float]], kind_of: Callable[[Cell], str]) -> list[list[str]]:
    """For each kind of setting, and at last for all, the mean cost of each rule; each task counts once."""
    means: dict[str, dict[str, Estimate]] = {}
    for name, some in costs.items():
        kinds = by_family(some, kind_of, lambda cell: cell.task)
        means[name] = {**kinds, **({"*all tasks*": by_task(some, lambda cell: cell.task)} if some else {})}
    return [[line, *(percent(of[line].mean) for of in means.values())] for line in means["default"]]


def write_fair_tables(rows: Rows, root: Path) -> list[Path]:
    """Write the tables of the wider grid into docs/ and return their paths."""
    learnt = [v for v in verdicts(rows) if v.learnt]
    return write_files(root, {"fair": fair_table(rows, learnt), "fair-tested": fair_tested_table(rows, learnt)})
