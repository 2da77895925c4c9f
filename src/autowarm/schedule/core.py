"""The rule: how losses set the rate. Everything that AdaptiveWarmup decides is decided here, in plain numbers.

During warm-up the share of the peak rate, η/lr, is the higher of two:

- the paper's profile η(Δ), eq. 7 (practical_eta), at the averaged loss: the rate that the curvature allows at the gap
  Δ = loss − f*. It rises as the gap falls to Δ';
- a *ramp* in time, which reaches the peak at the longest warm-up. η(Δ) alone can stall, because the loss falls only as
  fast as the rate lets it.

The warm-up ends when the gap falls below Δ' (Algorithm 1, line 9), or when the ramp reaches the peak; an ordinary decay
takes the rest. f(x0) is the second lowest of the first ten losses and f* is 30 % of it. Δ' is a share of the first gap
Δ0 = f(x0) − f* that the optimizer's geometry decides (`planning.PEAK_SHARES`).

A `Plan` holds what a user gave, a `State` what is known now. Both are immutable: an error leaves everything as it was.
Without a ramp and without averaging this is the paper's Algorithm 1, line by line.
"""

import math
import statistics
from typing import Any, NamedTuple

from .planning import AVERAGES, MAX_WARMUPS, by_length
from .planning import Plan as Plan
from .shapes import DECAYS, Shape

# What shares of a run with an open end refer to: half of it is 2/(1 − β2) updates, twice the memory of Adam's moments.
OPEN_HORIZON = 4000
# f(x0) is the second lowest of this many first losses: if it were high by chance, every later loss would be a fall.
OPENING = 10
EXPECTED_FALL = 0.7  # of f(x0), at most, where f* is not given; in the paper's setup f* is then 3.3
TRAINED_WARMUP = 0.03  # that of trained weights, as a share of the run; a tenth costs them 0.04 % of the loss more
SCALELESS = 1.5  # times f(x0); first losses whose median is higher have no scale from which f* could be derived
EMPTY = 1e-3  # of f(x0); lower losses are of batches without a label, and no evidence, unless ten come in a row
# First losses below this share of the chance loss come from trained weights; in our fine-tuning study they were half.
TRAINED = 0.75
LEAST_GAP, MOST_GAP = 1e-100, 1e100  # whose squares neither underflow nor overflow; outside there is no profile
SAME_GAP = 0.05  # relative; a first loss has noise, and a profile that was calibrated for it is as good
LEAST_SHARE = 1e-30  # η(Δ) is positive for every Δ, but underflows for a loss of 10³⁰⁸


class Rise(NamedTuple):
    """A rise in time, from ``share`` at update ``start`` to the peak at update ``end``."""

    start: int
    share: float
    end: float


class State(NamedTuple):
    """What is known after an update."""

    share: float  # η/lr, for the next update
    updates: int  # made so far
    planned_steps: int | None  # T as given or extended; None if the end is open
    total_steps: int | None  # the same, or the end that `decay_now` has set
    ramp: Rise | None = None
    ema_weight: float = 0.0  # what one update leaves of the averaged loss
    target_loss: float | None = None  # f*, as given or derived from f(x0)
    gap0: float | None = None  # Δ0; None if there is no profile, and the ramp alone sets the rate
    peak_gap: float | None = None  # Δ'
    opening: tuple[float, ...] = ()  # the first finite losses, until there are enough for f(x0)
    average: float | None = None  # the averaged loss; in the opening, what f(x0) would be
    last_update: int = 0  # the update of the last finite loss
    empty: int = 0  # losses in a row far below f(x0); in the opening, in all
    failures: int = 0  # losses in a row that were not finite
    trained: bool | None = None  # whether the weights were trained before the run; None until someone has looked
    short: bool = False  # whether the ramp is that of trained weights
    ended_by: str | None = None  # "loss", "clock", "decay_now" or "alarm"; None during the warm-up
    warmup_steps: int = 0  # updates made at warm-up rates, once the warm-up has ended
    decay_start: int | None = None  # the update at which the decay began
    decay: str | None = None  # the decay that `decay_now` has chosen; None for the plan's
    decay_peak: float = 1.0  # the share that the decay falls from: below 1 if it was started by hand, or T shortened
    cut: float = 1.0  # the share at which the warm-up ended: below 1 if it was cut short
    bound: Rise | None = None  # limits the decay of an extended run, so that the rate does not jump


