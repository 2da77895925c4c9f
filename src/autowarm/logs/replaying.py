"""Replays a log through the schedule's rule: as recorded, and as its own rates would have met the losses."""

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..schedule.core import Plan, advance, begin, settle
from ..schedule.planning import plan_of
from .columns import logs_of, table_of
from .log import Log, LogError, make_log
from .read import read
from .result import Reading, Replay

Make = Callable[[int], Plan]  # of a number of updates
_LATE = 0.2  # of the run; a log that begins later says nothing about the warm-up
_MOST_NONFINITE = 20  # in a row, at which the scheduler stops a run


def replay(
    log: Any,
    *,
    total_steps: int | None = None,
    run: str | None = None,
    loss: str | None = None,
    step: str | None = None,
    lr: str | None = None,
    first_loss: float | None = None,
    **options: Any,
) -> Replay:
    """Show where `AdaptiveWarmup` would have ended a past run's warm-up, beside the warm-up that was used.

    The losses go to the schedule's rule in two readings:

    - *as recorded*: each logged loss at its own update;
    - *closed loop*: the recorded run gives the loss as a function L(S) of the summed rate S = Σ lr, which we read at
      each update at the S that our schedule has reached. This assumes that the loss depends on how far the rates have
      taken the weights, and not on how fast: to first order this holds, but it cannot show that a rate is too high, and
      it says less the further our rates are from those that were used.

    If the log has a loss only every few updates, the others are interpolated, with noise of the curve's own size.

    Args:
        log: a file or folder that `read` understands, one of its `Log` objects, a pandas DataFrame, or arrays (steps,
            losses) or (steps, losses, rates).
        total_steps: T, if the run was planned to be longer than its log; None takes it from the file, or the last step.
        run: the name of the run, or a part of it, if the file holds several.
        loss, step, lr: the names of columns; None finds them by the usual names.
        first_loss: the loss at update 1, for a log that begins later, such as ln(vocabulary) for a language model.
        options: arguments of `AdaptiveWarmup` that need no optimizer, such as ``max_warmup``, or ``trained=True`` for
            fine-tuning, which a log does not show; a ``calibration`` needs κ.

    Raises:
        LogError: the log cannot be read, begins after a fifth of the run, or has no run or several of that name; it is
            a `ValueError`.
        ValueError: an option is out of range, or one that only a file needs comes with a `Log` or arrays.
        TypeError: ``log`` is none of these, or an option is unknown.

    Example:
        >>> import numpy as np
        >>> import autowarm
        >>> steps = np.arange(1, 1001)
        >>> losses = 2 + 8 * np.exp(-steps / 100)
        >>> rates = 1e-3 * np.minimum(1, steps / 200)  # a hand-set warm-up of 200 updates
        >>> result = autowarm.replay((steps, losses, rates))
        >>> result.used_warmup, result.ended_by
        (200, 'loss')
        >>> result.recorded.warmup_steps < result.closed_loop.warmup_steps < 400
        True
    """
    columns: dict[str, Any] = {"loss": loss, "step": step, "lr": lr}
    ends: dict[str, Any] = {"total_steps": total_steps, "first_loss": first_loss}
    if isinstance(log, Log):
        _refuse({"run": run} | columns | ends, "a Log: pass its file instead")
        chosen = log
    elif isinstance(log, tuple) and len(log) in (2, 3):
        _refuse({"run": run} | columns, "arrays: pass the steps, losses and rates that you mean")
        steps, losses, rates = (*log, None)[:3]
        chosen = make_log("log", steps, losses, None if rates is None else steps, rates, **ends)
    elif isinstance(log, str | os.PathLike):
        chosen = _chosen(read(log, **columns, **ends), run, log)
    elif hasattr(log, "to_dict") and getattr(log, "ndim", 2) == 2:  # an empty cell of a DataFrame is NaN
        named = getattr(getattr(log, "index", None), "name", None) is not None
        table = log.reset_index() if named else log
        rows = ({str(k): v for k, v in row.items() if v == v} for row in table.to_dict("records"))
        chosen = _chosen(logs_of(table_of(rows), "table", **columns, **ends), run, "table")
    else:
        raise TypeError(
            "give a file, a Log, a DataFrame, or a tuple (steps, losses) or (steps, losses, rates), got "
            f"{type(log).__name__}"
        )
    if not chosen.first_loss_given and chosen.begins > max(1, _LATE * chosen.total_steps):
        raise LogError(
            f"{chosen.name}: the losses begin at update {chosen.begins:,} of {chosen.total_steps:,}, and the warm-up "
            "is over by then: give an earlier log, or the loss at update 1 with first_loss= (--first-loss)"
        )
    make = partial(plan_of, **options)
    looped = None if chosen.rates is None else closed_loop(chosen, make)
    return Replay(chosen, as_recorded(chosen, make), looped)


