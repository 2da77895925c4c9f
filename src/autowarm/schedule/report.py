"""Reports the state of a schedule: numbers for a logger, a line of text, a plot."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..plotting import axes_or_new
from .profile import Profile
from .rule import OPEN_HORIZON, HostRule, Phase

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def metrics(phase: Phase, lr: float) -> dict[str, float | int | str]:
    """The dictionary that `AdaptiveWarmup.metrics` describes."""
    if phase.name == "search":
        return {"phase": "search", "share": float(phase.share), "lr": lr}
    rule = phase.on_host()
    found: dict[str, float | int | str | None] = {
        "phase": rule.name,
        "loss": rule.smoothed,
        "gap": None if rule.smoothed is None or rule.target_loss is None else rule.smoothed - rule.target_loss,
        "target_loss": rule.target_loss,
        "peak_gap": None if rule.profile is None else rule.profile.peak_gap,
        "share": rule.share,
        "lr": lr,
        "warmup_steps": rule.updates - rule.timeline.origin if rule.ended_by is None else rule.warmup_steps,
        "warmup_end": forecast(rule),
        "ended_by": rule.ended_by,
        "trained": None if rule.weights_trained is None else int(rule.timeline.trained),
    }
    return {name: value for name, value in found.items() if value is not None}


def forecast(rule: HostRule) -> int | None:
    """The update at which warm-up ended, or an estimate of when it will; None if nothing bounds it.

    The estimate assumes that log Δ keeps falling at its mean pace so far, and is never later than the ramp's end.
    """
    timeline, profile = rule.timeline, rule.profile
    if rule.ended_by is not None:
        return timeline.origin + rule.warmup_steps
    latest = math.inf if timeline.ramp is None else timeline.ramp.end
    made = rule.updates - rule.timeline.origin
    if rule.smoothed is not None and profile is not None and made > 0:
        gap0, peak_gap = profile.gap0, profile.peak_gap
        gap = rule.smoothed - rule.fstar
        if peak_gap <= gap < gap0:
            latest = min(latest, timeline.origin + made * math.log(gap0 / peak_gap) / math.log(gap0 / gap))
    return None if latest > 1e15 else max(rule.updates, math.ceil(latest))


def one_line(phase: Phase, updates: int, lr: float) -> str:
    """The text of the scheduler's ``repr``."""
    rule = phase.on_host()
    total = rule.timeline.total_steps
    words = [f"{phase.name}, update {updates} of {'an open run' if total is None else total}"]
    if phase.name == "search":
        return f"AdaptiveWarmup({words[0]}; lr {lr:.3g})"
    if rule.timeline.trained:
        words.append("trained weights")
    words.append(f"lr {lr:.3g} ({rule.share:.3g} of the peak)")
    profile = rule.profile
    if rule.ended_by is not None:
        at = f" at a loss of {rule.smoothed:.4g}" if rule.started else ""
        words.append(f"warm-up took {rule.warmup_steps} updates, ended by {rule.ended_by}{at}")
    elif not rule.started:
        words.append("no loss yet")
    elif profile is None:
        words.append(f"loss {rule.smoothed:.4g}, from which no f* can be derived")
    else:
        ends = rule.fstar + profile.peak_gap
        words.append(f"loss {rule.smoothed:.4g}, f* = {rule.fstar:.4g}; warm-up ends at {ends:.4g}")
    expected = forecast(rule)
    if rule.ended_by is None and expected is not None and expected > rule.updates:
        words.append(f"warm-up ends by update {expected}")
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


def plot_plan(rule: HostRule, *, searching: bool, ax: "Axes | None") -> "Axes":
    """Plot the rate, or its share in a search, against the updates still to come, if no loss ends the warm-up."""
    ax = axes_or_new(ax, 5.5, 3.2)
    timeline, ahead, lr = rule.timeline, replace(rule), 1.0 if searching else rule.plan.lr
    end = rule.updates + OPEN_HORIZON if timeline.total_steps is None else max(timeline.total_steps, rule.updates + 1)
    updates = set(np.linspace(rule.updates, end - 1, 500).astype(int).tolist())
    if timeline.ramp is not None and rule.updates <= timeline.ramp.end < end:
        updates.add(math.ceil(timeline.ramp.end))  # where the decay begins
    rates = []
    for at in sorted(updates):
        if at > rule.updates:
            ahead.advance(at, None)
        rates.append(lr * ahead.share)
    ax.plot(sorted(updates), rates, label="planned")
    if (start := ahead.decay_start) is not None:
        word = "" if rule.ended_by else " at the latest"
        ax.axvline(start, linestyle="--", color="0.5", label=f"decay from update {start}{word}")
    what = "share of the peak rate" if searching else "learning rate"
    ax.set(xlabel="update", ylabel=what, xlim=(rule.updates, end), ylim=(0.0, None))
    ax.legend(frameon=False)
    return ax
