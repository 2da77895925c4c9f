"""Reads the states that a scheduler saves: recognises them and checks that they are whole."""

from collections.abc import Mapping
from typing import Any

from .hooks.clock import UpdateClock
from .hooks.groups import GroupRates
from .rule.state import State
from .rule.timeline import OPENING
from .saved import Checks, check, count, finite, list_of, number, optional, rate
from .search import PeakSearch

__all__ = ["STATE_VERSION", "differences", "read_state"]

STATE_VERSION = 8

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
    "base_lrs": list_of(rate),
    "pending": list_of(lambda x: isinstance(x, list | tuple) and len(x) == 2 and number(x[0]) and rate(x[1])),
    "said": list_of(lambda x: isinstance(x, str)),
    "clock": UpdateClock.SAVED,
    **GroupRates.SAVED,
    "search": lambda x: x is None or isinstance(x, Mapping),
}


def read_state(state: Any) -> dict[str, Any]:
    """Check a saved state. The argument is not modified.

    Raises:
        ValueError: the state is another scheduler's, has another version, or is damaged; the message says which.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"not an AdaptiveWarmup state: it is a {type(state).__name__}, not a dictionary")
    version = state.get("version")
    if "rule" not in state or "settings" not in state:
        for keys, whose in _OTHERS:
            if keys <= state.keys():
                raise ValueError(f"not an AdaptiveWarmup state: this is {whose} (it has {', '.join(sorted(keys))})")
        keys_seen = ", ".join(map(repr, list(state)[:6]))
        raise ValueError(f"not an AdaptiveWarmup state: its keys are {keys_seen or 'none'}")
    if version not in (STATE_VERSION - 1, STATE_VERSION):
        raise ValueError(
            f"the AdaptiveWarmup state has version {version!r}, and this autowarm reads versions {STATE_VERSION - 1} "
            f"and {STATE_VERSION}: resume the run with the autowarm that saved it"
        )
    if version != STATE_VERSION:
        state = _from_version_7(state)
    check(state, _SAVED)
    lists = {name: len(state[name]) for name in ("base_lrs", *GroupRates.SAVED)}
    if len(set(lists.values())) > 1:
        raise ValueError(f"the saved schedule is damaged: its lists by parameter group differ in length: {lists}")
    State.check(state["rule"])
    if state["search"] is not None:
        PeakSearch.check(state["search"])
    return dict(state)


def differences(saved: Mapping[str, Any], here: Mapping[str, Any], ignore: set[str]) -> dict[str, str]:
    """Describe the settings that differ, by name."""
    return {
        name: f"saved {saved.get(name)!r}, here {value!r}"
        for name, value in here.items()
        if name not in ignore and saved.get(name) != value
    }


def _from_version_7(old: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a state that does not say how many losses are in its statistics: all since the first few."""
    try:
        rule = dict(old["rule"])
        rule["given_target_loss"] = rule.pop("told")
        if rule["averages"] is not None:
            rule["averages"] = [*rule["averages"], float(max(0, rule["losses"] - OPENING))]
        return {**old, "version": STATE_VERSION, "rule": rule}
    except (KeyError, TypeError) as error:
        raise ValueError(f"the saved schedule, of version 7, is damaged: {type(error).__name__}: {error}") from None
