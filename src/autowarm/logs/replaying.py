"""Replays a log through the schedule's rule: as recorded, and as its own rates would have met the losses."""

import math
import os
import warnings
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..schedule.rehearsal import Rehearsal
from .log import Log, LogError, make_log
from .read import read
from .result import Reading, Replay

Make = Callable[[int], Rehearsal]  # of a number of updates


def replay(
    log: str | os.PathLike[str] | Log | tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike],
    *,
    total_steps: int | None = None,
    run: str | None = None,
    loss: str | None = None,
    step: str | None = None,
    lr: str | None = None,
    first_loss: float | None = None,
    whole: bool = True,
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
        log: a file or folder that `read` understands, one of its `Log` objects, or arrays (steps, losses) or (steps,
            losses, rates).
        total_steps: T, if the run was planned to be longer than its log; None takes it from the file, or the last step.
        run: the name of the run, or a part of it, if the file holds several.
        loss, step, lr: the names of columns; None finds them by the usual names.
        first_loss: the loss at update 1, for a log that begins later, such as ln(vocabulary) for a language model.
        whole: whether to go on after the warm-up, to have the rates of the whole run; False takes less time.
        options: arguments of `AdaptiveWarmup` that need no optimizer, such as ``max_warmup``, or ``trained=True`` for
            fine-tuning, which a log does not show; ``geometry`` needs ``kappa``.

    Raises:
        LogError: the log cannot be read, or has no run or several of that name; it is a `ValueError`.
        ValueError: an option is out of range, or one that only a file needs comes with a `Log` or arrays.
        TypeError: ``log`` is none of these, or an option is unknown.

    Example:
        >>> import numpy as np
        >>> import autowarm
        >>> steps = np.arange(1, 1001)
        >>> losses = 2 + 8 * np.exp(-steps / 100)
        >>> rates = 1e-3 * np.minimum(1, steps / 200)  # a hand-set warm-up of 200 updates
        >>> found = autowarm.replay((steps, losses, rates))
        >>> found.used_warmup, found.reading.ended_by_loss
        (200, True)
        >>> found.recorded.warmup_steps < found.closed_loop.warmup_steps < 400
        True
    """
    of_file = {"run": run, "loss": loss, "step": step, "lr": lr}
    if isinstance(log, Log):
        _refuse(of_file | {"total_steps": total_steps, "first_loss": first_loss}, "a Log: pass its file instead")
        chosen = log
    elif isinstance(log, tuple):
        _refuse(of_file, "arrays: pass the steps, losses and rates that you mean")
        steps, losses, rates = (*log, None)[:3]
        chosen = make_log("log", steps, losses, None if rates is None else steps, rates, total_steps=total_steps,
                          first_loss=first_loss)  # fmt: skip
    elif not isinstance(log, str | os.PathLike):
        raise TypeError(f"give a file, a Log, or a tuple (steps, losses) or (steps, losses, rates), got {type(log)}")
    else:
        found = read(log, loss=loss, step=step, lr=lr, total_steps=total_steps, first_loss=first_loss)
        chosen = _chosen(found, run, log)
    make = partial(Rehearsal, **options)
    looped = None if chosen.rates is None else closed_loop(chosen, make, whole=whole)
    return Replay(chosen, as_recorded(chosen, make, whole=whole), looped)


def _refuse(options: dict[str, Any], why: str) -> None:
    given = [f"{name}=" for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{', '.join(given)} cannot be used with {why}")


def _chosen(logs: list[Log], run: str | None, place: Any) -> Log:
    matching = [log for log in logs if log.name == run] or [log for log in logs if run is None or run in log.name]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(repr(log.name) for log in logs[:10]) + (", …" if len(logs) > 10 else "")
    found = "several runs" if run is None else f"{len(matching) or 'no'} runs with {run!r} in their names"
    raise LogError(f"{place}: {found}; name one with run= (--run), or pass one of autowarm.logs.read's: {names}")


def as_recorded(log: Log, make: Make, *, whole: bool) -> Reading:
    """Give the rule the loss of each update in the log; where there is none, an interpolated one.

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
    """Go through a run, with the loss at each update's index and after rates with a sum."""
    peak = 1.0 if log.rates is None else float(log.rates.max())
    rates, losses, notes, summed = [], [], [], 0.0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rehearsal = make(log.total_steps)
        for update in range(log.total_steps):
            rate = peak * rehearsal.state.share
            loss = loss_at(update, summed)
            rates.append(rate)
            losses.append(loss)
            try:
                rehearsal.step(loss)
            except RuntimeError as error:  # too many losses in a row that are not finite
                notes.append(f"the scheduler stops the run at update {update + 1}: {error}")
                break
            summed += rate
            if not whole and rehearsal.state.ended_by is not None:
                break
    notes += dict.fromkeys(str(warning.message) for warning in said)
    ended_by = rehearsal.state.ended_by
    return Reading(
        total_steps=log.total_steps,
        warmup_steps=None if ended_by is None else rehearsal.state.warmup_steps,
        ended_by=ended_by,
        rates=np.array(rates),
        losses=np.array(losses),
        notes=tuple(notes),
    )
