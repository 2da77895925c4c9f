"""Chooses and judges schedules over a few seeds, and averages over tasks: pure functions of losses.

**Seeds that choose do not judge.** The best of several options looks better than it is on the seeds that chose it.
`Seeds` keeps the two sets apart. With few seeds, use `leave_one_out`. The rest, such as what a diverged run counts as,
is as in `autowarm.lab.analysis.statistics`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import stats

from autowarm.lab.analysis.statistics import CAP, Estimate, Losses, paired

Option = TypeVar("Option")
Setting = TypeVar("Setting")


@dataclass(frozen=True)
class Seeds:
    """The seeds that choose an option, and the seeds that judge the choice. The two sets are disjoint."""

    choice: tuple[int, ...]
    test: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.choice or not self.test:
            raise ValueError(f"both choice and test need at least one seed, got {self}")
        if both := sorted(set(self.choice) & set(self.test)):
            raise ValueError(f"seeds that chose must not judge: {both} are in both choice and test")


def p_value(found: Estimate) -> float | None:
    """The p value of the two-sided t test that the true mean is 0; 1 if all values are 0, None for one value."""
    if found.stderr is None:
        return None
    if found.stderr == 0:
        return float(found.mean == 0)
    return float(2 * stats.t.sf(abs(found.mean) / found.stderr, found.count - 1))


def no_worse(found: Estimate, margin: float) -> bool | None:
    """Whether a one-sided t test of size 5 % shows that the true mean is below the margin; None for one value.

    A test that merely finds no difference does not show that.
    """
    if found.stderr is None:
        return None
    if found.stderr == 0:
        return found.mean < margin
    return bool(stats.t.cdf((found.mean - margin) / found.stderr, found.count - 1) <= 0.05)


def exceeds(found: Estimate, tolerance: float = 0.0) -> bool | None:
    """Whether the mean is above both the tolerance and two standard errors; None for one value.

    This is a rule of thumb. Two standard errors are a 95 % interval for many seeds but only an 88 % interval for five.
    """
    return None if found.stderr is None else found.mean > max(2 * found.stderr, tolerance)


def discoveries(p_values: Sequence[float | None], level: float = 0.05) -> list[bool]:
    """Which of many tests remain significant after correction for their number (Benjamini and Hochberg, 1995).

    For independent or positively dependent tests, the expected share of false discoveries is at most `level`. None
    marks a test without a verdict, which does not count.
    """
    known = [p for p in p_values if p is not None]
    adjusted = iter(stats.false_discovery_control(known)) if known else iter(())
    return [p is not None and bool(next(adjusted) <= level) for p in p_values]


def mean_loss(losses: Losses, seeds: Iterable[int]) -> float:
    """The mean over the seeds, which must be there; infinite if one of the runs diverged."""
    wanted = list(seeds)
    if missing := [seed for seed in wanted if seed not in losses]:
        raise ValueError(f"no loss for the seeds {missing}, only for {sorted(losses)}")
    return math.fsum(losses[seed] for seed in wanted) / len(wanted)


def choose(options: Mapping[Option, Losses], seeds: Iterable[int]) -> Option:
    """The option with the lowest mean loss on the seeds; the first one if several are equal."""
    wanted = list(seeds)
    return min(options, key=lambda option: mean_loss(options[option], wanted))


def ratios(ours: Losses, reference: Losses) -> Estimate:
    """Paired relative differences aₛ/bₛ − 1 over the common seeds s, for positive losses.

    The ratio is clipped to [1/`CAP`, `CAP`], and is 1 if both runs diverged.

    Raises:
        ValueError: there is no common seed, or a loss of the reference is not positive.
    """
    a, b, diverged = paired(ours, reference)
    if (b <= 0).any():
        raise ValueError(f"a ratio needs positive losses, got {min(b):g}: use `differences`")
    both = np.isinf(a) & np.isinf(b)
    with np.errstate(invalid="ignore"):
        ratio = np.where(both, 1.0, a / b)
    return Estimate(tuple((np.clip(ratio, 1 / CAP, CAP) - 1).tolist()), diverged)


def leave_one_out(ours: Losses, options: Mapping[Option, Losses]) -> Estimate:
    """Our `ratios` to the best option, comparing each seed's run with the option best on all other seeds.

    Use this for few seeds and many options: every seed judges, but never a choice that it took part in.
    """
    if len(ours) < 2:
        raise ValueError(f"leaving a seed out needs at least two seeds, got {sorted(ours)}")
    reference = {seed: options[choose(options, ours.keys() - {seed})][seed] for seed in ours}
    return ratios(ours, reference)


def excess(losses: Iterable[float], reference: float) -> float:
    """The mean loss relative to a reference, mean(min(xᵢ, c))/reference − 1, where c is `CAP` times the reference.

    Raises:
        ValueError: there are no losses, or the reference is not a positive number.
    """
    if not (math.isfinite(reference) and reference > 0):
        raise ValueError(f"a relative loss needs a finite positive reference, got {reference}")
    values = [min(x, CAP * reference) for x in losses]
    if not values:
        raise ValueError("an excess needs at least one loss, got none")
    return math.fsum(values) / len(values) / reference - 1


def regrets(
    options: Mapping[Option, Losses], seeds: Iterable[int], also: Mapping[Option, Losses]
) -> dict[Option, float]:
    """The cost of each fixed choice in one setting: its `excess` over the best option on the seeds.

    The best option has regret 0 on the seeds that choose it. This is slightly better than anyone can achieve, because
    the best option is not known beforehand. `also` are schedules to judge that are not candidates for the best.

    Raises:
        ValueError: every option diverged with some seed, so there is no best.
    """
    wanted = list(seeds)
    best = mean_loss(options[choose(options, wanted)], wanted)
    return {option: excess([losses[seed] for seed in wanted], best) for option, losses in {**options, **also}.items()}


def rate_sensitivity(losses: Mapping[float, float]) -> float:
    """The learning-rate sensitivity, from the loss at each peak rate: the mean `excess` over the best of all rates.

        (1/n) Σ_η (min(ℓ(η), c) − ℓ*)/ℓ*,   ℓ* = min_η ℓ(η)

    It is small if a schedule tolerates a badly chosen rate. Wortsman et al. ("Small-scale proxies for large-scale
    Transformer training instabilities", 2023) take the loss at initialisation as the ceiling and do not divide by ℓ*.
    """
    return excess(losses.values(), min(losses.values()))


def by_task(values: Mapping[Setting, float], task: Callable[[Setting], str]) -> Estimate:
    """The average over each task's settings, then over tasks, so that each task counts once.

    Otherwise a task with many optimizers and rates would decide the mean. The estimate's standard error is over tasks:
    it says how the mean would vary for other tasks like these.
    """
    groups = _grouped(values, task)
    return Estimate(tuple(math.fsum(some.values()) / len(some) for some in groups.values()))


def by_family(
    values: Mapping[Setting, float], family: Callable[[Setting], str], task: Callable[[Setting], str]
) -> dict[str, Estimate]:
    """`by_task` within each family of tasks, such as language and vision, in order of first appearance."""
    return {name: by_task(some, task) for name, some in _grouped(values, family).items()}


def percent(x: float) -> str:
    """A relative difference in percent, with its sign."""
    return f"{100 * x:+.2f}"


def plus_minus(found: Estimate) -> str:
    """A relative difference and its standard error in percent."""
    error = "" if found.stderr is None else f" ± {100 * found.stderr:.2f}"
    return percent(found.mean) + error


def _grouped(values: Mapping[Setting, float], key: Callable[[Setting], str]) -> dict[str, dict[Setting, float]]:
    groups: dict[str, dict[Setting, float]] = {}
    for setting, value in values.items():
        groups.setdefault(key(setting), {})[setting] = value
    return groups