def begin(plan: Plan) -> State:
    """The start of a run: a warm-up at lr/div, with nothing known about the loss."""
    state = State(1.0 / plan.div, 0, plan.total_steps, plan.total_steps, target_loss=plan.target_loss)
    return _timed(plan, state, state.share)


def advance(plan: Plan, state: State, updates: int, loss: float | None = None) -> State:
    """The state after this many updates and one more loss.

    Without a loss, time goes on alone. A loss that is not finite leaves a warm-up's rate as it is. Raise ValueError if
    the first loss is not above ``target_loss``, or exceeds it by ``peak_gap`` or less.
    """
    finite = loss is not None and math.isfinite(loss)
    if loss is not None and (state.failures or not finite):
        state = state._replace(failures=0 if finite else state.failures + 1)
    if state.ended_by is None:
        if loss is not None:
            if not finite:
                return state._replace(updates=updates)
            state = _average(plan, state, updates, loss)
        state = state._replace(updates=updates)
        # The rate is the higher of the ramp and η(Δ), until one of them ends the warm-up.
        ramp = 0.0 if state.ramp is None else rise_share(state.ramp, updates, plan.warmup)
        gap0, peak_gap, fstar = state.gap0, state.peak_gap, state.target_loss
        if gap0 is None or peak_gap is None or fstar is None or state.average is None or state.opening:
            if ramp < 1.0:
                return state._replace(share=max(ramp, 1.0 / plan.div))  # no profile, or none that stands for good
            state = _end(state, "clock", 1.0)
        elif (gap := state.average - fstar) < peak_gap:  # line 9 of Algorithm 1: at Δ' itself, warm-up goes on
            state = _end(state, "loss", 1.0)
        elif ramp >= 1.0:
            state = _end(state, "clock", 1.0)
        else:
            return state._replace(share=max(ramp, LEAST_SHARE, profile_share(plan, gap, gap0, peak_gap)))
    # The decay needs no loss; an update that ended the warm-up is its first.
    return state._replace(updates=updates, share=_decay_share(plan, state, updates))


def _average(plan: Plan, state: State, updates: int, loss: float) -> State:
    """Take a loss into its exponential moving average, which begins at f(x0)."""
    average, gap0, fstar = state.average, state.gap0, state.target_loss
    if average is None or state.opening:
        return _open(plan, state._replace(updates=updates, last_update=updates), loss)
    if gap0 is not None and fstar is not None and plan.smoothing:
        low = 0.0 <= loss < EMPTY * (fstar + gap0)  # of a batch without a label, unless ten come in a row
        if low or state.empty:
            state = state._replace(empty=state.empty + 1 if low else 0)
            if 0 < state.empty < OPENING:
                return state
        if loss < 0.0 and plan.target_loss is None:  # the loss has an arbitrary zero, of which no f* is a share
            state = state._replace(target_loss=None, gap0=None, peak_gap=None)
        else:
            loss = min(max(loss, fstar), fstar + gap0)  # so that no outlier counts
    weight = state.ema_weight ** (updates - state.last_update) if plan.smoothing else 0.0  # or each loss counts
    return state._replace(average=weight * average + (1.0 - weight) * loss, last_update=updates)


def eta_share(gap: Any, gap0: float, peak_gap: float, div: float) -> Any:
    """η(Δ)/lr for Δ > 0, eq. 7 (practical_eta), in a form whose denominator is a sum of positive terms."""
    away = gap - peak_gap
    return 1.0 / (1.0 + (div - 1.0) * gap0 / (gap0 - peak_gap) ** 2 * away * (away / gap))


def profile_share(plan: Plan, gap: float, gap0: float, peak_gap: float) -> float:
    """η(Δ)/lr for Δ > 0. Raise ValueError where a profile of one's own leaves [0, lr]."""
    if plan.profile is None and plan.rho == 2.0:
        return float(eta_share(gap, gap0, peak_gap, plan.div))
    if plan.profile is None:
        from .profile import Profile  # which needs numpy

        return float(Profile(1.0, plan.div, gap0, peak_gap, plan.rho)(gap))
    rate, peak = float(plan.profile(gap)), float(plan.profile(peak_gap))
    if not (0.0 <= rate <= peak * (1.0 + 1e-9) < math.inf and peak > 0.0):
        raise ValueError(f"profiles are positive and finite, highest at peak_gap: got {rate} at {gap:g}, {peak} there")
    return min(1.0, rate / peak)


