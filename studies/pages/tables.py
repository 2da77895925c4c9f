"""All tables, and those of docs/evidence.md: what one choice costs by length, kind and task, and every setting."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from autowarm.lab.analysis.markdown import comma_separated
from autowarm.lab.analysis.statistics import Estimate

from .. import peers
from ..cells import DEFAULT, FAMILIES, PAPER, SEEDS, peer_cells, scheduled_cells, title
from ..plans import realistic
from ..plans.lag import lag_table
from ..plans.transfer import EARLIER, FINE_TUNING, SHORTER, with_default
from ..recovery.alarms import watched_table
from ..recovery.faults import faults_table
from ..recovery.objectives import objectives_table
from ..recovery.veto import veto_table
from ..regret import CHOICES, CONSTANTS, Judged, bed, excess, judged, mean_and_worst, median
from ..rows import Cell, Rows
from ..second_stage import searches, second_stage_table
from ..shapes import shapes_table
from ..statistics import mean_loss, regret
from . import insurance
from .which_rate import find_rate_table

TENTH, NONE = "linear 0.1", "linear 0"
_SHORT = 1_000  # updates; shorter runs are shown, and decide nothing
_FEW = (DEFAULT, NONE, TENTH, "linear 0.4")
_INSTEAD = {"schedule-free": "Schedule-Free AdamW, tuned rate", "radam": "RAdam, tuned rate", "prodigy": "Prodigy"}


def main_settings(data: Path) -> list[Judged]:
    """The settings that single choices are judged by."""
    return [*judged(data, "warm-up"), *judged(data, "horizon")]


def texts(data: Path) -> dict[str, str]:
    """The tables as CSV, by name, from the rows in the folder docs/data.

    Raises:
        LabError: a planned run is missing.
    """
    main = main_settings(data)
    long = [one for one in main if one.setting.cell.steps >= _SHORT]
    fresh = [*judged(data, "fresh"), *judged(data, "unseen")]
    names = ("warm-up", "horizon", "fresh", "realistic", "fine-tuning", "faults", "shapes", "objectives", "veto",
             "peers", "lag", "second-stage")  # fmt: skip
    rows = {name: Rows.load(data / "studies" / f"{name}.jsonl") for name in names}
    insured = insurance.groups(data)
    return {
        "cost": insurance.cost_table(insured),
        "insurance": insurance.insurance_table(insured),
        "verdicts": insurance.verdicts_table(data, insured),
        "scale": insurance.scale_table(data),
        "shapes": shapes_table(rows["shapes"]),
        "regret": choices_table(long, CHOICES, (1_000, 4_000, 16_000)),
        "constants": choices_table([one for one in long if {*CONSTANTS} <= one.regrets.keys()], CONSTANTS, (1_000,)),
        "lengths": lengths_table(long),
        "kinds": kinds_table(long, lambda cell: FAMILIES[cell.task]),
        "fresh": kinds_table(fresh, lambda cell: cell.task),
        "fine-tuning": fine_tuning_table(rows["fine-tuning"]),
        "realistic": bed_table(rows["realistic"]),
        "peers": peers_table(rows["warm-up"], rows["peers"], long),
        "settings": settings_table([*main, *fresh]),
        "false-alarms": watched_table({name: rows[name] for name in names[:4]}),
        "faults-recovered": faults_table(rows["faults"]),
        "objectives": objectives_table(rows["objectives"]),
        "veto": veto_table(rows["veto"]),
        "find-rate": find_rate_table(data),
        "lag": lag_table(rows["lag"]),
        "second-stage": second_stage_table(rows["second-stage"], searches(data)),
    }


def choices_table(found: Sequence[Judged], choices: Mapping[str, str], least: Sequence[int]) -> str:
    """A row for each choice that was run in all settings of at least so many updates: mean and worst, then medians."""
    all_longer = {steps: [one.regrets for one in found if one.setting.cell.steps >= steps] for steps in least}
    longer = {steps: some for steps, some in all_longer.items() if some}
    headings = ["warm-up", *(f"T ≥ {steps:,}: {len(some)} settings, {what} %" for steps, some in longer.items()
                             for what in ("mean", "worst"))]  # fmt: skip
    headings += [f"T ≥ {steps:,}: median %" for steps in longer]
    lines = []
    for name, words in choices.items():
        regrets = [[one.get(name) for one in some] for some in longer.values()]
        lines.append([words, *(cell for some in regrets for cell in mean_and_worst(some)), *map(median, regrets)])
    return comma_separated(headings, [line for line in lines if {*line[1:]} != {"–"}])


def lengths_table(found: Iterable[Judged]) -> str:
    """A row for each length of run: mean regrets, the default on the seeds of the test, and how long it warmed up."""
    lines = []
    for steps, some in _grouped(found, lambda cell: cell.steps).items():
        behind = [one.behind.mean for one in some if one.behind is not None]
        other = _with_error(Estimate(tuple(behind)) if behind else None)
        other += f" ({len(behind)} of {len(some)} settings)" if 0 < len(behind) < len(some) else ""
        low, median, high = np.quantile([100 * one.warmup for one in some], (0.25, 0.5, 0.75))
        lines.append([
            f"{steps:,}", len(some), *_means(some), other,
            f"{median:.0f} ({low:.0f}–{high:.0f})", _share_ended(some),
        ])  # fmt: skip
    headings = ["T", "settings", *map(title, _FEW), "default − best on other seeds", "its warm-up, % of T (quartiles)",
                "ended by the loss, %"]  # fmt: skip
    return comma_separated(headings, lines)


def kinds_table(found: Iterable[Judged], kind: Callable[[Cell], str]) -> str:
    """A row for each kind of setting: mean regrets, the default on other seeds, and the loss's share of the ends."""
    lines = [
        [name, len(some), *_means(some), f"{max(one.regrets[DEFAULT] for one in some):.1f}", _share_ended(some)]
        for name, some in _grouped(found, kind).items()
    ]
    return comma_separated(["task", "settings", *map(title, _FEW), "default, worst", "ended by the loss, %"], lines)


