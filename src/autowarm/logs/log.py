"""What is kept of one run's log: a loss at some updates, and the rate at every update."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# More updates than any run makes: such a "step" counts samples or tokens.
_MOST_UPDATES = 20_000_000
# If more than this share of the losses are NaN, they mark steps without a loss, not losses that were not finite.
_MOSTLY_NAN = 0.5
# If the step goes back this often, and after this share of the rows, rows are out of order; otherwise a run resumed.
_OUT_OF_ORDER = (3, 0.1)
# If the step falls back to the first one, and the typical stretch goes this far in the longest, it is no resume.
_ALIKE = 0.95
# The noise at a loss is that of this many second differences around it.
_NEARBY = 25
# Where the rate reached its highest value is unknown if this many updates before, and this share, have no rate.
_UNSURE = (10, 0.1)
# A log that ends before this share of the run is said to.
_UNFINISHED = 0.95


class LogError(ValueError):
    """A log that cannot be read; the message says what was found, what is needed, and what to do."""


@dataclass(frozen=True, eq=False, repr=False)
class Log:
    """The log of one run.

    Attributes:
        name: the run's name.
        updates: the updates that have a loss, rising, counted from 1.
        losses: their losses; a non-finite one only if every update has a loss.
        rates: the learning rate of each update up to the last one logged; None if the log has none.
        total_steps: T, the number of updates that the run was planned for.
        used_warmup: the update at which the rate first reached its highest value; 0 if it started there; None if the
            log has no rates.
        averaged: whether a loss is the mean of the updates since the one logged before, as in transformers' logs.
        notes: what a reader of the result should know, in sentences.
        used_at_most: whether ``used_warmup`` is only a bound, as no rate is logged for long before.
        begins: the update of the first loss that was logged; what came before is unknown, or given as ``first_loss``.
        first_loss_given: whether the loss at update 1 was given as ``first_loss``.
        chosen: what was read, in words, such as "step, train loss, lr; 12,000 of 12,000 updates".
    """

    name: str
    updates: NDArray[np.int64]
    losses: Array
    rates: Array | None
    total_steps: int
    used_warmup: int | None
    averaged: bool
    notes: tuple[str, ...]
    used_at_most: bool = False
    begins: int = 1
    first_loss_given: bool = False
    chosen: str = ""

    @property
    def interpolated(self) -> bool:
        """Whether some updates up to the last one logged have no loss of their own."""
        return bool(len(self.updates) < self.updates[-1])

    @cached_property
    def noise(self) -> Array:
        """At each finite logged loss, the standard deviation of one update's loss about its trend.

        It is estimated from the second differences of the losses nearby: they hardly feel a trend, and their median
        hardly feels an outlier. In many runs the first losses scatter far less than later ones.
        """
        known = self.losses[np.isfinite(self.losses)]
        if len(known) < 5:
            return np.zeros(len(known))
        size = np.abs(np.diff(known, 2))
        window = min(_NEARBY, len(size))
        local = np.median(sliding_window_view(size, window), axis=1) / (0.6745 * math.sqrt(6.0))
        if self.averaged:
            local = local * math.sqrt(float(np.median(np.diff(self.updates))))
        before = (len(known) - len(local)) // 2
        return np.pad(local, (before, len(known) - len(local) - before), mode="edge")

    def __repr__(self) -> str:
        rates = "no rates" if self.rates is None else f"peak rate {self.rates.max():.3g}"
        return f"Log({self.name!r}: {len(self.losses)} losses of {self.total_steps} updates, {rates})"


def make_log(
    name: str,
    steps: ArrayLike,
    losses: ArrayLike,
    rate_steps: ArrayLike | None = None,
    rates: ArrayLike | None = None,
    *,
    total_steps: int | None = None,
    averaged: bool = False,
    first_loss: float | None = None,
    end: float | None = None,
    planned: int | None = None,
    columns: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Log:
    """Put a log in order: count from 1, let later rows win, find the rate of every update.

    Args:
        steps, losses: the logged losses in the order of the file. Steps count from 0 or 1.
        rate_steps, rates: the logged rates, at steps of their own; None if there are none.
        total_steps, averaged, notes: see `Log`; None takes T from the last step.
        first_loss: the loss at the first update, for a log that begins later; None takes the first one logged.
        end: the last step that the log shows, if that has no loss.
        planned: T as the log states it, which counts unless the log goes on beyond.
        columns: what was read, by the names in the log.

    Raises:
        LogError: there is no curve in it.
    """
    if first_loss is not None and not math.isfinite(first_loss):
        raise LogError(f"{name}: first_loss must be a finite number, got {first_loss}")
    notes = list(notes)
    # Rows in the order of the run, by the file's own steps.
    curve = _checked(name, steps, losses)
    _refuse_restarts(name, curve.at)
    curve = _ordered(curve, "losses", notes)
    # From here on updates, counted from 1.
    # The first is step 0, or for Lightning, which logs steps 49, 99, … every 50 updates, as many less one.
    first, gaps = int(curve.at[0]) + 1, np.diff(curve.at)
    is_multiple = first > 2 and len(gaps) > 0 and first == np.median(gaps) and not ((curve.at + 1) % first).any()
    shift = int(first == 1 or is_multiple)
    last = max(int(curve.at[-1]), int(end or 0)) + shift
    total = _total(name, total_steps, planned, last)
    # Losses that mean something, from update 1 on.
    curve = _with_losses(name, Curve(curve.at + shift, curve.values), notes)
    end_of_losses, apart = int(curve.at[-1]), float(np.median(np.diff(curve.at)))
    if averaged:
        before = max(0, int(curve.at[0]) - int(apart))  # each mean stands in the middle of the updates that it is over
        curve = Curve((np.concatenate([[before], curve.at[:-1]]) + 1 + curve.at) // 2, curve.values)
    begins = int(curve.at[0])
    curve = _begun(curve, first_loss, averaged, notes)
    _note_what_is_missing(curve, averaged, end_of_losses, total, notes)
    # The rate of every update, and the warm-up that it shows.
    logged, every_rate, used_warmup, at_most = None, None, None, False
    if rates is not None and rate_steps is not None:
        rate_curve = _checked(name, rate_steps, rates)
        logged = _usable_rates(Curve(rate_curve.at + shift, rate_curve.values), max(last, total), apart, notes)
    if logged is not None:
        every_rate = _every_rate(logged, last, notes)
        used_warmup, at_most = _used(logged, notes)
    chosen = f"{', '.join(columns)}; " if columns else ""
    return Log(
        name, curve.at, curve.values, every_rate, total, used_warmup, averaged, tuple(notes), at_most, begins,
        first_loss is not None, f"{chosen}{end_of_losses:,} of {total:,} updates",
    )  # fmt: skip


class Curve(NamedTuple):
    """Steps or updates, and the losses or rates that were logged at them; each phase of `make_log` returns another."""

    at: NDArray[np.int64]
    values: Array

    def pick(self, which: NDArray[Any]) -> "Curve":
        return Curve(self.at[which], self.values[which])


def _checked(name: str, steps: ArrayLike, values: ArrayLike) -> Curve:
    try:
        at, numbers = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # of tensors with a graph
        raise LogError(f"{name}: steps and values must be two lists of numbers: {error}") from None
    if at.ndim != 1 or at.shape != numbers.shape:
        raise LogError(f"{name}: steps and values must be two lists of one length, got {at.shape} and {numbers.shape}")
    if not len(at):
        raise LogError(f"{name}: no losses")
    whole = (at >= 0) & (at < 2.0**62) & (at == np.round(at))
    if not whole.all():
        raise LogError(f"{name}: steps are whole numbers from 0, got {at[~whole][0]:g}: choose what counts updates")
    return Curve(at.astype(np.int64), numbers)


def _refuse_restarts(name: str, at: NDArray[np.int64]) -> None:
    """A resume goes back a little; several epochs, or runs, begin again at the first step after equal stretches."""
    starts = np.flatnonzero((np.diff(at) < 0) & (at[1:] < at[1:2])) + 1
    ends = np.append(at[starts - 1], at[-1])
    if len(starts) and np.median(ends) > _ALIKE * ends.max():
        raise LogError(
            f"{name}: the steps begin again, {len(starts)} times: pass steps that count the whole run's "
            "updates, or one run alone"
        )


def _ordered(curve: Curve, what: str, notes: list[str]) -> Curve:
    """Rows with rising steps. Where a run resumed from an earlier step, the rows from there on replace the old ones."""
    steps, values = curve
    back = np.flatnonzero(np.diff(steps) <= 0) + 1
    often, share = _OUT_OF_ORDER
    if len(back) >= max(often, share * len(steps)):
        rising, last_rows = np.unique(steps[::-1], return_index=True)
        if len(rising) < len(steps):
            notes.append(f"{len(steps) - len(rising)} {what} are of a step that comes again: the last one counts")
        return Curve(rising, values[::-1][last_rows])
    stays = np.ones(len(steps), dtype=bool)
    lowest = np.minimum.accumulate(steps[::-1])[::-1]  # of this row and all later ones
    stays[:-1] = steps[:-1] < lowest[1:]
    if same := int((np.diff(steps) == 0).sum()):
        notes.append(f"{same} {what} are of a step that comes again: the last one counts")
        back = back[steps[back] < steps[back - 1]]
    if (again := back[steps[back] <= np.minimum.accumulate(steps)[back - 1]]).size:
        notes.append(f"the log starts over at step {steps[again[-1]]}: the {again[-1]:,} {what} before are left out")
        back = back[back > again[-1]]
    if len(back):
        places = ", ".join(str(steps[i]) for i in back[:3]) + (", …" if len(back) > 3 else "")
        notes.append(f"the run resumed at step {places}: the later {what} count")
    return curve.pick(stays)


def _with_losses(name: str, curve: Curve, notes: list[str]) -> Curve:
    finite = np.isfinite(curve.values)
    if finite.sum() < 2:
        raise LogError(f"{name}: {finite.sum()} finite losses, and a curve needs at least 2: choose another column")
    if finite.mean() < _MOSTLY_NAN:
        curve = curve.pick(finite)
    if (empty := int(np.argmax(curve.values != 0.0))) and np.isfinite(curve.values[empty:]).sum() > 1:
        notes.append(f"the first {empty} losses are 0, which no f(x0) is, and left out")
        curve = curve.pick(np.arange(empty, len(curve.at)))
    # Where every update has a loss, the schedule itself ignores those that are not finite.
    finite = np.isfinite(curve.values)
    if not finite.all() and len(curve.at) < curve.at[-1]:
        notes.append(f"{int((~finite).sum())} losses that are not finite are left out")
        curve = curve.pick(finite)
    return curve


def _begun(curve: Curve, first_loss: float | None, averaged: bool, notes: list[str]) -> Curve:
    """A curve that begins at update 1, with ``first_loss`` or the first loss that was logged."""
    begins = int(curve.at[0])
    if begins == 1:
        if first_loss is not None:
            notes.append("first_loss is not used: the log has the loss at update 1")
        return curve
    if first_loss is None:
        first_loss = float(curve.values[np.isfinite(curve.values)][0])
        middle = ", the middle of its first mean" if averaged else ""
        notes.append(
            f"the log begins at update {begins}{middle}: earlier losses are taken as {first_loss:.4g}, the "
            "first one logged; first_loss= (--first-loss) sets the loss at update 1"
        )
    return Curve(np.concatenate([[1], curve.at]), np.concatenate([[first_loss], curve.values]))


def _note_what_is_missing(curve: Curve, averaged: bool, end: int, total: int, notes: list[str]) -> None:
    if (without := int(curve.at[-1]) - len(curve.at)) > 0:
        apart, mean = float(np.median(np.diff(curve.at))), ", the mean over them" if averaged else ""
        which = f"a loss every {apart:.0f} updates{mean}: in between"
        if apart <= 1:
            which = f"{without:,} updates have no loss of their own:"
        notes.append(f"{which} it is interpolated, with noise of the curve's own size")
    if end < _UNFINISHED * total:
        notes.append(f"the losses end at update {end:,} of {total:,}: later ones are taken as the last one")


def _usable_rates(rates: Curve, last: int, apart: float, notes: list[str]) -> Curve | None:
    """The finite rates in order; None if they are not positive, or go on after the run and so count something else."""
    rates = _ordered(rates, "rates", [])
    rates = rates.pick(np.isfinite(rates.values))
    if not len(rates.at) or rates.values.min() < 0 or rates.values.max() <= 0:
        notes.append("the rates in the log are not positive numbers, so they are not used")
    elif rates.at[-1] > last + 2 * apart:
        notes.append(f"the rates are not used: their steps go to {rates.at[-1]:,}, those of the losses to {last:,}")
    else:
        return rates
    return None


def _every_rate(logged: Curve, last: int, notes: list[str]) -> Array:
    """The rate of each update: on lines between those logged, the first of which goes on down to update 1."""
    at, values = logged
    rates, first, rise = np.interp(np.arange(1, last + 1), at, values), int(at[0]), 0.0
    if len(at) > 1:
        rise = max(0.0, float((values[1] - values[0]) / (at[1] - at[0])))
        if (every := float(np.median(np.diff(at)))) > 1:
            notes.append(f"a rate every {every:.0f} updates: in between it is taken on a line")
    if first > 1:
        rates[: first - 1] = np.maximum(0.0, values[0] - rise * (first - np.arange(1, min(first, last + 1))))
        how = "on the line of their rise" if rise else "as the same"
        notes.append(f"the first rate is logged at update {first:,}: earlier ones are taken {how}")
    return rates


def _used(logged: Curve, notes: list[str]) -> tuple[int, bool]:
    """The update at which the rate first reached its highest value, and whether it may have been long before."""
    at, values = logged
    reached = int(np.argmax(values >= values.max() * (1 - 1e-6)))
    end, (updates, share) = int(at[reached]), _UNSURE
    if reached == 0 and end <= 1:
        return 0, False
    unsure = reached == 0 or end - int(at[reached - 1]) > max(updates, share * end)
    if unsure:
        where = f"after update {at[reached - 1]:,}" if reached else "before"
        notes.append(f"the rate is highest at update {end:,}, and none is logged {where}: it may have peaked before")
    return end, unsure


def _total(name: str, total_steps: Any, planned: int | None, last: int) -> int:
    """T as given, or as the log states it, or else its last update."""
    if last > _MOST_UPDATES:
        raise LogError(
            f"{name}: the last step is {last:,}, which counts samples or tokens rather than updates: choose the column "
            "that counts updates"
        )
    if total_steps is None:
        return min(max(planned or 0, last), _MOST_UPDATES)
    try:
        total = operator.index(total_steps)
    except TypeError:
        raise LogError(f"total_steps must be a whole number, got {total_steps!r}") from None
    if not last <= total <= _MOST_UPDATES:
        raise LogError(
            f"{name}: total_steps={total}, but the log goes to update {last}, and a run has at most "
            f"{_MOST_UPDATES:,} updates: give the run's whole length, or none"
        )
    return total
