"""The tables of the benchmark and of the finished studies, as CSV by name."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.analysis.statistics import Estimate

from .. import bench
from ..beds import PEOPLE
from ..entries import DEFAULT, OURS, PAPER, title
from ..measures import CHOICES, Judged, Sweep, at_own_rates, judged, stored, sweep
from ..rows import Cell, Rows
from .groups import NEED, NEED_NOT, SHOWN, TEST_SEEDS, UNSEEN, Group, decides, groups

FAMILIES = {
    **dict.fromkeys(("lm-small", "lm-middle", "lm-large", "post-norm"), "language"),
    **dict.fromkeys(("llama", "llama-x8", "llama-long", "llama-bytes"), "language"),
    **dict.fromkeys(("vit", "swin", "swin-x8"), "vision"),
    "mlp": "MLP",
    "factor": "deep linear",
}
SENSITIVE = (OURS, "linear 0", "linear 0.02", "linear 0.1", "linear 0.4", "tenth 0.5")
"""The entries whose sensitivity is shown."""
_FEW = (DEFAULT, "linear 0", "linear 0.1", "linear 0.4")


def texts(data: Path) -> dict[str, str]:
    """The tables by name, from the rows in the folder docs/data.

    Raises:
        LabError: a planned run is missing.
    """
    every = [*judged(data, "warm-up"), *judged(data, "horizon")]
    main = [*filter(decides, every)]
    fresh = [*judged(data, "fresh"), *judged(data, "unseen")]
    found = sweeps(data)
    insured, people = groups(data, main), stored(data, "realistic")
    return {
        "cost": cost_table(insured),
        "insurance": insurance_table(insured),
        "sensitivity": sensitivity_table(found),
        "sensitivity-all": overall_table(found),
        "regret": choices_table(main, (1_000, 4_000, 16_000)),
        "lengths": lengths_table(main),
        "kinds": kinds_table(main, lambda cell: FAMILIES[cell.task]),
        "fresh": kinds_table(fresh, lambda cell: cell.task),
        "realistic": people_table(people),
        "settings": settings_table([*every, *fresh]),
    }


# At all rates


def sweeps(data: Path) -> dict[str, dict[str, Sweep]]:
    """By bed and length, then by optimizer: the runs at all rates, of the seeds with which all are made."""
    rows = Rows.load(data / "studies" / bench.ROWS.name)
    found: dict[str, dict[str, Sweep]] = {}
    for part in bench.PLAN:
        for bed in part.beds:
            if (swept := whole_seeds(rows, bed, part)) is not None:
                count = "one seed" if swept[0] == 1 else f"{swept[0]} seeds"
                found[f"{bench.TITLES[bed]}, T = {part.steps:,}, {count}"] = swept[1]
    return found


def whole_seeds(rows: Rows, bed: str, part: bench.Part) -> tuple[int, dict[str, Sweep]] | None:
    """A bed by optimizer, means over the seeds of which all runs are made, and how many these are; None without any."""
    every = {one: bench.cells(bed, one, part.steps) for one in bench.OPTIMIZERS}

    def swept(seeds: Sequence[int]) -> dict[str, Sweep]:
        each = {one: sweep(rows, bench.BEDS[bed][0], cells, part.entries, seeds) for one, cells in every.items()}
        return {one: found for one, found in each.items() if found is not None}

    seeds = [seed for seed in part.seeds if len(swept([seed])) == len(every)]
    return (len(seeds), swept(seeds)) if seeds else None


def sensitivity_table(found: Mapping[str, Mapping[str, Sweep]]) -> str:
    """CSV: a row for each bed and entry: the sensitivity under each optimizer, the means, and the worst excess."""
    lines = []
    for bed, some in found.items():
        for name in SENSITIVE:
            if all(name in one.curves for one in some.values()):
                each = [one.sensitivity(name) for one in some.values()]
                over = [one.excess(name) for one in some.values()]
                lines.append([bed, title(name), *(f"{x:.3f}" for x in (*each, statistics.fmean(each))),
                              f"{statistics.fmean(over):.3f}", f"{max(over):.3f}"])  # fmt: skip
    return comma_separated(["bed", "warm-up", *bench.OPTIMIZERS, "mean", "mean excess", "worst excess"], lines)


def overall_table(found: Mapping[str, Mapping[str, Sweep]]) -> str:
    """CSV: a row for each entry that was run everywhere: means over beds and optimizers, and the default's lead."""
    every, lines = [one for some in found.values() for one in some.values()], []
    for name in SENSITIVE:
        if all(name in one.curves for one in every):
            each = [one.sensitivity(name) for one in every]
            over = [one.excess(name) for one in every]
            more = [
                with_error(Estimate(tuple(x - y for x, y in zip(values, ours, strict=True))))
                for values, ours in (
                    (each, [one.sensitivity(OURS) for one in every]), (over, [one.excess(OURS) for one in every])
                )
            ]  # fmt: skip
            lines.append([title(name), f"{statistics.fmean(each):.3f}", more[0], f"{statistics.fmean(over):.3f}",
                          more[1], f"{max(over):.3f}"])  # fmt: skip
    head = ["warm-up", "sensitivity", "− the default's", "excess", "− the default's ", "worst excess"]
    return comma_separated(head, lines)


# At one rate


def mean_and_worst(costs: Sequence[float]) -> str:
    """The mean, and the worst in brackets."""
    return f"{statistics.fmean(costs):.2f} ({max(costs):.1f})"


def with_error(change: Estimate) -> str:
    """The mean, and its standard error if there is one."""
    return f"{change.mean:+.2f}" + ("" if change.stderr is None else f" ± {change.stderr:.2f}")


