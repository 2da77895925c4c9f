"""Reads the states that a scheduler saves: recognises them and checks that they are whole."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from .rule.averages import OPENING
from .shapes import DECAYS

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


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _finite(x: Any) -> bool:
    return _number(x) and math.isfinite(x)


def _count(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def _share(x: Any) -> bool:
    return _finite(x) and 0 < x <= 1


def _list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, list | tuple) and all(map(holds, x))


def _optional(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda x: x is None or holds(x)


def _rate(x: Any) -> bool:
    return _finite(x) and x >= 0


def _observation(x: Any) -> bool:
    return isinstance(x, list | tuple) and len(x) == 2 and _number(x[0]) and _rate(x[1])


def _ramp(x: Any) -> bool:
    return isinstance(x, list | tuple) and len(x) == 3 and _count(x[0]) and _finite(x[1]) and _finite(x[2])


def _averages(x: Any) -> bool:
    # The scatter of losses such as 1e300 overflows to infinity.
    return (
        isinstance(x, list | tuple)
        and len(x) == 4
        and all(map(_finite, x[:2]))
        and all(_number(n) and n >= 0 for n in x[2:])
    )


def _first(x: Any) -> bool:
    return isinstance(x, Mapping) and all(isinstance(x.get(name), list) for name in ("weights", "state", "counters"))


def _search(x: Any) -> bool:
    return (
        isinstance(x, Mapping)
        and _list_of(_number)(x.get("losses"))
        and _count(x.get("steps"))
        and all(isinstance(x.get(name), bool) for name in ("ahead", "doubt", "begun"))
        and _optional(_list_of(_first))(x.get("first"))
    )


Checks = Mapping[str, "Callable[[Any], bool] | Checks"]
_NESTED: Checks = {
    "settings": {"total_steps": _optional(_count), "kappa": _optional(_finite)},
    "search": _optional(_search),
    "last_epoch": lambda x: x == -1 or _count(x),  # SequentialLR sets −1 until the scheduler's turn has come
    "step_count": _count,
    "base_lrs": _list_of(_rate),
    "rates": _list_of(_rate),
    "written": _list_of(_rate),
    "aims": _list_of(_rate),
    "factors": _list_of(_optional(_rate)),
    "warms": _list_of(lambda x: isinstance(x, bool)),
    "pending": _list_of(_observation),
    "said": _list_of(lambda x: isinstance(x, str)),
    "clock": {
        "made": _count,
        "ever_stepped": lambda x: isinstance(x, bool),
        "first_tick": lambda x: x in (None, 0, 1),
        "idle": _count,
    },
    "rule": {
        "share": _share,
        "ended_by": lambda x: x in (None, "gap", "max_warmup", "decay_now"),
        "warmup_steps": _count,
        "decay_start": _optional(_count),
        "updates": _count,
        "losses": _count,
        "opening": _list_of(_finite),
        "averages": _optional(_averages),
        "weight": lambda x: _finite(x) and 0 <= x <= 1 + 1e-9,
        "failures": _count,
        "planned_steps": _optional(_count),
        "total_steps": _optional(_count),
        "decay": lambda x: x is None or x in DECAYS,
        "origin": _count,
        "ramp": _optional(_ramp),
        "decay_peak": _share,
        "cut": _share,
        "bound": _optional(_ramp),
        "window": lambda x: _finite(x) and x >= 1,
        "trained": lambda x: isinstance(x, bool),
        "told": _optional(_finite),
        "target_loss": _optional(_finite),
        "gap0": _optional(_finite),
        "peak_gap": _optional(_finite),
    },
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
    _check(state, _NESTED, "")
    lists = {name: len(state[name]) for name in ("base_lrs", "rates", "written", "aims", "factors", "warms")}
    if len(set(lists.values())) > 1:
        raise ValueError(f"the saved schedule is damaged: its lists by parameter group differ in length: {lists}")
    rule = state["rule"]
    if (rule["ended_by"] is None) != (rule["decay_start"] is None):
        raise ValueError("the saved schedule is damaged: 'rule.ended_by' and 'rule.decay_start' contradict each other")
    if rule["gap0"] is not None and not (rule["peak_gap"] is not None and 0 < rule["peak_gap"] < rule["gap0"]):
        raise ValueError("the saved schedule is damaged: 'rule.peak_gap' is not between 0 and 'rule.gap0'")
    if (rule["opening"] or rule["averages"] is not None) and rule["target_loss"] is None:
        raise ValueError("the saved schedule is damaged: 'rule.target_loss' is missing after the first loss")
    return dict(state)


def differences(saved: Mapping[str, Any], here: Mapping[str, Any], ignore: set[str]) -> dict[str, str]:
    """Describe the settings that differ, by name."""
    return {
        name: f"saved {saved.get(name)!r}, here {value!r}"
        for name, value in here.items()
        if name not in ignore and saved.get(name) != value
    }


def _check(state: Any, checks: Checks, path: str) -> None:
    if not isinstance(state, Mapping):
        raise ValueError(f"the saved schedule is damaged: {path.rstrip('.')!r} is {state!r}")
    for name, holds in checks.items():
        if name not in state:
            raise ValueError(f"the saved schedule is damaged: {path + name!r} is missing")
        if callable(holds):
            if not holds(state[name]):
                raise ValueError(f"the saved schedule is damaged: {path + name!r} is {state[name]!r}")
        else:
            _check(state[name], holds, f"{path}{name}.")


def _from_version_7(old: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a state that does not say how many losses are in its statistics: all since the opening."""
    try:
        rule = dict(old["rule"])
        if rule["averages"] is not None:
            rule["averages"] = [*rule["averages"], float(max(0, rule["losses"] - OPENING))]
        return {**old, "version": STATE_VERSION, "rule": rule}
    except (KeyError, TypeError) as error:
        raise ValueError(f"the saved schedule, of version 7, is damaged: {type(error).__name__}: {error}") from None