def _refuse(options: dict[str, Any], why: str) -> None:
    given = [f"{name}=" for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{', '.join(given)} cannot be used with {why}")


def _chosen(logs: list[Log], run: str | None, place: Any) -> Log:
    matching = [log for log in logs if log.name == run] or [log for log in logs if run is None or run in log.name]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(repr(log.name) for log in logs[:10]) + (", …" if len(logs) > 10 else "")
    which = "several runs" if run is None else f"{len(matching) or 'no'} runs with {run!r} in their names"
    raise LogError(f"{place}: {which}; name one with run= (--run), or pass one of autowarm.logs.read's: {names}")


def as_recorded(log: Log, make: Make) -> Reading:
    """Give the rule the loss of each update in the log; where there is none, an interpolated one.

    Past the end of an unfinished run's log, every loss is the last one, here and in the closed loop.
    """
    if log.interpolated:
        every = np.arange(1, log.updates[-1] + 1)
        losses = np.interp(every, log.updates, log.losses)
        between = np.isin(every, log.updates, invert=True)
        noise = np.interp(every, log.updates, log.noise) * np.random.default_rng(0).standard_normal(len(every))
        losses[between] += noise[between]
    else:
        losses = log.losses
    last = len(losses) - 1
    return _drive(log, make, lambda update, _: float(losses[min(update, last)]))


def closed_loop(log: Log, make: Make) -> Reading:
    """Give the rule the loss that the recorded run had at the summed rate which the rule's rates have reached.

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
    draws = np.random.default_rng(0).standard_normal(log.total_steps)
    last = (0, 0.0)  # where the update before was read: after this logged loss, this share of the way to the next one

    def loss_at(update: int, summed: float) -> float:
        nonlocal last
        place, end = last[0], len(sums) - 1
        while place < end and sums[place + 1] <= summed:
            place += 1
        if place == end:
            return losses[-1]
        share = (summed - sums[place]) / (sums[place + 1] - sums[place])
        lost = 1.0 - 0.5 * _scatter(place - last[0], last[1], share) if update else 0.0
        last = (place, share)
        loss = losses[place] + share * (losses[place + 1] - losses[place])
        return loss + noise[place] * math.sqrt(lost) * float(draws[update]) if lost > 0.0 else loss

    return _drive(log, make, loss_at)


def _scatter(passed: int, before: float, after: float) -> float:
    """The variance of the difference between two interpolated losses, where logged ones have noise of variance 1.

    So many logged losses lie between the two, which lie these shares of the way to the next logged one.
    """
    if passed == 0:
        return 2.0 * (after - before) ** 2
    shared = 1.0 - before - after  # what is left of the one logged loss that both contain
    middle = shared**2 if passed == 1 else before**2 + (1.0 - after) ** 2
    return (1.0 - before) ** 2 + middle + after**2


def _drive(log: Log, make: Make, loss_at: Callable[[int, float], float]) -> Reading:
    """Go through a run, with the loss at each update's index and after rates with a sum."""
    peak, total = 1.0 if log.rates is None else float(log.rates.max()), log.total_steps
    plan = make(total)
    state = settle(plan, begin(plan), bool(plan.trained))
    rates, losses, notes, summed, broken = [], [], [], 0.0, False
    for update in range(1, total + 1):
        rate, loss = peak * state.share, loss_at(update - 1, summed)
        rates.append(rate)
        losses.append(loss)
        opening, state = bool(state.opening), advance(plan, state, update, loss)
        if state.failures and not broken:
            broken = True
            notes.append(f"the loss was NaN or infinite at update {update}: the schedule ignores it (said once)")
        if state.failures >= _MOST_NONFINITE:
            notes.append(f"the scheduler stops the run at update {update}: {_MOST_NONFINITE} such losses in a row")
            break
        if opening and not state.opening and state.gap0 is None:
            notes.append("no f* follows from the first losses, which differ too much: time alone sets the warm-up")
        summed += rate
    return Reading(
        total_steps=total,
        warmup_steps=None if state.ended_by is None else state.warmup_steps,
        ended_by=state.ended_by,
        rates=np.array(rates),
        losses=np.array(losses),
        notes=tuple(notes),
    )