def fine_tuning_table(rows: Rows) -> str:
    """A row for each task and length: mean cost over the optimizers in percent of the loss, and the default's worst."""
    limits = {DEFAULT: "default", SHORTER[1]: "limit 5%", EARLIER: "limit 10%"}
    choices = limits | {name: title(name) for name in (NONE, "linear 0.03", TENTH, "linear 0.5")}
    groups: dict[tuple[str, int], list[Mapping[str, Estimate]]] = {}
    rows = with_default(rows)
    for setting in FINE_TUNING.judged(rows):
        groups.setdefault((setting.cell.task, setting.cell.steps), []).append(excess(rows, setting, [*limits]))
    lines = [
        [
            task, f"{steps:,}", len(some),
            *(f"{statistics.fmean(one[name].mean for one in some):.2f}" for name in choices),
            f"{max(one[DEFAULT].mean for one in some):.2f}",
        ]
        for (task, steps), some in sorted(groups.items())
    ]  # fmt: skip
    return comma_separated(["task", "T", "settings", *choices.values(), "default, worst"], lines)


def bed_table(rows: Rows) -> str:
    """A row for each choice and length: its regret under each optimizer, at its own rate, as people train."""
    lines = []
    for steps in (4_000, 16_000, 64_000):
        found, label = bed(rows, steps), f"{steps:,}"
        if not found:
            found, label = bed(rows, steps, [realistic.TUNING_SEED]), f"{steps:,}, tuning seed"
        for name, words in CHOICES.items():
            each = [found.get(optimizer, {}).get(name) for optimizer in realistic.OPTIMIZERS]
            if sum(x is not None for x in each) == len(found) > 0:
                lines.append([label, words, *("–" if x is None else f"{x:.2f}" for x in each), *mean_and_worst(each)])
    return comma_separated(["T", "warm-up", *realistic.OPTIMIZERS, "mean %", "worst %"], lines)


def peers_table(rows: Rows, more: Rows, found: Sequence[Judged]) -> str:
    """What people use instead: its `peer_costs`."""
    lines = [
        [about, len(costs), f"{statistics.fmean(costs):+.2f}", f"{min(costs):+.1f}", f"{max(costs):+.1f}"]
        for about, costs in peer_costs(rows, more, found).items()
    ]
    return comma_separated(["instead of the default", "settings", "mean %", "lowest %", "highest %"], lines)


