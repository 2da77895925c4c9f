"""The result of a replay: numbers, a table in text, a plot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._torch.plotting import BLUE, GREEN, GREY, INK, ORANGE, axes_or_new
from .log import Log

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LATE = 0.02  # of the run: a log that begins later has missed what f(x0) is
_ALIKE, _CLOSE = 0.25, 0.01  # two lengths that differ less, of the longer or of the run, are alike
_MOST_POINTS = 4_000  # of a plotted line; more would show the same, in a larger file


@dataclass(frozen=True, eq=False)
class Reading:
    """What the scheduler did with one way of reading a log.

    Attributes:
        total_steps: T.
        warmup_steps: the update at which the warm-up ended; None if it did not.
        ended_by: what ended it, in the scheduler's words; None if nothing did.
        rates: the rate of each update.
        losses: the loss that the scheduler was given at each update.
        notes: what the scheduler warned about.
    """

    total_steps: int
    warmup_steps: int | None
    ended_by: str | None
    rates: NDArray[np.float64]
    losses: NDArray[np.float64]
    notes: tuple[str, ...] = ()

    @property
    def warmup_share(self) -> float | None:
        """The warm-up as a share of the run; None if it did not end."""
        return None if self.warmup_steps is None else self.warmup_steps / self.total_steps

    def __str__(self) -> str:
        """The end of the warm-up in a few words: "812 (16.2%), by the loss", or "by the clock", at max_warmup."""
        if self.warmup_steps is None or self.ended_by is None:
            return "not ended"
        what = f"the {self.ended_by}" if self.ended_by in ("loss", "clock") else self.ended_by
        return f"{share_of(self.warmup_steps, self.total_steps)}, by {what}"

    def __repr__(self) -> str:
        return f"Reading(warm-up {self})"


@dataclass(frozen=True, eq=False, repr=False)
class Replay:
    """Where the scheduler would have ended a past run's warm-up, beside the warm-up that was used.

    Attributes:
        log: the run.
        recorded: each logged loss given at its own update.
        closed_loop: the loss as a function of the summed rate; None if the log has no rates.
    """

    log: Log
    recorded: Reading
    closed_loop: Reading | None

    @property
    def used_warmup(self) -> int | None:
        """The update at which the recorded rate first reached its highest value; None if the log has no rates.

        It is only a bound if `log.used_at_most` is true.
        """
        return self.log.used_warmup

    @property
    def reading(self) -> Reading:
        """The reading to go by: the closed loop, or the log as recorded if it has no rates."""
        return self.closed_loop or self.recorded

    @property
    def warmup_steps(self) -> int | None:
        """The update at which the warm-up would have ended, by `reading`; None if it would not."""
        return self.reading.warmup_steps

    @property
    def ended_by(self) -> str | None:
        """What would have ended it, by `reading`."""
        return self.reading.ended_by

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before you trust the result, in sentences."""
        missing = () if self.closed_loop else ("the log has no rates (lr= names them), so there is no closed loop",)
        of_scheduler = [note for reading in (self.recorded, self.closed_loop) if reading for note in reading.notes]
        return tuple(dict.fromkeys([*self.log.notes, *missing, *of_scheduler]))

    @property
    def answer(self) -> str:
        """Your warm-up, ours, and what follows from it, in sentences."""
        log, ours, used = self.log, self.warmup_steps, self.used_warmup
        late = ""
        if log.begins > _LATE * self.log.total_steps and log.begins > 1:
            late = f"The log begins at update {share_of(log.begins, self.log.total_steps)}, so this is a guess. "
        yours = "not in the log" if used is None else f"{self.used_words.replace(' (', ' updates (')}"
        if ours is None:
            return f"{late}Your warm-up: {yours}. Ours would not have ended."
        then = f"Ours would have ended at {self.reading}."
        if self.ended_by == "clock":
            follows = "The loss fell too slowly to end it, so for this run ours is a ramp of fixed length."
        elif used is None:
            follows = "With the learning rates in the log, yours would stand beside it."
        elif abs(ours - used) <= max(_ALIKE * max(ours, used), _CLOSE * self.log.total_steps):
            follows = "The two are alike, so little would change."
        else:
            than = "shorter" if ours < used else "longer"
            follows = f"Ours is {than}. Whether that trains better, only a run shows: see autowarm compare."
        return f"{late}Your warm-up: {yours}. {then} {follows}"

    def __repr__(self) -> str:
        """What was read, the answer, and the details."""
        lines = [
            f"{self.log.name}: read as {self.log.chosen}",
            f"  {self.answer}",
            f"  as recorded          {self.recorded}",
            f"  closed loop          {self.closed_loop or 'needs the learning rates'}",
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    @property
    def used_words(self) -> str:
        """The warm-up that was used, in words."""
        if self.used_warmup is None:
            return "not in the log"
        at_most = "at most " if self.log.used_at_most else ""
        return at_most + share_of(self.used_warmup, self.log.total_steps) if self.used_warmup else "none"

    def plot(self, axes: "Sequence[Axes] | None" = None) -> "Sequence[Axes]":
        """Plot the logged losses above the rates, as shares of the peak: used, as recorded, and closed loop.

        Args:
            axes: two matplotlib axes to draw on; None makes new ones.

        Raises:
            ImportError: matplotlib is not installed.
        """
        above, below = axes = axes_or_new(axes, 5.6, 5.2, rows=2)
        log, total = self.log, self.log.total_steps
        finite = np.isfinite(log.losses)
        updates, losses = log.updates[finite], log.losses[finite]
        _line(above, updates, losses, color=GREY, linewidth=0.8)
        low, high = losses.min(), max(losses[0], np.quantile(losses, 0.999))  # a spike may leave the plot
        room = 0.05 * (high - low) or 1.0
        above.set(ylim=(low - room, high + room), ylabel="loss")
        peak = 1.0 if log.rates is None else log.rates.max()
        shown: list[tuple[str, NDArray[np.float64], int | None, str, str]] = []
        if log.rates is not None:
            shown.append((f"used: {self.used_words}", log.rates, self.used_warmup, BLUE, "-"))
        shown.append((f"as recorded: {self.recorded}", self.recorded.rates, self.recorded.warmup_steps, GREEN, ":"))
        if self.closed_loop is not None:
            looped = self.closed_loop
            shown.append((f"closed loop: {looped}", looped.rates, looped.warmup_steps, ORANGE, "--"))
        for label, rates, end, colour, style in shown:
            look: dict[str, Any] = {"color": colour, "linestyle": style}
            _line(below, np.arange(1, len(rates) + 1), rates / peak, label=label, **look)
            if end:
                above.axvline(end, linewidth=1.2, **look)
        below.set(xlabel="update", ylabel="rate / peak", ylim=(0.0, 1.05))
        for ax in axes:
            ax.set_xlim(0, total)
        below.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), labelcolor=INK, frameon=False)
        return axes


def _line(ax: "Axes", updates: NDArray[Any], values: NDArray[np.float64], **look: Any) -> None:
    every = -(-len(updates) // _MOST_POINTS)
    ax.plot(updates[::every], values[::every], **look)


def share_of(steps: int, total: int) -> str:
    """A number of updates with its share of the run."""
    return f"{steps:,} ({100 * steps / total:.1f}%)"
