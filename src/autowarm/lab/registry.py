"""Every optimizer, schedule and small task by its name, and what makes it.

Configs, commands and messages ask here: a new optimizer or schedule is a row of a table, a new small task a file in
`tasks/small`. Nothing here imports torch: a place is ``module:name``, which `pkgutil.resolve_name` imports when it is
needed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import nearest


@dataclass(frozen=True)
class Optimizer:
    title: str  # its name as its authors spell it
    place: str  # its class; one with `from_model` groups the weights itself
    norm: str = ""  # the geometry of its steps, if it has one: `autowarm.geometry` names it
    defaults: Mapping[str, Any] = field(default_factory=dict)  # arguments that differ from those of its class
    rate_free: bool = False  # whether it finds its rate itself, so that `lr` is a factor on it


@dataclass(frozen=True)
class Schedule:
    place: str  # makes it from an optimizer, a `ScheduleConfig` and the number of steps
    ours: bool = False  # whether it is an `AdaptiveWarmup`, which takes a target loss, Δ' and options
    watches: bool = False  # whether it is stepped with the loss
    by_hand: bool = False  # whether `warmup_steps` sets the length of its warm-up
    needs_target: bool = False  # whether it cannot do without a target loss
    title: str = ""  # what a reader calls it, if not by its key


OPTIMIZERS: Mapping[str, Optimizer] = {
    "muon": Optimizer("Muon", "autowarm:Muon", "spectral"),
    "lion": Optimizer("Lion", "autowarm:Lion", "sign"),
    "signsgd": Optimizer("signSGD", "autowarm:SignSGD", "sign"),
    "normsgd": Optimizer("normSGD", "autowarm:NormSGD", "frobenius"),
    "adamw": Optimizer("AdamW", "torch.optim:AdamW", "sign"),  # no theory covers it; sign geometry describes it best
    "radam": Optimizer("RAdam", "torch.optim:RAdam", defaults={"decoupled_weight_decay": True}),
    "schedule-free": Optimizer("Schedule-Free", "schedulefree:AdamWScheduleFree"),
    "prodigy": Optimizer("Prodigy", "prodigyopt:Prodigy", rate_free=True),
    "d-adaptation": Optimizer(
        "D-Adaptation", "dadaptation:DAdaptAdam", defaults={"decouple": True}, rate_free=True
    ),
}  # fmt: skip

_PLACE = "autowarm.lab.training.schedules"
SCHEDULES: Mapping[str, Schedule] = {
    "adaptive": Schedule(f"{_PLACE}:adaptive", ours=True, watches=True, title="default"),
    "paper": Schedule(f"{_PLACE}:paper", ours=True, watches=True, needs_target=True, title="Algorithm 1"),
    "linear": Schedule(f"{_PLACE}:linear", by_hand=True),
    "untuned": Schedule(f"{_PLACE}:untuned"),
    "constant": Schedule(f"{_PLACE}:constant"),
    "greedy": Schedule(f"{_PLACE}:greedy", watches=True),
    "wsd": Schedule(f"{_PLACE}:wsd"),
}  # fmt: skip


def _kinds(*flags: str) -> list[str]:
    return [name for name, one in SCHEDULES.items() if any(getattr(one, flag) for flag in flags)]


# The keys of a schedule's config that some kinds ignore, and the kinds that follow them.
FOLLOWED: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("warmup", "decay"), _kinds("ours", "by_hand")),
    **dict.fromkeys(("target_loss", "peak_gap", "options"), _kinds("ours")),
    "div": _kinds("watches", "by_hand"),  # what watches the loss starts low, too
    "sigma_f2": _kinds("needs_target"),
}

# Each small task is a file, which holds a `TASK`.
SMALL_TASKS: Mapping[str, str] = {
    path.stem.replace("_", "-"): f"autowarm.lab.tasks.small.{path.stem}:TASK"
    for path in sorted(Path(__file__).parent.glob("tasks/small/[a-z]*.py"))
}


def title(optimizer: str) -> str:
    """Return an optimizer's name as its authors spell it; a user's own is left as it is."""
    return OPTIMIZERS[optimizer].title if optimizer in OPTIMIZERS else optimizer


def check(key: str, name: str, known: Iterable[str], what: str = "") -> None:
    """Raise ValueError if the name under this key is not known; the message suggests the nearest one."""
    known = list(known)
    if name not in known:
        raise ValueError(f"{key}: unknown {f'{what} ' if what else ''}{name!r}; {nearest(name, known)}")


def either(names: Iterable[str]) -> str:
    """Return the names with an "or" before the last one."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
