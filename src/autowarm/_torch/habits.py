"""What people write out of habit where a schedule takes another argument."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

Init = TypeVar("Init", bound=Callable[..., None])
# What people write out of habit, and what they mean.
_HABITS = {
    **dict.fromkeys(("num_training_steps", "max_steps", "T_max", "steps", "total_iters"), "total_steps"),
    **dict.fromkeys(("min_lr", "eta_min", "min_lr_ratio"), "final_ratio, a share of the peak rate"),
    **dict.fromkeys(("lr", "max_lr", "base_lr", "peak_lr", "learning_rate"), "the optimizer's lr: it is the peak rate"),
    **dict.fromkeys(("geometry", "kappa", "sigma_f2"), "calibration=autowarm.schedule.Calibration(...)"),
    **dict.fromkeys(("lr_scheduler_type", "name", "num_cycles"), "decay"),
    "model": "recover=model, to go back after loss spikes", "total_steps": "max_steps or epochs of the trainer?",
    "peak": "autowarm.find_rate, before the run? base_lrs hold the peak rates in it",
    **dict.fromkeys(("epoch", "last_epoch", "epochs"), "total_steps, in updates; a state resumes by load_state_dict"),
}  # fmt: skip
_NO_LENGTH = "the warm-up sets its own length, and AdaptiveWarmup's max_warmup= limits it"


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
