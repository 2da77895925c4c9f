"""Compares schedules over a few seeds. Pure functions of losses; numpy and scipy only.

Runs of one *setting* (task, optimizer, steps, peak rate) differ only in schedule and seed. Runs with the same seed
share initial weights and batches, so schedules are compared seed by seed, which cancels what the runs have in common.

Three rules hold throughout:

- **A diverged run has an infinite loss and counts as `CAP` times the loss it is compared with**, and so does any loss
  above that (see `capped` for losses below zero). Otherwise a single run would decide every mean. `Estimate.diverged`
  counts the seeds with such a run.
- **One seed gives no verdict.** Intervals, p values and tests are then None, and the outcome is "no verdict". With a
  few seeds, quantiles are those of Student's t: 12.7 standard errors for two seeds, 2.8 for five.
- **Seeds that choose do not judge.** The best of several options looks better than it is on the seeds that chose it.
  `Seeds` keeps the two sets apart. With few seeds, use `leave_one_out`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from .estimates import Estimate, NonInferiority, Outcome, discoveries

__all__ = [
    "CAP",
    "Estimate",
    "Losses",
    "NonInferiority",
    "Outcome",
    "Seeds",
    "by_family",
    "by_task",
    "capped",
    "choose",
    "differences",
    "discoveries",
    "excess",
    "leave_one_out",
    "mean_loss",
    "rate_sensitivity",
    "ratios",
    "regrets",
]

Losses = Mapping[int, float]
"""Held-out loss by seed. Lower is better; `math.inf` marks a run that diverged."""

CAP = 2.0
"""A diverged run counts as this many times the loss that it is compared with."""

Option = TypeVar("Option")
Setting = TypeVar("Setting")


@dataclass(frozen=True)
class Seeds:
    """The seeds that choose an option, and the seeds that judge the choice. The two sets are disjoint.

    Raises:
        ValueError: one of the two is empty, or they have a seed in common.
    """

    choice: tuple[int, ...]
    test: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.choice or not self.test:
            raise ValueError(f"both choice and test need at least one seed, got {self}")
        if both := sorted(set(self.choice) & set(self.test)):
            raise ValueError(f"seeds that chose must not judge: {both} are in both choice and test")


def mean_loss(losses: Losses, seeds: Iterable[int]) -> float:
    """Return the mean over the seeds; infinite if one of the runs diverged.

    Raises:
        ValueError: a seed is missing.
    """
    wanted = list(seeds)
    if missing := [seed for seed in wanted if seed not in losses]:
        raise ValueError(f"no loss for the seeds {missing}, only for {sorted(losses)}")
    return math.fsum(losses[seed] for seed in wanted) / len(wanted)


def choose(options: Mapping[Option, Losses], seeds: Iterable[int]) -> Option:
    """Return the option with the lowest mean loss on the seeds; the first one if several are equal.

    Example:
        >>> from autowarm.lab.analysis.statistics import choose
        >>> choose({"none": {0: 3.1, 1: 3.3}, "10 %": {0: 3.0, 1: 3.2}}, seeds=(0, 1))
        '10 %'
    """
    wanted = list(seeds)
    return min(options, key=lambda option: mean_loss(options[option], wanted))


def capped(loss: float) -> float:
    """Return what a diverged run counts as beside this loss: `CAP` times it or, below zero, as far above it.

    Example:
        >>> from autowarm.lab.analysis.statistics import capped
        >>> capped(3.0), capped(-3.0)
        (6.0, 0.0)
    """
    return loss + (CAP - 1) * abs(loss)


def differences(
    ours: Losses, reference: Losses, *, unit: float | Literal["reference"] = 1.0, ceiling: float | None = None
) -> Estimate:
    """Return paired differences (min(aₛ, c) − min(bₛ, c))/u over the common seeds s.

    Args:
        ours: a, by seed.
        reference: b, by seed.
        unit: u, a number such as the progress that the reference made. 1 keeps the unit of the losses; "reference"
            stands for the size of the reference's mean over its finite runs, which gives relative differences.
        ceiling: c, the loss that a diverged run counts as; None is `capped` at the reference's mean over its finite
            runs.

    Raises:
        ValueError: there is no common seed, or every run of the reference diverged and no unit or ceiling is given.

    Example:
        >>> import math
        >>> from autowarm.lab.analysis.statistics import differences
        >>> adaptive, tuned = {10: 3.18, 11: 3.25, 12: 3.20}, {10: 3.20, 11: 3.26, 12: 3.22, 13: 3.21}
        >>> found = differences(adaptive, tuned)
        >>> print(f"{found.mean:.4f} ± {found.stderr:.4f} nats over {found.count} seeds")
        -0.0167 ± 0.0033 nats over 3 seeds
        >>> differences({0: math.inf, 1: 3.0}, {0: 3.0, 1: 3.0}, unit="reference")
        Estimate(values=(1.0, 0.0), diverged=1)
    """
    a, b = _aligned(ours, reference)
    finite = b[np.isfinite(b)]
    mean = float(finite.mean()) if finite.size else math.nan
    u = abs(mean) if unit == "reference" else unit
    c = capped(mean) if ceiling is None else ceiling
    if math.isnan(u) or math.isnan(c):
        raise ValueError("every run of the reference diverged: give `unit` and `ceiling` as numbers")
    return _estimate((np.minimum(a, c) - np.minimum(b, c)) / u, a, b)


def ratios(ours: Losses, reference: Losses) -> Estimate:
    """Return paired relative differences aₛ/bₛ − 1 over the common seeds s, for positive losses.

    The ratio is clipped to [1/`CAP`, `CAP`], and is 1 if both runs diverged. `differences` with ``unit="reference"``
    divides by one mean instead of each seed's own loss, so it treats the two schedules alike.

    Raises:
        ValueError: there is no common seed, or a loss of the reference is not positive.

    Example:
        >>> from autowarm.lab.analysis.statistics import ratios
        >>> [round(x, 3) for x in ratios({0: 3.3, 1: 2.97}, {0: 3.0, 1: 3.0}).values]
        [0.1, -0.01]
    """
    a, b = _aligned(ours, reference)
    if (b <= 0).any():
        raise ValueError(f"a ratio needs positive losses, got {min(b):g}: use `differences`")
    both = np.isinf(a) & np.isinf(b)
    with np.errstate(invalid="ignore"):
        ratio = np.where(both, 1.0, a / b)
    return _estimate(np.clip(ratio, 1 / CAP, CAP) - 1, a, b)


def leave_one_out(ours: Losses, options: Mapping[Option, Losses]) -> Estimate:
    """Return our `ratios` to the best option, comparing each seed's run with the option best on all other seeds.

    Use this for few seeds and many options: every seed judges, but never a choice that it took part in.

    Example:
        >>> from autowarm.lab.analysis.statistics import leave_one_out
        >>> noise = {"a": {0: 1.0, 1: 2.0}, "b": {0: 2.0, 1: 1.0}}  # each option is lucky once
        >>> leave_one_out({0: 1.5, 1: 1.5}, noise).mean
        -0.25
    """
    if len(ours) < 2:
        raise ValueError(f"leaving a seed out needs at least two seeds, got {sorted(ours)}")
    reference = {seed: options[choose(options, ours.keys() - {seed})][seed] for seed in ours}
    return ratios(ours, reference)


def excess(losses: Iterable[float], reference: float, ceiling: float | None = None) -> float:
    """Return the mean loss relative to a reference, mean(min(xᵢ, c))/reference − 1.

    Args:
        losses: x, at least one.
        reference: finite and positive.
        ceiling: c, the loss that a diverged run counts as; None for `CAP` times the reference.

    Raises:
        ValueError: there are no losses, or the reference is not a positive number.

    Example:
        >>> import math
        >>> from autowarm.lab.analysis.statistics import excess
        >>> round(excess([3.0, 3.3], 3.0), 3), excess([math.inf], 3.0)
        (0.05, 1.0)
    """
    if not (math.isfinite(reference) and reference > 0):
        raise ValueError(f"a relative loss needs a finite positive reference, got {reference}")
    c = CAP * reference if ceiling is None else ceiling
    values = [min(x, c) for x in losses]
    if not values:
        raise ValueError("an excess needs at least one loss, got none")
    return math.fsum(values) / len(values) / reference - 1


def regrets(
    options: Mapping[Option, Losses], seeds: Iterable[int], also: Mapping[Option, Losses] | None = None
) -> dict[Option, float]:
    """Return the cost of each fixed choice in one setting: its `excess` over the best option.

    The best option has regret 0 on the seeds that choose it. This is slightly better than anyone can achieve, because
    the best option is not known beforehand. Average over settings with `by_task`.

    Args:
        options: the options from which the best is chosen.
        seeds: the seeds to average over.
        also: more schedules to judge, which are not candidates for the best.

    Raises:
        ValueError: every option diverged with some seed, so there is no best.

    Example:
        >>> from autowarm.lab.analysis.statistics import regrets
        >>> found = regrets({"none": {0: 3.3}, "10 %": {0: 3.0}}, seeds=(0,), also={"adaptive": {0: 2.97}})
        >>> {name: round(x, 3) for name, x in found.items()}
        {'none': 0.1, '10 %': 0.0, 'adaptive': -0.01}
    """
    wanted = list(seeds)
    best = mean_loss(options[choose(options, wanted)], wanted)
    judged = {**options, **(also or {})}
    return {option: excess([losses[seed] for seed in wanted], best) for option, losses in judged.items()}


def rate_sensitivity(losses: Mapping[float, float], low: float, high: float, ceiling: float | None = None) -> float:
    """Return the learning-rate sensitivity: the mean `excess` of the rates in [low, high] over the best of all rates.

        (1/n) Σ_η (min(ℓ(η), c) − ℓ*)/ℓ*,   ℓ* = min_η ℓ(η)

    It is small if a schedule tolerates a badly chosen rate. Wortsman et al. ("Small-scale proxies for large-scale
    Transformer training instabilities", 2023) take the loss at initialisation as the ceiling and do not divide by ℓ*.

    Args:
        losses: ℓ, by peak rate; a grid that is even in log η weights all scales equally.
        low: the lowest rate that counts.
        high: the highest rate that counts.
        ceiling: c, the loss that a diverged run counts as; None for `CAP` times ℓ*.

    Raises:
        ValueError: no rate lies in the range, or every run diverged.

    Example:
        >>> import math
        >>> from autowarm.lab.analysis.statistics import rate_sensitivity
        >>> round(rate_sensitivity({0.001: 3.3, 0.01: 3.0, 0.1: math.inf}, low=0.001, high=0.1), 3)
        0.367
    """
    inside = [loss for rate, loss in losses.items() if low <= rate <= high]
    if not inside:
        raise ValueError(f"no rate lies between {low:g} and {high:g}, only {sorted(losses)}")
    return excess(inside, min(losses.values()), ceiling)


def by_task(values: Mapping[Setting, float], task: Callable[[Setting], str]) -> Estimate:
    """Average over each task's settings, then over tasks, so that each task counts once.

    Otherwise a task with many optimizers and rates would decide the mean. The estimate's standard error is over tasks:
    it says how the mean would vary for other tasks like these.

    Example:
        >>> from autowarm.lab.analysis.statistics import by_task
        >>> found = by_task({("mlp", 1): 0.01, ("mlp", 2): 0.03, ("vit", 1): 0.04}, task=lambda setting: setting[0])
        >>> found.values, round(found.mean, 3)
        ((0.02, 0.04), 0.03)
    """
    groups = _grouped(values, task)
    return Estimate(tuple(math.fsum(some.values()) / len(some) for some in groups.values()))


def by_family(
    values: Mapping[Setting, float], family: Callable[[Setting], str], task: Callable[[Setting], str]
) -> dict[str, Estimate]:
    """Apply `by_task` within each family of tasks, such as language and vision, in order of first appearance."""
    return {name: by_task(some, task) for name, some in _grouped(values, family).items()}


def _aligned(ours: Losses, reference: Losses) -> tuple[np.ndarray, np.ndarray]:
    seeds = sorted(ours.keys() & reference.keys())
    if not seeds:
        raise ValueError(f"no seed in common: ours are {sorted(ours)}, the reference's {sorted(reference)}")
    a, b = (np.array([losses[seed] for seed in seeds], dtype=float) for losses in (ours, reference))
    if np.isnan(a).any() or np.isnan(b).any():
        raise ValueError("a loss is NaN: a run that diverged has the loss `math.inf`")
    return a, b


def _estimate(values: np.ndarray, a: np.ndarray, b: np.ndarray) -> Estimate:
    return Estimate(tuple(map(float, values)), int((np.isinf(a) | np.isinf(b)).sum()))


def _grouped(values: Mapping[Setting, float], key: Callable[[Setting], str]) -> dict[str, dict[Setting, float]]:
    groups: dict[str, dict[Setting, float]] = {}
    for setting, value in values.items():
        groups.setdefault(key(setting), {})[setting] = value
    return groups