def _end(state: State, why: str, share: float) -> State:
    """The warm-up is over, at this share of the peak."""
    at = state.updates
    return state._replace(ended_by=why, warmup_steps=at, decay_start=at, cut=share, decay_peak=share)


def _decay_share(plan: Plan, state: State, updates: int) -> float:
    """The share of the peak rate in the decay; after update T it stays where it is."""
    start, total, passed = state.decay_start or 0, state.total_steps, 0.0
    if total is not None:
        passed = max(0, min(updates, total - 1) - start) / max(1, total - start)
    share = float((plan.decay if state.decay is None else DECAYS[state.decay])(passed))
    end = min(plan.final_ratio, state.decay_peak)
    if end > 0.0 or state.decay_peak < 1.0:
        share = end + (state.decay_peak - end) * share
    if state.bound is not None and updates < state.bound.end:
        share = min(share, rise_share(state.bound, updates, plan.warmup))
    return share


def steady_share(plan: Plan, state: State) -> float:
    """The share of groups without a warm-up: 1 until the decay, in which they fall while the others fall from `cut`."""
    if state.ended_by is None:
        return 1.0
    if state.cut == 1.0:
        return state.share
    end = min(plan.final_ratio, state.cut)
    return state.share / state.cut if end == state.cut else end + (1.0 - end) * (state.share - end) / (state.cut - end)


def _open(plan: Plan, state: State, loss: float) -> State:
    """Take one of the first losses. The first one must fit the plan; the last one calibrates for good, with f(x0)."""
    losses = (*state.opening, min(loss, plan.chance_loss or math.inf))
    usual = statistics.median_low([x for x in losses if x > 0.0] or [0.0])
    opening = tuple(x for x in losses if not 0.0 <= x < EMPTY * usual)  # the others are of batches without a label
    f0 = sorted(opening)[:2][-1]
    state = state._replace(opening=opening, average=f0, empty=state.empty + len(losses) - len(opening))
    is_first, is_last = len(opening) == 1, len(opening) == (OPENING if plan.smoothing else 1)
    if not (is_first or is_last):
        return state
    # Low first losses say, as the weights may have said before, that this is fine-tuning.
    chance = plan.chance_loss if plan.trained is None else None
    short = bool(state.trained) or (chance is not None and statistics.median(opening) < TRAINED * chance)
    state = state if short == state.short else _with_ramp(plan, state, short)
    calibrated = _calibrate(plan, state, f0)
    misfit = _misfit(plan, calibrated, f0)
    if misfit is None:
        state = calibrated
    elif is_first:
        raise ValueError(misfit)
    else:
        state = state._replace(average=opening[0])  # and what the first loss calibrated stays
    return state._replace(opening=(), empty=0) if is_last else state


def _calibrate(plan: Plan, state: State, f0: float) -> State:
    """Fix η(Δ) from f(x0), and f* if none is given: eq. 8 and 9 (constr_1, constr_2)."""
    target = plan.target_loss
    if target is None:
        scattered = statistics.median(state.opening) > SCALELESS * f0 or 3 * state.empty > 2 * len(state.opening)
        if f0 < LEAST_GAP or min(state.opening) < 0.0 or scattered:
            return state._replace(target_loss=None, gap0=None, peak_gap=None)
        target = f0 - EXPECTED_FALL * f0
    gap0 = f0 - target
    if not LEAST_GAP < gap0 < MOST_GAP:
        return state._replace(target_loss=target, gap0=None, peak_gap=None)
    peak_gap = plan.peak_gap(gap0) if callable(plan.peak_gap) else plan.peak_gap or plan.peak_share * gap0
    return state._replace(target_loss=target, gap0=gap0, peak_gap=peak_gap)


