"""The settings that are shown together: those that need a warm-up, where none costs at least `NEEDED`, and others."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..beds import PEOPLE
from ..entries import DEFAULT
from ..measures import Judged, at_own_rates, judged, stored, tuned_rates
from ..rows import Rows

SHOWN = (DEFAULT, "linear 0", "linear 0.02", "linear 0.1", "linear 0.4")
NEEDED = 2.0  # percent of the progress
SHORTEST = 1_000  # updates; shorter runs decide nothing
NEED, NEED_NOT, HOT, UNSEEN = "need a warm-up", "hardly need one", "three times the tuned rate", "unseen tasks"
LAST = "the last unseen tasks"
TEST_SEEDS = (40, 41, 42)
"""The seeds that judge the runs as people train."""


class Group(NamedTuple):
    """Settings that are shown together: their name in the table, and the regrets of each by choice of warm-up."""

    name: str
    regrets: Sequence[Mapping[str, float]]

    def costs(self, choice: str) -> list[float]:
        """What one choice costs in each setting, in percent of the progress."""
        return [one[choice] for one in self.regrets]


def groups(data: Path, main: Sequence[Judged]) -> dict[str, Group]:
    """The groups by a short name, from the rows in docs/data and the settings that single choices are judged by."""
    rates = tuned_rates(Rows.load(data / "studies" / "warm-up.jsonl"))
    people = stored(data, "realistic")
    last = judged(data, "unseen")

    def hot(one: Judged) -> bool:
        cell = one.setting.cell
        return cell.steps == SHORTEST and cell.lr > 2 * rates.get((cell.task, cell.optimizer, cell.steps), math.inf)

    def some(name: str, which: Callable[[Judged], bool], settings: Iterable[Judged] = main) -> Group:
        return Group(name, [one.regrets for one in settings if which(one)])

    def tuned(steps: int) -> Group:
        name = f"{steps:,} updates as people train, tuned"
        return Group(name, [*at_own_rates(people, PEOPLE, steps, TEST_SEEDS).values()])

    return {
        NEED: some(f"no warm-up costs {NEEDED:g}% or more", lambda one: one.regrets["linear 0"] >= NEEDED),
        NEED_NOT: some("it costs less", lambda one: one.regrets["linear 0"] < NEEDED),
        HOT: some("1,000 updates at three times the tuned rate", hot),
        "4,000": tuned(4_000),
        "16,000": tuned(16_000),
        "64,000": some("64,000 updates, unclipped, one seed", lambda one: one.setting.cell.steps == 64_000),
        UNSEEN: some("eleven unseen tasks, 1,000 updates", decides, [*judged(data, "fresh"), *last]),
        LAST: some("the last six of these", decides, last),
    }  # fmt: skip


def decides(one: Judged) -> bool:
    """Whether single choices are judged by this setting."""
    return one.setting.cell.steps >= SHORTEST
