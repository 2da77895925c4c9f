"""Gives a log's losses to the real scheduler, as recorded or as its own rates would have met them."""

import math
import warnings
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from .log import Log
from .result import Reading

# Makes the scheduler of an optimizer and a number of updates.
Make = Callable[[Optimizer, int], Any]


class _Still(Optimizer):
    """An optimizer whose steps change nothing, for a scheduler to count and to set the rate of."""

    def __init__(self, lr: float) -> None:
        super().__init__([torch.nn.Parameter(torch.zeros(1, 1))], {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for hook in (*self._optimizer_step_pre_hooks.values(), *self._optimizer_step_post_hooks.values()):
            hook(self, (), {})

    step.hooked = True  # type: ignore[attr-defined]  # else PyTorch wraps it for its profiler, which takes half the time


def as_recorded(log: Log, make: Make, *, whole: bool) -> Reading:
    """Give the scheduler the loss of each update in the log; where there is none, an interpolated one.

    Past the end of an unfinished run's log, every loss is the last one, here and in the closed loop. The reading stops
    at the end of the warm-up unless the ``whole`` run is wanted.
    """
    if log.interpolated:
        every = np.arange(1, log.updates[-1] + 1)
        losses = np.interp(every, log.updates, log.losses)
        between = np.isin(every, log.updates, invert=True)
        noise = np.interp(every, log.updates, log.noise) * np.random.default_rng(0).standard_normal(len(every))
        losses[between] += noise[between]
    else:
        losses = log.losses
    known = losses.tolist()
    return _drive(log, make, lambda update, _: known[min(update, len(known) - 1)], whole)


def closed_loop(log: Log, make: Make, *, whole: bool) -> Reading:
    """Give the scheduler the loss that the recorded run had at the summed rate which the scheduler has reached.

    In the log, the loss is a function L of S = Σ lr, the sum of the rates of all updates before. At each update of ours
    we read L at our own S, linearly between logged losses. What interpolation takes from the scatter between one update
    and the next is added again, as noise.
    """
    assert log.rates is not None
    finite = np.isfinite(log.losses)
    before = np.concatenate([[0.0], np.cumsum(log.rates)])
    sums: list[float] = before[log.updates[finite] - 1].tolist()
    losses: list[float] = log.losses[finite].tolist()
    noise: list[float] = log.noise.tolist()
    draws = np.random.default_rng(0).standard_normal(log.total_steps).tolist()
    last = (0, 0.0)  # where the update before was read: after this logged loss, this share of the way to the next one

    def loss_at(update: int, summed: float) -> float:
        nonlocal last
        here = bisect_right(sums, summed) - 1
        if here == len(sums) - 1:
            return losses[-1]
        share = (summed - sums[here]) / (sums[here + 1] - sums[here])
        lost = 1.0 - 0.5 * _scatter(here - last[0], last[1], share) if update else 0.0
        last = (here, share)
        loss = losses[here] + share * (losses[here + 1] - losses[here])
        return loss + noise[here] * math.sqrt(lost) * draws[update] if lost > 0.0 else loss

    return _drive(log, make, loss_at, whole)


def _scatter(passed: int, before: float, after: float) -> float:
    """The variance of the difference between two interpolated losses, where logged ones have noise of variance 1.

    So many logged losses lie between the two, which lie these shares of the way to the next logged one.
    """
    if passed == 0:
        return 2.0 * (after - before) ** 2
    shared = 1.0 - before - after  # what is left of the one logged loss that both contain
    middle = shared**2 if passed == 1 else before**2 + (1.0 - after) ** 2
    return (1.0 - before) ** 2 + middle + after**2


def _drive(log: Log, make: Make, loss_at: Callable[[int, float], float], whole: bool) -> Reading:
    """Step a scheduler through a run, with the loss at each update's index and after rates with a sum."""
    peak = 1.0 if log.rates is None else float(log.rates.max())
    optimizer = _Still(peak)
    rates, losses, notes, summed = [], [], [], 0.0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        schedule = make(optimizer, log.total_steps)
        for update in range(log.total_steps):
            rate = float(optimizer.param_groups[0]["lr"])
            loss = loss_at(update, summed)
            rates.append(rate)
            losses.append(loss)
            optimizer.step()
            try:
                schedule.step(loss)
            except RuntimeError as error:  # too many losses in a row that are not finite
                notes.append(f"the scheduler stops the run at update {update + 1}: {error}")
                break
            summed += rate
            if not whole and schedule.ended_by is not None:
                break
    notes += dict.fromkeys(str(warning.message) for warning in said)
    ended_by = schedule.ended_by
    return Reading(
        total_steps=log.total_steps,
        warmup_steps=None if ended_by is None else int(schedule.warmup_steps),
        ended_by=ended_by,
        rates=np.array(rates),
        losses=np.array(losses),
        notes=tuple(notes),
    )