def _misfit(plan: Plan, state: State, f0: float) -> str | None:
    """Why this f(x0) does not fit what the plan gives, in words."""
    target, gap0 = state.target_loss, state.gap0
    if target is not None and f0 <= target and (f0 != 0.0 or not plan.smoothing):  # 0: of a batch without a label
        return (
            f"the first loss f(x0) = {f0:.6g} is not above the target loss f* = {target:.6g}: "
            "give a target_loss that the loss will approach from above, or none to have it derived from f(x0)"
        )
    if gap0 is not None and not 0 < (state.peak_gap or 0.0) < gap0:
        return f"peak_gap must lie between 0 and the first gap f(x0) − f* = {gap0:.6g}, got {state.peak_gap:.6g}"
    if gap0 is None or math.isclose(profiled := getattr(plan.profile, "gap0", gap0), gap0, rel_tol=SAME_GAP):
        return None
    return (
        f"the profile is for a first gap of {profiled:.6g}, and that of the run is f(x0) − f* = {gap0:.6g}: calibrate "
        "it for this one, or pass calibration=Calibration(..., rho=...), which does so at the first loss"
    )


def rise_share(rise: Rise, updates: int, shape: Shape) -> float:
    """The share of a rise after this many updates; 1 from its end on."""
    if updates >= rise.end:
        return 1.0
    return rise.share + (1.0 - rise.share) * float(shape(1.0 - (updates - rise.start) / (rise.end - rise.start)))


def _rise(plan: Plan, state: State, share: float, origin: int, length: int) -> Rise | None:
    """The rise from a share now to the peak, which is ``max_warmup`` of the length after ``origin``."""
    limits = (by_length(plan.max_warmup, MAX_WARMUPS, length), TRAINED_WARMUP if state.short else None)
    longest = [min(x, length) if isinstance(x, int) else x * length for x in limits if x is not None]
    return Rise(state.updates, share, origin + min(longest)) if longest else None


def _with_ramp(plan: Plan, state: State, short: bool) -> State:
    """Another T, or another longest warm-up: the ramp continues from its present share to its new end."""
    share = 1.0 / plan.div if state.ramp is None else rise_share(state.ramp, state.updates, plan.warmup)
    return _timed(plan, state._replace(short=short, total_steps=state.planned_steps), share)


def _timed(plan: Plan, state: State, share: float) -> State:
    """The ramp from this share, and the average, as they follow from the length of the warm-up and its decay."""
    length = OPEN_HORIZON if state.total_steps is None else max(1, state.total_steps)
    weight = 1.0 - 1.0 / max(1.0, by_length(plan.smoothing, AVERAGES, length) * length)
    return state._replace(ema_weight=weight, ramp=_rise(plan, state, share, 0, length))


def settle(plan: Plan, state: State, trained: bool) -> State:
    """Settle whether the weights were trained before: if they were, the ramp takes 3 % of the run at most."""
    state = state._replace(trained=trained)
    return state if trained == state.short or state.ended_by else _with_ramp(plan, state, trained)


def extend(plan: Plan, state: State, total_steps: int | None) -> State:
    """Another T. In the decay, climb to the decay of a longer run, or fall over the rest of a shorter one."""
    if total_steps == state.planned_steps == state.total_steps:
        return state
    new = state._replace(planned_steps=total_steps, total_steps=total_steps)
    if new.decay_start is None:
        new = _with_ramp(plan, new, new.short)
        over = new.ramp is not None and rise_share(new.ramp, new.updates, plan.warmup) >= 1.0
        return _end(new, "clock", new.share) if over and new.average is not None else new
    new = new._replace(bound=None)
    then = _decay_share(plan, new, new.updates)
    if then > state.share:
        left = OPEN_HORIZON if total_steps is None else max(1, total_steps - new.updates)
        return new._replace(bound=_rise(plan, new, state.share, new.updates, left))
    return new._replace(decay_peak=state.share, decay_start=new.updates) if then < state.share else new


def decay_now(plan: Plan, state: State, steps: int, decay: str) -> State:
    """Decay from the present rate, over this many updates."""
    if state.decay_start is None:
        state = _end(state, "decay_now", state.share)
    state = state._replace(decay_start=state.updates, total_steps=state.updates + steps, bound=None)
    return state._replace(decay_peak=state.share, decay=None if DECAYS[decay] is plan.decay else decay)


def lowered(state: State) -> State:
    """The peak has been lowered at an alarm: a warm-up ends here, at its present share."""
    return _end(state, "alarm", state.share) if state.decay_start is None else state
