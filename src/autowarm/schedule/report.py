"""Reports the state of a schedule: numbers for a logger, a line of text, a plot."""

import math
from typing import TYPE_CHECKING

import numpy as np

from ..plotting import axes_or_new
from . import core
from .profile import Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def metrics(state: core.State, lr: float) -> dict[str, float | int | str]:
    """The dictionary that `AdaptiveWarmup.metrics` describes."""
    known = None not in (state.average, state.target_loss)
    found: dict[str, float | int | str | None] = {
        "phase": "warmup" if state.ended_by is None else "decay",
        "loss": state.average,
        "gap": state.average - state.fstar if known and state.average is not None else None,
        "target_loss": state.target_loss,
        "peak_gap": state.peak_gap,
        "share": state.share,
        "lr": lr,
        "warmup_steps": state.updates - state.origin if state.ended_by is None else state.warmup_steps,
        "warmup_end": forecast(state),
        "ended_by": state.ended_by,
        "trained": None if state.trained is None else int(state.short),
    }
    return {name: value for name, value in found.items() if value is not None}


def forecast(state: core.State) -> int | None:
    """The update at which warm-up ended, or an estimate of when it will; None if nothing bounds it.

    The estimate assumes that log Δ keeps falling at its mean pace so far, and is never later than the ramp's end. In
    the first losses there is no pace yet.
    """
    if state.ended_by is not None:
        return state.origin + state.warmup_steps
    latest = math.inf if state.ramp is None else state.ramp.end
    made = state.updates - state.origin
    if state.average is not None and state.gap0 is not None and state.peak_gap is not None and not state.opening:
        gap = state.average - state.fstar
        if made > 0 and state.peak_gap <= gap < state.gap0:
            pace = math.log(state.gap0 / gap) / made
            latest = min(latest, state.origin + math.log(state.gap0 / state.peak_gap) / pace)
    return None if latest > 1e15 else max(state.updates, math.ceil(latest))


def one_line(state: core.State, lr: float) -> str:
    """The text of the scheduler's ``repr``."""
    total = "an open run" if state.total_steps is None else state.total_steps
    words = [f"{'decay' if state.ended_by else 'warmup'}, update {state.updates} of {total}"]
    if state.short:
        words.append("trained weights")
    words.append(f"lr {lr:.3g} ({state.share:.3g} of the peak)")
    if state.ended_by is not None:
        at = "" if state.average is None else f" at a loss of {state.average:.4g}"
        words.append(f"warm-up took {state.warmup_steps} updates, ended by {state.ended_by}{at}")
    elif state.average is None:
        words.append("no loss yet")
    elif state.gap0 is None or state.peak_gap is None:
        words.append(f"loss {state.average:.4g}, from which no f* can be derived")
    else:
        ends = state.fstar + state.peak_gap
        words.append(f"loss {state.average:.4g}, f* = {state.fstar:.4g}; warm-up ends at {ends:.4g}")
    if state.ended_by is None and state.ramp is not None and state.ramp.end > state.updates:
        expected = None if state.opening or state.average is None else forecast(state)
        guess = "" if expected is None or expected >= state.ramp.end else f", by an estimate around {expected}"
        words.append(f"by update {math.ceil(state.ramp.end)} at the latest{guess}")
    return f"AdaptiveWarmup({'; '.join(words)})"


def plot_profile(profile: Profile, target_loss: float, rate: float, ax: "Axes | None") -> "Axes":
    """Plot η against the loss f* + Δ, from f(x0) on the left to f* on the right, and mark the current rate."""
    ax = axes_or_new(ax, 5.5, 3.2)
    gaps = np.linspace(0.0, profile.gap0, 500)[1:]
    ax.plot(target_loss + gaps, profile(gaps), label="η(Δ)")
    switch = target_loss + profile.peak_gap
    ax.axvline(switch, linestyle="--", color="0.5", label=f"switch to decay, loss {switch:.3g}")
    ax.axhline(rate, linestyle=":", color="0.3", label=f"rate now, {rate:.3g}")
    ax.set(xlabel="loss", ylabel="learning rate", xlim=(target_loss + profile.gap0, target_loss), ylim=(0.0, None))
    ax.legend(frameon=False)
    return ax


def plot_plan(plan: core.Plan, state: core.State, lr: float, ax: "Axes | None") -> "Axes":
    """Plot the rate against the updates still to come, if no loss ends the warm-up."""
    ax = axes_or_new(ax, 5.5, 3.2)
    now, total, ramp = state.updates, state.total_steps, state.ramp
    end = now + core.OPEN_HORIZON if total is None else max(total, now + 1)
    updates = set(np.linspace(now, end - 1, 500).astype(int).tolist())
    if ramp is not None and now <= ramp.end < end:
        updates.add(math.ceil(ramp.end))  # where the decay begins
    ahead, rates = state, []
    for at in sorted(updates):
        ahead = core.advance(plan, ahead, at) if at > now else ahead
        rates.append(lr * ahead.share)
    ax.plot(sorted(updates), rates, label="planned")
    if (start := ahead.decay_start) is not None:
        word = "" if state.ended_by else " at the latest"
        ax.axvline(start, linestyle="--", color="0.5", label=f"decay from update {start}{word}")
    ax.set(xlabel="update", ylabel="learning rate", xlim=(now, end), ylim=(0.0, None))
    ax.legend(frameon=False)
    return ax
