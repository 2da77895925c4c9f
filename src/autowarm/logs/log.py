"""What is kept of one run's log: a loss at some updates, and the rate at every update."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
# Of more updates than LONG, about MOST are kept at equal distances, besides all of the first ones.
LONG, MOST, DENSE = 200_000, 100_000, 1_000


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
        told: whether the loss at update 1 was given as ``first_loss``.
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
    told: bool = False
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
    used_warmup: int | None = None,
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
        total_steps, used_warmup, averaged, notes: see `Log`; None takes T from the last step, and the warm-up from the
            rates.
        first_loss: the loss at the first update, for a log that begins later; None takes the first one logged.
        end: the last step that the log shows, if that has no loss.
        planned: T as the log states it, which counts unless the log goes on beyond.
        columns: what was read, by the names in the log.

    Raises:
        LogError: there is no curve in it.
    """
    if first_loss is not None and not math.isfinite(first_loss):
        raise LogError(f"{name}: first_loss must be a finite number, got {first_loss}")
    said = list(notes)
    logged, found = _pairs(name, steps, losses)
    _refuse_restarts(name, logged)
    at, values = _in_order(logged, found, "losses", said)
    last_step = max(int(at[-1]), int(end or 0))
    finite = np.isfinite(values)
    if finite.mean() < _MOSTLY_NAN:
        at, values, finite = at[finite], values[finite], finite[finite]
    if finite.sum() < 2:
        raise LogError(
            f"{name}: {int(finite.sum())} finite losses, and a curve needs at least 2: choose another column"
        )
    shift = 1 if _counts_from_zero(at) else 0
    if (empty := int(np.argmax(values != 0.0))) and np.isfinite(values[empty:]).sum() > 1:
        said.append(f"the first {empty} losses are 0, which no f(x0) is, and left out")
        at, values, finite = at[empty:], values[empty:], finite[empty:]
    updates, last = at + shift, last_step + shift
    if last > _MOST_UPDATES:
        raise LogError(
            f"{name}: the last step is {last:,}, which counts samples or tokens rather than updates: choose the column "
            "that counts updates"
        )
    total = _total(name, total_steps, last) if total_steps is not None else min(max(planned or 0, last), _MOST_UPDATES)
    end_of_losses = int(updates[-1])
    if not finite.all() and len(updates) < end_of_losses:
        said.append(f"{int((~finite).sum())} losses that are not finite are left out")
        updates, values = updates[finite], values[finite]
    if len(updates) > LONG:
        every = -(-len(updates) // MOST)
        kept = np.unique(np.concatenate([np.arange(DENSE), np.arange(DENSE, len(updates), every), [len(updates) - 1]]))
        kept = kept[np.isfinite(values[kept])]
        said.append(f"of {len(updates):,} losses every {every}th is read, after the first {DENSE:,}")
        updates, values = updates[kept], values[kept]
    elif averaged:
        updates = _middles(updates)
    begins, told = int(updates[0]), first_loss is not None
    if begins == 1 and told:
        said.append("first_loss is not used: the log has the loss at update 1")
    if begins > 1:
        if not told:
            first_loss = float(values[np.isfinite(values)][0])
            begun = ", the middle of its first mean" if averaged else ""
            said.append(
                f"the log begins at update {updates[0]}{begun}: earlier losses are taken as {first_loss:.4g}, the "
                "first one logged; first_loss= (--first-loss) sets the loss at update 1"
            )
        updates, values = np.concatenate([[1], updates]), np.concatenate([[first_loss], values])
    if (without := int(updates[-1]) - len(updates)) > 0:
        apart, mean = float(np.median(np.diff(updates))), ", the mean over them" if averaged else ""
        which = f"a loss every {apart:.0f} updates{mean}: in between"
        if apart <= 1:
            which = f"{without:,} updates have no loss of their own:"
        said.append(f"{which} it is interpolated, with noise of the curve's own size")
    if end_of_losses < _UNFINISHED * total:
        said.append(f"the losses end at update {end_of_losses:,} of {total:,}: later ones are taken as the last one")
    of_updates, at_most = None, False
    if rates is not None and rate_steps is not None:
        known, seen = _in_order(*_pairs(name, rate_steps, rates), "rates", [])
        known, seen = known[np.isfinite(seen)], seen[np.isfinite(seen)]
        positive = len(seen) and seen.min() >= 0 and seen.max() > 0
        if not positive:
            said.append("the rates in the log are not positive numbers, so they are not used")
        elif known[-1] > (end_of_run := max(last_step, total)) + 2 * np.median(np.diff(at)):
            said.append(
                f"the rates are not used: their steps go to {known[-1]:,}, those of the losses to {end_of_run:,}"
            )
        else:
            known = known + shift
            of_updates = _every_rate(known, seen, last, said)
            if used_warmup is None:
                used_warmup, at_most = _used(known, seen, said)
    chosen = f"{', '.join(columns)}; " if columns else ""
    return Log(
        name, updates.astype(np.int64), values, of_updates, total, used_warmup, averaged, tuple(said), at_most, begins,
        told, f"{chosen}{end_of_losses:,} of {total:,} updates",
    )  # fmt: skip


def _pairs(name: str, steps: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    try:
        at, found = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # of tensors with a graph
        raise LogError(f"{name}: steps and values must be two lists of numbers: {error}") from None
    if at.ndim != 1 or at.shape != found.shape:
        raise LogError(
            f"{name}: steps and values must be two lists of one length, got shapes {at.shape}, {found.shape}"
        )
    if not len(at):
        raise LogError(f"{name}: no losses")
    whole = np.isfinite(at) & (at >= 0) & (at == np.round(at))
    if not whole.all():
        raise LogError(
            f"{name}: steps must be whole numbers from 0, got {at[~whole][0]:g}: choose the column that counts updates"
        )
    return at, found


def _refuse_restarts(name: str, at: Array) -> None:
    """A resume goes back a little; several epochs, or runs, begin again at the first step after equal stretches."""
    starts = np.flatnonzero((np.diff(at) < 0) & (at[1:] < at[1:2])) + 1
    ends = np.append(at[starts - 1], at[-1])
    if len(starts) and np.median(ends) > _ALIKE * ends.max():
        raise LogError(
            f"{name}: the steps begin again, {len(starts)} times: pass steps that count the whole run's "
            "updates, or one run alone"
        )


def _in_order(at: Array, values: Array, what: str, said: list[str]) -> tuple[NDArray[np.int64], Array]:
    """Rows with rising steps. Where a run resumed from an earlier step, the rows from there on replace the old ones."""
    steps = at.astype(np.int64)
    back = np.flatnonzero(np.diff(steps) <= 0) + 1
    often, share = _OUT_OF_ORDER
    if len(back) >= max(often, share * len(steps)):
        reverse, kept = np.unique(steps[::-1], return_index=True)
        if len(reverse) < len(steps):
            said.append(f"{len(steps) - len(reverse)} {what} are of a step that comes again: the last one counts")
        return reverse, values[::-1][kept]
    keep = np.ones(len(steps), dtype=bool)
    lowest = np.minimum.accumulate(steps[::-1])[::-1]  # of this row and all later ones
    keep[:-1] = steps[:-1] < lowest[1:]
    if same := int((np.diff(steps) == 0).sum()):
        said.append(f"{same} {what} are of a step that comes again: the last one counts")
        back = back[steps[back] < steps[back - 1]]
    if (again := back[steps[back] <= np.minimum.accumulate(steps)[back - 1]]).size:
        said.append(f"the log starts over at step {steps[again[-1]]}: the {again[-1]:,} {what} before are left out")
        back = back[back > again[-1]]
    if len(back):
        places = ", ".join(str(steps[i]) for i in back[:3]) + (", …" if len(back) > 3 else "")
        said.append(f"the run resumed at step {places}: the later {what} count")
    return steps[keep], values[keep]


def _counts_from_zero(steps: NDArray[np.int64]) -> bool:
    """Whether the first update is step 0, as it is for Lightning, which logs steps 49, 99, … every 50 updates."""
    first = int(steps[0]) + 1
    return first == 1 or (first > 2 and first == np.median(np.diff(steps)) and not ((steps + 1) % first).any())


def _middles(updates: NDArray[np.int64]) -> NDArray[np.int64]:
    """The middle of the updates that each mean is over."""
    gap = int(np.median(np.diff(updates)))
    before = max(0, int(updates[0]) - gap)
    return (np.concatenate([[before], updates[:-1]]) + 1 + updates) // 2


def _every_rate(known: NDArray[np.int64], seen: Array, last: int, said: list[str]) -> Array:
    """The rate of each update: on lines between those logged, the first of which goes on down to update 1."""
    rates, first, rise = np.interp(np.arange(1, last + 1), known, seen), int(known[0]), 0.0
    if len(known) > 1:
        rise = max(0.0, float((seen[1] - seen[0]) / (known[1] - known[0])))
        if (every := float(np.median(np.diff(known)))) > 1:
            said.append(f"a rate every {every:.0f} updates: in between it is taken on a line")
    if first > 1:
        rates[: first - 1] = np.maximum(0.0, seen[0] - rise * (first - np.arange(1, min(first, last + 1))))
        how = "on the line of their rise" if rise else "as the same"
        said.append(f"the first rate is logged at update {first:,}: earlier ones are taken {how}")
    return rates


def _used(known: NDArray[np.int64], seen: Array, said: list[str]) -> tuple[int, bool]:
    """The update at which the rate first reached its highest value, and whether it may have been long before."""
    reached = int(np.argmax(seen >= seen.max() * (1 - 1e-6)))
    end, (updates, share) = int(known[reached]), _UNSURE
    if reached == 0 and end <= 1:
        return 0, False
    unsure = reached == 0 or end - int(known[reached - 1]) > max(updates, share * end)
    if unsure:
        where = f"after update {known[reached - 1]:,}" if reached else "before"
        said.append(
            f"the rate is highest at update {end:,}, and none is logged {where}: the warm-up may have been shorter"
        )
    return end, unsure


def _total(name: str, total_steps: Any, last: int) -> int:
    try:
        total = operator.index(total_steps)
    except TypeError:
        raise LogError(f"total_steps must be a whole number, got {total_steps!r}") from None
    if total > _MOST_UPDATES:
        raise LogError(f"{name}: total_steps must be at most {_MOST_UPDATES:,}, got {total:,}")
    if total < last:
        raise LogError(
            f"{name}: total_steps={total}, but the log goes to update {last}: give the run's whole length, or none"
        )
    return total
