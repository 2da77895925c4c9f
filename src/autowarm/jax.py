"""The default rule as an optax transformation: `autowarm.schedule.core` for arrays, without torch."""

import math
from functools import partial
from typing import Any, NamedTuple

from ._version import install
from .schedule import core
from .schedule.planning import check_horizon, clean, peak_share
from .schedule.shapes import WSD_FALL, Decay, Shape, decay_shape, name_of

try:
    import jax
    import jax.numpy as jnp
    import optax
except ImportError as missing:
    raise ImportError(f"autowarm.jax needs jax and optax: {install('jax')}") from missing

_SHAPES: dict[str, Any] = {  # those that shapes.py states for plain numbers alone
    "cosine": lambda p: jnp.cos(0.5 * jnp.pi * p) ** 2, "1-sqrt": lambda p: 1.0 - jnp.sqrt(p),
    "wsd": lambda p: jnp.minimum(1.0, (1.0 - p) / WSD_FALL),
}  # fmt: skip
_STEPS = {"adam": 0.35, "lmo": 1.0}  # ‖d‖ as a share of the first update's norm, in which Adam's entries are all ±1


class AdaptiveWarmupState(NamedTuple):
    """What is known after an update; ``opening`` has ten entries, and all the others but ``inner`` are scalars."""

    share: Any  # η/lr, for the next update
    updates: Any  # made so far
    decay_start: Any  # the update at which the decay began; −1 during the warm-up
    opening: Any  # the first finite losses, and infinity where there is none yet
    target_loss: Any  # f*, if there is a profile
    gap0: Any  # Δ0; 0 if there is no profile, and the ramp alone sets the rate
    gap: Any  # the averaged gap as a share of Δ0, whose squares single precision holds; 1 if there is no profile
    last_update: Any  # the update of the last finite loss
    empty: Any  # losses in a row far below f(x0)
    limit: Any  # what multiplies the peak rate; 1 if its limit does not act
    inner: Any  # the state of the transformation inside


def adaptive_warmup(
    inner: optax.GradientTransformation, total_steps: int | None, *, div: float = 10.0, decay: Decay | Shape = "cosine",
    final_ratio: float = 0.0, target_loss: float | None = None, trained: bool = False, geometry: str = "sign",
    step: str | None = None, peak_limit: float | None = 2.5,
) -> optax.GradientTransformationExtraArgs:  # fmt: skip
    """Scale an optimizer's updates by a warm-up that the loss ends, and a decay: the default of `AdaptiveWarmup`.

    An update is scaled by the share of the peak rate that earlier losses gave (``state.share``), then its own loss is
    taken: pass it to ``update`` as ``value``, on several devices their mean.

    Args:
        inner: the optimizer, built with its peak rate, such as ``optax.adamw(1e-3)``.
        total_steps, div, decay, final_ratio: as for `AdaptiveWarmup`; a decay function maps arrays, in `jax.numpy`.
        target_loss: f*, by default 30% of f(x0). If the first losses are not above it, the ramp alone sets the rate.
        trained: whether the weights were trained before; this does not look at them.
        geometry: that of the optimizer's steps, which decides how far the loss must fall: "sign" for Adam's kind and
            Lion, "spectral" for Muon, "frobenius" for normalised SGD.
        step: how long its steps are, for ``peak_limit``: "adam" for Adam's kind, "lmo" for those of one length (Lion,
            Muon, normalised SGD). None knows nothing, so that there is no limit. It needs ``params`` in ``update``.
        peak_limit: as for `AdaptiveWarmup`, at the first update, whose norm it measures; state.limit is its factor.

    Raises:
        TypeError, ValueError: ``inner`` is no optax transformation, or another argument is out of range.

    Example:
        >>> optimizer = adaptive_warmup(optax.sgd(0.1), total_steps=100)
        >>> optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)), value=3.0)[0]  # a tenth of the peak rate
        Array([-0.01, -0.01], dtype=float32)
    """
    if not isinstance(inner, optax.GradientTransformation):
        raise TypeError(f"the first argument is an optax transformation, got a {type(inner).__name__}")
    if not (step is None or step in _STEPS):
        raise ValueError(f"step is one of {', '.join(_STEPS)}, or None, got {step!r}")
    numbers = clean(total_steps=total_steps, div=div, final_ratio=final_ratio, target_loss=target_loss)
    most, length = clean(peak_limit=peak_limit)["peak_limit"], numbers["total_steps"] or core.OPEN_HORIZON
    bears = most / _STEPS[step] / math.sqrt(min(length, core.OPEN_HORIZON)) if step and most else None
    check_horizon(numbers["total_steps"], shape := decay_shape(decay))
    inside, numbers["peak_share"] = optax.with_extra_args_support(inner), peak_share(geometry)
    plan = core.Plan(decay=_SHAPES.get(name_of(shape), shape), **numbers)
    begun = core.settle(plan, core.begin(plan), bool(trained))

    def init(params: Any) -> AdaptiveWarmupState:
        known = [begun.share, 0, -1, jnp.full(core.OPENING, jnp.inf), plan.target_loss or 0.0, 0.0, 1.0, 0, 0, 1.0]
        arrays = [x if isinstance(x, jax.Array) else jnp.asarray(x, type(x)) for x in known]
        return AdaptiveWarmupState._make([*arrays, inside.init(params)])

    def update(updates: Any, state: AdaptiveWarmupState, params: Any = None, *, value: Any, **extra: Any) -> Any:
        if bears is not None and params is None:
            raise ValueError("step= limits the peak by the weights: call update(grads, state, params, value=loss)")
        share, (updates, after) = state.share, inside.update(updates, state.inner, params, value=value, **extra)
        limit = state.limit
        if bears is not None:
            limit = jax.lax.cond(state.updates == 0, partial(_limit, bears), lambda *_: limit, params, updates)
        state = _advance(plan, begun, state._replace(inner=None), jnp.asarray(value, float).reshape(()))
        updates = jax.tree.map(lambda x: (share * limit * x).astype(x.dtype), updates)
        return updates, state._replace(inner=after, limit=limit)

    return optax.GradientTransformationExtraArgs(init, update)