def insurance_table(found: Mapping[str, Group]) -> str:
    """CSV: a row for each group, with the mean and the worst regret of each choice."""
    lines = [
        [group.name, len(group.regrets), *(mean_and_worst(group.costs(choice)) for choice in SHOWN)]
        for group in found.values()
    ]
    return comma_separated(["settings", "n", *map(title, SHOWN)], lines)


def cost_table(found: Mapping[str, Group]) -> str:
    """CSV: a row for each choice, where a warm-up is needed, where it hardly is, and on unseen tasks."""
    shown = {
        f"{len(found[NEED].regrets)} settings that {NEED}": found[NEED],
        f"{len(found[NEED_NOT].regrets)} that {NEED_NOT}": found[NEED_NOT],
        f"{len(found[UNSEEN].regrets)} on {UNSEEN}": found[UNSEEN],
    }
    lines = [
        [f"**{title(choice)}**" if choice == DEFAULT else title(choice),
         *(mean_and_worst(group.costs(choice)) for group in shown.values())]
        for choice in SHOWN
    ]  # fmt: skip
    return comma_separated(["warm-up", *shown], lines)


def choices_table(found: Sequence[Judged], least: Sequence[int]) -> str:
    """CSV: a row for each choice that was run in all settings of at least so many updates: mean, worst and median."""
    longer = {steps: [one.regrets for one in found if one.setting.cell.steps >= steps] for steps in least}
    whats: dict[str, Callable[..., float]] = {"mean": statistics.fmean, "worst": max, "median": statistics.median}
    headings = [f"T ≥ {steps:,}: {len(some)} settings, {what} %" for steps, some in longer.items() for what in whats]
    lines = []
    for name in CHOICES:
        costs = [[one[name] for one in some] if all(name in one for one in some) else [] for some in longer.values()]
        cells = [f"{what(some):.2f}" if some else "–" for some in costs for what in whats.values()]
        lines.append(["the default" if name == DEFAULT else title(name), *cells])
    return comma_separated(["warm-up", *headings], [line for line in lines if {*line[1:]} != {"–"}])


def lengths_table(found: Iterable[Judged]) -> str:
    """CSV: a row for each length of run: mean regrets, and how long the default warms up."""
    lines = []
    for steps, some in _grouped(found, lambda cell: cell.steps).items():
        low, median, high = np.quantile([100 * one.warmup for one in some], (0.25, 0.5, 0.75))
        lines.append(
            [f"{steps:,}", len(some), *_means(some), f"{median:.0f} ({low:.0f}–{high:.0f})", _share_ended(some)]
        )
    return comma_separated(["T", "settings", *map(title, _FEW), "its warm-up, % of T (quartiles)",
                            "ended by the loss, %"], lines)  # fmt: skip


def kinds_table(found: Iterable[Judged], kind: Callable[[Cell], str]) -> str:
    """CSV: a row for each kind of setting: mean regrets, the default's worst, and the loss's share of the ends."""
    lines = [
        [name, len(some), *_means(some), f"{max(one.regrets[DEFAULT] for one in some):.1f}", _share_ended(some)]
        for name, some in _grouped(found, kind).items()
    ]
    return comma_separated(["task", "settings", *map(title, _FEW), "default, worst", "ended by the loss, %"], lines)


def people_table(rows: Rows) -> str:
    """CSV: a row for each choice and length: its regret under each optimizer, at its own rate, as people train."""
    lines = []
    for steps in (4_000, 16_000):
        found = at_own_rates(rows, PEOPLE, steps, TEST_SEEDS)
        for name in CHOICES:
            if all(name in one for one in found.values()):
                each = [found[optimizer][name] for optimizer in bench.OPTIMIZERS]
                costs = [*(f"{x:.2f}" for x in each), f"{statistics.fmean(each):.2f}", f"{max(each):.1f}"]
                lines.append([f"{steps:,}", "the default" if name == DEFAULT else title(name), *costs])
    return comma_separated(["T", "warm-up", *bench.OPTIMIZERS, "mean %", "worst %"], lines)


def settings_table(found: Sequence[Judged]) -> str:
    """CSV: a row for every setting."""

    def line(one: Judged) -> list[object]:
        cell, regrets = one.setting.cell, one.regrets
        return [
            cell.task, cell.optimizer, f"{cell.steps:,}", f"{cell.lr:g}", title(one.best),
            *(f"{regrets[name]:.2f}" if name in regrets else "" for name in shown),
            f"{100 * one.warmup:.0f}",
            ", ".join(f"{why} {count}" for why, count in sorted(one.ended.items())),
        ]  # fmt: skip

    shown = (DEFAULT, "linear 0", "linear 0.1", PAPER)
    return comma_separated(
        ["task", "optimizer", "T", "peak rate", "best hand-set", *map(title, shown), "its warm-up, % of T",
         "ended by"], map(line, found),
    )  # fmt: skip


def _grouped(found: Iterable[Judged], key: Callable[[Cell], object]) -> dict[object, list[Judged]]:
    by_key: dict[object, list[Judged]] = {}
    for one in sorted(found, key=lambda one: one.setting.cell.steps):
        by_key.setdefault(key(one.setting.cell), []).append(one)
    return by_key


def _means(some: Sequence[Judged]) -> list[str]:
    return [f"{statistics.fmean(one.regrets[name] for one in some):.2f}" for name in _FEW]


def _share_ended(some: Sequence[Judged]) -> str:
    ended = sum((one.ended for one in some), Counter[str]())
    return f"{100 * ended['loss'] / ended.total():.0f}"
