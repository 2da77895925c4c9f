"""Every optimizer, schedule and small task by its name: what makes it, and what is said of it.

Configs, commands, help texts and messages ask here, so that a name stands in one place: a new optimizer or schedule is
a row of a table, a new small task a file in `tasks/small`, whose first line says what it is. Nothing here imports
torch: a place is ``module:name``, which `pkgutil.resolve_name` imports when it is needed.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template
from typing import Any, TypeVar

from .errors import nearest

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True)
class Optimizer:
    """An optimizer of the lab."""

    title: str  # its name as its authors spell it
    place: str  # its class; one with `from_model` groups the weights itself
    norm: str = ""  # the geometry of its steps, if it has one: `autowarm.geometry` names it
    defaults: Mapping[str, Any] = field(default_factory=dict)  # arguments that differ from those of its class
    rate_free: bool = False  # whether it finds its rate itself, so that `lr` is a factor on it


@dataclass(frozen=True)
class Schedule:
    """A schedule of the lab."""

    about: str  # what it does, after "it"
    place: str  # makes it from an optimizer, a `ScheduleConfig` and the number of steps
    ours: bool = False  # whether it is an `AdaptiveWarmup`, which takes a target loss, Δ' and options
    watches: bool = False  # whether it is stepped with the loss
    by_hand: bool = False  # whether `warmup_steps` sets the length of its warm-up
    needs_target: bool = False  # whether it cannot do without a target loss


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
OURS = [name for name, one in OPTIMIZERS.items() if one.place.startswith("autowarm:")]

_HERE = "autowarm.lab.training.schedules"
SCHEDULES: Mapping[str, Schedule] = {
    "adaptive": Schedule("is the library's default", f"{_HERE}:adaptive", ours=True, watches=True),
    "paper": Schedule("is its Algorithm 1 to the letter", f"{_HERE}:paper", ours=True, watches=True, needs_target=True),
    "linear": Schedule(
        "is the hand-set baseline: the rate rises from lr/div to lr over `warmup_steps`, then decays",
        f"{_HERE}:linear", by_hand=True,
    ),
    "untuned": Schedule("is a cosine after a linear warm-up of 2/(1 − β2) updates", f"{_HERE}:untuned"),
    "constant": Schedule("leaves the rate alone, for optimizers that schedule themselves", f"{_HERE}:constant"),
    "greedy": Schedule("is transformers' GreedyLR between lr/div and lr", f"{_HERE}:greedy", watches=True),
    "wsd": Schedule("is transformers' warmup-stable-decay, 10 % and 20 % of the run", f"{_HERE}:wsd"),
}  # fmt: skip

# The keys of a schedule's config that some kinds ignore, and which kinds follow them.
FOLLOWED: Mapping[str, Sequence[str]] = {
    key: [name for name, one in SCHEDULES.items() if follows(one)]
    for key, follows in {
        "warmup": lambda one: one.ours or one.by_hand,
        "decay": lambda one: one.ours or one.by_hand,
        "target_loss": lambda one: one.ours or one.needs_target,
        "div": lambda one: one.watches or one.by_hand,  # what watches the loss starts low, too
        "sigma_f2": lambda one: one.ours and one.needs_target,
        "peak_gap": lambda one: one.ours,
        "options": lambda one: one.ours,
    }.items()
}

# Each small task is a file, which holds a `TASK`.
_FILES = {path.stem.replace("_", "-"): path for path in sorted(Path(__file__).parent.glob("tasks/small/[a-z]*.py"))}
SMALL_TASKS: Mapping[str, str] = {name: f"autowarm.lab.tasks.small.{path.stem}:TASK" for name, path in _FILES.items()}


def check(key: str, name: str, known: Iterable[str], what: str = "") -> None:
    """Raise ValueError if the name under this key is not known; the message suggests the nearest one."""
    known = list(known)
    if name not in known:
        raise ValueError(f"{key}: unknown {f'{what} ' if what else ''}{name!r}; {nearest(name, known)}")


def either(names: Iterable[str]) -> str:
    """Return the names with an "or" before the last one."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def described(kind: _Class) -> _Class:
    """Fill in what a config's docstring, its help text, says of names: `$optimizers`, `$schedules` and so on."""
    kind.__doc__ = Template(kind.__doc__ or "").safe_substitute(_words())
    return kind


@cache
def _words() -> dict[str, str]:
    about = {name: (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0].rstrip(".")
             for name, path in _FILES.items()}  # fmt: skip
    return {
        "ours": ", ".join(OURS),
        "peers": either(name for name in OPTIMIZERS if name not in OURS),
        "rate_free": either(one.title for one in OPTIMIZERS.values() if one.rate_free),
        "kinds": either(SCHEDULES),
        "schedules": "; ".join(f'"{name}" {one.about}' for name, one in SCHEDULES.items()),
        "needing_target": either(name for name, one in SCHEDULES.items() if one.needs_target),
        "with_decay": either(FOLLOWED["decay"]),
        "with_div": either(FOLLOWED["div"]),
        "tasks": either(f"{name} ({text})" for name, text in about.items()),
    }
