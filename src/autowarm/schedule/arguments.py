"""Checks the arguments that a user passes."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from torch.optim import Optimizer

from ..geometry import Geometry, resolve
from ..optim.known import kappa_of, warn_of_own_rates
from ..optim.wrapped import unwrapped
from .checks import clean
from .core import Plan
from .groups import first_peak
from .planning import plan_of
from .shapes import name_of

Init = TypeVar("Init", bound=Callable[..., None])
# What people write out of habit, and what they mean.
_HABITS = {
    **dict.fromkeys(("num_training_steps", "max_steps", "T_max", "steps", "total_iters"), "total_steps"),
    **dict.fromkeys(("min_lr", "eta_min", "min_lr_ratio"), "final_ratio, a share of the peak rate"),
    **dict.fromkeys(("lr", "max_lr", "base_lr", "peak_lr", "learning_rate"), "the optimizer's lr: it is the peak rate"),
    "peak": "autowarm.find_rate, before the run? rewarm(peak=) changes the peak rate in it",
    **dict.fromkeys(("epoch", "last_epoch", "epochs"), "total_steps, in updates; a state resumes by load_state_dict"),
}  # fmt: skip
_NO_LENGTH = "the warm-up sets its own length, and AdaptiveWarmup's max_warmup= limits it"


class Arguments(NamedTuple):
    """A scheduler's arguments, checked."""

    optimizer: Optimizer  # the one inside a trainer's wrapper, which has no step hooks of its own
    settings: dict[str, Any]  # what ranks must share, and a resumed run with the saved one, in plain numbers and text
    plan: Plan  # what the rule follows
    kappa_counted: bool  # whether κ was computed from the optimizer's tensors
    max_nonfinite: int | None  # how many non-finite losses in a row raise an error; None for never


def checked(
    optimizer: Any, *, geometry: Any, warmup: Any, decay: Any, trained: Any, recover: Any, **given: Any
) -> Arguments:
    """Check what `AdaptiveWarmup` was given; it says which errors that may raise."""
    if not isinstance(inner := unwrapped(optimizer), Optimizer):
        swapped = ": the optimizer comes first, then total_steps" if isinstance(given["total_steps"], Optimizer) else ""
        raise TypeError(f"the first argument is the optimizer, got a {type(inner).__name__}{swapped}")
    max_nonfinite = clean(max_nonfinite=given.pop("max_nonfinite"))["max_nonfinite"]
    if not (trained is None or isinstance(trained, bool)):
        raise ValueError(f"trained must be True, False, or None to look at the weights, got {trained!r}")
    warn_of_own_rates(optimizer)
    check_recover(recover, inner)
    first_peak(inner)  # raises if there is none
    numbers = clean(**given)
    geometry, counted = None if geometry is None else resolve(geometry), False
    if geometry is not None and numbers["kappa"] is None and numbers["peak_gap"] is None:
        numbers["kappa"], counted = _kappa(inner, geometry), True
    settings = {
        "optimizer": type(inner).__name__,
        "geometry": None if geometry is None else repr(geometry),
        "warmup": name_of(warmup),
        "decay": name_of(decay),
        "trained": trained,
        "recover": recover,
        **numbers,
    }
    plan = plan_of(warmup=warmup, decay=decay, trained=trained, **numbers)
    return Arguments(inner, settings, plan, counted, max_nonfinite)


def check_recover(recover: Any, optimizer: Optimizer) -> None:
    """Raise ValueError if ``recover`` is unknown, or the optimizer's updates may be replays of a captured graph."""
    if not (isinstance(recover, bool) or recover == "warn"):
        raise ValueError(f'recover must be True, False, or "warn" to warn only, got {recover!r}')
    if recover is True and any(group.get("capturable") for group in optimizer.param_groups):
        raise ValueError(
            "recover=True restores weights between updates, which the replays of a captured graph (capturable=True) do "
            'not see: use recover="warn", or an optimizer that is not captured'
        )


def _kappa(optimizer: Optimizer, geometry: Geometry) -> float:
    try:
        return kappa_of(optimizer, geometry)
    except ValueError as error:
        raise ValueError(
            f"{error}. By default, AdaptiveWarmup needs no κ: leave out geometry=, and use it instead of "
            "AdaptiveWarmup.paper"
        ) from None


def plain_words(init: Init) -> Init:
    """Let a class that is given arguments by other names, or too many, say which ones it takes."""
    known = inspect.signature(init).parameters
    positional = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in known.values())
    open_ended = any(one.kind is one.VAR_KEYWORD for one in known.values())

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        ours = type(self).__name__
        if len(args) >= positional and not open_ended:
            raise TypeError(
                f"{ours} takes (optimizer, total_steps) and then names, got {len(args)} values: {_NO_LENGTH}"
            )
        check_names(ours, list(known)[1:], options, open_ended=open_ended)
        init(self, *args, **options)

    return checked  # type: ignore[return-value]


def check_names(ours: str, known: Sequence[str], options: Iterable[str], *, open_ended: bool = False) -> None:
    """Raise TypeError at the first option that has another name than those known, and say which one is meant."""
    for name in (name for name in options if name not in known):
        if "warmup" in name.lower().replace("_", ""):
            raise TypeError(f"{ours} has no {name}: {_NO_LENGTH}")
        if not open_ended:
            close = difflib.get_close_matches(name, known, 1)
            meant = _HABITS.get(name) or (f"{close[0]}?" if close else f"one of {', '.join(known)}")
            raise TypeError(f"{ours} has no {name}: do you mean {meant}")