def peer_costs(rows: Rows, more: Rows, found: Sequence[Judged]) -> Mapping[str, Sequence[float]]:
    """The regret of what people use instead, less the default's, in each setting on the test seeds.

    Args:
        rows: the warm-up study.
        more: the rows of `studies.peers`, of which finished seeds count.
        found: the judged settings.
    """
    best, finished = {one.setting.cell: one.best for one in found}, peers.finished(rows, more)

    def cost(part: str, theirs: Cell, schedule: str, ours: Cell, stored: Rows = rows) -> float:
        seeds = SEEDS.test if stored is rows and schedule != "wsd" else finished  # those that WSD has with both
        mine = rows.losses("cells", ours, DEFAULT, seeds)
        instead = stored.losses(part, theirs, schedule, seeds)
        first = rows.first_loss("cells", ours, DEFAULT, seeds)
        least = mean_loss(rows.losses("cells", ours, best[ours], seeds), seeds)
        return statistics.fmean(regret(instead[x], least, first) - regret(mine[x], least, first) for x in seeds)

    scheduled = [cell for cell in scheduled_cells(rows) if cell in best]
    instead = [(theirs, ours) for theirs, ours in peer_cells(rows) if ours in best]
    compared = {
        "WSD, 10% warm-up": [cost("cells", cell, "wsd", cell) for cell in scheduled],
        "WSD, our warm-up": [cost("peers", cell, peers.WSD, cell, more) for cell in scheduled],
        "GreedyLR": [cost("cells", cell, "greedy", cell) for cell in scheduled],
    }
    adamw = dict.fromkeys(ours for _, ours in instead)
    compared["untuned linear warm-up, AdamW"] = [cost("cells", cell, "untuned", cell) for cell in adamw]
    for name, about in _INSTEAD.items():
        compared[about] = [cost("peers", cell, "own", ours) for cell, ours in instead if cell.optimizer == name]
    for name, about in {peers.OWN: "ScheduleFree+, 5% warm-up", peers.OURS: "ScheduleFree+, our warm-up"}.items():
        pairs = zip(peers.tuned(rows, more), peers.instead(rows), strict=True)
        compared[about] = [cost("peers", cell, name, ours, more) for cell, ours in pairs]
    return compared


def settings_table(found: Sequence[Judged]) -> str:
    """A row for every setting."""
    few = (NONE, TENTH, PAPER)

    def line(one: Judged) -> list[object]:
        cell, regrets = one.setting.cell, one.regrets
        return [
            cell.task, cell.optimizer, f"{cell.steps:,}", f"{cell.lr:g}", title(one.best),
            *(f"{regrets[name]:.2f}" if name in regrets else "" for name in (DEFAULT, *few)),
            _with_error(one.behind), f"{100 * one.warmup:.0f}",
            ", ".join(f"{why} {count}" for why, count in sorted(one.ended.items())),
        ]  # fmt: skip

    return comma_separated(
        ["task", "optimizer", "T", "peak rate", "best hand-set", *map(title, (DEFAULT, *few)),
         "default − best on other seeds", "its warm-up, % of T", "ended by"], map(line, found),
    )  # fmt: skip


def _grouped(found: Iterable[Judged], key: Callable[[Cell], object]) -> dict[object, list[Judged]]:
    groups: dict[object, list[Judged]] = {}
    for one in sorted(found, key=lambda one: one.setting.cell.steps):
        groups.setdefault(key(one.setting.cell), []).append(one)
    return groups


def _means(some: Sequence[Judged], choices: Sequence[str] = _FEW) -> list[str]:
    return [mean_and_worst([one.regrets.get(name) for one in some])[0] for name in choices]


def _with_error(behind: Estimate | None) -> str:
    if behind is None:
        return "–"
    return f"{behind.mean:+.2f}" + ("" if behind.stderr is None else f" ± {behind.stderr:.2f}")


def _share_ended(some: Sequence[Judged]) -> str:
    ended = sum((one.ended for one in some), Counter[str]())
    return f"{100 * ended['loss'] / ended.total():.0f}"
