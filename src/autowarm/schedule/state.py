"""Reads the states that a scheduler saves: recognises them and checks that they are whole."""

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from .arguments import check_horizon
from .hooks.clock import UpdateClock
from .hooks.groups import GroupRates
from .recovery import Guard
from .rule import HostRule, Plan
from .rule.saved import Checks, check, count, finite, items, list_of, number, optional, rate, row_of, text
from .search import PeakSearch

STATE_VERSION = 9

# The keys that identify the states of other classes. The first match counts.
_OTHERS: tuple[tuple[set[str], str], ...] = (
    ({"param_groups", "state"}, "an optimizer's"),
    ({"T_max"}, "a CosineAnnealingLR's"),
    ({"T_0"}, "a CosineAnnealingWarmRestarts'"),
    ({"_schedulers", "_milestones"}, "a SequentialLR's"),
    ({"_schedulers"}, "a ChainedScheduler's"),
    ({"lr_lambdas"}, "a LambdaLR's"),
    ({"num_bad_epochs"}, "a ReduceLROnPlateau's"),
    ({"_schedule_phases"}, "a OneCycleLR's"),
    ({"total_size"}, "a CyclicLR's"),
    ({"milestones", "gamma"}, "a MultiStepLR's"),
    ({"step_size", "gamma"}, "a StepLR's"),
    ({"gamma"}, "an ExponentialLR's"),
    ({"start_factor"}, "a LinearLR's"),
    ({"power"}, "a PolynomialLR's"),
    ({"total_iters", "factor"}, "a ConstantLR's"),
)

_SAVED: Checks = {
    "settings": {"total_steps": optional(count), "kappa": optional(finite)},
    "last_epoch": lambda x: x == -1 or count(x),  # SequentialLR sets −1 until the scheduler's turn has come
    "step_count": count,
    "lr": lambda x: finite(x) and x > 0,
    "base_lrs": list_of(rate),
    "pending": list_of(row_of(number, rate)),
    "said": list_of(text),
    "clock": UpdateClock.SAVED,
    **GroupRates.SAVED,
    "recovery": optional(items),
    "search": optional(items),
}


def read_state(state: Any) -> dict[str, Any]:
    """Check a saved state, which stays as it is; ValueError says whose it is, of which version, or what is damaged."""
    if not isinstance(state, Mapping):
        raise ValueError(f"not an AdaptiveWarmup state: it is a {type(state).__name__}, not a dictionary")
    version = state.get("version")
    if "rule" not in state or "settings" not in state:
        for keys, whose in _OTHERS:
            if keys <= state.keys():
                raise ValueError(f"not an AdaptiveWarmup state: this is {whose} (it has {', '.join(sorted(keys))})")
        keys_seen = ", ".join(map(repr, list(state)[:6]))
        raise ValueError(f"not an AdaptiveWarmup state: its keys are {keys_seen or 'none'}")
    if version != STATE_VERSION:
        raise ValueError(
            f"the AdaptiveWarmup state has version {version!r}, and this autowarm reads version {STATE_VERSION}: "
            "resume the run with the autowarm that saved it"
        )
    check(state, _SAVED)
    lists = {name: len(state[name]) for name in ("base_lrs", *GroupRates.SAVED)}
    if len(set(lists.values())) > 1:
        raise ValueError(f"the saved schedule is damaged: its lists by parameter group differ in length: {lists}")
    HostRule.check(state["rule"])
    search = None if state["search"] is None else PeakSearch.read(state["search"])
    recovery = None if state["recovery"] is None else Guard.read(state["recovery"])
    return {**state, "search": search, "recovery": recovery}


def resumed(
    state: Mapping[str, Any], settings: Mapping[str, Any], plan: Plan, optimizer: Optimizer, *, kappa_counted: bool
) -> tuple[HostRule, str | None]:
    """The rule of a state that `read_state` returned, and a warning if it was saved under another ``total_steps``.

    If κ was counted, from the optimizer's tensors, a saved κ stays. Other settings must not differ.
    """
    saved, rule_state, peaks = state["settings"], state["rule"], state["base_lrs"]
    ignored = {"total_steps", "chance_loss", "trained", "recover"}  # the state knows whether the weights were trained
    begun = rule_state["gap0"] is not None or state["search"] is not None
    if kappa_counted and saved.get("kappa") is not None and begun:
        ignored.add("kappa")  # it was computed before groups were added or frozen, and stays
    differ = {
        name: f"saved {saved.get(name)!r}, here {value!r}"
        for name, value in settings.items()
        if name not in ignored and saved.get(name) != value
    }
    if len(peaks) > len(optimizer.param_groups):
        differ["parameter groups"] = f"saved {len(peaks)}, here {len(optimizer.param_groups)}"
    if differ:
        what = "; ".join(f"{name}: {how}" for name, how in differ.items())
        raise ValueError(f"the saved schedule differs from this one: {what}")
    rule = HostRule.of(plan.at(state["lr"], saved["kappa"]), rule_state)
    if settings["trained"] is not None:
        rule.settle(settings["trained"])
    total, planned = settings["total_steps"], rule.timeline.planned_steps
    if total in (saved["total_steps"], planned):
        return rule, None
    check_horizon(total, plan.decay, rule.updates)
    rule.extend(total)
    return rule, (
        f"the schedule was saved for total_steps={planned} and is loaded for total_steps={total}: it continues to "
        f"{total}, as after extend({total})"
    )