def _limit(bears: float, params: Any, updates: Any) -> Any:
    """By how much to lower a peak under which the first update is this one."""
    usual = sum(x.shape[-1] / 3 for x in jax.tree.leaves(params) if jnp.ndim(x) > 1)  # kernels are (inputs, outputs)
    weights, norm = optax.global_norm(params), optax.global_norm(updates)
    most = bears * jnp.maximum(weights, math.sqrt(usual))
    return jnp.where((weights > 0.0) & (norm > most), most / norm, 1.0).astype(float)


def _advance(plan: core.Plan, begun: Any, state: AdaptiveWarmupState, loss: Any) -> AdaptiveWarmupState:
    state = state._replace(updates=state.updates + 1)
    now, ramp, total, end = state.updates, begun.ramp, plan.total_steps or core.OPEN_HORIZON, plan.final_ratio
    full, counts = jnp.isfinite(state.opening[-1]), jnp.isfinite(loss) & (state.decay_start < 0)
    averaged = _take(begun, state, loss, plan.target_loss is None)
    after = jax.tree.map(lambda x, y: jnp.where(full, x, y), averaged, _open(plan, state, loss))
    over = (after.gap < plan.peak_share) | (now >= math.ceil(ramp.end))
    eta = core.eta_share(jnp.maximum(after.gap, plan.peak_share), 1.0, plan.peak_share, plan.div)
    share = jnp.maximum(eta, ramp.share + (1.0 - ramp.share) * now / ramp.end)
    after = after._replace(share=share, decay_start=jnp.where(over, now, -1))
    state = jax.tree.map(lambda x, y: jnp.where(counts, x, y), after, state)
    passed = (now.clip(None, total - 1) - state.decay_start).clip(0) / (total - state.decay_start).clip(1)
    return state._replace(share=jnp.where(state.decay_start < 0, state.share, end + (1.0 - end) * plan.decay(passed)))


def _take(begun: core.State, state: AdaptiveWarmupState, loss: Any, derived: bool) -> AdaptiveWarmupState:
    profile, low = state.gap0 > 0.0, (loss >= 0.0) & (loss < core.EMPTY * (state.target_loss + state.gap0))
    empty, gap = jnp.where(low, state.empty + 1, 0), (loss - state.target_loss) / jnp.where(profile, state.gap0, 1.0)
    decay = math.log(max(begun.ema_weight, core.LEAST_GAP))  # for 1 minus it, rounded, loses four digits
    gap = state.gap - jnp.expm1((state.updates - state.last_update) * decay) * (jnp.clip(gap, 0.0, 1.0) - state.gap)
    counted = ~low | (empty >= core.OPENING)
    last_update = jnp.where(counted, state.updates, state.last_update)
    gap0 = jnp.where(loss < 0.0, 0.0, state.gap0) if derived else state.gap0  # an arbitrary zero: there is no scale
    gap = jnp.where(gap0 > 0.0, jnp.where(counted & profile, gap, state.gap), 1.0)
    return state._replace(gap=gap, gap0=gap0, last_update=last_update, empty=empty)


def _open(plan: core.Plan, state: AdaptiveWarmupState, loss: Any) -> AdaptiveWarmupState:
    losses = jnp.append(state.opening, loss)
    positive = jnp.sort(jnp.where(losses > 0.0, losses, jnp.inf))
    usual = jnp.nan_to_num(positive[(jnp.isfinite(positive).sum() - 1) // 2], posinf=0.0)
    counted = jnp.isfinite(losses) & ~((losses >= 0.0) & (losses < core.EMPTY * usual))
    opening = jnp.where(counted, losses, jnp.inf)[jnp.argsort(~counted, stable=True)][: core.OPENING]
    count, lowest = counted.sum(), jnp.sort(opening)
    given, first = plan.target_loss is not None, lowest[jnp.minimum(1, count - 1)]
    target = state.target_loss if given else first - core.EXPECTED_FALL * first
    empty = state.empty + jnp.isfinite(losses).sum() - count
    alike = lowest[(count - 1) // 2] + lowest[count // 2] <= 2.0 * core.SCALELESS * first
    scaled = given | alike & (3 * empty <= 2 * count) & (lowest[0] >= 0.0)
    first = jnp.where(first > target, first, opening[0])  # f(x0) may be at a given f* already
    gap0 = jnp.where(scaled & (first - target > core.LEAST_GAP), first - target, 0.0)
    known = {"target_loss": target, "gap0": gap0, "empty": jnp.where(count < core.OPENING, empty, 0)}
    return state._replace(opening=opening, last_update=state.updates, **known)
