"""The tables of simple rules and of other rates: what each rule costs, against the best warm-up of a wider grid."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ...analysis.markdown import comma_separated, percent
from ...analysis.statistics import Estimate, by_family, by_task, mean_loss, rate_sensitivity, regrets
from ...files import write_atomically
from ..cells import DEFAULT, FAIR, FAMILIES, RAMP_ALONE, SEEDS, sensitivity_cells, title
from ..plan import SENSITIVITY
from ..rows import Cell, Rows
from ..transfer import FRESH
from ..verdicts import Verdict, hand_set, verdicts

__all__ = ["RULES", "fair_table", "fresh_rules_table", "rule_regrets", "sensitivity_table", "write_fair_tables"]

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
    rows: Rows, cells: Iterable[Cell], grid: Sequence[str] = FAIR, seeds: Sequence[int] = SEEDS.choice
) -> dict[str, Mapping[Cell, float]]:
    """The regret of each rule in each setting.

    Args:
        rows: of the study.
        cells: the settings.
        grid: the hand-set warm-ups among which the best is, by the study's names.
        seeds: that choose the best, and over which the regret is averaged.

    Raises:
        LabError: a run of the grid has not been made.
    """
    found: dict[str, dict[Cell, float]] = {name: {} for name in RULES}
    for cell in cells:
        options = hand_set(rows, cell, grid, seeds)
        if not math.isfinite(min(mean_loss(losses, seeds) for losses in options.values())):
            continue
        also = {name: rows.losses("cells", cell, name, seeds) for name in (RAMP_ALONE, DEFAULT)}
        cost = regrets(options, seeds, also)
        for name, rule in RULES.items():
            found[name][cell] = cost[rule(cell)]
    return {**found}


def sensitivity_table(rows: Rows) -> str:
    """CSV: for each optimizer, the mean excess loss of rates from a third to ten times the tuned one over the best.

    Raises:
        LabError: a run has not been made.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for tuned, at in sensitivity_cells(rows).items():
        for name in SENSITIVITY:
            losses = {
                cell.lr: mean_loss(rows.losses("sensitivity", cell, name, SEEDS.choice), SEEDS.choice) for cell in at
            }
            cost = rate_sensitivity(losses, min(losses), max(losses))
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
    return _table(rule_regrets(rows, [v.cell for v in learnt]), "family", lambda cell: FAMILIES[cell.task])


def fresh_rules_table(rows: Rows, verdicts: Iterable[Verdict]) -> str:
    """CSV: mean regret on each of the fresh tasks.

    Args:
        rows: of the study "fresh".
        verdicts: on its complete settings.
    """
    costs = rule_regrets(rows, [v.cell for v in verdicts], FRESH.hand_set, FRESH.seeds.choice)
    return _table(costs, "task", lambda cell: cell.task)


def _table(costs: Mapping[str, Mapping[Cell, float]], kind: str, kind_of: Callable[[Cell], str]) -> str:
    means: dict[str, dict[str, Estimate]] = {}
    for name, some in costs.items():
        kinds = by_family(some, kind_of, lambda cell: cell.task)
        means[name] = {**kinds, **({"*all tasks*": by_task(some, lambda cell: cell.task)} if some else {})}
    lines = [[line, *(percent(of[line].mean) for of in means.values())] for line in means["default"]]
    return comma_separated([f"{kind}, %", *means], lines)


def write_fair_tables(rows: Rows, root: Path) -> list[Path]:
    """Write both tables into docs/ and return their paths.

    Args:
        rows: rows of the whole study.
        root: root of the repository.

    Raises:
        LabError: a run has not been made.
    """
    learnt = [v for v in verdicts(rows) if v.learnt]
    texts = {"fair": fair_table(rows, learnt), "sensitivity": sensitivity_table(rows)}
    paths = [root / "docs" / "data" / "tables" / f"{name}.csv" for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomically(path, text)
    return paths
